"""One client's loss f'(params, x, y): logistic, softmax, squared, or your own; each knows its curvature."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from twofold import control, machine, tree
from twofold.clients import Clients
from twofold.errors import InputError, KindError
from twofold.theory.constants import LossConstants
from twofold.tree import Pytree, record, static


class Rows(NamedTuple):
    """Rows of one client's data with the weight of each in the mean: 1/n for a real row, 0 for padding."""

    x: Pytree
    y: Pytree
    weight: jax.Array

    def mean(self, values: jax.Array) -> jax.Array:
        """The weighted mean of one value per row."""
        return jnp.vdot(self.weight, values)


class Batch(NamedTuple):
    """What a user's own function sees: features and targets with a leading row axis."""

    x: Pytree
    y: Pytree


def by_row(function: Callable[[Batch], Any], x: Pytree, y: Pytree) -> jax.Array:
    """A user's batch function of each row alone."""

    def one(x: Pytree, y: Pytree) -> jax.Array:
        single = Batch(*jax.tree.map(lambda leaf: leaf[None], (x, y)))
        return jnp.mean(function(single))

    return jax.vmap(one)(x, y)


def mean_by_row(function: Callable[[Batch], Any], rows: Rows) -> jax.Array:
    """The mean of a user's batch function over rows, evaluated one row at a time so that padding cannot leak in."""
    return rows.mean(by_row(function, rows.x, rows.y))


# --- linear models: a score x·W (+ b) and a link ----------------------------------------------------------------------


class Link(NamedTuple):
    """How a linear score becomes a loss: ℓ(score, y) with second derivative at most `curvature`."""

    name: str
    loss: Callable[..., jax.Array]  # of scores and targets: one value per row; classes along axis 1, or as it is told
    curvature: float
    outputs: int | None  # None: one score per row
    labels: int | None  # number of classes, None for real targets
    decide: Callable[[jax.Array], jax.Array]
    slope: Callable[[jax.Array, jax.Array], jax.Array]  # the derivative of the loss in the score

    def grade(self, score: jax.Array, y: jax.Array) -> jax.Array:
        """One figure per row, larger is better: 1/0 for right/wrong, minus the squared error for real targets."""
        if self.labels is None:
            return -jnp.square(score - y)
        return (self.decide(score) == y).astype(score.dtype)


@jax.custom_jvp
def _logistic(score: jax.Array, y: jax.Array) -> jax.Array:
    """log(1+e^s) − y·s for y in {0, 1}, with no overflow and no cancellation."""
    s = jnp.where(y > 0, -score, score)
    return jnp.maximum(s, 0) + jnp.log1p(jnp.exp(-jnp.abs(s)))


@_logistic.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    # Also right at s = 0, where max and abs have no derivative; and in one piece, which XLA makes faster loops of than of the
    # derivatives of its parts. Targets are labels: they have no derivative.
    return _logistic(*primals), _logistic_slope(*primals) * tangents[0]


def _logistic_slope(score: jax.Array, y: jax.Array) -> jax.Array:
    """σ(s) − y, without the cancellation."""
    wrong = jax.lax.logistic(jnp.where(y > 0, -score, score))  # how much is given to the other class
    return jnp.where(y > 0, -wrong, wrong)


def _mine(score: jax.Array, y: jax.Array, axis: int = 1) -> jax.Array:
    # A comparison, not an index: the gradient of the latter is a scatter, which costs more than the rest of this loss.
    return jnp.expand_dims(jnp.arange(score.shape[axis]), 1 - axis) == jnp.expand_dims(y, axis)


def _softmax_slope(score: jax.Array, y: jax.Array) -> jax.Array:
    share = jnp.exp(score - jnp.max(score, axis=1)[:, None])
    return share / jnp.sum(share, axis=1)[:, None] - _mine(score, y).astype(score.dtype)


def _softmax(score: jax.Array, y: jax.Array, axis: int = 1) -> jax.Array:
    # log Σ e^s is the same whatever is taken out of the sum, so the largest score is a number like any other here, without
    # a derivative. jax.nn.logsumexp also has an answer for infinite scores, which costs as much again as the rest.
    largest = jax.lax.stop_gradient(jnp.max(score, axis=axis))
    total = jnp.sum(jnp.exp(score - jnp.expand_dims(largest, axis)), axis=axis)
    return largest + jnp.log(total) - jnp.sum(jnp.where(_mine(score, y, axis), score, 0), axis=axis)


