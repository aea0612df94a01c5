"""What methods with learning rates share: rounds of batches on real parameters, and any optax optimiser for the local steps."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
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
"""A learning rate: a number, or a function of the round's number."""


class Optimizer(Protocol):
    """What optax calls a GradientTransformation."""

    init: Any
    update: Any


class Message(NamedTuple):
    """w_m after the local steps."""

    w: Pytree


class Personal(NamedTuple):
    """β_m, and what the optimisers remember, if they do from round to round."""

    beta: Pytree
    memory: Pytree


@record
class Training(Algorithm):
    """The base of methods whose step sizes are learning rates: plain steps on real w and β, free of p_m and of the scaling.

    A method writes `client`, and `private` where it keeps more than β. The rest is here: w is the mean of the w_m of those present.

    >>> import twofold as tw
    >>> [method.name for method in tw.algorithms.TRAINING.values() if issubclass(method, Training)][:2]
    ['fedrep', 'ditto']
    """

    lr: Rate | None = None  # the learning rate, by the number of the round where it is a function
    lr_beta: Rate | None = None  # that of the private part, if it is another one
    tau: int = static(default=5)  # local steps in one round
    batch: int | None = static(default=10)  # rows in one batch; None takes all rows
    epochs: int | None = static(default=1)  # reshuffled passes over each client's own rows, instead of tau steps
    drop_last: bool = static(default=False)  # leave out the last batch of a pass where it is shorter
    optimizer: Optimizer | None = static(default=None)  # of optax; its updates times lr, which is then 1 if not given
    keep: bool = static(default=False)  # whether the optimiser remembers from one round to the next
    may_skip_messages = False
    works_with_some = True

    def __post_init__(self) -> None:
        check_training(self)

    @property
    def is_plain(self) -> bool:
        """Whether steps are plain ones, with a learning rate or an optimizer of the user's."""
        return self.lr is not None or self.optimizer is not None

    @property
    def carries_state(self) -> bool:
        """With a learning rate."""
        return self.is_plain

    def is_complete(self) -> bool:
        """Nothing is left to theory; `complete` refuses a method without learning rate."""
        return self.is_plain

    def complete(self, setting: Facts) -> tuple[Algorithm, str | None]:
        """Refuse: theory has no learning rate for this method."""
        kind = type(self).__name__
        raise InputError(f"Theory has no step size for {self.name}: say its learning rate, as in {kind}(lr=0.005).")

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Any:
        """Start at β0, and with nothing remembered."""
        remembered = self.keep and self.is_plain
        return Personal(beta0, rule(self, 0).begin(*oracle.outward(w0, beta0)) if remembered else ())

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """No coins."""
        return Plan(jnp.asarray(k, jnp.int32))

    def server(self, plan: Plan, shared: Pytree, mean: Any) -> Any:
        """w is the mean of the w_m."""
        return mean.w

    def absent(self, plan: Plan, shared: Pytree) -> Any:
        """Who does not move stays at w."""
        return Message(shared)

    def sends(self, plan: Plan) -> Any:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """All batches, in both blocks."""
        return Evaluations(*2 * (rows_of(self, rows) + jnp.zeros_like(plan.k),))

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Any) -> Pytree:
        """β_m."""
        return private.beta


