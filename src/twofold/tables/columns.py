"""Any data frame's columns as NumPy arrays: pandas, Polars, Arrow, or a plain dict of columns."""
# Data frames come without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import datetime as dt
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError, KindError, choose_from
from twofold.extras import require

__all__ = ["Columns", "Kind", "Level", "Values", "is_frame", "plain", "read"]

Kind: TypeAlias = Literal["number", "boolean", "category"]
"""The kind of a column: numbers, true or false, or one of several levels (strings and categories)."""
Level: TypeAlias = str | int | float | bool
"""One of a category's values, in a form that JSON can hold."""


class Values(NamedTuple):
    """One column: its kind, its values, where they are missing, and the order of its levels if the frame defines one.

    Numbers are an array of integers or floats, booleans an array of booleans, categories an array of objects. Where a value is
    missing, the entry is arbitrary.

    >>> read({"age": [30, None]}).column("age").missing.tolist()
    [False, True]
    """

    kind: Kind
    values: NDArray[Any]
    missing: NDArray[np.bool_]
    levels: tuple[Level, ...] | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of a data frame by name, each read on demand.

    >>> table = read({"city": ["Oslo", "Rome"], "age": [30, 40]})
    >>> table.names, table.column("city").kind
    (('city', 'age'), 'category')
    """

    names: tuple[Any, ...]
    rows: int
    fetch: Callable[[Any], Values]

    def column(self, name: Any) -> Values:
        """Return one column; raises an InputError if its name is missing or occurs twice."""
        self.check([name])
        return self.fetch(name)

    def check(self, names: Iterable[Any]) -> None:
        """Refuse names that are not columns (listing all of them), and names that occur twice."""
        names = list(names)
        lost = [name for name in names if name not in self.names]
        if lost:
            listed = ", ".join(map(repr, lost))
            what = f"no column {listed}" if len(lost) == 1 else f"no columns {listed}"
            raise InputError(choose_from(f"The table has {what}", str(lost[0]), map(str, self.names)))
        for name in names:
            if self.names.count(name) > 1:
                raise InputError(f"There are {self.names.count(name)} columns named {name!r}: rename all but one.")


def is_frame(thing: object) -> bool:
    """Say whether something is a table with named columns that `read` accepts.

    >>> is_frame({"age": [30]}), is_frame([[30]])
    (True, False)
    """
    if isinstance(thing, np.ndarray) or hasattr(thing, "toarray"):  # SciPy's dok_matrix is a dict, but not a table
        return False
    if len(getattr(thing, "shape", (0, 0))) == 1:  # a pandas or Polars Series is one column or one row, not a table
        return False
    return isinstance(thing, Mapping) or (
        (hasattr(type(thing), "columns") and hasattr(thing, "__getitem__"))
        or hasattr(thing, "__arrow_c_stream__")
        or hasattr(thing, "__narwhals_dataframe__")
    )


def read(frame: Any) -> Columns:
    """Read a pandas or Polars data frame, an Arrow table, anything else that narwhals or Arrow can read, or a dict.

    >>> import pandas as pd
    >>> read(pd.DataFrame({"smoker": [True, False]})).column("smoker").kind
    'boolean'
    """
    if isinstance(frame, Columns):
        return frame
    if isinstance(frame, Mapping) and is_frame(cast(object, frame)):
        return _of_mapping(cast(Mapping[Any, Any], frame))
    if not is_frame(frame):
        one = " For one row of a frame say frame.iloc[[0]]." if len(getattr(frame, "shape", ())) == 1 else ""
        raise KindError(
            f"A table is a pandas or Polars data frame, an Arrow table or a dict of columns, got {type(frame).__name__}.{one}"
        )
    nw: Any = require("narwhals.stable.v2", "Reading a data frame", "sklearn")
    if hasattr(frame, "iloc"):  # in pandas, two columns may have the same name
        names: list[Any] = list(cast(Any, frame).columns)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"There are {names.count(twice)} columns named {twice!r}: rename all but one.")
    try:
        native: Any = nw.from_native(frame, pass_through=False)
    except TypeError:
        native = nw.from_arrow(frame, backend=require("pyarrow", "Reading an Arrow stream", "paper"))
    whole = native.collect() if hasattr(native, "collect") else native

    def fetch(name: Any) -> Values:
        return _of_series(nw, name, whole.get_column(name))

    return Columns(tuple(whole.columns), len(whole), fetch)


def _of_mapping(columns: Mapping[Any, Any]) -> Columns:
    arrays = {name: _array(column) for name, column in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"The columns of the table differ in their number of rows: {lengths}.")
    rows = next(iter(lengths.values()), 0)

    def fetch(name: Any) -> Values:
        array = arrays[name]
        if array.ndim != 1:
            raise InputError(f"Column {name!r} must hold one value per row, found shape {array.shape}.")
        return _of_array(name, array)

    return Columns(tuple(arrays), rows, fetch)


def _array(column: Any) -> NDArray[Any]:
    try:
        array = np.asarray(column)
    except ValueError:
        array = np.empty(len(column), object)
        array[:] = list(column)
    strings = array.dtype.kind in "US" and not isinstance(column, np.ndarray)
    return np.array(list(column), object) if strings else array  # NumPy would turn [1, "a"] into strings


def _of_array(name: Any, array: NDArray[Any]) -> Values:
    kind = array.dtype.kind
    if kind == "b":
        return Values("boolean", array, np.zeros(len(array), bool))
    if kind in "iuf":
        return Values("number", array, np.isnan(array) if kind == "f" else np.zeros(len(array), bool))
    if kind in "mM":
        raise _is_date(name)
    if kind == "O":
        return _of_objects(name, list(array))
    if kind == "U":
        return Values("category", array.astype(object), np.zeros(len(array), bool))
    raise InputError(f"Column {name!r} must hold numbers, booleans or strings, found dtype {array.dtype}.")


def _of_series(nw: Any, name: Any, series: Any) -> Values:
    dtype = series.dtype
    if dtype.is_temporal():
        raise _is_date(name)
    missing = np.asarray(series.is_null().to_numpy(), bool)
    if isinstance(dtype, (nw.Categorical, nw.Enum)):
        levels = tuple(plain(level) for level in series.cat.get_categories().to_list())
        return Values("category", _objects(map(plain, series.to_list()), missing), missing, levels)
    if isinstance(dtype, nw.String):
        return Values("category", _objects(series.to_list(), missing), missing)
    if dtype.is_numeric() or isinstance(dtype, nw.Boolean):
        boolean = isinstance(dtype, nw.Boolean)
        if missing.any() or dtype.is_decimal():
            known = [0 if gone else value for value, gone in zip(series.to_list(), missing, strict=True)]
            array = np.array(known, bool if boolean else np.float64)
        else:
            array = np.asarray(series.to_numpy())
        if array.dtype.kind == "f":
            missing = missing | np.isnan(array)  # Polars has both null and NaN, and users mean the same by them
        return Values("boolean" if boolean else "number", array, missing)
    if isinstance(dtype, (nw.Object, nw.Unknown)):
        return _of_objects(name, series.to_list())
    raise InputError(f"Column {name!r} must hold numbers, booleans, strings or categories, found {dtype}.")


def _of_objects(name: Any, values: list[Any]) -> Values:
    """Read a column of Python objects by their types, which must agree."""
    missing = np.array([_is_missing(value) for value in values], bool)
    known = [value for value, gone in zip(values, missing, strict=True) if not gone]
    if any(isinstance(value, (dt.date, dt.time, dt.timedelta, np.datetime64, np.timedelta64)) for value in known):
        raise _is_date(name)
    if known and all(isinstance(value, (bool, np.bool_)) for value in known):
        return Values(
            "boolean", np.array([not gone and bool(v) for v, gone in zip(values, missing, strict=True)]), missing
        )
    if all(isinstance(value, numbers.Real) for value in known):
        filled = [0.0 if gone else float(v) for v, gone in zip(values, missing, strict=True)]
        whole = bool(known) and not missing.any() and all(isinstance(v, numbers.Integral) for v in known)
        return Values("number", np.array(values, np.int64) if whole else np.array(filled, np.float64), missing)
    strange = next((value for value in known if not isinstance(value, str)), None)
    if strange is not None:
        first = next((value for value in known if type(value) is not type(strange)), None)
        also = "" if first is None else f" and {type(first).__name__} values such as {first!r}"
        raise InputError(
            f"Column {name!r} holds {type(strange).__name__} values such as {strange!r}{also}: make them all numbers or all "
            "strings, or leave the column out of features."
        )
    return Values("category", _objects(values, missing), missing)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (not isinstance(value, str) and str(value) in ("NaT", "<NA>"))


def _objects(values: Iterable[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """Values as an array of objects, with None where they are missing (pandas' NA cannot be compared with a level)."""
    array = np.empty(len(missing), object)
    array[:] = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    return array


def plain(value: Any) -> Any:
    """Convert a level to what JSON can hold: strings, numbers and booleans as they are, anything else as its `str`.

    >>> plain(np.int64(3)), plain((1, 2))
    (3, '(1, 2)')
    """
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _is_date(name: Any) -> InputError:
    return InputError(
        f"Column {name!r} holds dates or times, which have no single meaning as a feature: turn it into something that has (days "
        "since some event, the hour, the month as a string), or leave it out of features."
    )
