"""ASVRCD with a reference point for each block, optimal in ∇_w and ∇_β at once (docs/two-references.md)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import Batch, drawn, known
from twofold.algorithms.variance_reduction import Message, estimate
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["ASVRCDTwo", "Plan", "Points"]


class Plan(NamedTuple):
    """Whether this iteration's sample is for w (else β), and whether v^w and v^β are renewed."""

    w: jax.Array
    refresh_w: jax.Array
    refresh_beta: jax.Array


class Points(NamedTuple):
    """One block's part of y, of z and of both reference points, and ∇F in that block at its own reference point."""

    y: Pytree
    z: Pytree
    v_w: Pytree
    v_beta: Pytree
    full: Pytree


@record
class ASVRCDTwo(Algorithm):
    """x = θ₁z + θ_w v^w + θ_β v^β + (1−θ₁−θ_w−θ_β)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x − γg; v^i⁺ = y with probability ρ_i.

    Block i of g is (∇_i f̂(x) − ∇_i f̂(v^i))/p_i + ∇_i F(v^i) if drawn, else ∇_i F(v^i). v^w and v^β are points in (w, β). A new v^w
    costs a message, ∇_w f_m(y), and a new v^β none: a client keeps its own ∇_β. `ASVRCD(reference="two")` becomes this method.
    >>> ASVRCDTwo(p_w=0.5, rho_beta=0.1).is_complete()
    False
    """

    eta: float | None = None  # η, the step of y
    theta1: float | None = None  # θ₁, the weight of z in x
    theta_w: float | None = None  # θ_w, the weight of v^w in x
    theta_beta: float | None = None  # θ_β, the weight of v^β in x
    gamma: float | None = None  # γ, the step of z
    nu: float | None = None  # ν, how much of itself z keeps in a step
    rho_w: float | None = None  # ρ_w, the probability of a new v^w
    rho_beta: float | None = None  # ρ_β, the probability of a new v^β
    p_w: float | None = None  # the probability that an iteration's sample is for w
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    name = "asvrcd"
    corrects = frozenset({"sampling"})
    rate = rated.asvrcd

    def complete(self, facts: Facts) -> tuple[ASVRCDTwo, str | None]:
        """The tight steps for the p_i, ρ_i and batch by cost, or without a cost p_i ∝ √max{ℓ_i, nμ/b} and ρ_i = b p_i/n."""
        c, n, rho, prices = facts.constants, facts.rows, (self.rho_w, self.rho_beta), facts.prices
        values = stepsizes.asvrcd(c, n, "w", self.p_w, rho, self.eta, batch=self.batch, reference="two", **prices)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Points:
        """y = z = v^w = v^β = w0; the first iteration computes ∇_wF(v^w)."""
        return Points(w0, w0, w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Points:
        """y = z = v^w = v^β = β0."""
        return Points(beta0, beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the w-coin and the two ρ-coins; iteration 0 refreshes both reference points, and its step is empty."""
        key, first = randomness.of(stream, k), jnp.asarray(k) == 0
        chances = enumerate(known(self.p_w, self.rho_w, self.rho_beta))
        drawn, moves_w, moves_beta = (randomness.coin(randomness.at(key, i), p) for i, p in chances)
        return Plan(drawn, moves_w | first, moves_beta | first)

    def client(
        self, plan: Plan, shared: Points, private: Points, oracle: GradientOracle, key: Key
    ) -> tuple[Points, Message]:
        """The message, this client's own step, and its part of both reference points."""
        (p_w,) = known(self.p_w)
        x_w, x = self._mix(shared), self._mix(private)
        sample, now = oracle.sample(key, drawn(self.batch)), (shared.y, private.y)
        of_w, of_beta = oracle.gradient_w, oracle.gradient_beta
        difference = branch(
            plan.w,
            lambda: tree.subtract(of_w(x_w, x, sample), of_w(shared.v_w, private.v_w, sample)),
            lambda: tree.zeros(x_w),
        )
        own = branch(
            plan.w,
            lambda: tree.zeros(x),
            lambda: tree.subtract(of_beta(x_w, x, sample), of_beta(shared.v_beta, private.v_beta, sample)),
        )
        sent = branch(plan.refresh_w, lambda: of_w(*now), lambda: tree.zeros(x_w))
        y, z = self._step(private, x, estimate(~plan.w, own, private.full, 1 - p_w))
        v_beta, full = branch(
            plan.refresh_beta, lambda: (private.y, of_beta(*now)), lambda: (private.v_beta, private.full)
        )
        return Points(y, z, tree.select(plan.refresh_w, private.y, private.v_w), v_beta, full), Message(
            difference, sent
        )

    def server(self, plan: Plan, shared: Points, mean: Message) -> Points:
        """The same step on w; it uses only those parts of the message that were sent."""
        (p_w,) = known(self.p_w)
        y, z = self._step(shared, self._mix(shared), estimate(plan.w, mean.difference, shared.full, p_w))
        v_w, full = tree.select(plan.refresh_w, (shared.y, mean.full), (shared.v_w, shared.full))
        return Points(y, z, v_w, tree.select(plan.refresh_beta, shared.y, shared.v_beta), full)

    def _mix(self, s: Points) -> Pytree:
        theta1, theta_w, theta_beta = known(self.theta1, self.theta_w, self.theta_beta)
        rest = 1 - theta1 - theta_w - theta_beta
        return tree.combine((theta1, s.z), (theta_w, s.v_w), (theta_beta, s.v_beta), (rest, s.y))

    def _step(self, s: Points, x: Pytree, gradient: Pytree) -> tuple[Pytree, Pytree]:
        eta, nu, gamma = known(self.eta, self.nu, self.gamma)
        y = tree.combine((1.0, x), (-eta, gradient))
        return y, tree.combine((nu, s.z), (1 - nu, x), (-gamma, gradient))

    def sends(self, plan: Plan) -> Message:
        """The difference is sent with the w-coin, the full gradient with a new v^w; a new v^β sends nothing."""
        return Message(plan.w, plan.refresh_w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows in a block whose reference point is renewed."""
        pair = 2 * jnp.asarray(size_of_batch(drawn(self.batch), rows))
        w, beta = jnp.where(plan.w, pair, 0), jnp.where(plan.w, 0, pair)
        return Evaluations(w + jnp.where(plan.refresh_w, rows, 0), beta + jnp.where(plan.refresh_beta, rows, 0))

    def model(self, shared: Points) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Points) -> Pytree:
        """The sequence y."""
        return private.y
