"""Numbers and dots as text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Name

__all__ = ["PERCENT", "show", "signed", "strip"]

PERCENT = ("accuracy", "balanced_accuracy")
"""Measures that are shares of rows, shown in percent."""


def show(value: float | Name, measure: str) -> str:
    """Format one number, or a name, for a table.

    >>> show(0.5, "accuracy"), show(-0.25, "minus loss"), show(float("nan"), "r2")
    ('50.0 %', '-0.25', '–')
    """
    if not isinstance(value, float):
        return str(value)
    if np.isnan(value):
        return "–"
    return f"{100 * value:.1f} %" if measure in PERCENT else f"{value:.4g}"


def signed(value: float, measure: str) -> str:
    """Format a difference with its sign.

    >>> signed(0.031, "accuracy"), signed(-0.5, "r2")
    ('+3.1', '−0.5')
    """
    if np.isnan(value):
        return "–"
    text = f"{100 * abs(value):.1f}" if measure in PERCENT else f"{abs(value):.3g}"
    return f"{'−' if value < 0 else '+'}{text}"


def strip(values: NDArray[np.float64], low: float, high: float, width: int) -> str:
    """Draw values as dots along a line, denser where there are more, with a bar at zero.

    >>> strip(np.array([-1.0, 1.0, 1.0]), -1, 1, 5)
    '· │ ∶'
    """
    marks = " ·∶⁝⁞█"
    place = np.clip(np.rint((values - low) / max(high - low, 1e-300) * (width - 1)), 0, width - 1).astype(int)
    counts = np.bincount(place, minlength=width)
    line = [marks[min(int(count), len(marks) - 1)] for count in counts]
    zero = round((0 - low) / max(high - low, 1e-300) * (width - 1))
    if 0 <= zero < width and counts[zero] == 0:
        line[zero] = "│"
    return "".join(line)
