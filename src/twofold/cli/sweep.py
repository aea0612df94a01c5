"""`twofold sweep`."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.base import DIVERGED, INTERRUPTED, ConfigArgument, SetOption, X64Option, friendly, set_up_jax, show
from twofold.cli.opening import notes_to_stderr
from twofold.cli.run import evaluated
from twofold.errors import InputError

if TYPE_CHECKING:
    from twofold.config import Cell

__all__ = ["sweep"]


@friendly
def sweep(
    config: ConfigArgument,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2,...", help="A key and its values, as in objective.lam=0.01,0.1,1; may be repeated."
        ),
    ],
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds every cell is run with.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for all cells; runs/NAME-sweep if not given.")] = None,
    set_: SetOption = None,
    x64: X64Option = None,
    force: Annotated[bool, typer.Option("--force", help="Run every cell anew, and replace what is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors; no progress bar.")] = False,
) -> None:
    """Run a file for every combination of some values, and say which is best.

    Every cell of the grid is a run of its own in a folder of its own, as `twofold run` leaves it. The same command again goes
    on where it was stopped: finished cells are skipped, and cells of another configuration are refused before anything runs.
    """
    set_up_jax()
    from twofold.config import check_cells, plan
    from twofold.report.runs import read_runs
    from twofold.report.versus import compare

    extra = [*(set_ or []), *([f"run.seeds={seeds}"] if seeds is not None else [])]
    extra += [f"run.x64={str(x64).lower()}"] if x64 is not None else []
    cells = plan(config, grid, extra, out, force)
    home = cells[0].config.folder.parent
    if home.exists() and not home.is_dir():
        raise InputError(f"The results cannot go to {home}, as it is a file: name another folder.")
    check_cells(cells, force)
    notes_to_stderr()
    todo = [cell for cell in cells if not cell.finished]
    if not quiet:
        done = len(cells) - len(todo)
        show(f"{len(cells)} cells in {home}" + (f", of which {done} are finished already." if done else "."))
    diverged = [line for i, cell in enumerate(todo, 1) for line in _run(cell, f"{i}/{len(todo)}", quiet)]
    runs = [run for cell in cells for run in read_runs(cell.config.folder)]
    if not quiet:
        stale = _others(home, cells)
        show("", str(compare(runs)), "", f"`twofold report {home}` makes a page of it.")
        if stale:
            show(f"{home} also holds runs that are not in this grid, and were left alone: {', '.join(stale)}.")
    for line in diverged:
        typer.echo(line, err=True)
    if diverged:
        raise typer.Exit(DIVERGED)


def _run(cell: Cell, place: str, quiet: bool) -> list[str]:
    """Run one cell and keep its results; the sentences about what diverged."""
    from twofold.config import save

    settings = cell.config
    set_up_jax(settings.run.x64)
    built = settings.build()
    runs = settings.solve(built, progress=False if quiet else None)
    graded = evaluated(settings, built, runs)
    save(settings, runs, graded, built)
    name = ", ".join(cell.sets)
    if any(result.status == "interrupted" for result in runs):
        typer.echo(f"twofold: interrupted at {name}; the same command goes on from here.", err=True)
        raise typer.Exit(INTERRUPTED)
    if not quiet:
        first = runs[0]
        grade = "" if graded is None else f", {graded.measure.removeprefix('minus ')} {abs(graded.mean):.4g}"
        show(f"  {place}  {name}: {first.status} after {first.ledger.rounds:,} rounds{grade}")
    return [f"twofold: {name}: seed {r.seed}: {r.message}" for r in runs if r.status == "diverged"]


def _others(home: Path, cells: list[Cell]) -> list[str]:
    """Runs in the folder that are not cells of this grid."""
    mine = {cell.config.folder.resolve() for cell in cells}
    return sorted(
        path.name
        for path in home.iterdir()
        if path.is_dir() and path.resolve() not in mine and (path / "config.toml").is_file()
    )
