"""Grade one run's models client by client: the personal models, and each part of them by itself."""
# JAX leaves parts of jit's and vmap's signatures untyped, and pandas comes without types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold import tree
from twofold.clients import Clients, Name
from twofold.curvature import real_weight
from twofold.errors import InputError, KindError, NotFound
from twofold.evaluate.scoring import Metric, grade_everyone
from twofold.evaluate.text import show
from twofold.exports import aligned
from twofold.model import Inputs, Model, check_features
from twofold.objectives import Objective
from twofold.objectives.base import Part
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.result import Result, frame
from twofold.tables import difference
from twofold.tables.columns import is_frame
from twofold.tree import Pytree

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["PARTS", "Evaluation", "Run", "Worst", "check_test", "evaluate", "parameters", "predict", "row_grades"]

ONLY: dict[str, str] = {"shared": "only w", "alone": "only β"}
"""The names of one block used by itself; the keys are old names, which `Evaluation` still accepts."""
PARTS = ("personal", *ONLY.values())
"""The models of a run that can be graded: the personal one, w by itself, β by itself."""
MOST_CLIENTS = 20
"""A printed evaluation lists at most this many clients one by one."""

Summary = TypedDict(
    "Summary",
    {"mean": float, "worst": float, "worst_client": Name, "10 %": float, "50 %": float, "90 %": float},
)
"""Summary numbers of one model over all clients; the percentages are quantiles."""

Grades: TypeAlias = NDArray[np.float64]
Run: TypeAlias = Result | tuple[Pytree, Pytree]
"""The result of `solve` for one seed, or a pair (w, beta) of real parameters."""


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

    `grades` maps "personal" (the model that the objective predicts with), "only w" and "only β" to one number per client. The last
    two are one part of the same model, used by itself; they were not trained alone (for that, see `report`). A block that is not a
    model by itself, such as the shared layers in weight sharing, is left out. `measure` says what a grade is: the share of right
    answers, minus the mean squared error, minus the mean loss, or the metric that was asked for.

    >>> import numpy as np
    >>> from twofold.evaluate import Evaluation
    >>> grades = {"personal": np.array([0.9, 0.5])}
    >>> found = Evaluation(("ann", "bob"), np.array([10, 20]), grades, "accuracy", "local", held_out=True)
    >>> found.mean, found.worst.client
    (0.7, 'bob')
    >>> found
    Evaluation(local, accuracy of 2 clients: mean 70.0 %, worst 50.0 % (bob))
    >>> found.quantiles([0.0, 1.0]).tolist(), found.summary()["personal"]["worst_client"]
    ([0.5, 0.9], 'bob')
    >>> found.to_pandas().columns.tolist()
    ['client', 'rows', 'personal']
    """

    names: tuple[Name, ...]
    rows: NDArray[np.int32]
    grades: Mapping[str, Grades]
    measure: str
    objective: str
    held_out: bool

    def __getitem__(self, part: str) -> Grades:
        name = ONLY.get(part, part)
        if name not in self.grades:
            raise NotFound(f"{self.objective} has no {part!r} model; it has {', '.join(self.grades)}.")
        return self.grades[name]

    @property
    def personal(self) -> Grades:
        """One grade per client, for the model that the objective predicts with."""
        return self["personal"]

    @property
    def mean(self) -> float:
        """The mean of the personal grades over clients, whatever their size; clients without a grade are left out."""
        return _mean(self.personal)

    @property
    def worst(self) -> Worst:
        """The client with the lowest personal grade; if there are several, the first."""
        return _worst(self.names, self.personal)

    def quantiles(self, q: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0), part: str = "personal") -> Grades:
        """Quantiles over clients of one model's grades."""
        return _quantiles(self[part], q)

    def summary(self) -> dict[str, Summary]:
        """Each model's mean, worst, worst_client, and the 10 %, 50 % and 90 % quantiles over clients."""
        out: dict[str, Summary] = {}
        for part, grades in self.grades.items():
            worst = _worst(self.names, grades)
            low, middle, high = (float(quantile) for quantile in _quantiles(grades, (0.1, 0.5, 0.9)))
            out[part] = {
                "mean": _mean(grades),
                "worst": worst.grade,
                "worst_client": worst.client,
                "10 %": low,
                "50 %": middle,
                "90 %": high,
            }
        return out

    def _distinct(self) -> dict[str, Summary]:
        """The summary without parts that equal the personal model, as β does for the mixture."""
        whole = self.summary()
        return {part: found for part, found in whole.items() if part == "personal" or not self._same(part)}

    def _same(self, part: str) -> bool:
        return bool(np.array_equal(self.grades[part], self.personal, equal_nan=True))

    def to_pandas(self) -> DataFrame:
        """A DataFrame with one row per client: its name, its number of rows, and its grades (needs pandas)."""
        return frame("Evaluation.to_pandas", {"client": self.names, "rows": self.rows, **self.grades})

    def __repr__(self) -> str:
        worst = self.worst
        figures = f"mean {show(self.mean, self.measure)}, worst {show(worst.grade, self.measure)} ({worst.client})"
        return f"Evaluation({self.objective}, {self.measure} of {len(self.names)} clients: {figures})"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows: the aligned text."""
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        where = "rows held out" if self.held_out else "training rows"
        title = f"{self.objective}: {self.measure} of {len(self.names)} clients on {int(self.rows.sum()):,} {where}"
        summary = self._distinct()
        columns = list(Summary.__annotations__)
        head = [["", *(c.replace("_", " ") for c in columns)]]
        head += [[part, *(show(value, self.measure) for value in _values(values))] for part, values in summary.items()]
        shown = {part: grades for part, grades in self.grades.items() if part in summary}
        body = [["client", "rows", *shown]]
        for m in range(min(len(self.names), MOST_CLIENTS)):
            figures = (show(float(grades[m]), self.measure) for grades in shown.values())
            body.append([str(self.names[m]), f"{int(self.rows[m]):,}", *figures])
        more = len(self.names) - MOST_CLIENTS
        rest = [f"… and {more:,} more clients: see .to_pandas()"] if more > 0 else []
        return "\n".join([title, "", *aligned(head), "", *aligned(body), *rest])


def evaluate(
    problem: Problem, result: Run, test_clients: Clients | None = None, *, metric: str | None = None
) -> Evaluation:
    """Grade a run's models client by client, on `test_clients` or, without them, on the training rows.

    `result` is the result of `solve`, or a pair (w, beta) of real parameters, where beta has a leading client axis. The test clients
    must have the training clients' names, in the same order, and the same features. MAML's step is taken on each client's own
    training rows. `metric` is the name of a scikit-learn scorer ("roc_auc", "neg_log_loss", "balanced_accuracy", "f1", "r2", …) or
    "calibration" (minus the expected calibration error); by default the grade is accuracy, minus the squared error, or minus the
    loss. To see what each client gains or loses by sharing, use `report`.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> train, test = tw.Clients.from_list(made.clients).split(test=0.5)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), train)
    >>> found = tw.evaluate(problem, problem.start, test)
    >>> found.measure, list(found.grades)
    ('accuracy', ['personal', 'only w', 'only β'])
    """
    check_order(problem)
    w, beta = parameters(problem, result)
    test = problem.clients if test_clients is None else test_clients
    check_test(problem.clients, test, problem.objective)
    parts = problem.objective.parts(problem.clients)
    if metric is None:
        measure = problem.objective.measure()
        rows = row_grades(problem, w, beta, test, parts)
        grades = {part: _means(values, test) for part, values in rows.items()}
    else:
        chosen = Metric.named(metric, getattr(problem.objective, "loss", None))
        measure, model = chosen.name, Model.of(problem, (w, beta))
        models = {"personal": model.parameters} | {ONLY[part]: partial(_only, model, part) for part in parts}
        grades = {part: grade_everyone(chosen, model, of_client, test) for part, of_client in models.items()}
    return Evaluation(
        names=test.names,
        rows=np.asarray(test.counts),
        grades=grades,
        measure=measure,
        objective=problem.objective.name,
        held_out=test_clients is not None,
    )


def _only(model: Model, part: Part, client: Name) -> Pytree:
    """One client's block by itself, in the form of `personal`."""
    m = model.position(client)

    def mine(leaf: jax.Array) -> jax.Array:
        return leaf[m]

    return model.objective.only(part, model.w, jax.tree.map(mine, model.beta))


