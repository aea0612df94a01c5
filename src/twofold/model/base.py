"""A model that travels: what every client predicts with, what rows it takes, and where it comes from."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import datetime
import difflib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import tree
from twofold.clients import Clients, Name
from twofold.errors import InputError, KindError, NotFound
from twofold.exports import Table
from twofold.extras import version
from twofold.losses import Linear
from twofold.model.adapting import find
from twofold.model.files import read, write
from twofold.model.inputs import Inputs, as_codes
from twofold.objectives.base import Loss, Objective, Part
from twofold.oracle import Member
from twofold.storage import plain
from twofold.theory.constants import Constants
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.problem import Problem
    from twofold.result import Result

__all__ = ["Model", "load"]

Who: TypeAlias = Name | Sequence[Name] | NDArray[Any]
"""One client's name, or one name for each row."""
NEW = "new client"
MOST_NAMED = 10
"""Clients that a sentence lists."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
    """Everyone's model, ready to predict without anybody's training rows; `result.save(folder)` and `tw.load(folder)` move it.

    `w` is the shared part and `beta` everyone's own, with a leading client axis. Clients are called by their names. Predictions
    are labels as the training data had them. `provenance` says where the model comes from.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])], names=["north", "south"])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)
    >>> model = tw.Model.of(problem, tw.solve(problem))
    >>> model
    Model(mixture of logistic losses, 2 clients, 2 features, classes 0 and 1)
    >>> model.predict("south", np.eye(2)).tolist()
    [1, 0]
    >>> model.only("south").names
    ('south',)
    >>> newcomer = model.adapt(np.eye(2), [1, 1])
    >>> newcomer.predict(np.eye(2)).tolist(), newcomer.gap < 1e-12
    ([1, 1], True)
    """

    objective: Objective
    names: tuple[Name, ...]
    w: Pytree
    beta: Pytree
    inputs: Inputs
    parts: tuple[Part, ...] = ()
    stored: Pytree | None = None
    """What each client predicts with, where that needs more than w and β (its rows or numbers of its own); leading client axis."""
    classes: tuple[Any, ...] | None = None
    schema: Any = None
    constants: Constants | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        problem: Problem,
        result: Result | tuple[Pytree, Pytree],
        *,
        features: Sequence[str] | None = None,
        classes: Sequence[Any] | None = None,
    ) -> Model:
        """Make the model of a run: what `solve` gave, or a pair (w, beta) of real parameters.

        `features` are names for the columns of x, and `classes` the labels that 0, 1, … stand for; by default what the clients
        know of both (see `Clients.from_frame`).

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic()), clients)
        >>> model = tw.Model.of(problem, ((), np.array([[-1.0, 1.0]])), classes=["no", "yes"])
        >>> model.predict("north", np.eye(2)).tolist()
        ['no', 'yes']
        """
        pair = result if isinstance(result, tuple) else (result.w, result.beta)
        if len(pair) != 2:
            raise KindError(f"Give one run's Result or a pair (w, beta), got a tuple of {len(pair)}.")
        problem.check(*pair)
        w, beta = jax.tree.map(np.asarray, pair)
        clients, objective = problem.clients, problem.objective
        schema = getattr(clients, "schema", None)
        features = getattr(schema, "features", None) if features is None else features
        classes = getattr(schema, "classes", None) if classes is None else classes
        own = objective.own(clients)
        needs = objective.personal_needs_rows or tree.size(own) > 0
        return cls(
            objective=objective,
            names=clients.names,
            w=w,
            beta=beta,
            inputs=Inputs.of(clients, features),
            parts=objective.parts(clients),
            stored=_everyones(problem, w, beta) if needs else None,
            classes=_classes(classes, objective),
            schema=schema,
            constants=_constants(problem),
            provenance=_provenance(problem, None if isinstance(result, tuple) else result),
        )

    # --- who ----------------------------------------------------------------------------------------------------------

    @property
    def M(self) -> int:  # noqa: N802
        """The number of clients, M in the paper."""
        return len(self.names)

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the columns of x, where they are known."""
        return self.inputs.features

    @property
    def loss(self) -> Loss:
        """The loss whose parameters every client predicts with."""
        return self.objective.loss

    @property
    def gap(self) -> float | None:
        """How far an adapted client's objective is from its minimum at most; NaN if not certified, None if nothing was adapted."""
        adapted = self.provenance.get("adapted")
        if adapted is None:
            return None
        return math.nan if adapted["gap"] is None else float(adapted["gap"])

    @cached_property
    def _lookup(self) -> dict[Name, int]:
        return {name: m for m, name in enumerate(self.names)}

    def position(self, client: Name) -> int:
        """Find a client by its name, which may be a string or a number.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])], names=["north", "south"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> tw.Model.of(problem, problem.start).position("south")
        1
        """
        name = cast(Name, client.item()) if isinstance(client, np.generic) else client
        if name not in self._lookup:
            near = difflib.get_close_matches(str(name), [str(other) for other in self.names], n=1)
            some = ", ".join(repr(other) for other in self.names[:MOST_NAMED]) + (", …" if self.M > MOST_NAMED else "")
            it_has = f"it has {some}{f'; did you mean {near[0]!r}?' if near else '.'}"
            raise NotFound(
                f"This model has no client {name!r}; {it_has if self.M > 1 else f'it is that of {some} alone.'} For a client that "
                "was not there in training use adapt(x, y) or predict_new(x)."
            )
        return self._lookup[name]

    def parameters(self, client: Name) -> Pytree:
        """Give the parameters with which a client predicts: of the loss, or of both parts where the objective adds them up.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.adaptive(tw.losses.squared(l2=0.1), alpha=0.5), clients)
        >>> tw.Model.of(problem, (np.ones(2), 3 * np.ones((1, 2)))).parameters("north").tolist()
        [2.0, 2.0]
        """
        m = self.position(client)

        def of_client(leaf: Any) -> Any:
            return leaf[m]

        if self.stored is not None:
            return jax.tree.map(of_client, self.stored)
        own: Pytree = ()
        return self.objective.personal(self.w, jax.tree.map(of_client, self.beta), cast(Any, None), own)

    def only(self, client: Name) -> Model:
        """Give one client's part alone, to be saved and handed to it: it holds nothing of the others but what all share.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])], names=["north", "south"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> tw.Model.of(problem, problem.start).only("south").beta.shape
        (1, 2)
        """
        m = self.position(client)

        def mine(leaf: NDArray[Any]) -> NDArray[Any]:
            return leaf[m : m + 1].copy()  # a view would keep everyone's in memory

        return dataclasses.replace(
            self,
            objective=self.objective.of_client(m),
            names=(self.names[m],),
            beta=jax.tree.map(mine, self.beta),
            stored=None if self.stored is None else jax.tree.map(mine, self.stored),
            schema=None if self.schema is None else self.schema.only(self.names[m]),
            constants=None,  # they are about everyone's data
            provenance=_of_one(self.provenance, m),
        )

    # --- predictions --------------------------------------------------------------------------------------------------

    @overload
    def predict(self, client: Who, x: Any) -> NDArray[Any]: ...
    @overload
    def predict(self, client: Any) -> NDArray[Any]: ...
    def predict(self, client: Any, x: Any = None) -> NDArray[Any]:
        """Predict for the rows x of one client, or with one client's name for each row; `predict(x)` where there is one client.

        x is an array or a data frame, whose columns are found by their names.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])], names=["north", "south"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> model = tw.Model.of(problem, ((), np.array([[-1.0, 1.0], [1.0, -1.0]])))
        >>> model.predict("north", np.eye(2)).tolist(), model.predict(["south", "north"], np.eye(2)).tolist()
        ([0, 1], [1, 1])
        """
        return self._labels(self._each(self.objective.predictions, client, x))

    @overload
    def predict_proba(self, client: Who, x: Any) -> NDArray[Any]: ...
    @overload
    def predict_proba(self, client: Any) -> NDArray[Any]: ...
    def predict_proba(self, client: Any, x: Any = None) -> NDArray[Any]:
        """Give the probability of every class for each row, in the order of `classes` (0, 1, … if there are none).

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> tw.Model.of(problem, problem.start).predict_proba("north", np.eye(2)).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
        """
        return self.loss.probabilities(self._each(self.objective.scores, client, x))

    @overload
    def decision_function(self, client: Who, x: Any) -> NDArray[Any]: ...
    @overload
    def decision_function(self, client: Any) -> NDArray[Any]: ...
    def decision_function(self, client: Any, x: Any = None) -> NDArray[Any]:
        """Give the scores behind the predictions: one a row, or one per class for a softmax.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> tw.Model.of(problem, ((), np.array([[-1.0, 2.0]]))).decision_function("north", np.eye(2)).tolist()
        [-1.0, 2.0]
        """
        return self._each(self.objective.scores, client, x)

    def predict_new(self, x: Any) -> NDArray[Any]:
        """Predict for a client that was not there, with the shared part; see `shared`.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.1), lam=1.0), clients)
        >>> tw.Model.of(problem, (np.array([1.0, 2.0]), np.zeros((1, 2)))).predict_new(np.eye(2)).tolist()
        [1.0, 2.0]
        """
        return self.shared().predict(x)

    def shared(self) -> Model:
        """Give the shared part as a model of one client, where it is a model by itself; it can do all that a Model can.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> try:
        ...     tw.Model.of(problem, problem.start).shared()
        ... except ValueError as mistake:
        ...     print(mistake)
        local shares nothing, so it has no prediction for a new client: adapt(x, y) fits one to a few of its own rows.
        """
        if "shared" not in self.parts:
            nothing = tree.size(self.w) == 0
            why = "shares nothing" if nothing else "has a shared part that is no model by itself"
            raise InputError(
                f"{self.objective.name} {why}, so it has no prediction for a new client: adapt(x, y) fits one to a few of its own rows."
            )

        def untouched(leaf: NDArray[Any]) -> NDArray[Any]:
            return np.zeros((1, *np.shape(leaf)[1:]), np.asarray(leaf).dtype)

        beta = jax.tree.map(untouched, self.beta)
        alone = self.objective.only("shared", self.w, jax.tree.map(lambda leaf: leaf[0], beta))
        stored = jax.tree.map(lambda leaf: np.asarray(leaf)[None], alone)
        return dataclasses.replace(
            self,
            names=(NEW,),
            beta=beta,
            stored=stored,
            schema=None if self.schema is None else self.schema.only(None),
            provenance={key: value for key, value in self.provenance.items() if key != "ledger"},
        )

    def adapt(self, x: Any, y: ArrayLike, *, name: Name = NEW, **own: float) -> Model:
        """Fit a new client's own part to a few of its rows, with w as it is: a model of this one client, with its `gap`.

        β minimises f(w, β) on these rows, by Newton's method in double precision. The first call in a process takes about a second,
        which is compilation; others with a linear loss take milliseconds, whatever their rows. `gap` bounds how far f(w, β) is from its
        minimum; it is NaN where nothing is known of the curvature. Where every client has a number of its own (APFL's α, or λ), say
        this one's: `adapt(x, y, alpha=0.5)`.

        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(), lam=1.0), clients)
        >>> model = tw.Model.of(problem, (np.zeros(2), np.zeros((1, 2))))
        >>> adapted = model.adapt(np.eye(2), [3.0, 3.0])  # ¼Σ(βᵢ − 3)² + ½‖β‖²
        >>> adapted.beta.round(9).tolist(), adapted.gap < 1e-14
        ([[1.0, 1.0]], True)
        """
        if tree.size(self.beta) == 0 and not self._adapts_without_beta:
            raise InputError(
                f"{self.objective.name} has no private part that could be adapted: everyone predicts with w, as predict_new(x) does."
            )
        objective = self.objective.of_newcomer(own)
        rows = self._read(x, None, name)
        clients = Clients.from_list([(rows, as_codes(y, self.classes, name))], names=[name])
        found = find(objective, self.w, clients)

        def alone(leaf: NDArray[Any]) -> NDArray[Any]:
            return leaf[None]

        adapted = {"rows": clients.rows, "gap": None if math.isnan(found.gap) else found.gap}
        kept = {key: value for key, value in self.provenance.items() if key != "ledger"}
        return dataclasses.replace(
            self,
            objective=found.objective.of_client(0),
            names=(name,),
            beta=jax.tree.map(alone, found.beta),
            stored=None if self.stored is None else jax.tree.map(alone, found.personal),
            schema=None if self.schema is None else self.schema.only(None),
            constants=None,
            provenance={**kept, "adapted": adapted},
        )

    @property
    def _adapts_without_beta(self) -> bool:
        """MAML takes a step and FLIX blends: their clients differ without any β."""
        return self.stored is not None

    def _each(self, function: Any, client: Any, x: Any) -> NDArray[Any]:
        """A function of parameters and rows, for one client or row by row."""
        if x is None:
            if self.M > 1:
                raise KindError(
                    f"predict needs a client and its rows x, since there are {self.M} clients: predict({self.names[0]!r}, x)."
                )
            client, x = self.names[0], client
        if np.ndim(client) == 0:
            name = self.names[self.position(cast(Name, client))]
            return function(self.parameters(name), self._read(x, name, name))
        return self._by_row(function, np.asarray(client), x)

    def _by_row(self, function: Any, who: NDArray[Any], x: Any) -> NDArray[Any]:
        names = [name.item() if isinstance(name, np.generic) else name for name in who.ravel()]
        rows = self._read(x, names, "of all rows")
        count = np.shape(jax.tree.leaves(rows)[0])[0]
        if who.ndim != 1 or len(names) != count:
            raise InputError(
                f"There are {len(names)} clients' names for {count} rows of x: give one for each row, or one for all."
            )
        positions = np.array([self.position(name) for name in names], np.int64)
        out: NDArray[Any] | None = None
        for m in np.unique(positions):
            mine = np.flatnonzero(positions == m)
            found = function(self.parameters(self.names[m]), jax.tree.map(lambda leaf, mine=mine: leaf[mine], rows))
            out = np.empty((count, *found.shape[1:]), found.dtype) if out is None else out
            out[mine] = found
        return np.zeros(0) if out is None else out

    def _read(self, x: Any, client: Any, who: Name) -> Pytree:
        """Rows as the training data were made: encoded and scaled by the schema, where there is one, and checked."""
        return self.inputs.read(x if self.schema is None else self.schema.encode(x, client), who)

    def _labels(self, codes: NDArray[Any]) -> NDArray[Any]:
        return codes if self.classes is None else np.asarray(self.classes)[codes]

    # --- words and files ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        who = f"{self.M:,} clients" if self.M > 1 else f"client {self.names[0]!r}"
        width = self.inputs.width
        what = f"{width} features" if width is not None else "features of its own kind"
        loss = getattr(self.objective, "loss", None)  # an objective may have no loss of ours at all
        link = loss.link if isinstance(loss, Linear) else None
        kind = f"{self.objective.name} of {'custom' if link is None else link.name} losses"
        out = [kind, who, what]
        if link is not None and link.labels is not None:
            labels = [str(label) for label in self.classes or range(link.labels)]
            out.append(f"classes {' and '.join(labels)}" if len(labels) == 2 else f"{len(labels)} classes")
        return f"Model({', '.join(out)})"

    def _repr_html_(self) -> str:
        """The table that a notebook shows: what it is, of whom, what rows it takes, and where it comes from."""
        some = [str(name) for name in self.names[:MOST_NAMED]] + (["…"] if self.M > MOST_NAMED else [])
        said = {
            "model": repr(self),
            "clients": ", ".join(some),
            "features": ", ".join(self.features or ()),
            "classes": ", ".join(map(str, self.classes or ())),
            **{name: str(self.provenance[name]) for name in ("date", "status", "message") if name in self.provenance},
        }
        return Table("twofold.Model", ["", "value"], [[k, v] for k, v in said.items() if v], left=("value",)).to_html()

    def save(self, folder: str | Path) -> Path:
        """Write `model.json` and `model.safetensors` into a folder, which `tw.load` reads.

        >>> import tempfile
        >>> import numpy as np, twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])], names=["north"])
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
        >>> folder = tw.Model.of(problem, problem.start).save(tempfile.mkdtemp())
        >>> tw.load(folder)
        Model(local of logistic losses, client 'north', 2 features, classes 0 and 1)
        """
        return write(self, Path(folder))


