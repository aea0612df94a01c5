"""Rows that an iteration samples, drawn before it begins.

XLA repeats a draw in every loop of an iteration that uses it (to gather x, to gather y, to update a table), and where rows are
few the hash costs as much as the gradient. What the iteration before has drawn is in memory, drawn once. So an algorithm's
`client` is traced to see what it samples, of its key and of its key's own keys for the steps of a loop; the engine draws
that, bit for bit the same, and hands it over with the key. Whatever cannot be told in advance is drawn on the spot.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from twofold import control, machine, randomness
from twofold.algorithms.base import Algorithm
from twofold.problem import Oracle
from twofold.randomness import Ahead, Key

MOST = 1 << 21
"""Bytes of row numbers up to which they are drawn ahead: more would not stay in a core's cache."""
LANES = 8
"""Numbers that a CPU works on at once."""


class Asked:
    """In a key, in place of rows drawn ahead: notes which rows an iteration asks for, and has none."""

    def __init__(self) -> None:
        self.size = self.steps = 0
        self.known = True  # whether every number below this key is that of a step of a loop
        self.step: Asked | None = None

    def rows(self, size: int) -> None:
        """So many rows of the key itself, and some more where a CPU's loops would do the last few one by one."""
        self.size = max(self.size, size if size < LANES else -(-size // LANES) * LANES)

    def at(self, number: Any) -> Asked:
        """What will be asked of the keys below."""
        steps = control.steps(number)
        self.known, self.steps = self.known and steps is not None, max(self.steps, steps or 0)
        self.step = self.step or Asked()
        return self.step

    @property
    def shape(self) -> tuple[int, int]:
        """Steps, and rows of each; (0, 0) where that cannot be told."""
        return (self.steps, self.step.size) if self.step is not None and self.known else (0, 0)

    @property
    def bytes(self) -> int:
        """Of all row numbers of one client."""
        return 4 * (self.size + math.prod(self.shape))

    def draw(self, count: Any, words: jax.Array, k: Any) -> Ahead:
        """All of it, for one client."""
        key, (steps, size) = randomness.of(words, k), self.shape

        def of_step(r: jax.Array) -> jax.Array:
            return randomness.rows(randomness.at(key, r), count, size)

        return Ahead(
            randomness.rows(key, count, self.size) if self.size else None,
            jax.vmap(of_step)(jnp.arange(steps, dtype=jnp.int32)) if steps * size else None,
        )


def asked(algorithm: Algorithm, program: tuple, state: Any, plans: Any, own: tuple, many: bool) -> tuple[Asked, ...]:
    """What the clients of each bucket ask for in an iteration, where it pays to draw it ahead.

    Plans have a leading axis of iterations, and all but the program has one of seeds if there are many.
    """
    objective, scale, stacks = program
    plan, (shared, privates, own) = _one(plans, 1 + many), _one((state.shared, state.privates, own), many)

    def bucket(stack: Any, private: Any, words: Any) -> Asked:
        found = Asked()

        def client(plan: Any, shared: Any, member: Any, private: Any, words: jax.Array) -> Any:
            oracle = Oracle(objective, scale, member)
            return algorithm.client(plan, shared, private, oracle, Key(words, jnp.uint32(0), found))

        jax.eval_shape(client, plan, shared, *_one((stack, private, words), 1))
        return found

    found = tuple(bucket(*each) for each in zip(stacks, privates, own, strict=True))
    seeds = len(jax.tree.leaves(state)[0]) if many else 1
    whole = seeds * sum(each.bytes * len(stack.count) for each, stack in zip(found, stacks, strict=True))
    # On a GPU it would be one more kernel in every iteration.
    return found if whole <= MOST and machine.on_cpu() else tuple(Asked() for _ in found)


def _one(x: Any, axes: int) -> Any:
    """The shapes of one of many, after so many leading axes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axes:], leaf.dtype), x)
