"""Sharp constants of F itself, from the arrows that bound its Hessian, in the scaled space or in a metric (formula 5).

    L^w = λ_max(s² Σ p_m H^ww_m),  L^β = max_m p_m λ_max(H^ββ_m),  μ = λ_min of the arrow below ∇²F.

The noise of sampled rows comes from the data part of single rows' smoothness, V^w_mj = s² κ u_m ‖R_wᵀ z^w_j‖² and
V^β_mj = κ t_m ‖R_mᵀ z^β_j‖². It is max_m p_m max_j V_mj if rows are drawn uniformly, and max_m p_m mean_j V_mj if they are drawn
in proportion to V_mj. In a metric the V_mj are leverage scores, and L^w = L^β = 1 (but not in that of `profile`, which is no bound).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twofold.curvature.elimination import eliminated, private_values, shared_block
from twofold.curvature.metric import Metric, private_roots
from twofold.curvature.model import POOLED, BlockCurvature, Features
from twofold.errors import InputError
from twofold.theory.arrow import Arrow
from twofold.theory.constants import Constants, Sampling

__all__ = [
    "RowSmoothness", "SharpConstants", "arrow", "largest_beta", "largest_w", "row_smoothness", "sharp", "single_rows",
]  # fmt: skip

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SharpConstants:
    """Certified constants of F and of the noise of sampled rows; L is the smoothness of F in (w, β) together.

    Here L^w is that of F, not the largest of any client; 𝓛^w and 𝓛^β are those of single rows, as in the paper.
    """

    mu: float
    L_w: float
    L_beta: float
    L: float
    calL_w: float
    calL_beta: float
    noise_w: float
    noise_beta: float
    sampling: Sampling
    why: str  # how μ was obtained


class RowSmoothness(NamedTuple):
    """p_m V^w_mj and p_m V^β_mj of every row, in the order of the clients' rows; zeros if a block is absent."""

    w: Array
    beta: Array

    def noise(self, offsets: NDArray[np.int64], sampling: Sampling) -> tuple[float, float]:
        """The noise constants of w and β: the maximum over rows ("uniform"), or over the clients' means ("importance")."""
        if sampling == "uniform":
            return float(np.max(self.w)), float(np.max(self.beta))
        if sampling != "importance":
            raise InputError(f'sampling must be "uniform" or "importance", got {sampling!r}.')
        counts = np.diff(offsets)
        of_w, of_beta = (float(np.max(np.add.reduceat(part, offsets[:-1]) / counts)) for part in self)
        return of_w, of_beta


def sharp(
    model: BlockCurvature,
    scale: float,
    metric: Metric | None = None,
    *,
    sampling: Sampling = "uniform",
    lemma: Constants | None = None,
    rows: RowSmoothness | None = None,
) -> SharpConstants:
    """The sharp constants of a problem with this model, in the scaled space or, with a metric, in its variables.

    `lemma` holds the objective's own constants; without a metric, its μ is used if it is larger. (The arrow implies every lemma,
    but if there is no room for all clients' matrices, only their smallest eigenvalues enter it.) Callers that have already
    computed `row_smoothness` pass it as `rows`.

    >>> import numpy as np, twofold as tw
    >>> from twofold.curvature.model import Loss, Pull, of_terms
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2)), (2 * np.eye(2), np.ones(2))])
    >>> model = of_terms(tw.losses.squared(l2=0.5), clients, [Loss(1, 0, 1), Pull(0.25, 1, -1)])
    >>> found = sharp(model, scale=2**-0.5)
    >>> round(found.L_w, 6), round(found.L_beta, 6)
    (0.125, 1.375)
    """
    rows = row_smoothness(model, scale, metric) if rows is None else rows
    noise_w, noise_beta = rows.noise(model.offsets, sampling)
    L_w, L_beta = largest_w(model, scale, metric), largest_beta(model, metric)
    mu, why = arrow(model, scale, metric).smallest(), "smallest eigenvalue of the arrow matrix below ∇²F"
    if lemma is not None and metric is None and lemma.how["mu"] == "certified" and lemma.mu > mu:
        mu, why = lemma.mu, lemma.why["mu"]
    calL_w, calL_beta = single_rows(model, scale, metric, rows)
    L = _joint(model, scale, metric, L_w, L_beta)
    return SharpConstants(mu, L_w, L_beta, L, calL_w, calL_beta, noise_w, noise_beta, sampling, why)


