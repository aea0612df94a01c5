"""A descent method with one trial point per round: L-BFGS or Newton directions, with a line search that costs no extra rounds.

Each round returns the value and the gradient at the trial point. If the value is low enough, the trial becomes the iterate, and
the next trial is a full step from it. If not, the next trial is a shorter step and, with Newton, a more damped one, because where
the function is flat, the inverse Hessian amplifies errors in the gradient.
"""
# pyright: standard

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twofold.algorithms.linear import solve
from twofold.algorithms.newton import NOISE
from twofold.tree import Pytree

__all__ = ["Search", "advance", "begin", "lbfgs_direction", "shorter"]


class Search(NamedTuple):
    """The shared state: the iterate w, the next trial point, and what the next direction is computed from."""

    w: Pytree
    trial: Pytree
    accepted: jax.Array  # whether the last trial became the iterate
    value: jax.Array  # at w; infinite before the first round
    gradient: jax.Array  # at w; flat, like all fields below
    direction: jax.Array
    step: jax.Array  # trial = w + step · direction
    moves: jax.Array  # the last few changes of the iterate, latest first; zeros if there are none yet
    changes: jax.Array  # the changes of the gradient that go with them
    hessian: jax.Array  # at w, for Newton's directions
    damping: jax.Array  # added to the Hessian, as a fraction of its diagonal's mean


def begin(w0: Pytree, memory: int | None) -> Search:
    """The state before the first round: the trial is w0; `memory` is the number of L-BFGS pairs, None for Newton."""
    flat, _ = ravel_pytree(w0)
    sides, memory = (flat.size, 0) if memory is None else (0, memory)
    hessian = jnp.zeros((sides, sides), flat.dtype)
    zero, none = jnp.zeros_like(flat), jnp.zeros((memory, flat.size), flat.dtype)
    infinite = jnp.full((), jnp.inf, jnp.result_type(float))
    one, zero_damping = jnp.ones_like(infinite), jnp.zeros_like(infinite)
    return Search(w0, w0, jnp.ones((), bool), infinite, zero, zero, one, none, none, hessian, zero_damping)


def advance(search: Search, value: jax.Array, gradient: Pytree, curvature: jax.Array | None, L: jax.Array) -> Search:
    """The state after a round that returned the value and the gradient at the trial point.

    The trial is accepted if the value fell by at least 10⁻⁴ of what the slope predicts (Armijo), or if it rose by no more than
    rounding and the slope has flattened (Hager and Zhang's approximate condition, for the last digits). The next direction is
    Newton's if there is a Hessian `curvature`, else that of L-BFGS, which starts from 1/L. If it does not lead downhill, −∇/L is
    used instead.
    """
    (w, unravel), (trial, _), (new, _) = (ravel_pytree(x) for x in (search.w, search.trial, gradient))
    before, after = jnp.vdot(search.gradient, search.direction), jnp.vdot(new, search.direction)
    rounding = NOISE * jnp.finfo(w.dtype).eps * jnp.abs(search.value)
    lower = value <= search.value + 1e-4 * search.step * before
    accepted = lower | ((value <= search.value + rounding) & (jnp.abs(after) <= 0.9 * jnp.abs(before)))

    move, change = trial - w, new - search.gradient
    curved = jnp.vdot(move, change) > 1e-10 * jnp.linalg.norm(move) * jnp.linalg.norm(change)
    known = accepted & curved
    moves, changes = (
        jnp.where(known, jnp.concatenate([latest[None], older[:-1]]), older) if len(older) else older
        for latest, older in ((move, search.moves), (change, search.changes))
    )
    gradient = jnp.where(accepted, new, search.gradient)
    damping, hessian = search.damping, search.hessian
    if curvature is None:
        downhill = lbfgs_direction(gradient, moves, changes, L)
    else:
        hessian = jnp.where(accepted, curvature, hessian)
        damping = jnp.where(accepted, jnp.where(damping > 1e-9, damping / 10, 0), jnp.maximum(100 * damping, 1e-8))
        downhill = solve(hessian, -gradient, damping)
    good = jnp.vdot(downhill, gradient) < 0  # also false for NaN
    direction = jnp.where(good, downhill, -gradient / L)
    step = jnp.where(accepted, 1, shorter(search.step, search.value, before, value, after))
    w, value = jnp.where(accepted, trial, w), jnp.where(accepted, value, search.value)
    trial = unravel(w + step * direction)
    return Search(unravel(w), trial, accepted, value, gradient, direction, step, moves, changes, hessian, damping)


def shorter(step: jax.Array, value: jax.Array, slope: jax.Array, far: jax.Array, far_slope: jax.Array) -> jax.Array:
    """The minimiser of the cubic through the values and slopes at 0 and `step`, clipped to between 0.1 and 0.5 times `step`.

    >>> import jax.numpy as jnp
    >>> float(shorter(jnp.array(4.0), jnp.array(1.0), jnp.array(-2.0), jnp.array(9.0), jnp.array(6.0)))  # of (x − 1)²
    1.0
    """
    middle = slope + far_slope - 3 * (far - value) / step
    root = jnp.sqrt(jnp.maximum(middle**2 - slope * far_slope, 0))
    below = far_slope - slope + 2 * root
    least = step * (1 - (far_slope + root - middle) / jnp.where(below == 0, 1, below))
    usable = jnp.isfinite(least) & (below != 0)
    return jnp.where(usable, jnp.clip(jnp.where(usable, least, step), 0.1 * step, 0.5 * step), 0.1 * step)


@jax.jit
def lbfgs_direction(gradient: jax.Array, moves: jax.Array, changes: jax.Array, L: jax.Array) -> jax.Array:
    """−H∇ with the L-BFGS inverse Hessian H of the last moves s and changes y, started from γI; γ = sᵀy/yᵀy of the latest, or 1/L.

    This is Nocedal's two-loop recursion; pairs of zeros are skipped.

    >>> import jax.numpy as jnp
    >>> s = jnp.array([[1.0, 0.0]])
    >>> lbfgs_direction(jnp.array([2.0, 2.0]), s, 4 * s, 1.0).tolist()
    [-0.5, -0.5]
    """
    products = jnp.sum(moves * changes, axis=1)
    there = products > 0
    inverse = jnp.where(there, 1 / jnp.where(there, products, 1), 0)

    def back(rest: jax.Array, pair: tuple) -> tuple[jax.Array, jax.Array]:
        move, change, factor = pair
        amount = factor * jnp.vdot(move, rest)
        return rest - amount * change, amount

    def forth(found: jax.Array, pair: tuple) -> tuple[jax.Array, None]:
        move, change, factor, amount = pair
        return found + (amount - factor * jnp.vdot(change, found)) * move, None

    rest, amounts = jax.lax.scan(back, gradient, (moves, changes, inverse))
    last = jnp.sum(changes[:1] ** 2)
    scale = jnp.where(last > 0, jnp.sum(products[:1]) / jnp.where(last > 0, last, 1), 1 / L)
    found, _ = jax.lax.scan(forth, scale * rest, (moves, changes, inverse, amounts), reverse=True)
    return -found
