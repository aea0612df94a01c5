"""Who takes part in which round. It is part of the common coins, so every engine and the ledger agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import randomness
from twofold.algorithms.base import Algorithm
from twofold.errors import InputError
from twofold.problem import Problem

__all__ = ["Attendance", "Participation", "Who"]

Who = int | float | Sequence[float] | NDArray[np.floating] | Callable[[int], ArrayLike]
"""A number of clients, a probability, one probability per client, or a function of the round that gives who is there."""
AT_ONCE = 1 << 22
"""Entries of a table of who takes part when that are made together."""


class Participation(NamedTuple):
    """Who takes part, and how the messages of those who do are weighted.

    With `weights="unbiased"` a client that takes part with probability q_m counts p_m/q_m: on average the mean is that of
    everyone. With `weights="normalised"` it is the mean over those present, as in FedAvg. A function of the round gives the
    numbers of the clients that take part, or a mask of them; there probabilities are not known, and weights are normalised.

    >>> import twofold as tw
    >>> tw.Participation(10, weights="normalised").who
    10
    """

    who: Who
    weights: Literal["unbiased", "normalised"] = "unbiased"


class Attendance:
    """Who takes part in each iteration of each seed, and with which factor: pure in (seed, iteration)."""

    def __init__(self, asked: Who | Participation, algorithm: Algorithm, problem: Problem, seeds: list[int]) -> None:
        _refuse(algorithm, problem)
        self._who, weights = asked if isinstance(asked, Participation) else Participation(asked)
        if weights not in ("unbiased", "normalised"):
            raise InputError(f"Participation's weights are 'unbiased' or 'normalised', got {weights!r}.")
        self._M, self._shares = problem.M, np.asarray(problem.clients.weights, float)
        self._streams = jnp.stack([randomness.attendance(randomness.root(seed)) for seed in seeds])
        self._probabilities = None if callable(self._who) else _probabilities(self._who, self._M)
        self._normalised = weights == "normalised" or callable(self._who)

    @property
    def at_once(self) -> int:
        """Iterations whose factors are made together."""
        return max(AT_ONCE // (self._M * len(self._streams)), 1)

    def present(self, k: int, count: int) -> NDArray[np.bool_]:
        """(iterations, seeds, clients): who takes part in iterations k … k+count−1."""
        if callable(self._who):
            masks = np.stack([_mask(self._who(k + i), k + i, self._M) for i in range(count)])
            return np.repeat(masks[:, None], len(self._streams), axis=1)
        numbers = jnp.int32(k) + jnp.arange(count, dtype=jnp.int32)
        if isinstance(self._who, (int, np.integer)):
            return np.asarray(_subsets(self._streams, numbers, int(self._who), self._M))
        return np.asarray(_coins(self._streams, numbers, jnp.asarray(self._probabilities)))

    def factors(self, k: int, count: int) -> NDArray[np.float64]:
        """What each client's message is multiplied with in the mean, zero for who is absent."""
        present = self.present(k, count)
        if self._probabilities is not None and not self._normalised:
            return present / self._probabilities
        total = present @ self._shares
        return present / np.where(total > 0, total, 1)[..., None]


def _refuse(algorithm: Algorithm, problem: Problem) -> None:
    if not algorithm.works_with_some:
        raise InputError(
            f"{algorithm.name} needs every client in every round: with some absent its control variates or momentum would be "
            "wrong, and it would stop short of the optimum. Use lsgd or pfedme with participation=, or leave it out."
        )
    if not problem.has_shared:
        raise InputError(f"participation= is about rounds, but {problem.objective.name} shares nothing and has none.")


def _probabilities(who: Who, clients: int) -> NDArray[np.float64]:
    """q_m of every client."""
    if isinstance(who, (bool, np.bool_)):
        raise InputError(f"participation is a number of clients, a probability or one per client, got {who!r}.")
    if isinstance(who, (int, np.integer)):
        if not 1 <= who <= clients:
            raise InputError(f"participation={who} clients, but there are {clients}: choose from 1 to {clients}.")
        return np.full(clients, who / clients)
    found = np.asarray(who, float)
    if found.ndim and found.shape != (clients,):
        raise InputError(
            f"participation has {found.size} probabilities, but there are {clients} clients: give one for each."
        )
    wrong = np.flatnonzero(~((found > 0) & (found <= 1)))
    if wrong.size:
        where = f" of client {wrong[0]}" if found.ndim else ""
        raise InputError(f"The probability of taking part{where} must be in (0, 1], got {found.ravel()[wrong[0]]}.")
    return np.broadcast_to(found, (clients,))


def _mask(found: ArrayLike, k: int, clients: int) -> NDArray[np.bool_]:
    """A mask from what the user's function gave for round k."""
    array = np.asarray(found)
    if array.dtype == bool and array.shape == (clients,):
        return array
    mask = np.zeros(clients, bool)
    whole = array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer))
    if not whole or np.any((array < 0) | (array >= clients)):
        raise InputError(
            f"participation's function gave {found!r} for round {k}: give the numbers (0 to {clients - 1}) of the clients that "
            f"take part, or a mask of {clients}."
        )
    mask[array.astype(int)] = True
    return mask


@partial(jax.jit, static_argnums=(2, 3))
def _subsets(streams: jax.Array, numbers: jax.Array, size: int, everyone: int) -> jax.Array:
    def of(k: jax.Array, stream: jax.Array) -> jax.Array:
        return randomness.subset(randomness.of(stream, k), size, everyone)

    return jax.vmap(jax.vmap(of, (None, 0)), (0, None))(numbers, streams)


@jax.jit
def _coins(streams: jax.Array, numbers: jax.Array, probabilities: jax.Array) -> jax.Array:
    def of(k: jax.Array, stream: jax.Array) -> jax.Array:
        return randomness.coins(randomness.of(stream, k), probabilities)

    return jax.vmap(jax.vmap(of, (None, 0)), (0, None))(numbers, streams)
