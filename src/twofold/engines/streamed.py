"""Chunk after chunk: more clients than fit at once, their state on the device, on the host, or on disk.

Between two rounds of communication clients are independent: the shared state evolves in the same way everywhere. So a chunk
of clients does all iterations up to the next round and its own part of that round in one call, and the next chunk follows.
Everyone passes through the device once per round, however many iterations a round has. What an algorithm does on receipt
of the new shared state (`receive`) waits until the clients' next turn.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from twofold import kernels, randomness, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm, Message
from twofold.engines import loop, memory
from twofold.engines.base import Engine, Factors, Point, Snapshots, Starts, State, in_order, in_parts
from twofold.engines.schedule import Schedule
from twofold.errors import InputError
from twofold.oracle import Member, Program
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["Streamed"]


class Chunk(NamedTuple):
    """Some clients of one bucket: their places in it, their positions, and their data where these stay on the device."""

    bucket: int
    places: slice
    positions: np.ndarray
    rows: int
    streams: loop.Streams
    stack: Member | None


class Leg(NamedTuple):
    """The iterations of a turn, first … end−1, of which only the last communicates, and who takes part in that.

    `waiting` is the iteration whose `receive` is still to come (−1: none), and `received_by` says who took part in it.
    """

    waiting: np.int32
    received_by: tuple[jax.Array] | None
    first: np.int32
    end: np.int32
    factors: tuple[jax.Array] | None


class Streamed(Engine):
    """All clients of one seed's run, `chunk` of them at a time (by default, the number that fits into free memory).

    `state` says where their private states are kept meanwhile: "device", "host", or "disk" (memory-mapped files in a
    temporary folder, see TMPDIR, that is deleted with the run). With states on the device, data are kept there, too.
    """

    keeps = False

    def __init__(
        self, algorithm: Algorithm, problem: Problem, seeds: list[int], starts: Starts, slots: int = 0, *,
        need: memory.Need, schedule: Schedule, chunk: int | None = None, state: memory.Place = "device",
    ) -> None:  # fmt: skip
        super().__init__(algorithm, problem, 0)
        if len(seeds) != 1:
            raise InputError(f"The streamed engine runs one seed at a time, got {len(seeds)}.")
        if state not in get_args(memory.Place):
            raise InputError(f"Private state is kept on one of {', '.join(get_args(memory.Place))}, not on {state!r}.")
        self.chunk, self.place, self._schedule = memory.choose_chunk(need, chunk, state), state, schedule
        key = randomness.root(seeds[0])
        self._common = randomness.common(key)
        self._chunks = list(self._cut(key))
        self._kept = _Kept(state, [len(p) for p in problem.positions])
        w, beta = starts[0]
        w, parts = tree.cast(w), problem.split(beta)
        for i, one in enumerate(self._chunks):
            part = tree.cast(jax.tree.map(lambda leaf, one=one: leaf[one.places], parts[one.bucket]))
            self.shared, (private,) = _first(self.algorithm, self._program(one), w, (part,))
            # One after the other: what is queued keeps its arguments, which would be everyone's state a second time.
            self._kept.put(i, one, jax.block_until_ready(private))
        self._waiting, self._present = -1, None  # the iteration whose `receive` is still to come, and its factors
        workers = kernels.workers(len(self._chunks))
        self._threads = kernels.Threads(workers) if workers > 1 else None
        # Chunks with the most rows go first, so that no core waits for a long one at the end.
        rows = [int(problem.clients.counts[one.positions].sum()) for one in self._chunks]
        self._order = sorted(range(len(rows)), key=lambda i: -rows[i])

    def _cut(self, key: jax.Array) -> Iterator[Chunk]:
        """Every bucket in pieces of nearly equal size, so that there are few shapes to compile for."""
        for bucket, positions in enumerate(self.problem.positions):
            rows = int(self.problem.clients.counts[positions].max())
            edges = np.linspace(0, len(positions), -(-len(positions) // self.chunk) + 1).round().astype(int).tolist()
            for lo, hi in pairwise(edges):
                stack = self._stack(positions[lo:hi], rows)
                kept = stack if self.place == "device" else None
                yield Chunk(bucket, slice(lo, hi), positions[lo:hi], rows, _streams(key, (stack.position,)), kept)

    def _stack(self, positions: np.ndarray, rows: int) -> Member:
        return tree.arrays(self.problem.stack(positions, np.dtype(jnp.result_type(float)), rows))

    def _program(self, one: Chunk) -> Program:
        """The problem of a chunk's clients alone."""
        return self.problem.program(self._stack(one.positions, one.rows) if one.stack is None else one.stack)

    def first(self) -> None:
        """See `Engine.first`: this engine keeps no iterates; `measure` and `fetch` look at its current state."""

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> None:
        """Iterations k … k+count−1, in stretches that end with a round of communication.

        Where some clients are absent, every iteration is a stretch of its own, because each has other participants.
        """
        if factors is not None:
            for i in range(count):
                self._stretch(k + i, k + i + 1, factors[i, 0])
            return
        rounds = np.diff(self._schedule.ahead(k, count).rounds[0]) > 0
        ends = k + np.union1d(np.flatnonzero(rounds) + 1, [count])
        for first, end in pairwise([k, *ends.tolist()]):
            self._stretch(first, end, None)

    def _stretch(self, first: int, end: int, factors: np.ndarray | None) -> None:
        """Iterations first … end−1, of which only the last one communicates (or none)."""
        waiting, begun, over = np.int32(self._waiting), np.int32(first), np.int32(end)
        # On a problem that shares nothing, even a method that always sends has iterations without communication.
        has_silence = self.algorithm.may_skip_messages or end - first > 1

        def turn(i: int) -> tuple[Pytree, Message]:
            one = self._chunks[i]
            leg = Leg(waiting, self._of_chunk(one, self._present), begun, over, self._of_chunk(one, factors))
            program, private = self._program(one), self._kept.get(i, one)
            private, shared, part = _turn(
                self.algorithm, program, self.shared, private, one.streams, leg, has_silence=has_silence
            )
            self._kept.put(i, one, private)
            return shared, part

        def add(total: tuple[Pytree, Message], found: tuple[Pytree, Message]) -> tuple[Pytree, Message]:
            return total[0], _add(total[1], found[1])

        order, threads = self._order, self._threads
        shared, mean = reduce(add, map(turn, order)) if threads is None else threads.fold(turn, order, add)
        self.shared = _finish(self.algorithm, self._common, np.int32(end - 1), shared, mean, factors is not None)
        self._waiting, self._present = end - 1, factors

    @staticmethod
    def _of_chunk(one: Chunk, factors: np.ndarray | None) -> tuple[jax.Array] | None:
        return None if factors is None else (jnp.asarray(factors[one.positions], jnp.result_type(float)),)

    def _settle(self) -> None:
        """Do the `receive` that is still to come."""
        if self._waiting >= 0 and loop.receives(self.algorithm):
            k = np.int32(self._waiting)
            for i, one in enumerate(self._chunks):
                state, present = State(self.shared, (self._kept.get(i, one),)), self._of_chunk(one, self._present)
                self._kept.put(i, one, _receive(self.algorithm, self._program(one), one.streams, k, state, present))
        self._waiting = -1

    def wait(self) -> None:
        """See `Engine.wait`."""
        jax.block_until_ready((self.shared, self._kept.on_device))

    def state(self) -> State:
        """See `Engine.state`."""
        self._settle()
        privates = [self._kept.get(i, one) for i, one in enumerate(self._chunks)]
        shared, privates = jax.tree.map(lambda leaf: np.array(leaf)[None], (self.shared, privates))
        return State(shared, in_order(privates, [one.positions for one in self._chunks]))

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        self.shared = jax.tree.map(lambda leaf: jnp.array(leaf[0]), state.shared)
        for i, one in enumerate(self._chunks):
            (mine,) = in_parts(state.privates, [one.positions], [self._kept.get(i, one)], 1)
            self._kept.put(i, one, jax.tree.map(lambda leaf: jnp.array(leaf[0]), mine))
        self._waiting = -1

    def _report(self, i: int, one: Chunk) -> Snapshots:
        return _show(self.algorithm, State(self.shared, (self._kept.get(i, one),)), (len(one.positions),))

    def fetch(self, snapshots: Any, slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        self._settle()
        shown = _Kept("host", self._kept.sizes)
        for i, one in enumerate(self._chunks):
            shown.put(i, one, self._report(i, one).parts[0])
        return Snapshots(jax.tree.map(np.asarray, self.algorithm.model(self.shared)), shown.by_bucket())

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: Any, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Metrics of the current state: built-in ones summed chunk by chunk, a user's function with everyone's β at once."""
        self._settle()
        summed = {name: metric for name, metric in metrics.items() if metric in measure.SUMS}
        functions = (*summed.values(), measure.norm_squared)
        totals, w = None, self.algorithm.model(self.shared)
        for i, one in enumerate(self._chunks):
            part = _sums(functions, self._program(one), w, self._report(i, one).parts)
            totals = part if totals is None else jax.tree.map(jnp.add, totals, part)
        shared = self._program(self._chunks[0])._replace(stacks=())
        values = [np.asarray(each)[None] for each in _finish_sums(functions, shared, totals, w)]
        found = dict(zip(summed, values, strict=False))
        if others := metrics.keys() - summed.keys():
            whole, program = self.fetch(None, 0, 0), self.problem.program()
            of_whole = {name: measure.value_of(metrics[name], program, whole.w, whole.parts) for name in others}
            found |= {name: np.asarray(value)[None] for name, value in of_whole.items()}
        return found, values[-1]


class _Kept:
    """Something of everyone, such as the private states: by chunk on the device, or by bucket in arrays on the host or on disk."""

    def __init__(self, place: memory.Place, sizes: list[int]) -> None:
        self._place, self.sizes = place, sizes
        self.on_device: dict[int, Pytree] = {}
        self._arrays: dict[int, Pytree] = {}
        self._folder: Path | None = None
        if place == "disk":
            self._folder = Path(tempfile.mkdtemp(prefix="twofold-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def get(self, i: int, one: Chunk) -> Pytree:
        """What was put there for a chunk, on the device."""
        if self._place == "device":
            return self.on_device[i]
        # Copies, because `put` writes to these arrays later.
        return jax.tree.map(lambda whole: kernels.device_copy(whole[one.places]), self._arrays[one.bucket])

    def put(self, i: int, one: Chunk, private: Pytree) -> None:
        """Store a chunk's own, in place of what was there."""
        if self._place == "device":
            self.on_device[i] = private
            return
        if one.bucket not in self._arrays:
            self._arrays[one.bucket] = jax.tree.map(partial(self._make, one.bucket), private)
        for whole, leaf in zip(jax.tree.leaves(self._arrays[one.bucket]), jax.tree.leaves(private), strict=True):
            whole[one.places] = np.asarray(leaf)

    def by_bucket(self) -> tuple[Pytree, ...]:
        """Everything on the host, by bucket: the arrays themselves, not copies."""
        return tuple(self._arrays[bucket] for bucket in range(len(self.sizes)))

    def _make(self, bucket: int, leaf: jax.Array) -> np.ndarray:
        shape = (self.sizes[bucket], *leaf.shape[1:])
        if self._folder is None or not np.prod(shape):
            return np.empty(shape, leaf.dtype)
        file = self._folder / f"{bucket}-{len(list(self._folder.iterdir()))}.npy"
        return np.lib.format.open_memmap(file, "w+", leaf.dtype, shape)


_streams = jax.jit(loop.client_streams)
_show = partial(jax.jit, static_argnums=2)(loop.report)


@jax.jit
def _first(algorithm: Algorithm, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> State:
    return loop.first_state(algorithm, program, *program.inward(w, parts))


@partial(jax.jit, static_argnames="has_silence", donate_argnums=3)
def _turn(
    algorithm: Algorithm, program: Program, shared: Pytree, private: Pytree, streams: loop.Streams, leg: Leg, *,
    has_silence: bool,
) -> tuple[Pytree, Pytree, Message]:  # fmt: skip
    """A chunk's turn: the outstanding `receive`, the silent iterations, and the last one up to its message.

    Returns the chunk's states, the shared state before the last server step, and the chunk's part of the mean message.
    """
    state, last = State(shared, (private,)), jnp.asarray(leg.end) - 1
    iteration = partial(loop.iteration, algorithm, program, streams)

    def receive(state: State) -> State:
        waiting = iteration(jnp.maximum(leg.waiting, 0), state, leg.received_by)
        return State(state.shared, loop.receive_all(algorithm, program, *waiting))

    def begin(state: State) -> tuple[tuple[Pytree, ...], Message]:
        return loop.begin(algorithm, program, *iteration(last, state, leg.factors))

    if loop.receives(algorithm):
        state = jax.lax.cond(leg.waiting >= 0, receive, lambda state: state, state)
    if has_silence:
        nothing = tree.zeros(jax.eval_shape(begin, state)[1])
        state = loop.in_silence(algorithm, program, streams, leg.first, last, state, nothing)
    (private,), message = begin(state)
    return private, state.shared, message


@jax.jit
def _add(total: Message, part: Message) -> Message:
    return jax.tree.map(jnp.add, total, part)


@partial(jax.jit, static_argnums=5)
def _finish(algorithm: Algorithm, common: jax.Array, k: jax.Array, shared: Pytree, mean: Message, some: bool) -> Pytree:
    return loop.serve(algorithm, algorithm.plan(common, k), shared, mean, some)


@jax.jit
def _receive(algorithm: Algorithm, program: Program, *when: Any) -> Pytree:
    return loop.receive_all(algorithm, program, *loop.iteration(algorithm, program, *when))[0]


@partial(jax.jit, static_argnums=0)
def _sums(functions: tuple[measure.Metric, ...], program: Program, w: Pytree, parts: tuple) -> tuple:
    return tuple(measure.SUMS[function].of_some(program, w, parts) for function in functions)


@partial(jax.jit, static_argnums=0)
def _finish_sums(functions: tuple[measure.Metric, ...], program: Program, totals: tuple, w: Pytree) -> tuple:
    everything = zip(functions, totals, strict=True)
    return tuple(measure.SUMS[function].finish(program, total, w) for function, total in everything)
