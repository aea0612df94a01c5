"""Adaptive APFL2: predict with a blend of the shared and the personal model (eq. APFL2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.curvature import model
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.objectives.base import Loss, Objective, positive
from twofold.objectives.two_stage import TwoStage
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Adaptive", "adaptive"]


@record
class Adaptive(Objective):
    """f_m(w, β_m) = Λ f'_m(w) + f'_m((1−α_m)β_m + α_m w), with one α for all or one per client.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.adaptive(tw.losses.squared(), alpha=0.5, Lambda=2.0)
    >>> float(objective.value(jnp.zeros(2), 2 * jnp.ones(2), rows, 0.5))
    1.0
    """

    loss: Loss
    alpha: float | NDArray[np.float64]
    Lambda: float
    name = "adaptive"
    whole_models = True
    equation = "Λf'(w) + f'((1−α)β + αw)"
    reveals = "a message is a gradient that depends on β and the rows"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w and β of the same shape."""
        return self.loss.init(clients), self.loss.init(clients)

    def own(self, clients: Clients) -> NDArray[np.float64]:
        """α_m of each client."""
        alpha = np.asarray(self.alpha, np.float64)
        if alpha.ndim and alpha.shape != (len(clients),):
            raise InputError(
                f"alpha has shape {alpha.shape}, but there are {len(clients)} clients: give one number, or one per client."
            )
        return np.broadcast_to(alpha, (len(clients),))

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The blend (1−α_m)β_m + α_m w."""
        return tree.combine((1 - own, beta), (own, w))

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Λ f'_m(w) + f'_m(blend)."""
        blend = self.personal(w, beta, rows, own)
        return self.Lambda * self.loss.value(w, rows) + self.loss.value(blend, rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """μ'(1−α_max)²/(2M), (Λ+α_max²)L'/M, (1−α_min)²L'/M (Lemma apfl, with the ½ of its proof)."""
        return constants.adaptive(
            self.loss.constants(clients), self.own(clients), self.Lambda, scale=scale, weights=clients.weights
        )

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """Λf'_m at w, and f'_m at the blend."""
        alpha = self.own(clients)
        terms = [model.Loss(self.Lambda, 1, 0), model.Loss(1, alpha, 1 - alpha)]
        return self.loss.curvature(clients, terms)

    def of_newcomer(self, own: Mapping[str, float]) -> Objective:
        """The objective with the new client's α, after checking that it lies in (0, 1)."""
        made = cast(Adaptive, super().of_newcomer(own))
        adaptive(self.loss, made.alpha)
        return made


def _second_stage(objective: Objective, clients: Clients) -> constants.Constants:
    """Constants of local training on f'_m((1−α_m)β + α_m w*): every curvature is multiplied by (1−α_m)²."""
    loss, factor = objective.loss.constants(clients), (1 - cast(Adaptive, objective).own(clients)) ** 2
    scaled = constants.LossConstants(mu=loss.mu * factor, L=loss.L * factor, calL=loss.calL * factor, how=loss.how)
    return constants.local(scaled, weights=clients.weights)


def adaptive(
    loss: Loss, alpha: float | Sequence[float] | NDArray[np.floating], Lambda: float = 1.0
) -> Adaptive | TwoStage:
    """Predict with a blend of both models: Λf'(w) + f'((1−α)β + αw) (APFL2).

    `alpha` is one number strictly between 0 and 1, or one per client. Λ = ∞ trains w first and then β alone.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=2, rows=8, features=2)
    >>> objective = tw.objectives.adaptive(tw.losses.logistic(l2=0.1), alpha=[0.2, 0.6])
    >>> objective.own(tw.Clients.from_list(made.clients)).tolist()
    [0.2, 0.6]
    """
    values = np.asarray(alpha, np.float64)
    outside = ~((values > 0) & (values < 1))
    if values.ndim > 1 or outside.any():
        bad = values.ravel()[outside.ravel()]
        where = f" (client {int(np.flatnonzero(outside)[0])})" if values.ndim == 1 else ""
        raise InputError(f"Every alpha must lie strictly between 0 and 1, got {bad[0] if bad.size else alpha}{where}.")
    blend = float(values) if values.ndim == 0 else values
    if Lambda == np.inf:
        return TwoStage(Adaptive(loss, blend, 0.0), _second_stage)
    return Adaptive(loss, blend, positive("Lambda", Lambda, zero=True))
