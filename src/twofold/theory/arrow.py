"""The smallest eigenvalue of a block arrow matrix, and what ACD makes of it.

The Hessian of F(w, β) = Σ p_m f_m(s·w, β_m) couples w with every β_m and no β_m with another: it is an arrow,

    A = [[W, B_1, …, B_M], [B_1ᵀ, C_1, 0, …], …, [B_Mᵀ, 0, …, C_M]].

With the Schur complement S = W − Σ B_m C_m⁻¹ B_mᵀ and each C_m = U_m diag(c) U_mᵀ diagonal in a basis of its own, A − t
is positive definite for t < min c exactly where S(t) = W − t − Σ B_m (C_m − t)⁻¹ B_mᵀ is. Written with S,

    S(t) = S − t − t Σ B_m U_m diag(1/(c(c − t))) U_mᵀ B_mᵀ,

nothing cancels, so that a tiny eigenvalue keeps its digits. λ_min(S(t)) is concave and falling in t; where it is ≥ 0, t
is a certified lower bound of the smallest eigenvalue of A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError

__all__ = ["Arrow", "Choice", "best_probability", "momentum"]

Array = NDArray[np.float64]

ACCURACY = 1e-7
"""How near, relatively, the certified eigenvalue comes to the true one where rounding allows it."""

NEAR_POLE = 1e-3
"""A smallest eigenvalue that is nearer than this, relatively, to one of the private blocks is taken to be this far from it."""

PROBABILITIES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""The probabilities of a w-step that `best_probability` looks at first."""

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Arrow:
    """An arrow matrix by its Schur complement, in the eigenbases of its private blocks.

    Dense: `schur` (a, a), `cross` (a, K) with the columns of all B_m U_m side by side, `own` (K,) their eigenvalues c.
    Diagonal, where the matrix falls apart into one small arrow per coordinate of w: `schur` (a,), `cross` (a, M), `own`
    (a, M). `alone` is the smallest eigenvalue of private blocks that are not coupled with w (inf: there are none), and
    `rounding` bounds the error, as an operator, with which `schur` was computed.

    >>> import numpy as np
    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> arrow = Arrow(schur=np.array([2 - 1 / 3]), cross=np.array([[1.0]]), own=np.array([[3.0]]))
    >>> bool(np.isclose(arrow.smallest(), np.linalg.eigvalsh(matrix)[0]))
    True
    """

    schur: Array
    cross: Array
    own: Array
    alone: float = math.inf
    rounding: float = 0.0

    def weighted(self, of_w: float, of_beta: float) -> Arrow:
        """The matrix D A D with D = of_w on w and of_beta on every β_m."""
        return replace(
            self,
            schur=self.schur * of_w**2,
            cross=self.cross * (of_w * of_beta),
            own=self.own * of_beta**2,
            alone=self.alone * of_beta**2,
            rounding=self.rounding * of_w**2,
        )

    def smallest(self) -> float:
        """A certified lower bound of the smallest eigenvalue, sharp to `ACCURACY`; 0 where none is positive."""
        if not (self.schur.size or self.own.size):
            return max(self.alone, 0.0) if math.isfinite(self.alone) else 0.0
        if min(self.alone, float(np.min(self.own, initial=math.inf))) <= 0:
            return 0.0
        if not self.schur.size:
            return min(self.alone, float(np.min(self.own, initial=math.inf)))
        return float(min(_root(self), self.alone))

    def nu(self, p_w: float) -> float:
        """ν(p_w): strong convexity in the norm ‖w‖²/p_w² + Σ‖β_m‖²/(1−p_w)² (formula 4; upper blocks at most I).

        A block that is absent needs no probability: p_w = 1 without β, 0 without w.
        """
        if not 0 <= p_w <= 1:
            raise InputError(f"p_w is a probability, got {p_w=}: choose one between 0 and 1.")
        return self.weighted(p_w, 1 - p_w).smallest()

    @property
    def has_shared(self) -> bool:
        """Whether there is a w."""
        return self.schur.size > 0

    @property
    def has_private(self) -> bool:
        """Whether there is any β."""
        return self.own.size > 0 or math.isfinite(self.alone)


def _schur(arrow: Arrow, t: float) -> tuple[float, float]:
    """λ_min(S(t)), less an allowance for rounding, and its slope."""
    gap = arrow.own - t
    weight = t / (arrow.own * gap)
    if arrow.schur.ndim == 1:
        values = arrow.schur - t - np.sum(arrow.cross**2 * weight, axis=1)
        j = int(np.argmin(values))
        slope = -1.0 - float(np.sum((arrow.cross[j] / gap[j]) ** 2))
        return float(values[j]) - arrow.rounding - 8 * _EPS * max(float(arrow.schur[j]), t), slope
    matrix = arrow.schur - (arrow.cross * weight) @ arrow.cross.T
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2 - t * np.eye(len(matrix)))
    along = vectors[:, 0] @ arrow.cross
    slope = -1.0 - float(np.sum((along / gap) ** 2))
    rounding = _EPS * len(matrix) * max(float(np.max(np.abs(arrow.schur))), t)
    return float(values[0]) - arrow.rounding - rounding, slope


