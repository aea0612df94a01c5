"""What theory predicts: iterations, rounds and gradients to reach ε for each method, and the lower bounds.

A prediction by a proven rate is an upper bound on an expectation, so a method may well be faster. Each says what stands behind it:

- "certified": the contraction is proved in the docstrings here and in `stepsizes`, with its constants, and tested;
- "theorem": from the paper's theorem, whose constants rest on results quoted there;
- "unproven": a rate whose theorem assumes what this method does not do (saga with a β);
- "measured": what other problems took (profile); no bound;
- "none": the method has no guarantee (ASCD, pFedMe), or none for μ = 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from twofold.errors import InputError
from twofold.exports import aligned
from twofold.theory import stepsizes
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost
from twofold.theory.stepsizes import asvrcd_contraction
from twofold.theory.tight import Batch, variance

__all__ = [
    "METHODS", "LowerBounds", "Prediction", "Rate", "RateTable", "Table", "asvrcd_contraction", "chain_rounds", "initial_error",
    "lower_bounds", "predict", "predict_acd", "predict_anchored", "table1", "table2",
]  # fmt: skip

METHODS = ("lsgd", "acd", "scd", "ascd", "svrcd", "asvrcd", "l2sgd_plus", "pfedme")


@dataclass(frozen=True)
class Prediction:
    """The number of iterations, rounds and gradient evaluations per client after which `criterion` ≤ ε is guaranteed.

    A gradient evaluation is one call as in Table 1 of the paper: it touches `rows_per_gradient` rows (all n for ACD, a
    batch for LSGD, one for the others, whose full gradients at a refresh count as n calls). `eta` is the step size it
    is for: with noise, LSGD and SCD need a smaller one than `stepsizes` gives.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> found = predict("acd", c, eps=1e-6)
    >>> round(found.rounds), found.criterion, found.certainty
    (44, 'F − F*', 'certified')
    """

    iterations: float
    rounds: float
    grad_w: float
    grad_beta: float
    rows_per_gradient: float = 1.0
    criterion: str = "F − F*"
    certainty: str = "certified"
    note: str = ""
    eta: float | None = None

    def __str__(self) -> str:
        return _said(self)


class Rate(NamedTuple):
    """By how much a method's error falls in an iteration, what that error is, and how far this is proven.

    "certified" and "theorem" are proofs, the second of them with more in its assumptions or left out; "unproven" is a rate whose
    theorem assumes what this method does not do.

    >>> Rate(0.1).criterion, Rate(0.1).certainty
    ('‖x − x*‖²', 'certified')
    >>> round(Rate(0.1).iterations(1e-3))
    66
    """

    kappa: float
    criterion: str = "‖x − x*‖²"
    certainty: str = "certified"
    note: str = ""

    def iterations(self, eps: float) -> float:
        """Iterations after which `eps` of the error is left."""
        return math.log(1 / eps) / -math.log1p(-min(self.kappa, 1 - 1e-9))


def _said(found: Prediction | LowerBounds) -> str:
    """A line for each field."""
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    lines = [
        [name, f"{v:,.4g}" if isinstance(v, float) else str(v)] for name, v in values.items() if v not in (None, "")
    ]
    return "\n".join(aligned(lines, left=(1,)))


def _iterations(contraction: float, initial: float, eps: float) -> float:
    """The smallest K (as a real number) with contraction^K · initial ≤ ε."""
    if initial <= eps:
        return 0.0
    if contraction <= 0:
        return 1.0
    if contraction >= 1:
        return math.inf
    return math.log(initial / eps) / -math.log1p(contraction - 1)


def _check(eps: float, initial: float) -> None:
    if not eps > 0:
        raise InputError(f"The accuracy must be positive, got {eps=}.")
    if not initial >= 0:
        raise InputError(f"The initial error must not be negative, got {initial=}.")


def initial_error(
    method: str,
    c: Constants,
    gap: float,
    distance2: float,
    *,
    n: float | None = None,
    tau: int = 1,
    batch: Batch = 1,
    sigma2: float = 0.0,
    optimal: Literal["w", "beta"] = "w",
    p_w: float | None = None,
    rho: float | None = None,
    reference: Literal["one", "two"] = "one",
    cost: Cost | None = None,
) -> float:
    """The Φ⁰ for `predict(initial=...)`, from the gap F(x⁰) − F* and the squared distance ‖x⁰ − x*‖² (scaled space).

    ACD: gap + (μ/2)‖·‖². ASVRCD: Ψ⁰/A of `asvrcd_contraction`. SVRCD: ‖·‖² + (4η²/ρ)·2σ·gap (with 𝓛 for σ by the paper's
    constants), as its memory starts at x⁰. L2SGD+: ‖·‖² + 4η²σ²/min{p, (1−p)/n}, as its memory starts empty, with sigma2 = σ² =
    E‖G(x*)‖².
    SCD: ‖·‖². LSGD: 2‖·‖²/η (Theorem main_result, whose Φ⁰ misses the 2 of the β-part).
    `batch`, `reference` and `cost` matter with noise constants only, and must be those of `predict`.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> round(initial_error("acd", c, gap=1.0, distance2=4.0), 3)
    1.2
    """
    if method == "acd":
        return gap + c.mu / 2 * distance2
    if method == "scd":
        return distance2
    if method == "lsgd":
        return 2 * distance2 / stepsizes.lsgd(c, tau, batch)["eta"]
    rows = _rows(method, n)
    if method == "asvrcd":
        hyper = stepsizes.asvrcd(c, rows, optimal, p_w, rho, batch=batch, cost=cost, reference=reference)
        weight = 2 * hyper["gamma"] * hyper["nu"] / hyper["theta1"]
        return distance2 / weight + (1 + _anchor_weight(hyper, c.mu)) * gap
    if method == "svrcd":
        hyper = stepsizes.svrcd(c, rows, optimal, p_w, rho, batch=batch, cost=cost)
        paper = c.noise_w is None
        noise = stepsizes.expected_smoothness(c, hyper["p_w"]) if paper else sum(variance(c, hyper["p_w"], batch))
        return distance2 + 4 * hyper["eta"] ** 2 / hyper["rho"] * 2 * noise * gap
    if method == "l2sgd_plus":
        hyper = stepsizes.l2sgd_plus(c, p_w, batch=batch)
        return distance2 + 4 * hyper["eta"] ** 2 / _l2_memory(hyper["p"], rows) * sigma2
    raise InputError(f"There is no guarantee for {method!r}, hence no initial error; choose from {', '.join(METHODS)}.")


def _anchor_weight(hyper: stepsizes.Hyper, mu: float) -> float:
    """Σ θ_i/(ρ_i − κ), the weight of the reference points beside that of y in ASVRCD's potential."""
    kappa = 1 - asvrcd_contraction(hyper, mu)
    names = [("theta2", "rho")] if "rho" in hyper else [("theta_w", "rho_w"), ("theta_beta", "rho_beta")]
    return sum(hyper[theta] / (hyper[rho] - kappa) for theta, rho in names if hyper[theta] > 0)


