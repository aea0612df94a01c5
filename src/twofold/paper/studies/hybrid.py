"""ASCD first, then ASVRCD: what the paper suggests after both comparisons but never runs (beyond the paper)."""

from __future__ import annotations

from twofold.paper.base import THEORY, VARIANTS, Experiment, Figure, Plain
from twofold.paper.studies import ews, images, mx2

__all__ = ["EXPERIMENT"]

METHODS: dict[str, Plain] = {"ascd": {}, "asvrcd": {}, "hybrid": {}}

EXPERIMENT = Experiment(
    name="hybrid",
    title="ASCD first, then ASVRCD",
    # ASCD and ASVRCD run as in mx2, ews and images; where those have been run, their cells are reused.
    cells=tuple(
        cell
        for variant in VARIANTS
        for cell in (
            *ews.cells(variant, METHODS),
            *mx2.cells(variant, METHODS),
            *images.cells(variant, METHODS, lambda _: (2,), ("mnist",), **({"optimum": True} if variant == THEORY else {})),
        )
    ),
    figures=tuple(
        Figure(
            f"hybrid-{variant.replace(' ', '-')}-{objective.replace('_', '-')}", ("loss", "gap"),
            where={"variant": variant, "objective": objective, "dataset": "synthetic"},
            title=f"ASCD first, then ASVRCD: {objective.replace('_', ' ')}, {variant}", column_title="$\\sigma_h$ = {}",
        )
        for variant in VARIANTS
        for objective in ("weight_sharing", "mixture")
    )
    + tuple(
        Figure(
            f"hybrid-{variant.replace(' ', '-')}-mnist", ("loss", "accuracy"), columns="objective",
            where={"variant": variant, "dataset": "mnist"}, title=f"ASCD first, then ASVRCD: MNIST with K = 2, {variant}",
        )
        for variant in VARIANTS
    ),
    facts={
        "switch": "automatic: at checks c, 2c, 4c, … everybody's full gradient is compared with that of the check before "
        "(algorithms/hybrid.py)",
        "settings": "those of mx2, ews and images; the hybrid's hyper-parameters are those of ASCD and ASVRCD there",
        "fairness": "checks are rounds and are counted as such; they also renew the reference point, which ASVRCD with ρ = p_w/n "
        "does once in n rounds",
    },
)  # fmt: skip
