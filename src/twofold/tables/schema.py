"""How a table's columns become features: their kinds, levels, fill values, means and spreads, and the classes."""
# Data frames come without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError
from twofold.tables.columns import Columns, Kind, Level, Values, plain, read

__all__ = ["Column", "Labels", "Missing", "Moments", "Schema", "Standardize", "class_of"]

Standardize: TypeAlias = Literal["pooled", "per client"]
"""Whether numbers are standardised to mean 0 and standard deviation 1 over all clients' rows, or over each client's own."""
Missing: TypeAlias = Literal["impute", "refuse"]
Labels: TypeAlias = Literal["auto", "classes", "numbers"]
Moments: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""The means and the spreads (standard deviations) of the numeric columns, in their order."""

MOST_LEVELS = 1000
"""A category with more levels than this is taken for a mistake, such as a column of names or texts."""
FEW_CLASSES = 20
"""Whole numbers 1 … K with K up to this are taken for classes unless the user says what they are."""
VERSION = 1


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes features.

    A number or a boolean becomes one feature; a category becomes one feature per level (1 if the row has that level). If the
    training rows had missing values (`gaps`), an extra feature is 1 where the value is missing. A missing number or boolean is
    replaced by `fill`, the mean over all clients' values; a missing category has no level. Numbers are shifted by `mean` and
    divided by `spread`.

    >>> Column("city", "category", levels=("Oslo", "Rome"), gaps=True).features
    ('city=Oslo', 'city=Rome', 'city missing')
    """

    name: str
    kind: Kind
    levels: tuple[Level, ...] = ()
    gaps: bool = False
    fill: float = 0.0
    mean: float = 0.0
    spread: float = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """The names of this column's features."""
        own = tuple(f"{self.name}={level}" for level in self.levels) if self.kind == "category" else (str(self.name),)
        return (*own, f"{self.name} missing") if self.gaps else own


