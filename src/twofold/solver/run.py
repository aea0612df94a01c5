"""One run: the seeds advance together, stretch by stretch; each has its own history and its own end."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from twofold import engines, tree
from twofold.algorithms.base import Algorithm, check
from twofold.engines.base import Engine
from twofold.engines.loop import CAPACITY
from twofold.engines.schedule import Course, Schedule, footprint
from twofold.errors import InputError
from twofold.losses import Linear
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver.auto import choose_for
from twofold.solver.budget import MOST_ITERATIONS
from twofold.solver.checkpoint import Keeper
from twofold.solver.clock import Clock
from twofold.solver.foresight import Goal, goal_of, out_of_time, shortfall, too_little_time
from twofold.solver.options import Options, warn
from twofold.solver.participation import Attendance
from twofold.solver.progress import Interrupt, bar
from twofold.solver.recording import recording
from twofold.solver.steps import complete, make, refuse_overflow, warn_of_scales
from twofold.solver.track import Track

__all__ = ["MOST_SLOTS", "SNAPSHOT_BYTES", "Run"]

SNAPSHOT_BYTES = 1 << 27
"""Memory for recorded iterates; if not even a few fit, seeds run one by one and iterates are measured as they come."""
MOST_SLOTS = 1024
FIRST_RECORDS = 4
"""The most records in the first stretch of a run that may end at any record; after each quick stretch the limit doubles."""
QUICK, SHARE = 0.01, 0.1
"""A stretch is quick if it takes at most this many seconds, or this part of the run so far: then taking more records at once saves
more than it may waste."""
LIGHT = 1 << 24
"""Memory for recorded iterates that takes no time worth mentioning to allocate; beyond 64 slots, no more than this is used."""
STRETCH_SECONDS = 0.5
"""How long a stretch of iterations may take, so that a run can be interrupted, recorded and shown."""
SLOW = 1e9
"""Bytes of rows that even a slow machine processes in a second."""
RARE = 1000
"""The user is warned if a round takes more iterations than this on average."""
LOOK = 1 << 16
"""Iterations whose coins are looked at before a run is refused because rounds hardly ever come."""
SURE = 16
"""Rounds of every seed that tell how often they come; where fewer are seen at first, more iterations are looked at."""


class Stretch(NamedTuple):
    """The next iterations: how many of them, where their iterates are kept, which of them are whose records, and the totals."""

    iterations: int
    slots: np.ndarray
    flags: np.ndarray
    course: Course


class Run:
    """One call of solve."""

    def __init__(
        self, problem: Problem, algorithm: str | Algorithm, options: Options, seeds: list[int], interrupt: Interrupt
    ) -> None:
        self.options, self.seeds, self.budget, self._interrupt = options, seeds, options.budget, interrupt
        known = None if options.budget.target is None else problem.known_optimum
        self._best = None if known is None else known.value
        self.is_auto, told, asked = algorithm == "auto", None, problem
        if algorithm == "auto":
            some = options.participation is not None
            algorithm, problem, told = choose_for(problem, options.cost, options.budget, some, options.start)
            if not problem.objective.convex:
                warn(told)
        self.given = make(algorithm)
        check(self.given)
        self.algorithm, note = complete(problem, self.given, options.constants, options.participation, options.cost)
        refuse_overflow(problem, self.given, self.algorithm)
        if note is not None:
            warn(note)
        self.notes = tuple(text for text in (told, note) if text is not None)
        warn_of_scales(asked)  # also where auto found a metric: ridge and penalty are as unfair in it
        self.recording = recording(problem, options)
        self.problem = problem.proving if "bound" in self.recording.metrics else problem
        self.by_rounds = problem.has_shared
        if options.start is not None:
            problem.check(*options.start)
            self.starts = [tree.arrays(options.start)] * len(seeds)
        else:
            self.starts = problem.starts(seeds)
        cast: Algorithm = tree.cast(self.algorithm)
        self.shapes = footprint(cast, self.problem)
        billed, parts = problem.billed, self.shapes.parts
        if billed is not problem:
            cast = tree.cast(complete(billed, self.algorithm, problem.constants())[0])
            parts = footprint(cast, billed).parts
        metric = 0 if billed.metric is None else billed.metric.opening_floats
        self.opening = billed.clients.opening_floats + metric
        self.schedule = Schedule(cast, billed, parts, seeds, self.opening)
        asked = options.participation
        self.attendance = None if asked is None else Attendance(asked, self.algorithm, problem, seeds)
        self._goal: Goal | None = None  # what theory foretells, until the run has shown its speed
        self.clock = Clock()
        if self.by_rounds and self.budget.iterations is None:
            self._refuse_endless()

    def _refuse_endless(self) -> None:
        """Say beforehand that rounds hardly ever come, where a run waits for them."""
        looked, first, rounds = 0, 0.0, 0.0
        while looked < LOOK and rounds < SURE:
            looked = LOOK if looked else CAPACITY
            totals = self.schedule.ahead(0, looked).rounds
            # Apart from the first iteration, which often sends and says nothing about the others.
            first, rounds = float(totals[:, 1].min()), float((totals[:, -1] - totals[:, 1]).min())
        wanted = (self.budget.rounds or 2) - first
        if wanted <= 0:
            return
        expected = math.inf if rounds == 0 else wanted * looked / rounds
        if expected <= max(RARE * wanted, CAPACITY):
            return
        p_w = getattr(self.algorithm, "p_w", None)
        because = "" if p_w is None else f" (w is drawn with p_w = {float(p_w):.3g})"
        how_many = f"about {expected:,.0f}" if math.isfinite(expected) else f"far more than {LOOK:,}"
        kind = type(self.algorithm).__name__
        remedy = (
            f"Let {kind}.sends be true more often, or say how many iterations= you want."
            if p_w is None
            else f"The two blocks have very different curvature: scale the features, choose a larger λ, or set p_w yourself, as in "
            f"{kind}(p_w=0.5). Or say how many iterations= you want."
        )
        text = (
            f"A round of communication hardly ever comes with {self.algorithm.name} here{because}: {self.budget.rounds or 1:,} of "
            f"them would take {how_many} iterations. {remedy}"
        )
        if expected > MOST_ITERATIONS:
            raise InputError(text)
        warn(text)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def go(self) -> list[Result]:
        """Run to the end and return every seed's result."""
        options = self.options
        each = sum(leaf.nbytes for leaf in jax.tree.leaves(self.starts[0]))
        room, light = (bytes // max(each * len(self.seeds), 1) for bytes in (SNAPSHOT_BYTES, LIGHT))
        slots = int(np.clip(room, 0, np.clip(light, 64, MOST_SLOTS)))
        make_engine = engines.choose(
            options.engine, self.schedule, self.shapes, len(self.seeds), options.chunk, options.state
        )
        keeps = getattr(make_engine, "func", make_engine).keeps and slots >= 2  # type: ignore[attr-defined]
        if len(self.seeds) > 1 and not keeps:
            return self._one_by_one()
        engine = make_engine(self.algorithm, self.problem, self.seeds, self.starts, slots if keeps else 0)
        tracks = [Track(self, row) for row in range(len(self.seeds))]
        self._record_start(tracks, engine)
        self._loop(tracks, engine)
        took = self.clock.now()
        return [track.result(took) for track in tracks]

    def _one_by_one(self) -> list[Result]:
        """Every seed in a run of its own."""

        def of_seed(seed: int) -> Result:
            folder = None if self.options.checkpoint is None else f"{self.options.checkpoint}/seed-{seed}"
            options = dataclasses.replace(self.options, checkpoint=folder)
            return Run(self.problem, self.algorithm, options, [seed], self._interrupt).go()[0]

        return self._interrupt.runs(of_seed, self.seeds)

    def _loop(self, tracks: list[Track], engine: Engine) -> None:
        options, budget, k, keeper = self.options, self.budget, 0, None
        if options.checkpoint is not None:
            keeper = Keeper(self, options.checkpoint, options.checkpoint_every)
            k = keeper.restore(tracks, engine)
        patience = (
            FIRST_RECORDS
            if any((budget.tol, budget.target, budget.seconds, budget.relative, options.patience))
            else MOST_SLOTS
        )
        at_once = MOST_SLOTS
        if options.callbacks or not engine.buffers:
            patience = at_once = 1  # callbacks are called at each record as it happens
        most = self._first_stretch()
        if self.attendance is not None:
            most = min(most, self.attendance.at_once)
        if engine.slots:
            # A call without iterations compiles the loop, so that the first stretch is timed without compilation.
            factors = None if self.attendance is None else np.zeros((most, len(self.seeds), self.problem.M))
            self.clock.calibrate(engine, k, factors)
        counts_k = budget.iterations is not None and not (self.by_rounds and budget.rounds)
        total = budget.iterations if counts_k else budget.most_rounds
        with self._interrupt as interrupt, bar(options.progress, total or 0) as tick:
            while any(track.status is None for track in tracks):
                since = self.clock.now()
                last = interrupt.asked or (budget.seconds is not None and since >= budget.seconds)
                limit = 1 if last else most if keeper is None else keeper.limit(tracks, most)
                stretch = self._next(tracks, engine, k, patience, limit, last)
                self._advance(tracks, engine, k, stretch)
                k += stretch.iterations
                took = self.clock.now() - since
                self._foretell_time(stretch.iterations, took)
                most = int(np.clip(stretch.iterations * STRETCH_SECONDS / max(took, 1e-9), 1, min(4 * most, CAPACITY)))
                if took < max(QUICK, SHARE * since):
                    patience = min(2 * patience, at_once)
                tick(min(track.k for track in tracks) if counts_k else self.done(tracks))
                if last:
                    for track in tracks:
                        track.interrupt()
                elif keeper is not None:
                    keeper.after(k, tracks, engine, interrupt.asked)

    def _first_stretch(self) -> int:
        """The iterations of the first stretch, before any was timed: few enough to be fast, judged by the bytes of rows they use."""
        course = self.schedule.ahead(0, CAPACITY)
        rows = self.problem.M * float(np.sum(course.gradients_w[:, -1] + course.gradients_beta[:, -1])) / CAPACITY
        row = sum(leaf.nbytes for leaf in jax.tree.leaves(self.problem.clients.x)) / self.problem.clients.rows
        return int(np.clip(STRETCH_SECONDS * SLOW / max(rows * row, 1), 256, CAPACITY))

    def done(self, tracks: list[Track]) -> int:
        """How far the slowest seed is: in rounds, or where nothing is shared in iterations."""
        return min(int(track.spent.rounds) if self.by_rounds else track.k for track in tracks)

    def _next(self, tracks: list[Track], engine: Engine, k: int, patience: int, most: int, last: bool) -> Stretch:
        """The next iterations: at most `most` of them, with no more records than there are slots.

        Without slots the engine can only show its last state, so a stretch ends with its record; so it does where records are
        wanted one by one, with a `patience` of 1. The `last` one does anyway.
        """
        most = most if self.attendance is None else min(most, self.attendance.at_once)
        if not engine.slots and not last:
            # Iterations up to a round are done in one call: cut by the clock, they would be rounded differently from run to run.
            rounds = np.flatnonzero(np.diff(self.schedule.ahead(k, CAPACITY).rounds[0]) > 0)
            most = max(most, int(rounds[0]) + 1) if len(rounds) else most
        course = self.schedule.ahead(k, most)
        flags = np.stack([track.flags(course) for track in tracks])
        if last:
            flags[[track.status is None for track in tracks], -1] = True
        some = np.any(flags, axis=0)
        order = np.cumsum(some)
        over = order > min(max(engine.slots, 1), patience)
        count = int(np.argmax(over)) if over.any() else most
        if (not engine.slots or patience == 1) and some.any():
            count = int(np.argmax(some)) + 1
        # Nobody needs an iteration after the last record of all.
        if all(track.ends_within(count) for track in tracks) and some[:count].any():
            count = int(np.flatnonzero(some[:count])[-1]) + 1
        slots = np.where(some, order - 1, engine.slots or 1)[:count]
        return Stretch(count, slots, flags[:, :count], course)

    def _advance(self, tracks: list[Track], engine: Engine, k: int, stretch: Stretch) -> None:
        """Do a stretch and record what it gave."""
        factors = None if self.attendance is None else self.attendance.factors(k, stretch.iterations)
        records = np.flatnonzero(stretch.flags.any(axis=0))
        if len(records):
            snapshots, seconds = self.clock.advance(engine, k, stretch.slots, records, factors)
            self._record(tracks, engine, snapshots, stretch, k, seconds)
        else:
            engine.advance(k, stretch.iterations, stretch.slots, factors)
        for track in tracks:
            if track.status is None:
                track.k, track.spent = k + stretch.iterations, stretch.course.at((track.row, stretch.iterations))

    # --- records --------------------------------------------------------------------------------------------------------

    def _record_start(self, tracks: list[Track], engine: Engine) -> None:
        snapshots = engine.first()
        nothing, seconds = self.schedule.ahead(0, 0), np.array([self.clock.now()])
        rows = range(len(tracks) if any(start is not self.starts[0] for start in self.starts) else 1)
        found = [engine.measure(self.recording.metrics, snapshots, np.array([row], np.int32)) for row in rows]
        points = [engine.fetch(snapshots, 0, row) for row in rows]
        first = found[0][0]
        if self.budget.tol is not None or self.budget.target is not None:
            self._foretell(dict(first))
        for track in tracks:
            row = min(track.row, len(rows) - 1)  # most often all begin at the same point
            (values, norms), begun = found[row], points[row]
            track.extend(
                np.zeros(1, int), nothing.at(track.row), dict(values), norms, seconds, lambda _, begun=begun: begun
            )
        if self.options.callbacks:
            self._tell(tracks)

    def _foretell(self, first: dict[str, Any]) -> None:
        """Say beforehand that this budget will not do for the gap or the value asked for, where theory knows."""
        self.recording.derive(first)
        value, gap = (float(first[name][0]) if name in first else None for name in ("loss", "bound"))
        positive = isinstance(getattr(self.problem.objective, "loss", None), Linear)
        self._goal = goal_of(self.options, value, gap, self._best, positive)
        self._tell_user(shortfall(self.problem, self.algorithm, self.options, self._goal, self.is_auto))
        self._tell_user(late := too_little_time(self.problem, self.algorithm, self.options, self._goal))
        if late is not None:
            self._goal = None  # once is enough

    def _foretell_time(self, k: int, took: float) -> None:
        """Say, once the run has shown how fast it is, that its seconds will not do, where theory knows."""
        goal, self._goal = self._goal, None
        if goal is None or self.budget.seconds is None:
            return
        self._tell_user(out_of_time(self.problem, self.algorithm, self.options, goal, (k, took)))

    def _tell_user(self, text: str | None) -> None:
        if text is not None:
            warn(text)
            self.notes = (*self.notes, text)

    def _record(
        self, tracks: list[Track], engine: Engine, snapshots: Any, stretch: Stretch, k: int, seconds: np.ndarray
    ) -> None:
        """Evaluate what was kept, all seeds together, and hand each track its own."""
        rows, places = np.nonzero(stretch.flags)
        index = stretch.slots[places] * len(tracks) + rows
        values, norms = engine.measure(self.recording.metrics, snapshots, index)
        for row, track in enumerate(tracks):
            mine = np.flatnonzero(rows == row)
            if track.status is not None or not len(mine):
                continue
            here, slots = places[mine], stretch.slots[places[mine]]
            track.extend(
                k + here + 1,
                stretch.course.at((row, here + 1)),
                {name: v[mine] for name, v in values.items()},
                norms[mine],
                seconds[here],
                lambda i, row=row, slots=slots: engine.fetch(snapshots, int(slots[i]), row),
            )
        if self.options.callbacks:
            self._tell(tracks)

    def _tell(self, tracks: list[Track]) -> None:
        """Hand new records to the callbacks."""
        for track in tracks:
            for i in range(track.told, len(track.columns["round"])):
                record = {name: column[i].item() for name, column in track.columns.items()}
                for callback in self.options.callbacks:
                    callback({"seed": self.seeds[track.row], **record})
            track.told = len(track.columns["round"])
