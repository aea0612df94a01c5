"""The clients' private data: checked once, stored client after client, and padded to equal length only when an engine asks."""
# JAX leaves parts of its pytree functions untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
from jax import tree_util
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError, KindError
from twofold.tables import Columns, Schema, Standardize, Values, read
from twofold.tables.columns import is_frame, plain
from twofold.tables.schema import Labels, Missing, class_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = [
    "Client",
    "ClientError",
    "ClientWarning",
    "Clients",
    "Frame",
    "Name",
    "Schema",
    "Stack",
    "Weights",
]

PyTree: TypeAlias = Any
"""Arrays, nested in dicts and tuples in any way."""
Name: TypeAlias = str | int
Weights: TypeAlias = Literal["rows"] | ArrayLike | None
"""None (1/M each, as in the paper), "rows" (proportional to counts, as in FedAvg), or M positive numbers."""
Like: TypeAlias = "Clients | Schema | None"
"""Clients (or their schema) whose features and classes new rows are to share. None: the rows define their own."""
_Array: TypeAlias = NDArray[Any]  # of booleans, integers or floats
_Layout: TypeAlias = Any  # jax's PyTreeDef, which JAX does not type
_Scalar = TypeVar("_Scalar", bound=np.generic)
_DEFAULT: Any = None
COPIES = 3
"""Copies of a matrix of features that lie in memory at once while it is read: dense, sorted by client, stacked (measured: 2.6)."""
SOME_COLUMNS = 12
"""At most so many columns are named in a message."""
SOME_ROWS = 20_000
"""At most about this many rows are used to measure the size of the features."""


class Frame(Protocol):
    """All that `Clients.from_frame` asks of a data frame: columns by name, as in pandas, Polars or a dict of columns.

    >>> import pandas as pd
    >>> pd.DataFrame({"user": ["ann"], "y": [1]})["y"].to_numpy().tolist()
    [1]
    """

    def __getitem__(self, column: Any, /) -> Any:
        """One column."""
        ...


@runtime_checkable
class _HasToList(Protocol):
    """An array or a data frame's column: `tolist` turns its labels into plain Python objects."""

    def tolist(self) -> list[Any]: ...


class ClientError(InputError):
    """Invalid client data; the message names the client, the field and the value.

    >>> import numpy as np
    >>> import twofold as tw
    >>> try:
    ...     tw.Clients.from_list([([[1.0], [np.inf]], [0, 1])], names=["ann"])
    ... except tw.ClientError as mistake:
    ...     print(mistake)
    client 'ann': x at row 1, column 0 is inf, but every value must be finite
    """


class ClientWarning(UserWarning):
    """Something about a table had to be guessed; the message says how to state it explicitly.

    >>> issubclass(ClientWarning, UserWarning)
    True
    """


class Client(NamedTuple):
    """One client's own rows, without padding; the arrays are read-only views.

    >>> import twofold as tw
    >>> ann = tw.Clients.from_list([([[1.0], [2.0]], [0, 1])], names=["ann"])["ann"]
    >>> ann.y.tolist(), ann.weight
    ([0, 1], 1.0)
    """

    name: Name
    x: PyTree
    y: PyTree
    weight: float


class Stack(NamedTuple):
    """Several clients as arrays with leading axes (clients, rows); rows past a client's `count` are padding.

    >>> import twofold as tw
    >>> stack = tw.Clients.from_list([([[1.0], [2.0]], [0, 1]), ([[3.0]], [1])]).stack()
    >>> stack.x.shape, stack.count.tolist()
    ((2, 2, 1), [2, 1])
    """

    x: PyTree
    y: PyTree
    count: Int[NDArray[np.int32], " clients"]  # pyright: ignore[reportIncompatibleMethodOverride]
    weight: Float[NDArray[np.float64], " clients"]  # relative to all clients: not renormalised over this stack
    position: Int[NDArray[np.int32], " clients"]
    row_weight: Float[NDArray[np.float64], "clients rows"] | None = None  # averaging one over each client's own rows