def _means(values: Grades, test: Clients) -> Grades:
    """Each client's mean over its rows; the rows are concatenated in client order."""
    return np.add.reduceat(values, test.offsets[:-1]) / test.counts


def row_grades(
    problem: Problem, w: Pytree, beta: Pytree, test: Clients, parts: tuple[Part, ...] = ()
) -> dict[str, Grades]:
    """Every test row's grade, concatenated in client order, for the personal models and for parts of them.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), clients)
    >>> row_grades(problem, (), np.full((2, 2), 2.0), clients)["personal"].tolist()
    [-1.0, -1.0, -4.0, -4.0]
    """
    names = ("personal", *(ONLY[part] for part in parts))
    out = {name: np.empty(test.rows) for name in names}
    for stack, own in zip(problem.stacks, problem.split(tree.cast(beta)), strict=True):
        held = test.stack(np.asarray(stack.position))
        rows = tree.cast((held.x, held.y, held.count))
        found = cast(tuple[jax.Array, ...], _grades(parts, problem.objective, stack, tree.cast(w), own, *rows))
        for name, values in zip(names, found, strict=True):
            host = np.asarray(values, np.float64)
            for line, position, count in zip(host, held.position, held.count, strict=True):
                out[name][test.offsets[position] : test.offsets[position + 1]] = line[:count]
    return out


