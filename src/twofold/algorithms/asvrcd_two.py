"""ASVRCD with a reference point for each block, optimal in ∇_w and ∇_β at once (docs/two-references.md)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.algorithms.svrcd import Message, estimate
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Plan(NamedTuple):
    """Whether this iteration's sample is for w (else β), and whether v^w and v^β move."""

    w: Any
    refresh_w: Any
    refresh_beta: Any


class State(NamedTuple):
    """One block's part of y, z and of both reference points, and ∇F in that block at its own reference point."""

    y: Pytree
    z: Pytree
    v_w: Pytree
    v_beta: Pytree
    full: Pytree


@record
class ASVRCDTwo(Algorithm):
    """x = θ₁z + θ_w v^w + θ_β v^β + (1−θ₁−θ_w−θ_β)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x − γg; v^i⁺ = y with probability ρ_i.

    Block i of g is (∇_i f̂(x) − ∇_i f̂(v^i))/p_i + ∇_i F(v^i) if it is drawn, and ∇_i F(v^i) if not. Both v^w and v^β are points
    in (w, β): everyone knows their w-parts, a client its own β-parts. A new v^w is one message, the full ∇_w f_m(y); a new
    v^β is silent, since only ∇_β at it is needed, which a client keeps. Made by `ASVRCD(reference="two")`.
    """

    eta: Open = None
    theta1: Open = None
    theta_w: Open = None
    theta_beta: Open = None
    gamma: Open = None
    nu: Open = None
    rho_w: Open = None
    rho_beta: Open = None
    p_w: Open = None
    batch: int | None = static(default=1)
    name = "asvrcd"

    def complete(self, setting: Setting) -> tuple[ASVRCDTwo, str | None]:
        """The tight steps for p_i ∝ √max{ℓ_i, nμ/b} and ρ_i = b p_i/n."""
        given = {"p_w": self.p_w, "rho": (self.rho_w, self.rho_beta), "eta": self.eta, "batch": self.batch}
        values = stepsizes.asvrcd(setting.constants, setting.rows, reference="two", **cast(Any, given))
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> State:
        """y = z = v^w = v^β = w0; the first iteration brings ∇_wF(v^w)."""
        return State(w0, w0, w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> State:
        """y = z = v^w = v^β = β0."""
        return State(beta0, beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The w-coin and the two ρ-coins; iteration 0 refreshes both, and its step is empty."""
        key = randomness.of(stream, k)
        drawn, *moved = (
            randomness.coin(randomness.at(key, i), p) for i, p in enumerate((self.p_w, self.rho_w, self.rho_beta))
        )
        return Plan(drawn, *(coin | (jnp.asarray(k) == 0) for coin in moved))

    def client(
        self, plan: Plan, shared: State, private: State, oracle: GradientOracle, key: Key
    ) -> tuple[State, Message]:
        """The message, this client's own step, and its part of both reference points."""
        x_w, x = self._mix(shared), self._mix(private)
        sample, now = oracle.sample(key, self.batch), (shared.y, private.y)
        difference = branch(
            plan.w,
            lambda: tree.subtract(
                oracle.gradient_w(x_w, x, sample), oracle.gradient_w(shared.v_w, private.v_w, sample)
            ),
            lambda: tree.zeros(x_w),
        )
        own = branch(
            plan.w,
            lambda: tree.zeros(x),
            lambda: tree.subtract(
                oracle.gradient_beta(x_w, x, sample), oracle.gradient_beta(shared.v_beta, private.v_beta, sample)
            ),
        )
        sent = branch(plan.refresh_w, lambda: oracle.gradient_w(*now), lambda: tree.zeros(x_w))
        y, z = self._step(private, x, estimate(~plan.w, own, private.full, 1 - self.p_w))
        v_beta, full = branch(
            plan.refresh_beta, lambda: (private.y, oracle.gradient_beta(*now)), lambda: (private.v_beta, private.full)
        )
        return State(y, z, tree.select(plan.refresh_w, private.y, private.v_w), v_beta, full), Message(difference, sent)

    def server(self, plan: Plan, shared: State, mean: Message) -> State:
        """The same step on w; with neither the w-coin nor v^w's it uses nothing of the message."""
        y, z = self._step(shared, self._mix(shared), estimate(plan.w, mean.difference, shared.full, self.p_w))
        v_w, full = tree.select(plan.refresh_w, (shared.y, mean.full), (shared.v_w, shared.full))
        return State(y, z, v_w, tree.select(plan.refresh_beta, shared.y, shared.v_beta), full)

    def _mix(self, s: State) -> Pytree:
        rest = 1 - self.theta1 - self.theta_w - self.theta_beta
        return tree.combine((self.theta1, s.z), (self.theta_w, s.v_w), (self.theta_beta, s.v_beta), (rest, s.y))

    def _step(self, s: State, x: Pytree, gradient: Pytree) -> tuple[Pytree, Pytree]:
        y = tree.combine((1.0, x), (-self.eta, gradient))
        return y, tree.combine((self.nu, s.z), (1 - self.nu, x), (-self.gamma, gradient))

    def sends(self, plan: Plan) -> Message:
        """The difference with the w-coin, the full gradient with that of v^w; a new v^β sends nothing."""
        return Message(plan.w, plan.refresh_w)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Two batches in the drawn block, and all rows of a block whose reference point moves."""
        pair = 2 * jnp.asarray(size_of_batch(self.batch, rows))
        w, beta = jnp.where(plan.w, pair, 0), jnp.where(plan.w, 0, pair)
        return Evaluations(w + jnp.where(plan.refresh_w, rows, 0), beta + jnp.where(plan.refresh_beta, rows, 0))

    def model(self, shared: State) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: State) -> Pytree:
        """The sequence y."""
        return private.y
