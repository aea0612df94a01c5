"""Small arithmetic on pytrees, and the one way in which our dataclasses become pytrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

Pytree = Any
T = TypeVar("T")


def static(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that is part of the program (a size, a name), not of the numbers it works on."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def record(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose numbers are pytree leaves and whose `static` fields and functions are not.

    Numbers are traced, so another λ or step size never recompiles; functions and sizes are compared by value.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    fixed = {field.name for field in dataclasses.fields(cls) if field.metadata.get("static")}  # type: ignore[arg-type]

    def flatten(node: Any) -> tuple[tuple, tuple]:
        values = [getattr(node, name) for name in names]
        # An instance of another record is callable-free data; a bare function (a schedule, a loss) is program.
        is_data = [
            name not in fixed and (is_record(value) or not callable(value))
            for name, value in zip(names, values, strict=True)
        ]
        children = tuple(value for value, data in zip(values, is_data, strict=True) if data)
        program = tuple((i, value) for i, (value, data) in enumerate(zip(values, is_data, strict=True)) if not data)
        return children, program

    def unflatten(program: tuple, children: tuple) -> Any:
        values = list(children)
        for i, value in program:  # ascending, so each insertion lands at its own place
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
    """Whether a value is an instance of a class made by `record`."""
    return type(value) in _RECORDS


def combine(*terms: tuple[Any, Pytree]) -> Pytree:
    """The linear combination Σ aᵢ·xᵢ of pytrees of one structure."""
    coefficients = [a for a, _ in terms]
    return jax.tree.map(
        lambda *leaves: sum((a * leaf for a, leaf in zip(coefficients[1:], leaves[1:], strict=True)),
                            coefficients[0] * leaves[0]),
        *[x for _, x in terms],
    )  # fmt: skip


def subtract(x: Pytree, y: Pytree) -> Pytree:
    """x − y, leaf by leaf."""
    return jax.tree.map(jnp.subtract, x, y)


def scale(a: Any, x: Pytree) -> Pytree:
    """a·x, leaf by leaf; x itself where a is None."""
    return x if a is None else jax.tree.map(lambda leaf: a * leaf, x)


def unscale(a: Any, x: Pytree) -> Pytree:
    """x/a, leaf by leaf; x itself where a is None."""
    return x if a is None else scale(1 / a, x)


def zeros(x: Pytree) -> Pytree:
    """Zeros of the shape of x."""
    return jax.tree.map(jnp.zeros_like, x)


def select(condition: Any, x: Pytree, y: Pytree) -> Pytree:
    """x where the scalar condition holds, else y."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def squared_norm(x: Pytree) -> jax.Array:
    """‖x‖², summed over all leaves."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(x)), jnp.zeros(()))


def size(x: Pytree) -> int:
    """The number of scalars in x."""
    return sum(int(jnp.size(leaf)) if not hasattr(leaf, "size") else int(leaf.size) for leaf in jax.tree.leaves(x))


def arrays(x: Pytree) -> Pytree:
    """x as JAX arrays, each leaf in the precision that it has."""
    return jax.tree.map(jnp.asarray, x)


def cast(x: Pytree, dtype: Any = None) -> Pytree:
    """x as JAX arrays; floating leaves in `dtype` (default: JAX's own default float)."""
    target = jnp.result_type(float) if dtype is None else dtype

    def convert(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.astype(target) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(convert, x)


Function = Callable[..., Any]
