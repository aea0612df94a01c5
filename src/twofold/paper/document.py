"""The JSON document of an experiment, and the table of all its histories, from the tables of its cells."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from twofold.extras import require
from twofold.paper.base import LABELS, Cell, Experiment, Plain
from twofold.paper.numbers import numbers, thin

if TYPE_CHECKING:
    import pyarrow

__all__ = ["document", "environment", "without_times"]

AXES = ("bytes", "gradients_w", "gradients_beta")
TIMES = ("seconds", "environment")
"""The names of all fields that differ between two runs on the same machine: they hold times."""


def document(
    experiment: Experiment,
    table_of: Callable[[Cell], pyarrow.Table],
    optimum_of: Callable[[Cell], Plain],
    quick: bool,
    environment: Plain,
) -> tuple[dict[str, Any], pyarrow.Table]:
    """The JSON document of an experiment and the table of all its histories."""
    pa = require("pyarrow", "`twofold reproduce`", "paper")
    series, tables, cells, sources, optima = [], [], [], {}, {}
    for cell in experiment.cells:
        table = table_of(cell)
        about = json.loads((table.schema.metadata or {})[b"twofold"])
        sources[about.pop("provenance")] = None
        cells.append(about)
        best = None
        if cell.optimum:
            best = optimum_of(cell)
            where = {name: value for name, value in cell.labels.items() if name != "method"}
            optima[json.dumps(where)] = {**where, **best}
        series += _series(table, about, best["value"] if best else None)
        tables.append(_labelled(table, cell))
    name = experiment.name
    return {
        "experiment": name,
        "title": experiment.title,
        "settings": {
            "command": f"twofold reproduce {name} --out DIR{' --quick' if quick else ''}",
            "quick": quick,
            "facts": dict(experiment.facts),
            "data": list(sources),
            "cells": cells,
        },
        "environment": dict(environment),
        "optimum": list(optima.values()),
        "series": series,
    }, pa.concat_tables(tables, promote_options="default")


def _labelled(table: pyarrow.Table, cell: Cell) -> pyarrow.Table:
    """A cell's table with the cell's labels as its first columns."""
    pa = require("pyarrow", "`twofold reproduce`", "paper")
    texts = {k: None if v is None else str(v) for k, v in cell.labels.items()}
    labels = {k: pa.repeat(v, len(table)).cast(pa.string()).dictionary_encode() for k, v in texts.items()}
    return pa.table(labels | {name: table.column(name) for name in table.column_names})


def _series(table: pyarrow.Table, about: Plain, optimum: float | None) -> Iterator[dict[str, Any]]:
    """One series for each metric of a cell: by round, the mean over seeds and its standard error."""
    cell = about["cell"]
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    runs = [np.flatnonzero(columns["seed"] == seed) for seed in cell["seeds"]]
    longest = max(map(len, runs))
    keep = thin(longest)
    rounds = columns["round"][max(runs, key=len)][keep]

    def stacked(name: str) -> np.ndarray:
        """A column as an array (seeds, records); NaN after the end of a run that ended early."""
        out = np.full((len(runs), longest), np.nan)
        for row, places in zip(out, runs, strict=True):
            row[: len(places)] = columns[name][places]
        return out[:, keep]

    shared = {
        **{name: cell[name] for name in LABELS},
        "rounds": numbers(rounds),
        **{name: numbers(np.mean(stacked(name), axis=0)) for name in AXES},
        "runs": len(runs),
        "seconds": about["seconds"],
        "diverged": about["status"].count("diverged"),
    }
    for metric in cell["metrics"]:
        values = stacked(metric)
        # A single run has no spread.
        spread = np.std(values, axis=0, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else np.zeros(values.shape[1])
        best = {"optimum": optimum} if metric == "loss" and optimum is not None else {}
        means = {"mean": numbers(np.mean(values, axis=0)), "stderr": numbers(spread)}
        yield {**shared, "metric": metric, **means, **best}


def environment(code: str, seconds: float) -> dict[str, Any]:
    """The machine, the versions of everything that the numbers depend on, and how long it took."""
    names = ("twofold", "jax", "jaxlib", "numpy", "scipy")
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "device": str(jax.devices()[0]),
        "code": code,
        "seconds": seconds,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def without_times(document: Any) -> Any:
    """A document without the fields that hold times and the machine: the same seeds reproduce the rest to the bit.

    >>> without_times({"series": [{"mean": [1.0], "seconds": 0.3}], "environment": {}})
    {'series': [{'mean': [1.0]}]}
    """
    if isinstance(document, Mapping):
        return {name: without_times(value) for name, value in document.items() if name not in TIMES}
    if isinstance(document, list):
        return [without_times(value) for value in document]
    return document
