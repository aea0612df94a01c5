"""How much memory a net's gradient takes besides its parameters: the arrays that are alive at once in its program."""
# JAX leaves what is inside a traced program untyped.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from twofold.losses.base import Rows
from twofold.tree import Pytree

__all__ = ["activations", "most_alive"]

Program: TypeAlias = Any
"""A traced program, closed or not: JAX 0.11 has one class for both."""
CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
"""Primitives that only hold another program, which XLA writes out in place."""


def activations(loss: Any, params: Pytree, x: Pytree, y: Pytree, rows: int) -> int:
    """Bytes that the gradient of a net takes on some rows of a client, its result included.

    >>> import jax.numpy as jnp, numpy as np, twofold as tw
    >>> loss = tw.losses.net(
    ...     (lambda key, x: (jnp.zeros((2, 2)), ()), lambda params, state, x, key, train: (x @ params, state))
    ... )
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])])
    >>> activations(loss, loss.init(clients), np.eye(2), np.arange(2), rows=1) > 0
    True
    """
    x, y = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), (x, y))
    params = jax.tree.map(lambda leaf: _real(np.shape(leaf)), params)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)

    def gradient(params: Pytree, x: Pytree, y: Pytree, weight: jax.Array, key: jax.Array) -> Pytree:
        return jax.grad(loss.value)(params, Rows(x, y, weight, key))

    return most_alive(jax.make_jaxpr(gradient)(params, x, y, _real((rows,)), key))


def _real(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(float))


def most_alive(program: Program) -> int:
    """The most bytes of results that are alive at once, if lines are done one after the other and nothing is kept too long.

    XLA does better where it fuses lines; for convolutions as products of patches, which nothing fuses with, that is little.

    >>> import jax, jax.numpy as jnp
    >>> most_alive(jax.make_jaxpr(lambda x: jnp.sin(jnp.sin(x)) + 1)(jnp.zeros(10, jnp.float32)))
    80
    """
    lines, outs = _lines(program, {})
    last = {variable: i for i, (_, given, _) in enumerate(lines) for variable in given}
    last |= dict.fromkeys(outs, len(lines))
    alive: dict[Any, int] = {}
    most = 0
    for i, (inner, given, made) in enumerate(lines):
        alive |= {variable: _nbytes(variable) for variable in made if variable in last}
        most = max(most, sum(alive.values()) + inner)
        for variable in given:
            if last[variable] == i:
                alive.pop(variable, None)
    return most


def _lines(program: Program, names: dict[Any, Any]) -> tuple[list[tuple[int, list[Any], list[Any]]], list[Any]]:
    """What each line needs inside (a loop's body), takes and gives, with calls written out; and what the program gives."""

    def known(variables: Any) -> list[Any]:
        found = [v if isinstance(v, core.Literal) else names.get(v, v) for v in variables]
        return [v for v in found if not isinstance(v, core.Literal)]

    open_program = getattr(program, "jaxpr", program)
    found: list[tuple[int, list[Any], list[Any]]] = []
    for line in open_program.eqns:
        inside = list(_programs(line))
        if line.primitive.name in CALLS and inside:
            callee = getattr(inside[0], "jaxpr", inside[0])
            given = [v if isinstance(v, core.Literal) else names.get(v, v) for v in line.invars]
            inner_names = dict(zip(callee.invars, given, strict=False))
            lines, _ = _lines(callee, inner_names)
            outs = [v if isinstance(v, core.Literal) else inner_names.get(v, v) for v in callee.outvars]
            # Each call makes results of its own, also where the same program is called again.
            own = {v: _Copy(v.aval) for _, _, made in lines for v in made}
            found += [(inner, [own.get(v, v) for v in taken], [own[v] for v in made]) for inner, taken, made in lines]
            outs = [v if isinstance(v, core.Literal) else own.get(v, v) for v in outs]
            names |= dict(zip(line.outvars, outs, strict=True))
        else:
            found.append((max(map(most_alive, inside), default=0), known(line.invars), list(line.outvars)))
    return found, known(open_program.outvars)


class _Copy:
    """A result of one call of a program."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _programs(line: core.JaxprEqn) -> Iterator[Program]:
    for value in line.params.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, core.ClosedJaxpr | core.Jaxpr):
                yield each


def _nbytes(variable: Any) -> int:
    aval = variable.aval
    return int(np.prod(aval.shape)) * int(aval.dtype.itemsize) if hasattr(aval, "dtype") else 0
