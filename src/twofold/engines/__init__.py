"""The engines: one definition of each algorithm, run in different ways with the same trajectory."""

from __future__ import annotations

from typing import Any

from twofold import machine
from twofold.algorithms.base import Algorithm
from twofold.engines import memory
from twofold.engines.base import Engine
from twofold.engines.fused import recipe
from twofold.engines.grouped import Grouped
from twofold.engines.messages import Messages
from twofold.engines.sharded import Sharded
from twofold.engines.simulate import Simulate
from twofold.engines.streamed import Streamed
from twofold.errors import InputError
from twofold.problem import Problem

REGISTRY: dict[str, Any] = {"simulate": Simulate, "messages": Messages, "sharded": Sharded, "streamed": Streamed}


def choose(
    name: str,
    algorithm: Algorithm,
    problem: Problem,
    seeds: int = 1,
    chunk: int | None = None,
    state: str | None = None,
) -> tuple[type[Engine], dict[str, Any]]:
    """The engine for a run, and how to make it.

    `simulate` becomes `streamed` where not everyone fits at once. On CPUs it also does so where one client has much to do
    between two rounds, or all of them together need more than a cache holds: work is then better done by one core for a few
    clients in its own cache, and then for the next, than for all in lock step. On GPUs it does so where an iteration of a
    client can be done together with others (`engines.fused`). Many seeds are spread over the cores.
    """
    asked = chunk is not None or state is not None
    if chunk is not None and (int(chunk) != chunk or chunk < 1):
        raise InputError(f"chunk is a number of clients ≥ 1, got {chunk=}.")
    if name not in ("simulate", "streamed"):
        if asked:
            raise InputError(f"chunk= and state= are for the engines simulate and streamed, not for {name}.")
        return get(name), {}
    if name == "simulate" and not asked:
        need = memory.need(algorithm, problem)
        if memory.fits(need, seeds):
            most = min(machine.cores(), seeds // 2) if machine.on_cpu() else 1
            groups = max((n for n in range(1, most + 1) if seeds % n == 0), default=1)
            if groups > 1:
                return Grouped, {"groups": groups}
            if seeds > 1 or not (machine.on_cpu() or recipe(algorithm, problem)):
                return Simulate, {}
            if not machine.on_cpu():
                return Streamed, {}
            if need.turn >= memory.LONG_TURN:
                return Streamed, {"chunk": 1}
            if need.clients * need.working < memory.SPREAD:
                return Simulate, {}
    return Streamed, {"chunk": chunk, "state": "device" if state is None else state}


def get(name: str) -> Any:
    """The engine of that name."""
    if name not in REGISTRY:
        raise InputError(f"Unknown engine {name!r}; there are {', '.join(REGISTRY)}.")
    return REGISTRY[name]
