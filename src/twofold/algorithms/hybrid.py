"""ASCD first, then ASVRCD, with an automatic switch: what the paper suggests after both of its comparisons, and never runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.asvrcd import Triple
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Setting, fill
from twofold.algorithms.svrcd import counts
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Plan(NamedTuple):
    """Whether w moves (else β), whether everybody sends its full gradient, and whether that one is a check."""

    w: Any
    refresh: Any
    check: Any


class Shared(NamedTuple):
    """The w-block, ‖∇F‖² at the last check, whether control variates are in use, and since this very iteration."""

    block: Triple
    norm2: Any
    reduced: Any
    switched: Any


class Message(NamedTuple):
    """The sampled ∇_w (less that at v, after the switch), the full ∇_w, and ‖p_m∇_β f_m‖²/p_m: one number."""

    gradient: Pytree
    full: Pytree
    norm2: Any


@record
class Hybrid(Algorithm):
    """ASCD until a check finds ‖∇F(y)‖² above `drop` times that of the check before; from then on ASVRCD, from y = z = v.

    Checks are at iterations c, 2c, 4c, 8c, … with c = `first`/p_w (known to all in advance), so they cost a full gradient
    a few times only. Sampling noise lets ASCD's gradient fall to a floor and no further; where it does not even halve
    while the iterations double, the floor is there. p_w, η, γ and ν are the same before and after the switch, and the
    reference point is then as fresh as it can be. The ledger counts two gradients a sample, as ASVRCD
    needs, in both phases; the first one evaluates only one of them.
    """

    eta: float | None = None
    theta: float | None = None
    theta1: float | None = None
    theta2: float | None = None
    gamma: float | None = None
    nu: float | None = None
    rho: float | None = None
    p_w: float | None = None
    drop: float = 0.5
    first: int = static(16)
    batch: int | None = static(1)
    name = "hybrid"

    def complete(self, setting: Setting) -> tuple[Hybrid, str | None]:
        """Those of Theorem e1, and ASCD's θ."""
        given = {"p_w": self.p_w, "rho": self.rho, "eta": self.eta}
        values = stepsizes.asvrcd(setting.constants, setting.rows, **given)
        return fill(self, {**stepsizes.ascd(setting.constants, setting.rows, **given), **values}), values.get("note")

    def init(self, w0: Pytree) -> Shared:
        """y = z = v = w0, nothing checked, no control variates."""
        return Shared(Triple(w0, w0, w0, tree.zeros(w0)), jnp.asarray(jnp.inf), jnp.asarray(False), jnp.asarray(False))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The w-coin, the ρ-coin, and whether k is one of the checks."""
        key = randomness.of(stream, k)
        k = jnp.asarray(k, jnp.int32)
        unit = jnp.ceil(self.first / jnp.asarray(self.p_w, jnp.float32)).astype(jnp.int32)
        times = k // unit
        check = (k == times * unit) & (times > 0) & (times & (times - 1) == 0)
        return Plan(
            randomness.coin(randomness.at(key, 0), self.p_w), randomness.coin(randomness.at(key, 1), self.rho) | check, check
        )

    def client(
        self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """A sampled gradient at x in the drawn block, less that at v once control variates are in use."""
        w, reduced = shared.block, shared.reduced
        x, sample = (self._mix(w, reduced), self._mix(private, reduced)), oracle.sample(key, self.batch)

        def sampled(gradient: Any, zero: Pytree) -> Pytree:
            at_v = branch(reduced, lambda: gradient(w.v, private.v, sample), lambda: tree.zeros(zero))
            return tree.subtract(gradient(*x, sample), at_v)

        of_w = branch(plan.w, lambda: sampled(oracle.gradient_w, w.y), lambda: tree.zeros(w.y))
        own = branch(plan.w, lambda: tree.zeros(private.y), lambda: sampled(oracle.gradient_beta, private.y))
        full, of_beta = branch(
            plan.refresh, lambda: oracle.gradients(w.y, private.y), lambda: (tree.zeros(w.y), private.full)
        )
        y, z = self._step(private, x[1], own, ~plan.w, reduced, 1 - self.p_w)  # type: ignore[operator]
        v = tree.select(plan.refresh, private.y, private.v)
        return Triple(y, z, v, of_beta), Message(of_w, full, tree.squared_norm(of_beta) / oracle.weight)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The same step on w; at a check, the decision."""
        w, reduced = shared.block, shared.reduced
        y, z = self._step(w, self._mix(w, reduced), mean.gradient, plan.w, reduced, self.p_w)
        v, full = tree.select(plan.refresh, (w.y, mean.full), (w.v, w.full))
        norm2 = tree.squared_norm(mean.full) + mean.norm2
        switch = plan.check & ~reduced & (norm2 > self.drop * shared.norm2)
        block = self._restart(switch, Triple(y, z, v, full))
        return Shared(block, jnp.where(plan.check, norm2, shared.norm2), reduced | switch, switch)

    def receive(self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle) -> Triple:
        """On the switch, start again where the full gradient is known."""
        return self._restart(shared.switched, private)

    def _restart(self, switch: Any, s: Triple) -> Triple:
        return Triple(*tree.select(switch, (s.v, s.v), (s.y, s.z)), s.v, s.full)

    def _mix(self, s: Triple, reduced: Any) -> Pytree:
        of_z, of_v = jnp.where(reduced, self.theta1, self.theta), jnp.where(reduced, self.theta2, 0.0)
        return tree.combine((of_z, s.z), (of_v, s.v), (1 - of_z - of_v, s.y))

    def _step(self, s: Triple, x: Pytree, own: Pytree, drawn: Any, reduced: Any, p: Any) -> tuple[Pytree, Pytree]:
        """Both methods' step: without control variates the block not drawn rests, with them it follows ∇F(v)."""
        gradient = tree.combine((jnp.where(drawn, 1 / p, 0.0), own), (jnp.where(reduced, 1.0, 0.0), s.full))
        y = tree.combine((1.0, x), (-self.eta, gradient))  # type: ignore[operator]
        z = tree.combine((self.nu, s.z), (1 - self.nu, x), (-self.gamma, gradient))  # type: ignore[operator]
        return tree.select(drawn | reduced, (y, z), (s.y, s.z))

    def sends(self, plan: Plan) -> Message:
        """The sampled gradient with the w-coin, the full one and its size with the ρ-coin and at a check."""
        return Message(plan.w, plan.refresh, plan.refresh)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks for a full gradient."""
        return counts(plan, self.batch, rows)

    def model(self, shared: Shared) -> Pytree:
        """The sequence y."""
        return shared.block.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
