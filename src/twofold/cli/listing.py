"""`twofold list`: everything comes from the registries."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.base import friendly, rich_table, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twofold.config import ConfigKey

__all__ = ["Listed", "list_"]


class Listed(StrEnum):
    """What `twofold list` can list."""

    objectives = "objectives"
    losses = "losses"
    algorithms = "algorithms"
    engines = "engines"
    datasets = "datasets"
    partitioners = "partitioners"
    experiments = "experiments"
    keys = "keys"


SECTIONS = {Listed.losses: "loss", Listed.datasets: "data", Listed.partitioners: "partition"}


@friendly
def list_(
    kind: Annotated[Listed | None, typer.Argument(help="Only these.", show_default=False)] = None,
) -> None:
    """List what there is: objectives, losses, algorithms, engines, data sets, partitioners, experiments.

    `twofold list keys` lists every key of a configuration file.
    """
    if kind is Listed.keys:
        show(*_key_lines())
        return
    for listed in [kind] if kind else [listed for listed in Listed if listed is not Listed.keys]:
        columns, body = _listing(listed)
        show(rich_table(listed.value, columns, body))


def _listing(kind: Listed) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of one table."""
    from twofold import algorithms, config, engines, objectives

    if kind is Listed.algorithms:
        body = [
            [
                name,
                _module_line(cls),
                ", ".join(option.name for option in config.model_of("algorithm", name).registered.options),
            ]
            for name, cls in algorithms.REGISTRY.items()
        ]
        return ["", "what it is", "fields"], body
    if kind is Listed.objectives:
        body = [[name, config.first_sentence(factory)] for name, factory in objectives.REGISTRY.items()]
    elif kind is Listed.engines:
        body = [[name, _module_line(engine)] for name, engine in engines.REGISTRY.items()]
    elif kind is Listed.experiments:
        from twofold.cli.reproduce import experiment_titles

        body = [[name, title] for name, title in experiment_titles().items()]
    else:
        body = [[name, model.__doc__ or ""] for name, model in config.grouped(SECTIONS[kind]).items()]
    return ["", "what it is"], body


def _key_lines() -> list[RenderableType]:
    """Every key of a file, section by section."""
    from rich.padding import Padding
    from rich.text import Text

    from twofold import config

    out: list[RenderableType] = []
    section = kind = ""
    for key in config.all_keys():
        home = key.path.split(".", 1)[0]
        if home != section:
            section, kind = home, ""
            out.append(Text(f"\n[{section}]", style="bold"))
        if key.kind != kind:
            kind = key.kind
            out.append(Padding(Text(f"with {config.SELECTORS[section]} = {kind}:", style="italic"), (0, 0, 0, 2)))
        out.append(Padding(_key_line(key), (0, 0, 0, 4 if kind else 2)))
    return out


def _key_line(key: ConfigKey) -> RenderableType:
    from rich.text import Text

    line = Text(key.path.split(".", 1)[1], style="bold")
    line.append(f"  {key.type}", style="not bold")
    line.append({"": "", "required": ", required"}.get(key.default, f", default {key.default}"), style="not bold")
    line.append(f": {key.meaning}" if key.meaning else "", style="not bold dim")
    return line


def _module_line(thing: type) -> str:
    """The first line of the docstring of the file that a class is in."""
    return (sys.modules[thing.__module__].__doc__ or "").split("\n")[0]
