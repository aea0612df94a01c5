"""solve(): fills in step sizes, runs an engine, watches for divergence, returns a Result."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from twofold import metrics as measure
from twofold import randomness, tree
from twofold.algorithms import REGISTRY, Algorithm
from twofold.algorithms.base import Setting
from twofold.engines.base import Snapshots
from twofold.engines.schedule import Schedule
from twofold.engines.simulate import CAPACITY
from twofold.errors import InputError
from twofold.objectives.two_stage import TwoStage
from twofold.problem import Problem
from twofold.result import History, Ledger, Result, Results
from twofold.theory.constants import Constants
from twofold.tree import Pytree

SNAPSHOT_BYTES = 1 << 27
"""Memory for recorded iterates; below, a problem's seeds run together, above, one by one and without slots."""
MOST_SLOTS = 1024
BLOW_UP = 1e4
"""A loss this many times the initial one (plus one) counts as diverged, although still finite."""
LONGEST = 100_000
"""Rounds after which a run with only a tolerance, a target or a time gives up."""


class TheoryWarning(UserWarning):
    """Theory had to assume something that the problem does not guarantee."""


def solve(
    problem: Problem,
    algorithm: str | Algorithm = "asvrcd",
    *,
    rounds: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    tol: float | None = None,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    record: Sequence[str] | Mapping[str, Any] = ("loss",),
    every: int = 1,
    engine: str = "simulate",
    chunk: int | None = None,
    state: Literal["device", "host", "disk"] | None = None,
    start: tuple[Pytree, Pytree] | None = None,
    constants: Constants | None = None,
    progress: bool | None = None,
) -> Any:
    """Minimise the problem by an algorithm: a name with everything from theory, or an instance with fields of your own.

    Stops on `rounds` of communication, `iterations`, wall `seconds`, a `target` loss, or `tol` ≥ ‖∇F‖²/(2μ) ≥ F − F*, a
    certified gap (it needs μ > 0), whichever comes first. A problem with nothing to share communicates nothing: there
    `rounds` counts iterations. `record` names metrics ("loss", "gap", "gradient_norm", "bound") or maps names to
    functions of (w, beta); they are taken at every `every`-th round, at the start and at the end. Stopping on `target` or
    `tol` happens at a record. `seeds` runs many seeds at once and gives a `Results`.
    `constants` replaces the problem's own in the choice of step sizes. Where memory is too small for everyone at once,
    clients take turns, as many at a time as there is memory for (or `chunk`), and `state` says where those who wait keep
    their private state: on the "device", the "host" or the "disk".
    """
    several = seeds is not None
    all_seeds = [int(s) for s in seeds] if several else [int(seed)]
    if not all_seeds:
        raise InputError("seeds is empty: give at least one seed.")
    budget = Budget(rounds, iterations, seconds, target, tol, every)
    options = Options(budget, record, engine, start, constants, progress, chunk, state)
    if isinstance(problem.objective, TwoStage):
        runs = [_two_stages(problem, algorithm, options, s) for s in all_seeds]
    else:
        runs = _Run(problem, algorithm, options, all_seeds).go()
    return Results(runs) if several else runs[0]


