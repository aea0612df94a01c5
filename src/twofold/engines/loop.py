"""The loop over iterations, and the one step that it repeats. The engines decide how clients are laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

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
    "CAPACITY", "Carried", "Cohort", "Iteration", "Layout", "Span", "Streams", "advance", "begin", "client_streams",
    "everyones", "finish", "first_state", "in_silence", "iteration", "mean_message", "of_clients", "receive_all", "receives",
    "report", "serve", "step",
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


class Cohort(NamedTuple):
    """What each of some clients has for itself, bucket by bucket: data, private state, random stream and factor.

    A factor is the client's in the mean, 0 if it is absent; without factors, all take part.
    """

    stacks: tuple[Member, ...]
    privates: tuple[Pytree, ...]
    own: tuple[jax.Array, ...]
    factors: tuple[jax.Array, ...] | None = None

    def bucket(self, i: int) -> Cohort:
        """The clients of one bucket."""
        factors = None if self.factors is None else (self.factors[i],)
        return Cohort((self.stacks[i],), (self.privates[i],), (self.own[i],), factors)


class Carried(NamedTuple):
    """What the loop carries: the state, and the iterates (slots, seeds, …) that were kept (None: none are)."""

    state: State
    buffer: Snapshots | None


class Span(NamedTuple):
    """The iterations k … k+count−1, of many seeds or of one: for each its slot in the buffer, and its clients' factors.

    Iterates that are not to be recorded all go to the buffer's last slot, which is never read.
    """

    k: jax.Array
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count)
    slots: jax.Array
    factors: tuple[jax.Array, ...] | None


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


def iteration(
    algorithm: Algorithm, program: Program, streams: Streams, k: jax.Array, state: State,
    factors: tuple[jax.Array, ...] | None = None,
) -> tuple[Iteration, Cohort]:  # fmt: skip
    """Iteration k of a program's clients, with its plan drawn."""
    now = Iteration(k, algorithm.plan(streams.common, k), state.shared)
    return now, Cohort(program.stacks, state.privates, streams.own, factors)


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


def receive_all(algorithm: Algorithm, program: Program, now: Iteration, cohort: Cohort) -> tuple[Pytree, ...]:
    """The private states after everyone who takes part has done its `receive` of the new shared state."""
    if not receives(algorithm):
        return cohort.privates

    def receive(member: Member, private: Pytree) -> Pytree:
        return algorithm.receive(now.plan, now.shared, private, program.oracle(member))

    everyone = zip(cohort.stacks, cohort.privates, strict=True)
    received = tuple(jax.vmap(receive)(*each) for each in everyone)
    return only_present(cohort.factors, received, cohort.privates)


def mean_message(
    shares: list[jax.Array], messages: Sequence[Message], factors: tuple[jax.Array, ...] | None,
    absent: Callable[[], Message],
) -> Message:  # fmt: skip
    """Σ p_m·message_m; with partial participation Σ p_m·factor_m·(message_m − a), where a stands for an absent client's message."""
    if factors is None:
        return weighted_mean(shares, messages)
    assumed = absent()
    moves = [jax.tree.map(lambda leaf, a: leaf - a[None], message, assumed) for message in messages]
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


def everyones(algorithm: Algorithm, program: Program, now: Iteration, cohort: Cohort) -> list[tuple[Pytree, Message]]:
    """`algorithm.client` for the clients of each bucket: their new private states, and their messages."""
    client = partial(of_clients, algorithm, program.objective, program.variables, now)
    return [client(*each) for each in zip(cohort.stacks, cohort.privates, cohort.own, strict=True)]


def begin(algorithm: Algorithm, program: Program, now: Iteration, cohort: Cohort) -> tuple[tuple[Pytree, ...], Message]:
    """An iteration up to its messages: the clients' new private states, and their part of the mean message."""
    moved, messages = zip(*everyones(algorithm, program, now, cohort), strict=True)
    absent = partial(algorithm.absent, now.plan, now.shared)
    mean = mean_message([stack.share for stack in cohort.stacks], messages, cohort.factors, absent)
    return only_present(cohort.factors, moved, cohort.privates), mean


def finish(algorithm: Algorithm, program: Program, now: Iteration, cohort: Cohort, mean: Message) -> State:
    """The end of an iteration: the server's step, and what everyone does with the new shared state."""
    shared = serve(algorithm, now.plan, now.shared, mean, some=cohort.factors is not None)
    return State(shared, receive_all(algorithm, program, now._replace(shared=shared), cohort))


