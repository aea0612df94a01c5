"""The constants of F at a point, for objectives without a formula: curvature by Hessian-vector products."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from twofold import reference, tree
from twofold.curvature import largest_eigenvalue
from twofold.curvature.local import MOST_ROWS, spread
from twofold.objectives.base import Objective
from twofold.oracle import Member, Oracle, Sample
from twofold.theory.constants import Constants
from twofold.tree import Pytree
from twofold.variables import Variables

if TYPE_CHECKING:
    from twofold.problem import Problem

__all__ = ["constants_at"]


@partial(jax.jit, static_argnums=0)
def _curvature(
    most: int, objective: Objective, variables: Variables, w: Pytree, stack: Member, part: Pytree
) -> tuple[jax.Array, ...]:
    """The largest curvatures of each client in w and in β, and those of `most` of its rows; one program for a shape."""
    rows_at_once = 64

    def blocks(member: Member, beta: Pytree, sample: Sample | None) -> tuple[jax.Array, jax.Array]:
        oracle = Oracle(objective, variables, member)
        of_w = largest_eigenvalue(lambda v: oracle.value(v, beta, sample), w)
        of_beta = member.weight * largest_eigenvalue(lambda v: oracle.value(w, v, sample), beta)
        return of_w, of_beta

    def rows(member: Member, beta: Pytree) -> tuple[jax.Array, jax.Array]:
        def of_row(j: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Past the client's last row: take its first again, which cannot raise the maximum.
            index = jnp.where(j < member.count, j, 0)[None]
            return blocks(member, beta, Sample(index, jnp.ones((1,))))

        of_w, of_beta = jax.lax.map(of_row, jnp.asarray(spread(member.capacity, most)), batch_size=rows_at_once)
        return jnp.max(of_w), jnp.max(of_beta)

    of_clients = jax.lax.map(lambda c: blocks(c[0], c[1], None), (stack, part))
    return (*of_clients, *jax.lax.map(lambda c: rows(*c), (stack, part)))


def constants_at(problem: Problem, at: tuple[Pytree, Pytree], smallest: bool = True) -> Constants:
    """The curvature of F at a point: per client and per row for the smoothness, the smallest eigenvalue for μ."""
    w, beta = at
    w = tree.scale(1 / problem.scale, tree.cast(w))
    most = max(MOST_ROWS // problem.M, 1)
    found: dict[str, float] = dict.fromkeys(("L_w", "L_beta", "calL_w", "calL_beta"), 0.0)
    for stack, part in zip(problem.stacks, problem.split(tree.cast(beta)), strict=True):
        of_each = _curvature(most, problem.objective, Variables(problem.scale), w, stack, part)
        for name, values in zip(found, of_each, strict=True):
            found[name] = max(found[name], float(jnp.max(values)))
    mu = max(reference.smallest_eigenvalue(problem, at), 0.0) if smallest else 0.0
    names = ("mu", *found)
    why = dict.fromkeys(names, "curvature at a point")
    if not smallest:
        why["mu"] = "unknown, so none is assumed"
    L_w, L_beta, calL_w, calL_beta = found.values()
    return Constants(mu, L_w, L_beta, calL_w, calL_beta, how=dict.fromkeys(names, "local"), why=why)
