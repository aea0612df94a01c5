"""What every loader returns: rows, whose they are where the data says so, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features `x` and targets `y`, a sentence on where they come from, and each row's `owner` if it has one.

    `tw.Clients.from_groups(data.x, data.y, data.owner)` makes clients of data with owners; rows without owners are
    dealt out by one of `tw.data.partition`.

    >>> data = Dataset(np.eye(2), np.array([0, 1]), "Made up.")
    >>> data.x.shape, data.owner
    ((2, 2), None)
    """

    x: NDArray[Any]
    y: NDArray[Any]
    provenance: str
    owner: NDArray[Any] | None = None

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        provenance: str,
        names: Sequence[str] | Sequence[int] | None = None,
    ) -> Dataset:
        """Put the rows of several clients into one table; the clients are numbered unless they have names.

        >>> Dataset.of_clients(
        ...     [(np.ones((2, 3)), np.zeros(2)), (np.ones((1, 3)), np.ones(1))], "Made up."
        ... ).owner.tolist()
        [0, 0, 1]
        """
        labels = np.arange(len(clients)) if names is None else np.asarray(names)
        x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
        return cls(x, y, provenance, np.repeat(labels, [len(rows) for _, rows in clients]))
