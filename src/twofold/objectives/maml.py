"""MAML: a shared start from which one gradient step gives each client its model (eq. maml; nonconvex)."""

from __future__ import annotations

import jax

from twofold import tree
from twofold.clients import Clients
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective, positive
from twofold.tree import Pytree, record


@record
class Maml(Objective):
    """f_m(w) = f'_m(w − α∇f'_m(w)), differentiated exactly, through the inner gradient.

    Nonconvex even for convex f', so only the nonconvex theory of LSGD applies. On a sampled batch the same rows serve
    the inner and the outer step; that estimate is biased for small batches (f is no finite sum over rows).
    """

    loss: Loss
    alpha: float
    name = "maml"
    whole = True
    convex = False
    equation = "f'(w − α∇f'(w))"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """The loss's initial parameters, nothing private."""
        return self.loss.init(clients), NOTHING

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """w after one gradient step on the client's own rows."""
        return tree.combine((1.0, w), (-self.alpha, jax.grad(self.loss.value)(w, rows)))

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(w − α∇f'_m(w))."""
        return self.loss.value(self.personal(w, beta, rows, own), rows)

    def constants(self, clients: Clients, scale: float) -> None:
        """No formula: the problem estimates them at a point."""


def maml(loss: Loss, alpha: float) -> Maml:
    """A shared start, one step from everyone's model: f'(w − α∇f'(w)), with the exact second-order gradient."""
    return Maml(loss, positive("alpha", alpha))