def check_training(method: Any) -> None:
    """Refuse numbers of steps and learning rates that cannot be any."""
    kind = type(method).__name__
    for name in ("tau", "batch", "epochs"):
        value = getattr(method, name)
        if isinstance(value, str) or (value is not None and value < 1):
            raise InputError(f"{kind} needs {name} ≥ 1, got {name}={value!r}.")
    for name in ("lr", "lr_beta"):
        value = getattr(method, name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise InputError(f"{kind} needs a learning rate that is a finite number ≥ 0, got {name}={value!r}.")
    optimizer = method.optimizer
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InputError(f"{kind}'s optimizer is one of optax, as in optax.adam(1e-3), got {optimizer!r}.")


def refuse_both(method: Training, of_theory: bool) -> None:
    """Refuse a method that has fields of theory and learning rates, or settings that only go with the latter."""
    kind = type(method).__name__
    if method.is_plain and of_theory:
        raise InputError(f"{kind} has either η, as theory has it, or a learning rate and an optimizer, not both.")
    if not method.is_plain and (method.drop_last or method.keep or method.lr_beta is not None):
        raise InputError(f"{kind}'s drop_last, keep and lr_beta go with a learning rate: say lr=.")


# --- the batches of a round -------------------------------------------------------------------------------------------


def _batches_in_pass(method: Any, rows: Any) -> Any:
    """Batches in one pass over a client's rows: the last, shorter one is one too, unless it is dropped and not the only one."""
    if method.batch is None:
        return 1
    if not method.drop_last:
        return -(-rows // method.batch)
    return jnp.maximum(rows // method.batch, 1) if isinstance(rows, jax.Array) else max(rows // method.batch, 1)


def steps_of(method: Any, rows: Any) -> Any:
    """How many local steps a client with so many rows takes in a round."""
    return method.tau if method.epochs is None else method.epochs * _batches_in_pass(method, rows)


def rows_of(method: Any, rows: Any, epochs: int | None = None) -> Any:
    """How many rows of a client with `rows` of them are used in a round, or in so many passes."""
    asked = method.epochs if epochs is None else epochs
    if asked is None:
        return method.tau * size_of_batch(method.batch, rows)
    if not method.drop_last or method.batch is None:
        return asked * rows
    return asked * jnp.minimum(jnp.maximum(jnp.asarray(rows) // method.batch, 1) * method.batch, rows)


def local_steps(
    method: Any, oracle: GradientOracle, key: Key, step: Callable[[Sampled, S], S], state: S, epochs: int | None = None
) -> S:
    """Take a state through the batches of a round, or of so many passes over the client's rows."""
    asked = method.epochs if epochs is None else epochs
    passes, each = (1, method.tau) if asked is None else (asked, _batches_in_pass(method, oracle.count))

    def go_through(e: jax.Array, state: S) -> S:
        draw, mine = batches(oracle, key, method.batch, None if asked is None else e), randomness.at(key, e)

        def with_batch(i: jax.Array, state: S) -> S:
            return step(oracle.trained_on(draw(i), randomness.at(mine, i)), state)

        return repeat(each, with_batch, state)

    return repeat(passes, go_through, state)


# --- steps ------------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How w and β move against their gradients in one round."""

    rates: tuple[Any, Any]  # None for a block that is held
    optimizer: Optimizer | None

    def begin(self, w: Pytree, beta: Pytree) -> Pytree:
        """What the optimiser remembers of each block before the first step."""
        if self.optimizer is None:
            return ((), ())
        return tuple(self.optimizer.init(tree.learned(block)) for block in (w, beta))

    def only(self, block: str) -> Rule:
        """The same with the other block held; what a net updates by itself it still does."""
        w, beta = self.rates
        return self._replace(rates=(w, None) if block == "w" else (None, beta))

    def one_step(self, which: int, point: Pytree, gradient: Pytree, memory: Pytree) -> tuple[Pytree, Pytree]:
        """The next point of one block (0: w, 1: β), and what is remembered of it."""
        slope, rate = tree.learned(gradient), self.rates[which]
        if rate is None:
            return tree.move(point, tree.zeros(slope), gradient), memory
        if self.optimizer is None:
            return tree.move(point, tree.scale(-rate, slope), gradient), memory
        updates, memory = self.optimizer.update(slope, memory, tree.learned(point))
        return tree.move(point, tree.scale(rate, updates), gradient), memory

    def step(
        self, point: tuple[Pytree, Pytree], gradients: tuple[Pytree, Pytree], memory: Pytree
    ) -> tuple[tuple[Pytree, Pytree], Pytree]:
        """The next (w, β), and what is remembered."""
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
    """w, β and what is remembered after one round's local steps from a real point; by default along ∇f_m."""
    found = rule(method, plan.k)
    of = oracle.plain_gradients if gradients is None else gradients
    begun = memory if method.keep else found.begin(*point)

    def step(sample: Sampled, state: tuple[tuple[Pytree, Pytree], Pytree]) -> tuple[tuple[Pytree, Pytree], Pytree]:
        (w, beta), memory = state
        return found.step((w, beta), of(w, beta, sample), memory)

    (w, beta), memory = local_steps(method, oracle, key, step, (point, begun))
    return w, beta, memory if method.keep else ()


def pulled(gradient: Pytree, strength: Any, point: Pytree, to: Pytree) -> Pytree:
    """gradient + strength·(point − to); numbers that a model updates by itself are pulled nowhere.

    >>> import jax.numpy as jnp
    >>> pulled(jnp.ones(2), 0.5, jnp.full(2, 4.0), jnp.zeros(2)).tolist()
    [3.0, 3.0]
    """

    def add(slope: Pytree, here: Pytree, there: Pytree) -> Pytree:
        return slope if tree.is_running(slope) else slope + strength * (here - there)

    return jax.tree.map(add, gradient, point, to, is_leaf=tree.is_running)


def refuse_other_models(method: Algorithm, w: Pytree, beta: Pytree) -> None:
    """Refuse an objective whose blocks are not both whole models."""
    shapes = [[leaf.shape for leaf in jax.tree.leaves(block)] for block in (w, beta)]
    if shapes[0] != shapes[1] or jax.tree.structure(w) != jax.tree.structure(beta):
        raise InputError(
            f"{type(method).__name__} needs an objective with a shared model and one of the same kind for every client, such as "
            "objectives.mixture(loss, lam); here w and β are of different shapes."
        )
