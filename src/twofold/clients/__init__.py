"""The clients' private data: checked once, stored client after client, and padded to equal length only when an engine asks."""
# JAX leaves parts of its pytree functions untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from jax import tree_util
from numpy.typing import ArrayLike, NDArray

from twofold.clients.arrays import (
    ABOUT_GAPS,
    Array,
    Layout,
    PyTree,
    fields_of,
    frozen,
    layout_of,
    pair_of,
    read_arrays,
    refuse_sizes,
    take,
)  # fmt: skip
from twofold.clients.frames import grouped, grouped_like
from twofold.clients.grouping import fewest_groups
from twofold.clients.labels import HasToList, coded, codes_like
from twofold.clients.mistakes import ClientError, ClientWarning
from twofold.clients.names import Name, name_of, names_of, unknown
from twofold.clients.weights import Weights, one_each, row_weights_of, weights_of
from twofold.errors import InputError, KindError
from twofold.tables import Schema, Standardize, read
from twofold.tables.columns import is_frame, plain
from twofold.tables.schema import Labels, Missing

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

Like: TypeAlias = "Clients | Schema | None"
"""Clients (or their schema) whose features and classes new rows are to share. None: the rows define their own."""
_DEFAULT: Any = None
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
        names = names_of(self.names, counts.size)
        if counts.ndim != 1 or counts.dtype.kind not in "iu":
            raise ClientError(f"counts must be one whole number per client, found {self.counts!r}")
        if counts.min() < 1:
            raise ClientError(f"client {names[counts.argmin()]!r} has no rows: its count is {counts.min()}")
        arrays, structure = read_arrays(self.x, self.y, "the data", int(counts.sum(dtype=np.int64)), "counts")
        totals, row_weights = row_weights_of(self.row_weights, counts, names)
        weights = weights_of(self.weights, counts, names, totals)
        checked: dict[str, Any] = {
            "counts": frozen(counts.astype(np.int32)), "names": names, "weights": frozen(weights),
        }  # fmt: skip
        checked["row_weights"] = None if row_weights is None else frozen(row_weights)
        self.__dict__.update(tree_util.tree_unflatten(structure, arrays), **checked)  # frozen: no plain assignment
        for field, array in zip(fields_of(structure), arrays, strict=True):
            if array.dtype.kind == "f":
                wanted = "every value must be finite" + (ABOUT_GAPS if np.isnan(array).any() else "")
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
        if isinstance(pairs, np.ndarray):
            raise ClientError(
                "from_list takes a list with one pair (x, y) per client, found an array: for one array of everybody's rows use "
                "Clients.from_groups(x, y, groups)"
            )
        pairs = list(pairs)
        if names is None and isinstance(like, Clients) and len(pairs) == like.M:
            names = like.names
        names = names_of(names, len(pairs))
        known = _known(like)
        everyone: list[list[Array]] = []
        expected: Any = None
        both = [pair_of(pair, f"client {name!r}") for name, pair in zip(names, pairs, strict=True)]
        if known is None:
            schema, targets = coded([y for _, y in both])
        else:
            schema, targets = known, [codes_like(known, y, name) for name, (_, y) in zip(names, both, strict=True)]
        for name, (x, _), y in zip(names, both, targets, strict=True):
            who = f"client {name!r}"
            if known is not None and known.columns and is_frame(x):
                x = known.encode(x, name)  # noqa: PLW2901
            arrays, structure = read_arrays(x, y, who)
            if len(arrays[0]) == 0:
                raise ClientError(f"{who} has no rows: its x has shape {arrays[0].shape}")
            everyone.append(arrays)
            layout = structure, [array.shape[1:] for array in arrays]
            expected = expected or layout
            if layout != expected:
                refuse_sizes(who, structure, (layout, expected), names[0])
                found, wanted = layout_of(arrays, structure), layout_of(everyone[0], expected[0])
                raise ClientError(f"{who} holds {found} where client {names[0]!r} holds {wanted}")
        data = tree_util.tree_unflatten(expected[0], [np.concatenate(parts) for parts in zip(*everyone, strict=True)])
        counts: Any = np.array([len(arrays[0]) for arrays in everyone])
        return cls(**data, counts=counts, names=names, weights=cast(Any, weights), schema=schema)

    @classmethod
    def from_groups(
        cls,
        x: PyTree,
        y: PyTree,
        groups: Array | Iterable[Hashable],
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
        labels: list[Any] = groups.tolist() if isinstance(groups, HasToList) else list(groups)
        known = None if schema is not None else _known(like)
        if known is None:
            found, (y,) = coded([y])
        else:
            found, y = known, codes_like(known, y, None)
            x = known.encode(x, [plain(label) for label in labels]) if known.columns and is_frame(x) else x
        arrays, structure = read_arrays(x, y, "the data", len(labels), "groups")
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
            ordered.sort(key=lambda label: place.get(name_of(label), like.M))
        rank = np.empty(len(seen), np.int64)
        rank[[seen[label] for label in ordered]] = np.arange(len(seen))
        member = rank[member]
        order = np.argsort(member, kind="stable")
        data = take(tree_util.tree_unflatten(structure, arrays), order)
        return cls(
            **data,
            counts=cast(Any, np.bincount(member)),
            names=tuple(ordered),
            weights=cast(Any, weights),
            row_weights=None if row_weights is None else one_each(row_weights, len(labels))[order],
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
            if like is None:
                found = grouped(
                    read(df), client, target, features, row_weights, standardize=standardize, missing=missing, labels=labels,
                )  # fmt: skip
            else:
                own = {
                    "features": features,
                    "standardize": standardize,
                    "missing": None if missing == "impute" else missing,
                    "labels": None if labels == "auto" else labels,
                }
                found = grouped_like(read(df), cast(Schema, _known(like)), client, target, row_weights, own)
            order = like if isinstance(like, Clients) else None
            return cls.from_groups(**found._asdict(), weights=weights, like=order)
        except ClientError:
            raise
        except InputError as mistake:
            raise ClientError(str(mistake)) from None

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
        x = cast(Array, self.x)
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
        return frozen(np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)]))

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
            raise unknown("client", name, self.names)
        return self._lookup[name]

    def __getitem__(self, which: Name) -> Client:
        """Return one client. A string is a name; an integer is always a position (for integer names, see `position`)."""
        m = self.position(which) if isinstance(which, str) else operator.index(which)
        if not -self.M <= m < self.M:
            raise IndexError(f"there is no client at position {m}: positions go from 0 to {self.M - 1}")
        m %= self.M
        mine = slice(self.offsets[m], self.offsets[m + 1])

        def rows(leaf: Array) -> Array:
            return leaf[mine]

        data = tree_util.tree_map(rows, self._data)
        return Client(name=self.names[m], **data, weight=float(self.weights[m]))

    def __iter__(self) -> Iterator[Client]:
        return (self[m] for m in range(self.M))

    def __repr__(self) -> str:
        least, most = int(self.counts.min()), int(self.counts.max())
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        each = f"{self.M:,} client{'s' * (self.M > 1)}, {size} row{'s' * (most > 1)} each, {self.rows:,} in all"
        return f"Clients({each}, {layout_of(*tree_util.tree_flatten(self._data))})"

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

            def view(leaf: Array) -> Array:
                return leaf[whole].reshape(shape + leaf.shape[1:])

            data = tree_util.tree_map(view, self._data | {"row_weight": self.row_weights})
        else:
            row = np.arange(rows)
            index = start[:, None] + np.where(row < count[:, None], row, 0)
            data = take(self._data | {"row_weight": self.row_weights}, index)
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
        x, y = cast(Array, self.x), cast(Array, self.y)
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
        largest = fewest_groups(self.counts, self.rows + int(min(waste * self.rows, padding)))
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
        train, held_out = (take(self._rows, np.flatnonzero(part)) for part in (~chosen, chosen))
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
        return replace(self, **take(self._rows, rows), counts=counts, names=names, weights=self.weights[chosen])

    def map(self, fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]) -> Clients:
        """Apply fn(x, y) -> (x, y) to the rows of all clients at once, for instance to normalise them.

        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([([[1.0]], [0]), ([[2.0]], [1])])
        >>> clients.map(lambda x, y: (10 * x, y)).x.tolist()
        [[10.0], [20.0]]
        """
        x, y = pair_of(fn(self.x, self.y), "the result of the mapped function")
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
        leaves, structure = cast(tuple[list[Array], Layout], tree_util.tree_flatten({"y": self.y}))
        if not leaves:
            raise ClientError(f"y is {self.y!r}, but {wanted}")
        for field, array in zip(fields_of(structure), leaves, strict=True):
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

    def _require(self, good: NDArray[np.bool_], array: Array, field: str, wanted: str) -> None:
        """Raise at the first bad value, naming the client, its own row and the column."""
        if not good.all():
            row, *column = index = tuple(map(int, np.unravel_index(np.argmin(good), good.shape)))
            m = int(np.searchsorted(self.offsets, row, side="right")) - 1
            where = f"client {self.names[m]!r}: {field} at row {row - self.offsets[m]}"
            where += f", column {', '.join(map(str, column))}" if column else ""
            raise ClientError(f"{where} is {array[index]}, but {wanted}")


def _known(like: Like) -> Schema | None:
    """The schema by which the clients `like` were read; None without `like`."""
    if like is None or isinstance(like, Schema):
        return like
    if not isinstance(cast(object, like), Clients):  # users may pass anything
        raise KindError(f"like must be Clients, such as those trained on, or their schema, got {type(like).__name__}.")
    return Schema() if like.schema is None else like.schema
