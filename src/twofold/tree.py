"""Arithmetic on pytrees, and `record`, the decorator that makes a dataclass a pytree."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, dataclass_transform, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

__all__ = [
    "Pytree", "Running", "Scalar", "arrays", "blend", "cast", "combine", "has_running", "is_running", "learned", "move", "record",
    "replace_rows", "rows", "scale", "scale_learned", "select", "size", "squared_norm", "static", "step", "subtract",
    "unscale", "weighted_sum", "zeros",
]  # fmt: skip

Pytree: TypeAlias = Any
"""Arrays, nested in dicts, tuples and lists in any way. JAX has no narrower type for this either."""
Scalar: TypeAlias = float | jax.Array
"""A number, or a traced scalar in a compiled program."""

SMALL = 1 << 20
"""Bytes of a host array up to which a copy of it costs nothing worth mentioning."""

T = TypeVar("T")
_Children: TypeAlias = tuple[Pytree, ...]
_Program: TypeAlias = tuple[tuple[int, Any], ...]  # the index and the value of each field that is not data


@overload
def static() -> Any: ...
@overload
def static(default: T) -> T: ...
def static(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a `record` as static: part of the compiled program (a size, a name), not a number it works on.

    >>> import jax
    >>> from twofold.tree import record, static
    >>> @record
    ... class Step:
    ...     size: float
    ...     batch: int = static(default=1)
    >>> jax.tree.leaves(Step(0.5))
    [0.5]
    """
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def record(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass that is also a pytree.

    Numbers become leaves. They are traced, so a new λ or step size never causes a recompilation. `static` fields and functions
    are part of the compiled program and are compared by value. (`jax.tree_util.register_dataclass` wants to know for a whole class
    which fields are data, but a step size is data where it is a number, and program where it is a schedule.)

    >>> import jax
    >>> from twofold.tree import record
    >>> @record
    ... class Penalty:
    ...     lam: float
    >>> jax.tree.map(lambda number: 2 * number, Penalty(lam=0.5))
    Penalty(lam=1.0)
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]  (the line above made it a dataclass)
    names = [field.name for field in fields]
    fixed = {field.name for field in fields if field.metadata.get("static")}

    def flatten(node: T) -> tuple[_Children, _Program]:
        values = [getattr(node, name) for name in names]
        # A callable record (such as an objective) is still data. A bare function (a schedule, a loss) is program.
        is_data = [
            name not in fixed and (is_record(value) or not callable(value))
            for name, value in zip(names, values, strict=True)
        ]
        children = tuple(value for value, data in zip(values, is_data, strict=True) if data)
        program = tuple((i, value) for i, (value, data) in enumerate(zip(values, is_data, strict=True)) if not data)
        return children, program

    def unflatten(program: _Program, children: Sequence[Pytree]) -> T:
        values = list(children)
        for i, value in program:  # ascending, so each insertion lands in its own place
            values.insert(i, value)
        node = object.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    _RECORDS.add(cls)
    return cls


_RECORDS: set[type] = set()


def is_record(value: object) -> bool:
    """Say whether a value is an instance of a class made by `record`.

    >>> is_record(0.5)
    False
    """
    return type(value) in _RECORDS


def combine(*terms: tuple[Scalar, Pytree]) -> Pytree:
    """Compute the linear combination Σ aᵢ·xᵢ of pytrees with the same structure.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.combine((1.0, {"a": jnp.ones(2)}), (-0.5, {"a": jnp.ones(2)}))["a"].tolist()
    [0.5, 0.5]
    """
    (first, *others), trees = [a for a, _ in terms], [x for _, x in terms]

    def add_up(leaf: jax.Array, *leaves: jax.Array) -> Scalar:
        return sum((a * other for a, other in zip(others, leaves, strict=True)), first * leaf)

    return jax.tree.map(add_up, *trees)


def rows(x: Pytree, index: jax.Array) -> Pytree:
    """Take some rows (entries along the first axis) of every leaf.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.rows({"a": jnp.arange(4)}, jnp.array([2, 0]))["a"].tolist()
    [2, 0]
    """

    def take(leaf: jax.Array) -> jax.Array:
        return leaf[index]

    return jax.tree.map(take, x)


