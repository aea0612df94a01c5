"""The list of methods that the tests share, each with what it must reach, and by when, according to theory.

A method is either exact (it converges to the optimum, and theory says by which iteration) or noisy (it stops at a
distance from it that theory bounds by the variance of sampled gradients, computed here from all the rows there are).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from problems import Facts, Spread
from twofold.algorithms import (
    ACD,
    ASCD,
    ASVRCD,
    LSGD,
    SAGA,
    SCD,
    SVRCD,
    AL2SGDPlus,
    Algorithm,
    L2SGDPlus,
    PFedMe,
    Profile,
    Scafflix,
    Scaffnew,
)  # fmt: skip
from twofold.solver.steps import complete, facts_of
from twofold.theory import rates, stepsizes, stepsizes_newer

BATCH = 16
"""Rows of a noisy gradient: enough for a neighbourhood that is small against the start on every problem of the list."""


@dataclass(frozen=True)
class Exact:
    """A method that reaches any accuracy: `gap` relative to the start, within `iterations(facts, ε)`."""

    name: str
    algorithm: Algorithm
    gap: float
    iterations: Callable[[Facts, float], float]
    """How many iterations suffice for F − F* ≤ ε."""
    needs: str | None = None
    on: tuple[str, ...] = ()
    """The objectives that it meets; all if empty."""


@dataclass(frozen=True)
class Noisy:
    """A method that reaches a neighbourhood of the optimum."""

    name: str
    algorithm: Algorithm
    measure: str
    """"gap" for F − F*, "distance" for ‖x − x*‖², in the scaled space."""
    bound: Callable[[Facts, float], tuple[float, float]]
    """For a transient that is to be left: the iterations until then, and the bound on the measure, noise included."""


# --- exact methods ----------------------------------------------------------------------------------------------------


def _acd(f: Facts, eps: float) -> float:
    return rates.predict("acd", f.c, eps, initial=rates.initial_error("acd", f.c, f.gap, f.distance2)).iterations


def _chosen(f: Facts, method: Algorithm) -> dict[str, Any]:
    """What theory chooses for the run: the coins, and the batch."""
    completed = complete(f.problem, method)[0]
    return {name: getattr(completed, name) for name in ("p_w", "rho", "batch") if hasattr(completed, name)}


def _asvrcd(f: Facts, eps: float) -> float:
    design = _chosen(f, ASVRCD())
    start = rates.initial_error("asvrcd", f.c, f.gap, f.distance2, n=f.rows, **design)
    return rates.predict("asvrcd", f.c, eps, n=f.rows, initial=start, **design).iterations


def _svrcd(f: Facts, eps: float) -> float:
    design = _chosen(f, SVRCD())
    start = rates.initial_error("svrcd", f.c, f.gap, f.distance2, n=f.rows, **design)
    return rates.predict("svrcd", f.c, f.distance_for(eps), n=f.rows, initial=start, **design).iterations


def _l2sgd_plus(f: Facts, eps: float) -> float:
    # Records are taken after an averaging step, when w is the mean of the β of one iteration earlier. Both count:
    # F − F* ≤ (L/2)(‖β⁻ − β*‖² + ‖β − β*‖²).
    (w, beta), p = f.optimum, stepsizes.l2sgd_plus(f.c)["p"]
    pull2 = f.problem.objective.lam**2 * np.sum((beta - w[None]).reshape(f.problem.M, -1) ** 2, axis=1)
    weights2 = f.problem.clients.weights**2
    sigma2 = weights2 @ (f.noise.of_beta + pull2) / (1 - p) + weights2 @ pull2 / p
    start = rates.initial_error("l2sgd_plus", f.c, f.gap, f.distance2, n=f.most_rows, sigma2=float(sigma2))
    return rates.predict("l2sgd_plus", f.c, f.distance_for(eps) / 2, n=f.most_rows, initial=start).iterations


def _scd_full(f: Facts, eps: float) -> float:
    design = _chosen(f, SCD(batch=None))
    return rates.predict("scd", f.c, f.distance_for(eps), n=f.rows, initial=f.distance2, **design).iterations


def _ascd_full(f: Facts, eps: float) -> float:
    return math.log(f.distance2 / f.distance_for(eps)) / -math.log1p(-_ascd_steps(f, None)[0] * f.c.mu)


def _ascd_steps(f: Facts, batch: int | None) -> tuple[float, float, float]:
    # There is no theorem for ASCD. It is held to SCD's: to its contraction with the shorter, and to its noise with the
    # longer of ASCD's two steps η and γ. Momentum may take nothing away from what a plain method is promised.
    method: Any = complete(f.problem, ASCD(batch=batch))[0]
    return min(method.eta, method.gamma), max(method.eta, method.gamma), method.p_w


def _gradient_descent(f: Facts, eps: float) -> float:
    # LSGD's step η is at most half of 1/L, so each step takes at least ημ of the gap away.
    return math.log(f.gap / eps) / -math.log1p(-stepsizes.lsgd(f.c, 1)["eta"] * f.c.mu)


def _pfedme(f: Facts, eps: float) -> float:
    # With a solved inner problem it is gradient descent with step 1/λ on the Moreau envelope, which is λ-smooth and
    # μ'λ/(μ'+λ)-strongly convex; w is one step ahead of the θ that it was made of.
    mu, lam = float(np.min(f.problem.objective.loss.constants(f.problem.clients).mu)), float(f.problem.objective.lam)
    return 1 + math.log(f.gap / eps) / -math.log1p(-mu / (mu + lam))


def _profile(f: Facts, eps: float) -> float:
    # Newton's rate is local and L-BFGS has none that says anything here. What is promised is descent; on these problems,
    # whose condition numbers are below 100, these rounds are more than twice as many as are ever needed.
    return 25


def _scaffnew(f: Facts, eps: float) -> float:
    # Ψ⁰ has the control variates of the optimum in it: h* = ∇_w f_m(x*), against h = 0.
    h = stepsizes_newer.scaffnew(f.c, facts_of(f.problem).each())
    start = f.distance2 + (h["eta"] / h["p_w"]) ** 2 * f.noise.heterogeneity
    return math.log(start / f.distance_for(eps)) / -math.log1p(-h["kappa"])


def _scafflix(f: Facts, eps: float) -> float:
    # The same in the norm with 1/η_m, which is brought back to the plain one.
    h = stepsizes_newer.scafflix(f.c, facts_of(f.problem).each())
    shortest, longest = np.min(h["steps"]), np.max(h["steps"])
    start = longest / shortest * f.distance2 + (longest / h["p_w"]) ** 2 * f.noise.heterogeneity
    return math.log(start / f.distance_for(eps)) / -math.log1p(-h["kappa"])


def _saga(f: Facts, eps: float) -> float:
    h = stepsizes_newer.saga(f.c, facts_of(f.problem).each(), 1.0)
    return 1 + math.log(f.distance2 / f.distance_for(eps)) / -math.log1p(-h["kappa"])


def _al2sgd_plus(f: Facts, eps: float) -> float:
    # Ψ = ‖z−x*‖² + A f(y) + Aθ₂/(ρ−κ) f(v). The w that is reported is a mean of x or of an old y, of one iteration earlier.
    facts = facts_of(f.problem)
    h = stepsizes_newer.al2sgd_plus(facts.loss, facts.weights, facts.lam, noise=facts.constants.noise_beta)
    kappa, weight = 1 - rates.asvrcd_contraction(h, h["mu"]), 2 * h["gamma"] * h["nu"] / h["theta1"]
    of_v = weight * h["theta2"] / (h["rho"] - kappa)
    start = f.distance2 + (weight + of_v) * f.gap
    largest = max(1, 2 / (h["mu"] * weight), 2 / (h["mu"] * of_v))
    return 2 + math.log(2 * largest * start / f.distance_for(eps)) / -math.log1p(-kappa)


EXACT = (
    Exact("acd", ACD(), 1e-10, _acd),
    Exact("asvrcd", ASVRCD(), 1e-8, _asvrcd),
    Exact("svrcd", SVRCD(), 1e-8, _svrcd),
    Exact("lsgd_full", LSGD(tau=1, batch=None), 1e-10, _gradient_descent),
    Exact("scd_full", SCD(batch=None), 1e-8, _scd_full),
    Exact("ascd_full", ASCD(batch=None), 1e-8, _ascd_full),
    Exact("profile", Profile(), 1e-12, _profile),
    Exact("profile_lbfgs", Profile(outer="lbfgs"), 1e-12, _profile),
    Exact("profile_products", Profile(outer="lbfgs", inner="products", products=4), 1e-12, _profile),
    Exact("l2sgd_plus", L2SGDPlus(), 1e-8, _l2sgd_plus, needs="mixture"),
    Exact("pfedme_full", PFedMe(local_rounds=1, inner_steps=60, batch=None), 1e-8, _pfedme, needs="mixture"),
    Exact("scaffnew", Scaffnew(), 1e-10, _scaffnew, on=("traditional", "weight_sharing")),
    Exact("scafflix", Scafflix(), 1e-10, _scafflix, on=("flix", "adaptive_each")),
    Exact("saga", SAGA(), 1e-10, _saga, on=("residual", "multitask_inf")),
    Exact("al2sgd_plus", AL2SGDPlus(), 1e-8, _al2sgd_plus, needs="mixture"),
)


# --- noisy methods ----------------------------------------------------------------------------------------------------


def _estimator(f: Facts, p_w: float, batch: int) -> float:
    """σ² = E‖G(x*)‖² of the estimator of SCD with so many rows: the rows of each client are drawn independently."""
    weights2 = f.problem.clients.weights**2
    parts = [weights2 @ of / p for of, p in ((f.noise.of_w, p_w), (f.noise.of_beta, 1 - p_w)) if p > 0]
    return float(sum(parts)) / batch


def _scd(f: Facts, transient: float) -> tuple[float, float]:
    method: Any = complete(f.problem, _SCD)[0]
    left = transient * f.distance2
    k = math.log(1 / transient) / -math.log1p(-method.eta * f.c.mu)
    return k, left + stepsizes.scd_neighbourhood(method.eta, f.c.mu, _estimator(f, method.p_w, method.batch))


def _ascd(f: Facts, transient: float) -> tuple[float, float]:
    shorter, longer, p_w = _ascd_steps(f, BATCH)
    k = math.log(1 / transient) / -math.log1p(-shorter * f.c.mu)
    noise = stepsizes.scd_neighbourhood(longer, f.c.mu, _estimator(f, p_w, BATCH))
    return k, transient * f.distance2 + noise


def _lsgd(f: Facts, transient: float) -> tuple[float, float]:
    # Theorem main_result: (1−ημ)^K Φ⁰ + η(4σ²/(BM) + 8L^w η e(τ−1)τ(3ζ² + σ²/B)) for the weighted average of iterates.
    tau, eta = _LSGD.tau, stepsizes.lsgd(f.c, _LSGD.tau)["eta"]
    sigma2 = max(_sigma2(f.noise), _sigma2(f.noise_at_start))
    drift = 8 * f.c.L_w * eta * math.e * (tau - 1) * tau * (3 * f.noise.heterogeneity + sigma2 / BATCH)
    noise = eta * (4 * sigma2 / (BATCH * f.problem.M) + drift)
    start = rates.initial_error("lsgd", f.c, f.gap, f.distance2, tau=tau)
    steps = math.log(start / (transient * f.gap)) / -math.log1p(-eta * f.c.mu)
    return steps / tau, transient * f.gap + noise


def _sigma2(s: Spread) -> float:
    return max(float(np.max(s.of_w)), float(np.mean(s.of_beta)))


_LSGD = LSGD(tau=2, batch=BATCH, average=True)
# Its steps are so long that fewer rows would stop it too far from the optimum to say anything.
_SCD = SCD(batch=2 * BATCH)
NOISY = (
    Noisy("lsgd", _LSGD, "gap", _lsgd),
    Noisy("scd", _SCD, "distance", _scd),
    Noisy("ascd", ASCD(batch=BATCH), "distance", _ascd),
)
