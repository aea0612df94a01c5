"""What a personalised objective is: one client's f(w, β, rows) in unscaled w, and its constants."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

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

    Loss = Linear | Custom
else:
    Loss = Any

NOTHING: Pytree = ()
"""An empty block: the shared part of local training, the private part of traditional federated learning."""


class Objective:
    """One client's objective f(w, β, rows, own); `own` holds numbers that belong to this client alone (APFL's α_m).

    Subclasses are final. `init`, `value`, `constants` and `personal` are theirs to write; the rest are hooks with the
    answer that nearly all of them give.
    """

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    whole: ClassVar[bool] = False  # whether w and β are each nothing, or all the parameters of the loss
    equation: ClassVar[str]
    loss: Loss

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero (w, β) for these clients; either may be the empty pytree."""
        raise NotImplementedError

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """f_m(w, β) on the given rows."""
        raise NotImplementedError

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """Certified constants of F in the scaled space, or None where only a local estimate is to be had."""
        raise NotImplementedError

    def curvature(self, clients: Clients) -> BlockCurvature | None:
        """The arrows below and above the Hessian, where the loss is linear; None where nothing of the kind is known."""
        return None

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """The parameters of `loss` with which this client predicts; `rows` are its training rows."""
        raise NotImplementedError

    def bind(self, clients: Clients) -> Objective:
        """This objective with what it must know of the clients before anything else (shapes, say)."""
        return self

    def own(self, clients: Clients) -> Pytree:
        """Numbers of each client's own, with a leading client axis."""
        return NOTHING

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """One figure per row of (x, y), larger is better, for what this client predicts with."""
        return self.loss.grade(self.personal(w, beta, train, own), x, y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """What this client predicts for the rows x."""
        return self.loss.predict(self.personal(w, beta, train, own), x)


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """The number if it is finite and positive (or zero where allowed), else a sentence."""
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf or (value == 0 and not zero):
        raise InputError(f"{name} must be a finite number {'≥' if zero else '>'} 0, got {name}={value!r}.")
    return float(value)
