"""What `solve` asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from twofold import metrics as measure
from twofold.tree import Pytree

T = TypeVar("T")


class Snapshots(NamedTuple):
    """Recorded iterates, (slots, seeds, …): real w, and each bucket's β."""

    w: Pytree
    parts: tuple[Pytree, ...]


class Threads:
    """Threads that work in the precision of whoever made them, which JAX would have to be told in each."""

    def __init__(self, count: int) -> None:
        self._count, self._pool = count, ThreadPoolExecutor(count)
        self._wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

    def map(self, work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """The result of each item's work, in order, all of it done."""
        found: dict[int, T] = {}
        waiting = iter(list(enumerate(items)))

        def some() -> None:
            """One item after the other: to hand out each by itself would wake somebody up for each."""
            with jax.enable_x64(self._wide):
                for place, item in waiting:
                    found[place] = jax.block_until_ready(work(item))

        for each in [self._pool.submit(some) for _ in range(self._count)]:
            each.result()
        return [found[place] for place in range(len(found))]


class Engine:
    """All clients of all seeds of one run, advanced iteration by iteration.

    `program` is (objective, scale, stacks), with which metrics are evaluated; an engine that has no such thing measures by
    itself. One whose `keeps` is false runs one seed at a time and keeps no iterates but the last.
    """

    algorithm: Any
    program: tuple
    keeps = True

    def __init__(self, algorithm: Any, problem: Any, seeds: list[int], start: Any, slots: int) -> None:
        raise NotImplementedError

    def advance(self, k: int, count: int, slots: np.ndarray) -> Any:
        """Iterations k … k+count−1; slots[i] says where the iterates k+i are kept."""
        raise NotImplementedError

    def wait(self) -> None:
        """Until all that was asked for is computed."""

    def show(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[tuple, Any]:
        """One iterate as a snapshot in slot 0, with the program that evaluates it."""
        raise NotImplementedError

    def fetch(self, snapshots: Any, slot: int, row: int) -> Snapshots:
        """One iterate, on the host."""
        raise NotImplementedError

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: Any, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Every metric of the snapshots at the flat (slot, seed) positions `index`, and ‖(w, β)‖² of each."""
        return measure.evaluate(metrics, self.program, snapshots, index)

    def measure_start(
        self, metrics: dict[str, measure.Metric], w: Pytree, parts: tuple[Pytree, ...]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The same of the starting point."""
        program, first = self.show(w, parts)
        return measure.evaluate(metrics, program, first, np.zeros(1, np.int32))
