"""All clients at once: vmap over clients, one compiled loop over iterations, many seeds in lock step.

Iterates that are to be recorded are kept in slots on the device and measured together afterwards, because a metric of many
iterates at once is a matrix product, where one at a time is a matrix-vector product.
"""

# pyright: reportArgumentType=false
# (Partition specs stand where arrays do in the same NamedTuples.)

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from twofold import kernels, randomness, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.engines.base import Engine, Factors, Point, Snapshots, Starts, State, in_order, in_parts, length
from twofold.engines.layout import AXIS, Layout, P
from twofold.engines.loop import CAPACITY, Carried, Span, Streams, advance, client_streams, first_state, report
from twofold.oracle import Program
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["Simulate", "SimulateGroups"]

STAYS = 1 << 28
"""Bytes of one iterate up to which it stays on the device until somebody wants it: a copy to the host may take as long as a round."""


class Simulate(Engine):
    """All clients of all seeds of one run: on one device, or, with another layout, on several (see `Sharded`)."""

    def __init__(
        self, algorithm: Algorithm, problem: Problem, seeds: list[int], starts: Starts, slots: int, *,
        layout: Layout = Layout(),  # noqa: B008  (a tuple)
    ) -> None:  # fmt: skip
        super().__init__(algorithm, problem, slots)
        self._layout, self._many = layout, len(seeds) > 1
        self._sizes = tuple(len(positions) for positions in problem.positions)
        keys = np.stack([np.asarray(randomness.root(seed)) for seed in seeds])
        apart = any(other is not starts[0] for other in starts)
        keys, (w, beta) = keys if self._many else keys[0], tree.cast(starts[0])
        parts = problem.split(beta)
        if apart:
            each = [(w, problem.split(beta)) for w, beta in tree.cast(starts)]
            w, parts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        if layout.mesh is None:
            self.program = problem.program()
        else:
            plain = problem.program(*layout.put(layout.filled(problem.host_stacks), P(AXIS)))
            objective, variables, proof = layout.put((plain.objective, plain.variables, plain.proof), P())
            self.program = Program(objective, variables, plain.stacks, proof)
            self.algorithm, keys, w = layout.put((self.algorithm, keys, w), P())
            parts = layout.put(layout.filled(jax.tree.map(np.asarray, parts), int(apart)), P(*(None,) * apart, AXIS))
        positions = tuple(stack.position for stack in self.program.stacks)
        self._streams = _streams(keys, positions, layout=layout, many=self._many)
        self._carried = _begin(
            self.algorithm, self.program, w, parts, layout=layout, seeds=len(seeds), slots=slots, apart=apart
        )

    def first(self) -> Snapshots:
        """See `Engine.first`."""
        state, buffer = self._carried
        if buffer is None:
            shown = _show(self.algorithm, self.program, state, layout=self._layout)
            return jax.tree.map(lambda leaf: leaf[None, None], shown)
        return buffer

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> Snapshots:
        """See `Engine.advance`."""
        mine = None if factors is None else self._factors(factors)
        capacity = CAPACITY if factors is None else length(len(factors), factors[0].size)
        where = np.full(capacity, self.slots, np.int32)
        where[: len(slots)] = slots
        span = Span(np.int32(k), np.int32(count), where, mine)
        self._carried = _advance(
            self.algorithm, self.program, self._carried, self._streams, span, layout=self._layout, many=self._many
        )
        if self._layout.mesh is not None:
            # On CPUs, queued programs with collectives can deadlock: their threads wait for each other.
            jax.block_until_ready(self._carried.state)
        return self.first()

    def _factors(self, factors: Factors) -> tuple[ArrayLike, ...]:
        """Each bucket's (iterations, seeds, clients), followed by zeros, without the axis of seeds where there is only one."""
        more = length(len(factors), factors[0].size) - len(factors)
        mine = np.pad(factors if self._many else factors[:, 0], ((0, more), *((0, 0),) * (1 + self._many)))
        parts = tuple(mine[..., p].astype(np.dtype(jnp.result_type(float))) for p in self.problem.positions)
        if self._layout.mesh is None:
            return parts
        return self._layout.put(self._layout.filled(parts, axis=-1), P(*(None,) * (1 + self._many), AXIS))

    def state(self) -> State:
        """See `Engine.state`."""
        shared, privates = self._on_host(self._carried.state, axis=int(self._many))
        if not self._many:
            shared, privates = jax.tree.map(lambda a: a[None], (shared, privates))
        return State(shared, in_order(privates, self.problem.positions))

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        privates = in_parts(state.privates, self.problem.positions, self._carried.state.privates, 1 + self._many)
        mine, layout = State(state.shared, privates), self._layout
        if not self._many:
            mine = jax.tree.map(lambda leaf: leaf[0], mine)
        if layout.mesh is None:
            mine = jax.tree.map(jnp.array, mine)
        else:
            privates = layout.put(layout.filled(mine.privates, int(self._many)), P(*(None,) * self._many, AXIS))
            mine = State(layout.put(mine.shared, P()), privates)
        self._carried = self._carried._replace(state=mine)

    def wait(self) -> None:
        """See `Engine.wait`."""
        jax.block_until_ready(self._carried.state)

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        picked = _pick(snapshots, np.int32(slot), np.int32(row))
        if self._layout.mesh is None and sum(leaf.nbytes for leaf in jax.tree.leaves(picked)) < STAYS:
            return picked
        return Snapshots(*self._on_host(picked, axis=0))

    def _on_host(self, pair: tuple[Pytree, tuple[Pytree, ...]], axis: int) -> tuple[Pytree, tuple[Pytree, ...]]:
        """Host copies of something shared and something of each bucket, without the clients that only pad a layout."""
        if self._layout.mesh is None:
            return jax.tree.map(np.array, tuple(pair))
        shared, parts = jax.tree.map(np.array, self._layout.gathered(tuple(pair)))
        real = [
            jax.tree.map(lambda a, n=n: a.take(np.arange(n), axis), x) for x, n in zip(parts, self._sizes, strict=True)
        ]
        return shared, tuple(real)


