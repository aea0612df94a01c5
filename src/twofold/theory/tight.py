"""The variance of sampled gradients, the tight contraction of ASVRCD, and what p_w, ρ and the batch should be.

The estimator g of ∇F(x) draws a block (w with probability p_w, β with p_β = 1 − p_w) and b rows of every client:
g_i = (∇_i F_J(x) − ∇_i F_J(v^i))/p_i + ∇_i F(v^i) in the drawn block i, and ∇_i F(v^i) in the other. With one reference
point v^w = v^β. Every inequality is proved in docs/two-references.md and checked in tests/theory/test_two_references.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost

__all__ = [
    "BATCHES", "Design", "Tight", "balanced", "batches_of", "contraction", "design", "momentum", "smoothness", "steps", "tight",
    "variance",
]  # fmt: skip

Array = NDArray[np.float64]
Batch = float | None
"""Rows in a sampled gradient; None for all of a client's rows, each once."""
Asked = Batch | Literal["auto"]
"""A batch, or "auto" where cost may choose it."""
Method = Literal["scd", "ascd", "svrcd", "asvrcd"]
BATCHES: tuple[Batch, ...] = (1, 4, 16, 64, 256, None)
"""The batches that are looked at where cost chooses."""


# --- noise ------------------------------------------------------------------------------------------------------------


def _share(batch: Batch) -> float:
    """1/b, and 0 for all rows."""
    if batch is None:
        return 0.0
    if not batch >= 1:
        raise InputError(f"A batch has at least one row, got {batch=}; None stands for all rows.")
    return 1 / float(batch)