@dataclass(frozen=True, eq=False, repr=False)
class Clients:
    """The data of M clients, concatenated client after client without padding.

    `x` and `y` are pytrees of arrays with N rows in all. The first `counts[0]` rows belong to client 0, the next `counts[1]`
    to client 1, and so on. `weights` are positive, sum to one, and default to the paper's 1/M. Dicts and tuples are pytrees;
    a list is read as an array. Booleans, integers and floats keep their dtype, and `y` may be None. The arrays are read-only.

    `row_weights` say how much each row counts in its own client's mean. They are numbers ≥ 0, and are rescaled to average one
    over each client's rows. A row of weight 2 counts as two identical rows; a row of weight 0 does not count at all.
    `schema` records how a table's columns became features, and turns new rows into features the same way.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([([[1.0], [2.0]], [0, 1]), ([[3.0]], [1])], names=["ann", "bob"])
    >>> clients
    Clients(2 clients, 1 to 2 rows each, 3 in all, x: float64[1], y: int64)
    >>> clients.M, clients.rows, clients.weights.tolist()
    (2, 3, [0.5, 0.5])
    >>> clients["bob"].x.tolist()
    [[3.0]]
    """

    x: PyTree
    y: PyTree
    counts: Int[NDArray[np.int32], " clients"]
    names: tuple[Name, ...] = _DEFAULT
    weights: Float[NDArray[np.float64], " clients"] = _DEFAULT
    row_weights: Float[NDArray[np.float64], " all_rows"] | None = None
    schema: Schema | None = None
    unpadded: Clients | None = dataclasses.field(default=None, init=False)
    """The clients that `padded` made larger. What a run costs is counted by their sizes."""

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        names = _names(self.names, counts.size)
        if counts.ndim != 1 or counts.dtype.kind not in "iu":
            raise ClientError(f"counts must be one whole number per client, found {self.counts!r}")
        if counts.min() < 1:
            raise ClientError(f"client {names[counts.argmin()]!r} has no rows: its count is {counts.min()}")
        arrays, structure = _read(self.x, self.y, "the data", int(counts.sum(dtype=np.int64)), "counts")
        totals, row_weights = _row_weights(self.row_weights, counts, names)
        weights = _weights(self.weights, counts, names, totals)
        checked: dict[str, Any] = {
            "counts": _frozen(counts.astype(np.int32)), "names": names, "weights": _frozen(weights),
        }  # fmt: skip
        checked["row_weights"] = None if row_weights is None else _frozen(row_weights)
        self.__dict__.update(tree_util.tree_unflatten(structure, arrays), **checked)  # frozen: no plain assignment
        for field, array in zip(_fields(structure), arrays, strict=True):
            if array.dtype.kind == "f":
                wanted = "every value must be finite" + (_ABOUT_GAPS if np.isnan(array).any() else "")
                self._require(np.isfinite(array), array, field, wanted)

    @classmethod
    def from_list(
        cls,
        pairs: Iterable[tuple[PyTree, PyTree]],
        names: Sequence[Name] | None = None,
        weights: Weights = None,
        *,
        like: Like = None,
    ) -> Clients:
        """Take one pair (x, y) per client; the names default to 0, 1, 2, ...

        String labels become 0, 1, ... in sorted order; `clients.schema.classes` keeps that order. For rows that are loaded
        separately, such as a test set, pass the training clients as `like`: labels are then coded with their classes, an x that
        is a table gets their features, and the names default to theirs if there are as many clients.

        >>> import numpy as np
        >>> import twofold as tw
        >>> tw.Clients.from_list([(np.eye(2), [0, 1]), (np.ones((3, 2)), [1, 1, 0])], weights="rows").weights.tolist()
        [0.4, 0.6]
        >>> train = tw.Clients.from_list([(np.eye(3), ["a", "b", "c"])], names=["ann"])
        >>> tw.Clients.from_list([(np.ones((2, 3)), ["b", "c"])], like=train)["ann"].y.tolist()
        [1, 2]
        """
        pairs = list(pairs)
        if names is None and isinstance(like, Clients) and len(pairs) == like.M:
            names = like.names
        names = _names(names, len(pairs))
        known = _known(like)
        everyone: list[list[_Array]] = []
        expected: Any = None
        both = [_pair(pair, f"client {name!r}") for name, pair in zip(names, pairs, strict=True)]
        if known is None:
            schema, targets = _coded([y for _, y in both])
        else:
            schema, targets = known, [_codes_like(known, y, name) for name, (_, y) in zip(names, both, strict=True)]
        for name, (x, _), y in zip(names, both, targets, strict=True):
            who = f"client {name!r}"
            if known is not None and known.columns and is_frame(x):
                x = known.encode(x, name)  # noqa: PLW2901
            arrays, structure = _read(x, y, who)
            if len(arrays[0]) == 0:
                raise ClientError(f"{who} has no rows: its x has shape {arrays[0].shape}")
            everyone.append(arrays)
            layout = structure, [array.shape[1:] for array in arrays]
            expected = expected or layout
            if layout != expected:
                _refuse_sizes(who, structure, (layout, expected), names[0])
                found, wanted = _layout(arrays, structure), _layout(everyone[0], expected[0])
                raise ClientError(f"{who} holds {found} where client {names[0]!r} holds {wanted}")
        data = tree_util.tree_unflatten(expected[0], [np.concatenate(parts) for parts in zip(*everyone, strict=True)])
        counts: Any = np.array([len(arrays[0]) for arrays in everyone])
        return cls(**data, counts=counts, names=names, weights=cast(Any, weights), schema=schema)

    @classmethod
    def from_groups(
        cls,
        x: PyTree,
        y: PyTree,
        groups: _Array | Iterable[Hashable],
        weights: Weights = None,
        *,
        row_weights: ArrayLike | None = None,
        schema: Schema | None = None,
        like: Like = None,
    ) -> Clients:
        """Split one table into clients, given one group label per row.

        Clients come in the sorted order of their group labels, or in order of first appearance if these cannot be compared.
        Rows keep their order inside a client. Strings and integers become names as they are; other group labels become their
        `str`. String targets y become 0, 1, ... in sorted order; `clients.schema.classes` keeps that order. SciPy's sparse
        matrices are made dense, if there is memory for three copies of that. `row_weights` is one number ≥ 0 per row.

        For rows that are loaded separately, such as a test set, pass the training clients as `like`: labels are then coded with
        their classes, an x that is a table gets their features, and clients come in their order.

        >>> import numpy as np
        >>> import twofold as tw
        >>> clients = tw.Clients.from_groups(np.eye(3), [1, 0, 1], groups=["bob", "ann", "bob"])
        >>> clients.names, clients.counts.tolist()
        (('ann', 'bob'), [1, 2])
        >>> train = tw.Clients.from_groups(np.eye(3), ["ill", "fit", "well"], groups=["ann", "ann", "bob"])
        >>> tw.Clients.from_groups(np.ones((2, 3)), ["well", "ill"], groups=["bob", "ann"], like=train).y.tolist()
        [1, 2]
        """
        labels: list[Any] = groups.tolist() if isinstance(groups, _HasToList) else list(groups)
        known = None if schema is not None else _known(like)
        if known is None:
            found, (y,) = _coded([y])
        else:
            found, y = known, _codes_like(known, y, None)
            x = known.encode(x, [plain(label) for label in labels]) if known.columns and is_frame(x) else x
        arrays, structure = _read(x, y, "the data", len(labels), "groups")
        seen: dict[Any, int] = {}
        try:
            member = np.fromiter((seen.setdefault(label, len(seen)) for label in labels), np.int64, len(labels))
        except TypeError as problem:
            raise ClientError(f"groups must hold one plain label per row: {problem}") from None
        for label, code in seen.items():
            if not isinstance(label, str) and str(label) in ("None", "nan", "NaT", "<NA>"):
                raise ClientError(f"groups has no client for row {np.argmax(member == code)}: the label is {label}")
        try:
            ordered = sorted(seen)
        except TypeError:
            ordered = list(seen)
        if isinstance(like, Clients):
            place = {name: m for m, name in enumerate(like.names)}
            ordered.sort(key=lambda label: place.get(_name(label), like.M))
        rank = np.empty(len(seen), np.int64)
        rank[[seen[label] for label in ordered]] = np.arange(len(seen))
        member = rank[member]
        order = np.argsort(member, kind="stable")
        data = _take(tree_util.tree_unflatten(structure, arrays), order)
        return cls(
            **data,
            counts=cast(Any, np.bincount(member)),
            names=tuple(ordered),
            weights=cast(Any, weights),
            row_weights=None if row_weights is None else _one_each(row_weights, len(labels))[order],
            schema=schema or found,
        )

    @classmethod
    def from_frame(
        cls,
        df: Frame | Any,
        client: str = "user",
        target: str | None = "y",
        features: str | Iterable[str] | None = None,
        weights: Weights = None,
        *,
        standardize: Standardize | None = None,
        missing: Missing = "impute",
        labels: Labels = "auto",
        row_weights: str | ArrayLike | None = None,
        like: Like = None,
    ) -> Clients:
        """Split a data frame into clients by the column `client`, in the same order as `from_groups`.

        `df` is a pandas or Polars data frame, an Arrow table, or a dict of columns. `x` is made of the columns `features`, by
        default all columns except `client`, `target` and the column of `row_weights`, in their order. `clients.schema` records
        how columns became features, and `clients.schema.transform(frame)` does the same to new rows.

        **Columns.** A numeric or boolean column is one feature. A column of strings or categories becomes one feature per level;
        all clients share the levels. Dates are refused.

        **Missing values.** A missing number is replaced by the mean over all clients' rows, and an extra feature marks where that
        happened; a missing category is only marked. `missing="refuse"` refuses both. A missing target or client is always refused.

        **Scale.** `standardize="pooled"` brings every numeric column to mean 0 and standard deviation 1 over all clients' rows.
        The clients pool their sums for this; `clients.opening_floats` counts the numbers they send. `"per client"` standardizes
        over each client's own rows instead.

        **Targets.** Strings, categories and booleans are coded 0, 1, ... in the sorted order of their classes. `schema.classes`
        lists the classes, and `schema.decode` turns codes back into them. Numbers stay as they are, with two exceptions: if the
        only values are −1 and 1, or the whole numbers 1, 2, ..., K with K up to 20, they are taken for classes, with a warning. To
        decide it yourself, say `labels="classes"` or `labels="numbers"`.

        **Test tables.** `like=train` reads a table exactly as the clients `train` were read: the same features, levels, means and
        standard deviations, the same classes, the same client and target columns, and the clients in the same order. A test table
        needs this: on its own it would be coded and scaled differently, and a model's scores on it would be meaningless.

        >>> import pandas as pd
        >>> import twofold as tw
        >>> df = pd.DataFrame({"user": ["bob", "ann"], "age": [30.0, 40.0], "y": [0, 1]})
        >>> tw.Clients.from_frame(df)["ann"].x.tolist()
        [[40.0]]
        >>> df = pd.DataFrame({"user": ["bob", "ann"], "city": ["Oslo", "Rome"], "y": ["ill", "well"]})
        >>> clients = tw.Clients.from_frame(df)
        >>> clients.schema.features, clients.schema.classes, clients["bob"].y.tolist()
        (('city=Oslo', 'city=Rome'), ('ill', 'well'), [0])
        >>> later = pd.DataFrame({"user": ["bob", "ann"], "city": ["Rome", "Bari"], "y": ["well", "well"]})
        >>> test = tw.Clients.from_frame(later, like=clients)
        >>> test.x.tolist(), test.y.tolist()
        ([[0.0, 0.0], [0.0, 1.0]], [1, 1])
        """
        try:
            if like is not None:
                own = {"features": features, "standardize": standardize}
                own |= {
                    "missing": None if missing == "impute" else missing,
                    "labels": None if labels == "auto" else labels,
                }
                return cls._from_table_like(read(df), like, client, target, weights, row_weights, own)
            return cls._from_table(
                read(df), client, target, features, weights, standardize, missing, labels, row_weights
            )
        except ClientError:
            raise
        except InputError as mistake:
            raise ClientError(str(mistake)) from None

    @classmethod
    def _from_table(
        cls,
        table: Columns,
        client: str,
        target: str | None,
        features: str | Iterable[str] | None,
        weights: Weights,
        standardize: Standardize | None,
        missing: Missing,
        labels: Labels,
        row_weights: str | ArrayLike | None,
    ) -> Clients:
        available = table.names
        special = [client, target, *([row_weights] if isinstance(row_weights, str) else [])]
        if features is None:
            features = [column for column in available if column not in special]
        columns = [features] if isinstance(features, str) else list(features)
        for column in (*special, *columns):
            if column is not None and column not in available:
                raise _unknown("column", column, available)
        if not columns:
            raise ClientError(f"features is empty: the frame's columns are {list(available)}")
        whose = table.column(client)
        owners = [None if gone else plain(o) for o, gone in zip(whose.values.tolist(), whose.missing, strict=True)]
        y, classes = (None, None) if target is None else read_target(table, target, owners, labels)
        schema, x = Schema.fit(
            table, columns, owners, standardize=standardize, missing=missing, client=client, target=target,
            classes=classes,
        )  # fmt: skip
        if isinstance(row_weights, str):
            row_weights = table.column(row_weights).values
        return cls.from_groups(x, y, owners, weights, row_weights=row_weights, schema=schema)

    @classmethod
    def _from_table_like(
        cls,
        table: Columns,
        like: Clients | Schema,
        client: str,
        target: str | None,
        weights: Weights,
        row_weights: str | ArrayLike | None,
        own: dict[str, Any],
    ) -> Clients:
        """Read a table as other clients were read; `own` holds the options that `like` already settles, so that none may be given."""
        schema = cast(Schema, _known(like))
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
        for column in (client, target):
            if column is not None and column not in table.names:
                raise _unknown("column", column, table.names)
        whose = table.column(client)
        owners = [None if gone else plain(o) for o, gone in zip(whose.values.tolist(), whose.missing, strict=True)]
        y = None
        if target is not None:
            values = _whole_target(table, target, owners)
            y = _codes_like(schema, values.values, None, owners)
        if isinstance(row_weights, str):
            row_weights = table.column(row_weights).values
        x = schema.transform(table, owners)
        order = like if isinstance(like, Clients) else None
        return cls.from_groups(x, y, owners, weights, row_weights=row_weights, schema=schema, like=order)

    @property
    def opening_floats(self) -> int:
        """How many numbers each client sends before training so that all build the same features: levels, sums, counts."""
        return 0 if self.schema is None else self.schema.opening_floats

    @cached_property
    def scales(self) -> Float[NDArray[np.float64], " features"] | None:
        """The root mean square of each feature's nonzero values, over all clients' rows or an even sample of them.

        None if x is not a matrix of numbers; nan for a feature that is always zero.
        """
        if not isinstance(self.x, np.ndarray) or self.x.ndim != 2 or self.x.shape[1] == 0:
            return None
        x = cast(_Array, self.x)
        some = np.asarray(x[:: max(len(x) // SOME_ROWS, 1)], np.float64)
        there = np.count_nonzero(some, axis=0)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.sqrt(np.sum(some * some, axis=0) / there)

    @property
    def M(self) -> int:  # noqa: N802
        """The number of clients, M in the paper."""
        return len(self.names)

    def __len__(self) -> int:
        return self.M

    @property
    def rows(self) -> int:
        """The number of rows of all clients together."""
        return int(self.offsets[-1])

    @cached_property
    def counted(self) -> Int[NDArray[np.int64], " clients"]:
        """How many rows of each client count: those of weight zero do not, nor do they in the ledger."""
        if self.row_weights is None:
            return self.counts.astype(np.int64)
        return np.add.reduceat(self.row_weights > 0, self.offsets[:-1], dtype=np.int64)

    @cached_property
    def offsets(self) -> Int[NDArray[np.int64], " clients+1"]:
        """Where each client's rows start, followed by the total number of rows: shape (M + 1,)."""
        return _frozen(np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)]))

    @cached_property
    def _lookup(self) -> dict[Name, int]:
        return {name: m for m, name in enumerate(self.names)}

    def position(self, name: Name) -> int:
        """Find the position of a client by its name, which may be a string or an integer.

        >>> import twofold as tw
        >>> tw.Clients.from_list([([[1.0]], [0]), ([[2.0]], [1])], names=["ann", "bob"]).position("bob")
        1
        """
        if name not in self._lookup:
            raise _unknown("client", name, self.names)
        return self._lookup[name]

    def __getitem__(self, which: Name) -> Client:
        """Return one client. A string is a name; an integer is always a position (for integer names, see `position`)."""
        m = self.position(which) if isinstance(which, str) else operator.index(which)
        if not -self.M <= m < self.M:
            raise IndexError(f"there is no client at position {m}: positions go from 0 to {self.M - 1}")
        m %= self.M
        mine = slice(self.offsets[m], self.offsets[m + 1])

        def rows(leaf: _Array) -> _Array:
            return leaf[mine]

        data = tree_util.tree_map(rows, self._data)
        return Client(name=self.names[m], **data, weight=float(self.weights[m]))

    def __iter__(self) -> Iterator[Client]:
        return (self[m] for m in range(self.M))

    def __repr__(self) -> str:
        least, most = int(self.counts.min()), int(self.counts.max())
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        each = f"{self.M:,} client{'s' * (self.M > 1)}, {size} row{'s' * (most > 1)} each, {self.rows:,} in all"
        return f"Clients({each}, {_layout(*tree_util.tree_flatten(self._data))})"

    def stack(self, positions: ArrayLike | None = None, rows: int | None = None) -> Stack:
        """Pad clients (by default all) to equal length: to `rows`, or to the largest count among them.

        Padding repeats the client's own first row, so that every function stays finite on it. The caller must give padding weight
        zero. Adjacent clients of equal size are returned as a view, without a copy.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([([[1.0], [2.0]], [0, 1]), ([[3.0]], [1])])
        >>> clients.stack().x[1].tolist()
        [[3.0], [3.0]]
        """
        chosen = self._positions(positions)
        count, start = self.counts[chosen], self.offsets[chosen]
        rows = int(count.max()) if rows is None else operator.index(rows)
        if rows < count.max():
            largest = self.names[int(chosen[count.argmax()])]
            raise ClientError(f"client {largest!r} has {count.max()} rows, which do not fit into {rows=}")
        if (count == rows).all() and (np.diff(chosen) == 1).all():
            whole, shape = slice(start[0], start[-1] + rows), (len(chosen), rows)

            def view(leaf: _Array) -> _Array:
                return leaf[whole].reshape(shape + leaf.shape[1:])

            data = tree_util.tree_map(view, self._data | {"row_weight": self.row_weights})
        else:
            row = np.arange(rows)
            index = start[:, None] + np.where(row < count[:, None], row, 0)
            data = _take(self._data | {"row_weight": self.row_weights}, index)
        return Stack(**data, count=count, weight=self.weights[chosen], position=chosen.astype(np.int32))

    def padded(self, rows: int, features: int) -> Clients:
        """The same clients with more features, which are zero, and with rows of weight zero in the largest one of them.

        Nothing that is learned changes, so that data of several sizes can be solved by one compiled program. The ledger counts neither
        of them.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([([[1.0], [2.0], [3.0]], [0, 1, 1]), ([[3.0]], [1])])
        >>> larger = clients.padded(rows=4, features=2)
        >>> larger.counts.tolist(), larger.x[-1].tolist(), larger.counted.tolist()
        ([4, 1], [3.0, 0.0], [3, 1])
        """
        x, y = cast(_Array, self.x), cast(_Array, self.y)
        largest = int(self.counts.argmax())
        more = max(rows - int(self.counts[largest]), 0)
        place = np.full(more, self.offsets[largest + 1])
        wide = np.pad(x, ((0, 0), (0, max(features - x.shape[1], 0))))
        weights = np.ones(self.rows) if self.row_weights is None else self.row_weights
        counts = self.counts.copy()
        counts[largest] += more
        found = replace(
            self,
            x=np.insert(wide, place, 0, axis=0),
            y=np.insert(y, place, 0, axis=0),
            counts=counts,
            row_weights=np.insert(weights, place, 0.0),
            schema=None,
        )
        found.__dict__["unpadded"] = self
        return found

    def buckets(self, waste: float = 0.15, least: int = 1 << 20) -> tuple[NDArray[np.int64], ...]:
        """Group clients of similar size into as few groups as possible, with at most `waste` padded rows per real row in all.

        Each group is meant to be padded to its own largest client. All clients form one group if that takes fewer than `least`
        numbers of padding. Groups go from small clients to large ones; inside a group, positions increase.

        >>> import numpy as np
        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.ones((n, 1)), np.ones(n)) for n in (2, 100, 3)])
        >>> [group.tolist() for group in clients.buckets(least=0)]
        [[0, 2], [1]]
        """
        if not waste >= 0:
            raise ClientError(f"waste must be a number of at least 0, found {waste=}")
        padding = self.M * int(self.counts.max()) - self.rows
        if padding * sum(leaf[0].size for leaf in tree_util.tree_leaves(self._data)) < least:
            return (np.arange(self.M),)
        largest = _fewest_groups(self.counts, self.rows + int(min(waste * self.rows, padding)))
        group = np.searchsorted(largest, self.counts)
        return tuple(np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]))

    def split(self, test: float = 0.2, seed: int = 0, stratify: bool = False) -> tuple[Clients, Clients]:
        """Split every client's rows into training and test rows, at least one of each; names and weights stay.

        `test` is the share of test rows. A client's draw depends only on the seed, its position and its own rows. With
        `stratify`, each label has the same share of a client's test rows as of all its rows, to within one row.

        >>> import numpy as np
        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.ones((10, 1)), np.ones(10)), (np.ones((5, 1)), np.ones(5))])
        >>> train, test = clients.split(test=0.2)
        >>> train.counts.tolist(), test.counts.tolist()
        ([8, 4], [2, 1])
        """
        if not 0 < test < 1:
            raise ClientError(f"test must lie strictly between 0 and 1, found {test=}")
        if self.counts.min() < 2:
            raise ClientError(f"client {self.names[self.counts.argmin()]!r} has 1 row, but a split needs at least 2")
        if stratify and getattr(self.y, "ndim", 0) != 1:
            raise ClientError(f"stratify needs y to be one label per row, found {self!r}")
        sizes = np.clip(np.rint(test * self.counts), 1, self.counts - 1).astype(np.int64)
        chosen = np.zeros(self.rows, bool)
        for m, (start, count, size) in enumerate(zip(self.offsets[:-1], self.counts, sizes, strict=True)):
            rng = np.random.default_rng((seed, m))
            row = start + rng.permutation(count)
            if stratify:  # sort by label and take `size` evenly spaced rows: each label gets its share, rounded
                row = row[np.argsort(self.y[row], kind="stable")]
                row = row[(np.arange(size) * count + rng.integers(count)) // size]
            chosen[row[:size]] = True
        train, held_out = (_take(self._rows, np.flatnonzero(part)) for part in (~chosen, chosen))
        return replace(self, **train, counts=self.counts - sizes), replace(self, **held_out, counts=sizes)

    def subset(self, positions: ArrayLike) -> Clients:
        """Keep some clients, in the order given; their weights are scaled to sum to one again.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([([[1.0]], [0]), ([[2.0]], [1]), ([[3.0]], [1])])
        >>> clients.subset([2, 0]).names
        (2, 0)
        """
        chosen = self._positions(positions)
        counts: NDArray[np.int32] = self.counts[chosen]
        shift = self.offsets[chosen] - (np.cumsum(counts, dtype=np.int64) - counts)
        rows: NDArray[np.int64] = np.repeat(shift, counts) + np.arange(int(counts.sum(dtype=np.int64)))
        names = tuple(self.names[int(m)] for m in chosen)
        return replace(self, **_take(self._rows, rows), counts=counts, names=names, weights=self.weights[chosen])

    def map(self, fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]) -> Clients:
        """Apply fn(x, y) -> (x, y) to the rows of all clients at once, for instance to normalise them.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([([[1.0]], [0]), ([[2.0]], [1])])
        >>> clients.map(lambda x, y: (10 * x, y)).x.tolist()
        [[10.0], [20.0]]
        """
        x, y = _pair(fn(self.x, self.y), "the result of the mapped function")
        return replace(self, x=x, y=y)

    def check_labels(self, classes: int | Iterable[int]) -> None:
        """Raise unless every label is one of `classes`, or of 0, ..., classes - 1 if that is a number.

        Booleans and whole floats count as integers.

        >>> import twofold as tw
        >>> tw.Clients.from_list([([[1.0]], [0]), ([[2.0]], [1])]).check_labels(2)
        """
        if isinstance(classes, int | np.integer):
            allowed, wanted = np.arange(classes), f"a label must be a whole number from 0 to {classes - 1}"
            if classes == 2 and np.array_equal(np.unique(self.y), [-1, 1]):
                wanted += " (turn labels -1 and 1 into these with (y + 1) // 2)"
            elif np.ndim(self.y) == 1 and np.array_equal(np.unique(self.y), np.arange(1, int(classes) + 1)):
                wanted += f" (turn labels 1 to {classes} into these with y - 1)"
        else:
            allowed = np.array(sorted(classes))
            wanted = f"a label must be one of {', '.join(map(str, allowed))}"
        leaves, structure = cast(tuple[list[_Array], _Layout], tree_util.tree_flatten({"y": self.y}))
        if not leaves:
            raise ClientError(f"y is {self.y!r}, but {wanted}")
        for field, array in zip(_fields(structure), leaves, strict=True):
            self._require(np.isin(array, allowed), array, field, wanted)

    @property
    def _data(self) -> dict[str, PyTree]:
        return {"x": self.x, "y": self.y}

    @property
    def _rows(self) -> dict[str, PyTree]:
        """Every array that has one entry per row."""
        return self._data | {"row_weights": self.row_weights}

    def _positions(self, positions: ArrayLike | None) -> NDArray[np.int64]:
        chosen = np.arange(self.M) if positions is None else np.asarray(positions)
        flat = chosen.ndim == 1 and chosen.size > 0 and chosen.dtype.kind in "iu"
        if not flat or chosen.min() < 0 or chosen.max() >= self.M:
            raise ClientError(f"positions must be a list of whole numbers from 0 to {self.M - 1}, found {positions!r}")
        return chosen.astype(np.int64)

    def _require(self, good: NDArray[np.bool_], array: _Array, field: str, wanted: str) -> None:
        """Raise at the first bad value, naming the client, its own row and the column."""
        if not good.all():
            row, *column = index = tuple(map(int, np.unravel_index(np.argmin(good), good.shape)))
            m = int(np.searchsorted(self.offsets, row, side="right")) - 1
            where = f"client {self.names[m]!r}: {field} at row {row - self.offsets[m]}"
            where += f", column {', '.join(map(str, column))}" if column else ""
            raise ClientError(f"{where} is {array[index]}, but {wanted}")


