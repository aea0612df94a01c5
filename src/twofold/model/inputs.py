"""What rows a model takes, and one sentence for rows that do not fit: their width, their names, their kind of numbers."""
# JAX leaves paths into pytrees untyped.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients, Name
from twofold.errors import InputError
from twofold.storage import Skeleton, pack, rebuild
from twofold.tree import Pytree

__all__ = ["Inputs", "as_codes", "check_features", "is_frame"]

Shapes: TypeAlias = dict[str, tuple[int, ...]]
MOST_NAMED = 8
"""Names that a sentence lists."""


@dataclass(frozen=True)
class Inputs:
    """One row of x, as the model was trained on it: its arrays, their shapes and number formats, and the columns' names.

    >>> import numpy as np
    >>> clients = Clients.from_list([(np.eye(2), [0, 1])])
    >>> inputs = Inputs.of(clients, ("age", "height"))
    >>> inputs.read([[30.0, 1.8]], "ann").tolist()
    [[30.0, 1.8]]
    >>> try:
    ...     inputs.read(np.ones((1, 3)), "ann")
    ... except ValueError as mistake:
    ...     print(mistake)
    Client 'ann' has x of width 3, but the model was trained on width 2 (age, height): give rows with the same features.
    """

    structure: Skeleton
    shapes: Shapes
    dtypes: Mapping[str, str]
    features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, clients: Clients, features: Sequence[str] | None = None) -> Inputs:
        """The rows of some clients, with names for the columns of a matrix of features."""
        arrays, structure = pack("x", clients.x)
        shapes = {name: array.shape[1:] for name, array in arrays.items()}
        names = None if features is None else tuple(str(name) for name in features)
        if names is not None and names != () and shapes != {"x": (len(names),)}:
            raise InputError(
                f"There are {len(names)} names of features, {_some(names)}, but x has {_show(_shapes(clients.x))}: give one name for "
                "each column of a matrix of features."
            )
        return cls(structure, shapes, {name: str(array.dtype) for name, array in arrays.items()}, names)

    @property
    def width(self) -> int | None:
        """The number of columns of a matrix of features; None for other features."""
        shape = self.shapes.get("x", ())
        return shape[0] if len(self.shapes) == 1 and len(shape) == 1 else None

    def stand_in(self) -> Clients:
        """One client with one row of zeros: enough to know the shapes of everything."""
        zeros = {name: np.zeros((1, *shape), self.dtypes[name]) for name, shape in self.shapes.items()}
        return Clients.from_list([(rebuild(self.structure, zeros), np.zeros(1, np.int64))])

    def read(self, x: Any, client: Name, trained: str = "model") -> Pytree:
        """The rows x as arrays, or a sentence that says what does not fit. A data frame's columns are found by their names."""
        if is_frame(x):
            x = self._columns(x, client)
        arrays = jax.tree.map(lambda leaf: _numbers(leaf, client, self.features), x, is_leaf=_is_leaf)
        check_features(self._example(), arrays, client, trained, self.features)
        for leaf in jax.tree.leaves(arrays):
            _finite(leaf, client, self.features)
        return arrays

    def _example(self) -> Pytree:
        return rebuild(self.structure, {name: np.zeros((0, *shape)) for name, shape in self.shapes.items()})

    def _columns(self, frame: Any, client: Name) -> NDArray[Any]:
        """The matrix of a data frame's columns, in the model's order; further columns (the client's name, say) stay out."""
        there = [str(column) for column in frame.columns]
        if self.features is None:
            wanted: list[Any] = list(frame.columns)
        else:
            wanted = list(self.features)
            missing = [name for name in wanted if name not in there]
            if missing:
                raise InputError(
                    f"Client {client!r} has no column {_some(missing)}; the model was trained on {_some(wanted)}, and the frame has "
                    f"{_some(there)}."
                )
            own: dict[str, Any] = {str(column): column for column in frame.columns}
            wanted = [own[name] for name in wanted]
        columns = {str(column): np.asarray(frame[column].to_numpy()) for column in wanted}
        odd = [f"{name} ({array.dtype})" for name, array in columns.items() if array.dtype.kind not in "biuf"]
        if odd:
            raise InputError(
                f"Client {client!r} has columns that are not numeric: {_some(odd)}. Encode them as the training data were, for example "
                "with pandas.get_dummies, or let Clients.from_frame do it."
            )
        return np.column_stack(list(columns.values())) if columns else np.zeros((len(frame), 0))


def is_frame(x: object) -> bool:
    """Whether x is a data frame (pandas, polars): it has named columns.

    >>> is_frame(np.ones((2, 2)))
    False
    """
    return hasattr(x, "columns") and hasattr(x, "__getitem__")


