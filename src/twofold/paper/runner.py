"""The one runner: cells into files, files into one document, one table and the figures of an experiment.

Each finished cell is a Parquet file in DIR/.cells under a name that its settings and the library's code decide, written in
one piece. So an interrupted run goes on where it stopped, and nothing is taken over from other settings or other code.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import fields as fields_of
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from twofold import tree
from twofold.algorithms import REGISTRY, Algorithm
from twofold.paper import faults, problems
from twofold.paper.base import Cell, Experiment, Plain, digest
from twofold.problem import Problem
from twofold.reference import NotConvexError
from twofold.result import Results
from twofold.solver import TheoryWarning, complete, solve
from twofold.theory import instances, rates
from twofold.theory.constants import Constants

FORMAT = 1
MOST_POINTS = 200
"""Points of a series in the JSON document; the Parquet file has all."""
AXES = ("bytes", "gradients_w", "gradients_beta")
TIMES = ("seconds", "environment")
"""Fields that differ between runs on the same machine: all times are in fields of these names."""


# --- one cell ---------------------------------------------------------------------------------------------------------


def run(cell: Cell) -> Any:
    """Solve a cell; a table with one row per record of each seed, and what else is to be known in its metadata."""
    with jax.enable_x64(cell.wide):
        setup = problems.setup(cell.problem, cell.wide)
        constants = setup.published if cell.published else None
        algorithm = _algorithm(cell, setup.problem, constants)
        record = {name: setup.measures.get(name, name) for name in cell.metrics}
        options = {"record": record, "every": cell.every, "constants": constants, "progress": False}
        if cell.reach is not None:
            best, start = setup.problem.optimum().value, float(setup.problem.value(*setup.problem.start))
            options["target"] = best + cell.reach * (start - best)
        if cell.warm_up:
            solve(setup.problem, algorithm, rounds=cell.warm_up, seeds=cell.seeds, **options)
        began = time.perf_counter()
        runs = solve(setup.problem, algorithm, rounds=cell.rounds, seeds=cell.seeds, **options)
        seconds = time.perf_counter() - began
        used = setup.problem.constants() if constants is None else constants
        reached = {} if cell.reach is None else _reached(cell, setup.problem, used, runs)
    about = {
        "cell": cell.as_dict(),
        "hyper": _plain(runs[0].algorithm),
        "constants": {name: getattr(used, name) for name in ("mu", "L_w", "L_beta", "calL_w", "calL_beta")},
        "status": [r.status for r in runs],
        "message": next((r.message for r in runs if r.status == "diverged"), runs[0].message),
        "notes": list(runs[0].notes),
        "provenance": setup.provenance,
        "seconds": seconds,
        **reached,
    }
    return _table(runs, about)


def _reached(cell: Cell, problem: Problem, known: Constants, runs: Results) -> dict[str, Any]:
    """√(L^w/μ), the rounds that the accuracy took, and what theory says: a guarantee, and on its own instance the least."""
    rounds = [float(r.history["round"][-1]) if r.status == "converged" else math.nan for r in runs]
    mean, spread = np.mean(rounds), np.std(rounds, ddof=1) / math.sqrt(len(rounds)) if len(rounds) > 1 else 0.0
    out: dict[str, Any] = {
        "condition": math.sqrt(known.L_w / known.mu),
        "rounds_to_reach": _number(mean),
        "rounds_stderr": _number(spread),
    }
    assert cell.reach is not None
    best, start = problem.optimum(), problem.start
    gap = float(problem.value(*start)) - best.value
    if cell.method == "acd":
        apart = [tree.squared_norm(tree.subtract(a, b)) for a, b in zip(start, best[:2], strict=True)]
        distance2 = float(apart[0]) / problem.scale**2 + float(apart[1])
        initial = rates.initial_error("acd", known, gap, distance2)
        out["predicted"] = rates.predict("acd", known, cell.reach * gap, initial=initial).rounds
    if problem.objective.name == "lower_bound":
        out["least"] = instances.least(problem, cell.reach).rounds
    return out


def _algorithm(cell: Cell, problem: Any, constants: Any) -> Algorithm:
    """The cell's method with the fields set by hand; "asvrcd.eta" is what ASVRCD would have there."""

    def resolve(value: Any) -> Any:
        if not isinstance(value, str) or "." not in value:
            return value
        method, name = value.split(".")
        return float(getattr(complete(problem, method, constants)[0], name))

    values = {name: resolve(value) for name, value in cell.fields.items()}
    known = {**REGISTRY, **faults.METHODS} if cell.faulty else REGISTRY
    return known[cell.algorithm](**values)