def _pair(pair: object, who: str) -> tuple[PyTree, PyTree]:
    if not isinstance(pair, tuple | list):
        of_torch = any(kind.__module__.startswith("torch.") for kind in type(pair).__mro__)
        rows = "loader.dataset" if hasattr(pair, "dataset") else "dataset"
        remedy = f": give its arrays, as in x, y = map(np.stack, zip(*{rows}))" if of_torch else ""
        raise ClientError(f"{who} must be a pair (x, y), found {type(pair).__name__}{remedy}")
    both = cast(Sequence[PyTree], pair)
    if len(both) != 2:
        raise ClientError(f"{who} must be a pair (x, y), found {type(both).__name__} of length {len(both)}")
    return both[0], both[1]


def _read(x: PyTree, y: PyTree, who: str, rows: int | None = None, source: str = "x") -> tuple[list[_Array], _Layout]:
    """Flatten x and y together into arrays of `rows` rows, x first; the structure unflattens to a dict of x and y."""

    def is_list(node: object) -> bool:
        return isinstance(node, list)

    leaves, structure = cast(tuple[list[Any], _Layout], tree_util.tree_flatten({"x": x, "y": y}, is_leaf=is_list))
    if structure.children()[0].num_leaves == 0:
        raise ClientError(f"{who} has no array in x, found {x!r}")
    arrays: list[_Array] = []
    for i, leaf in enumerate(leaves):
        try:
            arrays.append(_array(leaf))
        except ClientError:
            raise
        except ValueError as problem:
            wanted = "but needs an array of booleans, integers or floats with one row per sample"
            told = f"{who} has {problem} in {_fields(structure)[i]}, {wanted}{_about_objects(leaf)}"
            raise ClientError(told) from None
        rows = len(arrays[0]) if rows is None else rows
        if len(arrays[i]) != rows:
            raise ClientError(f"{who} has {rows} rows in {source} but {len(arrays[i])} in {_fields(structure)[i]}")
    return arrays, structure


