"""A loss of the user's own: fn(params, x, y)."""
# JAX does not type paths in a pytree.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.convolutions import fast
from twofold.errors import InputError, KindError
from twofold.losses.base import Curved, Held, Rows, by_row, check_by_row, mean_by_row, ridge_of
from twofold.theory.constants import LossConstants
from twofold.tree import Pytree, record, static

if TYPE_CHECKING:
    from twofold.losses.net import Net

__all__ = ["Custom", "custom"]


@record
class Custom(Curved):
    """A loss of the user's own: fn(params, x, y), the mean over rows with a leading row axis.

    >>> import jax.numpy as jnp, numpy as np, twofold as tw
    >>> def absolute(params, x, y):
    ...     return jnp.mean(jnp.sqrt(1 + (x @ params - y) ** 2))
    >>> loss = tw.losses.custom(absolute, init=np.zeros(2), l2=0.1)
    >>> loss.init(None).shape, loss.l2
    ((2,), 0.1)
    """

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
        found = start(clients) if _is_function(start) else start
        return jax.tree_util.tree_map_with_path(_as_array, found)

    def check(self, clients: Clients) -> None:
        """Refuse a function that looks at other rows of its batch: it is evaluated row by row, so it would do something else."""
        check_by_row(
            "losses.custom",
            self.fn,
            lambda params, batch: self.fn(params, batch.x, batch.y),
            self.init(clients),
            clients,
        )

    def value(self, params: Pytree, rows: Rows) -> jax.Array:
        """The mean of the user's function over the rows, plus the ridge."""
        mean = mean_by_row(lambda batch: fast(self.fn)(params, batch.x, batch.y), rows)
        return mean + 0.5 * self.l2 * tree.squared_norm(params)

    def predict(self, params: Pytree, x: Pytree) -> jax.Array:
        """The user's predictor."""
        if self.predictor is None:
            raise InputError("This custom loss cannot predict; pass losses.custom(..., predict=fn(params, x)).")
        return fast(self.predictor)(params, x)

    def grade(self, params: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """Minus the loss of each row: the only figure that every loss has."""
        return -self.row_losses(params, x, y)

    def row_losses(self, params: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """The loss of each row, without the ridge."""
        return by_row(lambda batch: fast(self.fn)(params, batch.x, batch.y), x, y)

    def scores(self, params: Pytree, x: Pytree) -> NDArray[Any]:
        """Raise: only the user knows what is behind a prediction."""
        raise InputError(
            "This custom loss has predictions but no scores or probabilities: have your own predict=fn(params, x) give what you need."
        )

    def decide(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Raise, as `scores` does."""
        return self.scores(None, scores)

    def probabilities(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Raise, as `scores` does."""
        return self.scores(None, scores)

    def predictions(self, params: Pytree, x: Pytree) -> NDArray[Any]:
        """What the user's predictor gives."""
        return np.asarray(self.predict(tree.cast(params), tree.cast(x)))

    def describe(self) -> None:
        """A file cannot hold a function."""

    def constants(self, clients: Clients) -> LossConstants:
        """What the user gave; else L' and 𝓛' at the initial point by power iteration on Hessian-vector products."""
        return estimated(self, clients, self.mu, self.L, self.calL)


def estimated(
    loss: Custom | Net, clients: Clients, mu: float | None = None, L: float | None = None, calL: float | None = None
) -> LossConstants:
    """μ', L' and 𝓛' as given; else L' and 𝓛' at the initial point by power iteration on Hessian-vector products, and no μ'."""
    from twofold.curvature import largest_of_loss  # heavy, and only needed here

    start, l2 = tree.cast(loss.init(clients)), float(loss.l2)
    smooth = L + l2 if L is not None else largest_of_loss(loss, start, clients, single_rows=False)
    of_rows = calL + l2 if calL is not None else largest_of_loss(loss, start, clients, single_rows=True)
    how = {
        "mu": "given",
        "L": "given" if L is not None else "local",
        "calL": "given" if calL is not None else "local",
    }
    everyone = np.ones(len(clients))
    return LossConstants(mu=everyone * ((mu or 0.0) + l2), L=everyone * smooth, calL=everyone * of_rows, how=how)


def _is_function(start: object) -> bool:
    """Whether `init` makes the parameters. A module that can be called (Equinox's) holds them: JAX sees leaves in it."""
    leaves = jax.tree.leaves(start)
    return callable(start) and len(leaves) == 1 and leaves[0] is start


def _as_array(path: tuple[object, ...], leaf: object) -> np.ndarray:
    array = None if callable(leaf) else np.asarray(leaf)
    if array is None or array.dtype.kind not in "biufV":  # V: JAX's own number formats, such as bfloat16
        what, where = getattr(leaf, "__name__", repr(leaf)), jax.tree_util.keystr(path) or "its top"
        raise KindError(
            f"init of losses.custom has {what} at {where}, which is no array of numbers: a net goes into "
            "tw.losses.net(module), which takes it as it is; or give the arrays alone, for example the first "
            "of eqx.partition(module, eqx.is_inexact_array), and put the rest back in fn with eqx.combine."
        )
    return array


def custom(
    fn: Callable[[Pytree, Pytree, Pytree], ArrayLike],
    init: Pytree | Callable[[Clients], Pytree],
    *,
    l2: float = 0.0,
    mu: float | None = None,
    L: float | None = None,
    calL: float | None = None,
    predict: Callable[[Pytree, Pytree], ArrayLike] | None = None,
) -> Custom:
    """A loss of your own: `fn(params, x, y)` is the mean over rows of x and y, which have a leading row axis.

    It must be such a mean (a finite sum): twofold evaluates it row by row, so that unequal clients are right. `init` is
    the initial pytree of parameters (a module that is a pytree, say), or a function of the clients that gives it. `mu`,
    `L` and `calL` are μ', L', 𝓛' of fn itself (the ridge is added to them): give what you know. L' and 𝓛' are otherwise
    estimated at the initial point and marked "local"; without `mu` fn is taken to be convex, and no strong convexity beyond
    the ridge is claimed.

    >>> import jax.numpy as jnp, numpy as np, twofold as tw
    >>> def absolute(params, x, y):
    ...     return jnp.mean(jnp.sqrt(1 + (x @ params - y) ** 2))
    >>> loss = tw.losses.custom(absolute, init=np.zeros(2), l2=0.1)
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.local(loss), clients)
    >>> round(float(problem.value(*problem.start)), 4)
    1.2071
    """
    if not callable(fn):
        raise KindError(f"losses.custom needs a function fn(params, x, y), got {type(fn).__name__}.")
    return Custom(fn, Held(init), ridge_of(l2), mu, L, calL, predict)
