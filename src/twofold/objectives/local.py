"""Local training: each client trains alone (eq. fully)."""

from __future__ import annotations

import jax

from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Local", "local"]


@record
class Local(Objective):
    """f_m(β_m) = f'_m(β_m). Nothing is shared, so nothing is ever sent.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.local(tw.losses.squared())
    >>> float(objective.value((), jnp.ones(2), rows, ()))
    0.0
    """

    loss: Loss
    name = "local"
    whole_models = True
    equation = "f'(β)"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """An empty shared part, and zero β."""
        return NOTHING, self.loss.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(β_m)."""
        return self.loss.value(beta, rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ'/M, 0, L'/M."""
        return constants.local(self.loss.constants(clients), weights=clients.weights)

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at β_m."""
        return self.loss.curvature(clients, [model.Loss(1, 0, 1)])

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Each client predicts with its own β_m."""
        return beta


def local(loss: Loss) -> Local:
    """Train every client alone: min_β 1/M Σ f'_m(β_m).

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> problem.constants().mu, problem.constants().L_w
    (0.025, 0.0)
    """
    return Local(loss)
