"""MAML: a shared starting point, one gradient step from each client's model (eq. maml; nonconvex)."""

from __future__ import annotations

from typing import cast

import jax

from twofold import tree
from twofold.clients import Clients
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective, positive
from twofold.tree import Pytree, record

__all__ = ["Maml", "maml"]


@record
class Maml(Objective):
    """f_m(w) = f'_m(w − α∇f'_m(w)), differentiated exactly, through the inner gradient.

    It is nonconvex even for convex f', so only the nonconvex theory of LSGD applies. On a sampled batch, the inner and the outer
    step use the same rows. f_m is not a finite sum over rows, so the gradient on a small batch is biased.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.maml(tw.losses.squared(), alpha=2.0)
    >>> objective.personal(jnp.zeros(2), (), rows, ()).tolist()
    [1.0, 1.0]
    >>> float(objective.value(jnp.zeros(2), (), rows, ()))
    0.0
    """

    loss: Loss
    alpha: float
    name = "maml"
    whole_models = True
    convex = False
    personal_needs_rows = True
    equation = "f'(w − α∇f'(w))"
    reveals = "a message is a gradient that depends on the rows"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """The loss's initial parameters, and an empty private part."""
        return self.loss.init(clients), NOTHING

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """w after one gradient step on the client's own rows."""
        gradient = cast(Pytree, jax.grad(self.loss.value)(w, rows))  # pyright: ignore[reportUnknownMemberType]
        return tree.combine((1.0, w), (-self.alpha, gradient))

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(w − α∇f'_m(w))."""
        return self.loss.value(self.personal(w, beta, rows, own), rows)

    def constants(self, clients: Clients, scale: float) -> None:
        """There is no formula: the problem estimates them at a point."""


def maml(loss: Loss, alpha: float) -> Maml:
    """Learn a shared starting point, one gradient step from each client's model: f'(w − α∇f'(w)), with the exact gradient.

    >>> import twofold as tw
    >>> tw.objectives.maml(tw.losses.logistic(l2=0.1), alpha=0.5).convex
    False
    """
    return Maml(loss, positive("alpha", alpha))
