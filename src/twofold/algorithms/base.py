"""The protocol: an algorithm is pure functions around one message.

What leaves a client is exactly the `Message` that `client` returns, and of that only the parts for which `sends` is true.
Shared state evolves identically everywhere, so an iteration in which nothing is sent costs no communication: each client
replays the server's step itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax

from twofold.algorithms.oracle import GradientOracle
from twofold.randomness import Key
from twofold.theory.constants import Constants
from twofold.tree import Pytree

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


class Setting(NamedTuple):
    """What theory knows of a problem when it fills in step sizes."""

    constants: Constants
    rows: float  # per client, on average
    M: int
    heaviest: float  # the largest client weight, 1/M when all are equal
    lam: Any  # of the mixture, the only objective that some baselines solve
    loss: Any  # its LossConstants, likewise
    sizes: tuple[int, int] = (0, 0)  # the number of parameters in w and in one β
    convex: bool = True


class Algorithm:
    """A method in split form; its hyper-parameters are the fields of a frozen dataclass, None where theory decides.

    Subclasses are final. `receive` is a hook that almost nobody needs; everything else is theirs to write.
    """

    name: str
    needs: str | None = None  # the one objective it can solve; None for all
    silent: bool = True  # whether there are iterations in which nothing is sent

    def is_complete(self) -> bool:
        """Whether nothing is left for theory to fill in."""
        return all(getattr(self, f.name) is not None for f in dataclasses.fields(self) if not f.metadata.get("static"))  # type: ignore[arg-type]

    def complete(self, setting: Setting) -> tuple[Algorithm, str | None]:
        """This method with every open field filled in by theory, and what the user should be told about it."""
        raise NotImplementedError

    def init(self, w0: Pytree) -> Shared:
        """What everyone knows before the first iteration."""
        raise NotImplementedError

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """What one client alone knows before the first iteration."""
        raise NotImplementedError

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The common coins of iteration k: pure in (stream, k), so known to all without a word."""
        raise NotImplementedError

    def client(
        self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """One client's iteration: its new private state, and the message."""
        raise NotImplementedError

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """The shared update from the mean message; parts that were not sent are zero and not looked at."""
        raise NotImplementedError

    def receive(self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle) -> Private:
        """What a client does with the new shared state; unchanged by default."""
        return private

    def sends(self, plan: Plan) -> Message:
        """Which parts of the message are sent; drives the ledger and the serialiser."""
        raise NotImplementedError

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Single-row gradient evaluations of a client with `rows` rows in an iteration with this plan."""
        raise NotImplementedError

    def model(self, shared: Shared) -> Pytree:
        """The (scaled) w that this method would report now."""
        raise NotImplementedError

    def personal(self, private: Private) -> Pytree:
        """The β_m that this method would report now."""
        raise NotImplementedError


A = TypeVar("A", bound=Algorithm)


def fill(algorithm: A, values: Mapping[str, Any]) -> A:
    """The algorithm with its open (None) fields taken from `values`; what the user set stays."""
    fields = {field.name for field in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    open_fields = {name: value for name, value in values.items() if name in fields and getattr(algorithm, name) is None}
    return dataclasses.replace(algorithm, **open_fields)  # type: ignore[type-var]


def size_of_batch(batch: int | None, rows: Any) -> Any:
    """Rows in one sampled gradient: the batch, or everything."""
    return rows if batch is None else batch
