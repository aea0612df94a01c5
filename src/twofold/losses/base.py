"""The parts that every loss is made of: rows with weights, and the mean of a user's function over them."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.errors import InputError
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.curvature import model
    from twofold.curvature.model import BlockCurvature
    from twofold.losses.linear import ByClass

    Term: TypeAlias = model.Loss | model.Pull

__all__ = [
    "Batch", "Curved", "Held", "Rows", "by_row", "check_by_row", "is_close", "mean_by_row", "ridge_of", "sees_other_rows", "spread",
]  # fmt: skip


class Rows(NamedTuple):
    """Rows of one client's data, each with its weight in the client's mean: 1/n for a real row, 0 for padding.

    >>> import jax.numpy as jnp
    >>> rows = Rows(jnp.eye(3), jnp.zeros(3), weight=jnp.array([0.5, 0.5, 0.0]))  # two rows, and one of padding
    >>> float(rows.mean(jnp.array([1.0, 3.0, 99.0])))
    2.0
    """

    x: Pytree
    y: Pytree
    weight: jax.Array
    key: jax.Array | None = None  # two words of a random key for dropout and the like; None unless a net is trained

    def mean(self, values: jax.Array) -> jax.Array:
        """The weighted mean of one value per row."""
        return jnp.vdot(self.weight, values)


class Batch(NamedTuple):
    """The rows passed to a user's function: features and targets with a leading row axis.

    >>> import numpy as np
    >>> Batch(x=np.eye(2), y=np.ones(2)).x.shape
    (2, 2)
    """

    x: Pytree
    y: Pytree


def by_row(function: Callable[[Batch], ArrayLike], x: Pytree, y: Pytree) -> jax.Array:
    """Apply a user's batch function to each row alone.

    >>> import jax.numpy as jnp
    >>> by_row(lambda batch: jnp.mean(batch.x * batch.y), jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])).tolist()
    [3.0, 8.0]
    """

    def of_row(x: Pytree, y: Pytree) -> jax.Array:
        single = Batch(*jax.tree.map(lambda leaf: leaf[None], (x, y)))
        return jnp.mean(function(single))

    return jax.vmap(of_row)(x, y)


def mean_by_row(function: Callable[[Batch], ArrayLike], rows: Rows) -> jax.Array:
    """The weighted mean of a user's batch function over rows, evaluated one row at a time so that padding cannot leak in.

    >>> import jax.numpy as jnp
    >>> rows = Rows(jnp.array([1.0, 2.0, 9.0]), jnp.array([3.0, 4.0, 9.0]), jnp.array([0.5, 0.5, 0.0]))
    >>> float(mean_by_row(lambda batch: jnp.mean(batch.x * batch.y), rows))
    5.5
    """
    return rows.mean(by_row(function, rows.x, rows.y))


class Curved:
    """The base of all losses: what a loss answers that knows nothing of its own Hessian.

    >>> import numpy as np, twofold as tw
    >>> from twofold.curvature.model import Loss
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))])
    >>> unknown = tw.losses.custom(lambda w, x, y: np.mean((x @ w - y) ** 2), init=np.zeros(2))
    >>> unknown.curvature(clients, [Loss(1, 0, 1)]) is None
    True
    """

    def curvature(self, clients: Clients, terms: Sequence[Term]) -> BlockCurvature | None:
        """Arrow-shaped bounds of the Hessian of an objective that is a sum of `terms` of this loss; None where they are unknown."""
        return None

    def by_class(self) -> ByClass | None:
        """This loss for weights stored as (classes, features); None where there is no such form."""
        return None


class Held:
    """A value that an objective stores for its starting point, and that no compiled program ever reads.

    All instances compare equal, so rebuilding an objective with another start of the same shape causes no recompilation.

    >>> Held([1.0]) == Held([2.0])
    True
    """

    def __init__(self, value: Pytree) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held)

    def __hash__(self) -> int:
        return hash(Held)


def ridge_of(l2: float) -> float:
    """Return the strength of a ridge as a float if it is a finite number ≥ 0, else raise.

    >>> ridge_of(1)
    1.0
    """
    if not isinstance(l2, Real) or not 0 <= l2 < np.inf:
        raise InputError(f"The ridge must be a number ≥ 0, got {l2=}.")
    return float(l2)


def sees_other_rows(function: Callable[[Pytree], jax.Array], rows: Pytree) -> bool:
    """Whether a function's output for one row depends on the other rows; it must return one value (or array) per row.

    >>> import jax.numpy as jnp
    >>> (
    ...     sees_other_rows(lambda x: x - x.mean(), jnp.array([1.0, 2.0])),
    ...     sees_other_rows(lambda x: 2 * x, jnp.array([1.0, 2.0])),
    ... )
    (True, False)
    """
    count = len(jax.tree.leaves(rows)[0])
    with jax.default_matmul_precision("highest"):  # a GPU's TF32 rounds differently for different shapes
        together = np.asarray(function(rows))
        alone = [np.asarray(function(jax.tree.map(lambda leaf, j=j: leaf[j : j + 1], rows))) for j in range(count)]
    apart = np.concatenate(alone)
    if together.shape != apart.shape:
        return True
    return not is_close(together, apart)


def is_close(found: ArrayLike, expected: ArrayLike) -> bool:
    """Whether two results of the same computation, done in a different order, agree to half of the digits.

    >>> is_close(1.0, 1.0 + 1e-12), is_close(1.0, 1.1)
    (True, False)
    """
    a, b = np.asarray(found), np.asarray(expected)
    digits = float(np.sqrt(np.finfo(np.result_type(a, np.float32)).eps))
    return not bool(np.any(np.abs(a - b) > digits * (1 + np.max(np.abs(b), initial=0.0))))


def spread(clients: Clients, most: int = 4) -> NDArray[np.int64]:
    """The places of a few rows, far apart in everybody's: one client may have a single row, or rows that are all the same.

    >>> import numpy as np, twofold as tw
    >>> spread(tw.Clients.from_list([(np.ones((1, 2)), [0]), (np.ones((9, 2)), np.arange(9))])).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, clients.rows - 1, most).astype(np.int64))


