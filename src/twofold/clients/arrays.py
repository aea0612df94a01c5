"""What users hand over as x and y, read as arrays of numbers; what is none is refused with what is wrong."""
# JAX leaves parts of its pytree functions untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from jax import tree_util
from numpy.typing import NDArray

from twofold.clients.mistakes import ClientError
from twofold.clients.names import Name
from twofold.errors import InputError
from twofold.tables.columns import is_frame

__all__ = [
    "ABOUT_GAPS",
    "Array",
    "Layout",
    "PyTree",
    "fields_of",
    "frozen",
    "layout_of",
    "pair_of",
    "read_arrays",
    "refuse_sizes",
    "take",
]

PyTree: TypeAlias = Any
"""Arrays, nested in dicts and tuples in any way."""
Array: TypeAlias = NDArray[Any]  # of booleans, integers or floats
Layout: TypeAlias = Any  # jax's PyTreeDef, which JAX does not type
_Scalar = TypeVar("_Scalar", bound=np.generic)
COPIES = 3
"""Copies of a matrix of features that lie in memory at once while it is read: dense, sorted by client, stacked (measured: 2.6)."""
SOME_COLUMNS = 12
"""At most so many columns are named in a message."""
ABOUT_GAPS = ": fill the gaps or leave such rows out; tw.Clients.from_frame(...) fills those of features and marks them"


def pair_of(pair: object, who: str) -> tuple[PyTree, PyTree]:
    """The x and the y of what should be a pair."""
    if not isinstance(pair, tuple | list):
        of_torch = any(kind.__module__.startswith("torch.") for kind in type(pair).__mro__)
        rows = "loader.dataset" if hasattr(pair, "dataset") else "dataset"
        remedy = f": give its arrays, as in x, y = map(np.stack, zip(*{rows}))" if of_torch else ""
        raise ClientError(f"{who} must be a pair (x, y), found {type(pair).__name__}{remedy}")
    both = cast(Sequence[PyTree], pair)
    if len(both) != 2:
        raise ClientError(f"{who} must be a pair (x, y), found {type(both).__name__} of length {len(both)}")
    return both[0], both[1]


def read_arrays(
    x: PyTree, y: PyTree, who: str, rows: int | None = None, source: str = "x"
) -> tuple[list[Array], Layout]:
    """Flatten x and y together into arrays of `rows` rows, x first; the structure unflattens to a dict of x and y."""

    def is_list(node: object) -> bool:
        return isinstance(node, list)

    leaves, structure = cast(tuple[list[Any], Layout], tree_util.tree_flatten({"x": x, "y": y}, is_leaf=is_list))
    if structure.children()[0].num_leaves == 0:
        raise ClientError(f"{who} has no array in x, found {x!r}")
    arrays: list[Array] = []
    for i, leaf in enumerate(leaves):
        try:
            arrays.append(_array(leaf))
        except ClientError:
            raise
        except ValueError as problem:
            wanted = "but needs an array of booleans, integers or floats with one row per sample"
            told = f"{who} has {problem} in {fields_of(structure)[i]}, {wanted}{_about_objects(leaf)}"
            raise ClientError(told) from None
        rows = len(arrays[0]) if rows is None else rows
        if len(arrays[i]) != rows:
            raise ClientError(f"{who} has {rows} rows in {source} but {len(arrays[i])} in {fields_of(structure)[i]}")
    return arrays, structure


def _array(leaf: Any) -> Array:
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
    return frozen(array)


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


def refuse_sizes(who: str, structure: Layout, layouts: tuple[Any, Any], first: Name) -> None:
    """Say of clients whose layouts differ in nothing but the size of images that they do."""
    (form, mine), (wanted, theirs) = layouts
    if form != wanted:
        return
    for field, found, expected in zip(fields_of(structure), mine, theirs, strict=True):
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


def _dense(matrix: Any) -> Array:
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
    return cast(Array, matrix.toarray())


def frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """A read-only view; the caller's own array stays as writeable as it was."""
    view = array.view()
    view.flags.writeable = False
    return view


def fields_of(structure: Layout) -> list[str]:
    """Name every leaf of a dict of x and y the way a user would write it: x, x['age'], y."""
    numbered = tree_util.tree_unflatten(structure, range(structure.num_leaves))
    leaves = cast(list[tuple[tuple[Any, ...], int]], tree_util.tree_leaves_with_path(numbered))
    return [path[0].key + tree_util.keystr(path[1:]) for path, _ in leaves]


def layout_of(arrays: list[Array], structure: Layout) -> str:
    """Describe what one row holds, for instance "x: float64[64], y: int64"."""
    kinds = (f"{array.dtype}{list(array.shape[1:]) or ''}".replace(" ", "") for array in arrays)
    return ", ".join(f"{field}: {kind}" for field, kind in zip(fields_of(structure), kinds, strict=True))


def take(data: dict[str, PyTree], index: NDArray[np.int64]) -> dict[str, PyTree]:
    """Some rows of every array."""

    def rows(leaf: Array) -> Array:
        return np.take(leaf, index, axis=0)

    return tree_util.tree_map(rows, data)
