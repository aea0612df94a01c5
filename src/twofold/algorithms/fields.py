"""The hyper-parameters of an algorithm: numbers, or None until theory fills them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import jax

from twofold.errors import InputError

__all__ = ["Batch", "Schedule", "drawn", "known", "settle"]

Batch: TypeAlias = int | Literal["auto"] | None
"""Rows in one sampled gradient; None means all rows, "auto" the number with the lowest cost."""
Schedule: TypeAlias = Callable[[jax.Array], float | jax.Array]
"""A step size as a function of the local step's number: `theory.stepsizes.pl_schedule`, or any optax schedule."""


def known(*numbers: float | None) -> tuple[float, ...]:
    """Return hyper-parameters that have been filled in; raise if one of them is still None.

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
            "algorithm.complete(facts)."
        )
    return filled


def settle(algorithm: object) -> None:
    """Turn batch="auto" into one row if all numbers are set by hand, because theory then has nothing to fill in.

    >>> import twofold as tw
    >>> tw.algorithms.SCD(eta=0.1, p_w=0.5).batch, tw.algorithms.SCD(eta=0.1).batch
    (1, 'auto')
    """
    if not dataclasses.is_dataclass(algorithm):
        return
    numbers = [f.name for f in dataclasses.fields(cast(Any, algorithm)) if not f.metadata.get("static")]
    if getattr(algorithm, "batch", None) == "auto" and all(getattr(algorithm, name) is not None for name in numbers):
        object.__setattr__(algorithm, "batch", 1)


def drawn(batch: Batch) -> int | None:
    """Return a batch that theory has filled in; raise if it is still "auto".

    >>> drawn(None), drawn(4)
    (None, 4)
    """
    if batch == "auto":
        raise InputError(
            'This algorithm\'s batch is still "auto": solve() chooses it, and so does algorithm.complete(facts).'
        )
    return batch