def _rows(method: str, n: float | None) -> float:
    if n is None:
        raise InputError(f"The prediction for {method} depends on the rows per client: give n.")
    return float(n)


def _l2_memory(p: float, n: float) -> float:
    """How often the slower of L2SGD+'s memories is renewed; one that does not exist does not count."""
    return min(rate for rate in (p, (1 - p) / n) if rate > 0)


def predict_acd(theta: float, p_w: float, n: float, eps: float, initial: float = 1.0) -> Prediction:
    """ACD by its own θ and p_w: E[F−F*] ≤ (1−θ)^k Φ⁰; w's gradient and a round with probability p_w, β's otherwise.

    >>> round(predict_acd(0.1, 0.5, n=10, eps=1e-3).rounds, 1)
    32.8
    """
    _check(eps, initial)
    k = _iterations(1 - theta, initial, eps)
    return Prediction(k, p_w * k, p_w * k, (1 - p_w) * k, n)


def predict(
    method: str,
    c: Constants,
    eps: float,
    *,
    n: float | None = None,
    tau: int = 1,
    batch: Batch = 1,
    sigma2: float = 0.0,
    zeta2: float = 0.0,
    M: int = 1,
    initial: float = 1.0,
    optimal: Literal["w", "beta"] = "w",
    p_w: float | None = None,
    rho: float | None = None,
    reference: Literal["one", "two"] = "one",
    cost: Cost | None = None,
) -> Prediction:
    """Iterations, rounds and gradients that suffice for an error of ε, with the step sizes of `stepsizes` (Table 1).

    `initial` is the method's own initial error Φ⁰ (see `initial_error`); with the default 1, ε is relative to it. `n`
    is the rows per client: the mean, but the largest for L2SGD+, whose memory is as slow as its largest client. Rounds
    are iterations times the probability of communicating:

    - acd: E[F−F*] ≤ (1−θ)^k Φ⁰; rounds and ∇_w with probability p_w, ∇_β with p_β. Order √(L^w/μ), √(L^β/μ).
    - asvrcd: `asvrcd_contraction`; rounds with 1 − (1−p_w)(1−ρ); 2p_w + ρn calls of ∇_w, 2p_β + ρn of ∇_β.
    - svrcd: max{1−ημ, 1−ρ/2} on the squared distance; rounds and calls as asvrcd.
    - scd: (1−ημ)^k on the squared distance, with η also ≤ εμ/(4σ²) so that half of ε is left to it; here sigma2 is
      E‖G(x*)‖², and each call uses one row.
    - l2sgd_plus: max{1−ημ, 1−min{p, (1−p)/n}/2}; a round with probability p (when it averages).
    - lsgd: (1−ημ)^K Φ⁰ + ηΨ⁰ with Ψ⁰ = 4σ²/(BM) + 8L^w η e(τ−1)τ(3ζ² + σ²/B), and η as large as leaves half of ε to
      each part (`initial` is Φ⁰ at the largest η); Φ⁰/K instead for μ = 0. This is Theorem main_result, with the 4 that
      its proof gives where the paper has 2. `sigma2` and `zeta2` are σ² and ζ*², `batch` is B. Rounds are iterations/τ.
    - ascd, pfedme: no guarantee is known, everything is NaN.

    With noise constants the steps and so the numbers know the `batch` (None for all rows), scd's, svrcd's and asvrcd's p_w
    and ρ are those of the `cost`, and a sampled gradient touches b rows: calls are counted in rows. reference="two" is
    ASVRCD with two reference points: a new v^β costs n calls of ∇_β and no round.

    >>> c = Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> predict("asvrcd", c, 1e-6, n=100).rounds < predict("svrcd", c, 1e-6, n=100).rounds
    True
    """
    _check(eps, initial)
    if method not in METHODS:
        raise InputError(f"There is no method {method!r}; choose from {', '.join(METHODS)}.")
    if method in ("ascd", "pfedme"):
        return _nothing(f"{method} has no convergence theorem for this problem.")
    if method == "lsgd":
        return _predict_lsgd(c, eps, tau, batch, sigma2, zeta2, M, initial, n)
    if c.mu == 0:
        return _nothing(f"{method} has a rate only for μ > 0.", math.inf)
    if method == "acd":
        hyper = stepsizes.acd(c)
        k, p = _iterations(1 - hyper["theta"], initial, eps), hyper["p_w"]
        rows = 1.0 if n is None else float(n)
        return Prediction(k, k * p, k * p, k * (1 - p), rows_per_gradient=rows, eta=hyper["eta"])
    if method == "scd":
        return _predict_scd(c, eps, n, batch, sigma2, initial, p_w, cost)
    rows = _rows(method, n)
    if method == "l2sgd_plus":
        hyper = stepsizes.l2sgd_plus(c, p_w, batch=batch)
        p = hyper["p"]
        k = _iterations(max(1 - hyper["eta"] * c.mu, 1 - _l2_memory(p, rows) / 2), initial, eps)
        each = _rows_of_batch(c, batch, n)
        note = "It never evaluates ∇_w."
        return Prediction(k, k * p, 0.0, k * (1 - p) * each, criterion="‖β − β*‖²", note=note, eta=hyper["eta"])
    if method == "svrcd":
        hyper = stepsizes.svrcd(c, rows, optimal, p_w, rho, batch=batch, cost=cost)
        k = _iterations(max(1 - hyper["eta"] * c.mu, 1 - hyper["rho"] / 2), initial, eps)
        return _anchored(c, k, hyper, rows, _rows_of_batch(c, batch, n), "‖x − x*‖²")
    hyper = stepsizes.asvrcd(c, rows, optimal, p_w, rho, batch=batch, cost=cost, reference=reference)
    k = _iterations(asvrcd_contraction(hyper, c.mu), initial, eps)
    return _anchored(c, k, hyper, rows, _rows_of_batch(c, batch, n), "F − F*")


