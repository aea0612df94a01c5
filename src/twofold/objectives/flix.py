"""FLIX: a shared model, blended with the one each client finds alone (Gasanov et al. 2021, the objective of Scafflix)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import tree
from twofold.clients import Clients
from twofold.curvature import model
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.objectives.local import local
from twofold.theory import constants
from twofold.tree import Pytree, record

__all__ = ["Flix", "flix"]


@record
class Flix(Objective):
    """f_m(w) = f'_m(α_m w + (1−α_m) w*_m), where w*_m = argmin f'_m is client m's own minimiser; no private part is learned.

    Unless the w*_m are given, `Problem` computes them first with the reference solver. They never leave a client: messages hold
    gradients in w only.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> objective = tw.objectives.flix(tw.losses.squared(), alpha=0.5, alone=jnp.ones((1, 2)))
    >>> float(objective.value(jnp.zeros(2), (), rows, (0.5, jnp.ones(2))))
    0.125
    """

    loss: Loss
    alpha: float | NDArray[np.float64]
    alone: Pytree | None = None
    name = "flix"
    equation = "f'(αw + (1−α)w*)"
    reveals = "a message is a gradient that depends on what this client finds alone"

    def prepare(self, clients: Clients, minimise: Callable[[Objective], tuple[Pytree, Pytree]]) -> Flix:
        """The same objective with all clients' w*_m filled in."""
        if self.alone is None:
            return dataclasses.replace(self, alone=minimise(local(self.loss))[1])

        def shape(leaf: ArrayLike) -> tuple[int, ...]:
            return (len(clients), *np.shape(leaf))

        wanted = jax.tree.map(shape, self.loss.init(clients))
        found = jax.tree.map(np.shape, self.alone)
        if found != wanted:
            raise InputError(f"alone must hold one model for each client, of shape {wanted}, got {found}.")
        return self

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w, and an empty private part."""
        return self.loss.init(clients), NOTHING

    def own(self, clients: Clients) -> tuple[NDArray[np.float64], Pytree]:
        """α_m and w*_m of each client."""
        if self.alone is None:
            raise InputError(
                "FLIX needs each client's own minimiser first: use the objective of a Problem, or give alone=."
            )
        return self._alphas(clients), self.alone

    def _alphas(self, clients: Clients) -> NDArray[np.float64]:
        alpha = np.asarray(self.alpha, np.float64)
        if alpha.ndim and alpha.shape != (len(clients),):
            raise InputError(
                f"alpha has shape {alpha.shape}, but there are {len(clients)} clients: give one number, or one per client."
            )
        return np.broadcast_to(alpha, (len(clients),))

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The blend α_m w + (1−α_m) w*_m."""
        alpha, alone = own
        return tree.combine((alpha, w), (1 - alpha, alone))

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f'_m(blend)."""
        return self.loss.value(self.personal(w, beta, rows, own), rows)

    def constants(self, clients: Clients, scale: float) -> constants.Constants:
        """min α²μ', max α²L', max α²𝓛': every curvature of f'_m is multiplied by α_m²."""
        loss, factor = self.loss.constants(clients), self._alphas(clients) ** 2
        scaled = constants.LossConstants(mu=loss.mu * factor, L=loss.L * factor, calL=loss.calL * factor, how=loss.how)
        return constants.traditional(scaled)

    def curvature(self, clients: Clients) -> model.BlockCurvature | None:
        """f'_m at the blend, which is α_m w plus a constant."""
        alpha = self._alphas(clients)
        found = self.loss.curvature(clients, [model.Loss(1, alpha, 0)])
        if found is None or self.alone is None:
            return found
        return found.shifted(self._offsets(alpha), float(self.loss.l2))

    def of_client(self, m: int) -> Objective:
        """The objective with α_m only, and without any w*."""
        return dataclasses.replace(cast(Flix, super().of_client(m)), alone=None)

    def of_newcomer(self, own: Mapping[str, float]) -> Flix:
        """The objective with the new client's α; its w* is still to be computed."""
        return flix(self.loss, cast(Flix, super().of_newcomer(own)).alpha)

    def describe(self) -> tuple[str, dict[str, Any]]:
        """The name and α; the w*_m are left out, because they are private to each client."""
        return self.name, {"alpha": np.asarray(self.alpha).tolist()}

    def _offsets(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """(1−α_m)‖w*_m‖ of each client."""
        squares = [
            np.sum(np.asarray(leaf).reshape(len(alpha), -1) ** 2, axis=1) for leaf in jax.tree.leaves(self.alone)
        ]
        return (1 - alpha) * np.sqrt(np.sum(squares, axis=0))


def flix(loss: Loss, alpha: float | Sequence[float] | NDArray[np.floating], alone: Pytree | None = None) -> Flix:
    """Blend a shared model with the one each client finds alone: f'(αw + (1−α)w*), w*_m = argmin f'_m (FLIX, Scafflix).

    `alpha` is one number with 0 < α ≤ 1 (1 is traditional federated learning), or one per client. `alone` gives the w*_m, with a
    leading client axis; without it they are computed first.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(
    ...     tw.objectives.flix(tw.losses.logistic(l2=0.1), alpha=0.5), tw.Clients.from_list(made.clients)
    ... )
    >>> problem.objective.alone.shape, round(problem.constants().mu, 6)
    ((3, 2), 0.025)
    """
    values = np.asarray(alpha, np.float64)
    outside = ~((values > 0) & (values <= 1))
    if values.ndim > 1 or outside.any():
        bad = values.ravel()[outside.ravel()]
        where = f" (client {int(np.flatnonzero(outside)[0])})" if values.ndim == 1 else ""
        raise InputError(f"Every alpha must lie in (0, 1], got {bad[0] if bad.size else alpha}{where}.")
    return Flix(loss, float(values) if values.ndim == 0 else values, alone)
