"""Arrow-shaped bounds of the Hessian of F for a linear loss, one from below and one from above, that hold everywhere.

A linear loss is f'_m(θ) = mean_i ℓ(z_i·θ, y_i) + (l2/2)‖θ‖², and its link has a second derivative between κ_low and κ
(logistic: 0 and ¼; softmax: 0 and ½, as matrices; squared: 1 and 1). So with the second moments G_m = Z_mᵀZ_m/n_m,

    κ_low G_m + l2·I ⪯ ∇²f'_m ⪯ κ G_m + l2·I,

for each class column of θ. An objective is a sum of such losses and of penalties, at combinations x·w + y·β_m. Each of them
adds its Hessian times (x, y)(x, y)ᵀ to the blocks of client m, so the same two bounds hold for

    [[H^ww, H^wβ], [H^βw, H^ββ]]_m = k·[[u G^ww, v G^wβ], [v G^βw, t G^ββ]]_m + [[a, b], [b, c]]_m ⊗ I

with k = κ_low below and k = κ above, as matrices. `data` holds (u, v, t) and `fixed` holds (a, b, c) of every client.
Everything here is in real, unscaled w and without the client's weight p_m; the blocks of F itself are s²Σp_m H^ww, s·p_m H^wβ
and p_m H^ββ.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.clients import Clients

if TYPE_CHECKING:
    from twofold.losses import Linear

__all__ = [
    "POOLED",
    "WIDE",
    "BlockCurvature",
    "Blocks",
    "Features",
    "FixedW",
    "Group",
    "Loss",
    "Pull",
    "of_parts",
    "of_terms",
]  # fmt: skip

Array = NDArray[np.float64]
Index = NDArray[np.int64]

CHUNK = 2**22
"""The most numbers that one batch of clients may occupy."""

ROOM = 2**26
"""All clients' blocks are kept at once if they take at most this many numbers (half a gigabyte)."""

WIDE = 1000
"""Matrices of size features × features are formed, for w and for each client, up to this many features."""


POOLED = 4 * WIDE
"""The pooled second moments are formed up to this many features; beyond that, Σ p_m L_m bounds the curvature in w."""


LIKELY = 0.25
"""For a link that may be flat: the curvature assumed near a solution, as a fraction of the largest."""


class Features(NamedTuple):
    """The columns of all clients' rows that one block of parameters multiplies, preceded by a one if there is an intercept."""

    x: np.ndarray
    columns: Index | None = None
    intercept: bool = False
    row_weights: np.ndarray | None = None
    """How much each row counts; in the second moments, a row is multiplied by √weight."""

    @property
    def width(self) -> int:
        """The number of parameters per class in this block."""
        return (self.x.shape[1] if self.columns is None else len(self.columns)) + self.intercept

    def take(self, rows: Index) -> Array:
        """These rows, in float64; `rows` may have any shape."""
        x = self.x[rows]
        x = np.asarray(x if self.columns is None else x[..., self.columns], np.float64)
        x = np.concatenate([np.ones((*rows.shape, 1)), x], axis=-1) if self.intercept else x
        return x if self.row_weights is None else x * np.sqrt(self.row_weights[rows])[..., None]


class Blocks(NamedTuple):
    """One number per client for each of the blocks ww, wβ and ββ."""

    ww: Array
    wb: Array
    bb: Array


class FixedW(NamedTuple):
    """The coupling between β_m and a fixed w (its data part and its fixed part, see `Blocks.wb`), and the norm of that w."""

    data: Array
    fixed: Array
    norm: float


class Loss(NamedTuple):
    """A term coefficient·f'_m(of_w·w + of_beta·β_m); each field is one number, or one per client."""

    coefficient: ArrayLike
    of_w: ArrayLike
    of_beta: ArrayLike


class Pull(NamedTuple):
    """A term (coefficient/2)‖of_w·w + of_beta·β_m‖²."""

    coefficient: ArrayLike
    of_w: ArrayLike
    of_beta: ArrayLike


class Group(NamedTuple):
    """Some clients with equally many rows: their positions (m,), and the indices of their rows (m, n)."""

    positions: Index
    rows: Index