def predict_anchored(
    c: Constants, kappa: float, hyper: stepsizes.Hyper, n: float, batch: Batch, eps: float, criterion: str = "F − F*"
) -> Prediction:
    """A method with reference points whose error falls by 1 − κ in an iteration; `hyper` has its p_w, and ρ or ρ_w and ρ_β.

    >>> c = Constants(0.01, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    >>> found = predict_anchored(c, 0.1, {"p_w": 0.5, "rho": 0.1, "eta": 0.1}, n=10, batch=1, eps=1e-3)
    >>> round(found.rounds / found.iterations, 2)
    0.55
    """
    _check(eps, 1.0)
    return _anchored(c, _iterations(1 - kappa, 1.0, eps), hyper, n, _rows_of_batch(c, batch, n), criterion)


def _rows_of_batch(c: Constants, batch: Batch, n: float | None) -> float:
    """Rows of a sampled gradient; 1 for the paper's constants, whose steps and counts are for single rows."""
    if c.noise_w is None:
        return 1.0
    return _rows("a batch of all rows", n) if batch is None else float(batch)


def _anchored(c: Constants, k: float, hyper: stepsizes.Hyper, rows: float, each: float, criterion: str) -> Prediction:
    """What k iterations of a method with reference points cost; without a w there is nothing to send."""
    p, of_w = hyper["p_w"], hyper.get("rho", hyper.get("rho_w", 0.0))
    of_beta = hyper.get("rho", hyper.get("rho_beta", 0.0))
    has_w, has_beta = max(c.calL_w, c.L_w) > 0, max(c.calL_beta, c.L_beta) > 0
    rounds = k * (1 - (1 - p) * (1 - of_w)) if has_w else 0.0
    grad_w = k * (2 * p * each + of_w * rows) if has_w else 0.0
    grad_beta = k * (2 * (1 - p) * each + of_beta * rows) if has_beta else 0.0
    return Prediction(k, rounds, grad_w, grad_beta, criterion=criterion, eta=hyper["eta"])


