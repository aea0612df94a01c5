"""Multi-task MT2: a shared model and personal ones near it (eq. multitaskFL2); Λ = ∞ is Ditto's original problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.curvature import model
from twofold.losses import Rows
from twofold.objectives.base import Loss, Objective, each_positive, own_strength, positive, with_typical
from twofold.objectives.two_stage import TwoStage
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Multitask", "multitask"]


@record
class Multitask(Objective):
    """f_m(w, β_m) = Λ f'_m(w) + f'_m(β_m) + (λ/2)‖w − β_m‖².

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.multitask(tw.losses.squared(), lam=3.0, Lambda=2.0)
    >>> float(objective.value(jnp.zeros(2), jnp.ones(2), rows, ()))
    4.0
    """

    loss: Loss
    lam: float | NDArray[np.float64]
    Lambda: float
    name = "multitask"
    whole_models = True
    equation = "Λf'(w) + f'(β) + (λ/2)‖w − β‖²"
    reveals = "a message mixes ∇f'(w) and β"

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w and β of the same shape."""
        return self.loss.init(clients), self.loss.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Λ f'_m(w) + f'_m(β_m) + (λ/2)‖w − β_m‖²."""
        lam = self.lam if isinstance(own, tuple) else own
        penalty = 0.5 * lam * tree.squared_norm(tree.learned(tree.subtract(w, beta)))
        return self.Lambda * self.loss.value(w, rows) + self.loss.value(beta, rows) + penalty

    def bind(self, clients: Clients) -> Multitask:
        """Refuse strengths λ_m whose number is not the number of clients."""
        self.own(clients)
        return self

    def own(self, clients: Clients) -> Pytree:
        """λ_m of each client, if λ differs between clients; else nothing."""
        return own_strength("lam", self.lam, clients)

    def constants(self, clients: Clients, scale: float) -> constants.Constants | None:
        """λ/(2M), (ΛL'+λ)/M, (L'+λ)/M (Lemma smooth_sc_multitaks; the table's extra ½ is a slip); None if λ differs by client."""
        if np.ndim(self.lam):
            return None
        return constants.multitask(
            self.loss.constants(clients), float(self.lam), self.Lambda, scale=scale, weights=clients.weights
        )

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """Λf'_m at w, f'_m at β_m, and λ between the two."""
        terms = [model.Loss(self.Lambda, 1, 0), model.Loss(1, 0, 1), model.Pull(self.lam, 1, -1)]
        return self.loss.curvature(clients, terms)

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Each client predicts with its own β_m."""
        return beta

    def of_client(self, m: int) -> Multitask:
        """The objective with client m's own λ."""
        return dataclasses.replace(self, lam=float(self.lam[m])) if isinstance(self.lam, np.ndarray) else self

    def of_newcomer(self, own: Mapping[str, float]) -> Objective:
        """The objective with the new client's λ; if λ differs between clients and none is given, the median of the nonzero ones."""
        return super().of_newcomer(with_typical("lam", self.lam, own))


def _second_stage(objective: Objective, clients: Clients) -> constants.Constants:
    """Constants of local training on f'_m(β) + (λ/2)‖β − w*‖²: the penalty adds λ to every curvature."""
    loss, lam = objective.loss.constants(clients), np.asarray(cast(Multitask, objective).lam)
    shifted = constants.LossConstants(mu=loss.mu + lam, L=loss.L + lam, calL=loss.calL + lam, how=loss.how)
    return constants.local(shifted, weights=clients.weights)


def multitask(
    loss: Loss, lam: float | Sequence[float] | NDArray[np.floating], Lambda: float = 1.0
) -> Multitask | TwoStage:
    """Train a shared model and personal ones near it: Λf'(w) + f'(β) + (λ/2)‖w − β‖² (MT2; Ditto for Λ = ∞).

    `lam` is one positive number, or one per client (≥ 0, not all 0).

    >>> import twofold as tw
    >>> loss = tw.losses.logistic(l2=0.1)
    >>> tw.objectives.multitask(loss, lam=0.5).equation
    "Λf'(w) + f'(β) + (λ/2)‖w − β‖²"
    >>> tw.objectives.multitask(loss, lam=0.5, Lambda=float("inf")).equation
    "w* = argmin Σ f'(w), then f(w*, β)"
    """
    if Lambda == np.inf:
        return TwoStage(Multitask(loss, each_positive("lam", lam), 0.0), _second_stage)
    return Multitask(loss, each_positive("lam", lam), positive("Lambda", Lambda, zero=True))
