"""What a personalised objective is: one client's f(w, β, rows) in unscaled w, its constants, and its hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from twofold.clients import Clients
from twofold.errors import InputError
from twofold.losses import Rows
from twofold.theory.constants import Constants
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.curvature.model import BlockCurvature
    from twofold.losses import Custom, Linear

    Loss: TypeAlias = Linear | Custom
else:
    Loss = Any

__all__ = ["NOTHING", "Loss", "Measure", "Objective", "Part", "Stages", "positive"]

NOTHING: Pytree = ()
"""An empty block: the shared part of local training, the private part of traditional federated learning."""

Part: TypeAlias = Literal["shared", "alone"]
"""One block as a model by itself: w without β ("shared"), or β without w ("alone")."""
Measure: TypeAlias = Literal["accuracy", "minus squared error", "minus loss", "grade"]
"""What a grade is; larger is always better. "grade" is a figure that the user's own function gives."""


class Stages(NamedTuple):
    """The two problems behind an objective that is solved in two stages.

    `first` has no private part. `second(w)` is the objective of the second stage, with w held at the first stage's
    solution, so it has no shared part.

    >>> import twofold as tw
    >>> ditto = tw.objectives.multitask(tw.losses.logistic(), lam=0.1, Lambda=float("inf"))
    >>> ditto.stages().first.name
    'traditional'
    """

    first: Objective
    second: Callable[[Pytree], Objective]


class Objective:
    """One client's objective f_m(w, β_m), a function of the shared w, the private β_m and the client's rows.

    Subclasses are final. They write `init`, `value`, `constants` and `personal`. The other methods are hooks, whose
    default is right for nearly all objectives. `own` stands for numbers that belong to one client (APFL's α_m).

    >>> import twofold as tw
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.01), lam=0.1)
    >>> objective.name, objective.equation
    ('mixture', "f'(β) + (λ/2)‖w − β‖²")
    >>> objective.mixture_strength(), objective.stages()
    (0.1, None)
    """

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    whole_models: ClassVar[bool] = False
    """Whether w and β are each either empty or a complete set of the loss's parameters."""
    equation: ClassVar[str]
    loss: Loss

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Give the starting (w, β) for these clients, mostly zeros; either may be the empty pytree."""
        raise NotImplementedError

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Compute f_m(w, β_m) on the given rows."""
        raise NotImplementedError

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """Give certified constants of F in the scaled space, or None where there is no formula for them."""
        raise NotImplementedError

    def curvature(self, clients: Clients) -> BlockCurvature | None:
        """The arrows below and above the Hessian, where the loss is linear; None where nothing of the kind is known."""
        return None

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Give the parameters of `loss` with which this client predicts; `rows` are its training rows."""
        raise NotImplementedError

    # --- hooks --------------------------------------------------------------------------------------------------------

    def bind(self, clients: Clients) -> Objective:
        """Give this objective together with what it must know about the clients first (shapes, for example)."""
        return self

    def prepare(self, clients: Clients, minimise: Callable[[Objective], tuple[Pytree, Pytree]]) -> Objective:
        """Give what `bind` gives, where needed with the minimiser (w, β) of another objective on the same clients in it."""
        return self.bind(clients)

    def own(self, clients: Clients) -> Pytree:
        """Give the numbers that belong to each client, with a leading client axis."""
        return NOTHING

    def stages(self) -> Stages | None:
        """Give the two stages of an objective that is solved one after the other (Λ = ∞), else None."""
        return None

    def mixture_strength(self) -> float | None:
        """Give λ if this is f'(β) + (λ/2)‖w − β‖², the only objective that L2SGD+ and pFedMe solve, else None."""
        return None

    def by_class(self) -> Objective | None:
        """Give this objective of softmax weights kept class by class, else None (see `Problem.variables`)."""
        loss = self.loss.by_class() if self.whole_models else None
        return None if loss is None else dataclasses.replace(self, loss=loss)  # type: ignore[type-var]

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """Grade this client's predictions: one figure per row of (x, y), larger is better."""
        return self.loss.grade(self.personal(w, beta, train, own), x, y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """Predict for the rows x with this client's model."""
        return self.loss.predict(self.personal(w, beta, train, own), x)

    def measure(self) -> Measure:
        """Say what `grade` measures."""
        link = getattr(getattr(self, "loss", None), "link", None)  # an objective may have no loss of ours at all
        if link is None:
            return "minus loss"
        return "minus squared error" if link.labels is None else "accuracy"

    def parts(self, clients: Clients) -> tuple[Part, ...]:
        """Say which of w ("shared") and β ("alone") are models by themselves: those shaped like the loss's parameters."""
        if getattr(self, "loss", None) is None:
            return ()
        model = _shapes(self.loss.init(clients))
        names: tuple[Part, Part] = ("shared", "alone")
        return tuple(part for part, block in zip(names, self.init(clients), strict=True) if _shapes(block) == model)

    def grade_part(
        self, part: Part, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree
    ) -> jax.Array:
        """Grade the predictions of one block alone, which must be one of `parts`."""
        return self.loss.grade(w if part == "shared" else beta, x, y)


def _shapes(block: Pytree) -> Pytree:
    def shape(leaf: Any) -> tuple[int, ...]:
        return np.shape(leaf)

    return jax.tree.map(shape, block)


def positive(name: str, value: object, *, zero: bool = False) -> float:
    """Give the value as a float if it is finite and positive (or zero, where that is allowed), else raise.

    >>> from twofold.objectives.base import positive
    >>> positive("lam", 2)
    2.0
    """
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf or (value == 0 and not zero):
        raise InputError(f"{name} must be a finite number {'≥' if zero else '>'} 0, got {name}={value!r}.")
    return float(value)