def _array(leaf: Any) -> _Array:
    """Read one leaf as an array of numbers without copying it; the error names what was found instead."""
    if np.ma.is_masked(leaf):
        raise InputError("masked values")
    try:
        array = np.asarray(_dense(leaf) if hasattr(leaf, "toarray") else leaf)
    except ClientError:
        raise
    except ValueError:
        raise InputError(_unequal(leaf)) from None
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InputError(f"the single value {array}" if array.ndim == 0 else f"dtype {array.dtype}")
    return _frozen(array)


def _unequal(rows: Any) -> str:
    """What is wrong with rows that do not fit into one array."""
    shapes = [np.shape(row) for row in rows if hasattr(row, "shape")]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is None or len(shapes) < len(rows) or len(shapes[0]) < 2:
        return "rows of unequal length"
    return (
        f"images of two sizes ({_size(shapes[0])} in row 0, {_size(shapes[other])} in row {other}: bring them to one)"
    )


def _size(shape: tuple[int, ...]) -> str:
    """An image's size, without the one channel of a grey one."""
    return "×".join(map(str, shape[:-1] if len(shape) > 2 and shape[-1] == 1 else shape))


def _refuse_sizes(who: str, structure: _Layout, layouts: tuple[Any, Any], first: Name) -> None:
    """Say of clients whose layouts differ in nothing but the size of images that they do."""
    (form, mine), (wanted, theirs) = layouts
    if form != wanted:
        return
    for field, found, expected in zip(_fields(structure), mine, theirs, strict=True):
        if found != expected and len(found) == len(expected) >= 2:
            raise ClientError(
                f"{who} has images of {_size(found)} in {field} where those of client {first!r} are {_size(expected)}: bring all to "
                "one size before making the clients"
            )


