"""The base class of personalised objectives: one client's f(w, β, rows) in unscaled w, its constants, and its hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from inspect import isfunction
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients
from twofold.errors import InputError, KindError
from twofold.losses import Rows
from twofold.theory.constants import Constants
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.curvature.model import BlockCurvature
    from twofold.losses import Custom, Linear, Net

    Loss: TypeAlias = Linear | Custom | Net
else:
    Loss = Any

__all__ = [
    "NOTHING", "Loss", "Measure", "Objective", "Part", "Stages", "each_positive", "own_strength", "positive", "with_typical",
]  # fmt: skip

NOTHING: Pytree = ()
"""An empty block: the shared part of local training, the private part of traditional federated learning."""

Part: TypeAlias = Literal["shared", "alone"]
"""One block used as a model by itself: w without β ("shared"), or β without w ("alone")."""
Measure: TypeAlias = Literal["accuracy", "minus squared error", "minus loss", "grade"]
"""What a grade measures; larger is always better. "grade" means a number from the user's own function."""


class Stages(NamedTuple):
    """The two problems of an objective that is solved in two stages.

    `first` has no private part. `second(w)` is the second stage's objective with w fixed at the first stage's solution, so it
    has no shared part.

    >>> import twofold as tw
    >>> ditto = tw.objectives.multitask(tw.losses.logistic(), lam=0.1, Lambda=float("inf"))
    >>> ditto.stages().first.name
    'traditional'
    """

    first: Objective
    second: Callable[[Pytree], Objective]


