"""Values and gradients of F at a point of the user's, compiled once for all problems of one shape."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import partial

import jax

from twofold import randomness, tree
from twofold.oracle import Member, Oracle, Program, Sample, weighted_mean
from twofold.tree import Pytree

__all__ = ["gradient_beta", "gradient_norm_squared", "gradient_w", "value", "values"]

values = jax.jit(lambda program, w, parts: tuple(program.values(w, parts)))
value = jax.jit(lambda program, w, parts: program.mean(program.values(w, parts)))


@partial(jax.jit, static_argnums=4)
def gradient_w(
    program: Program, w: Pytree, parts: tuple[Pytree, ...], key: jax.Array | None, batch: int | None
) -> Pytree:
    """∇_w F, on all rows or (with a key) on sampled ones."""

    def of_client(member: Member, beta: Pytree) -> Pytree:
        return program.oracle(member).gradient_w(w, beta, _sample(program.oracle(member), member, key, batch))

    found = [jax.vmap(of_client)(stack, part) for stack, part in zip(program.stacks, parts, strict=True)]
    return weighted_mean([stack.share for stack in program.stacks], found)


@partial(jax.jit, static_argnums=4)
def gradient_beta(
    program: Program, w: Pytree, parts: tuple[Pytree, ...], key: jax.Array | None, batch: int | None
) -> tuple[Pytree, ...]:
    """∇_β F, bucket by bucket, on all rows or (with a key) on sampled ones."""

    def of_client(member: Member, beta: Pytree) -> Pytree:
        return program.oracle(member).gradient_beta(w, beta, _sample(program.oracle(member), member, key, batch))

    return tuple(jax.vmap(of_client)(stack, part) for stack, part in zip(program.stacks, parts, strict=True))


@jax.jit
def gradient_norm_squared(scale: float, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """‖∇F‖² in w/s and β."""
    of_w, of_beta = program.mean(program.gradients_w(w, parts)), program.gradients_beta(w, parts)
    return scale**2 * tree.squared_norm(of_w) + tree.squared_norm(of_beta)


def _sample(oracle: Oracle, member: Member, key: jax.Array | None, batch: int | None) -> Sample | None:
    if key is None:
        return None
    return oracle.sample(randomness.of(randomness.private(key, member.position), 0), batch)
