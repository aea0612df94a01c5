"""The contract of an algorithm: pure functions around one message. `contract` checks it before a run begins."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold.algorithms.contract import Footprint, check, refuse_arguments, trace, turn_of
from twofold.algorithms.fields import settle
from twofold.algorithms.floors import Floor
from twofold.algorithms.oracle import GradientOracle
from twofold.errors import ContractError
from twofold.randomness import Key
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.cost import Cost
from twofold.theory.each import EachClient, common
from twofold.theory.rates import Prediction, Rate
from twofold.tree import Pytree

__all__ = [
    "Algorithm",
    "Evaluations",
    "Facts",
    "Footprint",
    "GradientOracle",
    "check",
    "fill",
    "size_of_batch",
    "trace",
    "turn_of",
]

Plan = Any
Shared = Any
Private = Any
Message = Any
Open = Any
"""A number, or None while theory has not filled it in."""


class Evaluations(NamedTuple):
    """How many single-row gradients a client evaluates in an iteration, in w and in β."""

    w: Any
    beta: Any


class Facts(NamedTuple):
    """The facts about a problem from which theory computes step sizes."""

    constants: Constants
    rows: float  # per client, on average
    M: int
    max_weight: float  # the largest client weight, 1/M when all are equal
    lam: float | None = None  # λ of the mixture, the only objective that some baselines solve
    loss_of: Callable[[], LossConstants] | None = None  # the mixture's loss constants, computed only when needed
    sizes: tuple[int, int] = (0, 0)  # the number of parameters in w and in one β
    convex: bool = True
    coin: Callable[[], tuple[float, float] | None] | None = None  # the p_w that makes ACD cheapest, and its ν, if known
    weights: NDArray[np.float64] | None = None  # p_m; None for 1/M each
    participation: NDArray[np.float64] | None = None  # probabilities of taking part in a round; None: all do
    curvature: Callable[[], EachClient | None] | None = None  # every client's curvature, computed only when needed
    cost: Cost | None = (
        None  # what p_w, ρ and the batch minimise; None: a round costs as much as the gradients of all rows
    )
    most_rows: float | None = None  # the rows of the largest client
    quadratic: bool = False  # whether F is quadratic

    @property
    def loss(self) -> LossConstants | None:
        """The constants of the mixture's loss; None for another objective."""
        return None if self.loss_of is None else self.loss_of()

    @property
    def prices(self) -> dict[str, Any]:
        """Arguments for `theory.stepsizes`: the cost to minimise, and the bytes, up plus down, of a message part as large as w."""
        return {"cost": self.cost, "message": 2.0 * self.sizes[0] * jnp.result_type(float).itemsize}

    def each(self) -> EachClient:
        """The curvature of every client's own function; if that is not known, the same for all, from the constants."""
        found = None if self.curvature is None else self.curvature()
        weights = np.full(self.M, 1 / self.M) if self.weights is None else self.weights
        return common(self.constants, weights) if found is None else found


