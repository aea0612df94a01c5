"""The hybrid method's checks: when they happen, and how they decide whether ‖∇F‖² has stopped falling."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Plan", "Progress", "is_check", "is_early"]

PLATEAU = 8.0
"""How long ‖∇F‖² may take to begin to fall, in units of 1/(1−ν), the number of iterations that momentum remembers."""


class Plan(NamedTuple):
    """Whether w is updated (else β), whether all clients send full gradients, whether this is a check, and whether it is early."""

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
    """Whether iteration k is too early for momentum to have built up, so that ‖∇F‖² need not have begun to fall.

    >>> from twofold.algorithms.checks import is_early
    >>> bool(is_early(79, nu=0.9)), bool(is_early(81, nu=0.9))
    (True, False)
    """
    return jnp.asarray(k, jnp.float32) * jnp.asarray(1 - nu, jnp.float32) < PLATEAU


class Progress(NamedTuple):
    """What the checks have found so far.

    Sampling noise keeps ‖∇F‖² above a floor. A check concludes that it has stopped falling under two conditions. First, it is no
    longer on its initial plateau: it is below drop² times its first value, or not below that value at all, or enough iterations
    have passed. Second, it is above `drop` times its value at the previous check, which never happens while it falls geometrically.

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
    stalled: jax.Array  # whether it has stopped falling; once True, it stays True

    @classmethod
    def none(cls) -> Progress:
        """The state before the first check."""
        never = jnp.asarray(jnp.inf)
        return cls(never, never, jnp.asarray(False))

    def after(self, check: jax.Array, norm2: jax.Array, drop: float, early: jax.Array | bool = True) -> Progress:
        """The state after an iteration; if that was a check (`check`), it found ‖∇F‖² = norm2."""
        start = jnp.where(check & jnp.isinf(self.start), norm2, self.start)
        on_plateau = early & (norm2 > drop**2 * start) & (norm2 < start)
        stops = check & ~on_plateau & (norm2 > drop * self.last)
        return Progress(start, jnp.where(check, norm2, self.last), self.stalled | stops)
