"""The curvature of every client's own function, for methods whose steps or probabilities differ between clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.theory.constants import Constants

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["EachClient", "common"]

Array = NDArray[np.float64]


class EachClient(NamedTuple):
    """The curvature of every client's own f_m, in the scaled w and in β_m: one entry per client in each array.

    `mu` and `L` belong to both blocks together: p_m f_m(w, β_m) is μ_m-strongly convex and L_m-smooth in the norm
    p_m‖w‖² + ‖β_m‖². Its sum over m is then the norm of the scaled space on points where everyone has the same w.
    `L_w` is the smoothness of f_m in w, `L_beta` and `mu_beta` are its smoothness and strong convexity in β_m.

    >>> two = common(Constants(0.1, 1.0, 2.0, 9.0, 8.0), [0.5, 0.5])
    >>> two.L.tolist(), two.L_beta.tolist()
    ([3.0, 3.0], [4.0, 4.0])
    """

    weights: Float[Array, " clients"]
    mu: Float[Array, " clients"]
    L: Float[Array, " clients"]
    L_w: Float[Array, " clients"]
    L_beta: Float[Array, " clients"]
    mu_beta: Float[Array, " clients"]


def common(c: Constants, weights: ArrayLike) -> EachClient:
    """The same numbers for everyone, from the constants of F, where nothing is known of single clients.

    L^w of a client is `L_client`, or L^w itself where the constants are the paper's; a PSD matrix is at most the sum of the
    bounds of its diagonal blocks, so L_m ≤ L^w_m + L^β. μ is that of F: a client's own may be smaller, and then a rate that
    needs it is not proven.

    >>> common(Constants(0.1, 1.0, 2.0, 9.0, 8.0, L_client=3.0), [0.5, 0.5]).L_w.tolist()
    [3.0, 3.0]
    """
    p = np.asarray(weights, np.float64)
    sharp = c.noise_w is not None and c.L_client is None
    of_w = np.full(len(p), c.calL_w if sharp else c.L_w if c.L_client is None else c.L_client)
    return EachClient(p, np.full(len(p), c.mu), of_w + c.L_beta, of_w, c.L_beta / p, c.mu / p)
