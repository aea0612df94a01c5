"""One run: the seeds advance together, stretch by stretch; each has its own history and its own end."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import engines, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm, check
from twofold.engines.base import Engine, Point, Snapshots
from twofold.engines.loop import CAPACITY
from twofold.engines.schedule import Course, Schedule, footprint
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver.auto import choose
from twofold.solver.budget import MOST_ITERATIONS
from twofold.solver.checkpoint import Checkpoints, Saved, fingerprint
from twofold.solver.options import Options, warn
from twofold.solver.participation import Attendance
from twofold.solver.progress import Interrupt, bar
from twofold.solver.steps import complete, make
from twofold.solver.track import Track
from twofold.theory.cost import cost_of

__all__ = ["MOST_SLOTS", "SNAPSHOT_BYTES", "Run"]

USUAL = 1e-8
"""The relative accuracy for which a method is chosen where none is asked for."""
SNAPSHOT_BYTES = 1 << 27
"""Memory for recorded iterates; below, a problem's seeds run together, above, one by one and without slots."""
MOST_SLOTS = 1024
STRETCH_SECONDS = 0.5
"""How long a stretch of iterations may take, so that a run can be interrupted, recorded and shown."""
SLOW = 1e9
"""Bytes of rows that any machine gets through in a second."""
CHECKPOINT_SECONDS = 60.0
"""Time between checkpoints where nobody says after how many rounds."""
RARE = 1000
"""Iterations for one round, from which on somebody should be told."""
LOOK = 1 << 16
"""Iterations that are looked at before a run is refused because rounds do not come."""


class Stretch(NamedTuple):
    """The next iterations: how many of them, where their iterates are kept, which of them are whose records, and the totals."""

    iterations: int
    slots: np.ndarray
    flags: np.ndarray
    course: Course


