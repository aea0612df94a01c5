"""Small linear systems for Newton's steps: by Cholesky, by conjugate gradients, and matrices sent as an upper triangle."""
# pyright: standard

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy import linalg

from twofold.control import repeat

__all__ = ["conjugate_gradients", "solve", "symmetric"]


def symmetric(upper: jax.Array, d: int) -> jax.Array:
    """The symmetric d × d matrix with a given upper triangle, listed row by row.

    >>> import jax.numpy as jnp
    >>> symmetric(jnp.array([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    matrix = jnp.zeros((d, d), upper.dtype).at[jnp.triu_indices(d)].set(upper)
    return matrix + jnp.triu(matrix, 1).T


def solve(matrix: jax.Array, right: jax.Array, damping: jax.Array | float = 0.0) -> jax.Array:
    """(A + τD)⁻¹ r by Cholesky, with D = I·mean(diag A); NaN if that matrix is not positive definite.

    A few units of rounding are always added to τ, so that the flat directions of a convex function stay solvable.

    >>> import jax.numpy as jnp
    >>> solve(jnp.diag(jnp.array([1.0, 4.0])), jnp.array([1.0, 4.0])).round(5).tolist()
    [1.0, 1.0]
    """
    tiny = 10 * len(matrix) * jnp.finfo(matrix.dtype).eps
    shift = (damping + tiny) * jnp.mean(jnp.abs(jnp.diagonal(matrix)))
    return linalg.cho_solve(linalg.cho_factor(matrix + shift * jnp.eye(len(matrix), dtype=matrix.dtype)), right)


def conjugate_gradients(
    times: Callable[[jax.Array], jax.Array], right: jax.Array, damping: jax.Array, products: int
) -> jax.Array:
    """An approximation of (A + τD)⁻¹ r after `products` products with A, with D = I·(rᵀAr/rᵀr); stops if A has no curvature.

    >>> import jax.numpy as jnp
    >>> diagonal = jnp.array([1.0, 4.0])
    >>> conjugate_gradients(lambda v: diagonal * v, jnp.array([1.0, 4.0]), jnp.asarray(0.0), products=2).round(
    ...     5
    ... ).tolist()
    [1.0, 1.0]
    """

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(a * b)

    def step(_: jax.Array, state: tuple) -> tuple:
        x, rest, along, size, shift = state
        image = times(along)
        # The first direction is r itself; its curvature sets the scale of the damping.
        shift = jnp.where(shift < 0, damping * jnp.abs(dot(along, image)) / jnp.where(size > 0, size, 1), shift)
        image = image + shift * along
        curvature = dot(along, image)
        length = jnp.where(curvature > 0, size / jnp.where(curvature > 0, curvature, 1), 0)
        x, rest = x + length * along, rest - length * image
        new = dot(rest, rest)
        along = rest + jnp.where((size > 0) & (length > 0), new / jnp.where(size > 0, size, 1), 0) * along
        return x, rest, along, new, shift

    start = (jnp.zeros_like(right), right, right, dot(right, right), -jnp.ones((), right.dtype))
    return repeat(products, step, start)[0]
