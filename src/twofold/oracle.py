"""One client as an algorithm sees it: its rows, samples of them, and gradients in the variables that algorithms work on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.curvature import real_weight
from twofold.losses import Rows
from twofold.objectives.base import Objective
from twofold.randomness import Key
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["Member", "Oracle", "Program", "Sample", "weighted_mean"]


Entry = jax.Array | np.ndarray | np.generic
"""A number, or one for each of many clients; on the device or on the host."""


class Sample(NamedTuple):
    """Some of a client's rows, with their weights in the mean."""

    index: jax.Array
    weight: jax.Array


class Member(NamedTuple):
    """One client's data as the engines hold it, or, with a leading axis, the data of many clients."""

    x: Pytree
    y: Pytree
    count: Entry
    weight: Entry  # p_m
    position: Entry  # its number among all clients, which its random stream is derived from
    own: Pytree
    share: Entry  # its weight in means over clients: p_m, or zero for a copy that only fills up a shard

    @property
    def capacity(self) -> int:
        """The number of one client's rows, padding included."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def rows(self, sample: Sample | None = None) -> Rows:
        """One client's rows, or a sample of them, as losses see them.

        Features that are kept in fewer bits are widened here to the run's precision, after a sample is taken, so that only
        its rows are.
        """
        if sample is None:
            return Rows(tree.cast(self.x), self.y, real_weight(self.capacity, self.count))
        x, y = jax.tree.map(lambda leaf: leaf[sample.index], (self.x, self.y))
        return Rows(tree.cast(x), y, sample.weight)


class Oracle:
    """One client's gradients, on a sample or (sample None) on all of its rows.

    `gradient_w` is ∇_w f_m(s·w, β_m), whose mean over clients is the w-block of ∇F. `gradient_beta` is p_m ∇_β f_m, the
    β_m-block of ∇F itself (p_m = 1/M by default): algorithms never write that 1/M, so they cannot drop it.
    """

    def __init__(self, objective: Objective, variables: Variables, member: Member) -> None:
        self._objective, self._variables, self._member = objective, variables, member
        self.count, self.weight, self.position = member.count, member.weight, member.position
        self.scale = 1.0 if variables.scale is None else variables.scale
        self.capacity = member.capacity

    def sample(self, key: Key, size: int | None) -> Sample | None:
        """`size` rows drawn uniformly with replacement; None for all rows."""
        if size is None:
            return None
        return Sample(randomness.rows(key, self.count, size), jnp.full((size,), 1.0 / size))

    def order(self, key: Key) -> jax.Array:
        """A reshuffling of this client's own rows (padding, if any, comes last)."""
        return randomness.shuffle(key, self.count, self.capacity)

    def slice(self, order: jax.Array, start: Any, size: int) -> Sample:
        """The rows at start … start+size−1 of a reshuffling; the last, shorter batch has only its own rows."""
        place = start + jnp.arange(size)
        real = place < self.count
        weight = real.astype(jnp.result_type(float)) / jnp.maximum(jnp.sum(real), 1)
        return Sample(order[jnp.minimum(place, self.count - 1)], weight)

    def value(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> jax.Array:
        """f_m(s·w, β_m)."""
        return self._objective.value(self._variables.w(w), beta, self._member.rows(sample), self._member.own)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """∇_w f_m(s·w, β_m)."""
        return jax.grad(self.value, argnums=0)(w, beta, sample)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_m(s·w, β_m)."""
        return tree.scale(self.weight, jax.grad(self.value, argnums=1)(w, beta, sample))

    def gradients(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[Pytree, Pytree]:
        """Both at once, for the price of one pass."""
        of_w, of_beta = jax.grad(self.value, argnums=(0, 1))(w, beta, sample)
        return of_w, tree.scale(self.weight, of_beta)

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_{m,j} for each row j of the sample, or of all rows (padding included, for whoever masks it)."""
        index = jnp.arange(self.capacity) if sample is None else sample.index
        alone = jnp.ones((1,))
        return jax.vmap(lambda j: self.gradient_beta(w, beta, Sample(j[None], alone)))(index)


class Program(NamedTuple):
    """What a compiled run works on: the objective, the change of variables, and each bucket's clients."""

    objective: Objective
    variables: Variables
    stacks: tuple[Member, ...]

    def oracle(self, member: Member) -> Oracle:
        """One client's oracle."""
        return Oracle(self.objective, self.variables, member)

    def values(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[jax.Array]:
        """f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).value(w, beta), parts)

    def gradients_w(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[Pytree]:
        """∇_w f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).gradient_w(w, beta), parts)

    def gradients_beta(self, w: Pytree, parts: tuple[Pytree, ...]) -> list[Pytree]:
        """p_m ∇_β f_m of every client, bucket by bucket."""
        return self._of_each(lambda member, beta: self.oracle(member).gradient_beta(w, beta), parts)

    def mean(self, values: list[Pytree]) -> Pytree:
        """Σ_m p_m v_m."""
        return weighted_mean([stack.share for stack in self.stacks], values)

    def _of_each(self, function: Any, parts: tuple[Pytree, ...]) -> list[Pytree]:
        return [jax.vmap(function)(stack, part) for stack, part in zip(self.stacks, parts, strict=True)]


def weighted_mean(shares: list[jax.Array], values: list[Pytree]) -> Pytree:
    """Σ_m p_m v_m, in client order, from each bucket's shares and values: the one mean over clients that every engine takes."""

    def total(share: jax.Array, leaf: jax.Array) -> jax.Array:
        # A product and a sum, not a dot: under vmap over seeds a dot would first have to transpose.
        return jnp.sum(share.reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf, axis=0)

    totals = [
        jax.tree.map(lambda leaf, share=share: total(share, leaf), value)
        for share, value in zip(shares, values, strict=True)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *totals)
