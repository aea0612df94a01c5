"""ASCD-PFL: accelerated stochastic block coordinate descent, without control variates (Algorithm ASCD-PFL)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import rated
from twofold.algorithms.acd import Pair
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import Batch, drawn, known
from twofold.algorithms.scd import Message, Plan
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["ASCD"]


@record
class ASCD(Algorithm):
    """x = θz + (1−θ)y; the drawn block steps y = x − (η/p)g, z = νz + (1−ν)x + (γ/η)(y⁺ − x); the other keeps y and z.

    The paper's listing also has w_v and β_v, but never uses them, so they are left out here.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.ASCD(), rounds=3, record=())
    >>> 0 < result.algorithm.theta < 1, result.ledger.rounds
    (True, 3)
    """

    eta: float | None = None  # η, the step of y
    theta: float | None = None  # θ, the weight of z in x
    nu: float | None = None  # ν, how much of itself z keeps in a step
    gamma: float | None = None  # γ, the step of z
    p_w: float | None = None  # the probability that an iteration moves w
    rho: float | None = None  # ρ of ASVRCD. No step uses it; theory derives γ and ν from it
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    name = "ascd"
    corrects = frozenset[str]()
    rate = rated.ascd

    def complete(self, facts: Facts) -> tuple[ASCD, str | None]:
        """The paper's choice (ASVRCD's constants and θ = min{0.8, 1/η}), or steps based on the noise if that is known."""
        values = stepsizes.ascd(
            facts.constants,
            facts.rows,
            p_w=self.p_w,
            rho=self.rho,
            eta=self.eta,
            batch=self.batch,
            **facts.prices,
        )
        return fill(self, values), values.get("note")

    def init(self, w0: Pytree) -> Pair:
        """y = z = w0."""
        return Pair(w0, w0)

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pair:
        """y = z = β0."""
        return Pair(beta0, beta0)

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the coin that picks the block."""
        (p_w,) = known(self.p_w)
        return Plan(randomness.coin(randomness.of(stream, k), p_w))

    def client(self, plan: Plan, shared: Pair, private: Pair, oracle: GradientOracle, key: Key) -> tuple[Pair, Message]:
        """A sampled gradient at x in the drawn block."""
        (p_w,) = known(self.p_w)
        x_w, x = self._mix(shared), self._mix(private)
        sample = oracle.sample(key, drawn(self.batch))
        gradient = branch(plan.w, lambda: oracle.gradient_w(x_w, x, sample), lambda: tree.zeros(x_w))
        moved = branch(
            plan.w,
            lambda: private,
            lambda: self._step(private, x, oracle.gradient_beta(x_w, x, sample), 1 - p_w),
        )
        return moved, Message(gradient)

    def server(self, plan: Plan, shared: Pair, mean: Message) -> Pair:
        """The step on w, if it was drawn."""
        (p_w,) = known(self.p_w)
        return tree.select(plan.w, self._step(shared, self._mix(shared), mean.gradient, p_w), shared)

    def _mix(self, pair: Pair) -> Pytree:
        (theta,) = known(self.theta)
        return tree.combine((theta, pair.z), (1 - theta, pair.y))

    def _step(self, pair: Pair, x: Pytree, gradient: Pytree, probability: float) -> Pair:
        eta, nu, gamma = known(self.eta, self.nu, self.gamma)
        y = tree.combine((1.0, x), (-eta / probability, gradient))
        # (γ/η)(y⁺ − x) = −(γ/p)g, which avoids the cancellation.
        z = tree.combine((nu, pair.z), (1 - nu, x), (-gamma / probability, gradient))
        return Pair(y, z)

    def sends(self, plan: Plan) -> Message:
        """The gradient is sent if w was drawn."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """One batch in the drawn block."""
        each = size_of_batch(drawn(self.batch), rows)
        return Evaluations(jnp.where(plan.w, each, 0), jnp.where(plan.w, 0, each))

    def model(self, shared: Pair) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Pair) -> Pytree:
        """The sequence y."""
        return private.y
