"""Over devices: the clients are dealt out over all devices of all processes, and only means cross between them.

The loop is the same (`engines.loop`), inside `shard_map`: each device advances its clients, and one `psum` adds up the weighted
means of their messages. On CPUs a device's clients take turns inside an iteration, as many at a time as a cache holds. A bucket
whose clients do not divide evenly over devices and turns is filled up with repeats that count for nothing. Several processes
(`jax.distributed.initialize`) make one mesh; each holds only its own clients on its devices.
"""

# pyright: reportArgumentType=false
# (Partition specs stand where arrays do in the same NamedTuples.)

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from twofold import metrics as measure
from twofold import randomness
from twofold.algorithms.base import Algorithm
from twofold.engines import memory
from twofold.engines.base import Engine, Factors, Point, Snapshots, Start, State, lengthened
from twofold.engines.loop import CAPACITY, Layout, Streams, advance, client_streams, first_state, report
from twofold.engines.schedule import footprint
from twofold.engines.simulate import padded
from twofold.oracle import Member, Program
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["Sharded"]

AXIS = "clients"


def _total(mean: Pytree) -> Pytree:
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, AXIS), mean)


class _Programs(NamedTuple):
    """The compiled parts of a run: one set for all runs over the same devices with as many seeds and slots."""

    streams: Callable[..., Streams]
    begin: Callable[..., tuple[State, Snapshots | None]]
    advance: Callable[..., tuple[State, Snapshots | None]]
    show: Callable[..., Snapshots]
    gather: Callable[..., Any]


@cache
def _programs(mesh: Mesh, seeds: int, slots: int, turns: tuple[int, ...] | None) -> _Programs:
    many = seeds > 1
    each = (None,) if many else ()
    mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
    program, state = Program(P(), P(), P(AXIS), P()), State(P(), P(*each, AXIS))
    streams, factors = Streams(P(), P(*each, AXIS)), P(None, *each, AXIS)
    buffer = Snapshots(P(), P(None, *each, AXIS)) if slots else None

    def sizes(program: Program) -> tuple[int, ...]:
        return tuple(len(stack.count) for stack in program.stacks)

    def begin(algorithm: Algorithm, program: Program, w: Pytree, parts: Any) -> tuple[State, Snapshots | None]:
        first = first_state(algorithm, program, *program.inward(w, parts))
        lead = (slots + 1, seeds) if many else (slots + 1,)
        shape = report(algorithm, first, sizes(program))
        empty = jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), shape) if slots else None
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], seeds, 0), first) if many else first, empty

    def all_streams(keys: jax.Array, stacks: tuple[Member, ...]) -> Streams:
        return jax.vmap(lambda key: client_streams(key, stacks))(keys) if many else client_streams(keys, stacks)

    def show(algorithm: Algorithm, program: Program, state: State) -> Snapshots:
        return report(algorithm, state, sizes(program))

    return _Programs(
        streams=jax.jit(mapped(all_streams, in_specs=(P(), P(AXIS)), out_specs=streams)),
        begin=jax.jit(mapped(begin, in_specs=(P(), program, P(), P(AXIS)), out_specs=(state, buffer))),
        advance=jax.jit(
            mapped(
                partial(advance, many=many, layout=Layout(_total, turns)),
                in_specs=(P(), program, state, buffer, streams, P(), P(), P(), factors), out_specs=(state, buffer),
            ),
            donate_argnums=(2, 3),
        ),
        show=jax.jit(mapped(show, in_specs=(P(), program, state), out_specs=Snapshots(P(), P(*each, AXIS)))),
        gather=jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P())),
    )  # fmt: skip