# --- upper bounds ---------------------------------------------------------------------------------------------------------


def largest_w(model: BlockCurvature, scale: float, metric: Metric | None = None) -> float:
    """L^w, the smoothness of F in w: λ_max(s² Σ p_m H^ww_m)."""
    if model.shared is None:
        return 0.0
    if metric is not None and metric.kind != "profile":
        return 1.0
    if metric is not None:
        factor = np.asarray(metric.shared)
        block = scale**2 * shared_block(model, model.high)
        return float(np.linalg.eigvalsh(_around(block, factor))[-1]) + model.a * _rounding(np.abs(block), factor)
    fixed = float(model.weights @ model.fixed.ww)
    if not np.any(model.data.ww != 0):
        return scale**2 * fixed
    if model.a > POOLED:
        return scale**2 * (float(model.weights @ (model.high * model.data.ww * model.tops[0])) + fixed)
    top = float(np.linalg.eigvalsh(model.pooled)[-1]) * (1 + 4 * model.a * np.finfo(float).eps)
    return scale**2 * (model.high * top + fixed)


def largest_beta(model: BlockCurvature, metric: Metric | None = None) -> float:
    """L^β = max p_m λ_max(H^ββ_m)."""
    if model.private is None:
        return 0.0
    if metric is not None and metric.private is not None:
        return 1.0
    return float(np.max(model.weights * model.private_block(model.high, model.tops[1])))


def _norms(metric: Metric | None, model: BlockCurvature) -> tuple[float, Array]:
    """‖R_w‖ and each client's ‖R_m‖."""
    if metric is None:
        return 1.0, np.ones(model.M)
    of_w = 1.0 if metric.shared is None else _norm(np.asarray(metric.shared))
    if metric.private is None:
        return of_w, np.ones(model.M)
    if metric.kind == "matrix":
        return of_w, np.max(private_roots(model), axis=1)
    factors = np.asarray(metric.private)
    return of_w, factors if factors.ndim == 1 else np.max(factors, axis=1)


def _norm(factor: Array) -> float:
    return float(np.linalg.eigvalsh(factor)[-1]) if factor.ndim == 2 else float(np.max(factor))


def _joint(model: BlockCurvature, scale: float, metric: Metric | None, L_w: float, L_beta: float) -> float:
    """λ_max of [[L^w, b], [b, L^β]], where b bounds the norm of the coupling between w and all β_m in the upper bound."""
    if model.shared is None or model.private is None:
        return L_w + L_beta
    of_w, of_beta = _norms(metric, model)
    top = np.sqrt(model.tops[0] * model.tops[1])
    size = np.maximum(np.abs(model.high * model.data.wb * top + model.fixed.wb), np.abs(model.fixed.wb))
    cross = scale * of_w * float(np.linalg.norm(model.weights * size * of_beta))
    cross = min(cross, math.sqrt(L_w * L_beta))  # because the upper bound is positive semidefinite
    return (L_w + L_beta) / 2 + math.hypot((L_w - L_beta) / 2, cross)


