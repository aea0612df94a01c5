"""All clients at once: vmap over clients, one compiled loop over iterations, many seeds in lock step.

Iterates that are to be recorded are kept in slots on the device and measured together afterwards, since a metric of many
iterates at once is a matrix product where one at a time is a matrix-vector one.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from twofold import kernels, randomness, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.engines.base import Engine, Factors, Point, Snapshots, Start, State, lengthened
from twofold.engines.loop import CAPACITY, Layout, Streams, advance, client_streams, first_state, report
from twofold.oracle import Member, Program
from twofold.problem import Problem

__all__ = ["Simulate", "SimulateGroups", "padded"]


class Simulate(Engine):
    """All clients of all seeds of one run on one device."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Start, slots: int) -> None:
        super().__init__(algorithm, problem, slots)
        self._many = len(seeds) > 1
        self._program = problem.program()
        keys = jnp.stack([randomness.root(seed) for seed in seeds])
        self._streams = _streams(keys if self._many else keys[0], problem.stacks, self._many)
        w, beta = tree.cast(start)
        first = _first(self.algorithm, self._program, w, problem.split(beta))
        self._state = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], len(seeds), 0), first) if self._many else first
        shape = jax.eval_shape(_show, self.algorithm, first, self._sizes)
        lead = (slots + 1, len(seeds)) if self._many else (slots + 1,)
        self._buffer = jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), shape) if slots else None

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(len(positions) for positions in self.problem.positions)

    @property
    def program(self) -> Program:
        """See `Engine.program`."""
        return self._program

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> Snapshots:
        """See `Engine.advance`."""
        mine = self._factors(factors)
        self._state, self._buffer = _advance(
            self.algorithm, self._program, self._state, self._buffer, self._streams, jnp.int32(k), jnp.int32(count),
            padded(slots, self.slots, CAPACITY if mine is None else len(mine[0])), mine, many=self._many,
        )  # fmt: skip
        if self._buffer is None:
            return jax.tree.map(lambda leaf: leaf[None, None], _show(self.algorithm, self._state, self._sizes))
        return self._buffer if self._many else jax.tree.map(lambda leaf: leaf[:, None], self._buffer)

    def _factors(self, factors: Factors | None) -> tuple[jax.Array, ...] | None:
        """Each bucket's (iterations, seeds, clients), without the axis of seeds where there is one."""
        if factors is None:
            return None
        mine = lengthened(factors if self._many else factors[:, 0])
        return tuple(jnp.asarray(mine[..., positions], jnp.result_type(float)) for positions in self.problem.positions)

    def state(self) -> State:
        """See `Engine.state`."""
        state = jax.tree.map(np.array, self._state)  # copies: the next call may write over what is there
        return state if self._many else jax.tree.map(lambda leaf: leaf[None], state)

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        mine = state if self._many else jax.tree.map(lambda leaf: leaf[0], state)
        self._state = jax.tree.map(jnp.array, mine)

    def wait(self) -> None:
        """See `Engine.wait`."""
        jax.block_until_ready(self._state)

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        return jax.tree.map(np.asarray, _pick(snapshots, np.int32(slot), np.int32(row)))

    def measure_point(
        self, metrics: dict[str, measure.Metric], point: Point
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """See `Engine.measure_point`; shaped like all other snapshots, so that metrics compile only once."""
        if self._buffer is None:
            return super().measure_point(metrics, point)

        def alone(buffer: jax.Array, leaf: np.ndarray) -> jax.Array:
            shape = buffer.shape if self._many else (buffer.shape[0], 1, *buffer.shape[1:])
            return jnp.zeros(shape, buffer.dtype).at[0].set(jnp.asarray(leaf))

        return self.measure(metrics, jax.tree.map(alone, self._buffer, point), np.zeros(1, np.int32))


class SimulateGroups(Engine):
    """Many seeds on several cores: a simulation of equally many seeds for each core, side by side.

    XLA runs the chain of small operations that an iteration of a small problem is on one core. Snapshots are lists of the
    groups' own.
    """

    def __init__(
        self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Start, slots: int, *, groups: int
    ) -> None:
        super().__init__(algorithm, problem, slots)
        self._size = len(seeds) // groups
        cuts = range(0, len(seeds), self._size)
        self._groups = [Simulate(algorithm, problem, seeds[i : i + self._size], start, slots) for i in cuts]
        self._threads = kernels.Threads(groups)

    def _of_group(self, g: int) -> slice:
        return slice(g * self._size, (g + 1) * self._size)

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> list[Snapshots]:
        """See `Engine.advance`."""

        def of_group(g: int) -> Snapshots:
            mine = None if factors is None else factors[:, self._of_group(g)]
            return self._groups[g].advance(k, count, slots, mine)

        return self._threads.map(of_group, range(len(self._groups)))

    def state(self) -> State:
        """See `Engine.state`."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *[group.state() for group in self._groups])

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        for g, group in enumerate(self._groups):
            group.restore(jax.tree.map(lambda leaf, g=g: leaf[self._of_group(g)], state))

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

    def measure_point(
        self, metrics: dict[str, measure.Metric], point: Point
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """See `Engine.measure_point`."""
        return self._groups[0].measure_point(metrics, point)


def padded(slots: np.ndarray, nowhere: int, capacity: int) -> jax.Array:
    """Slots for as many iterations as a call can take."""
    out = np.full(capacity, nowhere, np.int32)
    out[: len(slots)] = slots
    return jnp.asarray(out)


@partial(jax.jit, static_argnums=2)
def _streams(keys: jax.Array, stacks: tuple[Member, ...], many: bool) -> Streams:
    return jax.vmap(lambda key: client_streams(key, stacks))(keys) if many else client_streams(keys, stacks)


@jax.jit
def _first(algorithm: Algorithm, program: Program, w: object, parts: tuple) -> State:
    return first_state(algorithm, program, *program.inward(w, parts))


_show = partial(jax.jit, static_argnums=2)(report)
_advance = partial(jax.jit, static_argnames=("many", "layout"), donate_argnums=(2, 3))(
    partial(advance, layout=Layout())
)


@jax.jit  # array by array, outside a compiled program, it would take ten times as long for every seed
def _pick(snapshots: Snapshots, slot: int, row: int) -> Snapshots:
    return jax.tree.map(lambda leaf: leaf[slot, row], snapshots)
