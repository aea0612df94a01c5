"""Mixture MX2: personal models pulled towards a shared centre (eq. personalized_mixture2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Rows
from twofold.objectives.base import Loss, Objective, each_positive, own_strength, with_typical
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Mixture", "mixture"]


@record
class Mixture(Objective):
    """f_m(w, β_m) = f'_m(β_m) + (λ/2)‖w − β_m‖².

    Minimising over w makes w the mean of the β_m, and gives the mixture with the averaged penalty. Minimising over β gives the
    Moreau envelope, the objective of implicit MAML and pFedMe.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.mixture(tw.losses.squared(), lam=3.0)
    >>> float(objective.value(jnp.zeros(2), jnp.ones(2), rows, ()))
    3.0
    """

    loss: Loss
    lam: float | NDArray[np.float64]
    name = "mixture"
    whole_models = True
    equation = "f'(β) + (λ/2)‖w − β‖²"
    reveals = "one message and w give β"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w and β of the same shape."""
        return self.loss.init(clients), self.loss.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(β_m) + (λ/2)‖w − β_m‖²."""
        lam = self.lam if isinstance(own, tuple) else own
        return self.loss.value(beta, rows) + 0.5 * lam * tree.squared_norm(tree.learned(tree.subtract(w, beta)))

    def bind(self, clients: Clients) -> Mixture:
        """Refuse strengths λ_m whose number is not the number of clients."""
        self.own(clients)
        return self

    def own(self, clients: Clients) -> Pytree:
        """λ_m of each client, if λ differs between clients; else nothing."""
        return own_strength("lam", self.lam, clients)

    def constants(self, clients: Clients, scale: float) -> constants.Constants | None:
        """μ'/(3M), λ/M, (L'+λ)/M (Lemma mixture); None if λ differs between clients, for which there is no lemma."""
        if np.ndim(self.lam):
            return None
        return constants.mixture(self.loss.constants(clients), float(self.lam), scale=scale, weights=clients.weights)

    def mixture_strength(self) -> float | None:
        """λ, if it is the same for all clients."""
        return None if np.ndim(self.lam) else float(self.lam)

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at β_m, and λ between w and β_m."""
        terms = [model.Loss(1, 0, 1), model.Pull(self.lam, 1, -1)]
        return self.loss.curvature(clients, terms)

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Each client predicts with its own β_m."""
        return beta

    def of_client(self, m: int) -> Mixture:
        """The objective with client m's own λ."""
        return dataclasses.replace(self, lam=float(self.lam[m])) if isinstance(self.lam, np.ndarray) else self

    def of_newcomer(self, own: Mapping[str, float]) -> Objective:
        """The objective with the new client's λ; if λ differs between clients and none is given, the median of the nonzero ones."""
        return super().of_newcomer(with_typical("lam", self.lam, own))


def mixture(loss: Loss, lam: float | Sequence[float] | NDArray[np.floating]) -> Mixture:
    """Pull personal models towards a shared centre: f'(β) + (λ/2)‖w − β‖² (MX2, pFedMe, implicit MAML).

    `lam` is one positive number, or one per client (≥ 0, not all 0).

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> tw.Problem(objective, tw.Clients.from_list(made.clients)).constants().L_w
    0.125
    """
    return Mixture(loss, each_positive("lam", lam))
