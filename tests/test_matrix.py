"""Every objective by every method that applies, over three losses: what theory promises, and by when it promises it."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from methods import EXACT, NOISY, Exact, Noisy
from problems import LOSSES, PROBLEMS, Facts, facts, maml, problem
from scipy import optimize

import twofold as tw
from twofold.algorithms import ACD, ASVRCD, LSGD, SVRCD, PFedMe

SEEDS = range(4)


def stages(whole: tw.Problem, result: Any, known: tuple[Facts, ...]) -> list[tuple[Facts, tuple]]:
    """The facts and the end point of each stage; a second stage is measured around the w that the first one found."""
    if len(known) == 1:
        return [(known[0], (result.w, result.beta))]
    second = Facts(tw.Problem(whole.objective.second(result.w), whole.clients))
    return [(known[0], (result.w, ())), (second, ((), result.beta))]


@pytest.mark.parametrize("method", EXACT, ids=lambda method: method.name)
@pytest.mark.parametrize(("objective", "loss"), PROBLEMS, ids=map("-".join, PROBLEMS))
def test_exact_methods_reach_the_optimum_when_theory_says(objective: str, loss: str, method: Exact):
    if method.needs not in (None, objective):
        with pytest.raises(ValueError, match=f"{method.algorithm.name} solves the {method.needs} objective only"):
            tw.solve(problem(objective, loss), method.algorithm, rounds=1)
        return
    whole, known = problem(objective, loss), facts(objective, loss)
    if len(known) == 1:
        (f,) = known
        k = method.iterations(f, method.gap * f.gap)
        stop = {"target": f.best + method.gap * f.gap}
    else:  # one loss cannot be the target of both stages; ‖∇F‖²/(2μ) is at most L/μ times the gap
        k = max(method.iterations(f, method.gap * f.gap * f.c.mu / f.smoothness) for f in known)
        stop = {"tol": method.gap * min(f.gap for f in known)}
    result = tw.solve(whole, method.algorithm, iterations=math.ceil(k), every=10, **stop)
    assert result.status == "converged"
    for f, end in stages(whole, result, known):
        assert f.gap_at(*end) <= method.gap * f.gap


@pytest.mark.parametrize("method", NOISY, ids=lambda method: method.name)
@pytest.mark.parametrize(("objective", "loss"), PROBLEMS, ids=map("-".join, PROBLEMS))
def test_noisy_methods_reach_the_neighbourhood_that_theory_allows(objective: str, loss: str, method: Noisy):
    whole, known = problem(objective, loss), facts(objective, loss)
    bounds = [method.bound(f, transient=0.05) for f in known]
    k = math.ceil(max(k for k, _ in bounds))
    seeds = SEEDS if len(known) == 1 else SEEDS[:1]
    results = tw.solve(whole, method.algorithm, iterations=k, seeds=seeds, every=k)
    ends = [[f.gap_at(*end) if method.measure == "gap" else f.distance2_at(*end) for f, end in stages(whole, r, known)] for r in results]  # fmt: skip
    for f, (_, bound), reached in zip(known, bounds, np.mean(ends, axis=0), strict=True):
        assert bound < 0.4 * (f.gap if method.measure == "gap" else f.distance2)  # it says something
        assert reached <= bound