def _about_objects(leaf: Any) -> str:
    """For objects in place of numbers: which columns hold something else, and what to do about it."""
    if not hasattr(leaf, "__array__") or (table := np.asarray(leaf)).dtype.kind != "O" or table.ndim not in (1, 2):
        return ""
    frame = is_frame(leaf)
    columns: list[list[Any]] = [table.tolist()] if table.ndim == 1 else table.T.tolist()
    names: list[Any] = list(leaf.columns) if frame and hasattr(leaf, "columns") else list(range(len(columns)))
    found: list[str] = []
    for name, column in zip(names, columns, strict=True):
        row = next((i for i, v in enumerate(column) if not isinstance(v, (int, float, np.number, np.bool_))), None)
        if row is not None:
            found.append(f"{column[row]!r} at row {row}" + (f" of column {name!r}" if table.ndim == 2 else ""))
    if not found:
        return ": all of them are numbers, so say .astype(float)"
    more = f", and more in {len(found) - SOME_COLUMNS} other columns" if len(found) > SOME_COLUMNS else ""
    remedy = "Give the whole table" if frame else "Encode such columns, or give a table"
    return (
        f": there is {', '.join(found[:SOME_COLUMNS])}{more}. {remedy}, whose strings, categories and gaps are encoded for you: "
        "tw.Clients.from_frame(df, client=..., target=...)"
    )


