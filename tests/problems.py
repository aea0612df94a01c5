"""The list of small problems that the tests share: every objective over three losses, with unequal clients.

Rows have norm at most 1 and every loss has a ridge, so that all problems are well conditioned and any method is quick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold.oracle import Oracle, Sample
from twofold.problem import Problem
from twofold.theory.constants import Constants
from twofold.variables import Variables

SIZES = (7, 15, 9, 12, 10)
FEATURES = 3
ALPHAS = (0.2, 0.5, 0.35, 0.3, 0.45)
LOSSES = {
    "logistic": tw.losses.logistic(l2=0.25),
    "softmax": tw.losses.softmax(3, l2=0.25),
    "squared": tw.losses.squared(l2=0.25),
}


@cache
def clients(loss: str, weights: str | None = None, seed: int = 0, sizes: tuple[int, ...] = SIZES) -> tw.Clients:
    """Clients who agree in part: the features of one seed, with the labels that a loss needs."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(FEATURES, 3))
    pairs = []
    for count in sizes:
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
    "flix": lambda loss: tw.objectives.flix(LOSSES[loss], alpha=(0.6, 1.0, 0.8, 0.7, 0.9)),
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


@dataclass(frozen=True, eq=False)
class Facts:
    """A problem of one stage, its constants, and its start measured from the optimum, in the scaled space."""

    problem: Problem

    @cached_property
    def c(self) -> Constants:
        """Its constants."""
        return self.problem.constants()

    @cached_property
    def optimum(self) -> tuple:
        """The minimiser (w, β)."""
        return self.problem.optimum()[:2]

    @cached_property
    def best(self) -> float:
        """F*."""
        return self.problem.optimum().value

    @cached_property
    def gap(self) -> float:
        """F(x⁰) − F*."""
        return self.gap_at(*self.problem.start)

    @cached_property
    def distance2(self) -> float:
        """‖x⁰ − x*‖²."""
        return self.distance2_at(*self.problem.start)

    def gap_at(self, w: Any, beta: Any) -> float:
        """F − F* at a real point."""
        return float(self.problem.value(w, beta)) - self.best

    def distance2_at(self, w: Any, beta: Any) -> float:
        """‖x − x*‖² of a real point, in the scaled space."""
        of_w, of_beta = (_squared_distance(a, b) for a, b in zip((w, beta), self.optimum, strict=True))
        return of_w / self.problem.scale**2 + of_beta

    @property
    def smoothness(self) -> float:
        """A bound on the largest eigenvalue of the whole ∇²F ⪰ 0: the sum of those of its diagonal blocks."""
        return self.c.L_w + self.c.L_beta

    def distance_for(self, gap: float) -> float:
        """The ‖x − x*‖² that implies F − F* ≤ gap."""
        return 2 * gap / self.smoothness

    @property
    def rows(self) -> float:
        """Rows per client, on average."""
        return float(np.mean(self.problem.clients.counts))

    @property
    def most_rows(self) -> float:
        """Rows of the largest client."""
        return float(np.max(self.problem.clients.counts))

    @cached_property
    def noise(self) -> Spread:
        """The spread of gradients at the optimum."""
        return spread(self.problem, self.optimum)

    @cached_property
    def noise_at_start(self) -> Spread:
        """The spread of gradients at the start."""
        return spread(self.problem, self.problem.start)


@cache
def facts(objective: str, loss: str) -> tuple[Facts, ...]:
    """The facts of a problem of the list, stage by stage; a second stage is that around the true first optimum."""
    whole = problem(objective, loss)
    if objective not in TWO_STAGES:
        return (Facts(whole),)
    first = Facts(Problem(whole.objective.first(), whole.clients))
    return first, Facts(Problem(whole.objective.second(first.optimum[0]), whole.clients))


def _squared_distance(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(float(np.sum((np.asarray(x) - np.asarray(y)) ** 2)) for x, y in pairs)


@dataclass(frozen=True)
class Spread:
    """How the gradients of single rows and of single clients spread at a real point, in the scaled space."""

    of_w: np.ndarray
    """E‖∇_w f_{m,j} − ∇_w f_m‖² of each client m."""
    of_beta: np.ndarray
    """E‖∇_β f_{m,j} − ∇_β f_m‖² of each client m, without the weight p_m."""
    heterogeneity: float
    """ζ² = 1/M Σ ‖∇_w f_m‖²."""


def spread(problem: Problem, at: tuple) -> Spread:
    """The variance of the row gradients and of the client gradients at a real point, from every row there is."""
    w, beta = jax.tree.map(jnp.asarray, at)
    (stack,) = problem.stacks
    of_w, of_beta, clients_w = _spread(problem.objective, problem.scale, stack, w, beta)
    return Spread(np.asarray(of_w), np.asarray(of_beta), float(np.mean(clients_w)))


@jax.jit
def _spread(objective: Any, scale: Any, stack: Any, w: Any, beta: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    w = jax.tree.map(lambda leaf: leaf / scale, w)

    def client(member: Any, beta: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        oracle = Oracle(objective, Variables(scale), member)
        rows = jnp.arange(oracle.capacity)
        of_w, of_beta = jax.vmap(lambda j: oracle.gradients(w, beta, Sample(j[None], jnp.ones((1,)))))(rows)
        share = (rows < member.count) / member.count
        (var_w, mean_w), (var_beta, _) = (_variance(share, jax.tree.leaves(of)) for of in (of_w, of_beta))
        return var_w, var_beta / member.weight**2, mean_w

    return jax.vmap(client)(stack, beta)


def _variance(share: jax.Array, leaves: list) -> tuple[jax.Array, jax.Array]:
    """E‖g − Eg‖² and ‖Eg‖² of a gradient of several leaves, with the share of each row."""
    if not leaves:
        return jnp.zeros(()), jnp.zeros(())
    flat = jnp.concatenate([leaf.reshape(len(share), -1) for leaf in leaves], axis=1)
    mean = share @ flat
    return share @ jnp.sum((flat - mean[None]) ** 2, axis=1), jnp.sum(mean**2)


CONFIG = """
[data]
source = "synthetic-mixture"
sigma_h = 0.3
clients = 3
rows = 10
features = 2
[loss]
name = "logistic"
l2 = 0.1
[objective]
name = "mixture"
lam = 0.5
[algorithm]
name = "lsgd"
[stop]
rounds = 4
"""
"""What `twofold run` needs at least, over in a moment."""
