"""The mixture is three problems in one: the averaged penalty, the Moreau envelope, and both have its optimum."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag

import plain
import twofold as tw

LAM, L2 = 0.4, 0.02
WEIGHTS = [None, np.array([0.5, 0.2, 0.3])]


def make(weights):
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(L2), LAM), plain.clients(weights=weights))


def averaged(problem, beta):
    """Σ p_m f'_m(β_m) + (λ/2) Σ p_m ‖β_m − β̄‖², β̄ the (weighted) mean."""
    p = problem.clients.weights
    fit = [plain.value("logistic", b, c.x, c.y, L2) for b, c in zip(beta, problem.clients, strict=True)]
    return p @ fit + LAM / 2 * p @ np.sum((beta - p @ beta) ** 2, axis=1)


def prox(client, w):
    """argmin_β f'_m(β) + (λ/2)‖w − β‖², and the minimum: the Moreau envelope at w."""

    def derivatives(b):
        return (
            plain.value("logistic", b, client.x, client.y, L2) + LAM / 2 * np.sum((w - b) ** 2),
            plain.gradient("logistic", b, client.x, client.y, L2) + LAM * (b - w),
            plain.logistic_hessian(b, client.x, L2) + LAM * np.eye(len(b)),
        )

    return plain.minimise(derivatives, w)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_minimised_over_w_it_is_the_averaged_penalty(weights):
    problem = make(weights)
    _, beta = plain.point(problem)
    mean = problem.clients.weights @ beta
    assert_allclose(problem.value(mean, beta), averaged(problem, beta), rtol=1e-14)
    assert_allclose(problem.gradient_w(mean, beta), np.zeros(3), atol=1e-15)
    step = np.array([1e-3, -2e-3, 1e-3])  # F is a parabola in w around the mean
    assert_allclose(problem.value(mean + step, beta) - averaged(problem, beta), LAM / 2 * step @ step, rtol=1e-9)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_minimised_over_beta_it_is_the_moreau_envelope(weights):
    problem = make(weights)
    w, _ = plain.point(problem)
    points, envelopes = zip(*[prox(client, w) for client in problem.clients], strict=True)
    beta = np.stack(points)
    assert_allclose(problem.values(w, beta), envelopes, rtol=1e-13)
    assert_allclose(problem.gradient_beta(w, beta), np.zeros((3, 3)), atol=1e-14)
    # The gradient of the envelope is λ(w − prox): Danskin, and what pFedMe descends.
    assert_allclose(problem.gradient_w(w, beta), LAM * (w - problem.clients.weights @ beta), rtol=1e-12)
    envelope = plain.derivative(lambda v: problem.clients.weights @ [prox(c, v)[1] for c in problem.clients], w)
    assert_allclose(problem.gradient_w(w, beta), envelope, atol=1e-9)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_its_optimum_is_that_of_the_averaged_penalty(weights):
    problem = make(weights)
    p, d = problem.clients.weights, 3

    def derivatives(v):
        beta = v.reshape(-1, d)
        mean = p @ beta
        slopes = [plain.gradient("logistic", b, c.x, c.y, L2) for b, c in zip(beta, problem.clients, strict=True)]
        curvature = [q * plain.logistic_hessian(b, c.x, L2) for q, b, c in zip(p, beta, problem.clients, strict=True)]
        penalty = LAM * np.kron(np.diag(p) - np.outer(p, p), np.eye(d))
        slope = p[:, None] * (np.stack(slopes) + LAM * (beta - mean))
        return averaged(problem, beta), slope.ravel(), block_diag(*curvature) + penalty

    found, least = plain.minimise(derivatives, np.zeros(3 * d))
    optimum = problem.optimum()
    assert_allclose(optimum.value, least, rtol=1e-14)
    assert_allclose(optimum.beta, found.reshape(-1, d), atol=1e-12)
    assert_allclose(optimum.w, p @ found.reshape(-1, d), atol=1e-12)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_its_optimum_is_that_of_the_moreau_envelope(weights):
    problem = make(weights)
    p = problem.clients.weights

    def derivatives(w):
        points, envelopes = zip(*[prox(client, w) for client in problem.clients], strict=True)
        # The prox moves with w by λ(∇²f' + λI)⁻¹, so the envelope has the Hessian λI − λ²(∇²f' + λI)⁻¹.
        pairs = zip(points, problem.clients, strict=True)
        inner = [np.linalg.inv(plain.logistic_hessian(b, c.x, L2) + LAM * np.eye(3)) for b, c in pairs]
        return p @ envelopes, LAM * (w - p @ np.stack(points)), LAM * np.eye(3) - LAM**2 * np.tensordot(p, inner, 1)

    found, least = plain.minimise(derivatives, np.zeros(3))
    optimum = problem.optimum()
    assert_allclose(optimum.value, least, rtol=1e-14)
    assert_allclose(optimum.w, found, atol=1e-12)
    assert_allclose(optimum.beta, [prox(client, found)[0] for client in problem.clients], atol=1e-12)


def test_a_large_penalty_is_traditional_and_a_small_one_local():
    loss, clients = tw.losses.logistic(L2), plain.clients()
    together = tw.Problem(tw.objectives.traditional(loss), clients).optimum()
    alone = tw.Problem(tw.objectives.local(loss), clients).optimum()
    near = [tw.Problem(tw.objectives.mixture(loss, lam), clients).optimum() for lam in (1e6, 1e-9)]
    assert_allclose(near[0].w, together.w, atol=1e-5)
    assert_allclose(near[0].beta, np.tile(together.w, (3, 1)), atol=1e-5)
    assert_allclose(near[1].beta, alone.beta, atol=1e-6)