_ABOUT_GAPS = (
    ": fill the gaps or leave such rows out; tw.Clients.from_frame(...) fills those of features and marks them"
)


def _dense(matrix: Any) -> _Array:
    """Make a SciPy sparse matrix dense, unless that would take more memory than is free, with the copies that follow."""
    from twofold import kernels  # here, because it needs JAX, which data alone do not

    size = math.prod(getattr(matrix, "shape", ())) * getattr(getattr(matrix, "dtype", None), "itemsize", 8)
    available = kernels.free_on_host()
    if COPIES * size > available:
        raise ClientError(
            f"A sparse matrix of shape {matrix.shape} takes {size / 1e9:.3g} GB as a dense one, and {COPIES} times that while it is "
            f"read and sorted by client, but only {available / 1e9:.3g} GB are free: choose fewer features "
            "(a feature hasher, a truncated SVD, the most frequent columns), or a narrower dtype."
        )
    return cast(_Array, matrix.toarray())


def _coded(targets: list[PyTree]) -> tuple[Schema | None, list[PyTree]]:
    """Code string labels as 0, 1, ... in the sorted order of their classes; leave other targets as they are."""
    if not targets or not all(isinstance(y, (list, np.ndarray)) or hasattr(y, "to_numpy") for y in targets):
        return None, targets
    try:
        arrays: list[_Array] = [np.asarray(y) for y in targets]
    except ValueError:  # rows of unequal length: `_read` reports them
        return None, targets
    if not all(array.ndim == 1 and _is_text(array) for array in arrays):
        return None, targets
    everyone: list[list[str]] = [array.tolist() for array in arrays]
    schema = Schema(classes=tuple(sorted({label for labels in everyone for label in labels})))
    return schema, [schema.codes(labels) for labels in everyone]


