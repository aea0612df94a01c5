"""When a run ends, and how often it is recorded."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from twofold.errors import InputError

__all__ = ["LONGEST", "MOST_ITERATIONS", "Budget"]

LONG_BY_ITSELF = 2000
"""Rounds after which a run that ends by itself gives up."""
LONGEST = 100_000
"""Rounds after which a run with only a tolerance, a target or a time gives up."""
MOST_ITERATIONS = 50_000_000
"""Iterations after which every run gives up that was not told how many it may have."""


STOPS = ("rounds", "iterations", "seconds", "target", "tol", "relative")
"""Fields of which one at least must be given."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """When a run ends: whatever comes first of what is given. Records are taken at every `every`-th round.

    >>> Budget(rounds=100).is_over(np.array([10, 20]), np.array([99, 100]), by_rounds=True)
    array([False,  True])
    """

    rounds: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    target: float | None = None
    tol: float | None = None
    every: int = 1
    relative: float | None = None
    """The part of the initial gap that is certified to be left; only for a run that was told nothing else."""

    def __post_init__(self) -> None:
        for name in ("rounds", "iterations", "every"):
            value = getattr(self, name)
            if value is not None and (int(value) != value or value < 1):
                raise InputError(f"{name} must be a whole number ≥ 1, got {name}={value!r}.")
        for name in ("seconds", "tol"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be positive, got {name}={value!r}.")
        if all(getattr(self, n) is None for n in STOPS):
            raise InputError(
                "Say when to stop: rounds, iterations, seconds, target or tol; solve(problem) alone knows by itself."
            )

    @classmethod
    def asked(
        cls,
        algorithm: object,
        rounds: int | None = None,
        iterations: int | None = None,
        seconds: float | None = None,
        target: float | None = None,
        tol: float | None = None,
        every: int = 1,
    ) -> Budget:
        """The limits that are given; "auto" without any stops at a part of the initial gap that the precision allows.

        >>> Budget.asked("auto").rounds, Budget.asked("acd", rounds=5).relative
        (2000, None)
        """
        nothing = all(limit is None for limit in (rounds, iterations, seconds, target, tol))
        if not (nothing and isinstance(algorithm, str) and algorithm == "auto"):
            return cls(rounds, iterations, seconds, target, tol, every)
        return cls(LONG_BY_ITSELF, every=every, relative=1e-8 if jnp.result_type(float).itemsize > 4 else 1e-4)

    @property
    def most_rounds(self) -> int | None:
        """Rounds after which the run is over; None where iterations alone decide."""
        return LONGEST if self.rounds is None and self.iterations is None else self.rounds

    def is_over(self, iterations: np.ndarray, rounds: np.ndarray, by_rounds: bool) -> np.ndarray:
        """Whether the budget is spent after so many iterations and rounds; without rounds, these are iterations."""
        over = iterations >= (MOST_ITERATIONS if self.iterations is None else self.iterations)
        if self.most_rounds is not None:
            over |= (rounds if by_rounds else iterations) >= self.most_rounds
        return over
