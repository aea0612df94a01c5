"""A new client: w stays as it is, and β is found from the client's few rows by Newton's method, to a certified gap."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from twofold import kernels, tree
from twofold.algorithms.newton import MATRIX_W, minimise_beta
from twofold.clients import Clients
from twofold.curvature import certificate
from twofold.losses import Linear
from twofold.objectives.base import NOTHING, Objective
from twofold.oracle import Member, Oracle
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["Found", "find"]

STEPS, PRODUCTS = 4, 40
"""Newton steps between two looks at how far it is, and products with the Hessian in each where it is too large to be formed."""
MOST = 60
"""Looks after which it is given up; Newton's method needs two or three."""
PATIENCE = 5
"""Looks without progress for which a damped search, far from the minimum, goes on."""
LEAST_ROWS, MORE = {True: 256, False: 8}, {True: 8, False: 2}
"""Rows are padded to 256 for a linear loss, or to 8, 64, … times that, so that the next new client compiles nothing. A net's rows are
dear, so that they are padded to a power of two from 8 on."""


class Found(NamedTuple):
    """A new client's β, what it predicts with, and a bound of f(w, β) − min f(w, ·); NaN where none can be certified."""

    beta: Pytree
    personal: Pytree
    gap: float
    objective: Objective


def find(objective: Objective, w: Pytree, clients: Clients) -> Found:
    """The best β of the one client there is, in double precision whatever the session's own."""
    with jax.enable_x64(True), jax.default_device(kernels.host()):
        objective = objective.prepare(clients, lambda other: _alone(other, clients))
        beta, gap = _minimise(objective, w, clients)
        member = _member(objective, clients)
        personal = _personal(objective, tree.cast(w, jnp.float64), beta, member)
        beta, personal = jax.tree.map(np.asarray, (beta, personal))
        return Found(beta, personal, gap, objective)


def _alone(objective: Objective, clients: Clients) -> tuple[Pytree, Pytree]:
    """The minimiser of an objective with nothing shared, as FLIX needs it first."""
    beta, _ = _minimise(objective, NOTHING, clients)
    return NOTHING, jax.tree.map(lambda leaf: np.asarray(leaf)[None], beta)


def _minimise(objective: Objective, w: Pytree, clients: Clients) -> tuple[Pytree, float]:
    """argmin_β f(w, β) and a bound of how far it is from the minimum; an empty β is where it should be."""
    beta = tree.cast(objective.init(clients)[1], jnp.float64)
    size = tree.size(beta)
    if size == 0:
        return beta, 0.0
    w, member = tree.cast(w, jnp.float64), _member(objective, clients)
    products = None if size <= MATRIX_W else PRODUCTS
    damping, slope, stalls = jnp.zeros(()), math.inf, 0
    for _ in range(MOST):
        beta, damping, squares = _improve(objective, w, beta, damping, member, products)
        before, slope = slope, math.sqrt(float(squares))
        stalls = 0 if slope < 0.5 * before else stalls + 1
        if stalls > (0 if float(damping) == 0.0 else PATIENCE):
            break  # the gradient is as small as rounding lets it be
    return beta, _gap(objective, w, beta, clients, member)


def _member(objective: Objective, clients: Clients) -> Member:
    stack = clients.stack(rows=_padded(clients.rows, isinstance(getattr(objective, "loss", None), Linear)))
    one = jnp.ones((1,))
    own = tree.cast(objective.own(clients))
    x, y, count = tree.cast((stack.x, stack.y, stack.count))
    everything = Member(x, y, count, one, tree.arrays(stack.position), own, one)
    return jax.tree.map(lambda leaf: leaf[0], everything)


def _padded(rows: int, linear: bool) -> int:
    """The number of rows that a program is compiled for.

    >>> _padded(5, True), _padded(300, True), _padded(5, False), _padded(300, False)
    (256, 2048, 8, 512)
    """
    size = LEAST_ROWS[linear]
    while size < rows:
        size *= MORE[linear]
    return size


@partial(jax.jit, static_argnums=5)
def _improve(
    objective: Objective, w: Pytree, beta: Pytree, damping: jax.Array, member: Member, products: int | None
) -> tuple[Pytree, jax.Array, jax.Array]:
    """β and the damping after a few steps, and ‖∇_β f‖² there."""
    oracle = Oracle(objective, Variables(), member)
    beta, damping = minimise_beta(cast(Any, oracle), w, beta, damping, steps=STEPS, products=products)
    return beta, damping, tree.squared_norm(oracle.gradient_beta(w, beta))


@jax.jit
def _slope(objective: Objective, w: Pytree, beta: Pytree, member: Member) -> Pytree:
    return Oracle(objective, Variables(), member).gradient_beta(w, beta)


@jax.jit
def _personal(objective: Objective, w: Pytree, beta: Pytree, member: Member) -> Pytree:
    return objective.personal(w, beta, member.rows(), member.own)


_bound = jax.jit(certificate.gap)


def _gap(objective: Objective, w: Pytree, beta: Pytree, clients: Clients, member: Member) -> float:
    """The arrow's bound with w held where it is."""
    curvature = objective.curvature(clients)
    if curvature is None or curvature.private is None:
        return math.nan
    if curvature.shared is not None:
        curvature = curvature.alone(float(jnp.sqrt(tree.squared_norm(w))))
    proof = certificate.prepare(curvature, clients.weights, dtype=np.float64)
    if proof.how != "arrow":
        return math.nan
    everyone = jax.tree.map(lambda leaf: leaf[None], (_slope(objective, w, beta, member), beta))
    return float(_bound(proof, NOTHING, everyone[0], NOTHING, everyone[1]))
