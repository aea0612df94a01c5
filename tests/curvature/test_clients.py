"""The curvature of every client, held against its own Hessian at random points."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import problems
import twofold as tw
from twofold.curvature.clients import of_each

ALL = ["traditional", "local", "multitask", "mixture", "adaptive_each", "weight_sharing", "residual", "flix"]


CASES = [(objective, "squared") for objective in ALL] + [(name, "logistic") for name in ("adaptive_each", "residual")]


@pytest.mark.parametrize(("objective", "loss"), CASES)
def test_a_clients_hessian_lies_between_its_bounds(objective: str, loss: str):
    whole = tw.Problem(problems.OBJECTIVES[objective](loss), problems.clients(loss, weights="rows"))
    model = whole.objective.curvature(whole.clients)
    found, rng = of_each(model, whole.scale), np.random.default_rng(0)
    w, beta = (ravel_pytree(part)[0].size for part in whole.objective.init(whole.clients))
    into = [ravel_pytree(part)[1] for part in whole.objective.init(whole.clients)]

    def at(member: Any, x: jax.Array) -> jax.Array:
        oracle = whole.program().oracle(member)
        return jax.hessian(lambda x: oracle.value(into[0](x[:w]), into[1](x[w:])))(x)

    (stack,) = whole.stacks
    hessians = np.asarray(jax.jit(jax.vmap(at))(stack, rng.normal(size=(whole.M, w + beta))))
    for m, hessian in enumerate(hessians):
        p = whole.clients.weights[m]
        root = np.concatenate([np.ones(w), np.full(beta, np.sqrt(p))])  # the norm p‖w‖² + ‖β‖²
        values = np.linalg.eigvalsh(root[:, None] * hessian * root[None])
        assert found.mu[m] <= values[0] * (1 + 1e-9) + 1e-12
        assert values[-1] <= found.L[m] * (1 + 1e-9)
        if w:
            assert np.linalg.eigvalsh(hessian[:w, :w])[-1] <= found.L_w[m] * (1 + 1e-9)
        if beta:
            of_beta = np.linalg.eigvalsh(hessian[w:, w:])
            assert found.mu_beta[m] <= of_beta[0] * (1 + 1e-9)
            assert of_beta[-1] <= found.L_beta[m] * (1 + 1e-9)
        if loss == "squared" and objective in ("traditional", "local", "mixture", "flix"):  # here nothing is lost
            np.testing.assert_allclose([found.mu[m], found.L[m]], [values[0], values[-1]], rtol=1e-6)
