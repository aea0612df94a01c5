"""Every objective over every loss: its value in plain NumPy, its gradient, its predictions, and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw
from twofold import objectives

ALPHA = np.array([0.2, 0.5, 0.9])
L2 = 0.05


def alone(m, classes):
    """What FLIX takes for client m's own model."""
    return np.full(3 if classes is None else (3, classes), 0.1 * (m + 1))


def one_of_each(loss):
    """Every objective, with numbers that tell its terms apart."""
    return {
        "traditional": objectives.traditional(loss),
        "local": objectives.local(loss),
        "multitask": objectives.multitask(loss, lam=0.3, Lambda=0.7),
        "mixture": objectives.mixture(loss, lam=0.3),
        "adaptive": objectives.adaptive(loss, ALPHA, Lambda=0.7),
        "blended": objectives.blended(loss, alpha=0.3, Lambda=0.7),
        "flix": objectives.flix(loss, ALPHA, alone=np.stack([alone(m, loss.link.outputs) for m in range(3)])),
        "weight_sharing": objectives.weight_sharing(loss, 2),
        "residual": objectives.residual(loss, shared=[0, 1], private=[1, 2]),
        "maml": objectives.maml(loss, alpha=0.4),
        "custom": objectives.custom(
            lambda w, beta, batch: jnp.mean((batch.x @ w - batch.y) ** 2) * jnp.sum(beta**2), np.zeros(3), np.zeros(2)
        ),
    }


def formula(name, kind, w, b, m, x, y):
    """f_m(w, β_m) as the paper writes it."""

    def f(params):
        return plain.value(kind, params, x, y, L2)

    distance = (
        0
        if name in ("traditional", "local", "maml", "residual", "weight_sharing", "custom", "flix", "blended")
        else np.sum((w - b) ** 2)
    )
    if name == "residual":
        s = x[:, [0, 1]] @ w + x[:, [1, 2]] @ b
        return np.mean(plain.link(kind, s, y)) + L2 / 2 * (np.sum(w**2) + np.sum(b**2))
    if name == "custom":
        return np.mean((x @ w - y) ** 2) * np.sum(b**2)
    return {
        "traditional": lambda: f(w),
        "local": lambda: f(b),
        "multitask": lambda: 0.7 * f(w) + f(b) + 0.15 * distance,
        "mixture": lambda: f(b) + 0.15 * distance,
        "adaptive": lambda: 0.7 * f(w) + f((1 - ALPHA[m]) * b + ALPHA[m] * w),
        "blended": lambda: 0.7 * f(w) + f((1 - b["alpha"]) * b["model"] + b["alpha"] * w),
        "flix": lambda: f(ALPHA[m] * w + (1 - ALPHA[m]) * np.full(w.shape, 0.1 * (m + 1))),
        "weight_sharing": lambda: f(np.concatenate([w, b])),
        "maml": lambda: f(w - 0.4 * plain.gradient(kind, w, x, y, L2)),
    }[name]()


def problem_of(name, kind, weights=None):
    return tw.Problem(one_of_each(plain.loss(kind, L2))[name], plain.clients(kind, weights=weights))


every_pair = [(name, kind) for name in one_of_each(plain.loss("squared")) for kind in plain.KINDS]
every_pair = [(name, kind) for name, kind in every_pair if kind == ("squared" if name == "custom" else "softmax")] + [
    ("residual", "logistic"), ("mixture", "squared"), ("maml", "logistic"), ("flix", "squared"),
]  # fmt: skip


@pytest.mark.parametrize("name, kind", every_pair)
def test_value_and_gradient(name, kind):
    problem = problem_of(name, kind, weights=[0.5, 0.2, 0.3])
    w, beta = plain.point(problem, seed=1)
    expected = [formula(name, kind, w, plain.client(beta, m), m, c.x, c.y) for m, c in enumerate(problem.clients)]
    assert_allclose(problem.values(w, beta), expected, rtol=1e-13)
    assert_allclose(problem.value(w, beta), np.dot([0.5, 0.2, 0.3], expected), rtol=1e-13)
    plain.assert_gradient(problem, seed=1)


