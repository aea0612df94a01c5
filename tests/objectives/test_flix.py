"""FLIX: everyone's own minimiser is found first, and the shared model is blended with it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from problems import LOSSES, clients

ALPHA = (0.6, 1.0, 0.8, 0.7, 0.9)


def problem(loss: str = "squared", **options: Any) -> tw.Problem:
    return tw.Problem(tw.objectives.flix(LOSSES[loss], ALPHA, **options), clients(loss))


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_alone_is_everyones_own_minimiser(loss: str):
    whole = problem(loss)
    alone = tw.Problem(tw.objectives.local(LOSSES[loss]), whole.clients)
    assert_allclose(whole.objective.alone, alone.optimum().beta, atol=1e-12)
    norm = alone.gradient_norm_squared((), whole.objective.alone)
    assert norm < 1e-24


def test_the_optimum_solves_the_normal_equations():
    """Σ p_m α_m [G_m(α_m w + (1−α_m)w*_m) − Xᵀy/n] = 0, and the gradient at w*_m vanishes: Σ α_m² G_m (w − w*_m) = 0."""
    whole = problem()
    left, right = np.zeros((3, 3)), np.zeros(3)
    for m, alpha in enumerate(ALPHA):
        x = np.asarray(whole.member(m).x)
        hessian = alpha**2 * (x.T @ x / len(x) + 0.25 * np.eye(3))
        left, right = left + hessian, right + hessian @ whole.objective.alone[m]
    assert_allclose(whole.optimum().w, np.linalg.solve(left, right), atol=1e-10)


def test_constants_are_those_of_the_blend():
    """α_m² times those of f'_m: the largest and the smallest of all clients, for a quadratic exactly the Hessians' ends."""
    whole = problem()
    ends = []
    for m, alpha in enumerate(ALPHA):
        x = np.asarray(whole.member(m).x)
        ends.append(np.linalg.eigvalsh(alpha**2 * (x.T @ x / len(x) + 0.25 * np.eye(3)))[[0, -1]])
    found, (low, high) = whole.constants(rule="paper"), np.transpose(ends)
    assert_allclose(found.L_w, high.max(), rtol=1e-6)
    assert found.calL_w >= found.L_w
    assert 0 < found.mu <= low.min() * (1 + 1e-9)
    loss = LOSSES["squared"].constants(whole.clients)
    assert_allclose(found.mu, np.min(np.square(ALPHA) * loss.mu))
    assert_allclose(found.calL_w, np.max(np.square(ALPHA) * loss.calL))


def test_alpha_one_is_traditional_federated_learning():
    whole = tw.Problem(tw.objectives.flix(LOSSES["logistic"], 1.0), clients("logistic"))
    plain = tw.Problem(tw.objectives.traditional(LOSSES["logistic"]), clients("logistic"))
    assert_allclose(whole.optimum().w, plain.optimum().w, atol=1e-10)
    assert whole.constants().L_w == plain.constants().L_w


def test_everyone_predicts_with_the_blend():
    whole = problem()
    w, member = jnp.ones(3), whole.member(3)
    blend = whole.objective.personal(w, (), member.rows(), member.own)
    assert_allclose(blend, 0.7 + 0.3 * whole.objective.alone[3], atol=1e-14)


def test_models_found_elsewhere_are_taken_as_they_are():
    given = np.arange(15.0).reshape(5, 3)
    assert problem(alone=given).objective.alone is given
    with pytest.raises(ValueError, match=r"alone must hold one model for each client, of shape \(5, 3\), got \(4, 3\)"):
        problem(alone=given[:4])


@pytest.mark.parametrize("alpha", [0.0, 1.5, [0.5, -1.0]])
def test_alpha_lies_between_zero_and_one(alpha: Any):
    with pytest.raises(ValueError, match=r"Every alpha must lie in \(0, 1\], got"):
        tw.objectives.flix(LOSSES["squared"], alpha)
