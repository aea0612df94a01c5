"""SCD-PFL: stochastic block coordinate descent (Algorithm SCD-PFL)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import Batch, drawn, known
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["SCD", "Message", "Plan"]


class Plan(NamedTuple):
    """The coin of an iteration: True if it updates w, False if β."""

    w: jax.Array


class Message(NamedTuple):
    """∇_w f̂_m on the sampled rows."""

    gradient: Pytree


@record
class SCD(Algorithm):
    """With probability p_w: w −= (η/p_w) mean ∇_w f̂_m; else β_m −= (η/p_β) p_m ∇_β f̂_m.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.SCD(batch=2), rounds=3, record=())
    >>> 0 < result.algorithm.eta < 1, result.ledger.rounds
    (True, 3)
    """

    eta: float | None = None  # η, the step size
    p_w: float | None = None  # the probability that an iteration updates w; p_β = 1 − p_w
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    name = "scd"
    corrects = frozenset[str]()
    rate = rated.scd

    def complete(self, facts: Facts) -> tuple[SCD, str | None]:
        """p_w = 𝓛^w/(𝓛^w+𝓛^β) and η = 1/(2𝓛); or p_w by cost and η = 1/(L + 2σ), if the noise σ of the batch is known."""
        values = stepsizes.scd(facts.constants, p_w=self.p_w, n=facts.rows, batch=self.batch, **facts.prices)
        return fill(self, values), None

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pytree:
        """Start at β0."""
        return beta0

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coin that picks the block."""
        (p_w,) = known(self.p_w)
        return Plan(randomness.coin(randomness.of(stream, k), p_w))

    def client(
        self, plan: Plan, shared: Pytree, private: Pytree, oracle: GradientOracle, key: Key
    ) -> tuple[Pytree, Message]:
        """A sampled gradient in the drawn block."""
        eta, p_w = known(self.eta, self.p_w)
        sample = oracle.sample(key, drawn(self.batch))
        gradient = branch(plan.w, lambda: oracle.gradient_w(shared, private, sample), lambda: tree.zeros(shared))
        step = -eta / (1 - p_w)
        moved = branch(
            plan.w,
            lambda: private,
            lambda: tree.combine((1.0, private), (step, oracle.gradient_beta(shared, private, sample))),
        )
        return moved, Message(gradient)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """The step on w, if it was drawn."""
        eta, p_w = known(self.eta, self.p_w)
        return tree.select(plan.w, tree.combine((1.0, shared), (-eta / p_w, mean.gradient)), shared)

    def sends(self, plan: Plan) -> Message:
        """The gradient is sent if w was drawn."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """One batch in the drawn block."""
        each = size_of_batch(drawn(self.batch), rows)
        return Evaluations(jnp.where(plan.w, each, 0), jnp.where(plan.w, 0, each))

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Pytree) -> Pytree:
        """β_m."""
        return private
