"""Branches and loops that skip the work they do not need: compiled, under vmap over seeds, and in plain Python.

Under vmap, `lax.cond` with a batched predicate becomes a select, which computes both sides in every iteration. `branch`
computes the costly side only in iterations in which at least one member of the batch takes it; for a rare coin, such as the
ρ-coin of the variance-reduced methods, that is almost never. Called with concrete values, outside any trace, both helpers are
Python's own `if` and `for`. So the "messages" engine runs the same algorithm files client by client, and counts what really runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from twofold import kernels

__all__ = ["branch", "is_traced", "repeat", "traced_once"]

Pytree = Any

P = ParamSpec("P")
R = TypeVar("R")


def traced_once(function: Callable[P, R], *, static_argnames: str | None = None) -> Callable[P, R]:
    """Trace a function once for all arguments of the same shapes, whoever calls it; a compiled program has no trace of that.

    >>> @traced_once
    ... def double(x):
    ...     print("traced")
    ...     return 2 * x
    >>> float(double(1.0)), float(double(3.0))
    traced
    (2.0, 6.0)
    """
    return jax.jit(function, inline=True, static_argnames=static_argnames)


def is_traced(value: Pytree) -> bool:
    """Whether any leaf is a tracer, that is, whether the call comes from inside a compiled or batched program.

    >>> import jax
    >>> is_traced(1.0), bool(jax.jit(lambda x: jnp.asarray(is_traced(x)))(1.0))
    (False, True)
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def branch(condition: Any, yes: Callable[[], Pytree], no: Callable[[], Pytree]) -> Pytree:
    """`yes()` if the scalar condition holds, else `no()`; only the side taken is computed.

    Both sides must return the same structure, shapes and dtypes. They may close over outer values.

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


def repeat(times: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree) -> Pytree:
    """body(times−1, … body(1, body(0, start))): a loop of `times` steps.

    >>> repeat(3, lambda i, total: total + i, 0.0).item()
    3.0
    """
    if not is_traced((times, start)):
        for i in range(int(times)):
            start = body(jnp.asarray(i, jnp.int32), start)
        return start
    if isinstance(times, int) and times == 1:
        return body(jnp.int32(0), start)
    if isinstance(times, int) or not kernels.waits_for_the_slowest():
        return lax.fori_loop(jnp.int32(0), jnp.asarray(times, jnp.int32), body, start)
    step_of, values, _ = _explicit(body, jnp.int32(0), start)
    return kernels.uneven_loop(jnp.asarray(times, jnp.int32), step_of, start, values)


def _explicit(function: Callable[..., Pytree], *args: Pytree) -> tuple[Callable[..., Pytree], list, int]:
    """Turn a closure into a function of (the traced values it closes over, its arguments), because custom_vmap ignores closures.

    Also returns those values, and the number of operations in the function (zero if it only returns existing values).
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    structure = jax.tree.structure(shape)

    def explicit(values: list, *args: Pytree) -> Pytree:
        return jax.tree.unflatten(structure, jax.core.eval_jaxpr(closed.jaxpr, values, *jax.tree.leaves(args)))

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
            else:  # `yes` computes nothing, and `no` is computed anyway: a second branch would save nothing
                out = either((condition, operand))
        else:
            out = _batchable(condition, batch_yes, batch_no, operand, work)
        return out, jax.tree.map(lambda _: True, out)

    return call(condition, operand)
