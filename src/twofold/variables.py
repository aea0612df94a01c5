"""The change of variables between the parameters that users see and those that algorithms work on."""

from __future__ import annotations

import jax

from twofold import tree
from twofold.tree import Pytree, record, static

__all__ = ["Variables"]


@record
class Variables:
    """w = s·w̃, with s = M^(-1/2) by default; β is the same in both.

    Algorithms move w̃, in which both blocks are equally well conditioned. `by_class` says that the weights of a softmax model
    are kept as (classes, features) inside, where users have them as (features, classes).
    """

    scale: float | jax.Array | None = None  # s; None stands for 1 and saves a pass over w in every step
    by_class: bool = static(default=False)

    def w(self, w: Pytree) -> Pytree:
        """What the objective is asked at, inside a program: s·w̃."""
        return tree.scale(self.scale, w)

    def inward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """The user's w and each bucket's β as algorithms have them."""
        return tree.unscale(self.scale, self._turn(w, 2)), self._turn(parts, 3)

    def outward(self, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, tuple[Pytree, ...]]:
        """An algorithm's w̃ and each bucket's β as the user has them."""
        return self._turn(tree.scale(self.scale, w), 2), self._turn(parts, 3)

    def _turn(self, x: Pytree, weight_axes: int) -> Pytree:
        """x with its weights transposed; a bias has one axis less and stays."""
        if not self.by_class:
            return x
        return jax.tree.map(lambda leaf: leaf.swapaxes(-1, -2) if leaf.ndim == weight_axes else leaf, x)
