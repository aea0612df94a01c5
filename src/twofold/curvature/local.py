"""Curvature where no formula gives it: Lanczos on Hessian-vector products, vectorised over clients and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from twofold.losses import Rows
from twofold.tree import Pytree

STEPS = 32
"""Lanczos steps: the largest eigenvalue is exact in exact arithmetic for up to this many distinct eigenvalues."""


def largest_eigenvalue(function: Callable[[Pytree], jax.Array], point: Pytree, steps: int = STEPS) -> jax.Array:
    """The largest eigenvalue, in size, of the Hessian of a function at a point, by Lanczos with reorthogonalisation."""
    flat, unravel = ravel_pytree(point)
    if flat.size == 0:
        return jnp.zeros(())
    gradient = jax.grad(lambda v: function(unravel(v)))
    if flat.size <= steps:  # the whole Hessian takes no more products than Lanczos, and compiles in a third of the time
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.jacfwd(gradient)(flat))))

    def hessian_times(v: jax.Array) -> jax.Array:
        return jax.jvp(gradient, (flat,), (v,))[1]

    start = jax.random.normal(jax.random.key(0, impl="threefry2x32"), flat.shape, flat.dtype)
    basis = jnp.zeros((steps + 1, flat.size), flat.dtype).at[0].set(start / jnp.linalg.norm(start))

    def step(i: Any, state: tuple) -> tuple:
        basis, diagonal, off = state
        image = hessian_times(basis[i])
        diagonal = diagonal.at[i].set(jnp.vdot(basis[i], image))
        for _ in range(2):  # twice is enough (Kahan)
            image = image - basis.T @ (basis @ image)
        norm = jnp.linalg.norm(image)
        # A vanishing remainder means an invariant subspace: the zero vector then adds only zero eigenvalues.
        seen = jnp.maximum(jnp.max(jnp.abs(diagonal)), jnp.max(off))
        safe = norm > 1e3 * jnp.finfo(flat.dtype).eps * seen
        basis = basis.at[i + 1].set(jnp.where(safe, image / jnp.where(safe, norm, 1), 0))
        return basis, diagonal, off.at[i].set(jnp.where(safe, norm, 0))

    empty = jnp.zeros((steps,), flat.dtype)
    _, diagonal, off = jax.lax.fori_loop(0, steps, step, (basis, empty, empty))
    tridiagonal = jnp.diag(diagonal) + jnp.diag(off[:-1], 1) + jnp.diag(off[:-1], -1)
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(tridiagonal)))


def largest_of_loss(loss: Any, params: Pytree, clients: Any, *, single_rows: bool) -> float:
    """L' (or 𝓛' with `single_rows`) of a loss at a point: the largest over clients (or over single rows)."""
    if single_rows:

        def curvature(x: Pytree, y: Pytree) -> jax.Array:
            row = Rows(*jax.tree.map(lambda leaf: leaf[None], (x, y)), weight=jnp.ones((1,)))
            return largest_eigenvalue(lambda p: loss.value(p, row), params)

        x, y = jax.tree.map(jnp.asarray, (clients.x, clients.y))
        return float(jnp.max(jax.jit(lambda x, y: jax.lax.map(lambda r: curvature(*r), (x, y), batch_size=256))(x, y)))
    stack = clients.stack()

    def of_client(x: Pytree, y: Pytree, count: jax.Array) -> jax.Array:
        rows = Rows(x, y, real_weight(jax.tree.leaves(x)[0].shape[0], count))
        return largest_eigenvalue(lambda p: loss.value(p, rows), params)

    arguments = jax.tree.map(jnp.asarray, (stack.x, stack.y, stack.count))
    return float(np.max(jax.jit(lambda a: jax.lax.map(lambda c: of_client(*c), a, batch_size=32))(arguments)))


def real_weight(capacity: int, count: jax.Array) -> jax.Array:
    """1/count for each of the first `count` of `capacity` rows, 0 for the padding."""
    real = jnp.arange(capacity) < count
    return real.astype(jnp.result_type(float)) / count
