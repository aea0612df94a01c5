"""The folder that a run writes, and the checks beforehand that nothing else in it gets lost."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.config.build import Built, Config
from twofold.config.mistakes import in_toml
from twofold.errors import InputError
from twofold.evaluate import Evaluation
from twofold.extras import require
from twofold.model.files import DOCUMENT
from twofold.result import MODEL, RESULT, RESULTS, Results, delete_other_seeds

__all__ = ["CONFIG", "check_folder", "difference", "save"]

CONFIG = "config.toml"
HISTORY_CSV, HISTORY_PARQUET, CLIENTS_CSV, ABOUT = "history.csv", "history.parquet", "clients.csv", "run.json"


def check_folder(config: Config, force: bool = False, resume: bool = False) -> None:
    """Refuse a folder that cannot be written to or, unless `force`, one with the results of another configuration.

    This is called before the work starts, so that an hour's run cannot fail because its folder is a file. With `resume` there
    must be checkpoints to continue from (whether they belong to this run is checked when they are read). Without `resume` there
    must be none, unless `force` deletes them.
    """
    folder = config.folder
    if "parquet" in (config.output.history or ()):
        require("pyarrow.parquet", 'output.history = ["parquet"]', "paper")
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not place.is_dir():
        raise InputError(f"The results cannot go to {folder}, because {place} is a file: name another folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"The results cannot go to {folder}, because {place} is not writable: name another folder.")
    _check_checkpoints(config, force, resume)
    if force or resume:
        return
    found = difference(config)
    if found:
        raise InputError(
            f"{folder} holds the results of another configuration ({found}): name another folder, or replace them "
            "with --force."
        )


def _check_checkpoints(config: Config, force: bool, resume: bool) -> None:
    folder = config.checkpoints
    there = folder is not None and any(folder.rglob("checkpoint-*.safetensors"))
    if resume and not there:
        raise InputError(
            f"There is nothing to resume in {config.folder}: it has no checkpoints. Start the run without --resume, and with "
            "--checkpoint-every N (or checkpoint = true in [run]), so that it writes some."
        )
    if folder is None or not there or resume:
        return
    if not force:
        raise InputError(
            f"{folder} has the checkpoints of an earlier run: continue from them with --resume, or start over with --force."
        )
    shutil.rmtree(folder)


def save(
    config: Config, results: Results, evaluation: Evaluation | None = None, built: Built | None = None
) -> list[str]:
    """Write the runs, their history, the clients' grades and the configuration into its folder; return the files' names.

    Files of an earlier run that this run does not write are deleted.
    """
    folder = config.folder
    if config.several:
        results.save(folder)
        files = [f"seed-*/{MODEL}", f"seed-*/{RESULT}", RESULTS]
    else:
        results[0].save(folder)
        delete_other_seeds(folder, ())
        files = [MODEL, *([DOCUMENT] if (folder / DOCUMENT).is_file() else []), RESULT]
    columns = _history(results, config.several)
    formats = _formats(config)
    if "csv" in formats:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        files.append(_write_csv(folder / HISTORY_CSV, list(columns), rows))
    if "parquet" in formats:
        pyarrow = require("pyarrow", 'output.history = ["parquet"]', "paper")
        parquet = require("pyarrow.parquet", 'output.history = ["parquet"]', "paper")
        parquet.write_table(pyarrow.table(columns), folder / HISTORY_PARQUET)
        files.append(HISTORY_PARQUET)
    if evaluation is not None:
        grades = (grade.tolist() for grade in evaluation.grades.values())
        body = zip(evaluation.names, evaluation.rows.tolist(), *grades, strict=True)
        files.append(_write_csv(folder / CLIENTS_CSV, ["client", "rows", *evaluation.grades], body))
    if built is not None:
        (folder / ABOUT).write_text(
            json.dumps(_about(built, evaluation), indent=1, ensure_ascii=False), encoding="utf-8"
        )
        files.append(ABOUT)
    for name in (MODEL, DOCUMENT, RESULT, RESULTS, HISTORY_CSV, HISTORY_PARQUET, CLIENTS_CSV, ABOUT):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    (folder / CONFIG).write_text(str(config), encoding="utf-8")
    return [*files, CONFIG]


def _about(built: Built, evaluation: Evaluation | None) -> dict[str, Any]:
    """The facts about a run that `twofold compare` and `twofold report` show, and that its results do not contain."""
    from importlib.metadata import PackageNotFoundError, version

    def found(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "source"

    versions = {name: found(name) for name in ("twofold", "jax", "numpy")}
    return {
        "format": 1,
        "objective": built.problem.objective.name,
        "equation": built.problem.objective.equation,
        "measure": None if evaluation is None else evaluation.measure,
        "held_out": None if evaluation is None else evaluation.held_out,
        "data": built.provenance,
        "environment": {"python": platform.python_version(), **versions, "date": time.strftime("%Y-%m-%d %H:%M:%S %z")},
    }


def _formats(config: Config) -> list[str]:
    if config.output.history is not None:
        return list(config.output.history)
    return ["csv", "parquet"] if importlib.util.find_spec("pyarrow") else ["csv"]


def _history(results: Results, several: bool) -> dict[str, NDArray[Any]]:
    """The columns of all histories, concatenated; with a column `seed` if there are several."""
    lengths = [len(run.history["round"]) for run in results]
    columns = {"seed": np.repeat([run.seed for run in results], lengths)} if several else {}
    return columns | {name: np.concatenate([run.history[name] for run in results]) for name in results[0].history}


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path.name


def difference(config: Config) -> str:
    """How the configuration of the results in the folder differs from this one; empty if it does not."""
    folder = config.folder
    if not (folder / CONFIG).is_file():
        return "it does not say which" if any((folder / name).exists() for name in (RESULT, RESULTS)) else ""
    try:
        there = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return f"its {CONFIG} cannot be read"
    old, new = _settings(there), _settings(tomllib.loads(str(config)))
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return "; ".join(
        f"{key} is {old.get(key, 'not given')} there, {new.get(key, 'not given')} here" for key in differing
    )


def _settings(document: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every key with its value as text, except those that do not affect the results: the output and checkpoints."""
    keys = {
        f"{section}.{key}": in_toml(value)
        for section, table in document.items()
        if section != "output"
        for key, value in table.items()
    }
    return {key: value for key, value in keys.items() if key not in ("run.checkpoint", "run.checkpoint_every")}
