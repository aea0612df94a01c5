"""What a run costs and leaves behind: its plan from the coins, its ledger from the log, its result."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.algorithms.base import Algorithm
from twofold.engines.schedule import Schedule, footprint
from twofold.engines.sides import ServerSide
from twofold.errors import InputError
from twofold.federation import gap, wire
from twofold.federation.masks import SHARE
from twofold.federation.seat import asked_about
from twofold.federation.steps import complete
from twofold.federation.study import Study
from twofold.result import History, Ledger, Result
from twofold.tree import Pytree

__all__ = ["Account", "Timetable", "most_bytes", "started"]

LOOK = 1 << 20
"""Iterations that are looked at before a study is refused because its rounds do not come."""


MARGIN = 1 << 20
"""Bytes of an answer besides its arrays: more than any document of ours has."""


def started(problem: Any) -> tuple[Pytree, Pytree]:
    """Where every run begins: w and everyone's β, as algorithms have them."""
    w, beta = tree.cast(problem.host_start)
    w, split = problem.inward(w, problem.split(beta))
    return w, problem.join(split)


def most_bytes(study: Study) -> int:
    """More than any answer of a node's can have: all parts of a message and a report in 64 bits, shares, and a document.

    Sizes do not depend on what nodes tell, so any constants will do.
    """
    sets = len(asked_about(study.loss, study.stand_in))
    told = {"mu": [0.5] * sets, "L": [1.0] * sets, "calL": [1.0] * sets, "rows": 100}
    algorithm, _ = complete(study, dict.fromkeys(study.names, told))
    message = footprint(tree.cast(algorithm), study.stand_in).message
    numbers = sum(leaf.size for leaf in jax.tree.leaves(message)) + 2
    numbers += 0 if study.tolerance is None else gap.numbers_told(study.stand_in)
    shares = 2 * study.M * (study.M + 2) * SHARE if study.masks and study.missing == "skip" else 0
    return 8 * numbers + shares + MARGIN


class Timetable:
    """When the rounds of a study come, known from its common coins before anything runs, and what they cost."""

    def __init__(self, study: Study, algorithm: Algorithm, parts: tuple[int, ...], counts: np.ndarray) -> None:
        problem = study.stand_in
        if not problem.has_shared:
            raise InputError(f"{problem.objective.name} shares nothing: there is nothing to federate.")
        known: Any = SimpleNamespace(
            clients=SimpleNamespace(counted=counts), has_shared=problem.has_shared, has_private=problem.has_private
        )
        self.schedule = Schedule(algorithm, known, parts, [study.seed])
        ahead = 1 << 12
        while (course := self.schedule.ahead(0, ahead)).rounds[0, -1] < study.rounds:
            if ahead >= LOOK:
                raise InputError(
                    f"{study.rounds} rounds of {algorithm.name} take more than {LOOK:,} iterations: the two blocks have very different "
                    "curvature. Scale the features, choose a larger λ, or set p_w in [algorithm]."
                )
            ahead *= 2
        self.times = np.flatnonzero(np.diff(course.rounds[0]) > 0)[: study.rounds]
        self.course = course

    def end_of(self, rounds: int) -> int:
        """Iterations of a run of so many rounds: it ends with its last message."""
        return int(self.times[rounds - 1]) + 1


