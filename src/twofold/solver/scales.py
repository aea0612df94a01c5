"""Features of very different size, told before a run begins."""

from __future__ import annotations

import numpy as np

from twofold.losses import Linear
from twofold.problem import Problem
from twofold.solver.options import warn

__all__ = ["warn_of_scales"]

SCALES = 300.0
"""How much larger one feature may be than another before somebody should be told."""


def warn_of_scales(problem: Problem) -> None:
    """Warn of features of very different size, which make any first-order method slow and any penalty unfair."""
    linear = isinstance(getattr(problem.objective, "loss", None), Linear)
    sizes = problem.clients.scales if linear and problem.precondition is None else None
    if sizes is None:
        return
    known = np.flatnonzero(np.isfinite(sizes) & (sizes > 0))
    if len(known) < 2:
        return
    order = known[np.argsort(sizes[known])]
    few = len(order) // 20  # of many features, one in twenty at either end says nothing
    low, high = int(order[few]), int(order[-1 - few])
    ratio = float(sizes[high] / sizes[low])
    if ratio <= SCALES:
        return
    schema = problem.clients.schema
    names = None if schema is None else schema.features
    said = [f"{j if names is None else repr(names[j])} (about {sizes[j]:.2g})" for j in (high, low)]
    warn(
        f"The features differ in size by a factor of {ratio:.2g}: {said[0]} and {said[1]}. The ridge and the pull to a shared "
        f"model weigh them by their squares, and a first-order method may need {ratio**2:.2g} times as many iterations. Say "
        'standardize="pooled" in Clients.from_frame, scale them yourself, or Problem(precondition="diagonal").'
    )
