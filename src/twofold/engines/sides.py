"""The two sides of a run by messages: a client, and the server. They pass arrays to each other and nothing else.

The engine `messages` has all of them in one process; a federation (`twofold.federation`) has each on a machine of its own and
takes it from one message to the next in one compiled program (`turn`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Message, Plan
from twofold.errors import ContractError
from twofold.oracle import Member, Oracle, Program, Sample
from twofold.problem import Problem
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["ClientSide", "CountingOracle", "Packet", "ServerSide", "Turn", "mean_of", "pack", "unpack"]

Packet = list[np.ndarray]
"""The arrays of those parts of a message that are sent."""


class _Question(NamedTuple):
    """What an oracle is asked: at which parameters, on which rows, and which gradient is wanted (both, if nothing is said)."""

    w: Pytree = ()
    beta: Pytree = ()
    sample: Sample | None = None
    of: str = "both"


Price = Callable[[_Question], tuple[int, int]]
"""The gradients of a row, in w and in β, that an answer counts as."""


def _plain(name: str) -> Any:
    """The oracle's method of this name, which costs nothing."""

    def method(self: CountingOracle, *arguments: Any, **named: Any) -> Any:
        return getattr(self.oracle, name)(*arguments, **named)

    return method


def _counted(name: str, price: Price) -> Any:
    """The oracle's method of this name, compiled and counted."""
    signature = inspect.signature(getattr(Oracle, name))

    def method(self: CountingOracle, *arguments: Any, **named: Any) -> Any:
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        asked = dict(list(bound.arguments.items())[1:])
        question = _Question(**{field: asked[field] for field in _Question._fields if field in asked})
        rows = self.count if question.sample is None else int(np.count_nonzero(np.asarray(question.sample.weight)))
        of_w, of_beta = price(question)
        self.evaluated_w += rows * of_w
        self.evaluated_beta += rows * of_beta
        asked.pop("of", None)
        return _gradient(name, *self.compiled[0][:2], self.compiled[1], *asked.values())

    return method


def _in_blocks(of_w: int, of_beta: int) -> Price:
    """So many gradients in each block, none in an empty one."""
    return lambda asked: (of_w * (tree.size(asked.w) > 0), of_beta * (tree.size(asked.beta) > 0))


def _that_are_used(asked: _Question) -> tuple[int, int]:
    return _in_blocks(int(asked.of != "beta"), int(asked.of != "w"))(asked)


class CountingOracle:
    """An oracle that counts the single-row gradients it is really asked for; its own computations are compiled.

    A value comes with its gradient, a Hessian counts as one gradient for each column, and its product with a vector as one.
    """

    sample, order, slice = _plain("sample"), _plain("order"), _plain("slice")
    trained_on, halves = _plain("trained_on"), _plain("halves")
    outward, inward = _plain("outward"), _plain("inward")
    gradient_w = _counted("gradient_w", _in_blocks(1, 0))
    gradient_beta = _counted("gradient_beta", _in_blocks(0, 1))
    gradients = _counted("gradients", _in_blocks(1, 1))
    plain_gradients = _counted("plain_gradients", _that_are_used)
    loss_gradient = _counted("loss_gradient", lambda asked: (int(asked.of == "w"), int(asked.of == "beta")))
    value_and_gradient_w = _counted("value_and_gradient_w", _in_blocks(1, 0))
    value_and_gradient_beta = _counted("value_and_gradient_beta", _in_blocks(0, 1))
    hessian_w = _counted("hessian_w", lambda asked: _in_blocks(tree.size(asked.w), tree.size(asked.w))(asked))
    hessian_beta = _counted("hessian_beta", lambda asked: (0, tree.size(asked.beta)))
    hessian_beta_times = _counted("hessian_beta_times", _in_blocks(0, 1))
    row_gradients_beta = _counted("row_gradients_beta", _in_blocks(0, 1))

    def __init__(self, problem: Problem, m: int) -> None:
        self._member, self._program = problem.member(m), problem.program()
        self.oracle = self._program.oracle(self._member)
        # Plain numbers, so that an algorithm's own arithmetic happens in Python.
        self.count, self.weight = int(self._member.count), self._member.weight
        self.scale, self.capacity, self.position = self.oracle.scale, self.oracle.capacity, m
        self.evaluated_w = self.evaluated_beta = 0

    def hessian_beta_along(self, w: Pytree, beta: Pytree) -> Callable[[Pytree], Pytree]:
        """v ↦ p_m ∇²_ββ f_m v, where every product is counted."""
        return lambda v: self.hessian_beta_times(w, beta, v)

    @property
    def compiled(self) -> tuple[Program, Member]:
        """What a compiled program makes its oracle of."""
        return self._program._replace(stacks=(), proof=None), self._member


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

    With a `salt`, which rows this client draws can be told only by those who know the salt.
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
        return jax.tree.map(lambda leaf: tree.arrays(next(arrays) if bool(flag) else leaf), zeros)

    return jax.tree.map(part_of, sends, shape)


class ServerSide:
    """The server: it sees packets and nothing else."""

    def __init__(self, algorithm: Algorithm, seed: int, w: Pytree, weights: np.ndarray) -> None:
        self._algorithm = algorithm
        self._common = randomness.common(randomness.root(seed))
        self.shared = algorithm.init(w)
        self._weights = jnp.asarray(weights, jnp.result_type(float))

    def mean(self, k: int, packets: dict[int, Packet], factors: np.ndarray | None) -> Packet:
        """The weighted mean of the clients' packets, in client order; where some are absent, relative to what is assumed of them."""
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
