"""Who takes part in which round. It is part of the common coins, so every engine and the ledger agree."""
# What JAX's `jit` and `vmap` give back is untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import randomness
from twofold.algorithms import REGISTRY, TRAINING, Algorithm
from twofold.curvature.clients import of_each
from twofold.engines.base import length
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.theory.stepsizes_newer import importance

__all__ = ["Attendance", "Participation", "Who", "probabilities", "refuse_some"]

Who = int | float | Sequence[float] | NDArray[np.floating] | Callable[[int], ArrayLike]
"""A number of clients, a probability, one probability per client, or a function of the round that gives who is there."""
AT_ONCE = 1 << 22
"""The most entries (iterations × seeds × clients) of a table of participants that is drawn at once."""


class Participation(NamedTuple):
    """Who takes part, and how the messages of those who do are weighted.

    With `weights="unbiased"` a client that takes part with probability q_m counts p_m/q_m: on average the mean is that of
    everyone. With `weights="normalised"` it is the mean over those present, as in FedAvg. A function of the round gives the
    numbers of the clients that take part, or a mask of them; there probabilities are not known, and weights are normalised.

    With `by="importance"` a number or a probability is that of the mean client. Clients with a large p_m L_m take part more often,
    so that `saga` converges fastest (`theory.stepsizes_newer.importance`).

    >>> import twofold as tw
    >>> tw.Participation(10, weights="normalised").who
    10
    """

    who: Who
    weights: Literal["unbiased", "normalised"] = "unbiased"
    by: Literal["uniform", "importance"] = "uniform"


class Attendance:
    """Who takes part in each iteration of each seed, and with which factor: pure in (seed, iteration)."""

    def __init__(self, asked: Who | Participation, algorithm: Algorithm, problem: Problem, seeds: list[int]) -> None:
        chosen = asked if isinstance(asked, Participation) else Participation(asked)
        refuse_some(algorithm, problem, chosen)
        self._who = chosen.who
        self._M, self._shares = problem.M, np.asarray(problem.clients.weights, float)
        self._streams = jnp.stack([randomness.attendance(randomness.root(seed)) for seed in seeds])
        self._probabilities = probabilities(chosen, problem)
        self._subset = isinstance(self._who, (int, np.integer)) and chosen.by == "uniform"
        self._normalised = chosen.weights == "normalised" or callable(self._who)

    @property
    def at_once(self) -> int:
        """Iterations whose factors are drawn together."""
        return max(AT_ONCE // (self._M * len(self._streams)), 1)

    def present(self, k: int, count: int) -> NDArray[np.bool_]:
        """(iterations, seeds, clients): who takes part in iterations k … k+count−1."""
        if callable(self._who):
            masks = np.stack([_mask(self._who(k + i), k + i, self._M) for i in range(count)])
            return np.repeat(masks[:, None], len(self._streams), axis=1)
        numbers = jnp.int32(k) + jnp.arange(length(count, self._M * len(self._streams)), dtype=jnp.int32)
        if self._subset:
            drawn = _subsets(self._streams, numbers, int(self._who), self._M)  # type: ignore[arg-type]
        else:
            drawn = _coins(self._streams, numbers, jnp.asarray(self._probabilities))
        return np.asarray(drawn)[:count]

    def factors(self, k: int, count: int) -> NDArray[np.float64]:
        """The factor of each client's message in the mean; zero if the client is absent."""
        present = self.present(k, count)
        if self._probabilities is not None and not self._normalised:
            return present / self._probabilities
        total = present @ self._shares
        return present / np.where(total > 0, total, 1)[..., None]


def refuse_some(algorithm: Algorithm, problem: Problem, chosen: Participation) -> None:
    """Say why a method or a problem cannot have some clients only in a round."""
    if chosen.weights not in ("unbiased", "normalised"):
        raise InputError(f"Participation's weights are 'unbiased' or 'normalised', got {chosen.weights!r}.")
    if not algorithm.works_with_some:
        every = {**REGISTRY, **TRAINING}.items()
        fit = [name for name, kind in every if kind.works_with_some and kind.needs in (None, problem.objective.name)]
        raise InputError(
            f"{algorithm.name} needs every client in every round: with some absent its control variates or momentum would be "
            f"wrong, and it would stop short of the optimum. Use {', '.join(fit[:-1])} or {fit[-1]} with participation=, or leave "
            "it out."
        )
    if algorithm.needs_unbiased and (callable(chosen.who) or chosen.weights == "normalised"):
        raise InputError(
            f"{algorithm.name} needs to know how probably each client takes part, and unbiased weights: give participation= a number "
            "of clients, a probability or one per client."
        )
    if not problem.has_shared:
        raise InputError(f"participation= is about rounds, but {problem.objective.name} shares nothing and has none.")


def probabilities(asked: Who | Participation, problem: Problem) -> NDArray[np.float64] | None:
    """q_m of every client, None where a function of the round says who takes part.

    >>> import numpy as np, twofold as tw
    >>> from twofold.solver.participation import Participation, probabilities
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (3 * np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.squared(l2=0.1)), clients)
    >>> probabilities(1, problem).tolist()
    [0.5, 0.5]
    >>> few, many = probabilities(Participation(0.5, by="importance"), problem)
    >>> bool(few < 0.5 < many), round(float(few + many), 6)
    (True, 1.0)
    """
    chosen = asked if isinstance(asked, Participation) else Participation(asked)
    if chosen.by not in ("uniform", "importance"):
        raise InputError(f"Participation goes by 'uniform' or 'importance', got by={chosen.by!r}.")
    if callable(chosen.who):
        if chosen.by == "importance":
            raise InputError("Participation by importance needs a number of clients or a probability, got a function.")
        return None
    found = _probabilities(chosen.who, problem.M)
    return found if chosen.by == "uniform" else _important(found, problem)


def _important(uniform: NDArray[np.float64], problem: Problem) -> NDArray[np.float64]:
    """Probabilities of the same sum, larger for clients with a large p_m L_m."""
    if np.any(uniform != uniform[0]):
        raise InputError(
            "Participation by importance chooses the probabilities itself: give one number, not one per client."
        )
    model, c = problem.objective.curvature(problem.clients), problem.constants()
    if model is None:
        raise InputError(
            f"Participation by importance needs every client's smoothness, which {problem.objective.name} over this loss does not "
            "have: give one probability per client, or take part uniformly."
        )
    each = of_each(model, problem.scale)
    return importance(c.L_w, each.L_w, each.weights, float(np.sum(uniform)), c.mu)


def _probabilities(who: Who, clients: int) -> NDArray[np.float64]:
    """q_m of every client."""
    numbers = np.asarray(who)
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1:
        raise InputError(f"participation is a number of clients, a probability or one per client, got {who!r}.")
    if isinstance(who, (int, np.integer)):
        if not 1 <= who <= clients:
            raise InputError(f"participation={who} clients, but there are {clients}: choose from 1 to {clients}.")
        return np.full(clients, who / clients)
    found = numbers.astype(float)
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
