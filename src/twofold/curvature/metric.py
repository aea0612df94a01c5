"""Metrics: changes of variables w = s·R_w w̃ and β_m = R_m β̃_m; but in the last, every block of ∇²F is at most I in them.

Each factor comes from the upper bound of its own block (see `model`), as R Rᵀ = P with P⁻¹ ⪰ block (formula 4):

- "matrix": P is the inverse of the upper block. R_w needs the pooled second moments, d² numbers from each client, once.
- "diagonal": P⁻¹ = δ·D, where D is the block's diagonal and δ ≥ λ_max(D^(-1/2)·block·D^(-1/2)). R_w needs d numbers from each
  client for D, and then one more for its part of δ = Σ p_m δ_m.
- "scale": P⁻¹ = L·I, with L = Σ p_m L_m for w (one number from each client) and p_m L_m for β_m.
- "profile": for w alone, P⁻¹ is about the Hessian of min_β F, which `profile` minimises: Σ p_m (H^ww − H^wβ (H^ββ)⁻¹ H^βw)_m at the
  link's likely curvature. R_w needs d² numbers from each client, once. P⁻¹ is no bound; `bounds` has the constants in it.

The server needs only sums over clients, and nothing at all if the w-block contains no data (as in the mixture). Every factor is
symmetric, R = Rᵀ. A matrix acts on the features of each class; an intercept counts as one more feature.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold.curvature.elimination import eliminated
from twofold.curvature.model import WIDE, BlockCurvature
from twofold.errors import InputError
from twofold.tree import Pytree, record, static

__all__ = ["Factor", "Kind", "Metric", "build", "pack", "private_roots", "unpack"]

Array = NDArray[np.float64]
Factor = jax.Array | Array
Kind = Literal["matrix", "diagonal", "scale", "profile"]

FLOOR = 1e-12
"""Eigenvalues of a block are raised to at least this fraction of its largest, for directions without data or ridge."""


@record
class Metric:
    """The factors R_w, of shape (d, d), (d,) or (), and R_m with a leading client axis; None if a block is absent.

    `w` and `beta` map new variables to the scaled w and the real β_m, the `…_inverse` methods map back, and the `…_transpose`
    methods take gradients to the new variables: ∇̃ = Rᵀ∇. Parameters are pytrees as in the loss: one array (features, or features
    × classes), or `weight` and `bias`. With `by_class`, weights are (classes, features).

    >>> import numpy as np
    >>> metric = Metric(np.array([[2.0, 0.0], [0.0, 3.0]]), None, "matrix", False)
    >>> metric.w(np.array([1.0, 1.0])).tolist()
    [2.0, 3.0]
    """

    shared: Factor | None
    private: Factor | None
    kind: Kind = static()
    classes: bool = static()
    by_class: bool = static(default=False)
    opening_floats: int = static(default=0)  # how many numbers a client sends once so that the server can compute R_w

    def w(self, new: Pytree) -> Pytree:
        """R_w w̃, which is w in the scaled space; the real w is s times that."""
        return self._apply(self.shared, new)

    def w_inverse(self, scaled: Pytree) -> Pytree:
        """R_w⁻¹ w."""
        return self._solve(self.shared, scaled)

    def w_transpose(self, gradient: Pytree) -> Pytree:
        """R_wᵀ∇_w, the gradient in w̃ (R_w is symmetric)."""
        return self._apply(self.shared, gradient)

    def beta(self, factor: Factor | None, new: Pytree) -> Pytree:
        """R_m β̃_m for one client's factor, `private[m]`."""
        return self._apply(factor, new)

    def beta_inverse(self, factor: Factor | None, real: Pytree) -> Pytree:
        """R_m⁻¹ β_m."""
        return self._solve(factor, real)

    def beta_transpose(self, factor: Factor | None, gradient: Pytree) -> Pytree:
        """R_mᵀ∇_β, the gradient in β̃_m."""
        return self._apply(factor, gradient)

    def _apply(self, factor: Factor | None, x: Pytree) -> Pytree:
        if factor is None:
            return x
        if jnp.ndim(factor) == 0:
            return jax.tree.map(lambda leaf: factor * leaf, x)
        rows, matrix = pack(x, self.classes, self.by_class), jnp.asarray(factor)
        return unpack(matrix @ rows if matrix.ndim == 2 else matrix[:, None] * rows, x, self.classes, self.by_class)

    def _solve(self, factor: Factor | None, x: Pytree) -> Pytree:
        if factor is None:
            return x
        if jnp.ndim(factor) == 0:
            return jax.tree.map(lambda leaf: leaf / factor, x)
        rows = pack(x, self.classes, self.by_class)
        found = jnp.linalg.solve(factor, rows) if factor.ndim == 2 else rows / factor[:, None]
        return unpack(found, x, self.classes, self.by_class)


# --- parameters as matrices of features by classes ------------------------------------------------------------------------


