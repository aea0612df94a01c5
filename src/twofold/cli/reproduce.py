"""`twofold reproduce`: the paper's experiments."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.base import friendly, set_up_jax
from twofold.cli.compare import report_paper

__all__ = ["experiment_titles", "reproduce"]

OWN = {
    "realdata": "All solvers by default on real data (not the paper's; not in `all`)",
    "pfllib": "PFLlib's table: a CNN, 20 clients, thirteen methods (for a GPU; not in `all`)",
}
"""Studies of our own, with a line on each."""


def experiment_titles() -> dict[str, str]:
    """The experiments' names, with a line on each."""
    from twofold import paper

    titles = {name: paper.load(name).title for name in paper.available()}
    return {**titles, **OWN}


@friendly
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Some of `twofold list experiments`, or all.")],
    out: Annotated[Path, typer.Option(help="The folder for the results; an interrupted run resumes there.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run in seconds, too short to judge by.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, instead of the experiment's own.")] = None,
) -> None:
    """Run experiments of the paper again, with the paper's settings and with theory's.

    Writes NAME.json, NAME.parquet and figures for each, then the page of `twofold report`, and prints its verdicts.

    `realdata` is a study of our own, all solvers by default on real data: it writes realdata.json and realdata.md, and prints the page.
    So is `pfllib`, PFLlib's table of nets: 156 runs, most of a day on an H200; on a CPU take `--quick`, a minute.
    """
    set_up_jax()
    from twofold import paper

    if "realdata" in names:
        _realdata(out, quick)
    if "pfllib" in names:
        _pfllib(out, quick, seeds)
    names = [name for name in names if name not in OWN]
    if not names:
        return
    for path in paper.reproduce(names, out=out, quick=quick, seeds=seeds):
        typer.echo(path)
    report_paper(out)


def _realdata(out: Path, quick: bool) -> None:
    from twofold.paper import realdata

    path = realdata.run(out, **(realdata.QUICK if quick else {}), tell=typer.echo, workers=realdata.WORKERS)
    typer.echo(f"\n{path.read_text()}\n{path}")


def _pfllib(out: Path, quick: bool, seeds: int | None) -> None:
    from twofold.paper import pfllib

    plan = pfllib.QUICK if quick else pfllib.Plan()
    path = pfllib.run(out, plan if seeds is None else replace(plan, seeds=seeds), tell=typer.echo)
    typer.echo(f"\n{path.read_text()}\n{path}")
