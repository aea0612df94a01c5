"""The five constants of a personalised problem, and how each objective gets them from its loss.

In the scaled space F(w, β) = Σ_m p_m f_m(s·w, β_m), with weights p_m that sum to one (1/M each in the paper) and a
scale s (M^(-1/2) in the paper). The constants are those of Assumptions smooth_sc and smooth_summands:

- μ: F is jointly μ-strongly convex;
- L^w: every f_m is L^w-smooth in the scaled w;
- L^β: every p_m f_m is L^β-smooth in β_m (with p_m = 1/M: f_m is M L^β-smooth);
- 𝓛^w, 𝓛^β: the same for the part of a single sample, f_{m,i}.

Sharper constants also know the noise of sampled gradients, V^w = max p_m V^w_m and V^β = max p_m V^β_m, where V_m is the
data part of a single row's smoothness: its largest over the client's rows if rows are drawn uniformly, its mean if they are
drawn in proportion to it. L^w is then that of F alone, λ_max(Σ p_m ∇²_w f_m), and `L_client` the largest of a client's own.
𝓛^w_π and 𝓛^β_π are 𝓛^w and 𝓛^β of rows as they are drawn: row j, drawn with probability π_j, counts 1/(nπ_j) in its data part.

The printed lemmas hold for p_m = 1/M and s = M^(-1/2), under a condition. Beyond them μ comes from the matrix that
their proofs start from. Each Hessian of a client's loss is at least μ'_m I, and the blocks of ∇²F are then those of an
arrow matrix times the identity, ∇²F ⪰ [[a, bᵀ], [b, diag(c)]] ⊗ I, whose smallest eigenvalue is found in O(M).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as _replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError, KindError
from twofold.exports import aligned, html

__all__ = [
    "SYMBOLS", "Constants", "LossConstants", "Sampling", "adaptive", "arrow_smallest_eigenvalue", "local",
    "mixture", "multitask", "traditional", "weight_sharing",
]  # fmt: skip

Array = NDArray[np.float64]

HOW = ("certified", "local", "given")
"""Proved for every point, measured at one point, or told by the user."""

SYMBOLS = {"mu": "μ", "L_w": "L^w", "L_beta": "L^β", "calL_w": "𝓛^w", "calL_beta": "𝓛^β"}
NOISE_SYMBOLS = {"noise_w": "V^w", "noise_beta": "V^β", "drawn_w": "𝓛^w_π", "drawn_beta": "𝓛^β_π", "L_client": "L^w_m"}
"""Constants that only sharper estimates have; None elsewhere."""
Sampling = Literal["uniform", "importance"]
"""How rows are drawn: each with the same probability, or in proportion to its smoothness."""
_LOSS_SYMBOLS = {"mu": "μ'", "L": "L'", "calL": "𝓛'"}


def _check_how(how: Mapping[str, str], names: Mapping[str, str], owner: str) -> dict[str, str]:
    for name, value in how.items():
        if name not in names:
            raise InputError(f"{owner} has no constant {name!r}; it has {', '.join(names)}.")
        if value not in HOW:
            raise InputError(f"{owner}: how[{name!r}] must be one of {', '.join(HOW)}, got {value!r}.")
    return {name: how.get(name, "given") for name in names}


@dataclass(frozen=True, eq=False)
class LossConstants:
    """The curvature of a client's loss f'_m: strong convexity μ', smoothness L', smoothness of one sample 𝓛'.

    Each is a number for all clients or an array with one entry per client. `how` says for "mu", "L" and "calL" whether
    it is certified, local or given (the default).

    >>> loss = LossConstants(mu=[0.1, 0.2], L=1.0, calL=2.0)
    >>> loss.mu_min, loss.how["L"]
    (0.1, 'given')
    """

    mu: Any
    L: Any
    calL: Any
    how: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        sizes: set[int] = set()
        for name, symbol in _LOSS_SYMBOLS.items():
            value = np.array(getattr(self, name), dtype=np.float64)
            if value.ndim > 1:
                raise InputError(f"{symbol} must be a number or one number per client, got the shape {value.shape}.")
            if value.ndim and not value.size:
                raise InputError(f"{symbol} must have an entry for at least one client, got an empty array.")
            bad = np.flatnonzero(~(np.isfinite(value) & (value >= 0)))
            if bad.size:
                where = f" of client {bad[0]}" if value.ndim else ""
                raise InputError(f"{symbol}{where} must be a finite number ≥ 0, got {value.ravel()[bad[0]]}.")
            if value.ndim:
                sizes.add(value.size)
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        if len(sizes) > 1:
            raise InputError(f"μ', L' and 𝓛' must have one entry per client, got {sorted(sizes)} entries.")
        object.__setattr__(self, "how", _check_how(self.how, _LOSS_SYMBOLS, "LossConstants"))

    @property
    def clients(self) -> int | None:
        """How many clients the arrays are for, None if all three are single numbers."""
        return max((value.size for value in (self.mu, self.L, self.calL) if value.ndim), default=None)

    @property
    def mu_min(self) -> float:
        """The smallest μ' of a client: the μ' of the paper's lemmas."""
        return float(np.min(self.mu))

    @property
    def L_max(self) -> float:  # noqa: N802
        """The largest L' of a client: the L' of the paper's lemmas."""
        return float(np.max(self.L))

    @property
    def calL_max(self) -> float:  # noqa: N802
        """The largest 𝓛' of a client: the 𝓛' of the paper's lemmas."""
        return float(np.max(self.calL))


