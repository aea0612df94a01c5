"""Traditional federated learning: one model for all clients (eq. traditional)."""

from __future__ import annotations

import jax

from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Traditional", "traditional"]


@record
class Traditional(Objective):
    """f_m(w) = f'_m(w). There is no private part, and w is not scaled.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.traditional(tw.losses.squared())
    >>> float(objective.value(jnp.zeros(2), (), rows, ()))
    0.5
    """

    loss: Loss
    name = "traditional"
    whole_models = True
    equation = "f'(w)"
    reveals = "a message is the gradient of this client's loss"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w, and an empty private part."""
        return self.loss.init(clients), NOTHING

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(w)."""
        return self.loss.value(w, rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ', L', 0."""
        return constants.traditional(self.loss.constants(clients))

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at w."""
        return self.loss.curvature(clients, [model.Loss(1, 1, 0)])

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """All clients predict with w."""
        return w


def traditional(loss: Loss) -> Traditional:
    """Train one model for all clients: min_w 1/M Σ f'_m(w), the objective of FedAvg.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> round(problem.constants().mu, 6)
    0.1
    """
    return Traditional(loss)