class Objective:
    """One client's objective f_m(w, β_m), a function of the shared w, the private β_m and the client's rows.

    Subclasses are final. They define `init`, `value`, `constants` and `personal`. The other methods are hooks, and their
    defaults are right for nearly all objectives. `own` holds numbers that belong to one client, such as APFL's α_m.

    >>> import twofold as tw
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.01), lam=0.1)
    >>> objective.name, objective.equation
    ('mixture', "f'(β) + (λ/2)‖w − β‖²")
    >>> objective.mixture_strength(), objective.stages()
    (0.1, None)
    """

    def __post_init__(self) -> None:
        loss = getattr(self, "loss", None)
        if isinstance(loss, type) or isfunction(loss):
            name = loss.__name__
            raise KindError(
                f"The objective's loss is {name} itself: call it, as in tw.losses.{name}(...), before you hand it over."
            )

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    whole_models: ClassVar[bool] = False
    """Whether w and β are each either empty or a complete set of the loss's parameters."""
    personal_needs_rows: ClassVar[bool] = False
    """Whether `personal` needs the client's training rows; an exported model must then store what `personal` returns."""
    equation: ClassVar[str]
    reveals: ClassVar[str] = "a message may depend on β and on every row"
    """What one message that is not masked gives away, in a few words; docs/federation.md has more."""
    loss: Loss

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Return the starting (w, β) for these clients, mostly zeros; either may be the empty pytree."""
        raise NotImplementedError

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Compute f_m(w, β_m) on the given rows."""
        raise NotImplementedError

    def constants(self, clients: Clients, scale: float) -> Constants | None:
        """Return certified constants of F in the scaled space, or None if there is no formula for them."""
        raise NotImplementedError

    def curvature(self, clients: Clients) -> BlockCurvature | None:
        """Arrow-shaped lower and upper bounds of the Hessian, for linear losses; None if no such bounds are known."""
        return None

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Return the parameters of `loss` with which this client predicts; `rows` are its training rows."""
        raise NotImplementedError

    # --- hooks --------------------------------------------------------------------------------------------------------

    def bind(self, clients: Clients) -> Objective:
        """Return this objective with what it must know about the clients filled in, such as shapes."""
        return self

    def prepare(self, clients: Clients, minimise: Callable[[Objective], tuple[Pytree, Pytree]]) -> Objective:
        """Do what `bind` does; an objective that needs the minimiser (w, β) of another one first computes it with `minimise`."""
        return self.bind(clients)

    def own(self, clients: Clients) -> Pytree:
        """Return the numbers that belong to each client, with a leading client axis."""
        return NOTHING

    def stages(self) -> Stages | None:
        """Return the two stages of an objective that is solved in two stages (Λ = ∞), else None."""
        return None

    def mixture_strength(self) -> float | None:
        """Return λ if this is f'(β) + (λ/2)‖w − β‖², the only objective that L2SGD+ and pFedMe solve, else None."""
        return None

    def by_class(self) -> Objective | None:
        """Return this objective for softmax weights stored as (classes, features), else None (see `Problem.variables`)."""
        loss = self.loss.by_class() if self.whole_models else None
        return None if loss is None else dataclasses.replace(self, loss=loss)  # type: ignore[type-var]

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """Grade this client's predictions: one number per row of (x, y), larger is better."""
        return self.loss.grade(self.personal(w, beta, train, own), x, y)

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """Predict for the rows x with this client's model."""
        return self.loss.predict(self.personal(w, beta, train, own), x)

    def measure(self) -> Measure:
        """Say what `grade` measures."""
        link = getattr(getattr(self, "loss", None), "link", None)  # a custom objective has no loss
        if link is None:
            return "minus loss"
        return "minus squared error" if link.labels is None else "accuracy"

    def parts(self, clients: Clients) -> tuple[Part, ...]:
        """List which of w ("shared") and β ("alone") are models by themselves: those shaped like the loss's parameters."""
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

    # --- hooks of an exported model: on the host, and without any training rows ---------------------------------------

    def only(self, part: Part, w: Pytree, beta: Pytree) -> Pytree:
        """Return the parameters of one block alone, in the form of `personal`; the block must be one of `parts`."""
        return w if part == "shared" else beta

    def scores(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """Return the scores for the rows x under the parameters from `personal`: one per row, or one per row and class."""
        return self.loss.scores(personal, x)

    def predictions(self, personal: Pytree, x: Pytree) -> NDArray[Any]:
        """Predict for the rows x with the parameters from `personal`."""
        return self.loss.predictions(personal, x)

    def of_client(self, m: int) -> Objective:
        """Return this objective with client m's numbers only."""
        arrays = {name: value for name, value in self._numbers().items() if np.ndim(value)}
        mine = {name: float(value[m]) for name, value in arrays.items()}
        return dataclasses.replace(self, **mine) if mine else self  # type: ignore[type-var]

    def of_newcomer(self, own: Mapping[str, float]) -> Objective:
        """Return this objective for a client that was not in training; `own` has its numbers wherever each client has its own."""
        numbers = self._numbers()
        for name in own.keys() - numbers.keys():
            has = f"it has {', '.join(numbers)}" if numbers else "leave it out"
            raise InputError(f"{self.name} has no {name}: {has}.")
        for name, value in numbers.items():
            if np.size(value) != 1 and name not in own:
                raise InputError(
                    f"Each of the {np.size(value)} clients has its own {name}: give the new client's, as in adapt(x, y, {name}=0.5)."
                )
        mine = {name: float(own.get(name, np.reshape(value, -1)[0])) for name, value in numbers.items()}
        return dataclasses.replace(self, **mine) if mine else self  # type: ignore[type-var]

    def _numbers(self) -> dict[str, Any]:
        """The fields that hold one number, or one number per client."""
        data = [field.name for field in dataclasses.fields(self) if not field.metadata.get("static")]  # type: ignore[arg-type]
        found: dict[str, Any] = {name: getattr(self, name) for name in data}
        kinds = (int, float, np.ndarray, np.number, jax.Array)
        numbers = [name for name, value in found.items() if isinstance(value, kinds)]
        return {name: found[name] for name in numbers if np.ndim(found[name]) < 2}

    def describe(self) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the arguments, besides the loss, from which `objectives.REGISTRY` can rebuild this objective.

        JSON can hold them. None if one of the arguments is a user's function.
        """
        fields = [field.name for field in dataclasses.fields(self) if field.name != "loss"]  # type: ignore[arg-type]
        found = {name: getattr(self, name) for name in fields}
        if any(callable(value) for value in found.values()):
            return None
        return self.name, {name: np.asarray(value).tolist() for name, value in found.items()}


def _shapes(block: Pytree) -> Pytree:
    def shape(leaf: Any) -> tuple[int, ...]:
        return np.shape(leaf)

    return jax.tree.map(shape, block)


def positive(name: str, value: object, *, zero: bool = False) -> float:
    """Return the value as a float if it is finite and positive (or zero, if `zero`), else raise.

    >>> from twofold.objectives.base import positive
    >>> positive("lam", 2)
    2.0
    """
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf or (value == 0 and not zero):
        raise InputError(f"{name} must be a finite number {'≥' if zero else '>'} 0, got {name}={value!r}.")
    return float(value)


def each_positive(name: str, value: object) -> float | NDArray[np.float64]:
    """Return one positive number as a float, or one number per client (≥ 0, not all 0) as an array, else raise.

    >>> from twofold.objectives.base import each_positive
    >>> each_positive("lam", [0.5, 0]).tolist()
    [0.5, 0.0]
    """
    if isinstance(value, Real) or np.ndim(cast(Any, value)) == 0:
        return positive(name, value)
    values = np.asarray(value, np.float64)
    wrong = ~(np.isfinite(values) & (values >= 0))
    if values.ndim != 1 or wrong.any() or not values.any():
        bad = f" (client {int(np.argmax(wrong))} has {values[wrong][0]})" if values.ndim == 1 and wrong.any() else ""
        raise InputError(
            f"{name} must be one number > 0, or one number ≥ 0 per client and not all 0{bad}, got {value!r}."
        )
    return values


def own_strength(name: str, value: float | NDArray[np.float64], clients: Clients) -> Pytree:
    """Return a strength as the clients' own numbers if there is one per client; otherwise nothing (an empty pytree).

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> tw.objectives.mixture(tw.losses.squared(), lam=[0.5, 2.0]).own(clients).tolist()
    [0.5, 2.0]
    """
    if not np.ndim(value):
        return NOTHING
    if np.shape(value) != (len(clients),):
        raise InputError(
            f"{name} has shape {np.shape(value)}, but there are {len(clients)} clients: give one number, or one per client."
        )
    return np.asarray(value, np.float64)


def with_typical(name: str, value: float | NDArray[np.float64], own: Mapping[str, float]) -> Mapping[str, float]:
    """Return a new client's own numbers; if `name` is not among them, add the median of the clients' nonzero values.

    >>> import numpy as np
    >>> with_typical("lam", np.array([0.0, 1.0, 3.0]), {})
    {'lam': 2.0}
    """
    if name in own or not np.ndim(value):
        return own
    everyone = np.asarray(value)
    return {**own, name: float(np.median(everyone[everyone > 0])) if np.any(everyone > 0) else 0.0}