def parameters(name, kind, w, b, m, x, y):
    """What a client predicts with."""
    return {
        "traditional": lambda: w,
        "local": lambda: b,
        "multitask": lambda: b,
        "mixture": lambda: b,
        "adaptive": lambda: (1 - ALPHA[m]) * b + ALPHA[m] * w,
        "blended": lambda: (1 - b["alpha"]) * b["model"] + b["alpha"] * w,
        "weight_sharing": lambda: np.concatenate([w, b]),
        "maml": lambda: w - 0.4 * plain.gradient(kind, w, x, y, L2),
    }[name]()


@pytest.mark.parametrize(
    "name", ["traditional", "local", "multitask", "mixture", "adaptive", "blended", "weight_sharing", "maml"]
)
def test_what_a_client_predicts_with(name):
    problem = problem_of(name, "logistic")
    w, beta = plain.point(problem)
    x, y = plain.rows("logistic", 30, np.random.default_rng(9))
    for m, c in enumerate(problem.clients):
        member = problem.member(m)
        rows = tw.losses.Rows(member.x, member.y, jnp.full(len(c.y), 1 / len(c.y)))
        b = plain.client(beta, m)
        expected = (x @ parameters(name, "logistic", w, b, m, c.x, c.y) > 0).astype(int)
        assert_array_equal(problem.objective.predict(w, b, rows, member.own, x), expected)
        assert_array_equal(problem.objective.grade(w, b, rows, member.own, x, y), expected == y)


def test_the_registry_knows_them_all():
    assert set(objectives.REGISTRY) == set(one_of_each(plain.loss("squared")))
    for name, objective in one_of_each(plain.loss("squared")).items():
        assert objective.name == name and getattr(objectives, name) is objectives.REGISTRY[name]


@pytest.mark.parametrize("intercept", [True])
@pytest.mark.parametrize("name", ["traditional", "local", "multitask", "mixture", "adaptive", "maml"])
def test_a_pytree_of_parameters_goes_through(name, intercept):
    """With an intercept every parameter is a dictionary of two arrays; only the value of the ridge tells where they are."""
    clients = plain.clients()
    problem = tw.Problem(one_of_each(tw.losses.logistic(L2, intercept))[name], clients)
    plain.assert_gradient(problem)
    leaves = jax.tree.leaves(problem.start)
    assert len(leaves) == (1 + intercept) * (1 + (name not in ("traditional", "local", "maml")))


# ---- what is refused ------------------------------------------------------------------------------------------------

LOSS = tw.losses.logistic()


@pytest.mark.parametrize("value", [-1.0, 0.0, np.inf, np.nan, "x", None])
def test_a_penalty_must_be_positive(value):
    for make in (objectives.mixture, objectives.multitask, lambda loss, lam: objectives.multitask(loss, lam, np.inf)):
        with pytest.raises(ValueError, match=r"^lam must be a finite number > 0, got lam="):
            make(LOSS, value)


@pytest.mark.parametrize("value", [-1.0, np.nan, -np.inf, "x", None])
def test_the_weight_of_the_shared_loss_must_not_be_negative(value):
    for make in (
        lambda Lambda: objectives.multitask(LOSS, 1.0, Lambda),
        lambda Lambda: objectives.adaptive(LOSS, 0.5, Lambda),
    ):
        with pytest.raises(ValueError, match=r"^Lambda must be a finite number ≥ 0, got Lambda="):
            make(value)


def test_the_step_of_maml_must_be_positive():
    with pytest.raises(ValueError, match=r"^alpha must be a finite number > 0, got alpha=0"):
        objectives.maml(LOSS, 0)


def test_a_problem_needs_an_objective_and_clients():
    with pytest.raises(
        TypeError, match=r"Problem needs an objective, but got a loss: say what is shared, as in tw.obj"
    ):
        tw.Problem(LOSS, plain.clients())
    with pytest.raises(TypeError, match=r"Problem needs Clients \(see Clients.from_list\), got list"):
        tw.Problem(objectives.local(LOSS), list(plain.clients()))