def _squared(score: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(score - y)


def _sign(score: jax.Array) -> jax.Array:
    return (score > 0).astype(jnp.int32)


def _largest(score: jax.Array) -> jax.Array:
    return jnp.argmax(score, axis=1).astype(jnp.int32)


def _same(score: jax.Array) -> jax.Array:
    return score


FEW = 32
"""Rows and features up to which a product is written out."""


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x·W; a few rows of a few features times a vector are written out, term by term, and so is the gradient.

    Such a product of many clients or seeds at once is one small call after the other in XLA's CPU code, whereas sums of
    products of whole columns (in the gradient: of whole rows) fuse with what is around them.
    """
    few = weight.ndim == 1 and min(x.shape) > 0 and max(x.shape) <= FEW and machine.on_cpu()
    return _written_out(control.is_reused(), x, weight) if few else x @ weight


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _written_out(reused: bool, x: jax.Array, weight: jax.Array) -> jax.Array:
    columns = x.T
    if reused:  # Steps on one sample share its columns: XLA takes them out of the loop as something of their own, behind a barrier.
        # With something to do but to transpose, it writes columns at once; else it first copies the rows as they are.
        columns = jax.lax.optimization_barrier(jnp.pad(columns, ((0, 1), (0, 0))))
    return reduce(jnp.add, [columns[j] * weight[j] for j in range(len(weight))])


@partial(_written_out.defjvp, symbolic_zeros=True)
def _(reused: bool, primals: tuple, tangents: tuple) -> tuple:
    (x, weight), (dx, dweight) = primals, tangents
    terms = []
    if not isinstance(dweight, SymbolicZero):
        # Row by row, because of how it is transposed: the gradient becomes a sum of rows, each times its slope. Times one, so
        # that this sum is complete before others (a ridge) are added to it: begun with theirs, it is a slower loop.
        once = 1.0 * dweight
        terms.append(jnp.stack([jnp.sum(row * once) for row in x]))
    if not isinstance(dx, SymbolicZero):
        terms.append(_written_out(reused, dx, weight))
    return _written_out(reused, x, weight), reduce(jnp.add, terms)


@record
class Linear:
    """mean_i ℓ(x_i·W + b, y_i) + (l2/2)‖(W, b)‖², with the link ℓ of logistic, softmax or squared regression.

    Parameters are one array W, or a dict of `weight` and `bias` with an intercept. The ridge covers the bias too: that
    is what makes the loss l2-strongly convex.
    """

    link: Link = static()
    l2: float = 0.0
    intercept: bool = static(default=False)
    turned: bool = static(default=False)  # an engine's: weights come as (classes, features), the faster way for CPUs

    def init(self, clients: Clients) -> Pytree:
        """Zero parameters for the width of these clients' features."""
        self.check(clients)
        shape = (clients.x.shape[1],) + (() if self.link.outputs is None else (self.link.outputs,))
        weight = np.zeros(shape)
        return {"weight": weight, "bias": np.zeros(shape[1:])} if self.intercept else weight

    def check(self, clients: Clients) -> None:
        """Refuse features that are not a matrix, and labels that this loss has no meaning for."""
        x = clients.x
        if not isinstance(x, np.ndarray) or x.ndim != 2:
            found = type(x).__name__ if not isinstance(x, np.ndarray) else f"an array of shape {x.shape}"
            raise InputError(
                f"The {self.link.name} loss needs features of shape (rows, width), but the clients have {found}; "
                "use losses.custom for other features."
            )
        self.check_targets(clients)

    def check_targets(self, clients: Clients) -> None:
        """Refuse labels or targets that this loss has no meaning for, whatever the features are."""
        y = clients.y
        if not isinstance(y, np.ndarray) or y.ndim != 1:
            found = type(y).__name__ if not isinstance(y, np.ndarray) else f"an array of shape {y.shape}"
            raise InputError(f"The {self.link.name} loss needs one target per row, but the clients have {found}.")
        if self.link.labels is not None:
            clients.check_labels(self.link.labels)

    def score(self, params: Pytree, x: jax.Array) -> jax.Array:
        """x·W + b, one score (or one per class) a row."""
        if self.turned:
            return self._by_class(params, x).T
        product = _product(x, params["weight"] if self.intercept else params)
        return product + params["bias"][None] if self.intercept else product

    def _by_class(self, params: Pytree, x: jax.Array) -> jax.Array:
        """The scores as (classes, rows): then the gradient, slopes·x, is a product that needs nothing transposed."""
        product = (params["weight"] if self.intercept else params) @ x.T
        return product + params["bias"][:, None] if self.intercept else product

    def ridge(self, params: Pytree) -> jax.Array:
        """(l2/2)‖params‖²."""
        return 0.5 * self.l2 * tree.squared_norm(params)

    def value(self, params: Pytree, rows: Rows) -> jax.Array:
        """The mean loss over the rows plus the ridge."""
        if self.turned:
            loss = self.link.loss(self._by_class(params, rows.x), rows.y, axis=0)
        else:
            loss = self.link.loss(self.score(params, rows.x), rows.y)
        return rows.mean(loss) + self.ridge(params)

    def predict(self, params: Pytree, x: jax.Array) -> jax.Array:
        """The class (or the real value) that the parameters give each row."""
        return self.link.decide(self.score(params, x))

    def grade(self, params: Pytree, x: jax.Array, y: jax.Array) -> jax.Array:
        """One figure per row, larger is better: right or wrong, or minus the squared error."""
        return self.link.grade(self.score(params, x), y)

    def constants(self, clients: Clients, columns: Any = slice(None)) -> LossConstants:
        """μ', L', 𝓛' of every client: κ·λ(XᵀX/n) + l2, with κ the link's curvature (Lemmas of Section 2)."""
        smallest, largest, longest = _spectra(clients, columns, self.intercept)
        kappa, l2 = self.link.curvature, float(self.l2)
        # Only a quadratic link has a smallest curvature of its own; the others are flat at infinity.
        mu = (smallest if self.link.labels is None else np.zeros_like(smallest)) + l2
        how = {name: "certified" for name in ("mu", "L", "calL")}  # noqa: C420  (typed as plain strings)
        return LossConstants(mu=mu, L=kappa * largest + l2, calL=kappa * longest + l2, how=how)


def _spectra(clients: Clients, columns: Any, intercept: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each client: smallest and largest eigenvalue of XᵀX/n, and the largest ‖x‖² of a row."""
    smallest, largest, longest = (np.empty(len(clients)) for _ in range(3))
    for m, (lo, hi) in enumerate(zip(clients.offsets[:-1], clients.offsets[1:], strict=True)):
        x = np.asarray(clients.x[lo:hi][:, columns], np.float64)
        if intercept:
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        n, d = x.shape
        gram = x.T @ x / n if d <= n else x @ x.T / n  # same nonzero spectrum, whichever is smaller
        values = np.linalg.eigvalsh(gram)
        largest[m] = values[-1]
        smallest[m] = max(values[0], 0.0) if d <= n else 0.0
        longest[m] = np.max(np.sum(x * x, axis=1))
    return smallest, largest, longest


def logistic(l2: float = 0.0, intercept: bool = False) -> Linear:
    """Binary logistic regression: log(1 + e^s) − y·s for labels 0 and 1, s = x·w."""
    return Linear(Link("logistic", _logistic, 0.25, None, 2, _sign, _logistic_slope), _ridge(l2), intercept)


def softmax(classes: int, l2: float = 0.0, intercept: bool = False) -> Linear:
    """Multinomial logistic regression: log Σ_c e^{s_c} − s_y for labels 0 … classes−1, s = x·W."""
    if not isinstance(classes, (int, np.integer)) or classes < 2:
        raise InputError(f"softmax needs a whole number of at least two classes, got {classes=}.")
    return Linear(
        Link("softmax", _softmax, 0.5, int(classes), int(classes), _largest, _softmax_slope), _ridge(l2), intercept
    )


def squared(l2: float = 0.0, intercept: bool = False) -> Linear:
    """Least squares: ½(x·w − y)²."""
    return Linear(Link("squared", _squared, 1.0, None, None, _same, jnp.subtract), _ridge(l2), intercept)


def _ridge(l2: float) -> float:
    if not isinstance(l2, Real) or not 0 <= l2 < np.inf:
        raise InputError(f"The ridge must be a number ≥ 0, got {l2=}.")
    return float(l2)


# --- your own ---------------------------------------------------------------------------------------------------------


@record
class Custom:
    """A loss of the user's own: fn(params, x, y), the mean over rows with a leading row axis."""

    fn: Callable[[Pytree, Pytree, Pytree], Any] = static()
    start: Any = static()
    l2: float = 0.0
    mu: float | None = static(default=None)
    L: float | None = static(default=None)
    calL: float | None = static(default=None)
    predictor: Callable[[Pytree, Pytree], Any] | None = static(default=None)

    def init(self, clients: Clients) -> Pytree:
        """The user's initial parameters, as arrays."""
        start = self.start.value
        return jax.tree.map(np.asarray, start(clients) if callable(start) else start)

    def check(self, clients: Clients) -> None:
        """Nothing is known about the features, so nothing is refused."""

    def value(self, params: Pytree, rows: Rows) -> jax.Array:
        """The mean of the user's function over the rows, plus the ridge."""
        mean = mean_by_row(lambda batch: self.fn(params, batch.x, batch.y), rows)
        return mean + 0.5 * self.l2 * tree.squared_norm(params)

    def predict(self, params: Pytree, x: Pytree) -> jax.Array:
        """The user's predictor."""
        if self.predictor is None:
            raise InputError("This custom loss cannot predict; pass losses.custom(..., predict=fn(params, x)).")
        return self.predictor(params, x)

    def grade(self, params: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """Minus the loss of each row: the only figure that every loss has."""
        return -by_row(lambda batch: self.fn(params, batch.x, batch.y), x, y)

    def constants(self, clients: Clients) -> LossConstants:
        """What the user gave; else L' and 𝓛' at the initial point by power iteration on Hessian-vector products."""
        from twofold.curvature import largest_of_loss  # heavy, and only needed here

        start = tree.cast(self.init(clients))
        l2 = float(self.l2)
        L = self.L + l2 if self.L is not None else largest_of_loss(self, start, clients, single_rows=False)
        calL = self.calL + l2 if self.calL is not None else largest_of_loss(self, start, clients, single_rows=True)
        how = {
            "mu": "given",
            "L": "given" if self.L is not None else "local",
            "calL": "given" if self.calL is not None else "local",
        }
        everyone = np.ones(len(clients))
        return LossConstants(mu=everyone * ((self.mu or 0.0) + l2), L=everyone * L, calL=everyone * calL, how=how)


class Held:
    """A value that an objective keeps for its start and that no compiled program ever reads.

    So all of these count as equal: an objective that is made again, with another start of the same shape, compiles nothing.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held)

    def __hash__(self) -> int:
        return hash(Held)


def custom(
    fn: Callable[[Pytree, Pytree, Pytree], Any],
    init: Pytree | Callable[[Clients], Pytree],
    *,
    l2: float = 0.0,
    mu: float | None = None,
    L: float | None = None,
    calL: float | None = None,
    predict: Callable[[Pytree, Pytree], Any] | None = None,
) -> Custom:
    """A loss of your own: `fn(params, x, y)` is the mean over rows of x and y, which have a leading row axis.

    It must be such a mean (a finite sum): twofold evaluates it row by row, so that unequal clients are right. `init` is
    the initial pytree of parameters, or a function of the clients that gives it. `mu`, `L` and `calL` are μ', L', 𝓛' of
    fn itself (the ridge is added to them): give what you know. L' and 𝓛' are otherwise estimated at the initial point
    and marked "local"; without `mu` fn is taken to be convex, and no strong convexity beyond the ridge is claimed.
    """
    if not callable(fn):
        raise KindError(f"losses.custom needs a function fn(params, x, y), got {type(fn).__name__}.")
    return Custom(fn, Held(init), _ridge(l2), mu, L, calL, predict)


REGISTRY: dict[str, Callable[..., Linear]] = {"logistic": logistic, "softmax": softmax, "squared": squared}
"""The losses by name: what a configuration, the command line and `twofold list` know."""
