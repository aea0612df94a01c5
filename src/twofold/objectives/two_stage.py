"""The limit Λ = ∞: first traditional federated learning, then each client alone, with w fixed at that solution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.clients import Clients
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Loss, Objective, Part, Stages
from twofold.objectives.traditional import Traditional
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static

__all__ = ["Around", "TwoStage"]

_Rule: TypeAlias = Callable[[Objective, Clients], Constants]
"""A function of the relaxed objective and the clients that returns the second stage's constants."""


@record
class Around(Objective):
    """f_m(w*, β_m): the second stage, in which w is fixed at the first stage's solution and only β is free.

    >>> import jax.numpy as jnp
    >>> import twofold as tw
    >>> rows = tw.losses.Rows(x=jnp.eye(2), y=jnp.ones(2), weight=jnp.full(2, 0.5))
    >>> ditto = tw.objectives.multitask(tw.losses.squared(), lam=3.0, Lambda=float("inf"))
    >>> float(ditto.second(jnp.zeros(2)).value((), jnp.ones(2), rows, ()))
    3.0
    """

    relaxed: Objective
    centre: Pytree
    rule: _Rule = static()
    name = "around"
    equation = "f(w*, β)"

    @property
    def loss(self) -> Loss:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The loss of both stages."""
        return self.relaxed.loss

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """An empty shared part, and zero β."""
        return NOTHING, self.relaxed.init(clients)[1]

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f_m(w*, β_m) with Λ = 0."""
        return self.relaxed.value(self.centre, beta, rows, own)

    def constants(self, clients: Clients, scale: float) -> Constants:
        """The constants of local training on f_m(w*, ·)."""
        return self.rule(self.relaxed, clients)

    def curvature(self, clients: Clients) -> BlockCurvature | None:
        """The private blocks of the relaxed objective, with w held fixed."""
        relaxed = self.relaxed.curvature(clients)
        return None if relaxed is None else relaxed.alone(float(jnp.sqrt(tree.squared_norm(self.centre))))

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The parameters with which the relaxed objective predicts, at the centre w*."""
        return self.relaxed.personal(self.centre, beta, rows, own)

    def own(self, clients: Clients) -> Pytree:
        """The clients' own numbers in the relaxed objective."""
        return self.relaxed.own(clients)

    def describe(self) -> None:
        """None, because the centre w* is a result and not a setting; `TwoStage` can be described instead."""


@record
class TwoStage(Objective):
    """w* = argmin 1/M Σ f'_m(w), then β_m* = argmin f_m(w*, β_m): the original, unrelaxed problem (Λ → ∞).

    `relaxed` is the objective with Λ = 0, whose β-part is the second stage. `solve` and `optimum` do both stages.

    >>> import twofold as tw
    >>> ditto = tw.objectives.multitask(tw.losses.squared(l2=0.1), lam=3.0, Lambda=float("inf"))
    >>> first, second = ditto.stages()
    >>> first.equation, second([0.0]).equation
    ("f'(w)", 'f(w*, β)')
    """

    relaxed: Objective
    rule: _Rule = static()
    name = "two_stage"
    equation = "w* = argmin Σ f'(w), then f(w*, β)"

    @property
    def loss(self) -> Loss:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The loss of both stages."""
        return self.relaxed.loss

    def first(self) -> Traditional:
        """Stage one: traditional federated learning."""
        return Traditional(self.loss)

    def second(self, centre: Pytree) -> Around:
        """Stage two: each client alone, with w fixed at stage one's solution."""
        return Around(self.relaxed, centre, self.rule)

    def stages(self) -> Stages:
        """Traditional federated learning, then each client alone, with w fixed at that solution."""
        return Stages(self.first(), self.second)

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero w and β."""
        return self.relaxed.init(clients)

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """The second stage's value at the centre w."""
        return self.relaxed.value(w, beta, rows, own)

    def constants(self, clients: Clients, scale: float) -> Constants:
        """Raise, because each stage has its own constants."""
        raise InputError(
            "With Lambda=inf the problem has two stages, each with its own constants: ask "
            "Problem(objective.first(), clients) or Problem(objective.second(w_star), clients)."
        )

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The parameters with which the relaxed objective predicts."""
        return self.relaxed.personal(w, beta, rows, own)

    def own(self, clients: Clients) -> Pytree:
        """The clients' own numbers in the relaxed objective."""
        return self.relaxed.own(clients)

    def only(self, part: Part, w: Pytree, beta: Pytree) -> Pytree:
        """The same as in the relaxed objective."""
        return self.relaxed.only(part, w, beta)

    def of_client(self, m: int) -> TwoStage:
        """The objective with client m's numbers only."""
        return dataclasses.replace(self, relaxed=self.relaxed.of_client(m))

    def of_newcomer(self, own: Mapping[str, float]) -> Objective:
        """The relaxed objective with Λ = 0, which is what a new client's second stage minimises for a fixed w."""
        return self.relaxed.of_newcomer(own)

    def describe(self) -> tuple[str, dict[str, Any]] | None:
        """The relaxed objective's name and arguments, with Λ = ∞."""
        found = self.relaxed.describe()
        return None if found is None else (found[0], found[1] | {"Lambda": "inf"})
