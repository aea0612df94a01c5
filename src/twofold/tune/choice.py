"""Which strength is best, judged by rows that a model has not seen: means over clients, paired differences, their errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients

__all__ = ["Gain", "Judge"]

Rows = NDArray[np.float64]


class Gain(NamedTuple):
    """By how much one choice has a lower loss than another on rows it has not seen, and the standard error of that.

    >>> print(Gain(0.031, 0.004))
    +0.031 ± 0.004
    """

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:+.3g} ± {self.error:.1g}"

    def said(self, over: str) -> str:
        """The same in words, whichever of the two is better.

        >>> Gain(-0.026, 0.01).said("one model for everybody")
        '0.026 ± 0.01 worse than one model for everybody'
        """
        if self.mean == 0:
            return f"as good as {over}"
        return f"{abs(self.mean):.3g} ± {self.error:.1g} {'better' if self.mean > 0 else 'worse'} than {over}"


class Judge:
    """Means of rows' losses: over each client's rows, and over clients with their weights p_m.

    The standard error is that of rows drawn anew for the same clients: √(Σ p_m² s_m²/n_m), with s_m² the variance of a client's
    rows. Differences are taken row by row first, so that what is hard for both choices does not count.
    """

    def __init__(self, clients: Clients, fold: NDArray[np.int32], folds: int) -> None:
        self.clients, self.fold, self.folds = clients, fold, folds
        self._first = clients.offsets[:-1]
        self._weights = np.ones(clients.rows) if clients.row_weights is None else np.asarray(clients.row_weights)
        self._owner = np.repeat(np.arange(len(clients)), clients.counts)

    def each(self, rows: Rows, use: NDArray[np.bool_] | None = None) -> Rows:
        """Every client's mean, over all or some of its rows; nan for a client without any."""
        weights = self._weights if use is None else self._weights * use
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.add.reduceat(rows * weights, self._first) / np.add.reduceat(weights, self._first)

    def mean(self, rows: Rows, use: NDArray[np.bool_] | None = None) -> float:
        """The mean over clients."""
        each, p = self.each(rows, use), self.clients.weights
        there = np.isfinite(each)
        return float(np.sum(p[there] * each[there]) / np.sum(p[there]))

    def variances(self, rows: Rows, use: NDArray[np.bool_] | None = None) -> Rows:
        """The variance of each client's mean; clients with few rows borrow the variance of everybody's rows."""
        weights = self._weights if use is None else self._weights * use
        mean = np.nan_to_num(self.each(rows, use))
        total, squares = np.add.reduceat(weights, self._first), np.add.reduceat(weights**2, self._first)
        left = weights * (rows - mean[self._owner]) ** 2
        spread = np.add.reduceat(left, self._first)
        with np.errstate(invalid="ignore", divide="ignore"):
            effective = np.where(squares > 0, total**2 / squares, 0.0)
            free = np.maximum(effective - 1, 0.0)
            all_free = float(np.sum(free))
            pooled = (
                float(np.sum(np.where(total > 0, spread / total * effective, 0.0))) / all_free if all_free > 0 else 0.0
            )
            # As if each client had two more rows with everybody's variance.
            own = (np.where(total > 0, spread / total * effective, 0.0) + 2 * pooled) / (free + 2)
            return np.where(effective > 0, own / effective, np.nan)

    def error(self, rows: Rows) -> float:
        """The standard error of the mean over clients."""
        variances = self.variances(rows)
        p = np.where(np.isfinite(variances), self.clients.weights, 0.0)
        return float(np.sqrt(np.sum((p / p.sum()) ** 2 * np.nan_to_num(variances))))

    def gain(self, of: Rows, over: Rows) -> Gain:
        """By how much the losses `of` are lower than the losses `over`."""
        return Gain(self.mean(over - of), self.error(over - of))

    def best(self, table: Rows, use: NDArray[np.bool_] | None = None, most_shared: bool = False) -> int:
        """The line of the table (strengths, rows) with the lowest mean; the first one of those that are equal.

        With `most_shared`, the first that is not worse than the best by more than one standard error of the difference.
        """
        means = np.array([self.mean(rows, use) for rows in table])
        best = int(np.argmin(means))
        if not most_shared:
            return best
        for k in range(best):
            gap = table[k] - table[best]
            variances = self.variances(gap, use)
            p = np.where(np.isfinite(variances), self.clients.weights, 0.0)
            if means[k] - means[best] <= np.sqrt(np.sum((p / p.sum()) ** 2 * np.nan_to_num(variances))):
                return k
        return best

    def each_best(self, table: Rows, common: int, use: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Every client's own line: another than the common one only where that is better by more than a standard error."""
        chosen = np.full(len(self.clients), common)
        margin = np.zeros(len(self.clients))
        for k in range(len(table)):
            gain = table[common] - table[k]
            mean, error = self.each(gain, use), np.sqrt(self.variances(gain, use))
            with np.errstate(invalid="ignore"):
                better = (mean - error > margin) & np.isfinite(mean)
            chosen, margin = np.where(better, k, chosen), np.where(better, mean - error, margin)
        return chosen

    def nested(self, table: Rows, most_shared: bool = False) -> tuple[Rows, NDArray[np.int64]]:
        """The losses of the choice itself: every row's by the line that the rows of all other folds would choose."""
        lines = np.array([self.best(table, self.fold != f, most_shared) for f in range(self.folds)])
        return table[lines[self.fold], np.arange(table.shape[1])], lines
