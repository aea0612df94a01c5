"""`history["seconds"]` are true times, and callbacks are called when their record is there."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import twofold as tw
from twofold.solver import clock
from twofold.solver.clock import Clock


class Slow:
    """An engine whose iterations take as long as it is told, on a clock that stands still otherwise."""

    slots, buffers = 64, True

    def __init__(self, patch: pytest.MonkeyPatch, takes: list[float], call: float) -> None:
        self.takes, self.call, self.time, self.calls = takes, call, 0.0, []
        self.truth = np.cumsum(takes)
        patch.setattr(time, "perf_counter", lambda: self.time)

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Any = None) -> None:
        self.calls.append((k, count, len(slots)))
        self.time += self.call + sum(self.takes[k : k + count])

    def wait(self) -> None:
        pass


def run(engine: Any, records: np.ndarray) -> np.ndarray:
    found = Clock()
    found.calibrate(engine, 0, None)
    began, engine.calls = engine.time, []
    _, seconds = found.advance(engine, 0, np.zeros(len(engine.takes), np.int32), records, None)
    return seconds - began


def test_slow_records_have_the_time_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However unequal the iterations are: here every fifth takes a thousand times as long as the others."""
    engine = Slow(monkeypatch, [1.0 if k % 5 == 4 else 0.001 for k in range(20)], call=0.0)
    records = np.arange(4, 20, 5)
    assert np.abs(run(engine, records) - engine.truth)[records].max() < 1e-12
    assert [count for _, count, _ in engine.calls] == [5, 5, 5, 5]


def test_quick_records_share_a_reading_that_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = np.random.default_rng(0).uniform(0.5e-4, 1.5e-4, 4000).tolist()
    engine = Slow(monkeypatch, takes, call=4e-4)
    seconds = run(engine, np.arange(4000))
    spent = len(engine.calls) * engine.call
    assert spent < 1.2 / clock.COST * engine.truth[-1]
    assert np.all(np.diff(seconds) > 0)
    # Never further from the truth than two readings are apart, and what reading has cost so far.
    assert np.abs(seconds - engine.truth).max() < clock.COST * engine.call * 1.5 + spent


def small() -> tw.Problem:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(8, 2)), rng.integers(0, 2, 8)) for _ in range(3)])
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)


def test_callbacks_are_called_when_their_record_is_there() -> None:
    """A callback that takes its time sees that in the next record: nothing was computed ahead."""
    seen: list[Any] = []

    def slow(record: Any) -> None:
        seen.append((time.perf_counter(), dict(record)))
        time.sleep(0.01)

    result = tw.solve(small(), "lsgd", rounds=6, callbacks=[slow])
    told = np.array([record["seconds"] for _, record in seen])
    assert told.tolist() == result.history["seconds"].tolist() and len(told) == 7
    assert np.all(np.diff(told) >= 0.01)  # not all six at once, after the last
    heard = np.array([when for when, _ in seen])
    assert np.all(np.diff(heard)[1:] - np.diff(told)[1:] < 0.1)


def test_cutting_a_run_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tw.solve(small(), "asvrcd", rounds=40, seeds=2)
    monkeypatch.setattr(clock, "COST", 0)  # the clock is read at every record
    cut = tw.solve(small(), "asvrcd", rounds=40, seeds=2)
    for a, b in zip(whole, cut, strict=True):
        assert a.history["loss"].tolist() == b.history["loss"].tolist()
        np.testing.assert_array_equal(a.beta, b.beta)
    some = [tw.solve(small(), "lsgd", rounds=40, participation=2).history["loss"] for _ in range(2)]
    monkeypatch.undo()
    np.testing.assert_array_equal(some[0], tw.solve(small(), "lsgd", rounds=40, participation=2).history["loss"])
