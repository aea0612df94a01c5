"""Participation with memory: the optimum, linearly, with clients absent; where methods without memory stop short."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import plain
import twofold as tw
from twofold.algorithms import LSGD, SAGA
from twofold.solver.participation import Attendance, Participation, probabilities
from twofold.solver.steps import facts_of
from twofold.theory import stepsizes_newer

SIZES = (6, 9, 8, 7, 12, 10, 6, 9, 11, 8)
RIDGE = 0.1


def problem(kind: str = "multitask", weights: Any = None) -> tw.Problem:
    data, loss = plain.clients("squared", SIZES), tw.losses.squared(l2=RIDGE)
    objective = {
        "multitask": lambda: tw.objectives.multitask(loss, lam=0.5),
        "traditional": lambda: tw.objectives.traditional(loss),
    }[kind]()
    return tw.Problem(objective, tw.Clients(data.x, data.y, data.counts, weights=weights))


@pytest.mark.parametrize("who", [3, 0.3, Participation(3, by="importance")])
def test_it_reaches_the_optimum_where_lsgd_stalls(who: Any):
    whole = problem()
    found = tw.solve(whole, "saga", rounds=1500, every=1500, participation=who, record=("gap",))
    start, end = found.history["gap"]
    assert abs(end) <= 1e-10 * start
    without = tw.solve(
        whole, LSGD(eta=found.algorithm.eta, tau=1, batch=None), rounds=1500, every=1500, participation=who,
        record=("gap",),
    )  # fmt: skip
    assert without.history["gap"][-1] > 1e-4 * start


@pytest.mark.parametrize("kind", ["traditional", "multitask"])
@pytest.mark.parametrize("who", [3, Participation(3, by="importance")])
def test_it_is_as_fast_as_theory_says(kind: str, who: Any):
    """Ψ = ‖w − w*‖² + 4η²Σ s_m/q falls by 1 − κ a round; its start has the memories of the optimum in it, against zeros."""
    whole = problem(kind)
    facts = facts_of(whole, participation=who)
    h = stepsizes_newer.saga(facts.constants, facts.each(), facts.participation)
    q, p, s = facts.participation, whole.clients.weights, whole.scale
    best = whole.optimum()
    at_best = np.stack(
        [s * of_w(whole, m, best.w, best.beta[m] if whole.has_private else None) for m in range(whole.M)]
    )
    spread = np.sum(p**2 * (1 - q) / q * np.sum(at_best**2, axis=1))
    start = np.sum(best.w**2) / s**2 + 4 * h["eta"] ** 2 * spread / np.min(q)
    rounds = math.ceil(math.log(start / 1e-12) / -math.log1p(-h["kappa"]))
    found = tw.solve(whole, "saga", rounds=rounds, every=rounds, participation=who, seeds=4, record=())
    assert np.mean([np.sum((run.w - best.w) ** 2) / s**2 for run in found]) <= 1e-12


def of_w(whole: tw.Problem, m: int, w: np.ndarray, beta: np.ndarray | None) -> np.ndarray:
    """∇_w f_m at a real point."""
    x, y = np.asarray(whole.member(m).x), np.asarray(whole.member(m).y)
    fit = x.T @ (x @ w - y) / len(y) + RIDGE * w
    return fit if beta is None else whole.objective.Lambda * fit + whole.objective.lam * (w - beta)


@pytest.mark.parametrize("who", [4, (0.9, 0.3, 0.5, 1.0, 0.2, 0.4, 0.6, 0.8, 0.7, 0.3)])
def test_against_a_loop_by_hand(who: Any):
    """One model for all, unequal weights: the step, and the memory that moves only min q/q_m of the way."""
    whole = problem("traditional", np.arange(1.0, 11.0))
    p, M, rounds, eta = whole.clients.weights, whole.M, 12, 0.1
    present = Attendance(who, SAGA(), whole, [5]).present(0, rounds)[:, 0]
    q = probabilities(who, whole)
    w, h = np.zeros(3), np.zeros((M, 3))
    for mask in present:
        change = np.stack([of_w(whole, m, w, None) - h[m] for m in range(M)]) * mask[:, None]
        w = w - eta * (p @ h + (p / q) @ change)
        h = h + (q.min() / q)[:, None] * change
    found = tw.solve(whole, SAGA(eta=eta), rounds=rounds, seed=5, participation=who)
    assert np.abs(w).max() > 1e-2
    assert_allclose(found.w, w, atol=1e-13)


def test_the_local_steps_leave_what_they_say():
    """One participation of everyone leaves a tenth of each client's gap to its best β_m for the w that it has seen."""
    whole = problem()
    found = tw.solve(whole, SAGA(eta=1e-9), rounds=1)
    beta = np.stack([_minimiser(whole, m, np.zeros(3)) for m in range(whole.M)])
    start, best, end = (np.asarray(whole.values(np.zeros(3), b)) for b in (np.zeros_like(beta), beta, found.beta))
    assert ((end - best) / (start - best)).max() <= stepsizes_newer.INNER_ERROR
    assert found.ledger.gradients_beta.tolist() == [found.algorithm.inner * n for n in SIZES]
    assert found.ledger.gradients_w.tolist() == list(SIZES)


def _minimiser(whole: tw.Problem, m: int, w: np.ndarray) -> np.ndarray:
    x, y = np.asarray(whole.member(m).x), np.asarray(whole.member(m).y)
    lam = whole.objective.lam
    return np.linalg.solve(x.T @ x / len(y) + (RIDGE + lam) * np.eye(3), x.T @ y / len(y) + lam * w)


def test_probabilities_are_those_of_the_run():
    """Whatever q somebody writes down: it is a fact about the run."""
    found = tw.solve(problem(), SAGA(q=0.9), rounds=1, participation=5)
    assert found.algorithm.q == 0.5
    assert tw.solve(problem(), SAGA(), rounds=1).algorithm.q == 1.0


@pytest.mark.parametrize("who", [lambda k: [0], Participation(3, weights="normalised")])
def test_it_needs_known_probabilities(who: Any):
    with pytest.raises(
        ValueError, match="saga needs to know how probably each client takes part, and unbiased weights"
    ):
        tw.solve(problem(), "saga", rounds=2, participation=who)


def test_importance_equals_out_the_noise_of_clients():
    """p_m L_m (1−q_m)/q_m is the same for all who are not held up by the floor, and q sums to what was asked for."""
    L, p = np.array([1.0, 2.0, 5.0, 40.0]), np.full(4, 0.25)
    q = stepsizes_newer.importance(12.0, L, p, expected=2.0)
    assert_allclose(q.sum(), 2.0, atol=1e-9)
    noise = p * L * (1 - q) / q
    assert_allclose(noise, noise[0], rtol=1e-6)
    floored = stepsizes_newer.importance(12.0, L, p, expected=2.0, mu=3.0)
    C = np.max(p * L * (1 - floored) / floored)
    assert floored.min() > q.min()
    assert_allclose(floored.min() / 2, 3.0 / (12.0 + 6 * C), rtol=1e-6)
    assert_allclose(floored.sum(), 2.0, atol=1e-9)


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        (Participation((0.5,) * 9 + (0.6,), by="importance"), "chooses the probabilities itself"),
        (Participation(lambda k: [0], by="importance"), "needs a number of clients or a probability, got a function"),
        (Participation(3, by="name"), "Participation goes by 'uniform' or 'importance', got by='name'"),
    ],
)
def test_bad_importance_gets_a_sentence(who: Any, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(problem(), "saga", rounds=1, participation=who)