def _root(arrow: Arrow) -> float:
    """The root of λ_min(S(t)) on 0 ≤ t < min c, from below.

    A tangent of a concave function lies above it, so that Newton's method, once right of the root, stays there and
    descends. What it has converged to is then lowered a little, until λ_min(S(t)) ≥ 0 is seen.
    """
    first, slope = _schur(arrow, 0.0)
    if first <= 0:
        return 0.0
    t = min(-first / slope, (1 - NEAR_POLE) * float(np.min(arrow.own, initial=math.inf)))
    value, slope = _schur(arrow, t)
    for _ in range(100):
        if value >= 0:
            return t
        following = t - value / slope
        t = following if t - following > ACCURACY / 2 * t else (1 - ACCURACY) * following
        value, slope = _schur(arrow, t)
    return t * first / (first - value)  # a chord lies below a concave function


# --- accelerated coordinate descent -----------------------------------------------------------------------------------


def momentum(nu: float) -> float:
    """θ with θ² = ν(1 − θ), by which ACD contracts in each iteration: (√(ν²+4ν) − ν)/2 without the cancellation.

    >>> round(momentum(0.5), 6)
    0.5
    """
    return 2 * nu / (math.sqrt(nu * nu + 4 * nu) + nu) if nu > 0 else 0.0


class Choice(NamedTuple):
    """A probability of a w-step, its ν, and the cost of an e-fold of accuracy, (p_w·cost_w + p_β·cost_β)/θ.

    >>> import numpy as np
    >>> arrow = Arrow(schur=np.array([2 - 1 / 3]), cross=np.array([[1.0]]), own=np.array([[3.0]]))
    >>> choice = best_probability(arrow)
    >>> 0 < choice.p_w < 1, choice.nu > 0
    (True, True)
    """

    p_w: float
    nu: float
    cost: float


def best_probability(arrow: Arrow, cost_w: float = 1.0, cost_beta: float = 0.05) -> Choice:
    """The p_w that makes ACD cheapest, where a w-iteration (a round) costs `cost_w` and a β-iteration `cost_beta`.

    The cost of an e-fold is (p_w·cost_w + (1−p_w)·cost_beta)/θ(ν(p_w)); it is minimised on a grid and then by golden
    section around the best point of it.

    >>> import numpy as np
    >>> arrow = Arrow(schur=np.array([2 - 1 / 3]), cross=np.array([[1.0]]), own=np.array([[3.0]]))
    >>> cheap, dear = (best_probability(arrow, cost_w=cost, cost_beta=1.0) for cost in (1.0, 100.0))
    >>> dear.p_w < cheap.p_w
    True
    """
    if not (cost_w > 0 and cost_beta >= 0):
        raise InputError(f"Costs must be positive (of β: at least 0), got {cost_w=} and {cost_beta=}.")
    if not (arrow.has_shared and arrow.has_private):
        p_w = float(arrow.has_shared)
        return _choice(arrow, p_w, cost_w, cost_beta)
    found = {p: _choice(arrow, p, cost_w, cost_beta) for p in PROBABILITIES}
    best = min(PROBABILITIES, key=lambda p: found[p].cost)
    if not math.isfinite(found[best].cost):
        return found[best]
    place = PROBABILITIES.index(best)
    low = PROBABILITIES[place - 1] if place else best / 4
    high = PROBABILITIES[place + 1] if place + 1 < len(PROBABILITIES) else (1 + best) / 2
    golden = (math.sqrt(5) - 1) / 2
    tried = dict(found)
    for _ in range(6):
        left, right = high - golden * (high - low), low + golden * (high - low)
        for p in (left, right):
            # One of the two is, but for rounding, a point of the step before.
            if not any(math.isclose(p, q, rel_tol=1e-6) for q in tried):
                tried[p] = _choice(arrow, p, cost_w, cost_beta)
        of_left, of_right = (min(tried.items(), key=lambda item, p=p: abs(item[0] - p))[1] for p in (left, right))
        low, high = (low, right) if of_left.cost <= of_right.cost else (left, high)
    return min(tried.values(), key=lambda choice: choice.cost)


def _choice(arrow: Arrow, p_w: float, cost_w: float, cost_beta: float) -> Choice:
    nu = arrow.nu(p_w)
    each = p_w * cost_w + (1 - p_w) * cost_beta
    return Choice(p_w, nu, each / momentum(nu) if nu > 0 else math.inf)
