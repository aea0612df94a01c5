"""One seed's course: its records, its end, its last iterate, and its ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from twofold import metrics as measure
from twofold import tree
from twofold.engines.base import Point
from twofold.engines.schedule import Course
from twofold.result import Best, History, Ledger, Result
from twofold.solver.steps import complete
from twofold.solver.watch import Watch
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.solver.run import Run

__all__ = ["Track"]

BLOW_UP = 1e4
"""A loss this many times the initial one (plus one) counts as diverged, although still finite."""
STALL = 30
"""Records in which the loss must have fallen, in a run that ends by itself."""


class Track:
    """One seed of a run. Everything that it counts is a function of the iteration, known from the schedule."""

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        self.k = 0
        self.spent = Course(*(np.float64(0) for _ in Course._fields))  # in the first k iterations
        self.status: str | None = None
        self.message = ""
        self.columns: dict[str, np.ndarray] = {}
        self.last: Point | None = None
        self.best: Point | None = None  # the iterate of the best record so far, where rounds are compared
        self.told = 0  # records that the callbacks have seen
        self._ends: int | None = None  # how many iterations ahead the budget is spent, as far as seen

    @property
    def rounds(self) -> int:
        """Rounds of communication so far."""
        return int(self.spent.rounds)

    # --- what is to come ----------------------------------------------------------------------------------------------

    def flags(self, course: Course) -> np.ndarray:
        """Which of the next iterations end in a record, given the totals from now on."""
        budget, by_rounds = self.run.budget, self.run.by_rounds
        rounds = course.rounds[self.row, 1:]
        ks = self.k + 1 + np.arange(len(rounds))
        ticks = np.diff(course.rounds[self.row]) > 0 if by_rounds else np.ones(len(rounds), bool)
        count = rounds if by_rounds else ks
        done = budget.is_over(ks, rounds, by_rounds)
        self._ends = int(np.argmax(done)) if done.any() else None
        flags = ticks & (count % budget.every == 0)
        if self.status is not None:
            flags[:] = False
        elif self._ends is not None:
            flags[self._ends] = True
            flags[self._ends + 1 :] = False
        return flags

    def ends_within(self, count: int) -> bool:
        """Whether this track needs nothing beyond the next `count` iterations."""
        return self.status is not None or (self._ends is not None and self._ends < count)

    # --- what has come ------------------------------------------------------------------------------------------------

    def extend(
        self,
        ks: np.ndarray,
        course: Course,
        values: dict[str, np.ndarray],
        norms: np.ndarray,
        seconds: np.ndarray,
        fetch: Callable[[int], Point],
    ) -> None:
        """Records after ks[0], ks[1], … iterations, up to the first that ends this track.

        `norms` are ‖(w, β)‖² of the iterates, finite as long as they are; `fetch(i)` gets one of them.
        """
        run = self.run
        run.recording.derive(values)
        rows = {
            "round": course.rounds.astype(np.int64),
            "iteration": ks,
            "bytes": 2 * course.floats * jnp.result_type(float).itemsize,
            "gradients_w": course.gradients_w,
            "gradients_beta": course.gradients_beta,
            "seconds": seconds,
            **values,
            **{name: values[metric] for name, metric in run.recording.aliases.items()},
        }
        broken = self._broken(values, norms)
        over = (ks > 0) & run.budget.is_over(ks, course.rounds, run.by_rounds)
        if run.budget.seconds is not None:
            over |= seconds >= run.budget.seconds
        done = self._done(values, len(ks))
        ends = np.flatnonzero(broken | over | done)
        stop = int(ends[0]) if len(ends) else len(ks) - 1
        good = stop + (not broken[stop])
        for name, column in rows.items():
            new = np.asarray(column)[:good]
            self.columns[name] = np.concatenate([self.columns[name], new]) if name in self.columns else new
        if good and run.recording.watch is not None:
            self._keep_best(run.recording.watch.column, good, fetch)
        if good:
            self.last = None  # its memory is free before the next one needs as much
            self.last = fetch(good - 1)
        if len(ends):
            self.k, self.spent = int(ks[stop]), course.at(stop)
            self._end(bool(broken[stop]), bool(done[stop]), {name: float(v[stop]) for name, v in values.items()})

    def _keep_best(self, column: str, good: int, fetch: Callable[[int], Point]) -> None:
        """Keep the iterate of the best record, if it is one of the last `good` ones; the first of several."""
        best = int(np.argmax(self.columns[column])) - (len(self.columns[column]) - good)
        if best >= 0:
            self.best = None
            self.best = fetch(best)

    def _broken(self, values: dict[str, np.ndarray], norms: np.ndarray) -> np.ndarray:
        """Where the run has diverged."""
        broken = ~np.isfinite(norms)
        for name in values.keys() & measure.BUILT_IN.keys():
            broken |= ~np.isfinite(values[name])
        if "loss" in values:
            first = self.columns["loss"][0] if self.columns else values["loss"][0]
            broken |= values["loss"] > BLOW_UP * (1 + abs(first))
        return broken

    def _done(self, values: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Where the tolerance or the target is reached."""
        budget = self.run.budget
        done = np.zeros(count, bool)
        if budget.tol is not None:
            done |= values["bound"] <= budget.tol
        if budget.target is not None:
            done |= values["loss"] <= budget.target
        if budget.relative is not None:
            done |= self._relatively_done(values, budget.relative)
        watch = self.run.recording.watch
        if watch is not None and watch.patience is not None:
            before = self.columns.get(watch.column, np.zeros(0))
            done |= watch.stops(np.concatenate([before, values[watch.column]]))[len(before) :]
        return done

    def _relatively_done(self, values: dict[str, np.ndarray], relative: float) -> np.ndarray:
        """Where the gap is at most `relative` of the initial one, or the loss no longer falls in this precision.

        F(x⁰) − F(x) is at most the initial gap. Without a certified gap, the gradient must have fallen as a gap would let it.
        """
        before = self.columns.get("loss", np.zeros(0))
        losses = np.concatenate([before, values["loss"]])
        if "bound" in values:
            done = values["bound"] <= relative * (losses[0] - values["loss"])
        else:
            first = self.columns["gradient_norm"][0] if self.columns else values["gradient_norm"][0]
            done = values["gradient_norm"] <= relative**0.5 * first
        best = np.minimum.accumulate(losses)
        floor = 8 * np.finfo(np.dtype(jnp.result_type(float))).eps * np.abs(best)
        stalled = np.zeros(len(losses), bool)
        stalled[STALL:] = best[:-STALL] - best[STALL:] <= floor[STALL:]
        return done | stalled[len(before) :]

    def _end(self, broken: bool, done: bool, values: dict[str, float]) -> None:
        if broken:
            self.status, self.message = "diverged", self._cause(values)
        elif done:
            self.status, self.message = "converged", self._reached(values)
        else:
            self.status, self.message = "budget", f"stopped after {self.rounds:,} rounds and {self.k:,} iterations"

    def interrupt(self) -> None:
        """End here, because the user says so."""
        if self.status is None:
            self.status = "interrupted"
            self.message = f"interrupted after {self.rounds:,} rounds and {self.k:,} iterations"

    # --- words --------------------------------------------------------------------------------------------------------

    @property
    def _called(self) -> str:
        """What the bound on the gap is: certified, or true if a function of the user's own is convex."""
        loss = getattr(self.run.problem.objective, "loss", None)
        own = loss is None or type(loss).__module__ == "twofold.losses.custom"
        return "gap, if the function is convex," if own else "certified gap"

    def _reached(self, values: dict[str, float]) -> str:
        budget = self.run.budget
        if budget.relative is not None:
            return self._reached_relatively(values)
        if budget.tol is not None and values["bound"] <= budget.tol:
            return f"{self._called} {values['bound']:.3g} ≤ tol = {budget.tol:g}"
        watch = self.run.recording.watch
        if watch is not None and (budget.target is None or values["loss"] > budget.target):
            return f"{watch.column} has not improved for {watch.patience} records"
        return f"loss {values['loss']:.6g} ≤ target {budget.target:g}"

    def _reached_relatively(self, values: dict[str, float]) -> str:
        relative, first = self.run.budget.relative, float(self.columns["loss"][0])
        if "bound" in values and values["bound"] <= relative * (first - values["loss"]):  # type: ignore[operator]
            return f"{self._called} {values['bound']:.3g}, at most {relative:g} of the initial gap"
        if "bound" not in values:
            return f"‖∇F‖ = {values['gradient_norm']:.3g}; the gap is not certified, since no strong convexity is known"
        return f"the loss no longer falls in this precision; {self._called} {values['bound']:.3g}"

    def _cause(self, values: dict[str, float]) -> str:
        before = max((int(k) for k in self.columns["iteration"]), default=0)
        what = ", ".join(f"{n} = {v:.3g}" for n, v in values.items() if n in measure.BUILT_IN) or "iterate not finite"
        text = f"{self.run.algorithm.name} diverged between iterations {before:,} and {self.k:,} ({what})"
        given, constants = self.run.given, self.run.options.constants
        if getattr(given, "is_plain", False):
            return text + _blame_rate(given)
        eta = getattr(given, "eta", None)
        if callable(eta):
            return text + ": the schedule's steps are too large, most likely."
        if eta is not None:
            return text + self._blame_step(given, float(eta))
        known = self.run.problem.constants() if constants is None else constants
        weak = sorted(name for name, how in known.how.items() if how != "certified")
        if weak:
            return (
                text
                + f": the step came from constants that are not certified ({', '.join(weak)}), most likely too small."
            )
        return text + ": the step sizes are theory's, so look at the data's scale and the dtype."

    def _blame_step(self, given: Any, eta: float) -> str:
        """What to say of a step size that the user gave."""
        if getattr(
            getattr(self.run.problem.objective, "loss", None), "trains", False
        ):  # theory's would cost a net's constants
            names = ("eta", "inner_eta")
            steps = [f"{name} = {getattr(given, name):g}" for name in names if getattr(given, name, None) is not None]
            return f": {' or '.join(steps)} is too large, most likely: try a tenth of it."
        try:
            options = self.run.options
            theory = complete(
                self.run.problem, dataclasses.replace(given, eta=None), options.constants, cost=options.cost
            )[0]
        except ValueError:
            return f": eta = {eta:g} is too large, most likely."
        best = float(theory.eta)  # type: ignore[attr-defined]
        return f": your eta = {eta:g} is {eta / best:.3g} times theory's {best:.3g}."

    # --- the result ---------------------------------------------------------------------------------------------------

    def _best(self, watch: Watch, point: Point) -> Best:
        """The best round by what is watched, with its models."""
        place = int(np.argmax(self.columns[watch.column]))
        w, beta = self._real(point)
        count = self.columns["round" if self.run.by_rounds else "iteration"][place]
        return Best(int(count), watch.column, float(self.columns[watch.column][place]), w, beta)

    def _real(self, point: Point) -> tuple[Pytree, Pytree]:
        """The user's w and everyone's β, on the host."""
        problem = self.run.problem
        w, parts = problem.outward(*point)
        return jax.tree.map(np.asarray, w), jax.tree.map(np.asarray, problem.join(jax.tree.map(np.asarray, parts)))

    def result(self, seconds: float) -> Result:
        """This seed's Result."""
        run, watch = self.run, self.run.recording.watch
        assert self.last is not None
        w, beta = self._real(self.last)
        return Result(
            w=w,
            beta=beta,
            history=History(self.columns),
            ledger=_ledger(run, self),
            status=self.status or "budget",  # type: ignore[arg-type]
            seconds=seconds,
            message=self.message,
            algorithm=run.algorithm,
            seed=run.seeds[self.row],
            notes=run.notes,
            best=None if watch is None or self.best is None else self._best(watch, self.best),
        )


