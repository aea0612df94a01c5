"""ASCD first, then ASVRCD, with an automatic switch: the paper suggests this after its comparisons but never runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.checks import Plan, Progress, is_check, is_early
from twofold.algorithms.fields import Batch, drawn, known
from twofold.algorithms.oracle import Drawn
from twofold.algorithms.variance_reduction import Triple, counts, mix, move
from twofold.control import branch
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["Hybrid", "Message", "Plan", "Shared"]


class Shared(NamedTuple):
    """The w-block, and what the checks have found; once progress has stalled, control variates are in use."""

    block: Triple
    progress: Progress


class Message(NamedTuple):
    """The sampled ∇_w (after the switch, minus that at v), the full ∇_w, and ‖p_m∇_β f_m‖²/p_m, whose mean is ‖∇_βF‖²."""

    gradient: Pytree
    full: Pytree
    norm2: jax.Array


@record
class Hybrid(Algorithm):
    """ASCD until its gradient stops falling, then ASVRCD, started at a point where the full gradient is known.

    At the checks (iterations 0, c, 2c, 4c, … with c = `first`/p_w) all clients send their full gradients. The method switches when
    ‖∇F‖² has stopped falling (`checks.Progress`). This rule is a heuristic, not theory: so are `drop`, and the 8/(1−ν) iterations in
    which an initial plateau is put down to momentum that has yet to build up. Both phases evaluate two gradients per sample.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.Hybrid(), rounds=3, record=())
    >>> 0 < result.algorithm.theta < 1, result.ledger.rounds
    (True, 3)
    """

    eta: float | None = None  # η, the step of y
    theta: float | None = None  # θ, the weight of z in x before the switch
    theta1: float | None = None  # θ₁, the weight of z in x after the switch
    theta2: float | None = None  # θ₂, the weight of v in x after the switch
    gamma: float | None = None  # γ, the step of z
    nu: float | None = None  # ν, how much of itself z keeps in a step
    rho: float | None = None  # ρ, the probability of a new reference point, which costs a full gradient
    p_w: float | None = None  # the probability that an iteration's sample is for w
    drop: float = 0.5  # the factor by which ‖∇F‖² must fall from check to check for ASCD to continue
    first: int = static(default=16)  # the first check comes after about this many w-iterations
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    name = "hybrid"
    corrects = frozenset({"sampling"})

    def complete(self, facts: Facts) -> tuple[Hybrid, str | None]:
        """The steps of Theorem e1, and ASCD's θ."""
        found = stepsizes.hybrid(
            facts.constants, facts.rows, self.p_w, self.rho, self.eta, batch=self.batch, **facts.prices
        )
        return fill(self, found), found["note"]

    def init(self, w0: Pytree) -> Shared:
        """y = z = v = w0, nothing checked, no control variates."""
        return Shared(Triple(w0, w0, w0, tree.zeros(w0)), Progress.none())

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """The w-coin, the ρ-coin, whether k is one of the checks, and whether it is early."""
        p_w, rho, nu = known(self.p_w, self.rho, self.nu)
        key, check = randomness.of(stream, k), is_check(k, self.first, p_w)
        refresh = randomness.coin(randomness.at(key, 1), rho) | check
        # The w-coin is the same as ASCD's, so that until the switch the trajectory is exactly ASCD's.
        return Plan(randomness.coin(key, p_w), refresh, check, is_early(k, nu))

    def client(
        self, plan: Plan, shared: Shared, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """A sampled gradient at x in the drawn block, minus that at v once control variates are in use."""
        w, reduced = shared.block, shared.progress.stalled
        x, anchor = (self._mix(w, reduced), self._mix(private, reduced)), (w.v, private.v)
        sample, zero, still = oracle.sample(key, drawn(self.batch)), tree.zeros(w.y), tree.zeros(private.y)

        def sampled(gradient: Callable[[Pytree, Pytree, Drawn | None], Pytree]) -> Pytree:
            return tree.combine((1.0, gradient(*x, sample)), (jnp.where(reduced, -1.0, 0.0), gradient(*anchor, sample)))

        of_w = branch(plan.w, lambda: sampled(oracle.gradient_w), lambda: zero)
        own = branch(plan.w, lambda: still, lambda: sampled(oracle.gradient_beta))
        full, of_beta = branch(plan.refresh, lambda: oracle.gradients(w.y, private.y), lambda: (zero, private.full))
        y, z = self._step(private, x[1], own, ~plan.w, reduced, 1 - known(self.p_w)[0])
        v, norm2 = tree.select(plan.refresh, private.y, private.v), tree.squared_norm(of_beta) / oracle.weight
        return Triple(y, z, v, of_beta), Message(of_w, full, norm2)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The same step on w; at a check, also the decision whether to switch."""
        w, reduced = shared.block, shared.progress.stalled
        y, z = self._step(w, self._mix(w, reduced), mean.gradient, plan.w, reduced, known(self.p_w)[0])
        v, full = tree.select(plan.refresh, (w.y, mean.full), (w.v, w.full))
        progress = shared.progress.after(plan.check, tree.squared_norm(mean.full) + mean.norm2, self.drop, plan.early)
        return Shared(Triple(y, z, v, full), progress)

    def _mix(self, s: Triple, reduced: jax.Array) -> Pytree:
        theta, theta1, theta2 = known(self.theta, self.theta1, self.theta2)
        return mix(s, jnp.where(reduced, theta1, theta), jnp.where(reduced, theta2, 0.0))

    def _step(self, s: Triple, x: Pytree, own: Pytree, drawn: jax.Array, reduced: jax.Array, p: float) -> Pytree:
        """The step of either method: without control variates the block not drawn stays, with them it follows ∇F(v)."""
        g = tree.combine((jnp.where(drawn, 1 / p, 0.0), own), (jnp.where(reduced, 1.0, 0.0), s.full))
        return tree.select(drawn | reduced, move(s, x, g, *known(self.eta, self.nu, self.gamma)), (s.y, s.z))

    def sends(self, plan: Plan) -> Message:
        """The sampled gradient is sent with the w-coin, the full one and its norm with the ρ-coin and at checks."""
        return Message(plan.w, plan.refresh, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows in both blocks for a full gradient."""
        return counts(plan.w, plan.refresh, drawn(self.batch), rows)

    def model(self, shared: Shared) -> Pytree:
        """The sequence y."""
        return shared.block.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