@dataclasses.dataclass(frozen=True)
class Budget:
    """When a run ends, and how often it is recorded."""

    rounds: int | None
    iterations: int | None
    seconds: float | None
    target: float | None
    tol: float | None
    every: int

    def __post_init__(self) -> None:
        for name in ("rounds", "iterations", "every"):
            value = getattr(self, name)
            if value is not None and (int(value) != value or value < 1):
                raise InputError(f"{name} must be a whole number ≥ 1, got {name}={value!r}.")
        for name in ("seconds", "tol"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be positive, got {name}={value!r}.")
        if all(getattr(self, n) is None for n in ("rounds", "iterations", "seconds", "target", "tol")):
            raise InputError("Say when to stop: rounds, iterations, seconds, target or tol.")


@dataclasses.dataclass(frozen=True)
class Options:
    """What solve was asked for, besides the problem, the algorithm and the seeds."""

    budget: Budget
    record: Sequence[str] | Mapping[str, Any]
    engine: str
    start: tuple[Pytree, Pytree] | None
    constants: Constants | None
    progress: bool | None
    chunk: int | None = None
    state: str | None = None


def make(algorithm: str | Algorithm) -> Algorithm:
    """An algorithm from its name, or itself."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if algorithm not in REGISTRY:
        near = difflib.get_close_matches(str(algorithm), REGISTRY, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"Unknown algorithm {algorithm!r}; there are {', '.join(REGISTRY)}.{hint}")
    return REGISTRY[algorithm]()


def complete(
    problem: Problem, algorithm: str | Algorithm, constants: Constants | None = None
) -> tuple[Algorithm, str | None]:
    """The algorithm with every open field filled in from theory, and theory's note to the user."""
    algorithm = make(algorithm)
    objective = problem.objective
    if algorithm.needs not in (None, objective.name):
        raise InputError(
            f"{algorithm.name} solves the {algorithm.needs} objective only, but this problem's is {objective.name}; "
            "use lsgd, acd or asvrcd, which solve any."
        )
    if algorithm.is_complete():
        return algorithm, None
    mixture = objective.name == "mixture"
    setting = Setting(
        constants=problem.constants() if constants is None else constants,
        rows=float(np.mean(problem.clients.counts)),
        M=problem.M,
        heaviest=float(np.max(problem.clients.weights)),
        lam=float(objective.lam) if mixture else None,  # type: ignore[attr-defined]
        loss=objective.loss.constants(problem.clients) if mixture and algorithm.name == "pfedme" else None,
        sizes=(tree.size(problem.abstract_start[0]), tree.size(problem.abstract_start[1])),
        convex=objective.convex,
    )
    return algorithm.complete(setting)


class _Run:
    """One call of solve: the seeds advance together; each has its own history and its own end."""

    def __init__(self, problem: Problem, algorithm: Any, options: Options, seeds: list[int]) -> None:
        self.problem, self.options, self.seeds = problem, options, seeds
        budget, record = options.budget, options.record
        self.budget, self.constants = budget, options.constants
        self.given = make(algorithm)
        self.algorithm, note = complete(problem, self.given, self.constants)
        self.notes = () if note is None else (note,)
        for note in self.notes:
            warnings.warn(note, TheoryWarning, stacklevel=3)
        self.metrics = measure.resolve(record, problem)
        names = measure.named(record)
        wanted = {metric for metric in names.values() if isinstance(metric, str)}
        # A built-in metric under a name of the user's own gets a column of that name too.
        self.aliases = {name: metric for name, metric in names.items() if isinstance(metric, str) and name != metric}
        self.wants_gap, self.wants_bound = "gap" in wanted, "bound" in wanted or budget.tol is not None
        if self.wants_bound:
            self.metrics["gradient_norm"] = measure.BUILT_IN["gradient_norm"]
        if budget.target is not None:
            self.metrics["loss"] = measure.BUILT_IN["loss"]
        self.mu = self._certified_mu() if self.wants_bound else math.nan
        self.best = problem.optimum().value if self.wants_gap else math.nan
        self.start = problem.host_start
        if options.start is not None:
            problem.check(*options.start)
            self.start = jax.tree.map(jnp.asarray, options.start)
        self.by_rounds = problem.has_shared

    def _certified_mu(self) -> float:
        constants = self.problem.constants() if self.constants is None else self.constants
        if not constants.mu > 0:
            raise InputError(
                f"tol needs strong convexity to certify a gap, but μ = {constants.mu:g} here: add a ridge (l2 > 0), pass "
                "constants=problem.constants(mu=...), or stop on rounds or a target loss."
            )
        if constants.how.get("mu") == "local":
            warnings.warn(
                "The gap is bounded with a local μ, which certifies nothing far away.", TheoryWarning, stacklevel=4
            )
        return constants.mu

    def go(self) -> list[Result]:
        """Run to the end and give every seed's result."""
        from twofold import engines

        began, options = time.perf_counter(), self.options
        each = sum(leaf.nbytes for leaf in jax.tree.leaves(self.start))
        slots = int(np.clip(SNAPSHOT_BYTES // max(each * len(self.seeds), 1), 0, MOST_SLOTS))
        make, more = engines.choose(
            options.engine, tree.cast(self.algorithm), self.problem, len(self.seeds), options.chunk, options.state
        )
        if (slots < 2 or not make.keeps) and len(self.seeds) > 1:  # one after the other
            return [run for seed in self.seeds for run in _Run(self.problem, self.algorithm, self.options, [seed]).go()]
        slots = slots if slots >= 2 and make.keeps else 0
        engine = make(self.algorithm, self.problem, self.seeds, self.start, slots, **more)
        schedule = Schedule(engine.algorithm, self.problem, jnp.stack([randomness.root(s) for s in self.seeds]))
        tracks = [_Track(self, schedule, row) for row in range(len(self.seeds))]
        self._record_start(tracks, engine, began)
        k, patience = 0, 32 if (self.budget.tol or self.budget.target or self.budget.seconds) else MOST_SLOTS
        with _bar(self.options.progress, self._progress(tracks)[1]) as tick:
            while any(track.status is None for track in tracks):
                count, where, flags = self._next(tracks, schedule, k, max(slots, 1), patience, bool(slots))
                snapshots = engine.advance(k, count, where)
                self._record(tracks, engine, snapshots, where, flags, k, began)
                k, patience = k + count, min(2 * patience, MOST_SLOTS)
                tick(self._progress(tracks)[0])
        took = time.perf_counter() - began
        return [track.result(took) for track in tracks]

    def _progress(self, tracks: list[_Track]) -> tuple[int, int]:
        """How far the slowest seed is, and how far it has to go, in rounds or else in iterations."""
        rounds = self.budget.rounds if self.by_rounds else None
        if rounds is not None or self.budget.iterations is None:
            return min(t.rounds if self.by_rounds else t.k for t in tracks), self.budget.rounds or LONGEST
        return min(t.k for t in tracks), self.budget.iterations

    def _next(
        self, tracks: list[_Track], schedule: Schedule, k: int, slots: int, patience: int, keep: bool
    ) -> tuple[int, np.ndarray, np.ndarray]:
        """How many iterations to take at once, where to keep which iterates, and which of them are whose records.

        Without slots the engine can only show its last state, so a stretch ends with its record.
        """
        kinds = schedule.kinds(k + CAPACITY)[:, k:]
        flags = np.stack([track.plan(kinds[i]) for i, track in enumerate(tracks)])
        some = np.any(flags, axis=0)
        order = np.cumsum(some)
        over = order > min(slots, patience)
        count = int(np.argmax(over)) if over.any() else CAPACITY
        if not keep and some.any():
            count = int(np.argmax(some)) + 1
        # Nobody needs an iteration after the last record of all.
        if all(track.ends_within(count) for track in tracks):
            count = int(np.flatnonzero(some[:count])[-1]) + 1
        where = np.where(some, order - 1, slots if keep else 1)[:count]
        return count, where, flags[:, :count]

    def _record_start(self, tracks: list[_Track], engine: Any, began: float) -> None:
        w, beta = self.start
        here = Snapshots(w, self.problem.split(beta))
        values, size = engine.measure_start(self.metrics, *here)
        for track in tracks:
            track.extend(
                np.zeros(1, int),
                dict(values),
                size,
                lambda _: jax.tree.map(np.asarray, here),
                time.perf_counter() - began,
            )

    def _record(
        self, tracks: list[_Track], engine: Any, snapshots: Any, where: np.ndarray, flags: np.ndarray, k: int,
        began: float,
    ) -> None:  # fmt: skip
        """Evaluate what was kept, all seeds together, and hand each track its share."""
        rows, places = np.nonzero(flags)
        if len(rows):
            index = where[places] * len(tracks) + rows
            values, sizes = engine.measure(self.metrics, snapshots, index)
            now = time.perf_counter() - began
            for row, track in enumerate(tracks):
                mine = rows == row
                if track.status is None and mine.any():
                    slots = where[places[mine]]
                    track.extend(
                        k + places[mine] + 1,
                        {name: v[mine] for name, v in values.items()},
                        sizes[mine],
                        lambda i, row=row, slots=slots: engine.fetch(snapshots, slots[i], row),
                        now,
                    )
        for track in tracks:
            if track.status is None:
                track.spend(k + len(where))


class _Track:
    """One seed's course: its records, its end, and its last iterate."""

    def __init__(self, run: _Run, schedule: Schedule, row: int) -> None:
        self.run, self.schedule, self.row = run, schedule, row
        self.k = 0
        self.status: str | None = None
        self.message = ""
        self.columns: dict[str, list[np.ndarray]] = {}
        self.last: Any = None
        # What an iteration of each kind costs: a round or not, floats, ∇w, ∇β (of a client of mean size).
        rows = np.array(float(np.mean(run.problem.clients.counts)))
        costs = [schedule.communicates, schedule.floats, *schedule.evaluations(rows)]
        self._costs = np.stack(costs, axis=1).astype(float)
        self._times = np.zeros(len(self._costs), np.int64)  # iterations of each kind so far
        self._ends: int | None = None  # how far ahead the budget is spent, as far as seen

    def plan(self, kinds: np.ndarray) -> np.ndarray:
        """Which of the next iterations (all of these kinds) end in a record."""
        budget, by_rounds = self.run.budget, self.run.by_rounds
        ks = self.k + 1 + np.arange(len(kinds))
        ticks = self.schedule.communicates[kinds]
        rounds = self.rounds + np.cumsum(ticks)
        count, ticks = (rounds, ticks) if by_rounds else (ks, np.ones_like(ticks))
        done = self._is_over(ks, rounds)
        flags = ticks & (count % budget.every == 0)
        self._ends = int(np.argmax(done)) if done.any() else None
        if self.status is not None:
            flags[:] = False
        elif self._ends is not None:
            flags[self._ends] = True
            flags[self._ends + 1 :] = False
        return flags

    def ends_within(self, count: int) -> bool:
        """Whether this track needs nothing beyond the next `count` iterations."""
        return self.status is not None or (self._ends is not None and self._ends < count)

    def spend(self, k: int) -> np.ndarray:
        """Book the iterations up to k; gives how many there were of each kind after each of them."""
        kinds = self.schedule.kinds(k)[self.row, self.k : k]
        course = self._times + np.cumsum(kinds[:, None] == np.arange(len(self._costs)), axis=0)
        if len(kinds):
            self._times, self.k = course[-1], k
        return course

    @property
    def rounds(self) -> int:
        """Rounds of communication so far."""
        return int(self._times @ self.schedule.communicates)

    def extend(
        self,
        ks: np.ndarray,
        values: dict[str, np.ndarray],
        size: np.ndarray,
        fetch: Callable[[int], Any],
        seconds: float,
    ) -> None:
        """Records after ks[0], ks[1], … iterations, up to the first that ends this track; `fetch(i)` gets an iterate."""
        run, budget = self.run, self.run.budget
        before, base = self._times, self.k
        times = np.concatenate([before[None], self.spend(int(ks[-1]))])[ks - base]
        # From whole numbers, and not by BLAS: the same to the last bit, however a run is cut into stretches.
        course = np.sum(times[:, :, None] * self._costs, axis=1)
        if run.wants_gap:
            values["gap"] = values["loss"] - run.best
        if run.wants_bound:
            with np.errstate(over="ignore"):  # a diverging float32 run may overflow here, and is told so below
                values["bound"] = values["gradient_norm"] ** 2 / (2 * run.mu)
        rows = {
            "round": course[:, 0].astype(np.int64),
            "iteration": ks,
            "bytes": 2 * course[:, 1] * jnp.result_type(float).itemsize,
            "gradients_w": course[:, 2],
            "gradients_beta": course[:, 3],
            "seconds": np.full(len(ks), seconds),
            **values,
            **{name: values[metric] for name, metric in run.aliases.items()},
        }
        broken = ~np.isfinite(size)
        for name in values.keys() & measure.BUILT_IN.keys():
            broken |= ~np.isfinite(values[name])
        if "loss" in values:
            first = self.columns["loss"][0][0] if self.columns else values["loss"][0]
            broken |= values["loss"] > BLOW_UP * (1 + abs(first))
        over = (ks > 0) & self._is_over(ks, course[:, 0])
        if budget.seconds is not None:
            over |= seconds >= budget.seconds
        done = np.zeros(len(ks), bool)
        if budget.tol is not None:
            done |= values["bound"] <= budget.tol
        if budget.target is not None:
            done |= values["loss"] <= budget.target
        ends = np.flatnonzero(broken | over | done)
        stop = int(ends[0]) if len(ends) else len(ks) - 1
        bad = bool(broken[stop])
        good = stop + (not bad)
        for name, column in rows.items():
            self.columns.setdefault(name, []).append(np.asarray(column)[:good])
        if good:
            self.last = fetch(good - 1)
        if len(ends):
            at = {name: float(v[stop]) for name, v in values.items()}
            self._rewind(int(ks[stop]), times[stop])
            if bad:
                self.status, self.message = "diverged", self._cause(int(ks[stop]), at)
            elif done[stop]:
                self.status, self.message = "converged", self._reached(at)
            else:
                self.status, self.message = "budget", f"stopped after {self.rounds:,} rounds and {self.k:,} iterations"

    def _rewind(self, k: int, times: np.ndarray) -> None:
        """A track that ended inside a stretch spent nothing after its end."""
        self.k, self._times = k, times

    def _reached(self, values: dict[str, float]) -> str:
        budget = self.run.budget
        if budget.tol is not None and values["bound"] <= budget.tol:
            return f"‖∇F‖²/(2μ) = {values['bound']:.3g} ≤ tol = {budget.tol:g}"
        return f"loss {values['loss']:.6g} ≤ target {budget.target:g}"

    def _is_over(self, ks: np.ndarray, rounds: np.ndarray) -> np.ndarray:
        """Whether the budget of rounds or iterations is spent."""
        budget = self.run.budget
        limit = LONGEST if budget.rounds is None and budget.iterations is None else budget.rounds
        over = np.zeros(np.shape(ks), bool)
        if budget.iterations is not None:
            over |= ks >= budget.iterations
        if limit is not None:
            over |= (rounds if self.run.by_rounds else ks) >= limit
        return over

    def _cause(self, k: int, values: dict[str, float]) -> str:
        before = max((int(c[-1]) for c in self.columns["iteration"] if len(c)), default=0)
        what = ", ".join(f"{n} = {v:.3g}" for n, v in values.items() if n in measure.BUILT_IN) or "iterate not finite"
        text = f"{self.run.algorithm.name} diverged between iterations {before:,} and {k:,} ({what})"
        given, constants = self.run.given, self.run.constants
        eta = getattr(given, "eta", None)
        if isinstance(eta, (int, float)):
            try:
                theory = complete(self.run.problem, dataclasses.replace(given, eta=None), constants)[0].eta  # type: ignore
                return text + f": your eta = {eta:g} is {eta / float(theory):.3g} times theory's {float(theory):.3g}."
            except ValueError:
                return text + f": eta = {eta:g} is too large, most likely."
        if callable(eta):
            return text + ": the schedule's steps are too large, most likely."
        known = self.run.problem.constants() if constants is None else constants
        weak = sorted(name for name, how in known.how.items() if how != "certified")
        if weak:
            return (
                text
                + f": the step came from constants that are not certified ({', '.join(weak)}), most likely too small."
            )
        return text + ": the step sizes are theory's, so look at the data's scale and the dtype."

    def result(self, seconds: float) -> Result:
        """This seed's Result."""
        run, problem = self.run, self.run.problem
        times = self._times
        of_w, of_beta = self.schedule.evaluations(problem.clients.counts)
        floats = int(times @ self.schedule.floats)
        itemsize = jnp.result_type(float).itemsize
        ledger = Ledger(
            rounds=int(times @ self.schedule.communicates),
            iterations=self.k,
            floats_up=floats,
            floats_down=floats,
            bytes_up=floats * itemsize,
            bytes_down=floats * itemsize,
            gradients_w=times @ of_w,
            gradients_beta=times @ of_beta,
        )
        beta = jax.tree.map(np.asarray, problem.join(self.last.parts))
        history = History({name: np.concatenate(parts) for name, parts in self.columns.items()})
        return Result(
            w=self.last.w, beta=beta, history=history, ledger=ledger, status=self.status or "budget", seconds=seconds,
            message=self.message, algorithm=run.algorithm, seed=run.seeds[self.row], notes=run.notes,
        )  # fmt: skip


def _first_rounds(budget: Budget) -> int | None:
    """A bound for a first stage that a target alone would not end."""
    others = (budget.iterations, budget.seconds, budget.tol)
    if budget.target is not None and all(limit is None for limit in others):
        raise InputError("With Lambda=inf a target is for the second stage: say also when the first is over (rounds=).")
    return None


def _two_stages(problem: Problem, algorithm: Any, options: Options, seed: int) -> Result:
    """Λ = ∞: traditional federated learning, then everyone alone around its solution; one Result for both."""
    if options.constants is not None:
        raise InputError("With Lambda=inf each stage has its own constants: solve the stages separately to give them.")
    objective: TwoStage = problem.objective  # type: ignore[assignment]
    w0, beta0 = problem.start if options.start is None else options.start

    def stage(objective: Any, **changes: Any) -> Result:
        part = Problem(objective, problem.clients, rows=problem.rows)
        return _Run(part, algorithm, dataclasses.replace(options, **changes), [seed]).go()[0]

    # The first stage has no β: a metric of (w, beta) and a target loss are about the second.
    shared = {name: metric for name, metric in measure.named(options.record).items() if isinstance(metric, str)}
    budget = dataclasses.replace(
        options.budget, target=None, rounds=options.budget.rounds or _first_rounds(options.budget)
    )
    first = stage(objective.first(), start=(w0, ()), record=shared, budget=budget)
    second = stage(objective.second(first.w), start=((), beta0))
    sums = ("round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds")
    records = len(first.history["round"])
    columns = {}
    for name, after in second.history.items():
        before = first.history[name] if name in first.history else np.full(records, np.nan)
        columns[name] = np.concatenate([before, after + (before[-1] if name in sums else 0)])
    columns["stage"] = np.repeat([1, 2], [records, len(second.history["round"])])
    worst = next((run for run in (first, second) if run.status == "diverged"), second)
    return Result(
        w=first.w, beta=second.beta, history=History(columns), ledger=first.ledger + second.ledger, status=worst.status,
        message=f"first stage: {first.message}; second stage: {second.message}", algorithm=second.algorithm, seed=seed,
        seconds=first.seconds + second.seconds, notes=tuple(dict.fromkeys(first.notes + second.notes)),
    )  # fmt: skip


@contextmanager
def _bar(progress: bool | None, total: int) -> Any:
    """A progress bar with rich when run on a terminal (or when asked for), else nothing."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds", total=total)
        yield lambda done: bar.update(task, completed=min(done, total))
