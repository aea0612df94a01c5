"""Scaffnew, Scafflix, AL2SGD+ and FedProx step by step, beside loops written by hand; where FedProx ends."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import plain
import twofold as tw
from twofold import randomness
from twofold.algorithms import LSGD, AL2SGDPlus, FedProx, Scafflix, Scaffnew
from twofold.solver import complete

SIZES, WEIGHTS = (6, 4, 8), np.array([0.5, 0.2, 0.3])
RIDGE, LAM = 0.1, 0.5


def everyone() -> tw.Clients:
    data = plain.clients("squared", SIZES)
    return tw.Clients(data.x, data.y, data.counts, weights=WEIGHTS)


def problem(objective: Any = None) -> tw.Problem:
    loss = tw.losses.squared(l2=RIDGE)
    return tw.Problem(tw.objectives.mixture(loss, lam=LAM) if objective is None else objective, everyone())


def slope(whole: tw.Problem, m: int, v: np.ndarray) -> np.ndarray:
    """∇f'_m(v) = Xᵀ(Xv − y)/n + l2·v."""
    x, y = np.asarray(whole.member(m).x), np.asarray(whole.member(m).y)
    return x.T @ (x @ v - y) / len(y) + RIDGE * v


def coins(seed: int, p: float, iterations: int) -> list[bool]:
    stream = randomness.common(randomness.root(seed))
    return [bool(randomness.coin(randomness.of(stream, k), p)) for k in range(iterations)]


def scaffnew_by_hand(whole: tw.Problem, steps: np.ndarray, p: float, seed: int, iterations: int) -> tuple:
    """ProxSkip with weights 1/η_m, in the scaled w; with equal steps it is Scaffnew."""
    s, M = whole.scale, whole.M
    w = np.zeros(3)
    own, h, beta = np.zeros((M, 3)), np.zeros((M, 3)), np.zeros((M, 3))
    for coin in coins(seed, p, iterations):
        for m in range(M):
            of_w = s * LAM * (s * own[m] - beta[m])
            of_beta = WEIGHTS[m] * (slope(whole, m, beta[m]) + LAM * (beta[m] - s * own[m]))
            own[m], beta[m] = own[m] - steps[m] * (of_w - h[m]), beta[m] - steps[m] * of_beta
        if coin:
            weights = WEIGHTS / steps
            w = weights @ own / weights.sum()
            h += p / steps[:, None] * (w - own)
            own[:] = w
    return s * w, beta


@pytest.mark.parametrize("name", ["scaffnew", "scafflix"])
def test_scaffnew_and_scafflix_against_a_loop_by_hand(name: str):
    whole = problem()
    steps = np.full(3, 0.4) if name == "scaffnew" else np.array([0.2, 0.4, 0.3])
    method = Scaffnew(eta=0.4, p_w=0.4) if name == "scaffnew" else Scafflix(steps=steps, p_w=0.4)
    expected = scaffnew_by_hand(whole, steps, 0.4, seed=2, iterations=25)
    assert np.abs(expected[0]).max() > 1e-3
    found = tw.solve(whole, method, iterations=25, seed=2)
    assert_allclose(found.w, expected[0], atol=1e-13)
    assert_allclose(found.beta, expected[1], atol=1e-13)


def al2sgd_plus_by_hand(whole: tw.Problem, h: AL2SGDPlus, seed: int, iterations: int) -> np.ndarray:
    """L-Katyusha with full gradients on f + ψ; iteration 0 only looks at the start."""
    M, p, weights = whole.M, h.p_w, np.asarray(whole.clients.weights)
    y, z, v = (np.zeros((M, 3)) for _ in range(3))
    stream = randomness.common(randomness.root(seed))

    def of_loss(b: np.ndarray) -> np.ndarray:
        return np.stack([weights[m] * slope(whole, m, b[m]) for m in range(M)])

    def of_pull(b: np.ndarray) -> np.ndarray:
        return LAM * weights[:, None] * (b - weights @ b)

    for k in range(1, iterations):
        key = randomness.of(stream, k)
        averages, refresh = (bool(randomness.coin(randomness.at(key, i), chance)) for i, chance in ((0, p), (1, h.rho)))
        x = h.theta1 * z + h.theta2 * v + (1 - h.theta1 - h.theta2) * y
        both = of_loss(v) + of_pull(v)
        g = both + ((of_pull(x) - of_pull(v)) / p if averages else (of_loss(x) - of_loss(v)) / (1 - p))
        if refresh:
            v = y
        y, z = x - h.eta * g, h.nu * z + (1 - h.nu) * x - h.gamma * g
    return y