@dataclass(frozen=True)
class Constants:
    """μ, L^w, L^β, 𝓛^w, 𝓛^β of F in the scaled space, each with how it was obtained (Assumptions smooth_sc, _summands).

    `how` maps each name to "certified", "local" or "given" (the default); `why` may say in words where it comes from.
    A local estimate may well have 𝓛 < L or μ > L^w + L^β, so no order between the constants is enforced.

    `noise_w` and `noise_beta` are V^w = max p_m V^w_m and V^β = max p_m V^β_m, the noise of gradients whose rows are drawn by
    `sampling`. With them L^w is the smoothness of F itself, and step sizes know the batch and the clients; without them
    (None) they are the paper's. `L_client` is the largest smoothness in w of a client's own f_m, which local steps need;
    where it is None, 𝓛^w, which is never smaller, takes its place.

    `drawn_w` and `drawn_beta` are 𝓛^w_π = max_m max_j V^w_mj/(nπ_mj) + (the part of f_m without data) and the same of p_m f_m in β_m:
    the largest smoothness of a single row as `sampling` draws it, which a client's own step on a few rows needs. For uniform rows
    they are 𝓛^w and 𝓛^β. By importance they are mostly far smaller, but where one π serves two blocks a row may count up to twice.

    >>> c = Constants(mu=0.1, L_w=1.0, L_beta=2.0, calL_w=9.0, calL_beta=8.0)
    >>> print(c.replace(noise_w=0.5, noise_beta=4.0, sampling="uniform"))
    name  value  how    why
    μ     0.1    given
    L^w   1      given
    L^β   2      given
    𝓛^w   9      given
    𝓛^β   8      given
    V^w   0.5    given  set by hand (uniform sampling)
    V^β   4      given  set by hand (uniform sampling)
    """

    mu: float
    L_w: float
    L_beta: float
    calL_w: float
    calL_beta: float
    how: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    why: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    noise_w: float | None = None
    noise_beta: float | None = None
    sampling: Sampling | None = None
    L_client: float | None = None
    drawn_w: float | None = None
    drawn_beta: float | None = None

    def __post_init__(self) -> None:
        for name, symbol in {**SYMBOLS, **NOISE_SYMBOLS}.items():
            value = getattr(self, name)
            if value is None and name in NOISE_SYMBOLS:
                continue
            value = float(value)  # pyright: ignore[reportArgumentType]  (a None among the five is a TypeError)
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{symbol} must be a finite number ≥ 0, got {name}={value}.")
            object.__setattr__(self, name, value)
        _check_noise(self.noise_w, self.noise_beta, self.sampling)
        _check_drawn(self.drawn_w, self.drawn_beta, self.sampling)
        names = self.symbols
        for name in self.why:
            if name not in names:
                raise InputError(f"Constants has no constant {name!r}; it has {', '.join(names)}.")
        object.__setattr__(self, "how", _check_how(self.how, names, "Constants"))
        object.__setattr__(self, "why", {name: str(self.why.get(name, "")) for name in names})

    @property
    def symbols(self) -> dict[str, str]:
        """The symbol of each constant that is known here, by name."""
        return {**SYMBOLS, **{name: s for name, s in NOISE_SYMBOLS.items() if getattr(self, name) is not None}}

    @property
    def drawn(self) -> tuple[float, float]:
        """𝓛^w_π and 𝓛^β_π, or bounds on them where they are not known.

        `Problem` gives every row at least half of the probability that suits a block, π_j ≥ V_j/(2ΣV): then it counts at most twice
        the mean of the V_j. Drawn uniformly, as for the paper's constants, it is at most the largest row.

        >>> Constants(0.1, 1.0, 2.0, 9.0, 8.0).drawn
        (9.0, 8.0)
        """
        if self.drawn_w is not None and self.drawn_beta is not None:
            return self.drawn_w, self.drawn_beta
        times = 2 if self.sampling == "importance" else 1
        return times * self.calL_w, times * self.calL_beta

    @property
    def reshuffled(self) -> Constants:
        """The constants for passes over reshuffled rows, which take every row alike: what importance would gain does not count.

        >>> c = Constants(0.1, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="importance")
        >>> c.drawn, c.reshuffled.drawn
        ((18.0, 16.0), (9.0, 8.0))
        """
        if self.sampling != "importance":
            return self
        of_rows = {
            f"{name}_{block}": getattr(self, f"calL_{block}") for name in ("noise", "drawn") for block in ("w", "beta")
        }
        return _replace(self, **of_rows, sampling="uniform")

    def replace(self, **given: float | str | None) -> Constants:
        """The same constants with some set by hand; those are marked "given" from then on.

        >>> Constants(0.1, 1.0, 2.0, 9.0, 8.0).replace(mu=0.2).how["mu"]
        'given'
        """
        for name in given:
            if name not in SYMBOLS and name not in NOISE_SYMBOLS and name != "sampling":
                allowed = ", ".join([*SYMBOLS, *NOISE_SYMBOLS, "sampling"])
                raise KindError(f"Constants has no constant {name!r}; it has {allowed}.")
        marked = [name for name in given if name != "sampling"]
        gone = {name for name in marked if given[name] is None}
        how = {**self.how, **dict.fromkeys(marked, "given")}
        why = {**self.why, **dict.fromkeys(marked, "set by hand")}
        kept = ({name: text for name, text in words.items() if name not in gone} for words in (how, why))
        return _replace(self, **given, **dict(zip(("how", "why"), kept, strict=True)))

    def __str__(self) -> str:
        return "\n".join(aligned([_HEADER, *self._lines()], left=(1, 2, 3)))

    def _repr_html_(self) -> str:
        return html(_HEADER, self._lines(), left=(1, 2, 3))

    def _lines(self) -> list[tuple[str, str, str, str]]:
        texts: list[tuple[str, str, str, str]] = []
        for name, symbol in self.symbols.items():
            why = self.why[name]
            if name in NOISE_SYMBOLS and name != "L_client":
                why = f"{why} ({self.sampling} sampling)".lstrip()
            texts.append((symbol, f"{getattr(self, name):.6g}", self.how[name], why))
        return texts


