"""A loss for nets: a module of flax or equinox, or functions of your own, under softmax, logistic, squared or your own loss."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What users hand over is looked at, whatever its annotation says.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.convolutions import fast
from twofold.errors import InputError, KindError
from twofold.losses import linear
from twofold.losses.base import Curved, Held, Rows, ridge_of, sees_other_rows, spread
from twofold.losses.linear import Link
from twofold.losses.modules import ModelLike, adapt
from twofold.losses.modules import Net as Module
from twofold.losses.net_start import begin, check_outputs, check_own, check_targets
from twofold.theory.constants import LossConstants
from twofold.tree import Pytree, Running, record, static

__all__ = ["LinkName", "Net", "net"]

LinkName: TypeAlias = Literal["softmax", "logistic", "squared"]
RowLoss: TypeAlias = Callable[[jax.Array, Pytree], jax.Array]
"""Of outputs and targets: one value per row."""
AT_ONCE = 128
"""Rows that go through a net at a time where nothing is trained, so that memory does not grow with the data."""


@record
class Net(Curved):
    """mean_i ℓ(net(params, x_i), y_i) + (l2/2)‖params‖², with a link ℓ.

    In a training batch (`Rows.key` is there) the net is in training mode: dropout draws, BatchNorm looks at the batch, and the
    state's gradient is old − new (see `tree.Running`). Everywhere else it is at rest, and each row's loss is its own.

    >>> import jax.numpy as jnp, numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> zero = lambda key, x: (jnp.zeros((2, 3)), ())
    >>> loss = tw.losses.net((zero, lambda params, state, x, key, train: (x @ params, state)))
    >>> round(float(loss.value(loss.init(clients), tw.losses.Rows(jnp.eye(2), jnp.array([0, 1]), jnp.full(2, 0.5)))), 4)
    1.0986
    """

    module: Module = static()
    link: Link = static()
    l2: float = 0.0
    seed: Held = static(default=Held(0))
    dtype: str | None = static(default=None)
    trains: bool = static(default=True)

    def with_seed(self, seed: int) -> Net:
        """The same net with another start."""
        return dataclasses.replace(self, seed=Held(seed))

    # --- the start ----------------------------------------------------------------------------------------------------

    def init(self, clients: Clients) -> Pytree:
        """The net's first parameters; where it has a state, "params" and "state"."""
        params, state, _ = self._first(clients)
        if not jax.tree.leaves(state):
            return params
        return {"params": params, "state": Running(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state))}

    def _first(self, clients: Clients) -> tuple[Pytree, Pytree, tuple[int, ...]]:
        """The net's first parameters and state, and the shape of its outputs for one row."""
        row = jax.tree.map(lambda leaf: (leaf.shape[1:], str(leaf.dtype)), clients.x)
        leaves, structure = jax.tree.flatten(row, is_leaf=lambda x: isinstance(x, tuple))
        return begin(self.module, self.seed.value, tuple(leaves), structure)

    def check(self, clients: Clients) -> None:
        """Refuse a net without parameters, or one that looks at other rows, and outputs or targets that do not fit the link."""
        params, _, out = self._first(clients)
        if not jax.tree.leaves(params):
            raise InputError("The net has no parameters, so there is nothing to train.")
        if self.link.name == OWN:
            check_own(self.link, out, clients.y)
        else:
            check_outputs(self.link, out)
            check_targets(clients, self.link, out)
        chosen = spread(clients)
        some = jax.tree.map(lambda leaf: leaf[chosen], clients.x)
        whole, exact = tree.cast(self.init(clients)), dataclasses.replace(self, dtype=None)
        if sees_other_rows(lambda x: exact._apply(whole, x, None)[0], tree.cast(some)):
            raise InputError(
                "This net gives a row other outputs when other rows are in the batch, also when it is not training: have it look at "
                "`train`, and use running statistics where that is False."
            )

    def check_targets(self, clients: Clients) -> None:
        """Refuse targets that the link has no meaning for, in rows that are not trained on too."""
        if self.link.name != OWN:
            check_targets(clients, self.link, self._first(clients)[2])

    # --- values -------------------------------------------------------------------------------------------------------

    def _apply(self, params: Pytree, x: Pytree, key: jax.Array | None) -> tuple[jax.Array, Running | None]:
        """The outputs, and the new state where the net has one."""
        learned, running = _parts(params)
        state: Pytree = () if running is None else jax.lax.stop_gradient(running.values)
        params, state, x = (learned, state, x) if self.dtype is None else tree.cast((learned, state, x), self.dtype)
        typed = None if key is None else jax.random.wrap_key_data(key, impl="threefry2x32")
        out, new = fast(self.module)(params, state, x, typed, key is not None)
        return _fitting(self.link, out), None if running is None else Running(jax.tree.map(_real, new))

    def value(self, params: Pytree, rows: Rows) -> jax.Array:
        """The mean loss over the rows plus the ridge."""
        learned, old = _parts(params)
        ridge = 0.5 * self.l2 * tree.squared_norm(learned)
        if rows.key is None:
            return rows.mean(self.row_losses(params, rows.x, rows.y)) + ridge
        out, new = self._apply(params, rows.x, rows.key)
        value = rows.mean(self.link.loss(out, rows.y)) + ridge
        return value if new is None else value + _towards(old, new)

    def predict(self, params: Pytree, x: Pytree) -> jax.Array:
        """The class (or the real value, or the outputs) for each row."""
        return self.link.decide(self._outputs(params, x))

    def grade(self, params: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """One figure per row, larger is better: right or wrong, minus the squared error, or minus the loss."""
        if self.link.name == OWN:
            return -self.row_losses(params, x, y)
        return self.link.grade(self._outputs(params, x), y)

    def row_losses(self, params: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """The loss of each row at rest, without the ridge."""
        return _in_parts(lambda x, y: self.link.loss(self._apply(params, x, None)[0], y), (x, y))

    def _outputs(self, params: Pytree, x: Pytree) -> jax.Array:
        """The net's outputs at rest."""
        return _in_parts(lambda x: self._apply(params, x, None)[0], (x,))

    # --- on the host, for models that travel --------------------------------------------------------------------------

    def scores(self, params: Pytree, x: Pytree) -> NDArray[Any]:
        """The net's outputs: one a row, or one per class."""
        return np.asarray(_scores(self, tree.cast(params), tree.cast(x)))

    def decide(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The class, or the real value, that outputs stand for."""
        return np.asarray(self.link.decide(jnp.asarray(scores)))

    def probabilities(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The probability of every class, one row each."""
        if self.link.labels is None:
            raise InputError(f"A net with the link {self.link.name} has no probabilities: use predict.")
        return linear.probabilities(scores)

    def predictions(self, params: Pytree, x: Pytree) -> NDArray[Any]:
        """The class (or the real value) that the parameters give each row."""
        return self.decide(self.scores(params, x))

    def describe(self) -> None:
        """A file cannot hold a net, only its parameters."""

    def constants(self, clients: Clients) -> LossConstants:
        """L' and 𝓛' at the start by power iteration; no strong convexity beyond the ridge, and none of it certified."""
        from twofold.losses.custom import estimated  # heavy, and only needed here

        return estimated(self, clients)


OWN = "your own"


def _parts(params: Pytree) -> tuple[Pytree, Running | None]:
    """The learned parameters, and the state where there is one."""
    if isinstance(params, dict) and isinstance(params.get("state"), Running):
        return params["params"], params["state"]
    return params, None


def _real(leaf: ArrayLike) -> jax.Array:
    return jnp.asarray(leaf).astype(jnp.result_type(float))


def _towards(old: Running | None, new: Running) -> jax.Array:
    """Nothing, with the gradient old − new in old."""
    new = jax.lax.stop_gradient(new)
    distance = 0.5 * tree.squared_norm(tree.subtract(old, new))
    return distance - jax.lax.stop_gradient(distance)


def _in_parts(function: Callable[..., jax.Array], rows: tuple[Pytree, ...]) -> jax.Array:
    """A function of rows, of at most `AT_ONCE` of them at a time; its gradient computes each part again, to save memory."""
    count = len(jax.tree.leaves(rows)[0])
    if count <= AT_ONCE:
        return function(*rows)
    parts = -(-count // AT_ONCE)

    def cut(leaf: jax.Array) -> jax.Array:
        padded = jnp.pad(leaf, ((0, parts * AT_ONCE - count), *((0, 0),) * (leaf.ndim - 1)))
        return padded.reshape(parts, AT_ONCE, *leaf.shape[1:])

    found = jax.lax.map(lambda part: jax.checkpoint(function)(*part), jax.tree.map(cut, rows))
    return found.reshape(parts * AT_ONCE, *found.shape[2:])[:count]


@jax.jit
def _scores(loss: Net, params: Pytree, x: Pytree) -> jax.Array:
    return loss._outputs(params, x)  # pyright: ignore[reportPrivateUsage]  (compiled, it cannot be a method)


def _fitting(link: Link, out: jax.Array) -> jax.Array:
    """The outputs in the run's precision, one number a row where the link wants that."""
    single = link.name in ("logistic", "squared") and out.ndim == 2 and out.shape[1] == 1
    return (out[:, 0] if single else out).astype(jnp.result_type(float))


LINKS: dict[str, Callable[[], Link]] = {
    "softmax": lambda: linear.softmax(2).link, "logistic": lambda: linear.logistic().link, "squared": lambda: linear.squared().link,
}  # fmt: skip


def net(
    model: ModelLike,
    *,
    link: LinkName | RowLoss = "softmax",
    l2: float = 0.0,
    seed: int = 0,
    dtype: DTypeLike | None = None,
) -> Net:
    """A net as a loss: a module of flax.linen, flax.nnx or equinox, or functions of your own.

    `model` is a `flax.linen` module; an `nnx` or `equinox` module, or a function of `rngs=` or `key=` that makes one (`CNN` itself,
    so that every seed starts elsewhere); `eqx.nn.make_with_state(CNN)`, or the pair that it gives; or two functions (init, apply) with
    `init(key, x)` → parameters and state, and `apply(params, state, x, key, train)` → outputs and state, where x is a batch.

    `link` says what the outputs mean: "softmax" (one per class), "logistic", "squared", or a function of outputs and targets that
    gives one loss per row. `seed` decides the first parameters; with `solve(..., seeds=…)` each run starts from its own seed.
    `dtype="bfloat16"` computes the net in half precision; parameters and losses stay as they are.

    State such as BatchNorm's means belongs to the parameters under the name "state": private in `weight_sharing` unless it is named.

    >>> import jax, jax.numpy as jnp, numpy as np, twofold as tw
    >>> def begin(key, x):
    ...     return {"hidden": jax.random.normal(key, (2, 4)), "out": jnp.zeros((4, 3))}, ()
    >>> def apply(params, state, x, key, train):
    ...     return jax.nn.relu(x @ params["hidden"]) @ params["out"], state
    >>> loss = tw.losses.net((begin, apply), seed=1)
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 2])])
    >>> problem = tw.Problem(tw.objectives.weight_sharing(loss, split="hidden"), clients)
    >>> result = tw.solve(problem, tw.algorithms.LSGD(lr=0.5, batch=2), rounds=3, seeds=2)
    >>> result[0].w["hidden"].shape, result[1].beta["out"].shape
    ((2, 4), (2, 4, 3))
    """
    if callable(link):
        chosen = Link(OWN, link, np.inf, None, None, linear.same)
    elif link in LINKS:
        chosen = LINKS[link]()
    else:
        raise InputError(
            f"The link of a net is one of {', '.join(LINKS)}, or a function of outputs and targets, got {link!r}."
        )
    if dtype is not None and not isinstance(dtype, str):
        dtype = np.dtype(dtype).name
    if dtype not in (None, "bfloat16", "float16", "float32", "float64"):
        raise InputError(f'dtype is None, "bfloat16", "float16", "float32" or "float64", got {dtype!r}.')
    if not isinstance(seed, (int, np.integer)):
        raise KindError(f"The seed of a net is a whole number, got {seed!r}.")
    return Net(adapt(model), chosen, ridge_of(l2), Held(int(seed)), dtype)
