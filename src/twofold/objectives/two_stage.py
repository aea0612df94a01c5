"""The limits Λ = ∞: first traditional federated learning, then each client alone around its solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.clients import Clients
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective
from twofold.objectives.traditional import Traditional
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static


@record
class Around(Objective):
    """The second stage: a relaxed objective with w held at the centre and its Λ-term dropped; only β is free."""

    relaxed: Any
    centre: Pytree
    rule: Callable[..., Constants] = static()
    name = "around"
    equation = "f(w*, β)"

    @property
    def loss(self) -> Loss:  # type: ignore[override]
        """The loss of the objective that this is the second stage of."""
        return self.relaxed.loss

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Nothing shared any more, zero β."""
        return NOTHING, self.relaxed.init(clients)[1]

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f_m(w*, β_m) with Λ = 0."""
        return self.relaxed.value(self.centre, beta, rows, own)

    def constants(self, clients: Clients, scale: float) -> Constants:
        """Those of local training on f_m(w*, ·)."""
        return self.rule(self.relaxed, clients)

    def curvature(self, clients: Clients) -> BlockCurvature | None:
        """The private blocks of the relaxed objective, with w held fixed."""
        relaxed = self.relaxed.curvature(clients)
        return None if relaxed is None else relaxed.alone(float(jnp.sqrt(tree.squared_norm(self.centre))))

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """What the relaxed objective predicts with, at the centre."""
        return self.relaxed.personal(self.centre, beta, rows, own)

    def own(self, clients: Clients) -> Pytree:
        """The clients' own numbers, of the relaxed objective."""
        return self.relaxed.own(clients)


@record
class TwoStage(Objective):
    """w* = argmin 1/M Σ f'_m(w), then β_m* = argmin f_m(w*, β_m): the original, unrelaxed problem (Λ → ∞).

    `relaxed` is the objective with Λ = 0, whose β-part is the second stage. `solve` and `optimum` do both stages.
    """

    relaxed: Any
    rule: Callable[..., Constants] = static()
    name = "two_stage"
    equation = "w* = argmin Σ f'(w), then f(w*, β)"

    @property
    def loss(self) -> Loss:  # type: ignore[override]
        """The loss of both stages."""
        return self.relaxed.loss

    def first(self) -> Traditional:
        """Stage one: traditional federated learning."""
        return Traditional(self.loss)

    def second(self, centre: Pytree) -> Around:
        """Stage two: everyone alone, around the solution of stage one."""
        return Around(self.relaxed, centre, self.rule)

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w and β."""
        return self.relaxed.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """The second stage's value at the centre w."""
        return self.relaxed.value(w, beta, rows, own)

    def constants(self, clients: Clients, scale: float) -> Constants:
        """Refuse: each stage has its own."""
        raise InputError(
            "With Lambda=inf the problem has two stages, each with constants of its own: ask "
            "Problem(objective.first(), clients) or Problem(objective.second(w_star), clients)."
        )

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """What the relaxed objective predicts with."""
        return self.relaxed.personal(w, beta, rows, own)

    def own(self, clients: Clients) -> Pytree:
        """The clients' own numbers, of the relaxed objective."""
        return self.relaxed.own(clients)
