"""The only place where random keys are derived and values drawn.

Keys: `fold_in(key, 0) → k` for the coins that all clients share in iteration k, `fold_in(key, 1) → m → k` for client m's own
draws in iteration k, `fold_in(key, 2) → k` for which clients take part in it. All draws consist of 32-bit words, so coins and
indices are the same in float32, in float64 and in every engine.

The hash is JAX's own, Threefry-2x32, and `at` is `jax.random.fold_in`, bit for bit (both are tested against JAX). It is
written out here because on CPUs JAX compiles it to a loop of small kernels, which costs more than all the rest of a cheap
iteration. Written out, XLA fuses it with the code around it. For the same reason the last `fold_in` is delayed: a key is
(words, number), and a draw hashes both at once.
"""
# JAX leaves parts of jax.numpy's signatures (`device=`) and what `jit` gives back untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import kernels

__all__ = [
    "Key", "at", "attendance", "bits", "coin", "coins", "common", "hashed", "high", "of", "private", "root", "rows",
    "salted", "shuffle", "subset",
]  # fmt: skip

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Key(NamedTuple):
    """The key `fold_in(words, number)`, not yet hashed.

    >>> of(root(0), 3).number.item()
    3
    """

    words: jax.Array
    number: jax.Array


@jax.jit
def _threefry(words: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The 20-round Threefry-2x32 hash of two words under a key (Salmon et al. 2011)."""
    k0, k1 = words[0], words[1]
    schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    x, y = first + k0, second + k1
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


F = TypeVar("F", bound=Callable[..., jax.Array])


def _compiled(*static: int) -> Callable[[F], F]:
    """Jit a function for calls outside a trace (by the "messages" engine); inside a trace it is inlined."""
    return cast(Callable[[F], F], partial(jax.jit, inline=True, static_argnums=static))


@_compiled()
def hashed(key: Key) -> jax.Array:
    """The two words of a key: `jax.random.fold_in` carried out.

    >>> hashed(of(root(0), 3)).shape
    (2,)
    """
    return jnp.stack(_threefry(key.words, jnp.uint32(0), key.number))


def root(seed: int) -> jax.Array:
    """The two words of the key of a whole run.

    >>> root(0).tolist()
    [0, 0]
    """
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def of(words: jax.Array, number: ArrayLike) -> Key:
    """The key of a number, such as an iteration, in a stream.

    >>> of(root(0), 3).number.item()
    3
    """
    return Key(words, jnp.asarray(number).astype(jnp.uint32))


def at(key: Key, number: ArrayLike) -> Key:
    """A key derived from another key and a number, such as a local step or a second coin.

    >>> first, second = (at(of(root(0), 3), number) for number in (0, 1))
    >>> bool((hashed(first) == hashed(second)).all())
    False
    """
    return of(hashed(key), number)


def common(words: jax.Array) -> jax.Array:
    """The stream of coins that all clients and the server share.

    >>> common(root(0)).shape
    (2,)
    """
    return hashed(of(words, 0))


def private(words: jax.Array, client: ArrayLike) -> jax.Array:
    """The stream of client `client`'s own draws.

    >>> bool((private(root(0), 0) == private(root(0), 1)).all())
    False
    """
    return hashed(at(of(words, 1), client))


def salted(words: jax.Array, salt: bytes) -> jax.Array:
    """A stream that only those who know the salt can follow; without a salt, the stream itself.

    >>> bool((salted(root(0), b"only ours") == root(0)).all()), bool((salted(root(0), b"") == root(0)).all())
    (False, True)
    """
    for i in range(0, len(salt), 4):
        words = hashed(of(words, jnp.uint32(int.from_bytes(salt[i : i + 4], "little"))))
    return words


def attendance(words: jax.Array) -> jax.Array:
    """The stream that decides which clients take part in each round; all clients and the server share it.

    >>> bool((attendance(root(0)) == common(root(0))).all())
    False
    """
    return hashed(of(words, 2))


def bits(key: Key, size: int) -> jax.Array:
    """`size` independent 32-bit words; the i-th word does not depend on `size`.

    >>> bits(of(root(0), 3), 2).tolist() == bits(of(root(0), 3), 5).tolist()[:2]
    True
    """
    # Counters start at 1, because counter 0 is used to derive keys.
    places = jnp.arange(1, size + 1, dtype=jnp.uint32)
    return _threefry(key.words, places, jnp.broadcast_to(key.number, places.shape))[0]


@_compiled()
def coin(key: Key, probability: ArrayLike) -> jax.Array:
    """True with the given probability (never for 0, always for 1), to a precision of 2⁻²⁴.

    >>> [bool(coin(of(common(root(0)), k), 0.5)) for k in range(4)]
    [True, False, True, False]
    """
    uniform = (bits(key, 1)[0] >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2**-24)
    return uniform < jnp.asarray(probability, jnp.float32)


@_compiled()
def coins(key: Key, probabilities: jax.Array) -> jax.Array:
    """One coin for each probability.

    >>> coins(of(root(0), 0), jnp.array([0.0, 1.0])).tolist()
    [False, True]
    """
    uniform = (bits(key, len(probabilities)) >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2**-24)
    return uniform < probabilities.astype(jnp.float32)


@_compiled(1, 2)
def subset(key: Key, size: int, everyone: int) -> jax.Array:
    """A random subset of `size` out of `everyone` entries, all subsets equally likely, as a mask.

    >>> int(subset(of(root(0), 0), 2, 5).sum())
    2
    """
    order = kernels.stable_order(bits(key, everyone))
    return jnp.zeros(everyone, bool).at[order[:size]].set(True)


@_compiled(2)
def rows(key: Key, count: ArrayLike, size: int) -> jax.Array:
    """`size` row numbers of a client with `count` rows, uniform (to within count/2³²), with replacement.

    >>> drawn = rows(of(root(0), 0), 10, 4)
    >>> bool(((drawn >= 0) & (drawn < 10)).all())
    True
    """
    return high(bits(key, size), jnp.asarray(count).astype(jnp.uint32)).astype(jnp.int32)


def high(a: jax.Array, b: jax.Array) -> jax.Array:
    """⌊a·b/2³²⌋ in 32-bit arithmetic, from the products of halves: a division-free map of a word to 0 … b−1.

    >>> int(high(jnp.uint32(2**31), jnp.uint32(10)))
    5
    """
    low, half = jnp.uint32(0xFFFF), jnp.uint32(16)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half)


@_compiled(2)
def shuffle(key: Key, count: ArrayLike, capacity: int) -> jax.Array:
    """A random order of a client's `count` rows, which does not depend on the padding; padded rows come last.

    >>> order = shuffle(of(root(0), 0), 3, 5).tolist()
    >>> sorted(order[:3]), order[3:]
    ([0, 1, 2], [3, 4])
    """
    last = jnp.uint32(jnp.iinfo(jnp.uint32).max)
    # Padded rows come after all real ones, whatever they drew: the sort is stable.
    drawn = jnp.where(jnp.arange(capacity) < count, bits(key, capacity), last)
    return kernels.stable_order(drawn)
