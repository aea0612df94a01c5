"""The curvature of each client's own function, from the bounds of its Hessian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.curvature.model import BlockCurvature
from twofold.theory.each import EachClient

__all__ = ["of_each"]

Array = NDArray[np.float64]


def of_each(model: BlockCurvature, scale: float) -> EachClient:
    """Certified μ_m, L_m and block constants of each client.

    A client's Hessian in the scaled w and in β_m, in the norm of `EachClient`, is [[s²H^ww, s√p H^wβ], [·, p H^ββ]]. If both
    blocks have the same features, it lies between the 2 × 2 matrices for the smallest and the largest eigenvalue of the second
    moments. If not, its largest eigenvalue is at most the sum of those of its diagonal blocks, and the lower bound takes the data
    part as zero.

    >>> import numpy as np, twofold as tw
    >>> from twofold.curvature.clients import of_each
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2)), (2 * np.eye(2), np.ones(2))])
    >>> found = of_each(tw.objectives.traditional(tw.losses.squared(l2=0.5)).curvature(clients), 1.0)
    >>> found.mu.round(9).tolist(), found.L.round(9).tolist()
    ([1.0, 2.5], [1.0, 2.5])
    """
    p, s = model.weights, scale
    top_w, top_beta = model.tops
    of_w = model.high * model.data.ww * top_w + model.fixed.ww
    of_beta = model.high * model.data.bb * top_beta + model.fixed.bb
    low_w, low_beta = _bottoms(model)
    mu_beta = model.low * model.data.bb * low_beta + model.fixed.bb
    if model.private is None:
        mu, top = s * s * (model.low * model.data.ww * low_w + model.fixed.ww), s * s * of_w
    elif model.shared is None:
        mu, top = p * mu_beta, p * of_beta
    else:
        low = model.low * low_beta if model.together else np.zeros(model.M)
        mu = _ends(*_scaled(model, low, s))[0]
        top = s * s * of_w + p * of_beta
        if model.together:
            top = np.minimum(top, _ends(*_scaled(model, model.high * top_w, s))[1])
    return EachClient(p, np.maximum(mu, 0.0), top, s * s * of_w, of_beta, mu_beta)


def _bottoms(model: BlockCurvature) -> tuple[Array, Array]:
    """The smallest eigenvalues of the second moments; zeros if the link may be flat, when they do not matter."""
    if model.flat:
        return np.zeros(model.M), np.zeros(model.M)
    return model.smallest(model.shared), model.smallest(model.private)


def _scaled(model: BlockCurvature, h: Array, s: float) -> tuple[Array, Array, Array]:
    """s²H^ww, s√p H^wβ and p H^ββ, if the data part is h."""
    ww, wb, bb = (data * h + fixed for data, fixed in zip(model.data, model.fixed, strict=True))
    return s * s * ww, s * np.sqrt(model.weights) * wb, model.weights * bb


def _ends(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The eigenvalues of [[a, b], [b, c]]; the smaller is computed as determinant/larger, to reduce cancellation."""
    larger = (a + c) / 2 + np.hypot((a - c) / 2, b)
    return (a * c - b * b) / np.where(larger > 0, larger, 1.0), larger
