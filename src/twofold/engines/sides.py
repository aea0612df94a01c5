"""The two sides of a run by messages: a client, and the server. They pass arrays to each other and nothing else.

The engine `messages` has all of them in one process; a federation (`twofold.federation`) has each on a machine of its own and
takes it from one message to the next in one compiled program (`turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Message, Plan
from twofold.engines.base import State
from twofold.engines.loop import Streams, everyones, finish, in_silence, iteration, mean_message
from twofold.errors import ContractError
from twofold.oracle import PRICES, Member, Program, weighted_mean
from twofold.problem import Problem
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["ClientSide", "CountingOracle", "Packet", "ServerSide", "Turn", "mean_of", "pack", "unpack"]

Packet = list[np.ndarray]
"""The arrays of those parts of a message that are sent."""


class CountingOracle:
    """An oracle that counts the single-row gradients it is really asked for; its own computations are compiled.

    A value comes with its gradient, a Hessian counts as one gradient for each column, and its product with a vector as one.
    """

    def __init__(self, problem: Problem, m: int) -> None:
        # Without everyone's stacks: nobody but this client is in its programs.
        self.program, self.member = problem.program()._replace(stacks=(), proof=None), problem.member(m)
        self.oracle = self.program.oracle(self.member)
        self.count, self.position = int(self.member.count), m  # plain numbers, so that arithmetic happens in Python
        self.evaluated_w = self.evaluated_beta = 0

    def __getattr__(self, name: str) -> Any:
        """What the oracle has by this name; a method with a price is compiled and counted."""
        return partial(self._ask, name) if name in PRICES else getattr(self.oracle, name)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        price = PRICES[method]
        bound = price.signature.bind(self.oracle, *arguments, **named)
        bound.apply_defaults()
        asked = {name: value for name, value in bound.arguments.items() if name != "self"}
        sample, of = asked.get("sample"), asked.pop("of", "both")
        rows = self.count if sample is None else int(np.count_nonzero(np.asarray(sample.weight)))
        times = rows if price.each is None else rows * tree.size(asked[price.each])
        # An empty block has no gradient.
        self.evaluated_w += times * price.w * (of != "beta" and tree.size(asked.get("w", 0.0)) > 0)
        self.evaluated_beta += times * price.beta * (of != "w" and tree.size(asked.get("beta", 0.0)) > 0)
        return _answer(method, self.program, self.member, *asked.values())

    def hessian_beta_along(self, w: Pytree, beta: Pytree) -> Callable[[Pytree], Pytree]:
        """v ↦ p_m ∇²_ββ f_m v, where every product is counted."""
        return lambda v: self.hessian_beta_times(w, beta, v)


@partial(jax.jit, static_argnums=0)
def _answer(method: str, program: Program, member: Member, *arguments: Any) -> Any:
    """What a client's oracle answers, by the name of the method that is asked."""
    return getattr(program.oracle(member), method)(*arguments)


class Turn(NamedTuple):
    """What a client does between two messages: the states (shared, private) on its way, and the new message."""

    finished: tuple[Pytree, Pytree]  # after the iteration of the last message
    settled: tuple[Pytree, Pytree]  # before the iteration of the new one
    begun: Pytree  # the private state once the new message is made
    message: Message


class _Side:
    """What the client and the server both have: the method, the common coins, and a copy of the shared state."""

    def __init__(self, algorithm: Algorithm, seed: int, w: Pytree) -> None:
        self._algorithm = algorithm
        self._common = randomness.common(randomness.root(seed))
        self.shared = algorithm.init(w)

    def _plan_of(self, k: int) -> Plan:
        return self._algorithm.plan(self._common, jnp.int32(k))

    def _replay(self, plan: Plan, packet: Packet, shape: Message) -> None:
        """The server's step, with the mean of what was sent."""
        self.shared = self._algorithm.server(plan, self.shared, unpack(self._algorithm.sends(plan), shape, packet))


class ClientSide(_Side):
    """One client: its data, its private state, its own copy of the shared state, its own random stream.

    With a `salt`, which rows this client draws can be told only by those who know the salt.
    """

    def __init__(
        self, algorithm: Algorithm, problem: Problem, m: int, seed: int, w: Pytree, beta: Pytree, salt: bytes = b""
    ) -> None:
        super().__init__(algorithm, seed, w)
        self.name = problem.clients.names[m]
        counting = CountingOracle(problem, m)
        self._oracle: Any = counting
        self._program, self._member = counting.program, counting.member
        self._own = randomness.salted(randomness.private(randomness.root(seed), m), salt)
        self.private = algorithm.init_private(w, beta, self._oracle)
        self._plan: Plan = None
        self.shape: Message = None

    def send(self, k: int) -> Packet:
        """Take iteration k up to its message; only the arrays of the parts that are sent leave this object."""
        self._plan = self._plan_of(k)
        key = randomness.of(self._own, jnp.int32(k))
        self.private, message = self._algorithm.client(self._plan, self.shared, self.private, self._oracle, key)
        for leaf in jax.tree.leaves(message):
            if leaf.dtype != jnp.result_type(float):
                raise ContractError(f"client {self.name!r}: a message of dtype {leaf.dtype} in iteration {k}.")
        self.shape = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), message)
        return pack(self._algorithm.sends(self._plan), message)

    def stay_away(self, k: int) -> None:
        """Take no part in iteration k: the private state stays as it is."""
        self._plan = self._plan_of(k)

    def receive(self, packet: Packet, shape: Message, present: bool = True) -> None:
        """Finish the iteration with the mean of what was sent: replay the server's step, then one's own."""
        self._replay(self._plan, packet, shape)
        if present:
            self.private = self._algorithm.receive(self._plan, self.shared, self.private, self._oracle)

    def turn(self, k: int, mean: Message, t: int) -> Turn:
        """From the message of iteration k (−1: none yet) to that of t, as one compiled program; nothing here changes.

        Iteration k is finished with its mean, the silent ones in between are done alone, and t is begun.
        """
        alone, streams = self._program._replace(stacks=(self._member,)), Streams(self._common, (self._own,))
        state = State(self.shared, (self.private,))
        return _turn(self._algorithm, alone, streams, jnp.int32(k), jnp.int32(t), state, mean)

    def value(self, shared: Pytree, private: Pytree) -> float:
        """This client's own loss f_m at some states."""
        w, beta = self._algorithm.model(shared), self._algorithm.personal(private)
        return float(_answer("value", self._program, self._member, w, beta, None))

    def gradients(self, shared: Pytree, private: Pytree) -> tuple[tuple[Pytree, Pytree], tuple[Pytree, Pytree]]:
        """∇_w f_m and p_m ∇_β f_m at some states, and the point itself, both in real variables."""
        variables, plain = self._program.variables, self._program._replace(variables=Variables())
        w = variables.w(self._algorithm.model(shared))
        beta = variables.beta(self._algorithm.personal(private), self._member.factor)
        return _answer("gradients", plain, self._member, w, beta, None), (w, beta)

    def personal(self) -> Pytree:
        """This client's β: for the experimenter's eyes, not for the server's."""
        return self._algorithm.personal(self.private)

    @property
    def evaluated(self) -> tuple[int, int]:
        """Single-row gradients really evaluated, in w and in β."""
        return self._oracle.evaluated_w, self._oracle.evaluated_beta


