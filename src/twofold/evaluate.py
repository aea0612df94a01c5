"""How good everyone's model is, client by client: personal, shared and alone, on rows that were not trained on.

`tw.evaluate(problem, result, test)` grades one run. `tw.evaluate.compare` trains and grades several objectives,
`tw.evaluate.predict` gives one client's predictions.
"""
# JAX leaves parts of jit's and vmap's signatures untyped, and pandas comes without types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold import objectives as catalogue
from twofold import tree
from twofold.algorithms import Algorithm
from twofold.clients import Clients, Name
from twofold.curvature import real_weight
from twofold.errors import InputError, KindError, NotFound
from twofold.objectives import Objective
from twofold.objectives.base import Loss, Measure, Part
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.result import Result, Status, frame
from twofold.solver import solve
from twofold.tree import Pytree

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "ALONE", "PARTS", "SHARED", "Comparison", "Evaluation", "Row", "Worst", "compare", "evaluate", "predict",
]  # fmt: skip

PARTS = ("personal", "shared", "alone")
"""The models that a client can be graded with: its objective's own, w alone, β alone."""
SHARED, ALONE = "shared model alone", "each client alone"
"""The two baselines of `compare`: traditional federated learning and local training."""
MOST_CLIENTS = 20
"""Clients that a printed evaluation lists one by one."""

Summary = TypedDict(
    "Summary",
    {"mean": float, "worst": float, "worst_client": Name, "10 %": float, "50 %": float, "90 %": float},
)
"""The figures of one model over all clients; the percentages are quantiles."""

Grades: TypeAlias = NDArray[np.float64]
Run: TypeAlias = Result | tuple[Pytree, Pytree]
"""What `solve` gave for one seed, or a pair (w, beta) of real parameters."""


class Worst(NamedTuple):
    """The client with the lowest grade.

    >>> from twofold.evaluate import Worst
    >>> Worst(client="bob", grade=0.5).client
    'bob'
    """

    client: Name
    grade: float


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Every client's grade (larger is better) for each model that it could predict with.

    `grades` maps "personal" (what the objective predicts with), "shared" (w alone) and "alone" (β alone) to one figure
    per client. A block that is no model by itself, such as the shared layers of weight sharing, is left out. The figure
    is the share of right answers, minus the mean squared error, or minus the mean loss: `measure` says which.

    >>> import numpy as np
    >>> from twofold.evaluate import Evaluation
    >>> grades = {"personal": np.array([0.9, 0.5])}
    >>> found = Evaluation(("ann", "bob"), np.array([10, 20]), grades, "accuracy", "local", held_out=True)
    >>> found.mean, found.worst.client
    (0.7, 'bob')
    >>> found
    Evaluation(local, accuracy of 2 clients: mean 70.0 %, worst 50.0 % (bob))
    """

    names: tuple[Name, ...]
    rows: NDArray[np.int32]
    grades: Mapping[str, Grades]
    measure: Measure
    objective: str
    held_out: bool

    def __getitem__(self, part: str) -> Grades:
        if part not in self.grades:
            raise NotFound(f"{self.objective} has no {part!r} model; it has {', '.join(self.grades)}.")
        return self.grades[part]

    @property
    def personal(self) -> Grades:
        """One grade per client, for the model that the objective predicts with."""
        return self["personal"]

    @property
    def mean(self) -> float:
        """The mean of the personal grades; every client counts once, whatever its size."""
        return float(self.personal.mean())

    @property
    def worst(self) -> Worst:
        """The client with the lowest personal grade; the first one if there are several."""
        return _worst(self.names, self.personal)

    def quantiles(self, q: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0), part: str = "personal") -> Grades:
        """Compute quantiles over clients of one model's grades."""
        return np.quantile(self[part], q)

    def summary(self) -> dict[str, Summary]:
        """Give each model's mean, worst, worst_client, and the 10 %, 50 % and 90 % quantiles over clients."""
        out: dict[str, Summary] = {}
        for part, grades in self.grades.items():
            worst = _worst(self.names, grades)
            low, middle, high = (float(quantile) for quantile in np.quantile(grades, (0.1, 0.5, 0.9)))
            out[part] = {
                "mean": float(grades.mean()),
                "worst": worst.grade,
                "worst_client": worst.client,
                "10 %": low,
                "50 %": middle,
                "90 %": high,
            }
        return out

    def to_pandas(self) -> DataFrame:
        """Give a DataFrame with one row per client: its name, its number of rows, and its grades (needs pandas)."""
        return frame("Evaluation.to_pandas", {"client": self.names, "rows": self.rows, **self.grades})

    def __repr__(self) -> str:
        worst = self.worst
        figures = f"mean {_show(self.mean, self.measure)}, worst {_show(worst.grade, self.measure)} ({worst.client})"
        return f"Evaluation({self.objective}, {self.measure} of {len(self.names)} clients: {figures})"

    def __str__(self) -> str:
        where = "rows held out" if self.held_out else "training rows"
        title = f"{self.objective}: {self.measure} of {len(self.names)} clients on {int(self.rows.sum()):,} {where}"
        summary = self.summary()
        columns = list(Summary.__annotations__)
        head = [["", *(c.replace("_", " ") for c in columns)]]
        head += [[part, *(_show(value, self.measure) for value in _values(values))] for part, values in summary.items()]
        body = [["client", "rows", *self.grades]]
        for m in range(min(len(self.names), MOST_CLIENTS)):
            figures = (_show(float(grades[m]), self.measure) for grades in self.grades.values())
            body.append([str(self.names[m]), f"{int(self.rows[m]):,}", *figures])
        more = len(self.names) - MOST_CLIENTS
        rest = [f"… and {more:,} more clients: see .to_pandas()"] if more > 0 else []
        return "\n".join([title, "", *_align(head), "", *_align(body), *rest])