class Sharded(Engine):
    """All clients of all seeds of one run, over all devices of all processes."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Start, slots: int) -> None:
        super().__init__(algorithm, problem, slots)
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self._sizes = [len(stack.count) for stack in problem.host_stacks]
        self._many = len(seeds) > 1
        most = [-(-size // self.mesh.size) for size in self._sizes]  # clients of a bucket on one device
        need = memory.need(self.algorithm, problem, footprint(self.algorithm, problem))
        self.turns = memory.turns(need, most, len(seeds))
        self._put = partial(_place, self.mesh)
        stacks = self._put(self._filled(problem.host_stacks), P(AXIS))
        plain = problem.program(*problem.host_stacks)
        objective, variables, proof = self._put((plain.objective, plain.variables, plain.proof), P())
        self._program = Program(objective, variables, stacks, proof)
        self.algorithm = self._put(self.algorithm, P())
        w, beta = jax.tree.map(np.asarray, start)
        keys = np.stack([np.asarray(randomness.root(seed)) for seed in seeds])
        self._run = _programs(self.mesh, len(seeds), slots, self.turns)
        self._streams = self._run.streams(self._put(keys if self._many else keys[0], P()), stacks)
        parts = self._put(self._filled(problem.split(beta)), P(AXIS))
        self._state, self._buffer = self._run.begin(self.algorithm, self._program, self._put(w, P()), parts)

    @property
    def program(self) -> Program:
        """For metrics: whoever only fills up has no gradient either. (Methods may divide by a weight, so there it stays.)"""
        stacks = tuple(stack._replace(weight=stack.share) for stack in self._program.stacks)
        return self._program._replace(stacks=stacks)

    def _filled(self, stacks: tuple[Any, ...], axis: int = 0) -> tuple[Any, ...]:
        """Every bucket with as many clients for each turn of each device."""
        turns = self.turns or (1,) * len(stacks)
        return tuple(_fill(stack, self.mesh.size * n, axis) for stack, n in zip(stacks, turns, strict=True))

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> Snapshots:
        """See `Engine.advance`."""
        mine = self._factors(factors)
        where = np.asarray(padded(slots, self.slots, CAPACITY if mine is None else len(mine[0])))
        self._state, self._buffer = self._run.advance(
            self.algorithm,
            self._program,
            self._state,
            self._buffer,
            self._streams,
            np.int32(k),
            np.int32(count),
            where,
            mine,
        )
        # On CPUs, programs with collectives must not queue up: their threads can wait for each other for ever.
        jax.block_until_ready(self._state)
        if self._buffer is None:
            shown = self._run.show(self.algorithm, self._program, self._state)
            return jax.tree.map(lambda leaf: leaf[None, None], shown)
        return self._buffer if self._many else jax.tree.map(lambda leaf: leaf[:, None], self._buffer)

    def _factors(self, factors: Factors | None) -> tuple[jax.Array, ...] | None:
        if factors is None:
            return None
        mine = lengthened(factors if self._many else factors[:, 0])
        kind = np.dtype(jnp.result_type(float))
        parts = tuple(mine[..., positions].astype(kind) for positions in self.problem.positions)
        each = (None,) if self._many else ()
        return self._put(self._filled(parts, axis=-1), P(None, *each, AXIS))

    def state(self) -> State:
        """See `Engine.state`."""
        shared, privates = jax.tree.map(np.array, self._run.gather(tuple(self._state)))
        if not self._many:
            shared, privates = jax.tree.map(lambda leaf: leaf[None], (shared, privates))
        return State(shared, self._real(privates, axis=1))

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        mine = state if self._many else jax.tree.map(lambda leaf: leaf[0], state)
        each, axis = ((None,), 1) if self._many else ((), 0)
        self._state = State(self._put(mine.shared, P()), self._put(self._filled(mine.privates, axis), P(*each, AXIS)))

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Point:
        """One iterate, gathered from all devices."""
        w, parts = jax.tree.map(
            np.asarray, self._run.gather(tuple(jax.tree.map(lambda leaf: leaf[slot, row], snapshots)))
        )
        return Snapshots(w, self._real(parts, axis=0))

    def _real(self, parts: tuple[Pytree, ...], axis: int) -> tuple[Pytree, ...]:
        """Without the clients that only fill up."""
        return tuple(
            jax.tree.map(lambda leaf, n=n: leaf.take(np.arange(n), axis=axis), part)
            for part, n in zip(parts, self._sizes, strict=True)
        )

    def measure_point(
        self, metrics: dict[str, measure.Metric], point: Point
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Every process measures a point alone."""
        shown = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], point)
        return measure.evaluate(metrics, self.problem.program(), shown, np.zeros(1, np.int32))


def _fill(stack: Any, multiple: int, axis: int = 0) -> Any:
    """A multiple of so many clients: repeats of the last one, whose share in means is zero."""
    leaves = jax.tree.leaves(stack)
    missing = -leaves[0].shape[axis] % multiple if leaves else 0
    if not missing:
        return stack

    def repeated(leaf: np.ndarray) -> np.ndarray:
        last = np.take(leaf, [-1], axis=axis)
        return np.concatenate([leaf, np.repeat(last, missing, axis=axis)], axis=axis)

    filled = jax.tree.map(repeated, stack)
    if isinstance(filled, Member):
        share = np.array(filled.share)
        share[-missing:] = 0
        filled = filled._replace(share=share)
    return filled


def _place(mesh: Mesh, value: Pytree, spec: P) -> Pytree:
    """Host arrays as global ones; every process puts only what belongs on its own devices."""
    sharding = NamedSharding(mesh, spec)

    def put(leaf: Any) -> jax.Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, value)
