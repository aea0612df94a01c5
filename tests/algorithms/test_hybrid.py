"""ASCD first, then ASVRCD: it is ASCD until the switch, switches by itself, converges, and pays off on a budget."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from problems import clients, problem
from twofold import engines, randomness
from twofold.algorithms import ASCD, ASVRCD, Hybrid
from twofold.algorithms.hybrid import Plan
from twofold.oracle import Oracle
from twofold.solver import complete


def noisy(rows: int = 200, **options: Any) -> tw.Problem:
    """Labels with a good deal of chance in them, so that sampled gradients are noisy at the optimum too."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(6):
        x = rng.uniform(0.2, 0.5, (rows, 8))
        chance = 1 / (1 + np.exp(-x @ rng.normal(0.5, 0.5, 8)))
        pairs.append((x, (rng.uniform(size=rows) < chance).astype(int)))
    return tw.Problem(
        tw.objectives.mixture(tw.losses.logistic(l2=1e-3), lam=0.05), tw.Clients.from_list(pairs), **options
    )


@pytest.mark.parametrize("objective", ["mixture", "weight_sharing", "local"])
def test_it_converges(objective: str):
    whole = problem(objective, "logistic")
    gap = float(whole.value(*whole.start)) - whole.optimum().value
    result = tw.solve(whole, "hybrid", rounds=20_000, every=20, target=whole.optimum().value + 1e-6 * gap)
    assert result.status == "converged"


def test_before_the_switch_it_is_ascd_and_its_checks_are_rounds_of_its_own():
    whole = noisy()
    never = Hybrid(drop=1e30)  # nothing lies so far above the check before
    never, _ = complete(whole, never)
    same = {name: getattr(never, name) for name in ("eta", "theta", "gamma", "nu", "rho", "p_w", "batch")}
    found, expected = (tw.solve(whole, method, iterations=300, every=300) for method in (never, ASCD(**same)))
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.beta, expected.beta, rtol=1e-12, atol=1e-14)
    assert found.ledger.rounds > expected.ledger.rounds


def test_checks_are_at_powers_of_two_of_a_unit():
    method = Hybrid(p_w=0.25, rho=0.0, nu=0.9, first=4)
    stream = randomness.common(randomness.root(0))
    plans = jax.vmap(lambda k: method.plan(stream, k))(jnp.arange(300))
    assert np.flatnonzero(plans.check).tolist() == [0, 16, 32, 64, 128, 256]
    assert np.array_equal(plans.refresh, plans.check)
    assert np.flatnonzero(~plans.early)[0] in (80, 81)  # 8/(1 − ν) iterations


def test_it_switches_once_and_knows_when():
    whole = noisy()
    method, _ = complete(whole, Hybrid())
    engine = engines.REGISTRY["simulate"](method, whole, [0], [whole.start], 0)
    reduced = []
    for k in range(0, 6400, 64):
        engine.advance(k, 64, np.ones(64, np.int32))
        reduced.append(bool(engine.state().shared.progress.stalled[0]))
    assert not reduced[0]
    assert reduced[-1]
    assert sorted(reduced) == reduced


def test_on_a_budget_it_beats_both():
    """Noise that ASCD cannot overcome, rows that ASVRCD's rare refreshes are slow on: the mean of six seeds.

    With the paper's steps, for which the paper claims it. With ours (sharp constants, rows by importance) ASVRCD alone is far
    better here: 7e-13 against the hybrid's 3e-5 and ASCD's 1e-2.
    """
    whole = noisy(sampling="uniform")
    best, known = whole.optimum().value, whole.constants(rule="paper")

    def gap(method: Any) -> float:
        runs = tw.solve(whole, method, rounds=400, every=400, seeds=range(6), constants=known)
        return float(np.mean(runs.column("loss")[:, -1])) - best

    hybrid, ascd, asvrcd = (gap(method) for method in (Hybrid(), ASCD(), ASVRCD()))
    assert hybrid < 0.8 * min(ascd, asvrcd)


def test_warm_started_at_the_optimum_it_does_not_stay_with_noise():
    whole = noisy()
    optimum = whole.optimum()
    runs = [
        tw.solve(whole, method, rounds=300, every=300, start=(optimum.w, optimum.beta)) for method in (Hybrid(), ASCD())
    ]
    hybrid, ascd = (run.history["loss"][-1] - optimum.value for run in runs)
    assert hybrid < 0.3 * ascd


def test_a_check_measures_the_whole_gradient():
    """‖∇_wF‖² + Σ p_m norm2_m is ‖∇F‖² in the scaled space, whatever the clients' weights."""
    whole = tw.Problem(problem("mixture", "logistic").objective, clients("logistic", weights="rows"))
    method, _ = complete(whole, "hybrid")
    rng = np.random.default_rng(0)
    w, beta = (rng.normal(size=leaf.shape) for leaf in whole.start)
    key, plan = randomness.of(randomness.root(0), 0), Plan(*map(jnp.asarray, (False, True, True, True)))

    @jax.jit
    @jax.vmap
    def message(member: Any, beta: jax.Array) -> Any:
        oracle, scaled = Oracle(whole.objective, whole.variables, member), jnp.asarray(w) / whole.scale
        start = method.init(scaled), method.init_private(scaled, beta, oracle)
        return method.client(plan, *start, oracle, key)[1]

    (stack,) = whole.stacks
    sent, weights = message(stack, beta), whole.clients.weights
    assert len(set(weights)) > 1
    found = np.sum((weights @ np.asarray(sent.full)) ** 2) + weights @ np.asarray(sent.norm2)
    assert found == pytest.approx(float(whole.gradient_norm_squared(w, beta)), rel=1e-10)
