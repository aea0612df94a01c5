"""Which clients gain by sharing, and which are hurt: personal models against one model for all and against training alone.

Both baselines are actually trained, with the same loss on the same rows. A client's gain is uncertain because it has few test
rows. To measure this, its test rows are resampled with replacement, with the same draw for both models (a paired bootstrap).
"""
# pandas comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from twofold import objectives as catalogue
from twofold.clients import Clients, Name
from twofold.errors import InputError, NotFound
from twofold.evaluate.comparing import ALONE, SHARED, Comparison, Row
from twofold.evaluate.grading import Evaluation, Run, check_order, check_test, parameters, row_grades
from twofold.evaluate.picture import picture
from twofold.evaluate.scoring import Metric
from twofold.evaluate.text import PERCENT, show, signed, strip
from twofold.exports import Table, aligned
from twofold.model import Model
from twofold.objectives import Objective
from twofold.problem import Problem
from twofold.result import Result, frame
from twofold.solver import solve

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["BASELINES", "Gain", "Report", "report"]

Baseline: TypeAlias = Literal["shared", "alone"]
Array: TypeAlias = NDArray[np.float64]
BASELINES: dict[str, str] = {"shared": "shared, trained as one model", "alone": "trained alone"}
"""The baselines that every client's personal model is compared with, and their titles."""
AT_ONCE = 1 << 22
"""At most this many resampling weights are held in memory at once."""
CALLS = 3000
"""A scikit-learn scorer that takes one resample at a time is called about this often, over all clients and models."""
FEWEST = 25
"""Such a scorer gets at least this many resamples per client."""
MOST_CLIENTS = 20
"""The text lists at most this many clients one by one."""
WIDTH = 80
LEAST_NAME = 8
"""The fewest characters for clients' names; if there is less room, all columns are wrapped."""
GROUPS = 3
"""The number of groups of clients, from few training rows to many."""


class Gain(NamedTuple):
    """The gain (personal minus baseline) of each client and on average over clients, with confidence intervals.

    >>> found = Gain(
    ...     np.array([0.1, -0.2]),
    ...     np.array([0.05, -0.3]),
    ...     np.array([0.2, 0.1]),
    ...     (-0.05, -0.1, 0.1),
    ...     np.array([True, True]),
    ... )
    >>> found.helped.tolist(), found.hurt.tolist()
    ([True, False], [False, False])
    """

    value: Array
    low: Array
    high: Array
    mean: tuple[float, float, float]
    enough: NDArray[np.bool_]
    """Whether the client has enough rows for a sure verdict."""

    @property
    def helped(self) -> NDArray[np.bool_]:
        """A mask of the clients that are surely helped: their whole interval is above zero."""
        return self.enough & (self.low > 0)

    @property
    def hurt(self) -> NDArray[np.bool_]:
        """A mask of the clients that are surely hurt: their whole interval is below zero."""
        return self.enough & (self.high < 0)


