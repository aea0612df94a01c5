"""What a method costs at least, whatever its steps, as `Algorithm.floor`: with it `solver.auto` leaves methods out unseen.

With two blocks, for a fall of the error by K = ln(1/relative) factors e:

- acd: ν ≤ min{p_w, p_β}², as a vector in block i alone shows. θ² = ν(1−θ) with s = √(1−θ) gives √ν = 1/s − s = 2 sinh u for
  u = ln(1/s), so that −ln(1−θ) = 2u ≤ √ν ≤ p_i. So there are at least K rounds and, too, K steps on β.
- asvrcd: κ < ρ, and κ ≤ ½, since κ² ≤ (μ/L)(1−κ) with L = L^w + L^β ≥ 2μ (by the paper's constants κ ≤ θ₁ ≤ ½). A refresh is a
  round and passes over all rows in both blocks; of them there are at least ρK/−ln(1−min{ρ, ½}) ≥ K/(2 ln 2).
- svrcd: κ ≤ ρ/2: at least ρK/−ln(1−ρ/2) ≥ K/ln 2 refreshes.

With constants whose noise is known, no p_w, ρ, batch and step bring the rounds below these, for p = p_w and q = μ/L^w:

- asvrcd: with σ_w ≥ ((1−p)/p)L^w, κ²θ_w/ρ ≤ 2ημ and θ_w = 2ησ_w give κ² ≤ qρp/(1−p). A round comes with probability
  p + ρ(1−p) ≥ 2√(pρ(1−p)), and in 1/κ iterations 2(1−p)/√q of them do. They are also at least p/√q, as κ² ≤ μ/(L^w+L^β).
  The larger of the two is at least (2/3)/√q.
- svrcd: κ ≤ ημ = μ/(L^w + L^β + 6σ) with σ ≥ ((1−p)/p)L^w + (p/(1−p))L^β, and a w-step is a round. With t = 1−p these are
  p/κ ≥ (L^w − 11L^β + 5t(L^w + L^β) + 6L^β/t)/μ, whose smallest value for t in (0, 1] is taken.

A factor e takes 1/−ln(1−κ) iterations, fewer than 1/κ: hence the factor κ/−ln(1−κ), at the largest κ that is possible.
"""
# pyright: standard

from __future__ import annotations

import math
from typing import Any, NamedTuple

from twofold.theory.constants import Constants

__all__ = ["Floor"]


class Floor(NamedTuple):
    """Passes over all rows in both blocks, and rounds, per factor e of the error.

    >>> Floor(passes=1.0, rounds=1.0).rounds
    1.0
    """

    passes: float
    rounds: float


def acd(self: Any, c: Constants | None) -> Floor:
    """One of each."""
    return Floor(1.0, 1.0)


def asvrcd(self: Any, c: Constants | None) -> Floor:
    """The refreshes, and the steps in w."""
    fewest = 0.5 / math.log(2)
    if c is None or c.noise_w is None or not (c.mu > 0 and c.L_w > 0):
        return Floor(fewest, fewest)
    root = math.sqrt(c.mu / c.L_w)
    return Floor(fewest, max(fewest, 2 / 3 / root * _shrunk(root)))


def svrcd(self: Any, c: Constants | None) -> Floor:
    """The refreshes, and the steps in w."""
    fewest = 1 / math.log(2)
    if c is None or c.noise_w is None or not (c.mu > 0 and c.L_w > 0):
        return Floor(fewest, fewest)
    whole = c.L_w + c.L_beta
    t = min(math.sqrt(1.2 * c.L_beta / whole), 1.0)
    steps = (c.L_w - 11 * c.L_beta + 5 * t * whole + (6 * c.L_beta / t if t > 0 else 0.0)) / c.mu
    return Floor(fewest, max(fewest, steps * _shrunk(c.mu / whole)))


def _shrunk(kappa: float) -> float:
    """κ/−ln(1−κ) for the largest κ that is possible, at most ½."""
    largest = min(kappa, 0.5)
    return largest / -math.log1p(-largest)