def predict(problem: Problem, result: Run, client: Name, x: Pytree) -> NDArray[Any]:
    """Predict for rows x with one client's personal model; a string is the client's name, an integer its position.

    x holds features as in the problem, or rows of a table like the one that `Clients.from_frame` read, which are encoded and scaled
    in the same way. Classes are returned as codes 0, 1, …; `tw.Model.of(problem, result).predict` returns labels.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))], names=["ann", "bob"])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
    >>> beta = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> tw.evaluate.predict(problem, ((), beta), "bob", np.eye(2)).tolist()
    [3.0, 4.0]
    """
    w, beta = parameters(problem, result)
    trained = problem.clients[client]  # an unknown name raises an error that lists the names
    m = problem.clients.position(client) if isinstance(client, str) else range(problem.M)[client]
    schema = problem.clients.schema
    if schema is not None and schema.columns and is_frame(x):
        x = schema.encode(x, trained.name)
    x = Inputs.of(problem.clients).read(x, trained.name, "problem")
    member = problem.member(m)

    def of_client(leaf: jax.Array) -> jax.Array:
        return leaf[m]

    own = jax.tree.map(of_client, beta)
    return np.asarray(problem.objective.predict(w, own, member.rows(), member.own, tree.cast(x)))


def parameters(problem: Problem, result: Run) -> tuple[Pytree, Pytree]:
    """The real parameters (w, beta) of a run or a pair, checked and as JAX arrays.

    >>> import twofold as tw
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared()), tw.Clients.from_list([(np.eye(2), np.ones(2))]))
    >>> parameters(problem, ((), np.zeros((1, 2))))[1].shape
    (1, 2)
    """
    if isinstance(result, Result):
        w, beta = result.w, result.beta
    elif isinstance(cast(object, result), tuple) and len(result) == 2:
        w, beta = result
    else:  # users may pass anything
        raise KindError(f"Give one run's Result or a pair (w, beta), got {type(cast(object, result)).__name__}.")
    problem.check(w, beta)
    return tree.cast(w), tree.cast(beta)


def check_order(problem: object) -> None:
    """Raise unless the first argument is the problem.

    >>> try:
    ...     check_order((np.zeros(2), np.zeros((1, 2))))
    ... except TypeError as mistake:
    ...     print(mistake)
    The problem comes first, then the result, then the test clients: (problem, result, test); got tuple as the problem.
    """
    if not isinstance(problem, Problem):
        raise KindError(
            "The problem comes first, then the result, then the test clients: (problem, result, test); got "
            f"{type(problem).__name__} as the problem."
        )


def check_test(train: Clients, test: object, objective: Objective | None = None) -> None:
    """Raise unless the test clients match the training clients in names, features, labels and scales.

    Tables that were read separately may have coded labels or scaled columns differently; such test rows are refused. If the
    problem's `objective` is given, so are labels that do not fit its loss.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))])
    >>> check_test(clients, clients)
    """
    if not isinstance(test, Clients):
        raise KindError(f"The test clients must be Clients (see Clients.split), got {type(test).__name__}.")
    apart = difference(train.schema, test.schema, test.names)
    if apart is not None:
        raise InputError(
            f"The test clients were not read like the training clients: {apart}. Read them with "
            "Clients.from_frame(df, like=train) (from_list and from_groups take like= too), or split one table: clients.split(0.2)."
        )
    check_features(train.x, test.x, test.names[0])
    _check_names(train, test)
    check_targets = getattr(getattr(objective, "loss", None), "check_targets", None)
    if check_targets is not None:
        check_targets(test)


def _check_names(train: Clients, test: Clients) -> None:
    if train.names == test.names:
        return
    if train.M != test.M:
        raise InputError(f"There are {train.M} training clients but {test.M} test clients: give each its own rows.")
    m = next(m for m, (a, b) in enumerate(zip(train.names, test.names, strict=True)) if a != b)
    raise InputError(
        f"Test clients must have the training clients' names in the same order, but client {m} is named "
        f"{train.names[m]!r} in training and {test.names[m]!r} in the test."
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
) -> list[jax.Array]:
    """The grade of every test row of each client of a stack, for every model; padded rows have arbitrary grades."""

    def of_client(member: Member, beta: Pytree, x: Pytree, y: Pytree, count: jax.Array) -> list[jax.Array]:
        train, own = member.rows(), member.own
        rows = [objective.grade(w, beta, train, own, x, y)]
        rows += [objective.grade_part(part, w, beta, train, own, x, y) for part in parts]
        return [jnp.broadcast_to(grades, real_weight(jax.tree.leaves(x)[0].shape[0], count).shape) for grades in rows]

    return jax.vmap(of_client)(stack, beta, x, y, count)


def _mean(grades: Grades) -> float:
    """The mean of the grades, ignoring NaN: a metric may be undefined for a client, as AUC is for a single class."""
    return float(np.nanmean(grades)) if not np.isnan(grades).all() else float("nan")


def _quantiles(grades: Grades, q: Sequence[float]) -> Grades:
    return np.nanquantile(grades, q) if not np.isnan(grades).all() else np.full(len(q), np.nan)


def _worst(names: tuple[Name, ...], grades: Grades) -> Worst:
    m = int(np.nanargmin(grades)) if not np.isnan(grades).all() else 0
    return Worst(names[m], float(grades[m]))


def _values(summary: Summary) -> list[float | Name]:
    return [cast(float | Name, value) for value in summary.values()]
