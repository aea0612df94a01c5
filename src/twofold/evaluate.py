"""How good everyone's model is, client by client: personal vs. shared vs. alone, on rows that were not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import objectives as catalogue
from twofold import tree
from twofold.algorithms import Algorithm
from twofold.clients import Clients, Name
from twofold.curvature import real_weight
from twofold.errors import InputError, KindError, NotFound
from twofold.extras import require
from twofold.objectives import Objective
from twofold.objectives.residual import Residual
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver import solve
from twofold.tree import Pytree

PARTS = ("personal", "shared", "alone")
"""What a client can predict with: what its objective says, w alone, β alone."""
SHARED, ALONE = "shared model alone", "each client alone"
"""The two baselines of `compare`: traditional federated learning, and local training."""
QUANTILES = (0.1, 0.5, 0.9)
MOST_CLIENTS = 20


class Worst(NamedTuple):
    """The client with the lowest grade."""

    client: Name
    grade: float


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The grade of every client, larger is better, for the models it could predict with.

    `grades` maps "personal" (what the objective predicts with), "shared" (w alone) and "alone" (β alone) to one figure
    per client; a part that is no model by itself (the shared layers of weight sharing, say) is left out. The figure is
    the share of right answers, or minus the mean squared error, or minus the mean loss: `measure` says which.
    """

    names: tuple[Name, ...]
    rows: np.ndarray
    grades: Mapping[str, np.ndarray]
    measure: str
    objective: str
    held_out: bool

    def __getitem__(self, part: str) -> np.ndarray:
        if part not in self.grades:
            raise NotFound(f"{self.objective} has no {part!r} model; it has {', '.join(self.grades)}.")
        return self.grades[part]

    @property
    def personal(self) -> np.ndarray:
        """One grade per client, for what the objective predicts with."""
        return self["personal"]

    @property
    def mean(self) -> float:
        """The mean over clients of the personal grade; every client counts once, whatever its size."""
        return float(self.personal.mean())

    @property
    def worst(self) -> Worst:
        """The client whose personal grade is lowest; the first of them if there are several."""
        return _worst(self.names, self.personal)

    def quantiles(
        self, q: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0), part: str = "personal"
    ) -> np.ndarray:
        """Quantiles over clients of a part's grade."""
        return np.quantile(self[part], q)

    def summary(self) -> dict[str, dict[str, Any]]:
        """For each part: mean, worst, worst_client, and the 10 %, 50 % and 90 % quantiles over clients."""
        out: dict[str, dict[str, Any]] = {}
        for part, grades in self.grades.items():
            worst = _worst(self.names, grades)
            spread = {
                f"{100 * q:.0f} %": float(v) for q, v in zip(QUANTILES, np.quantile(grades, QUANTILES), strict=True)
            }
            out[part] = {"mean": float(grades.mean()), "worst": worst.grade, "worst_client": worst.client, **spread}
        return out

    def to_pandas(self) -> Any:
        """One row per client: its name, its number of rows, and its grades (needs pandas)."""
        pd = require("pandas", "A data frame", "sklearn")
        return pd.DataFrame({"client": self.names, "rows": self.rows, **self.grades})

    def __repr__(self) -> str:
        worst = self.worst
        figures = f"mean {_show(self.mean, self.measure)}, worst {_show(worst.grade, self.measure)} ({worst.client})"
        return f"Evaluation({self.objective}, {self.measure} of {len(self.names)} clients: {figures})"

    def __str__(self) -> str:
        where = "rows held out" if self.held_out else "training rows"
        title = f"{self.objective}: {self.measure} of {len(self.names)} clients on {int(self.rows.sum()):,} {where}"
        summary = self.summary()
        columns = ["mean", "worst", "worst_client", *(f"{100 * q:.0f} %" for q in QUANTILES)]
        head = [["", *(c.replace("_", " ") for c in columns)]]
        head += [[p, *(_show(values[c], self.measure) for c in columns)] for p, values in summary.items()]
        body = [["client", "rows", *self.grades]]
        for m in range(min(len(self.names), MOST_CLIENTS)):
            figures = (_show(float(grades[m]), self.measure) for grades in self.grades.values())
            body.append([str(self.names[m]), f"{int(self.rows[m]):,}", *figures])
        more = len(self.names) - MOST_CLIENTS
        rest = [f"… and {more:,} more clients: see .to_pandas()"] if more > 0 else []
        return "\n".join([title, "", *_align(head), "", *_align(body), *rest])