@dataclass(frozen=True, eq=False)
class BlockCurvature:
    """The arrows below and above ∇²F for an objective over a linear loss.

    `together` says that w and β_m have the same features, so that all three second moments of a client are one matrix;
    then `determinant` holds the coefficients of det(h) = H^ww H^ββ − (H^wβ)², a polynomial in h = k·G.
    """

    weights: Array
    starts: Index  # the first row of each client
    counts: Index
    shared: Features | None
    private: Features | None
    together: bool
    low: float
    high: float
    outputs: int | None
    data: Blocks
    fixed: Blocks
    determinant: tuple[Array, Array, Array]
    slope: Array  # per client: a bound on the link's first derivative (squared loss: its root mean square at score 0)
    held: FixedW | None = None

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def M(self) -> int:  # noqa: N802
        """The number of clients."""
        return len(self.weights)

    @property
    def offsets(self) -> Index:
        """Where each client's rows start when all are concatenated, followed by the total number of rows."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @property
    def a(self) -> int:
        """The number of parameters per class in w."""
        return 0 if self.shared is None else self.shared.width

    @property
    def b(self) -> int:
        """The number of parameters per class in β_m."""
        return 0 if self.private is None else self.private.width

    @property
    def coupled(self) -> bool:
        """Whether the lower bound couples w with any β_m."""
        both = self.shared is not None and self.private is not None
        return both and bool(np.any(self.low * self.data.wb != 0) or np.any(self.fixed.wb != 0))

    @property
    def flat(self) -> bool:
        """Whether every block of the lower bound is a multiple of the identity, because the link may be flat."""
        return self.low == 0

    @property
    def exact(self) -> bool:
        """Whether the lower bound contains second moments, and there is room to form them."""
        return not self.flat and (self.kept if self.private is not None else self.a <= POOLED)

    @property
    def kept(self) -> bool:
        """Whether there is room for one matrix per client."""
        return max(self.a, self.b) <= WIDE and self.M * max(self.b, 1) * max(self.a, self.b, 1) <= ROOM

    def alone(self, norm: float) -> BlockCurvature:
        """The model with w fixed at a point of this norm, so that only the β_m are free (the second stage of Λ = ∞)."""
        zero = np.zeros(self.M)
        blocks = [Blocks(zero, zero, part.bb) for part in (self.data, self.fixed)]
        return replace(
            self,
            shared=None,
            together=False,
            data=blocks[0],
            fixed=blocks[1],
            determinant=(zero, zero, zero),
            held=FixedW(self.data.wb, self.fixed.wb, norm),
        )

    def shifted(self, norms: Array, ridge: float) -> BlockCurvature:
        """The model of the losses at θ + o_m, with a constant offset o_m for each client; `norms` are the ‖o_m‖.

        The Hessian does not change, but rounding does: the score at θ = 0 is now z·o_m, and the ridge depends on o_m. The slope
        covers both, because `certificate._rounding` uses it for everything that is not zero at θ = 0.
        """
        size = np.sqrt(np.maximum(self.traces[0], np.finfo(float).tiny))
        return replace(self, slope=self.slope + (2 * self.high * size + ridge / size) * norms)

    def likely(self) -> BlockCurvature:
        """The model with a likely, not certified, lower bound for a link that may be flat; use it to compare metrics.

        For such a link, a certified ν cannot show what a matrix metric gains: in every metric it must allow for zero curvature
        along the features with the largest second moments.
        """
        return replace(self, low=max(self.low, LIKELY * self.high))

    def of_clients(self, positions: Index) -> BlockCurvature:
        """The model of some of the clients, with their weights rescaled to sum to one."""
        weights = self.weights[positions]
        return replace(
            self,
            weights=weights / np.sum(weights),
            starts=self.starts[positions],
            counts=self.counts[positions],
            data=Blocks(*(part[positions] for part in self.data)),
            fixed=Blocks(*(part[positions] for part in self.fixed)),
            determinant=(
                self.determinant[0][positions],
                self.determinant[1][positions],
                self.determinant[2][positions],
            ),
            slope=self.slope[positions],
        )

    # --- second moments -----------------------------------------------------------------------------------------------

    def groups(self, width: int, square: int = 0) -> Iterator[Group]:
        """Groups of clients with the same number of rows n, in batches that fit `CHUNK` at n·width + square numbers each."""
        order = np.argsort(self.counts, kind="stable")
        first = np.flatnonzero(np.diff(self.counts[order], prepend=-1))
        for group in np.split(order, first[1:]):
            n = int(self.counts[group[0]])
            size = max(CHUNK // (n * width + square), 1)
            for start in range(0, len(group), size):
                some = group[start : start + size]
                yield Group(some, self.starts[some][:, None] + np.arange(n))

    def moments(self, left: Features, right: Features | None = None) -> Array:
        """Z_leftᵀ Z_right/n of every client: (M, k, l)."""
        second = left if right is None else right
        found = np.empty((self.M, left.width, second.width))
        for positions, rows in self.groups(left.width + second.width, left.width * second.width):
            z = left.take(rows)
            other = z if right is None else right.take(rows)
            found[positions] = z.swapaxes(1, 2) @ other / rows.shape[1]
        return found

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues (M, b), clipped at zero, and eigenvectors (M, b, b) of the private second moments."""
        assert self.private is not None
        values, vectors = np.linalg.eigh(self.moments(self.private))
        return np.maximum(values, 0.0), vectors

    @cached_property
    def crossed(self) -> Array:
        """G^wβ of every client (M, a, b)."""
        assert self.shared is not None and self.private is not None
        return self.moments(self.shared, self.private)

    @cached_property
    def tops(self) -> tuple[Array, Array]:
        """The largest eigenvalues of every client's G^ww and G^ββ, plus a margin for rounding."""
        of_w = np.zeros(self.M) if self.shared is None else self._extremes(self.shared)[1]
        if self.private is None:
            return of_w, np.zeros(self.M)
        return of_w, of_w if self.together else self._extremes(self.private)[1]

    @cached_property
    def bottoms(self) -> Array:
        """The smallest eigenvalue of every client's private second moments, minus a margin for rounding."""
        return np.zeros(self.M) if self.private is None else self._extremes(self.private)[0]

    def smallest(self, features: Features | None) -> Array:
        """The smallest eigenvalue of every client's second moments of these features, minus a margin for rounding."""
        return np.zeros(self.M) if features is None else self._extremes(features)[0]

    def tops_in(self, features: Features, roots: Array) -> Array:
        """The largest eigenvalue of every client's D·G_m·D, where D = diag(roots); `roots` is (k,), or (M, k) if D varies by client."""
        return self._extremes(features, roots)[1]

    def _extremes(self, features: Features, roots: Array | None = None) -> tuple[Array, Array]:
        low, high = np.zeros(self.M), np.empty(self.M)
        k = features.width
        for positions, rows in self.groups(k, k * k):
            z, n = features.take(rows), rows.shape[1]
            if roots is not None:
                z = z * (roots if roots.ndim == 1 else roots[positions][:, None, :])
            # Both products have the same nonzero spectrum: form the smaller one.
            gram = (z.swapaxes(1, 2) @ z if k <= n else z @ z.swapaxes(1, 2)) / n
            values = np.linalg.eigvalsh(gram)
            margin = 4 * gram.shape[-1] * np.finfo(float).eps * values[:, -1]
            high[positions] = values[:, -1] + margin
            if k <= n:
                low[positions] = np.maximum(values[:, 0] - margin, 0.0)
        return low, high

    @cached_property
    def pooled(self) -> Array:
        """Σ p_m u_m G^ww_m, (a, a): all that the server needs to know about the clients' features."""
        assert self.shared is not None
        k, share = self.a, self.weights * self.data.ww
        total = np.zeros((k, k))
        for positions, rows in self.groups(k):
            z = self.shared.take(rows)
            z = z * np.sqrt(share[positions] / rows.shape[1])[:, None, None]
            z = z.reshape(-1, k)
            total += z.T @ z
        return total

    @cached_property
    def diagonals(self) -> Array:
        """The diagonals of the private second moments (M, b)."""
        assert self.private is not None
        found = np.empty((self.M, self.b))
        for positions, rows in self.groups(self.b):
            found[positions] = np.mean(self.private.take(rows) ** 2, axis=1)
        return found

    @cached_property
    def traces(self) -> tuple[Array, Array]:
        """The mean of ‖z‖² over each client's rows, for w and for β."""
        found = (np.zeros(self.M), np.zeros(self.M))
        for features, out in zip((self.shared, self.private), found, strict=True):
            if features is None:
                continue
            for positions, rows in self.groups(features.width):
                out[positions] = np.mean(np.sum(features.take(rows) ** 2, axis=-1), axis=1)
        return found

    # --- blocks as functions of an eigenvalue ---------------------------------------------------------------------------

    def private_block(self, k: float, g: Array) -> Array:
        """k·t·g + c: the eigenvalues of H^ββ_m, if g, of shape (M, …), are those of G^ββ_m."""
        return _each(k * self.data.bb, g) * g + _each(self.fixed.bb, g)

    def cross_block(self, k: float, g: Array) -> Array:
        """k·v·g + b: the eigenvalues of H^wβ_m, if w and β have the same features."""
        return _each(k * self.data.wb, g) * g + _each(self.fixed.wb, g)

    def eliminated(self, k: float, g: Array) -> Array:
        """H^ww − (H^wβ)²/H^ββ, computed as det/H^ββ so that nothing cancels; only if w and β have the same features."""
        h = k * g
        d0, d1, d2 = (_each(part, g) for part in self.determinant)
        under = self.private_block(k, g)
        top = _each(k * self.data.ww, g) * g + _each(self.fixed.ww, g)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(under > 0, (d0 + h * (d1 + h * d2)) / under, top)


