"""The change of variables between the parameters that users see and those that algorithms work on."""

from __future__ import annotations

import jax

from twofold import tree
from twofold.curvature.metric import Factor, Metric
from twofold.tree import Pytree, record, static

__all__ = ["Variables"]


@record
class Variables:
    """w = s·R_w w̃ and β_m = R_m β̃_m, with s = M^(-1/2) by default, and all R = I unless `Problem(precondition=…)` says otherwise.

    Algorithms move w̃ and β̃, in which both blocks are equally well conditioned. `by_class` says that the weights of a softmax
    model are kept as (classes, features) inside, where users have them as (features, classes).
    """

    scale: float | jax.Array | None = None  # s; None stands for 1 and saves a pass over w in every step
    metric: Metric | None = None  # R_w; every client has its own R_m
    by_class: bool = static(default=False)

    def w(self, new: Pytree) -> Pytree:
        """s·R_w w̃: where the objective is evaluated inside a program."""
        return tree.scale(self.scale, new if self.metric is None else self.metric.w(new))

    def beta(self, new: Pytree, factor: Factor | None) -> Pytree:
        """R_m β̃_m, for the factor of one client."""
        return new if self.metric is None else self.metric.beta(factor, new)

    def inward(
        self, w: Pytree, parts: tuple[Pytree, ...], factors: tuple[Factor | None, ...]
    ) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The user's w and each bucket's β as algorithms have them."""
        w, parts = tree.unscale(self.scale, self._turn(w, 2)), self._turn(parts, 3)
        if self.metric is None:
            return w, parts
        solve = jax.vmap(self.metric.beta_inverse)
        everyone = zip(factors, parts, strict=True)
        return self.metric.w_inverse(w), tuple(part if f is None else solve(f, part) for f, part in everyone)

    def outward(
        self, w: Pytree, parts: tuple[Pytree, ...], factors: tuple[Factor | None, ...]
    ) -> tuple[Pytree, tuple[Pytree, ...]]:
        """An algorithm's w̃ and each bucket's β̃ as the user has them."""
        if self.metric is not None:
            apply = jax.vmap(self.metric.beta)
            parts = tuple(part if f is None else apply(f, part) for f, part in zip(factors, parts, strict=True))
        return self._turn(self.w(w), 2), self._turn(parts, 3)

    def _turn(self, x: Pytree, weight_axes: int) -> Pytree:
        """x with its weights transposed; a bias has one axis less and stays."""
        if not self.by_class:
            return x
        return jax.tree.map(lambda leaf: leaf.swapaxes(-1, -2) if leaf.ndim == weight_axes else leaf, x)
