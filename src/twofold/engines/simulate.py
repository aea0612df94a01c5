"""The fast engine: vmap over clients, one loop over iterations, everything compiled, many seeds at once.

Seeds advance in lock step. Iterates that are to be recorded are kept in slots on the device and evaluated together
afterwards, since a metric of many iterates at once is a matrix product where one at a time is a matrix-vector one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm
from twofold.control import branch
from twofold.engines.ahead import asked
from twofold.engines.base import Engine, Snapshots
from twofold.problem import Oracle, Problem, weighted_mean
from twofold.tree import Pytree

CAPACITY = 4096
"""Iterations that one call of the compiled loop can take (it takes any number up to that without recompiling)."""


class State(NamedTuple):
    """What one seed's run carries: the shared state, and each bucket's private states."""

    shared: Any
    privates: tuple[Any, ...]


class Simulate(Engine):
    """All clients of all seeds of one run on one device."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Any, slots: int) -> None:
        self.algorithm = tree.cast(algorithm)
        self.problem = problem
        keys = jnp.stack([randomness.root(seed) for seed in seeds])
        self._many = len(seeds) > 1
        self.program = (problem.objective, problem.traced_scale, problem.stacks)
        self._streams = client_streams(keys if self._many else keys[0], problem.stacks, self._many)
        w, beta = tree.cast(start)
        first = first_state(self.algorithm, self.program, w, problem.split(beta))
        self.state: State = repeat_state(first, len(seeds)) if self._many else first
        self.slots = slots
        shape = jax.eval_shape(report, self.algorithm, self.program, first)
        lead = (slots + 1, len(seeds)) if self._many else (slots + 1,)
        self._buffer = jax.tree.map(lambda leaf: jnp.zeros((*lead, *leaf.shape), leaf.dtype), shape) if slots else None

    def advance(self, k: int, count: int, slots: np.ndarray) -> Snapshots:
        """Iterations k … k+count−1; slots[i] is where all seeds' iterates k+i are kept (`self.slots`: nowhere).

        Without slots there is one snapshot: the state at the end.
        """
        padded = np.full(CAPACITY, self.slots, np.int32)
        padded[:count] = slots
        self.state, self._buffer = _advance(
            self.algorithm, self.program, self.state, self._buffer, self._streams, jnp.int32(k), jnp.int32(count),
            jnp.asarray(padded), many=self._many,
        )  # fmt: skip
        if self._buffer is None:
            return jax.tree.map(lambda leaf: leaf[None, None], _show(self.algorithm, self.program, self.state))
        return self._buffer if self._many else jax.tree.map(lambda leaf: leaf[:, None], self._buffer)

    def wait(self) -> None:
        """See `Engine.wait`."""
        jax.block_until_ready(self.state)

    def show(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[tuple, Snapshots]:
        """One iterate as a snapshot in slot 0, shaped like all others so that metrics compile only once."""
        if self._buffer is None:
            return self.program, jax.tree.map(lambda leaf: leaf[None, None], Snapshots(w, parts))

        def alone(buffer: jax.Array, leaf: jax.Array) -> jax.Array:
            shape = buffer.shape if self._many else (buffer.shape[0], 1, *buffer.shape[1:])
            return jnp.zeros(shape, buffer.dtype).at[0].set(leaf)

        return self.program, jax.tree.map(alone, self._buffer, Snapshots(w, parts))

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Snapshots:
        """One iterate, on the host."""
        return jax.tree.map(np.asarray, _pick(snapshots, np.int32(slot), np.int32(row)))


def repeat_state(first: State, times: int) -> State:
    """The same state for every seed."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (times, *jnp.shape(leaf))), first)


@partial(jax.jit, static_argnums=2)
def client_streams(keys: jax.Array, stacks: tuple, many: bool) -> tuple:
    """The common stream, and each client's own, derived once for the whole run."""

    def one(key: jax.Array) -> tuple:
        own = tuple(jax.vmap(lambda m: randomness.private(key, m))(stack.position) for stack in stacks)
        return randomness.common(key), own

    return jax.vmap(one)(keys) if many else one(keys)


@jax.jit
def first_state(algorithm: Algorithm, program: tuple, w: Pytree, parts: tuple[Pytree, ...]) -> State:
    """Where everyone starts, from real w and each bucket's β."""
    objective, scale, stacks = program
    scaled = tree.unscale(scale, w)

    def one(member: Any, beta: Pytree) -> Any:
        return algorithm.init_private(scaled, beta, Oracle(objective, scale, member))

    return State(algorithm.init(scaled), tuple(jax.vmap(one)(s, b) for s, b in zip(stacks, parts, strict=True)))


def report(algorithm: Algorithm, program: tuple, state: State) -> Snapshots:
    """What the algorithm would report of a state, in real w."""
    w = tree.scale(program[1], algorithm.model(state.shared))
    sizes = [len(stack.count) for stack in program[2]]  # an empty β has no axis to tell it by
    everyone = zip(state.privates, sizes, strict=True)
    return Snapshots(w, tuple(jax.vmap(algorithm.personal, axis_size=size)(private) for private, size in everyone))


_show = jax.jit(report)


@jax.jit  # array by array, outside a compiled program, it would take ten times as long for every seed
def _pick(snapshots: Snapshots, slot: Any, row: Any) -> Snapshots:
    return jax.tree.map(lambda leaf: leaf[slot, row], snapshots)


def alone(mean: Any) -> Any:
    """The mean over all clients where all are here."""
    return mean


def step(
    algorithm: Algorithm,
    program: tuple,
    state: State,
    plan: Any,
    own: tuple,
    k: Any,
    total: Callable[[Any], Any] = alone,
    turns: tuple[int, ...] | None = None,
) -> State:
    """One iteration of all clients and the server; `total` adds up the means of clients that are elsewhere.

    `own` are each bucket's streams, and the rows drawn ahead from them.
    `turns` says in how many turns each bucket's clients do their part of it; by default all are at work at once.
    """
    objective, scale, stacks = program

    def client(member: Any, private: Any, own: tuple) -> Any:
        words, ahead = own
        oracle = Oracle(objective, scale, member)
        return algorithm.client(plan, state.shared, private, oracle, randomness.of(words, k, ahead))

    def work(stacks: tuple, privates: tuple, own: tuple) -> tuple[tuple, Any]:
        """The new private states of these clients, and their share of the mean message."""
        everyone = list(zip(stacks, privates, own, strict=True))
        if not algorithm.silent:
            moved = [jax.vmap(client)(*each) for each in everyone]
            return tuple(private for private, _ in moved), weighted_mean(stacks, [message for _, message in moved])
        # Apart, so that a silent iteration neither writes nor reads a message of zeros for every client.
        moved = tuple(jax.vmap(lambda *each: client(*each)[0])(*each) for each in everyone)

        def speak() -> Any:
            return weighted_mean(stacks, [jax.vmap(lambda *each: client(*each)[1])(*each) for each in everyone])

        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(speak))
        speaks = reduce(jnp.logical_or, jax.tree.leaves(algorithm.sends(plan)))
        return moved, branch(speaks, speak, lambda: nothing)

    if turns is None:
        privates, mean = work(stacks, state.privates, own)
    else:
        buckets = zip(turns, stacks, state.privates, own, strict=True)
        privates, means = zip(*(_in_turns(work, *each) for each in buckets), strict=True)
        mean = reduce(partial(jax.tree.map, jnp.add), means)
    shared = algorithm.server(plan, state.shared, total(mean))

    def receive(member: Any, private: Any) -> Any:
        return algorithm.receive(plan, shared, private, Oracle(objective, scale, member))

    return State(shared, tuple(jax.vmap(receive)(*each) for each in zip(stacks, privates, strict=True)))