def _predict_scd(
    c: Constants,
    eps: float,
    n: float | None,
    batch: Batch,
    sigma2: float,
    initial: float,
    p_w: float | None,
    cost: Cost | None,
) -> Prediction:
    hyper = stepsizes.scd(c, p_w, n=1 if n is None else n, batch=batch, cost=cost)
    eta = hyper["eta"] if sigma2 == 0 else min(hyper["eta"], eps * c.mu / (4 * sigma2))
    k = _iterations(1 - eta * c.mu, initial, eps if sigma2 == 0 else eps / 2)
    p, each = hyper["p_w"], _rows_of_batch(c, batch, n)
    return Prediction(k, k * p, k * p * each, k * (1 - p) * each, criterion="‖x − x*‖²", eta=eta)


def _nothing(note: str, value: float = math.nan) -> Prediction:
    return Prediction(value, value, value, value, criterion="", certainty="none", note=note)


def _predict_lsgd(
    c: Constants,
    eps: float,
    tau: int,
    batch: Batch,
    sigma2: float,
    zeta2: float,
    M: int,
    initial: float,
    n: float | None,
) -> Prediction:
    largest = stepsizes.lsgd(c, tau, batch)["eta"]
    rows = _rows("a batch of all rows", n) if batch is None else float(batch)
    spread = 0.0 if batch is None else sigma2 / batch
    local = c.L_w if c.noise_w is None else c.calL_w if c.L_client is None else c.L_client
    noise = 4 * spread / M
    drift = 8 * local * math.e * (tau - 1) * tau * (3 * zeta2 + spread)
    exact = noise == 0 and drift == 0
    eta, target = largest, eps
    if not exact:  # η·noise + η²·drift ≤ ε/2
        eta = min(largest, eps / (noise + math.sqrt(noise * noise + 2 * eps * drift)))
        target = eps / 2
        initial *= largest / eta  # Φ⁰ is proportional to 1/η
    if c.mu > 0:
        k = _iterations(1 - eta * c.mu, initial, target)
    else:
        k = initial / target
    rounds = 0.0 if c.L_w == 0 else k / tau
    return Prediction(
        k,
        rounds,
        0.0 if c.L_w == 0 else k,
        0.0 if c.L_beta == 0 else k,
        rows_per_gradient=rows,
        certainty="theorem",
        eta=eta,
    )


# --- lower bounds -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LowerBounds:
    """Orders that no method in the span of its oracle can beat (Theorem lb), constants ignored.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> lower_bounds(c, n=1, eps=1e-6).rounds > 0
    True
    """

    rounds: float
    grad_w: float
    grad_beta: float

    def __str__(self) -> str:
        return _said(self)


