"""Targets as numbers: labels that are strings become 0, 1, … in the order of their classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from twofold.clients.arrays import Array, PyTree
from twofold.clients.mistakes import ClientError, ClientWarning
from twofold.clients.names import Name, name_of
from twofold.tables import Columns, Schema, Values
from twofold.tables.columns import plain
from twofold.tables.schema import Labels, class_of

__all__ = ["HasToList", "coded", "codes_like", "read_target", "whole_target"]


@runtime_checkable
class HasToList(Protocol):
    """An array or a data frame's column: `tolist` turns its labels into plain Python objects."""

    def tolist(self) -> list[Any]:
        """The labels in a list."""
        ...


def coded(targets: list[PyTree]) -> tuple[Schema | None, list[PyTree]]:
    """Code string labels as 0, 1, ... in the sorted order of their classes; leave other targets as they are."""
    if not targets or not all(isinstance(y, (list, np.ndarray)) or hasattr(y, "to_numpy") for y in targets):
        return None, targets
    try:
        arrays: list[Array] = [np.asarray(y) for y in targets]
    except ValueError:  # rows of unequal length: `read_arrays` reports them
        return None, targets
    if not all(array.ndim == 1 and _is_text(array) for array in arrays):
        return None, targets
    everyone: list[list[str]] = [array.tolist() for array in arrays]
    schema = Schema(classes=tuple(sorted({label for labels in everyone for label in labels})))
    return schema, [schema.codes(labels) for labels in everyone]


def _is_text(array: Array) -> bool:
    return array.size > 0 and (array.dtype.kind == "U" or all(isinstance(label, str) for label in array.tolist()))


def codes_like(schema: Schema, y: PyTree, client: Name | None, owners: Sequence[Any] | None = None) -> PyTree:
    """Code labels with the classes of a known schema; where its classes are strings, numbers are already codes and stay."""
    who = "" if client is None else f"client {client!r}: "
    _, (found,) = coded([y])
    text = found is not y
    if schema.classes is None:
        if text or getattr(getattr(y, "dtype", None), "kind", "") == "O":
            raise ClientError(f"{who}the labels are strings, but those of the clients like= are numbers")
        return y
    listed_already: object = y.tolist() if isinstance(y, HasToList) else y
    if not isinstance(listed_already, list):
        return cast(Any, y)
    labels = cast(list[Any], listed_already)
    if owners is None and not text and any(isinstance(label, str) for label in schema.classes):
        return y  # already coded
    known = {label: code for code, label in enumerate(schema.classes)}
    for row, label in enumerate(labels):
        if plain(label) not in known:
            whose = who if owners is None else f"client {name_of(owners[row])!r}: "
            where = f"row {row}" if owners is None else f"row {row} of the table"
            listed = ", ".join(map(repr, schema.classes))
            raise ClientError(
                f"{whose}the label at {where} is {plain(label)!r}, but the labels of the clients like= are {listed}"
            )
    return schema.codes(labels)


def whole_target(table: Columns, target: str, owners: Sequence[Any]) -> Values:
    """The targets, none of them missing."""
    values = table.column(target)
    wrong = values.missing.copy()
    if values.values.dtype.kind == "f":
        wrong |= ~np.isfinite(values.values)
    if wrong.any():
        row = int(np.argmax(wrong))
        found = "missing" if values.missing[row] else values.values[row]
        who = "" if owners[row] is None else f"client {name_of(owners[row])!r}: "
        where = f"{who}column {target!r} at row {row} of the table"
        raise ClientError(f"{where} is {found}, but every target must be present and finite: leave such rows out")
    return values


def read_target(
    table: Columns, target: str, owners: Sequence[Any], labels: Labels
) -> tuple[Array, tuple[Any, ...] | None]:
    """The targets of a table as numbers, and their classes; None where they are numbers.

    >>> from twofold.tables import read
    >>> read_target(read({"y": ["ill", "fit"]}), "y", [None, None], "auto")
    (array([1, 0]), ('fit', 'ill'))
    """
    values = whole_target(table, target, owners)
    classes, guessed = class_of(values, labels)
    if guessed:
        shown = ", ".join(map(str, classes or ()))
        warnings.warn(
            f"The target {target!r} is taken for classes ({shown}), which become 0 to {len(classes or ()) - 1}: say "
            f'labels="classes" if that is right, or labels="numbers" to keep the numbers.',
            ClientWarning,
            stacklevel=4,
        )
    if classes is None:
        return values.values, None
    return Schema(classes=classes).codes(values.values.tolist()), classes
