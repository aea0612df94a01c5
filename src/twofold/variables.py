"""The change of variables between the user's parameters and those that algorithms work on."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import jax

from twofold import tree
from twofold.curvature.metric import Factor, Metric
from twofold.tree import Pytree, record, static

__all__ = ["Variables"]


@record
class Variables:
    """w = s·R_w w̃ and β_m = R_m β̃_m, with s = M^(-1/2) by default, and all R = I unless `Problem(precondition=…)` says otherwise.

    Algorithms update w̃ and β̃, in which both blocks are equally well conditioned. `by_class` says that a softmax model's weights
    are stored internally as (classes, features); users see them as (features, classes).
    """

    scale: float | jax.Array | None = None  # s; None stands for 1, and saves a pass over w in every step
    metric: Metric | None = None  # R_w; each client holds its own R_m as its `factor`
    by_class: bool = static(default=False)

    def w(self, new: Pytree) -> Pytree:
        """s·R_w w̃, the w at which a program evaluates the objective."""
        return tree.scale(self.scale, new if self.metric is None else self.metric.w(new))

    def beta(self, new: Pytree, factor: Factor | None) -> Pytree:
        """R_m β̃_m, where `factor` is one client's R_m."""
        return new if self.metric is None else self.metric.beta(factor, new)

    def inward(
        self, w: Pytree, parts: tuple[Pytree, ...], factors: tuple[Factor | None, ...]
    ) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The algorithm's w̃ and each bucket's β̃, from the user's w and β."""
        if self.by_class:
            w, parts = _transposed(w, 2), _transposed(parts, 3)
        w = tree.unscale(self.scale, w)
        if self.metric is None:
            return w, parts
        solve = jax.vmap(self.metric.beta_inverse)
        everyone = zip(factors, parts, strict=True)
        return self.metric.w_inverse(w), tuple(part if f is None else solve(f, part) for f, part in everyone)

    def outward(
        self, w: Pytree, parts: tuple[Pytree, ...], factors: tuple[Factor | None, ...]
    ) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The user's w and each bucket's β, from the algorithm's w̃ and β̃."""
        if self.metric is not None:
            apply = jax.vmap(self.metric.beta)
            parts = tuple(part if f is None else apply(f, part) for f, part in zip(factors, parts, strict=True))
        w = self.w(w)
        return (_transposed(w, 2), _transposed(parts, 3)) if self.by_class else (w, parts)


def _transposed(x: Pytree, weight_axes: int) -> Pytree:
    """The weights in x transposed; a bias has one axis fewer and stays as it is."""
    return jax.tree.map(lambda leaf: leaf.swapaxes(-1, -2) if leaf.ndim == weight_axes else leaf, x)
