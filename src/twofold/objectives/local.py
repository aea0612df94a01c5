"""Local training: everyone alone (eq. fully)."""

from __future__ import annotations

import jax

from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Linear, Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.theory import constants
from twofold.tree import Pytree, record


@record
class Local(Objective):
    """f_m(β_m) = f'_m(β_m); nothing is shared and nothing is ever sent."""

    loss: Loss
    name = "local"
    whole = True
    equation = "f'(β)"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Nothing shared, zero β."""
        return NOTHING, self.loss.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(β_m)."""
        return self.loss.value(beta, rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ'/M, 0, L'/M."""
        return constants.local(self.loss.constants(clients), weights=clients.weights)

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at β_m."""
        terms = [model.Loss(1, 0, 1)]
        return model.of_terms(self.loss, clients, terms) if isinstance(self.loss, Linear) else None

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Everyone predicts with its own β_m."""
        return beta


def local(loss: Loss) -> Local:
    """Everyone alone: min_β 1/M Σ f'_m(β_m)."""
    return Local(loss)