def replace_rows(x: Pytree, index: jax.Array, values: Pytree) -> Pytree:
    """Put new values into some rows of every leaf.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.replace_rows(jnp.zeros(4), jnp.array([2, 0]), jnp.array([5.0, 7.0])).tolist()
    [7.0, 0.0, 5.0, 0.0]
    """

    def put(leaf: jax.Array, value: jax.Array) -> jax.Array:
        return leaf.at[index].set(value)

    return jax.tree.map(put, x, values)


def weighted_sum(weights: jax.Array, x: Pytree, size: int | jax.Array = 1) -> Pytree:
    """Compute Σ_j weight_j·x_j over the rows of every leaf, divided by `size`; weights may be booleans.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.weighted_sum(jnp.array([True, False, True]), jnp.array([1.0, 2.0, 4.0]), size=2).item()
    2.5
    """

    def total(leaf: jax.Array) -> jax.Array:
        # Cast before dividing: a boolean over an integer would be float32 even in a float64 run.
        return jnp.tensordot(weights.astype(leaf.dtype) / size, leaf, axes=1)

    return jax.tree.map(total, x)


def subtract(x: Pytree, y: Pytree) -> Pytree:
    """Compute x − y, leaf by leaf.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> [leaf.tolist() for leaf in tree.subtract((jnp.ones(2), jnp.ones(())), (jnp.ones(2), jnp.zeros(())))]
    [[0.0, 0.0], 1.0]
    """
    return jax.tree.map(jnp.subtract, x, y)


def scale(a: Scalar | None, x: Pytree) -> Pytree:
    """Compute a·x, leaf by leaf; if a is None, return x itself.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.scale(3.0, jnp.ones(2)).tolist()
    [3.0, 3.0]
    """
    return x if a is None else combine((a, x))


def unscale(a: Scalar | None, x: Pytree) -> Pytree:
    """Compute x/a, leaf by leaf; if a is None, return x itself.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.unscale(4.0, jnp.ones(2)).tolist()
    [0.25, 0.25]
    """
    return x if a is None else scale(1 / a, x)


def zeros(x: Pytree) -> Pytree:
    """Make zeros of the same shapes as x.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.zeros({"bias": jnp.ones(2)})["bias"].tolist()
    [0.0, 0.0]
    """
    return jax.tree.map(jnp.zeros_like, x)


