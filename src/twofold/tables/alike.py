"""Compare how two tables were turned into features and labels, and say where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twofold.tables.schema import Column, Moments, Schema

__all__ = ["difference"]

MOST_NAMED = 6
"""The most names that a message lists."""
CLOSE = 1e-9


def difference(train: Schema | None, test: Schema | None, names: Sequence[str | int] = ()) -> str | None:
    """Say how the same numbers mean something else in the test rows than in the training rows; None if they mean the same.

    Rows without a schema hold features and codes that were made elsewhere, so no difference can be found. If each client was
    standardised by its own means and spreads, those of the clients `names` are compared.

    >>> difference(Schema(classes=("a", "b", "c")), Schema(classes=("b", "c")))
    "the labels 0, 1, … stand for 'a', 'b', 'c' in the training rows and for 'b', 'c' in these"
    """
    if test is None or train is test:
        return None
    train = Schema() if train is None else train
    return _of_classes(train, test) or _of_features(train, test) or _of_scale(train, test, names)


def _of_classes(train: Schema, test: Schema) -> str | None:
    if train.classes == test.classes:
        return None
    if train.classes is None or test.classes is None:
        where, classes = ("these", test.classes) if train.classes is None else ("the training rows", train.classes)
        other = "the training rows" if train.classes is None else "these"
        return f"the labels 0, 1, … stand for {_some(classes or ())} in {where}, and {other} have plain numbers"
    return f"the labels 0, 1, … stand for {_some(train.classes)} in the training rows and for {_some(test.classes)} in these"


def _of_features(train: Schema, test: Schema) -> str | None:
    if not test.columns:
        return None
    if not train.columns:
        return (
            "these were scaled by their own means and spreads, and the training rows were not"
            if test.standardize
            else None
        )
    ours, theirs = train.features or (), test.features or ()
    if ours == theirs:
        return None
    fewer = [name for name in ours if name not in theirs]
    more = [name for name in theirs if name not in ours]
    told = [f"{_some(fewer)} only in the training rows"] if fewer else []
    told += [f"{_some(more)} only in these"] if more else []
    return f"the features differ: {' and '.join(told)}" if told else "the features come in another order"


def _of_scale(train: Schema, test: Schema, names: Sequence[str | int]) -> str | None:
    if not train.columns or not test.columns:
        return None
    if train.standardize != test.standardize:
        return f"the training rows have standardize={train.standardize!r}, and these {test.standardize!r}"
    for one, other in zip(train.columns, test.columns, strict=True):
        if (found := _of_column(one, other)) is not None:
            return found
    if train.standardize == "per client":
        for name in names:
            ours, theirs = train.moments.get(name), test.moments.get(name)
            if theirs is not None and not _same(ours or train.new_client, theirs):
                return f"client {name!r} was standardised by other means and spreads than in training"
    return None


def _of_column(train: Column, test: Column) -> str | None:
    pooled = (train.mean, train.spread), (test.mean, test.spread)
    if train.kind == "number" and not all(map(_near, *pooled)):
        (a, b), (c, d) = pooled
        return (
            f"column {train.name!r} was scaled by mean {a:.6g} and spread {b:.6g} in the training rows and by mean {c:.6g} and spread "
            f"{d:.6g} in these"
        )
    if train.kind != "category" and test.gaps and not _near(train.fill, test.fill):
        return (
            f"a gap in column {train.name!r} became {train.fill:.6g} in the training rows and {test.fill:.6g} in these"
        )
    return None


def _same(one: Moments, other: Moments) -> bool:
    return all(len(a) == len(b) and all(map(_near, a, b)) for a, b in zip(one, other, strict=True))


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-300)


def _some(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f", … ({len(names)} in all)" if len(names) > MOST_NAMED else "")
