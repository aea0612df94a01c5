"""Every objective over every loss, by a method each: what theory promises, and by when it promises it.

A method sees an objective through its gradients, and an objective sees a loss through its values. So every objective meets
every loss and three methods, and every method every loss and three objectives; each triple is a program to compile.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import twofold as tw
from methods import EXACT, NOISY, Exact, Noisy
from problems import LOSSES, OBJECTIVES, PROBLEMS, Facts, facts, maml, problem
from twofold.algorithms import ACD, ASVRCD, LSGD, PFedMe
from twofold.theory.constants import Constants

SEEDS = range(4)
TRANSIENT = 0.05
"""The share of where a noisy method starts from that may be left of it at the end."""
GENERAL = tuple(m for m in (*EXACT, *NOISY) if not (getattr(m, "needs", None) or getattr(m, "on", ())))
"""Methods that solve anything; there are as many as there are objectives."""


def cross(methods: tuple) -> list:
    """Every objective with every loss, each time with another method that solves anything; and the special ones where they may.

    With the first loss objective i meets method i, with the next one method i + 5, and then i + 10.
    """
    chosen = []
    for shift, loss in enumerate(LOSSES):
        for i, objective in enumerate(OBJECTIVES):
            chosen.append((objective, loss, GENERAL[(i + 5 * shift) % len(GENERAL)]))
    for i, method in enumerate(m for m in EXACT if m.needs or m.on):
        chosen += [(objective, list(LOSSES)[i % len(LOSSES)], method) for objective in method.on or (method.needs,)]
    return [pytest.param(o, loss, m, id=f"{o}-{loss}-{m.name}") for o, loss, m in chosen if m in methods]


def test_everything_meets_everything_of_another_kind():
    met = [case.values for case in (*cross(EXACT), *cross(NOISY))]
    assert {(o, loss) for o, loss, _ in met} == set(PROBLEMS)
    assert {(loss, m.name) for _, loss, m in met} >= set(itertools.product(LOSSES, (m.name for m in GENERAL)))
    assert all(len({o for o, _, other in met if other is m}) == len(LOSSES) for m in GENERAL)
    assert {m.name for _, _, m in met} == {m.name for m in (*EXACT, *NOISY)}


def solved(whole: tw.Problem, known: tuple[Facts, ...], result: Any) -> list[tuple[Facts, float, float]]:
    """Each stage that a run went through: its facts, F − F* and ‖x − x*‖² at its end.

    A second stage is around the w that this run's first one found, so it is another problem in every run, and theory speaks of
    that one: its facts are its own, too. Its gap is bounded from above, by ‖∇F‖²/(2μ).
    """
    first = known[0]
    if len(known) == 1:
        return [(first, first.gap_at(result.w, result.beta), first.distance2_at(result.w, result.beta))]
    second = Facts(tw.Problem(whole.objective.second(result.w), whole.clients))
    gap = float(second.problem.gradient_norm_squared((), result.beta)) / (2 * second.c.mu)
    return [
        (first, first.gap_at(result.w, ()), first.distance2_at(result.w, ())),
        (second, gap, second.distance2_at((), result.beta)),
    ]


@pytest.mark.parametrize(("objective", "loss", "method"), cross(EXACT))
def test_exact_methods_reach_the_optimum_when_theory_says(objective: str, loss: str, method: Exact):
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
    for f, (_, gap, _) in zip(known, solved(whole, known, result), strict=True):
        assert gap <= method.gap * f.gap


@pytest.mark.parametrize(("objective", "loss", "method"), cross(NOISY))
def test_noisy_methods_reach_the_neighbourhood_that_theory_allows(objective: str, loss: str, method: Noisy):
    whole, known = problem(objective, loss), facts(objective, loss)
    k = math.ceil(max(method.bound(f, TRANSIENT)[0] for f in known))
    results = tw.solve(whole, method.algorithm, iterations=k, seeds=SEEDS, every=k, record=())
    for stage in zip(*(solved(whole, known, result) for result in results), strict=True):
        measured = []
        for f, gap, distance2 in stage:
            needed, bound = method.bound(f, TRANSIENT)
            reached, at_start = (gap, f.gap) if method.measure == "gap" else (distance2, f.distance2)
            assert needed <= k
            assert bound < 0.5 * at_start  # or it would say nothing
            measured.append((reached, bound))
        reached, bound = np.mean(measured, axis=0)
        assert reached <= bound


# --- pFedMe is as accurate as its inner problem -----------------------------------------------------------------------


def test_pfedme_comes_closer_with_more_inner_steps():
    (f,) = facts("mixture", "softmax")

    def gap(inner_steps: int) -> float:
        method = PFedMe(local_rounds=1, inner_steps=inner_steps, batch=None)
        result = tw.solve(f.problem, method, rounds=12, every=12)
        return f.gap_at(result.w, result.beta) / f.gap

    gaps = [gap(steps) for steps in (1, 2, 3)]
    assert all(later < 0.9 * earlier for earlier, later in itertools.pairwise(gaps)), gaps


# --- MAML is not convex: stationary points, and the minimiser that another method finds from the same start -----------


@cache
def found_by_bfgs(loss: str) -> tuple[np.ndarray, float, Constants]:
    """The minimiser that SciPy's BFGS finds, its value, and the curvature there."""
    whole = maml(loss)
    shape = whole.start[0].shape
    found = scipy.optimize.minimize(
        lambda w: (float(whole.value(w.reshape(shape), ())), np.ravel(whole.gradient_w(w.reshape(shape), ()))),
        np.zeros(math.prod(shape)),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-9},
    )
    return found.x.reshape(shape), float(found.fun), whole.constants(at=(found.x.reshape(shape), ()))


@pytest.mark.parametrize(
    ("loss", "method"),
    [
        pytest.param(loss, method, id=f"{loss}-{name}")
        for loss, name, method in (
            ("logistic", "acd", ACD()),
            ("logistic", "asvrcd", ASVRCD()),
        )
    ],
)
def test_maml_reaches_the_stationary_point_that_bfgs_finds(loss: str, method: Any):
    w, value, known = found_by_bfgs(loss)
    result = tw.solve(maml(loss), method, rounds=3000, every=50, target=value + 1e-12, constants=known)
    assert result.status == "converged"
    np.testing.assert_allclose(result.w, w, atol=1e-5)


@pytest.mark.parametrize("loss", ["logistic"])
def test_lsgd_on_maml_keeps_the_promise_of_the_nonconvex_theorem(loss: str):
    """Full gradients, τ = 1: the mean of ‖∇F‖² over K steps is at most 2(F⁰ − F^K)/(ηK) (Theorem GeneralNonConvex)."""
    rounds = 100
    eta = 1 / (2 * found_by_bfgs(loss)[2].L_w)  # elsewhere the curvature may be twice that at the minimiser
    result = tw.solve(maml(loss), LSGD(eta=eta, tau=1, batch=None), rounds=rounds, record=("loss", "gradient_norm"))
    squares = np.asarray(result.history["gradient_norm"][:rounds]) ** 2
    assert np.mean(squares) <= 2 * (result.history["loss"][0] - result.history["loss"][-1]) / (eta * rounds)
    assert squares[-1] < 1e-3 * squares[0]