def load(folder: str | Path, *, loss: Loss | None = None, objective: Objective | None = None) -> Model:
    """Read a model that `result.save` or `Model.save` wrote.

    A file cannot hold a function. If the loss is your own (`losses.custom`), pass it as `loss`; if the objective is, pass that.

    >>> import tempfile
    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])], names=["north", "south"])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)
    >>> folder = tw.solve(problem).save(tempfile.mkdtemp())
    >>> tw.load(folder).predict("south", np.eye(2)).tolist()
    [1, 0]
    """
    return Model(**read(Path(folder), loss, objective))


# --- from a run -------------------------------------------------------------------------------------------------------


def _everyones(problem: Problem, w: Pytree, beta: Pytree) -> Pytree:
    """What each client predicts with, from its own training rows and numbers."""
    w, parts = tree.cast(w), problem.split(tree.cast(beta))
    found = tuple(
        _of_stack(problem.objective, stack, w, part) for stack, part in zip(problem.stacks, parts, strict=True)
    )
    return jax.tree.map(np.asarray, problem.join(found))


@jax.jit
def _of_stack(objective: Objective, stack: Member, w: Pytree, beta: Pytree) -> Pytree:
    def of_client(member: Member, beta: Pytree) -> Pytree:
        return objective.personal(w, beta, member.rows(), member.own)

    return jax.vmap(of_client)(stack, beta)


