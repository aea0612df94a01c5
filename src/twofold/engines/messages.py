"""Client by client, on unpadded data, with nothing but messages between the two sides.

The client of this engine is also the client of a real federation (`twofold.federation.node`), which keeps it on a disk and
takes it from one message to the next in one compiled program.

Each client is an object that holds its own data and private state; the server holds the shared state. Per iteration a
client hands over only the parts of its message that `sends` names, as arrays, and gets back the server's mean of those same
parts. Iterations in which nothing is sent are replayed by everyone alone. It is slow, it counts what really happens, and its
errors name the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Message, Plan
from twofold.engines.base import Engine, Factors, Point, Snapshots, Start, Starts, State, each_start
from twofold.errors import ContractError
from twofold.oracle import Member, Oracle, Program, Sample
from twofold.problem import Problem
from twofold.randomness import Key
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["ClientSide", "CountingOracle", "Messages", "Packet", "ServerSide", "Turn", "mean_of", "pack", "unpack"]

Packet = list[np.ndarray]
"""The arrays of those parts of a message that are sent."""


class CountingOracle:
    """An oracle that counts the single-row gradients it is really asked for; its own computations are compiled."""

    def __init__(self, problem: Problem, m: int) -> None:
        self._member, self._program = problem.member(m), problem.program()
        self._oracle = self._program.oracle(self._member)
        # Plain numbers, so that an algorithm's own arithmetic happens in Python.
        self.count, self.weight = int(self._member.count), self._member.weight
        self.scale, self.capacity, self.position = self._oracle.scale, self._oracle.capacity, m
        self.evaluated_w = self.evaluated_beta = 0

    @property
    def compiled(self) -> tuple[Program, Member]:
        """What a compiled program makes its oracle of."""
        return self._program._replace(stacks=(), proof=None), self._member

    def sample(self, key: Key, size: int | None, uniform: bool = False) -> Sample | None:
        """See `Oracle.sample`."""
        return self._oracle.sample(key, size, uniform)

    def order(self, key: Key) -> jax.Array:
        """See `Oracle.order`."""
        return self._oracle.order(key)

    def slice(self, order: jax.Array, start: Any, size: int) -> Sample:
        """See `Oracle.slice`."""
        return self._oracle.slice(order, start, size)

    def trained_on(self, sample: Sample | None, key: Key) -> Sample | None:
        """See `Oracle.trained_on`."""
        return self._oracle.trained_on(sample, key)

    def halves(self, sample: Sample | None) -> tuple[Sample | None, Sample | None]:
        """See `Oracle.halves`."""
        return self._oracle.halves(sample)

    def outward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """See `Oracle.outward`."""
        return self._oracle.outward(w, beta)

    def inward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """See `Oracle.inward`."""
        return self._oracle.inward(w, beta)

    def plain_gradients(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None, of: str = "both"
    ) -> tuple[Pytree, Pytree]:
        """See `Oracle.plain_gradients`; only what is used counts."""
        return self._call("plain_gradients", w, beta, sample, int(of != "beta"), int(of != "w"))

    def loss_gradient(self, params: Pytree, sample: Sample | None = None, of: str = "w") -> Pytree:
        """See `Oracle.loss_gradient`."""
        self._count(sample, of == "w", of == "beta")
        return _gradient("loss_gradient", *self._program[:2], self._member, params, sample)

    def _count(self, sample: Sample | None, in_w: int, in_beta: int) -> None:
        rows = self.count if sample is None else int(np.count_nonzero(np.asarray(sample.weight)))
        self.evaluated_w += rows * in_w
        self.evaluated_beta += rows * in_beta

    def _call(
        self, method: str, w: Pytree, beta: Pytree, sample: Sample | None, in_w: int, in_beta: int, *more: Pytree
    ) -> Any:
        """An answer of the oracle, counted as so many gradients of each row in w and in β."""
        self._count(sample, in_w * (tree.size(w) > 0), in_beta * (tree.size(beta) > 0))
        objective, variables = self._program[:2]
        return _gradient(method, objective, variables, self._member, w, beta, *more, sample)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """See `Oracle.gradient_w`."""
        return self._call("gradient_w", w, beta, sample, 1, 0)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """See `Oracle.gradient_beta`."""
        return self._call("gradient_beta", w, beta, sample, 0, 1)

    def gradients(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[Pytree, Pytree]:
        """See `Oracle.gradients`."""
        return self._call("gradients", w, beta, sample, 1, 1)

    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[jax.Array, Pytree]:
        """See `Oracle.value_and_gradient_w`; the value comes with the gradient."""
        return self._call("value_and_gradient_w", w, beta, sample, 1, 0)

    def value_and_gradient_beta(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None
    ) -> tuple[jax.Array, Pytree]:
        """See `Oracle.value_and_gradient_beta`; the value comes with the gradient."""
        return self._call("value_and_gradient_beta", w, beta, sample, 0, 1)

    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> jax.Array:
        """See `Oracle.hessian_beta`; it counts as one gradient for each column."""
        return self._call("hessian_beta", w, beta, sample, 0, tree.size(beta))

    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Sample | None = None) -> Pytree:
        """See `Oracle.hessian_beta_times`; a product counts as one gradient."""
        return self._call("hessian_beta_times", w, beta, sample, 0, 1, v)

    def hessian_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[jax.Array, jax.Array]:
        """See `Oracle.hessian_w`; it counts as one gradient in both blocks for each column."""
        return self._call("hessian_w", w, beta, sample, tree.size(w), tree.size(w))

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """See `Oracle.row_gradients_beta`."""
        return self._call("row_gradients_beta", w, beta, sample, 0, 1)


def _compute(method: str, objective: Any, variables: Any, member: Member, *arguments: Any) -> Any:
    return getattr(Oracle(objective, variables, member), method)(*arguments)


_gradient = jax.jit(_compute, static_argnums=0)


class Turn(NamedTuple):
    """What a client does between two messages: the states (shared, private) on its way, and the new message."""

    finished: tuple[Pytree, Pytree]  # after the iteration of the last message
    settled: tuple[Pytree, Pytree]  # before the iteration of the new one
    begun: Pytree  # the private state once the new message is made
    message: Message


class ClientSide:
    """One client: its data, its private state, its own copy of the shared state, its own random stream.

    With a `salt`, only who knows it can tell which rows this client draws.
    """

    def __init__(
        self, algorithm: Algorithm, problem: Problem, m: int, seed: int, w: Pytree, beta: Pytree, salt: bytes = b""
    ) -> None:
        self.name = problem.clients.names[m]
        self._algorithm = algorithm
        self._oracle = CountingOracle(problem, m)
        key = randomness.root(seed)
        self._common, self._own = randomness.common(key), randomness.salted(randomness.private(key, m), salt)
        self.shared = algorithm.init(w)
        self.private = algorithm.init_private(w, beta, self._oracle)
        self._plan: Plan = None
        self.shape: Message = None

    def send(self, k: int) -> Packet:
        """Take iteration k up to its message; only the arrays of the parts that are sent leave this object."""
        self._plan = self._algorithm.plan(self._common, jnp.int32(k))
        key = randomness.of(self._own, jnp.int32(k))
        self.private, message = self._algorithm.client(self._plan, self.shared, self.private, self._oracle, key)
        for leaf in jax.tree.leaves(message):
            if leaf.dtype != jnp.result_type(float):
                raise ContractError(f"client {self.name!r}: a message of dtype {leaf.dtype} in iteration {k}.")
        self.shape = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), message)
        return pack(self._algorithm.sends(self._plan), message)

    def stay_away(self, k: int) -> None:
        """Take no part in iteration k: the private state stays as it is."""
        self._plan = self._algorithm.plan(self._common, jnp.int32(k))

    def receive(self, packet: Packet, shape: Message, present: bool = True) -> None:
        """Finish the iteration with the mean of what was sent: replay the server's step, then one's own."""
        mean = unpack(self._algorithm.sends(self._plan), shape, packet)
        self.shared = self._algorithm.server(self._plan, self.shared, mean)
        if present:
            self.private = self._algorithm.receive(self._plan, self.shared, self.private, self._oracle)

    def turn(self, k: int, mean: Message, t: int) -> Turn:
        """From the message of iteration k (−1: none yet) to that of t, as one compiled program; nothing here changes.

        Iteration k is finished with its mean, the silent ones in between are done alone, and t is begun.
        """
        program, member = self._oracle.compiled
        times = jnp.int32(k), jnp.int32(t)
        return _turn(self._algorithm, program, member, self._common, self._own, *times, self.shared, self.private, mean)

    def value(self, shared: Pytree, private: Pytree) -> float:
        """This client's own loss f_m at some states."""
        w, beta = self._algorithm.model(shared), self._algorithm.personal(private)
        program, member = self._oracle.compiled
        return float(_gradient("value", program.objective, program.variables, member, w, beta, None))

    def gradients(self, shared: Pytree, private: Pytree) -> tuple[tuple[Pytree, Pytree], tuple[Pytree, Pytree]]:
        """∇_w f_m and p_m ∇_β f_m at some states, and the point itself, both in real variables."""
        program, member = self._oracle.compiled
        w = program.variables.w(self._algorithm.model(shared))
        beta = program.variables.beta(self._algorithm.personal(private), member.factor)
        return _gradient("gradients", program.objective, Variables(), member, w, beta, None), (w, beta)

    def personal(self) -> Pytree:
        """This client's β: for the experimenter's eyes, not for the server's."""
        return self._algorithm.personal(self.private)

    @property
    def evaluated(self) -> tuple[int, int]:
        """Single-row gradients really evaluated, in w and in β."""
        return self._oracle.evaluated_w, self._oracle.evaluated_beta


