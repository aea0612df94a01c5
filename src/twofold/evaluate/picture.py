"""A picture of which clients gain, as SVG: it needs no library, and a notebook displays it directly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Name
from twofold.evaluate.text import PERCENT, show, signed

__all__ = ["picture"]

Array: TypeAlias = NDArray[np.float64]
BLUE, ORANGE, INK, QUIET = "#0072B2", "#D55E00", "#222222", "#767676"
TITLES = {"personal": "personal", "shared": "shared", "alone": "alone"}
LEFT, INNER, LINE, DOT = 80, 540, 46, 4


def picture(
    grades: Mapping[str, Array],
    gains: Mapping[str, Array],
    rows: NDArray[np.integer],
    names: tuple[Name, ...],
    measure: str,
) -> str:
    """Draw each client's grade under each model as a dot, with a bar at the mean, and its gains against its training rows.

    >>> drawn = picture(
    ...     {"personal": np.array([0.5, 1.0])}, {"alone": np.array([0.1, -0.1])}, np.array([5, 9]), ("a", "b"), "r2"
    ... )
    >>> drawn.count("<circle"), drawn.startswith("<svg")
    (4, True)
    """
    top = 24
    body: list[str] = []
    finite = [values[np.isfinite(values)] for values in grades.values()]
    everything = np.concatenate(finite) if finite else np.zeros(0)
    if not everything.size:
        return ""
    low, high = float(everything.min()), float(everything.max())
    high = high if high > low else low + 1.0
    for i, (model, values) in enumerate(grades.items()):
        middle = top + LINE * i + LINE / 2
        body.append(_text(LEFT - 10, middle + 4, TITLES.get(model, model), "end"))
        body += _dots(values, low, high, middle, names, BLUE if model == "personal" else ORANGE, measure)
        mean = _place(float(np.nanmean(values)), low, high)
        body.append(
            f'<line x1="{mean:.1f}" x2="{mean:.1f}" y1="{middle - 16}" y2="{middle + 16}" stroke="{INK}" stroke-width="2"/>'
        )
    bottom = top + LINE * len(grades)
    body.append(_text(LEFT, bottom + 14, show(low, measure), "start", QUIET))
    body.append(_text(LEFT + INNER, bottom + 14, show(high, measure), "end", QUIET))
    body.append(_text(LEFT + INNER / 2, bottom + 14, f"{measure} of each client, a bar at the mean", "middle", QUIET))
    for i, (name, values) in enumerate(gains.items()):
        body += _against_rows(values, rows, names, bottom + 44 + 150 * i, f"gain over {name}", measure)
    height = bottom + 40 + 150 * len(gains)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + INNER + 20} {height:.0f}" width="{LEFT + INNER + 20}" '
        f'style="max-width:100%;background:white" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="who gains and who is hurt">{"".join(body)}</svg>'
    )


def _place(value: float, low: float, high: float) -> float:
    return LEFT + INNER * (value - low) / (high - low)


def _text(x: float, y: float, words: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _circle(x: float, y: float, colour: str, words: str) -> str:
    title = f"<title>{escape(words)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{colour}" fill-opacity="0.75">{title}</circle>'


def _dots(
    values: Array, low: float, high: float, middle: float, names: tuple[Name, ...], colour: str, measure: str
) -> list[str]:
    """Dots on a line; dots that would overlap are moved up and down alternately."""
    out: list[str] = []
    met: dict[int, int] = {}
    for name, value in zip(names, values, strict=True):
        if not math.isfinite(value):
            continue
        x = _place(float(value), low, high)
        rank = met[round(x / (2 * DOT))] = met.get(round(x / (2 * DOT)), -1) + 1
        away = min(math.ceil(rank / 2) * 5, LINE / 2 - DOT) * (-1 if rank % 2 else 1)
        out.append(_circle(x, middle + away, colour, f"{name}: {show(float(value), measure)}"))
    return out


def _against_rows(
    values: Array, rows: NDArray[np.integer], names: tuple[Name, ...], top: float, title: str, measure: str
) -> list[str]:
    """Gains plotted against the logarithm of the number of training rows, with a line at zero."""
    height, good = 90.0, np.isfinite(values)
    if not good.any():
        return []
    reach = float(np.max(np.abs(values[good]))) or 1.0
    along = np.log(np.maximum(rows, 1))
    low, high = float(along.min()), float(along.max())
    if high == low:  # one number of rows for all: in the middle, with one caption
        low, high = low - 1.0, high + 1.0
        captions = [_text(LEFT + INNER / 2, top + height + 18, f"{int(rows.min()):,} rows each", "middle", QUIET)]
    else:
        captions = [
            _text(LEFT, top + height + 18, f"{int(rows.min()):,} rows", "start", QUIET),
            _text(LEFT + INNER, top + height + 18, f"{int(rows.max()):,} rows", "end", QUIET),
        ]
    zero = top + height / 2
    out = [
        _text(LEFT, top - 8, f"{title}, by the number of training rows", "start"),
        f'<line x1="{LEFT}" x2="{LEFT + INNER}" y1="{zero}" y2="{zero}" stroke="{QUIET}" stroke-dasharray="2 3"/>',
        _text(LEFT - 10, top + 10, signed(reach, measure), "end", QUIET),
        _text(LEFT - 10, zero + 4, "0", "end", QUIET),
        _text(LEFT - 10, top + height, signed(-reach, measure), "end", QUIET),
        *captions,
    ]
    unit = " points" if measure in PERCENT else ""
    for name, value, at, count in zip(names, values, along, rows, strict=True):
        if math.isfinite(value):
            y = zero - float(value) / reach * (height / 2 - DOT)
            words = f"{name}: {signed(float(value), measure)}{unit}, {int(count):,} rows"
            out.append(_circle(_place(float(at), low, high), y, BLUE if value >= 0 else ORANGE, words))
    return out
