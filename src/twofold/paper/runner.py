"""`reproduce`: runs the cells of an experiment and writes its document, its table of histories and its figures.

Each finished cell is a Parquet file in DIR/.cells, and so is each optimum as JSON. A file's name is a digest of the
cell's settings and of the library's code, and it is written in one step. So an interrupted run continues where it
stopped, and a result of other settings or other code is never reused.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

import twofold as tw
from twofold.extras import require
from twofold.paper import cells, problems
from twofold.paper.base import Cell, Experiment, digest
from twofold.paper.document import document, environment

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Job", "key", "reproduce"]

FORMAT = 1
"""Changes when the files of cells change their layout."""
DECIDES = ("cells.py", "faults.py", "problems.py")
"""The files of this folder that a number can depend on."""
TELLS = {"paper", "cli", "cli.py", "demo.py", "plots.py"}
"""What only tells, draws, judges and reports: no number depends on it."""

Tick = Callable[[str], None]
"""Progress of one experiment: called with the words for a cell when it begins, with "" when one is done."""
Bars = Callable[[Experiment, int, int], AbstractContextManager[Tick]]
"""A progress bar for an experiment with so many jobs, of which so many are done."""


# --- cells on disk ------------------------------------------------------------------------------------------------------


@cache
def _code() -> str:
    """A digest of all code that a number can depend on.

    The lists of cells are not included: what a cell is determines the rest of its file's name.
    """
    root = Path(__file__).parents[1]
    here = {Path(__file__).parent / name for name in DECIDES}
    others = (path for path in root.rglob("*.py") if not TELLS & set(path.relative_to(root).parts))
    files = sorted(here.union(others))
    return digest(*((str(p.relative_to(root)), digest(p.read_text())) for p in files), jax.__version__)


def key(cell: Cell) -> str:
    """The name of a cell's file, without its ending: it changes with the settings and with the code."""
    return digest(FORMAT, cell.as_dict(), _code())


def _optimum_key(cell: Cell) -> str:
    # Scaling w does not move the minimum.
    return digest("optimum", {**cell.problem, "rescale": None}, _code())


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _parquet() -> Any:
    return require("pyarrow.parquet", "`twofold reproduce`", "paper")


def _write_table(table: pyarrow.Table, path: Path) -> None:
    _write(path, lambda part: _parquet().write_table(table, part, compression="zstd"))


def _run_cell(cell: Cell, path: Path) -> None:
    _write_table(cells.run(cell), path)


def _find_optimum(cell: Cell, path: Path) -> None:
    try:
        with jax.enable_x64(cell.wide):
            found = problems.setup(cell.problem, cell.wide).problem.optimum()
        content = {"value": found.value, "gradient_norm": found.gradient_norm}
    except tw.TwofoldError as error:  # a few rows are soon separable, and then there is no minimiser
        content = {"value": None, "message": str(error)}
    _write(path, lambda part: part.write_text(json.dumps(content)))


# --- jobs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Something to be done once; `path` is the file that exists when it is done."""

    cell: Cell
    path: Path
    work: Callable[[Cell, Path], None]

    def __call__(self) -> None:
        """Do it."""
        self.work(self.cell, self.path)


def _jobs(experiment: Experiment, folder: Path) -> list[Job]:
    """The cells in order; the optimum of a problem comes before its first cell."""
    jobs: dict[Path, Job] = {}
    for cell in experiment.cells:
        if cell.optimum:
            path = folder / f"{_optimum_key(cell)}.json"
            jobs.setdefault(path, Job(cell, path, _find_optimum))
        path = folder / f"{key(cell)}.parquet"
        jobs.setdefault(path, Job(cell, path, _run_cell))
    return list(jobs.values())


def _do(jobs: Sequence[Job], workers: int, tick: Tick) -> None:
    """Do the jobs, `workers` at a time; when interrupted, let those under way finish, and keep what is done."""
    queue = iter(jobs)
    pending: set[Future[None]] = set()
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(pending) < workers and (job := next(queue, None)) is not None:
                    tick(job.cell.where())
                    pending.add(pool.submit(job))
                if not pending:
                    return
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    tick("")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# --- reproduce ----------------------------------------------------------------------------------------------------------


