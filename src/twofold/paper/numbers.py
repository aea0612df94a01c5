"""Numbers for a JSON document, which has no NaN and no infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["number", "numbers", "thin"]

MOST_POINTS = 200
"""Points of a series in the JSON document; the Parquet file has all of them."""


def number(value: Any) -> float | int | None:
    """A plain number, as an int where it is whole, or None where it is not finite.

    >>> number(np.float64(2.0)), number(0.5), number(float("nan"))
    (2, 0.5, None)
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def numbers(values: Iterable[Any]) -> list[float | int | None]:
    """Plain numbers, each as `number` has it."""
    return [number(v) for v in values]


def thin(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """At most `most` of `count` positions, including the first and the last.

    Half of them are evenly spaced, half are denser towards the start, where curves bend most.

    >>> thin(3)
    array([0, 1, 2])
    >>> thin(1000, most=8)
    array([  0,   1,  10, 100, 333, 666, 999])
    """
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most - most // 2)
    early = np.geomspace(1, count - 1, most // 2)
    return np.unique(np.concatenate([even, early]).round().astype(int))
