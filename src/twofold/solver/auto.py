"""`solve(problem)` without a name: the method that is predicted to cost least, and why."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.algorithms import LSGD, REGISTRY, Algorithm
from twofold.algorithms.base import Facts
from twofold.algorithms.profile import Profile
from twofold.errors import TwofoldError
from twofold.losses.net import Net
from twofold.problem import Problem
from twofold.solver.budget import Budget
from twofold.solver.foresight import needs, proven_iterations
from twofold.solver.steps import complete, facts_of
from twofold.theory import rates
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost, Preset, cost_of

__all__ = ["RATED", "USUAL", "Candidate", "Chosen", "accuracy", "candidates", "choose", "choose_for"]

RATED = ("acd", "asvrcd", "svrcd")
"""Methods that are looked at besides profile: those that go to the optimum of any objective by a proven rate."""
UNKNOWN = 400
"""Parameters (of w and of one β) from which on a function of which nothing is known is taken for a net."""
TYPICAL = 2.5
"""How many times faster than its proven rate a run is, about, in the median there: bounds are divided by it before they are
compared with what is typical. It comes from the twenty problems of docs/realdata.md, as profile's rounds do (`rated_clients`)."""
USUAL, FINEST, COARSEST = 1e-8, 1e-12, 0.5
"""The part of the initial gap for which a method is chosen where no tolerance is asked for, and the range of it where one is."""
WORK = 1e9
"""Operations of all clients together, about a tenth of a second here, above which Newton's directions are left to real federations."""
EIGEN = 20
"""Operations of a decomposition into eigenvectors, in units of the cube of its size."""
UNASKED = Constants(0.0, 0.0, 0.0, 0.0, 0.0)
"""In place of constants that nobody looks at."""
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


def choose_for(
    problem: Problem, cost: Cost | Preset, budget: Budget, some: bool, start: tuple[Any, Any] | None = None
) -> Chosen:
    """What `solve` takes for a budget: the cheapest method for its tolerance, or, without one, for 1e-8 of the initial gap."""
    relative = budget.relative or USUAL
    if budget.tol is not None:
        relative = accuracy(problem, budget.tol, start)
    return choose(problem, cost_of(cost), relative, some)


def choose(
    problem: Problem, cost: Cost, relative: float, some: bool, metric: bool = True, work: float = WORK
) -> Chosen:
    """The cheapest method for a relative accuracy; `some`: not everyone takes part; `metric`: other variables may be chosen; `work`:
    operations that may be spent on Newton's directions where all clients are simulated on one machine."""
    if not problem.objective.convex:
        why = "auto chose lsgd, since the problem is not convex: nothing is proven for any method there, and no rate is known."
        return Chosen(REGISTRY["lsgd"](), problem, why)
    if some:
        name = "saga" if "saga" in REGISTRY else "lsgd"
        why = f"auto chose {name}, which is right when only some clients take part in a round."
        return Chosen(REGISTRY[name](), problem, why)
    size = sum(tree.size(block) for block in problem.abstract_start)
    if size > UNKNOWN and _is_unknown(problem):
        # On all rows: with sampled ones it would stop at their noise, and nothing is known that could make the steps smaller.
        why = (
            f"auto chose lsgd on all rows, since nothing is known of the curvature of a function of your own, and Newton's "
            f"steps over {size:,} "
            "parameters take long. If it is convex, try solve(problem, 'profile'); if you know L, say it: losses.custom(..., L=...)."
        )
        return Chosen(LSGD(batch=None), problem, why)
    found, floors = _candidates(problem, cost, relative, metric, work)
    if not found:
        why = "auto chose profile, since theory has no forecast for any method here."
        return Chosen(REGISTRY["profile"](), problem, why)
    best, *others = sorted(found, key=lambda one: one.cost)
    basis = "at most, by its proven rate" if best.proven else "as measured on other problems (it has no proven rate)"
    if problem.has_shared:
        count = f"about {math.ceil(best.rounds):,} rounds to {relative:.2g} of the initial gap, {basis}"
    else:
        count = f"nothing is shared, so that nothing is sent; about {math.ceil(best.iterations):,} iterations, {basis}"
    text = f"auto chose {best.name}: {count}"
    if isinstance(getattr(problem.objective, "loss", None), Net):
        text = f"auto chose {best.name}; how many rounds a net takes, which is not convex, nobody can foretell"
    elif others:
        text += f"; the next best, {others[0].name}, would cost {others[0].cost / best.cost:.3g} times as much"
    elif floors:
        name, least = min(floors.items(), key=lambda item: item[1])
        text += f"; the next best, {name}, would cost at least {least / best.cost:.3g} times as much"
    return Chosen(best.algorithm, best.problem, text + ".")