def check_by_row(
    who: str, given: object, function: Callable[[Pytree, Batch], ArrayLike], start: Pytree, clients: Clients
) -> None:
    """Refuse a user's batch function that is not a mean over single rows, because twofold evaluates it row by row.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.array([[1.0], [2.0]]), [0.0, 1.0])])
    >>> check_by_row("losses.custom", None, lambda w, batch: jnp.mean(batch.x @ w), np.zeros(1), clients)
    """
    chosen = spread(clients)
    x, y = tree.cast(jax.tree.map(lambda leaf: leaf[chosen], (clients.x, clients.y)))
    params = _shaken(tree.cast(jax.tree.map(np.asarray, start)))
    with jax.default_matmul_precision("highest"):
        together = jnp.mean(function(params, Batch(x, y)))
        alone = jnp.mean(by_row(lambda batch: function(params, batch), x, y))
    if is_close(together, alone):
        return
    name = getattr(given, "__name__", "the function")
    owners = np.unique(np.searchsorted(clients.offsets, chosen, side="right") - 1)
    whose = f"client{'s' * (len(owners) > 1)} {', '.join(repr(clients.names[m]) for m in owners)}"
    raise InputError(
        f"{who} needs a mean over single rows, but on {len(chosen)} rows of {whose} {name} "
        f"gives {float(together):.6g}, and the mean of its values for single rows is {float(alone):.6g}. If it is a sum, return the "
        "mean; if it uses other rows of the batch, as BatchNorm does, use tw.losses.net."
    )


def _shaken(params: Pytree) -> Pytree:
    """Slightly perturbed parameters: at zero, a function may ignore its rows, and the check would see nothing."""
    keys = jax.random.split(jax.random.key(0), max(len(jax.tree.leaves(params)), 1))
    leaves, structure = jax.tree.flatten(params)
    moved = [
        leaf + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else leaf
        for leaf, key in zip(leaves, keys, strict=False)
    ]
    return jax.tree.unflatten(structure, moved)
