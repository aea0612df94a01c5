"""`solve(problem)` without a name: the method that is predicted to cost least, and why."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from twofold import tree
from twofold.algorithms import REGISTRY, Algorithm
from twofold.engines.schedule import Schedule, footprint
from twofold.errors import TwofoldError
from twofold.problem import Problem
from twofold.solver.steps import complete
from twofold.theory import rates
from twofold.theory.cost import Cost

__all__ = ["CANDIDATES", "Candidate", "candidates", "choose"]

CANDIDATES = ("profile", "acd", "asvrcd", "svrcd")
LOOKED_AT = 4096
"""Iterations from whose coins the cost of an iteration is taken."""
QUADRATIC, NEWTON, PER_DECADE = 3.0, 7.0, 3.2
"""Rounds of `profile`, which has no rate: for a quadratic, by Newton's method, and by L-BFGS for each factor of ten. These are what
`twofold reproduce realdata` measures, not a theorem."""


class Candidate(NamedTuple):
    """What one method is predicted to need, per client, and what that costs."""

    name: str
    algorithm: Algorithm
    iterations: float
    rounds: float
    bytes: float
    gradients: float
    cost: float
    proven: bool


def choose(problem: Problem, cost: Cost, relative: float, some: bool) -> tuple[Algorithm, str]:
    """The cheapest method for a relative accuracy, and a sentence that says why; `some`: not everyone takes part in a round."""
    if some:
        name = "saga" if "saga" in REGISTRY else "lsgd"
        return REGISTRY[name](), f"auto chose {name}, which is right when only some clients take part in a round."
    if not problem.objective.convex:
        return REGISTRY["lsgd"](), "auto chose lsgd, since the problem is not convex and no rate is known for it."
    found = candidates(problem, cost, relative)
    if not found:
        return REGISTRY["profile"](), "auto chose profile, since theory has no forecast for any method here."
    best, *others = sorted(found, key=lambda one: one.cost)
    basis = "by its proven rate" if best.proven else "as measured on other problems (it has no proven rate)"
    text = (
        f"auto chose {best.name}: about {math.ceil(best.rounds):,} rounds to {relative:g} of the initial gap, {basis}"
    )
    if others:
        text += f"; the next best, {others[0].name}, would cost {others[0].cost / best.cost:.3g} times as much"
    return best.algorithm, text + "."


def candidates(problem: Problem, cost: Cost, relative: float) -> list[Candidate]:
    """What each method that can solve the problem exactly is predicted to need."""
    found = (_candidate(problem, name, cost, relative) for name in CANDIDATES)
    return [one for one in found if one is not None and math.isfinite(one.cost)]


def _candidate(problem: Problem, name: str, cost: Cost, relative: float) -> Candidate | None:
    try:
        algorithm, _ = complete(problem, name)
    except TwofoldError:
        return None
    proven = name != "profile"
    if proven:
        iterations = _proven_iterations(problem, name, algorithm, relative)
    else:
        iterations = _profile_rounds(problem, algorithm, relative)
    if not math.isfinite(iterations):
        return None
    cast = tree.cast(algorithm)
    look = int(min(max(math.ceil(iterations), 1), LOOKED_AT))
    course = Schedule(cast, problem, footprint(cast, problem).parts, [0]).ahead(0, look)
    rounds, floats, of_w, of_beta = (float(column[0, -1]) * iterations / look for column in course)
    sent = 2 * floats * np.dtype(float).itemsize
    total = cost.total(rounds, sent, of_w + of_beta)
    return Candidate(name, algorithm, iterations, rounds, sent, of_w + of_beta, total, proven)


def _proven_iterations(problem: Problem, name: str, algorithm: Algorithm, relative: float) -> float:
    if name == "acd":
        return math.log(1 / relative) / -math.log1p(-float(algorithm.theta))  # type: ignore[attr-defined]
    rows, batch = float(np.mean(problem.clients.counts)), getattr(algorithm, "batch", 1)
    return rates.predict(name, problem.constants(), relative, n=rows, batch=batch).iterations


def _profile_rounds(problem: Problem, algorithm: Algorithm, relative: float) -> float:
    loss = problem.objective.loss
    if getattr(getattr(loss, "link", None), "labels", 0) is None:
        return QUADRATIC
    return NEWTON if getattr(algorithm, "outer", "") == "newton" else PER_DECADE * -math.log10(relative)
