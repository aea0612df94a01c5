"""The only access an algorithm has to a client's data: gradients and Hessians, on a sample or on all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import jax

from twofold.randomness import Key
from twofold.tree import Pytree

__all__ = ["Drawn", "GradientOracle", "Sampled"]


Sampled: TypeAlias = Any
"""The result of `sample` or `slice` (None: all rows). Each oracle has its own type for it and accepts no other."""


class Drawn(Protocol):
    """A sample of one client's rows.

    >>> import numpy as np
    >>> import twofold as tw
    >>> from twofold import randomness
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), tw.Clients.from_list([(np.eye(2), np.ones(2))]))
    >>> oracle = problem.program().oracle(problem.member(0))
    >>> oracle.sample(randomness.of(randomness.root(0), 0), size=3).index.shape
    (3,)
    """

    @property
    def index(self) -> jax.Array:
        """The row indices."""
        ...


class GradientOracle(Protocol):
    """One client's gradients in the scaled space; see `twofold.oracle.Oracle`.

    >>> import numpy as np
    >>> import twofold as tw
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), tw.Clients.from_list([(np.eye(2), np.ones(2))]))
    >>> oracle = problem.program().oracle(problem.member(0))
    >>> oracle.gradient_beta((), np.zeros(2)).tolist()
    [-0.5, -0.5]
    """

    @property
    def count(self) -> int | jax.Array:
        """The client's number of rows."""
        ...

    @property
    def weight(self) -> float | jax.Array:
        """The client's weight p_m in means over clients."""
        ...

    @property
    def position(self) -> int | jax.Array:
        """The client's position among all clients, for hyper-parameters that differ by client."""
        ...

    @property
    def scale(self) -> float | jax.Array | None:
        """The scale s: w is s times the scaled w; None for 1."""
        ...

    @property
    def capacity(self) -> int:
        """The number of rows in memory, padding included."""
        ...

    def sample(self, key: Key, size: int | None, uniform: bool = False) -> Drawn | None:
        """Draw `size` rows with replacement, by importance unless `uniform`; a `size` of None means all rows."""
        ...

    def order(self, key: Key) -> jax.Array:
        """A random order of the rows."""
        ...

    def slice(self, order: jax.Array, start: int | jax.Array, size: int) -> Drawn:
        """The batch of `size` rows from position `start` of a shuffled order."""
        ...

    def trained_on(self, sample: Sampled, key: Key) -> Sampled:
        """The sample with a random key for dropout and the like, if the loss is a net."""
        ...

    def outward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """The user's parameters, from the algorithm's variables."""
        ...

    def inward(self, w: Pytree, beta: Pytree) -> tuple[Pytree, Pytree]:
        """The algorithm's variables, from the user's parameters."""
        ...

    def halves(self, sample: Sampled) -> tuple[Sampled, Sampled]:
        """Split a sample into two halves."""
        ...

    def plain_gradients(
        self, w: Pytree, beta: Pytree, sample: Sampled = None, of: str = "both"
    ) -> tuple[Pytree, Pytree]:
        """∇_w f_m and ∇_β f_m at the user's parameters; `of` says which of them is used."""
        ...

    def loss_gradient(self, params: Pytree, sample: Sampled = None, of: str = "w") -> Pytree:
        """∇f'_m of the loss alone, counted as a gradient of the block `of`."""
        ...

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> Pytree:
        """∇_w f_m."""
        ...

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> Pytree:
        """p_m ∇_β f_m."""
        ...

    def gradients(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> tuple[Pytree, Pytree]:
        """Both gradients, at the cost of one pass."""
        ...

    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> tuple[jax.Array, Pytree]:
        """f_m and ∇_w f_m."""
        ...

    def value_and_gradient_beta(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> tuple[jax.Array, Pytree]:
        """f_m and p_m ∇_β f_m."""
        ...

    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> jax.Array:
        """p_m ∇²_ββ f_m as a matrix."""
        ...

    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Sampled = None) -> Pytree:
        """p_m ∇²_ββ f_m v."""
        ...

    def hessian_beta_along(self, w: Pytree, beta: Pytree) -> Callable[[Pytree], Pytree]:
        """The map v ↦ p_m ∇²_ββ f_m v at one point; each call counts as one product."""
        ...

    def hessian_w(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> tuple[jax.Array, jax.Array]:
        """∇²_ww f_m and p_m ∇²_βw f_m as matrices."""
        ...

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Sampled = None) -> Pytree:
        """p_m ∇_β f_{m,j} of each row j of the sample."""
        ...