def _check_noise(noise_w: float | None, noise_beta: float | None, sampling: str | None) -> None:
    if (noise_w is None) != (noise_beta is None):
        raise InputError(f"Give the noise of both blocks or of neither, got {noise_w=} and {noise_beta=}.")
    if sampling not in (None, "uniform", "importance"):
        raise InputError(f'sampling must be "uniform" or "importance", got {sampling=}.')
    if (noise_w is None) != (sampling is None):
        raise InputError(
            f"Noise constants and the sampling that they belong to come together, got {noise_w=} and {sampling=}."
        )


def _check_drawn(drawn_w: float | None, drawn_beta: float | None, sampling: str | None) -> None:
    if (drawn_w is None) != (drawn_beta is None):
        raise InputError(f"Give the largest drawn row of both blocks or of neither, got {drawn_w=} and {drawn_beta=}.")
    if drawn_w is not None and sampling is None:
        raise InputError(
            f"The largest drawn row belongs to a sampling: give sampling and the noise, too, got {drawn_w=} and {sampling=}."
        )


_HEADER = ("name", "value", "how", "why")


# --- the smallest eigenvalue of an arrow matrix -----------------------------------------------------------------------


def arrow_smallest_eigenvalue(a: float, b: ArrayLike, c: ArrayLike, *, schur: float | None = None) -> float:
    """The smallest eigenvalue of the symmetric arrow matrix [[a, bᵀ], [b, diag(c)]], in O(M) a step.

    An entry with b_m = 0 has the eigenvalue c_m to itself. With the others, below the smallest c_m, the eigenvalues are
    the roots of the secular equation φ(t) = a − t − Σ b_m²/(c_m − t) = 0. There φ is concave and falls from +∞ to −∞,
    so the root is unique, and Newton's method, once right of the root, descends to it; bisection guards the rest.

    `schur` is a − Σ b_m²/c_m, for callers who know it without the cancellation. If it is given, every c_m with b_m ≠ 0
    must be positive, and φ(t) = schur − t − t Σ b_m²/(c_m (c_m − t)) keeps a tiny eigenvalue to full precision.

    >>> round(arrow_smallest_eigenvalue(2.0, [1.0, 1.0], [3.0, 3.0]), 6)  # of [[2, 1, 1], [1, 3, 0], [1, 0, 3]]
    1.0
    """
    a = float(a)
    b, c = np.broadcast_arrays(np.atleast_1d(np.asarray(b, np.float64)), np.atleast_1d(np.asarray(c, np.float64)))
    if b.ndim != 1:
        raise InputError(f"b and c must have one entry per client, got the shape {b.shape}.")
    if not (math.isfinite(a) and np.all(np.isfinite(b)) and np.all(np.isfinite(c))):
        raise InputError("An arrow matrix must have finite entries, got a NaN or an infinity.")
    size = max(abs(a), float(np.max(np.abs(b), initial=0)), float(np.max(np.abs(c), initial=0)))
    if size == 0:
        return 0.0
    joined = b != 0
    alone = float(np.min(c[~joined], initial=np.inf)) / size
    a, b, c = a / size, b[joined] / size, c[joined] / size
    if not b.size:
        return min(a, alone) * size
    if schur is not None:
        if np.min(c) <= 0:
            raise InputError("The Schur complement is only of use for positive c, got a c ≤ 0 with b ≠ 0.")
        schur = float(schur) / size
    return min(_secular_root(a, b * b, c, schur), alone) * size