class Run:
    """One call of solve."""

    def __init__(self, problem: Problem, algorithm: str | Algorithm, options: Options, seeds: list[int]) -> None:
        self.problem, self.options, self.seeds, self.budget = problem, options, seeds, options.budget
        self.given, told = self._chosen(algorithm)
        check(self.given)
        self.algorithm, note = complete(problem, self.given, options.constants, options.participation)
        if note is not None:
            warn(note)
        self.notes = tuple(text for text in (told, note) if text is not None)
        self.by_rounds = problem.has_shared
        self._choose_metrics()
        self.start = problem.host_start
        if options.start is not None:
            problem.check(*options.start)
            self.start = jax.tree.map(jnp.asarray, options.start)
        self._cast: Algorithm = tree.cast(self.algorithm)
        self._shapes = footprint(self._cast, problem)
        self._opening = 0 if problem.metric is None else problem.metric.opening_floats
        self.schedule = Schedule(self._cast, problem, self._shapes.parts, seeds, self._opening)
        asked = options.participation
        self.attendance = None if asked is None else Attendance(asked, self.algorithm, problem, seeds)
        self._refuse_endless()

    def _chosen(self, algorithm: str | Algorithm) -> tuple[Algorithm, str | None]:
        """The algorithm that was asked for, or the one that "auto" stands for and why."""
        if algorithm != "auto":
            return make(algorithm), None
        cost, relative = cost_of(self.options.cost), self.budget.relative or USUAL
        return choose(self.problem, cost, relative, self.options.participation is not None)

    # --- before ---------------------------------------------------------------------------------------------------------

    def _choose_metrics(self) -> None:
        budget, record = self.budget, self.options.record
        self.metrics = measure.resolve(record, self.problem)
        names = measure.named(record)
        wanted = {metric for metric in names.values() if isinstance(metric, str)}
        # A built-in metric under a name of the user's own gets a column of that name too.
        self.aliases = {name: metric for name, metric in names.items() if isinstance(metric, str) and name != metric}
        self.wants_gap, self.wants_bound = "gap" in wanted, "bound" in wanted or budget.tol is not None
        if budget.relative is not None:
            self._watch_progress()
        proven = self.wants_bound and self.options.constants is None and self.problem.program_has_proof
        if proven:
            self.metrics["bound"] = measure.bound
            if "gradient_norm" not in wanted:
                self.metrics.pop("gradient_norm", None)
        elif self.wants_bound:
            self.metrics["gradient_norm"] = measure.BUILT_IN["gradient_norm"]
        if budget.target is not None:
            self.metrics["loss"] = measure.BUILT_IN["loss"]
        self.mu = self._certified_mu() if self.wants_bound and not proven else math.nan
        self.best = self.problem.optimum().value if self.wants_gap else math.nan

    def _watch_progress(self) -> None:
        """What a relative gap is seen by: the loss, and a certified gap, or where there is none the gradient."""
        self.metrics["loss"] = measure.BUILT_IN["loss"]
        given = self.options.constants
        known = self.problem.program_has_proof or (self.problem.constants() if given is None else given).mu > 0
        if known:
            self.wants_bound = True
        else:
            self.metrics["gradient_norm"] = measure.BUILT_IN["gradient_norm"]

    def _certified_mu(self) -> float:
        given = self.options.constants
        constants = self.problem.constants() if given is None else given
        if not constants.mu > 0:
            raise InputError(
                f"tol needs strong convexity to certify a gap, but μ = {constants.mu:g} here: add a ridge (l2 > 0), pass "
                "constants=problem.constants(mu=...), or stop on rounds or a target loss."
            )
        if constants.how.get("mu") == "local":
            text = "The gap is bounded with a local μ, which certifies nothing far away."
            warn(text)
        return constants.mu

    def _refuse_endless(self) -> None:
        """Say beforehand that rounds hardly ever come, where a run waits for them."""
        if not self.by_rounds or self.budget.iterations is not None:
            return
        looked, first, rounds = 0, 0.0, 0.0
        while looked < LOOK and rounds == 0:
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
        text = (
            f"A round of communication hardly ever comes with {self.algorithm.name} here{because}: {self.budget.rounds or 1:,} of "
            f"them would take {how_many} iterations. The two blocks have very different curvature: scale the features, choose a "
            f"larger λ, or set p_w yourself, as in {type(self.algorithm).__name__}(p_w=0.5). Or say how many iterations= you want."
        )
        if expected > MOST_ITERATIONS:
            raise InputError(text)
        warn(text)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def go(self) -> list[Result]:
        """Run to the end and give every seed's result."""
        began, options = time.perf_counter(), self.options
        each = sum(leaf.nbytes for leaf in jax.tree.leaves(self.start))
        slots = int(np.clip(SNAPSHOT_BYTES // max(each * len(self.seeds), 1), 0, MOST_SLOTS))
        make_engine = engines.choose(
            options.engine, self._cast, self.problem, self._shapes, len(self.seeds), options.chunk, options.state
        )
        keeps = getattr(make_engine, "func", make_engine).keeps and slots >= 2  # type: ignore[attr-defined]
        if len(self.seeds) > 1 and not keeps:
            return self._one_by_one()
        slots = slots if keeps else 0
        engine = make_engine(self.algorithm, self.problem, self.seeds, self.start, slots)
        tracks = [Track(self, row) for row in range(len(self.seeds))]
        self._record_start(tracks, engine, began)
        self._loop(tracks, engine, began)
        took = time.perf_counter() - self._began
        return [track.result(took) for track in tracks]

    def _one_by_one(self) -> list[Result]:
        """Every seed in a run of its own."""
        found = []
        for seed in self.seeds:
            folder = None if self.options.checkpoint is None else f"{self.options.checkpoint}/seed-{seed}"
            options = dataclasses.replace(self.options, checkpoint=folder)
            found += Run(self.problem, self.algorithm, options, [seed]).go()
        return found

    def _loop(self, tracks: list[Track], engine: Engine, began: float) -> None:
        self._began = began
        k, keeper = self._resume(tracks, engine)
        watched = (self.budget.tol, self.budget.target, self.budget.seconds, self.budget.relative)
        patience = 32 if any(watched) else MOST_SLOTS
        most = self._first_stretch()
        with Interrupt() as interrupt, bar(self.options.progress, self._progress(tracks)[1]) as tick:
            while any(track.status is None for track in tracks):
                last = interrupt.asked or self._time_is_up()
                stretch = self._next(tracks, engine, k, patience, 1 if last else keeper.limit(tracks, most), last)
                since = time.perf_counter()
                k = self._advance(tracks, engine, k, stretch)
                if last:
                    for track in tracks:
                        track.interrupt()
                took = time.perf_counter() - since
                most = int(np.clip(stretch.iterations * STRETCH_SECONDS / max(took, 1e-9), 1, min(4 * most, CAPACITY)))
                patience = min(2 * patience, MOST_SLOTS)
                tick(self._progress(tracks)[0])
                if not last:
                    keeper.after(k, tracks, engine, interrupt.asked)

    def _first_stretch(self) -> int:
        """Iterations that surely take no longer than a stretch may, before any was timed: by the bytes of the rows they use."""
        course = self.schedule.ahead(0, CAPACITY)
        rows = self.problem.M * float(np.sum(course.gradients_w[:, -1] + course.gradients_beta[:, -1])) / CAPACITY
        row = sum(leaf.nbytes for leaf in jax.tree.leaves(self.problem.clients.x)) / self.problem.clients.rows
        return int(np.clip(STRETCH_SECONDS * SLOW / max(rows * row, 1), 256, CAPACITY))

    def _advance(self, tracks: list[Track], engine: Engine, k: int, stretch: Stretch) -> int:
        """Do a stretch and record what it gave; the iteration after it."""
        since = time.perf_counter() - self._began
        factors = None if self.attendance is None else self.attendance.factors(k, stretch.iterations)
        snapshots = engine.advance(k, stretch.iterations, stretch.slots, factors)
        if stretch.flags.any():
            engine.wait()
            self._record(tracks, engine, snapshots, stretch, k, (since, time.perf_counter() - self._began))
        for track in tracks:
            if track.status is None:
                track.k, track.spent = k + stretch.iterations, stretch.course.at((track.row, stretch.iterations))
        return k + stretch.iterations

    def _time_is_up(self) -> bool:
        return self.budget.seconds is not None and time.perf_counter() - self._began >= self.budget.seconds

    def _progress(self, tracks: list[Track]) -> tuple[int, int]:
        """How far the slowest seed is, and how far it has to go, in rounds or else in iterations."""
        rounds = self.budget.rounds if self.by_rounds else None
        if rounds is not None or self.budget.iterations is None:
            return min(t.rounds if self.by_rounds else t.k for t in tracks), self.budget.most_rounds or 0
        return min(t.k for t in tracks), self.budget.iterations

    def _next(self, tracks: list[Track], engine: Engine, k: int, patience: int, most: int, last: bool) -> Stretch:
        """The next iterations, at most so many, with at most as many records as there is room for.

        Without slots the engine can only show its last state, so a stretch ends with its record. The `last` one does anyway.
        """
        most = most if self.attendance is None else min(most, self.attendance.at_once)
        if not engine.slots and not last:
            most = self._up_to_a_round(k, most)
        course = self.schedule.ahead(k, most)
        flags = np.stack([track.flags(course) for track in tracks])
        if last:
            flags[[track.status is None for track in tracks], -1] = True
        some = np.any(flags, axis=0)
        order = np.cumsum(some)
        over = order > min(max(engine.slots, 1), patience)
        count = int(np.argmax(over)) if over.any() else most
        if not engine.slots and some.any():
            count = int(np.argmax(some)) + 1
        # Nobody needs an iteration after the last record of all.
        if all(track.ends_within(count) for track in tracks) and some[:count].any():
            count = int(np.flatnonzero(some[:count])[-1]) + 1
        slots = np.where(some, order - 1, engine.slots or 1)[:count]
        return Stretch(count, slots, flags[:, :count], course)

    def _up_to_a_round(self, k: int, most: int) -> int:
        """At least as many iterations as the next round needs.

        An engine that shows only its last state does those before a round in one go; cut by the clock, it would round otherwise.
        """
        rounds = np.flatnonzero(np.diff(self.schedule.ahead(k, CAPACITY).rounds[0]) > 0)
        return max(most, int(rounds[0]) + 1) if len(rounds) else most

    # --- records --------------------------------------------------------------------------------------------------------

    def _record_start(self, tracks: list[Track], engine: Engine, began: float) -> None:
        w, beta = jax.tree.map(jnp.asarray, self.start)
        here = Snapshots(*jax.tree.map(np.asarray, self.problem.inward(w, self.problem.split(beta))))
        values, sizes = engine.measure_point(self.metrics, here)
        nothing = self.schedule.ahead(0, 0)
        seconds = np.array([time.perf_counter() - began])
        for track in tracks:
            course = Course(*(column[track.row] for column in nothing))
            track.extend(np.zeros(1, int), course, dict(values), sizes, seconds, lambda _: here)
        self._tell(tracks)

    def _record(
        self,
        tracks: list[Track],
        engine: Engine,
        snapshots: Any,
        stretch: Stretch,
        k: int,
        between: tuple[float, float],
    ) -> None:
        """Evaluate what was kept, all seeds together, and hand each track its own."""
        rows, places = np.nonzero(stretch.flags)
        index = stretch.slots[places] * len(tracks) + rows
        values, sizes = engine.measure(self.metrics, snapshots, index)
        since, now = between
        for row, track in enumerate(tracks):
            mine = np.flatnonzero(rows == row)
            if track.status is not None or not len(mine):
                continue
            done = places[mine] + 1
            slots = stretch.slots[places[mine]]
            track.extend(
                k + done,
                Course(*(column[row, done] for column in stretch.course)),
                {name: v[mine] for name, v in values.items()},
                sizes[mine],
                since + (now - since) * done / stretch.iterations,
                lambda i, row=row, slots=slots: engine.fetch(snapshots, int(slots[i]), row),
            )
        self._tell(tracks)

    def _tell(self, tracks: list[Track]) -> None:
        """Hand new records to the callbacks."""
        if not self.options.callbacks:
            return
        for track in tracks:
            told = getattr(track, "told", 0)
            for i in range(told, len(track.columns["round"])):
                record = {name: column[i].item() for name, column in track.columns.items()}
                for callback in self.options.callbacks:
                    callback({"seed": self.seeds[track.row], **record})
            track.told = len(track.columns["round"])  # type: ignore[attr-defined]

    # --- who was there --------------------------------------------------------------------------------------------------

    def evaluated(self, track: Track) -> tuple[np.ndarray, np.ndarray]:
        """Single-row gradients that each client evaluated in w and in β."""
        attendance, counts = self.attendance, self.problem.clients.counts
        if attendance is not None:
            return self.schedule.evaluated(track.row, track.k, lambda k, n: attendance.present(k, n)[:, track.row])
        if np.all(counts == counts[0]):
            totals = (track.spent.gradients_w, track.spent.gradients_beta)
            return tuple(np.full(len(counts), round(float(each)), np.int64) for each in totals)  # type: ignore[return-value]
        return self.schedule.evaluated(track.row, track.k)

    def traffic(self, track: Track) -> tuple[Any, Any]:
        """Scalars that a client sent and received: one number for all, or with participation one for each client."""
        row, iterations = track.row, track.k
        if self.attendance is None:
            return int(track.spent.floats), int(track.spent.floats)
        up = np.full(self.problem.M, self._opening, np.int64)
        down = up.copy()
        whole = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self._shapes.shared))
        before = np.ones((1, self.problem.M), bool)  # at the start everyone has what everyone knows
        step = self.attendance.at_once
        for k in range(0, iterations, step):
            count = min(step, iterations - k)
            here = self.attendance.present(k, count)[:, row]
            floats = self.schedule.sent(row, k, count)
            back = here & ~np.concatenate([before, here[:-1]])
            up += floats @ here
            down += floats @ here + whole * back.sum(axis=0)
            before = here[-1:]
        return up, down

    # --- checkpoints ----------------------------------------------------------------------------------------------------

    def _resume(self, tracks: list[Track], engine: Engine) -> tuple[int, Keeper]:
        """Where to begin: at the start, or where the last checkpoint was taken."""
        options = self.options
        if options.checkpoint is None:
            return 0, Keeper(self, None, None)
        if options.checkpoint_every is not None and options.checkpoint_every < 1:
            raise InputError(f"checkpoint_every is a number of rounds ≥ 1, got {options.checkpoint_every}.")
        keeper = Keeper(self, Checkpoints(options.checkpoint, self._identity()), options.checkpoint_every)
        return keeper.restore(tracks, engine), keeper

    def _identity(self) -> dict[str, str]:
        """What two runs must have in common for one to go on with the other's checkpoint."""
        from twofold import __version__

        problem, budget, options = self.problem, self.budget, self.options
        clients = problem.clients
        data = fingerprint(
            jax.tree.leaves(clients.x), jax.tree.leaves(clients.y), clients.counts, clients.weights, list(clients.names)
        )
        stop = dataclasses.replace(budget, rounds=1, iterations=None, seconds=None) if len(self.seeds) == 1 else budget
        return {
            "version": __version__,
            "precision": str(jnp.result_type(float)),
            "problem": fingerprint(problem.objective, problem.scale, str(problem.feature_dtype)),
            "data": data,
            "start": fingerprint(jax.tree.leaves(self.start)),
            "algorithm": f"{self.algorithm.name} {fingerprint(self.algorithm)}",
            "seeds": str(self.seeds),
            "recording": fingerprint(stop, list(self.metrics), self.aliases, self.mu, self.best),
            "participation": fingerprint(options.participation),
        }


