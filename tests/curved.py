"""Small random problems with unequal weights and badly scaled features, and their dense Hessians by `jax.hessian`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import twofold as tw
from twofold.problem import Problem
from twofold.reference import _Blocks

FEATURES, CLASSES = 3, 3
SIZES = (4, 9, 2, 6)  # one client has fewer rows than features
ALPHAS = (0.2, 0.6, 0.35, 0.8)


def loss(name: str, l2: float = 0.05, intercept: bool = False) -> Any:
    """A linear loss by name."""
    if name == "softmax":
        return tw.losses.softmax(CLASSES, l2=l2, intercept=intercept)
    return getattr(tw.losses, name)(l2=l2, intercept=intercept)


OBJECTIVES: dict[str, Callable[[Any], Any]] = {
    "traditional": tw.objectives.traditional,
    "local": tw.objectives.local,
    "mixture": lambda f: tw.objectives.mixture(f, lam=0.3),
    "multitask": lambda f: tw.objectives.multitask(f, lam=0.3, Lambda=0.7),
    "adaptive": lambda f: tw.objectives.adaptive(f, alpha=ALPHAS, Lambda=0.5),
    "weight_sharing": lambda f: tw.objectives.weight_sharing(
        f, split=("weight",) if f.intercept else slice(0, FEATURES, 2)
    ),
    "residual": lambda f: tw.objectives.residual(f, shared=[0, 1], private=[1, 2]),
    "multitask_inf": lambda f: _second(tw.objectives.multitask(f, lam=0.3, Lambda=np.inf), f),
    "adaptive_inf": lambda f: _second(tw.objectives.adaptive(f, alpha=ALPHAS, Lambda=np.inf), f),
}
LOSSES = ("logistic", "softmax", "squared")


def _second(objective: Any, f: Any) -> Any:
    """The second stage around some point."""
    rng = np.random.default_rng(5)
    return objective.second(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), f.init(clients(f.link.name))))


@cache
def clients(
    name: str, seed: int = 0, spread: float = 2.0, sizes: tuple[int, ...] = SIZES, d: int = FEATURES
) -> tw.Clients:
    """Clients with features of different scales and unequal weights."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.uniform(-spread, spread, d) / 2)
    mix = rng.normal(size=(d, d))
    pairs = []
    for n in sizes:
        x = (rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * mix)) * scales * np.exp(rng.normal() / 2)
        score = x @ rng.normal(size=(d, CLASSES)) / np.linalg.norm(scales) + 0.3 * rng.normal(size=(n, CLASSES))
        y = {"logistic": score[:, 0] > 0, "softmax": np.argmax(score, axis=1), "squared": score[:, 0]}[name]
        pairs.append((x, y.astype(float if name == "squared" else int)))
    return tw.Clients.from_list(pairs, weights=list(rng.uniform(0.2, 2.0, len(sizes))))


@cache
def problem(objective: str, name: str, intercept: bool = False, rescale: bool | float = True) -> Problem:
    """A problem of the list."""
    return Problem(OBJECTIVES[objective](loss(name, intercept=intercept)), clients(name), rescale=rescale)


class Dense:
    """∇²F in the scaled space at points: its blocks and the whole."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.blocks = problem, _Blocks(problem)

    def at(self, rng: np.random.Generator, size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """s²Σp_m H_ww (a, a), s·p_m H_wβ (M, a, b), p_m H_ββ (M, b, b) at a random point of this size."""
        b, s = self.blocks, self.problem.scale
        ww, wb, bb = b.hessians(size * rng.normal(size=b.a), size * rng.normal(size=(b.M, b.b)))
        return s * s * ww, s * wb, bb

    @staticmethod
    def whole(ww: np.ndarray, wb: np.ndarray, bb: np.ndarray) -> np.ndarray:
        """The arrow as one matrix."""
        M, a, b = wb.shape
        full = np.zeros((a + M * b,) * 2)
        full[:a, :a] = ww
        for m in range(M):
            at = slice(a + m * b, a + (m + 1) * b)
            full[:a, at], full[at, :a], full[at, at] = wb[m], wb[m].T, bb[m]
        return full


@cache
def hessians(problem: Problem) -> Dense:
    """The Hessians of a problem, compiled once."""
    return Dense(problem)


def matrix_of(function: Callable[[Any], Any], like: Any) -> np.ndarray:
    """The matrix of a linear function of pytrees, in the order of `ravel_pytree`."""
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, like))
    return np.asarray(jax.vmap(lambda v: ravel_pytree(function(unravel(v)))[0])(jnp.eye(flat.size)).T)
