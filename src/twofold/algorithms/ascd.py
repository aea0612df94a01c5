"""ASCD-PFL: accelerated stochastic block coordinate descent, without control variates (Algorithm ASCD-PFL)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.acd import Pair
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill, size_of_batch
from twofold.algorithms.scd import Message, Plan
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


@record
class ASCD(Algorithm):
    """x = θz + (1−θ)y; the drawn block steps y = x − (η/p)g, z = νz + (1−ν)x + (γ/η)(y⁺ − x); the other keeps y and z.

    The listing's w_v and β_v are carried but never used, so they are left out here, and with them ρ.
    """

    eta: Open = None
    theta: Open = None
    nu: Open = None
    gamma: Open = None
    p_w: Open = None
    rho: Open = None  # only enters through γ and ν, which theory derives with it
    batch: int | None = static(default=1)
    name = "ascd"

    def complete(self, setting: Setting) -> tuple[ASCD, str | None]:
        """The paper's choice, ASVRCD's constants and θ = min{0.8, 1/η}, or steps that the noise allows where it is known."""
        given = {"p_w": self.p_w, "rho": self.rho, "eta": self.eta, "batch": self.batch}
        values = stepsizes.ascd(setting.constants, setting.rows, **given)
        return fill(self, values), values.get("note")

    def init(self, w0: Pytree) -> Pair:
        """y = z = w0."""
        return Pair(w0, w0)

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pair:
        """y = z = β0."""
        return Pair(beta0, beta0)

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The block's coin."""
        return Plan(randomness.coin(randomness.of(stream, k), self.p_w))

    def client(self, plan: Plan, shared: Pair, private: Pair, oracle: GradientOracle, key: Key) -> tuple[Pair, Message]:
        """A sampled gradient at x in the drawn block."""
        x_w, x = self._mix(shared), self._mix(private)
        sample = oracle.sample(key, self.batch)
        gradient = branch(plan.w, lambda: oracle.gradient_w(x_w, x, sample), lambda: tree.zeros(x_w))
        moved = branch(
            plan.w,
            lambda: private,
            lambda: self._step(private, x, oracle.gradient_beta(x_w, x, sample), 1 - self.p_w),
        )
        return moved, Message(gradient)

    def server(self, plan: Plan, shared: Pair, mean: Message) -> Pair:
        """w moves only when its coin fell."""
        return tree.select(plan.w, self._step(shared, self._mix(shared), mean.gradient, self.p_w), shared)

    def _mix(self, pair: Pair) -> Pytree:
        return tree.combine((self.theta, pair.z), (1 - self.theta, pair.y))

    def _step(self, pair: Pair, x: Pytree, gradient: Pytree, probability: Any) -> Pair:
        y = tree.combine((1.0, x), (-self.eta / probability, gradient))
        # (γ/η)(y⁺ − x) = −(γ/p)g, written without the cancellation.
        z = tree.combine((self.nu, pair.z), (1 - self.nu, x), (-self.gamma / probability, gradient))
        return Pair(y, z)

    def sends(self, plan: Plan) -> Message:
        """Only a w-iteration sends."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """One batch in the drawn block."""
        each = size_of_batch(self.batch, rows)
        return Evaluations(jnp.where(plan.w, each, 0), jnp.where(plan.w, 0, each))

    def model(self, shared: Pair) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Pair) -> Pytree:
        """The sequence y."""
        return private.y
