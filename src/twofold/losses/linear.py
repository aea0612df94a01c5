"""Linear models: a score x·W (+ b), and a link that turns it into logistic, softmax or squared regression."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped, and a pytree's leaves.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# What users hand over is looked at, whatever its annotation says.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold import kernels, tree
from twofold.clients import ClientError, Clients
from twofold.errors import InputError
from twofold.losses.base import Curved, Rows, ridge_of
from twofold.theory.constants import LossConstants
from twofold.tree import Pytree, record, static

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from twofold.curvature.model import BlockCurvature
    from twofold.losses.base import Term

__all__ = ["Linear", "Link", "logistic", "softmax", "squared"]


class Link(NamedTuple):
    """How a linear score becomes a loss: ℓ(score, y) with second derivative at most `curvature`.

    >>> logistic().link.name, logistic().link.curvature
    ('logistic', 0.25)
    """

    name: str
    loss: Callable[..., jax.Array]  # (scores, targets) → one value per row; classes along axis 1 by default
    curvature: float
    outputs: int | None  # None: one score per row
    labels: int | None  # number of classes, None for real targets
    decide: Callable[[jax.Array], jax.Array]

    def __reduce__(self) -> tuple[Callable[..., Link], tuple[str, int | None]]:
        """Pickle the link by its name, because JAX has wrapped its functions, which pickle would not find in their module."""
        return _link_named, (self.name, self.outputs)

    def grade(self, score: jax.Array, y: jax.Array) -> jax.Array:
        """One number per row, larger is better: 1/0 for right/wrong, minus the squared error for real targets."""
        if self.labels is None:
            return -jnp.square(score - y)
        return (self.decide(score) == y).astype(score.dtype)


Columns: TypeAlias = slice | Sequence[int] | NDArray[np.integer[Any]]
"""Some of the features, as NumPy indexes them."""
Targeted: TypeAlias = tuple[jax.Array, jax.Array]
"""Scores and targets."""


@jax.custom_jvp
def _logistic(score: jax.Array, y: jax.Array) -> jax.Array:
    """log(1+e^s) − y·s for y in {0, 1}, without overflow or cancellation."""
    s = jnp.where(y > 0, -score, score)
    return jnp.maximum(s, 0) + jnp.log1p(jnp.exp(-jnp.abs(s)))


@_logistic.defjvp
def _(primals: Targeted, tangents: Targeted) -> tuple[jax.Array, jax.Array]:
    # Written by hand because max and abs have no derivative at s = 0, and because XLA makes a faster loop from one formula than
    # from the derivatives of its parts. Targets are labels and have no derivative.
    return _logistic(*primals), _logistic_slope(*primals) * tangents[0]


def _logistic_slope(score: jax.Array, y: jax.Array) -> jax.Array:
    """σ(s) − y, without cancellation."""
    wrong = jax.lax.logistic(jnp.where(y > 0, -score, score))  # the probability of the wrong class
    return jnp.where(y > 0, -wrong, wrong)


def _mine(score: jax.Array, y: jax.Array, axis: int = 1) -> jax.Array:
    # A comparison instead of an index: the gradient of an index is a scatter, which costs more than the rest of this loss.
    return jnp.expand_dims(jnp.arange(score.shape[axis]), 1 - axis) == jnp.expand_dims(y, axis)


def _softmax(score: jax.Array, y: jax.Array, axis: int = 1) -> jax.Array:
    # log Σ e^s = c + log Σ e^(s−c) for any constant c, so the largest score can be treated as a constant, without a derivative.
    # jax.nn.logsumexp also handles infinite scores, which would double the cost.
    largest = jax.lax.stop_gradient(jnp.max(score, axis=axis))
    total = jnp.sum(jnp.exp(score - jnp.expand_dims(largest, axis)), axis=axis)
    return largest + jnp.log(total) - jnp.sum(jnp.where(_mine(score, y, axis), score, 0), axis=axis)


def _squared(score: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(score - y)


def _sign(score: jax.Array) -> jax.Array:
    return (score > 0).astype(jnp.int32)


def _largest(score: jax.Array) -> jax.Array:
    return jnp.argmax(score, axis=1).astype(jnp.int32)


def same(score: jax.Array) -> jax.Array:
    """The score itself."""
    return score


def probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """The probability of every class, from one score per class, or from one score per row for two classes."""
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    rises = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return rises / np.sum(rises, axis=1, keepdims=True)


@record
class Linear(Curved):
    """mean_i ℓ(x_i·W + b, y_i) + (l2/2)‖(W, b)‖², with the link ℓ of logistic, softmax or squared regression.

    The parameters are one array W or, with an intercept, a dict of `weight` and `bias`. The ridge covers the bias too, which makes
    the loss l2-strongly convex.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> loss = tw.losses.logistic(l2=0.1, intercept=True)
    >>> {name: part.shape for name, part in loss.init(clients).items()}
    {'weight': (2,), 'bias': ()}
    >>> loss.constants(clients).mu.tolist()
    [0.1]
    """

    link: Link = static()
    l2: float = 0.0
    intercept: bool = static(default=False)

    def init(self, clients: Clients) -> Pytree:
        """Zero parameters, sized for these clients' features."""
        self.check(clients)
        shape = (clients.x.shape[1],) + (() if self.link.outputs is None else (self.link.outputs,))
        weight = np.zeros(shape)
        return {"weight": weight, "bias": np.zeros(shape[1:])} if self.intercept else weight

    def check(self, clients: Clients) -> None:
        """Refuse features that are not a matrix, and labels that do not fit this loss."""
        x = clients.x
        if not isinstance(x, np.ndarray) or x.ndim != 2:
            found = type(x).__name__ if not isinstance(x, np.ndarray) else f"an array of shape {x.shape}"
            raise InputError(
                f"The {self.link.name} loss needs features of shape (rows, width), but the clients have {found}; "
                "use losses.custom for other features."
            )
        self.check_targets(clients)
        check_magnitude(clients)

    def check_targets(self, clients: Clients) -> None:
        """Refuse labels or targets that do not fit this loss, whatever the features are."""
        y = clients.y
        if not isinstance(y, np.ndarray) or y.ndim != 1:
            found = type(y).__name__ if not isinstance(y, np.ndarray) else f"an array of shape {y.shape}"
            raise InputError(f"The {self.link.name} loss needs one target per row, but the clients have {found}.")
        classes = None if clients.schema is None else clients.schema.classes
        if self.link.labels is not None:
            try:
                clients.check_labels(self.link.labels)
            except ClientError as mistake:
                raise ClientError(f"{mistake}{_remedy(np.unique(y), self.link)}") from None
        elif classes is not None and not all(label == code for code, label in enumerate(classes)):
            raise InputError(
                f"The {self.link.name} loss needs numbers, but the target was read as classes ({', '.join(map(str, classes))}): say "
                'labels="numbers" in Clients.from_frame if it holds numbers, or take tw.losses.logistic() or softmax(...).'
            )

    def score(self, params: Pytree, x: Float[jax.Array, "rows features"]) -> Float[jax.Array, " rows *classes"]:
        """x·W + b: one score per row, or one per row and class."""
        product = kernels.product(x, params["weight"] if self.intercept else params)
        return product + params["bias"][None] if self.intercept else product

    def by_class(self) -> ByClass | None:
        """This loss for weights stored as (classes, features); None if there is one score per row."""
        return None if self.link.outputs is None else ByClass(self)

    def curvature(self, clients: Clients, terms: Sequence[Term]) -> BlockCurvature:
        """Bounds by the link's curvature and everyone's second moments."""
        from twofold.curvature import model  # whose neighbours import this module

        return model.of_terms(self, clients, terms)

    def ridge(self, params: Pytree) -> Float[jax.Array, ""]:
        """(l2/2)‖params‖²."""
        return 0.5 * self.l2 * tree.squared_norm(params)

    def value(self, params: Pytree, rows: Rows) -> Float[jax.Array, ""]:
        """The mean loss over the rows plus the ridge."""
        return rows.mean(self.row_losses(params, rows.x, rows.y)) + self.ridge(params)

    def row_losses(
        self, params: Pytree, x: Float[jax.Array, "rows features"], y: Shaped[jax.Array, " rows"]
    ) -> Float[jax.Array, " rows"]:
        """The loss of each row, without the ridge."""
        return self.link.loss(self.score(params, x), y)

    def predict(self, params: Pytree, x: Float[jax.Array, "rows features"]) -> Shaped[jax.Array, " rows"]:
        """The class (or the real value) that the parameters give each row."""
        return self.link.decide(self.score(params, x))

    def grade(
        self, params: Pytree, x: Float[jax.Array, "rows features"], y: Shaped[jax.Array, " rows"]
    ) -> Float[jax.Array, " rows"]:
        """One number per row, larger is better: 1 or 0 for right or wrong, or minus the squared error."""
        return self.link.grade(self.score(params, x), y)

    # The methods below run on the host in NumPy, so that no number of rows needs a compilation of its own.

    def scores(self, params: Pytree, x: Float[NDArray[Any], "rows features"]) -> Float[NDArray[Any], " rows *classes"]:
        """x·W + b in NumPy: one score per row, or one per row and class."""
        weight = np.asarray(params["weight"] if self.intercept else params)
        if np.ndim(x) != 2 or np.shape(x)[1] != weight.shape[0]:
            raise InputError(f"x has shape {np.shape(x)}, but the {self.link.name} loss has {weight.shape[0]} weights.")
        score = np.asarray(x) @ weight
        return score + np.asarray(params["bias"]) if self.intercept else score

    def decide(self, scores: Float[NDArray[Any], " rows *classes"]) -> Shaped[NDArray[Any], " rows"]:
        """The class, or the real value, that scores stand for."""
        if self.link.labels is None:
            return scores
        return (scores > 0).astype(np.int64) if self.link.outputs is None else np.argmax(scores, axis=1)

    def probabilities(self, scores: Float[NDArray[Any], " rows *classes"]) -> Float[NDArray[Any], "rows classes"]:
        """The probability of every class, one line per row; raises for real targets."""
        if self.link.labels is None:
            raise InputError(
                "The squared loss predicts a number, not probabilities: use predict, or a logistic or softmax loss."
            )
        return probabilities(scores)

    def predictions(self, params: Pytree, x: Float[NDArray[Any], "rows features"]) -> Shaped[NDArray[Any], " rows"]:
        """The class (or the real value) that the parameters give each row."""
        return self.decide(self.scores(params, x))

    def describe(self) -> dict[str, Any]:
        """The name and the arguments from which `losses.REGISTRY` can rebuild this loss."""
        chosen = {"classes": self.link.outputs} if self.link.outputs is not None else {}
        return {"name": self.link.name, **chosen, "l2": float(self.l2), "intercept": self.intercept}

    def constants(self, clients: Clients, columns: Columns = slice(None)) -> LossConstants:
        """μ', L', 𝓛' of every client: κ·λ(XᵀX/n) + l2, with κ the link's curvature (Lemmas of Section 2)."""
        smallest, largest, longest = _spectra(clients, columns, self.intercept)
        kappa, l2 = self.link.curvature, float(self.l2)
        # Only the quadratic link is strongly convex by itself; the others become flat at infinity.
        mu = (smallest if self.link.labels is None else np.zeros_like(smallest)) + l2
        how = {name: "certified" for name in ("mu", "L", "calL")}  # noqa: C420  (typed as plain strings)
        return LossConstants(mu=mu, L=kappa * largest + l2, calL=kappa * longest + l2, how=how)