@jax.jit
def _turn(
    algorithm: Algorithm, program: Program, member: Member, common: jax.Array, own: jax.Array, k: jax.Array,
    t: jax.Array, shared: Pytree, private: Pytree, mean: Message,
) -> Turn:  # fmt: skip
    """See `ClientSide.turn`; k and t are data, so nothing compiles again."""
    oracle = program.oracle(member)

    def finish(plan: Plan, state: tuple[Pytree, Pytree], mean: Message) -> tuple[Pytree, Pytree]:
        after = algorithm.server(plan, state[0], mean)
        return after, algorithm.receive(plan, after, state[1], oracle)

    def alone(i: jax.Array, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
        plan = algorithm.plan(common, i)
        moved, message = algorithm.client(plan, *state, oracle, randomness.of(own, i))
        return finish(plan, (state[0], moved), tree.zeros(message))

    before = (shared, private)
    finished = jax.lax.cond(
        k >= 0, lambda: finish(algorithm.plan(common, k), before, mean), lambda: tree.arrays(before)
    )
    settled = jax.lax.fori_loop(k + 1, t, alone, finished)
    now, mine = settled
    begun, message = algorithm.client(algorithm.plan(common, t), now, mine, oracle, randomness.of(own, t))
    return Turn(finished, settled, begun, message)


@jax.jit
def _serve(
    algorithm: Algorithm, common: jax.Array, k: jax.Array, t: jax.Array, shared: Pytree, mean: Message
) -> Pytree:
    """The shared state from iteration k, finished with its mean, through silent ones up to t."""

    def alone(i: jax.Array, shared: Pytree) -> Pytree:
        return algorithm.server(algorithm.plan(common, i), shared, tree.zeros(mean))

    after = jax.lax.cond(
        k >= 0, lambda: algorithm.server(algorithm.plan(common, k), shared, mean), lambda: tree.arrays(shared)
    )
    return jax.lax.fori_loop(k + 1, t, alone, after)


def pack(sends: Message, message: Message) -> Packet:
    """The arrays of those parts of a message that are sent."""
    flags = [bool(flag) for flag in sends]
    return [
        np.asarray(leaf) for flag, part in zip(flags, message, strict=True) if flag for leaf in jax.tree.leaves(part)
    ]


def unpack(sends: Message, shape: Message, packet: Packet) -> Message:
    """A whole message from its sent parts; the others are zero."""
    arrays = iter(packet)

    def part_of(flag: jax.Array, zeros: Pytree) -> Pytree:
        return jax.tree.map(lambda leaf: jnp.asarray(next(arrays) if bool(flag) else leaf), zeros)

    return jax.tree.map(part_of, sends, shape)


class ServerSide:
    """The server: it sees packets and nothing else."""

    def __init__(self, algorithm: Algorithm, seed: int, w: Pytree, weights: np.ndarray) -> None:
        self._algorithm = algorithm
        self._common = randomness.common(randomness.root(seed))
        self.shared = algorithm.init(w)
        self._weights = jnp.asarray(weights, jnp.result_type(float))

    def mean(self, k: int, packets: dict[int, Packet], factors: np.ndarray | None) -> Packet:
        """The weighted mean of the clients' packets, in client order; around what absent ones say, where some are absent."""
        here = sorted(packets)
        weights = self._weights[np.array(here, int)]
        if factors is None:
            return [mean_of(weights, leaves) for leaves in zip(*(packets[m] for m in here), strict=True)]
        plan = self._algorithm.plan(self._common, jnp.int32(k))
        absent = pack(self._algorithm.sends(plan), self._algorithm.absent(plan, self.shared))
        weights = weights * jnp.asarray(factors[here], weights.dtype)
        moves = [[leaf - a for leaf, a in zip(packets[m], absent, strict=True)] for m in here]
        if not here:
            return absent
        return [a + mean_of(weights, leaves) for a, leaves in zip(absent, zip(*moves, strict=True), strict=True)]

    def finish(self, k: int, packet: Packet, shape: Message) -> None:
        """Keep the shared state in step."""
        plan = self._algorithm.plan(self._common, jnp.int32(k))
        self.shared = self._algorithm.server(plan, self.shared, unpack(self._algorithm.sends(plan), shape, packet))

    def turn(self, k: int, mean: Message, t: int) -> None:
        """Finish iteration k with its mean (−1: there is none yet), and go on to t through silent ones, in one program."""
        self.shared = _serve(self._algorithm, self._common, jnp.int32(k), jnp.int32(t), self.shared, mean)

    def model(self) -> Pytree:
        """The (scaled) w."""
        return self._algorithm.model(self.shared)


def mean_of(weights: jax.Array, leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Σ p_m x_m, in client order."""
    return np.asarray(jnp.tensordot(weights, jnp.stack(leaves), axes=1))


class _OneSeed:
    """The server and the clients of one seed's run."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seed: int, start: Start) -> None:
        w, beta = tree.cast(start)
        w, parts = problem.inward(w, problem.split(beta))
        beta = problem.join(parts)
        betas = [jax.tree.map(lambda leaf, m=m: leaf[m], beta) for m in range(problem.M)]
        self.clients = [ClientSide(algorithm, problem, m, seed, w, b) for m, b in enumerate(betas)]
        self.server = ServerSide(algorithm, seed, w, problem.clients.weights)
        self.floats = np.zeros(problem.M, np.int64)
        self.rounds = 0
        self._shape: Message = None

    def step(self, k: int, factors: np.ndarray | None) -> None:
        """One iteration of everyone who takes part."""
        present = np.ones(len(self.clients), bool) if factors is None else factors > 0
        packets = {}
        for m, client in enumerate(self.clients):
            if present[m]:
                packets[m], self._shape = client.send(k), client.shape or self._shape
            else:
                client.stay_away(k)
        sizes = {m: sum(a.size for a in packet) for m, packet in packets.items()}
        for m, size in sizes.items():
            self.floats[m] += size
        self.rounds += any(sizes.values())
        shape = self._shape
        mean = self.server.mean(k, packets, factors)
        self.server.finish(k, mean, shape)
        for client, here in zip(self.clients, present, strict=True):
            client.receive(mean, shape, bool(here))


class Messages(Engine):
    """Every client and the server of every seed as objects of their own; see the module's text."""

    buffers = False

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Starts, slots: int) -> None:
        super().__init__(algorithm, problem, slots)
        self.program: Program = problem.program()
        both = zip(seeds, each_start(start, seeds), strict=True)
        self.runs = [_OneSeed(self.algorithm, problem, seed, begun) for seed, begun in both]

    def first(self) -> Snapshots:
        """See `Engine.first`."""
        return self._kept({0: _stacked([self._report(run) for run in self.runs])})

    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> Snapshots | None:
        """See `Engine.advance`; None when no iterate was to be kept."""
        taken: dict[int, Snapshots] = {}
        for i in range(count):
            for row, run in enumerate(self.runs):
                run.step(k + i, None if factors is None else factors[i, row])
            if slots[i] < max(self.slots, 1):
                taken[int(slots[i])] = _stacked([self._report(run) for run in self.runs])
        return self._kept(taken) if taken else None

    def _kept(self, taken: dict[int, Snapshots]) -> Snapshots:
        """The iterates by slot; zeros where there is none before the last."""
        blank = tree.zeros(next(iter(taken.values())))
        return _stacked([taken.get(slot, blank) for slot in range(max(taken) + 1)])

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[slot, row]), snapshots)

    def state(self) -> State:
        """See `Engine.state`."""
        shared = _stacked([run.server.shared for run in self.runs])
        parts = [
            _stacked([_stacked(_padded([run.clients[m].private for m in positions])) for run in self.runs])
            for positions in self.problem.positions
        ]
        return jax.tree.map(np.asarray, State(shared, tuple(parts)))

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        for row, run in enumerate(self.runs):
            shared, parts = jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row]), state)
            run.server.shared = shared
            for part, positions in zip(parts, self.problem.positions, strict=True):
                for place, m in enumerate(positions):
                    run.clients[m].shared = shared
                    run.clients[m].private = jax.tree.map(
                        lambda own, leaf, i=place: leaf[i][tuple(map(slice, jnp.shape(own)))],
                        run.clients[m].private,
                        part,
                    )

    def _report(self, run: _OneSeed) -> Snapshots:
        beta = _stacked([client.personal() for client in run.clients])
        return Snapshots(run.server.model(), self.problem.split(beta))


def _stacked(pieces: list[Pytree]) -> Pytree:
    """On the host, where as many pieces as there may be need no program of their own."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *pieces)


def _padded(privates: list[Pytree]) -> list[Pytree]:
    """Private states as large as the largest, as other engines have them: a table has an entry for each of a client's rows."""
    most = jax.tree.map(lambda *leaves: tuple(np.max([jnp.shape(leaf) for leaf in leaves], axis=0)), *privates)

    def pad(leaf: Any, shape: tuple[int, ...]) -> jax.Array:
        if not shape:  # a number, such as the total weight of an average
            return jnp.asarray(leaf)
        return jnp.pad(leaf, [(0, n - have) for n, have in zip(shape, jnp.shape(leaf), strict=True)])

    return [jax.tree.map(pad, private, most) for private in privates]