def evaluate(problem: Problem, result: Run, test_clients: Clients | None = None) -> Evaluation:
    """Grade a run's models client by client, on `test_clients`, or on the training rows if there are none.

    `result` is what `solve` gave, or a pair (w, beta) of real parameters, where beta has a leading client axis. The
    test clients must have the names of the training clients, in the same order, and the same features. MAML's step is
    taken on each client's own training rows.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> train, test = tw.Clients.from_list(made.clients).split(test=0.5)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), train)
    >>> found = tw.evaluate(problem, problem.start, test)
    >>> found.measure, list(found.grades)
    ('accuracy', ['personal', 'shared', 'alone'])
    """
    w, beta = _parameters(problem, result)
    test = problem.clients if test_clients is None else test_clients
    _check_test(problem.clients, test)
    parts = problem.objective.parts(problem.clients)
    found: list[dict[str, jax.Array]] = []
    for stack, own in zip(problem.stacks, problem.split(beta), strict=True):
        held = test.stack(np.asarray(stack.position))
        rows = tree.cast((held.x, held.y, held.count))
        found.append(cast(dict[str, jax.Array], _grades(parts, problem.objective, stack, w, own, *rows)))
    everyone = problem.join(tuple(found))
    return Evaluation(
        names=test.names,
        rows=np.asarray(test.counts),
        grades={part: np.asarray(everyone[part], np.float64) for part in ("personal", *parts)},
        measure=problem.objective.measure(),
        objective=problem.objective.name,
        held_out=test_clients is not None,
    )


def predict(problem: Problem, result: Run, client: Name, x: Pytree) -> NDArray[Any]:
    """Predict for rows x with one client's personal model; a string is the client's name, an integer its position.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))], names=["ann", "bob"])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
    >>> beta = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> tw.evaluate.predict(problem, ((), beta), "bob", np.eye(2)).tolist()
    [3.0, 4.0]
    """
    w, beta = _parameters(problem, result)
    trained = problem.clients[client]  # raises, with the names that there are, if this is not one of them
    m = problem.clients.position(client) if isinstance(client, str) else range(problem.M)[client]
    _check_features(problem.clients, x, trained.name)
    member = problem.member(m)

    def of_client(leaf: jax.Array) -> jax.Array:
        return leaf[m]

    own = jax.tree.map(of_client, beta)
    return np.asarray(problem.objective.predict(w, own, member.rows(), member.own, tree.cast(x)))


def _parameters(problem: Problem, result: Run) -> tuple[Pytree, Pytree]:
    if isinstance(result, Result):
        w, beta = result.w, result.beta
    elif isinstance(result, tuple) and len(result) == 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        w, beta = result
    else:  # users may pass anything
        raise KindError(f"Give one run's Result or a pair (w, beta), got {type(cast(object, result)).__name__}.")
    problem.check(w, beta)
    return tree.cast(w), tree.cast(beta)


