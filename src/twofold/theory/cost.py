"""What a run costs: a round, a byte, and one row's gradient, each in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from twofold.errors import InputError

__all__ = ["PRESETS", "Cost", "Preset", "cost_of"]

Preset = Literal["cross-silo", "cross-device", "simulation"]


@dataclass(frozen=True)
class Cost:
    """The price of one communication round, of one byte that a client sends or receives, and of one row's gradient.

    All three are in the same unit, seconds by default, and are per client: clients work and send at the same time. Only
    their ratios decide what is cheapest.

    >>> Cost(round=2.0, byte=1e-6, gradient=1e-6).total(rounds=10, bytes=5e6, gradients=3e6)
    28.0
    >>> Cost(round=0.2, byte=1e-8, gradient=1e-7).total(rounds=10, bytes=1e6, gradients=10)
    2.010001
    """

    round: float
    byte: float
    gradient: float

    def __post_init__(self) -> None:
        for name in ("round", "byte", "gradient"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise InputError(f"A cost must be a finite number ≥ 0, got {name}={value!r}.")
        if self.round == self.byte == self.gradient == 0:
            raise InputError(f"At least one cost must be positive, or every method is as good as any other: {self}.")

    def total(self, rounds: float, bytes: float, gradients: float) -> float:
        """The price of a whole run."""
        return self.round * rounds + self.byte * bytes + self.gradient * gradients


PRESETS: dict[Preset, Cost] = {
    # A few institutions with servers and good lines: a round is a fifth of a second, 100 MB arrive in a second.
    "cross-silo": Cost(round=0.2, byte=1e-8, gradient=1e-6),
    # Many phones: a round waits seconds for the slowest, a line carries 1 MB a second.
    "cross-device": Cost(round=5.0, byte=1e-6, gradient=1e-5),
    # Everyone on one machine: nothing is sent, a round is one step of the engine.
    "simulation": Cost(round=1e-5, byte=0.0, gradient=1e-7),
}
"""Costs by name, in seconds."""


def cost_of(cost: Cost | Preset) -> Cost:
    """A cost as it is, or the preset of that name.

    >>> cost_of("cross-device").round
    5.0
    """
    if isinstance(cost, Cost):
        return cost
    if cost not in PRESETS:
        raise InputError(f"There is no cost {cost!r}; choose from {', '.join(PRESETS)}, or give a Cost.")
    return PRESETS[cost]
