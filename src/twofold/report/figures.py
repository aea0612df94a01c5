"""Turn a result document into what page.js draws: numbers rounded to visible precision, and each array stored once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from twofold import looks
from twofold.looks import METHODS
from twofold.report.words import AXES, LABELS, METRICS, VARIANTS, Chapter, title

__all__ = ["FIELDS", "Pool", "Series", "at", "curve", "distinct", "drawable", "layout", "number", "payload", "titles"]

FIELDS = ("metric", "objective", "dataset", "variant", "level", "method")

Series = Mapping[str, Any]


class Pool:
    """Arrays of numbers, each stored once, because many series share their rounds and bytes."""

    def __init__(self) -> None:
        self.arrays: list[list[float | int | None]] = []
        self._index: dict[str, int] = {}

    def add(self, values: Sequence[float | int | None]) -> int:
        """Store these values, unless they are stored already, and return their index."""
        key = json.dumps(values)
        if key not in self._index:
            self._index[key] = len(self.arrays)
            self.arrays.append(list(values))
        return self._index[key]


def payload(chapter: Chapter, series: Sequence[Series], published: Sequence[Series], pool: Pool) -> dict[str, Any]:
    """Everything that page.js needs to know about one figure."""
    values = distinct(chapter, series)
    lines, panels = layout(chapter, values)
    names = {field: titles(field, values[field], chapter, series) for field in FIELDS}
    selectors: list[dict[str, Any]] = []
    for field in FIELDS:
        if field not in (lines, panels, *chapter.together) and values[field]:
            both = field == "variant" and len(values[field]) > 1
            choices = {"values": [*values[field], *["*"] * both], "titles": [*names[field], *["both"] * both]}
            selectors.append({"key": field, "label": LABELS[field], **choices})
    drawn = [curve(s, pool) for s in _sorted(series, values)]
    used = {key for s in drawn for key in s["x"]}
    return {
        "name": chapter.name,
        "lines": {"key": lines, "styles": _styles(lines, values[lines], names[lines])},
        "panels": {"key": panels, "values": values[panels] or [None], "titles": names[panels] or [""]},
        "selectors": selectors,
        "axes": [{"key": k, "title": long, "short": short} for k, (long, short) in AXES.items() if k in used],
        "metrics": {str(metric): _metric(metric) for metric in values["metric"]},
        "series": drawn,
        "published": [_point(p, series) for p in published if p.get("metric") in values["metric"]],
        "dotted": values["variant"][1] if len(values["variant"]) > 1 else None,
        "markers": chapter.markers,
        "across": chapter.across,
        "seed_words": chapter.seeds,
    }


def curve(series: Series, pool: Pool) -> dict[str, Any]:
    """One series: its labels, and its arrays as indices into the pool."""
    mean = [number(value) for value in series["mean"]]
    out: dict[str, Any] = {"at": at(series), "runs": series.get("runs") or 1, "x": {}, "mean": pool.add(_short(mean))}
    for key in AXES:
        if _fits(series.get(key), mean):
            out["x"][key] = pool.add(_short(series[key], 7))
    if _fits(series.get("stderr"), mean):
        out["stderr"] = pool.add(_short(series["stderr"], 3))
    if _fits(series.get("low"), mean) and _fits(series.get("high"), mean):  # a band of quantiles
        out |= {"low": pool.add(_short(series["low"])), "high": pool.add(_short(series["high"]))}
    best = number(series.get("optimum"))
    if best is not None:  # subtract before rounding, so that a gap of 1e-9 survives
        out["gap"] = pool.add(_short([None if value is None else value - best for value in mean]))
    return out


def drawable(series: Series) -> bool:
    """Whether a series can be drawn: it has several values and an axis to draw them against."""
    mean = _entries(series.get("mean"))
    return len(mean) > 1 and any(_fits(series.get(key), mean) for key in AXES)


def at(series: Series) -> dict[str, Any]:
    """The fields that identify a series."""
    return {field: series[field] for field in FIELDS if series.get(field) is not None}


def distinct(chapter: Chapter, series: Sequence[Series]) -> dict[str, list[Any]]:
    """The distinct values of each field: known ones in their usual order, numbers by size, the rest as they come."""
    found: dict[str, list[Any]] = {}
    known: dict[str, Sequence[Any]] = {
        "variant": VARIANTS,
        "metric": chapter.metrics or tuple(METRICS),
        "method": tuple(METHODS),
    }
    for field in FIELDS:
        unique = [value for value in dict.fromkeys(s.get(field) for s in series) if value is not None]
        if all(isinstance(value, int | float) for value in unique):
            found[field] = sorted(unique)
        else:
            first = [value for value in known.get(field, ()) if value in unique]
            found[field] = first + [value for value in unique if value not in first]
    return found


def layout(chapter: Chapter, values: Mapping[str, list[Any]]) -> tuple[str, str]:
    """The fields that become lines and panels: the chapter's, or other lines if those have only one value."""
    lines = chapter.lines
    if len(values[lines]) < 2:
        lines = next((f for f in ("method", "level") if f != chapter.panels and len(values[f]) > 1), lines)
    return lines, chapter.panels


