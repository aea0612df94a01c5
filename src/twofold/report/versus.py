"""Runs side by side: one line each, and which of them is better, as far as the numbers show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.engines.memory import in_words as size
from twofold.errors import InputError
from twofold.evaluate.text import PERCENT, show
from twofold.exports import Table
from twofold.report.runs import SavedRun, differing

__all__ = ["Versus", "compare", "labels"]

RESAMPLES = 4000
LEVEL = 0.95
METRICS = ("gap", "loss", "bound", "gradient_norm")


@dataclass(frozen=True)
class Versus:
    """The result of `compare`: the table, the best run (None if that is undecided), and sentences that explain why.

    Printing it gives the table and the sentences; a notebook shows them as HTML.

    >>> from twofold.exports import Table
    >>> print(Versus(Table("", ["", "loss"], [["a", "0.5"]]), "a", ("Best: a.",)))
       loss
    a   0.5
    <BLANKLINE>
    Best: a.
    """

    table: Table
    best: str | None
    because: tuple[str, ...]

    def __str__(self) -> str:
        import textwrap

        told = ["\n".join(textwrap.wrap(sentence, 80)) for sentence in self.because]
        return "\n".join([str(self.table), "", *told])

    def _repr_html_(self) -> str:
        from html import escape

        return self.table.to_html() + "".join(f"<p>{escape(sentence)}</p>" for sentence in self.because)


def labels(runs: Sequence[SavedRun]) -> list[str]:
    """A short, unique label for each run: the settings in which the runs differ, or else their folders.

    Keys are shown without their section if that is unambiguous. If the labels would be too long or not unique, folders are used.
    """
    keys = differing(runs)
    short = {key: key.split(".", 1)[1] for key in keys}
    if len(set(short.values())) < len(keys):
        short = {key: key for key in keys}
    named: list[str] = []
    for run in runs:
        parts: list[str] = []
        for key in keys:
            value = run.settings.get(key)
            if value is None:
                continue
            plain = short[key] in ("name", "method", "source") or key in ("objective.name", "algorithm.name")
            parts.append(str(value) if plain else f"{short[key]} = {_plain(value)}")
        named.append(", ".join(parts) or run.name)
    if len(set(named)) < len(named) or sum(map(len, named)) > 60 * len(named):
        return [run.name for run in runs]
    return named


def compare(runs: Sequence[SavedRun]) -> Versus:
    """Put runs side by side, and say which is better.

    Runs of the same problem are judged by what they reached: the smallest loss or, if all reached the same certified gap, the fewest
    rounds. Runs of different problems are judged by their clients' grades, paired client by client; "surely" means that the
    bootstrap's 95 % interval of the mean difference lies on one side of zero.

    >>> import pathlib, tempfile
    >>> from twofold import History, Ledger, Result
    >>> from twofold.report.runs import read_runs
    >>> folder, ledger = (
    ...     pathlib.Path(tempfile.mkdtemp()),
    ...     Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int)),
    ... )
    >>> for name, loss in (("a", 0.5), ("b", 0.25)):
    ...     history = History({"round": [0, 1], "loss": [0.7, loss]})
    ...     run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
    ...     run.save(folder / name).name
    'a'
    'b'
    >>> found = compare(read_runs(folder))
    >>> print(found.table)
         rounds  traffic  loss  ended
      a       1     32 B   0.5  budget
      b       1     32 B  0.25  budget
    Traffic: sent and received by each client.
    >>> found.best is None  # without a configuration it is not known whether they solved the same problem
    True
    """
    if not runs:
        raise InputError("There are no runs to compare.")
    names = labels(runs)
    best, because = _judge(runs, names)
    return Versus(_table(runs, names, best), best, tuple(because))


# --- the table ---------------------------------------------------------------------------------------------------------


def _table(runs: Sequence[SavedRun], names: Sequence[str], best: str | None) -> Table:
    metric = _metric(runs)
    graded = [run.grades for run in runs]
    measure = next((grade.measure for grade in graded if grade is not None), "")
    several = any(len(run.results) > 1 for run in runs)
    shown = measure.removeprefix("minus ")
    head = ["", *(["seeds"] if several else []), "rounds", "traffic", *([f"{metric}"] if metric else []),
            *([shown, "worst client"] if measure else []), "ended"]  # fmt: skip
    rows: list[list[str]] = []
    columns: dict[str, list[Any]] = {name: [] for name in ("run", "seeds", "rounds", "bytes", "seconds")}
    columns |= {name: [] for name in ([metric] if metric else [])}
    columns |= {name: [] for name in (["mean", "worst"] if measure else [])} | {"status": []}
    for run, name in zip(runs, names, strict=True):
        rounds = float(np.median([r.ledger.rounds for r in run.results]))
        traffic = float(np.median([r.ledger.bytes_per_client for r in run.results]))
        grade = run.grades
        figures = [f"{rounds:,.0f}", size(traffic)]
        last = _last(run, metric) if metric else None
        if metric:
            figures.append("–" if last is None else f"{float(np.median(last)):.4g}")
        if measure:
            figures += ["–", "–"] if grade is None else [_grade(grade.mean, measure), _grade(grade.worst, measure)]
        counts = [str(len(run.results))] if several else []
        rows.append([("* " if name == best else "  ") + name, *counts, *figures, _ended(run)])
        values = [
            run.name,
            len(run.results),
            _whole(rounds),
            _whole(traffic),
            float(np.median([r.seconds for r in run.results])),
        ]
        values += [None if last is None else float(np.median(last))] if metric else []
        values += ([None, None] if grade is None else [grade.mean, grade.worst]) if measure else []
        for column, value in zip(columns, [*values, _ended(run)], strict=True):
            columns[column].append(value)
    median = "Medians over seeds. " if several else ""
    star = "* marks the best. " if best else ""
    notes = [f"{median}Traffic: sent and received by each client. {star}".strip()]
    return Table("", head, rows, left=("ended",), columns=columns, notes=notes)


def _metric(runs: Sequence[SavedRun]) -> str | None:
    return next((name for name in METRICS if all(name in r.history for run in runs for r in run.results)), None)


def _last(run: SavedRun, metric: str) -> NDArray[np.float64] | None:
    values = np.array([r.history[metric][-1] for r in run.results if len(r.history[metric])], np.float64)
    return values if len(values) == len(run.results) else None


def _ended(run: SavedRun) -> str:
    found = [r.status for r in run.results]
    if len(set(found)) == 1:
        return found[0]
    return ", ".join(f"{found.count(status)} {status}" for status in dict.fromkeys(found))


def _grade(value: float, measure: str) -> str:
    return show(-value if measure.startswith("minus ") else value, measure)


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- which is better ---------------------------------------------------------------------------------------------------


def _judge(runs: Sequence[SavedRun], names: Sequence[str]) -> tuple[str | None, list[str]]:
    if len(runs) == 1:
        return None, ["One run: there is nothing to compare it with."]
    broken = [name for run, name in zip(runs, names, strict=True) if any(r.status == "diverged" for r in run.results)]
    told = [f"Diverged, in some seed or in all: {', '.join(broken)}."] if broken else []
    left = [(run, name) for run, name in zip(runs, names, strict=True) if name not in broken]
    if len(left) < 2:
        return (left[0][1] if left else None), told
    unsure = _unsure([run for run, _ in left])
    if unsure is not None:
        return None, [*told, unsure]
    if len({run.problem for run, _ in left}) == 1:
        best, because = _by_optimisation(left)
    else:
        best, because = _by_grades(left)
    return best, [*told, *because]


def _unsure(runs: Sequence[SavedRun]) -> str | None:
    """Why it is unknown whether these runs solve the same problem; None if it is known."""
    sources = {run.told_by for run in runs}
    if None in sources:
        unknown = ", ".join(run.name for run in runs if run.told_by is None)
        return (
            f"The problem of {unknown} is unknown: there is no config.toml, and no model.json without functions of your own. So "
            "it is not known whether these runs solve the same problem, and they are not judged."
        )
    if len(sources) > 1:
        return (
            "Some of these runs have a config.toml and some only their model.json, so it is not known whether they solve the same "
            "problem, and they are not judged."
        )
    first = [float(r.history["loss"][0]) for run in runs for r in run.results if len(r.history.get("loss", ()))]
    same = len({run.problem for run in runs}) == 1
    if sources == {"model"} and same and first and not np.allclose(first, first[0], rtol=1e-4):
        return (
            "They have the same objective and clients of the same names, but begin at different losses: their rows may differ, so "
            "they are not judged."
        )
    return None


def _by_optimisation(runs: Sequence[tuple[SavedRun, str]]) -> tuple[str | None, list[str]]:
    """Judge runs of one problem, by several methods or settings of a method."""
    tolerances = {run.settings.get("stop.tol") for run, _ in runs}
    if tolerances != {None} and len(tolerances) == 1 and all(
        r.status == "converged" for run, _ in runs for r in run.results
    ):  # fmt: skip
        cost = {name: np.array([r.ledger.rounds for r in run.results], float) for run, name in runs}
        what, goal = "rounds to the same certified gap", "fewest"
    else:
        metric = _metric([run for run, _ in runs])
        if metric is None:
            return None, ["They have recorded no metric in common, so it cannot be said which is better."]
        last = {name: _last(run, metric) for run, name in runs}
        cost = {name: value for name, value in last.items() if value is not None and np.isfinite(value).all()}
        if len(cost) < len(last):
            return None, ["Some have no finite value at their end, so it cannot be said which is better."]
        what, goal = f"{metric} at the end", "least"
    order = sorted(cost, key=lambda name: float(np.median(cost[name])))
    best, other = order[0], order[1]
    if np.array_equal(np.sort(cost[best]), np.sort(cost[other])):
        alike = [name for name in order if np.array_equal(np.sort(cost[name]), np.sort(cost[best]))]
        return None, [f"Same problem: no difference between {_listed(alike)}, all with {_number(cost[best])} {what}."]
    sentence = (
        f"Same problem: {best} has the {goal} {what}, {_number(cost[best])} against {_number(cost[other])} of {other}."
    )
    return best, [sentence, _chance(cost[best], cost[other], other)]


def _number(values: NDArray[np.float64]) -> str:
    return f"{float(np.median(values)):,.6g}"


def _chance(best: NDArray[np.float64], other: NDArray[np.float64], name: str) -> str:
    """Whether other seeds would likely give the same winner."""
    if len(best) < 3 or len(other) < 3:
        return "With so few seeds, that may be chance: --seeds 10 would tell."
    wins = np.mean(np.less.outer(best, other))
    ties = np.mean(np.equal.outer(best, other))
    share = float(wins + 0.5 * ties)
    return f"A seed of the best is below a seed of {name} in {share:.0%} of all pairs."


def _by_grades(runs: Sequence[tuple[SavedRun, str]]) -> tuple[str | None, list[str]]:
    """Judge runs of several problems, whose losses cannot be compared, by their clients' grades."""
    grades = [run.grades for run, _ in runs]
    if any(grade is None for grade in grades) or len({grade.measure for grade in grades if grade}) > 1:
        return None, [
            "They minimise different objectives, and their clients were not graded alike, so it cannot be said which is better."
        ]
    found = {name: run.grades for run, name in runs if run.grades is not None}
    if len({grade.clients for grade in found.values()}) > 1:
        return None, ["They have different clients, so grades cannot be compared client by client."]
    order = sorted(found, key=lambda name: -found[name].mean)
    best = order[0]
    told: list[str] = []
    same: list[str] = []
    for name in order[1:]:
        apart = found[best].personal - found[name].personal
        low, high = _interval(apart[~np.isnan(apart)])
        if low > 0:
            helped = int(np.sum(found[best].personal > found[name].personal))
            hurt = int(np.sum(found[best].personal < found[name].personal))
            told.append(
                f"{name} by {_difference(low, found[best].measure)} to {_difference(high, found[best].measure)} "
                f"({helped} clients gain, {hurt} lose)"
            )
        else:
            same.append(name)
    if same:
        sentences = [
            f"No difference can be told on {len(found[best].clients)} clients between {_listed([best, *same])}."
        ]
    else:
        sentences = [f"Best for the clients on average: {best}."]
    if told:
        sentences.append(f"{best if same else 'It'} is surely better than {'; '.join(told)}.")
    sentences.append("Intervals: 95 %, bootstrap over clients, first seed.")
    return (None if same else best), sentences


def _listed(names: Sequence[str]) -> str:
    """Names one after the other; by semicolons if there are commas in them."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _difference(value: float, measure: str) -> str:
    return f"{100 * value:.1f} points" if measure in PERCENT else f"{value:.3g}"


def _interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """The bootstrap interval of a mean over clients."""
    if not len(differences):
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    means = differences[rng.integers(0, len(differences), (RESAMPLES, len(differences)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
