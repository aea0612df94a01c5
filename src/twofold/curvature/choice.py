"""Choose a change of variables by forecasting what each saves in rounds and costs before the first round."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from twofold.curvature.bounds import arrow, largest_beta, largest_w
from twofold.curvature.metric import Kind, build
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError
from twofold.theory.arrow import best_probability, momentum

__all__ = ["Prospect", "choose", "forecasts"]

ENOUGH = 1.1
"""A simpler change of variables is preferred if it costs at most this many times as much as the cheapest."""

SEVERAL = 200
"""At most this many clients, evenly spaced, are used for the forecast."""


class Prospect(NamedTuple):
    """The likely cost of ACD to reach a relative tolerance in one change of variables (None: the scaled space)."""

    kind: Kind | None
    rounds: float
    floats: float  # sent by each client, the opening message included
    beta_steps: float
    cost: float


def choose(
    model: BlockCurvature | None,
    scale: float,
    *,
    tol: float = 1e-8,
    round_cost: float = 1.0,
    float_cost: float = 1e-4,
    beta_cost: float = 0.05,
) -> Kind | None:
    """Choose for `precondition="auto"`: the simplest change of variables whose cost is close to the cheapest.

    From simple to complex, they are None, "scale", "diagonal" and "matrix". "matrix" is excluded if there are more than `WIDE`
    features, or if the clients' matrices take more than `ROOM`. The answer is None if every client's blocks are nearly the same
    multiple of the identity, so that nothing is gained, or if nothing is known about the curvature.

    >>> import numpy as np, twofold as tw
    >>> from twofold.curvature.model import Loss, Pull, of_terms
    >>> rng = np.random.default_rng(0)
    >>> alike = [(np.eye(3), np.zeros(3))] * 2
    >>> unlike = [(rng.normal(size=(9, 3)) * [1, 30, 900], np.zeros(9)) for _ in range(2)]
    >>> def kind(pairs):
    ...     clients = tw.Clients.from_list(pairs)
    ...     terms = [Loss(1, 0, 1), Pull(0.25, 1, -1)]
    ...     return choose(of_terms(tw.losses.logistic(l2=0.01), clients, terms), 2**-0.5)
    >>> kind(alike), kind(unlike)
    (None, 'diagonal')
    """
    if model is None:
        return None
    found = forecasts(model, scale, tol=tol, round_cost=round_cost, float_cost=float_cost, beta_cost=beta_cost)
    least = min(forecast.cost for forecast in found)
    if not math.isfinite(least):
        # Without known strong convexity nothing can be forecast: take the strongest kind, in case features are badly scaled.
        return found[-1].kind
    return next(forecast.kind for forecast in found if forecast.cost <= ENOUGH * least)


def forecasts(
    model: BlockCurvature,
    scale: float,
    *,
    tol: float = 1e-8,
    round_cost: float = 1.0,
    float_cost: float = 1e-4,
    beta_cost: float = 0.05,
) -> tuple[Prospect, ...]:
    """The likely cost of ACD in each change of variables that there is room for, the simplest first."""
    if not 0 < tol < 1:
        raise InputError(f"tol must be a relative gap between 0 and 1, got {tol=}.")
    kinds: tuple[Kind | None, ...] = (None, "scale", "diagonal", *(("matrix",) if model.kept else ()))
    each = model.a * (model.outputs or 1)
    # The choice need not be certified, so some of the clients are enough, with the scale adjusted to their number.
    few = model.M > SEVERAL
    some = model.of_clients(np.linspace(0, model.M - 1, SEVERAL).astype(np.int64)) if few else model
    some = some.likely()
    scale = scale * math.sqrt(model.M / some.M)
    found: list[Prospect] = []
    for kind in kinds:
        changed = None if kind is None else build(some, scale, kind)
        below = arrow(some, scale, changed)
        if changed is None:
            L_w, L_beta = largest_w(some, scale), largest_beta(some)
            below = below.weighted(L_w**-0.5 if L_w else 1.0, L_beta**-0.5 if L_beta else 1.0)
        best = best_probability(below, round_cost + float_cost * each, beta_cost)
        folds = math.log(1 / tol) / momentum(best.nu) if best.nu > 0 else math.inf
        rounds = folds * best.p_w if best.p_w > 0 else 0.0
        floats = rounds * each + (0 if changed is None else changed.opening_floats)
        beta_steps = folds * (1 - best.p_w) if best.p_w < 1 else 0.0
        cost = round_cost * rounds + float_cost * floats + beta_cost * beta_steps
        found.append(Prospect(kind, rounds, floats, beta_steps, cost))
    return tuple(found)
