"""From a result document to what page.js draws: thinned, rounded, each array stored once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twofold.report.chapters import AXES, LABELS, METHODS, METRICS, OTHERS, VARIANTS, Chapter, title

FIELDS = ("metric", "objective", "dataset", "variant", "level", "method")
MOST_POINTS = 240
_NOT_AXES = {"mean", "stderr", "seeds"}

Series = Mapping[str, Any]


class Pool:
    """Arrays of numbers, each kept once: many series share their rounds and bytes."""

    def __init__(self) -> None:
        self.arrays: list[list[float | int | None]] = []
        self._index: dict[str, int] = {}

    def add(self, values: Sequence[float | int | None]) -> int:
        """The number under which these values are kept."""
        key = json.dumps(values)
        if key not in self._index:
            self._index[key] = len(self.arrays)
            self.arrays.append(list(values))
        return self._index[key]


def payload(chapter: Chapter, series: Sequence[Series], published: Sequence[Series], pool: Pool) -> dict[str, Any]:
    """Everything that the page's script needs to know of one figure."""
    values = {field: ordered(field, (s.get(field) for s in series)) for field in FIELDS}
    lines, panels = layout(chapter, values)
    selectors = []
    for field in FIELDS:
        if field in (lines, panels):
            continue
        choices, titles = list(values[field]), [title(field, value, chapter) for value in values[field]]
        if field == "variant" and len(choices) > 1:
            choices, titles = [*choices, "*"], [*titles, "both"]
        selectors.append({"key": field, "label": LABELS[field], "values": choices or [None], "titles": titles or [""]})
    drawn = [curve(s, pool) for s in _sorted(series, values)]
    axes = {key for s in drawn for key in s["x"]}
    known = [key for key in AXES if key in axes]
    names = {key: AXES.get(key, (key.replace("_", " "),) * 2) for key in [*known, *sorted(axes - set(known))]}
    return {
        "name": chapter.name,
        "lines": {"key": lines, "styles": _styles(lines, values[lines], chapter)},
        "panels": {
            "key": panels,
            "values": values[panels] or [None],
            "titles": [title(panels, value, chapter) for value in values[panels]] or [""],
        },
        "selectors": selectors,
        "axes": [{"key": key, "title": long, "short": short} for key, (long, short) in names.items()],
        "metrics": {str(metric): _metric(metric) for metric in values["metric"]},
        "series": drawn,
        "published": [_point(p, series) for p in published],
        "dotted": values["variant"][1] if len(values["variant"]) > 1 else None,
        "markers": chapter.markers,
        "across": chapter.across,
    }


def curve(series: Series, pool: Pool) -> dict[str, Any]:
    """One series: where it belongs, and its thinned arrays as numbers in the pool."""
    mean = [_number(value) for value in series.get("mean") or []]
    keep = thin(len(mean))
    out: dict[str, Any] = {
        "at": at(series),
        "runs": series.get("runs", 1),
        "x": {},
        "mean": pool.add([_short(mean[i]) for i in keep]),
    }
    for key, values in series.items():
        if key not in _NOT_AXES and isinstance(values, list) and len(values) == len(mean):
            numbers = [_number(value) for value in values]
            if any(number is not None for number in numbers):
                out["x"][key] = pool.add([_short(numbers[i], 7) for i in keep])
    stderr = series.get("stderr")
    if isinstance(stderr, list) and len(stderr) == len(mean):
        out["stderr"] = pool.add([_short(_number(stderr[i]), 3) for i in keep])
    best = _number(series.get("optimum"))
    if best is not None:  # subtracted before rounding: a gap of 1e-9 survives
        gaps = (None if (value := mean[i]) is None else value - best for i in keep)
        out["gap"] = pool.add([_short(gap) for gap in gaps])
    return out


def at(series: Series) -> dict[str, Any]:
    """The fields that say which series it is."""
    return {field: series[field] for field in FIELDS if series.get(field) is not None}


def thin(count: int, most: int = MOST_POINTS) -> list[int]:
    """At most about `most` of `count` points: two thirds evenly spaced, one third crowded towards the start.

    The first and the last point always stay, so that end points are exact.
    """
    if count <= most:
        return list(range(count))
    even, early = 2 * most // 3, most // 3
    last = count - 1
    places = {round(i * last / (even - 1)) for i in range(even)}
    return sorted(places | {round(last ** (i / (early - 1))) for i in range(early)})


def layout(chapter: Chapter, values: Mapping[str, list[Any]]) -> tuple[str, str]:
    """The fields that become lines and panels: the chapter's, unless these hold one value and others hold more."""
    lines = chapter.lines
    if len(values[lines]) < 2 and lines != chapter.panels:
        rest = [field for field in ("method", "level") if field != chapter.panels and len(values[field]) > 1]
        lines = rest[0] if rest else lines
    panels = chapter.panels if chapter.panels != lines else "dataset"
    return lines, panels


def ordered(field: str, found: Iterable[Any]) -> list[Any]:
    """The distinct values of a field: the known ones in their order, numbers by size, the rest as they came."""
    unique = [value for value in dict.fromkeys(found) if value is not None]
    known = {"variant": VARIANTS, "metric": tuple(METRICS), "method": tuple(METHODS)}.get(field, ())
    if all(isinstance(value, int | float) for value in unique):
        return sorted(unique)
    return [v for v in known if v in unique] + [v for v in unique if v not in known]


def _sorted(series: Sequence[Series], values: Mapping[str, list[Any]]) -> list[Series]:
    """In the order of the choices, so that the first series is what the page shows first."""
    return sorted(series, key=lambda s: [values[f].index(s[f]) if s.get(f) is not None else -1 for f in FIELDS])


def _styles(field: str, values: Sequence[Any], chapter: Chapter) -> list[dict[str, Any]]:
    """A colour, a dash and a symbol for each line, the same for a method on the whole page."""
    symbols = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
    styles = []
    for i, value in enumerate(values or [None]):
        colour, dash = OTHERS[i % len(OTHERS)]
        if field == "method" and value in METHODS:
            _, colour, dash = METHODS[value]
        name = title(field, value, chapter)
        symbol = symbols[i % len(symbols)]
        styles.append({"value": value, "title": name, "colour": colour, "dash": dash, "symbol": symbol})
    return styles


def _metric(metric: Any) -> dict[str, str]:
    name = title("metric", metric)
    return {"title": name, "gap": f"{name} − optimum", "scale": METRICS.get(metric, ("", "linear"))[1]}


def _point(published: Series, series: Sequence[Series]) -> dict[str, Any]:
    """A published end point, and its gap where the optimum of the same problem is known."""
    same = ("metric", "objective", "dataset", "level")
    point = {"at": at(published), "round": published.get("round", 1000), "value": published["value"]}
    for s in series:
        best = _number(s.get("optimum"))
        if best is not None and all(s.get(k) == published[k] for k in same if published.get(k) is not None):
            point["gap"] = _short(published["value"] - best)
            break
    return point


def _number(value: Any) -> float | int | None:
    """A finite number, or None for anything else: JSON has no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _short(value: float | int | None, digits: int = 5) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
