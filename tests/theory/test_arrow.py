"""The smallest eigenvalue of block arrow matrices against dense ones, and ACD with any probability."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from twofold.errors import InputError
from twofold.theory.arrow import Arrow, best_probability, momentum


def random_arrow(rng, M, a, b, ridge):
    """A dense positive definite arrow, and the same as an `Arrow`."""
    ww, wb, bb = ridge * np.eye(a), [], []
    for _ in range(M):
        z = rng.normal(size=(a + b, a + b)) * 10 ** rng.uniform(-1, 1)
        h = z @ z.T / M + ridge * np.eye(a + b) * rng.uniform(0.5, 2)
        ww, wb, bb = ww + h[:a, :a], [*wb, h[:a, a:]], [*bb, h[a:, a:]]
    full = np.block([[ww, np.concatenate(wb, axis=1)], [np.concatenate(wb, axis=1).T, _diagonal(bb)]])
    own, basis = np.linalg.eigh(np.stack(bb))
    schur = ww - sum(x @ np.linalg.solve(c, x.T) for x, c in zip(wb, bb, strict=True))
    cross = np.moveaxis(np.stack(wb) @ basis, 0, 1).reshape(a, -1)
    return full, Arrow(schur, cross, own.reshape(-1))


def _diagonal(blocks):
    M, b = len(blocks), len(blocks[0])
    full = np.zeros((M * b, M * b))
    for m, block in enumerate(blocks):
        full[m * b : (m + 1) * b, m * b : (m + 1) * b] = block
    return full


@pytest.mark.parametrize("M, a, b", [(1, 1, 1), (1, 3, 2), (4, 2, 3), (7, 3, 3), (3, 5, 1)])
@pytest.mark.parametrize("ridge", [1.0, 1e-4])
def test_dense_arrows(M, a, b, ridge):
    rng = np.random.default_rng(M + 10 * a)
    for _ in range(20):
        full, arrow = random_arrow(rng, M, a, b, ridge)
        least = np.linalg.eigvalsh(full)[0]
        assert least * (1 - 2e-3) <= arrow.smallest() <= least * (1 + 1e-9)
        for p_w in (0.05, 0.5, 0.9):
            d = np.concatenate([np.full(a, p_w), np.full(M * b, 1 - p_w)])
            least = np.linalg.eigvalsh(d[:, None] * full * d)[0]
            assert least * (1 - 2e-3) <= arrow.nu(p_w) <= least * (1 + 1e-9)


def test_diagonal_arrows_are_one_small_arrow_per_coordinate():
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, M = 4, 5
        cross, own = rng.normal(size=(a, M)), rng.uniform(0.1, 3, (a, M))
        schur = 10 ** rng.uniform(-8, 1, a)
        least = math.inf
        for j in range(a):
            full = np.diag(np.concatenate([[schur[j] + np.sum(cross[j] ** 2 / own[j])], own[j]]))
            full[0, 1:] = full[1:, 0] = cross[j]
            least = min(least, np.linalg.eigvalsh(full)[0])
        found = Arrow(schur, cross, own).smallest()
        assert found == pytest.approx(least, rel=3e-3, abs=1e-14) and found <= least * (1 + 1e-6) + 1e-14


def test_what_is_not_there():
    none = np.zeros((0, 0))
    assert Arrow(np.zeros(0), none, none, 0.3).smallest() == 0.3
    assert Arrow(np.zeros(0), none, none, 0.3).nu(0.0) == 0.3
    shared = Arrow(np.diag([2.0, 5.0]), np.zeros((2, 0)), np.zeros(0))
    assert shared.smallest() == pytest.approx(2.0) and shared.nu(1.0) == pytest.approx(2.0)
    assert Arrow(np.diag([2.0, 5.0]), np.zeros((2, 0)), np.zeros(0), alone=0.5).smallest() == 0.5
    assert Arrow(np.diag([0.0, 5.0]), np.zeros((2, 0)), np.zeros(0)).smallest() == 0
    assert Arrow(np.ones(1), np.ones((1, 1)), np.zeros((1, 1))).smallest() == 0
    assert best_probability(shared).p_w == 1 and best_probability(Arrow(np.zeros(0), none, none, 0.3)).p_w == 0
    with pytest.raises(InputError, match="p_w is a probability"):
        shared.nu(1.5)
    with pytest.raises(InputError, match="Costs must be positive"):
        best_probability(shared, 0.0)


def test_best_probability_beats_a_fine_grid():
    _, arrow = random_arrow(np.random.default_rng(3), 4, 3, 3, 1e-2)
    for cost_beta in (0.01, 0.3, 1.0):
        found = best_probability(arrow, 1.0, cost_beta)
        costs = [(p + (1 - p) * cost_beta) / momentum(arrow.nu(p)) for p in np.linspace(0.01, 0.97, 60)]
        assert found.cost <= min(costs) * 1.001


def test_a_hundred_thousand_clients_take_seconds():
    rng = np.random.default_rng(0)
    M, d = 100_000, 10
    own = rng.uniform(0.1, 1, M * d) / M
    cross = rng.normal(size=(d, M * d)) / M
    start = time.perf_counter()
    found = Arrow(np.eye(d) * 1e-5, cross, own).smallest()
    assert 0 < found <= 1e-5 and time.perf_counter() - start < 30