def lower_bounds(c: Constants, n: float = 1, eps: float = 1e-6) -> LowerBounds:
    """√(L^w/μ) log(1/ε) rounds, n + √(n𝓛^w/μ) log(1/ε) calls of ∇_w, n + √(n𝓛^β/μ) log(1/ε) of ∇_β (Theorem lb).

    A block that is absent costs nothing. For n = 1, the full gradient, put L for 𝓛 in `c`.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> found = lower_bounds(c, n=1, eps=1e-6)
    >>> round(found.rounds), round(found.grad_beta)
    (44, 108)
    """
    if c.mu == 0:
        raise InputError("The lower bounds are for strongly convex problems, but μ = 0; add a ridge, or give mu.")
    _check(eps, 1.0)
    digits = math.log(max(1 / eps, 1.0))

    def calls(smoothness: float) -> float:
        return 0.0 if smoothness == 0 else n + math.sqrt(n * smoothness / c.mu) * digits

    return LowerBounds(math.sqrt(c.L_w / c.mu) * digits, calls(c.calL_w), calls(c.calL_beta))


def chain_rounds(kappa: float, eps: float) -> float:
    """Rounds that any method needs on the chain for ‖w − w*‖² ≤ ε‖w*‖²: log(1/ε)/(2 log((√κ+1)/(√κ−1))) (lb_standard).

    The chain is ½wᵀAw − w_1 with A tridiagonal, 2 + c on the diagonal and −1 beside it, κ = (4+c)/c = L^w/μ. One client
    holds w_1 and every second edge, the other one the edges between, the first among them. From w = 0 the shared model
    gains one coordinate per round at most, and w*_i is q^i with q = (√κ−1)/(√κ+1); hence ‖w^k − w*‖² ≥ q^{2k}‖w*‖².
    This is exact in infinitely many dimensions; in d dimensions it holds for k ≪ d.

    >>> round(chain_rounds(kappa=100.0, eps=1e-6), 2)
    34.42
    """
    if kappa < 1:
        raise InputError(f"A condition number is at least 1, got {kappa=}.")
    if not eps > 0:
        raise InputError(f"The accuracy must be positive, got {eps=}.")
    if kappa == 1 or eps >= 1:
        return 0.0
    root = math.sqrt(kappa)
    return math.log(1 / eps) / (2 * math.log((root + 1) / (root - 1)))


# --- the paper's tables -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateTable:
    """A small table of numbers with a name for each row and column; printing it aligns the columns.

    >>> print(RateTable("needs", ("rounds", "∇β"), {"acd": (120.0, 340.5)}))
    needs
         rounds  ∇β
    acd  120     340.5
    """

    title: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Any, ...]]

    def __getitem__(self, row: str) -> dict[str, Any]:
        return dict(zip(self.columns, self.rows[row], strict=True))

    def __str__(self) -> str:
        lines = [["", *self.columns], *([name, *map(_text, row)] for name, row in self.rows.items())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        body = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )
        return "\n".join([self.title, *body])


