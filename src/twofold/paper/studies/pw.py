"""How often to communicate: ASCD with theory's p_w and with 0.1, 0.3, 0.5, 0.7, 0.9 (Figure expp_w)."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import PUBLISHED, THEORY, VARIANTS, Cell, Experiment, Figure
from twofold.paper.studies.images import DATASETS, FACTS, METRICS, OBJECTIVES, parameters, problem

__all__ = ["EXPERIMENT", "LEVELS"]

LEVELS = ("theory", 0.1, 0.3, 0.5, 0.7, 0.9)


def cells(variant: str, datasets: tuple[str, ...], **more: Any) -> tuple[Cell, ...]:
    """Every p_w on every objective; all other hyper-parameters follow p_w as Theorem e1 says."""
    return tuple(
        Cell(
            "ascd", problem(dataset, parameters(objective, 2), variant), objective, dataset, level, variant,
            fields={} if level == "theory" else {"p_w": level}, metrics=METRICS[:2], every=20, wide=False, **more,
        )
        for dataset in datasets
        for objective in OBJECTIVES
        for level in LEVELS
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="pw",
    title="Theory's p_w against others",
    cells=cells(PUBLISHED, DATASETS) + cells(THEORY, DATASETS[:3], optimum=True),
    figures=tuple(
        Figure(
            f"pw-{variant.replace(' ', '-')}-{metric}", (metric,), rows="objective", columns="dataset", lines="level",
            where={"variant": variant}, title=f"ASCD by the probability of a w-step, {variant}", line_title="$p_w$ = {}",
        )
        for variant in VARIANTS
        for metric in METRICS[:2]
    ),
    facts={
        **{name: FACTS[name] for name in ("problem", "partition", "accuracy", "runs")},
        "K": "2 labels per client",
        "as published": "𝓛' = 1, μ' = 0.01, μ = μ'/(3M); η, θ₁, γ, ν follow p_w by Theorem e1; theory's p_w is 0.5 (MT2), 0.25 "
        "(MX2), 0.55 (APFL2)",
        "by theory": "with the ridge μ' = 0.01 and certified constants; the three data sets of 28×28 pixels, to save time",
    },
)  # fmt: skip
