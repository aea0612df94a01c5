"""The rows of an estimator's table as clients, in sizes that repeat, so that a second fit of nearly the same size compiles nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients
from twofold.errors import InputError
from twofold.objectives.base import Objective
from twofold.tables import Columns, Schema

__all__ = ["check_finite", "clients_of", "one_each", "room", "roomy", "taken"]

ROOM = 64
"""Up to this many rows or features, sizes are rounded up to a power of two; beyond, to one of eight steps between two of them."""


def check_finite(array: NDArray[Any]) -> None:
    """Refuse infinite values, naming the first one's row and column."""
    if array.dtype.kind == "f" and np.isinf(array).any():
        row, column = np.argwhere(np.isinf(array))[0]
        raise InputError(f"Input X contains infinity, first at row {row}, column {column}: every value must be finite.")


def taken(table: Columns, names: Sequence[Any], rows: NDArray[np.int64]) -> Columns:
    """Some rows of a table."""

    def fetch(name: Any) -> Any:
        values = table.fetch(name)
        return values._replace(values=values.values[rows], missing=values.missing[rows])

    return Columns(tuple(names), len(rows), fetch)


def room(size: int) -> int:
    """A size rounded up, so that data of nearly the same size need no other compiled programs.

    >>> room(5), room(100), room(1000)
    (8, 104, 1024)
    """
    if size <= ROOM:
        return 1 << max(size - 1, 0).bit_length()
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


def clients_of(
    x: NDArray[Any], y: NDArray[Any], owners: Sequence[Any], weight: NDArray[Any] | None, weights: str, schema: Schema
) -> Clients:
    """The clients whose rows these are; `schema` says what they have sent so that all have the same features."""
    if weights not in ("rows", "equal"):
        raise InputError(f'weights is "rows" or "equal", got {weights!r}.')
    if any(owner is None for owner in owners):
        raise InputError("A row has no client: fill in the column of clients, or leave such rows out.")
    return Clients.from_groups(x, y, owners, "rows" if weights == "rows" else None, row_weights=weight, schema=schema)


def one_each(objective: Objective, clients: Clients) -> Objective:
    """The same objective with λ written as one number per client, so that one compiled program does for every choice between the ends.

    The ends are objectives of their own: "alone" sends nothing, and "shared" has one model and no β, of which λ → ∞ is only the limit.
    """
    lam = getattr(objective, "lam", None)
    if lam is None or np.ndim(lam):
        return objective
    return dataclasses.replace(cast(Any, objective), lam=np.full(len(clients), float(lam)))


def roomy(clients: Clients) -> Clients:
    """The same clients with their sizes rounded up."""
    return clients.padded(room(int(clients.counts.max())), room(clients.x.shape[1]))
