"""`twofold report DIR` for your own runs: one self-contained HTML page with their curves, their table and which is best."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError
from twofold.plots import median_and_band
from twofold.report import figures
from twofold.report.markup import templates
from twofold.report.runs import SavedRun, differing, read_runs
from twofold.report.sheet import REPORT, render, write_page
from twofold.report.versus import Versus, compare, labels
from twofold.report.words import METRICS, Chapter

__all__ = ["page", "write"]

MOST_POINTS = 400
"""The most points of a curve on the page; more would not be visible."""
SKIPPED = ("round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds", "stage")


@dataclass(frozen=True)
class Shown:
    """One run on the page: its label, its facts, its hyper-parameters, its configuration file, and its clients' grades."""

    label: str
    name: str
    facts: Mapping[str, Any]
    hyper: str
    config: str
    grades: Sequence[tuple[str, str, str]]


def write(folder: str | os.PathLike[str], name: str = REPORT) -> Path:
    """Write a page about the runs in a folder and below it, and return its path.

    >>> import tempfile
    >>> try:
    ...     write(tempfile.mkdtemp())
    ... except InputError as mistake:
    ...     print(str(mistake)[:20])
    There are no runs in
    """
    folder = Path(folder)
    runs = read_runs(folder)
    if not runs:
        raise InputError(f"There are no runs in {folder}: `twofold run CONFIG.toml --out {folder}` would make one.")
    return write_page(folder / name, page(folder, runs))


def page(folder: Path, runs: Sequence[SavedRun]) -> str:
    """The page as text."""
    named = labels(runs)
    found = compare(runs)
    pool = figures.Pool()
    methods = [run.algorithm for run in runs]
    # If the runs differ only in their method, each line gets that method's usual colour and style.
    lines = methods if len(set(methods)) == len(methods) and differing(runs) in ([], ["algorithm.name"]) else named
    drawn: dict[str, Any] = {}
    courses = Chapter("course", "Course", "", "", seeds="seeds")
    series = [s for run, line in zip(runs, lines, strict=True) for s in _series(run, line)]
    if any(figures.drawable(s) for s in series):
        drawn["course"] = figures.payload(courses, [s for s in series if figures.drawable(s)], [], pool)
    swept = _swept(runs)
    if swept is not None:
        key, points = swept
        drawn["sweep"] = _against(
            figures.payload(Chapter("sweep", "Sweep", "", "", markers=True), points, [], pool), key, points
        )
    statuses = [result.status for run in runs for result in run.results]
    return render(
        templates(),
        "runs.html",
        {"figures": drawn, "pool": pool.arrays},
        title=folder.resolve().name,
        found=found,
        rows=_rows(found),
        counts=_counts(runs, statuses),
        course="course" in drawn,
        caption=_caption(runs),
        sweep=swept[0] if swept else "",
        shown=[_shown(run, label) for run, label in zip(runs, named, strict=True)],
        command=shlex.join(["twofold", "report", str(folder)]),
    )


def _rows(found: Versus) -> list[tuple[bool, str, list[str]]]:
    """The table's rows: whether the run is the best, its name, its numbers."""
    return [(row[0].startswith("*"), row[0].lstrip("* "), list(row[1:])) for row in found.table.rows]


def _counts(runs: Sequence[SavedRun], statuses: Sequence[str]) -> list[tuple[int, str, str]]:
    seeds = len(statuses)
    found = [(len(runs), "run" if len(runs) == 1 else "runs", "open")]
    found += [(seeds, "seeds in all", "open")] if seeds > len(runs) else []
    styles = {"converged": "holds", "budget": "part", "diverged": "fails", "interrupted": "open"}
    words = {"budget": "ended with their budget"}
    return found + [(statuses.count(s), words.get(s, s), style) for s, style in styles.items() if statuses.count(s)]


def _caption(runs: Sequence[SavedRun]) -> str:
    counts = sorted({len(run.results) for run in runs})
    if counts == [1]:
        return "One seed each."
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Medians over {many} seeds; bands from the 10 % to the 90 % quantile. A seed that has ended keeps its last value."


# --- figures -----------------------------------------------------------------------------------------------------------


