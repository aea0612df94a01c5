"""ASCD first, then ASVRCD, with an automatic switch: what the paper suggests after its comparisons but never runs."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms import svrcd
from twofold.algorithms.asvrcd import Triple
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Setting, fill
from twofold.algorithms.fields import known
from twofold.algorithms.oracle import Drawn
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["Hybrid", "Message", "Plan", "Shared"]


PLATEAU = 8.0
"""In units of 1/(1−ν), the time in which momentum forgets: how long ‖∇F‖² may take to begin to fall."""


class Plan(NamedTuple):
    """The coins: whether w moves (or else β), whether all clients send full gradients, whether that is a check, and an early one."""

    w: jax.Array
    refresh: jax.Array
    check: jax.Array
    early: jax.Array


class Shared(NamedTuple):
    """The w-block, ‖∇F‖² at the first and at the last check, and whether control variates are in use."""

    block: Triple
    start: jax.Array
    last: jax.Array
    reduced: jax.Array


class Message(NamedTuple):
    """The sampled ∇_w (minus that at v, after the switch), the full ∇_w, and ‖p_m∇_β f_m‖²/p_m, one number.

    The mean over clients, Σ p_m (‖p_m∇_β f_m‖²/p_m), is then ‖∇_βF‖², since block m of ∇_βF is p_m∇_β f_m.
    """

    gradient: Pytree
    full: Pytree
    norm2: jax.Array


@record
class Hybrid(Algorithm):
    """ASCD until its gradient stops falling, then ASVRCD, started at a point where the full gradient is known.

    At the checks, iterations 0, c, 2c, 4c, 8c, … with c = `first`/p_w, all clients send their full gradient. They are few
    and known in advance. Sampling noise lets ASCD's ‖∇F‖² fall to a floor and no further. The switch happens at a check
    where ‖∇F‖² has left its initial plateau (it is below `drop`² of its first value, or at least as large as that, or more
    than 8/(1−ν) iterations have passed, and it is noise that holds it up) and is above `drop` times its value at the
    previous check, which never happens to a gradient that falls geometrically.
    p_w, η, γ and ν are the same before and after the switch. Checks continue after it and renew the reference point.
    Both phases evaluate two gradients per sample.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.Hybrid(), rounds=3, record=())
    >>> round(result.algorithm.theta, 3), result.ledger.rounds
    (0.8, 3)
    """

    eta: float | None = None
    """η, the step of y."""
    theta: float | None = None
    """θ, the weight of z in x before the switch."""
    theta1: float | None = None
    """θ₁, the weight of z in x after the switch."""
    theta2: float | None = None
    """θ₂, the weight of v in x after the switch."""
    gamma: float | None = None
    """γ, the step of z."""
    nu: float | None = None
    """ν, how much of itself z keeps in a step."""
    rho: float | None = None
    """ρ, the probability that the reference point moves, which costs a full gradient."""
    p_w: float | None = None
    """The probability that an iteration's sample is for w."""
    drop: float = 0.5
    """The factor by which ‖∇F‖² must fall from check to check for ASCD to go on."""
    first: int = static(default=16)
    """The first check comes after about this many w-iterations."""
    batch: int | None = static(default=1)
    """Rows in one sampled gradient; None takes all rows."""
    name = "hybrid"

    def complete(self, setting: Setting) -> tuple[Hybrid, str | None]:
        """Those of Theorem e1, and ASCD's θ."""
        given = {"p_w": self.p_w, "rho": self.rho, "eta": self.eta, "batch": self.batch}
        values = stepsizes.hybrid(setting.constants, setting.rows, **given)
        return fill(self, values), values["note"]

    def init(self, w0: Pytree) -> Shared:
        """y = z = v = w0, nothing checked, no control variates."""
        never = jnp.asarray(jnp.inf)
        return Shared(Triple(w0, w0, w0, tree.zeros(w0)), never, never, jnp.asarray(False))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """The w-coin, the ρ-coin, and whether k is one of the checks, and whether it is early."""
        p_w, rho, nu = known(self.p_w, self.rho, self.nu)
        key, k = randomness.of(stream, k), jnp.asarray(k, jnp.int32)
        unit = jnp.ceil(self.first / jnp.where(p_w > 0, p_w, 1.0).astype(jnp.float32)).astype(jnp.int32)
        check = (k % unit == 0) & (k // unit & (k // unit - 1) == 0)  # k/unit is whole, and 0 or a power of 2
        refresh = cast(jax.Array, randomness.coin(randomness.at(key, 1), rho) | check)
        # The w-coin is ASCD's own, so that until the switch this is ASCD's trajectory exactly.
        early = k.astype(jnp.float32) * jnp.asarray(1 - nu, jnp.float32) < PLATEAU
        return Plan(randomness.coin(key, p_w), refresh, check, early)

    def client(
        self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """A sampled gradient at x in the drawn block, minus that at v once control variates are in use."""
        (p_w,) = known(self.p_w)
        w, reduced = shared.block, shared.reduced
        x, sample = (self._mix(w, reduced), self._mix(private, reduced)), oracle.sample(key, self.batch)

        v = (w.v, private.v)

        def sampled(gradient: Callable[[Pytree, Pytree, Drawn | None], Pytree]) -> Pytree:
            return tree.combine((1.0, gradient(*x, sample)), (jnp.where(reduced, -1.0, 0.0), gradient(*v, sample)))

        nothing = tree.zeros(w.y)
        of_w = branch(plan.w, lambda: sampled(oracle.gradient_w), lambda: nothing)
        own = branch(plan.w, lambda: tree.zeros(private.y), lambda: sampled(oracle.gradient_beta))
        full, of_beta = branch(plan.refresh, lambda: oracle.gradients(w.y, private.y), lambda: (nothing, private.full))
        y, z = self._step(private, x[1], own, ~plan.w, reduced, 1 - p_w)
        anchor = tree.select(plan.refresh, private.y, private.v)
        return Triple(y, z, anchor, of_beta), Message(of_w, full, tree.squared_norm(of_beta) / oracle.weight)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The same step on w; at a check, also the decision whether to switch."""
        (p_w,) = known(self.p_w)
        w, reduced = shared.block, shared.reduced
        y, z = self._step(w, self._mix(w, reduced), mean.gradient, plan.w, reduced, p_w)
        v, full = tree.select(plan.refresh, (w.y, mean.full), (w.v, w.full))
        norm2 = tree.squared_norm(mean.full) + mean.norm2
        start = jnp.where(plan.check & jnp.isinf(shared.start), norm2, shared.start)
        on_plateau = plan.early & (norm2 > self.drop**2 * start) & (norm2 < start)
        switch = plan.check & ~reduced & ~on_plateau & (norm2 > self.drop * shared.last)
        return Shared(Triple(y, z, v, full), start, jnp.where(plan.check, norm2, shared.last), reduced | switch)

    def _mix(self, s: Triple, reduced: jax.Array) -> Pytree:
        theta, theta1, theta2 = known(self.theta, self.theta1, self.theta2)
        of_z, of_v = jnp.where(reduced, theta1, theta), jnp.where(reduced, theta2, 0.0)
        return tree.combine((of_z, s.z), (of_v, s.v), (1 - of_z - of_v, s.y))

    def _step(
        self, s: Triple, x: Pytree, own: Pytree, drawn: jax.Array, reduced: jax.Array, p: float
    ) -> tuple[Pytree, Pytree]:
        """Both methods' step: without control variates the block not drawn rests, with them it follows ∇F(v)."""
        eta, nu, gamma = known(self.eta, self.nu, self.gamma)
        gradient = tree.combine((jnp.where(drawn, 1 / p, 0.0), own), (jnp.where(reduced, 1.0, 0.0), s.full))
        y = tree.combine((1.0, x), (-eta, gradient))
        z = tree.combine((nu, s.z), (1 - nu, x), (-gamma, gradient))
        return tree.select(drawn | reduced, (y, z), (s.y, s.z))

    def sends(self, plan: Plan) -> Message:
        """The sampled gradient with the w-coin, the full one and its size with the ρ-coin and at a check."""
        return Message(plan.w, plan.refresh, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks for a full gradient."""
        return svrcd.counts(svrcd.Plan(plan.w, plan.refresh), self.batch, rows)

    def model(self, shared: Shared) -> Pytree:
        """The sequence y."""
        return shared.block.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
