"""The list of small problems that the tests share: every objective over three losses, with unequal clients.

Rows have norm at most 1 and every loss has a ridge, so that all problems are well conditioned and any method is quick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold.problem import Oracle, Problem, Sample
from twofold.theory.constants import Constants

SIZES = (7, 15, 9, 12, 10)
FEATURES = 3
ALPHAS = (0.2, 0.5, 0.35, 0.3, 0.45)
LOSSES = {
    "logistic": tw.losses.logistic(l2=0.25),
    "softmax": tw.losses.softmax(3, l2=0.25),
    "squared": tw.losses.squared(l2=0.25),
}


@cache
def clients(loss: str, weights: str | None = None, seed: int = 0) -> tw.Clients:
    """Five clients who agree in part: the features of one seed, with the labels that a loss needs."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(FEATURES, 3))
    pairs = []
    for count in SIZES:
        x = rng.normal(size=(count, FEATURES))
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
        score = x @ (4 * common + 2 * rng.normal(size=(FEATURES, 3))) + 0.1 * rng.normal(size=(count, 3))
        labels = {"logistic": score[:, 0] > 0, "softmax": np.argmax(score, axis=1), "squared": score[:, 0]}
        pairs.append((x, labels[loss].astype(float if loss == "squared" else int)))
    return tw.Clients.from_list(pairs, weights=weights)


def residual_by_hand(loss: str) -> Callable[[Any, Any, Any], jax.Array]:
    """The residual objective on all features as somebody else's plain function f(w, β, batch)."""

    def fit(score: jax.Array, y: jax.Array) -> jax.Array:
        if loss == "logistic":
            return jnp.logaddexp(0.0, score) - y * score
        if loss == "softmax":
            return jax.nn.logsumexp(score, axis=1) - jnp.sum(score * jax.nn.one_hot(y, 3), axis=1)
        return 0.5 * (score - y) ** 2

    def f(w: jax.Array, beta: jax.Array, batch: Any) -> jax.Array:
        ridge = 0.125 * (jnp.sum(w**2) + jnp.sum(beta**2))
        return jnp.mean(fit(batch.x @ (w + beta), batch.y)) + ridge

    return f


@cache
def custom(loss: str) -> Any:
    """An objective of the user's own, with constants of the user's own."""
    zero = np.zeros((FEATURES, 3) if loss == "softmax" else FEATURES)

    def constants(everyone: tw.Clients) -> Constants:
        return tw.objectives.residual(LOSSES[loss]).constants(everyone, len(everyone) ** -0.5)

    return tw.objectives.custom(residual_by_hand(loss), zero, zero, constants=constants)


OBJECTIVES: dict[str, Callable[[str], Any]] = {
    "traditional": lambda loss: tw.objectives.traditional(LOSSES[loss]),
    "local": lambda loss: tw.objectives.local(LOSSES[loss]),
    "multitask": lambda loss: tw.objectives.multitask(LOSSES[loss], lam=0.5, Lambda=3.0),
    "mixture": lambda loss: tw.objectives.mixture(LOSSES[loss], lam=0.5),
    "adaptive": lambda loss: tw.objectives.adaptive(LOSSES[loss], alpha=0.3, Lambda=0.5),
    "adaptive_each": lambda loss: tw.objectives.adaptive(LOSSES[loss], alpha=ALPHAS, Lambda=0.5),
    "weight_sharing": lambda loss: tw.objectives.weight_sharing(LOSSES[loss], split=2),
    "residual": lambda loss: tw.objectives.residual(LOSSES[loss], shared=[0, 1], private=[1, 2]),
    "custom": custom,
    "multitask_inf": lambda loss: tw.objectives.multitask(LOSSES[loss], lam=0.5, Lambda=np.inf),
    "adaptive_inf": lambda loss: tw.objectives.adaptive(LOSSES[loss], alpha=ALPHAS, Lambda=np.inf),
}
TWO_STAGES = ("multitask_inf", "adaptive_inf")
PROBLEMS = tuple((objective, loss) for loss in LOSSES for objective in OBJECTIVES)
"""Every convex problem by (objective, loss)."""


