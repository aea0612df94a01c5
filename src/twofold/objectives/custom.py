"""A user-defined objective: any f(w, β, batch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients
from twofold.convolutions import fast
from twofold.errors import InputError, KindError
from twofold.losses import Batch, Held, Rows, by_row, mean_by_row
from twofold.losses.base import check_by_row
from twofold.objectives.base import Measure, Objective, Part
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static

__all__ = ["OwnObjective", "custom"]

_Plain: TypeAlias = Callable[[Pytree, Pytree, Batch], jax.Array]
_WithParams: TypeAlias = Callable[[Pytree, Pytree, Batch, Pytree], jax.Array]
_Given: TypeAlias = Constants | Callable[[Clients], Constants]


@record
class OwnObjective(Objective):
    """f_m(w, β_m) = the mean over client m's rows of the user's function.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> def f(w, beta, batch):
    ...     return jnp.mean((batch.x @ w + beta - batch.y) ** 2)
    >>> objective = tw.objectives.custom(f, w0=jnp.zeros(2), beta0=0.0)
    >>> float(objective.value(jnp.zeros(2), 3.0, rows, ()))
    4.0
    """

    f: _Plain | _WithParams = static()
    start: Held = static()
    params: Pytree = None
    given: Held | None = static(default=None)
    grader: _Plain | None = static(default=None)
    name = "custom"
    equation = "f(w, β, batch)"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """The user's starting points."""
        return jax.tree.map(np.asarray, self.start.value)

    def bind(self, clients: Clients) -> OwnObjective:
        """Refuse a function whose value for one row depends on other rows of the batch."""

        def at(point: Pytree, batch: Batch) -> jax.Array:
            return self._call(point[0], point[1], batch)

        check_by_row("objectives.custom", self.f, at, self.init(clients), clients)
        return self

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """The mean of the user's function over rows, evaluated one row at a time."""
        return mean_by_row(lambda batch: self._call(w, beta, batch), rows)

    def _call(self, w: Pytree, beta: Pytree, batch: Batch) -> jax.Array:
        if self.params is None:
            return fast(cast(_Plain, self.f))(w, beta, batch)
        return fast(cast(_WithParams, self.f))(w, beta, batch, self.params)

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """The constants that the user gave; None if the problem is to estimate them."""
        if self.given is None:
            return None
        given: _Given = self.given.value
        return given if isinstance(given, Constants) else given(clients)

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Both parts, (w, β): only the user knows what they mean."""
        return w, beta

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """The user's grade of each row; without one, minus f of the row."""
        if self.grader is not None:
            return self.grader(w, beta, Batch(x, y))
        return -by_row(lambda batch: self._call(w, beta, batch), x, y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """Raise: a custom objective has no predictor."""
        raise InputError("A custom objective cannot predict; use its w and beta in your own predictor.")

    def scores(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """Raise, as `predict` does."""
        raise InputError("A custom objective cannot predict; use its w and beta in your own predictor.")

    def predictions(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """Raise, as `predict` does."""
        return self.scores(personal, x)

    def describe(self) -> None:
        """None, because a file cannot hold a function."""

    def measure(self) -> Measure:
        """The user's own grade; without one, minus f."""
        return "minus loss" if self.grader is None else "grade"

    def parts(self, clients: Clients) -> tuple[Part, ...]:
        """No parts, because only the user knows what w or β means without the other."""
        return ()


def custom(
    f: _Plain | _WithParams,
    w0: Pytree,
    beta0: Pytree,
    *,
    params: Pytree = None,
    constants: Constants | Callable[[Clients], Constants] | None = None,
    grade: Callable[[Pytree, Pytree, Batch], jax.Array] | None = None,
) -> OwnObjective:
    """Make an objective from your own function: `f(w, β, batch)` is one client's loss, a mean over the rows of `batch = (x, y)`.

    Write it in plain, unscaled w. It must be a mean over rows (a finite sum), because twofold evaluates it row by row; that keeps
    clients of unequal size and sampling correct. Terms that use no rows, such as a penalty, are fine. `w0` and `beta0` are one
    client's starting pytrees, and either may be `()`. Numbers in `params` are passed to f as a fourth argument, and can change
    without recompiling. Without `constants` (of F in the scaled space), twofold estimates them at the starting point.
    `grade(w, beta, batch)` returns one number per row for `tw.evaluate`; the default is minus f.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> def f(w, beta, batch):
    ...     return jnp.mean((batch.x @ w + beta - batch.y) ** 2)
    >>> objective = tw.objectives.custom(f, w0=jnp.zeros(2), beta0=0.0)
    >>> clients = tw.Clients.from_list([(jnp.eye(2), jnp.ones(2)), (jnp.eye(2), jnp.zeros(2))])
    >>> float(tw.Problem(objective, clients).value(jnp.zeros(2), jnp.zeros(2)))
    0.5
    """
    if not callable(f):
        raise KindError(f"objectives.custom needs a function f(w, beta, batch), got {type(f).__name__}.")
    return OwnObjective(f, Held((w0, beta0)), params, None if constants is None else Held(constants), grade)
