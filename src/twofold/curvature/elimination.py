"""What is left of the curvature in w when every β_m is eliminated: Σ p_m (H^ww − H^wβ (H^ββ)⁻¹ H^βw)_m.

With links of curvature k, a lower bound of ∇²F gives a lower bound of this Schur complement (the certificate and μ use it). With a
likely curvature it is about the Hessian of min_β F, which `profile` minimises.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.curvature.model import BlockCurvature

__all__ = ["eliminated", "private_values", "shared_block"]

Array = NDArray[np.float64]


def shared_block(model: BlockCurvature, k: float) -> Array:
    """Σ p_m H^ww_m for links of curvature k, (a, a).

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2))])
    >>> shared_block(tw.objectives.traditional(tw.losses.squared(l2=0.5)).curvature(clients), 1.0).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    fixed = float(model.weights @ model.fixed.ww) * np.eye(model.a)
    return fixed if k == 0 or not np.any(model.data.ww != 0) else k * model.pooled + fixed


def private_values(model: BlockCurvature) -> Array:
    """The eigenvalues of the private second moments, minus a margin for rounding."""
    values = model.spectrum[0]
    return np.maximum(values - 4 * model.b * np.finfo(float).eps * values[:, -1:], 0.0)


def eliminated(model: BlockCurvature, k: float) -> Array:
    """Σ p_m (H^ww − H^wβ (H^ββ)⁻¹ H^βw)_m for links of curvature k, (a, a).

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2))])
    >>> mixture = tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0)
    >>> eliminated(mixture.curvature(clients), 1.0).round(12).tolist()  # of Gram matrix I/2: λ − λ²/(½ + l2 + λ)
    [[0.5, 0.0], [0.0, 0.5]]
    """
    if model.private is None:
        return shared_block(model, k)
    values, vectors, p = private_values(model), model.spectrum[1], model.weights
    if model.together:
        inner = vectors * (p[:, None] * model.eliminated(k, values))[:, None, :]
        return np.tensordot(inner, vectors, axes=([0, 2], [0, 2]))
    whole = shared_block(model, k)
    if k == 0:
        return whole
    under = model.private_block(k, values)
    inner = k * model.crossed @ vectors
    scaled = inner * np.where(under > 0, p[:, None] / np.where(under > 0, under, 1.0), 0.0)[:, None, :]
    return whole - np.tensordot(scaled, inner, axes=([0, 2], [0, 2]))