@dataclass(frozen=True, eq=False)
class Report:
    """Every client's grade with three models: its personal one, a single model trained for all, and one trained alone.

    `grades` holds one number per client for each model, larger is better; `gains` compares them. `print(report)` fits 80 columns, a
    notebook shows it with a picture, and `to_pandas()` has every number.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=40, features=2)
    >>> train, test = tw.Clients.from_list(made.clients).split(test=0.5)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), train)
    >>> found = tw.evaluate.report(problem, tw.solve(problem), test)
    >>> list(found.grades), found.measure
    (['personal', 'shared', 'alone'], 'accuracy')
    >>> len(found.helped("alone")) + len(found.hurt("alone")) <= 4
    True
    >>> found.to_pandas().shape[0], len(found.sentences()) >= 2
    (4, True)
    """

    names: tuple[Name, ...]
    rows: NDArray[np.int32]
    trained_on: NDArray[np.int32]
    grades: Mapping[str, Array]
    gains: Mapping[str, Gain]
    measure: str
    objective: str
    held_out: bool
    level: float
    resamples: int
    runs: Mapping[str, Result] = field(default_factory=dict[str, Result])

    def __getitem__(self, model: str) -> Array:
        if model not in self.grades:
            raise NotFound(f"There is no {model!r} here; there are {', '.join(self.grades)}.")
        return self.grades[model]

    def gain(self, against: Baseline | str) -> Gain:
        """The gain of every client's personal model over the baseline "shared" or "alone".

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])] * 2)
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
        >>> tw.evaluate.report(problem, problem.optimum()[:2], clients).gain("alone").value.round(6).tolist()
        [0.0, 0.0]
        """
        if against not in self.gains:
            raise NotFound(f"A gain is over {' or '.join(self.gains)}, not over {against!r}.")
        return self.gains[against]

    def helped(self, against: Baseline | str) -> tuple[Name, ...]:
        """The names of the clients that are surely better off than with the baseline."""
        return self._named(self.gain(against).helped)

    def hurt(self, against: Baseline | str) -> tuple[Name, ...]:
        """The names of the clients that are surely worse off than with the baseline."""
        return self._named(self.gain(against).hurt)

    def _named(self, chosen: NDArray[np.bool_]) -> tuple[Name, ...]:
        return tuple(self.names[m] for m in np.flatnonzero(chosen))

    def by_rows(self, against: Baseline | str) -> list[tuple[int, int, int, float]]:
        """The mean gain of clients with few, medium and many training rows, as (fewest rows, most rows, clients, gain).

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])] * 3)
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
        >>> [group[:3] for group in tw.evaluate.report(problem, problem.optimum()[:2], clients).by_rows("alone")]
        [(2, 2, 3)]
        """
        value, out = self.gain(against).value, list[tuple[int, int, int, float]]()
        edges = np.unique(np.quantile(self.trained_on, np.arange(1, GROUPS) / GROUPS))
        group = np.searchsorted(edges, self.trained_on, side="left")
        for g in np.unique(group):
            mine = group == g
            rows = self.trained_on[mine]
            out.append((int(rows.min()), int(rows.max()), int(mine.sum()), _mean(value[mine])))
        return out

    @property
    def comparison(self) -> Comparison:
        """The three models as a `Comparison`, for `twofold.plots.clients`, which draws a dot for every client."""

        def row(name: str, model: str) -> Row:
            graded = Evaluation(
                self.names, self.rows, {"personal": self.grades[model]}, self.measure, name, self.held_out
            )
            return Row(name, graded, self.runs[model], "")

        titles = {"shared": SHARED, "alone": ALONE, "personal": self.objective}
        return Comparison(tuple(row(title, model) for model, title in titles.items() if model in self.runs))

    def to_pandas(self) -> DataFrame:
        """A DataFrame with one row per client: rows, the three grades, and each gain with its interval (needs pandas)."""
        columns: dict[str, Any] = {
            "client": self.names,
            "train_rows": self.trained_on,
            "rows": self.rows,
            **self.grades,
        }
        for name, found in self.gains.items():
            over = f"over_{name}"
            verdict = np.select([found.helped, found.hurt], ["helped", "hurt"], "unsure")
            columns |= {
                over: found.value,
                f"{over}_low": found.low,
                f"{over}_high": found.high,
                f"{over}_verdict": verdict,
            }
        return frame("Report.to_pandas", columns)

    # --- words --------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        counts = "; ".join(
            f"over {name}: {int(g.helped.sum())} surely helped, {int(g.hurt.sum())} surely hurt"
            for name, g in self.gains.items()
        )
        return f"Report({self.objective}, {self.measure} of {len(self.names)} clients; {counts})"

    def sentences(self) -> list[str]:
        """The findings as sentences."""
        unit = " points" if self.measure in PERCENT else ""
        out: list[str] = []
        for name, found in self.gains.items():
            middle, low, high = (signed(value, self.measure) for value in found.mean)
            chance = (1 - self.level) / 2 * int(found.enough.sum())
            out.append(
                f"Against {_against(name)}: {middle}{unit} on average ({100 * self.level:g} %: {low} to {high}). "
                f"{int(np.sum(found.value > 0))} of {len(self.names)} clients are better off, {int(np.sum(found.value < 0))} worse; "
                f"{int(found.helped.sum())} surely helped, {int(found.hurt.sum())} surely hurt "
                f"(by chance alone about {chance:.1g} of each)."
            )
        few = int(np.sum(~next(iter(self.gains.values())).enough)) if self.gains else 0
        if few:
            out.append(
                f"{few} clients have too few rows here for a sure verdict ({least_rows(self.level)} are needed)."
            )
        return out

    def __str__(self) -> str:
        where = "rows held out" if self.held_out else "training rows (no rows were held out)"
        title = f"{self.objective}: {self.measure} of {len(self.names)} clients on {int(self.rows.sum()):,} {where}"
        blocks = [
            _wrap(title),
            self._means(),
            *(_wrap(text) for text in self.sentences()),
            self._strips(),
            self._groups(),
        ]
        return "\n\n".join("\n".join(block) for block in [*blocks, self._clients()] if block)

    def _means(self) -> list[str]:
        lines = [["", "mean", "worst", "worst client"]]
        for model, grades in self.grades.items():
            m = int(np.nanargmin(grades)) if not np.isnan(grades).all() else 0
            figures = (show(_mean(grades), self.measure), show(float(grades[m]), self.measure))
            lines.append([BASELINES.get(model, model), *figures, str(self.names[m])])
        return aligned(lines)

    def _strips(self) -> list[str]:
        """Every client's gains as dots on a line."""
        values = {name: found.value[~np.isnan(found.value)] for name, found in self.gains.items()}
        reach = max((float(np.max(np.abs(v))) for v in values.values() if len(v)), default=0.0)
        if not values or reach == 0:
            return []
        width = WIDTH - 16
        ends = signed(-reach, self.measure), signed(reach, self.measure)
        space = width - sum(map(len, ends))
        axis = f"{ends[0]}{'0'.center(space)}{ends[1]}"
        return [
            "what each client gains (· one client, ∶ two, ⁝ three, …)",
            *(f"{'over ' + name:<14}  {strip(v, -reach, reach, width)}".rstrip() for name, v in values.items()),
            " " * 16 + axis,
        ]

    def _groups(self) -> list[str]:
        lines = [["training rows", "clients", *(f"gain over {name}" for name in self.gains)]]
        groups = {name: self.by_rows(name) for name in self.gains}
        first = next(iter(groups.values()), list[tuple[int, int, int, float]]())
        if len(first) < 2:
            return []
        for i, (least, most, count, _) in enumerate(first):
            figures = (signed(group[i][3], self.measure) for group in groups.values())
            lines.append([f"{least:,}" if least == most else f"{least:,} to {most:,}", f"{count:,}", *figures])
        return aligned(lines)

    def _clients(self) -> list[str]:
        lines = [["client", "rows", *self.grades, *(f"over {name}" for name in self.gains)]]
        shown = range(min(len(self.names), MOST_CLIENTS))
        for m in shown:
            figures = (show(float(grades[m]), self.measure) for grades in self.grades.values())
            over = (self._over(found, m) for found in self.gains.values())
            lines.append([str(self.names[m]), f"{int(self.rows[m]):,}", *figures, *over])
        more = len(self.names) - MOST_CLIENTS
        rest = [f"… and {more:,} more clients: see .to_pandas()"] if more > 0 else []
        # If the table is too wide, names are wrapped first, at hyphens if possible. They are never cut, so they stay distinct.
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        room = WIDTH - sum(width + 2 for width in widths[1:])
        if room < LEAST_NAME:
            return [*aligned(lines), *rest]
        out: list[str] = []
        first = min(widths[0], room)
        for name, *cells in lines:
            parts = textwrap.wrap(name, room) or [""]
            placed = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
            out += [f"{parts[0]:<{first}}{placed}".rstrip(), *parts[1:]]
        return [*out, *rest]

    def _over(self, found: Gain, m: int) -> str:
        sure = "*" if found.helped[m] or found.hurt[m] else " "
        low, high = signed(float(found.low[m]), self.measure), signed(float(found.high[m]), self.measure)
        return f"{low} to {high}{sure}"

    def to_latex(self, path: str | Path | None = None) -> str:
        """Every client's grades and gains as a LaTeX table (package booktabs); written to `path` if one is given.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])] * 2)
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
        >>> found = tw.evaluate.report(problem, problem.optimum()[:2], clients)
        >>> found.to_latex().splitlines()[5][:39]
        'client & rows & personal & shared & alo'
        """
        head = ["client", "rows", *self.grades, *(f"over {name}" for name in self.gains)]
        rows = [
            [
                str(name),
                f"{int(self.rows[m]):,}",
                *(show(float(grades[m]), self.measure) for grades in self.grades.values()),
                *(self._over(found, m).strip() for found in self.gains.values()),
            ]
            for m, name in enumerate(self.names)
        ]
        title = f"{self.objective}: {self.measure} of {len(self.names)} clients"
        return Table(title, head, rows).to_latex(path)

    def draw(self, path: str | Path) -> Path:
        """Write a picture as an SVG file: every client's grade under each model, and its gains by the number of its rows.

        >>> import tempfile
        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])] * 2)
        >>> problem = tw.Problem(tw.objectives.local(tw.losses.squared(l2=0.1)), clients)
        >>> found = tw.evaluate.report(problem, problem.optimum()[:2], clients)
        >>> found.draw(tempfile.mkdtemp() + "/gains.svg").name
        'gains.svg'
        """
        path = Path(path)
        if path.suffix != ".svg":
            raise InputError(
                f"The picture of who gains is an SVG file, got {str(path)!r}: give a name such as gains.svg."
            )
        path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{self._svg()}', encoding="utf-8")
        return path

    def _svg(self) -> str:
        gains = {name: gain.value for name, gain in self.gains.items()}
        return picture(self.grades, gains, self.trained_on, self.names, self.measure)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows: the sentences, a picture of every client, and the tables."""
        words, drawn = "".join(f"<p>{escape(text)}</p>" for text in self.sentences()), self._svg()
        tables = escape(
            "\n\n".join("\n".join(block) for block in (self._means(), self._groups(), self._clients()) if block)
        )
        return f"<div><h4>{escape(f'{self.objective}: who gains, who is hurt')}</h4>{words}{drawn}<pre>{tables}</pre></div>"


def _mean(values: Array) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _against(name: str) -> str:
    return {"shared": "one shared model", "alone": "each client trained alone"}.get(name, name)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


# --- the work ---------------------------------------------------------------------------------------------------------


def report(
    problem: Problem,
    result: Run,
    test_clients: Clients | None = None,
    *,
    metric: str | None = None,
    baselines: Mapping[str, Run] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Report:
    """Say which clients gain and which are hurt by a personalised model, against one model for all and against training alone.

    Both baselines are trained here, with the problem's loss and training rows, to the accuracy of `solve(problem)`. If you already
    have such runs, pass them as `baselines` (of `objectives.traditional` as "shared", of `objectives.local` as "alone"). Grades are
    taken on `test_clients` or, without them, on the training rows. `metric` is the name of a scikit-learn scorer ("roc_auc",
    "neg_log_loss", "balanced_accuracy", "f1", "r2", …) or "calibration" (minus the expected calibration error); by default the grade
    is accuracy, minus the squared error, or minus the loss.

    A client is *surely* helped (hurt) if the interval of its gain, from `resamples` draws of its test rows, is above (below) zero at
    the given `level`. This covers the choice of the client's test rows, not the training of the models, which stay fixed.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=4, rows=40, features=2)
    >>> train, test = tw.Clients.from_list(made.clients).split(test=0.5)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), train)
    >>> found = tw.evaluate.report(problem, tw.solve(problem), test, metric="roc_auc")
    >>> found.measure, found.to_pandas().shape
    ('roc_auc', (4, 14))
    """
    if not 0 < level < 1:
        raise InputError(f"level must be a probability strictly between 0 and 1, got {level}.")
    check_order(problem)
    test = problem.clients if test_clients is None else test_clients
    check_test(problem.clients, test, problem.objective)
    runs = _runs(problem, result, baselines or {})
    loss = getattr(problem.objective, "loss", None)
    chosen = None if metric is None else Metric.named(metric, loss)
    heard = {name: _hear(chosen, part, run, test) for name, (part, run) in runs.items()}
    draws = resamples
    if chosen is not None and chosen.needs == "estimator":
        draws = min(resamples, max(CALLS // (len(heard) * test.M), FEWEST))
    grades, gains = _bootstrap(chosen, heard, test, level, draws, seed)
    return Report(
        names=test.names,
        rows=np.asarray(test.counts),
        trained_on=np.asarray(problem.clients.counts),
        grades=grades,
        gains=gains,
        measure=problem.objective.measure() if chosen is None else chosen.name,
        objective=problem.objective.name,
        held_out=test_clients is not None,
        level=level,
        resamples=draws,
        runs={name: run for name, (_, run) in runs.items() if isinstance(run, Result)},
    )


def least_rows(level: float) -> int:
    """The fewest rows for a sure verdict: this many fair coins all fall the same way with probability at most 1 − level.

    >>> least_rows(0.95)
    6
    """
    return math.ceil(math.log2(2 / (1 - level)))


def _runs(problem: Problem, result: Run, given: Mapping[str, Run]) -> dict[str, tuple[Problem, Run]]:
    """The personal run and the two baselines, each with its problem."""
    loss = getattr(problem.objective, "loss", None)
    if loss is None:
        raise InputError(
            f"{problem.objective.name} has no loss of its own with which to train the baselines: grade it with tw.evaluate, and "
            "train and grade the models to compare it with yourself."
        )
    if unknown := given.keys() - BASELINES.keys():
        raise InputError(f"A baseline is {' or '.join(BASELINES)}, not {min(unknown)!r}.")
    out: dict[str, tuple[Problem, Run]] = {"personal": (problem, result)}
    made: dict[str, Objective] = {"shared": catalogue.traditional(loss), "alone": catalogue.local(loss)}
    for name, objective in made.items():
        if objective.name == problem.objective.name:
            out[name] = problem, result
            continue
        other = Problem(objective, problem.clients, feature_dtype=problem.feature_dtype)
        out[name] = other, given[name] if name in given else solve(other, record=(), progress=False)
    return out


def _hear(metric: Metric | None, problem: Problem, run: Run, test: Clients) -> list[NDArray[Any]]:
    """A run's outputs for each client's rows: a grade for each row, or what the metric needs."""
    w, beta = parameters(problem, run)
    if metric is None:
        return np.split(row_grades(problem, w, beta, test)["personal"], test.offsets[1:-1])
    model = Model.of(problem, (w, beta))
    return [metric.ask(model, model.parameters(client.name), client.x) for client in test]


def _bootstrap(
    metric: Metric | None, heard: Mapping[str, list[NDArray[Any]]], test: Clients, level: float, draws: int, seed: int
) -> tuple[dict[str, Array], dict[str, Gain]]:
    """Every client's grade with each model, and how the gains vary when its test rows are resampled."""

    def figures(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
        return weights @ said / np.sum(weights, axis=1) if metric is None else metric.of(weights, y, said)

    grades = {name: np.empty(test.M) for name in heard}
    low, high = ({name: np.empty(test.M) for name in BASELINES} for _ in range(2))
    totals = {name: np.zeros(draws) for name in BASELINES}
    counted = {name: np.zeros(draws) for name in BASELINES}
    tails = [(1 - level) / 2, (1 + level) / 2]
    for m, client in enumerate(test):
        y = cast(NDArray[Any], client.y)
        one = np.ones((1, int(test.counts[m])))
        for name, said in heard.items():
            grades[name][m] = figures(one, y, said[m])[0]
        drawn = {name: np.empty(draws) for name in heard}
        for start, weights in _resamples(np.random.default_rng((seed, m)), int(test.counts[m]), draws):
            for name, said in heard.items():
                drawn[name][start : start + len(weights)] = figures(weights, y, said[m])
        for name in BASELINES:
            differences = drawn["personal"] - drawn[name]
            real = ~np.isnan(differences)
            low[name][m], high[name][m] = np.quantile(differences[real], tails) if real.any() else (np.nan, np.nan)
            totals[name] += np.where(real, differences, 0.0)
            counted[name] += real
    enough = test.counts >= least_rows(level)
    gains: dict[str, Gain] = {}
    for name in BASELINES:
        value = grades["personal"] - grades[name]
        there = counted[name] > 0
        mean = totals[name][there] / counted[name][there]
        ends = np.quantile(mean, tails) if there.any() else (np.nan, np.nan)
        gains[name] = Gain(value, low[name], high[name], (_mean(value), float(ends[0]), float(ends[1])), enough)
    return grades, gains


def _resamples(rng: np.random.Generator, rows: int, draws: int) -> list[tuple[int, Array]] | Any:
    """Resamples of `rows` rows in batches: the index of the batch's first resample, and how often each row was drawn."""
    step = max(1, AT_ONCE // rows)
    for start in range(0, draws, step):
        yield start, rng.multinomial(rows, np.full(rows, 1 / rows), size=min(step, draws - start)).astype(np.float64)
