"""How much each client counts in F, and each row in its client's mean."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.clients.mistakes import ClientError
from twofold.clients.names import Name

__all__ = ["Weights", "one_each", "row_weights_of", "weights_of"]

Weights: TypeAlias = Literal["rows"] | ArrayLike | None
"""None (1/M each, as in the paper), "rows" (proportional to counts, as in FedAvg), or M positive numbers."""


def weights_of(
    weights: Weights,
    counts: NDArray[np.integer],
    names: tuple[Name, ...],
    totals: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Turn any accepted form of weights into positive numbers that sum to one; `totals` are the clients' sums of row weights."""
    if weights is None:
        return np.full(len(counts), 1 / len(counts))
    try:
        values = np.array(
            (counts if totals is None else totals) if isinstance(weights, str) and weights == "rows" else weights,
            dtype=np.float64,
        )
    except (TypeError, ValueError):
        raise ClientError(f"weights must be None, 'rows' or one number per client, found {weights!r}") from None
    if values.shape != counts.shape:
        raise ClientError(f"weights has shape {values.shape} for {len(counts)} clients")
    for m in np.flatnonzero(~(np.isfinite(values) & (values > 0))):
        raise ClientError(f"client {names[m]!r} has weight {values[m]}, but weights must be positive and finite")
    total = values.sum()
    return values if abs(total - 1) < 1e-12 else values / total  # already normalised: keep every bit


def row_weights_of(
    values: ArrayLike | None, counts: NDArray[np.integer], names: tuple[Name, ...]
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Each client's sum of row weights, and the weights rescaled to average one over each client's rows."""
    if values is None:
        return None, None
    array = one_each(values, int(counts.sum(dtype=np.int64)))
    first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])[:-1]
    good = np.isfinite(array) & (array >= 0)
    if not good.all():
        row = int(np.argmin(good))
        m = int(np.searchsorted(first, row, side="right")) - 1
        raise ClientError(
            f"client {names[m]!r}: the weight of row {row - first[m]} is {array[row]}, but row weights are finite numbers ≥ 0"
        )
    totals = np.add.reduceat(array, first)
    for m in np.flatnonzero(totals <= 0):
        raise ClientError(f"client {names[m]!r} has no row of positive weight: leave the client out")
    return totals, array * np.repeat(counts / totals, counts)


def one_each(values: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Row weights as an array, one for each row."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ClientError(f"row_weights must be one number per row, found {values!r}") from None
    if array.shape != (rows,):
        raise ClientError(f"row_weights has shape {array.shape} for {rows} rows")
    return array