def pack(x: Pytree, classes: bool, by_class: bool = False) -> jax.Array:
    """A block of a linear model as one matrix (features, classes): the bias, if any, is the first row."""
    parts = [_rows(leaf, classes, by_class) for leaf in jax.tree.leaves(x)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def unpack(rows: jax.Array, like: Pytree, classes: bool, by_class: bool = False) -> Pytree:
    """The inverse of `pack`, for a block of the shapes of `like`."""
    leaves, structure = jax.tree.flatten(like)
    found, start = [], 0
    for leaf in leaves:
        plain = _is_bias(leaf, classes) or not (classes and by_class)
        size = 1 if _is_bias(leaf, classes) else leaf.shape[0 if plain else 1]
        part = rows[start : start + size]
        found.append((part if plain else part.T).reshape(leaf.shape))
        start += size
    return jax.tree.unflatten(structure, found)


def _is_bias(leaf: Factor, classes: bool) -> bool:
    return jnp.ndim(leaf) == int(classes)


def _rows(leaf: Factor, classes: bool, by_class: bool) -> jax.Array:
    leaf = jnp.asarray(leaf)
    if _is_bias(leaf, classes):
        return leaf.reshape(1, -1)
    if not classes:
        return leaf[:, None]
    return leaf.T if by_class else leaf


# --- from a model of the curvature --------------------------------------------------------------------------------------


def build(model: BlockCurvature, scale: float, kind: Kind) -> Metric:
    """The metric of one kind for a model of the curvature, in float64 NumPy; `tree.cast` converts it to a run's precision."""
    if kind not in get_args(Kind):
        raise InputError(f"precondition must be one of {', '.join(get_args(Kind))}, got {kind!r}.")
    if kind in ("matrix", "profile") and not model.kept:
        widest = max(model.a, model.b)
        raise InputError(
            f'precondition="{kind}" needs a {widest} × {widest} matrix for each of {model.M} clients, which is too much '
            f'(the limits are {WIDE} features, and half a gigabyte in all); use precondition="diagonal".'
        )
    if kind == "profile":
        return _of_profile(model, scale)
    shared = None if model.shared is None else _shared(model, scale, kind)
    private = None if model.private is None else _private(model, kind)
    floats = 0
    if model.shared is not None and np.any(model.data.ww != 0):
        floats = {"matrix": model.a**2, "diagonal": model.a + 1, "scale": 1}[kind]
    return Metric(shared, private, kind, model.outputs is not None, False, floats)


def _of_profile(model: BlockCurvature, scale: float) -> Metric:
    """R_w of the Hessian of min_β F, where the link has its likely curvature; the β_m stay as they are."""
    if model.shared is None:
        return Metric(None, None, "profile", model.outputs is not None)
    values, vectors = np.linalg.eigh(scale**2 * eliminated(model, model.likely().low))
    root = _symmetric(vectors, _inverse_root(np.maximum(values, 0.0)))
    return Metric(root, None, "profile", model.outputs is not None, opening_floats=model.a**2)


def _shared(model: BlockCurvature, scale: float, kind: Kind) -> Array:
    p, s2 = model.weights, scale * scale
    fixed = float(p @ model.fixed.ww)
    if not np.any(model.data.ww != 0):
        return np.asarray(_inverse_root(np.asarray(s2 * fixed)))
    if kind == "scale":
        return np.asarray(
            _inverse_root(np.asarray(s2 * float(p @ (model.high * model.data.ww * model.tops[0]) + fixed)))
        )
    if kind == "matrix":
        values, vectors = np.linalg.eigh(model.pooled)
        return _symmetric(vectors, _inverse_root(s2 * (model.high * np.maximum(values, 0.0) + fixed)))
    assert model.shared is not None
    diagonal = _floored(s2 * (model.high * _mean_diagonal(model) + fixed))
    roots = diagonal**-0.5
    parts = s2 * model.high * p * model.data.ww * model.tops_in(model.shared, roots)
    delta = float(np.sum(parts)) + s2 * fixed * float(np.max(1 / diagonal))
    return roots * min(delta, model.a) ** -0.5  # a matrix of size a with ones on its diagonal has no eigenvalue above a


def _mean_diagonal(model: BlockCurvature) -> Array:
    assert model.shared is not None
    total = np.zeros(model.a)
    share = model.weights * model.data.ww
    for positions, rows in model.groups(model.a):
        total += share[positions] @ np.mean(model.shared.take(rows) ** 2, axis=1)
    return total


def _private(model: BlockCurvature, kind: Kind) -> Array:
    p = model.weights
    if kind == "scale":
        return _each_inverse_root(p * model.private_block(model.high, model.tops[1]))
    if kind == "matrix":
        return _symmetric(model.spectrum[1], private_roots(model))
    assert model.private is not None
    diagonal = _floored(p[:, None] * model.private_block(model.high, model.diagonals))
    roots = diagonal**-0.5
    delta = p * model.high * model.data.bb * model.tops_in(model.private, roots)
    delta = delta + p * model.fixed.bb * np.max(1 / diagonal, axis=1)
    return roots * np.minimum(delta, model.b)[:, None] ** -0.5


def private_roots(model: BlockCurvature) -> Array:
    """The eigenvalues (M, b) of the matrix R_m, in the order of the spectrum of G_m."""
    return _inverse_root(model.weights[:, None] * model.private_block(model.high, model.spectrum[0]))


def _floored(values: Array) -> Array:
    """Raise the values along the last axis to at least FLOOR times the largest; if all are zero, return ones."""
    top = np.max(values, axis=-1, keepdims=True)
    return np.maximum(values, np.where(top > 0, FLOOR * top, 1.0))


def _inverse_root(values: Array) -> Array:
    return (_floored(values) if values.ndim else np.where(values > 0, values, 1.0)) ** -0.5


def _each_inverse_root(values: Array) -> Array:
    return np.where(values > 0, values, 1.0) ** -0.5


def _symmetric(vectors: Array, values: Array) -> Array:
    return (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)
