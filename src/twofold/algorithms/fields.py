"""The hyper-parameters of an algorithm: numbers, or None until theory fills them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax

from twofold.errors import InputError

__all__ = ["Schedule", "known"]

Schedule: TypeAlias = Callable[[jax.Array], float | jax.Array]
"""A step size as a function of the local step's number: `theory.stepsizes.pl_schedule`, or any optax schedule."""


def known(*numbers: float | None) -> tuple[float, ...]:
    """Give hyper-parameters that have been filled in; raise if one of them is still open.

    In a compiled program they are traced scalars.

    >>> from twofold.algorithms.fields import known
    >>> eta, p_w = known(0.1, 0.5)
    >>> eta / p_w
    0.2
    """
    filled = tuple(number for number in numbers if number is not None)
    if len(filled) < len(numbers):
        raise InputError(
            "This algorithm has hyper-parameters that are still None: solve() fills them in from theory, and so does "
            "algorithm.complete(setting)."
        )
    return filled