def single_rows(model: BlockCurvature, scale: float, metric: Metric | None, rows: RowSmoothness) -> tuple[float, float]:
    """𝓛^w and 𝓛^β: the largest smoothness of any f_mj in w, and of any p_m f_mj in β (data part plus the part common to all rows).

    Rows multiplied by 1/(n_m π_mj) give 𝓛^w_π and 𝓛^β_π, those of rows that are drawn with probabilities π.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.diag([1.0, 2.0]), np.zeros(2)), (np.eye(2), np.ones(2))])
    >>> model = tw.objectives.traditional(tw.losses.squared(l2=0.5)).curvature(clients)
    >>> single_rows(model, 1.0, None, row_smoothness(model, 1.0))
    (4.5, 0.0)
    """
    p = model.weights
    of_w, of_beta = _norms(metric, model)
    most_w, most_beta = (np.maximum.reduceat(part, model.offsets[:-1]) for part in rows)
    found_w = np.max(most_w / p + scale**2 * model.fixed.ww * of_w**2) if model.shared is not None else 0.0
    found_beta = np.max(most_beta + p * model.fixed.bb * of_beta**2) if model.private is not None else 0.0
    return float(found_w), float(found_beta)


def row_smoothness(model: BlockCurvature, scale: float, metric: Metric | None = None) -> RowSmoothness:
    """p_m V_mj of every row in w and in β: the data part of its smoothness, in the scaled space or in a metric."""
    p = model.weights
    of_w = scale**2 * model.high * p * model.data.ww
    of_beta = model.high * p * model.data.bb
    shared = None if metric is None else metric.shared
    private = None if metric is None else metric.private
    return RowSmoothness(
        _rows_of(model, model.shared, of_w, None if shared is None else np.asarray(shared)[None]),
        _rows_of(model, model.private, of_beta, None if private is None else np.asarray(private)),
    )


def _rows_of(model: BlockCurvature, features: Features | None, factor: Array, roots: Array | None) -> Array:
    offsets = model.offsets
    found = np.zeros(offsets[-1])
    if features is None or not np.any(factor != 0):
        return found
    for positions, rows in model.groups(2 * features.width, 0 if roots is None else features.width**2):
        z = features.take(rows)
        if roots is not None:
            mine = roots if len(roots) == 1 else roots[positions]
            z = z @ mine if mine.ndim == 3 else z * mine.reshape(len(mine), 1, -1)
        place = offsets[positions][:, None] + np.arange(rows.shape[1], dtype=np.int64)
        found[place] = factor[positions][:, None] * np.sum(z * z, axis=-1)
    return found


# --- the arrow below ------------------------------------------------------------------------------------------------------


def arrow(model: BlockCurvature, scale: float, metric: Metric | None = None) -> Arrow:
    """The arrow matrix below ∇²F, in the scaled space or in a metric; μ and ACD's ν(p_w) are computed from it.

    If the link may be flat (logistic, softmax), its blocks are multiples of the identity, and it splits into one small arrow per
    coordinate. A matrix as metric couples the coordinates again, and so do the second moments of a squared loss.
    """
    kind = None if metric is None else metric.kind
    if model.exact or kind in ("matrix", "profile"):
        return _dense(model, scale, metric)
    return _by_coordinate(model, scale, metric)


def _by_coordinate(model: BlockCurvature, scale: float, metric: Metric | None) -> Arrow:
    """The arrow if its blocks are multiples of the identity, and the metric consists of numbers or diagonals."""
    p = model.weights
    shared = None if metric is None or metric.shared is None else np.asarray(metric.shared)
    private = None if metric is None or metric.private is None else np.asarray(metric.private)
    # If the same matrix of second moments is in all blocks, its smallest eigenvalue is a lower bound for all of it.
    g = model.bottoms if model.low > 0 and (model.together or model.shared is None) else np.zeros(model.M)
    of_w = np.ones(1) if shared is None else np.atleast_1d(shared)
    of_beta = np.ones((1, model.M)) if private is None else private.reshape(model.M, -1).T
    own = p * model.private_block(model.low, g) * of_beta**2
    if model.shared is None:
        return Arrow(np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)), float(np.min(own)))
    if not (model.coupled and model.together):
        top = scale**2 * float(p @ (model.low * model.data.ww * g + model.fixed.ww))
        alone = float(np.min(own)) if model.private is not None else math.inf
        return Arrow(top * of_w**2, np.zeros((len(of_w), 0)), np.zeros((len(of_w), 0)), alone)
    width = max(len(of_w), len(of_beta))
    of_w = np.broadcast_to(of_w, (width,))
    schur = scale**2 * float(p @ model.eliminated(model.low, g)) * of_w**2
    cross = scale * p * model.cross_block(model.low, g) * of_w[:, None] * of_beta
    return Arrow(schur, cross, np.broadcast_to(own, (width, model.M)))


