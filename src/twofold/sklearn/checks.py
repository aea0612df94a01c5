"""What an estimator refuses, and what it says when rows are nobody's or a stranger's."""
# What users hand over has no type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError
from twofold.tables import Columns

__all__ = [
    "AFTER_OTHERS",
    "TOLD",
    "WHOSE",
    "alike",
    "as_they_are",
    "check_labels",
    "check_strength",
    "listed",
    "refuse_target_among",
    "refuse_words",
]

AFTER_OTHERS = (
    'In a Pipeline, earlier steps drop or rename columns. Keep names by .set_output(transform="pandas") and, in a ColumnTransformer, '
    "verbose_feature_names_out=False; or say by its place which column it is, client=-1 for the last; or leave client= out and give "
    "fit(X, y, client=labels) with scikit-learn's metadata routing switched on."
)
WHOSE = (
    'Say it by a column of X, client="patient", or by {method}, client=labels); a scorer by name hands that on only with '
    "scikit-learn's metadata routing switched on, and groups= goes to the splitters alone."
)


def check_strength(objective: str, strength: Any) -> None:
    """Refuse a strength that the objective has no meaning for."""
    if objective == "weight_sharing":
        if not isinstance(strength, str) or strength not in ("auto", "weight", "bias"):
            raise InputError(
                f'weight_sharing shares one part by its name: strength="weight", "bias" or "auto", got {strength!r}.'
            )
    elif isinstance(strength, str):
        if strength == "auto" or objective in ("shared", "alone"):
            return
        near = '; did you mean "auto"?' if difflib.get_close_matches(strength.lower(), ["auto"], cutoff=0.5) else "."
        raise InputError(f'strength is "auto" or a number (for {objective}), got {strength!r}{near}')
    elif objective not in ("shared", "alone"):
        blend = objective == "adaptive"
        wanted = "strictly between 0 and 1" if blend else "≥ 0 (0 leaves everyone alone, infinity is one model for all)"
        number = float(strength) if isinstance(strength, numbers.Real) else math.nan
        if not (0 < number < 1 if blend else number >= 0):
            raise InputError(f'strength is "auto" or a number {wanted} for {objective}, got {strength!r}.')


def as_they_are(y: Any) -> Any:
    """A list of labels without NumPy's making strings of all of them, a NaN among them too."""
    if isinstance(y, (list, tuple)) and len({isinstance(label, str) for label in y}) == 2:
        return np.array(y, object)
    return y


def check_labels(y: NDArray[Any]) -> None:
    """Refuse labels that are missing, naming their rows, and labels that cannot be put in an order."""
    if y.dtype.kind != "O":
        return
    labels: list[Any] = y.tolist()
    missing = [
        row
        for row, label in enumerate(labels)
        if label is None or (not isinstance(label, str) and str(label) in ("nan", "NaT", "<NA>"))
    ]
    if missing:
        rows = f"row {missing[0]}" if len(missing) == 1 else f"rows {_some(missing)}"
        raise InputError(f"The target y is missing (NaN or None) in {rows}: leave such rows out, in X and in y.")
    first = labels[0]
    other = next((row for row, label in enumerate(labels) if isinstance(label, str) != isinstance(first, str)), None)
    if other is not None:
        raise InputError(
            f"The target y has labels of several kinds: {first!r} at row 0 and {labels[other]!r} at row {other}. Make them all strings "
            "or all numbers."
        )


TOLD: set[type] = set()
"""The estimators that have said in this process that rows of strangers get the shared model."""


def refuse_target_among(table: Columns, y: Any) -> None:
    """Refuse a table that still has the target as one of its columns: a model would learn to copy it."""
    name = getattr(y, "name", None)
    if name is None or table.names.count(name) != 1 or len(y) != table.rows:
        return
    column = table.column(name)
    if np.array_equal(column.values[~column.missing], np.asarray(y)[~column.missing]):
        raise InputError(f"X still has the column {name!r}, which is y: leave it out, as in X.drop(columns={name!r}).")


def refuse_words(y: NDArray[Any]) -> None:
    """Refuse targets of a regression that are strings and no numbers."""
    if y.dtype.kind not in "OU":
        return
    for row, value in enumerate(y.tolist()):
        try:
            float(value)
        except (TypeError, ValueError):
            if isinstance(value, str):
                raise InputError(
                    f"The target y has {value!r} at row {row}, which is no number: labels are for PersonalizedClassifier."
                ) from None


def alike(owners: Sequence[Any], known: dict[Any, int]) -> str:
    """A hint where a stranger's name is a known client's but for capitals, spaces or its type; else nothing, the same in every fold."""
    by_letters = {str(name).strip().casefold(): name for name in known}
    found = next((name for name in owners if str(name).strip().casefold() in by_letters), None)
    return "" if found is None else f"; is {found!r} the client {by_letters[str(found).strip().casefold()]!r} of fit?"


def listed(names: Sequence[Any]) -> str:
    """Give the first twelve names, and how many there are if there are more."""
    return ", ".join(map(str, names[:12])) + (f", … ({len(names)} in all)" if len(names) > 12 else "")


def _some(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names[:6]) + (f", … ({len(names)} in all)" if len(names) > 6 else "")