def _secular_root(a: float, b2: Array, c: Array, schur: float | None) -> float:
    """The root of φ below min c; b2 holds b_m², which may underflow to 0: then φ lacks that pole, and no harm done."""

    def phi(t: float) -> float:
        if schur is None:
            return a - t - float(np.sum(b2 / (c - t)))
        return schur - t - t * float(np.sum(b2 / (c * (c - t))))

    def slope(t: float) -> float:
        return -1.0 - float(np.sum(b2 / (c - t) ** 2))

    pole = float(np.min(c))
    # c ≥ pole makes the matrix at least [[a, ‖b‖], [‖b‖, pole]], and each 2×2 principal part is at least the whole.
    low = _smaller_of_two(a, float(np.sum(b2)), pole)
    low -= 8 * np.finfo(float).eps * max(1.0, abs(low))
    t = float(np.min(_smaller_of_two(a, b2, c)))
    high = pole
    if schur is not None:
        if schur >= 0:
            # Then the matrix is positive semidefinite, with 0 ≤ root ≤ schur by φ(0) = schur and φ(schur) ≤ 0.
            low, t = max(low, 0.0), min(t, schur)
        if schur == 0:
            return 0.0
    if not low < t < high:
        t = low + (high - low) / 2
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _falling_root(phi, slope, low, t, high)


def _falling_root(
    phi: Callable[[float], float], slope: Callable[[float], float], low: float, t: float, high: float
) -> float:
    """The root of a falling function between low and high: Newton's steps from t, or halves where these leave the interval."""
    for _ in range(300):
        value = phi(t)
        if value == 0:
            return t
        low, high = (t, high) if value > 0 else (low, t)
        following = t - value / slope(t)
        if not low < following < high:
            following = low + (high - low) / 2
        if following in (t, low, high) or abs(following - t) <= 2 * np.finfo(float).eps * abs(following):
            return following
        t = following
    return t


def _smaller_of_two(a: float, b2: Any, c: Any) -> Any:
    """The smaller eigenvalue of [[a, b], [b, c]] from a, b² and c."""
    half = (a - c) / 2
    return (a + c) / 2 - np.sqrt(half * half + b2)


# --- one function per objective ---------------------------------------------------------------------------------------


