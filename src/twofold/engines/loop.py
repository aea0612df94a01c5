"""The loop over iterations, and the one step that it repeats. The engines decide how clients are laid out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Message, Plan, turn_of
from twofold.control import branch, traced_once
from twofold.engines.base import Snapshots, State
from twofold.engines.layout import AXIS, Layout
from twofold.objectives.base import Objective
from twofold.oracle import Member, Oracle, Program, weighted_mean
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = [
    "CAPACITY", "Iteration", "Layout", "Streams", "advance", "client_streams", "finish", "first_state", "in_silence",
    "mean_message", "of_clients", "only_present", "receive_all", "receives", "report", "serve", "step",
]  # fmt: skip

CAPACITY = 4096
"""Iterations that one call of the compiled loop can take (it takes any number up to that without recompiling)."""


class Streams(NamedTuple):
    """The random streams of a run: the common one, and each bucket's clients' own."""

    common: jax.Array
    own: tuple[jax.Array, ...]


class Iteration(NamedTuple):
    """What all clients have in common in an iteration."""

    k: jax.Array
    plan: Plan
    shared: Pytree


def client_streams(key: jax.Array, positions: tuple[jax.Array, ...]) -> Streams:
    """The streams of one seed, derived once for the whole run; `positions` are the numbers of each bucket's clients."""
    own = tuple(jax.vmap(partial(randomness.private, key))(each) for each in positions)
    return Streams(randomness.common(key), own)


def first_state(algorithm: Algorithm, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> State:
    """Where everyone starts."""

    def private(member: Member, beta: Pytree) -> Pytree:
        return algorithm.init_private(w, beta, program.oracle(member))

    everyone = zip(program.stacks, parts, strict=True)
    return State(algorithm.init(w), tuple(jax.vmap(private)(*each) for each in everyone))


def report(algorithm: Algorithm, state: State, sizes: tuple[int, ...]) -> Snapshots:
    """What the algorithm would report now; `sizes` are the buckets' (an empty β has no axis to read them from)."""
    everyone = zip(state.privates, sizes, strict=True)
    betas = tuple(jax.vmap(algorithm.personal, axis_size=size)(private) for private, size in everyone)
    return Snapshots(algorithm.model(state.shared), betas)


@traced_once
def of_clients(
    algorithm: Algorithm, objective: Objective, variables: Variables, now: Iteration, stack: Member, privates: Pytree,
    streams: jax.Array,
) -> tuple[Pytree, Message]:  # fmt: skip
    """`algorithm.client` for a stack of clients: their new private states, and their messages."""

    def turn(private: Pytree, member: Member, stream: jax.Array) -> tuple[Pytree, Message]:
        oracle, key = Oracle(objective, variables, member), randomness.of(stream, now.k)
        return turn_of(algorithm, now.plan, now.shared, private, oracle, key)

    everyone = privates, stack, streams
    if len(stack.count) > 1:
        return jax.vmap(turn)(*everyone)
    # A batched loop checks at every step which clients are done; for a single client, vmap would add that cost for nothing.
    moved = turn(*jax.tree.map(lambda leaf: leaf[0], everyone))
    return jax.tree.map(lambda leaf: leaf[None], moved)


def receives(algorithm: Algorithm) -> bool:
    """Whether clients do anything with the new shared state; by default they do not."""
    return type(algorithm).receive is not Algorithm.receive


def receive_all(
    algorithm: Algorithm, program: Program, plan: Plan, state: State, factors: tuple[jax.Array, ...] | None = None
) -> State:
    """The `receive` of the new shared state by everyone who takes part."""
    if not receives(algorithm):
        return state

    def receive(member: Member, private: Pytree) -> Pytree:
        return algorithm.receive(plan, state.shared, private, program.oracle(member))

    everyone = zip(program.stacks, state.privates, strict=True)
    received = tuple(jax.vmap(receive)(*each) for each in everyone)
    return State(state.shared, only_present(factors, received, state.privates))


def mean_message(
    algorithm: Algorithm, now: Iteration, shares: list[jax.Array], messages: list[Message], factors: tuple | None
) -> Message:
    """Σ p_m·message_m; with partial participation Σ p_m·factor_m·(message_m − a), where a stands for an absent client's message."""
    if factors is None:
        return weighted_mean(shares, messages)
    absent = algorithm.absent(now.plan, now.shared)
    moves = [jax.tree.map(lambda leaf, a: leaf - a[None], message, absent) for message in messages]
    weights = [share * factor for share, factor in zip(shares, factors, strict=True)]
    return weighted_mean(weights, moves)


def only_present(factors: tuple | None, moved: tuple[Pytree, ...], before: tuple[Pytree, ...]) -> tuple[Pytree, ...]:
    """The new private states of the clients that take part; the others keep their old ones."""
    if factors is None:
        return moved

    def keep(factor: jax.Array, new: Pytree, old: Pytree) -> Pytree:
        return jax.tree.map(lambda a, b: jnp.where(factor.reshape(-1, *(1,) * (a.ndim - 1)) > 0, a, b), new, old)

    return tuple(keep(*each) for each in zip(factors, moved, before, strict=True))


def serve(algorithm: Algorithm, plan: Plan, shared: Pytree, mean: Message, some: bool) -> Pytree:
    """The server's step; parts that are not sent are zero, whatever the clients have put there.

    With `some`, only some clients took part, and `mean` is relative to what is assumed of absent clients (`algorithm.absent`).
    """
    if some:
        mean = jax.tree.map(jnp.add, algorithm.absent(plan, shared), mean)
    # One flag for each part, and a part may be a tree.
    sent = jax.tree.map(
        lambda flag, part: jax.tree.map(lambda leaf: jnp.where(flag, leaf, 0), part), algorithm.sends(plan), mean
    )
    return algorithm.server(plan, shared, sent)


def finish(
    algorithm: Algorithm, program: Program, plan: Plan, state: State, mean: Message, factors: tuple | None = None
) -> State:
    """The end of an iteration: the server's step, and what everyone does with the new shared state."""
    shared = serve(algorithm, plan, state.shared, mean, some=factors is not None)
    return receive_all(algorithm, program, plan, State(shared, state.privates), factors)


def in_silence(
    algorithm: Algorithm, program: Program, streams: Streams, first: ArrayLike, end: ArrayLike, state: State,
    nothing: Message,
) -> State:  # fmt: skip
    """The iterations first … end−1, in which nothing is sent: `nothing` is a message of zeros.

    Everyone does them alone: a chunk of clients, one client, or (with a program and a state without clients) the server.
    """
    client = partial(of_clients, algorithm, program.objective, program.variables)

    def alone(k: jax.Array, state: State) -> State:
        plan = algorithm.plan(streams.common, k)
        everyone = zip(program.stacks, state.privates, streams.own, strict=True)
        privates = tuple(client(Iteration(k, plan, state.shared), *each)[0] for each in everyone)
        return finish(algorithm, program, plan, State(state.shared, privates), nothing)

    return jax.lax.fori_loop(first, end, alone, state)


def step(
    algorithm: Algorithm, program: Program, layout: Layout, state: State, plan: Plan, own: tuple[jax.Array, ...],
    k: jax.Array, factors: tuple[jax.Array, ...] | None = None,
) -> State:  # fmt: skip
    """One iteration of all clients and the server."""
    now = Iteration(k, plan, state.shared)
    client = partial(of_clients, algorithm, program.objective, program.variables)

    def work(stacks: tuple, privates: tuple, own: tuple, factors: tuple | None) -> tuple[tuple, Message]:
        """The new private states of these clients, and their part of the mean message."""
        everyone = list(zip(stacks, privates, own, strict=True))
        moved, messages = zip(*(client(now, *each) for each in everyone), strict=True)

        def speak() -> Message:
            if algorithm.may_skip_messages:
                # Calling `client` again costs nothing: XLA merges it with the first call, and writes no message in iterations that
                # skip it. (XLA does not merge calls that contain a loop of local steps, so such methods declare that they always send.)
                spoken = [client(now, *each)[1] for each in everyone]
            else:
                spoken = list(messages)
            return mean_message(algorithm, now, [stack.share for stack in stacks], spoken, factors)

        if algorithm.may_skip_messages:
            sent = reduce(jnp.logical_or, jax.tree.leaves(algorithm.sends(plan)))
            mean = branch(sent, speak, lambda: tree.zeros(jax.eval_shape(speak)))
        else:
            mean = speak()
        return only_present(factors, moved, privates), mean

    everyone = (program.stacks, state.privates, own, factors)
    privates, mean = work(*everyone) if layout.turns is None else in_turns(work, layout.turns, *everyone)
    if layout.mesh is not None:
        mean = jax.lax.psum(mean, AXIS)
    return finish(algorithm, program, plan, State(state.shared, privates), mean, factors)


def in_turns(work: Callable, turns: tuple[int, ...], *everyone: tuple | None) -> tuple[tuple, Message]:
    """Like `work`, but bucket by bucket, and within a bucket by equal groups of clients one after the other."""

    def of_bucket(count: int, bucket: tuple) -> tuple[Pytree, Message]:
        cut = jax.tree.map(lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), bucket)
        (moved,), means = jax.lax.map(lambda part: work(*(None if x is None else (x,) for x in part)), cut)
        whole = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), moved)
        return whole, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), means)

    buckets = zip(*((None,) * len(turns) if x is None else x for x in everyone), strict=True)
    privates, means = zip(*(of_bucket(count, each) for count, each in zip(turns, buckets, strict=True)), strict=True)
    return privates, reduce(partial(jax.tree.map, jnp.add), means)


