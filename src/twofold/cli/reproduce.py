"""`twofold reproduce` and `twofold report`: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.base import friendly, rich_table, set_up_jax, show


def experiment_titles() -> dict[str, str]:
    """The experiments' names, with a line on each."""
    from twofold import paper

    return {name: paper.load(name).title for name in paper.available()}


@friendly
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Some of `twofold list experiments`, or all.")],
    out: Annotated[Path, typer.Option(help="The folder for the results; an interrupted run resumes there.")],
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run in seconds, too short to judge by.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, instead of the experiment's own.")] = None,
) -> None:
    """Run experiments of the paper again, with the paper's settings and with theory's.

    Writes NAME.json, NAME.parquet and figures for each, then the page of `twofold report`, and prints its verdicts.
    """
    set_up_jax()
    from twofold import paper

    for path in paper.reproduce(names, out=out, quick=quick, seeds=seeds):
        typer.echo(path)
    _report(out, None)


@friendly
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `twofold reproduce` has written.")],
    markdown: Annotated[
        Path | None, typer.Option(help="Write verdicts, figures and end points as Markdown, too.", metavar="FILE")
    ] = None,
) -> None:
    """Make one self-contained HTML page out of a folder of results, and print its verdicts on the paper's claims."""
    _report(folder, markdown)


def _report(folder: Path, markdown: Path | None) -> None:
    from twofold.paper import judge, write, write_markdown

    typer.echo(write(folder))
    if markdown is not None:
        typer.echo(write_markdown(folder, markdown))
    rows = [[v.verdict, v.by_theory, v.claim] for v in judge(folder)]
    show(rich_table("The paper's claims", ["as published", "by theory", "claim"], rows))