class Algorithm(ABC):
    """A method, as pure functions around one message. Its hyper-parameters are the fields of a frozen record.

    This is the contract, and every engine relies on it:

    - A subclass is decorated with `@tree.record`. Theory fills in fields that are None, in `complete`.
    - `plan(stream, k)` draws the coins of iteration k that all clients and the server share. It is pure in (stream, k): anyone who
      knows the seed knows all plans in advance. A plan may be any pytree of arrays. It must not depend on data.
    - `client` takes one client through iteration k. It returns the new private state, of the same shapes as the old one, and a
      message. Nothing leaves a client but the parts of this message for which `sends` is true.
    - `sends(plan)` returns a bool for each part of the message, as a tuple of the same type. It may be any function of the plan
      that JAX can trace. Ledger, rounds and records follow it, iteration by iteration; nothing is counted by hand.
      If no part is sent, the iteration costs no communication, and `server` must not use the message (it is zeros).
    - `server(plan, shared, mean)` is the shared update from the weighted mean of the messages. The server and every client compute
      it identically, so shared state never has to be sent.
    - `receive(plan, shared, private, oracle)` updates a client's private state from the new shared state; by default it does nothing.
    - `evaluations(plan, rows)` says how many single-row gradients a client with `rows` rows evaluates.
    - `model(shared)` and `personal(private)` are the w and β that the method would report now.

    A function with other arguments is refused when its class is made. Before a run begins, `contract.check` and `contract.trace` test
    the rest on shapes alone. What breaks the contract is a `ContractError` with one sentence.

    >>> import jax.numpy as jnp
    >>> from typing import NamedTuple
    >>> from twofold import tree
    >>> class Message(NamedTuple):
    ...     gradient: object
    >>> @tree.record
    ... class Descent(Algorithm):  # gradient descent on both blocks
    ...     eta: float = 0.1
    ...     name = "descent"
    ...
    ...     def complete(self, facts):
    ...         return self, None  # nothing to fill in
    ...
    ...     def init(self, w0):
    ...         return w0
    ...
    ...     def init_private(self, w0, beta0, oracle):
    ...         return beta0
    ...
    ...     def plan(self, stream, k):
    ...         return k
    ...
    ...     def client(self, plan, shared, private, oracle, key):
    ...         of_w, of_beta = oracle.gradients(shared, private)
    ...         return tree.combine((1.0, private), (-self.eta, of_beta)), Message(of_w)
    ...
    ...     def server(self, plan, shared, mean):
    ...         return tree.combine((1.0, shared), (-self.eta, mean.gradient))
    ...
    ...     def sends(self, plan):
    ...         return Message(True)
    ...
    ...     def evaluations(self, plan, rows):
    ...         return Evaluations(rows, rows)
    ...
    ...     def model(self, shared):
    ...         return shared
    ...
    ...     def personal(self, private):
    ...         return private
    >>> Descent(eta=0.5).server(0, jnp.ones(2), Message(jnp.ones(2))).tolist()
    [0.5, 0.5]
    """

    name: ClassVar[str]
    needs: ClassVar[str | None] = None
    """The one objective that it can solve; None for all."""
    may_skip_messages: ClassVar[bool] = True
    """A hint: False if (nearly) all iterations send, so that `client` is compiled once."""
    works_with_some: ClassVar[bool] = False
    """Whether it remains correct if only some clients take part in a round."""
    needs_unbiased: ClassVar[bool] = False
    """Whether these must then be weighted by known probabilities."""
    corrects: ClassVar[frozenset[str] | None] = None
    """What does not keep it from the optimum: "sampling", "local steps", "absence"; None: not known."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse functions with other arguments than the contract's; and drop an inherited `rate` if the subclass has another name.

        A rate is proven for the method that states it, and for no other.
        """
        super().__init_subclass__(**options)
        for name, function in vars(cls).items():
            refuse_arguments(cls, name, function, getattr(Algorithm, name, None))
        owner = next(base for base in cls.__mro__ if "rate" in vars(base))
        if vars(owner).get("name", getattr(cls, "name", None)) != getattr(cls, "name", None):
            cls.rate = Algorithm.rate

    def __post_init__(self) -> None:
        settle(self)

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a class that lacks some of the contract's methods."""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise ContractError(
                f"{cls.__name__} has no {', '.join(missing)}: see the contract in twofold.algorithms.Algorithm."
            )
        return super().__new__(cls)

    def among(self, chances: NDArray[np.float64] | None) -> Algorithm:
        """The method adapted to rounds in which clients take part with these probabilities (None: all do, or they are unknown)."""
        return self

    @property
    def carries_state(self) -> bool:
        """Whether the method keeps the numbers that a net updates by itself, such as BatchNorm's statistics."""
        return False

    def is_complete(self) -> bool:
        """Whether nothing is left for theory to fill in."""
        return all(getattr(self, f.name) is not None for f in dataclasses.fields(self) if not f.metadata.get("static"))  # type: ignore[arg-type]

    @abstractmethod
    def complete(self, facts: Facts) -> tuple[Algorithm, str | None]:
        """This method with every open field filled in by theory, and a note for the user, or None."""

    def rate(self, facts: Facts, eps: float) -> Prediction | Rate | str:
        """The predicted cost until `eps` of the first error is left with these steps, or a sentence that says why it is unknown.

        `theory.forecast` uses it, and `solve` uses it to warn of a budget that is too small. Returning `theory.rates.Rate(kappa)` is
        enough: rounds, bytes and gradients then follow from `plan`, `sends` and `evaluations`.
        """
        return f"no rate is proven for {self.name}."

    def floor(self, c: Constants | None) -> Floor | None:
        """What the method needs at least, with these constants (None: with any); None if nothing is known, see `floors`."""
        return None

    @abstractmethod
    def init(self, w0: Pytree) -> Shared:
        """The shared state before the first iteration."""

    @abstractmethod
    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """One client's private state before the first iteration."""

    @abstractmethod
    def plan(self, stream: jax.Array, k: jax.Array | int) -> Plan:
        """The common coins of iteration k: pure in (stream, k), so all know them without communication."""

    @abstractmethod
    def client(
        self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """One client's iteration: its new private state, and the message."""

    @abstractmethod
    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The shared update from the mean message; parts that were not sent are zero and must not be used."""

    def receive(self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle) -> Private:
        """The private state updated with the new shared state; unchanged by default."""
        return private

    def absent(self, plan: Plan, shared: Shared) -> Message:
        """The message assumed for an absent client (if `works_with_some`): what it would send if its state did not change."""
        raise ContractError(f"{type(self).__name__} works with some clients (works_with_some), so it needs absent.")

    @abstractmethod
    def sends(self, plan: Plan) -> Message:
        """Which parts of the message are sent; drives the ledger and the serialiser."""

    @abstractmethod
    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Single-row gradient evaluations of a client with `rows` rows in an iteration with this plan."""

    @abstractmethod
    def model(self, shared: Shared) -> Pytree:
        """The (scaled) w that this method would report now."""

    @abstractmethod
    def personal(self, private: Private) -> Pytree:
        """The β_m that this method would report now."""


A = TypeVar("A", bound=Algorithm)


def fill(algorithm: A, values: Mapping[str, Any]) -> A:
    """The algorithm with its open fields (None, or batch="auto") taken from `values`; fields that the user set stay."""
    fields = {field.name for field in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    open_fields = {name: value for name, value in values.items() if name in fields and getattr(algorithm, name) is None}
    if getattr(algorithm, "batch", None) == "auto":
        open_fields["batch"] = values.get("batch", 1)
    return dataclasses.replace(algorithm, **open_fields)  # type: ignore[type-var]


def size_of_batch(batch: int | None, rows: Any) -> Any:
    """The number of rows in one sampled gradient: the batch, or all rows if it is None."""
    return rows if batch is None else batch
