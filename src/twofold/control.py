"""Branches and loops that stay real: in a compiled program, under vmap over seeds, and in plain Python.

`lax.cond` with a batched predicate becomes a select that pays for both sides at every iteration. `branch` pays for the
costly side only in iterations in which at least one member of the batch takes it, which for a rare coin (the ρ-coin of
the variance-reduced methods) is almost never. Called with concrete values, outside any trace, both helpers are Python's
own `if` and `for`, so that the client-by-client engine runs the very same algorithm files and really counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

Pytree = Any


def is_traced(value: Pytree) -> bool:
    """Whether any leaf is a tracer, i.e. whether we are inside a compiled or batched program."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def branch(condition: Any, yes: Callable[[], Pytree], no: Callable[[], Pytree]) -> Pytree:
    """`yes()` where the scalar condition holds, else `no()`; only the side taken is computed.

    Both sides must give the same structure, shapes and dtypes. Closing over outer values is fine.
    """
    if not is_traced(condition):
        return yes() if bool(condition) else no()
    yes_of, yes_values, work = _explicit(yes)
    no_of, no_values, _ = _explicit(no)
    return _batchable(
        condition, lambda values: yes_of(values[0]), lambda values: no_of(values[1]), (yes_values, no_values), work > 0
    )


_UNROLLED: ContextVar[bool] = ContextVar("unrolled", default=False)
_REUSED: ContextVar[bool] = ContextVar("reused", default=False)
_STEPS: ContextVar[tuple[tuple[Any, Any], ...]] = ContextVar("steps", default=())
"""The steps of loops that are being traced: the number of each, and of how many."""


@contextmanager
def _set(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def unrolled() -> AbstractContextManager[None]:
    """Inside, `repeat` of a known number of steps writes them all out, so that one can look at each while tracing."""
    return _set(_UNROLLED, True)


def reused(since: int | None) -> AbstractContextManager[None]:
    """Inside, `is_reused` says whether we are in more loops than data were taken in; for None nobody knows."""
    return _set(_REUSED, since is not None and loops() > since)


def is_reused() -> bool:
    """Whether the data at hand were there before the loop that is being traced, so that each of its steps uses them again."""
    return _REUSED.get()


def repeat(times: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree) -> Pytree:
    """body(times−1, … body(1, body(0, start))): a loop of `times` steps."""
    if _UNROLLED.get() and isinstance(times, int):
        return reduce(lambda state, i: body(i, state), range(times), start)
    if not is_traced((times, start)):
        for i in range(int(times)):
            start = body(jnp.asarray(i, jnp.int32), start)
        return start

    def step(i: Any, state: Pytree) -> Pytree:
        with _set(_STEPS, (*_STEPS.get(), (i, times))):
            return body(i, state)

    if isinstance(times, int) and times == 1:
        return step(jnp.int32(0), start)
    return lax.fori_loop(jnp.int32(0), jnp.asarray(times, jnp.int32), step, start)


def loops() -> int:
    """How many loops are being traced, one inside the other."""
    return sum(not isinstance(count, int) or count > 1 for _, count in _STEPS.get())


def steps(number: Any) -> int | None:
    """How many steps the `repeat` has whose step now being traced has this very number; None where that is not known."""
    return next((count for i, count in _STEPS.get() if i is number and isinstance(count, int)), None)


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
