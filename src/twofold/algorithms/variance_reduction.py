"""Parts that the variance-reduced methods share: two coins, a message of two optional parts, and a gradient estimate."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Evaluations, GradientOracle, size_of_batch
from twofold.algorithms.oracle import Drawn
from twofold.control import branch
from twofold.tree import Pytree, Scalar

__all__ = ["Message", "Plan", "Triple", "coins", "counts", "estimate", "message", "mix", "move"]

_Point: TypeAlias = tuple[Pytree, Pytree]  # (w, β)


class Plan(NamedTuple):
    """The coins of an iteration: whether its sample is for w (else β), and whether there is a new reference point."""

    w: jax.Array
    refresh: jax.Array


class Triple(NamedTuple):
    """One block's sequences y and z, reference point v, and ∇F(v) in that block."""

    y: Pytree
    z: Pytree
    v: Pytree
    full: Pytree


class Message(NamedTuple):
    """∇_w f̂_m(now) − ∇_w f̂_m(v) on one sample, and the full ∇_w f_m at the new reference point; each is optional."""

    difference: Pytree
    full: Pytree


def coins(stream: jax.Array, k: int | jax.Array, p_w: float, rho: float) -> Plan:
    """Toss the w-coin and the ρ-coin of iteration k.

    Iteration 0 always refreshes. At that time y = v and no gradient is known yet, so its step is empty; this start-up round
    computes the first full gradient.

    >>> from twofold import randomness
    >>> from twofold.algorithms.variance_reduction import coins
    >>> stream = randomness.common(randomness.root(0))
    >>> [bool(coins(stream, k, p_w=0.5, rho=0.0).refresh) for k in range(3)]
    [True, False, False]
    """
    key = randomness.of(stream, k)
    refresh = randomness.coin(randomness.at(key, 1), rho) | (jnp.asarray(k) == 0)
    return Plan(randomness.coin(randomness.at(key, 0), p_w), refresh)


def message(
    plan: Plan, point: _Point, anchor: _Point, fresh: _Point, oracle: GradientOracle, sample: Drawn | None
) -> tuple[Message, Pytree]:
    """Return the message, and the β-part of the sampled difference (zero if w was drawn).

    The difference is taken between `point` and the reference point `anchor`. A refresh sends the full gradient at `fresh`, the new
    reference point.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold.algorithms.variance_reduction import Plan, message
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), clients)
    >>> oracle = problem.program().oracle(problem.member(0))
    >>> zero, one = ((), np.zeros(2)), ((), np.ones(2))
    >>> sent, own = message(Plan(w=False, refresh=False), one, zero, one, oracle, None)
    >>> own.tolist()
    [0.5, 0.5]
    """
    difference = branch(
        plan.w,
        lambda: tree.subtract(
            oracle.gradient_w(point[0], point[1], sample), oracle.gradient_w(anchor[0], anchor[1], sample)
        ),
        lambda: tree.zeros(point[0]),
    )
    own = branch(
        plan.w,
        lambda: tree.zeros(point[1]),
        lambda: tree.subtract(
            oracle.gradient_beta(point[0], point[1], sample), oracle.gradient_beta(anchor[0], anchor[1], sample)
        ),
    )
    full = branch(plan.refresh, lambda: oracle.gradient_w(*fresh), lambda: tree.zeros(point[0]))
    return Message(difference, full), own


def estimate(drawn: jax.Array, difference: Pytree, full: Pytree, probability: float) -> Pytree:
    """Estimate a block's gradient without bias: difference/p + ∇F(v), or ∇F(v) alone if the block was not drawn.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.variance_reduction import estimate
    >>> [float(estimate(jnp.asarray(drawn), jnp.asarray(1.0), jnp.asarray(3.0), 0.25)) for drawn in (True, False)]
    [7.0, 3.0]
    """
    return tree.select(drawn, tree.combine((1 / probability, difference), (1.0, full)), full)


def mix(s: Triple, theta1: Scalar, theta2: Scalar) -> Pytree:
    """Return x = θ₁z + θ₂v + (1−θ₁−θ₂)y, at which accelerated methods take their gradients.

    >>> from twofold.algorithms.variance_reduction import Triple, mix
    >>> float(mix(Triple(y=1.0, z=2.0, v=4.0, full=0.0), 0.5, 0.25))
    2.25
    """
    return tree.combine((theta1, s.z), (theta2, s.v), (1 - theta1 - theta2, s.y))


def move(s: Triple, x: Pytree, gradient: Pytree, eta: float, nu: float, gamma: float) -> tuple[Pytree, Pytree]:
    """Return y⁺ = x − ηg and z⁺ = νz + (1−ν)x + (γ/η)(y⁺ − x).

    >>> from twofold.algorithms.variance_reduction import Triple, move
    >>> [float(n) for n in move(Triple(1.0, 2.0, 4.0, 0.0), 2.25, 1.0, eta=0.25, nu=1.0, gamma=0.5)]
    [2.0, 1.5]
    """
    y = tree.combine((1.0, x), (-eta, gradient))
    # (γ/η)(y⁺ − x) = −γg, which avoids the cancellation.
    return y, tree.combine((nu, s.z), (1 - nu, x), (-gamma, gradient))


def counts(w: jax.Array, refresh: jax.Array, batch: int | None, rows: ArrayLike) -> Evaluations:
    """Count single-row gradients: two batches in the drawn block, and all rows in both blocks on a refresh.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.variance_reduction import counts
    >>> [int(n) for n in counts(jnp.asarray(True), jnp.asarray(True), batch=1, rows=10)]
    [12, 10]
    """
    pair, everything = 2 * jnp.asarray(size_of_batch(batch, rows)), jnp.where(refresh, rows, 0)
    return Evaluations(jnp.where(w, pair, 0) + everything, jnp.where(w, 0, pair) + everything)
