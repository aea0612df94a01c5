"""One client's part of `profile`: min_β f_m(w, β) by safeguarded Newton steps, and the Hessian in w of the minimum.

Every step costs the same whether it succeeds or not, so the cost of a round is known before it runs.
"""
# pyright: standard

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from twofold.algorithms.linear import conjugate_gradients, solve
from twofold.algorithms.oracle import GradientOracle
from twofold.control import repeat
from twofold.tree import Pytree

__all__ = ["NOISE", "Block", "Inner", "Message", "Outer", "Private", "choose", "minimise_beta", "profile_hessian"]

NOISE = 16
"""Values that differ by less than this many units of rounding are taken to be equal."""


MATRIX_BETA = 100
"""By default, the Hessian in β is formed as a matrix if β has at most this many entries."""
MATRIX_W = 200
"""By default, the server uses Newton's directions if w and β have at most this many entries each."""

Outer = Literal["auto", "lbfgs", "newton"]
Inner = Literal["auto", "matrix", "products"]


def choose(outer: Outer, inner: Inner, d: int, b: int, convex: bool) -> tuple[Outer, Inner]:
    """Choose the outer and inner solver for d entries of w and b entries of β, where they are "auto".

    >>> choose("auto", "auto", 28, 28, True), choose("auto", "auto", 640, 640, True)
    (('newton', 'matrix'), ('lbfgs', 'products'))
    """
    if outer == "auto":
        outer = "newton" if max(d, b) <= MATRIX_W and convex else "lbfgs"
    if inner == "auto":
        inner = "matrix" if b <= (MATRIX_W if outer == "newton" else MATRIX_BETA) else "products"
    return outer, inner


class Private(NamedTuple):
    """β_m at the shared iterate, β_m at the trial point, and the damping of the client's own Newton steps."""

    beta: Pytree
    trial: Pytree
    damping: jax.Array


class Message(NamedTuple):
    """φ_m, ∇φ_m and, for Newton's method, the upper triangle of ∇²φ_m, at the trial point."""

    value: Pytree
    gradient: Pytree
    hessian: Pytree


class Block(NamedTuple):
    """The state of the search over β: the flat point, f_m, p_m ∇_β f_m, and the damping of the next step."""

    at: jax.Array
    value: jax.Array
    gradient: jax.Array
    damping: jax.Array


def minimise_beta(
    oracle: GradientOracle, w: Pytree, beta: Pytree, damping: jax.Array, *, steps: int, products: int | None
) -> tuple[Pytree, jax.Array]:
    """β after `steps` steps β −= (H + τD)⁻¹ ∇_β f_m towards argmin_β f_m(w, β), and the damping τ for the next call.

    H = ∇²_ββ f_m is formed as a matrix and solved by Cholesky; with `products`, it is only multiplied, in that many conjugate
    gradient steps. A step that does not lower f_m is rejected, and τ grows until one does; a step that does lets τ shrink
    (Levenberg and Marquardt). So f_m never rises, even where it is flat or not convex.
    """
    flat, unravel = ravel_pytree(beta)
    if flat.size == 0:
        return beta, damping

    def evaluate(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = oracle.value_and_gradient_beta(w, unravel(at))
        return value, ravel_pytree(gradient)[0]

    def direction(state: Block) -> jax.Array:
        if products is None:
            return solve(oracle.hessian_beta(w, unravel(state.at)), -state.gradient, state.damping)

        along = oracle.hessian_beta_along(w, unravel(state.at))

        def times(v: jax.Array) -> jax.Array:
            return ravel_pytree(along(unravel(v)))[0]

        return conjugate_gradients(times, -state.gradient, state.damping, products)

    def step(_: jax.Array, state: Block) -> Block:
        move = direction(state)
        value, gradient = evaluate(state.at + move)
        # The oracle's gradient has the factor p_m, its value does not.
        slope = jnp.vdot(state.gradient, move) / oracle.weight
        rounding = NOISE * jnp.finfo(value.dtype).eps * jnp.abs(state.value)
        lower = value <= state.value + 1e-4 * slope
        # Near the minimum, rounding hides the decrease: accept a smaller gradient instead.
        quiet = (-slope <= rounding) & (value <= state.value + rounding)
        better = quiet & (jnp.sum(gradient**2) < jnp.sum(state.gradient**2))
        taken = Block(state.at + move, value, gradient, _shrunk(state.damping))
        kept = state._replace(damping=jnp.where(quiet, state.damping, jnp.maximum(8 * state.damping, 0.1)))
        return jax.tree.map(lambda a, b: jnp.where(lower | better, a, b), taken, kept)

    end = repeat(steps, step, Block(flat, *evaluate(flat), damping))
    return unravel(end.at), end.damping


def profile_hessian(oracle: GradientOracle, w: Pytree, beta: Pytree) -> jax.Array:
    """∇²φ_m = H_ww − H_wβ H_ββ⁻¹ H_βw, the Hessian of φ_m(w) = min_β f_m(w, β): its upper triangle, row by row."""
    hessian, cross = oracle.hessian_w(w, beta)
    if cross.size:  # the cross block and the Hessian in β both have the factor p_m
        hessian = hessian - cross.T @ solve(oracle.hessian_beta(w, beta), cross) / oracle.weight
    return hessian[jnp.triu_indices(len(hessian))]


def _shrunk(damping: jax.Array) -> jax.Array:
    return jnp.where(damping > 1e-6, damping / 16, 0)
