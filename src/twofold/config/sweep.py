"""A grid of configurations over one file: each cell has its own folder, and finished cells are not run again."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twofold.config.build import Config
from twofold.config.document import load
from twofold.config.mistakes import ConfigError, in_toml
from twofold.config.output import CONFIG, check_folder, difference
from twofold.errors import InputError
from twofold.result import RESULT, RESULTS

__all__ = ["Axis", "Cell", "axis", "check_cells", "plan"]

MOST_LETTERS = 150
"""The longest name of a folder, in characters; file systems allow 255 bytes."""


@dataclass(frozen=True)
class Axis:
    """One key of a sweep and its values, as written in a TOML file."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One configuration of a sweep: what it sets, and whether it is finished."""

    sets: tuple[str, ...]
    config: Config
    finished: bool


def axis(text: str) -> Axis:
    """Read "objective.lam=0.01,0.1,1"; values are TOML, or plain text.

    >>> axis("objective.lam=0.01,0.1,1").values
    ('0.01', '0.1', '1')
    >>> axis("objective.name=mixture,local").values
    ('"mixture"', '"local"')
    >>> axis("run.participation=[0.5,1.0],3").values
    ('[0.5, 1.0]', '3')
    """
    key, equals, values = text.partition("=")
    if not equals or "." not in key.strip():
        raise ConfigError(
            [f"--grid {text!r} is not of the form section.key=value,value,...: for example objective.lam=0.01,0.1,1."]
        )
    try:
        found: list[Any] = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        found = [_value(part.strip()) for part in _parts(values) if part.strip()]
    told = tuple(in_toml(value) for value in found)
    if not told:
        raise ConfigError([f"--grid {text!r} has no values: write them after the equals sign, separated by commas."])
    if len(set(told)) < len(told):
        raise ConfigError([f"--grid {text!r} has a value twice: every value may appear only once."])
    return Axis(key.strip(), told)


def _parts(values: str) -> list[str]:
    """Split values at commas, except commas within brackets or quotes.

    >>> _parts("0.1,x,[1, 2]")
    ['0.1', 'x', '[1, 2]']
    """
    out, depth, quote = [""], 0, ""
    for letter in values:
        quote = "" if letter == quote else (quote or (letter if letter in "\"'" else ""))
        depth += 0 if quote else (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0 and not quote:
            out.append("")
        else:
            out[-1] += letter
    return out


def _value(text: str) -> Any:
    """One value read as TOML, or as plain text if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def plan(
    path: str | Path,
    grid: Sequence[str],
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    force: bool = False,
) -> list[Cell]:
    """Every cell of a grid over a file, checked; all mistakes of all cells are reported before anything runs.

    Each cell has its own folder below `out`. Without `out`, these lie below the file's output folder with "-sweep" appended.
    """
    axes = [axis(text) for text in grid]
    keys = [one.key for one in axes]
    if len(set(keys)) < len(keys):
        raise ConfigError([f"--grid has a key twice: {', '.join(keys)}. List all its values in one --grid."])
    root = Path(out) if out is not None else None
    cells: list[Cell] = []
    mistakes: dict[str, None] = {}
    for values in itertools.product(*(one.values for one in axes)):
        sets = tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        try:
            config = load(path, [*overrides, *sets])
            home = root or config.folder.with_name(f"{config.folder.name}-sweep")
            config = load(path, [*overrides, *sets, f"output.folder={json.dumps(str(home / folder_name(sets)))}"])
        except ConfigError as error:
            mistakes |= dict.fromkeys(error.errors)
            continue
        cells.append(Cell(sets, config, finished=not force and is_finished(config)))
    if mistakes:
        raise ConfigError(list(mistakes), str(path))
    return cells


def check_cells(cells: Sequence[Cell], force: bool = False) -> None:
    """Refuse the sweep before any work if the folder of a cell that is to run cannot be written."""
    for cell in cells:
        if not cell.finished:
            check_folder(cell.config, force)


def folder_name(sets: Sequence[str]) -> str:
    """The name of a cell's folder, made from what the cell sets.

    >>> folder_name(["objective.lam=0.1", 'objective.name="mixture"'])
    'objective.lam=0.1,objective.name=mixture'
    """
    name = re.sub(r"[^\w.,=+-]", "", ",".join(sets).replace(" ", "").replace("/", "-"))
    if len(name) <= MOST_LETTERS:
        return name
    import hashlib

    return f"{name[: MOST_LETTERS - 9]}-{hashlib.sha256(','.join(sets).encode()).hexdigest()[:8]}"


def is_finished(config: Config) -> bool:
    """Whether the folder holds the results of exactly this configuration, with all its seeds, and none was interrupted."""
    folder = config.folder
    if not (folder / CONFIG).is_file() or difference(config):
        return False
    try:
        if config.several:
            seeds = json.loads((folder / RESULTS).read_text())["seeds"]
            if seeds != config.seeds:
                return False
            ends = [json.loads((folder / f"seed-{seed}" / RESULT).read_text())["status"] for seed in seeds]
        else:
            ends = [json.loads((folder / RESULT).read_text())["status"]]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The run in {folder} cannot be read ({error}): delete it, or use --force.") from error
    return "interrupted" not in ends
