"""Who takes part is part of the common coins; those who are absent keep β and cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw
from twofold.algorithms import LSGD
from twofold.solver.participation import Attendance

M = 5


def problem(weights: Any = None) -> tw.Problem:
    data = plain.clients("squared", (6, 4, 8, 5, 7))
    everyone = tw.Clients(data.x, data.y, data.counts, weights=weights)
    return tw.Problem(tw.objectives.multitask(tw.losses.squared(l2=0.1), lam=0.5), everyone)


def attendance(who: Any, seeds: tuple[int, ...] = (0,), weights: Any = None) -> Attendance:
    return Attendance(who, LSGD(eta=0.1), problem(weights), list(seeds))


def test_a_number_of_clients():
    present = attendance(2, seeds=(0, 1)).present(0, 4000)
    assert present.shape == (4000, 2, M)
    assert (present.sum(axis=2) == 2).all()
    assert_allclose(present.mean(axis=(0, 1)), np.full(M, 0.4), atol=0.03)
    assert (present[:, 0] != present[:, 1]).any()
    assert_array_equal(attendance(2).present(17, 5), attendance(2).present(0, 22)[17:])  # pure in the iteration


@pytest.mark.parametrize("q", [0.3, (0.1, 0.5, 1.0, 0.7, 0.3)])
def test_probabilities(q: Any):
    present = attendance(q).present(0, 6000)[:, 0]
    assert_allclose(present.mean(axis=0), np.broadcast_to(q, M), atol=0.03)


@pytest.mark.parametrize("who", [2, 0.3, (0.1, 0.5, 1.0, 0.7, 0.3)])
def test_unbiased_weights_are_those_of_everyone_on_average(who: Any):
    """E[factor_m] = 1."""
    factors = attendance(who).factors(0, 20_000)[:, 0]
    assert_allclose(factors.mean(axis=0), np.ones(M), atol=0.1)


def test_normalised_weights_make_a_mean_of_those_present():
    weights = (1.0, 2.0, 3.0, 4.0, 5.0)
    chosen = attendance(tw.Participation(0.5, weights="normalised"), weights=weights)
    factors, shares = chosen.factors(0, 200)[:, 0], np.array(weights) / 15
    total = factors @ shares
    assert_allclose(total[factors.any(axis=1)], 1)
    assert (factors[~factors.any(axis=1)] == 0).all()


def by_hand(whole: tw.Problem, masks: np.ndarray, factors: np.ndarray, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """FedAvg with one full local step, client by client: w += Σ p_m·factor_m·(w_m − w); absent ones keep β_m."""
    s, p = whole.scale, whole.clients.weights
    w, beta = np.zeros(3), np.zeros((M, 3))
    for mask, factor in zip(masks, factors, strict=True):
        move = np.zeros(3)
        new = beta.copy()
        for m in np.flatnonzero(mask):
            f, d = whole.member(m), whole.objective
            x, y = np.asarray(f.x), np.asarray(f.y)

            def slope(v: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
                return x.T @ (x @ v - y) / len(y) + 0.1 * v

            of_w = d.Lambda * slope(s * w) + d.lam * (s * w - beta[m])
            move += p[m] * factor[m] * (-eta * s * of_w)
            new[m] = beta[m] - eta * p[m] * (slope(beta[m]) + d.lam * (beta[m] - s * w))
        w, beta = w + move, new
    return s * w, beta


@pytest.mark.parametrize("weights", ["unbiased", "normalised"])
def test_against_a_loop_by_hand(weights: Any):
    whole = problem((1.0, 2.0, 3.0, 4.0, 5.0))
    who = tw.Participation(2, weights=weights)
    chosen = Attendance(who, LSGD(eta=0.1), whole, [3])
    expected = by_hand(whole, chosen.present(0, 8)[:, 0], chosen.factors(0, 8)[:, 0], 0.05)
    found = tw.solve(whole, LSGD(eta=0.05, tau=1, batch=None), rounds=8, seed=3, participation=who)
    assert_allclose(found.w, expected[0], atol=1e-13)
    assert_allclose(found.beta, expected[1], atol=1e-13)


def test_the_ledger_counts_who_was_there_and_what_they_catch_up_on():
    whole, table = problem(), [[0, 1], [1, 2], [0, 1, 2], [4]]
    found = tw.solve(whole, LSGD(eta=0.01, tau=2, batch=3), rounds=4, participation=lambda k: table[k])
    d = 3
    assert_array_equal(found.ledger.floats_up, d * np.array([2, 3, 2, 0, 1]))
    # Client 0 returns in the third round, client 2 comes in the second and client 4 in the fourth: each loads w once more.
    assert_array_equal(found.ledger.floats_down, d * np.array([2 + 1, 3, 2 + 1, 0, 1 + 1]))
    assert_array_equal(found.ledger.gradients_beta, 2 * 3 * np.array([2, 3, 2, 0, 1]))
    assert_array_equal(found.beta[3], np.zeros(3))
    assert found.ledger.rounds == 4


def test_everyone_is_everyone():
    whole, method = problem(), LSGD(eta=0.02, batch=None)
    expected = tw.solve(whole, method, rounds=5)
    for who in (M, 1.0, lambda k: np.ones(M, bool)):
        found = tw.solve(whole, method, rounds=5, participation=who)
        assert_allclose(found.w, expected.w, atol=1e-14)
        assert_allclose(found.beta, expected.beta, atol=1e-14)
        assert_array_equal(found.ledger.floats_down, np.full(M, expected.ledger.floats_down))


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        (0, "participation=0 clients, but there are 5: choose from 1 to 5"),
        (6, "participation=6 clients, but there are 5: choose from 1 to 5"),
        (0.0, r"The probability of taking part must be in \(0, 1\], got 0.0"),
        ((0.5, 1.5, 1, 1, 1), r"The probability of taking part of client 1 must be in \(0, 1\], got 1.5"),
        ((0.5, 0.5), "participation has 2 probabilities, but there are 5 clients: give one for each"),
        (True, "participation is a number of clients, a probability or one per client, got True"),
        ("half", "participation is a number of clients, a probability or one per client, got 'half'"),
        (
            (0.5, None, 0.5, 0.5, 0.5),
            r"participation is a number .* or one per client, got \(0.5, None, 0.5, 0.5, 0.5\)",
        ),
        (lambda k: [7], r"participation's function gave \[7\] for round 0: give the numbers \(0 to 4\) of the clients"),
        (tw.Participation(2, weights="other"), "Participation's weights are 'unbiased' or 'normalised', got 'other'"),
    ],
)
def test_bad_participation_gets_a_sentence(who: Any, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(problem(), LSGD(eta=0.1), rounds=2, participation=who)


@pytest.mark.parametrize("name", ["acd", "scd", "ascd", "svrcd", "asvrcd", "hybrid", "profile", "scaffnew", "scafflix"])
def test_methods_that_need_everyone_say_so(name: str):
    some = "lsgd, fedprox, saga, fedrep, ditto or scaffold"
    with pytest.raises(
        ValueError, match=f"^{name} needs every client in every round: .* Use {some} with participation="
    ):
        tw.solve(problem(), name, rounds=2, participation=2)


def test_only_methods_that_solve_the_objective_are_named():
    whole = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.1), lam=0.5), problem().clients)
    with pytest.raises(ValueError, match=r"Use lsgd, pfedme, fedprox, saga, fedrep"):
        tw.solve(whole, "acd", rounds=2, participation=2)


def test_nothing_shared_means_nothing_to_take_part_in():
    whole = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), problem().clients)
    with pytest.raises(ValueError, match="participation= is about rounds, but local shares nothing and has none"):
        tw.solve(whole, LSGD(eta=0.1), rounds=2, participation=2)
