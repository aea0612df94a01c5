"""The two normalisations that the paper applies to images: features first, then rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError

__all__ = ["paper", "standardise", "unit_rows"]

_BLOCK = 64  # columns at a time


def standardise(x: ArrayLike, reference: ArrayLike | None = None) -> NDArray[np.floating]:
    """Shift and scale every column to mean 0 and variance 1.

    The mean and the variance (over n, not n - 1) are those of `reference`, by default of `x` itself. When you normalise test rows,
    pass the training rows as `reference`. A column that is constant in the reference carries no information and becomes 0.
    float32 stays float32; everything else becomes float64.

    >>> import twofold as tw
    >>> tw.data.normalise.standardise([[1.0, 5.0], [3.0, 5.0]]).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    x = _matrix(x, "x")
    rows = x if reference is None else _matrix(reference, "reference")
    if rows.shape[0] == 0:
        raise InputError(f"a mean needs at least one row, but the reference has shape {rows.shape}")
    if rows.shape[1] != x.shape[1]:
        raise InputError(f"x has {x.shape[1]} columns and the reference {rows.shape[1]}: they must agree")
    out = np.empty(x.shape, x.dtype)
    # Sums are taken in float64, in blocks of columns so that this does not multiply the memory.
    for start in range(0, x.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        mean, scale = _location_and_scale(rows[:, block].astype(np.float64))
        out[:, block] = np.where(scale > 0, (x[:, block] - mean) / np.where(scale > 0, scale, 1.0), 0.0)
    return out


def _location_and_scale(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and standard deviation of every column; the deviation of a constant column is exactly 0."""
    mean = np.mean(rows, axis=0)
    # Exact comparison finds constant columns: their computed deviation is often a rounding error, not 0.
    varies = np.max(rows, axis=0) > np.min(rows, axis=0)
    centred = rows - mean
    largest = np.max(np.abs(centred), axis=0)
    # Dividing by the largest deviation first keeps the squares of tiny or huge columns in range.
    relative = centred / np.where(varies, largest, 1.0)
    return mean, np.where(varies, largest * np.sqrt(np.mean(np.square(relative), axis=0)), 0.0)


def unit_rows(x: ArrayLike) -> NDArray[np.floating]:
    """Scale every row to Euclidean norm 1; a row of zeros stays zero.

    >>> import twofold as tw
    >>> tw.data.normalise.unit_rows([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    x = _matrix(x, "x")
    largest = np.maximum(np.max(x, axis=1, keepdims=True, initial=0.0), -np.min(x, axis=1, keepdims=True, initial=0.0))
    out = x / np.where(largest > 0, largest, 1)  # in [-1, 1], so that squares neither overflow nor vanish
    norm = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))[:, None]
    out /= np.where(norm > 0, norm, 1.0).astype(x.dtype)
    return out


def paper(x: ArrayLike, reference: ArrayLike | None = None) -> NDArray[np.floating]:
    """Normalise as the paper does: columns to mean 0 and variance 1, then rows to norm 1.

    The paper normalises each data set as a whole, which is `reference=None` on all of its rows.

    >>> import twofold as tw
    >>> tw.data.normalise.paper([[1.0, 5.0], [3.0, 5.0]]).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    return unit_rows(standardise(x, reference))


def _matrix(x: ArrayLike, name: str) -> NDArray[np.floating]:
    array = np.asarray(x)
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix with one row per sample, but has shape {array.shape}")
    if array.dtype != np.float32:
        array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinite values")
    return array
