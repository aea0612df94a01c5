"""More clients than fit at once: a chunk of them at a time, their state on the device, on the host, or on disk.

Between two rounds of communication nobody needs anybody: the shared state evolves in the same way everywhere. So a chunk of
clients does all silent iterations up to the next round and its own part of that round in one go, and the next chunk follows.
Everyone passes through the device once per round, however many iterations a round has. What an algorithm does on receipt
of the new shared state (`receive`) waits until the clients' next turn.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import machine, randomness, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.engines import layout, memory
from twofold.engines.base import Engine, Snapshots, Threads
from twofold.engines.fused import Products, Recipe, When, clients, products, put, recipe
from twofold.engines.schedule import Schedule
from twofold.engines.simulate import State, client_streams, first_state, report
from twofold.errors import InputError
from twofold.problem import Oracle, Problem, weighted_mean
from twofold.tree import Pytree

Place = Literal["device", "host", "disk"]
"""Where private states are kept while other clients are at work."""
PLACES: tuple[Place, ...] = ("device", "host", "disk")

TERMS = 32
"""Chunks whose shares of a mean are added in one call, which twenty clients of FedAvg notice."""
FEW, CALLS = 32, 2
"""Clients that take their turns in some calls for each core: one would be the fastest, if no core were ever held up."""


class Chunk(NamedTuple):
    """Some clients of one bucket: their places in it, their positions, their data where these stay on the device."""

    bucket: int
    places: slice
    positions: np.ndarray
    rows: int
    stack: Any
    streams: Any
    products: Products | None  # where data stay on the device, and iterations are done together on all rows


class Streamed(Engine):
    """All clients of one seed's run, `chunk` of them at a time (by default as many as memory is free for).

    `state` says where their private states are kept meanwhile: "device", "host", or "disk" (memory-mapped files in a
    temporary folder, see TMPDIR, that goes with the run). With states on the device, data are kept there, too.
    `fused` says whether iterations of linear models are done together where they can be; by default they are on a GPU.
    """

    keeps = False

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        seeds: list[int],
        start: Any,
        slots: int = 0,
        *,
        chunk: int | None = None,
        state: Place = "device",
        fused: bool | None = None,
    ) -> None:
        if len(seeds) != 1:
            raise InputError(f"The streamed engine runs one seed at a time, got {len(seeds)}.")
        if state not in PLACES:
            raise InputError(f"Private state is kept on one of {', '.join(PLACES)}, not on {state!r}.")
        self.algorithm, self.problem, self.place = tree.cast(algorithm), problem, state
        key = randomness.root(seeds[0])
        self._common = randomness.common(key)
        self._schedule = Schedule(self.algorithm, problem, key[None])
        self._objective = (problem.objective, problem.traced_scale)
        wanted = jax.local_devices()[0].platform == "gpu" if fused is None else fused
        self.recipe = recipe(self.algorithm, problem) if wanted else None
        if self.recipe is not None and self.recipe.halves and state != "device":
            self.recipe = None  # products of many rows are worth it only where they are kept
        need = memory.need(self.algorithm, problem)
        if chunk is None and self.recipe is not None and state == "device" and memory.fits(need, 1):
            chunk = problem.M  # a GPU has no use for small chunks
        self.chunk = memory.choose(need, chunk, state)
        # Methods only ever add and scale parameters, so only the loss has to know that they are kept transposed.
        self._transposed = bool(self.recipe or machine.on_cpu()) and layout.transposable(problem)
        objective = layout.turned(problem.objective) if self._transposed else problem.objective
        self._turned = (objective, problem.traced_scale)
        self._chunks = list(self._cut(key))
        self._kept = _Kept(state, [len(p) for p in problem.positions])
        w, beta = start
        w, parts = tree.cast(w), problem.split(beta)
        for i, one in enumerate(self._chunks):
            part = tree.cast(jax.tree.map(lambda leaf, one=one: leaf[one.places], parts[one.bucket]))
            at = layout.swapped(w, (part,)) if self._transposed else (w, (part,))
            self.shared, (private,) = first_state(self.algorithm, self._program(one, turned=True), *at)
            self._kept.put(i, one, private)
        self._waiting = -1  # the iteration whose `receive` is still to come
        # On CPUs chunks run side by side, each on a core of its own: its arrays stay in that core's cache. One more than
        # cores, so that the next is ready when one is done.
        workers = min(machine.cores() + 1, len(self._chunks)) if machine.on_cpu() else 1
        self._threads = Threads(workers) if workers > 1 else None
        self._groups = self._grouped(need, machine.cores() * CALLS)

    def _cut(self, key: jax.Array) -> Iterator[Chunk]:
        """Every bucket in pieces of nearly equal size, so that there are few shapes to compile for."""
        for bucket, positions in enumerate(self.problem.positions):
            rows = int(self.problem.clients.counts[positions].max())
            edges = np.linspace(0, len(positions), -(-len(positions) // self.chunk) + 1).round().astype(int).tolist()
            for lo, hi in pairwise(edges):
                one = Chunk(bucket, slice(lo, hi), positions[lo:hi], rows, None, None, None)
                stack = self._data(one)
                _, (streams,) = client_streams(key, (stack,), False)
                one = one._replace(streams=streams)
                if self.place == "device":
                    together = self.recipe is not None and not self.recipe.draws
                    one = one._replace(stack=stack, products=products(self.recipe, stack.x) if together else None)
                yield one

    def _grouped(self, need: memory.Need, most: int) -> list[list[int]]:
        """Which chunks take their turn in one call, those with the most work first, so that nobody waits for them at the end.

        A call costs as much as some steps of a small client. So where clients come one by one, they are put together to `most`
        calls of about equally much work; but only a few clients, because each call is a program of its own, and not if they need
        much memory, which that program may take for several at a time.
        """

        def work(rows: np.ndarray) -> np.ndarray:
            of_w, of_beta = self._schedule.evaluations(rows)
            return (of_w + of_beta).sum(axis=0) + 1

        of_client = work(self.problem.clients.counts)
        real = [int(of_client[one.positions].sum()) for one in self._chunks]
        order = sorted(range(len(real)), key=lambda i: -real[i])
        alone = self._threads is None or self.recipe is not None or self.place != "device" or self.chunk > 1
        if alone or len(order) > FEW or need.clients * need.working > memory.CHUNK:
            return [[i] for i in order]
        # Padded sizes say which come together, as it is with them that a program is compiled; real ones, who is who of a size.
        padded = work(np.array([one.rows for one in self._chunks]))
        groups: list[list[int]] = [[] for _ in range(min(most, len(order)))]
        for i in sorted(order, key=lambda i: -padded[i]):
            min(groups, key=lambda group: (sum(padded[group]), sum(real[j] for j in group))).append(i)
        return groups

    def _data(self, one: Chunk) -> Any:
        """A chunk's data on the device."""
        if one.stack is not None:
            return one.stack
        return tree.arrays(self.problem.stack(one.positions, np.dtype(jnp.result_type(float)), one.rows))

    def _program(self, *some: Chunk, turned: bool = False) -> tuple:
        return (*(self._turned if turned else self._objective), tuple(self._data(one) for one in some))

    def advance(self, k: int, count: int, slots: np.ndarray) -> None:
        """Iterations k … k+count−1, in stretches that end with a round of communication."""
        alike = not self.algorithm.silent and not self._schedule.coins  # every iteration is a round of the same kind
        if self.recipe is not None and alike and len(self._chunks) == 1:
            one, when = self._chunks[0], (jnp.int32(k), jnp.int32(k + count))
            self.shared, private = _rounds(
                self.algorithm, self._program(one, turned=True), self.shared, self._kept.get(0, one),
                (self._common, one.streams), when, one.products, how=self.recipe,
            )  # fmt: skip
            self._kept.put(0, one, private)
            return
        kinds = self._schedule.kinds(k + count)[0, k:]
        last = self._schedule.communicates[kinds]
        if self.recipe is not None:
            # Iterations are done together where no coin fell, whether or not anybody speaks with one, and up to one which is
            # of a kind that can be. Who is not stands alone.
            alone = np.flatnonzero(~np.isin(kinds, self.recipe.kinds))
            last |= kinds != 0
            last[alone[alone > 0] - 1] = True
        ends = k + np.union1d(np.flatnonzero(last) + 1, [count])
        for first, end in zip([k, *ends[:-1].tolist()], ends.tolist(), strict=True):
            step = end - first if self.recipe is None else self.recipe.together + 1
            for some in range(first, end, step):
                self._stretch(some, min(some + step, end))

    def wait(self) -> None:
        """See `Engine.wait`."""
        jax.block_until_ready((self.shared, self._kept.on_device))

    def _stretch(self, first: int, end: int) -> None:
        """Iterations first … end−1, of which only the last one communicates (or none), or is of another kind."""
        kind = int(self._schedule.kinds(end)[0, end - 1])
        how = self.recipe if self.recipe is not None and kind in self.recipe.kinds else None

        when = (np.int32(first), np.int32(end))

        def turn(group: list[int]) -> tuple[Any, Any]:
            """Of these chunks, in one call."""
            some = [self._chunks[i] for i in group]
            privates = [self._kept.get(i, one) for i, one in zip(group, some, strict=True)]
            program = (self.algorithm, self._program(*some, turned=True), self.shared)
            if how is not None:
                (private,), (one,) = privates, some
                streams = (self._common, one.streams)
                shared, moved, part = _piece(*program, private, streams, when, one.products, how=how, kind=kind)
                privates, parts = [put(how, private, moved)], [part]
            else:
                alone = not self._schedule.communicates.all()
                streams = (self._common, [one.streams for one in some])
                times = (np.int32(self._waiting), *when)
                privates, shared, parts = _turns(*program, privates, streams, times, alone=alone)
            for i, one, private in zip(group, some, privates, strict=True):
                self._kept.put(i, one, private)
            return shared, parts

        work = map if self._threads is None else self._threads.map
        shared, found = zip(*work(turn, self._groups), strict=True)
        of_chunk = {
            i: part
            for group, parts in zip(self._groups, found, strict=True)
            for i, part in zip(group, parts, strict=True)
        }
        mean, *parts = (of_chunk[i] for i in range(len(self._chunks)))
        for i in range(0, len(parts), TERMS):
            mean = _add(mean, *parts[i : i + TERMS])
        self.shared = _finish(self.algorithm, self._common, np.int32(end - 1), shared[0], mean)
        self._waiting = end - 1

    def _settle(self) -> None:
        """Let everyone receive what is waiting."""
        if self._waiting >= 0 and _receives(self.algorithm):
            plan = self.algorithm.plan(self._common, jnp.int32(self._waiting))
            for i, one in enumerate(self._chunks):
                private = _receive(
                    self.algorithm, self._program(one, turned=True), plan, self.shared, self._kept.get(i, one)
                )
                self._kept.put(i, one, private)
        self._waiting = -1

    def _reports(self) -> Iterator[tuple[Chunk, tuple, Snapshots]]:
        """What the algorithm would report now, chunk by chunk."""
        self._settle()
        for i, one in enumerate(self._chunks):
            program, state = self._program(one), State(self.shared, (self._kept.get(i, one),))
            yield one, program, _report(self.algorithm, program, state, self._transposed)

    def fetch(self, snapshots: Any, slot: int, row: int) -> Snapshots:
        """The last iterate, on the host."""
        w, parts = None, [None] * len(self.problem.positions)
        for one, _, found in self._reports():
            w, count = jax.tree.map(np.asarray, found.w), len(self.problem.positions[one.bucket])
            if parts[one.bucket] is None:
                parts[one.bucket] = jax.tree.map(
                    lambda leaf, n=count: np.empty((n, *leaf.shape[1:]), leaf.dtype), found.parts[0]
                )
            jax.tree.map(
                lambda whole, leaf, one=one: _write(whole, one.places, leaf), parts[one.bucket], found.parts[0]
            )
        return Snapshots(w, tuple(parts))

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: Any, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The metrics of where everyone is."""
        return self._measure(metrics, self._reports(), lambda: self.fetch(None, 0, 0))

    def measure_start(
        self, metrics: dict[str, measure.Metric], w: Pytree, parts: tuple[Pytree, ...]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The metrics of the starting point."""
        cut = (jax.tree.map(lambda leaf, one=one: leaf[one.places], parts[one.bucket]) for one in self._chunks)
        shown = (
            (one, self._program(one), Snapshots(*tree.cast((w, (part,)))))
            for one, part in zip(self._chunks, cut, strict=True)
        )
        return self._measure(metrics, shown, lambda: Snapshots(w, parts))

    def _measure(
        self, metrics: dict[str, measure.Metric], shown: Iterable[tuple[Chunk, tuple, Snapshots]], everyone: Callable
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Sums over clients chunk by chunk; a function of the user's own gets everybody's β at once."""
        summed = {name: metric for name, metric in metrics.items() if metric in measure.SUMS}
        functions = (*summed.values(), measure.size)
        totals = w = None
        for _, program, found in shown:
            part = _sums(functions, program, found.w, found.parts)
            totals, w = part if totals is None else jax.tree.map(jnp.add, totals, part), found.w
        assert totals is not None
        values = [
            np.asarray(measure.SUMS[f].finish(total, w))[None] for f, total in zip(functions, totals, strict=True)
        ]
        found = dict(zip(summed, values, strict=False))
        others = metrics.keys() - summed.keys()
        if others:
            whole, program = everyone(), (*self._objective, self.problem.stacks)
            for name in others:
                found[name] = np.asarray(metrics[name](program, whole.w, whole.parts))[None]
        return found, values[-1]


class _Kept:
    """Everyone's private state, by chunk on the device, or by bucket in arrays on the host or on disk."""

    def __init__(self, place: Place, sizes: list[int]) -> None:
        self._place, self._sizes = place, sizes
        self.on_device: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}
        self._folder: Path | None = None
        if place == "disk":
            self._folder = Path(tempfile.mkdtemp(prefix="twofold-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def get(self, i: int, one: Chunk) -> Any:
        """A chunk's states on the device, for its turn."""
        if self._place == "device":
            return self.on_device[i]
        # A copy, always: on a CPU the device would otherwise work on the very memory that is written to afterwards.
        return jax.tree.map(lambda whole: jnp.array(whole[one.places]), self._arrays[one.bucket])

    def put(self, i: int, one: Chunk, private: Any) -> None:
        """Take them back."""
        if self._place == "device":
            self.on_device[i] = private
            return
        if one.bucket not in self._arrays:
            self._arrays[one.bucket] = jax.tree.map(partial(self._make, one.bucket), private)
        jax.tree.map(lambda whole, leaf: _write(whole, one.places, leaf), self._arrays[one.bucket], private)

    def _make(self, bucket: int, leaf: jax.Array) -> np.ndarray:
        shape = (self._sizes[bucket], *leaf.shape[1:])
        if self._folder is None or not np.prod(shape):
            return np.empty(shape, leaf.dtype)
        file = self._folder / f"{bucket}-{len(list(self._folder.iterdir()))}.npy"
        return np.lib.format.open_memmap(file, "w+", leaf.dtype, shape)


def _write(whole: np.ndarray, places: slice, leaf: jax.Array) -> None:
    whole[places] = np.asarray(leaf)


def _receives(algorithm: Algorithm) -> bool:
    return type(algorithm).receive is not Algorithm.receive


def _everyone(algorithm: Algorithm, program: tuple, method: str) -> Any:
    """An algorithm's `client` or `receive` for all clients of a chunk."""
    objective, scale, (stack,) = program

    def all_of_them(plan: Any, shared: Any, private: Any, streams: Any = None, k: Any = None) -> Any:
        def one(member: Any, private: Any, stream: Any) -> Any:
            oracle = Oracle(objective, scale, member)
            draws = () if stream is None else (randomness.of(stream, k),)
            return getattr(algorithm, method)(plan, shared, private, oracle, *draws)

        everyone = (stack, private, streams)
        if len(stack.count) > 1:
            return jax.vmap(one)(*everyone)
        # A client alone needs no batched loop, which would go on in vain for those who are done, and ask every time who is.
        return jax.tree.map(lambda leaf: leaf[None], one(*jax.tree.map(lambda leaf: leaf[0], everyone)))

    return all_of_them


@partial(jax.jit, static_argnames="alone", donate_argnums=3)
def _turns(
    algorithm: Algorithm, program: tuple, shared: Any, privates: list, streams: tuple, when: tuple, alone: bool
) -> tuple[list, Any, list]:
    """The turns of some chunks, one after the other, as one program."""
    (objective, scale, stacks), (common, own) = program, streams
    found = [
        _turn(algorithm, (objective, scale, (stack,)), shared, private, (common, stream), when, alone)
        for stack, private, stream in zip(stacks, privates, own, strict=True)
    ]
    return [private for private, _, _ in found], found[0][1], [part for _, _, part in found]


def _turn(
    algorithm: Algorithm, program: tuple, shared: Any, private: Any, streams: tuple, when: tuple, alone: bool
) -> tuple[Any, Any, Any]:
    """A chunk's turn: receive what waits, the silent iterations, and the last one up to the message.

    Gives the chunk's states, the shared state before the last server step, and the chunk's share of the mean message.
    """
    (common, own), (waiting, first, end) = streams, when
    client, receive = (_everyone(algorithm, program, method) for method in ("client", "receive"))
    plan_of = partial(algorithm.plan, common)

    def go(k: Any, shared: Any, private: Any) -> tuple[Any, Any]:
        private, message = client(plan_of(k), shared, private, own, k)
        return private, weighted_mean(program[2], [message])

    if _receives(algorithm):
        plan = plan_of(jnp.maximum(waiting, 0))
        private = jax.lax.cond(
            waiting >= 0, lambda private: receive(plan, shared, private), lambda private: private, private
        )
    nothing = None
    if alone:
        shape = jax.eval_shape(lambda: go(first, shared, private)[1])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)

    def one(k: Any, carry: tuple) -> tuple:
        """A silent iteration."""
        shared, private = carry
        private, _ = go(k, shared, private)
        shared = algorithm.server(plan_of(k), shared, nothing)
        return shared, receive(plan_of(k), shared, private)

    if alone:
        shared, private = jax.lax.fori_loop(first, end - 1, one, (shared, private))
    private, mean = go(end - 1, shared, private)
    return private, shared, mean


# Nothing is donated: every state becomes a sum of several, so that none can be written before all are read.
@partial(jax.jit, static_argnames=("how", "kind"))
def _piece(
    algorithm: Algorithm, program: tuple, shared: Any, private: Any, streams: tuple, when: tuple, kept: Any, how: Recipe,
    kind: int,
) -> tuple[Any, list[jax.Array], Any]:  # fmt: skip
    """The same turn, with its iterations done together, of which the last one is of this kind; see `fused.clients`."""
    return clients(how, algorithm, program, (shared, private), streams, kept, When(when[0], when[1], kind))


@partial(jax.jit, static_argnames="how", donate_argnums=3)
def _rounds(
    algorithm: Algorithm, program: tuple, shared: Any, private: Any, streams: tuple, when: tuple, kept: Any, how: Recipe
) -> tuple[Any, Any]:
    """Whole rounds of everybody, one after the other, where each iteration is one and all clients are here."""

    def one(k: Any, carry: tuple) -> tuple:
        shared, private = carry
        shared, moved, mean = _piece(algorithm, program, shared, private, streams, (k, k + 1), kept, how=how, kind=0)
        return _finish(algorithm, streams[0], k, shared, mean), put(how, private, moved)

    first, end = when
    return jax.lax.fori_loop(first, end, one, (shared, private))


@jax.jit
def _add(*parts: Any) -> Any:
    return reduce(partial(jax.tree.map, jnp.add), parts)


@jax.jit
def _finish(algorithm: Algorithm, common: jax.Array, k: Any, shared: Any, mean: Any) -> Any:
    return algorithm.server(algorithm.plan(common, k), shared, mean)


@partial(jax.jit, donate_argnums=4)
def _receive(algorithm: Algorithm, program: tuple, plan: Any, shared: Any, private: Any) -> Any:
    return _everyone(algorithm, program, "receive")(plan, shared, private)


@partial(jax.jit, static_argnums=3)
def _report(algorithm: Algorithm, program: tuple, state: State, transposed: bool) -> Snapshots:
    found = report(algorithm, program, state)
    return Snapshots(*layout.swapped(*found)) if transposed else found


@partial(jax.jit, static_argnums=0)
def _sums(functions: tuple, program: tuple, w: Pytree, parts: tuple) -> tuple:
    return tuple(measure.SUMS[function].of_some(program, w, parts) for function in functions)
