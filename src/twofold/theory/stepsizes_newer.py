"""Hyper-parameters of the newer methods: Scaffnew, Scafflix, AL2SGD+, FedProx, and SAGA over clients.

As in `stepsizes`, each function returns a dict with one entry per hyper-parameter and an entry "note". Where a rate is proven,
"kappa" says by how much the method's potential falls in an iteration, in expectation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.each import EachClient
from twofold.theory.stepsizes import PSEUDO_CONDITION, Hyper, asvrcd_contraction, participation, usable_mu
from twofold.theory.tight import Batch, smoothness

__all__ = ["al2sgd_plus", "fedprox", "importance", "inner_steps", "saga", "scafflix", "scaffnew"]

Array = NDArray[np.float64]
INNER_ERROR = 0.1
"""What is left of f_m(w, β_m) − min_β f_m(w, β) after the local steps of one SAGA participation."""


# --- Scaffnew and Scafflix --------------------------------------------------------------------------------------------


def scaffnew(c: Constants, each: EachClient, batch: Batch = None, p_w: float | None = None) -> Hyper:
    """Scaffnew: η = 1/L, a round with probability p = √(ημ) = 1/√κ, L = max L_m, μ = min μ_m (Mishchenko et al. 2022).

    Let everyone have a copy w_m of w. Then F is Σ p_m f_m(w_m, β_m) plus the indicator ψ of w_1 = … = w_M, and Scaffnew is
    ProxSkip on it in the norm Σ p_m‖w_m‖² + ‖β_m‖², whose prox of ψ is the weighted mean of the w_m and leaves β alone. So the
    theorem of ProxSkip holds word for word, with β too: Ψ = ‖x − x*‖² + (η²/p²) Σ p_m‖h_m − ∇_w f_m(x*)‖² contracts by 1 − κ,
    κ = min{ημ, p²}, for any p and η ≤ 1/L. L_m and μ_m are those of `EachClient`.

    On b sampled rows g is unbiased, and E‖g − ∇f(x*)‖² ≤ 2AD + 2σ² gives η = 1/A and an end within 2η²σ²/κ. A row as it is drawn is
    R-smooth in that norm, R = 𝓛^w_π + 𝓛^β_π, and E‖g(x) − g(x*)‖² ≤ 2𝓛(b)D with 𝓛(b) = (1−1/b)L + R/b (as for `lsgd`), its
    variance being at most 2(R/b)D. So both A = 2𝓛(b), by ‖a+b‖² ≤ 2‖a‖² + 2‖b‖² for all of g, and A = L + 2R/b, by the same for its
    noise alone, are right. The smaller is A = 2R/b + min{1, 2−2/b}L, which is L for all rows.

    Where `each` has F's own μ for want of better (`each.common`), the step stays right, and only the linear rate is not proven.

    >>> from twofold.theory.each import common
    >>> c = Constants(0.03, 1.0, 2.0, 9.0, 8.0)
    >>> found = scaffnew(c, common(c, [0.5, 0.5]))
    >>> found["eta"] == 1 / 3, round(found["p_w"], 12), round(found["kappa"], 12)
    (True, 0.1, 0.01)
    """
    L = float(np.max(_of_rows(each.L, sum(c.drawn), batch)))
    if not L > 0:
        raise InputError("Scaffnew needs a function that is not flat: L^w and L^β are both 0; give eta.")
    mu, note = _client_mu(each, L)
    return _round(mu / L, p_w) | {"eta": 1 / L, "note": note}


def scafflix(c: Constants, each: EachClient, batch: Batch = None, p_w: float | None = None) -> Hyper:
    """Scafflix: every client's own step η_m = 1/L_m, a round with probability √(min η_m μ_m) (Yi, Condat, Richtárik 2023).

    It is `scaffnew` in the norm Σ (1/η_m)(p_m‖w_m‖² + ‖β_m‖²), in which F is 1-smooth and (min η_m μ_m)-strongly convex; the
    prox of ψ is the mean with weights p_m/η_m. So the condition number is the largest of a client, not max L_m/min μ_m. "mass"
    is Σ p_m/η_m. On sampled rows every client has the A of `scaffnew` for its own L_m.

    >>> from twofold.theory.each import common
    >>> c = Constants(0.03, 1.0, 2.0, 9.0, 8.0)
    >>> each = common(c, [0.5, 0.5])._replace(L=np.array([3.0, 1.0]), mu=np.array([0.03, 0.01]))
    >>> found = scafflix(c, each)
    >>> found["steps"].tolist() == [1 / 3, 1.0], round(found["kappa"], 12), found["mass"]
    (True, 0.01, 2.0)
    """
    L = _of_rows(each.L, sum(c.drawn), batch)
    if not np.all(L > 0):
        raise InputError(
            f"Scafflix needs a function of every client that is not flat, got L_m = {L.tolist()}; give steps."
        )
    mu, note = each.mu, None
    if not np.all(mu > 0):
        pseudo, note = _client_mu(each, float(np.max(L)))
        mu = np.maximum(mu, pseudo)
    return _round(float(np.min(mu / L)), p_w) | {"steps": 1 / L, "mass": float(each.weights @ L), "note": note}


def _of_rows(L: Array, row: float, batch: Batch) -> Array:
    """A = 2R/b + min{1, 2−2/b}L of `scaffnew`, for every client's L."""
    return L if batch is None else 2 * row / batch + min(1.0, 2 - 2 / batch) * L


