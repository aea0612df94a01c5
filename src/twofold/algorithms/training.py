"""The base of methods with learning rates: what is the same for all of them, and the checks of their settings."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle
from twofold.algorithms.descent import Optimizer, pulled, rows_of, rule
from twofold.algorithms.fields import Schedule
from twofold.algorithms.local import Plan
from twofold.errors import InputError
from twofold.tree import Pytree, record, static

__all__ = ["Message", "Rate", "Training", "pulled"]

Rate: TypeAlias = float | Schedule
"""A learning rate: a number, or a function of the round number."""


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
        each = rows_of(self, rows) + 0 * plan.k
        return Evaluations(each, each)

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Any) -> Pytree:
        """β_m."""
        return private.beta


def check_training(method: Any) -> None:
    """Refuse impossible numbers of steps, learning rates and optimizers."""
    kind = type(method).__name__
    check_whole(method, "tau", "batch", "epochs", "head_epochs", "own_epochs")
    for name in ("lr", "lr_beta", "lr_alpha"):
        check_rate(kind, name, getattr(method, name, None))
    prox = getattr(method, "prox", None)
    if isinstance(prox, int | float) and not 0 <= prox < math.inf:
        raise InputError(f"{kind} needs a finite prox ≥ 0 (the strength of its pull towards w), got {prox=}.")
    optimizer = method.optimizer
    if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        got = (
            repr(optimizer) if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
        )
        raise InputError(f"{kind}'s optimizer must be one from optax, as in optax.adam(1e-3), got {got}.")


def check_whole(method: Any, *names: str) -> None:
    """Refuse numbers of steps, rows and passes that are not whole and at least 1; None and fields that a method lacks are fine."""
    kind = type(method).__name__
    for name in names:
        value = getattr(method, name, None)
        if isinstance(value, str) or (value is not None and value < 1):
            raise InputError(f"{kind} needs {name} ≥ 1, got {name}={value!r}.")
        if value is not None and not float(value).is_integer():
            raise InputError(f"{kind} needs a whole number for {name}, got {name}={value!r}.")


def check_rate(kind: str, name: str, rate: object, *, schedule: bool = True) -> None:
    """Refuse a learning rate that is no number ≥ 0, or, where a `schedule` may be one, no function that gives one in round 0."""
    if callable(rate) and schedule:
        first: Any = rate(0)
        if not isinstance(first, Tracer) and not _is_rate(first):
            raise InputError(
                f"{kind}'s {name} must give a finite number ≥ 0 in every round, but {name}(0) = {first!r}."
            )
    elif rate is not None and not isinstance(rate, Tracer):
        if callable(rate) or np.ndim(cast(Any, rate)) or np.asarray(rate).dtype.kind not in "iuf":
            such = "a number or a function of the round" if schedule else "a number, and no function of the round"
            raise InputError(f"{kind}'s learning rate is {such}, got {name}={rate!r}.")
        if not _is_rate(rate):
            raise InputError(f"{kind} needs a learning rate that is a finite number ≥ 0, got {name}={rate!r}.")


def _is_rate(value: Any) -> bool:
    return np.ndim(value) == 0 and 0 <= float(value) < math.inf


def refuse_both(method: Training, of_theory: bool) -> None:
    """Refuse a method with both theory's fields and a learning rate, or with settings that need a learning rate but lack it."""
    kind = type(method).__name__
    if method.is_plain and of_theory:
        raise InputError(f"{kind} takes either theory's η, or a learning rate and an optimizer, but not both.")
    if not method.is_plain and (method.drop_last or method.keep or method.lr_beta is not None):
        raise InputError(f"{kind}'s drop_last, keep and lr_beta need a learning rate: give lr=.")


def refuse_other_models(method: Algorithm, w: Pytree, beta: Pytree) -> None:
    """Refuse an objective whose w and β are not both whole models of the same shape."""
    shapes = [[leaf.shape for leaf in jax.tree.leaves(block)] for block in (w, beta)]
    if shapes[0] != shapes[1] or jax.tree.structure(w) != jax.tree.structure(beta):
        raise InputError(
            f"{type(method).__name__} needs an objective whose w and β are models of the same shape, such as "
            "objectives.mixture(loss, lam); here their shapes differ."
        )