def advance(
    algorithm: Algorithm, program: Program, state: State, buffer: Snapshots | None, streams: Streams, k: jax.Array,
    count: jax.Array, slots: jax.Array, factors: tuple[jax.Array, ...] | None, *, layout: Layout, many: bool,
) -> tuple[State, Snapshots | None]:  # fmt: skip
    """`count` iterations from the k-th on, of one seed or of many in lock step.

    The iterate of iteration k+i is written to slot `slots[i]` of the buffer. Iterates that are not to be recorded all go to its last
    slot, which is never read.
    """
    # A plan is pure in (stream, k): drawn here for all iterations at once, outside the loop.
    numbers = k + jnp.arange(slots.shape[0], dtype=jnp.int32)
    draw = jax.vmap(algorithm.plan, in_axes=(None, 0))
    plans = jax.vmap(draw, (0, None), 1)(streams.common, numbers) if many else draw(streams.common, numbers)
    sizes = tuple(len(stack.count) for stack in program.stacks)

    def one_seed(state: State, own: tuple, plan: Plan, factors: Any, k: Any) -> tuple[State, Snapshots | None]:
        state = step(algorithm, program, layout, state, plan, own, k, factors)
        return state, None if buffer is None else report(algorithm, state, sizes)

    all_seeds = jax.vmap(one_seed, in_axes=(0, 0, 0, 0, None)) if many else one_seed

    def body(i: Any, carry: tuple) -> tuple:
        state, kept = carry
        plan, now = jax.tree.map(lambda leaf: leaf[i], (plans, factors))
        state, shot = all_seeds(state, streams.own, plan, now, k + i)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slots[i], axis=0)
        return state, jax.tree.map(put, kept, shot)

    return jax.lax.fori_loop(jnp.int32(0), count, body, (state, buffer))
