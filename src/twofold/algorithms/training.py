"""The base of methods with learning rates: rounds of batches on real parameters, with any optax optimiser for the local steps."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, size_of_batch
from twofold.algorithms.fields import Schedule
from twofold.algorithms.local import Plan, batches
from twofold.algorithms.oracle import Sampled
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, record, static

__all__ = ["Message", "Rate", "Training", "pulled"]

S = TypeVar("S")
Rate: TypeAlias = float | Schedule
"""A learning rate: a number, or a function of the round number."""


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


class Message(NamedTuple):
    """w_m after the local steps."""

    w: Pytree


class Personal(NamedTuple):
    """β_m, and the optimiser's state, if it is kept from round to round."""

    beta: Pytree
    memory: Pytree


@record
class Training(Algorithm):
    """The base of methods whose step sizes are learning rates: plain steps on real w and β, without p_m and without scaling.

    A method defines `client`, and its own private state if it keeps more than β. The rest is here: w becomes the mean of the w_m
    of the clients present.

    >>> import twofold as tw
    >>> [method.name for method in tw.algorithms.TRAINING.values() if issubclass(method, Training)][:2]
    ['fedrep', 'ditto']
    """

    lr: Rate | None = None  # the learning rate: a number, or a function of the round number
    lr_beta: Rate | None = None  # the learning rate of the private part, if it differs
    tau: int = static(default=5)  # local steps in one round
    batch: int | None = static(default=10)  # rows in one batch; None takes all rows
    epochs: int | None = static(default=1)  # reshuffled passes over each client's own rows, instead of tau steps
    drop_last: bool = static(default=False)  # leave out the last batch of a pass if it is shorter
    optimizer: Optimizer | None = static(default=None)  # from optax; lr, 1 if not given, multiplies its updates
    keep: bool = static(default=False)  # whether the optimiser keeps its state from one round to the next
    may_skip_messages = False
    works_with_some = True

    def __post_init__(self) -> None:
        check_training(self)

    @property
    def is_plain(self) -> bool:
        """Whether steps are plain, with the user's learning rate or optimizer, and not theory's."""
        return self.lr is not None or self.optimizer is not None

    @property
    def carries_state(self) -> bool:
        """Whether a learning rate is set; theory's steps do not keep a net's state."""
        return self.is_plain

    def is_complete(self) -> bool:
        """Whether a learning rate or an optimizer is set; theory has nothing to fill in."""
        return self.is_plain

    def complete(self, facts: Facts) -> tuple[Algorithm, str | None]:
        """Refuse, because theory has no learning rate for this method."""
        kind = type(self).__name__
        raise InputError(f"Theory has no step size for {self.name}: give its learning rate, as in {kind}(lr=0.005).")

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Any:
        """Start at β0, with the optimiser's initial state if it is kept."""
        remembered = self.keep and self.is_plain
        return Personal(beta0, rule(self, 0).begin(*oracle.outward(w0, beta0)) if remembered else ())

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """There are no coins, only the round number."""
        return Plan(jnp.asarray(k, jnp.int32))

    def server(self, plan: Plan, shared: Pytree, mean: Any) -> Any:
        """w is the mean of the w_m."""
        return mean.w

    def absent(self, plan: Plan, shared: Pytree) -> Any:
        """An absent client counts as staying at w."""
        return Message(shared)

    def sends(self, plan: Plan) -> Any:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """The rows of all batches, in both blocks."""
        return Evaluations(*2 * (rows_of(self, rows) + jnp.zeros_like(plan.k),))

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Any) -> Pytree:
        """β_m."""
        return private.beta


def check_training(method: Any) -> None:
    """Refuse impossible numbers of steps, learning rates and optimizers."""
    kind = type(method).__name__
    for name in ("tau", "batch", "epochs"):
        value = getattr(method, name)
        if isinstance(value, str) or (value is not None and value < 1):
            raise InputError(f"{kind} needs {name} ≥ 1, got {name}={value!r}.")
        if isinstance(value, float) and not value.is_integer():
            raise InputError(f"{kind} needs a whole number for {name}, got {name}={value!r}.")
    for name in ("lr", "lr_beta"):
        _check_rate(kind, name, getattr(method, name))
    prox = getattr(method, "prox", None)
    if isinstance(prox, int | float) and not 0 <= prox < math.inf:
        raise InputError(f"{kind} needs a finite prox ≥ 0 (the strength of its pull towards w), got {prox=}.")
    optimizer = method.optimizer
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InputError(f"{kind}'s optimizer must be one from optax, as in optax.adam(1e-3), got {optimizer!r}.")


def _check_rate(kind: str, name: str, rate: object) -> None:
    """Refuse a learning rate that is no number ≥ 0, or no function whose value in round 0 is one."""
    if isinstance(rate, str):
        raise InputError(f"{kind}'s learning rate is a number or a function of the round, got {name}={rate!r}.")
    if isinstance(rate, int | float) and not 0 <= rate < math.inf:
        raise InputError(f"{kind} needs a learning rate that is a finite number ≥ 0, got {name}={rate!r}.")
    if callable(rate):
        first: Any = rate(0)
        if not isinstance(first, Tracer) and not (np.ndim(first) == 0 and 0 <= float(first) < math.inf):
            raise InputError(
                f"{kind}'s {name} must give a finite number ≥ 0 in every round, but {name}(0) = {first!r}."
            )


def refuse_both(method: Training, of_theory: bool) -> None:
    """Refuse a method with both theory's fields and a learning rate, or with settings that need a learning rate but lack it."""
    kind = type(method).__name__
    if method.is_plain and of_theory:
        raise InputError(f"{kind} takes either theory's η, or a learning rate and an optimizer, but not both.")
    if not method.is_plain and (method.drop_last or method.keep or method.lr_beta is not None):
        raise InputError(f"{kind}'s drop_last, keep and lr_beta need a learning rate: give lr=.")


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


def rule(method: Any, k: Any) -> Rule:
    """A method's rule in round k."""
    default = 1.0 if method.lr is None else method.lr
    rates = [default, default if method.lr_beta is None else method.lr_beta]
    w, beta = (rate(k) if callable(rate) else rate for rate in rates)
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


def refuse_other_models(method: Algorithm, w: Pytree, beta: Pytree) -> None:
    """Refuse an objective whose w and β are not both whole models of the same shape."""
    shapes = [[leaf.shape for leaf in jax.tree.leaves(block)] for block in (w, beta)]
    if shapes[0] != shapes[1] or jax.tree.structure(w) != jax.tree.structure(beta):
        raise InputError(
            f"{type(method).__name__} needs an objective whose w and β are models of the same shape, such as "
            "objectives.mixture(loss, lam); here their shapes differ."
        )
