"""Small data, the paper's formulas in plain NumPy, and derivatives by differences: all written without twofold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize
from scipy.special import expit, logsumexp

import twofold as tw

KINDS = ("logistic", "softmax", "squared")
CLASSES = 3


def rows(kind: str, n: int, rng: np.random.Generator, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """One client's features and labels (or targets); labels are noisy, so that nothing is separable by accident."""
    x = rng.normal(size=(n, width))
    if kind == "squared":
        return x, x @ rng.normal(size=width) + rng.normal(size=n)
    return x, rng.integers(0, 2 if kind == "logistic" else CLASSES, n)


def clients(
    kind: str = "logistic", counts: Any = (6, 11, 8), seed: int = 0, width: int = 3, weights: Any = None
) -> Any:
    """Unequal clients."""
    rng = np.random.default_rng(seed)
    return tw.Clients.from_list([rows(kind, n, rng, width) for n in counts], weights=weights)


def loss(kind: str, l2: float = 0.0, intercept: bool = False) -> Any:
    """twofold's loss of that kind."""
    make = {"logistic": tw.losses.logistic, "squared": tw.losses.squared}
    return tw.losses.softmax(CLASSES, l2, intercept) if kind == "softmax" else make[kind](l2, intercept)


def score(params: Any, x: np.ndarray) -> np.ndarray:
    """x·W (+ b)."""
    return x @ params["weight"] + params["bias"] if isinstance(params, dict) else x @ params


def link(kind: str, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The loss of each row from its score."""
    if kind == "logistic":
        return -np.log(np.where(y == 1, expit(s), expit(-s)))
    if kind == "softmax":
        return logsumexp(s, axis=1) - s[np.arange(len(y)), y]
    return (s - y) ** 2 / 2


def value(kind: str, params: Any, x: np.ndarray, y: np.ndarray, l2: float = 0.0) -> float:
    """f'(params): the mean loss plus (l2/2)‖params‖²."""
    return float(np.mean(link(kind, score(params, x), y)) + l2 / 2 * np.sum(ravel_pytree(params)[0] ** 2))


def derivative(function: Callable[[np.ndarray], Any], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The derivative by the five-point stencil, whose error is of order step⁴; the last axis is that of `at`."""
    columns = []
    for i in range(at.size):
        e = np.zeros(at.size)
        e[i] = step
        near, far = (np.asarray(function(at + k * e)) - np.asarray(function(at - k * e)) for k in (1, 2))
        columns.append((8 * near - far) / (12 * step))
    return np.stack(columns, axis=-1)


def draw(like: Any, rng: np.random.Generator) -> Any:
    """Normal numbers in the shape of a pytree."""
    flat, unravel = ravel_pytree(like)
    return jax.tree.map(np.asarray, unravel(rng.normal(size=flat.size)))


def point(problem: Any, seed: int = 0) -> tuple[Any, Any]:
    """A random point (w, β) of a problem."""
    return draw(problem.start, np.random.default_rng(seed))


def client(beta: Any, m: int) -> Any:
    """Client m's part of β."""
    return jax.tree.map(lambda leaf: leaf[m], beta)


def assert_gradient(problem: Any, seed: int = 0, tolerance: float = 1e-9) -> None:
    """Both blocks of ∇F against differences of F."""
    flat, unravel = ravel_pytree(point(problem, seed))
    found = ravel_pytree(problem.gradient(*unravel(flat)))[0]
    expected = derivative(lambda v: float(problem.value(*unravel(v))), np.asarray(flat))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * (1 + np.max(np.abs(expected))))


def gradient(kind: str, params: np.ndarray, x: np.ndarray, y: np.ndarray, l2: float = 0.0) -> np.ndarray:
    """∇f' of a loss without intercept."""
    s = x @ params
    if kind == "softmax":
        residual = np.exp(s - logsumexp(s, axis=1, keepdims=True)) - np.eye(CLASSES)[y]
    else:
        residual = (expit(s) if kind == "logistic" else s) - y
    return x.T @ residual / len(y) + l2 * params


def logistic_hessian(params: np.ndarray, x: np.ndarray, l2: float = 0.0) -> np.ndarray:
    """∇²f' of the logistic loss."""
    s = x @ params
    return (x * (expit(s) * expit(-s))[:, None]).T @ x / len(x) + l2 * np.eye(len(params))


def minimise(derivatives: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]], start: np.ndarray) -> Any:
    """The minimiser of a strongly convex function that gives its value, gradient and Hessian, and the minimum.

    SciPy's trust region comes near, and its root finder on the gradient gives the last digits, which values cannot.
    """
    value, gradient, hessian = ((lambda v, i=i: derivatives(v)[i]) for i in range(3))
    near = optimize.minimize(value, start, jac=gradient, hess=hessian, method="trust-exact").x
    found = optimize.root(gradient, near, jac=hessian, tol=1e-15).x
    assert np.max(np.abs(gradient(found))) < 1e-14
    return found, value(found)
