"""When the hybrid method checks its progress, and what it concludes: has ‖∇F‖² stopped falling?"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Plan", "Progress", "is_check", "is_early"]

PLATEAU = 8.0
"""In units of 1/(1−ν), the time in which momentum forgets: how long ‖∇F‖² may take to begin to fall."""


class Plan(NamedTuple):
    """Whether w moves or else β, whether all clients send full gradients, whether this is a check, and an early one."""

    w: jax.Array
    refresh: jax.Array
    check: jax.Array
    early: jax.Array


def is_check(k: int | jax.Array, first: int, p_w: float) -> jax.Array:
    """Whether iteration k is one of 0, c, 2c, 4c, 8c, …, with c = first/p_w rounded up: few, and known in advance.

    >>> from twofold.algorithms.checks import is_check
    >>> [k for k in range(20) if is_check(k, first=1, p_w=0.5)]
    [0, 2, 4, 8, 16]
    """
    number = jnp.asarray(k, jnp.int32)
    unit = jnp.ceil(first / jnp.where(p_w > 0, p_w, 1.0).astype(jnp.float32)).astype(jnp.int32)
    return (number % unit == 0) & (number // unit & (number // unit - 1) == 0)  # k/c is whole, and 0 or a power of 2


def is_early(k: int | jax.Array, nu: float) -> jax.Array:
    """Whether momentum has not yet had the time to let ‖∇F‖² begin to fall.

    >>> from twofold.algorithms.checks import is_early
    >>> bool(is_early(79, nu=0.9)), bool(is_early(81, nu=0.9))
    (True, False)
    """
    return jnp.asarray(k, jnp.float32) * jnp.asarray(1 - nu, jnp.float32) < PLATEAU


class Progress(NamedTuple):
    """What the checks have found.

    Sampling noise lets ‖∇F‖² fall to a floor and no further. A check sees that it has stopped falling where it has left its
    initial plateau (it is below drop² of its first value, or not below that value at all, or it had the time to fall) and is
    above `drop` times its value at the check before, which never happens while it falls geometrically.

    >>> import jax.numpy as jnp
    >>> from twofold.algorithms.checks import Progress
    >>> progress, seen = Progress.none(), []
    >>> for norm2 in (1.0, 0.1, 0.09):
    ...     progress = progress.after(jnp.asarray(True), jnp.asarray(norm2), drop=0.5)
    ...     seen.append(bool(progress.stalled))
    >>> seen
    [False, False, True]
    """

    start: jax.Array  # ‖∇F‖² at the first check
    last: jax.Array  # ‖∇F‖² at the latest check
    stalled: jax.Array  # whether it has stopped falling; this stays

    @classmethod
    def none(cls) -> Progress:
        """Before the first check."""
        never = jnp.asarray(jnp.inf)
        return cls(never, never, jnp.asarray(False))

    def after(self, check: jax.Array, norm2: jax.Array, drop: float, early: jax.Array | bool = True) -> Progress:
        """After an iteration that is a check and found ‖∇F‖² = norm2, or that is none."""
        start = jnp.where(check & jnp.isinf(self.start), norm2, self.start)
        on_plateau = early & (norm2 > drop**2 * start) & (norm2 < start)
        stops = check & ~on_plateau & (norm2 > drop * self.last)
        return Progress(start, jnp.where(check, norm2, self.last), self.stalled | stops)
