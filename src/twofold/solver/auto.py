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
from twofold.engines.schedule import Schedule, footprint
from twofold.errors import TwofoldError
from twofold.losses.net import Net
from twofold.problem import Problem
from twofold.solver.steps import complete, facts_of
from twofold.theory import rates
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost

__all__ = [
    "CANDIDATES", "USUAL", "Candidate", "Chosen", "Needs", "accuracy", "candidates", "choose", "is_exact", "needs",
    "out_of_time", "shortfall",
]  # fmt: skip

CANDIDATES = ("profile", "acd", "asvrcd", "svrcd")
SLACK = 3.0
"""How many times longer than it takes theory may say that a run takes."""
UNKNOWN = 400
"""Parameters (of w and of one β) from which on a function of which nothing is known is taken for a net."""
LOOKED_AT = 4096
"""Iterations from whose coins the cost of an iteration is taken."""
TYPICAL = 2.5
"""How many times faster than its proven rate a run is, about, in the median there: bounds are divided by it before they are
compared with what is typical. It comes from the twenty problems of docs/realdata.md, as profile's rounds do (`rated.profile`)."""
USUAL, FINEST, COARSEST = 1e-8, 1e-12, 0.5
"""The part of the initial gap for which a method is chosen where no tolerance is asked for, and the range of it where one is."""
WORK = 2e10
"""Operations of all clients together, some seconds here, above which Newton's directions are left to real federations."""
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


def choose(
    problem: Problem, cost: Cost, relative: float, some: bool, metric: bool = True, work: float = WORK
) -> Chosen:
    """The cheapest method for a relative accuracy; `some`: not everyone takes part; `metric`: other variables may be chosen; `work`:
    operations that may be spent on Newton's directions where all clients are simulated on one machine."""
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
    found, floors = _candidates(problem, cost, relative, metric, work)
    if not found:
        why = "auto chose profile, since theory has no forecast for any method here."
        return Chosen(REGISTRY["profile"](), problem, why)
    best, *others = sorted(found, key=lambda one: one.cost)
    basis = "at most, by its proven rate" if best.proven else "as measured on other problems (it has no proven rate)"
    text = (
        f"auto chose {best.name}: about {math.ceil(best.rounds):,} rounds to {relative:.2g} of the initial gap, {basis}"
    )
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
    found = [one for one in _profiles(problem, cost, relative, work) if math.isfinite(one.cost)]
    floors: dict[str, float] = {}
    for name in CANDIDATES:
        if name == "profile":
            continue
        least = min((one.cost for one in found), default=math.inf)
        floor = _floor(problem, name, cost, relative)
        if name != "acd" and floor <= least < math.inf:  # the constants are needed anyway, and say more
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
    """What a method costs at least, with these constants or whatever they are; 0 where nothing is known.

    With two blocks, for K = ln(1/relative):
    - acd: ν ≤ min{p_w, p_β}², as a vector in block i alone shows. θ² = ν(1−θ) with s = √(1−θ) gives √ν = 1/s − s = 2 sinh u for
      u = ln(1/s), so that −ln(1−θ) = 2u ≤ √ν ≤ p_i. So there are at least K rounds and, too, K steps on β.
    - asvrcd: κ < ρ, and κ ≤ ½, since κ² ≤ (μ/L)(1−κ) with L = L^w + L^β ≥ 2μ (by the paper's constants κ ≤ θ₁ ≤ ½). A refresh is a
      round and passes over all rows in both blocks; of them there are at least ρK/−ln(1−min{ρ, ½}) ≥ K/(2 ln 2).
    - svrcd: κ ≤ ρ/2: at least ρK/−ln(1−ρ/2) ≥ K/ln 2 refreshes.

    With the constants of a problem whose noise is known, the rounds are also at least `_known_rounds`.
    """
    if not (problem.has_shared and problem.has_private):
        return 0.0
    fewest = {"acd": 1.0, "asvrcd": 0.5 / math.log(2), "svrcd": 1 / math.log(2)}.get(name, 0.0)
    passes = fewest * math.log(1 / relative)
    rounds = passes if c is None else max(passes, _known_rounds(name, c) * math.log(1 / relative))
    rows = 2 * float(np.mean(problem.clients.counts))
    message = 2 * tree.size(problem.abstract_start[0]) * jnp.result_type(float).itemsize
    return cost.total(rounds, rounds * message, passes * rows) / TYPICAL


