"""When the clock is read: at every record, but no more often than every few milliseconds."""

from __future__ import annotations

import time

import numpy as np

from twofold.engines.base import Engine, Factors, Snapshots

__all__ = ["COST", "Clock"]

COST = 64
"""The clock is read when iterations have taken this many times as long as an empty call: that costs a few per cent of a run."""
GROWTH = 32
"""By how much the part of a stretch between two readings may grow at a time: the first parts of a run say how fast it is."""


class Clock:
    """The time since a run began, and how long a call of its engine takes by itself."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.apart, self._each, self._most = 0.0, 0.0, 1.0
        """Seconds between two readings; seconds of an iteration, and the most iterations of the next part."""

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    def go_back(self, seconds: float) -> None:
        """Count from so many seconds ago: a run that is resumed has already taken them."""
        self.began = time.perf_counter() - seconds

    def calibrate(self, engine: Engine, k: int, factors: Factors | None) -> None:
        """Compile the loop, and find out what a call costs in which nothing is done."""
        took = 0.0
        for _ in range(2):
            since = self.now()
            engine.advance(k, 0, np.zeros(0, np.int32), factors)
            engine.wait()
            took = self.now() - since
        self.apart = COST * took  # by the second call: the first has compiled

    def advance(
        self, engine: Engine, k: int, slots: np.ndarray, records: np.ndarray, factors: Factors | None
    ) -> tuple[Snapshots, np.ndarray]:
        """Do a stretch in parts that end with a record; give its snapshots, and the time after each iteration.

        `records` are the iterations, counted from 0, that are recorded. Parts are so long that reading the clock after them does not
        slow the run down; times inside a part are interpolated.
        """
        count, done, snapshots = len(slots), 0, None
        seconds = np.empty(count)
        since = self.now()
        while done < count:
            stop = self._stop(records + 1, done, count) if engine.slots and engine.buffers else count
            mine = None if factors is None else _part(factors, done, stop)
            snapshots = engine.advance(k + done, stop - done, slots[done:stop], mine)
            engine.wait()
            now = self.now()
            seconds[done:stop] = np.linspace(since, now, stop - done + 1)[1:]
            self._each, self._most = (now - since) / (stop - done), GROWTH * (stop - done)
            done, since = stop, now
        return snapshots, seconds  # type: ignore[return-value]

    def _stop(self, ends: np.ndarray, done: int, count: int) -> int:
        """Where the next part ends: at the last record that is not too far away, or else at the next one."""
        far = done + min(self.apart / max(self._each, 1e-9), self._most)
        after = ends[ends > done]
        near = after[after <= far]
        return int(near[-1]) if len(near) else int(after[0]) if len(after) else count


def _part(factors: Factors, done: int, stop: int) -> Factors:
    """Some iterations' factors, followed by zeros: of another length they would be another program."""
    if stop - done == len(factors):
        return factors
    part = np.zeros_like(factors)
    part[: stop - done] = factors[done:stop]
    return part
