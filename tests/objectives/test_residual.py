"""The residual objective: two predictors on the same, overlapping or different features."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw

L2 = 0.1


@pytest.mark.parametrize(
    "shared, private, of_w, of_beta",
    [
        (None, None, [0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 2], [1, 3], [0, 2], [1, 3]),
        ([3, 0, 1], [1, 3], [3, 0, 1], [1, 3]),  # overlapping, and not in order
        (slice(0, 3), slice(2, None), [0, 1, 2], [2, 3]),
        (np.array([1]), None, [1], [0, 1, 2, 3]),
    ],
    ids=["all", "different", "overlapping", "slices", "one and all"],
)
@pytest.mark.parametrize("kind", ["softmax"])
def test_choices_of_columns(kind, shared, private, of_w, of_beta):
    clients = plain.clients(kind, width=4)
    problem = tw.Problem(tw.objectives.residual(plain.loss(kind, L2), shared, private), clients)
    w, beta = plain.point(problem)
    assert (w.shape[0], beta.shape[1]) == (len(of_w), len(of_beta))
    for m, c in enumerate(clients):
        s = c.x[:, of_w] @ w + c.x[:, of_beta] @ beta[m]
        ridge = L2 / 2 * (np.sum(w**2) + np.sum(beta[m] ** 2))
        assert_allclose(problem.values(w, beta)[m], np.mean(plain.link(kind, s, c.y)) + ridge, rtol=1e-13)
    plain.assert_gradient(problem)


def test_on_disjoint_columns_it_is_weight_sharing():
    clients, loss = plain.clients(width=4), tw.losses.logistic(L2)
    one = tw.Problem(tw.objectives.residual(loss, [0, 1], [2, 3]), clients)
    other = tw.Problem(tw.objectives.weight_sharing(loss, 2), clients)
    at = plain.point(one)
    assert_allclose(one.value(*at), other.value(*at), rtol=1e-14)
    assert_allclose(one.optimum().beta, other.optimum().beta, atol=1e-12)


def test_an_intercept_belongs_to_both():
    clients = plain.clients()
    problem = tw.Problem(tw.objectives.residual(tw.losses.logistic(L2, intercept=True)), clients)
    w, beta = plain.point(problem)
    c = clients[0]
    s = c.x @ w["weight"] + w["bias"] + c.x @ beta["weight"][0] + beta["bias"][0]
    squares = sum(np.sum(v**2) for v in (*w.values(), beta["weight"][0], beta["bias"][0]))
    assert_allclose(problem.values(w, beta)[0], np.mean(plain.link("logistic", s, c.y)) + L2 / 2 * squares, rtol=1e-14)


def dict_clients(kind="logistic"):
    rng = np.random.default_rng(0)
    pairs = []
    for n in (5, 8):
        x, y = plain.rows(kind, n, rng)
        pairs.append(({"public": x, "own": rng.normal(size=(n, 2))}, y))
    return tw.Clients.from_list(pairs)


def test_dict_features():
    clients = dict_clients()
    problem = tw.Problem(tw.objectives.residual(tw.losses.logistic(L2), "public", "own"), clients)
    w, beta = plain.point(problem)
    assert (w.shape, beta.shape) == ((3,), (2, 2))
    for m, c in enumerate(clients):
        s = c.x["public"] @ w + c.x["own"] @ beta[m]
        ridge = L2 / 2 * (w @ w + beta[m] @ beta[m])
        assert_allclose(problem.values(w, beta)[m], np.mean(plain.link("logistic", s, c.y)) + ridge, rtol=1e-14)
    plain.assert_gradient(problem)
    each = [c.x["public"].T @ c.x["public"] / len(c.y) / 4 + L2 * np.eye(3) for c in clients]
    assert problem.constants(rule="paper").L_w == pytest.approx(max(np.linalg.norm(h, 2) for h in each) / 2)
    assert problem.constants().L_w == pytest.approx(np.linalg.norm(np.mean(each, axis=0), 2) / 2)  # of F itself
    assert problem.optimum().gradient_norm < 1e-14


def own_predictors():
    """A shared network on some features, and a private table look-up of others."""

    def of_w(w, x):
        return jnp.tanh(x @ w["in"]) @ w["out"]

    def of_beta(beta, x):
        return beta["offset"][None] + x @ beta["slope"]

    begin = ({"in": np.ones((3, 2)), "out": np.ones(2)}, {"offset": np.zeros(()), "slope": np.zeros(2)})
    return (of_w, of_beta), begin


def test_custom_predictors_on_dict_features():
    clients = dict_clients("squared")
    predictors, begin = own_predictors()
    objective = tw.objectives.residual(tw.losses.squared(L2), "public", "own", predictors=predictors, start=begin)
    problem = tw.Problem(objective, clients)
    assert_array_equal(problem.start[0]["in"], np.ones((3, 2)))
    w, beta = plain.point(problem)
    for m, c in enumerate(clients):
        b = plain.client(beta, m)
        s = np.tanh(c.x["public"] @ w["in"]) @ w["out"] + b["offset"] + c.x["own"] @ b["slope"]
        ridge = L2 / 2 * sum(np.sum(v**2) for v in (*w.values(), *b.values()))
        assert_allclose(problem.values(w, beta)[m], np.mean((s - c.y) ** 2) / 2 + ridge, rtol=1e-13)
        member = problem.member(m)
        assert_allclose(objective.predict(w, b, None, (), member.x), s, rtol=1e-13)
        assert_allclose(objective.grade(w, b, None, (), member.x, member.y), -((s - c.y) ** 2), rtol=1e-10)
    plain.assert_gradient(problem)
    constants = problem.constants()
    assert constants.mu == 0 and set(constants.how.values()) == {"local"}


def test_predictions_are_those_of_the_summed_score():
    clients = plain.clients(width=4)
    problem = tw.Problem(tw.objectives.residual(tw.losses.logistic(L2), [0, 1], [1, 2, 3]), clients)
    w, beta = plain.point(problem)
    c = clients[2]
    s = c.x[:, [0, 1]] @ w + c.x[:, [1, 2, 3]] @ beta[2]
    assert_array_equal(problem.objective.predict(w, beta[2], None, (), c.x), s > 0)
    assert_array_equal(problem.objective.grade(w, beta[2], None, (), c.x, c.y), (s > 0) == c.y)


def test_constants_bound_the_hessian():
    for kind in plain.KINDS:
        clients = plain.clients(kind, width=4, weights=[0.2, 0.3, 0.5])
        problem = tw.Problem(tw.objectives.residual(plain.loss(kind, L2), [0, 1], [1, 2, 3]), clients)
        bound = problem.constants()
        local = problem.constants(at=plain.point(problem))
        assert 0 < bound.mu <= local.mu * (1 + 1e-9)
        for name in ("L_w", "L_beta", "calL_w", "calL_beta"):  # curvature at a point has the largest client's L^w
            at_most = bound.L_client if name == "L_w" else getattr(bound, name)
            assert getattr(local, name) <= at_most * (1 + 1e-9)
            if kind == "squared":
                assert getattr(local, name) == pytest.approx(at_most, rel=1e-9)
        assert set(bound.how.values()) == {"certified"}


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_it_needs_a_score():
    with pytest.raises(
        TypeError, match=r"residual needs a loss with a score \(losses.logistic, softmax or squared\), got Custom"
    ):
        tw.objectives.residual(tw.losses.custom(lambda p, x, y: 0.0, np.zeros(1)))


def test_predictors_and_start_go_together():
    predictors, begin = own_predictors()
    for given in ({"predictors": predictors}, {"start": begin}):
        with pytest.raises(ValueError, match="residual needs predictors and start together"):
            tw.objectives.residual(tw.losses.squared(), **given)


def test_labels_are_checked_with_predictors_too():
    predictors, begin = own_predictors()
    clients = tw.Clients.from_list([({"public": np.ones((2, 3)), "own": np.ones((2, 2))}, np.array([0, 5]))])
    objective = tw.objectives.residual(tw.losses.logistic(), "public", "own", predictors=predictors, start=begin)
    with pytest.raises(tw.ClientError, match="client 0: y at row 1 is 5, but a label must be"):
        tw.Problem(objective, clients)


@pytest.mark.parametrize("scale, expected", [(0.1, 0.01), (0.9, 0.5)])
def test_strong_convexity_is_the_ridge_times_the_smaller_of_both_scales(scale, expected):
    """μ = l2·min(s², min p_m): s² and not s, which agree with the usual s = M^(-1/2) only in the minimum."""
    clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    found = tw.objectives.residual(tw.losses.squared(l2=2.0)).constants(clients, scale)
    assert found.mu == pytest.approx(2.0 * expected, rel=1e-12)
