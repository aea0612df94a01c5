"""What theory says of a run's budget before the run: that it will not do, and what would help."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from twofold import tree
from twofold.algorithms import Algorithm
from twofold.algorithms.base import Facts
from twofold.engines.schedule import Schedule, footprint
from twofold.problem import Problem
from twofold.solver.options import Options
from twofold.solver.steps import facts_of
from twofold.theory import rates
from twofold.theory.cost import PRESETS

__all__ = [
    "Goal", "Needs", "goal_of", "is_exact", "needs", "out_of_time", "proven_iterations", "shortfall", "too_little_time",
]  # fmt: skip

SLACK = 3.0
"""How many times longer than it takes theory may say that a run takes: bounds are about so much slower in docs/realdata.md."""
SLACK_OF_TYPICAL = 1.9
"""The same where a number is no bound but what other problems took: none of docs/realdata.md took less than half of that."""
SHORT = 1e-4
"""The part of the first gap that sampled rows keep a run from, if nothing reduces their noise: none of docs/realdata.md got there."""
BELOW = -1e-6
"""A part of the first gap that cannot be left: the target is below F*, by more than rounding."""
PROVEN = ("certified", "theorem")
BASIS = {
    "measured": "as measured elsewhere (it has no proven rate), it takes",
    "unproven": "by a rate that is not proven here, it takes",
}
"""What stands behind a number that is no theorem's."""
LOOKED_AT = 4096
"""Iterations from whose coins the cost of an iteration is taken."""


class Needs(NamedTuple):
    """What a number of iterations costs a client, on average over the first coins; bytes are sent and received."""

    rounds: float
    bytes: float
    gradients_w: float
    gradients_beta: float


class Goal(NamedTuple):
    """What a run is to reach: the part of the first gap that may be left, in words, and what was asked for."""

    relative: float
    words: str
    field: str


def needs(problem: Problem, algorithm: Algorithm, iterations: float, seed: int = 0) -> Needs:
    """What so many iterations of a method with all its steps cost, by its own plan, messages and evaluations."""
    cast = tree.cast(algorithm)
    look = int(min(max(math.ceil(iterations), 1), LOOKED_AT))
    course = Schedule(cast, problem, footprint(cast, problem).parts, [seed]).ahead(0, look)
    rounds, floats, of_w, of_beta = (float(column[0, -1]) * iterations / look for column in course)
    return Needs(rounds, 2 * floats * jnp.result_type(float).itemsize, of_w, of_beta)


def is_exact(algorithm: Algorithm, some: bool = False) -> bool:
    """Whether the method converges to the optimum itself; `some`: not everyone takes part in a round."""
    return _stops(algorithm, some) is None


def _stops(algorithm: Algorithm, some: bool) -> tuple[str, str] | None:
    """Why a method stops short of the optimum, and the remedy; None if it reaches the optimum itself."""
    corrects = algorithm.corrects or frozenset()
    if some and "absence" not in corrects:
        return "with only some clients in a round", "take saga"
    if getattr(algorithm, "batch", None) is not None and "sampling" not in corrects:
        return "on sampled rows", "take all rows (batch=None), or svrcd, which reduces their noise"
    several = getattr(algorithm, "tau", 1) != 1 or getattr(algorithm, "epochs", None) is not None
    if (several or getattr(algorithm, "local_rounds", 1) != 1) and "local steps" not in corrects:
        return "with several local steps in a round", "take one, or acd"
    return None


def proven_iterations(algorithm: Algorithm, facts: Facts, relative: float) -> float:
    """By the method's own rate; infinite where none is proven, or where something is left out of it."""
    iterations, certainty = _iterations(algorithm, facts, relative)
    return iterations if certainty in PROVEN else math.inf


def _iterations(algorithm: Algorithm, facts: Facts, relative: float) -> tuple[float, str]:
    """Iterations, and what stands behind the number; infinite where there is none, or where something is left out of it."""
    said = algorithm.rate(facts, relative)
    if isinstance(said, str) or said.certainty == "none":
        return math.inf, "none"
    if isinstance(said, rates.Rate):
        complete = not said.note or is_exact(algorithm, facts.participation is not None)
        return (said.iterations(relative) if complete else math.inf), said.certainty
    return (said.iterations if is_exact(algorithm, facts.participation is not None) else math.inf), said.certainty


def _facts(problem: Problem, options: Options) -> Facts:
    """What theory knows, with all that this run was told."""
    return facts_of(problem, options.constants, options.participation, options.cost)