def _setting(
    loss: LossConstants, scale: float | None, weights: ArrayLike | None, clients: int | None, *more: ArrayLike
) -> tuple[int, float, Array, bool]:
    """(M, s, p, whether this is the paper's setting p_m = 1/M and s² = 1/M)."""
    sizes = {loss.clients, clients} | {np.size(x) for x in more if np.ndim(x)}
    if weights is not None:
        sizes.add(np.size(weights))
    sizes.discard(None)
    if not sizes:
        raise InputError(
            "The number of clients is unknown: pass weights or clients, or constants with one entry per client."
        )
    if len(sizes) > 1:
        raise InputError(f"The loss, the weights and alpha disagree on the number of clients: {sorted(sizes)}.")  # type: ignore[type-var]
    M = int(sizes.pop())  # type: ignore[arg-type]
    if M < 1:
        raise InputError(f"There must be at least one client, got clients={M}.")
    p = np.full(M, 1 / M) if weights is None else np.asarray(weights, np.float64)
    if p.ndim != 1 or not np.all(np.isfinite(p)) or np.any(p < 0) or abs(float(np.sum(p)) - 1) > 1e-6:
        raise InputError(f"The weights must be one number ≥ 0 per client and sum to one, got a sum of {np.sum(p)}.")
    s = M**-0.5 if scale is None else float(scale)
    if not math.isfinite(s) or s <= 0:
        raise InputError(f"The scale of w must be a finite number > 0, got {scale=}.")
    paper = bool(np.allclose(p, 1 / M, rtol=1e-9, atol=0)) and math.isclose(s * s * M, 1, rel_tol=1e-9)
    return M, s, p, paper


def _parameter(name: str, value: float) -> float:
    value = float(value)
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{name} must be a finite number ≥ 0, got {name}={value}.")
    return value


def _assemble(
    loss: LossConstants,
    mu: float,
    why: str,
    w: Mapping[str, float],
    beta: Mapping[str, float],
    formulas: tuple[str, str],
    free: bool,
) -> Constants:
    """Constants from μ and the smoothness of both blocks; `free` says that those of w do not depend on the loss."""
    how = {
        "mu": loss.how["mu"],
        "L_w": "certified" if free else loss.how["L"],
        "calL_w": "certified" if free else loss.how["calL"],
        "L_beta": loss.how["L"],
        "calL_beta": loss.how["calL"],
    }
    of_w, of_beta = formulas
    reasons = {
        "mu": why,
        "L_w": of_w,
        "L_beta": of_beta,
        "calL_w": of_w.replace("L'", "𝓛'"),
        "calL_beta": of_beta.replace("L'", "𝓛'"),
    }
    return Constants(max(float(mu), 0.0), w["L"], beta["L"], w["calL"], beta["calL"], how, reasons)


def _each(loss: LossConstants, function: Callable[[Array], Array]) -> dict[str, float]:
    """The largest entry of function(L') and of function(𝓛')."""
    return {name: float(np.max(function(getattr(loss, name)))) for name in ("L", "calL")}


_NONE = {"L": 0.0, "calL": 0.0}


def traditional(loss: LossConstants) -> Constants:
    """Constants of traditional federated learning, F(w) = Σ p_m f'_m(w): μ', L', 0 (eq. traditional; w is unscaled).

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = traditional(loss)
    >>> c.mu, c.L_w, c.L_beta
    (0.1, 1.0, 0.0)
    """
    why = "μ': every client's loss is μ'-strongly convex (the table of constants, traditional FL)"
    return _assemble(loss, loss.mu_min, why, _each(loss, lambda L: L), _NONE, ("max L'", "there is no β"), False)


def local(loss: LossConstants, weights: ArrayLike | None = None, *, clients: int | None = None) -> Constants:
    """Constants of local training, F(β) = Σ p_m f'_m(β_m): μ = min p_m μ'_m, L^β = max p_m L'_m (eq. fully).

    With p_m = 1/M: μ'/M, 0, L'/M.

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = local(loss, clients=10)
    >>> round(c.mu, 5), c.L_w, c.L_beta
    (0.01, 0.0, 0.1)
    """
    _, _, p, _ = _setting(loss, None, weights, clients)
    mu = float(np.min(p * loss.mu))
    why = "min p_m μ'_m: the clients are independent (μ'/M for equal weights)"
    return _assemble(loss, mu, why, _NONE, _each(loss, lambda L: p * L), ("there is no w", "max p_m L'_m"), False)


