"""ASCD first, then ASVRCD, with an automatic switch: what the paper suggests after both of its comparisons, and never runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms import svrcd
from twofold.algorithms.asvrcd import Triple
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill
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
    """The w-block, ‖∇F‖² at the first and at the last check, and whether control variates are in use."""

    block: Triple
    start: Any
    last: Any
    reduced: Any


class Message(NamedTuple):
    """The sampled ∇_w (less that at v, after the switch), the full ∇_w, and ‖p_m∇_β f_m‖²/p_m: one number."""

    gradient: Pytree
    full: Pytree
    norm2: Any


@record
class Hybrid(Algorithm):
    """ASCD until its gradient no longer falls, from then on ASVRCD, started where everybody's full gradient is known.

    Checks are at iterations 0, c, 2c, 4c, 8c, … with c = `first`/p_w, in which everybody sends its full gradient: known to
    all in advance, and few. Sampling noise lets ASCD's ‖∇F‖² fall to a floor and no further. The switch is made when ‖∇F‖²
    has left its plateau at the start (it is below `drop`² of what it was there, or not below it at all) and is above `drop`
    times that of the check before; a gradient that falls geometrically never is. p_w, η, γ and ν are the same before and
    after. Checks go on after the switch, and renew the reference point. Both phases evaluate two gradients a sample.
    """

    eta: Open = None
    theta: Open = None
    theta1: Open = None
    theta2: Open = None
    gamma: Open = None
    nu: Open = None
    rho: Open = None
    p_w: Open = None
    drop: float = 0.5
    first: int = static(default=16)
    batch: int | None = static(default=1)
    name = "hybrid"

    def complete(self, setting: Setting) -> tuple[Hybrid, str | None]:
        """Those of Theorem e1, and ASCD's θ."""
        given = {"p_w": self.p_w, "rho": self.rho, "eta": self.eta, "batch": self.batch}
        values = stepsizes.hybrid(setting.constants, setting.rows, **given)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Shared:
        """y = z = v = w0, nothing checked, no control variates."""
        return Shared(Triple(w0, w0, w0, tree.zeros(w0)), *map(jnp.asarray, (jnp.inf, jnp.inf, False)))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The w-coin, the ρ-coin, and whether k is one of the checks."""
        key, k = randomness.of(stream, k), jnp.asarray(k, jnp.int32)
        unit = jnp.ceil(self.first / jnp.where(self.p_w > 0, self.p_w, 1.0).astype(jnp.float32)).astype(jnp.int32)
        check = (k % unit == 0) & (k // unit & (k // unit - 1) == 0)
        refresh = randomness.coin(randomness.at(key, 1), self.rho) | check
        return Plan(
            randomness.coin(key, self.p_w), refresh, check
        )  # ASCD's own coin: until the switch, its very course

    def client(
        self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """A sampled gradient at x in the drawn block, less that at v once control variates are in use."""
        w, reduced = shared.block, shared.reduced
        x, sample = (self._mix(w, reduced), self._mix(private, reduced)), oracle.sample(key, self.batch)

        v = (w.v, private.v)

        def sampled(gradient: Any) -> Pytree:
            return tree.combine((1.0, gradient(*x, sample)), (jnp.where(reduced, -1.0, 0.0), gradient(*v, sample)))

        nothing = tree.zeros(w.y)
        of_w = branch(plan.w, lambda: sampled(oracle.gradient_w), lambda: nothing)
        own = branch(plan.w, lambda: tree.zeros(private.y), lambda: sampled(oracle.gradient_beta))
        full, of_beta = branch(plan.refresh, lambda: oracle.gradients(w.y, private.y), lambda: (nothing, private.full))
        y, z = self._step(private, x[1], own, ~plan.w, reduced, 1 - self.p_w)
        anchor = tree.select(plan.refresh, private.y, private.v)
        return Triple(y, z, anchor, of_beta), Message(of_w, full, tree.squared_norm(of_beta) / oracle.weight)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The same step on w; at a check, the decision."""
        w, reduced = shared.block, shared.reduced
        y, z = self._step(w, self._mix(w, reduced), mean.gradient, plan.w, reduced, self.p_w)
        v, full = tree.select(plan.refresh, (w.y, mean.full), (w.v, w.full))
        norm2 = tree.squared_norm(mean.full) + mean.norm2
        start = jnp.where(plan.check & jnp.isinf(shared.start), norm2, shared.start)
        on_plateau = (norm2 > self.drop**2 * start) & (norm2 < start)
        switch = plan.check & ~reduced & ~on_plateau & (norm2 > self.drop * shared.last)
        return Shared(Triple(y, z, v, full), start, jnp.where(plan.check, norm2, shared.last), reduced | switch)

    def _mix(self, s: Triple, reduced: Any) -> Pytree:
        of_z, of_v = jnp.where(reduced, self.theta1, self.theta), jnp.where(reduced, self.theta2, 0.0)
        return tree.combine((of_z, s.z), (of_v, s.v), (1 - of_z - of_v, s.y))

    def _step(self, s: Triple, x: Pytree, own: Pytree, drawn: Any, reduced: Any, p: Any) -> tuple[Pytree, Pytree]:
        """Both methods' step: without control variates the block not drawn rests, with them it follows ∇F(v)."""
        gradient = tree.combine((jnp.where(drawn, 1 / p, 0.0), own), (jnp.where(reduced, 1.0, 0.0), s.full))
        y = tree.combine((1.0, x), (-self.eta, gradient))
        z = tree.combine((self.nu, s.z), (1 - self.nu, x), (-self.gamma, gradient))
        return tree.select(drawn | reduced, (y, z), (s.y, s.z))

    def sends(self, plan: Plan) -> Message:
        """The sampled gradient with the w-coin, the full one and its size with the ρ-coin and at a check."""
        return Message(plan.w, plan.refresh, plan.refresh)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks for a full gradient."""
        return svrcd.counts(svrcd.Plan(plan.w, plan.refresh), self.batch, rows)

    def model(self, shared: Shared) -> Pytree:
        """The sequence y."""
        return shared.block.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