def _plain(algorithm: Algorithm) -> dict[str, Any]:
    values = {f.name: getattr(algorithm, f.name) for f in fields_of(algorithm)}  # type: ignore[arg-type]
    return {k: v if isinstance(v, (str, bool, int, type(None))) else float(v) for k, v in values.items()}


def _table(runs: Results, about: Plain) -> Any:
    import pyarrow as pa  # heavy, and only needed by who reproduces

    lengths = [len(r.history["round"]) for r in runs]
    columns = {"seed": np.repeat([r.seed for r in runs], lengths)}
    for name in runs[0].history:
        values = np.concatenate([r.history[name] for r in runs])
        columns[name] = values.astype(np.float64) if values.dtype.kind == "f" else values  # whatever it was computed in
    return pa.table(columns).replace_schema_metadata({"twofold": json.dumps(about)})


# --- cells on disk ----------------------------------------------------------------------------------------------------


@cache
def _code() -> str:
    """A digest of all code that a number can depend on: the library without what tells, draws, judges and reports.

    Which cells an experiment has is not in it: what a cell is decides the rest of its name.
    """
    root = Path(__file__).parents[1]
    here = {root / "experiments" / name for name in ("faults.py", "problems.py", "runner.py")}
    others = (p for p in root.rglob("*.py") if not {"experiments", "report", "cli.py", "demo.py"} & set(p.parts))
    files = sorted(here.union(others))
    return digest(*((str(p.relative_to(root)), digest(p.read_text())) for p in files), jax.__version__)


def key(cell: Cell) -> str:
    """The name of a cell's file: another for other settings, another for other code."""
    return digest(FORMAT, cell.as_dict(), _code())


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one piece: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _finish(cell: Cell, folder: Path) -> None:
    import pyarrow.parquet as pq

    table = run(cell)
    _write(folder / f"{key(cell)}.parquet", lambda part: pq.write_table(table, part, compression="zstd"))


def _find_optimum(cell: Cell, folder: Path) -> None:
    try:
        with jax.enable_x64(cell.wide):
            found = problems.setup(cell.problem, cell.wide).problem.optimum()
        content = {"value": found.value, "gradient_norm": found.gradient_norm}
    except NotConvexError as error:  # few rows are soon separable, and then there is none
        content = {"value": None, "message": str(error)}
    _write(folder / _optimum_name(cell), lambda part: part.write_text(json.dumps(content)))


def _optimum_name(cell: Cell) -> str:
    # The scaling of w does not move the minimum.
    return f"{digest('optimum', {**cell.problem, 'rescale': None}, _code())}.json"


# --- all cells of an experiment ---------------------------------------------------------------------------------------


class _Job:
    """Something to be done once, and the file that says that it has been."""

    def __init__(self, cell: Cell, folder: Path, name: str, work: Callable[[Cell, Path], None]) -> None:
        self.cell, self.folder, self.path, self.work = cell, folder, folder / name, work

    def __call__(self) -> None:
        self.work(self.cell, self.folder)


def _jobs(experiment: Experiment, folder: Path) -> list[_Job]:
    """The cells in order, and before the first cell of a problem with a minimiser, its optimum."""
    jobs: dict[Path, _Job] = {}
    for cell in experiment.cells:
        if cell.optimum:
            job = _Job(cell, folder, _optimum_name(cell), _find_optimum)
            jobs.setdefault(job.path, job)
        job = _Job(cell, folder, f"{key(cell)}.parquet", _finish)
        jobs.setdefault(job.path, job)
    return list(jobs.values())