def reproduce(
    names: str | Sequence[str] = "all",
    out: str | os.PathLike[str] = "results",
    quick: bool = False,
    seeds: int | Iterable[int] | None = None,
    progress: bool | None = None,
) -> list[Path]:
    """Run experiments by name ("all" for all of them); write NAME.json, NAME.parquet and figures into the folder `out`.

    `quick` shrinks them to a smoke run of seconds. `seeds` replaces the seeds of every cell: how many, or which. Cells
    that an earlier run with the same settings and the same code has finished are not run again. Returns the paths of the
    documents.

    >>> reproduce("mx3", "results")
    Traceback (most recent call last):
    twofold.errors.InputError: There is no experiment 'mx3'; there are mx2, ews, ... or all. Did you mean 'mx2'?
    """
    chosen = _choose(names, quick, seeds)
    out = Path(out)
    with _bars(progress) as bars, warnings.catch_warnings():
        warnings.simplefilter("ignore", tw.TheoryWarning)  # its text is in every cell's notes
        return [_reproduce(experiment, out, quick, bars) for experiment in chosen]


def _choose(names: str | Sequence[str], quick: bool, seeds: int | Iterable[int] | None) -> list[Experiment]:
    from twofold import paper  # which imports this module

    wanted = [names] if isinstance(names, str) else list(names)
    wanted = paper.available() if "all" in wanted else list(dict.fromkeys(wanted))
    chosen = [paper.load(name) for name in wanted]
    if quick:
        chosen = [experiment.quick() for experiment in chosen]
    if seeds is not None:
        listed = tuple(int(s) for s in (range(seeds) if isinstance(seeds, int) else seeds))
        chosen = [experiment.with_seeds(listed) for experiment in chosen]
    return chosen


def _reproduce(experiment: Experiment, out: Path, quick: bool, bars: Bars) -> Path:
    """Run one experiment and write everything about it; the path of its document."""
    from twofold.paper import figures

    require("matplotlib", "`twofold reproduce`", "paper")  # rather now than after an hour
    read = _parquet().read_table
    began, folder = time.perf_counter(), out / ".cells"
    jobs = _jobs(experiment, folder)
    missing = [job for job in jobs if not job.path.exists()]
    with bars(experiment, len(jobs), len(jobs) - len(missing)) as tick:
        _do(missing, 1 if experiment.alone else min(2, os.cpu_count() or 1), tick)
        found, histories = document(
            experiment,
            lambda cell: read(folder / f"{key(cell)}.parquet"),
            lambda cell: json.loads((folder / f"{_optimum_key(cell)}.json").read_text()),
            quick,
            environment(_code(), time.perf_counter() - began),
        )
        if experiment.summary is not None:
            found |= experiment.summary(found)
        path = out / f"{experiment.name}.json"
        _write_table(histories, out / f"{experiment.name}.parquet")
        _write(path, lambda part: part.write_text(json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False)))
        figures.draw(experiment, found, out)
    return path


@contextmanager
def _bars(progress: bool | None) -> Iterator[Bars]:
    """Progress bars by rich, one per experiment, with the time left; none where standard error is no terminal."""
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

    hidden = progress is False or (progress is None and not sys.stderr.isatty())
    columns = (
        TextColumn("{task.description:<10}"), BarColumn(16), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), TextColumn("[dim]{task.fields[now]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), expand=True, disable=hidden) as progress_bar:

        @contextmanager
        def bar(experiment: Experiment, total: int, done: int) -> Iterator[Tick]:
            task = progress_bar.add_task(experiment.name, total=total, completed=done, now="")

            def tick(now: str) -> None:
                progress_bar.update(task, now=now) if now else progress_bar.advance(task)

            yield tick
            progress_bar.update(task, now="")

        yield bar