def _is_text(array: _Array) -> bool:
    return array.size > 0 and (array.dtype.kind == "U" or all(isinstance(label, str) for label in array.tolist()))


def _known(like: Like) -> Schema | None:
    """The schema by which the clients `like` were read; None without `like`."""
    if like is None or isinstance(like, Schema):
        return like
    if not isinstance(cast(object, like), Clients):  # users may pass anything
        raise KindError(f"like must be Clients, such as those trained on, or their schema, got {type(like).__name__}.")
    return Schema() if like.schema is None else like.schema


def _codes_like(schema: Schema, y: PyTree, client: Name | None, owners: Sequence[Any] | None = None) -> PyTree:
    """Code labels with the classes of a known schema; where its classes are strings, numbers are already codes and stay."""
    who = "" if client is None else f"client {client!r}: "
    _, (found,) = _coded([y])
    text = found is not y
    if schema.classes is None:
        if text or getattr(getattr(y, "dtype", None), "kind", "") == "O":
            raise ClientError(f"{who}the labels are strings, but those of the clients like= are numbers")
        return y
    listed_already: object = y.tolist() if isinstance(y, _HasToList) else y
    if not isinstance(listed_already, list):
        return cast(Any, y)
    labels = cast(list[Any], listed_already)
    if owners is None and not text and any(isinstance(label, str) for label in schema.classes):
        return y  # already coded
    known = {label: code for code, label in enumerate(schema.classes)}
    for row, label in enumerate(labels):
        if plain(label) not in known:
            whose = who if owners is None else f"client {_name(owners[row])!r}: "
            where = f"row {row}" if owners is None else f"row {row} of the table"
            listed = ", ".join(map(repr, schema.classes))
            raise ClientError(
                f"{whose}the label at {where} is {plain(label)!r}, but the labels of the clients like= are {listed}"
            )
    return schema.codes(labels)


def _whole_target(table: Columns, target: str, owners: Sequence[Any]) -> Values:
    """The targets, none of them missing."""
    values = table.column(target)
    wrong = values.missing.copy()
    if values.values.dtype.kind == "f":
        wrong |= ~np.isfinite(values.values)
    if wrong.any():
        row = int(np.argmax(wrong))
        found = "missing" if values.missing[row] else values.values[row]
        who = "" if owners[row] is None else f"client {_name(owners[row])!r}: "
        where = f"{who}column {target!r} at row {row} of the table"
        raise ClientError(f"{where} is {found}, but every target must be present and finite: leave such rows out")
    return values


def read_target(
    table: Columns, target: str, owners: Sequence[Any], labels: Labels
) -> tuple[_Array, tuple[Any, ...] | None]:
    """The targets of a table as numbers, and their classes; None where they are numbers.

    >>> read_target(read({"y": ["ill", "fit"]}), "y", [None, None], "auto")
    (array([1, 0]), ('fit', 'ill'))
    """
    values = _whole_target(table, target, owners)
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


