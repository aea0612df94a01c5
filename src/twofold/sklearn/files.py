"""What a fitted estimator holds as JSON, and back."""
# What users hand over has no type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError

__all__ = ["FILE", "KIND", "back", "names_array", "written"]

KIND, FILE = "twofold estimator", "estimator"
"""What an estimator's JSON file says that it is, and the name of its two files."""


def written(value: Any) -> Any:
    """A number, a string, None or a list of them as JSON; infinity, which JSON has not, as the string "inf"."""
    found = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(found, list):
        wrong = next((each for each in found if not isinstance(each, (str, bool, int, float))), None)
        if wrong is not None:
            raise InputError(
                f"A file holds strings and numbers only, and {wrong!r} is {type(wrong).__name__}: use pickle."
            )
        return [written(each) for each in found]
    return "inf" if isinstance(found, float) and found == math.inf else found


def back(value: Any) -> Any:
    """What `written` was given, lists as arrays."""
    if isinstance(value, list):
        return np.array(value)
    return math.inf if value == "inf" else value


def names_array(names: list[Any]) -> NDArray[Any]:
    """Names as an array in which none becomes another type."""
    return np.array(names, None if len({type(each) for each in names}) == 1 else object)
