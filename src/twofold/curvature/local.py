"""Curvature where there is no formula: Lanczos on Hessian-vector products, vectorised over clients and rows."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from twofold import tree
from twofold.clients import Clients
from twofold.losses import Rows
from twofold.tree import Pytree

__all__ = ["STEPS", "largest_eigenvalue", "largest_of_loss", "real_weight", "spread"]

MOST_ROWS, MOST_CLIENTS = 512, 64
"""Curvature is computed at no more than this many rows and clients, evenly spaced; for a net, all would take minutes."""
STEPS = 32
"""Lanczos steps. In exact arithmetic, the largest eigenvalue is exact if there are at most this many distinct eigenvalues."""

_State: TypeAlias = tuple[
    jax.Array, jax.Array, jax.Array
]  # the basis; diagonal and off-diagonal of the tridiagonal matrix


class _HasValue(Protocol):
    """Any loss: only its value is needed here."""

    def value(self, params: Pytree, rows: Rows) -> jax.Array: ...


def largest_eigenvalue(function: Callable[[Pytree], jax.Array], point: Pytree, steps: int = STEPS) -> jax.Array:
    """Compute the Hessian eigenvalue of largest magnitude at a point, by Lanczos with reorthogonalisation.

    >>> import jax.numpy as jnp
    >>> from twofold.curvature import largest_eigenvalue
    >>> round(float(largest_eigenvalue(lambda v: v[0] ** 2 + 3 * v[1] ** 2, jnp.zeros(2))), 6)
    6.0
    """
    flat, unravel = ravel_pytree(point)
    if flat.size == 0:
        return jnp.zeros(())
    gradient = jax.grad(lambda v: function(unravel(v)))
    if flat.size <= steps:  # the whole Hessian needs no more products than Lanczos, and compiles in a third of the time
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.jacfwd(gradient)(flat))))

    def hessian_times(v: jax.Array) -> jax.Array:
        return jax.jvp(gradient, (flat,), (v,))[1]

    start = jax.random.normal(jax.random.key(0, impl="threefry2x32"), flat.shape, flat.dtype)
    basis = jnp.zeros((steps + 1, flat.size), flat.dtype).at[0].set(start / jnp.linalg.norm(start))

    def step(i: jax.Array, state: _State) -> _State:
        basis, diagonal, off = state
        image = hessian_times(basis[i])
        diagonal = diagonal.at[i].set(jnp.vdot(basis[i], image))
        for _ in range(2):  # orthogonalising twice is enough (Kahan)
            image = image - basis.T @ (basis @ image)
        norm = jnp.linalg.norm(image)
        # A vanishing remainder means an invariant subspace; continuing with the zero vector adds only zero eigenvalues.
        seen = jnp.maximum(jnp.max(jnp.abs(diagonal)), jnp.max(off))
        safe = norm > 1e3 * jnp.finfo(flat.dtype).eps * seen
        basis = basis.at[i + 1].set(jnp.where(safe, image / jnp.where(safe, norm, 1), 0))
        return basis, diagonal, off.at[i].set(jnp.where(safe, norm, 0))

    empty = jnp.zeros((steps,), flat.dtype)
    _, diagonal, off = jax.lax.fori_loop(0, steps, step, (basis, empty, empty))
    tridiagonal = jnp.diag(diagonal) + jnp.diag(off[:-1], 1) + jnp.diag(off[:-1], -1)
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(tridiagonal)))


def largest_of_loss(loss: _HasValue, params: Pytree, clients: Clients, *, single_rows: bool) -> float:
    """Estimate a loss's L' at a point (the largest curvature of any client), or 𝓛' (the largest of any single row).

    If there are many clients or rows, an evenly spaced selection is used. Padding never counts: a client's mean is over its own
    rows.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold.curvature import largest_of_loss
    >>> clients = tw.Clients.from_list([(np.array([[1.0], [2.0]]), np.zeros(2)), (np.array([[1.0]]), np.zeros(1))])
    >>> [largest_of_loss(tw.losses.squared(), np.zeros(1), clients, single_rows=rows) for rows in (False, True)]
    [2.5, 4.0]
    """
    if single_rows:
        return _largest_row(loss, params, clients)
    stack = clients.stack(spread(clients.M, MOST_CLIENTS))

    def of_client(client: tuple[Pytree, Pytree, jax.Array, jax.Array | None]) -> jax.Array:
        x, y, count, each = client
        weight = real_weight(jax.tree.leaves(x)[0].shape[0], count)
        rows = Rows(x, y, weight if each is None else weight * each)
        return largest_eigenvalue(lambda p: loss.value(p, rows), params)

    everyone = tree.arrays((stack.x, stack.y, stack.count, stack.row_weight))
    return float(np.max(jax.jit(lambda each: jax.lax.map(of_client, each, batch_size=32))(everyone)))


def _largest_row(loss: _HasValue, params: Pytree, clients: Clients) -> float:
    def of_row(row: tuple[Pytree, Pytree, jax.Array | None]) -> jax.Array:
        x, y, each = jax.tree.map(lambda leaf: leaf[None], row)
        single = Rows(x, y, jnp.ones((1,)) if each is None else each)
        return largest_eigenvalue(lambda p: loss.value(p, single), params)

    index = spread(clients.rows, MOST_ROWS)
    everything = jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), (clients.x, clients.y, clients.row_weights))
    return float(jnp.max(jax.jit(lambda rows: jax.lax.map(of_row, rows, batch_size=256))(everything)))


def spread(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0, …, count − 1, evenly spaced, including the first and the last.

    >>> spread(3, 5).tolist(), spread(9, 3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.arange(count) if count <= most else np.rint(np.linspace(0, count - 1, most)).astype(np.int64)


def real_weight(capacity: int, count: jax.Array) -> jax.Array:
    """Give each of a client's `count` rows the weight 1/count, and the padding up to `capacity` rows weight 0.

    >>> import jax.numpy as jnp
    >>> from twofold.curvature import real_weight
    >>> real_weight(3, jnp.asarray(2)).tolist()
    [0.5, 0.5, 0.0]
    """
    real = jnp.arange(capacity) < count
    return real.astype(jnp.result_type(float)) / count