def test_al2sgd_plus_against_a_loop_by_hand():
    whole = problem()
    method = AL2SGDPlus(eta=0.3, p_w=0.4, rho=0.3, theta1=0.3, theta2=0.5, gamma=0.4, nu=0.9, lam=LAM, batch=None)
    expected = al2sgd_plus_by_hand(whole, method, seed=4, iterations=40)
    assert np.abs(expected).max() > 1e-2
    found = tw.solve(whole, method, iterations=40, seed=4)
    assert_allclose(found.beta, expected, atol=1e-13)


@pytest.mark.parametrize("engine", ["simulate", "messages"])
def test_al2sgd_plus_carries_means_through_averaging_steps_in_a_row(engine: str):
    """With equal weights, the same steps as by hand, and a round only where a run of averaging steps begins, or v moves."""
    data, seed, iterations = plain.clients("squared", SIZES), 4, 40
    loss = tw.losses.squared(l2=RIDGE)
    whole = tw.Problem(tw.objectives.mixture(loss, lam=LAM), tw.Clients(data.x, data.y, data.counts))
    known: Any = {"eta": 0.3, "p_w": 0.8, "rho": 0.1, "theta1": 0.3, "theta2": 0.5, "gamma": 0.4, "nu": 0.9, "lam": LAM}
    start = (np.full(3, 0.5), np.arange(9.0).reshape(3, 3))
    at_once, carried = (
        tw.solve(whole, AL2SGDPlus(**known, batch=None, carry=carry), iterations=iterations, seed=seed, engine=engine)
        for carry in (None, True)
    )
    expected = al2sgd_plus_by_hand(whole, AL2SGDPlus(**known), seed, iterations)
    assert np.abs(expected).max() > 1e-2
    assert_allclose(at_once.beta, expected, atol=1e-13)
    assert_allclose(carried.beta, expected, atol=1e-13)
    assert_allclose(carried.w, at_once.w, atol=1e-13)
    stream = randomness.common(randomness.root(seed))
    averages, refresh = (
        [bool(randomness.coin(randomness.at(randomness.of(stream, k), i), p)) for k in range(iterations)]
        for i, p in ((0, 0.8), (1, 0.1))
    )
    averages[0], refresh[0] = False, True
    begins = [here and not before for here, before in zip(averages, [False, *averages[:-1]], strict=True)]
    assert carried.ledger.rounds == sum(map(max, begins, refresh)) < sum(map(max, averages, refresh)) - 10
    assert at_once.ledger.rounds == sum(map(max, averages, refresh))
    assert carried.ledger.floats_up == 6 * (sum(begins) + sum(refresh))
    elsewhere = [
        tw.solve(whole, AL2SGDPlus(**known, carry=carry), iterations=9, start=start, engine=engine).beta
        for carry in (None, True)
    ]
    assert_allclose(elsewhere[1], elsewhere[0], atol=1e-12)


def test_al2sgd_plus_carries_nothing_with_unequal_weights():
    """Its averaging steps would not be those of the means; with equal weights theory carries where that saves rounds."""
    loss, alike = tw.losses.squared(l2=RIDGE), plain.clients("squared", SIZES)
    unequal, equal = (
        tw.Problem(tw.objectives.mixture(loss, lam=100.0), clients)
        for clients in (everyone(), tw.Clients(alike.x, alike.y, alike.counts))
    )
    assert not complete(unequal, AL2SGDPlus(p_w=0.9))[0].carry
    assert complete(equal, AL2SGDPlus())[0].carry and not complete(equal, AL2SGDPlus(p_w=0.4))[0].carry
    found = tw.solve(equal, AL2SGDPlus(), tol=1e-9)
    assert found.status == "converged" and found.ledger.rounds < 0.2 * found.ledger.iterations
    assert_allclose(found.beta, equal.optimum().beta, atol=1e-4)