class ServerSide(_Side):
    """The server: it sees packets and nothing else."""

    def __init__(self, algorithm: Algorithm, seed: int, w: Pytree, weights: np.ndarray) -> None:
        super().__init__(algorithm, seed, w)
        self._weights = jnp.asarray(weights, jnp.result_type(float))

    def mean(self, k: int, packets: dict[int, Packet], factors: np.ndarray | None) -> Packet:
        """The weighted mean of the clients' packets, in client order; where some are absent, with what is assumed of them."""
        if factors is None:
            return [mean_of(self._weights, leaves) for leaves in zip(*map(packets.get, sorted(packets)), strict=True)]
        plan = self._plan_of(k)
        absent = pack(self._algorithm.sends(plan), self._algorithm.absent(plan, self.shared))
        everyone = [packets.get(m, absent) for m in range(len(self._weights))]
        stacked = [jnp.stack(leaves) for leaves in zip(*everyone, strict=True)]
        present = (jnp.asarray(factors, self._weights.dtype),)
        moves = mean_message([self._weights], [stacked], present, lambda: absent)
        return [np.asarray(a + move) for a, move in zip(absent, moves, strict=True)]

    def finish(self, k: int, packet: Packet, shape: Message) -> None:
        """Keep the shared state in step."""
        self._replay(self._plan_of(k), packet, shape)

    def turn(self, k: int, mean: Message, t: int) -> None:
        """Finish iteration k with its mean (−1: there is none yet), and go on to t through silent ones, in one program."""
        self.shared = _serve(self._algorithm, self._common, jnp.int32(k), jnp.int32(t), self.shared, mean)

    def model(self) -> Pytree:
        """The (scaled) w."""
        return self._algorithm.model(self.shared)


@jax.jit
def _turn(
    algorithm: Algorithm, program: Program, streams: Streams, k: jax.Array, t: jax.Array, state: State, mean: Message
) -> Turn:
    """See `ClientSide.turn`; k and t are data, so nothing compiles again. What the client has for itself has no axis of clients."""
    own = (program.stacks, state.privates, streams.own)
    stacks, privates, own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], own)
    program, streams = program._replace(stacks=stacks), streams._replace(own=own)
    finished, settled = _settle(algorithm, program, streams, k, t, State(state.shared, privates), mean)
    ((begun, message),) = everyones(algorithm, program, *iteration(algorithm, program, streams, t, settled))
    alone = jax.tree.map(lambda leaf: leaf[0], (finished.privates[0], settled.privates[0], begun, message))
    return Turn((finished.shared, alone[0]), (settled.shared, alone[1]), *alone[2:])


@jax.jit
def _serve(
    algorithm: Algorithm, common: jax.Array, k: jax.Array, t: jax.Array, shared: Pytree, mean: Message
) -> Pytree:
    """The shared state from iteration k, finished with its mean, through silent ones up to t."""
    nobody = Program(None, None, ())  # type: ignore[arg-type]
    return _settle(algorithm, nobody, Streams(common, ()), k, t, State(shared, ()), mean)[1].shared


def _settle(
    algorithm: Algorithm, program: Program, streams: Streams, k: jax.Array, t: jax.Array, state: State, mean: Message
) -> tuple[State, State]:
    """The states after iteration k, finished with its mean (−1: there is none), and before t, with silent ones in between."""

    def finished(state: State) -> State:
        return finish(algorithm, program, *iteration(algorithm, program, streams, k, state), mean)

    after = jax.lax.cond(k >= 0, finished, tree.arrays, state)
    return after, in_silence(algorithm, program, streams, k + 1, t, after, tree.zeros(mean))


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
        return jax.tree.map(lambda leaf: tree.arrays(next(arrays) if bool(flag) else leaf), zeros)

    return jax.tree.map(part_of, sends, shape)


def mean_of(weights: jax.Array, leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Σ p_m x_m, in client order."""
    return np.asarray(weighted_mean([weights], [jnp.stack(leaves)]))
