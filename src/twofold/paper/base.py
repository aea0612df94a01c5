"""What an experiment is: cells to run, facts for the reader, figures to draw. All of it is data; nothing here runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

__all__ = [
    "LABELS",
    "PUBLISHED",
    "THEORY",
    "VARIANTS",
    "Cell",
    "Experiment",
    "Figure",
    "Plain",
    "by_default",
    "by_variant",
    "digest",
    "grid",
]

PUBLISHED = "as published"
THEORY = "by theory"
VARIANTS = (PUBLISHED, THEORY)
"""Two kinds of settings: those of the published runs, and everything from the problem's certified constants."""

LABELS = ("method", "variant", "objective", "dataset", "level")
"""The fields that, with its metric, identify a series of an experiment."""

Plain = Mapping[str, Any]
"""A mapping of plain JSON values."""


@dataclass(frozen=True)
class Cell:
    """One call of `solve`: a method on a problem, from several seeds.

    `problem` is what `problems.setup` builds the problem from. `fields` are the algorithm's hyper-parameters that are set
    by hand; the value "asvrcd.eta" stands for the η that theory gives ASVRCD on this problem. All others follow from the
    constants: those of the published runs where `published` is true, else the problem's own.
    """

    method: str
    problem: Plain
    objective: str
    dataset: str
    level: float | str | None = None
    variant: str = PUBLISHED
    fields: Plain = field(default_factory=dict)
    metrics: tuple[str, ...] = ("loss",)
    rounds: int = 1000
    every: int = 1
    seeds: tuple[int, ...] = (0,)
    reach: float | None = None  # stop when the gap has fallen to this fraction of the first
    wide: bool = True  # float64; False for float32
    optimum: bool = False  # whether to find the problem's minimum too
    warm_up: int = 0  # rounds run beforehand, so that compilation is not timed
    faulty: bool = False  # run the method with the mistake of its published run, where `faults` has one

    @property
    def algorithm(self) -> str:
        """The method's name in the registry, without a remark in parentheses."""
        return self.method.split(" (")[0]

    @property
    def published(self) -> bool:
        """Whether step sizes come from the constants of the published runs."""
        return self.variant != THEORY

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of its series."""
        return {name: getattr(self, name) for name in LABELS}

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.loads(json.dumps(values, default=list))

    def where(self) -> str:
        """The labels in a few words, for a progress bar."""
        return " ".join(str(value) for name, value in self.labels.items() if name != "variant" and value is not None)


def grid(
    methods: Mapping[str, Plain], levels: Iterable[Any], problem: Callable[[Any, str], Plain], **common: Any
) -> tuple[Cell, ...]:
    """One cell for every method (with its fields) at every level; `problem(level, method)` is what is solved there."""
    return tuple(
        Cell(method=method, problem=problem(level, method), level=level, fields=fields, **common)
        for level in levels
        for method, fields in methods.items()
    )


def by_default(methods: Iterable[str]) -> dict[str, Plain]:
    """The methods with nothing set by hand.

    >>> by_default(["ascd", "asvrcd"])
    {'ascd': {}, 'asvrcd': {}}
    """
    return {method: {} for method in methods}


@dataclass(frozen=True)
class Figure:
    """A grid of panels: one row per value of `rows`, one column per value of `columns`, one line per value of `lines`.

    With `rows` = "metric" there is one row for each of `metrics` (the metric "gap" is the loss minus the optimum); otherwise
    `metrics` holds the one metric that is shown. `where` fixes the other labels. A panel without any series is left out.
    """

    name: str
    metrics: tuple[str, ...]
    rows: str = "metric"
    columns: str = "level"
    lines: str = "method"
    where: Plain = field(default_factory=dict)
    title: str = ""
    column_title: str = "{}"
    line_title: str = "{}"
    kind: Literal["curves", "bars", "rates"] = "curves"


def by_variant(name: str, metrics: tuple[str, ...], title: str, column_title: str, **more: Any) -> tuple[Figure, ...]:
    """The same figure for both variants."""
    return tuple(
        Figure(
            f"{name}-{variant.replace(' ', '-')}", metrics, title=f"{title}, {variant}", column_title=column_title,
            **{**more, "where": {**more.get("where", {}), "variant": variant}},
        )
        for variant in VARIANTS
    )  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """Everything that `reproduce` needs to know about one experiment."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    figures: tuple[Figure, ...]
    facts: Plain = field(default_factory=dict)  # what a reader should know about the settings
    alone: bool = False  # run one cell at a time, because they are timed
    summary: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # document → further entries computed from it

    def quick(self) -> Experiment:
        """A version that runs in seconds: the first data set, the lowest and highest level, few clients, rows and rounds."""
        first = self.cells[0].dataset
        levels = [c.level for c in self.cells if isinstance(c.level, (int, float)) and c.dataset == first]
        # Images (float32) take longest, mostly to compile and to find the optimum: one level shows that they run.
        ends = {min(levels, default=0), max(levels, default=0)} if self.cells[0].wide else {min(levels, default=0)}
        kept = [
            c for c in self.cells if c.dataset == first and (not isinstance(c.level, (int, float)) or c.level in ends)
        ]
        return replace(self, cells=tuple(_shrink(cell) for cell in kept), alone=False)

    def with_seeds(self, seeds: Sequence[int]) -> Experiment:
        """The same experiment with other seeds."""
        return replace(self, cells=tuple(replace(cell, seeds=tuple(seeds)) for cell in self.cells))


SMALL = {"clients": 4, "rows": 60, "train": 20, "test": 20, "parts": ["test"], "schools": 6}
"""The values that `quick` gives to the entries of a problem that determine its size."""


def _shrink(cell: Cell) -> Cell:
    problem = {**cell.problem, **{name: value for name, value in SMALL.items() if name in cell.problem}}
    return replace(
        cell,
        problem=problem,
        rounds=min(cell.rounds, 40),
        every=min(cell.every, 4),
        seeds=cell.seeds[:2],
        optimum=cell.optimum and cell.wide,
        warm_up=min(cell.warm_up, 1),
    )


def digest(*parts: Any) -> str:
    """A short hexadecimal name of plain values: equal values have the same one.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, default=list, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
