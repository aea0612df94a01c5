"""The engines: one definition of each algorithm, run in different ways with the same trajectory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from twofold import kernels
from twofold.algorithms.base import Footprint
from twofold.engines import memory
from twofold.engines.base import Engine
from twofold.engines.memory import Place
from twofold.engines.messages import Messages
from twofold.engines.schedule import Schedule
from twofold.engines.sharded import Sharded
from twofold.engines.simulate import Simulate, SimulateGroups
from twofold.engines.streamed import Streamed
from twofold.errors import InputError

__all__ = ["REGISTRY", "Engine", "EngineName", "Messages", "Sharded", "Simulate", "Streamed", "choose"]

EngineName: TypeAlias = Literal["simulate", "streamed", "sharded", "messages", "flower"]
REGISTRY: dict[str, type[Engine]] = {
    "simulate": Simulate, "messages": Messages, "sharded": Sharded, "streamed": Streamed,
}  # fmt: skip


def choose(
    name: str,
    schedule: Schedule,
    shapes: Footprint,
    seeds: int = 1,
    chunk: int | None = None,
    state: Place | None = None,
) -> Callable[..., Engine]:
    """The engine for a run, ready to be made from (algorithm, problem, seeds, starts, slots).

    `simulate` becomes `streamed` where not everyone fits at once. On CPUs it also does so where one client has much to do
    between two rounds, or where all of them together need more than a cache holds: a core is faster when it works on a few clients
    in its own cache, and then on the next few, than on all in lock step. Many seeds are spread over the cores.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
    >>> from twofold.engines.schedule import Schedule, footprint
    >>> from twofold.solver import complete
    >>> method, _ = complete(problem, "acd")
    >>> shapes = footprint(method, problem)
    >>> choose("messages", Schedule(method, problem, shapes.parts, [0]), shapes).__name__
    'Messages'
    """
    if name not in REGISTRY:
        raise InputError(f"Unknown engine {name!r}; there are {', '.join(REGISTRY)}, flower.")
    if chunk is not None and (int(chunk) != chunk or chunk < 1):
        raise InputError(f"chunk is a number of clients ≥ 1, got {chunk=}.")
    asked = chunk is not None or state is not None
    if name not in ("simulate", "streamed"):
        if asked:
            raise InputError(f"chunk= and state= are for the engines simulate and streamed, not for {name}.")
        return REGISTRY[name]
    need = memory.need(schedule.problem, shapes, schedule.algorithm)
    streamed = partial(Streamed, need=need, schedule=schedule)
    if name == "simulate" and not asked and memory.fits(need, seeds):
        if seeds > 1:
            groups = kernels.seed_groups(seeds)
            return Simulate if groups == 1 else partial(SimulateGroups, groups=groups)
        if not kernels.works_in_turns():
            return Simulate
        if memory.has_long_turns(schedule, need):
            return partial(streamed, chunk=1)
        if need.clients * need.working < memory.SPREAD:
            return Simulate
    return partial(streamed, chunk=chunk, state=state or "device")