def _series(run: SavedRun, line: str) -> list[dict[str, Any]]:
    """The median curve of a run for each metric, with its band, and the values of every axis it can be drawn against."""
    results = list(run.results)
    metrics = [name for name in results[0].history if name not in SKIPPED and all(name in r.history for r in results)]
    out: list[dict[str, Any]] = []
    for metric in metrics:
        found = median_and_band(results, "rounds", metric, most=MOST_POINTS)
        if len(found.x) and found.x[-1] == found.x[0]:  # nothing is shared, so there are no rounds
            found = median_and_band(results, "iterations", metric, most=MOST_POINTS)
            across = {"rounds": None, "iterations": _list(found.x)}
        else:
            across = {"rounds": _list(found.x)} | {
                key: _list(_at(results, column, found.x))
                for key, column in (("bytes", "bytes"), ("gradients_w", "gradients_w"),
                                    ("gradients_beta", "gradients_beta"), ("seconds", "seconds"))
            }  # fmt: skip
        out.append({
            "method": line, "metric": metric, **across, "mean": _list(found.middle), "low": _list(found.low),
            "high": _list(found.high), "runs": len(results),
        })  # fmt: skip
    return out


def _at(results: Sequence[Any], column: str, rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median over seeds of a cost column at these rounds."""
    found: list[NDArray[np.float64]] = []
    for result in results:
        place = np.searchsorted(np.asarray(result.history["round"], float), rounds, side="right") - 1
        found.append(np.asarray(result.history[column], float)[np.maximum(place, 0)])
    return np.median(np.stack(found), axis=0)


def _list(values: NDArray[np.float64]) -> list[float | None]:
    return [None if not np.isfinite(value) else float(value) for value in values]


def _swept(runs: Sequence[SavedRun]) -> tuple[str, list[dict[str, Any]]] | None:
    """The clients' grades against the one number in which the runs differ, with a line for each value of a second key."""
    keys = differing(runs)
    numbers = [key for key in keys if all(_is_number(run.settings.get(key)) for run in runs)]
    if not 1 <= len(keys) <= 2 or not numbers or any(run.grades is None for run in runs) or len(runs) < 3:
        return None
    key = max(numbers, key=lambda k: len({run.settings[k] for run in runs}))
    if len({run.settings[key] for run in runs}) < 3:
        return None
    other = next((k for k in keys if k != key), None)
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault("" if other is None else f"{other.split('.')[-1]} = {run.settings.get(other)}", []).append(
            run
        )
    out: list[dict[str, Any]] = []
    for line, group in groups.items():
        ordered = sorted(group, key=lambda run: float(run.settings[key]))
        grades = [run.grades for run in ordered if run.grades is not None]
        where = [float(run.settings[key]) for run in ordered]
        means, worst = [grade.mean for grade in grades], [grade.worst for grade in grades]
        for values, name in ((means, "mean over clients"), (worst, "worst client")):
            out.append(
                {
                    "method": f"{line}, {name}".strip(", "),
                    "metric": "grade",
                    "setting": where,
                    "mean": values,
                    "runs": 1,
                }
            )
    return key, out


def _against(spec: dict[str, Any], key: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figure of a sweep: its axis is the key, logarithmic if the values span more than a factor of thirty."""
    values = [value for s in points for value in s["setting"]]
    wide = min(values) > 0 and max(values) / min(values) > 30
    axes = [{"key": "setting", "title": key.replace("_", " "), "short": key.replace("_", " ")}]
    return spec | {"axes": axes, "across": "log" if wide else "linear"}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- every run ---------------------------------------------------------------------------------------------------------


def _shown(run: SavedRun, label: str) -> Shown:
    first = run.results[0]
    told = ", ".join(
        f"{name} = {_short(value)}" for name, value in first.settings.items() if name != "name" and value is not None
    )
    about = {key: run.about[key] for key in ("objective", "equation", "data", "environment") if run.about.get(key)}
    ends = {name: _short(float(first.history[name][-1])) for name in first.history if name in METRICS}
    facts = {
        "folder": run.name,
        "method": run.algorithm,
        **about,
        "seeds": ", ".join(str(result.seed) for result in run.results),
        "at the end (first seed)": ends,
        "messages": [*dict.fromkeys(result.message for result in run.results if result.message)],
        "notes": [*dict.fromkeys(note for result in run.results for note in result.notes)],
    }
    grades: list[tuple[str, str, str]] = []
    if run.grades is not None:
        g = run.grades
        grades = [
            (c, f"{r:,}", f"{p:.4g}") for c, r, p in zip(g.clients, g.rows.tolist(), g.personal.tolist(), strict=True)
        ]
    path = run.folder / "config.toml"
    config = path.read_text(encoding="utf-8") if path.is_file() else ""
    return Shown(label, run.name, {k: v for k, v in facts.items() if v}, told, config, grades)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
