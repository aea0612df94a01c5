"""ACD-PFL: accelerated block coordinate descent with full gradients (Algorithm ACD-PFL)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record


class Plan(NamedTuple):
    """Whether this iteration moves w (else β)."""

    w: Any


class Pair(NamedTuple):
    """The sequences y and z of one block."""

    y: Pytree
    z: Pytree


class Message(NamedTuple):
    """∇_w f_m at x."""

    gradient: Pytree


@record
class ACD(Algorithm):
    """x = (1−θ)y + θz; the drawn block i steps y = x − g/L_i, z = (z + ηνx − ηp_i g/L_i)/(1+ην).

    w is drawn with probability p_w = √L^w/(√L^w+√L^β) (the printed branch is swapped; then p_i/L_i is the printed
    1/(√L_i(√L^w+√L^β))), or with any other that ν belongs to. The block not drawn has y = x and z = (z + ηνx)/(1+ην).
    Optimal in rounds and in gradients of both blocks (Theorem ACD-PFL).
    """

    p_w: Open = None
    L_w: Open = None
    L_beta: Open = None
    nu: Open = None
    theta: Open = None
    eta: Open = None
    name = "acd"

    def complete(self, setting: Setting) -> tuple[ACD, str | None]:
        """ν, θ, η, p_w of Theorem ACD-PFL, or what follows from the p_w or ν that is given."""
        values = stepsizes.acd_any(setting.constants, self.p_w, self.nu)
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
        """A full gradient in the drawn block: of w for the message, of β for this client's own step."""
        x_w, x = self._mix(shared), self._mix(private)
        gradient = branch(plan.w, lambda: oracle.gradient_w(x_w, x), lambda: tree.zeros(x_w))
        own = branch(plan.w, lambda: tree.zeros(x), lambda: oracle.gradient_beta(x_w, x))
        return self._step(private, x, own, self.L_beta, 1 - self.p_w), Message(gradient)

    def server(self, plan: Plan, shared: Pair, mean: Message) -> Pair:
        """The same step on w; a zero gradient leaves y = x, which is right for the block not drawn."""
        return self._step(shared, self._mix(shared), mean.gradient, self.L_w, self.p_w)

    def _mix(self, pair: Pair) -> Pytree:
        return tree.combine((1 - self.theta, pair.y), (self.theta, pair.z))

    def _step(self, pair: Pair, x: Pytree, gradient: Pytree, L: Any, probability: Any) -> Pair:
        momentum = self.eta * self.nu
        y = tree.combine((1.0, x), (-1 / L, gradient))
        z = tree.combine((1.0, pair.z), (momentum, x), (-self.eta * probability / L, gradient))
        return Pair(y, tree.scale(1 / (1 + momentum), z))

    def sends(self, plan: Plan) -> Message:
        """Only a w-iteration sends."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """All rows, in the drawn block."""
        return Evaluations(jnp.where(plan.w, rows, 0), jnp.where(plan.w, 0, rows))

    def model(self, shared: Pair) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Pair) -> Pytree:
        """The sequence y."""
        return private.y