def _divide(a: Array, p: Array) -> Array:
    """a/p, and 0 where a = 0: a block that is flat needs no probability."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a > 0, a / p, 0.0)


def _variances(c: Constants, p_w: ArrayLike, batch: Batch) -> tuple[Array, Array]:
    """`variance` for many p_w at once."""
    p, share = np.asarray(p_w, np.float64), _share(batch)

    def block(p: Array, L: float, row: float, noise: float | None) -> Array:
        if noise is not None:
            return _divide(share * noise + (1 - p) * L, p)
        if batch is None:
            return _divide((1 - p) * L, p)
        return _divide(share * row + np.maximum(1 - p - share, 0.0) * L, p)

    return block(p, c.L_w, c.calL_w, c.noise_w), block(1 - p, c.L_beta, c.calL_beta, c.noise_beta)


def variance(c: Constants, p_w: float, batch: Batch = 1) -> tuple[float, float]:
    """The constants of E‖g − ∇F(x)‖² ≤ 2σ_w D_F(v^w, x) + 2σ_β D_F(v^β, x): how noisy the estimator is in each block.

    With noise constants V, rows drawn with replacement and independently between clients,
    σ_w = V^w/(b p_w) + ((1−p_w)/p_w) L^w and σ_β = V^β/(b p_β) + ((1−p_β)/p_β) L^β. Without them, from the largest row alone,
    σ_i = 𝓛_i/(b p_i) + max{0, 1 − p_i − 1/b} L_i/p_i. Of all rows (batch=None) only the coin's part ((1−p_i)/p_i) L_i is left.

    >>> c = Constants(0.1, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> variance(c, 0.5, batch=2), variance(c, 0.5, batch=None)
    ((1.5, 6.0), (1.0, 2.0))
    """
    sigma_w, sigma_beta = _variances(c, p_w, batch)
    return float(sigma_w), float(sigma_beta)


def smoothness(L: float, row: float, batch: Batch) -> float:
    """One client's expected smoothness (1−1/b) L + 𝓛/b of b rows drawn uniformly with replacement (formula 2).

    E‖∇f_J(x) − ∇f_J(x')‖² ≤ 2𝓛(b) D_f(x, x'), from 𝓛 of a single row (b = 1) to L of all rows (batch=None).

    >>> smoothness(1.0, 9.0, 1), smoothness(1.0, 9.0, 4), smoothness(1.0, 9.0, None)
    (9.0, 3.0, 1.0)
    """
    share = _share(batch)
    return (1 - share) * L + share * row


# --- the contraction --------------------------------------------------------------------------------------------------


class Tight(NamedTuple):
    """Step sizes of ASVRCD, and the κ by which its potential falls in one iteration: EΨ⁺ ≤ (1−κ)Ψ.

    >>> steps = Tight(eta=0.1, theta1=0.2, theta_w=0.5, theta_beta=0.0, gamma=0.5, nu=0.95, kappa=0.05)
    >>> round(1 / steps.kappa)  # iterations for a factor e
    20
    """

    eta: float
    theta1: float
    theta_w: float
    theta_beta: float
    gamma: float
    nu: float
    kappa: float


def contraction(
    eta: ArrayLike, L: float, mu: float, theta: tuple[ArrayLike, ArrayLike], rho: tuple[ArrayLike, ArrayLike]
) -> tuple[Array, Array]:
    """κ and θ₁ of ASVRCD for given η, θ_i and ρ_i: κ²(1 + Σ θ_i/(ρ_i−κ)) = 2ηcμ(1−κ), θ₁ = κ(1 + Σ θ_i/(ρ_i−κ)).

    Here c = 1 − Lη/2. The left side grows with κ and the right side falls, so the root is unique; bisection keeps the side on
    which everything is proved. Where the proof does not go through (c ≤ 0 or θ₁ + Σ θ_i > 1) κ is 0. Arrays broadcast.

    >>> kappa, theta1 = contraction(1.0, 1.0, 0.01, (0.0, 0.0), (1.0, 1.0))  # no noise: κ² = μη(1−κ), as Nesterov's
    >>> round(float(kappa), 6), round(float(theta1), 6)
    (0.095125, 0.095125)
    """
    eta, *rest = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (eta, *theta, *rho)))
    pairs = [(t, r) for t, r in zip(rest[:2], rest[2:], strict=True)]
    c = 1 - L * eta / 2
    goal = 2 * eta * np.maximum(c, 0.0) * mu

    def slowed(kappa: Array) -> Array:  # 1 + Σ θ_i/(ρ_i − κ)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sum([np.where(t > 0, t / (r - kappa), 0.0) for t, r in pairs], axis=0) + 1

    slowest = np.minimum(*(np.where(t > 0, r, 1.0) for t, r in pairs))
    # Up to `low` the left side is at most 2ηcμ/2, since ρ_i − κ ≥ ρ_i/2, and the right side at least that.
    with np.errstate(divide="ignore", invalid="ignore"):
        load = 1 + 2 * sum(np.where(t > 0, t / r, 0.0) for t, r in pairs)
    low = np.minimum(np.minimum(slowest, 1.0) / 2, np.sqrt(goal / 2 / load))
    high = np.maximum(np.minimum(slowest, np.sqrt(goal)), low)
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(invalid="ignore"):
            fits = middle**2 * slowed(middle) <= goal * (1 - middle)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    theta1 = low * slowed(low)
    proved = (c > 0) & (theta1 + sum(t for t, _ in pairs) <= 1)
    return np.where(proved, low, 0.0), theta1


def _ladder(L: Array | float, sigma: Array | float, points: int) -> Array:
    """Steps η to try, on a new last axis: up to what c > 0 and Σ θ_i < 1 allow."""
    with np.errstate(divide="ignore"):
        top = np.minimum(2 / np.asarray(L, np.float64), 0.5 / np.asarray(sigma, np.float64))
    return top[..., None] * np.geomspace(2e-3, 0.999, points)


def tight(sigma: tuple[float, float], rho: tuple[float, float], L: float, mu: float, eta: float | None = None) -> Tight:
    """The steps of ASVRCD with the largest proved κ: θ_i = 2ησ_i, γ = 2ηc/(θ₁+2ηcμ), ν = 1 − γμ, line search over η.

    `sigma` are the constants of `variance`, `rho` the probabilities of a new v^w and a new v^β (equal for one reference point,
    where θ₂ = θ_w + θ_β), L the joint smoothness of F. Given an `eta` that the proof covers, everything follows from it.

    >>> h = tight((1.0, 1.0), (0.1, 0.1), L=1.0, mu=0.01)
    >>> round(h.eta, 3), round(h.kappa, 4), h.theta_w == 2 * h.eta
    (0.183, 0.0181, True)
    """

    def at(eta: Array) -> tuple[Array, Array]:
        return contraction(eta, L, mu, (2 * eta * sigma[0], 2 * eta * sigma[1]), rho)

    found = None if eta is None else float(at(np.asarray(eta, np.float64))[0])
    if not found:
        ladder: Array = _ladder(L, sigma[0] + sigma[1], 64)
        for _ in range(3):  # finer each time, between the neighbours of the best
            best = int(np.argmax(at(ladder)[0]))
            eta = float(ladder[best])
            low, high = float(ladder[max(best - 1, 0)]), float(ladder[min(best + 1, len(ladder) - 1)])
            ladder = np.linspace(low, high, 33)
    assert eta is not None
    return steps(sigma, rho, L, mu, eta)


def steps(sigma: tuple[float, float], rho: tuple[float, float], L: float, mu: float, eta: float) -> Tight:
    """What follows from η: θ_i = 2ησ_i, θ₁, γ, ν, and κ, which is 0 where nothing is proved for this η.

    >>> steps((1.0, 1.0), (0.1, 0.1), L=1.0, mu=0.01, eta=0.183) == tight((1.0, 1.0), (0.1, 0.1), 1.0, 0.01, eta=0.183)
    True
    """
    kappa, theta1 = (
        float(x) for x in contraction(np.float64(eta), L, mu, (2 * eta * sigma[0], 2 * eta * sigma[1]), rho)
    )
    gain = 2 * eta * (1 - L * eta / 2)
    gamma = gain / (theta1 + gain * mu)
    return Tight(eta, theta1, 2 * eta * sigma[0], 2 * eta * sigma[1], gamma, theta1 / (theta1 + gain * mu), kappa)


class Momentum(NamedTuple):
    """Step sizes of a method with momentum and without control variates."""

    eta: float
    theta: float
    gamma: float
    nu: float
    kappa: float


def _momentum(eta: Array, sigma: Array | float, L: float, mu: float) -> Array:
    goal = 2 * eta * np.maximum(1 - L * eta / 2, 0.0) * mu
    with np.errstate(invalid="ignore"):
        return np.where(goal > 0, goal / (2 * eta * sigma + np.sqrt((2 * eta * sigma) ** 2 + goal)), 0.0)


def momentum(sigma: float, L: float, mu: float, eta: float | None = None) -> Momentum:
    """Steps for momentum on sampled gradients: κ² + 4ησκ = 2ηcμ, θ = a/(1+a) with a = κ + 4ησ, γ = 2ηc/a, ν = 1 − γμ.

    For x = θz + (1−θ)y, y⁺ = x − ηg, z⁺ = νz + (1−ν)x − γg with E‖g − ∇F(x)‖² ≤ 4σ f(x) + 2s², f = F − F*, which `variance`'s
    bound gives with σ = σ_w + σ_β: Ψ = ‖z−x*‖² + A f(y), A = 2γ(1−θ)/θ, has EΨ⁺ ≤ (1−κ)Ψ + 2Aηs². Proof: as in
    docs/two-references.md, but ⟨∇F(x), z−x⟩ ≥ ((1−θ)/θ)(f(x)−f(y)), and f(x) has the factor −2γ + A(κ+4ησ) = −2γ + 2γ = 0.
    So without noise it is accelerated, κ = √(2ηcμ), and with much noise it has the rate cμ/(2σ) of plain steps.
    η is the smallest that reaches nine tenths of the largest κ, since the distance at which noise stops it grows with η.

    >>> h = momentum(0.0, L=1.0, mu=0.01)
    >>> round(h.kappa, 3), round(momentum(100.0, L=1.0, mu=0.01).kappa * 100 / 0.01, 2)
    (0.091, 0.45)
    """
    if eta is None:
        ladder = np.geomspace(1e-6, 1.0, 400) * min(1 / L, np.inf if sigma == 0 else 1 / sigma)
        kappas = _momentum(ladder, sigma, L, mu)
        eta = float(ladder[int(np.argmax(kappas >= 0.9 * np.max(kappas)))])
    c = max(1 - L * eta / 2, 0.0)
    kappa = float(_momentum(np.asarray(eta, np.float64), sigma, L, mu))
    a = kappa + 4 * eta * sigma
    gamma = 2 * eta * c / a if a > 0 else eta
    return Momentum(eta, a / (1 + a), gamma, 1 - gamma * mu, kappa)


# --- p_w, ρ and the batch ---------------------------------------------------------------------------------------------


def balanced(c: Constants, n: float, mu: float, batch: Batch = 1) -> tuple[float, float, float]:
    """(p_w, ρ_w, ρ_β) with p_i ∝ √max{ℓ_i, nμ/b} and ρ_i = b p_i/n: the choice that is optimal in ∇_w and ∇_β at once.

    ℓ_i = V_i/b + L_i. With two reference points and b = 1 this gives κ ≥ ¼√(μ/n)/(√max{ℓ_w, nμ} + √max{ℓ_β, nμ}), hence
    at most 12(n + √(nℓ_i/μ)) row gradients in block i per factor e, for both i (docs/two-references.md).

    >>> c = Constants(0.01, 1.0, 1.0, 16.0, 1.0, noise_w=15.0, noise_beta=0.0, sampling="uniform")
    >>> [round(x, 3) for x in balanced(c, 10, 0.01)]
    [0.8, 0.08, 0.02]
    """
    of_w, of_beta = (_scale_of(c, block, batch) for block in ("w", "beta"))
    if of_w == 0 or of_beta == 0:
        p = 0.0 if of_w == 0 else 1.0
    else:
        floor = n * mu * _share(batch) if batch is not None else mu
        root_w, root_beta = np.sqrt(max(of_w, floor)), np.sqrt(max(of_beta, floor))
        p = float(root_w / (root_w + root_beta))
    share = 1.0 if batch is None else min(batch / n, 1.0)
    return p, (p * share if p > 0 else share), ((1 - p) * share if p < 1 else share)


def _scale_of(c: Constants, block: Literal["w", "beta"], batch: Batch) -> float:
    """ℓ_i: V_i/b + L_i, or (1−1/b)L_i + 𝓛_i/b without noise constants."""
    L, row, noise = (getattr(c, f"{name}_{block}") for name in ("L", "calL", "noise"))
    return smoothness(L, row, batch) if noise is None else L + _share(batch) * noise


def batches_of(batch: Asked, n: float, cost: Cost | None) -> tuple[Batch, ...]:
    """The batches to choose from: the user's own, one row where there is no cost to choose by, else those of less than n rows, and all.

    >>> (
    ...     batches_of("auto", 20, Cost(round=1.0, byte=0.0, gradient=1.0)),
    ...     batches_of("auto", 20, None),
    ...     batches_of(8, 20, None),
    ... )
    ((1, 4, 16, None), (1,), (8,))
    """
    if batch != "auto":
        return (batch,)
    return (1,) if cost is None else tuple(b for b in BATCHES if b is None or b == 1 or b < n)


@dataclass(frozen=True)
class Design:
    """The cheapest choice: p_w, ρ_w, ρ_β (equal for one reference point) and the batch, and its cost per factor e.

    >>> Design(p_w=0.2, rho_w=0.05, rho_beta=0.05, batch=1, kappa=0.01, cost=30.0).p_w
    0.2
    """

    p_w: float
    rho_w: float
    rho_beta: float
    batch: Batch
    kappa: float
    cost: float


def _probabilities(c: Constants, n: float, mu: float, batch: Batch, p_w: float | None) -> Array:
    """The p_w to try: the user's own, the only one where a block is flat, or a grid around what theory likes."""
    if p_w is not None:
        return np.array([float(p_w)])
    of_w, of_beta = (_scale_of(c, block, batch) for block in ("w", "beta"))
    if of_w == 0 or of_beta == 0:
        return np.array([0.0 if of_w == 0 else 1.0])
    liked = np.clip([of_w / (of_w + of_beta), balanced(c, n, mu, batch)[0]], 1e-6, 1 - 1e-6)
    return np.unique(np.concatenate([np.geomspace(0.002, 0.5, 14), [0.6, 0.75, 0.9, 0.97], liked]))


def _rates(method: Method, c: Constants, mu: float, batch: Batch, p: Array, rho_w: Array, rho_beta: Array) -> Array:
    """κ of a method at each point of the grid."""
    L, (sigma_w, sigma_beta) = c.L_w + c.L_beta, _variances(c, p, batch)
    total = sigma_w + sigma_beta
    if method == "asvrcd":
        eta = _ladder(np.broadcast_to(L, total.shape), total, 24)
        theta = tuple(2 * eta * np.asarray(s)[..., None] for s in (sigma_w, sigma_beta))
        return np.max(contraction(eta, L, mu, theta, (rho_w[..., None], rho_beta[..., None]))[0], axis=-1)  # type: ignore[arg-type]
    if method == "ascd":
        with np.errstate(divide="ignore"):
            top = np.minimum(1 / L, 1 / total)
        return np.max(_momentum(top[..., None] * np.geomspace(1e-6, 1, 48), total[..., None], L, mu), axis=-1)
    return mu / (L + 2 * total) if method == "scd" else np.minimum(mu / (L + 6 * total), rho_w / 2)


def design(
    method: Method,
    c: Constants,
    n: float,
    mu: float,
    *,
    batches: Sequence[Batch] = (1,),
    cost: Cost | None = None,
    message: float = 0.0,
    p_w: float | None = None,
    rho: float | None = None,
    references: Literal["one", "two"] = "one",
) -> Design:
    """The p_w, ρ and batch with the smallest predicted cost per factor e of the error, on a small grid.

    An iteration costs cost.round × the probability of a round, cost.byte × `message` bytes (up and down, per part that is
    sent) and cost.gradient × its row gradients; a factor e takes 1/κ of them. Without a `cost` a round costs as much as n row
    gradients. A w-gradient without noise (the mixture's) touches no row and is free.

    >>> c = Constants(0.01, 1.0, 1.0, 9.0, 9.0, noise_w=1.0, noise_beta=8.0, sampling="uniform")
    >>> dear = design("asvrcd", c, 100, 0.01, cost=Cost(round=1e3, byte=0.0, gradient=1.0))
    >>> cheap = design("asvrcd", c, 100, 0.01, cost=Cost(round=1e-3, byte=0.0, gradient=1.0))
    >>> dear.p_w < cheap.p_w
    True
    """
    prices = Cost(round=float(n), byte=0.0, gradient=1.0) if cost is None else cost
    anchored = method in ("svrcd", "asvrcd")
    found: list[Design] = []
    for batch in batches:
        rows, p = (n if batch is None else float(batch)), _probabilities(c, n, mu, batch, p_w)
        steps = np.geomspace(0.1, 30, 10) if rho is None and anchored else np.ones(1)
        per_row = rows / n
        often = np.where(p > 0, np.maximum(p, 1e-3), 1.0)  # without a w, the reference point is β's alone
        of_w = np.clip(often[:, None, None] * per_row * steps[:, None], 1e-9, 1.0)
        apart = references == "two"
        of_beta = np.clip(np.maximum(1 - p, 1e-3)[:, None, None] * per_row * steps, 1e-9, 1.0) if apart else of_w
        if rho is not None:
            of_w = of_beta = np.full((len(p), 1, 1), float(rho))
        grid = np.broadcast_arrays(p[:, None, None], of_w, of_beta)
        kappa = _rates(method, c, mu, batch, *grid)
        price = _price(prices, message, c, n, rows, anchored, *grid)
        with np.errstate(divide="ignore"):
            total = np.where(kappa > 0, price / kappa, np.inf)
        i = np.unravel_index(int(np.argmin(total)), total.shape)
        here = (float(x[i]) for x in grid)
        found.append(Design(*here, batch=batch, kappa=float(kappa[i]), cost=float(total[i])))
    return min(found, key=lambda each: each.cost)


def _price(
    cost: Cost,
    message: float,
    c: Constants,
    n: float,
    rows: float,
    anchored: bool,
    p: Array,
    rho_w: Array,
    rho_beta: Array,
) -> Array:
    """What an iteration costs on average."""
    touches = 0.0 if c.noise_w == 0 else 1.0
    if not anchored:
        return cost.round * p + cost.byte * message * p + cost.gradient * rows * (touches * p + 1 - p)
    talks = 1 - (1 - p) * (1 - rho_w)
    gradients = 2 * rows * (touches * p + 1 - p) + n * (touches * rho_w + rho_beta)
    return cost.round * talks + cost.byte * message * (p + rho_w) + cost.gradient * gradients
