"""`solve(problem)` without a name: the method that is predicted to cost least, and why."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.algorithms import LSGD, REGISTRY, Algorithm
from twofold.engines.schedule import Schedule, footprint
from twofold.errors import TwofoldError
from twofold.problem import Problem
from twofold.solver.steps import complete
from twofold.theory import rates
from twofold.theory.cost import Cost

__all__ = ["CANDIDATES", "Candidate", "Chosen", "Needs", "candidates", "choose", "needs", "out_of_time", "shortfall"]

CANDIDATES = ("profile", "acd", "asvrcd", "svrcd")
PROVEN = ("acd", "asvrcd", "svrcd")
"""Those of them, and of what a user may ask for, whose rate is known from their steps at once."""
SLACK = 3.0
"""How many times longer than it takes theory may say that a run takes."""
UNKNOWN = 400
"""Parameters (of w and of one β) from which on a function of which nothing is known is taken for a net."""
LOOKED_AT = 4096
"""Iterations from whose coins the cost of an iteration is taken."""
QUADRATIC, NEWTON, PER_DECADE = 2.0, 5.0, 1.5
"""Rounds of `profile`, which has no rate: for a quadratic, by Newton's method, and by L-BFGS for each factor of ten. These are what
`twofold reproduce realdata` measures (2; 3 to 5; 1 to 4.9, 1.5 in the median), not a theorem."""
TYPICAL = 2.5
"""How many times faster than its proven rate a run is, about, in the median there: bounds are divided by it before they are
compared with what is typical. All four numbers come from the twenty problems of that page."""
WORTH = 0.5
"""The part of the cheapest method's cost that gradients must make up, before other variables are looked at: they save nothing else."""


class Candidate(NamedTuple):
    """What one method is predicted to need, per client, and what that is likely to cost; `problem` has the variables it works on."""

    name: str
    problem: Problem
    algorithm: Algorithm
    iterations: float
    rounds: float
    bytes: float
    gradients: float
    cost: float
    proven: bool


class Chosen(NamedTuple):
    """The method, the problem in the variables that it works on, and a sentence that says why."""

    algorithm: Algorithm
    problem: Problem
    why: str


def choose(problem: Problem, cost: Cost, relative: float, some: bool, metric: bool = True) -> Chosen:
    """The cheapest method for a relative accuracy; `some`: not everyone takes part; `metric`: other variables may be chosen."""
    if some:
        name = "saga" if "saga" in REGISTRY else "lsgd"
        why = f"auto chose {name}, which is right when only some clients take part in a round."
        return Chosen(REGISTRY[name](), problem, why)
    if not problem.objective.convex:
        why = "auto chose lsgd, since the problem is not convex and no rate is known for it."
        return Chosen(REGISTRY["lsgd"](), problem, why)
    size = sum(tree.size(block) for block in problem.abstract_start)
    if size > UNKNOWN and _is_unknown(problem):
        # On all rows: with sampled ones it would stop at their noise, and nothing is known that could make the steps smaller.
        why = (
            f"auto chose lsgd on all rows, since nothing is known of the curvature of a function of your own, and Newton's "
            f"steps over {size:,} "
            "parameters take long. If it is convex, try solve(problem, 'profile'); if you know L, say it: losses.custom(..., L=...)."
        )
        return Chosen(LSGD(batch=None), problem, why)
    found = candidates(problem, cost, relative, metric)
    if not found:
        why = "auto chose profile, since theory has no forecast for any method here."
        return Chosen(REGISTRY["profile"](), problem, why)
    best, *others = sorted(found, key=lambda one: one.cost)
    basis = "at most, by its proven rate" if best.proven else "as measured on other problems (it has no proven rate)"
    text = (
        f"auto chose {best.name}: about {math.ceil(best.rounds):,} rounds to {relative:g} of the initial gap, {basis}"
    )
    if others:
        text += f"; the next best, {others[0].name}, would cost {others[0].cost / best.cost:.3g} times as much"
    return Chosen(best.algorithm, best.problem, text + ".")


def _is_unknown(problem: Problem) -> bool:
    """Whether curvature could only be guessed at a point: the loss or the objective is the user's own, without constants."""
    if problem.curvature is not None:
        return False
    objective = problem.objective
    loss = getattr(objective, "loss", None)
    return getattr(objective, "given", None) is None if loss is None else getattr(loss, "L", 0.0) is None


def candidates(problem: Problem, cost: Cost, relative: float, metric: bool = True) -> list[Candidate]:
    """What each method that can solve the problem exactly is predicted to need; ACD in a matrix metric where that may pay, too."""
    found = [one for name in CANDIDATES if (one := _candidate(problem, name, cost, relative)) is not None]
    least = min(found, key=lambda one: one.cost, default=None)
    model = problem.curvature
    if not metric or least is None or problem.precondition is not None or model is None or not model.kept:
        return found
    spent = cost.gradient * least.gradients / (TYPICAL if least.proven else 1)
    if spent > WORTH * least.cost:
        other = _candidate(problem.preconditioned("matrix"), "acd", cost, relative)
        found += [] if other is None else [other._replace(name="acd in a matrix metric")]
    return found


