"""Opening a configuration for a command: read it, set JAX up for it, build the problem."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twofold.cli.base import set_up_jax

if TYPE_CHECKING:
    from twofold.config import Config

__all__ = ["notes_to_stderr", "open_config"]


def open_config(path: Path, overrides: list[str] | None, x64: bool | None, out: Path | None = None) -> Config:
    """Read and check the file with the command line's overrides in place, and set JAX up for it."""
    set_up_jax()
    from twofold import config

    extra = [*(overrides or [])]
    extra += [f"output.folder={json.dumps(str(out))}"] if out is not None else []
    extra += [f"run.x64={str(x64).lower()}"] if x64 is not None else []
    settings = config.load(path, extra)
    set_up_jax(settings.run.x64)
    notes_to_stderr()
    return settings


def notes_to_stderr() -> None:
    """Show theory's warnings as notes of one line."""
    from twofold.solver import TheoryWarning

    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TheoryWarning):
            typer.echo(f"note: {message}", err=True)
        else:
            plain(message, category, *where, **more)

    warnings.showwarning = show