@cache
def problem(objective: str, loss: str) -> Problem:
    """A problem of the list; made once, so that its optimum is found once."""
    return Problem(OBJECTIVES[objective](loss), clients(loss))


@cache
def maml(loss: str) -> Problem:
    """The one nonconvex objective."""
    return Problem(tw.objectives.maml(LOSSES[loss], alpha=0.5), clients(loss))


# --- what theory has to know of a problem -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """A problem's constants, and its start measured from the optimum, in the scaled space."""

    problem: Problem
    c: Constants
    rows: float
    most_rows: float
    gap: float
    distance2: float
    best: float

    @property
    def smoothness(self) -> float:
        """A bound on the largest eigenvalue of the whole ∇²F: that of a positive matrix is at most the sum over its blocks."""
        return self.c.L_w + self.c.L_beta

    def distance_for(self, gap: float) -> float:
        """The ‖x − x*‖² that implies F − F* ≤ gap."""
        return 2 * gap / self.smoothness


def facts(problem: Problem) -> Facts:
    """The facts of a problem with one stage."""
    known = _FACTS.get(id(problem))
    if known is None or known.problem is not problem:
        optimum, counts = problem.optimum(), problem.clients.counts
        known = _FACTS[id(problem)] = Facts(
            problem=problem,
            c=problem.constants(),
            rows=float(np.mean(counts)),
            most_rows=float(np.max(counts)),
            gap=float(problem.value(*problem.start)) - optimum.value,
            distance2=distance2(problem, problem.start, optimum[:2]),
            best=optimum.value,
        )
    return known


_FACTS: dict[int, Facts] = {}


def distance2(problem: Problem, a: tuple, b: tuple) -> float:
    """‖a − b‖² of two real points (w, β), measured in the scaled space."""
    of_w, of_beta = (
        sum(float(np.sum((np.asarray(x) - np.asarray(y)) ** 2)) for x, y in zip(*map(jax.tree.leaves, pair), strict=True))
        for pair in zip(a, b, strict=True)
    )
    return of_w / problem.scale**2 + of_beta


@dataclass(frozen=True)
class Spread:
    """How the gradients of single rows and of single clients spread at a real point, in the scaled space."""

    of_w: np.ndarray
    """E‖∇_w f_{m,j} − ∇_w f_m‖² of each client."""
    of_beta: np.ndarray
    """E‖∇_β f_{m,j} − ∇_β f_m‖² of each client, without the weight p_m."""
    heterogeneity: float
    """ζ² = 1/M Σ ‖∇_w f_m‖²."""


def spread(problem: Problem, at: tuple) -> Spread:
    """The variance of the clients' row gradients and of the client gradients, from every row there is."""
    w = jax.tree.map(lambda leaf: jnp.asarray(leaf) / problem.scale, at[0])
    of_w, of_beta, clients_w = [], [], []
    for m in range(problem.M):
        oracle = Oracle(problem.objective, problem.scale, problem.member(m))
        beta = jax.tree.map(lambda leaf, m=m: jnp.asarray(leaf)[m], at[1])

        def one(j: jax.Array, oracle: Oracle = oracle, beta: Any = beta) -> Any:
            return oracle.gradients(w, beta, Sample(j[None], jnp.ones((1,))))

        rows_w, rows_beta = jax.vmap(one)(jnp.arange(oracle.capacity))
        flat_w, flat_beta = (_flat(rows, oracle.capacity) for rows in (rows_w, rows_beta))
        of_w.append(np.sum(np.var(flat_w, axis=0)))
        of_beta.append(np.sum(np.var(flat_beta, axis=0)) / float(oracle.weight) ** 2)
        clients_w.append(np.sum(np.mean(flat_w, axis=0) ** 2))
    return Spread(np.array(of_w), np.array(of_beta), float(np.mean(clients_w)))


def _flat(rows: Any, count: int) -> np.ndarray:
    leaves = [np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(rows)]
    return np.concatenate(leaves, axis=1) if leaves else np.zeros((count, 0))