def _client_mu(each: EachClient, L: float) -> tuple[float, str | None]:
    """The smallest μ_m, or one to set p by, with a note, if some client's f_m is not strongly convex."""
    mu = float(np.min(each.mu))
    if mu > 0:
        return mu, None
    mu = PSEUDO_CONDITION * L
    note = (
        f"Client {int(np.argmin(each.mu))}'s own function is not known to be strongly convex, so rounds come as for a condition "
        f"number of {1 / PSEUDO_CONDITION:.0f}; add a ridge (l2 > 0), or give p_w, for a guaranteed rate."
    )
    return mu, note


def _round(inverse_condition: float, p_w: float | None) -> Hyper:
    """p = 1/√κ, or the user's, and the contraction that belongs to it."""
    p = min(math.sqrt(inverse_condition), 1.0) if p_w is None else float(p_w)
    if not 0 < p <= 1:
        raise InputError(f"p_w, the probability of a round, must lie in (0, 1], got {p_w=}.")
    return {"p_w": p, "kappa": min(inverse_condition, p * p)}


# --- AL2SGD+ ----------------------------------------------------------------------------------------------------------


def al2sgd_plus(
    loss: LossConstants,
    weights: ArrayLike,
    lam: float,
    p_w: float | None = None,
    rho: float | None = None,
    eta: float | None = None,
    *,
    batch: Batch = 1,
    noise: float | None = None,
) -> Hyper:
    """AL2SGD+: L-Katyusha on f + ψ, f = Σ p_m f'_m(β_m), ψ = (λ/2)Σ p_m‖β_m − mean‖² (Hanzely, Hanzely, Horváth, Richtárik 2020).

    **Proven here**, for any p and ρ: Ψ of `rates.asvrcd_contraction` falls by 1 − κ in an iteration ("kappa"), with μ = min
    p_m μ'_m and η = 1/(4𝓛), θ₂ = ½, θ₁ = min{½, √(ημ max{½, θ₂/ρ})}, γ = 1/max{2μ, 4θ₁/η}, ν = 1 − γμ, 𝓛 = max{𝓛_f/(1−p),
    𝓛_ψ/p}. That proof asks for two things. (a) E‖g − ∇F(x)‖² ≤ 2𝓛D_F(v, x): g − ∇F(v) is (∇f_J(x) − ∇f_J(v))/(1−p) with
    probability 1−p and (∇ψ(x) − ∇ψ(v))/p with p, so its second moment is at most 2𝓛_f D_f(v, x)/(1−p) + 2𝓛_ψ D_ψ(v, x)/p ≤ 2𝓛
    D_F(v, x), where 𝓛_ψ = λ max p_m (∇²ψ = λ(diag p − ppᵀ) ⊗ I ⪯ λ max p_m). (b) F is 𝓛-smooth: 𝓛_f + 𝓛_ψ ≤ (1−p)𝓛 + p𝓛.
    tests/theory/test_stepsizes_newer.py has the spectral radius of the second moments beside κ.

    **𝓛_f knows the batch and the sampling.** The clients' blocks are orthogonal and their rows independent. Of b rows drawn with
    replacement, client m's part has the second moment (1−1/b)‖d_m‖² + E‖d_mj‖²/b, where d_m = p_m(∇f'_m(x_m) − ∇f'_m(v_m)) and
    d_mj is the same of one row as it is drawn: ℓ_j/(nπ_j) and the ridge, which is (V_m + μ'_m)-smooth at most and has the mean f'_m.
    Both are cocoercive, so 𝓛_f = (1−1/b) max p_mL'_m + (V^β + max p_mμ'_m)/b, with `noise` = V^β = max p_m max_j V_mj/(nπ_mj) of
    the sampling in force. Not given, the second part is max p_m𝓛'_m/b, the largest row. Of all rows (batch=None) it is max p_mL'_m.

    **Chosen**: p = 𝓛_ψ/(𝓛_f + 𝓛_ψ), which makes 𝓛 = 𝓛_f + 𝓛_ψ smallest, and ρ = p(1−p). Of averaging steps in a row only the first
    sends, if all weights are equal: then Σ_m p_m g_m = Σ_m p_m²∇f'_m(v) in an averaging step, as the x_m − mean x and the Ψ_m cancel.
    So where the means of x, z and p_m∇f'_m(v) are known, those of the next x and z follow without a message ("carry"). An iteration
    is a round with probability at most p(1−p) + ρ = 2p(1−p), and with 1/κ = O(1/ρ + √(𝓛/(ρμ))) rounds are
    O((1 + √(p(1−p)𝓛/μ)) log 1/ε), where p(1−p)𝓛 = 𝓛_f𝓛_ψ/𝓛 ≤ min{𝓛_f, 𝓛_ψ}: the paper's O(√(min{𝓛', λ}/μ') log 1/ε). What it takes
    are iterations: about λ/𝓛' averaging steps in a row for λ > 𝓛', without a gradient; where everybody is on one machine, a
    smaller p_w may end sooner. z and ∇f' are sent beside x and v only for p > ½, and for p ≤ ½ every averaging step sends.

    With unequal weights Σ_m p_m g_m does not simplify, and every averaging step sends: then p is at most ½. As an iteration is a
    round with probability p + (1−p)ρ ≤ 2p, rounds are O((1/(1−p) + √(p𝓛/((1−p)μ))) log 1/ε), and p𝓛 = 𝓛_ψ also for p = ½, 𝓛 = 2𝓛_ψ:
    O(√(𝓛_ψ/μ) log 1/ε) for every λ, and no p does better, since 𝓛 ≥ 𝓛_ψ/p. There, for λ > 𝓛', `acd` and `profile` need fewer
    rounds. A smaller ρ, such as 1/n for n rows, trades rounds for row gradients.

    **Beside the paper**: it states O(√(min{𝓛', λ}/μ') log 1/ε) rounds and, for another ρ, O((n + √(n(𝓛' + λ)/μ')) log 1/ε) row
    gradients, and that the two are not reached at once. (These orders are known from summaries of the paper; its algorithm
    could not be had here to be compared letter by letter, and the proof above does not rest on it.)

    >>> found = al2sgd_plus(LossConstants(0.1, 1.0, 3.0), [0.5, 0.5], lam=1.0)
    >>> found["p_w"], found["eta"], found["rho"]
    (0.25, 0.125, 0.1875)
    >>> al2sgd_plus(LossConstants(0.1, 1.0, 3.0), [0.5, 0.5], lam=1.0, batch=None)["eta"]
    0.25
    """
    p_m = np.asarray(weights, np.float64)
    of_loss, of_pull = _rows_of_loss(loss, p_m, batch, noise), lam * float(np.max(p_m))
    if not (of_loss > 0 and of_pull > 0):
        raise InputError(f"AL2SGD+ needs a loss that is not flat and λ > 0, got 𝓛' = {loss.calL_max} and {lam=}.")
    equal, best = bool(np.ptp(p_m) <= 1e-9 * np.max(p_m)), of_pull / (of_loss + of_pull)
    p = (best if equal else min(0.5, best)) if p_w is None else float(p_w)
    if not 0 < p < 1:
        raise InputError(f"p_w must lie strictly between 0 and 1, got {p_w=}: else one of f and ψ would never move.")
    refresh = p * (1 - p) if rho is None else float(rho)
    if not 0 < refresh <= 1:
        raise InputError(f"rho is a probability > 0, got {rho=}.")
    expected = max(of_loss / (1 - p), of_pull / p)
    mu = float(np.min(p_m * loss.mu))
    mu, note = usable_mu(Constants(mu, expected, expected, expected, expected), expected)
    step, theta2 = 1 / (4 * expected) if eta is None else float(eta), 0.5
    theta1 = min(0.5, math.sqrt(step * mu * max(0.5, theta2 / refresh)))
    gamma = 1 / max(2 * mu, 4 * theta1 / step)
    found: Hyper = {"p_w": p, "rho": refresh, "eta": step, "theta1": theta1, "theta2": theta2, "gamma": gamma}
    found["carry"] = equal and p > 0.5
    kappa = 1 - asvrcd_contraction(found, mu)
    return {**found, "nu": 1 - gamma * mu, "lam": lam, "mu": mu, "kappa": kappa, "note": note}


