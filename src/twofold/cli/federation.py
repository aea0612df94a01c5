"""What the commands of a federation have in common: exit codes, the log, the study file."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from twofold.cli.base import friendly, set_up_jax

if TYPE_CHECKING:
    from twofold.federation import Study

__all__ = ["FEDERATION_CODES", "LogOption", "StudyArgument", "ends", "log_to_terminal", "read_study"]

STOPPED, REFUSED = 4, 5
FEDERATION_CODES = (
    "Exit codes: 0 the study is done, 2 bad input, 3 an error inside twofold, 4 stopped for now (the same command goes on), 5 not "
    "let in, 130 interrupted (the same command goes on)."
)
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file, the same for everybody.")]
LogOption = Annotated[str, typer.Option("--log", help="How to log: text, or json (one object a line).")]
Arguments = ParamSpec("Arguments")


def ends(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Exit codes of their own for a run that can be resumed, and for a node that is not let in."""

    @functools.wraps(command)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        from twofold.federation import Stopped
        from twofold.federation.store import is_full

        try:
            command(*args, **kwargs)
        except Stopped as error:
            _say(f"twofold: {error} The same command goes on from here.")
            raise typer.Exit(STOPPED) from error
        except Exception as error:
            if is_full(error):
                _say(f"twofold: {error}: make some room; nothing is lost. The same command goes on from here.")
                raise typer.Exit(STOPPED) from error
            if type(error).__name__ != "NotLetIn":
                raise
            typer.echo(f"twofold: {error}", err=True)
            raise typer.Exit(REFUSED) from error

    return friendly(wrapped)


def _say(sentence: str) -> None:
    """Say it to whoever listens: where the log is on the same full disk, the exit code has to do."""
    with contextlib.suppress(OSError):
        typer.echo(sentence, err=True)


class _JsonLines:
    """Log records as one JSON object a line."""

    def format(self, record: Any) -> str:
        """See `logging.Formatter.format`."""
        more = getattr(record, "twofold", {})
        told = {"time": round(record.created, 3), "level": record.levelname.lower(), "from": record.name}
        return json.dumps({**told, "event": record.getMessage(), **more})


def log_to_terminal(how: str) -> None:
    """Log to the terminal's error stream."""
    import logging

    if how not in ("text", "json"):
        raise typer.BadParameter(f"must be text or json, got {how!r}.", param_hint="--log")
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler.setFormatter(plain if how == "text" else _JsonLines())  # type: ignore[arg-type]
    logger = logging.getLogger("twofold")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def read_study(path: Path) -> Study:
    """The study file, and JAX in the precision that it says."""
    import os

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from twofold.federation import Study

    found = Study.read(path)
    set_up_jax(found.dtype == "float64")
    return found
