"""An objective of your own: any f(w, β, batch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from twofold.clients import Clients
from twofold.errors import InputError, KindError
from twofold.losses import Batch, Held, Rows, by_row, mean_by_row
from twofold.objectives.base import Objective
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static


@record
class Custom(Objective):
    """f_m(w, β_m) = the mean over client m's rows of the user's function."""

    f: Callable[..., Any] = static()
    start: Any = static()
    params: Any = None
    given: Any = static(default=None)
    grader: Callable[..., Any] | None = static(default=None)
    name = "custom"
    equation = "f(w, β, batch)"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """The user's starting points."""
        return jax.tree.map(np.asarray, self.start.value)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """The mean of the user's function, row by row."""
        return mean_by_row(lambda batch: self._of(w, beta, batch), rows)

    def _of(self, w: Pytree, beta: Pytree, batch: Batch) -> Any:
        return self.f(w, beta, batch, *(() if self.params is None else (self.params,)))

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """The constants that the user gave, or None: the problem estimates them."""
        if self.given is None:
            return None
        values: Any = self.given.value
        return values if isinstance(values, Constants) else values(clients)

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Both parts: only the user knows what they mean."""
        return w, beta

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """The user's grade per row, else minus f of each row."""
        if self.grader is not None:
            return self.grader(w, beta, Batch(x, y))
        return -by_row(lambda batch: self._of(w, beta, batch), x, y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """Refuse: a custom objective has no predictor."""
        raise InputError("A custom objective cannot predict; use its w and beta in your own predictor.")


def custom(
    f: Callable[..., Any],
    w0: Pytree,
    beta0: Pytree,
    *,
    params: Pytree = None,
    constants: Constants | Callable[[Clients], Constants] | None = None,
    grade: Callable[..., Any] | None = None,
) -> Custom:
    """An objective of your own: `f(w, β, batch)` is one client's loss, a mean over the rows of `batch = (x, y)`.

    Write it in plain, unscaled w. It must be a mean over rows (a finite sum), since twofold evaluates it row by row, so
    that unequal clients and sampling are right; terms without rows (a penalty) are fine. `w0` and `beta0` are one
    client's starting pytrees; either may be `()`. Numbers in `params`, passed as a fourth argument, can change without
    recompiling. `constants` (of F in the scaled space) are estimated at the start where you do not give them.
    """
    if not callable(f):
        raise KindError(f"objectives.custom needs a function f(w, beta, batch), got {type(f).__name__}.")
    return Custom(f, Held((w0, beta0)), params, None if constants is None else Held(constants), grade)