def _in_turns(work: Callable, turns: int, *bucket: Any) -> tuple[Any, Any]:
    """One bucket's `work`, done by an equal part of its clients at a time."""

    def cut(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(turns, leaf.shape[0] // turns, *leaf.shape[1:])

    (moved,), means = jax.lax.map(lambda part: work(*((x,) for x in part)), jax.tree.map(cut, bucket))
    private = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), moved)
    return private, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), means)


def advance(
    algorithm: Algorithm, program: tuple, state: State, buffer: Snapshots | None, streams: tuple, k: Any, count: Any,
    slots: jax.Array, many: bool, total: Callable[[Any], Any] = alone, turns: tuple[int, ...] | None = None,
) -> tuple[State, Snapshots | None]:  # fmt: skip
    """`count` iterations from the k-th on, of one seed or of many in lock step."""
    common, own = streams
    # A plan is pure in (stream, k): drawn here for all iterations at once, outside the loop.
    numbers = k + jnp.arange(slots.shape[0], dtype=jnp.int32)
    draw = jax.vmap(algorithm.plan, in_axes=(None, 0))
    plans = jax.vmap(draw, in_axes=(0, None), out_axes=1)(common, numbers) if many else draw(common, numbers)

    needs = asked(algorithm, program, state, plans, own, many)

    def rows(own: tuple, k: Any) -> tuple:
        """What each bucket's clients sample in iteration k."""
        everyone = zip(needs, program[2], own, strict=True)
        return tuple(jax.vmap(partial(need.draw, k=k))(stack.count, words) for need, stack, words in everyone)

    def one(state: State, own: tuple, ahead: tuple, plan: Any, k: Any) -> tuple[State, Snapshots | None]:
        state = step(algorithm, program, state, plan, tuple(zip(own, ahead, strict=True)), k, total, turns)
        return state, None if buffer is None else report(algorithm, program, state)

    all_seeds = jax.vmap(one, in_axes=(0, 0, 0, 0, None)) if many else one
    all_rows = jax.vmap(rows, in_axes=(0, None)) if many else rows

    def body(i: Any, carry: tuple) -> tuple:
        state, kept, ahead = carry
        state, shot = all_seeds(state, own, ahead, jax.tree.map(lambda leaf: leaf[i], plans), k + i)
        # The last slot takes what nobody asked for: a plain write is cheaper than a branch around a buffer, and than `.at`,
        # which would ask whether the slot is there.
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slots[i], axis=0)
        # For the next iteration; what this one draws for itself, XLA would draw again wherever it is used.
        return state, jax.tree.map(put, kept, shot), all_rows(own, k + i + 1)

    return jax.lax.fori_loop(jnp.int32(0), count, body, (state, buffer, all_rows(own, k)))[:2]


_advance = partial(jax.jit, static_argnames=("many", "total"), donate_argnums=(2, 3))(advance)
