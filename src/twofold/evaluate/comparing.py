"""Train and grade several objectives on the same clients, and show quality and cost side by side."""
# pandas comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from twofold import objectives as catalogue
from twofold.algorithms import Algorithm
from twofold.clients import Clients
from twofold.errors import InputError, NotFound
from twofold.evaluate.grading import Evaluation, evaluate
from twofold.evaluate.scoring import Metric
from twofold.evaluate.text import show
from twofold.exports import Table
from twofold.objectives import Objective
from twofold.objectives.base import Loss
from twofold.problem import Problem
from twofold.result import Result, Status, frame
from twofold.solver import solve

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["ALONE", "SHARED", "Comparison", "Row", "compare"]

SHARED, ALONE = "shared model alone", "each client alone"
"""The two baselines of `compare`: traditional federated learning and local training."""


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a comparison: the clients' grades with one objective, and the cost of the run.

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
        """Bytes sent plus bytes received per client; the mean over clients if these differ."""
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
    """The result of `compare`: several objectives on the same clients, side by side.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> found = tw.evaluate.compare(
    ...     loss, clients, clients, {"near": tw.objectives.mixture(loss, lam=1.0)}, rounds=2, baselines=False, record=()
    ... )
    >>> len(found), found.measure
    (1, 'minus squared error')
    >>> found.to_pandas().name.tolist()
    ['near']
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
    def measure(self) -> str:
        """What the grades measure."""
        return self.rows[0].evaluation.measure

    def to_pandas(self) -> DataFrame:
        """A DataFrame with one row per objective: name, mean, worst, rounds, bytes, seconds, status (needs pandas)."""
        return frame("Comparison.to_pandas", {name: [getattr(row, name) for row in self.rows] for name in _COLUMNS})

    @property
    def table(self) -> Table:
        """The comparison as a table, which has to_latex, to_csv and to_parquet."""
        head = ["", f"{self.measure}, mean", "worst client", "rounds", "bytes per client", "seconds"]
        lines: list[list[str]] = []
        for row in self.rows:
            figures = [show(row.mean, self.measure), show(row.worst, self.measure), f"{row.rounds:,}", f"{row.bytes:,}"]
            ended = "" if row.status != "diverged" else "  (diverged)"
            lines.append([row.name, *figures, f"{row.seconds:.1f}{ended}"])
        columns = {name: [getattr(row, name) for row in self.rows] for name in _COLUMNS}
        return Table("", head, lines, columns=columns)

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table.to_html()


_COLUMNS = ("name", "mean", "worst", "rounds", "bytes", "seconds", "status")


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
    metric: str | None = None,
    **options: Any,
) -> Comparison:
    """Train every given objective and two baselines, a shared model and each client alone, and grade all on the test rows.

    `objectives` maps a name of your choice to an objective. All are solved by the same algorithm with the same `rounds` and
    `options`, which are passed to `solve` (tol, seed, every, ...). Local training sends nothing, so there `rounds` counts
    iterations. `rows` is the precision in which features are stored for training, as in `Problem`. `metric` is the name of a
    scikit-learn scorer ("roc_auc", "neg_log_loss", …) or "calibration"; by default the grade is accuracy, minus the squared
    error or minus the loss.

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
    if metric is not None:
        Metric.named(metric, loss)  # refuse an unknown name before anything is trained
    found: list[Row] = []
    for name, objective in everything.items():
        problem = Problem(objective, train, rows=rows)
        result = cast(Result, solve(problem, algorithm, rounds=rounds, **options))
        found.append(Row(name, evaluate(problem, result, test, metric=metric), result, objective.equation))
    return Comparison(tuple(found))
