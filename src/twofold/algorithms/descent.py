"""The local steps of a round: its batches, and how w and β are updated from their gradients, with any optax optimiser."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import GradientOracle, size_of_batch
from twofold.algorithms.local import Plan, batches
from twofold.algorithms.oracle import Sampled
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree

__all__ = ["Optimizer", "Rule", "at_round", "local_steps", "pulled", "rows_of", "rule", "steps_of", "trained"]

S = TypeVar("S")


class Optimizer(Protocol):
    """An optax GradientTransformation."""

    @property
    def init(self) -> Callable[..., Any]:
        """Its state, from the parameters."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """Updates and new state, from gradients, state and parameters."""
        ...


# --- the batches of a round -------------------------------------------------------------------------------------------


def _batches_in_pass(method: Any, rows: Any) -> Any:
    """The number of batches in one pass over a client's rows; a shorter last batch counts unless it is dropped."""
    if method.batch is None:
        return 1
    if not method.drop_last:
        return -(-rows // method.batch)
    return jnp.maximum(rows // method.batch, 1) if isinstance(rows, jax.Array) else max(rows // method.batch, 1)


def steps_of(method: Any, rows: Any) -> Any:
    """How many local steps a client with `rows` rows takes in a round."""
    return method.tau if method.epochs is None else method.epochs * _batches_in_pass(method, rows)


def rows_of(method: Any, rows: Any, epochs: int | None = None) -> Any:
    """How many rows a client with `rows` rows uses in a round, or in `epochs` passes."""
    asked = method.epochs if epochs is None else epochs
    if asked is None:
        return method.tau * size_of_batch(method.batch, rows)
    if not method.drop_last or method.batch is None:
        return asked * rows
    return asked * jnp.minimum(jnp.maximum(jnp.asarray(rows) // method.batch, 1) * method.batch, rows)


def local_steps(
    method: Any, oracle: GradientOracle, key: Key, step: Callable[[Sampled, S], S], state: S, epochs: int | None = None
) -> S:
    """Take a state through the batches of a round, or of `epochs` passes over the client's rows."""
    asked = method.epochs if epochs is None else epochs
    passes, each = (1, method.tau) if asked is None else (asked, _batches_in_pass(method, oracle.count))

    def go_through(e: jax.Array, state: S) -> S:
        draw, mine = batches(oracle, key, method.batch, None if asked is None else e), randomness.at(key, e)

        def with_batch(i: jax.Array, state: S) -> S:
            return step(oracle.trained_on(draw(i), randomness.at(mine, i)), state)

        return repeat(each, with_batch, state)

    return repeat(passes, go_through, state)


# --- steps ------------------------------------------------------------------------------------------------------------


def _of_optimizer(function: Callable[..., Any], *given: Pytree) -> Any:
    """What an optimiser's own function gives, or a sentence on what it is given."""
    try:
        return function(*given)
    except (TypeError, IndexError, ValueError) as mistake:
        raise InputError(
            "This optimizer cannot take the local steps: it is given gradients, its state and the parameters (which may be none), but "
            f"no value of the loss ({mistake}). Take another one of optax, such as optax.sgd, optax.adam or optax.adamw."
        ) from mistake


class Rule(NamedTuple):
    """How w and β are updated from their gradients in one round."""

    rates: tuple[Any, Any]  # None for a block that is held fixed
    optimizer: Optimizer | None

    def begin(self, w: Pytree, beta: Pytree) -> Pytree:
        """The optimiser's state for each block before the first step."""
        if self.optimizer is None:
            return ((), ())
        return tuple(_of_optimizer(self.optimizer.init, tree.learned(block)) for block in (w, beta))

    def only(self, block: str) -> Rule:
        """The same rule with the other block held fixed; the numbers that a net updates by itself still change."""
        w, beta = self.rates
        return self._replace(rates=(w, None) if block == "w" else (None, beta))

    def one_step(self, which: int, point: Pytree, gradient: Pytree, memory: Pytree) -> tuple[Pytree, Pytree]:
        """The next point of one block (0: w, 1: β), and the optimiser's state for it."""
        slope, rate = tree.learned(gradient), self.rates[which]
        if rate is None:
            return tree.move(point, tree.zeros(slope), gradient), memory
        if self.optimizer is None:
            return tree.move(point, tree.scale(-rate, slope), gradient), memory
        updates, memory = _of_optimizer(self.optimizer.update, slope, memory, tree.learned(point))
        return tree.move(point, tree.scale(rate, updates), gradient), memory

    def step(
        self, point: tuple[Pytree, Pytree], gradients: tuple[Pytree, Pytree], memory: Pytree
    ) -> tuple[tuple[Pytree, Pytree], Pytree]:
        """The next (w, β), and the optimiser's state."""
        both = [self.one_step(i, point[i], gradients[i], memory[i]) for i in (0, 1)]
        return (both[0][0], both[1][0]), (both[0][1], both[1][1])


def at_round(rate: Any, k: Any) -> Any:
    """A learning rate in round k."""
    return rate(k) if callable(rate) else rate


def rule(method: Any, k: Any) -> Rule:
    """A method's rule in round k."""
    default = 1.0 if method.lr is None else method.lr
    rates = [default, default if method.lr_beta is None else method.lr_beta]
    w, beta = (at_round(rate, k) for rate in rates)
    return Rule((w, beta), method.optimizer)


def trained(
    method: Any,
    plan: Plan,
    point: tuple[Pytree, Pytree],
    memory: Pytree,
    oracle: GradientOracle,
    key: Key,
    gradients: Callable[[Pytree, Pytree, Sampled], tuple[Pytree, Pytree]] | None = None,
) -> tuple[Pytree, Pytree, Pytree]:
    """w, β and the optimiser's state after one round's local steps from a real point; by default along ∇f_m."""
    found = rule(method, plan.k)
    of = oracle.plain_gradients if gradients is None else gradients
    begun = memory if method.keep else found.begin(*point)

    def step(sample: Sampled, state: tuple[tuple[Pytree, Pytree], Pytree]) -> tuple[tuple[Pytree, Pytree], Pytree]:
        (w, beta), memory = state
        return found.step((w, beta), of(w, beta, sample), memory)

    (w, beta), memory = local_steps(method, oracle, key, step, (point, begun))
    return w, beta, memory if method.keep else ()


def pulled(gradient: Pytree, strength: Any, point: Pytree, to: Pytree) -> Pytree:
    """gradient + strength·(point − to); `Running` numbers, which a model updates by itself, are not pulled.

    >>> import jax.numpy as jnp
    >>> pulled(jnp.ones(2), 0.5, jnp.full(2, 4.0), jnp.zeros(2)).tolist()
    [3.0, 3.0]
    """

    def add(slope: Pytree, here: Pytree, there: Pytree) -> Pytree:
        return slope if tree.is_running(slope) else slope + strength * (here - there)

    return jax.tree.map(add, gradient, point, to, is_leaf=tree.is_running)
