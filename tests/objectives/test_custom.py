"""An objective of one's own: f(w, β, batch), with or without numbers that may change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw

L2, LAM = 0.1, 0.3


def mixture(w, beta, batch, lam=LAM):
    """The mixture once more, as a user would write it."""
    s = batch.x @ beta
    fit = jnp.mean(jnp.logaddexp(0, s) - batch.y * s)
    return fit + L2 / 2 * jnp.sum(beta**2) + lam / 2 * jnp.sum((w - beta) ** 2)


def pair(**options):
    clients = plain.clients(weights=[0.5, 0.2, 0.3])
    own = tw.Problem(tw.objectives.custom(mixture, np.zeros(3), np.zeros(3), **options), clients)
    return own, tw.Problem(tw.objectives.mixture(tw.losses.logistic(L2), LAM), clients)


def test_it_is_the_built_in_objective():
    own, built_in = pair()
    at = plain.point(built_in)
    assert_allclose(own.value(*at), built_in.value(*at), rtol=1e-14)
    for found, expected in zip(own.gradient(*at), built_in.gradient(*at), strict=True):
        assert_allclose(found, expected, atol=1e-15)
    assert_allclose(own.optimum().beta, built_in.optimum().beta, atol=1e-13)
    assert_allclose(own.optimum().value, built_in.optimum().value, rtol=1e-14)


@pytest.mark.parametrize(
    "params", [0.7, np.array(0.7), {"lam": 0.7}, np.array([0.7, 1.0])], ids=["number", "0-d", "dict", "array"]
)
def test_numbers_in_params_reach_the_function(params):
    def function(w, beta, batch, params):
        return mixture(w, beta, batch, ravel_pytree(params)[0][0])

    clients = plain.clients()
    problem = tw.Problem(tw.objectives.custom(function, np.zeros(3), np.zeros(3), params=params), clients)
    expected = tw.Problem(tw.objectives.mixture(tw.losses.logistic(L2), 0.7), clients)
    at = plain.point(problem)
    assert_allclose(problem.value(*at), expected.value(*at), rtol=1e-14)
    member = problem.member(0)
    rows = -np.asarray(problem.objective.grade(at[0], at[1][0], None, (), member.x, member.y))
    assert_allclose(np.mean(rows), problem.values(*at)[0], rtol=1e-14)


def test_the_starting_points_are_the_users():
    clients = plain.clients("squared")
    w0, beta0 = {"a": np.array([1.0, 2.0, 3.0])}, (np.array(4.0), [np.array([5.0])])
    objective = tw.objectives.custom(
        lambda w, beta, batch: jnp.mean((batch.x @ w["a"] + beta[0] + beta[1][0][0] - batch.y) ** 2), w0, beta0
    )
    problem = tw.Problem(objective, clients)
    assert_array_equal(problem.start[0]["a"], w0["a"])
    assert_array_equal(problem.start[1][0], [4.0, 4.0, 4.0])
    assert_array_equal(problem.start[1][1][0], [[5.0], [5.0], [5.0]])
    plain.assert_gradient(problem)


@pytest.mark.parametrize("empty", ["w", "beta"])
def test_either_part_may_be_empty(empty):
    clients = plain.clients()

    def function(w, beta, batch):
        s = batch.x @ (beta if empty == "w" else w)
        return jnp.mean(jnp.logaddexp(0, s) - batch.y * s)

    start = ((), np.zeros(3)) if empty == "w" else (np.zeros(3), ())
    problem = tw.Problem(tw.objectives.custom(function, *start), clients)
    assert (problem.has_shared, problem.has_private, problem.scale) == (empty != "w", empty != "beta", 1.0)
    other = tw.objectives.local if empty == "w" else tw.objectives.traditional
    expected = tw.Problem(other(tw.losses.logistic()), clients)
    at = plain.point(problem)
    assert_allclose(problem.value(*at), expected.value(*at), rtol=1e-14)
    plain.assert_gradient(problem)
    lemma = expected.constants(
        rule="paper"
    )  # of the largest client, as curvature at a point is; both are largest at zero
    assert problem.constants().L_w == pytest.approx(lemma.L_w, rel=1e-9)
    assert problem.constants().L_beta == pytest.approx(lemma.L_beta, rel=1e-9)


def test_constants_given_by_the_user():
    given = tw.theory.constants.Constants(0.1, 1.0, 2.0, 3.0, 4.0)
    for constants in (given, lambda clients: given):
        own, _ = pair(constants=constants)
        assert own.constants() == given and set(own.constants().how.values()) == {"given"}


def test_constants_are_estimated_at_the_start_and_mu_is_not_guessed():
    own, built_in = pair()
    found, exact = own.constants(), built_in.constants()
    assert found.mu == 0 and found.why["mu"] == "unknown, so none is assumed"
    assert set(found.how.values()) == {"local"}
    for name in ("L_w", "L_beta", "calL_w", "calL_beta"):  # logistic regression is most curved at zero
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-9)


def test_grades():
    clients = plain.clients()
    at = plain.point(pair()[0])
    member = pair()[0].member(0)
    x, y = clients[0].x, clients[0].y
    rows = pair()[0].objective.grade(at[0], at[1][0], None, (), member.x, member.y)
    s = x @ at[1][0]
    penalty = L2 / 2 * np.sum(at[1][0] ** 2) + LAM / 2 * np.sum((at[0] - at[1][0]) ** 2)
    assert_allclose(rows, -(plain.link("logistic", s, y) + penalty), rtol=1e-13)
    own, _ = pair(grade=lambda w, beta, batch: batch.y * 2.0)
    assert_array_equal(own.objective.grade(at[0], at[1][0], None, (), member.x, member.y), 2.0 * y)


def test_dict_features_can_be_graded():
    clients = tw.Clients.from_list([({"a": np.array([1.0, 2.0])}, np.array([0.0, 1.0]))])
    objective = tw.objectives.custom(
        lambda w, beta, batch: jnp.mean((batch.x["a"] * w - batch.y) ** 2), np.zeros(()), ()
    )
    member = tw.Problem(objective, clients).member(0)
    assert_array_equal(objective.grade(jnp.asarray(3.0), (), None, (), member.x, member.y), [-9.0, -25.0])


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"needs a function f\(w, beta, batch\), got ndarray"):
        tw.objectives.custom(np.zeros(2), (), ())
    own, _ = pair()
    with pytest.raises(ValueError, match="A custom objective cannot predict; use its w and beta in your own predictor"):
        own.objective.predict(np.zeros(3), np.zeros(3), None, (), np.zeros((1, 3)))


def test_params_are_numbers_of_the_program_not_part_of_it():
    """Another value of params does not compile again."""
    compiled = []

    def function(w, beta, batch, params):
        compiled.append(1)
        return mixture(w, beta, batch, params)

    clients, start = plain.clients(), (np.zeros(3), np.zeros(3))
    first = tw.objectives.custom(function, *start, params=0.5)
    at = plain.point(tw.Problem(first, clients))
    before = tw.Problem(first, clients).value(*at)
    import dataclasses

    other = tw.Problem(dataclasses.replace(first, params=0.6), clients)  # which tries the function on a few rows
    count = len(compiled)
    after = other.value(*at)
    assert len(compiled) == count
    distance = jnp.mean(jnp.sum((at[0][None] - at[1]) ** 2, axis=1))
    assert_allclose(after - before, 0.05 * distance, rtol=1e-10)
    assert jax.tree.leaves(first) == [0.5]
