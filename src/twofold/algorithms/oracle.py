"""All that a method may ask about a client's data: gradients and Hessians, on samples or on everything."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from twofold.randomness import Key
from twofold.tree import Pytree


class GradientOracle(Protocol):
    """One client's gradients in the scaled space; see `twofold.problem.Oracle`."""

    count: Any
    weight: Any
    scale: Any
    capacity: int

    def sample(self, key: Key, size: int | None) -> Any:
        """Some rows, or None for all."""
        ...

    def order(self, key: Key) -> jax.Array:
        """A reshuffling of the rows."""
        ...

    def slice(self, order: jax.Array, start: Any, size: int) -> Any:
        """A batch of a reshuffling."""
        ...

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """∇_w f_m."""
        ...

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """p_m ∇_β f_m."""
        ...

    def gradients(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[Pytree, Pytree]:
        """Both."""
        ...

    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, Pytree]:
        """f_m and ∇_w f_m."""
        ...

    def value_and_gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, Pytree]:
        """f_m and p_m ∇_β f_m."""
        ...

    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> jax.Array:
        """p_m ∇²_ββ f_m as a matrix."""
        ...

    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Any = None) -> Pytree:
        """p_m ∇²_ββ f_m v."""
        ...

    def hessian_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[jax.Array, jax.Array]:
        """∇²_ww f_m and p_m ∇²_βw f_m as matrices."""
        ...

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """p_m ∇_β f_{m,j}, row by row."""
        ...
