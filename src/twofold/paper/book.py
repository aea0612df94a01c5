"""What the judge reads: the documents of a folder, and comparisons between their series."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twofold.errors import InputError

__all__ = ["Book", "Check", "Checks", "Figures", "Missing", "compare_by"]

Figures = dict[str, float]
"""The numbers of a comparison, by name."""


class Missing(Exception):  # noqa: N818  (not an error: the series was not run)
    """A comparison needs a series that was not run."""


class Check(NamedTuple):
    """One comparison: what is compared, whether it came out as claimed (None where it was not run), and the figures."""

    name: str
    passed: bool | None
    figures: Figures


Checks = list[Check]


class Book:
    """The documents of a folder, with their series by label."""

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self.documents = {document["experiment"]: document for document in documents}

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Book:
        """All documents of a folder that `reproduce` wrote."""
        found = (_document(path) for path in sorted(Path(folder).glob("*.json")))
        return cls(document for document in found if isinstance(document, dict) and "experiment" in document)

    def series(self, experiment: str, metric: str, **labels: Any) -> Mapping[str, Any]:
        """The one series with these labels."""
        for series in self.documents.get(experiment, {"series": ()})["series"]:
            if series["metric"] == metric and all(series[name] == value for name, value in labels.items()):
                return series
        raise Missing(f"{experiment}: {metric} of {labels}")

    def at(self, experiment: str, metric: str, share: float, **labels: Any) -> float:
        """The mean after this share of the rounds (0 is the start, 1 the end); infinite if a run diverged before."""
        last = self.series(experiment, metric, **labels)["rounds"][-1]
        return self.near(experiment, metric, share * last, **labels)

    def near(self, experiment: str, metric: str, when: float, **labels: Any) -> float:
        """The mean at the record nearest to this round; infinite if a run diverged before."""
        series = self.series(experiment, metric, **labels)
        value = series["mean"][int(np.argmin(np.abs(np.array(series["rounds"], float) - when)))]
        return math.inf if value is None else float(value)

    def end(self, experiment: str, metric: str, **labels: Any) -> float:
        """The mean at the last round."""
        return self.at(experiment, metric, 1.0, **labels)

    def left(self, experiment: str, **labels: Any) -> float:
        """The share of the first gap that is left at the end: (F − F*)/(F⁰ − F*)."""
        series = self.series(experiment, "loss", **labels)
        if series.get("optimum") is None:
            raise Missing(f"{experiment}: no optimum for {labels}")
        first = series["mean"][0] - series["optimum"]
        return (self.end(experiment, "loss", **labels) - series["optimum"]) / first


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not a JSON document ({error}); delete it and run its experiment again.") from None


def compare_by(name: str, figures: Callable[[], Figures], passed: Callable[[Figures], bool]) -> Check:
    """Make a comparison from its figures and a test of them; it counts as not run where a series is missing.

    >>> compare_by("two numbers", lambda: {"a": 1.0, "b": 2.0}, lambda f: f["a"] < f["b"]).passed
    True
    """
    try:
        found = figures()
    except Missing:
        return Check(name, None, {})
    return Check(name, bool(passed(found)), found)
