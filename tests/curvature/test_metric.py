"""The change of variables: there and back, gradients, turned weights, what it costs, and ACD in it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from curved import clients, loss, matrix_of, problem
from twofold.curvature.bounds import arrow, sharp
from twofold.curvature.choice import choose, forecasts
from twofold.curvature.metric import build, pack, unpack
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.theory.arrow import best_probability, momentum

KINDS = ("matrix", "diagonal", "scale")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", ["multitask", "weight_sharing", "residual"])
@pytest.mark.parametrize("name, intercept", [("softmax", True), ("logistic", True), ("squared", False)])
def test_there_and_back_and_the_gradient(objective, name, intercept, kind):
    p = problem(objective, name, intercept)
    found = build(p.objective.curvature(p.clients), p.scale, kind)
    w, beta = p._start
    for there, back, transposed, like in (
        (found.w, found.w_inverse, found.w_transpose, w),
        *(
            [lambda x, f=f, r=found.private[1]: f(r, x) for f in (found.beta, found.beta_inverse, found.beta_transpose)]
            + [beta],
        ),
    ):
        matrix = matrix_of(there, like)
        np.testing.assert_allclose(matrix_of(back, like) @ matrix, np.eye(len(matrix)), atol=1e-8)
        np.testing.assert_allclose(matrix_of(transposed, like), matrix.T, atol=1e-12)


def test_matrix_acts_on_features_and_intercept_together_for_each_class():
    p = problem("multitask", "softmax", True)
    found = build(p.objective.curvature(p.clients), p.scale, "matrix")
    rng = np.random.default_rng(0)
    w = {"weight": rng.normal(size=(3, 3)), "bias": rng.normal(size=3)}
    stacked = np.concatenate([w["bias"][None], w["weight"]])
    image = found.w(w)
    np.testing.assert_allclose(np.concatenate([image["bias"][None], image["weight"]]), found.shared @ stacked)
    turned = type(found)(found.shared, found.private, found.kind, True, True)
    swapped = turned.w({"weight": w["weight"].T, "bias": w["bias"]})
    np.testing.assert_allclose(swapped["weight"], image["weight"].T)
    np.testing.assert_allclose(swapped["bias"], image["bias"])
    np.testing.assert_allclose(unpack(pack(w, True), w, True)["weight"], w["weight"])


def test_opening_message():
    for objective, expected in (("mixture", (0, 0, 0, 9)), ("multitask", (9, 4, 1, 9)), ("local", (0, 0, 0, 0))):
        p = problem(objective, "squared")
        model = p.objective.curvature(p.clients)
        assert tuple(build(model, p.scale, kind).opening_floats for kind in (*KINDS, "profile")) == expected


def test_a_direction_without_data_or_ridge_is_no_obstacle():
    empty = tw.Clients.from_list([(np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros(2))] * 2)
    p = Problem(tw.objectives.local(tw.losses.squared()), empty)
    for kind in KINDS:
        found = build(p.objective.curvature(empty), 1.0, kind)
        assert np.all(np.isfinite(found.private))


def test_too_wide_for_matrices(monkeypatch):
    p = problem("multitask", "squared")
    monkeypatch.setattr("twofold.curvature.model.ROOM", 1)
    with pytest.raises(InputError, match=r'needs a 3 × 3 matrix for each of 4 clients.*use precondition="diagonal"'):
        build(p.objective.curvature(p.clients), p.scale, "matrix")
    with pytest.raises(InputError, match=r"precondition must be one of matrix, diagonal, scale, profile, got 'full'"):
        build(p.objective.curvature(p.clients), p.scale, "full")


def badly_scaled(name: str) -> Problem:
    made = clients(name, seed=4, spread=8.0, sizes=(12, 20, 15), d=4)
    return Problem(tw.objectives.multitask(loss(name, l2=0.01), lam=0.1, Lambda=1.0), made)


def acd_rounds(p: Problem, kind: str, model: BlockCurvature) -> tuple[int, int, float]:
    """Rounds and iterations of ACD to 10⁻⁸ of its initial error in a metric, and the iterations that ν forecasts.

    Formula 4: y = x − g and z = (z + ηνx − ηp_i g)/(1 + ην) for the drawn block, in the new variables.
    """
    found, best = build(model, p.scale, kind), p.optimum()
    chosen = best_probability(arrow(model, p.scale, found))
    theta, nu, p_w = momentum(chosen.nu), chosen.nu, chosen.p_w
    value = lambda w, b: p.value(*_real(p, found, w, b))  # noqa: E731

    def step(state, is_w):
        x = [(1 - theta) * y + theta * z for y, z in state]
        gradient = jax.grad(value, argnums=(0, 1))(*x)
        new = []
        for (_, z), xi, g, drawn, prob in zip(state, x, gradient, (is_w, ~is_w), (p_w, 1 - p_w), strict=True):
            mine = jnp.where(drawn, g, 0.0)
            new.append((xi - mine, (z + nu / theta * xi - prob / theta * mine) / (1 + nu / theta)))
        return tuple(new), value(new[0][0], new[1][0])

    start = jax.tree.map(lambda x: jnp.zeros(x.shape), p.start)
    forecast = np.log(1e8) / theta
    coins = np.random.default_rng(0).random(int(forecast) + 1) < p_w
    values = np.asarray(jax.lax.scan(step, tuple((x, x) for x in start), coins)[1])
    error = float(value(*start)) - best.value + theta**2 / (2 * (1 - theta)) * _distance(p, found, p_w, best)
    k = int(np.argmax(values - best.value <= 1e-8 * error))
    assert values[k] - best.value <= 1e-8 * error
    return int(np.sum(coins[: k + 1])), k + 1, forecast


def test_acd_in_the_metric_converges_within_its_forecast():
    p = badly_scaled("squared")
    model = p.objective.curvature(p.clients)
    (matrix, taken, forecast), (scale, taken_scale, forecast_scale) = (
        acd_rounds(p, k, model) for k in ("matrix", "scale")
    )
    assert taken <= forecast and taken_scale <= forecast_scale
    assert matrix < scale / 5


def test_acd_in_the_metric_for_a_link_that_may_be_flat():
    """A certified ν must allow for no curvature, in any metric; so a matrix gains less, and the forecast still holds."""
    p = badly_scaled("logistic")
    model = p.objective.curvature(p.clients)
    (matrix, taken, forecast), (scale, taken_scale, forecast_scale) = (
        acd_rounds(p, k, model) for k in ("matrix", "scale")
    )
    assert taken <= forecast and taken_scale <= forecast_scale
    assert matrix < scale


def _real(p, found, w, b):
    return jax.tree.map(lambda x: p.scale * x, found.w(w)), jax.vmap(found.beta)(jnp.asarray(found.private), b)


def _distance(p, found, p_w, best):
    """‖x⁰ − x*‖² in the norm ‖w̃‖²/p_w² + ‖β̃‖²/p_β²."""
    w = np.asarray(found.w_inverse(np.asarray(best.w) / p.scale))
    b = np.asarray(jax.vmap(found.beta_inverse)(jnp.asarray(found.private), np.asarray(best.beta)))
    return float(np.sum(w**2)) / p_w**2 + float(np.sum(b**2)) / (1 - p_w) ** 2


def test_auto_takes_the_simplest_that_is_about_as_cheap():
    p = badly_scaled("squared")
    model = p.objective.curvature(p.clients)
    found = forecasts(model, p.scale)
    assert [f.kind for f in found] == [None, "scale", "diagonal", "matrix"]
    assert choose(model, p.scale) == "matrix" and found[-1].rounds < found[0].rounds / 5
    assert choose(None, p.scale) is None
    alike = tw.Clients.from_list([(np.eye(3), np.zeros(3))] * 300)
    same = Problem(tw.objectives.multitask(tw.losses.squared(l2=0.1), lam=0.1), alike)
    assert choose(same.objective.curvature(alike), same.scale) is None
    dear = choose(
        model, p.scale, round_cost=1e-9, float_cost=1.0
    )  # where floats are all that costs, d² of them are dear
    assert dear != "matrix" or found[-1].floats < min(f.floats for f in found[:-1])
    with pytest.raises(InputError, match="tol must be a relative gap"):
        forecasts(model, p.scale, tol=2.0)


def test_without_a_ridge_nothing_is_claimed():
    made = clients("logistic")
    p = Problem(tw.objectives.mixture(tw.losses.logistic(), lam=0.3), made)
    model = p.objective.curvature(made)
    assert sharp(model, p.scale).mu == 0 and sharp(model, p.scale, build(model, p.scale, "matrix")).mu == 0