class Keeper:
    """Writes checkpoints when they are due; without a folder it does nothing."""

    def __init__(self, run: Run, folder: Checkpoints | None, every: int | None) -> None:
        self._run, self._folder, self._every = run, folder, every
        self._due = 0 if every is None else every
        self._last = time.perf_counter()

    def limit(self, tracks: list[Track], most: int) -> int:
        """At most so many iterations, such that the stretch ends when a checkpoint is due."""
        if self._folder is None or self._every is None:
            return most
        slowest = min((t for t in tracks if t.status is None), key=lambda t: t.rounds)
        ahead = (
            self._run.schedule.ahead(slowest.k, most).rounds[slowest.row]
            if self._run.by_rounds
            else slowest.k + np.arange(most + 1)
        )
        there = np.flatnonzero(ahead >= self._due)
        return int(np.clip(there[0], 1, most)) if len(there) else most

    def after(self, k: int, tracks: list[Track], engine: Engine, now: bool) -> None:
        """Write a checkpoint if one is due, at the end of the run, and before an interruption."""
        if self._folder is None:
            return
        over = all(track.status is not None for track in tracks)
        done = min(t.rounds if self._run.by_rounds else t.k for t in tracks)
        due = time.perf_counter() - self._last >= CHECKPOINT_SECONDS if self._every is None else done >= self._due
        if not (due or over or now):
            return
        if self._every is not None:
            self._due = (done // self._every + 1) * self._every
        self._folder.write(k, self._content(k, tracks, engine))
        self._last = time.perf_counter()

    def _content(self, k: int, tracks: list[Track], engine: Engine) -> Saved:
        plain = {
            "k": k,
            "seconds": time.perf_counter() - self._run._began,
            "budget": dataclasses.asdict(self._run.budget),
            "tracks": [
                {"k": t.k, "spent": [float(n) for n in t.spent], "status": t.status, "message": t.message}
                for t in tracks
            ],
        }
        return Saved((engine.state(), [(list(t.columns.values()), t.last) for t in tracks]), plain)

    def restore(self, tracks: list[Track], engine: Engine) -> int:
        """Put everything back to where the newest checkpoint was taken; the iteration at which to go on."""
        assert self._folder is not None
        saved = self._folder.read(lambda: self._content(0, tracks, engine).arrays)
        if saved is None:
            return 0
        state, recorded = saved.arrays
        engine.restore(state)
        longer = saved.plain["budget"] != dataclasses.asdict(self._run.budget)
        for track, (columns, last), plain in zip(tracks, recorded, saved.plain["tracks"], strict=True):
            track.columns, track.last = dict(zip(track.columns, columns, strict=True)), Point(*last)
            track.k, track.spent, track.message = plain["k"], Course(*plain["spent"]), plain["message"]
            track.status = plain["status"]
            if track.status == "budget" and longer:
                self._reopen(track)
        self._run._began = time.perf_counter() - saved.plain["seconds"]
        if self._every is not None:
            done = min(t.rounds if self._run.by_rounds else t.k for t in tracks)
            self._due = (done // self._every + 1) * self._every
        return int(saved.plain["k"])

    def _reopen(self, track: Track) -> None:
        """Let a run that was over go on with a larger budget, without the record that marked its end."""
        track.status, budget = None, self._run.budget
        count = track.columns["round" if self._run.by_rounds else "iteration"][-1]
        if count % budget.every and len(track.columns["round"]) > 1:
            track.columns = {name: column[:-1] for name, column in track.columns.items()}
