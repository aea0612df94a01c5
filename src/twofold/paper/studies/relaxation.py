"""The relaxation parameter Λ of the multi-task objective: 1, 10, 100 (Figure new_obj_supp)."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import PUBLISHED, THEORY, VARIANTS, Cell, Experiment, Figure
from twofold.paper.studies.images import DATASETS, FACTS, METRICS, parameters, problem

__all__ = ["EXPERIMENT", "LEVELS"]

LEVELS = (1.0, 10.0, 100.0)
SEEDS = tuple(range(5))


def cells(variant: str, **more: Any) -> tuple[Cell, ...]:
    """Every Λ on every data set."""
    return tuple(
        Cell(
            "ascd", problem(dataset, parameters("multitask", 4, level, 0.1), variant, 4, train=30, test=100), "multitask",
            dataset, level, variant, metrics=METRICS[:2], every=20, seeds=SEEDS, wide=False, **more,
        )
        for dataset in DATASETS
        for level in LEVELS
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="relaxation",
    title="The relaxation parameter of multi-task learning",
    cells=cells(PUBLISHED) + cells(THEORY),
    figures=tuple(
        Figure(
            f"relaxation-{variant.replace(' ', '-')}", METRICS[:2], columns="dataset", lines="level",
            where={"variant": variant}, title=f"Multi-task learning by its relaxation parameter, {variant}",
            line_title="$\\Lambda$ = {}",
        )
        for variant in VARIANTS
    ),
    facts={
        **{name: FACTS[name] for name in ("partition", "accuracy")},
        "problem": "MT2 with λ = 0.1 and K = 4, 20 clients with 30 training and 100 test images each; the paper does not say "
        "which method it ran: here it is ASCD, its recommendation for images",
        "as published": "𝓛' = 1, μ' = 0.01, μ = μ'/(3M)",
        "by theory": "with the ridge μ' = 0.01 and certified constants",
        "loss": "losses for different Λ belong to different problems: only accuracies can be compared",
        "runs": "five seeds of the method on one partition of each data set; recorded every 20 rounds; float32",
    },
)  # fmt: skip