def _classes(classes: Sequence[Any] | None, objective: Objective) -> tuple[Any, ...] | None:
    if classes is None:
        return None
    found = tuple(label.item() if isinstance(label, np.generic) else label for label in classes)
    loss = getattr(objective, "loss", None)
    link = loss.link if isinstance(loss, Linear) else None
    if link is not None and link.labels is not None and len(found) != link.labels:
        raise InputError(
            f"The {link.name} loss has {link.labels} classes, but there are {len(found)} labels: {list(found)!r}."
        )
    return found


def _constants(problem: Problem) -> Constants | None:
    """The problem's constants where they follow from formulas; nothing is estimated for the sake of a file."""
    return None if problem.objective.stages() is not None or problem.curvature is None else problem.constants()


def _provenance(problem: Problem, result: Result | None) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    clients = problem.clients
    found: dict[str, Any] = {"twofold": version(), "date": now, "rows": clients.rows, "clients": clients.M}
    if result is None:
        return found
    run = ("status", "message", "seed", "seconds")
    found |= {name: plain(getattr(result, name)) for name in run}
    return found | {"notes": list(result.notes), "algorithm": result.settings, "ledger": result.ledger.as_dict()}


def _of_one(provenance: Mapping[str, Any], m: int) -> dict[str, Any]:
    """Where a model comes from, without other clients' entries: what the ledger counts for each is its own."""
    found = dict(provenance)
    if "ledger" in found:
        found["ledger"] = {
            name: value[m] if isinstance(value, list) else value for name, value in found["ledger"].items()
        }
    return {name: value for name, value in found.items() if name not in ("algorithm", "rows")} | _method(found)


def _method(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's name; its fields may have one entry for each client."""
    return {"algorithm": {"name": provenance["algorithm"]["name"]}} if "algorithm" in provenance else {}