def _candidate(problem: Problem, name: str, cost: Cost, relative: float) -> Candidate | None:
    try:
        algorithm, _ = complete(problem, name)
    except TwofoldError:
        return None
    proven = name in PROVEN
    if proven:
        iterations = _proven_iterations(problem, name, algorithm, relative)
    else:
        iterations = _profile_rounds(problem, algorithm, relative)
    if not math.isfinite(iterations):
        return None
    found = needs(problem, algorithm, iterations)
    gradients = found.gradients_w + found.gradients_beta
    total = cost.total(found.rounds, found.bytes, gradients) / (TYPICAL if proven else 1)
    if problem.metric is not None:
        total += cost.total(1, problem.metric.opening_floats * jnp.result_type(float).itemsize, 0)
    if not math.isfinite(total):
        return None
    return Candidate(name, problem, algorithm, iterations, found.rounds, found.bytes, gradients, total, proven)


class Needs(NamedTuple):
    """What a number of iterations costs a client, on average over the first coins; bytes are sent and received."""

    rounds: float
    bytes: float
    gradients_w: float
    gradients_beta: float


def needs(problem: Problem, algorithm: Algorithm, iterations: float, seed: int = 0) -> Needs:
    """What so many iterations of a method with all its steps cost, by its own plan, messages and evaluations."""
    cast = tree.cast(algorithm)
    look = int(min(max(math.ceil(iterations), 1), LOOKED_AT))
    course = Schedule(cast, problem, footprint(cast, problem).parts, [seed]).ahead(0, look)
    rounds, floats, of_w, of_beta = (float(column[0, -1]) * iterations / look for column in course)
    return Needs(rounds, 2 * floats * jnp.result_type(float).itemsize, of_w, of_beta)


def shortfall(
    problem: Problem, algorithm: Algorithm, rounds: int | None, tol: float | None, first: float
) -> str | None:
    """A sentence where so many rounds are far from what theory needs to `tol` from a gap of at most `first`; else None.

    A proven rate is a bound, and a run is faster, about three times in the median of docs/realdata.md: nothing is said up to that.
    """
    if rounds is None or tol is None or algorithm.name not in PROVEN or not (math.isfinite(first) and first > tol):
        return None
    iterations = _proven_iterations(problem, algorithm.name, algorithm, tol / first)
    if not math.isfinite(iterations):
        return None
    wanted = needs(problem, algorithm, iterations).rounds
    if wanted <= SLACK * rounds:
        return None
    return (
        f"{rounds:,} rounds will hardly do: theory needs about {wanted:,.0f} rounds of {algorithm.name} for tol = {tol:g}, from a gap "
        f"of {first:.3g} at most. Allow more rounds, ask for a larger tol, or leave the method open: solve(problem, tol={tol:g})."
    )


def out_of_time(
    problem: Problem, algorithm: Algorithm, seconds: float, tol: float, first: float, done: tuple[int, float]
) -> str | None:
    """A sentence where `seconds` are far from what theory needs to `tol` from a gap of at most `first`; else None.

    `done` are the iterations that were done so far, and the seconds that they took: the speed of this machine.
    """
    count, took = done
    if algorithm.name not in PROVEN or not (math.isfinite(first) and first > tol) or count < 1 or took <= 0:
        return None
    wanted = _proven_iterations(problem, algorithm.name, algorithm, tol / first) * took / count
    if not math.isfinite(wanted) or wanted <= SLACK * seconds:
        return None
    return (
        f"{seconds:g} s will hardly do: theory needs about {wanted:,.0f} s of {algorithm.name} for tol = {tol:g} at this run's speed, "
        f"{wanted / seconds:,.3g} times as long. Allow more seconds, ask for a larger tol, bring the features to one scale, or leave "
        f"the method open: solve(problem, tol={tol:g})."
    )


def _proven_iterations(problem: Problem, name: str, algorithm: Algorithm, relative: float) -> float:
    if not problem.constants().mu > 0:
        return math.inf
    if name == "acd":
        return math.log(1 / relative) / -math.log1p(-float(algorithm.theta))  # type: ignore[attr-defined]
    rows, batch = float(np.mean(problem.clients.counts)), getattr(algorithm, "batch", 1)
    own = {field: getattr(algorithm, field) for field in ("p_w", "rho")}
    return rates.predict(name, problem.constants(), relative, n=rows, batch=batch, **own).iterations


def _profile_rounds(problem: Problem, algorithm: Algorithm, relative: float) -> float:
    loss = problem.objective.loss
    if getattr(getattr(loss, "link", None), "labels", 0) is None:
        return QUADRATIC
    return NEWTON if getattr(algorithm, "outer", "") == "newton" else PER_DECADE * -math.log10(relative)