def _blame_rate(given: Any) -> str:
    """What to say of plain steps: they are the user's, and no constant of the problem had a part in them."""
    given_rates: list[tuple[str, Any]] = [(name, getattr(given, name)) for name in ("lr", "lr_beta")]
    rates = [
        f"{name} = {float(cast(Any, rate)(0)):g} in round 0" if callable(rate) else f"{name} = {float(rate):g}"
        for name, rate in given_rates
        if rate  # neither left out nor zero
    ]
    whose = ["the rate of your optimizer"] * (given.optimizer is not None) + [f"your {rate}" for rate in rates]
    return f": {' or '.join(whose)} is too large, most likely: try a tenth of it."


# --- the ledger: what a run cost each client, counted from the coins of its iterations ---------------------------------------


def _ledger(run: Run, track: Track) -> Ledger:
    """The ledger of a track. With participation, floats and bytes are one number per client."""
    size, counts = jnp.result_type(float).itemsize, run.schedule.problem.clients.counted
    if run.attendance is not None:
        up, down = _traffic(run, track)
        present = run.attendance.present
        of_w, of_beta = run.schedule.evaluated(track.row, track.k, lambda k, n: present(k, n)[:, track.row])
    else:
        up = down = int(track.spent.floats)
        if np.all(counts == counts[0]):
            totals = (track.spent.gradients_w, track.spent.gradients_beta)
            of_w, of_beta = (np.full(len(counts), round(float(each)), np.int64) for each in totals)
        else:
            of_w, of_beta = run.schedule.evaluated(track.row, track.k)
    return Ledger(
        rounds=int(track.spent.rounds), iterations=track.k, floats_up=up, floats_down=down, bytes_up=up * size,
        bytes_down=down * size, gradients_w=of_w, gradients_beta=of_beta,
    )  # fmt: skip


def _traffic(run: Run, track: Track) -> tuple[np.ndarray, np.ndarray]:
    """Scalars that each client sent and received; one who comes back also downloads the shared state."""
    attendance, clients = run.attendance, run.problem.M
    assert attendance is not None
    up = np.full(clients, run.opening, np.int64)
    down = up.copy()
    whole = tree.size(run.shapes.shared)
    before = np.ones((1, clients), bool)  # at the start everyone has what everyone knows
    for k in range(0, track.k, attendance.at_once):
        count = min(attendance.at_once, track.k - k)
        here = attendance.present(k, count)[:, track.row]
        floats = run.schedule.sent(track.row, k, count)
        back = here & ~np.concatenate([before, here[:-1]])
        up += floats @ here
        down += floats @ here + whole * back.sum(axis=0)
        before = here[-1:]
    return up, down