def _is_leaf(node: object) -> bool:
    return isinstance(node, list)


def _numbers(leaf: Any, client: Name, features: Sequence[str] | None) -> NDArray[Any]:
    try:
        array = np.asarray(leaf.toarray() if hasattr(leaf, "toarray") else leaf)  # scipy's sparse matrices
    except ValueError:
        raise InputError(f"Client {client!r} has rows of unequal length in x: give a matrix.") from None
    if array.dtype.kind == "O":  # a column of numbers from a frame of mixed columns
        return _from_objects(array, client, features)
    if array.dtype.kind not in "biufV":
        raise InputError(
            f"Client {client!r} has x of dtype {array.dtype}, but features are numbers: encode them first."
        )
    return array


def _from_objects(array: NDArray[Any], client: Name, features: Sequence[str] | None) -> NDArray[Any]:
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        bad = np.argwhere([not isinstance(value, (int, float, np.number, np.bool_)) for value in array.ravel()])
        place = np.unravel_index(int(bad[0, 0]), array.shape) if len(bad) else (0,)
        where = _place(tuple(int(i) for i in place), features)
        raise InputError(
            f"Client {client!r} has {array[place]!r} in x at {where}, but features are numbers: encode them."
        ) from None


def _finite(array: NDArray[Any], client: Name, features: Sequence[str] | None) -> None:
    if array.dtype.kind != "f":
        return
    good = np.isfinite(array)
    if not good.all():
        place = tuple(int(i) for i in np.unravel_index(int(np.argmin(good)), good.shape))
        raise InputError(
            f"Client {client!r} has {array[place]} in x at {_place(place, features)}, but every value must be finite: fill the gap as "
            "in the training data, or leave the row out."
        )


def _place(place: tuple[int, ...], features: Sequence[str] | None) -> str:
    row, *column = place
    if not column:
        return f"row {row}"
    named = features[column[0]] if features and len(column) == 1 and column[0] < len(features) else None
    return f"row {row}, column {', '.join(map(str, column)) if named is None else repr(named)}"


def _some(names: Iterable[object]) -> str:
    """Some names, in a sentence."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:MOST_NAMED]) + (f", … ({len(listed)} in all)" if len(listed) > MOST_NAMED else "")


# --- shapes -----------------------------------------------------------------------------------------------------------


def check_features(
    train: Pytree, x: Pytree, client: Name, trained: str = "problem", features: Sequence[str] | None = None
) -> None:
    """Raise unless rows x have the features that the problem (or the model) was trained on.

    >>> check_features(np.ones((4, 2)), np.zeros((1, 2)), "ann")
    """
    needed, found = (_shapes(part) for part in (train, x))
    if found != needed:
        named = "" if features is None else f" ({_some(features)})"
        one = all(shape == () for shape in found.values()) and () not in needed.values()
        same = "give rows, as in x[None, :]" if one else "give rows with the same features"
        has = "x of a single row" if one else f"x of {_show(found)}"
        raise InputError(
            f"Client {client!r} has {has}, but the {trained} was trained on {_show(needed)}{named}: {same}."
        )


def _shapes(x: Pytree) -> Shapes:
    """The shape of one row of each array of x, by its place in the pytree; an array without rows has shape (-1,)."""
    leaves = cast(list[tuple[tuple[Any, ...], Any]], jax.tree_util.tree_leaves_with_path(x, is_leaf=_is_leaf))
    return {jax.tree_util.keystr(path): np.shape(leaf)[1:] if np.ndim(leaf) else (-1,) for path, leaf in leaves}


def _show(features: Shapes) -> str:
    def kind(shape: tuple[int, ...]) -> str:
        if shape == (-1,):
            return "a single value"
        return f"width {shape[0]}" if len(shape) == 1 else f"rows of shape {shape}"

    return (
        ", ".join(f"{kind(shape)}{f' in {place}' if place else ''}" for place, shape in features.items()) or "no array"
    )


# --- labels -----------------------------------------------------------------------------------------------------------


def as_codes(y: Any, classes: Sequence[Any] | None, client: Name) -> NDArray[Any]:
    """The numbers 0, 1, … that labels stand for; without classes, y as it is.

    >>> as_codes(["yes", "no"], ("no", "yes"), "ann").tolist()
    [1, 0]
    """
    labels = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if classes is None:
        return labels
    numbers = {label: code for code, label in enumerate(classes)}
    plain: list[Any] = [label.item() if isinstance(label, np.generic) else label for label in labels.ravel()]
    for row, label in enumerate(plain):
        if label not in numbers:
            raise InputError(
                f"Client {client!r} has the label {label!r} at row {row}, but the model knows {_some(map(repr, classes))}."
            )
    return np.array([numbers[label] for label in plain], np.int64).reshape(labels.shape)