def _remedy(found: NDArray[Any], link: Link) -> str:
    """What to do about labels that do not fit a loss."""
    classes = int(link.labels or 0)
    if (classes == 2 and np.array_equal(found, [-1, 1])) or np.array_equal(found, np.arange(1, classes + 1)):
        return ""  # the message of check_labels already gives the remedy
    if not np.array_equal(found, np.rint(found)):
        return ". These are real numbers, not labels: use losses.squared()"
    if len(found) <= classes:
        return ". Number the labels from 0, as in labels, y = numpy.unique(y, return_inverse=True)"
    start = (
        "" if np.array_equal(found, np.arange(len(found))) else ", and labels, y = numpy.unique(y, return_inverse=True)"
    )
    return f". There are {len(found)} different labels: use losses.softmax({len(found)}){start}"


@record
class ByClass:
    """The same loss for weights stored as (classes, features), the form that algorithms work on.

    In this form the gradient, slopes·x, is a product along long rows that needs no transposition, and is twice as fast on CPUs.
    `Problem` converts the user's weights to this form and back.
    """

    loss: Linear

    def value(self, params: Pytree, rows: Rows) -> Float[jax.Array, ""]:
        """The mean loss over the rows plus the ridge."""
        weight = params["weight"] if self.loss.intercept else params
        score = (rows.x @ weight.T).T  # under vmap, XLA takes up to four times as long for weight @ rows.x.T
        score = score + params["bias"][:, None] if self.loss.intercept else score
        return rows.mean(self.loss.link.loss(score, rows.y, axis=0)) + self.loss.ridge(params)