def _one_each(values: ArrayLike, rows: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ClientError(f"row_weights must be one number per row, found {values!r}") from None
    if array.shape != (rows,):
        raise ClientError(f"row_weights has shape {array.shape} for {rows} rows")
    return array


def _row_weights(
    values: ArrayLike | None, counts: NDArray[np.integer], names: tuple[Name, ...]
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Each client's sum of row weights, and the weights rescaled to average one over each client's rows."""
    if values is None:
        return None, None
    array = _one_each(values, int(counts.sum(dtype=np.int64)))
    first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])[:-1]
    good = np.isfinite(array) & (array >= 0)
    if not good.all():
        row = int(np.argmin(good))
        m = int(np.searchsorted(first, row, side="right")) - 1
        raise ClientError(
            f"client {names[m]!r}: the weight of row {row - first[m]} is {array[row]}, but row weights are finite numbers ≥ 0"
        )
    totals = np.add.reduceat(array, first)
    for m in np.flatnonzero(totals <= 0):
        raise ClientError(f"client {names[m]!r} has no row of positive weight: leave the client out")
    return totals, array * np.repeat(counts / totals, counts)


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """A read-only view; the caller's own array stays as writeable as it was."""
    view = array.view()
    view.flags.writeable = False
    return view


def _fields(structure: _Layout) -> list[str]:
    """Name every leaf of a dict of x and y the way a user would write it: x, x['age'], y."""
    numbered = tree_util.tree_unflatten(structure, range(structure.num_leaves))
    leaves = cast(list[tuple[tuple[Any, ...], int]], tree_util.tree_leaves_with_path(numbered))
    return [path[0].key + tree_util.keystr(path[1:]) for path, _ in leaves]


def _layout(arrays: list[_Array], structure: _Layout) -> str:
    """Describe what one row holds, for instance "x: float64[64], y: int64"."""
    kinds = (f"{array.dtype}{list(array.shape[1:]) or ''}".replace(" ", "") for array in arrays)
    return ", ".join(f"{field}: {kind}" for field, kind in zip(_fields(structure), kinds, strict=True))


def _take(data: dict[str, PyTree], index: NDArray[np.int64]) -> dict[str, PyTree]:
    def rows(leaf: _Array) -> _Array:
        return np.take(leaf, index, axis=0)

    return tree_util.tree_map(rows, data)


def _unknown(kind: str, name: object, available: Sequence[object]) -> ClientError:
    close = difflib.get_close_matches(str(name), [str(other) for other in available], n=1)
    listed = ", ".join(map(repr, available[:20])) + (", ..." if len(available) > 20 else "")
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return ClientError(f"there is no {kind} {name!r} among {listed}{hint}")


def _name(label: Any) -> Name:
    plain: object = cast(Any, label).item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | int) and not isinstance(plain, bool) else str(plain)


def _names(names: Iterable[Any] | None, M: int) -> tuple[Name, ...]:
    """Check that each of M clients has a unique name; the default is 0, ..., M - 1."""
    if M == 0:
        raise ClientError("there are no clients: the list is empty")
    names = tuple(range(M)) if names is None else tuple(map(_name, names))
    if len(names) != M:
        raise ClientError(f"names has {len(names)} entries for {M} clients")
    if len(set(names)) < M:
        (name, times), *_ = Counter(names).most_common(1)
        raise ClientError(f"names must be unique, but {times} clients are named {name!r}")
    return names


def _weights(
    weights: Weights,
    counts: NDArray[np.integer],
    names: tuple[Name, ...],
    totals: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Turn any accepted form of weights into positive numbers that sum to one; `totals` are the clients' sums of row weights."""
    if weights is None:
        return np.full(len(counts), 1 / len(counts))
    try:
        values = np.array(
            (counts if totals is None else totals) if isinstance(weights, str) and weights == "rows" else weights,
            dtype=np.float64,
        )
    except (TypeError, ValueError):
        raise ClientError(f"weights must be None, 'rows' or one number per client, found {weights!r}") from None
    if values.shape != counts.shape:
        raise ClientError(f"weights has shape {values.shape} for {len(counts)} clients")
    for m in np.flatnonzero(~(np.isfinite(values) & (values > 0))):
        raise ClientError(f"client {names[m]!r} has weight {values[m]}, but weights must be positive and finite")
    total = values.sum()
    return values if abs(total - 1) < 1e-12 else values / total  # already normalised: keep every bit


def _fewest_groups(counts: NDArray[np.integer], budget: int) -> NDArray[np.integer]:
    """Split the sizes into the fewest groups of neighbouring sizes whose padded rows fit `budget`; return each group's largest size.

    With C_j clients among the j smallest sizes s_1 < ... < s_j, the smallest number of rows after padding, in at most k groups,
    obeys D_k(j) = min_{i<j} D_{k-1}(i) + s_j (C_j - C_i). For each j this is the minimum over i of lines in s_j with slopes
    -C_i. The slopes only fall as i grows, so the lower envelope can be kept as a queue, and each layer k takes linear time.
    Python's integers keep the arithmetic exact.
    """
    unique, clients = np.unique(counts, return_counts=True)
    sizes: list[int] = unique.tolist()
    below: list[int] = [0, *np.cumsum(clients).tolist()]  # C
    fewest: list[int] = [0, *(size * c for size, c in zip(sizes, below[1:], strict=True))]  # D
    layers: list[list[int]] = []

    def crossing(a: int, b: int) -> int:  # the first whole size from which on line b is as low as line a
        return -((fewest[a] - fewest[b]) // (below[b] - below[a]))

    while fewest[-1] > budget:
        queue: list[int] = []
        head, cost, choice = 0, [0], [0]
        for i, size in enumerate(sizes):
            while len(queue) - head > 1 and crossing(queue[-1], i) <= crossing(queue[-2], queue[-1]):
                queue.pop()
            queue.append(i)
            while head + 1 < len(queue) and crossing(queue[head], queue[head + 1]) <= size:
                head += 1
            choice.append(queue[head])
            cost.append(fewest[queue[head]] + size * (below[i + 1] - below[queue[head]]))
        fewest = cost
        layers.append(choice)
    ends = [len(sizes)]
    for choice in reversed(layers):
        ends.append(choice[ends[-1]])
    return unique[np.array(ends[::-1]) - 1]
