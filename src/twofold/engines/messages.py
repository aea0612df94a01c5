"""The honest engine: client by client, on unpadded data, with nothing but messages between the two sides.

Each client is an object that holds its own data and private state; the server holds the shared state. Per iteration a
client hands over only the parts of its message that `sends` names, as arrays of bytes, and gets back the server's mean of
those same parts. Iterations in which nothing is sent are replayed by everyone alone. It is slow, it counts what really
happens, and its errors name the client.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm
from twofold.engines.base import Engine, Snapshots
from twofold.errors import KindError
from twofold.problem import Oracle, Problem
from twofold.randomness import Key
from twofold.tree import Pytree


class CountingOracle:
    """An oracle that counts the single-row gradients it is really asked for; its own computations are compiled."""

    def __init__(self, problem: Problem, m: int) -> None:
        member = problem.member(m)
        self._member, self._problem = member, problem
        # Plain ints and floats, so that an algorithm's own arithmetic happens in Python.
        self.count, self.weight = int(member.count), member.weight
        self.scale = jnp.asarray(problem.scale, jnp.result_type(float))
        self._oracle = Oracle(problem.objective, self.scale, member)
        self.capacity = self._oracle.capacity
        self.evaluated_w = self.evaluated_beta = 0

    def sample(self, key: Key, size: int | None) -> Any:
        """See `Oracle.sample`."""
        return self._oracle.sample(key, size)

    def order(self, key: Key) -> jax.Array:
        """See `Oracle.order`."""
        return self._oracle.order(key)

    def slice(self, order: jax.Array, start: Any, size: int) -> Any:
        """See `Oracle.slice`."""
        return self._oracle.slice(order, start, size)

    def _call(self, method: str, w: Pytree, beta: Pytree, sample: Any, in_w: int, in_beta: int, *more: Pytree) -> Any:
        """An answer of the oracle, counted as so many gradients of each row in w and in β."""
        rows = self.count if sample is None else int(np.count_nonzero(np.asarray(sample.weight)))
        self.evaluated_w += rows * in_w * (tree.size(w) > 0)
        self.evaluated_beta += rows * in_beta * (tree.size(beta) > 0)
        return _gradient(method, self._problem.objective, self.scale, self._member, w, beta, *more, sample)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """See `Oracle.gradient_w`."""
        return self._call("gradient_w", w, beta, sample, 1, 0)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """See `Oracle.gradient_beta`."""
        return self._call("gradient_beta", w, beta, sample, 0, 1)

    def gradients(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[Pytree, Pytree]:
        """See `Oracle.gradients`."""
        return self._call("gradients", w, beta, sample, 1, 1)

    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, Pytree]:
        """See `Oracle.value_and_gradient_w`; the value comes with the gradient."""
        return self._call("value_and_gradient_w", w, beta, sample, 1, 0)

    def value_and_gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, Pytree]:
        """See `Oracle.value_and_gradient_beta`; the value comes with the gradient."""
        return self._call("value_and_gradient_beta", w, beta, sample, 0, 1)

    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> jax.Array:
        """See `Oracle.hessian_beta`; it counts as one gradient for each column."""
        return self._call("hessian_beta", w, beta, sample, 0, tree.size(beta))

    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Any = None) -> Pytree:
        """See `Oracle.hessian_beta_times`; a product counts as one gradient."""
        return self._call("hessian_beta_times", w, beta, sample, 0, 1, v)

    def hessian_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, jax.Array]:
        """See `Oracle.hessian_w`; it counts as one gradient in both blocks for each column."""
        return self._call("hessian_w", w, beta, sample, tree.size(w), tree.size(w))

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """See `Oracle.row_gradients_beta`."""
        return self._call("row_gradients_beta", w, beta, sample, 0, 1)


def _compute(method: str, objective: Any, scale: Any, member: Any, *arguments: Pytree) -> Any:
    return getattr(Oracle(objective, scale, member), method)(*arguments)


_gradient = jax.jit(_compute, static_argnums=0)


class ClientSide:
    """One client: its data, its private state, its own copy of the shared state, its own random stream."""

    def __init__(self, algorithm: Algorithm, problem: Problem, m: int, seed: int, w: Pytree, beta: Pytree) -> None:
        self.name = problem.clients.names[m]
        self._algorithm = algorithm
        self._oracle = CountingOracle(problem, m)
        key = randomness.root(seed)
        self._common, self._own = randomness.common(key), randomness.private(key, m)
        self._shared = algorithm.init(w)
        self._private = algorithm.init_private(w, beta, self._oracle)

    def send(self, k: int) -> list[np.ndarray] | None:
        """Take iteration k up to its message; only the leaves of the parts that are sent leave this object."""
        self._plan = self._algorithm.plan(self._common, jnp.int32(k))
        key = randomness.of(self._own, jnp.int32(k))
        self._private, message = self._algorithm.client(self._plan, self._shared, self._private, self._oracle, key)
        for leaf in jax.tree.leaves(message):
            if leaf.dtype != jnp.result_type(float):
                raise KindError(f"client {self.name!r}: a message of dtype {leaf.dtype} in iteration {k}.")
        self._shape = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), message)
        return pack(self._algorithm.sends(self._plan), message)

    def receive(self, packet: list[np.ndarray]) -> None:
        """Finish the iteration with the mean of what was sent: replay the server's step, then one's own."""
        mean = unpack(self._algorithm.sends(self._plan), self._shape, packet)
        self._shared = self._algorithm.server(self._plan, self._shared, mean)
        self._private = self._algorithm.receive(self._plan, self._shared, self._private, self._oracle)

    def personal(self) -> Pytree:
        """This client's β: for the experimenter's eyes, not for the server's."""
        return self._algorithm.personal(self._private)

    @property
    def evaluated(self) -> tuple[int, int]:
        """Single-row gradients really evaluated, in w and in β."""
        return self._oracle.evaluated_w, self._oracle.evaluated_beta


