"""`twofold demo`."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twofold.cli.base import DIVERGED, X64Option, friendly, set_up_jax

__all__ = ["demo"]


@friendly
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the plot and the numbers.")] = Path("twofold-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Deals the digits out, and runs the methods.")] = 0,
    clients: Annotated[int, typer.Option(min=2, help="The number of clients.")] = 20,
    train: Annotated[int, typer.Option(min=2, help="Training images of each client.")] = 10,
    algorithm: Annotated[str, typer.Option(help="The method that solves everything.")] = "acd",
    x64: X64Option = None,
) -> None:
    """Recognise digits, for twenty people who each know only two: shared, alone, or personalised?

    Trains one model for all, one for each client alone, and six personalised objectives on scikit-learn's digits, and
    shows how well every client does on images that were not trained on. Takes less than a minute.
    """
    set_up_jax(x64)
    from twofold.demo import Setting, show

    result = show(Setting(clients=clients, train=train, seed=seed, algorithm=algorithm), out)
    if any(row.status == "diverged" for row in result.comparison):
        raise typer.Exit(DIVERGED)
