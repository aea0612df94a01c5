"""Cross-validation for clients: some rows of every client held out, or whole clients."""
# scikit-learn and pandas come without types, and one of its checks without a public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.model_selection import BaseCrossValidator, GroupKFold
from sklearn.utils.multiclass import type_of_target

from twofold.errors import InputError

__all__ = ["WholeClients", "WithinClients"]


class WithinClients(BaseCrossValidator):
    """Hold out rows inside every client: each client's rows are cut into `n_splits` parts, as equal as can be.

    `groups` are the clients. A client with fewer rows than splits is held out in as many of them as it has rows; one with a single row
    is always trained on. With `stratify` (the default where y is given and not continuous) every label has its share in each part.

    >>> import numpy as np
    >>> splits = list(WithinClients(2).split(np.zeros((5, 1)), groups=["a", "a", "b", "b", "b"]))
    >>> [len(test) for _, test in splits], sorted(np.concatenate([test for _, test in splits]).tolist())
    ([3, 2], [0, 1, 2, 3, 4])
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(self, n_splits: int = 5, *, stratify: bool | None = None, random_state: int = 0) -> None:
        if not isinstance(cast(object, n_splits), int) or n_splits < 2:
            raise InputError(f"n_splits is a whole number of at least 2, got {n_splits!r}.")
        self.n_splits, self.stratify, self.random_state = n_splits, stratify, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> Any:
        """Give the number of splits."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Generator[Any, Any, None]:
        """Give the training and the test rows of each split."""
        if groups is None:
            raise InputError("WithinClients needs the clients: pass groups=, one label per row.")
        labels, member = np.unique(np.asarray(groups), return_inverse=True)
        rng = np.random.default_rng(self.random_state)
        by_label = y is not None and (
            self.stratify or (self.stratify is None and not type_of_target(y).startswith("continuous"))
        )
        fold = np.full(len(member), -1)
        for m in range(len(labels)):
            rows = rng.permutation(np.flatnonzero(member == m))
            if by_label:
                rows = rows[np.argsort(np.asarray(y)[rows], kind="stable")]
            if len(rows) > 1:
                fold[rows] = (np.arange(len(rows)) + rng.integers(self.n_splits)) % self.n_splits
        for f in range(self.n_splits):
            test = np.flatnonzero(fold == f)
            if len(test) == 0:
                raise InputError(f"There are too few rows for {self.n_splits} splits: no client has that many.")
            yield np.flatnonzero(fold != f), test


class WholeClients(GroupKFold):
    """Hold out whole clients: how well does the shared part do for those who were not there?

    This is scikit-learn's `GroupKFold` with the clients as `groups`.

    >>> import numpy as np
    >>> next(WholeClients(3).split(np.zeros((4, 1)), groups=["a", "a", "b", "c"]))[1].tolist()
    [0, 1]
    """
