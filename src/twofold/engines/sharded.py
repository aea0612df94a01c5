"""Many devices, many processes: the clients are dealt out over all devices, and only means cross between them.

The loop is `simulate`'s own, inside `shard_map`: each device advances its clients, and one `psum` adds up the weighted
means of their messages. On CPUs a device's clients take turns inside an iteration, as many at a time as a cache holds, and
weights are kept transposed until they are reported. A bucket whose clients do not divide evenly over devices and turns is
filled up with repeats that count for nothing. Several processes (`jax.distributed.initialize`) make one mesh; each holds only
its own clients on its devices.
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

from twofold import machine, randomness, tree
from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.engines import layout, memory
from twofold.engines.base import Engine, Snapshots
from twofold.engines.simulate import CAPACITY, State, advance, client_streams, first_state, repeat_state, report
from twofold.problem import Member, Problem

AXIS = "clients"


def _total(mean: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, AXIS), mean)


class _Programs(NamedTuple):
    """The compiled parts of a run: one set for all runs over the same devices with as many seeds and slots."""

    streams: Callable
    begin: Callable
    advance: Callable
    show: Callable
    gather: Callable


@cache
def _programs(mesh: Mesh, seeds: int, slots: int, turns: tuple[int, ...] | None, transposed: bool) -> _Programs:
    many = seeds > 1
    each = (None,) if many else ()
    mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
    program, state, streams = (P(), P(), P(AXIS)), State(P(), P(*each, AXIS)), (P(), P(*each, AXIS))
    buffer = Snapshots(P(), P(None, *each, AXIS)) if slots else None

    def begin(algorithm: Algorithm, program: tuple, w: Any, parts: Any) -> tuple[State, Snapshots | None]:
        first = first_state(algorithm, program, w, parts)
        shape = report(algorithm, program, first)
        lead = (slots + 1, seeds) if many else (slots + 1,)
        empty = jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), shape) if slots else None
        return repeat_state(first, seeds) if many else first, empty

    def upright(w: Any, parts: tuple) -> tuple[Any, tuple]:
        return layout.swapped(w, parts) if transposed else (w, parts)

    return _Programs(
        streams=jax.jit(
            mapped(lambda keys, stacks: client_streams(keys, stacks, many), in_specs=(P(), P(AXIS)), out_specs=streams)
        ),
        begin=jax.jit(mapped(begin, in_specs=(P(), program, P(), P(AXIS)), out_specs=(state, buffer))),
        advance=jax.jit(
            mapped(
                partial(advance, many=many, total=_total, turns=turns),
                in_specs=(P(), program, state, buffer, streams, P(), P(), P()), out_specs=(state, buffer),
            ),
            donate_argnums=(2, 3),
        ),
        show=jax.jit(mapped(report, in_specs=(P(), program, state), out_specs=Snapshots(P(), P(*each, AXIS)))),
        gather=jax.jit(upright, out_shardings=NamedSharding(mesh, P())),
    )  # fmt: skip


class Sharded(Engine):
    """All clients of all seeds of one run, over all devices of all processes."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Any, slots: int) -> None:
        self.algorithm, self.problem, self.slots = tree.cast(algorithm), problem, slots
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self._sizes = [len(stack.count) for stack in problem.host_stacks]
        self._many = len(seeds) > 1
        most = [-(-size // self.mesh.size) for size in self._sizes]  # clients of a bucket on one device
        self.turns = memory.turns(memory.need(self.algorithm, problem), most, len(seeds))
        self._transposed = machine.on_cpu() and layout.transposable(problem)
        place = partial(_place, self.mesh)
        stacks = place(self._filled(problem.host_stacks), P(AXIS))
        objective = layout.turned(problem.objective) if self._transposed else problem.objective
        self._program = (place(objective, P()), place(problem.traced_scale, P()), stacks)
        # For metrics: who only fills up has no gradient either. (Methods may divide by a weight, so there it stays.)
        self.program = (*self._program[:2], tuple(stack._replace(weight=stack.share) for stack in stacks))
        self.algorithm = place(self.algorithm, P())
        w, beta = jax.tree.map(np.asarray, start)
        w, parts = layout.swapped(w, problem.split(beta)) if self._transposed else (w, problem.split(beta))
        keys = np.stack([np.asarray(randomness.root(seed)) for seed in seeds])
        self._run = _programs(self.mesh, len(seeds), slots, self.turns, self._transposed)
        self._streams = self._run.streams(place(keys if self._many else keys[0], P()), stacks)
        self.state, self._buffer = self._run.begin(
            self.algorithm, self._program, place(w, P()), place(self._filled(parts), P(AXIS))
        )

    def _filled(self, stacks: tuple) -> tuple:
        """Every bucket with as many clients for each turn of each device."""
        turns = self.turns or (1,) * len(stacks)
        return tuple(_fill(stack, self.mesh.size * n) for stack, n in zip(stacks, turns, strict=True))

    def advance(self, k: int, count: int, slots: np.ndarray) -> Snapshots:
        """See `Simulate.advance`; what it gives is for `measure` and `fetch`, which know how weights are kept here."""
        padded = np.full(CAPACITY, self.slots, np.int32)
        padded[:count] = slots
        self.state, self._buffer = self._run.advance(
            self.algorithm, self._program, self.state, self._buffer, self._streams, np.int32(k), np.int32(count), padded
        )
        # On CPUs, programs with collectives must not queue up: their threads can wait for each other for ever.
        jax.block_until_ready(self.state)
        if self._buffer is None:
            return jax.tree.map(
                lambda leaf: leaf[None, None], self._run.show(self.algorithm, self._program, self.state)
            )
        return self._buffer if self._many else jax.tree.map(lambda leaf: leaf[:, None], self._buffer)

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: Snapshots, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """See `Engine.measure`; the built-in metrics are the same for transposed weights, all others get the user's."""
        if self._transposed:
            built_in = measure.BUILT_IN.values()
            metrics = {name: metric if metric in built_in else _Upright(metric) for name, metric in metrics.items()}
        return super().measure(metrics, snapshots, index)

    def show(self, w: Any, parts: tuple[Any, ...]) -> tuple[tuple, Snapshots]:
        """One iterate as a snapshot that every process holds alone, with the program that evaluates it there."""
        here = (self.problem.objective, self.problem.traced_scale, self.problem.stacks)
        return here, jax.tree.map(lambda leaf: leaf[None, None], Snapshots(w, parts))

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Snapshots:
        """One iterate, gathered from all devices, without the clients that only fill up."""
        w, parts = jax.tree.map(np.asarray, self._run.gather(*jax.tree.map(lambda leaf: leaf[slot, row], snapshots)))
        return Snapshots(
            w,
            tuple(jax.tree.map(lambda leaf, n=n: leaf[:n], part) for part, n in zip(parts, self._sizes, strict=True)),
        )


class _Upright(NamedTuple):
    """A metric that sees weights as the user has them, of snapshots and a program in which they are transposed."""

    metric: measure.Metric

    def __call__(self, program: tuple, w: Any, parts: tuple) -> jax.Array:
        """The metric of one iterate."""
        return self.metric((layout.turned(program[0], False), *program[1:]), *layout.swapped(w, parts))


def _fill(stack: Any, multiple: int) -> Any:
    """A multiple of so many clients: repeats of the last one, whose share in means is zero."""
    leaves = jax.tree.leaves(stack)
    missing = -len(leaves[0]) % multiple if leaves else 0
    if not missing:
        return stack
    filled = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]), stack)
    if isinstance(filled, Member):
        share = np.array(filled.share)
        share[-missing:] = 0
        filled = filled._replace(share=share)
    return filled


def _place(mesh: Mesh, value: Any, spec: P) -> Any:
    """Host arrays as global ones; every process puts only what belongs on its own devices."""
    sharding = NamedSharding(mesh, spec)

    def one(leaf: Any) -> jax.Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(one, value)
