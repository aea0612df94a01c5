"""How much memory a run needs, how much there is, and how many clients to take at a time."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import machine, randomness
from twofold.algorithms.base import Algorithm
from twofold.engines.schedule import message_sizes
from twofold.errors import InputError
from twofold.problem import Oracle, Problem

SHARE = 0.8
"""Of the free memory, how much a run may plan with."""
LARGE = 1 << 28
"""Below this many bytes nobody looks at what is free."""
LONG_TURN = 1 << 25
"""Bytes that a client touches between two rounds, from which on it is worth a call of its own (a few milliseconds)."""


ROUNDING, PROGRAMS = 1.25, 50_000_000
"""On a CPU arrays take about a quarter more than their bytes (pages, arenas), and programs and threads take this much."""
CHUNK = 1 << 23
"""Bytes that a chunk of clients at work should need on a CPU: it stays in a core's cache, and memory is used again."""
SPREAD = 1 << 21
"""Bytes that all clients at work would need, from which on they better take turns there."""


class Need(NamedTuple):
    """Bytes: everybody's data and private state, and per client what an iteration needs besides, and what a turn touches."""

    clients: int
    data: int
    state: int
    working: int
    turn: int = 0

    def at_once(self, chunk: int, seeds: int = 1) -> int:
        """Everything on the device, `chunk` clients of each seed at work."""
        return self.data + seeds * (self.state + chunk * self.working)

    def peak(self, chunk: int) -> int:
        """What a process holds on a CPU, the caller's own copy of the data included."""
        return self.data + int(ROUNDING * self.at_once(chunk)) + PROGRAMS

    def told(self) -> str:
        """The arithmetic, in words."""
        each = (self.state // self.clients, self.data // self.clients, self.working)
        state, data, working = (size(n) for n in each)
        return (
            f"{self.clients:,} clients with {data} of data and {state} of private state each are "
            f"{size(self.data)} + {size(self.state)}, and every client at work needs {working} more"
        )


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def need(algorithm: Algorithm, problem: Problem) -> Need:
    """What a run of one seed needs; nothing is computed for it."""
    w, beta = problem.abstract_start
    member = problem.abstract_member
    itemsize = jnp.result_type(float).itemsize
    state = _nbytes(_private.eval_shape(algorithm, problem.objective, problem.scale, member, w, beta))
    message = itemsize * sum(message_sizes(algorithm, problem))
    counts = problem.clients.counts
    rows = sum(len(p) * int(counts[p].max()) for p in problem.positions)
    row = _nbytes((member.x, member.y)) // jax.tree.leaves(member.x)[0].shape[0]
    # The new state, the message, and what a gradient takes: the point where it is taken, itself, and one more of each.
    parameters = _nbytes((w, beta))
    working = state + message + 2 * parameters
    used = float(np.mean(counts))
    rounds, evaluated = (float(n) for n in _coming(algorithm, used))
    rounds = rounds or LOOKED_AT  # who never speaks may be recorded every time
    iterations, evaluated = LOOKED_AT / rounds, evaluated / rounds
    # Local steps take a batch each; where iterations may be silent, each asks for a few gradients, rarely for a full one.
    gradients = 4 * iterations if algorithm.silent else evaluated / (getattr(algorithm, "batch", None) or used)
    turn = evaluated * row + gradients * 4 * parameters
    return Need(problem.M, rows * row, state * problem.M, working, int(turn))


LOOKED_AT = 256
"""Iterations after the first, by whose coins it is judged how many a method has between two rounds."""


def usual_stretch(algorithm: Algorithm) -> float:
    """Iterations from one round to the next, on average; as many as are looked at where nobody speaks."""
    return LOOKED_AT / max(int(_coming(algorithm, 1.0)[0]), 1)


@jax.jit
def _coming(algorithm: Algorithm, rows: Any) -> tuple[Any, Any]:
    """Rounds in the iterations that are looked at, and rows that a client evaluates in them."""
    stream = randomness.common(randomness.root(0))

    def one(k: Any) -> tuple[Any, Any]:
        plan = algorithm.plan(stream, k)
        speaks = reduce(jnp.logical_or, jax.tree.leaves(algorithm.sends(plan)))
        return speaks, jnp.asarray(sum(algorithm.evaluations(plan, rows)), jnp.result_type(float))

    speaks, evaluated = jax.vmap(one)(jnp.arange(1, LOOKED_AT + 1, dtype=jnp.int32))
    return jnp.sum(speaks), jnp.sum(evaluated)


@jax.jit
def _private(algorithm: Algorithm, objective: Any, scale: Any, member: Any, w: Any, beta: Any) -> Any:
    return algorithm.init_private(w, beta, Oracle(objective, scale, member))


def _nbytes(x: Any) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(x))


def free() -> int:
    """Bytes that are free on the first device; on a CPU, what the system could give without swapping."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):  # no such file on this system: assume a small machine
        return 4 << 30


def fits(found: Need, seeds: int) -> bool:
    """Whether all clients of all seeds can be at work at once."""
    whole = found.at_once(found.clients, seeds)
    return whole < LARGE or whole <= SHARE * free()


def choose(found: Need, chunk: int | None, state: str) -> int:
    """How many clients to take at a time, when their state is kept on the device, the host or the disk."""
    if chunk is not None:
        return min(chunk, found.clients)
    room = SHARE * free()
    kept = found.data + found.state if state == "device" else found.state if state == "host" and machine.on_cpu() else 0
    each = found.working + (0 if state == "device" else (found.data + found.state) // found.clients)
    most = int((room - kept) // max(each, 1))
    if most < 1:
        raise InputError(
            f"This problem does not fit into memory: {found.told()}, but {size(room)} can be used "
            f"({SHARE:.0%} of what is free). "
            + ('Keep the private state elsewhere: state="host" or state="disk".' if state != "disk" else "")
        )
    # Large chunks gain nothing, and leave nothing to others.
    enough = max(CHUNK // max(found.working, 1) if machine.on_cpu() else max(found.clients // 8, 64), 1)
    if machine.on_cpu() and enough < found.clients:  # as many chunks for every core
        turns = max(round(found.clients / (enough * machine.cores())), 1)
        enough = -(-found.clients // (turns * machine.cores()))
    return min(most, enough, found.clients)


def turns(found: Need, clients: list[int], seeds: int) -> tuple[int, ...] | None:
    """In how many turns so many clients (of each bucket) of one device work; None where all at once are as fast.

    That is on a GPU, where they need little, and where most of it is state that hardly changes (a table of gradients): it
    stays where it is if all step together, but every turn copies it.
    """
    working = seeds * found.working
    if not machine.on_cpu() or sum(clients) * working < SPREAD or 2 * found.state > found.clients * found.working:
        return None
    # Half a chunk, which costs one process nothing and keeps two apart that share the last cache: measured, 0.27 s a round
    # by one and 0.14 s by two for 4,000 clients of softmax regression, where whole chunks take 0.27 s and 0.16 to 0.2 s.
    chunk = max(CHUNK // 2 // working, 1)
    return tuple(-(-count // chunk) for count in clients)
