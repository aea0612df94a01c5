"""How much memory a run needs, how much there is, and how many clients to take at a time."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from twofold import kernels
from twofold.algorithms.base import Algorithm, Footprint
from twofold.engines.schedule import Schedule
from twofold.errors import InputError
from twofold.losses.activations import activations
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["Need", "Place", "choose_chunk", "fits", "has_long_turns", "need", "turns"]

Place = Literal["device", "host", "disk"]
"""Where private states are kept while other clients are at work."""

SHARE = 0.8
"""The part of the free memory that a run may use."""
LARGE = 1 << 28
"""Bytes up to which a problem is assumed to fit, without asking how much memory is free."""
LONG_TURN = 1 << 25
"""A client that touches at least this many bytes between two rounds gets a call of its own (a few milliseconds)."""
ROUNDING, PROGRAMS = 1.25, 40_000_000
"""On a CPU arrays take about a quarter more than their bytes (pages, arenas); a run's own objects and threads take `PROGRAMS`."""
CHUNK = 1 << 23
"""Bytes that a chunk of clients should need on a CPU, so that it stays in a core's cache and its memory is reused."""
SPREAD = 1 << 21
"""If all clients together need at least this many bytes, they take turns on a CPU."""
MODELS = 5
"""Copies of w besides those of the clients at work: where the run began, its last record, this round's w, the mean so far, the next."""
LOOKED_AT = 256
"""How many iterations' coins are looked at to find out how much a client does between two rounds."""


class Need(NamedTuple):
    """Bytes: everybody's data, private state and recorded β, and what an iteration needs besides for each client."""

    clients: int
    data: int
    state: int
    working: int
    record: int
    """Everyone's β as last recorded: where the run would end if it diverged before the next record."""
    models: int = 0
    """The copies of w that a run holds, whoever is at work."""
    row: int = 0
    """One row's part of the data."""

    def at_once(self, chunk: int, seeds: int = 1) -> int:
        """Bytes with all data and states on the device and `chunk` clients of each seed at work."""
        return self.data + seeds * (self.state + self.record + self.models + chunk * self.working)

    def peak(self, chunk: int) -> int:
        """What a process holds on a CPU, the caller's own copy of the data included."""
        at_work = min(chunk * kernels.cores(), self.clients)
        return self.data + int(ROUNDING * self.at_once(at_work)) + PROGRAMS

    def told(self) -> str:
        """The arithmetic, in words."""
        each = (self.state // self.clients, self.data // self.clients, self.working)
        state, data, working = (in_words(n) for n in each)
        record = f", everyone's β as last recorded takes {in_words(self.record)}" if self.record else ""
        record += f", w {in_words(self.models)} in {MODELS} copies" if self.models else ""
        return (
            f"{self.clients:,} clients with {data} of data and {state} of private state each are "
            f"{in_words(self.data)} + {in_words(self.state)}{record}, and every client at work needs {working} more"
        )


def in_words(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def need(problem: Problem, shapes: Footprint, algorithm: Algorithm) -> Need:
    """What a run of one seed needs; nothing is computed for it."""
    counts, member = problem.clients.counts, problem.abstract_member
    rows = sum(len(p) * int(counts[p].max()) for p in problem.positions)  # padded, as they lie in their buckets
    row = _nbytes((member.x, member.y)) // member.capacity
    state = _nbytes(shapes.private)
    # The new state, the message, and what a gradient takes: the point where it is taken, itself, and one more of each.
    gradient = _nbytes(problem.abstract_start)
    loss: Any = getattr(problem.objective, "loss", None)
    if getattr(loss, "trains", False):
        batch = min(getattr(algorithm, "batch", None) or member.capacity, member.capacity)
        gradient = max(gradient, activations(loss, loss.init(problem.clients), member.x, member.y, batch))
    working = state + _nbytes(shapes.message) + _nbytes(problem.abstract_start) + gradient
    w, beta = map(_nbytes, problem.abstract_start)
    return Need(problem.M, rows * row, state * problem.M, working, problem.M * beta, MODELS * w, row)


def has_long_turns(schedule: Schedule, found: Need) -> bool:
    """Whether a client touches so much memory between two rounds that its turn is worth a call of its own."""
    algorithm, problem = schedule.algorithm, schedule.problem
    course = schedule.ahead(0, LOOKED_AT + 1)
    sent, of_w, of_beta = (float(total[0, -1] - total[0, 1]) for total in (course.rounds, *course[2:]))
    rounds = sent or LOOKED_AT  # a method that sends nothing may be recorded every time
    # Local steps take a batch each; where messages may be skipped, each iteration asks for a few gradients, rarely a full one.
    batches = (of_w + of_beta) / (getattr(algorithm, "batch", None) or float(np.mean(problem.clients.counts)))
    gradients = 4 * LOOKED_AT if algorithm.may_skip_messages else batches
    touched = (of_w + of_beta) * found.row + gradients * 4 * _nbytes(problem.abstract_start)
    return touched / rounds >= LONG_TURN


def _nbytes(x: Pytree) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(x))


def fits(found: Need, seeds: int) -> bool:
    """Whether all clients of all seeds can be at work at once."""
    whole = found.at_once(found.clients, seeds)
    return whole < LARGE or whole <= SHARE * kernels.free_memory()


def choose_chunk(found: Need, asked: int | None, place: Place) -> int:
    """How many clients to take at a time, when their state is kept on the device, the host or the disk."""
    if asked is not None:
        return min(asked, found.clients)
    room = SHARE * kernels.free_memory()
    record, state = (found.record, found.state) if kernels.shares_memory() else (0, 0)
    on_device = {"device": found.data + found.state + found.record, "host": state + record, "disk": record}
    each = found.working + (0 if place == "device" else (found.data + found.state) // found.clients)
    most = int((room - on_device[place] - found.models) // max(each, 1))
    if most < 1:
        elsewhere = "" if place == "disk" else 'Keep the private state elsewhere: state="host" or state="disk".'
        raise InputError(
            f"This problem does not fit into memory: {found.told()}, but {in_words(room)} can be used "
            f"({SHARE:.0%} of what is free). {elsewhere}"
        )
    return min(most, _enough(found), found.clients)


def _enough(found: Need) -> int:
    """The largest chunk that is useful: more would not be faster, and would take memory from other processes."""
    if not kernels.works_in_turns():
        return max(found.clients // 8, 64)
    enough = max(CHUNK // max(found.working, 1), 1)
    if enough >= found.clients:
        return found.clients
    turns = max(round(found.clients / (enough * kernels.cores())), 1)  # every core gets the same number of chunks
    return -(-found.clients // (turns * kernels.cores()))


def turns(found: Need, clients: list[int], seeds: int) -> tuple[int, ...] | None:
    """For each bucket, the number of turns that a device's clients work in; None where all at once are as fast.

    All at once are as fast on a GPU, where the clients need little memory, and where most of it is state that hardly changes (a
    table of gradients), which every turn would copy.
    """
    working = seeds * found.working
    little = sum(clients) * working < SPREAD
    if not kernels.works_in_turns() or little or 2 * found.state > found.clients * found.working:
        return None
    chunk = max(CHUNK // 2 // working, 1)  # half a chunk, because two processes may share the last-level cache
    return tuple(-(-count // chunk) for count in clients)