def _is_unknown(problem: Problem) -> bool:
    """Whether curvature could only be guessed at a point: the loss or the objective is the user's own, without constants."""
    if problem.curvature is not None:
        return False
    objective = problem.objective
    loss = getattr(objective, "loss", None)
    return getattr(objective, "given", None) is None if loss is None else getattr(loss, "L", 0.0) is None


def candidates(
    problem: Problem, cost: Cost, relative: float, metric: bool = True, work: float = WORK
) -> list[Candidate]:
    """What each method that may be the cheapest is predicted to need; ACD in a matrix metric where that may pay, too.

    Those are left out whose floor, below which no theorem can bring them, is above the cost of another.
    """
    return _candidates(problem, cost, relative, metric, work)[0]


def _candidates(
    problem: Problem, cost: Cost, relative: float, metric: bool, work: float
) -> tuple[list[Candidate], dict[str, float]]:
    """The same, and the floors of those that were left out. Profile comes first: its price asks for no constants."""
    found = [one for one in _profiles(problem, cost, relative, metric, work) if math.isfinite(one.cost)]
    floors: dict[str, float] = {}
    for name in RATED:
        least = min((one.cost for one in found), default=math.inf)
        floor = _floor(problem, name, cost, relative)
        if floor <= least < math.inf:  # the constants are needed anyway, and say more
            floor = _floor(problem, name, cost, relative, problem.constants())
        if floor > least:
            floors[name] = floor
        elif (one := _candidate(problem, name, cost, relative)) is not None:
            found.append(one)
    best = min(found, key=lambda one: one.cost, default=None)
    model = problem.curvature if metric and best is not None and problem.precondition is None else None
    if best is None or model is None or not model.kept:
        return found, floors
    spent = cost.gradient * best.gradients / (TYPICAL if best.proven else 1)
    if spent > WORTH * best.cost:
        other = _candidate(problem.preconditioned("matrix"), "acd", cost, relative)
        found += [] if other is None else [other._replace(name="acd in a matrix metric")]
    return found, floors


def _floor(problem: Problem, name: str, cost: Cost, relative: float, c: Constants | None = None) -> float:
    """What a method costs at least, with these constants or whatever they are; 0 where nothing is known."""
    least = REGISTRY[name]().floor(c) if problem.has_shared and problem.has_private else None
    if least is None:
        return 0.0
    passes, rounds = (each * math.log(1 / relative) for each in least)
    rows = 2 * float(np.mean(problem.clients.counts))
    message = 2 * tree.size(problem.abstract_start[0]) * jnp.result_type(float).itemsize
    return cost.total(rounds, rounds * message, passes * rows) / TYPICAL