def mixture(
    loss: LossConstants,
    lam: float,
    scale: float | None = None,
    weights: ArrayLike | None = None,
    *,
    clients: int | None = None,
    sharp: bool = False,
) -> Constants:
    """Constants of the mixture MX2, f_m = f'_m(β_m) + (λ/2)‖s w − β_m‖² (Lemma mixture).

    Paper's setting and μ' ≤ λ/2: μ'/(3M), λ/M, (L'+λ)/M. Otherwise, or with `sharp`, μ is the smallest eigenvalue of
    the arrow matrix with a = s²λ, b_m = −p_m λ s, c_m = p_m (μ'_m + λ): only the blocks of the β_m depend on a loss.
    Its Schur complement is a − Σ b_m²/c_m = s² Σ p_m λ μ'_m/(μ'_m + λ).

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = mixture(loss, lam=0.5, clients=10)
    >>> round(c.mu, 5), c.L_w, round(c.L_beta, 5)
    (0.00333, 0.05, 0.15)
    """
    lam = _parameter("lam", lam)
    M, s, p, paper = _setting(loss, scale, weights, clients)
    if paper and not sharp and loss.mu_min <= lam / 2:
        mu, why = loss.mu_min / (3 * M), "μ'/(3M): Lemma mixture, as μ' ≤ λ/2"
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = np.where(loss.mu + lam > 0, p * lam * loss.mu / (loss.mu + lam), 0.0)
        mu = arrow_smallest_eigenvalue(
            s * s * lam, -p * lam * s, p * (loss.mu + lam), schur=s * s * float(np.sum(parts))
        )
        why = _arrow_why(paper, sharp, "μ' ≤ λ/2")
    formulas = ("s²λ (no data in it)", "max p_m (L'_m + λ)")
    return _assemble(
        loss, mu, why, dict.fromkeys(_NONE, s * s * lam), _each(loss, lambda L: p * (L + lam)), formulas, True
    )


def multitask(
    loss: LossConstants,
    lam: float,
    Lambda: float,
    scale: float | None = None,
    weights: ArrayLike | None = None,
    *,
    clients: int | None = None,
    sharp: bool = False,
) -> Constants:
    """Constants of multi-task MT2, f_m = Λ f'_m(s w) + f'_m(β_m) + (λ/2)‖β_m − s w‖² (Lemma smooth_sc_multitaks).

    Paper's setting, λ > 0 and Λ ≥ 3λ/(2μ'): λ/(2M), (ΛL'+λ)/M, (L'+λ)/M; the ½ that the table has in the last two is a
    slip. Otherwise, or with `sharp`, μ is the smallest eigenvalue of the arrow matrix with a = s²(Λ Σ p_m μ'_m + λ),
    b_m = −p_m λ s, c_m = p_m (μ'_m + λ), whose Schur complement is s² Σ p_m (Λ μ'_m + λ μ'_m/(μ'_m + λ)).

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = multitask(loss, lam=0.5, Lambda=10.0, clients=10)
    >>> round(c.mu, 5), c.L_w, round(c.L_beta, 5)
    (0.025, 1.05, 0.15)
    """
    lam, Lambda = _parameter("lam", lam), _parameter("Lambda", Lambda)
    M, s, p, paper = _setting(loss, scale, weights, clients)
    if paper and not sharp and lam > 0 and Lambda * loss.mu_min >= 1.5 * lam:
        mu, why = lam / (2 * M), "λ/(2M): Lemma smooth_sc_multitaks, as Λ ≥ 3λ/(2μ')"
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = np.where(loss.mu + lam > 0, lam * loss.mu / (loss.mu + lam), 0.0)
        a = s * s * (Lambda * float(np.sum(p * loss.mu)) + lam)
        schur = s * s * float(np.sum(p * (Lambda * loss.mu + parts)))
        mu = arrow_smallest_eigenvalue(a, -p * lam * s, p * (loss.mu + lam), schur=schur)
        why = _arrow_why(paper, sharp, "Λ ≥ 3λ/(2μ')")
    formulas = ("s² max (ΛL'_m + λ)", "max p_m (L'_m + λ)")
    w = _each(loss, lambda L: s * s * (Lambda * L + lam))
    return _assemble(loss, mu, why, w, _each(loss, lambda L: p * (L + lam)), formulas, False)