class SimulateGroups(Engine):
    """Many seeds on several cores: a simulation of equally many seeds for each core, side by side.

    XLA runs the chain of small operations in an iteration of a small problem on one core. Snapshots are lists of the groups' own.
    """

    def __init__(
        self, algorithm: Algorithm, problem: Problem, seeds: list[int], starts: Starts, slots: int, *, groups: int
    ) -> None:
        super().__init__(algorithm, problem, slots)
        self._size = len(seeds) // groups
        cuts = range(0, len(seeds), self._size)
        mine = [slice(i, i + self._size) for i in cuts]
        self._groups = [Simulate(algorithm, problem, seeds[group], starts[group], slots) for group in mine]
        self._threads = kernels.Threads(groups)

    def first(self) -> list[Snapshots]:
        """See `Engine.first`."""
        return [group.first() for group in self._groups]

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> list[Snapshots]:
        """See `Engine.advance`."""

        def of_group(g: int) -> Snapshots:
            mine = None if factors is None else factors[:, g * self._size : (g + 1) * self._size]
            return self._groups[g].advance(k, count, slots, mine)

        return self._threads.map(of_group, range(len(self._groups)))

    def state(self) -> State:
        """See `Engine.state`."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *[group.state() for group in self._groups])

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        for g, group in enumerate(self._groups):
            group.restore(jax.tree.map(lambda leaf, g=g: leaf[g * self._size : (g + 1) * self._size], state))

    def wait(self) -> None:
        """See `Engine.wait`."""
        for group in self._groups:
            group.wait()

    def fetch(self, snapshots: list[Snapshots], slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        g, place = divmod(row, self._size)
        return self._groups[g].fetch(snapshots[g], slot, place)

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: list[Snapshots], index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Each group measures its own; the figures are put back in order."""
        slot, row = np.divmod(index, self._size * len(self._groups))
        g_of, place = np.divmod(row, self._size)
        mine = [np.flatnonzero(g_of == g) for g in range(len(self._groups))]

        def of_group(g: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            return self._groups[g].measure(metrics, snapshots[g], slot[mine[g]] * self._size + place[mine[g]])

        found = self._threads.map(of_group, [g for g in range(len(mine)) if len(mine[g])])
        order = np.argsort(np.concatenate(mine), kind="stable")
        values = {name: np.concatenate([part[name] for part, _ in found])[order] for name in metrics}
        return values, np.concatenate([sizes for _, sizes in found])[order]


# --- compiled once for all runs of one shape and layout -----------------------------------------------------------------

_PROGRAM = Program(P(), P(), P(AXIS), P())


def _dealt_out(many: bool, buffer: bool = True) -> tuple[Streams, Carried, Span]:
    """Which axes of the streams, of what is carried and of the spans belong to clients."""
    each = P(*(None,) * many, AXIS)
    carried = Carried(State(P(), each), Snapshots(P(), P(None, None, AXIS)) if buffer else None)
    return Streams(P(), each), carried, Span(P(), P(), P(), P(None, *each))


@partial(jax.jit, static_argnames=("layout", "many"))
def _streams(keys: jax.Array, positions: tuple[jax.Array, ...], *, layout: Layout, many: bool) -> Streams:
    """Everyone's streams: a program of its own, which serves every method and every problem of as many clients."""
    draw = jax.vmap(client_streams, (0, None)) if many else client_streams
    return layout.mapped(draw, (P(), P(AXIS)), _dealt_out(many)[0])(keys, positions)


@partial(jax.jit, static_argnames=("layout", "seeds", "slots", "apart"))
def _begin(
    algorithm: Algorithm, program: Program, w: Pytree, parts: tuple[Pytree, ...], *, layout: Layout, seeds: int,
    slots: int, apart: bool,
) -> Carried:  # fmt: skip
    """Everyone's first state, and the buffer with the starting point in its first slot."""
    many = seeds > 1

    def begin(algorithm: Algorithm, program: Program, w: Pytree, parts: tuple) -> Carried:
        def from_start(w: Pytree, parts: tuple) -> tuple:
            state = first_state(algorithm, program, *program.inward(w, parts))
            return state, report(algorithm, state, program.sizes)

        state, shown = jax.vmap(from_start)(w, parts) if apart else from_start(w, parts)
        if not apart:
            shown = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], seeds, 0), shown)
            state = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], seeds, 0), state) if many else state
        buffer = jax.tree.map(lambda leaf: jnp.zeros((slots + 1, *leaf.shape), leaf.dtype).at[0].set(leaf), shown)
        return Carried(state, buffer if slots else None)

    given = (P(), _PROGRAM, P(), P(*(None,) * apart, AXIS))
    return layout.mapped(begin, given, _dealt_out(many, slots > 0)[1])(algorithm, program, w, parts)


@partial(jax.jit, static_argnames=("layout", "many"), donate_argnums=2)
def _advance(
    algorithm: Algorithm, program: Program, carried: Carried, streams: Streams, span: Span, *, layout: Layout,
    many: bool,
) -> Carried:  # fmt: skip
    of_streams, kept, of_span = _dealt_out(many, carried.buffer is not None)
    given = (P(), _PROGRAM, kept, of_streams, of_span)
    go = layout.mapped(partial(advance, layout=layout, many=many), given, kept)
    return go(algorithm, program, carried, streams, span)


@partial(jax.jit, static_argnames="layout")
def _show(algorithm: Algorithm, program: Program, state: State, *, layout: Layout) -> Snapshots:
    def show(algorithm: Algorithm, program: Program, state: State) -> Snapshots:
        return report(algorithm, state, program.sizes)

    given = (P(), _PROGRAM, State(P(), P(AXIS)))
    return layout.mapped(show, given, Snapshots(P(), P(AXIS)))(algorithm, program, state)


@jax.jit  # compiled, because array by array it takes ten times as long
def _pick(snapshots: Snapshots, slot: int, row: int) -> Snapshots:
    return jax.tree.map(lambda leaf: leaf[slot, row], snapshots)
