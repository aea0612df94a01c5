"""Federated residual learning: a shared and a private predictor whose scores add up (eq. residual_fm)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.curvature import model
from twofold.errors import InputError, KindError
from twofold.losses import Held, Linear, Rows
from twofold.objectives.base import Objective, Part
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static

__all__ = ["Columns", "Residual", "residual"]

Columns: TypeAlias = Sequence[int] | slice | str | None
"""A choice of features: column numbers, a slice, the key of a dict of features, or None for all."""
_Predictor: TypeAlias = Callable[[Pytree, Pytree], jax.Array]


@record
class Residual(Objective):
    """f_m(w, β_m) = mean ℓ(A^w(w, x^w) + A^β(β_m, x^β), y) + (l2/2)(‖w‖² + ‖β_m‖²).

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.residual(tw.losses.squared())
    >>> objective.score(jnp.ones(2), 2 * jnp.ones(2), rows.x).tolist()
    [3.0, 3.0]
    >>> float(objective.value(jnp.ones(2), 2 * jnp.ones(2), rows, ()))
    2.0
    """

    loss: Linear  # pyright: ignore[reportIncompatibleVariableOverride]
    shared: Columns = static(default=None)
    private: Columns = static(default=None)
    predictors: tuple[_Predictor, _Predictor] | None = static(default=None)
    start: Held | None = static(default=None)
    name = "residual"
    equation = "ℓ(A(w, x) + A(β, x), y)"
    reveals = "a message is a gradient that depends on β and the rows"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero linear predictors of the chosen columns, or the user's starting points."""
        if self.start is not None:
            self.loss.check_targets(clients)
            return jax.tree.map(np.asarray, self.start.value)
        return self.loss.init(self._columns(clients, self.shared)), self.loss.init(self._columns(clients, self.private))

    def _columns(self, clients: Clients, columns: Columns) -> Clients:
        return clients.map(lambda x, y: (_pick(x, columns), y))

    def score(self, w: Pytree, beta: Pytree, x: Pytree) -> jax.Array:
        """A^w(w, x^w) + A^β(β, x^β)."""
        of_w, of_beta = self.predictors or (self.loss.score, self.loss.score)
        return of_w(w, _pick(x, self.shared)) + of_beta(beta, _pick(x, self.private))

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """The mean loss of the summed scores plus the ridge on both parts."""
        fit = rows.mean(self.loss.link.loss(self.score(w, beta, rows.x), rows.y))
        return fit + self.loss.ridge(w) + self.loss.ridge(beta)

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """s²L^w_R and max p_m L^β_R from the spectra of the two sets of columns; μ from the ridge alone.

        None for the user's own predictors, for which there is no formula.
        """
        if self.predictors is not None:
            return None
        shared = self.loss.constants(self._columns(clients, self.shared))
        private = self.loss.constants(self._columns(clients, self.private))
        weights, ridge = clients.weights, float(self.loss.l2)
        return Constants(
            mu=ridge * min(scale**2, float(weights.min())),
            L_w=scale**2 * float(np.max(shared.L)),
            L_beta=float(np.max(weights * private.L)),
            calL_w=scale**2 * float(np.max(shared.calL)),
            calL_beta=float(np.max(weights * private.calL)),
            how=dict.fromkeys(("mu", "L_w", "L_beta", "calL_w", "calL_beta"), "certified"),
            why={
                "mu": "ridge · min(s², min p_m)",
                "L_w": "s² max L^w_R of the shared columns",
                "L_beta": "max p_m L^β_R of the private columns",
                "calL_w": "s² max 𝓛^w_R of the shared columns",
                "calL_beta": "max p_m 𝓛^β_R of the private columns",
            },
        )

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """Hessian bounds for the columns of w and those of β_m; None for the user's own predictors."""
        if self.predictors is not None:
            return None
        chosen = (self._columns(clients, columns).x for columns in (self.shared, self.private))
        shared, private = (model.Features(x, None, self.loss.intercept, clients.row_weights) for x in chosen)
        return model.of_parts(self.loss, clients, shared, private)

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """The grade of the summed score: one number per row."""
        return self.loss.link.grade(self.score(w, beta, x), y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """The decision on the summed score."""
        return self.loss.link.decide(self.score(w, beta, x))

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Both parts, (w, β_m), because there is no single set of parameters."""
        return w, beta

    def parts(self, clients: Clients) -> tuple[Part, ...]:
        """Both parts for linear predictors, each a model by itself; none for the user's own, of which nothing is known."""
        return ("shared", "alone") if self.predictors is None else ()

    def grade_part(
        self, part: Part, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree
    ) -> jax.Array:
        """The grade of one predictor's score, with the other predictor at zero: one number per row."""
        of_w, of_beta = self.only(part, w, beta)
        return self.grade(of_w, of_beta, train, own, x, y)

    def only(self, part: Part, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """One predictor, with the other at zero."""
        return (w, tree.zeros(beta)) if part == "shared" else (tree.zeros(w), beta)

    def scores(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """The summed scores."""
        if self.predictors is not None:
            of_w, of_beta = tree.cast(personal)
            return np.asarray(self.score(of_w, of_beta, tree.cast(x)))
        columns = (self.shared, self.private)
        of_w, of_beta = (self.loss.scores(part, _pick(x, c)) for part, c in zip(personal, columns, strict=True))
        return of_w + of_beta

    def predictions(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """The decision on the summed scores."""
        return self.loss.decide(self.scores(personal, x))

    def describe(self) -> tuple[str, dict[str, Any]] | None:
        """The name and the columns; None for the user's own predictors."""
        if self.predictors is not None:
            return None
        return self.name, {"shared": _plain(self.shared), "private": _plain(self.private)}


def _plain(columns: Columns) -> Any:
    """Columns in a form that JSON can hold."""
    if isinstance(columns, slice):
        return {"slice": [columns.start, columns.stop, columns.step]}
    return columns if columns is None or isinstance(columns, str) else list(columns)


def _fixed(columns: Any) -> Columns:
    """Columns in a hashable form, which a compiled program can hold."""
    if columns is None or isinstance(columns, (str, slice)):
        return cast(Columns, columns)
    if isinstance(columns, dict):  # a slice that was written to JSON
        return slice(*cast(list[Any], columns["slice"]))
    return tuple(int(i) for i in columns)


def _pick(x: Pytree, columns: Columns) -> Pytree:
    if columns is None:
        return x
    return x[columns] if isinstance(columns, str) else x[:, columns if isinstance(columns, slice) else list(columns)]


def residual(
    loss: Linear,
    shared: Columns = None,
    private: Columns = None,
    *,
    predictors: tuple[_Predictor, _Predictor] | None = None,
    start: tuple[Pytree, Pytree] | None = None,
) -> Residual:
    """Add the scores of a shared and a private predictor: ℓ(A(w, x^w) + A(β, x^β), y).

    `shared` and `private` choose the features of each: column numbers, a slice, the key of a dict of features, or None
    for all. They may overlap. The predictors are linear unless you pass `predictors=(A_w, A_beta)`, functions of
    (parameters, features), together with their starting points `start=(w0, beta0)`.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(3), np.ones(3)), (np.eye(3), np.zeros(3))])
    >>> problem = tw.Problem(tw.objectives.residual(tw.losses.squared(), shared=[0, 1], private=[2]), clients)
    >>> w, beta = problem.start
    >>> w.shape, beta.shape
    ((2,), (2, 1))
    """
    if not isinstance(loss, Linear):  # pyright: ignore[reportUnnecessaryIsInstance]  (users may pass anything)
        if isfunction(loss):
            raise KindError(
                f"The loss is {loss.__name__} itself: call it, as in residual(losses.{loss.__name__}(...))."
            )
        raise KindError(
            f"residual needs a loss with a score (losses.logistic, softmax or squared), got {type(loss).__name__}."
        )
    if (predictors is None) != (start is None):
        raise InputError(
            "residual needs predictors and start together: the functions and the starting values of their parameters."
        )
    return Residual(loss, _fixed(shared), _fixed(private), predictors, None if start is None else Held(start))
