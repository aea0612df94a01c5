"""The type that every loader returns: rows, their owners if the data names them, and their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.tables import Schema

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features `x` and targets `y`, a sentence on their `provenance`, and each row's `owner` if the data names them.

    If there are owners, `tw.Clients.from_groups(data.x, data.y, data.owner)` makes the clients. If not, a function in
    `tw.data.partition` divides the rows between clients.

    >>> data = Dataset(np.eye(2), np.array([0, 1]), "Made up.")
    >>> data.x.shape, data.owner
    ((2, 2), None)
    """

    x: NDArray[Any]
    y: NDArray[Any]
    provenance: str
    owner: NDArray[Any] | None = None
    schema: Schema | None = None
    """How the columns of a table became the features and the targets."""

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        provenance: str,
        names: Sequence[str] | Sequence[int] | None = None,
    ) -> Dataset:
        """Put the rows of several clients into one table; without `names`, the clients are numbered.

        >>> Dataset.of_clients(
        ...     [(np.ones((2, 3)), np.zeros(2)), (np.ones((1, 3)), np.ones(1))], "Made up."
        ... ).owner.tolist()
        [0, 0, 1]
        """
        labels = np.arange(len(clients)) if names is None else np.asarray(names)
        x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
        return cls(x, y, provenance, np.repeat(labels, [len(rows) for _, rows in clients]))
