"""Branches and loops that stay real: in a compiled program, under vmap over seeds, and in plain Python.

`lax.cond` with a batched predicate becomes a select that pays for both sides at every iteration. `branch` pays for the
costly side only in iterations in which at least one member of the batch takes it, which for a rare coin (the ρ-coin of
the variance-reduced methods) is almost never. Called with concrete values, outside any trace, both helpers are Python's
own `if` and `for`, so that the client-by-client engine runs the very same algorithm files and really counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from twofold import kernels

__all__ = ["branch", "is_traced", "repeat"]

Pytree = Any


def is_traced(value: Pytree) -> bool:
    """Whether any leaf is a tracer, i.e. whether we are inside a compiled or batched program.

    >>> import jax
    >>> is_traced(1.0), bool(jax.jit(lambda x: jnp.asarray(is_traced(x)))(1.0))
    (False, True)
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def branch(condition: Any, yes: Callable[[], Pytree], no: Callable[[], Pytree]) -> Pytree:
    """`yes()` where the scalar condition holds, else `no()`; only the side taken is computed.

    Both sides must give the same structure, shapes and dtypes. Closing over outer values is fine.

    >>> branch(True, lambda: 1.0, lambda: 2.0)
    1.0
    """
    if not is_traced(condition):
        return yes() if bool(condition) else no()
    yes_of, yes_values, work = _explicit(yes)
    no_of, no_values, _ = _explicit(no)
    return _batchable(
        condition, lambda values: yes_of(values[0]), lambda values: no_of(values[1]), (yes_values, no_values), work > 0
    )


def repeat(times: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree, most: int | None = None) -> Pytree:
    """body(times−1, … body(1, body(0, start))): a loop of `times` steps; `most` is a number that `times` never exceeds.

    >>> repeat(3, lambda i, total: total + i, 0.0).item()
    3.0
    """
    if not is_traced((times, start)):
        for i in range(int(times)):
            start = body(jnp.asarray(i, jnp.int32), start)
        return start
    if isinstance(times, int) and times == 1:
        return body(jnp.int32(0), start)
    return kernels.repeat(jnp.asarray(times, jnp.int32), body, start, most)


def _explicit(function: Callable[[], Pytree]) -> tuple[Callable[[list], Pytree], list, int]:
    """A closure as a function of the traced values it closes over (custom_vmap does not see through closures).

    And of how many operations it is made: of none if it only gives what is there.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)()
    structure = jax.tree.structure(shape)

    def explicit(values: list) -> Pytree:
        return jax.tree.unflatten(structure, jax.core.eval_jaxpr(closed.jaxpr, values))

    return explicit, list(closed.consts), len(closed.jaxpr.eqns)


def _batchable(condition: Any, yes: Callable, no: Callable, operand: Pytree, work: bool) -> Pytree:
    @custom_vmap
    def call(condition: Any, operand: Pytree) -> Pytree:
        return lax.cond(condition, yes, no, operand)

    @call.def_vmap
    def _(axis_size: int, batched: Any, condition: Any, operand: Pytree) -> tuple[Pytree, Pytree]:
        condition_batched, operand_batched = batched
        axes = (jax.tree.map(lambda flag: 0 if flag else None, operand_batched),)
        batch_yes = jax.vmap(yes, in_axes=axes, axis_size=axis_size)
        batch_no = jax.vmap(no, in_axes=axes, axis_size=axis_size)
        if condition_batched:

            def either(pair: Pytree) -> Pytree:
                flags, values = pair
                return jax.tree.map(
                    lambda a, b: jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - 1)), a, b),
                    batch_yes(values),
                    batch_no(values),
                )

            if work:
                out = _batchable(jnp.any(condition), either, lambda pair: batch_no(pair[1]), (condition, operand), work)
            else:  # nothing to save: `no` is paid for anyway
                out = either((condition, operand))
        else:
            out = _batchable(condition, batch_yes, batch_no, operand, work)
        return out, jax.tree.map(lambda _: True, out)

    return call(condition, operand)