def _check_test(train: Clients, test: object) -> None:
    """Raise unless the test clients are the training clients, with the same features."""
    if not isinstance(test, Clients):
        raise KindError(f"The test clients must be Clients (see Clients.split), got {type(test).__name__}.")
    _check_features(train, test.x, test.names[0])
    if train.names == test.names:
        return
    if train.M != test.M:
        raise InputError(f"There are {train.M} training clients but {test.M} test clients: give each its own rows.")
    m = next(m for m, (a, b) in enumerate(zip(train.names, test.names, strict=True)) if a != b)
    raise InputError(
        f"Test clients must have the training clients' names in the same order, but client {m} is named "
        f"{train.names[m]!r} in training and {test.names[m]!r} in the test."
    )


def _check_features(train: Clients, x: Pytree, client: Name) -> None:
    """Raise unless rows x have the features that the problem was trained on.

    A small product is written out term by term, for speed, and would silently leave out what does not fit.
    """
    needed, found = (_features(part) for part in (train.x, x))
    if found != needed:
        raise InputError(
            f"Client {client!r} has x of {_show_features(found)}, but the problem was trained on "
            f"{_show_features(needed)}: give rows with the same features."
        )


def _features(x: Pytree) -> dict[str, tuple[int, ...]]:
    """The shape of one row of each array of x, by its place in the pytree; an array without rows has shape (-1,)."""
    leaves = cast(list[tuple[tuple[Any, ...], Any]], jax.tree_util.tree_leaves_with_path(x))
    return {jax.tree_util.keystr(path): np.shape(leaf)[1:] if np.ndim(leaf) else (-1,) for path, leaf in leaves}


def _show_features(features: dict[str, tuple[int, ...]]) -> str:
    def kind(shape: tuple[int, ...]) -> str:
        if shape == (-1,):
            return "a single value"
        return f"width {shape[0]}" if len(shape) == 1 else f"rows of shape {shape}"

    return (
        ", ".join(f"{kind(shape)}{f' in {place}' if place else ''}" for place, shape in features.items()) or "no array"
    )


@partial(jax.jit, static_argnums=0)
def _grades(
    parts: tuple[Part, ...],
    objective: Objective,
    stack: Member,
    w: Pytree,
    beta: Pytree,
    x: Pytree,
    y: Pytree,
    count: jax.Array,
) -> dict[str, jax.Array]:
    """The mean grade of each client of a stack over its own test rows, without padding, for every model."""

    def of_client(member: Member, beta: Pytree, x: Pytree, y: Pytree, count: jax.Array) -> dict[str, jax.Array]:
        train, own = member.rows(), member.own
        weight = real_weight(jax.tree.leaves(x)[0].shape[0], count)
        rows: dict[str, jax.Array] = {"personal": objective.grade(w, beta, train, own, x, y)}
        for part in parts:
            rows[part] = objective.grade_part(part, w, beta, train, own, x, y)
        return {part: jnp.vdot(weight, grades) for part, grades in rows.items()}

    return jax.vmap(of_client)(stack, beta, x, y, count)