def _profiles(problem: Problem, cost: Cost, relative: float, metric: bool, work: float) -> list[Candidate]:
    """Profile with L-BFGS outside, in its own metric where that may be had, or with Newton's directions: few rounds and much work."""
    d, b = (tree.size(block) for block in problem.abstract_start)
    facts = Facts(
        UNASKED, float(np.mean(problem.clients.counts)), problem.M, 0.0, sizes=(d, b), quadratic=_quadratic(problem)
    )
    usual = Profile().sized(facts)
    kinds = [usual] if usual.outer == "newton" or not d else [usual, Profile(outer="newton").sized(facts)]
    found: list[Candidate] = []
    for kind in kinds:
        said = kind.rate(facts, relative)
        assert not isinstance(said, str | rates.Rate)
        k = said.rounds if problem.has_shared else 0.0
        floats = 1 + d + (d * (d + 1) // 2 if kind.outer == "newton" else 0)
        passes = said.grad_w * bool(d) + said.grad_beta * bool(b)
        algebra = said.rounds * _algebra(kind, d, b)
        flops = 4 * max(d, b) * problem.M * (passes * facts.rows + algebra)
        if kind is not usual and flops > work:
            continue
        moved, gradients = 2 * k * floats * jnp.result_type(float).itemsize, passes * facts.rows
        total = cost.total(k, moved, gradients + algebra)
        asked = Profile() if kind is usual else Profile(outer="newton")
        name, mine = "profile" if kind is usual else "profile with Newton's directions", problem
        if metric and kind.outer == "lbfgs" and _may_eliminate(problem, work):
            name, mine = "profile in its own metric", problem.preconditioned("profile")
            total += cost.total(1, _opening_bytes(problem), 0)
        found.append(Candidate(name, mine, asked, said.iterations, k, moved, gradients, total, False))
    return found


def _opening_bytes(problem: Problem) -> float:
    """What a client sends once, so that the server knows the metric of profile."""
    model = problem.curvature
    return 0.0 if model is None else float(model.a**2 * jnp.result_type(float).itemsize)


def _may_eliminate(problem: Problem, work: float) -> bool:
    """Whether everyone's second moments are known, and eliminating β from them takes no more than this work."""
    model = problem.curvature if problem.precondition is None else None
    if model is None or model.shared is None or not model.kept:
        return False
    return EIGEN * problem.M * max(model.a, model.b) ** 3 <= work


def _algebra(kind: Profile, d: int, b: int) -> float:
    """What a client's and the server's factorisations take in a round, in single-row gradients of 4·max(d, b) operations."""
    inside = (kind.steps or 2) * b**3 / 3 if kind.inner == "matrix" else 0.0
    outside = d**3 / 3 + b**3 / 3 + 2 * b**2 * d + 2 * d**2 * b if kind.outer == "newton" else 0.0
    return (inside + outside) / (4 * max(d, b, 1))


def _candidate(problem: Problem, name: str, cost: Cost, relative: float) -> Candidate | None:
    try:
        algorithm, _ = complete(problem, name, cost=cost)
    except TwofoldError:
        return None
    iterations = proven_iterations(algorithm, facts_of(problem, cost=cost), relative)
    if not math.isfinite(iterations):
        return None
    found = needs(problem, algorithm, iterations)
    gradients = found.gradients_w + found.gradients_beta
    total = cost.total(found.rounds, found.bytes, gradients) / TYPICAL
    if problem.metric is not None:
        total += cost.total(1, problem.metric.opening_floats * jnp.result_type(float).itemsize, 0)
    if not math.isfinite(total):
        return None
    return Candidate(name, problem, algorithm, iterations, found.rounds, found.bytes, gradients, total, True)


def accuracy(problem: Problem, tol: float, start: tuple[Any, Any] | None = None) -> float:
    """The part of the initial gap that a certified gap of `tol` leaves, at least: F(x⁰) − F* is at most F(x⁰), where F ≥ 0.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
    >>> accuracy(problem, 0.00375)
    0.01
    """
    first = float(problem.value(*(problem.start if start is None else start)))
    part = tol / first if math.isfinite(first) and first > 0 else USUAL
    return min(max(part, FINEST), COARSEST)


def _quadratic(problem: Problem) -> bool:
    loss = getattr(problem.objective, "loss", None)
    return getattr(getattr(loss, "link", None), "labels", 0) is None