class Account:
    """The course of a study, known from its coins before anything runs."""

    def __init__(self, study: Study, algorithm: Algorithm, parts: tuple[int, ...], contract: dict[str, Any]) -> None:
        self.study, self.algorithm, self.contract = study, algorithm, contract
        counts = np.maximum(np.rint(contract["rows"]), 1).astype(np.int64)
        timetable = Timetable(study, algorithm, parts, counts)
        self.schedule, self.course, self.times, self.end_of = (
            timetable.schedule, timetable.course, timetable.times, timetable.end_of,
        )  # fmt: skip
        self.told_of_gap = 0 if study.tolerance is None else gap.numbers_told(study.stand_in)

    @property
    def end(self) -> int:
        """Iterations of the whole study, if it takes all of its rounds."""
        return self.end_of(self.study.rounds)

    def w(self, log: list[Any], sends: Callable[[int], Any], shape: Any) -> Pytree:
        """The shared model from the log of means alone: what the coordinator knows is what it sent."""
        problem = self.study.stand_in
        server = ServerSide(self.algorithm, self.study.seed, started(problem)[0], problem.clients.weights)
        mean, k = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape), -1
        for line in log:
            server.turn(k, mean, line.t)
            mean, k = wire.whole(sends(line.t), shape, line.mean), line.t
        server.turn(k, mean, self.end_of(len(log)))
        beta = tuple(jax.tree.map(jnp.asarray, part) for part in problem.split(problem.start[1]))
        return jax.tree.map(np.asarray, problem.outward(server.model(), beta)[0])

    def _bytes(self, log: list[Any], end: dict[str, Any] | None) -> tuple[np.ndarray, np.ndarray]:
        """Real bytes that each client sent and received."""
        lines = [line.about for line in log] + ([] if end is None else [end])
        totals = [[sum(int(line[way][n]) for line in lines) for n in self.study.names] for way in ("up", "down")]
        return np.array(totals[0], np.int64), np.array(totals[1], np.int64)

    def so_far(self, log: list[Any], end: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the page shows of it."""
        up, down = self._bytes(log, end)
        losses, bounds = (list(map(list, _records(what, log, end or {}).items())) for what in ("loss", "bound"))
        absent = [sum(line.here is not None and m not in line.here for line in log) for m in range(self.study.M)]
        return {
            "up": up.tolist(),
            "down": down.tolist(),
            "losses": losses[-500:],
            "bounds": bounds[-500:],
            "absent": absent,
        }

    def result(self, w: Pytree, log: list[Any], end: dict[str, Any], seconds: float, notes: tuple[str, ...]) -> Result:
        """The same as from any engine; β stays where it is."""
        size = jnp.result_type(float).itemsize
        last = self.end_of(len(log))
        floats = np.diff(self.course.floats[0])[self.times[: len(log)]]
        present = np.array([[line.here is None or m in line.here for m in range(self.study.M)] for line in log])
        all_of_it = int(floats.sum())
        up: Any = all_of_it if present.all() else (floats @ present).astype(np.int64)
        down: Any = all_of_it if present.all() else np.full(self.study.M, all_of_it)
        of_w, of_beta = self.schedule.evaluated(0, last)
        losses, bounds = (_records(what, log, end) for what in ("loss", "bound"))
        reports = [about for about in (*(line.about for line in log), end) if "asked" in about]
        asked = [
            sum(self.told_of_gap * (n in each["asked"]) + (n in each["losses"]) for each in reports)
            for n in self.study.names
        ]
        wire_up, wire_down = self._bytes(log, end)
        epsilon = float(np.max(self.contract["epsilon"]))
        ledger = Ledger(
            rounds=len(log), iterations=last, floats_up=up, floats_down=down, bytes_up=up * size, bytes_down=down * size,
            gradients_w=of_w, gradients_beta=of_beta, reported=np.array(self.contract["told"]) + np.array(asked),
            wire_up=wire_up, wire_down=wire_down, epsilon=epsilon,
        )  # fmt: skip
        at = np.array(sorted(losses.keys() | bounds.keys()), np.int64)
        iterations = np.concatenate([[0], self.times + 1])[at]
        course = self.course.at((0, iterations))
        began = log[0].about["time"]
        when = [*(line.about["time"] for line in log), end["time"]]
        columns = {
            "round": at, "iteration": iterations, "bytes": 2 * course.floats * size, "gradients_w": course.gradients_w,
            "gradients_beta": course.gradients_beta, "seconds": np.array([when[i] - began for i in at]),
            "loss": np.array([losses.get(i, np.nan) for i in at]),
        }  # fmt: skip
        if self.study.tolerance is not None:
            columns["bound"] = np.array([bounds.get(i, np.nan) for i in at])
        status, message = "budget", f"stopped after {len(log):,} rounds and {last:,} iterations"
        if self.study.tolerance is not None and end.get("bound", np.inf) <= self.study.tolerance:
            status, message = "converged", f"certified gap {end['bound']:.3g} ≤ tol = {self.study.tolerance:g}"
        return Result(
            w=w, beta=None, history=History(columns), ledger=ledger, status=status, algorithm=self.algorithm, seed=self.study.seed,
            message=message, seconds=seconds, notes=notes,
        )  # fmt: skip


def _records(what: str, log: list[Any], end: dict[str, Any]) -> dict[int, float]:
    """What was told of the points after so many rounds."""
    found = {i: line.about[what] for i, line in enumerate(log) if what in line.about}
    return found | ({len(log): end[what]} if what in end else {})
