"""Parts that methods with local steps share: rounds without coins, the batches of a round, a running average of iterates."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from twofold import randomness, tree
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.oracle import Drawn
from twofold.randomness import Key
from twofold.tree import Pytree, Scalar

__all__ = ["Average", "Plan", "batches"]


class Plan(NamedTuple):
    """The round number; there are no coins."""

    k: jax.Array


class Average(NamedTuple):
    """A running average with weights a^(−k), kept as Σ a^(K−k) x_k / S_K and S_K = Σ a^(K−k), so that nothing overflows.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.local import Average
    >>> average = Average.of_nothing(jnp.zeros(()))
    >>> for number in (1.0, 4.0):
    ...     average = average.add(jnp.asarray(number), decay=0.5)
    >>> average.mean.item(), average.total.item()
    (3.0, 1.5)
    """

    mean: Pytree
    total: jax.Array

    @classmethod
    def of_nothing(cls, like: Pytree) -> Average:
        """The average before the first iterate: `like`, with no weight yet."""
        return cls(like, jnp.zeros(()))

    def add(self, x: Pytree, decay: Scalar) -> Average:
        """The average with one more iterate: S_K = 1 + a·S_{K−1}."""
        total = 1 + decay * self.total
        return Average(tree.combine((1 - 1 / total, self.mean), (1 / total, x)), total)


def batches(
    oracle: GradientOracle, key: Key, batch: int | None, reshuffled_pass: jax.Array | None
) -> Callable[[jax.Array], Drawn | None]:
    """Return the i-th batch of a round as a function of i: fresh draws, or slices of the client's shuffled rows.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold import randomness
    >>> from twofold.algorithms.local import batches
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), tw.Clients.from_list([(np.eye(4), np.ones(4))]))
    >>> oracle = problem.program().oracle(problem.member(0))
    >>> draw = batches(oracle, randomness.of(randomness.root(0), 0), batch=2, reshuffled_pass=0)
    >>> sorted(int(j) for i in range(2) for j in draw(i).index)
    [0, 1, 2, 3]
    """
    if reshuffled_pass is None:
        return lambda i: oracle.sample(randomness.at(key, i), batch)
    order = oracle.order(randomness.at(key, reshuffled_pass))
    return lambda i: None if batch is None else oracle.slice(order, i * batch, batch)
