"""Client by client, on unpadded data, with nothing but messages between the two sides.

Each client is an object that holds its own data and private state; the server holds the shared state. Per iteration a
client hands over only the parts of its message that `sends` names, as arrays, and gets back the server's mean of those same
parts. Iterations in which nothing is sent are replayed by everyone alone. This engine is slow, counts what
really happens, and names the client in its errors.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.algorithms.base import Algorithm, Message
from twofold.engines.base import Engine, Factors, Point, Snapshots, Start, Starts, State, in_order, in_parts
from twofold.engines.schedule import footprint
from twofold.engines.sides import ClientSide, ServerSide
from twofold.oracle import Program
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["Messages"]


class _OneSeed:
    """The server and the clients of one seed's run."""

    def __init__(self, algorithm: Algorithm, problem: Problem, seed: int, start: Start, nothing: Message) -> None:
        w, beta = tree.cast(start)
        w, parts = problem.inward(w, problem.split(beta))
        beta = problem.join(parts)
        betas = [jax.tree.map(lambda leaf, m=m: leaf[m], beta) for m in range(problem.M)]
        self.clients = [ClientSide(algorithm, problem, m, seed, w, b) for m, b in enumerate(betas)]
        self.server = ServerSide(algorithm, seed, w, problem.clients.weights)
        self.floats = np.zeros(problem.M, np.int64)
        self.rounds = 0
        self._nothing = nothing  # a message of zeros: what everyone has of the parts that are not sent

    def step(self, k: int, factors: np.ndarray | None) -> None:
        """One iteration of everyone who takes part."""
        present = np.ones(len(self.clients), bool) if factors is None else factors > 0
        packets = {}
        for m, client in enumerate(self.clients):
            if present[m]:
                packets[m] = client.send(k)
            else:
                client.stay_away(k)
        sizes = {m: sum(a.size for a in packet) for m, packet in packets.items()}
        for m, size in sizes.items():
            self.floats[m] += size
        self.rounds += any(sizes.values())
        mean = self.server.mean(k, packets, factors)
        self.server.finish(k, mean, self._nothing)
        for client, here in zip(self.clients, present, strict=True):
            client.receive(mean, self._nothing, bool(here))


class Messages(Engine):
    """Every client and the server of every seed as objects of their own; see the module's text."""

    buffers = False

    def __init__(self, algorithm: Algorithm, problem: Problem, seeds: list[int], starts: Starts, slots: int) -> None:
        super().__init__(algorithm, problem, slots)
        self.program: Program = problem.program()
        message = footprint(self.algorithm, problem).message
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), message)
        both = zip(seeds, starts, strict=True)
        self.runs = [_OneSeed(self.algorithm, problem, seed, begun, nothing) for seed, begun in both]

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
        """The iterates by slot, with zeros in slots that were not filled."""
        blank = tree.zeros(next(iter(taken.values())))
        return _stacked([taken.get(slot, blank) for slot in range(max(taken) + 1)])

    def fetch(self, snapshots: Snapshots, slot: int, row: int) -> Point:
        """See `Engine.fetch`."""
        return jax.tree.map(lambda leaf: np.asarray(leaf[slot, row]), snapshots)

    def state(self) -> State:
        """See `Engine.state`."""
        shared = _stacked([run.server.shared for run in self.runs])
        each = [_stacked([run.clients[m].private for run in self.runs]) for m in range(self.problem.M)]
        alone = [jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], private) for private in each]
        return State(jax.tree.map(np.asarray, shared), in_order(alone, list(np.arange(self.problem.M)[:, None])))

    def restore(self, state: State) -> None:
        """See `Engine.restore`."""
        alone = list(np.arange(self.problem.M)[:, None])
        each = in_parts(state.privates, alone, [client.private for client in self.runs[0].clients], 0)
        for row, run in enumerate(self.runs):
            run.server.shared = jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row]), state.shared)
            for client, private in zip(run.clients, each, strict=True):
                client.shared = run.server.shared
                client.private = jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row, 0]), private)

    def _report(self, run: _OneSeed) -> Snapshots:
        beta = _stacked([client.personal() for client in run.clients])
        return Snapshots(run.server.model(), self.problem.split(beta))


def _stacked(pieces: list[Pytree]) -> Pytree:
    """On the host, where as many pieces as there may be need no program of their own."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *pieces)
