"""Scaling the shared part by M^(-1/2), or not: ASCD on every objective and data set (Figure exp_reparam)."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import PUBLISHED, THEORY, VARIANTS, Cell, Experiment, Figure
from twofold.paper.studies.images import DATASETS, FACTS, METRICS, OBJECTIVES, parameters, problem

__all__ = ["EXPERIMENT"]

LEVELS = ("scaled", "unscaled")


def cells(variant: str, **more: Any) -> tuple[Cell, ...]:
    """The same method on the scaled and on the unscaled w, each with the constants of its own space."""
    return tuple(
        Cell(
            "ascd", problem(dataset, parameters(objective, 2), variant, rescale=level == "scaled"), objective, dataset, level,
            variant, metrics=METRICS, every=20, wide=False, **more,
        )
        for dataset in DATASETS
        for objective in OBJECTIVES
        for level in LEVELS
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="reparam",
    title="The shared part scaled, or not",
    cells=cells(PUBLISHED) + cells(THEORY, optimum=True),
    figures=tuple(
        Figure(
            f"reparam-{variant.replace(' ', '-')}-{metric.replace('_', '-')}", (metric,), rows="objective", columns="dataset",
            lines="level", where={"variant": variant}, title=f"ASCD with and without scaling w, {variant}",
        )
        for variant in VARIANTS
        for metric in METRICS[:2]
    ),
    facts={
        **{name: FACTS[name] for name in ("problem", "partition", "accuracy", "runs")},
        "K": "2 labels per client",
        "as published": "𝓛' = 1, μ' = 0.01, μ = μ'/(3M) in both spaces; unscaled, 𝓛^w is M times as large, and p_w with it",
        "by theory": "with the ridge μ' = 0.01 and the certified constants of each space",
    },
)  # fmt: skip