def evaluate(
    problem: Problem, result: Result | tuple[Pytree, Pytree], test_clients: Clients | None = None
) -> Evaluation:
    """Grade a run's models client by client, on `test_clients` or, without them, on the training rows themselves.

    `result` is what `solve` gave, or a pair (w, beta) of real parameters with beta's leading client axis. The test
    clients must have the names of the training ones, in the same order. Where predicting needs the client's own
    training rows (MAML's step), those are used.
    """
    w, beta = _parameters(problem, result)
    test = problem.clients if test_clients is None else test_clients
    _same_clients(problem.clients, test)
    kinds = (("personal", "objective"), *_alone(problem, w, beta).items())
    found = []
    for stack, own in zip(problem.stacks, problem.split(beta), strict=True):
        held = test.stack(np.asarray(stack.position))
        found.append(_grades(kinds, problem.objective, stack, w, own, tree.cast((held.x, held.y, held.count))))
    everyone = problem.join(tuple(found))
    grades = {part: np.asarray(everyone[part], np.float64) for part, _ in kinds}
    return Evaluation(
        names=test.names,
        rows=np.asarray(test.counts),
        grades=grades,
        measure=_measure(problem.objective),
        objective=problem.objective.name,
        held_out=test_clients is not None,
    )


def predict(problem: Problem, result: Result | tuple[Pytree, Pytree], client: Name, x: Pytree) -> np.ndarray:
    """What one client's personal model says about rows x; a string is the client's name, an integer its position."""
    w, beta = _parameters(problem, result)
    problem.clients[client]  # says which clients there are if this one is not among them
    m = problem.clients.position(client) if isinstance(client, str) else range(problem.M)[client]
    member = problem.member(m)
    own = jax.tree.map(lambda leaf: leaf[m], beta)
    return np.asarray(problem.objective.predict(w, own, member.rows(), member.own, tree.cast(x)))


def _parameters(problem: Problem, result: Any) -> tuple[Pytree, Pytree]:
    if isinstance(result, Result):
        w, beta = result.w, result.beta
    elif isinstance(result, tuple) and len(result) == 2:
        w, beta = result
    else:
        raise KindError(f"Give one run's Result or a pair (w, beta), got {type(result).__name__}.")
    problem._real(w, beta)  # checks the shapes
    return tree.cast(w), tree.cast(beta)


def _same_clients(train: Clients, test: Clients) -> None:
    if not isinstance(test, Clients):
        raise KindError(f"The test clients must be Clients (see Clients.split), got {type(test).__name__}.")
    if train.names == test.names:
        return
    if train.M != test.M:
        raise InputError(f"There are {train.M} training clients but {test.M} test clients: give each its own rows.")
    m = next(m for m, (a, b) in enumerate(zip(train.names, test.names, strict=True)) if a != b)
    raise InputError(
        f"Test clients must have the training clients' names in the same order, but client {m} is named "
        f"{train.names[m]!r} in training and {test.names[m]!r} in the test."
    )


def _alone(problem: Problem, w: Pytree, beta: Pytree) -> dict[str, str]:
    """Which of w and β are models by themselves, and how they are graded: by the loss, or with the other part zero."""
    objective = problem.objective
    if isinstance(objective, Residual):  # two predictors whose scores add up: leave one out
        return {} if objective.predictors is not None else {"shared": "without", "alone": "without"}
    loss = getattr(objective, "loss", None)  # an objective of the user's own has none
    if loss is None:
        return {}
    model = jax.tree.map(jnp.shape, loss.init(problem.clients))
    one = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], beta)
    blocks = {"shared": jax.tree.map(jnp.shape, w), "alone": one}
    return {part: "loss" for part, shapes in blocks.items() if shapes == model}