# --- many objectives --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a comparison: how well the clients do with an objective, and what the run cost.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> found = tw.evaluate.compare(
    ...     loss, clients, clients, {"near": tw.objectives.mixture(loss, lam=1.0)}, rounds=2, baselines=False, record=()
    ... )
    >>> row = found["near"]
    >>> row.rounds, row.status, row.equation
    (2, 'budget', "f'(β) + (λ/2)‖w − β‖²")
    """

    name: str
    evaluation: Evaluation
    result: Result
    equation: str

    @property
    def mean(self) -> float:
        """The mean grade over clients."""
        return self.evaluation.mean

    @property
    def worst(self) -> float:
        """The worst client's grade."""
        return self.evaluation.worst.grade

    @property
    def rounds(self) -> int:
        """Rounds of communication."""
        return self.result.ledger.rounds

    @property
    def bytes(self) -> int:
        """Bytes that each client sent and received, together; the mean over clients where these differ."""
        return round(self.result.ledger.bytes_per_client)

    @property
    def seconds(self) -> float:
        """Wall time of the run, compilation included."""
        return self.result.seconds

    @property
    def status(self) -> Status:
        """How the run ended."""
        return self.result.status


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several objectives on the same clients, side by side; `compare` makes it.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> found = tw.evaluate.compare(
    ...     loss, clients, clients, {"near": tw.objectives.mixture(loss, lam=1.0)}, rounds=2, baselines=False, record=()
    ... )
    >>> len(found), found.measure
    (1, 'minus squared error')
    """

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise NotFound(f"There is no {name!r} here; there are {', '.join(row.name for row in self.rows)}.")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def measure(self) -> Measure:
        """What the grades are."""
        return self.rows[0].evaluation.measure

    def to_pandas(self) -> DataFrame:
        """Give a DataFrame with one row per objective: name, mean, worst, rounds, bytes, seconds, status (needs pandas)."""
        columns = ("name", "mean", "worst", "rounds", "bytes", "seconds", "status")
        return frame(
            "Comparison.to_pandas", {column: [getattr(row, column) for row in self.rows] for column in columns}
        )

    def __str__(self) -> str:
        lines = [["", f"{self.measure}, mean", "worst client", "rounds", "bytes per client", "seconds"]]
        for row in self.rows:
            figures = [
                _show(row.mean, self.measure),
                _show(row.worst, self.measure),
                f"{row.rounds:,}",
                f"{row.bytes:,}",
            ]
            ended = "" if row.status != "diverged" else "  (diverged)"
            lines.append([row.name, *figures, f"{row.seconds:.1f}{ended}"])
        return "\n".join(_align(lines))


def compare(
    loss: Loss,
    train: Clients,
    test: Clients,
    objectives: Mapping[str, Objective],
    *,
    rounds: int | None = None,
    algorithm: str | Algorithm = "acd",
    baselines: bool = True,
    rows: Literal["bfloat16"] | None = None,
    **options: Any,
) -> Comparison:
    """Train the shared model alone, each client alone and every given objective, and grade them on the test rows.

    `objectives` maps a name of your choice to an objective. All are solved by the same algorithm with the same `rounds`
    and `options`, which go to `solve` (tol, seed, every, ...). Local training sends nothing, so there `rounds` counts
    iterations. `rows` is the precision in which features are kept for training, as in `Problem`.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> near = tw.objectives.mixture(loss, lam=1.0)
    >>> found = tw.evaluate.compare(loss, clients, clients, {"near": near}, rounds=2, baselines=False, record=())
    >>> [(row.name, row.rounds, row.bytes) for row in found]
    [('near', 2, 64)]
    """
    everything: dict[str, Objective] = {}
    if baselines:
        everything = {SHARED: catalogue.traditional(loss), ALONE: catalogue.local(loss)}
    if clash := everything.keys() & objectives.keys():
        raise InputError(f"{min(clash)!r} is the name of a baseline: call your objective something else.")
    everything |= objectives
    if not everything:
        raise InputError("There is nothing to compare: give objectives, or leave baselines=True.")
    found: list[Row] = []
    for name, objective in everything.items():
        problem = Problem(objective, train, rows=rows)
        result = cast(Result, solve(problem, algorithm, rounds=rounds, **options))
        found.append(Row(name, evaluate(problem, result, test), result, objective.equation))
    return Comparison(tuple(found))


# --- text -------------------------------------------------------------------------------------------------------------


def _worst(names: tuple[Name, ...], grades: Grades) -> Worst:
    m = int(np.argmin(grades))
    return Worst(names[m], float(grades[m]))


def _values(summary: Summary) -> list[float | Name]:
    return [cast(float | Name, value) for value in summary.values()]


def _show(value: float | Name, measure: Measure) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.4g}"


def _align(lines: list[list[str]]) -> list[str]:
    """Align names to the left and figures to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            c.ljust(n) if i == 0 else c.rjust(n) for i, (c, n) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


# --- tw.evaluate(...) -------------------------------------------------------------------------------------------------


class EvaluateModule(ModuleType):
    """The type of `tw.evaluate`: this module, which can also be called.

    >>> import twofold as tw
    >>> tw.evaluate.evaluate.__name__, callable(tw.evaluate)
    ('evaluate', True)
    """

    # Importing a submodule binds it to its name in the package, so `tw.evaluate` is always this module. To be called, it
    # needs a class with __call__, which it gets below. Type checkers never see that assignment; they learn the class, and
    # what it offers, from the declaration `evaluate: EvaluateModule` in twofold/__init__.py.
    ALONE, PARTS, SHARED = ALONE, PARTS, SHARED
    Comparison, Evaluation, Row, Worst = Comparison, Evaluation, Row, Worst
    compare = staticmethod(compare)
    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)

    def __call__(self, problem: Problem, result: Run, test_clients: Clients | None = None) -> Evaluation:
        """Grade a run's models client by client: see `evaluate`."""
        return evaluate(problem, result, test_clients)


sys.modules[__name__].__class__ = EvaluateModule
