"""One client's place in a study, made from its own rows alone; and everything that it would tell about them."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from twofold.clients import ClientError, Clients
from twofold.errors import InputError
from twofold.federation.study import Study, StudyProblem
from twofold.theory.constants import LossConstants

__all__ = ["Seat", "asked_about", "read_rows", "rounded"]


def rounded(value: float, digits: int | None, up: bool) -> float:
    """A number ≥ 0 with so many digits, rounded up or down; as it is where `digits` is None.

    >>> rounded(0.01234, 2, up=True), rounded(0.01234, 2, up=False), rounded(0.0, 2, up=True)
    (0.013, 0.012, 0.0)
    """
    if digits is None or value <= 0:
        return value
    places = digits - 1 - math.floor(math.log10(value))
    # A power of ten as a whole number on one side: 0.013 comes out as 0.013 and not as 0.013000000000000001.
    scaled = value * 10**places if places >= 0 else value / 10**-places
    whole = math.ceil(scaled * (1 - 1e-12)) if up else math.floor(scaled * (1 + 1e-12))
    return whole / 10**places if places >= 0 else float(whole * 10**-places)


class Seat:
    """One client of a study with its rows."""

    def __init__(self, study: Study, name: str, x: np.ndarray, y: np.ndarray) -> None:
        if name not in study.names:
            raise InputError(f"There is no client {name!r} in the study; there are {', '.join(study.names)}.")
        self.study, self.name, self.position = study, name, study.names.index(name)
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != study.width:
            raise InputError(
                f"client {name!r}: the features have the shape {x.shape}, the study has {study.width} columns."
            )
        self.x, self.y = x, np.asarray(y)
        study.loss.check(Clients.from_list([(self.x, self.y)], names=[name]))
        if study.norm is not None:
            longest = float(np.max(np.linalg.norm(self.x, axis=1)))
            if longest > study.norm:
                raise InputError(
                    f"client {name!r}: a row has the norm {longest:.6g}, and the study agreed on {study.norm:g}: scale the rows "
                    "down, or agree on a larger bound."
                )

    @cached_property
    def problem(self) -> StudyProblem:
        """The study's problem with this client's rows in its place, and stand-ins for all others."""
        return self.study.problem({self.position: (self.x, self.y)})

    def constants(self, digits: int | None = None) -> dict[str, list[float]]:
        """μ', L' and 𝓛' of each set of columns that the objective asks about, rounded outwards."""
        found, m = asked_about(self.study.loss, self.problem), self.position
        return {
            name: [rounded(float(getattr(each, name)[m]), digits, up=name != "mu") for each in found]
            for name in ("mu", "L", "calL")
            if found
        }

    def told(self, tells: tuple[str, ...], digits: int | None = None) -> dict[str, Any]:
        """Every number that this client tells before the first iteration, and nothing else about its rows.

        Where a bound on ‖x‖ is agreed on, or the file sets every step size, constants are not needed and not told.
        """
        found: dict[str, Any] = {}
        if "constants" in tells and self.study.norm is None and not self.study.open_algorithm.is_complete():
            found |= self.constants(digits)
        if "rows" in tells:
            found["rows"] = int(rounded(len(self.x), digits, up=True))
        return found


class _Asked:
    """A loss that writes down which constants it was asked for."""

    def __init__(self, loss: Any) -> None:
        self._loss, self.found = loss, cast(list[LossConstants], [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def constants(self, *arguments: Any, **options: Any) -> LossConstants:
        """What the loss says."""
        self.found.append(self._loss.constants(*arguments, **options))
        return self.found[-1]


def asked_about(loss: Any, problem: StudyProblem) -> list[LossConstants]:
    """The constants of each set of columns that the problem's objective asks its loss about."""
    asked = _Asked(loss)
    dataclasses.replace(cast(Any, problem.objective), loss=asked).constants(problem.clients, problem.scale)
    return asked.found


# --- a client's rows, from its own file ---------------------------------------------------------------------------------


def read_rows(study: Study, path: str | Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets from a CSV file with the columns that the study names, or from an .npz file with x and y."""
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["x"], file["y"]
    target = study.document.get("target")
    if target is None or "feature" not in study.document:
        raise InputError("To read a table, the study needs a [[feature]] for every column and a [target].")
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        header = table.fieldnames or []
        for wanted in (*(f["name"] for f in study.document["feature"]), target["name"]):
            if wanted not in header:
                raise ClientError(f"client {name!r}: {path} has no column {wanted!r}; it has {', '.join(header)}")
        lines = list(table)
    if not lines:
        raise ClientError(f"client {name!r}: {path} has no rows")
    columns = [_column(feature, lines, name) for feature in study.document["feature"]]
    classes = target.get("classes")
    if classes is None:
        read: Callable[[str], float] = float
    else:
        places = {str(c): float(i) for i, c in enumerate(classes)}
        read = places.__getitem__
    y = np.array([_cell(read, line, i, target["name"], name, classes) for i, line in enumerate(lines)])
    return np.concatenate(columns, axis=1), y if classes is None else y.astype(np.int64)


def _column(feature: dict[str, Any], lines: list[dict[str, str]], name: str) -> np.ndarray:
    """One feature as a column, or as one column for each of its levels."""
    kind, field = feature.get("kind", "number"), feature["name"]
    if kind == "category":
        levels = [str(level) for level in feature["levels"]]
        places = {level: i for i, level in enumerate(levels)}
        found = [_cell(places.__getitem__, line, i, field, name, levels) for i, line in enumerate(lines)]
        return np.eye(len(levels))[np.array(found, int)]
    if kind not in ("number", "binary"):
        raise InputError(f"Feature {field!r} is of the kind {kind!r}; there are number, binary and category.")
    column = np.array([_cell(float, line, i, field, name, None) for i, line in enumerate(lines)])
    if kind == "binary" and not np.isin(column, (0, 1)).all():
        row = int(np.argmin(np.isin(column, (0, 1))))
        raise ClientError(f"client {name!r}: column {field!r} at row {row} is {column[row]:g}, but must be 0 or 1")
    return ((column - float(feature.get("center", 0.0))) / float(feature.get("scale", 1.0)))[:, None]


def _cell(read: Callable[[str], Any], line: dict[str, str], row: int, field: str, name: str, known: Any) -> Any:
    text = (line[field] or "").strip()
    try:
        value = read(text)
    except (ValueError, KeyError):
        wanted = "a number" if known is None else f"one of {', '.join(map(str, known))}"
        raise ClientError(f"client {name!r}: column {field!r} at row {row} is {text!r}, but must be {wanted}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ClientError(f"client {name!r}: column {field!r} at row {row} is {text!r}, but must be finite")
    return value
