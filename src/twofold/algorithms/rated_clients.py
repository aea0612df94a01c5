"""The rates of methods that need every client's own curvature (scaffnew, scafflix, saga), and profile's typical rounds; as `rated`."""
# pyright: standard

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from twofold.algorithms.rated import Said, needs_mu, same
from twofold.theory import stepsizes, stepsizes_newer
from twofold.theory.rates import Prediction, Rate

__all__: list[str] = []  # as in `rated`

QUADRATIC, NEWTON, PER_DECADE = 2.0, 5.0, 2.0
"""Typical rounds of `profile`, which has no rate: for a quadratic, by Newton's method, and by L-BFGS per factor of ten. `twofold
reproduce realdata` measures 2; 3 to 5; and 1 to 4.9 (median 1.5, mean 2.4). None of them is a theorem."""
MEASURED = "measured on other problems (docs/realdata.md): it has no proven rate."
UNKNOWN = (
    "{} has a rate only where every client's own curvature is known: not in a metric (precondition=), and not with "
    "constants= of your own."
)


def rounds_of_clients(theory: Callable[..., stepsizes.Hyper], *steps: str) -> Any:
    """The rate of Scaffnew or Scafflix: min{η_m μ_m, p²}, if every client's own function is strongly convex."""

    def rate(self: Any, facts: Any, eps: float) -> Said:
        if facts.curvature is None or facts.curvature() is None:  # F's μ is no client's μ_m
            return UNKNOWN.format(self.name)
        each = facts.each()
        if not np.all(each.mu > 0):
            flat = int(np.argmin(each.mu))
            return f"{self.name} has a rate only if every client's own function is strongly convex; client {flat}'s may not be so."
        found = theory(facts.constants, each, self.batch, self.p_w)
        for name in steps:
            if (other := same(self, name, found[name])) is not None:
                return other
        noise = "" if self.batch is None else "this prediction ignores sampling noise, which is unknown before a run."
        return Rate(found["kappa"], note=noise)

    return rate


def saga(self: Any, facts: Any, eps: float) -> Said:
    """The rate min{ημ, min q_m/2}, for the run's own q_m."""
    each = facts.each()
    if not facts.constants.mu > 0:
        return needs_mu("saga")
    found = stepsizes_newer.saga(facts.constants, each, 1.0 if self.q is None else self.q)
    if (other := same(self, "eta", found["eta"])) is not None:
        return other
    if not np.any(each.L_beta > 0):
        return Rate(found["kappa"], criterion="‖w − w*‖²")
    note = (
        "not proven: the theorem is for participants that minimise over their β_m exactly, and these take a few steps."
    )
    return Rate(found["kappa"], "‖w − w*‖²", "unproven", note)


def profile(self: Any, facts: Any, eps: float) -> Said:
    """The typical number of rounds, measured on other problems."""
    k = NEWTON if self.outer == "newton" else max(PER_DECADE * -math.log10(eps), 1.0)
    if facts.quadratic:
        k = QUADRATIC
    of_w, of_beta = (float(each) / facts.rows for each in self.evaluations(self.plan(None, 0), facts.rows))
    return Prediction(k, k, k * of_w, k * of_beta, facts.rows, certainty="measured", note=MEASURED)
