"""What the commands share: exit codes, how errors are told, the set-up of JAX, and tables on the terminal."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from twofold.errors import TwofoldError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = [
    "CODES", "DIVERGED", "ENVIRONMENT", "INTERRUPTED", "ConfigArgument", "SetOption", "X64Option", "friendly", "rich_table",
    "set_up_jax", "show", "show_version",
]  # fmt: skip

OK, DIVERGED, BAD_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130
CODES = (
    "Exit codes: 0 all went well, 1 a run diverged, 2 bad input or usage, 3 an error inside twofold (please report "
    "it), 130 interrupted."
)
NO_CACHE, DEBUG = "TWOFOLD_NO_CACHE", "TWOFOLD_DEBUG"
ENVIRONMENT = (
    "Environment: TWOFOLD_DATA, a folder with data files; TWOFOLD_NO_CACHE=1, do not keep compiled programs between "
    "runs; TWOFOLD_DEBUG=1, show the traceback of every error."
)

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The file; `twofold list keys` lists its keys.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in objective.lam=0.3; may be repeated."),
]
X64Option = Annotated[
    bool | None, typer.Option("--x64/--no-x64", help="Compute in float64 or in float32.", show_default=False)
]

Arguments = ParamSpec("Arguments")


def show_version(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    """Say which version this is, for `twofold --version`."""
    if version:
        import twofold

        typer.echo(f"twofold {twofold.__version__}")
        raise typer.Exit(OK)


def friendly(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Turn a user's mistake into sentences and exit code 2, and anything else into a traceback and exit code 3."""

    @functools.wraps(command)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt as error:
            typer.echo("twofold: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            raise typer.Exit(_tell(error)) from error

    return wrapped


def _tell(error: Exception) -> int:
    """Print an error and give its exit code."""
    # An OSError (a full disk, a folder without permission) is of the user's machine, and its own text says which file.
    if isinstance(error, (TwofoldError, OSError)):
        for sentence in getattr(error, "errors", None) or (str(error),):
            typer.echo(f"twofold: {sentence}", err=True)
        return BAD_INPUT
    import traceback

    typer.echo("".join(traceback.format_exception(error)), err=True)
    typer.echo("twofold: this should not happen; please report it with the lines above.", err=True)
    return BUG


def set_up_jax(x64: bool | None = None) -> None:
    """Make the settings of JAX that must come before anything is computed: precision, and the cache of programs."""
    import jax

    if x64 is not None:
        jax.config.update("jax_enable_x64", x64)
    if not os.environ.get(NO_CACHE) and not getattr(jax.config, "jax_compilation_cache_dir", None):
        import platformdirs

        folder = platformdirs.user_cache_path("twofold", appauthor=False) / "jax"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def show(*things: RenderableType) -> None:
    """Print texts and tables."""
    from rich.console import Console

    console = Console(highlight=False)
    for thing in things:
        console.print(thing, markup=False) if isinstance(thing, str) else console.print(thing)


def rich_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()
) -> RenderableType:
    """A table for the terminal; the columns named in `right` are aligned to the right.

    Nothing is ever cut off with dots: text is broken into lines, and where the figures alone are wider than the terminal the
    table is dealt out over several, each with the first column.
    """
    from rich.console import Console, Group

    body = [list(row) for row in rows]
    width = Console().width
    widths = [max([len(name), *(len(row[i]) for row in body)]) for i, name in enumerate(columns)]
    least = [n if name in right else min(n, 12) for n, name in zip(widths, columns, strict=True)]
    least[0] = widths[0] if widths[0] <= width // 3 else min(widths[0], width // 3)
    parts: list[list[int]] = [[0]]
    for i in range(1, len(columns)):
        if len(parts[-1]) > 1 and sum(least[j] + 2 for j in [*parts[-1], i]) + 2 > width:
            parts.append([0])
        parts[-1].append(i)
    tables = [
        _one_table(
            title if k == 0 else "",
            [columns[i] for i in part],
            [[row[i] for i in part] for row in body],
            right,
            least[0],
        )
        for k, part in enumerate(parts)
    ]
    return tables[0] if len(tables) == 1 else Group(*tables)


def _one_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], first: int
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, column in enumerate(columns):
        figures = column in right
        least = max([len(column), *(len(row[i]) for row in rows)]) if figures else first if i == 0 else None
        table.add_column(Text(column), justify="right" if figures else "left", overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
