"""Weight sharing on synthetic data: three methods, three levels of heterogeneity, thirty seeds (Figure synthetic_ews)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twofold.paper.base import PUBLISHED, THEORY, Cell, Experiment, Plain, by_default, by_variant, grid

__all__ = ["AS_PUBLISHED", "EXPERIMENT", "LEVELS", "cells", "problem"]

LEVELS = (5.0, 10.0, 15.0)
SEEDS = tuple(range(30))

AS_PUBLISHED: dict[str, Plain] = {"lsgd": {"eta": 0.01, "tau": 5, "batch": 1}, "ascd": {}, "asvrcd": {}}

FACTS = {
    "problem": "f'([w, β]) with the logistic loss and no penalty, 20 clients of 1,000 rows, 10 shared and 5 private features",
    "as published": "the published code has no 1/M in its gradient of β; that is the right method on private features times √M, "
    "which is how it is run here. 𝓛^w and 𝓛^β: the largest row norm, of each client's first 10 rows (0.2758) and of "
    "the others (0.3154), neither squared nor divided by 4; μ = μ'/M with the curvature at the truth; LSGD unscaled, "
    "η = 0.01",
    "not taken over": "in the published LSGD every device's gradient of w used every device's β",
    "by theory": "nothing is set by hand: step sizes from the certified constants of the problem, in the scaled space",
    "error": "‖w − w*‖² + (1/M) Σ_m ‖β_m − β*_m‖²",
    "rounds": "an iteration in which the w-coin or the ρ-coin fell is a round; loss and error at every round",
}


def problem(sigma_h: float, variant: str = PUBLISHED, rescale: bool = True) -> dict[str, Any]:
    """Weight sharing at one level."""
    made = {"data": "sharing", "sigma_h": sigma_h, "clients": 20, "rows": 1000, "stretch": variant == PUBLISHED}
    return {**made, "objective": {"name": "weight_sharing", "split": 10}, "rescale": rescale}


def cells(variant: str, methods: Mapping[str, Plain], **more: Any) -> tuple[Cell, ...]:
    """These methods at every level."""
    common = {"metrics": ("loss", "error"), "seeds": SEEDS, "optimum": True, **more}
    return grid(
        methods, LEVELS, lambda level, method: problem(level, variant, (method, variant) != ("lsgd", PUBLISHED)),
        variant=variant, objective="weight_sharing", dataset="synthetic", **common,
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="ews",
    title="Weight sharing on synthetic data",
    cells=cells(PUBLISHED, AS_PUBLISHED) + cells(THEORY, by_default(AS_PUBLISHED)),
    figures=by_variant("ews", ("loss", "gap", "error"), "Weight sharing on synthetic data", "$\\sigma_h$ = {}"),
    facts=FACTS,
)