def heavy() -> tw.Clients:
    """Rows of which a few are far larger than the others."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((n, 3)) * (rng.pareto(1.0, (n, 1)) + 0.1) for n in (60, 40, 80)]
    return tw.Clients.from_list([(x, rng.integers(0, 2, len(x))) for x in rows])


def test_al2sgd_plus_steps_for_the_problems_own_sampling_and_its_batch():
    """Heavy-tailed rows: importance, the default, has a step many times longer than uniform rows, and a batch a longer one."""
    clients, objective = heavy(), tw.objectives.mixture(tw.losses.logistic(l2=0.01), lam=0.1)

    def eta(sampling: Any, batch: int | None) -> float:
        return complete(tw.Problem(objective, clients, sampling=sampling), AL2SGDPlus(batch=batch))[0].eta

    rows = np.split(np.sum(clients.x**2, axis=1), clients.offsets[1:-1])
    assert_allclose(eta("importance", 1), 1 / (4 * (max(map(np.mean, rows)) / 4 + 0.01 + 0.1) / 3), rtol=1e-4)
    assert eta("importance", 1) > 10 * eta("uniform", 1)
    assert eta("uniform", 1) < eta("uniform", 16) < eta("uniform", None) == eta("importance", None)


def test_lsgd_steps_for_the_rows_that_it_draws():
    """By importance, that is, but for passes over reshuffled rows, which have no importance."""
    clients, objective = heavy(), tw.objectives.weight_sharing(tw.losses.logistic(l2=0.01), split=2)

    def eta(sampling: Any, **how: Any) -> float:
        return complete(tw.Problem(objective, clients, sampling=sampling), LSGD(**{"tau": 1, **how}))[0].eta

    assert eta("importance") > 4 * eta("uniform")
    assert eta("importance", epochs=1, batch=60) == eta("uniform", epochs=1, batch=60)
    prox = [
        complete(tw.Problem(objective, clients, sampling=s), FedProx(epochs=1))[0].eta
        for s in ("importance", "uniform")
    ]
    assert prox[0] == prox[1]


def test_al2sgd_plus_sends_the_personal_model_and_says_so():
    assert "its message is the personal model" in AL2SGDPlus.__doc__


def fedprox_by_hand(whole: tw.Problem, eta: float, prox: float, tau: int, rounds: int) -> tuple:
    s, M = whole.scale, whole.M
    w, beta = np.zeros(3), np.zeros((M, 3))
    for _ in range(rounds):
        own = np.tile(w, (M, 1))
        for m in range(M):
            for _ in range(tau):
                of_w = s * LAM * (s * own[m] - beta[m]) + prox * (own[m] - w)
                of_beta = WEIGHTS[m] * (slope(whole, m, beta[m]) + LAM * (beta[m] - s * own[m]))
                own[m], beta[m] = own[m] - eta * of_w, beta[m] - eta * of_beta
        w = WEIGHTS @ own
    return s * w, beta


def test_fedprox_against_a_loop_by_hand():
    whole = problem()
    expected = fedprox_by_hand(whole, 0.2, 0.7, tau=3, rounds=5)
    found = tw.solve(whole, FedProx(eta=0.2, prox=0.7, tau=3, batch=None), rounds=5)
    assert_allclose(found.w, expected[0], atol=1e-13)
    assert_allclose(found.beta, expected[1], atol=1e-13)


def test_fedprox_ends_at_the_mixtures_centre():
    """With the local problems solved, FedProx on one model for all minimises the sum of Moreau envelopes."""
    whole = problem(tw.objectives.traditional(tw.losses.squared(l2=RIDGE)))
    centre = problem(tw.objectives.mixture(tw.losses.squared(l2=RIDGE), lam=2.0)).optimum().w
    found = tw.solve(whole, FedProx(prox=2.0, tau=40, batch=None), rounds=200, every=200)
    assert_allclose(found.w, centre, atol=1e-8)
    assert np.abs(centre - whole.optimum().w).max() > 1e-3


def test_sampled_scaffnew_stays_in_its_neighbourhood():
    """Ψ ends within 2η²σ²/κ: with one row at a time the steps are shorter, and the end is near, but not the optimum."""
    whole = problem()
    full, sampled = (
        tw.solve(whole, Scaffnew(batch=batch), iterations=2000, every=10**6, record=("gap",)) for batch in (None, 1)
    )
    assert sampled.algorithm.eta < full.algorithm.eta / 2
    start = full.history["gap"][0]
    assert full.history["gap"][-1] < 1e-12 * start < sampled.history["gap"][-1] < 0.1 * start


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Scaffnew(p_w=0.0), r"p_w, the probability of a round, must lie in \(0, 1\], got p_w=0.0"),
        (lambda: Scafflix(steps=np.ones(2)), "Scafflix needs a step > 0 for each of 3 clients"),
        (lambda: AL2SGDPlus(p_w=1.0), "p_w must lie strictly between 0 and 1"),
        (lambda: AL2SGDPlus(rho=0.0), "rho is a probability > 0"),
        (lambda: FedProx(tau=0), "FedProx needs tau ≥ 1, got tau=0"),
        (lambda: FedProx(prox=-1.0), "FedProx needs a finite prox ≥ 0 .*, got prox=-1.0"),
    ],
)
def test_bad_settings_get_a_sentence(make: Any, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(problem(), make(), rounds=1)


def test_results_with_a_step_for_each_client_can_be_saved(tmp_path: Any):
    found = tw.solve(problem(), Scafflix(), rounds=2)
    found.save(tmp_path / "run")
    again = tw.Result.load(tmp_path / "run")
    assert_allclose(again.algorithm["steps"], found.algorithm.steps)
    assert jnp.asarray(found.algorithm.steps).shape == (3,)
