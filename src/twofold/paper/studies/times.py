"""Seconds per 1,000 rounds (Tables time_syn_mx2 and time_syn_ews): one run at a time, loss and error at every round."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import LABELS, PUBLISHED, THEORY, Experiment, by_default, by_variant
from twofold.paper.published import SECONDS
from twofold.paper.studies import ews, mx2

__all__ = ["EXPERIMENT"]


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """The two tables, our seconds beside the published ones."""
    rows = [
        {
            **{name: s[name] for name in LABELS},
            "published": SECONDS[s["objective"], s["method"], s["level"]],
            "seconds": s["seconds"],
        }
        for s in document["series"]
        if s["metric"] == "loss"
    ]
    return {"table": rows}


ONE_RUN = {"seeds": (0,), "every": 1, "optimum": False, "warm_up": 2}

EXPERIMENT = Experiment(
    name="times",
    title="Seconds per 1,000 rounds",
    cells=mx2.cells(PUBLISHED, mx2.AS_PUBLISHED, **ONE_RUN)
    + ews.cells(PUBLISHED, ews.AS_PUBLISHED, **ONE_RUN)
    + mx2.cells(THEORY, by_default(mx2.AS_PUBLISHED), **ONE_RUN)
    + ews.cells(THEORY, by_default(ews.AS_PUBLISHED), **ONE_RUN),
    figures=by_variant(
        "times", ("seconds",), "Seconds per 1,000 rounds", "$\\sigma_h$ = {}", kind="bars", rows="objective"
    ),
    facts={
        "as published": "the settings of mx2 and ews",
        "time": "`seconds` of each series: one seed, 1,000 rounds, loss and error at every round, after a short run that "
        "compiles; nothing else is run at the same time, but XLA may use all cores. The published times are those of "
        "one laptop core",
        "by theory": "other step sizes and another p_w: another number of iterations per round",
    },
    alone=True,
    summary=summary,
)