def _rows_of_loss(loss: LossConstants, p_m: Array, batch: Batch, noise: float | None) -> float:
    """𝓛_f of `al2sgd_plus`; at least the smoothness of f, whatever estimates at a point say."""
    whole = float(np.max(p_m * loss.L))
    row = float(np.max(p_m * loss.calL)) if noise is None else noise + float(np.max(p_m * loss.mu))
    return max(whole, smoothness(whole, row, batch))


# --- FedProx ----------------------------------------------------------------------------------------------------------


def fedprox(c: Constants, each: EachClient, batch: Batch = None, prox: float | None = None) -> Hyper:
    """FedProx: ρ = 6L^w, and the local steps η = 1/(L + ρ), shorter on sampled rows (Li et al. 2020, Corollary 7).

    The corollary takes ρ ≈ 6LB² for B-dissimilar clients, B ≥ 1; B is not known beforehand, and ρ is that of B = 1. L is the
    largest smoothness of a client in both blocks: f_m + (ρ/2)‖w − w^t‖² is (L + ρ)-smooth, and a row of it (R + ρ)-smooth. On
    sampled rows η = 1/A, with the A of `scaffnew` for these two.

    >>> from twofold.theory.each import common
    >>> c = Constants(0.03, 1.0, 1.0, 9.0, 8.0)
    >>> found = fedprox(c, common(c, [0.5, 0.5]))
    >>> found["prox"], found["eta"]
    (6.0, 0.125)
    """
    rho = 6 * float(np.max(each.L_w)) if prox is None else float(prox)
    if not 0 <= rho < math.inf:
        raise InputError(f"prox must be a finite number ≥ 0, got {prox=}.")
    L = float(np.max(_of_rows(each.L + rho, sum(c.drawn) + rho, batch)))
    if not L > 0:
        raise InputError("FedProx has no finite step size here: L^w and L^β are both 0; give eta.")
    return {"prox": rho, "eta": 1 / L, "note": None}


