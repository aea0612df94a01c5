"""ACD-PFL: accelerated block coordinate descent with full gradients (Algorithm ACD-PFL)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import floors, rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.fields import known
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record

__all__ = ["ACD", "Message", "Pair", "Plan"]


class Plan(NamedTuple):
    """The coin of an iteration: True if it updates w, False if β."""

    w: jax.Array


class Pair(NamedTuple):
    """The sequences y and z of one block (w, or one client's β)."""

    y: Pytree
    z: Pytree


class Message(NamedTuple):
    """∇_w f_m at x."""

    gradient: Pytree


@record
class ACD(Algorithm):
    """x = (1−θ)y + θz; the drawn block i steps y = x − g/L_i, z = (z + ηνx − ηp_i g/L_i)/(1+ην).

    w is drawn with probability p_w = √L^w/(√L^w+√L^β) (the paper prints the branches swapped; with them right, p_i/L_i is the
    printed 1/(√L_i(√L^w+√L^β))), or with any other p_w, with the ν that belongs to it. The block not drawn has y = x and
    z = (z + ηνx)/(1+ην). Optimal in rounds and in gradients of both blocks (Theorem ACD-PFL).

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.ACD(), rounds=3, record=())
    >>> 0 < result.algorithm.p_w < 1, result.ledger.rounds
    (True, 3)
    """

    p_w: float | None = None  # the probability that an iteration moves w
    L_w: float | None = None  # L^w, the smoothness of F in the (scaled) w
    L_beta: float | None = None  # L^β, the smoothness of F in β
    nu: float | None = None  # ν = μ/(√L^w+√L^β)², the relative strong convexity
    theta: float | None = None  # θ, the weight of z in x
    eta: float | None = None  # η = 1/θ, the step of z
    name = "acd"
    rate = rated.acd
    floor = floors.acd

    def complete(self, facts: Facts) -> tuple[ACD, str | None]:
        """ν, θ, η and p_w of Theorem ACD-PFL, or those that follow from a given p_w or ν."""
        best = facts.coin() if facts.coin and self.p_w is None and self.nu is None else None
        p_w, nu = (self.p_w, self.nu) if best is None else best
        values = stepsizes.acd_any(facts.constants, p_w, nu)
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
        """The full gradient of the drawn block: ∇_w for the message, or ∇_β for this client's own step."""
        L_beta, p_w = known(self.L_beta, self.p_w)
        x_w, x = self._mix(shared), self._mix(private)
        gradient = branch(plan.w, lambda: oracle.gradient_w(x_w, x), lambda: tree.zeros(x_w))
        own = branch(plan.w, lambda: tree.zeros(x), lambda: oracle.gradient_beta(x_w, x))
        return self._step(private, x, own, L_beta, 1 - p_w), Message(gradient)

    def server(self, plan: Plan, shared: Pair, mean: Message) -> Pair:
        """The same step on w; if β was drawn, the gradient is zero, which gives y = x as it should."""
        L_w, p_w = known(self.L_w, self.p_w)
        return self._step(shared, self._mix(shared), mean.gradient, L_w, p_w)

    def _mix(self, pair: Pair) -> Pytree:
        (theta,) = known(self.theta)
        return tree.combine((1 - theta, pair.y), (theta, pair.z))

    def _step(self, pair: Pair, x: Pytree, gradient: Pytree, L: float, probability: float) -> Pair:
        eta, nu = known(self.eta, self.nu)
        momentum = eta * nu
        y = tree.combine((1.0, x), (-1 / L, gradient))
        z = tree.combine((1.0, pair.z), (momentum, x), (-eta * probability / L, gradient))
        return Pair(y, tree.scale(1 / (1 + momentum), z))

    def sends(self, plan: Plan) -> Message:
        """The gradient is sent if w was drawn."""
        return Message(plan.w)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """All rows, in the drawn block."""
        return Evaluations(jnp.where(plan.w, rows, 0), jnp.where(plan.w, 0, rows))

    def model(self, shared: Pair) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Pair) -> Pytree:
        """The sequence y."""
        return private.y
