"""What the coins say before anything runs: which iterations communicate, and so when a run ends and what it costs.

A plan is pure in (key, k), so the whole schedule of a run is known up front. Plans that differ only in their number k are
of one kind; a kind is coded by the bits of its coins, and everything that is counted is counted per kind.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm
from twofold.problem import Oracle, Problem

BLOCK = 8192


class Schedule:
    """The kinds of plan of every iteration of every seed, extended as far as anyone looks."""

    def __init__(self, algorithm: Algorithm, problem: Problem, keys: jax.Array) -> None:
        self.algorithm, self.problem = algorithm, problem
        self._common = jax.vmap(randomness.common)(keys)
        self._kinds = np.zeros((len(keys), 0), np.uint8)
        example = jax.eval_shape(algorithm.plan, self._common[0], 0)
        self._leaves, self._structure = jax.tree.flatten(example)
        self.coins = sum(leaf.dtype == bool for leaf in self._leaves)
        parts = message_sizes(algorithm, problem)
        plans = [self.plan(kind) for kind in range(2**self.coins)]
        sent = [jax.tree.leaves(jax.tree.map(bool, algorithm.sends(plan))) for plan in plans]
        self.floats = np.array([sum(size for size, flag in zip(parts, s, strict=True) if flag) for s in sent], np.int64)
        """Scalars that one client sends (and receives) in an iteration of each kind."""
        self.communicates = self.floats > 0

    def plan(self, kind: int) -> Any:
        """A plan of the given kind."""
        bits = iter(range(self.coins))
        leaves = [
            jnp.asarray(bool(kind >> next(bits) & 1)) if leaf.dtype == bool else jnp.zeros(leaf.shape, leaf.dtype)
            for leaf in self._leaves
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def kinds(self, until: int) -> np.ndarray:
        """The kind of each iteration 0 … until−1, for every seed: (seeds, until)."""
        while self._kinds.shape[1] < until:
            k = jnp.int32(self._kinds.shape[1]) + jnp.arange(BLOCK, dtype=jnp.int32)
            self._kinds = np.concatenate([self._kinds, np.asarray(_kinds(self.algorithm, self._common, k))], axis=1)
        return self._kinds[:, :until]

    def evaluations(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Single-row gradients in w and in β by kind, for clients with `rows` rows: each (kinds, *rows.shape)."""
        found = [self.algorithm.evaluations(self.plan(kind), jnp.asarray(rows)) for kind in range(2**self.coins)]
        shape = np.shape(rows)
        of_w = np.stack([np.broadcast_to(np.asarray(e.w), shape) for e in found])
        of_beta = np.stack([np.broadcast_to(np.asarray(e.beta), shape) for e in found])
        # A block without parameters has no gradient to evaluate.
        return of_w * self.problem.has_shared, of_beta * self.problem.has_private


@partial(jax.jit)
def _kinds(algorithm: Algorithm, common: jax.Array, k: jax.Array) -> jax.Array:
    def one(key: jax.Array, k: jax.Array) -> jax.Array:
        bits = [leaf for leaf in jax.tree.leaves(algorithm.plan(key, k)) if leaf.dtype == bool]
        return sum((bit.astype(jnp.uint8) << i for i, bit in enumerate(bits)), jnp.zeros((), jnp.uint8))

    return jax.vmap(lambda key: jax.vmap(lambda k: one(key, k))(k))(common)


def message_sizes(algorithm: Algorithm, problem: Problem) -> list[int]:
    """The number of scalars in each part of the algorithm's message."""
    shapes = (problem.abstract_member, *problem.abstract_start)
    message = _message.eval_shape(algorithm, problem.objective, problem.scale, *shapes)
    return [tree.size(part) for part in message]


@jax.jit
def _message(algorithm: Algorithm, objective: Any, scale: Any, member: Any, w: Any, beta: Any) -> Any:
    """A client's message; never run, and traced once for all problems of one shape."""
    oracle, stream = Oracle(objective, scale, member), randomness.root(0)
    private = algorithm.init_private(w, beta, oracle)
    plan = algorithm.plan(stream, jnp.int32(0))
    return algorithm.client(plan, algorithm.init(w), private, oracle, randomness.of(stream, 0))[1]
