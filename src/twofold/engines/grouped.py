"""Many seeds on several cores: a group of seeds for each core, side by side.

An iteration of many seeds of a small problem is a chain of small operations, each of which XLA runs on one core. Seeds have
nothing to do with each other, so each core may as well have its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.engines.base import Engine, Snapshots, Threads
from twofold.engines.simulate import Simulate
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.tree import Pytree


class Grouped(Engine):
    """As many simulations as groups, of equally many seeds each; snapshots are lists of theirs."""

    def __init__(
        self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Any, slots: int, *, groups: int
    ) -> None:
        self._seeds, self._size = len(seeds), len(seeds) // groups
        if self._size * groups != len(seeds):
            raise InputError(f"{len(seeds)} seeds do not make {groups} equal groups.")
        cuts = range(0, len(seeds), self._size)
        self._groups = [Simulate(algorithm, problem, seeds[i : i + self._size], start, slots) for i in cuts]
        self.algorithm, self.program = self._groups[0].algorithm, self._groups[0].program
        self._threads = Threads(groups)

    def advance(self, k: int, count: int, slots: np.ndarray) -> list[Snapshots]:
        """See `Simulate.advance`."""
        return self._threads.map(lambda group: group.advance(k, count, slots), self._groups)

    def wait(self) -> None:
        """See `Engine.wait`."""
        for group in self._groups:
            group.wait()

    def show(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[tuple, Snapshots]:
        """One iterate as a snapshot of the first group's."""
        return self._groups[0].show(w, parts)

    def fetch(self, snapshots: list[Snapshots], slot: int, row: int) -> Snapshots:
        """One iterate, on the host."""
        number, place = divmod(row, self._size)
        return self._groups[number].fetch(snapshots[number], slot, place)

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: list[Snapshots], index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Each group measures its own; the figures are put back in order."""
        slot, row = np.divmod(index, self._seeds)
        number, place = np.divmod(row, self._size)
        mine = [np.flatnonzero(number == g) for g in range(len(self._groups))]

        def some(g: int) -> Any:
            return self._groups[g].measure(metrics, snapshots[g], slot[mine[g]] * self._size + place[mine[g]])

        found = self._threads.map(some, [g for g in range(len(mine)) if len(mine[g])])
        order = np.argsort(np.concatenate(mine), kind="stable")
        values = {name: np.concatenate([part[name] for part, _ in found])[order] for name in metrics}
        return values, np.concatenate([sizes for _, sizes in found])[order]
