"""Weights of rows: a row of weight k counts as k copies of it, everywhere that theory and solvers look."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from twofold.clients import Clients

rng = np.random.default_rng(0)
SIZES = (7, 5, 6)
X = rng.normal(size=(sum(SIZES), 3))
Y = (X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X)) > 0).astype(int)
OWNER = np.repeat(["a", "b", "c"], SIZES)
COPIES = rng.integers(0, 4, len(X))
COPIES[[0, 7, 12]] = 1


def both() -> tuple[Clients, Clients]:
    weighted = Clients.from_groups(X, Y, OWNER, "rows", row_weights=0.3 * COPIES)
    index = np.repeat(np.arange(len(X)), COPIES)
    return weighted, Clients.from_groups(X[index], Y[index], OWNER[index], "rows")


OBJECTIVES = {
    "logistic mixture": lambda: tw.objectives.mixture(tw.losses.logistic(l2=0.1, intercept=True), lam=0.5),
    "squared multitask": lambda: tw.objectives.multitask(tw.losses.squared(l2=0.1), lam=0.5),
    "weight sharing": lambda: tw.objectives.weight_sharing(tw.losses.squared(l2=0.1), split=2),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_weight_is_as_many_copies(name: str):
    weighted, copied = (tw.Problem(OBJECTIVES[name](), clients) for clients in both())
    at = rng.normal(size=weighted.start[0].shape) if name != "logistic mixture" else None
    w, beta = weighted.start if at is None else (at, rng.normal(size=weighted.start[1].shape))
    assert_allclose(weighted.value(w, beta), copied.value(w, beta), rtol=1e-12)
    for one, other in zip(weighted.gradient(w, beta), copied.gradient(w, beta), strict=True):
        for a, b in zip(*(list(g.values()) if isinstance(g, dict) else [g] for g in (one, other)), strict=True):
            assert_allclose(a, b, rtol=1e-10, atol=1e-13)
    assert_allclose(weighted.optimum().value, copied.optimum().value, rtol=1e-12)
    for rule in ("sharp", "paper"):
        one, other = (problem.constants(rule=rule) for problem in (weighted, copied))
        assert_allclose([one.mu, one.L_w, one.L_beta], [other.mu, other.L_w, other.L_beta], rtol=1e-9)
    assert_allclose(weighted.clients.weights, copied.clients.weights)


@pytest.mark.parametrize("method", ["asvrcd", "profile", "acd"])
def test_solvers_find_the_weighted_optimum_and_certify_it(method: str):
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.3), lam=0.5), both()[0])
    result = tw.solve(problem, method, tol=1e-7, record=("gap", "bound"))
    assert result.status == "converged"
    assert np.all(result.history["gap"] <= result.history["bound"] + 1e-12)


def test_sampled_gradients_are_right_on_average():
    import jax

    problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.3), lam=0.5), both()[0])
    assert problem.sampling == "importance"
    w, beta = problem.start
    beta = beta + 0.5
    found = problem.gradient_beta(w, beta, key=jax.random.key(0), batch=40_000)
    assert_allclose(found, problem.gradient_beta(w, beta), atol=0.02)


def test_weights_follow_their_rows():
    clients = both()[0]
    assert_allclose(np.add.reduceat(clients.row_weights, clients.offsets[:-1]), clients.counts)
    part = clients.subset([2, 0])
    assert_allclose(part.row_weights[: SIZES[2]], clients.row_weights[-SIZES[2] :])
    train, test = Clients.from_groups(X, Y, OWNER, row_weights=1 + COPIES).split(test=0.4)
    for half in (train, test):
        rows = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in half.x]
        given = 1.0 + COPIES[rows]
        mean = np.repeat(np.add.reduceat(given, half.offsets[:-1]) / half.counts, half.counts)
        assert_allclose(half.row_weights, given / mean)
    assert Clients.from_groups(X, Y, OWNER, row_weights=np.full(len(X), 7.0)).row_weights.tolist() == [1.0] * len(X)


def test_bad_weights():
    for weights, words in (
        (-COPIES, "client 'a': the weight of row 0 is -1"),
        (COPIES * (OWNER != "b"), "client 'b' has no row of positive weight"),
        (COPIES[1:], "shape"),
        (np.full(len(X), np.nan), "finite"),
    ):
        with pytest.raises(tw.ClientError, match=words):
            Clients.from_groups(X, Y, OWNER, row_weights=weights)


def test_a_custom_loss_counts_rows_too():
    import jax.numpy as jnp

    def absolute(params, x, y):
        return jnp.mean(jnp.sqrt(1 + (x @ params - y) ** 2))

    loss = tw.losses.custom(absolute, init=np.zeros(3), l2=0.1)
    weighted, copied = (tw.Problem(tw.objectives.mixture(loss, lam=1.0), clients) for clients in both())
    assert_allclose(weighted.value(*weighted.start), copied.value(*copied.start))
    assert_allclose(weighted.constants().L_beta, copied.constants().L_beta, rtol=1e-6)