# --- SAGA over clients ------------------------------------------------------------------------------------------------


def saga(c: Constants, each: EachClient, q: ArrayLike, inner: int | None = None) -> Hyper:
    """SAGA over clients: η = 1/(L_F + 6C), C = max p_m L_m(1−q_m)/q_m; κ = min{ημ, min q_m/2} (`stepsizes.participation`).

    The functions are those with β eliminated, φ_m(w) = min_β f_m(w, β): their smoothness is at most L_m = L^w_m, and the
    strong convexity of Σ p_m φ_m is at least μ. A participant gets its β_m by `inner_steps` accelerated steps. **The rate is
    proven for exact elimination and for problems without β only**: with T local steps ∇_w f_m(w, β_m) is off by what is left
    of β_m's error, which no part of the potential counts. With the default T it is kept in practice:
    tests/algorithms/test_saga.py runs both kinds for as long as the theorem says.

    With unequal q_m a participant moves its memory by only a_m = min q/q_m of the way to the new gradient. Then Σ p_m h_m moves by
    min q times the mean message, so that one message is enough, and the proof holds with min q in place of every q_m in
    E[s_m⁺] (‖·‖² is convex), hence with the same η and κ. Equal q < 1 count M/(M−1) times, which also covers a fixed number of
    clients drawn without replacement: their covariance is −q(1−q)/(M−1).

    >>> from twofold.theory.each import common
    >>> c = Constants(0.01, 1.0, 0.0, 9.0, 0.0)
    >>> saga(c, common(c, [0.5, 0.5]), 1.0)["eta"], saga(c, common(c, [0.5, 0.5]), 0.5)["eta"]
    (1.0, 0.14285714285714285)
    """
    chance, M = np.asarray(q, np.float64), len(each.weights)
    uniform = chance.ndim == 0 or bool(np.all(chance == chance.flat[0]))
    drawn = M / (M - 1) if uniform and M > 1 else 1.0
    if np.any(each.L_w > 0):
        found = participation(c.L_w, drawn * each.L_w, each.weights, chance, c.mu)
    else:  # nothing is shared: a round is everyone's own local steps
        found = {"eta": 1.0, "kappa": 1 - INNER_ERROR, "note": None}
    local = {"L_beta": float(np.max(each.L_beta)), "momentum": _nesterov(each)}
    return {**found, **local, "q": float(chance.flat[0]) if uniform else chance, "inner": inner or inner_steps(each)}


