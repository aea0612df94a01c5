"""Read the runs that `twofold run` and `twofold sweep` have written to a folder, each as a `SavedRun`."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError
from twofold.model.files import DOCUMENT
from twofold.result import RESULT, RESULTS, Result, Results

__all__ = ["ABOUT", "CLIENTS", "CONFIG", "Grades", "SavedRun", "differing", "read_runs"]

CONFIG, ABOUT, CLIENTS = "config.toml", "run.json", "clients.csv"
"""The files of a run besides its results: its configuration, facts about it, and every client's grade."""
DIGEST = "names and columns"
"""The key of a short hash of the clients' names and columns, used if only the model describes the data."""


@dataclass(frozen=True, eq=False)
class Grades:
    """Every client's grade with its personal model; larger is better."""

    clients: tuple[str, ...]
    rows: NDArray[np.int64]
    personal: NDArray[np.float64]
    measure: str

    @property
    def mean(self) -> float:
        """The mean over clients."""
        return float(np.nanmean(self.personal)) if not np.isnan(self.personal).all() else float("nan")

    @property
    def worst(self) -> float:
        """The worst client's grade."""
        return float(np.nanmin(self.personal)) if not np.isnan(self.personal).all() else float("nan")


@dataclass(frozen=True, eq=False)
class SavedRun:
    """One configuration that was run: its settings, the results of all its seeds, and its clients' grades.

    `name` is its folder, relative to the folder that was read.
    """

    name: str
    folder: Path
    document: Mapping[str, Mapping[str, Any]]
    results: Results
    grades: Grades | None
    about: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Every key of the configuration with its value, except [output]."""
        return {
            f"{section}.{key}": value
            for section, table in self.document.items()
            if section != "output" and isinstance(table, dict)
            for key, value in table.items()
        }

    @property
    def algorithm(self) -> str:
        """The name of the method that ran."""
        return str(self.results[0].settings["name"])

    @property
    def told_by(self) -> str | None:
        """Where the problem is described: in the configuration ("config"), in the model beside it ("model"), or nowhere (None)."""
        if not self.document:
            return None
        return "model" if DIGEST in self.document.get("data", {}) else "config"

    @property
    def problem(self) -> tuple[Any, ...] | None:
        """What identifies the problem: data, partition, loss and objective; None if they are not known."""
        if self.told_by is None:
            return None
        return tuple(json.dumps(self.document.get(name, {}), sort_keys=True, default=str)
                     for name in ("data", "partition", "loss", "objective"))  # fmt: skip


def read_runs(*folders: str | os.PathLike[str]) -> list[SavedRun]:
    """All runs in these folders and below them, in the order of their names.

    >>> import tempfile
    >>> read_runs(tempfile.mkdtemp())
    []
    """
    found: list[SavedRun] = []
    several = len(folders) > 1
    for given in folders:
        root = Path(given)
        if not root.is_dir():
            raise InputError(f"There is no folder {root}: `twofold run CONFIG.toml --out {root}` would make it.")
        for place in sorted({path.parent for path in (*root.rglob(RESULT), *root.rglob(RESULTS))}, key=_by_number):
            if (place.name.startswith("seed-") and (place.parent / RESULTS).is_file()) or _is_hidden(place, root):
                continue  # one seed of a run that is found by its results.json
            below = place.relative_to(root).as_posix()
            name = below if below != "." else root.resolve().name
            found.append(_read(place, f"{root.name}/{below}" if several and below != "." else name))
    return found


def _by_number(path: Path) -> tuple[tuple[float, str], ...]:
    """A sort key that orders numbers in folder names by value: 2 before 10."""
    import re

    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", str(path))
    return tuple((float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts))


def _is_hidden(place: Path, root: Path) -> bool:
    return any(part.startswith(".") or part == "checkpoints" for part in place.relative_to(root).parts)


def _read(folder: Path, name: str) -> SavedRun:
    try:
        if (folder / RESULTS).is_file():
            results = Results.load(folder)
        else:
            results = Results([Result.load(folder)])
        if (folder / CONFIG).is_file():
            document = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        else:
            document = _of_model(folder, results)
        about: dict[str, Any] = (
            json.loads((folder / ABOUT).read_text(encoding="utf-8")) if (folder / ABOUT).is_file() else {}
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The run in {folder} cannot be read ({error}): run it again, or move it away.") from error
    return SavedRun(name, folder, document, results, _grades(folder, about), about)


def _of_model(folder: Path, results: Results) -> dict[str, Any]:
    """What the model beside a run says about its problem; empty if the problem has functions of the user's own."""
    path = min(
        [folder / DOCUMENT, *folder.glob(f"seed-*/{DOCUMENT}")], key=lambda path: (not path.is_file(), str(path))
    )
    if not path.is_file():
        return {}
    model = json.loads(path.read_text(encoding="utf-8"))
    objective, loss = model["objective"], model["loss"]
    if objective["settings"] is None or loss is None or "function" in loss:
        return {}
    same = {key: model[key] for key in ("clients", "inputs", "classes", "schema")}
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
    about = model["provenance"]
    data = {"clients": about.get("clients"), "rows": about.get("rows"), DIGEST: digest}
    settings = results[0].settings
    return {
        "data": data, "loss": loss, "objective": {"name": objective["name"], **objective["settings"]},
        "algorithm": {"name": settings["name"]},
    }  # fmt: skip


def _grades(folder: Path, about: Mapping[str, Any]) -> Grades | None:
    """Every client's grade, if it was graded."""
    path = folder / CLIENTS
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    if not lines or "personal" not in lines[0]:
        return None
    return Grades(
        clients=tuple(line["client"] for line in lines),
        rows=np.array([int(float(line.get("rows") or 0)) for line in lines]),
        personal=np.array([float(line["personal"]) for line in lines]),
        measure=str(about.get("measure") or "grade"),
    )


def differing(runs: Sequence[SavedRun]) -> list[str]:
    """The keys in which the runs' configurations differ, ignoring seeds and checkpoints."""
    settings = [run.settings for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    skipped = ("run.seed", "run.seeds", "run.checkpoint", "run.checkpoint_every")
    return [
        key for key in keys
        if key not in skipped and len({json.dumps(one.get(key), default=str) for one in settings}) > 1
    ]  # fmt: skip
