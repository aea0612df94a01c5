"""The published image runs with their slips put back, beside the corrected ones: why our end points are not theirs."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import PUBLISHED, Cell, Experiment, Figure
from twofold.paper.studies.images import FACTS, LABELS_PER_CLIENT, METHODS, METRICS, OBJECTIVES, parameters, problem

__all__ = ["AS_RUN", "EXPERIMENT"]

AS_RUN = "with the slips"
DATASET = "mnist"
CLIENTS = 20


def cell(method: str, objective: str, K: int, variant: str) -> Cell:
    """One method on MNIST, correct or with the slips of its published run."""
    slips: dict[str, Any] = {"shared": True} if variant == AS_RUN else {}
    if variant == AS_RUN and method == "lsgd":
        slips["rescale"] = 1 / CLIENTS  # which divides its step on w by M once too often
    return Cell(
        method, problem(DATASET, parameters(objective, K), PUBLISHED, K, **slips), objective, DATASET, K, variant,
        METHODS[method], metrics=METRICS, every=20, wide=False, faulty=variant == AS_RUN,
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="slips",
    title="The published image runs with their slips put back",
    cells=tuple(
        cell(method, objective, K, variant)
        for objective in OBJECTIVES
        for K in LABELS_PER_CLIENT
        for method in METHODS
        for variant in (AS_RUN, PUBLISHED)
    ),
    figures=tuple(
        Figure(
            f"slips-{variant.replace(' ', '-')}-{metric}", (metric,), rows="objective", where={"variant": variant},
            title=f"MNIST, {words}", column_title="K = {}",
        )
        for variant, words in ((AS_RUN, "with the slips of the published runs"), (PUBLISHED, "slips corrected"))
        for metric in ("loss", "accuracy")
    ),
    facts={
        **{name: FACTS[name] for name in ("problem", "as published", "accuracy", "runs")},
        AS_RUN: "LSGD's step on w divided by M once too often; ASVRCD's full gradient that of 0.02 times the mean loss; labels drawn "
        "with replacement, and every device scans the same file from its start",
        "not known": "the seed of the published labels and the order of their file, so individual figures differ by a few per cent",
    },
)  # fmt: skip