@dataclass(frozen=True)
class Schema:
    """Turns rows of a table into features and labels, the same way for new rows as for the training rows.

    `Clients.from_frame` makes it and keeps it as `clients.schema`. It holds no rows, only the fields below.

    A level that did not occur in training has 0 in all its column's features; if it is a known one in other capitals, a warning says
    so. A value missing from a column that had no gaps in training is replaced by the mean. With `standardize="per client"` each
    client has its own means and spreads, and a new client gets the mean of all clients' means and spreads.

    >>> import pandas as pd, twofold as tw
    >>> df = pd.DataFrame(
    ...     {
    ...         "user": ["ann", "ann", "bob"],
    ...         "age": [30, None, 50],
    ...         "city": ["Rome", "Oslo", "Rome"],
    ...         "y": ["no", "yes", "no"],
    ...     }
    ... )
    >>> schema = tw.Clients.from_frame(df).schema
    >>> schema.features
    ('age', 'age missing', 'city=Oslo', 'city=Rome')
    >>> schema.transform(pd.DataFrame({"age": [35.0], "city": ["Paris"]})).tolist()
    [[35.0, 0.0, 0.0, 0.0]]
    >>> schema.classes, schema.decode([1, 0]).tolist()
    (('no', 'yes'), ['yes', 'no'])
    """

    columns: tuple[Column, ...] = ()
    client: str | None = None
    target: str | None = None
    classes: tuple[Level, ...] | None = None
    standardize: Standardize | None = None
    moments: Mapping[str | int, Moments] = field(default_factory=dict[str | int, Moments])
    opening_floats: int = 0
    """How many numbers each client sends (and receives) before training so that all build the same features."""

    # --- features -----------------------------------------------------------------------------------------------------

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the features, one per column of x; None if x was given as an array, and only labels are coded."""
        return tuple(feature for column in self.columns for feature in column.features) or None

    def encode(self, x: Any, client: str | int | Sequence[Any] | None = None) -> NDArray[Any]:
        """Turn raw rows of these clients (None: of a new client) into features; a schema without columns leaves x as it is."""
        if not self.columns:
            return np.asarray(x)
        table = self._table(x)
        owners = [None] * table.rows if client is None else self._owners(table, client)
        return self._assemble([(column, table.column(column.name)) for column in self.columns], table.rows, owners)

    def transform(self, frame: Any, client: str | int | Sequence[Any] | None = None) -> NDArray[Any]:
        """Turn the rows of a table into features.

        `frame` may have extra columns, and they may come in any order. A NumPy array must have exactly the columns of training, in
        their order, all of them numbers. With `standardize="per client"`, `client` names the rows' client (one name, or one per
        row); by default the frame's client column does.
        """
        table = self._table(frame)
        read_columns = [(column, table.column(column.name)) for column in self.columns]
        return self._assemble(read_columns, table.rows, self._owners(table, client))

    def _table(self, frame: Any) -> Columns:
        if not isinstance(frame, np.ndarray):
            table = read(frame)
            table.check(column.name for column in self.columns)
            return table
        array = cast(NDArray[Any], frame)
        if array.ndim != 2 or array.shape[1] != len(self.columns):
            names = ", ".join(str(column.name) for column in self.columns)
            raise InputError(f"An array needs {len(self.columns)} columns ({names}), found shape {array.shape}.")
        return read({column.name: array[:, j] for j, column in enumerate(self.columns)})

    def _owners(self, table: Columns, client: str | int | Sequence[Any] | None) -> list[Any] | None:
        if self.standardize != "per client":
            return None
        if client is None and self.client in table.names:
            return [plain(owner) for owner in table.column(self.client).values]
        if client is None:
            raise InputError(
                'This schema has standardize="per client": say whose rows these are, transform(frame, client="ann").'
            )
        if isinstance(client, (str, int, np.integer)):
            return [plain(client)] * table.rows
        owners = [plain(owner) for owner in client]
        if len(owners) != table.rows:
            raise InputError(f"client has {len(owners)} names for {table.rows} rows: give one name, or one per row.")
        return owners

    def _assemble(
        self, columns: Sequence[tuple[Column, Values]], rows: int, owners: Sequence[Any] | None
    ) -> NDArray[Any]:
        parts: list[NDArray[Any]] = []
        places = self._places(owners) if owners is not None and self.standardize == "per client" else None
        number = 0
        for column, values in columns:
            _check_kind(column, values)
            if column.kind == "category":
                _warn_of_spelling(column, values)
                parts += [((values.values == level) & ~values.missing).astype(np.float64) for level in column.levels]
            else:
                parts.append(self._number(column, values, places, number))
            number += column.kind == "number"
            if column.gaps:
                parts.append(values.missing.astype(np.float64))
        return np.column_stack(parts) if parts else np.zeros((rows, 0))

    def _number(self, column: Column, values: Values, places: Any, number: int) -> NDArray[Any]:
        array = values.values
        if places is not None and column.kind == "number":
            index, means, spreads = places
            mean, spread = means[index, number], spreads[index, number]
            return np.where(values.missing, 0.0, (array - mean) / spread)
        if values.missing.any():
            array = np.where(values.missing, column.fill, array)
        elif self.standardize is None and column.kind == "number":
            return array  # integers stay integers
        return (array.astype(np.float64) - column.mean) / column.spread

    def _places(self, owners: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Each row's index in the arrays of means and spreads, and these arrays; their last line is for new clients."""
        names = {name: m for m, name in enumerate(self.moments)}
        width = sum(column.kind == "number" for column in self.columns)
        means, spreads = (
            np.array([pair[i] for pair in self.moments.values()], np.float64).reshape(len(names), width) for i in (0, 1)
        )
        index = np.array([names.get(owner, len(names)) for owner in owners], np.int64)
        of_new = self.new_client
        return index, np.vstack([means, of_new[0]]), np.vstack([spreads, of_new[1]])

    @property
    def new_client(self) -> Moments:
        """The means and spreads by which a new client is standardised: the mean of all clients'."""
        numbers = [column for column in self.columns if column.kind == "number"]
        return tuple(column.mean for column in numbers), tuple(column.spread for column in numbers)

    # --- labels -------------------------------------------------------------------------------------------------------

    def codes(self, labels: Iterable[Any]) -> NDArray[Any]:
        """Turn labels into the numbers 0, 1, … of their classes; real targets stay as they are."""
        if self.classes is None:
            return np.asarray(labels)
        code_of = {label: code for code, label in enumerate(self.classes)}
        found = [plain(label) for label in labels]
        for row, label in enumerate(found):
            if label not in code_of:
                listed = ", ".join(map(repr, self.classes))
                raise InputError(f"The label {label!r} at row {row} is none of the classes in training: {listed}.")
        return np.array([code_of[label] for label in found], np.int64)

    def decode(self, codes: ArrayLike) -> NDArray[Any]:
        """Turn codes 0, 1, … back into labels; real predictions stay as they are."""
        if self.classes is None:
            return np.asarray(codes)
        return _labels(self.classes)[np.asarray(codes).astype(np.int64)]

    # --- export -------------------------------------------------------------------------------------------------------

    def only(self, name: str | int | None) -> Schema:
        """The schema with one client's means and spreads only, to hand to that client (None: to a new client)."""
        return dataclasses.replace(
            self, moments={name: self.moments[name]} if name is not None and name in self.moments else {}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the schema as strings, numbers, lists and dicts, which `from_dict` reads.

        >>> Schema.from_dict(Schema(classes=("no", "yes")).as_dict()).classes
        ('no', 'yes')
        """
        written = {name: getattr(self, name) for name in ("client", "target", "standardize", "opening_floats")}
        return {
            "version": VERSION,
            **written,
            "columns": [dataclasses.asdict(column) | {"levels": list(column.levels)} for column in self.columns],
            "classes": None if self.classes is None else list(self.classes),
            "moments": [[name, [list(part) for part in pair]] for name, pair in self.moments.items()],
        }

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> Schema:
        """Make a schema from what `as_dict` returned."""
        if written.get("version") != VERSION:
            raise InputError(
                f"This schema has version {written.get('version')!r}; this twofold reads version {VERSION}."
            )
        names = ("client", "target", "standardize", "opening_floats")
        return Schema(
            columns=tuple(Column(**column | {"levels": tuple(column["levels"])}) for column in written["columns"]),
            classes=None if written["classes"] is None else tuple(written["classes"]),
            moments={name: (tuple(means), tuple(spreads)) for name, (means, spreads) in written["moments"]},
            **{name: written[name] for name in names},
        )

    def __str__(self) -> str:
        lines = [f"{len(self.columns)} columns, {len(self.features or ())} features"]
        for column in self.columns:
            what: str = column.kind
            if column.kind == "category":
                shown = ", ".join(map(str, column.levels[:6])) + (", …" if len(column.levels) > 6 else "")
                what += f" of {len(column.levels)} levels: {shown}"
            if column.kind == "number" and self.standardize == "pooled":
                what += f", mean {column.mean:.4g}, spread {column.spread:.4g}"
            if column.kind == "number" and self.standardize == "per client":
                what += ", standardised by each client's own mean and spread"
            if column.gaps:
                filled = "" if column.kind == "category" else f" gaps become {column.fill:.4g},"
                what += f";{filled} one more feature says where they are"
            lines.append(f"  {column.name}: {what}")
        if self.target is not None:
            kind = "a number" if self.classes is None else f"one of {', '.join(map(str, self.classes))}"
            lines.append(f"  target {self.target}: {kind}")
        return "\n".join(lines)

    # --- made from a table ----------------------------------------------------------------------------------------------

    @staticmethod
    def fit(
        table: Columns,
        names: Sequence[Any],
        owners: Sequence[Any],
        *,
        standardize: Standardize | None = None,
        missing: Missing = "impute",
        client: str | None = None,
        target: str | None = None,
        classes: tuple[Level, ...] | None = None,
        row_weights: NDArray[np.float64] | None = None,
    ) -> tuple[Schema, NDArray[Any]]:
        """Determine the kinds, levels, means and spreads of these columns, and return the schema and the features.

        `owners` holds the name of each row's client. With `row_weights`, means and spreads are weighted.

        >>> schema, x = Schema.fit(read({"age": [1.0, 3.0]}), ["age"], ["ann", "bob"], standardize="pooled")
        >>> schema.columns[0].mean, x.tolist()
        (2.0, [[-1.0], [1.0]])
        """
        _check(standardize, missing)
        found, mistakes = _read_all(table, names)
        gaps = {name: int(values.missing.sum()) for name, values in found if values.missing.any()}
        if gaps and missing == "refuse":
            listed = ", ".join(f"{name!r} ({count})" for name, count in gaps.items())
            mistakes.append(
                f'There are missing values in {listed}: fill them yourself, or say missing="impute", which fills in the mean '
                "and adds a feature that marks where it did."
            )
        for name, values in found:
            mistakes += _faults(name, values, table.rows, owners)
        if mistakes:
            raise InputError("\n".join(mistakes))
        pairs = [(_fitted(name, values, standardize, row_weights), values) for name, values in found]
        moments: dict[str | int, Moments] = {}
        if standardize == "per client":
            moments, pairs = _own_moments(pairs, owners)
        columns = tuple(column for column, _ in pairs)
        schema = Schema(columns, client, target, classes, standardize, moments, _opening(columns, standardize))
        return schema, schema._assemble(pairs, table.rows, owners if standardize == "per client" else None)


def _check(standardize: object, missing: object) -> None:
    if standardize is not None and standardize not in get_args(Standardize):
        raise InputError(f'standardize must be None, "pooled" or "per client", got {standardize!r}.')
    if missing not in get_args(Missing):
        raise InputError(f'missing must be "impute" or "refuse", got {missing!r}.')


def _read_all(table: Columns, names: Sequence[Any]) -> tuple[list[tuple[Any, Values]], list[str]]:
    """Every column that can be read, and a message for each that cannot."""
    table.check(names)
    found: list[tuple[Any, Values]] = []
    mistakes: list[str] = []
    for name in names:
        try:
            found.append((name, table.column(name)))
        except InputError as mistake:
            mistakes.append(str(mistake))
    return found, mistakes


def _faults(name: Any, values: Values, rows: int, owners: Sequence[Any]) -> list[str]:
    """Messages about what is wrong with the values of a column."""
    if values.kind == "number" and values.values.dtype.kind == "f":
        infinite = np.isinf(values.values) & ~values.missing
        if infinite.any():
            row = int(np.argmax(infinite))
            where = f"client {plain(owners[row])!r}: column {name!r} at row {row} of the table"
            return [f"{where} is {values.values[row]}, but every value must be finite"]
    if values.missing.all():
        return [f"Column {name!r} has no value at all: leave it out of features."]
    if values.kind == "category":
        count = len(set(values.values[~values.missing]))
        if count > MOST_LEVELS or (count > 50 and count > rows / 2):
            return [
                f"Column {name!r} has {count:,} different values in {rows:,} rows, such as {values.values[0]!r}: most likely it holds "
                "names or texts, not categories. Leave it out of features."
            ]
    return []


def _fitted(
    name: Any, values: Values, standardize: Standardize | None, row_weights: NDArray[np.float64] | None
) -> Column:
    gaps, known = bool(values.missing.any()), values.values[~values.missing]
    if values.kind == "category":
        there: set[Any] = set(known)
        declared = None if values.levels is None else tuple(level for level in values.levels if level in there)
        return Column(name, "category", declared or _ordered(there), gaps)
    numbers = known.astype(np.float64)
    weights = None if row_weights is None else row_weights[~values.missing]
    weights = None if weights is None or not weights.sum() > 0 else weights
    mean = float(np.average(numbers, weights=weights))
    if values.kind == "boolean":
        return Column(name, "boolean", (), gaps, fill=mean)
    spread = float(np.sqrt(np.average((numbers - mean) ** 2, weights=weights)))
    if standardize != "pooled":
        return Column(name, "number", (), gaps, fill=mean)
    return Column(name, "number", (), gaps, mean, mean, _positive(spread, mean))


def _positive(spread: float, mean: float) -> float:
    """The spread, or 1 if the column is constant up to rounding."""
    return spread if spread > 1e-12 * abs(mean) and spread > 0 else 1.0


def _own_moments(
    pairs: Sequence[tuple[Column, Values]], owners: Sequence[Any]
) -> tuple[dict[str | int, Moments], list[tuple[Column, Values]]]:
    """Each client's means and spreads, and the columns with the mean of these, which new clients get."""
    everyone = [plain(owner) for owner in owners]
    names = list(dict.fromkeys(everyone))
    place = {name: m for m, name in enumerate(names)}
    member = np.array([place[name] for name in everyone])
    means: list[NDArray[np.float64]] = []
    spreads: list[NDArray[np.float64]] = []
    columns: list[tuple[Column, Values]] = []
    for column, values in pairs:
        if column.kind != "number":
            columns.append((column, values))
            continue
        known = ~values.missing
        array, whose = values.values[known].astype(np.float64), member[known]
        count = np.maximum(np.bincount(whose, minlength=len(names)), 1)
        mean = np.bincount(whose, array, len(names)) / count
        spread = np.sqrt(np.bincount(whose, (array - mean[whose]) ** 2, len(names)) / count)
        spread = np.where(spread > 1e-12 * np.abs(mean), spread, 1.0)
        means.append(mean)
        spreads.append(spread)
        of_new = float(mean.mean()), float(spread.mean())
        columns.append((dataclasses.replace(column, mean=of_new[0], spread=of_new[1]), values))
    own: dict[str | int, Moments] = {
        name: (tuple(float(mean[m]) for mean in means), tuple(float(spread[m]) for spread in spreads))
        for name, m in place.items()
    }
    return own, columns


def _opening(columns: Sequence[Column], standardize: Standardize | None) -> int:
    """How many numbers each client sends once: sums, sums of squares and counts of what is pooled, and which levels it has."""
    floats = 0
    for column in columns:
        floats += len(column.levels)
        if column.kind == "number" and standardize is not None:
            floats += 2 + (column.gaps and standardize == "pooled")
        elif column.kind != "category" and column.gaps:
            floats += 2
    pooled = standardize == "pooled" and any(column.kind == "number" for column in columns)
    return floats + pooled  # the number of rows, once


def _check_kind(column: Column, values: Values) -> None:
    """Refuse a column of another kind than in training; a column with only missing values may be of any kind."""
    both = {column.kind, values.kind}
    if len(both) == 1 or both == {"number", "boolean"} or values.missing.all():
        return
    if column.kind == "category" and not all(isinstance(level, str) for level in column.levels):
        return  # a category whose levels are numbers may also be given as a column of numbers
    example = values.values[~values.missing][0]
    held, was = (
        {"number": "numbers", "boolean": "booleans", "category": "strings or categories"}[kind]
        for kind in (values.kind, column.kind)
    )
    raise InputError(f"Column {column.name!r} holds {held}, such as {plain(example)!r}, but in training it held {was}.")


def _warn_of_spelling(column: Column, values: Values) -> None:
    """Say so if a level that did not occur in training differs from one that did only by capitals or spaces around it."""
    known = {str(level).strip().casefold(): level for level in column.levels if isinstance(level, str)}
    for level in dict.fromkeys(values.values[~values.missing].tolist()):
        meant = known.get(level.strip().casefold()) if isinstance(level, str) else None
        if meant is not None and level not in column.levels:
            warnings.warn(
                f"Column {column.name!r} has {level!r}, which did not occur in training, where {meant!r} did: if they mean the same, "
                "spell them the same. Here the row counts as having no level of this column.",
                UserWarning,
                stacklevel=2,
            )
            return


def _ordered(levels: Iterable[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(levels))
    except TypeError:
        return tuple(sorted(levels, key=lambda level: (type(level).__name__, str(level))))


def _labels(classes: tuple[Level, ...]) -> NDArray[Any]:
    """The classes as an array that keeps their type: whole numbers, strings, or objects if they are mixed."""
    kinds = {type(label) for label in classes}
    return np.array(classes) if len(kinds) == 1 else np.array(classes, object)


def class_of(values: Values, labels: Labels) -> tuple[tuple[Level, ...] | None, bool]:
    """The classes of a target (None for real numbers), and whether they were only guessed.

    Strings, categories and booleans are classes. Numbers are what `labels` says. With "auto" they stay numbers, except that targets
    of only −1 and 1, and whole numbers 1, 2, …, K (K ≤ 20), are taken for classes, because no loss accepts them as labels.

    >>> class_of(read({"y": ["b", "a"]}).column("y"), "auto")
    (('a', 'b'), False)
    >>> class_of(read({"y": [1, -1, 1]}).column("y"), "auto")
    ((-1, 1), True)
    """
    if labels not in get_args(Labels):
        raise InputError(f'labels must be "auto", "classes" or "numbers", got {labels!r}.')
    if values.kind == "category" and labels == "numbers":
        raise InputError(f"The target holds {values.values[0]!r}, which is not a number.")
    there = {plain(label) for label in values.values.tolist()}
    if values.kind == "category":
        declared = None if values.levels is None else tuple(level for level in values.levels if level in there)
        return declared or _ordered(there), False
    if labels == "numbers":
        return None, False
    if labels == "classes" or values.kind == "boolean":
        return _ordered(there), False
    found, count = sorted(there), len(there)
    counted = values.values.dtype.kind in "iu" and 2 <= count <= FEW_CLASSES and found == list(range(1, count + 1))
    return (tuple(found), True) if found == [-1, 1] or counted else (None, False)