@partial(jax.jit, static_argnums=0)
def _grades(
    kinds: tuple[tuple[str, str], ...], objective: Objective, stack: Member, w: Pytree, beta: Pytree, rows: tuple
) -> dict[str, jax.Array]:
    """The mean grade of each client of a stack over its own test rows, padding left out, for every part."""

    def one(member: Member, beta: Pytree, x: Pytree, y: Pytree, count: Any) -> dict[str, jax.Array]:
        train = member.rows()
        weight = real_weight(jax.tree.leaves(x)[0].shape[0], count)

        def values(part: str, kind: str) -> jax.Array:
            if kind == "loss":
                return objective.loss.grade(w if part == "shared" else beta, x, y)
            shared = tree.zeros(w) if (kind, part) == ("without", "alone") else w
            own = tree.zeros(beta) if (kind, part) == ("without", "shared") else beta
            return objective.grade(shared, own, train, member.own, x, y)

        return {part: jnp.vdot(weight, values(part, kind)) for part, kind in kinds}

    return jax.vmap(one)(stack, beta, *rows)


def _measure(objective: Objective) -> str:
    link = getattr(getattr(objective, "loss", None), "link", None)
    if link is not None:
        return "minus squared error" if link.labels is None else "accuracy"
    return "grade" if getattr(objective, "grader", None) is not None else "minus loss"


# --- many objectives --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a comparison: how well everyone does with an objective, and what it cost."""

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
        """Bytes that each client sent and received, together."""
        return self.result.ledger.bytes_up + self.result.ledger.bytes_down

    @property
    def seconds(self) -> float:
        """Wall time of the run, compilation included."""
        return self.result.seconds

    @property
    def status(self) -> str:
        """How the run ended: converged, budget or diverged."""
        return self.result.status


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several objectives on the same clients, side by side."""

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
    def measure(self) -> str:
        """What the grades are: accuracy, minus squared error or minus loss."""
        return self.rows[0].evaluation.measure

    def to_pandas(self) -> Any:
        """One row per objective: name, mean, worst, rounds, bytes, seconds, status (needs pandas)."""
        pd = require("pandas", "A data frame", "sklearn")
        columns = ("name", "mean", "worst", "rounds", "bytes", "seconds", "status")
        return pd.DataFrame({column: [getattr(row, column) for row in self.rows] for column in columns})

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
    loss: Any,
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
    """Train the shared model alone, each client alone and every objective given, and grade all on the test rows.

    `objectives` maps a name of your choice to an objective. All are solved by the same algorithm with the same `rounds`
    and `options`, which go to `solve` (tol, seed, every, ...). Local training sends nothing: there iterations count. `rows` is
    how features are kept for training, as in `Problem`.
    """
    everything: dict[str, Objective] = {}
    if baselines:
        everything = {SHARED: catalogue.traditional(loss), ALONE: catalogue.local(loss)}
    if clash := everything.keys() & objectives.keys():
        raise InputError(f"{min(clash)!r} is the name of a baseline: call your objective something else.")
    everything |= objectives
    if not everything:
        raise InputError("There is nothing to compare: give objectives, or leave baselines=True.")
    found = []
    for name, objective in everything.items():
        problem = Problem(objective, train, rows=rows)
        result = solve(problem, algorithm, rounds=rounds, **options)
        found.append(Row(name, evaluate(problem, result, test), result, objective.equation))
    return Comparison(tuple(found))


# --- text -------------------------------------------------------------------------------------------------------------


def _worst(names: tuple[Name, ...], grades: np.ndarray) -> Worst:
    m = int(np.argmin(grades))
    return Worst(names[m], float(grades[m]))


def _show(value: Any, measure: str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{100 * value:.1f} %" if measure == "accuracy" else f"{value:.4g}"


def _align(lines: list[list[str]]) -> list[str]:
    """Names to the left, figures to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            c.ljust(n) if i == 0 else c.rjust(n) for i, (c, n) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