def _each(values: Array, like: Array) -> Array:
    """One number per client, with as many trailing axes as `like`, so that they broadcast."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))


# --- from an objective ------------------------------------------------------------------------------------------------


def of_terms(loss: Linear, clients: Clients, terms: Sequence[Loss | Pull]) -> BlockCurvature:
    """The model of an objective that is a sum of `terms`; w and β_m are each either empty or a full set of f''s parameters.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2)), (2 * np.eye(2), np.ones(2))])
    >>> mixture = of_terms(tw.losses.squared(l2=0.5), clients, [Loss(1, 0, 1), Pull(0.25, 1, -1)])
    >>> mixture.fixed.ww.tolist(), mixture.fixed.wb.tolist(), mixture.fixed.bb.tolist()
    ([0.25, 0.25], [-0.25, -0.25], [0.75, 0.75])
    """
    M, l2 = len(clients), float(loss.l2)
    spread = [
        (
            type(term),
            *(np.broadcast_to(np.asarray(part, np.float64), (M,)) for part in term),
        )
        for term in terms
    ]
    # Each term contributes (d·h + f)·(x, y)(x, y)ᵀ, where h stands for the loss's data part κG.
    pieces = [(c * (kind is Loss), c * (l2 if kind is Loss else 1.0), x, y) for kind, c, x, y in spread]
    zero = np.zeros(M)
    blocks = [
        Blocks(*(sum((p[i] * p[j] * p[k] for p in pieces), zero) for j, k in ((2, 2), (2, 3), (3, 3)))) for i in (0, 1)
    ]
    det = [zero, zero, zero]
    for i, (d, f, x, y) in enumerate(pieces):
        for d2, f2, x2, y2 in pieces[:i]:  # Cauchy–Binet: the determinant of such a sum has only nonnegative terms
            area = (x * y2 - x2 * y) ** 2
            det = [det[0] + f * f2 * area, det[1] + (d * f2 + f * d2) * area, det[2] + d * d2 * area]
    features = Features(clients.x, None, loss.intercept, clients.row_weights)
    has_w, has_beta = (any(np.any(p[i] != 0) for p in pieces) for i in (2, 3))
    low, high = _link(loss)
    return BlockCurvature(
        weights=np.asarray(clients.weights, np.float64),
        starts=np.asarray(clients.offsets[:-1], np.int64),
        counts=np.asarray(clients.counts, np.int64),
        shared=features if has_w else None,
        private=features if has_beta else None,
        together=has_w and has_beta,
        low=low,
        high=high,
        outputs=loss.link.outputs,
        data=blocks[0],
        fixed=blocks[1],
        determinant=(det[0], det[1], det[2]),
        slope=_slope(loss, clients),
    )


def of_parts(loss: Linear, clients: Clients, shared: Features, private: Features) -> BlockCurvature:
    """The model of mean ℓ(z^w·w + z^β·β_m, y) + (l2/2)(‖w‖² + ‖β_m‖²): weight sharing and residual learning."""
    one, zero, ridge = np.ones(len(clients)), np.zeros(len(clients)), np.full(len(clients), float(loss.l2))
    low, high = _link(loss)
    return BlockCurvature(
        weights=np.asarray(clients.weights, np.float64),
        starts=np.asarray(clients.offsets[:-1], np.int64),
        counts=np.asarray(clients.counts, np.int64),
        shared=shared,
        private=private,
        together=False,
        low=low,
        high=high,
        outputs=loss.link.outputs,
        data=Blocks(one, one, one),
        fixed=Blocks(ridge, zero, ridge),
        determinant=(zero, zero, zero),
        slope=_slope(loss, clients),
    )


def _link(loss: Linear) -> tuple[float, float]:
    """κ_low and κ: only the quadratic link has κ_low > 0; the others become flat at infinity."""
    return (loss.link.curvature if loss.link.labels is None else 0.0), loss.link.curvature


def _slope(loss: Linear, clients: Clients) -> Array:
    """Bounds on |∂ℓ/∂score|: 1 for logistic, √2 for softmax; for squared, the root mean square of |y|, its value at score 0."""
    if loss.link.labels is not None:
        return np.full(len(clients), 1.0 if loss.link.outputs is None else float(np.sqrt(2)))
    squares = np.asarray(clients.y, np.float64) ** 2 * (1.0 if clients.row_weights is None else clients.row_weights)
    squares = np.add.reduceat(squares, clients.offsets[:-1])
    return np.sqrt(squares / clients.counts)