def pack(sends: Any, message: Any) -> list[np.ndarray]:
    """The arrays of those parts of a message that are sent."""
    flags = [bool(flag) for flag in sends]
    return [
        np.asarray(leaf) for flag, part in zip(flags, message, strict=True) if flag for leaf in jax.tree.leaves(part)
    ]


def unpack(sends: Any, shape: Any, packet: list[np.ndarray]) -> Any:
    """A whole message from its sent parts; the others are zero."""
    arrays = iter(packet)
    parts = [
        jax.tree.map(lambda leaf: jnp.asarray(next(arrays)), part) if bool(flag) else jax.tree.map(jnp.asarray, part)
        for flag, part in zip(sends, shape, strict=True)
    ]
    return type(shape)(*parts)


class ServerSide:
    """The server: it sees packets and nothing else."""

    def __init__(self, algorithm: Algorithm, seed: int, w: Pytree, weights: np.ndarray) -> None:
        self._algorithm = algorithm
        self._common = randomness.common(randomness.root(seed))
        self._shared = algorithm.init(w)
        self._weights = jnp.asarray(weights, jnp.result_type(float))

    def mean(self, packets: list[list[np.ndarray]]) -> list[np.ndarray]:
        """The weighted mean of the clients' packets, in client order."""
        return [
            np.asarray(jnp.tensordot(self._weights, jnp.stack(leaves), axes=1)) for leaves in zip(*packets, strict=True)
        ]

    def finish(self, k: int, packet: list[np.ndarray], shape: Any) -> None:
        """Keep the shared state in step."""
        plan = self._algorithm.plan(self._common, jnp.int32(k))
        self._shared = self._algorithm.server(plan, self._shared, unpack(self._algorithm.sends(plan), shape, packet))

    def model(self) -> Pytree:
        """The (scaled) w."""
        return self._algorithm.model(self._shared)


class _OneSeed:
    def __init__(self, algorithm: Algorithm, problem: Problem, seed: int, start: Any) -> None:
        w, beta = start
        w = tree.scale(1 / problem.scale, tree.cast(w))
        betas = [jax.tree.map(lambda leaf, m=m: leaf[m], tree.cast(beta)) for m in range(problem.M)]
        self.clients = [ClientSide(algorithm, problem, m, seed, w, b) for m, b in enumerate(betas)]
        self.server = ServerSide(algorithm, seed, w, problem.clients.weights)
        self.floats = np.zeros(problem.M, np.int64)
        self.rounds = 0

    def step(self, k: int) -> None:
        packets = [client.send(k) or [] for client in self.clients]
        sizes = np.array([sum(a.size for a in packet) for packet in packets], np.int64)
        self.floats += sizes
        self.rounds += bool(sizes.any())
        mean = self.server.mean(packets)
        self.server.finish(k, mean, self.clients[0]._shape)
        for client in self.clients:
            client.receive(mean)


class Messages(Engine):
    """Every client and the server of every seed as objects of their own; see the module's text."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], start: Any, slots: int) -> None:
        self.algorithm = tree.cast(algorithm)
        self.problem, self.slots = problem, slots
        self.program = (problem.objective, problem.traced_scale, problem.stacks)
        self.runs = [_OneSeed(self.algorithm, problem, seed, start) for seed in seeds]

    def advance(self, k: int, count: int, slots: np.ndarray) -> Any:
        """Iterations k … k+count−1; see `Simulate.advance` (None when no iterate was to be kept)."""
        taken: dict[int, Any] = {}
        for i in range(count):
            for run in self.runs:
                run.step(k + i)
            if slots[i] < max(self.slots, 1):
                shots = [self._report(run) for run in self.runs]
                taken[int(slots[i])] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *shots)
        blank = jax.tree.map(jnp.zeros_like, next(iter(taken.values()))) if taken else None
        shots = [taken.get(slot, blank) for slot in range(max(self.slots, 1))]
        return None if blank is None else jax.tree.map(lambda *leaves: jnp.stack(leaves), *shots)

    def show(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[tuple, Snapshots]:
        """One iterate as a snapshot, with the program that evaluates it."""
        return self.program, jax.tree.map(lambda leaf: leaf[None, None], Snapshots(w, parts))

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Snapshots:
        """One iterate, on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[slot, row]), snapshots)

    def _report(self, run: _OneSeed) -> Snapshots:
        w = tree.scale(self.problem.scale, run.server.model())
        beta = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[client.personal() for client in run.clients])
        return Snapshots(w, self.problem.split(beta))
