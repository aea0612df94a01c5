"""A table with a column that says whose each row is, read into what `Clients.from_groups` takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from twofold.clients.arrays import PyTree
from twofold.clients.labels import codes_like, read_target, whole_target
from twofold.clients.mistakes import ClientError
from twofold.clients.names import unknown
from twofold.tables import Columns, Schema, Standardize
from twofold.tables.columns import plain
from twofold.tables.schema import Labels, Missing

__all__ = ["Grouped", "grouped", "grouped_like"]

RowWeights = str | ArrayLike | None
"""One weight per row, or the column that holds them."""


class Grouped(NamedTuple):
    """A table's rows: features, targets, whose each is, how much each counts, and how the features were made."""

    x: PyTree
    y: PyTree
    groups: list[Any]
    row_weights: ArrayLike | None
    schema: Schema


def grouped(
    table: Columns,
    client: str,
    target: str | None,
    features: str | Iterable[str] | None,
    row_weights: RowWeights,
    *,
    standardize: Standardize | None,
    missing: Missing,
    labels: Labels,
) -> Grouped:
    """Read a table whose columns define the features and the classes; by default all columns without another use are features."""
    weights = [row_weights] if isinstance(row_weights, str) else []
    if features is None:
        features = [column for column in table.names if column not in (client, target, *weights)]
    columns = [features] if isinstance(features, str) else list(features)
    _refuse_unknown(table, client, target, *weights, *columns)
    if not columns:
        raise ClientError(f"features is empty: the frame's columns are {list(table.names)}")
    owners = _owners(table, client)
    y, classes = (None, None) if target is None else read_target(table, target, owners, labels)
    schema, x = Schema.fit(
        table, columns, owners, standardize=standardize, missing=missing, client=client, target=target, classes=classes
    )
    return Grouped(x, y, owners, _weights(table, row_weights), schema)


def grouped_like(
    table: Columns, schema: Schema, client: str, target: str | None, row_weights: RowWeights, own: dict[str, Any]
) -> Grouped:
    """Read a table by the schema of another. `own` holds the options that the schema already settles, so that none may be given."""
    said = [name for name, value in own.items() if value is not None]
    if said:
        raise ClientError(
            f"{' and '.join(said)} cannot be combined with like=, which already says how the table is read"
        )
    if not schema.columns:
        raise ClientError(
            "like= needs clients made by Clients.from_frame: for arrays use Clients.from_list(..., like=train)"
        )
    client = schema.client if client == "user" and schema.client is not None else client
    target = schema.target if target == "y" else target
    _refuse_unknown(table, client, target)
    owners, y = _owners(table, client), None
    if target is not None:
        y = codes_like(schema, whole_target(table, target, owners).values, None, owners)
    return Grouped(schema.transform(table, owners), y, owners, _weights(table, row_weights), schema)


def _refuse_unknown(table: Columns, client: str, target: str | None, *columns: str) -> None:
    """Refuse a column that the table does not have: that of the clients, that of the target, or any other."""
    for column, option in ((client, "client"), (target, "target"), *((each, None) for each in columns)):
        if column is not None and column not in table.names:
            raise unknown("column", column, table.names, "" if option is None else f'; say which it is: {option}="..."')


def _owners(table: Columns, client: str) -> list[Any]:
    """Whose each row is; None where that is missing."""
    whose = table.column(client)
    return [None if gone else plain(o) for o, gone in zip(whose.values.tolist(), whose.missing, strict=True)]


def _weights(table: Columns, row_weights: RowWeights) -> ArrayLike | None:
    return table.column(row_weights).values if isinstance(row_weights, str) else row_weights