def adaptive(
    loss: LossConstants,
    alpha: ArrayLike,
    Lambda: float,
    scale: float | None = None,
    weights: ArrayLike | None = None,
    *,
    clients: int | None = None,
    sharp: bool = False,
) -> Constants:
    """Constants of adaptive APFL2, f_m = Λ f'_m(s w) + f'_m((1−α_m)β_m + α_m s w) (Lemma apfl).

    Paper's setting and Λ ≥ max α_m² + (1−α_m)²/2: μ'(1−α_max)²/(2M), (Λ+α²)L'/M, (1−α)²L'/M; the lemma misses the ½
    that its proof has. Otherwise, or with `sharp`, μ is the smallest eigenvalue of the arrow matrix with
    a = s² Σ p_m μ'_m (Λ + α_m²), b_m = p_m μ'_m α_m (1−α_m) s, c_m = p_m μ'_m (1−α_m)²: the Hessian of f'_m enters
    through the tensor product with (α_m s, 1−α_m)(α_m s, 1−α_m)ᵀ ⪰ 0, so it may be replaced by μ'_m I. The Schur
    complement is s² Λ Σ p_m μ'_m.

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = adaptive(loss, alpha=0.5, Lambda=1.0, clients=10)
    >>> round(c.mu, 5), c.L_w, round(c.L_beta, 5)
    (0.00125, 0.125, 0.025)
    """
    Lambda = _parameter("Lambda", Lambda)
    alpha = np.asarray(alpha, np.float64)
    if alpha.ndim > 1 or not np.all((alpha >= 0) & (alpha <= 1)):
        raise InputError(f"alpha must be a number in [0, 1], or one per client, got {alpha}.")
    M, s, p, paper = _setting(loss, scale, weights, clients, alpha)
    own = 1 - alpha
    if paper and not sharp and Lambda >= float(np.max(alpha**2 + own**2 / 2)):
        mu, why = loss.mu_min * float(np.min(own)) ** 2 / (2 * M), "μ'(1−α_max)²/(2M): Lemma apfl with its proof's ½"
    else:
        a = s * s * float(np.sum(p * loss.mu * (Lambda + alpha**2)))
        schur = s * s * Lambda * float(np.sum(p * loss.mu))
        mu = arrow_smallest_eigenvalue(a, p * loss.mu * alpha * own * s, p * loss.mu * own**2, schur=schur)
        why = _arrow_why(paper, sharp, "Λ ≥ α² + (1−α)²/2")
    formulas = ("s² max (Λ + α_m²) L'_m", "max p_m (1−α_m)² L'_m")
    w = _each(loss, lambda L: s * s * (Lambda + alpha**2) * L)
    return _assemble(loss, mu, why, w, _each(loss, lambda L: p * own**2 * L), formulas, False)


def weight_sharing(
    loss: LossConstants, scale: float | None = None, weights: ArrayLike | None = None, *, clients: int | None = None
) -> Constants:
    """Constants of weight sharing WS2, f_m = f'_m([s w, β_m]): μ = min{s² Σ p_m μ'_m, min p_m μ'_m} (Section 2.6).

    Since f'_m has a Hessian of at least μ'_m I, ∇²F is at least diag(s² Σ p_m μ'_m, p_1 μ'_1, …, p_M μ'_M) ⊗ I. In the
    paper's setting these are μ'/M, L'/M, L'/M (the paper prints μ' for μ and L' for L^β: a slip).

    >>> loss = LossConstants(mu=0.1, L=1.0, calL=2.0)
    >>> c = weight_sharing(loss, clients=10)
    >>> round(c.mu, 5), c.L_w, c.L_beta
    (0.01, 0.1, 0.1)
    """
    M, s, p, paper = _setting(loss, scale, weights, clients)
    mu = min(s * s * float(np.sum(p * loss.mu)), float(np.min(p * loss.mu)))
    if paper:  # the same number, free of rounding
        mu = loss.mu_min / M
    why = "μ'/M: the lemma on WS2 with the 1/M it misses" if paper else "min{s² Σ p_m μ'_m, min p_m μ'_m}"
    formulas = ("s² max L'_m", "max p_m L'_m")
    return _assemble(loss, mu, why, _each(loss, lambda L: s * s * L), _each(loss, lambda L: p * L), formulas, False)


def _arrow_why(paper: bool, sharp: bool, condition: str) -> str:
    if sharp:
        reason = "sharper than the lemma"
    else:
        reason = f"{condition} does not hold" if paper else "the weights or the scale are not the paper's"
    return f"smallest eigenvalue of the arrow matrix below ∇²F ({reason})"