def _dense(model: BlockCurvature, scale: float, metric: Metric | None) -> Arrow:
    """The arrow with matrices as blocks, including the second moments of a link that is nowhere flat."""
    low = model.low if model.exact else 0.0
    shared = None if metric is None or metric.shared is None else np.asarray(metric.shared)
    if model.private is None:
        whole = scale**2 * shared_block(model, low)
        return Arrow(
            _around(whole, shared), np.zeros((model.a, 0)), np.zeros(0), rounding=_rounding(np.abs(whole), shared)
        )
    own, basis = _private_basis(model, metric, low)
    if model.shared is None:
        return Arrow(np.zeros(0), np.zeros((0, 0)), np.zeros(0), float(np.min(own)))
    schur = _around(scale**2 * eliminated(model, low), shared)
    rounding = _rounding(scale**2 * np.abs(shared_block(model, low)), shared)
    if not model.coupled:
        return Arrow(schur, np.zeros((model.a, 0)), np.zeros(0), float(np.min(own)), rounding)
    cross = scale * model.weights[:, None, None] * _coupling(model, low, basis)
    cross = np.moveaxis(cross, 0, 1).reshape(model.a, -1)
    cross = cross if shared is None else shared @ cross if shared.ndim == 2 else shared.reshape(-1, 1) * cross
    return Arrow(schur, cross, own.reshape(-1), rounding=rounding)


def _rounding(matrix: Array, factor: Array | None) -> float:
    """A bound on the rounding error in R·matrix·R and the sums behind it, from the sizes of its entries."""
    size = _around(matrix, None if factor is None else np.abs(factor))
    return 4 * np.finfo(float).eps * float(np.max(size, initial=0.0))


def _around(matrix: Array, factor: Array | None) -> Array:
    """R·matrix·R."""
    if factor is None:
        return matrix
    return factor @ matrix @ factor if factor.ndim == 2 else factor.reshape(-1, 1) * matrix * factor


def _private_basis(model: BlockCurvature, metric: Metric | None, low: float) -> tuple[Array, Array]:
    """The eigenvalues c (M, b) of R_m H^ββ_m R_m·p_m, and T_m = R_m U_m (M, b, b), so that T_mᵀ(p_m H^ββ_m)T_m = diag(c)."""
    block = model.weights[:, None] * model.private_block(low, private_values(model))
    vectors = model.spectrum[1]
    if metric is None or metric.private is None:
        return block, vectors
    factors = np.asarray(metric.private)
    if metric.kind == "matrix":
        roots = private_roots(model)
        return block * roots**2, vectors * roots[:, None, :]
    if metric.kind == "scale":
        return block * factors[:, None] ** 2, vectors * factors[:, None, None]
    inner = factors[:, :, None] * ((vectors * block[:, None, :]) @ vectors.swapaxes(1, 2)) * factors[:, None, :]
    own, inside = np.linalg.eigh(inner)
    return own, factors[:, :, None] * inside


def _coupling(model: BlockCurvature, low: float, basis: Array) -> Array:
    """H^wβ_m T_m in the lower bound, (M, a, b)."""
    if not model.together:
        return low * model.crossed @ basis
    vectors = model.spectrum[1]
    inner = vectors.swapaxes(1, 2) @ basis
    return vectors @ (model.cross_block(low, private_values(model))[:, :, None] * inner)
