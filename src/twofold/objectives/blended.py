"""A blend whose weight α_m each client learns along with its model: the objective of APFL with adaptive α."""

from __future__ import annotations

import jax
import numpy as np

from twofold.clients import Clients
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.objectives.base import Loss, Objective, Part, positive
from twofold.tree import Pytree, blend, record

__all__ = ["Blended", "blended"]


@record
class Blended(Objective):
    """f_m(w, (v_m, α_m)) = Λ f'_m(w) + f'_m((1−α_m)v_m + α_m w): APFL2 with α as part of β.

    It is nonconvex, since α multiplies the models.

    >>> import jax.numpy as jnp, twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.blended(tw.losses.squared(), Lambda=2.0)
    >>> float(objective.value(jnp.zeros(2), {"model": 2 * jnp.ones(2), "alpha": jnp.array(0.5)}, rows, ()))
    1.0
    """

    loss: Loss
    alpha: float
    Lambda: float
    name = "blended"
    convex = False
    equation = "Λf'(w) + f'((1−α)v + αw), β = (v, α)"
    reveals = "a message is a gradient that depends on β, on this client's own α and the rows"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Two models with the same initial parameters, and the initial α."""
        start = self.loss.init(clients)
        return start, {"model": start, "alpha": np.float64(self.alpha)}

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The blend (1−α_m)v_m + α_m w."""
        return blend(beta["alpha"], beta["model"], w)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Λ f'_m(w) + f'_m(blend)."""
        return self.Lambda * self.loss.value(w, rows) + self.loss.value(self.personal(w, beta, rows, own), rows)

    def constants(self, clients: Clients, scale: float) -> None:
        """There is no formula: the problem estimates them at a point."""

    def parts(self, clients: Clients) -> tuple[Part, ...]:
        """Both models."""
        return ("shared", "alone")

    def only(self, part: Part, w: Pytree, beta: Pytree) -> Pytree:
        """w, or v_m."""
        return w if part == "shared" else beta["model"]

    def grade_part(
        self, part: Part, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree
    ) -> jax.Array:
        """Grade w or v_m alone."""
        return self.loss.grade(self.only(part, w, beta), x, y)


def blended(loss: Loss, alpha: float = 0.5, Lambda: float = 1.0) -> Blended:
    """Blend a shared and a private model with a learned weight: Λf'(w) + f'((1−α)v + αw) with β = (v, α).

    `alpha` is every client's initial α, the share of the shared model in its blend.

    >>> import twofold as tw
    >>> tw.objectives.blended(tw.losses.logistic(), alpha=0.3).alpha
    0.3
    """
    start = positive("alpha", alpha, zero=True)
    if start > 1:
        raise InputError(f"alpha must be a number from 0 to 1, got {alpha=}.")
    return Blended(loss, start, positive("Lambda", Lambda, zero=True))
