"""`twofold compare` and `twofold report`: what is in a folder of results, as a table or as a page."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.base import friendly, rich_table, show
from twofold.errors import InputError

__all__ = ["compare", "report", "report_paper"]


@friendly
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs; those below them count, too.")
    ],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as CSV, too.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as LaTeX, too.")] = None,
) -> None:
    """Put runs side by side, and say which is better, as far as the numbers say.

    Runs of one problem are judged by what they reached, runs of different objectives by how well their clients do on rows that
    were held out, client by client. `twofold report DIR` makes a page of the same.
    """
    from twofold.report.runs import read_runs
    from twofold.report.versus import compare as side_by_side

    runs = read_runs(*folders)
    if not runs:
        raise InputError(
            f"There are no runs in {', '.join(map(str, folders))}: `twofold run CONFIG.toml --out DIR` makes one."
        )
    found = side_by_side(runs)
    show(str(found))
    if csv is not None:
        show(f"Written to {found.table.to_csv(csv)}.")
    if latex is not None:
        found.table.to_latex(latex)
        show(f"Written to {latex}.")


@friendly
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder of runs, of a sweep, or of `twofold reproduce`.")
    ],
    markdown: Annotated[
        Path | None, typer.Option(help="The paper's verdicts, figures and end points as Markdown, too.", metavar="FILE")
    ] = None,
) -> None:
    """Make one self-contained HTML page out of a folder of results.

    Runs of your own get their courses, their table and which is best. A folder that `twofold reproduce` has written gets the
    paper's figures and a verdict on each of its claims; a folder with both gets both, the runs in runs.html.
    """
    from twofold.report.runs import read_runs

    if not folder.is_dir():
        raise InputError(
            f"There is no folder {folder}: `twofold run` or `twofold reproduce` with --out {folder} makes it."
        )
    ours, theirs = read_runs(folder), _documents(folder)
    if not ours and not theirs:
        raise InputError(
            f"There are no results in {folder}: `twofold run CONFIG.toml --out {folder}` makes a run, "
            f"`twofold reproduce mx2 --out {folder}` an experiment of the paper."
        )
    if ours:
        from twofold.report.page import write

        typer.echo(write(folder, "runs.html" if theirs else "report.html"))
    if theirs:
        report_paper(folder, markdown)
    elif markdown is not None:
        raise InputError(
            f"--markdown is for the paper's experiments, and {folder} has none: `twofold compare {folder} --csv FILE` writes a table."
        )


def _documents(folder: Path) -> bool:
    """Whether the folder has results of the paper's experiments, or files that should be some."""
    from twofold.paper import NAMES
    from twofold.paper.report.page import read

    documents, unreadable = read(folder)
    return bool(documents) or bool(set(unreadable) & set(NAMES))


def report_paper(folder: Path, markdown: Path | None = None) -> None:
    """Write the paper's page, and print its verdicts."""
    from twofold.paper import judge, write, write_markdown

    typer.echo(write(folder))
    if markdown is not None:
        typer.echo(write_markdown(folder, markdown))
    rows = [[v.verdict, v.by_theory, v.claim] for v in judge(folder)]
    show(rich_table("The paper's claims", ["as published", "by theory", "claim"], rows))
