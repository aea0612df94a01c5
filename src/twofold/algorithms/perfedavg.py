"""Per-FedAvg: FedAvg on the loss after one gradient step, with cheap gradients (Fallah et al. 2020)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms.base import Evaluations, GradientOracle
from twofold.algorithms.descent import rows_of, trained
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Training
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, record, static

__all__ = ["PerFedAvg"]


@record
class PerFedAvg(Training):
    """w_m −= lr·g with g ≈ ∇f'_m(w − α∇f'_m(w)), the inner step on one batch, the outer one on another; then w = mean of the w_m.

    `hessian="none"` is the first-order form, g = ∇f̂'(w − α∇f̂'(w)). `hessian="free"` approximates the second derivative by a
    difference of two gradients: g − α(∇f̂'(w + δg) − ∇f̂'(w − δg))/(2δ), on the inner batch again, where Fallah et al. draw a third
    one. It runs on `objectives.maml(loss, alpha)`, with
    F = mean f'(w − α∇f'(w)). LSGD uses the exact gradient of F; the first-order form follows a slightly different direction.
    Clients take one gradient step of their own before they predict. A client with too few rows for a second batch uses the first
    one for both.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.maml(tw.losses.logistic(), alpha=0.1), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.PerFedAvg(lr=0.1, alpha=0.1, batch=2), rounds=3, record=())
    >>> result.w.shape, result.ledger.gradients_w.tolist()
    ((2,), [24, 24, 24])
    """

    alpha: float = 0.01  # α, the step of the inner gradient
    hessian: Literal["none", "free"] = static(default="none")
    delta: float = 1e-3  # δ, the step of the difference that approximates the second derivative
    name = "perfedavg"
    needs = "maml"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hessian not in ("none", "free"):
            raise InputError(f'PerFedAvg: hessian must be "none" (first order) or "free", got {self.hessian!r}.')

    def _doubled(self) -> PerFedAvg:
        """The method with batches of twice the size, for both steps; a shorter last batch of a pass is dropped."""
        return self if self.batch is None else dataclasses.replace(self, batch=2 * self.batch, drop_last=True)

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """The local steps."""

        def gradients(w: Pytree, beta: Pytree, sample: Sampled) -> tuple[Pytree, Pytree]:
            inner, outer = oracle.halves(sample)
            first = oracle.loss_gradient(w, inner, "w")
            found = oracle.loss_gradient(tree.step(w, -self.alpha, first), outer, "w")
            if self.hessian == "free":
                ahead, behind = (
                    oracle.loss_gradient(tree.step(w, sign * self.delta, found), inner, "w") for sign in (1, -1)
                )
                bent = tree.subtract(tree.learned(ahead), tree.learned(behind))
                found = tree.step(found, -self.alpha / (2 * self.delta), bent)
            return found, beta

        begun = oracle.outward(shared, private.beta)
        w, beta, memory = trained(self._doubled(), plan, begun, private.memory, oracle, key, gradients)
        return Personal(private.beta, memory), Message(oracle.inward(w, beta)[0])

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Both batches of every step, and the first batch twice more if differences approximate second derivatives."""
        each = rows_of(self._doubled(), rows)
        if self.batch is None:
            each = 2 * each
        else:  # a client with too few rows for a second batch uses the first one again
            each = jnp.where(jnp.asarray(rows) > self.batch, each, 2 * each)
        if self.hessian == "free":
            each = each + 2 * self._inner(rows)
        return Evaluations(each + jnp.zeros_like(plan.k), jnp.zeros_like(plan.k))

    def _inner(self, rows: ArrayLike) -> ArrayLike:
        """The rows of all inner batches of a round."""
        if self.batch is None:
            return rows_of(self, rows)
        steps = self.tau if self.epochs is None else self.epochs * jnp.maximum(jnp.asarray(rows) // (2 * self.batch), 1)
        return steps * jnp.minimum(self.batch, rows)