Table = RateTable
"""Its name in `twofold.theory`."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def table1(
    c: Constants,
    n: float,
    eps: float,
    *,
    methods: Sequence[str] = METHODS,
    tau: int = 1,
    batch: Batch = 1,
    sigma2: float = 0.0,
    zeta2: float = 0.0,
    M: int = 1,
    initial: float = 1.0,
) -> RateTable:
    """Table 1 of the paper for given constants: what each method needs to reach ε, and the lower bounds of Theorem lb.

    The arguments are those of `predict`, where `sigma2` means E‖G(x*)‖² for SCD and σ² for LSGD.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=4.0, calL_w=2.0, calL_beta=6.0)
    >>> table = table1(c, n=10, eps=1e-4, methods=("acd", "asvrcd"))
    >>> list(table.rows)
    ['acd', 'asvrcd', 'lower bound']
    >>> round(table["acd"]["rounds"])
    29
    """
    rows: dict[str, tuple[Any, ...]] = {}
    for method in methods:
        p = predict(method, c, eps, n=n, tau=tau, batch=batch, sigma2=sigma2, zeta2=zeta2, M=M, initial=initial)
        rows[method] = (p.iterations, p.rounds, p.grad_w, p.grad_beta, p.rows_per_gradient, p.criterion, p.certainty)
    if c.mu > 0:
        bound = lower_bounds(c, n, eps)
        rows["lower bound"] = (None, bound.rounds, bound.grad_w, bound.grad_beta, 1.0, "‖x − x*‖²", "order")
    columns = ("iterations", "rounds", "grad_w", "grad_beta", "rows_per_gradient", "criterion", "certainty")
    return RateTable(f"To reach {eps:g} from {initial:g} (n = {n:g})", columns, rows)


TABLE2_COLUMNS = ("rounds", "full_grad_w", "full_grad_beta", "row_grad_w", "row_grad_beta", "condition_holds")


def table2(
    objective: str,
    mu: float,
    L: float,
    calL: float,
    *,
    lam: float | None = None,
    Lambda: float | None = None,
    alpha: ArrayLike | None = None,
    n: float = 1,
    eps: float | None = None,
) -> RateTable:
    """A row of Table 2 of the paper from μ', L', 𝓛': what ACD (rounds, full gradients) and ASVRCD (rows) need.

    Constants are ignored as there, and so is log(1/ε) unless `eps` is given, which multiplies everything by it.
    `condition_holds` says whether the objective's lemma applies. Two entries are mended: MT2's ∇_β, printed √(L'/λ), is
    √((L'+λ)/λ), since L^β = (L'+λ)/M (the printed one goes to 0 for a large λ); and likewise its ∇_w is √((ΛL'+λ)/λ).
    MX2 has no row for ∇_w F_i (None): that gradient has no data in it.

    - traditional: √(L'/μ'), √(L'/μ'), 0, n + √(n𝓛'/μ'), 0; local: the same on the other side, without rounds
    - multitask: √((ΛL'+λ)/λ) for w, √((L'+λ)/λ) for β, if Λ ≥ 3λ/(2μ')
    - mixture: √(λ/μ') for w, √((L'+λ)/μ') for β, if μ' ≤ λ/2
    - adaptive: √((Λ+α_max²)L'/((1−α_max)²μ')) for w, √((1−α_min)²L'/((1−α_max)²μ')) for β, if Λ ≥ α² + (1−α)²/2
    - weight_sharing: √(L'/μ') for both

    >>> table2("mixture", mu=0.01, L=1.0, calL=4.0, lam=0.5).columns
    ('rounds', 'full_grad_w', 'full_grad_beta', 'row_grad_w', 'row_grad_beta', 'condition_holds')
    """
    if not mu > 0:
        raise InputError(f"Table 2 is for strongly convex losses, got {mu=}.")

    def need(name: str, value: ArrayLike | None) -> np.ndarray:
        if value is None:
            raise InputError(f"The objective {objective} needs {name}.")
        return np.asarray(value, np.float64)

    holds = True
    some, none = (L / mu, calL / mu), (0.0, 0.0)
    plain = {"traditional": (some, none), "local": (none, some), "weight_sharing": (some, some)}
    if objective in plain:
        w, beta = plain[objective]
    elif objective == "multitask":
        penalty, relax = float(need("lam", lam)), float(need("Lambda", Lambda))
        w = tuple((relax * x + penalty) / penalty for x in (L, calL))
        beta = tuple((x + penalty) / penalty for x in (L, calL))
        holds = relax >= 3 * penalty / (2 * mu)
    elif objective == "mixture":
        penalty = float(need("lam", lam))
        w, beta = (penalty / mu, None), tuple((x + penalty) / mu for x in (L, calL))
        holds = mu <= penalty / 2
    elif objective == "adaptive":
        relax, blend = float(need("Lambda", Lambda)), need("alpha", alpha)
        high, low = float(np.max(blend)), float(np.min(blend))
        w = tuple((relax + high**2) * x / ((1 - high) ** 2 * mu) for x in (L, calL))
        beta = tuple((1 - low) ** 2 * x / ((1 - high) ** 2 * mu) for x in (L, calL))
        holds = bool(relax >= np.max(blend**2 + (1 - blend) ** 2 / 2))
    else:
        names = "traditional, local, multitask, mixture, adaptive, weight_sharing"
        raise InputError(f"Table 2 has no objective {objective!r}; choose from {names}.")
    digits = 1.0 if eps is None else math.log(1 / eps)

    def full(ratio: float) -> float:
        return math.sqrt(ratio) * digits

    def single(ratio: float | None) -> float | None:
        return None if ratio is None else 0.0 if ratio == 0 else (n + math.sqrt(n * ratio)) * digits

    row = (full(w[0]), full(w[0]), full(beta[0]), single(w[1]), single(beta[1]), "yes" if holds else "no")
    return RateTable(f"{objective}, up to a constant factor (n = {n:g})", TABLE2_COLUMNS, {objective: row})