def in_silence(
    algorithm: Algorithm, program: Program, streams: Streams, first: ArrayLike, end: ArrayLike, state: State,
    nothing: Message,
) -> State:  # fmt: skip
    """The iterations first … end−1, in which nothing is sent: `nothing` is a message of zeros.

    Everyone does them alone: a chunk of clients, one client, or (with a program and a state without clients) the server.
    """

    def alone(k: jax.Array, state: State) -> State:
        now, cohort = iteration(algorithm, program, streams, k, state)
        privates = tuple(moved for moved, _ in everyones(algorithm, program, now, cohort))
        return finish(algorithm, program, now, cohort._replace(privates=privates), nothing)

    return jax.lax.fori_loop(first, end, alone, state)


def step(algorithm: Algorithm, program: Program, layout: Layout, now: Iteration, everyone: Cohort) -> State:
    """One iteration of all clients and the server."""

    def work(cohort: Cohort) -> tuple[tuple[Pytree, ...], Message]:
        privates, mean = begin(algorithm, program, now, cohort)
        if algorithm.may_skip_messages:
            # To begin again costs nothing: the messages of the first time are never used, and XLA merges what both times have in
            # common. So iterations that skip their messages do not compute any. (XLA does not merge calls that contain a loop of
            # local steps, so such methods declare that they always send.)
            sent = reduce(jnp.logical_or, jax.tree.leaves(algorithm.sends(now.plan)))
            mean = branch(sent, lambda: begin(algorithm, program, now, cohort)[1], partial(tree.zeros, mean))
        return privates, mean

    privates, mean = work(everyone) if layout.turns is None else in_turns(work, layout.turns, everyone)
    if layout.mesh is not None:
        mean = jax.lax.psum(mean, AXIS)
    return finish(algorithm, program, now, everyone._replace(privates=privates), mean)


def in_turns(
    work: Callable[[Cohort], tuple[tuple[Pytree, ...], Message]], turns: tuple[int, ...], everyone: Cohort
) -> tuple[tuple[Pytree, ...], Message]:
    """Like `work`, but bucket by bucket, and within a bucket by equal groups of clients one after the other."""

    def of_bucket(count: int, bucket: Cohort) -> tuple[Pytree, Message]:
        cut = jax.tree.map(lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), bucket)
        (moved,), means = jax.lax.map(work, cut)
        whole = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), moved)
        return whole, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), means)

    done = [of_bucket(count, everyone.bucket(i)) for i, count in enumerate(turns)]
    privates, means = zip(*done, strict=True)
    return privates, reduce(partial(jax.tree.map, jnp.add), means)


def advance(
    algorithm: Algorithm, program: Program, carried: Carried, streams: Streams, span: Span, *, layout: Layout,
    many: bool,
) -> Carried:  # fmt: skip
    """The iterations of a span, of one seed or of many in lock step."""
    k, count, slots, factors = span
    # A plan is pure in (stream, k): drawn here for all iterations at once, outside the loop.
    numbers = k + jnp.arange(slots.shape[0], dtype=jnp.int32)
    draw = jax.vmap(algorithm.plan, in_axes=(None, 0))
    plans = jax.vmap(draw, (0, None), 1)(streams.common, numbers) if many else draw(streams.common, numbers)

    def one_seed(
        state: State, own: tuple, plan: Plan, factors: tuple | None, k: jax.Array
    ) -> tuple[State, Snapshots | None]:
        everyone = Cohort(program.stacks, state.privates, own, factors)
        state = step(algorithm, program, layout, Iteration(k, plan, state.shared), everyone)
        return state, None if carried.buffer is None else report(algorithm, state, program.sizes)

    all_seeds = jax.vmap(one_seed, in_axes=(0, 0, 0, 0, None)) if many else one_seed

    def body(i: jax.Array, now: Carried) -> Carried:
        plan, present = jax.tree.map(lambda leaf: leaf[i], (plans, factors))
        state, shot = all_seeds(now.state, streams.own, plan, present, k + i)
        # What is kept has an axis of seeds always, so that it is handed out as it is; in the loop a single seed has none.
        kept = shot if many else jax.tree.map(partial(jnp.expand_dims, axis=0), shot)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slots[i], axis=0)
        return Carried(state, jax.tree.map(put, now.buffer, kept))

    return jax.lax.fori_loop(jnp.int32(0), count, body, carried)