def select(condition: ArrayLike, x: Pytree, y: Pytree) -> Pytree:
    """Return x if the scalar condition holds, and y otherwise. Both are computed.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> tree.select(False, jnp.ones(2), jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    return jax.tree.map(partial(jnp.where, condition), x, y)


def squared_norm(x: Pytree) -> jax.Array:
    """Compute ‖x‖², summed over all leaves.

    >>> import jax.numpy as jnp
    >>> from twofold import tree
    >>> float(tree.squared_norm((jnp.ones(2), 2 * jnp.ones(3))))
    14.0
    """
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(x)), jnp.zeros(()))


def size(x: Pytree) -> int:
    """Count the scalars in x.

    >>> import numpy as np
    >>> from twofold import tree
    >>> tree.size((np.ones((2, 3)), 1.0))
    7
    """
    return sum(int(leaf.size) if hasattr(leaf, "size") else jnp.size(leaf) for leaf in jax.tree.leaves(x))


def arrays(x: Pytree) -> Pytree:
    """Convert every leaf to a JAX array, keeping its precision.

    >>> import numpy as np
    >>> from twofold import tree
    >>> tree.arrays(np.ones(2, np.float32)).dtype
    dtype('float32')
    """
    return jax.tree.map(_array, x)


def _array(leaf: ArrayLike) -> jax.Array:
    # `jnp.asarray` compiles a program for every new shape (10 ms), and `device_put` may go on using the memory that it is given.
    if isinstance(leaf, np.ndarray) and leaf.nbytes <= SMALL:
        return jax.device_put(leaf.copy())
    return jnp.asarray(leaf)


def cast(x: Pytree, dtype: DTypeLike | None = None) -> Pytree:
    """Convert every leaf to a JAX array, floating ones to `dtype` (by default JAX's own default float).

    >>> import numpy as np
    >>> from twofold import tree
    >>> [str(leaf.dtype) for leaf in tree.cast((np.ones(2), np.arange(2, dtype=np.int32)), "float32")]
    ['float32', 'int32']
    """
    target = jnp.result_type(float) if dtype is None else dtype

    def convert(leaf: ArrayLike) -> jax.Array:
        array = leaf if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)
        return _array(array.astype(target) if jnp.issubdtype(array.dtype, jnp.floating) else array)

    return jax.tree.map(convert, x)


# --- numbers that a model updates by itself ---------------------------------------------------------------------------


@jax.tree_util.register_pytree_with_keys_class
class Running:
    """Numbers that a model updates by itself in training, such as BatchNorm's means; they are not learned by gradient descent.

    They are leaves like any others, so they are kept, sent, averaged and saved with the rest. In a training batch their
    "gradient" is old − new, and a local step subtracts it in full, whatever the step size (`move`). Penalties skip them
    (`learned`).

    >>> import jax
    >>> from twofold.tree import Running
    >>> jax.tree.leaves({"weight": 1.0, "state": Running({"mean": 2.0})})
    [2.0, 1.0]
    """

    def __init__(self, values: Pytree) -> None:
        self.values = values

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Pytree]], None]:
        """The numbers, under the name `values`."""
        return ((jax.tree_util.GetAttrKey("values"), self.values),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Pytree]) -> Running:
        """A `Running` node with other numbers."""
        return cls(*children)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Running) and bool(self.values == other.values)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Running({self.values!r})"


def is_running(x: object) -> bool:
    """Say whether x is a `Running` node.

    >>> is_running(Running(())), is_running(())
    (True, False)
    """
    return isinstance(x, Running)


def has_running(x: Pytree) -> bool:
    """Whether a tree contains any `Running` numbers.

    >>> has_running({"mean": Running(()), "kernel": 1.0}), has_running(1.0)
    (True, False)
    """
    return any(is_running(node) for node in jax.tree.leaves(x, is_leaf=is_running))


def learned(x: Pytree) -> Pytree:
    """Return x with None in place of `Running` numbers.

    >>> from twofold.tree import Running, learned
    >>> learned({"weight": 1.0, "state": Running(2.0)})
    {'state': None, 'weight': 1.0}
    """

    def keep(node: Pytree) -> Pytree:
        return None if is_running(node) else node

    return jax.tree.map(keep, x, is_leaf=is_running)


def move(x: Pytree, step: Pytree, gradient: Pytree) -> Pytree:
    """Compute x + step for learned parameters; `Running` numbers become x − gradient, which is their new value.

    >>> from twofold.tree import Running, move
    >>> moved = move(
    ...     {"weight": 1.0, "state": Running(2.0)},
    ...     {"weight": -0.5, "state": None},
    ...     {"weight": 9.0, "state": Running(0.5)},
    ... )
    >>> float(moved["state"].values), moved["weight"]
    (1.5, 0.5)
    """

    def to(node: Pytree, change: Pytree, slope: Pytree) -> Pytree:
        return subtract(node, slope) if is_running(node) else node + change

    return jax.tree.map(to, x, step, gradient, is_leaf=is_running)


def step(x: Pytree, a: Scalar, direction: Pytree) -> Pytree:
    """Compute x + a·direction for learned parameters; `Running` numbers of x stay.

    >>> from twofold.tree import Running, step
    >>> step({"weight": 1.0, "state": Running(2.0)}, 0.5, {"weight": 4.0, "state": None})
    {'state': Running(2.0), 'weight': 3.0}
    """

    def add(node: Pytree, change: Pytree) -> Pytree:
        return node if is_running(node) else node + a * change

    return jax.tree.map(add, x, direction, is_leaf=is_running)


def scale_learned(a: Scalar, x: Pytree) -> Pytree:
    """Compute a·x for learned parameters; `Running` numbers stay.

    >>> from twofold.tree import Running, scale_learned
    >>> scale_learned(0.5, {"weight": 1.0, "state": Running(2.0)})
    {'state': Running(2.0), 'weight': 0.5}
    """

    def times(node: Pytree) -> Pytree:
        return node if is_running(node) else a * node

    return jax.tree.map(times, x, is_leaf=is_running)


def blend(a: Scalar, x: Pytree, y: Pytree) -> Pytree:
    """Compute (1−a)·x + a·y for learned parameters; `Running` numbers are taken from x.

    >>> from twofold.tree import Running, blend
    >>> blend(0.25, {"weight": 1.0, "state": Running(2.0)}, {"weight": 5.0, "state": Running(0.0)})
    {'state': Running(2.0), 'weight': 2.0}
    """

    def mix(node: Pytree, other: Pytree) -> Pytree:
        return node if is_running(node) else (1 - a) * node + a * other

    return jax.tree.map(mix, x, y, is_leaf=is_running)