def titles(field: str, values: Sequence[Any], chapter: Chapter, series: Sequence[Series]) -> list[str]:
    """The values of a field in words; the meaning of a level depends on its data set."""
    homes = {s.get(field): s.get("dataset") for s in series}
    return [title(field, value, chapter, homes.get(value)) for value in values]


def _sorted(series: Sequence[Series], values: Mapping[str, list[Any]]) -> list[Series]:
    """The series in the order of the choices: the page shows the first one first."""
    return sorted(series, key=lambda s: [values[f].index(s[f]) if s.get(f) is not None else -1 for f in FIELDS])


def _styles(field: str, values: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """A colour, a dash and a symbol for each line; a method keeps the same ones on the whole page."""
    found = looks.looks(str(value) for value in values) if field == "method" else {}
    styles: list[dict[str, Any]] = []
    for i, value in enumerate(values or [None]):
        look = found.get(str(value)) or looks.look("", i)
        name = names[i] if names else ""
        symbol = looks.SYMBOLS[look.mark]
        styles.append({"value": value, "title": name, "colour": look.colour, "dash": look.dash, "symbol": symbol})
    return styles


def _metric(metric: Any) -> dict[str, str]:
    name = title("metric", metric)
    return {"title": name, "gap": f"{name} − optimum", "scale": METRICS.get(metric, ("", "linear"))[1]}


def _point(published: Series, series: Sequence[Series]) -> dict[str, Any]:
    """A published end point, and its gap if the optimum of the same problem is known."""
    same = ("metric", "objective", "dataset", "level")
    point = {"at": at(published), "round": published.get("round", 1000), "value": published["value"]}
    for s in series:
        best = number(s.get("optimum"))
        if best is not None and all(s.get(k) == published[k] for k in same if published.get(k) is not None):
            point["gap"] = _short([published["value"] - best])[0]
            break
    return point


def number(value: object) -> float | int | None:
    """The value if it is a finite number, else None: JSON has no NaN.

    >>> number(0.5), number(float("inf")), number("x"), number(True)
    (0.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _entries(values: object) -> list[object]:
    """The entries of a JSON list; none of anything else."""
    return cast("list[object]", values) if isinstance(values, list) else []


def _fits(values: object, mean: Sequence[object]) -> bool:
    entries = _entries(values)
    return len(entries) == len(mean) and any(number(entry) is not None for entry in entries)


def _short(values: Iterable[Any], digits: int = 5) -> list[float | int | None]:
    """Numbers with a few significant digits; whole ones as integers."""
    rounded = (None if (value := number(v)) is None else float(f"{value:.{digits}g}") for v in values)
    return [int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in rounded]
