"""Hyper-parameters of every method from the constants of the problem: nobody has to tune a convex problem.

Each function returns a dict with one entry per hyper-parameter and an entry "note": a sentence for the user where
theory had to be stretched (an accelerated method on a problem with μ = 0), None otherwise.

`n` is the number of rows per client. Clients may have unequal numbers; ρ then uses their mean, as it only balances the
rows that a refresh costs on average (ρ·mean) against those of the ordinary steps, and no guarantee depends on it.

The stochastic methods share one estimator: with probability p_w the w-block of ∇F_J divided by p_w, otherwise the
β-block divided by p_β = 1 − p_w, where F_J takes one random row of each client, together or independently. It satisfies
E‖G(x) − G(x')‖² ≤ 2𝓛 D_F(x, x') with 𝓛 = 2 max{𝓛^w/p_w, 𝓛^β/p_β} (Lemma asvrcd-smooth-const, where one 𝓛^β is
misprinted as L^β), and by symmetry the same with D_F(x', x). The factor 2 is attained by f = ½(w + β)².

Constants that know the noise of sampled gradients (`Constants.noise_w`) give steps that know the batch and the clients: an
unbiased estimate with E‖g − ∇F(x)‖² ≤ 2σD, σ = Σ_i (V_i/b + (1−p_i)L_i)/p_i of `variance`, has the steps 1/(L + 2σ) of SCD and
1/(L + 6σ) of SVRCD, p_w and ρ are those of the smallest predicted cost, and ASVRCD has the steps of `theory.tight`. With a
`cost` and batch="auto" so is the batch; `message` is what a part of a message costs in bytes, up and down. Constants without noise
are the paper's, and so are their steps, whatever the batch. What the user sets always wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from twofold.errors import InputError
from twofold.theory.arrow import momentum as acd_momentum
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.cost import Cost
from twofold.theory.tight import (
    Asked,
    Batch,
    Design,
    Method,
    balanced,
    batches_of,
    design,
    momentum,
    smoothness,
    tight,
    variance,
)  # fmt: skip

__all__ = [
    "Hyper", "acd", "ascd", "asvrcd", "asvrcd_contraction", "check_nonconvex", "check_pl", "expected_smoothness", "hybrid",
    "l2sgd_plus", "largest_nonconvex_eta", "lsgd", "participation", "pfedme", "pl_beta", "pl_schedule", "refresh_probability", "scd",
    "scd_neighbourhood", "svrcd", "usable_mu", "variance", "w_probability",
]  # fmt: skip

Hyper = dict[str, Any]
"""Hyper-parameters by name, and "note"."""

PSEUDO_CONDITION = 1e-4
"""The μ/L that momentum is set for when μ = 0: as for a condition number of 10⁴."""


def usable_mu(c: Constants, L: float) -> tuple[float, str | None]:
    """A μ > 0 to set momentum by: the problem's own, or 10⁻⁴·L with a note if the problem has μ = 0.

    No rate is claimed with the second. The paper does likewise on images, where it sets μ' = 0.01 by hand.

    >>> usable_mu(Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0), L=5.0)
    (0.1, None)
    >>> mu, note = usable_mu(Constants(mu=0.0, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0), L=5.0)
    >>> mu
    0.0005
    """
    if c.mu > 0:
        return c.mu, None
    mu = PSEUDO_CONDITION * L
    note = (
        "No strong convexity is known (μ = 0), so momentum is set as for a condition number of "
        f"{1 / PSEUDO_CONDITION:.0f} (μ = {mu:.3g}); add a ridge, or give mu, for a guaranteed rate."
    )
    return mu, note


# --- ACD and LSGD -----------------------------------------------------------------------------------------------------


def lsgd(c: Constants, tau: int, batch: Batch = 1) -> Hyper:
    """The largest constant step of LSGD: η = min{1/(4L^β), 1/(8√(3e)(τ−1)L^w), 1/(4L^w)} (Theorems local, main_result).

    A term whose denominator vanishes is dropped. The last is not printed, but the proof needs η ≤ 1/(4 max{L^w, L^β}),
    and for τ = 1 the second says nothing.

    The theorem takes the noise for bounded, so it does not see that a step on few rows may overshoot. With noise constants
    η is also at most 1/(4𝓛(b)), the expected smoothness of `batch` rows of one client as they are drawn, and L^w is `L_client`,
    since every client goes its own way between rounds: 𝓛(b) = (1−1/b)L + 𝓛_π/b, since with replacement b rows have the second
    moment (1−1/b)‖d‖² + E‖d_j‖²/b, d the difference of full gradients and d_j that of a row as it is drawn, whose mean is d and
    which is 𝓛_π-smooth at most (`Constants.drawn`).

    >>> c = Constants(0.1, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform", L_client=3.0)
    >>> lsgd(c, tau=1, batch=1)["eta"] == 1 / 36, lsgd(c, tau=1, batch=None)["eta"] == 1 / 12
    (True, True)
    """
    if tau < 1 or tau != int(tau):
        raise InputError(f"The communication period must be a whole number ≥ 1, got {tau=}.")
    local, of_w, of_beta = _local_smoothness(c, batch)
    denominators = [4 * of_beta, 8 * math.sqrt(3 * math.e) * (tau - 1) * local, 4 * of_w]
    largest = max(denominators)
    if largest == 0:
        raise InputError("LSGD has no finite step size here: L^w and L^β are both 0; give eta.")
    return {"eta": 1 / largest, "note": None}


def _local_smoothness(c: Constants, batch: Batch) -> tuple[float, float, float]:
    """L^w of a single client, and what a local step on `batch` rows sees in w and in β."""
    if c.noise_beta is None:
        return c.L_w, c.L_w, c.L_beta
    local = c.calL_w if c.L_client is None else c.L_client
    row_w, row_beta = c.drawn
    # 𝓛^β_π is at most V^β + L^β, and where it is not known that may say more.
    return local, smoothness(local, row_w, batch), smoothness(c.L_beta, min(row_beta, c.noise_beta + c.L_beta), batch)


def acd(c: Constants) -> Hyper:
    """ACD: p_w = √L^w/S with S = √L^w + √L^β, ν = μ/S², θ = (√(ν²+4ν) − ν)/2, η = 1/θ (Theorem ACD-PFL).

    θ solves θ² = ν(1−θ), and E[F(y^k) − F*] ≤ (1−θ)^k (F(y⁰) − F* + (μ/2)‖x⁰ − x*‖²). The proof is short. A step on
    block i, drawn with p_i = √L_i/S, gains E[F(x) − F(y⁺)] ≥ Σ p_i/(2L_i) ‖∇_i F(x)‖²; the z-step is a mirror step with
    the norm S²‖·‖², in which F is ν-strongly convex, and its error η²/(2S²) E‖ĝ‖² is exactly η² times that gain. With
    x = (1−θ)y + θz and η = 1/θ, all F(x) cancel, and (F(y) − F*)/θ² + S²‖z − x*‖²/(2(1−θ)) contracts by 1 − θ.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> steps = acd(c)
    >>> round(steps["p_w"], 4), round(steps["eta"] * steps["theta"], 4)
    (0.3333, 1.0)
    """
    root_w, root_beta = math.sqrt(c.L_w), math.sqrt(c.L_beta)
    total = root_w + root_beta
    if total == 0:
        raise InputError("ACD needs a smooth block that is not flat: L^w and L^β are both 0.")
    mu, note = usable_mu(c, total**2)
    nu = mu / total**2
    theta = acd_momentum(nu)
    return {
        "p_w": root_w / total,
        "nu": nu,
        "theta": theta,
        "eta": 1 / theta,
        "L_w": c.L_w,
        "L_beta": c.L_beta,
        "note": note,
    }


def acd_any(c: Constants, p_w: float | None = None, nu: float | None = None) -> Hyper:
    """ACD with any probability of a w-step, and with the ν that belongs to it (formula 4).

    The step on block i, drawn with p_i, is y = x − g/L_i and z = (z + ηνx − ηp_i g/L_i)/(1 + ην). Here ν is the strong
    convexity of F in the norm Σ L_i/p_i² ‖·‖² of the two blocks: `Arrow.nu(p_w)` in a metric, in which both L_i are 1. Not
    given, it is μ·min{p_w²/L^w, p_β²/L^β}. θ and η follow from it as in `acd`, and so does the proof: a step gains
    E[F(x) − F(y⁺)] ≥ Σ p_i/(2L_i)‖∇_i F‖², and the error of the mirror step with the gradient g/p_i, in the dual norm with
    p_i²/L_i, is η²/2 Σ p_i·(p_i²/L_i)·‖∇_i F/p_i‖² = η² times that gain. The choice p_i = √L_i/(√L^w + √L^β) of Theorem
    ACD-PFL makes all L_i/p_i² equal, and is best if only μ is known.

    >>> c = Constants(mu=0.01, L_w=1.0, L_beta=1.0, calL_w=1.0, calL_beta=1.0)
    >>> acd_any(c)["nu"] == acd(c)["nu"], acd_any(c, p_w=0.1, nu=0.004)["nu"]
    (True, 0.004)
    """
    values = acd(c)
    if p_w is None and nu is None:
        return values
    chosen: float = values["p_w"] if p_w is None else float(p_w)
    if not 0 <= chosen <= 1:
        raise InputError(f"p_w is a probability, got {p_w=}: choose one between 0 and 1.")
    if (chosen == 0 and c.L_w > 0) or (chosen == 1 and c.L_beta > 0):
        raise InputError(f"With {p_w=} one block would never move: choose a p_w strictly between 0 and 1.")
    note = None
    if nu is None:
        mu, note = usable_mu(c, (math.sqrt(c.L_w) + math.sqrt(c.L_beta)) ** 2)
        nu = mu * min(p * p / L for p, L in ((chosen, c.L_w), (1 - chosen, c.L_beta)) if L > 0)
    if not 0 < nu < math.inf:
        raise InputError(f"ACD's strong convexity must be a finite number > 0, got {nu=}.")
    theta = acd_momentum(nu)
    return {**values, "p_w": chosen, "nu": nu, "theta": theta, "eta": 1 / theta, "note": note}


# --- the stochastic coordinate methods --------------------------------------------------------------------------------


def w_probability(c: Constants, p_w: float | None = None) -> float:
    """The probability of a w-step: p_w = 𝓛^w/(𝓛^w + 𝓛^β) (Theorem e1), or the user's, checked.

    It is 1 if there is no β (𝓛^β = 0), and 0 if there is no w (𝓛^w = 0).

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> w_probability(c), w_probability(c, p_w=0.5)
    (0.25, 0.5)
    """
    total = c.calL_w + c.calL_beta
    if total == 0:
        raise InputError("The step size needs a smooth block that is not flat: 𝓛^w and 𝓛^β are both 0.")
    if p_w is None:
        return c.calL_w / total
    p_w = float(p_w)
    if not 0 <= p_w <= 1:
        raise InputError(f"p_w is a probability, got {p_w=}.")
    if (p_w == 0 and c.calL_w > 0) or (p_w == 1 and c.calL_beta > 0):
        raise InputError(f"With {p_w=} one block would never move: choose a p_w strictly between 0 and 1.")
    return p_w


def expected_smoothness(c: Constants, p_w: float, batch: Batch = 1) -> float:
    """𝓛 = 2 max{𝓛^w/p_w, 𝓛^β/p_β}, where a block that is absent counts 0 (Lemma asvrcd-smooth-const).

    For the best p_w it is 2(𝓛^w + 𝓛^β). With noise constants it is 𝓛(b) = (V^w/b + L^w)/p_w + (V^β/b + L^β)/p_β: the
    variance of `variance` in both blocks, and ‖∇F(x) − ∇F(x')‖² ≤ 2(L^w + L^β) D_F(x, x').

    >>> c = Constants(0.1, 1.0, 2.0, 9.0, 8.0)
    >>> expected_smoothness(c, 0.5)
    36.0
    >>> expected_smoothness(c.replace(noise_w=0.5, noise_beta=4.0, sampling="uniform"), 0.5, batch=2)
    10.5
    """
    if c.noise_w is not None:
        return sum(variance(c, p_w, batch)) + c.L_w + c.L_beta
    parts = [L / p for L, p in ((c.calL_w, p_w), (c.calL_beta, 1 - p_w)) if L > 0]
    return 2 * max(parts)


def _choice(
    method: Method,
    c: Constants,
    n: float,
    batch: Asked,
    p_w: float | None,
    rho: float | None,
    cost: Cost | None,
    message: float,
) -> Design:
    """The cheapest p_w, ρ and batch, or the user's own, checked."""
    _check_rows(n)
    if rho is not None and not 0 < rho <= 1:
        raise InputError(f"rho is a probability > 0, got {rho=}.")
    mu, _ = usable_mu(c, c.L_w + c.L_beta)
    given = None if p_w is None else w_probability(c, p_w)
    return design(method, c, n, mu, batches=batches_of(batch, n, cost), cost=cost, message=message, p_w=given, rho=rho)


def _single(batch: Asked) -> Batch:
    """The paper's constants are those of a single row: there is nothing to choose."""
    return 1 if batch == "auto" else batch


def _check_rows(n: float) -> None:
    if not math.isfinite(n) or n < 1:
        raise InputError(f"A client has at least one row, got {n=}.")


def refresh_probability(p_w: float, n: float, optimal: Literal["w", "beta"] = "w", rho: float | None = None) -> float:
    """The probability ρ of a new reference point: p_w/n, or p_β/n for optimal="beta" (after Theorem e1).

    The first makes the number of ∇_w optimal, the second that of ∇_β. If it were 0 (a block is absent), 1/n is used.

    >>> refresh_probability(0.25, n=10), refresh_probability(0.25, n=10, optimal="beta")
    (0.025, 0.075)
    """
    n = float(n)
    _check_rows(n)
    if rho is not None:
        if not 0 < rho <= 1:
            raise InputError(f"rho is a probability > 0, got {rho=}.")
        return float(rho)
    if optimal not in ("w", "beta"):
        raise InputError(f'optimal must be "w" or "beta", got {optimal=}.')
    probability = p_w if optimal == "w" else 1 - p_w
    return probability / n if probability > 0 else 1 / n


def asvrcd(
    c: Constants,
    n: float,
    optimal: Literal["w", "beta"] = "w",
    p_w: float | None = None,
    rho: float | tuple[float | None, float | None] | None = None,
    eta: float | None = None,
    *,
    batch: Asked = 1,
    cost: Cost | None = None,
    message: float = 0.0,
    reference: Literal["one", "two"] = "one",
) -> Hyper:
    """ASVRCD: η = 1/(4𝓛), θ₂ = ½, θ₁ = min{½, √(ημ max{½, θ₂/ρ})}, γ = 1/max{2μ, 4θ₁/η}, ν = 1 − γμ (Theorem e1).

    The rate is proved in `rates.asvrcd_contraction`, for any `p_w` and `rho`. With ρ = p_w a refresh costs its n rows
    as often as w moves, but the rounds come down from the order of n + √(n𝓛^w/μ) to that of 1 + √(𝓛^w/μ).
    Given an `eta`, θ₁, γ and ν follow from it by the same formulas (the proof covers any η ≤ 1/(4𝓛)).

    With noise constants the steps are those of `tight.tight`, whose proof is the same without its slack, and "kappa" says by
    how much the error falls in an iteration. p_w and ρ are then those of the smallest `cost`, and `optimal` is not asked.
    With reference="two" there are two reference points, and ρ_w, ρ_β, θ_w, θ_β in place of ρ and θ₂ (`rho` may be a pair);
    without a `cost` they are `tight.balanced`, which is optimal in ∇_w and in ∇_β at once; with one, those that are cheapest.

    >>> c = Constants(0.01, 1.0, 2.0, 9.0, 8.0)
    >>> asvrcd(c, n=100)["eta"] == 1 / (4 * 2 * 17)
    True
    >>> known = c.replace(noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> few, all_rows = (asvrcd(known, n=100, batch=b)["eta"] for b in (1, None))
    >>> few < all_rows
    True
    """
    if reference not in ("one", "two"):
        raise InputError(f'reference must be "one" or "two", got {reference=}.')
    if c.noise_w is not None or reference == "two":
        return _tight_asvrcd(c, n, p_w, rho, eta, batch, cost, message, reference)
    if isinstance(rho, tuple):
        raise InputError(f"One reference point has one probability, got {rho=}.")
    p_w = w_probability(c, p_w)
    rho = refresh_probability(p_w, n, optimal, rho)
    smoothness = expected_smoothness(c, p_w)
    mu, note = usable_mu(c, c.calL_w + c.calL_beta)
    eta, theta2 = 1 / (4 * smoothness) if eta is None else float(eta), 0.5
    theta1 = min(0.5, math.sqrt(eta * mu * max(0.5, theta2 / rho)))
    gamma = 1 / max(2 * mu, 4 * theta1 / eta)
    return {
        "p_w": p_w,
        "rho": rho,
        "eta": eta,
        "theta1": theta1,
        "theta2": theta2,
        "gamma": gamma,
        "nu": 1 - gamma * mu,
        "note": note,
    }


def asvrcd_contraction(hyper: Hyper, mu: float) -> float:
    """The factor 1 − κ by which ASVRCD's Lyapunov function falls in one iteration, in expectation (Theorem e1).

    κ = min{γμ, the smaller root of κ² − (ρ+θ₁+θ₂)κ + ρθ₁}, so that 1/κ = O(1/ρ + √(𝓛/(ρμ))). Proof, with
    E‖g − ∇F(x)‖² ≤ 2𝓛 D_F(v, x), F 𝓛-smooth, η = 1/(4𝓛), θ₂ = ½:

    1. E F(y⁺) ≤ F(x) − (1/η − 𝓛/2) η² E‖g‖² + 2𝓛η D_F(v, x) = F(x) − ⅞η E‖g‖² + ½ D_F(v, x).
    2. z⁺ = νz + (1−ν)x − γg, and θ₁(z−x) = θ₂(x−v) + (1−θ₁−θ₂)(x−y); strong convexity cancels ‖x − x*‖², as 1 − ν = γμ:
       E‖z⁺−x*‖² ≤ ν‖z−x*‖² − 2γ(F(x)−F*) + γ²E‖g‖²
       − (2γν/θ₁)[(1−θ₁)F(x) − θ₂F(v) − (1−θ₁−θ₂)F(y) + θ₂D_F(v, x)].
    3. Put (1) into (2) with weight A = 2γν/θ₁. D_F(v, x) cancels as θ₂ = ½, and E‖g‖² goes as γ ≤ η/(4θ₁), ν ≥ ½ make
       ⅞ηA ≥ γ². With F(·)−F* = f(·): E[‖z⁺−x*‖² + A f(y⁺)] ≤ ν‖z−x*‖² + A θ₂ f(v) + A(1−θ₁−θ₂) f(y).
    4. E f(v⁺) = (1−ρ) f(v) + ρ f(y). So Ψ = ‖z−x*‖² + A f(y) + A θ₂/(ρ−κ) f(v) falls by 1 − κ.

    The tight steps that noise constants give come with their own κ (docs/two-references.md).

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> round(asvrcd_contraction(asvrcd(c, n=10), c.mu), 5)
    0.99779
    """
    if "kappa" in hyper:
        return 1 - hyper["kappa"]
    rho, theta1, theta2 = hyper["rho"], hyper["theta1"], hyper["theta2"]
    middle = rho + theta1 + theta2
    root = 2 * rho * theta1 / (middle + math.sqrt(middle * middle - 4 * rho * theta1))
    return 1 - min(hyper["gamma"] * mu, root)


def _tight_asvrcd(
    c: Constants,
    n: float,
    p_w: float | None,
    rho: float | tuple[float | None, float | None] | None,
    eta: float | None,
    batch: Asked,
    cost: Cost | None,
    message: float,
    reference: Literal["one", "two"],
) -> Hyper:
    p, rho_w, rho_beta, batch = _references(c, n, p_w, rho, batch, cost, message, reference)
    L = c.L_w + c.L_beta
    mu, note = usable_mu(c, L)
    h = tight(variance(c, p, batch), (rho_w, rho_beta), L, mu, eta)
    if eta is not None and h.eta != eta:
        note = (
            f"Theory covers a smaller step than eta={eta:g}, such as {h.eta:.3g}; θ, γ and ν are those of the latter. "
            "Leave eta open for a guaranteed rate."
        )
    found: Hyper = {"p_w": p, "eta": h.eta, "theta1": h.theta1, "gamma": h.gamma, "nu": h.nu, "kappa": h.kappa}
    found["batch"] = batch
    if reference == "one":
        return {**found, "rho": rho_w, "theta2": h.theta_w + h.theta_beta, "note": note}
    own = {"rho_w": rho_w, "rho_beta": rho_beta, "theta_w": h.theta_w, "theta_beta": h.theta_beta}
    return {**found, **own, "note": note}


def _references(
    c: Constants,
    n: float,
    p_w: float | None,
    rho: float | tuple[float | None, float | None] | None,
    batch: Asked,
    cost: Cost | None,
    message: float,
    reference: Literal["one", "two"],
) -> tuple[float, float, float, Batch]:
    """p_w, ρ_w, ρ_β and the batch."""
    w_probability(c)  # says so if both blocks are flat
    if reference == "one":
        if isinstance(rho, tuple):
            raise InputError(f"One reference point has one probability, got {rho=}.")
        chosen = _choice("asvrcd", c, n, batch, p_w, rho, cost, message)
        return chosen.p_w, chosen.rho_w, chosen.rho_beta, chosen.batch
    _check_rows(n)
    given = rho if isinstance(rho, tuple) else (rho, rho)
    for value in given:
        if value is not None and not 0 < value <= 1:
            raise InputError(f"rho is a probability > 0, got {rho=}.")
    mu, _ = usable_mu(c, c.L_w + c.L_beta)
    own = None if p_w is None else w_probability(c, p_w)
    if cost is not None:
        asked = batches_of(batch, n, cost)
        chosen = design("asvrcd", c, n, mu, batches=asked, cost=cost, message=message, p_w=own, references="two")
        p, batch, found = chosen.p_w, chosen.batch, [chosen.rho_w, chosen.rho_beta]
    else:
        batch = _single(batch)
        p, *found = balanced(c, n, mu, batch)
        if own is not None:
            share = 1.0 if batch is None else min(batch / n, 1.0)
            p, found = own, [share * q if q > 0 else share for q in (own, 1 - own)]
    rho_w, rho_beta = (old if new is None else new for old, new in zip(found, given, strict=True))
    return p, rho_w, rho_beta, batch


def ascd(
    c: Constants,
    n: float,
    optimal: Literal["w", "beta"] = "w",
    p_w: float | None = None,
    rho: float | None = None,
    eta: float | None = None,
    *,
    batch: Asked = 1,
    cost: Cost | None = None,
    message: float = 0.0,
) -> Hyper:
    """ASCD: p_w, η, γ and ν of ASVRCD, and θ = min{0.8, 1/η} (synthetic section; a heuristic, there is no theorem).

    Without control variates nothing is refreshed; ρ only enters through γ and ν.

    This choice diverges where μ is small against 𝓛: ASVRCD's γ = η/(4θ₁) grows without bound as θ₁ ~ √(μ/𝓛) falls, and is
    only right together with that θ₁, not with θ = 0.8. (tests/theory/test_ascd.py has an instance on which all assumptions of
    Theorem e1 hold, and even exact gradients diverge.) So with noise constants the steps are those of `tight.momentum`, whose
    γ = 2ηc(1−θ)/θ belongs to its θ. That is proved for the form in which the block not drawn moves to x; the paper's keeps its
    y and z, and is checked by the spectral radius of its second moments.

    >>> h = ascd(Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform"), n=100)
    >>> c = 1 - 3.0 * h["eta"] / 2
    >>> abs(h["gamma"] - 2 * h["eta"] * c * (1 - h["theta"]) / h["theta"]) < 1e-12
    True
    """
    if c.noise_w is None:
        hyper = asvrcd(c, n, optimal, p_w, rho, eta)
        kept = {name: hyper[name] for name in ("p_w", "rho", "eta", "gamma", "nu")}
        return {**kept, "theta": min(0.8, 1 / hyper["eta"]), "note": hyper["note"]}
    w_probability(c)
    chosen = _choice("ascd", c, n, batch, p_w, None, cost, message)
    L = c.L_w + c.L_beta
    mu, note = usable_mu(c, L)
    h = momentum(sum(variance(c, chosen.p_w, chosen.batch)), L, mu, eta)
    rho = refresh_probability(chosen.p_w, n, optimal, rho)
    found = {"p_w": chosen.p_w, "rho": rho, "eta": h.eta, "gamma": h.gamma, "nu": h.nu, "theta": h.theta}
    return {**found, "batch": chosen.batch, "note": note}


def hybrid(
    c: Constants,
    n: float,
    p_w: float | None = None,
    rho: float | None = None,
    eta: float | None = None,
    *,
    batch: Asked = 1,
    cost: Cost | None = None,
    message: float = 0.0,
) -> Hyper:
    """ASCD first, ASVRCD later, with the same η, γ and ν: those of Theorem e1, and ASCD's θ.

    With noise constants γ must be right for both. ASCD's is γ = 2ηc/a with a = κ + 4ησ and σ = σ_w + σ_β, and ASVRCD's proof
    asks for γ = 2ηcν/θ₁, hence θ₁ = νa beside θ₂ = 2ησ. They leave room for y, θ₁ + θ₂ ≤ 1, as η ≤ 1/(8σ).

    >>> h = hybrid(Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform"), n=100)
    >>> h["theta1"] + h["theta2"] <= 1
    True
    """
    if c.noise_w is None:
        return {**ascd(c, n, p_w=p_w, rho=rho, eta=eta), **asvrcd(c, n, p_w=p_w, rho=rho, eta=eta)}
    w_probability(c)
    chosen = _choice("asvrcd", c, n, batch, p_w, rho, cost, message)
    L, sigma = c.L_w + c.L_beta, sum(variance(c, chosen.p_w, chosen.batch))
    mu, note = usable_mu(c, L)
    h = momentum(sigma, L, mu, eta)
    if eta is None and 8 * h.eta * sigma > 1:
        h = momentum(sigma, L, mu, 1 / (8 * sigma))
    theta1, theta2 = h.nu * (h.kappa + 4 * h.eta * sigma), 2 * h.eta * sigma
    shared = {"p_w": chosen.p_w, "rho": chosen.rho_w, "eta": h.eta, "gamma": h.gamma, "nu": h.nu, "theta": h.theta}
    return {**shared, "theta1": theta1, "theta2": theta2, "batch": chosen.batch, "note": note}


def svrcd(
    c: Constants,
    n: float,
    optimal: Literal["w", "beta"] = "w",
    p_w: float | None = None,
    rho: float | None = None,
    *,
    batch: Asked = 1,
    cost: Cost | None = None,
    message: float = 0.0,
) -> Hyper:
    """SVRCD: p_w and ρ as ASVRCD, η = 1/(L + 6σ), or 1/(6𝓛) by the paper's constants (Algorithm SVRCD-PFL; it has no theorem there).

    Loopless SVRG, g = G(y) − G(v) + ∇F(v), and E g = ∇F(y). Write D = F(y) − F*, L = L^w + L^β for the smoothness of F, σ = σ_w + σ_β
    for the bounds of `variance`, Var(G(x) − G(x*)) ≤ 2σ(F(x) − F*), and s² = Var(G(v) − G(x*)). Only what varies is doubled:
    E‖g‖² = ‖∇F(y)‖² + Var(G(y) − G(v)) ≤ 2LD + 2Var(G(y) − G(x*)) + 2s² ≤ (2L + 4σ)D + 2s², and E[s⁺²] ≤ (1−ρ)s² + 2ρσD as v⁺ = y
    with probability ρ. By strong convexity E‖y⁺ − x*‖² ≤ (1−ημ)‖y − x*‖² − 2ηD + η²(2L + 4σ)D + 2η²s². Add (4/ρ)η² times the line
    of s²: the D-terms are −2η + η²(2L + 12σ) ≤ 0 for η ≤ 1/(L + 6σ), and those of s² are (4/ρ)η²(1 − ρ/2). So
    ‖y − x*‖² + (4η²/ρ)s² contracts by max{1−ημ, 1−ρ/2}. Without noise (σ = 0: all rows, one block) η = 1/L is gradient descent's.

    The paper's constants bound all of G, not its noise: with E‖G(x) − G(x*)‖² ≤ 2𝓛D for `expected_smoothness` the same proof, with
    s² = E‖G(v) − G(x*)‖² and E‖g‖² ≤ 4𝓛D + 2s², gives η = 1/(6𝓛). With noise constants p_w and ρ are those of the smallest `cost`.

    >>> c = Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> h = svrcd(c, n=100, batch=4)
    >>> h["eta"] == 1 / (3.0 + 6 * sum(variance(c, h["p_w"], 4)))
    True
    """
    if c.noise_w is not None:
        w_probability(c)
        chosen = _choice("svrcd", c, n, batch, p_w, rho, cost, message)
        eta = 1 / (c.L_w + c.L_beta + 6 * sum(variance(c, chosen.p_w, chosen.batch)))
        return {"p_w": chosen.p_w, "rho": chosen.rho_w, "eta": eta, "batch": chosen.batch, "note": None}
    p_w = w_probability(c, p_w)
    rho = refresh_probability(p_w, n, optimal, rho)
    return {"p_w": p_w, "rho": rho, "eta": 1 / (6 * expected_smoothness(c, p_w)), "note": None}


def scd(
    c: Constants,
    p_w: float | None = None,
    *,
    n: float = 1,
    batch: Asked = 1,
    cost: Cost | None = None,
    message: float = 0.0,
) -> Hyper:
    """SCD: η = 1/(L + 2σ), or 1/(2𝓛) by the paper's constants (Algorithm SCD-PFL; the paper has no theorem).

    G is unbiased: with L and σ as for `svrcd` and s² = Var G(x*) = E‖G(x*)‖², E‖G(x)‖² = ‖∇F(x)‖² + Var G(x) ≤ 2L(F(x) − F*) +
    2Var(G(x) − G(x*)) + 2s² ≤ (2L + 4σ)(F(x) − F*) + 2s². So for η ≤ 1/(L + 2σ)
    E‖x^k − x*‖² ≤ (1−ημ)^k ‖x⁰ − x*‖² + 2ηs²/μ: it stops short of the optimum, by `scd_neighbourhood`. Without noise η = 1/L.
    The paper's constants bound all of G: E‖G(x)‖² ≤ 4𝓛(F(x) − F*) + 2s², hence η = 1/(2𝓛). With noise constants p_w is that of the
    smallest `cost` (default: a round costs as much as `n` row gradients).

    >>> scd(Constants(0.01, 1.0, 2.0, 9.0, 3.0))["p_w"]
    0.75
    """
    if c.noise_w is not None:
        w_probability(c)
        chosen = _choice("scd", c, n, batch, p_w, None, cost, message)
        eta = 1 / (c.L_w + c.L_beta + 2 * sum(variance(c, chosen.p_w, chosen.batch)))
        return {"p_w": chosen.p_w, "eta": eta, "batch": chosen.batch, "note": None}
    p_w = w_probability(c, p_w)
    return {"p_w": p_w, "eta": 1 / (2 * expected_smoothness(c, p_w)), "note": None}


def scd_neighbourhood(eta: float, mu: float, sigma2: float) -> float:
    """How near SCD comes: E‖x − x*‖² ≤ 2ησ²/μ in the limit, with σ² = E‖G(x*)‖².

    >>> scd_neighbourhood(eta=0.1, mu=0.5, sigma2=2.0)
    0.8
    """
    if not mu > 0:
        raise InputError(f"SCD's neighbourhood needs strong convexity, got {mu=}.")
    return 2 * eta * sigma2 / mu


# --- baselines --------------------------------------------------------------------------------------------------------


def l2sgd_plus(
    c: Constants,
    p_w: float | None = None,
    *,
    rule: Literal["derived", "paper"] = "derived",
    penalty: float | None = None,
    batch: Batch = 1,
) -> Hyper:
    """L2SGD+: probability of averaging p = p_w of ASVRCD, η = 1/(6 max{𝓛^w/p, 𝓛^β/(1−p)}) (Hanzely & Richtárik 2020).

    The method works on β alone, F = f + ψ with f = Σ p_m f'_m(β_m) and the penalty ψ = (λ/2) Σ p_m ‖β_m − mean‖², and
    steps on ψ with probability p. With the best p this is η = 1/(3𝓛) for ASVRCD's 𝓛; rule="paper" gives ASVRCD's
    1/(4𝓛), as the paper ran it, which the proof covers.

    `penalty` is the smoothness λ max p_m of ψ, and takes the place of 𝓛^w, here and in p. The default, 𝓛^w = λ/M, is
    right for equal weights only: if one client has more than 12/M of the weight, it makes the step on ψ overshoot.

    The proof is that of SVRCD with two memories. E‖G(x) − G(x*)‖² ≤ 2𝓛_f D_f + 2𝓛_ψ D_ψ with 𝓛_f = 𝓛'/(M(1−p)) and
    𝓛_ψ = λ/(Mp): no factor 2, as f and ψ add up to F. A row's memory is renewed with r_f = (1−p)/n, that of
    the penalty with r_ψ = p. Weigh the errors σ_f², σ_ψ² of the memories by 4η²/r_f and 4η²/r_ψ; then the D-terms are
    −2ηD + 12η²(𝓛_f D_f + 𝓛_ψ D_ψ) ≤ 0 for η ≤ 1/(6 max{𝓛_f, 𝓛_ψ}), and everything contracts by
    max{1−ημ, 1−r_f/2, 1−r_ψ/2}. One weight for both memories would not do.

    With noise constants η knows the batch. In E‖g‖² ≤ 2E‖G(x) − G(x*)‖² + 2(memory), the first part has 𝓛_f(b) of
    `tight.smoothness`, but what enters a row's memory is still a single row's 𝓛_f: the D_f-terms are
    −2η + 4η²𝓛_f(b) + 8η²𝓛_f, hence η = 1/(2𝓛_f(b) + 4𝓛_f). With all rows (batch=None) the memory's mean is one full
    gradient, L^β takes the place of 𝓛_f, and η = 1/(6L^β/(1−p)). Rows must be drawn uniformly: one that is hardly ever drawn
    has an old memory. So 𝓛^β is what counts here, and the noise constants are not.

    >>> c = Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> l2sgd_plus(c, 0.5, penalty=0.1, batch=1)["eta"] < l2sgd_plus(c, 0.5, penalty=0.1, batch=8)["eta"]
    True
    """
    if rule not in ("derived", "paper"):
        raise InputError(f'rule must be "derived" or "paper", got {rule=}.')
    if penalty is not None:
        c = c.replace(calL_w=penalty)
    if c.noise_beta is not None and rule == "derived":
        return _l2sgd_plus_of_batch(c, p_w, batch)
    p = w_probability(c, p_w)
    none = dict.fromkeys(("noise_w", "noise_beta", "sampling", "drawn_w", "drawn_beta"))
    plain = c.replace(**none) if c.noise_w is not None else c
    eta = 1 / ((3 if rule == "derived" else 4) * expected_smoothness(plain, p))
    return {"p": p, "eta": eta, "note": None}


def _l2sgd_plus_of_batch(c: Constants, p_w: float | None, batch: Batch) -> Hyper:
    """The step that knows the batch; 6𝓛_f and 6𝓛_ψ are equal for the default p."""
    rows = 6 * c.L_beta if batch is None else 2 * smoothness(c.L_beta, c.calL_beta, batch) + 4 * c.calL_beta
    p = w_probability(c.replace(calL_beta=rows / 6), p_w)
    denominators = [L / q for L, q in ((6 * c.calL_w, p), (rows, 1 - p)) if L > 0]
    return {"p": p, "eta": 1 / max(denominators), "note": None}


def participation(L: float, client_L: ArrayLike, weights: ArrayLike, q: ArrayLike, mu: float = 0.0) -> Hyper:
    """Partial participation with memory (SAGA over clients): η = 1/(L_F + 6C) with C = max p_m L_m (1−q_m)/q_m.

    Client m takes part with probability q_m, independently, sends ∇f_m(w) − h_m and stores h_m = ∇f_m(w); the server steps
    along g = Σ p_m h_m + Σ_present (p_m/q_m)(∇f_m(w) − h_m). `L` is the smoothness of F in w, `client_L` that of each f_m.
    Write f = F − F*, D_m for f_m's Bregman distance to w*, s_m = p_m²((1−q_m)/q_m)‖h_m − ∇f_m(w*)‖². The clients are
    independent, so E‖g‖² ≤ ‖∇F‖² + Σ p_m²((1−q_m)/q_m)‖∇f_m(w) − h_m‖² ≤ (2L_F + 4C) f + 2Σ s_m, using ‖a−b‖² ≤ 2‖a‖² + 2‖b‖²
    and ‖∇f_m(w) − ∇f_m(w*)‖² ≤ 2L_m D_m; and E[s_m⁺] ≤ (1−q_m) s_m + 2q_m p_m C D_m. Weigh s_m by 4η²/q_m: the f-terms are
    −2η + η²(2L_F + 12C) = 0, those of s_m leave (4η²/q_m)(1 − q_m/2). So ‖w − w*‖² + 4η²Σ s_m/q_m contracts by
    1 − "kappa", κ = min{ημ, min q_m/2}. Proved for w alone, or β eliminated; everyone present (q = 1) gives 1/L_F.

    >>> participation(1.0, [1.0, 2.0], [0.5, 0.5], 1.0)["eta"]
    1.0
    >>> participation(1.0, [1.0, 2.0], [0.5, 0.5], 0.5, mu=0.14)["kappa"]
    0.02
    """
    L_m, p, q = (np.asarray(x, np.float64) for x in (client_L, weights, q))
    if not np.all((q > 0) & (q <= 1)):
        raise InputError(f"Each client must take part with a probability in (0, 1], got q={q}.")
    extra = float(np.max(p * L_m * (1 - q) / q))
    if not L + extra > 0:
        raise InputError(f"The step size needs a function that is not flat, got {L=} and {client_L=}.")
    eta = 1 / (L + 6 * extra)
    kappa = eta * mu if np.all(q == 1) else min(eta * mu, float(np.min(q)) / 2)
    return {"eta": eta, "smoothness": L + extra, "kappa": kappa, "note": None}


def pfedme(lam: float, loss: LossConstants, local_rounds: int) -> Hyper:
    """pFedMe: η = 1/(λR) for the R local rounds, and 1/(𝓛' + λ) for the steps of the inner problem (Dinh et al. 2020).

    The Moreau envelope that a client's local rounds descend is λ-smooth, so R steps of 1/(λR) move w at most as far as
    one full step; the inner problem f'(θ) + (λ/2)‖θ − w‖² is (𝓛' + λ)-smooth on any mini-batch.

    >>> pfedme(lam=0.5, loss=LossConstants(mu=0.1, L=1.0, calL=1.5), local_rounds=4)
    {'eta': 0.5, 'inner_eta': 0.5, 'note': None}
    """
    if not lam > 0:
        raise InputError(f"pFedMe needs a penalty λ > 0, got {lam=}.")
    if local_rounds < 1:
        raise InputError(f"pFedMe needs at least one local round, got {local_rounds=}.")
    return {"eta": 1 / (lam * local_rounds), "inner_eta": 1 / (loss.calL_max + lam), "note": None}


# --- LSGD beyond convexity --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PLSchedule:
    """The decreasing step η_k = 1/(μ(k + βτ + 1)) of Theorem PLNonConvex, k counting local steps.

    The theorem's (K + βτ)^-3 does not hold for this step: its proof needs (k+b−1)(k+b)² ≤ (k+b−1)³, which is the wrong
    way round, and on f = (μ/2)x² without noise the gap falls only as (βτ/(K+βτ))². What the proof's recursion
    a_{k+1} ≤ (1 − μη_k) a_k + c_k does give is a_K ≤ (βτ a_0 + Σ (k+βτ+1) c_k)/(K + βτ): O(log K/K) with noise.
    """

    mu: float
    beta: float
    tau: int

    def __post_init__(self) -> None:
        if not (self.mu > 0 and self.beta > 0 and self.tau >= 1):
            raise InputError(f"The PL schedule needs mu > 0, beta > 0 and tau ≥ 1, got {self}.")

    def __call__(self, k: Any) -> Any:
        """η_k; k may be a number, an array or a tracer."""
        return 1 / (self.mu * (k + self.beta * self.tau + 1))


def pl_schedule(mu: float, beta: float, tau: int) -> PLSchedule:
    """The step η_k = 1/(μ(k + βτ + 1)) as a hashable function of k (Theorem PLNonConvex).

    >>> eta = pl_schedule(mu=0.5, beta=3.0, tau=3)
    >>> float(eta(0)), float(eta(10))
    (0.2, 0.1)
    """
    return PLSchedule(float(mu), float(beta), int(tau))


def pl_beta(mu: float, L: float, lam: float, C1: float, C2: float, M: int) -> float:
    """The bound that β must exceed: max{(2λL/μ)(C₁/M + C₂ + 1) − 2, κ, 1}, κ = 2L²λ(C₁+1)/μ² (Theorem PLNonConvex).

    The proof also needs β² > κ e^{1/β} (eq. NonCLemma7-3), which the theorem leaves out; it follows for β ≥ 1.77 and is
    included here.

    >>> round(pl_beta(mu=1.0, L=2.0, lam=1.0, C1=0.0, C2=0.0, M=10), 3)
    8.0
    """
    if not mu > 0:
        raise InputError(f"The PL condition needs mu > 0, got {mu=}.")
    kappa = 2 * L * L * lam * (C1 + 1) / mu**2
    printed = max(2 * lam * L / mu * (C1 / M + C2 + 1) - 2, kappa, 1.0)
    if printed**2 > kappa * math.exp(1 / printed):
        return printed
    low, high = printed, max(printed, 2.0)  # β² e^{-1/β} increases, and at max{κ, 2} it exceeds κ
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if middle**2 > kappa * math.exp(1 / middle) else (middle, high)
    return high


class PLCheck(NamedTuple):
    """Whether β and τ meet the conditions of Theorem PLNonConvex, and the bounds they were held against."""

    ok: bool
    beta_above: float
    tau_at_least: float


def check_pl(beta: float, tau: int, mu: float, L: float, lam: float, C1: float, C2: float, M: int) -> PLCheck:
    """The conditions on β and τ: β > pl_beta and τ ≥ √(max{κe^{1/β} − 4, 0}/(β² − κe^{1/β})) (Theorem PLNonConvex).

    >>> check_pl(beta=10.0, tau=2, mu=1.0, L=2.0, lam=1.0, C1=0.0, C2=0.0, M=10).ok
    True
    """
    above = pl_beta(mu, L, lam, C1, C2, M)
    grown = 2 * L * L * lam * (C1 + 1) / mu**2 * math.exp(1 / beta)
    room = beta**2 - grown
    least = math.inf if room <= 0 else math.sqrt(max(grown - 4, 0.0) / room)
    return PLCheck(bool(beta > above and tau >= least), above, least)


class NonconvexCheck(NamedTuple):
    """Whether η is small enough, and the left side of the condition, which must not be positive."""

    ok: bool
    value: float


def _nonconvex_terms(L: float, tau: int, lam: float, C1: float, C2: float, M: int) -> tuple[float, float]:
    return L * lam * (C1 / M + C2 + 1), lam * L * L * (tau - 1) * tau * (C1 + 1)


def check_nonconvex(eta: float, L: float, tau: int, lam: float, C1: float, C2: float, M: int) -> NonconvexCheck:
    """−1 + ηLλ(C₁/M + C₂ + 1) + λη²L²(τ−1)τ(C₁+1) ≤ 0 (eq. GeneralNonConvex-eq-1).

    Here every f_m is jointly L-smooth in (w, β_m), λ is the dissimilarity of the clients, and C₁, C₂ are the relative
    variances of ∇_w and ∇_β. The theorem is for a β-step of η; ours has η/M, which is only more cautious.

    >>> check_nonconvex(eta=0.25, L=1.0, tau=2, lam=1.0, C1=0.0, C2=0.0, M=10)
    NonconvexCheck(ok=True, value=-0.625)
    """
    linear, quadratic = _nonconvex_terms(L, tau, lam, C1, C2, M)
    value = -1 + eta * linear + eta * eta * quadratic
    return NonconvexCheck(value <= 0, value)


def largest_nonconvex_eta(L: float, tau: int, lam: float, C1: float, C2: float, M: int) -> float:
    """The largest η that `check_nonconvex` accepts: η = 2/(b + √(b² + 4a)), the positive root of aη² + bη = 1.

    >>> round(largest_nonconvex_eta(L=1.0, tau=2, lam=1.0, C1=0.0, C2=0.0, M=10), 4)
    0.5
    """
    linear, quadratic = _nonconvex_terms(L, tau, lam, C1, C2, M)
    if linear + quadratic <= 0:
        raise InputError(f"Any step size will do for a flat function, got {L=} and {lam=}: give eta.")
    eta = 2 / (linear + math.sqrt(linear * linear + 4 * quadratic))
    while check_nonconvex(eta, L, tau, lam, C1, C2, M).value > 0:  # the last bit of rounding
        eta = math.nextafter(eta, 0.0)
    return eta
