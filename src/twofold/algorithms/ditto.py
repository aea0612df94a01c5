"""Ditto as published: FedAvg, plus a model for each client that is pulled towards the shared one (Li et al. 2021)."""

from __future__ import annotations

from jax.typing import ArrayLike

from twofold import randomness
from twofold.algorithms.base import Evaluations, GradientOracle
from twofold.algorithms.descent import local_steps, pulled, rows_of, rule
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Training, refuse_other_models
from twofold.randomness import Key
from twofold.tree import Pytree, record, static

__all__ = ["Ditto"]

OWN = 1 << 30
"""The key number of the personal model's batches, which keeps them apart from the shared model's."""


@record
class Ditto(Training):
    """β_m −= lr_beta·(∇f'_m(β_m) + λ(β_m − w)) with the w received, and w_m −= lr·∇f'_m(w_m); then w = mean of the w_m.

    It needs an objective whose w and β are both whole models (`mixture`, `multitask`). It approximately solves the two problems of
    `multitask(loss, lam, Lambda=∞)`: w minimises mean f'_m(w), and β_m minimises f'_m(β) + (λ/2)‖β − w‖². It is not a descent method
    for a single F, because the step on w ignores β.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=0.1), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.Ditto(lr=0.1, lam=0.1, batch=4), rounds=3, record=())
    >>> result.beta.shape, result.ledger.gradients_beta.tolist()
    ((3, 2), [24, 24, 24])
    """

    lam: float = 0.1  # λ, the strength of the pull towards the shared model
    own_epochs: int | None = static(
        default=None
    )  # passes over the rows for the personal model; None: as many as for the shared one
    name = "ditto"

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """Train the personal model, then the shared one."""
        (w, beta), found = oracle.outward(shared, private.beta), rule(self, plan.k)
        refuse_other_models(self, w, beta)
        of_w, of_beta = private.memory if self.keep else found.begin(w, beta)

        def own(sample: Sampled, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
            beta, memory = state
            gradient = pulled(oracle.loss_gradient(beta, sample, "beta"), self.lam, beta, w)
            return found.one_step(1, beta, gradient, memory)

        def common(sample: Sampled, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
            here, memory = state
            return found.one_step(0, here, oracle.loss_gradient(here, sample, "w"), memory)

        beta, of_beta = local_steps(self, oracle, randomness.at(key, OWN), own, (beta, of_beta), self.own_epochs)
        new, of_w = local_steps(self, oracle, key, common, (w, of_w))
        new, beta = oracle.inward(new, beta)
        return Personal(beta, (of_w, of_beta) if self.keep else ()), Message(new)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """The shared model's batches in w, the personal model's in β."""
        zero = 0 * plan.k
        return Evaluations(rows_of(self, rows) + zero, rows_of(self, rows, self.own_epochs) + zero)
