"""What `solve` asks of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import metrics as measure
from twofold import tree
from twofold.algorithms.base import Algorithm
from twofold.oracle import Program
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = [
    "Engine",
    "Factors",
    "Point",
    "Snapshots",
    "Start",
    "Starts",
    "State",
    "in_order",
    "in_parts",
    "length",
]


class State(NamedTuple):
    """What a run carries: the shared state, and each bucket's private states. With many seeds, each has a leading axis.

    Outside its engine (`Engine.state`), a state has an axis of seeds always, and one "bucket" of all clients in their order.
    """

    shared: Pytree
    privates: tuple[Pytree, ...]


class Snapshots(NamedTuple):
    """Recorded iterates (slots, seeds, …) as algorithms have them: w, and each bucket's β."""

    w: Pytree
    parts: tuple[Pytree, ...]


Point = Snapshots
"""One iterate: w, and each bucket's β."""
Start = tuple[Pytree, Pytree]
"""The user's w, and everyone's β with a leading client axis."""
Starts = Sequence[Start]
"""Where each seed begins."""
Factors = np.ndarray
"""(iterations, seeds, clients): the factor of each client's message in the mean; zero if the client is absent."""


def in_order(parts: Sequence[Pytree], positions: Sequence[np.ndarray]) -> tuple[Pytree]:
    """Private states (seeds, clients of a part, …) of several parts as one part of all clients, in their order.

    A table with an entry for each row of a client is as long in it as the largest client's, with zeros at the end.

    >>> in_order([np.array([[[7, 8]]]), np.array([[[5]]])], [np.array([1]), np.array([0])])[0].tolist()
    [[[5, 0], [7, 8]]]
    """
    clients = sum(map(len, positions))

    def joined(*leaves: np.ndarray) -> np.ndarray:
        most = np.max([leaf.shape[2:] for leaf in leaves], axis=0, initial=0).astype(int)
        whole = np.zeros((len(leaves[0]), clients, *most), leaves[0].dtype)
        for leaf, places in zip(leaves, positions, strict=True):
            whole[:, places, *map(slice, leaf.shape[2:])] = leaf
        return whole

    return (jax.tree.map(joined, *parts),)


def in_parts(
    whole: tuple[Pytree, ...], positions: Sequence[np.ndarray], like: Sequence[Pytree], axes: int
) -> tuple[Pytree, ...]:
    """The inverse of `in_order`, with parts as large as those of `like`, whose leaves have so many axes before a client's own.

    >>> like = np.zeros((1, 2)), np.zeros((1, 1))
    >>> [part.tolist() for part in in_parts((np.array([[[5, 0], [7, 8]]]),), [np.array([1]), np.array([0])], like, 1)]
    [[[[7, 8]]], [[[5]]]]
    """

    def cut(places: np.ndarray, leaf: np.ndarray, own: jax.Array) -> np.ndarray:
        return leaf[:, places, *map(slice, jnp.shape(own)[axes:])]

    return tuple(
        jax.tree.map(partial(cut, places), whole[0], part) for places, part in zip(positions, like, strict=True)
    )


def length(count: int, entries: int) -> int:
    """The length of a table of participants for `count` iterations, each with `entries` entries: `count`, rounded up.

    Rounding up to a power of two, and to 256 unless that takes a lot of memory, leaves few lengths and so few programs to compile.

    >>> length(5, entries=3), length(5, entries=10**6)
    (256, 8)
    """
    least = min(256, max((1 << 22) // entries, 1))
    return 1 << (max(count, least) - 1).bit_length()


class Engine(ABC):
    """All clients of all seeds of one run, advanced iteration by iteration.

    Engines differ in where the clients are and in how many work at a time. The iterates are the same.
    """

    keeps: ClassVar[bool] = True
    """Whether the engine can keep several iterates of several seeds; if not, it runs one seed and shows its last iterate only."""
    buffers: ClassVar[bool] = True
    """Whether snapshots that one call kept survive the next call; if not, every stretch ends at a record."""
    program: Program
    """What iterates are measured with."""

    def __init__(self, algorithm: Algorithm, problem: Problem, slots: int) -> None:
        self.algorithm, self.problem, self.slots = tree.cast(algorithm), problem, slots

    @abstractmethod
    def first(self) -> Any:
        """What `measure` and `fetch` look at before the first iteration, with the starting point in slot 0."""

    @abstractmethod
    def advance(self, k: int, count: int, slots: np.ndarray, factors: Factors | None = None) -> Any:
        """Iterations k … k+count−1; slots[i] is where all seeds' iterates k+i are kept (`self.slots`: nowhere).

        Returns what `measure` and `fetch` look at. Without slots that is the state at the end.
        """

    @abstractmethod
    def state(self) -> State:
        """The whole state, on the host, in the one form that all engines share."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a state that any engine's `state` returned."""

    @abstractmethod
    def fetch(self, snapshots: Any, slot: int, row: int) -> Point:
        """A copy of one iterate, which no later iteration changes."""

    def wait(self) -> None:  # noqa: B027  (a hook: some engines never run ahead of the caller)
        """Block until everything that was asked for is computed."""

    def measure(
        self, metrics: dict[str, measure.Metric], snapshots: Any, index: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Every metric of the snapshots at the flat (slot, seed) positions `index`, and ‖(w, β)‖² of each."""
        return measure.evaluate(metrics, self.program, snapshots, index)
