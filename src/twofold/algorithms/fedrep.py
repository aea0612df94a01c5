"""FedRep: the private head first, then the shared body (Collins et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable

from jax.typing import ArrayLike

from twofold import randomness
from twofold.algorithms.base import Evaluations, GradientOracle
from twofold.algorithms.descent import local_steps, rows_of, rule
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Training
from twofold.randomness import Key
from twofold.tree import Pytree, record, static

__all__ = ["FedRep"]

HEAD = 1 << 30
"""The key number of the head's batches, which keeps them apart from the body's."""


@record
class FedRep(Training):
    """β_m −= lr·∇_β f̂_m for `head_epochs` passes with w fixed; then w_m −= lr·∇_w f̂_m with β_m fixed; then w = mean of the w_m.

    On `weight_sharing(loss, split=body)` this is FedRep as published. It minimises F = mean f'([w, β_m]), as FedPer does, but
    updates one block after the other.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(
    ...     tw.objectives.weight_sharing(tw.losses.logistic(), split=1), tw.Clients.from_list(made.clients)
    ... )
    >>> result = tw.solve(problem, tw.algorithms.FedRep(lr=0.1, batch=4, head_epochs=2), rounds=3, record=())
    >>> result.ledger.gradients_w.tolist(), result.ledger.gradients_beta.tolist()
    ([24, 24, 24], [48, 48, 48])
    """

    head_epochs: int = static(default=1)  # passes over the client's rows for the head, which is trained first
    name = "fedrep"

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """Train the head, then the body."""
        point, found = oracle.outward(shared, private.beta), rule(self, plan.k)
        begun = private.memory if self.keep else found.begin(*point)

        def moving(block: str) -> Callable[[Sampled, Pytree], Pytree]:
            one = found.only(block)

            def step(sample: Sampled, state: Pytree) -> Pytree:
                (w, beta), memory = state
                return one.step((w, beta), oracle.plain_gradients(w, beta, sample, block), memory)

            return step

        state = (point, begun)
        state = local_steps(self, oracle, randomness.at(key, HEAD), moving("beta"), state, self.head_epochs)
        (w, beta), memory = local_steps(self, oracle, key, moving("w"), state)
        w, beta = oracle.inward(w, beta)
        return Personal(beta, memory if self.keep else ()), Message(w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """The body's batches in w, the head's in β."""
        return Evaluations(rows_of(self, rows) + 0 * plan.k, rows_of(self, rows, self.head_epochs) + 0 * plan.k)