def _known_rounds(name: str, c: Constants) -> float:
    """The fewest rounds per factor e that any p_w, ρ, batch and step bring asvrcd or svrcd to, with p = p_w and q = μ/L^w.

    - asvrcd: with σ_w ≥ ((1−p)/p)L^w, κ²θ_w/ρ ≤ 2ημ and θ_w = 2ησ_w give κ² ≤ qρp/(1−p). A round comes with probability
      p + ρ(1−p) ≥ 2√(pρ(1−p)), and in 1/κ iterations 2(1−p)/√q of them do. They are also at least p/√q, as κ² ≤ μ/(L^w+L^β).
      The larger of the two is at least (2/3)/√q.
    - svrcd: 𝓛 ≥ L^w/p, so κ ≤ ημ = pq/6, and a w-step is a round: 6/q.

    A factor e takes 1/−ln(1−κ) iterations, fewer than 1/κ: hence the factor κ/−ln(1−κ), at the largest κ that is possible.
    """
    if c.noise_w is None or not (c.mu > 0 and c.L_w > 0):
        return 0.0
    if name == "asvrcd":
        root = math.sqrt(c.mu / c.L_w)
        largest = min(root, 0.5)
        return 2 / 3 / root * largest / -math.log1p(-largest)
    largest = min(c.mu / (6 * c.L_w), 0.5)
    return 6 * c.L_w / c.mu * largest / -math.log1p(-largest) if name == "svrcd" else 0.0


def _profiles(problem: Problem, cost: Cost, relative: float, work: float) -> list[Candidate]:
    """Profile with L-BFGS outside or with Newton's directions, which take few rounds and much work."""
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
        name = "profile" if kind is usual else "profile with Newton's directions"
        found.append(Candidate(name, problem, asked, said.iterations, k, moved, gradients, total, False))
    return found


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
    iterations = _proven_iterations(problem, algorithm, relative, cost)
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
    if rounds is None or tol is None or not (math.isfinite(first) and first > tol):
        return None
    iterations = _proven_iterations(problem, algorithm, tol / first)
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
    if not (math.isfinite(first) and first > tol) or count < 1 or took <= 0:
        return None
    wanted = _proven_iterations(problem, algorithm, tol / first) * took / count
    if not math.isfinite(wanted) or wanted <= SLACK * seconds:
        return None
    return (
        f"{seconds:g} s will hardly do: theory needs about {wanted:,.0f} s of {algorithm.name} for tol = {tol:g} at this run's speed, "
        f"{wanted / seconds:,.3g} times as long. Allow more seconds, ask for a larger tol, bring the features to one scale, or leave "
        f"the method open: solve(problem, tol={tol:g})."
    )


def is_exact(algorithm: Algorithm) -> bool:
    """Whether the method converges to the optimum itself, so that nothing is left out of its rate."""
    variance_reduced = algorithm.name in ("acd", "svrcd", "asvrcd", "l2sgd_plus")
    return variance_reduced or (getattr(algorithm, "batch", None) is None and getattr(algorithm, "tau", 1) == 1)


def _proven_iterations(problem: Problem, algorithm: Algorithm, relative: float, cost: Cost | None = None) -> float:
    """By the method's own rate; infinite where none is proven, or where something is left out of it."""
    said = algorithm.rate(facts_of(problem, cost=cost), relative)
    if isinstance(said, str) or said.certainty not in ("certified", "theorem"):
        return math.inf
    if isinstance(said, rates.Rate):
        return said.iterations(relative)
    return said.iterations if is_exact(algorithm) else math.inf


def _quadratic(problem: Problem) -> bool:
    loss = getattr(problem.objective, "loss", None)
    return getattr(getattr(loss, "link", None), "labels", 0) is None