def check_magnitude(clients: Clients) -> None:
    """Refuse features whose squares (and therefore all curvature) overflow in the run's precision, naming the client."""
    x, dtype = clients.x, jnp.result_type(float)
    if not x.size or not np.issubdtype(x.dtype, np.floating):
        return
    largest = float(max(np.max(x), -np.min(x)))
    if largest <= float(np.sqrt(float(jnp.finfo(dtype).max) / x.size)):
        return
    row = int(np.argmax(np.max(np.abs(x), axis=1)))
    client = clients.names[int(np.searchsorted(clients.offsets, row, side="right")) - 1]
    helps = dtype == jnp.float32 and largest < float(np.sqrt(np.finfo(np.float64).max / x.size))
    wider = ", or compute in float64 (jax.config.update('jax_enable_x64', True))" if helps else ""
    raise InputError(
        f"Client {client!r} has a feature of size {largest:.3g}, whose square overflows in {dtype}: scale the features, for "
        f"example with twofold.data.normalise.standardise{wider}."
    )


def _spectra(clients: Clients, columns: Columns, intercept: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each client: the smallest and largest eigenvalue of XᵀX/n, and the largest ‖x‖² of any row."""
    smallest, largest, longest = (np.empty(len(clients)) for _ in range(3))
    for m, (lo, hi) in enumerate(zip(clients.offsets[:-1], clients.offsets[1:], strict=True)):
        x = np.asarray(clients.x[lo:hi][:, columns], np.float64)
        if intercept:
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        if clients.row_weights is not None:
            x = x * np.sqrt(clients.row_weights[lo:hi])[:, None]
        n, d = x.shape
        gram = x.T @ x / n if d <= n else x @ x.T / n  # both have the same nonzero spectrum: take the smaller matrix
        values = np.linalg.eigvalsh(gram)
        largest[m] = values[-1]
        smallest[m] = max(values[0], 0.0) if d <= n else 0.0
        longest[m] = np.max(np.sum(x * x, axis=1))
    return smallest, largest, longest


def _flag(intercept: bool) -> bool:
    """Whether there is an intercept; a word such as "no" would count as yes, so it is refused."""
    if not isinstance(intercept, (bool, np.bool_)):
        raise InputError(f"intercept must be True or False, got {intercept=}.")
    return bool(intercept)


def _link_named(name: str, outputs: int | None) -> Link:
    return (softmax(outputs) if outputs is not None else {"logistic": logistic, "squared": squared}[name]()).link


def logistic(l2: float = 0.0, intercept: bool = False) -> Linear:
    """Binary logistic regression: log(1 + e^s) − y·s for labels 0 and 1, s = x·w.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> loss = tw.losses.logistic(l2=0.1)
    >>> loss.constants(clients).L.tolist()  # ¼ of the largest eigenvalue of XᵀX/n, and the ridge
    [0.225]
    """
    return Linear(Link("logistic", _logistic, 0.25, None, 2, _sign), ridge_of(l2), _flag(intercept))


def softmax(classes: int, l2: float = 0.0, intercept: bool = False) -> Linear:
    """Multinomial logistic regression: log Σ_c e^{s_c} − s_y for labels 0 … classes−1, s = x·W.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> tw.losses.softmax(classes=3).init(clients).shape
    (2, 3)
    """
    if not isinstance(classes, (int, np.integer)) or classes < 2:
        raise InputError(f"softmax needs a whole number of at least two classes, got {classes=}.")
    return Linear(Link("softmax", _softmax, 0.5, int(classes), int(classes), _largest), ridge_of(l2), _flag(intercept))


def squared(l2: float = 0.0, intercept: bool = False) -> Linear:
    """Least squares: ½(x·w − y)².

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> loss.predict(np.array([1.0, 2.0]), clients.x).tolist()
    [1.0, 2.0]
    """
    return Linear(Link("squared", _squared, 1.0, None, None, same), ridge_of(l2), _flag(intercept))
