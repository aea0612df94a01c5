"""The only place where random keys are derived and values drawn.

Keys: `fold_in(key, 0) → k` for the coins that all share, `fold_in(key, 1) → m → k` for what client m draws in
iteration k. Every draw pins its dtype, so that coins and indices are the same in float32 and float64 and in every engine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def root(seed: int) -> jax.Array:
    """The key of a whole run."""
    return jax.random.key(seed, impl="threefry2x32")


def common(key: jax.Array) -> jax.Array:
    """The stream of the coins that everyone shares."""
    return jax.random.fold_in(key, 0)


def private(key: jax.Array, client: Any) -> jax.Array:
    """The stream of client `client`'s own draws."""
    return jax.random.fold_in(jax.random.fold_in(key, 1), client)


def at(key: jax.Array, k: Any) -> jax.Array:
    """A stream's key for iteration (or local step) k."""
    return jax.random.fold_in(key, k)


def coin(key: jax.Array, probability: Any) -> jax.Array:
    """True with the given probability (exactly never for 0 and always for 1)."""
    return jax.random.uniform(key, dtype=jnp.float32) < jnp.asarray(probability, jnp.float32)


def rows(key: jax.Array, count: Any, size: int) -> jax.Array:
    """`size` row numbers of a client with `count` rows, uniform, with replacement."""
    return jax.random.randint(key, (size,), 0, count, dtype=jnp.int32)


def shuffle(key: jax.Array, count: Any, capacity: int) -> jax.Array:
    """A permutation of a client's `count` rows, padded rows last; the same whatever the padding.

    Each row draws its own number from its own key, so the order of real rows does not depend on `capacity`.
    """
    bits = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32))(jnp.arange(capacity))
    real = jnp.arange(capacity) < count
    # Two sort keys: padded rows after all real ones, whatever they drew.
    return jnp.lexsort((bits, ~real)).astype(jnp.int32)