def _work_off(jobs: Sequence[_Job], workers: int, tick: Callable[[str], None]) -> None:
    """Do the jobs, a few at a time; an interruption lets those under way finish, and keeps what is done."""
    if workers == 1:
        for job in jobs:
            tick(f"{job.cell.where()}")
            job()
            tick("")
        return
    with ThreadPoolExecutor(workers) as pool:
        try:
            pending: dict[Future, _Job] = {}
            queue = iter(jobs)
            while True:
                while len(pending) < workers and (job := next(queue, None)) is not None:
                    tick(job.cell.where())
                    pending[pool.submit(job)] = job
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    del pending[future]
                    future.result()
                    tick("")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# --- the document -----------------------------------------------------------------------------------------------------


def thin(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """At most `most` of `count` places, the first and the last among them: half evenly, half crowded towards the start."""
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most - most // 2)
    early = np.geomspace(1, count - 1, most // 2)
    return np.unique(np.concatenate([even, early]).round().astype(int))


def _series(table: Any, about: Plain, optimum: float | None) -> Iterator[dict[str, Any]]:
    """One series per metric of a cell: the mean and its standard error over seeds, by round."""
    cell = about["cell"]
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    runs = [np.flatnonzero(columns["seed"] == seed) for seed in cell["seeds"]]
    longest = max(map(len, runs))
    keep = thin(longest)
    rounds = columns["round"][max(runs, key=len)][keep]

    def stacked(name: str) -> np.ndarray:
        """(seeds, records); a seed that ended early is NaN from there on."""
        out = np.full((len(runs), longest), np.nan)
        for row, places in zip(out, runs, strict=True):
            row[: len(places)] = columns[name][places]
        return out[:, keep]

    shared = {
        **{name: cell[name] for name in ("method", "variant", "objective", "dataset", "level")},
        "rounds": _numbers(rounds),
        **{name: _numbers(np.mean(stacked(name), axis=0)) for name in AXES},
        "runs": len(runs),
        "seconds": about["seconds"],
        "diverged": about["status"].count("diverged"),
    }
    for metric in cell["metrics"]:
        values = stacked(metric)
        # One run has no spread to speak of.
        spread = np.std(values, axis=0, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else np.zeros(values.shape[1])
        best = {"optimum": optimum} if metric == "loss" and optimum is not None else {}
        yield {
            **shared,
            "metric": metric,
            "mean": _numbers(np.mean(values, axis=0)),
            "stderr": _numbers(spread),
            **best,
        }


def _numbers(values: np.ndarray) -> list[float | int | None]:
    """Plain numbers; whole ones as such, and None where there is none: JSON knows no NaN."""
    return [_number(v) for v in values]


def _number(value: Any) -> float | int | None:
    value = float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def document(experiment: Experiment, folder: Path, quick: bool, seconds: float) -> tuple[dict[str, Any], Any]:
    """The JSON document of an experiment and the table of all its histories, from the files of its cells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    series, tables, cells, sources, optima = [], [], [], {}, {}
    for cell in experiment.cells:
        table = pq.read_table(folder / f"{key(cell)}.parquet")
        about = json.loads(table.schema.metadata[b"twofold"])
        sources[about.pop("provenance")] = None
        cells.append(about)
        best = None
        if cell.optimum:
            best = json.loads((folder / _optimum_name(cell)).read_text())
            where = {name: value for name, value in cell.labels.items() if name != "method"}
            optima[json.dumps(where)] = {**where, **best}
        series += _series(table, about, best["value"] if best else None)
        labels = {
            k: pa.repeat(None if v is None else str(v), len(table)).cast(pa.string()) for k, v in cell.labels.items()
        }
        columns = {k: v.dictionary_encode() for k, v in labels.items()} | {
            k: table.column(k) for k in table.column_names
        }
        tables.append(pa.table(columns))
    name = experiment.name
    return {
        "experiment": name,
        "title": experiment.title,
        "settings": {
            "command": f"twofold reproduce {name} --out DIR{' --quick' if quick else ''}",
            "quick": quick,
            "facts": dict(experiment.facts),
            "data": list(sources),
            "cells": cells,
        },
        "environment": {**environment(), "seconds": seconds},
        "optimum": list(optima.values()),
        "series": series,
    }, pa.concat_tables(tables, promote_options="default")


def environment() -> dict[str, Any]:
    """The machine and the versions of what decides the numbers."""
    names = ("twofold", "jax", "jaxlib", "numpy", "scipy")
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "device": str(jax.devices()[0]),
        "code": _code(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def without_times(document: Any) -> Any:
    """A document without the fields that hold times and the machine: what the same seeds must reproduce to the bit."""
    if isinstance(document, Mapping):
        return {name: without_times(value) for name, value in document.items() if name not in TIMES}
    if isinstance(document, list):
        return [without_times(value) for value in document]
    return document


# --- everything -------------------------------------------------------------------------------------------------------


def reproduce(
    names: str | Sequence[str] = "all",
    out: str | os.PathLike[str] = "results",
    quick: bool = False,
    seeds: int | Iterable[int] | None = None,
    progress: bool | None = None,
) -> list[Path]:
    """Run experiments by name ("all" for all), and write for each NAME.json, NAME.parquet and its figures into `out`.

    `quick` shrinks them to a smoke run of seconds. `seeds` replaces the seeds of every cell: how many, or which. Cells that
    an earlier run with the same settings finished are not run again. The paths of the documents are returned.
    """
    from twofold.paper import available, figures, load  # they import this module

    wanted = [names] if isinstance(names, str) else list(names)
    wanted = available() if "all" in wanted else list(dict.fromkeys(wanted))
    chosen = [load(name) for name in wanted]
    if quick:
        chosen = [experiment.quick() for experiment in chosen]
    if seeds is not None:
        listed = range(seeds) if isinstance(seeds, int) else seeds
        chosen = [experiment.with_seeds(tuple(int(s) for s in listed)) for experiment in chosen]
    out = Path(out)
    written = []
    with _bars(progress, len(chosen)) as bars, warnings.catch_warnings():
        warnings.simplefilter("ignore", TheoryWarning)  # its text is in every cell's notes
        for experiment in chosen:
            began = time.perf_counter()
            folder = out / ".cells"
            jobs = _jobs(experiment, folder)
            missing = [job for job in jobs if not job.path.exists()]
            with bars(experiment, len(jobs), len(jobs) - len(missing)) as tick:
                _work_off(missing, 1 if experiment.alone else min(2, os.cpu_count() or 1), tick)
                found, histories = document(experiment, folder, quick, time.perf_counter() - began)
                written.append(_save(experiment, found, histories, out, figures.draw))
    return written


def _save(experiment: Experiment, found: dict[str, Any], histories: Any, out: Path, draw: Callable) -> Path:
    import pyarrow.parquet as pq

    if experiment.summary is not None:
        found = {**found, **experiment.summary(found)}
    path = out / f"{experiment.name}.json"
    _write(out / f"{experiment.name}.parquet", lambda part: pq.write_table(histories, part, compression="zstd"))
    _write(path, lambda part: part.write_text(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)))
    draw(experiment, found, out)
    return path


@contextmanager
def _bars(progress: bool | None, experiments: int) -> Iterator[Callable]:
    """Progress bars by rich, one per experiment, with the time left; nothing where nobody looks."""
    if progress is False or (progress is None and not sys.stderr.isatty()):

        @contextmanager
        def silent(experiment: Experiment, total: int, done: int) -> Iterator[Callable[[str], None]]:
            yield lambda _: None

        yield silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    columns = (
        TextColumn("{task.description:<10}"), BarColumn(16), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), TextColumn("[dim]{task.fields[now]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), expand=True) as bar:

        @contextmanager
        def loud(experiment: Experiment, total: int, done: int) -> Iterator[Callable[[str], None]]:
            task = bar.add_task(experiment.name, total=total, completed=done, now="")

            def tick(now: str) -> None:
                bar.update(task, now=now) if now else bar.advance(task)

            yield tick
            bar.update(task, now="")

        yield loud