def inner_steps(each: EachClient, error: float = INNER_ERROR) -> int:
    """How many accelerated steps leave at most `error` of the gap f_m(w, β_m) − min_β f_m(w, β) of any client.

    After T steps from rest it is at most 2(1 − 1/√κ)^T of the first one, κ the largest condition number in β: T = √κ ln(2/error).

    >>> from twofold.theory.each import common
    >>> inner_steps(common(Constants(0.01, 1.0, 0.04, 9.0, 8.0), [0.5, 0.5]))
    6
    """
    if not np.any(each.L_beta > 0):
        return 0
    return max(math.ceil(math.sqrt(_condition(each)) * math.log(2 / error)), 1)


def _condition(each: EachClient) -> float:
    """max L^β_m/min μ^β_m, at most 1/PSEUDO_CONDITION where a client's f_m may be flat in β."""
    top = float(np.max(each.L_beta))
    return top / max(float(np.min(each.mu_beta)), PSEUDO_CONDITION * top)


def _nesterov(each: EachClient) -> float:
    """(√κ − 1)/(√κ + 1)."""
    if not np.any(each.L_beta > 0):
        return 0.0
    root = math.sqrt(_condition(each))
    return (root - 1) / (root + 1)


def importance(L: float, client_L: ArrayLike, weights: ArrayLike, expected: float, mu: float = 0.0) -> Array:
    """The probabilities q_m with Σ q_m = `expected` that make κ of `saga` largest: q_m = max{p_m L_m/(p_m L_m + C), 2ημ}.

    The first equals out p_m L_m(1−q_m)/q_m = C, so that C is smallest. The second keeps min q/2 ≥ ημ, η = 1/(L_F + 6C), so that
    no memory is the slowest part. Σ q_m falls in C, which is found by bisection.

    >>> importance(1.0, [1.0, 1.0, 4.0], [1 / 3, 1 / 3, 1 / 3], expected=1.5).round(3).tolist()
    [0.39, 0.39, 0.719]
    """
    share = np.asarray(weights, np.float64) * np.asarray(client_L, np.float64)
    if not 0 < expected <= len(share):
        raise InputError(f"Between 0 and {len(share)} clients can take part, got {expected=}.")
    if not np.all(share > 0):
        raise InputError("Importance needs a positive smoothness of every client; take part uniformly instead.")

    def chances(C: float) -> Array:
        return np.clip(np.maximum(share / (share + C), 2 * mu / (L + 6 * C)), 0.0, 1.0)

    low, high = 0.0, float(np.sum(share)) + L
    while np.sum(chances(high)) > expected:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.sum(chances(middle)) > expected else (low, middle)
    return chances(high)
