"""Traditional federated learning: one model for all (eq. traditional)."""

from __future__ import annotations

import jax

from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Linear, Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.theory import constants
from twofold.tree import Pytree, record


@record
class Traditional(Objective):
    """f_m(w) = f'_m(w); there is no private part, and w is not scaled."""

    loss: Loss
    name = "traditional"
    whole = True
    equation = "f'(w)"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w, nothing private."""
        return self.loss.init(clients), NOTHING

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(w)."""
        return self.loss.value(w, rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ', L', 0."""
        return constants.traditional(self.loss.constants(clients))

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at w."""
        terms = [model.Loss(1, 1, 0)]
        return model.of_terms(self.loss, clients, terms) if isinstance(self.loss, Linear) else None

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Everyone predicts with w."""
        return w


def traditional(loss: Loss) -> Traditional:
    """One model for all: min_w 1/M Σ f'_m(w) (FedAvg's objective)."""
    return Traditional(loss)