def goal_of(
    options: Options, value: float | None, gap: float | None, best: float | None, positive: bool = True
) -> Goal | None:
    """What theory is asked for: the part of the first gap that has to be left, at most.

    `value` is F(x⁰), `gap` a bound of F(x⁰) − F*, and `best` is F*, each where it is known. For a target T without F* it is the largest
    that can be: 1 − (F(x⁰) − T)/G for a gap of at most G, which is F(x⁰) itself where nothing better is known than F ≥ 0 (`positive`).
    """
    found: list[Goal] = []
    budget = options.budget
    if budget.tol is not None and gap is not None and math.isfinite(gap) and gap > 0:
        found.append(Goal(budget.tol / gap, f"tol = {budget.tol:g}, from a gap of {gap:.3g} at most", "tol"))
    if budget.target is not None and value is not None and math.isfinite(value):
        least = best if best is not None else value - gap if gap is not None else 0.0 if positive else -math.inf
        most = value - least
        if 0 < most < math.inf:
            part = 1 - (value - budget.target) / most
            found.append(Goal(part, f"target = {budget.target:.9g}, from F = {value:.3g} at the start", "target"))
    return max(found, default=None)  # the run ends at whatever comes first


def shortfall(
    problem: Problem, algorithm: Algorithm, options: Options, goal: Goal | None, auto: bool = False
) -> str | None:
    """A sentence where this budget is far from what theory needs for the goal, with the remedy; else None.

    A proven rate is a bound, and a run is faster, about three times in the median of docs/realdata.md: nothing is said up to that.
    """
    if goal is not None and goal.relative < BELOW:
        return f"The {goal.words}, is out of reach: by all that is known here, F is larger everywhere."
    if goal is None or not 0 < goal.relative < 1:
        return None
    iterations, certainty = _iterations(algorithm, _facts(problem, options), goal.relative)
    if not math.isfinite(iterations) and goal.relative < SHORT and (stops := _stops_for_sure(algorithm, options)):
        why, remedy = stops
        return (
            f"{algorithm.name} {why} stops short of the optimum, and will hardly reach {goal.words}, however long it runs: {remedy}, "
            f"or ask for a larger {goal.field}."
        )
    limits = {name: n for name in ("rounds", "iterations") if (n := getattr(options.budget, name)) is not None}
    if not limits or not math.isfinite(iterations):
        return None
    slack = SLACK_OF_TYPICAL if certainty == "measured" else SLACK
    basis = BASIS.get(certainty, "theory needs")
    for name, limit in limits.items():
        rounds = name == "rounds" and problem.has_shared
        wanted = needs(problem, algorithm, iterations).rounds if rounds else iterations
        if wanted > slack * limit:
            remedy = f"Allow more {name}, or ask for a larger {goal.field}."
            if not auto:
                remedy = f"Allow more {name}, ask for a larger {goal.field}, or leave the method open: solve(problem, {goal.field}=…)."
            return f"{limit:,} {name} will hardly do: {basis} about {wanted:,.0f} {name} of {algorithm.name} for {goal.words}. {remedy}"
    return None


def _stops_for_sure(algorithm: Algorithm, options: Options) -> tuple[str, str] | None:
    """Why it stops short; None also for a falling step, and for a class that does not say itself what it corrects."""
    falls = any(callable(getattr(algorithm, name, None)) for name in ("eta", "lr"))
    if falls or vars(type(algorithm)).get("corrects") is None:
        return None
    return _stops(algorithm, options.participation is not None)


def too_little_time(problem: Problem, algorithm: Algorithm, options: Options, goal: Goal | None) -> str | None:
    """The same for `seconds`, before the run, where the cost model is that of this machine ("simulation"); else None."""
    seconds = options.budget.seconds
    if goal is None or seconds is None or options.cost != "simulation" or not 0 < goal.relative < 1:
        return None
    iterations = proven_iterations(algorithm, _facts(problem, options), goal.relative)
    if not math.isfinite(iterations):
        return None
    found = needs(problem, algorithm, iterations)
    rows = (found.gradients_w + found.gradients_beta) * problem.M  # all clients share the machine
    wanted = PRESETS["simulation"].total(iterations, 0.0, rows)
    return _late(algorithm, seconds, wanted, goal, "by the cost model simulation")


def out_of_time(
    problem: Problem, algorithm: Algorithm, options: Options, goal: Goal | None, done: tuple[int, float]
) -> str | None:
    """The same once the run has shown its speed: `done` are the iterations so far, and the seconds that they took."""
    count, took = done
    seconds = options.budget.seconds
    if goal is None or seconds is None or not 0 < goal.relative < 1 or count < 1 or took <= 0:
        return None
    wanted = proven_iterations(algorithm, _facts(problem, options), goal.relative) * took / count
    return _late(algorithm, seconds, wanted, goal, "at this run's speed")


def _late(algorithm: Algorithm, seconds: float, wanted: float, goal: Goal, basis: str) -> str | None:
    if not math.isfinite(wanted) or wanted <= SLACK * seconds:
        return None
    return (
        f"{seconds:g} s will hardly do: theory needs about {wanted:,.0f} s of {algorithm.name} for {goal.words}, {basis}: "
        f"{wanted / seconds:,.3g} times as long. Allow more seconds, ask for a larger {goal.field}, bring the features to one scale, "
        f"or leave the method open: solve(problem, {goal.field}=…)."
    )
