"""Judges the paper's claims by what was run, by rules that anyone can read and apply.

A claim is a list of comparisons (`claims`). It **holds** if at most one comparison in ten fails, **holds in part** if at
least half of them pass, and otherwise **does not hold**. Comparisons whose series were not run are counted and named, not
guessed; where fewer than half could be made, or the run was a quick one, **too little was run**. The same rules are
applied to the runs with the paper's settings (the verdict) and to ours (beside it).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from twofold.paper import published
from twofold.paper.base import PUBLISHED, THEORY
from twofold.paper.book import Book, Check, Missing
from twofold.paper.claims import CLAIMS, Claim

__all__ = ["EndPoint", "Verdict", "compare", "decide", "judge", "table", "verdict_of"]

HOLDS, IN_PART, FAILS, TOO_LITTLE, MISSING = "holds", "holds in part", "does not hold", "too little was run", "not run"

ENOUGH = 0.5
"""The share of the comparisons that must have been run."""
FAILURES = 0.1
"""The share of comparisons that may fail where a claim holds."""
HALF = 0.5
"""The share of comparisons that must pass where a claim holds in part."""
CLOSE = 0.01
"""Our end point agrees with the published one if it differs by at most this share of it …"""
STANDARD_ERRORS = 3
"""… or by at most this many standard errors of the difference."""
PUBLISHED_RUNS = 30
"""The runs over which the published standard deviations were taken."""


@dataclass(frozen=True)
class Verdict:
    """A claim with its rule, the verdicts with the paper's settings and with ours, and the comparisons that decide it."""

    key: str
    claim: str
    where: str
    experiment: str
    rule: str
    verdict: str
    by_theory: str
    because: str
    note: str
    checks: tuple[Check, ...]
    checks_by_theory: tuple[Check, ...]
    figures: tuple[str, ...]


def verdict_of(checks: Sequence[Check], quick: bool = False) -> str:
    """The verdict on a list of comparisons, by the rule at the top of this module.

    >>> verdict_of([Check("", True, {})] * 9 + [Check("", False, {})])
    'holds'
    """
    run = [check.passed for check in checks if check.passed is not None]
    if not run:
        return MISSING
    if quick or len(run) < ENOUGH * len(checks):
        return TOO_LITTLE
    if sum(not passed for passed in run) <= FAILURES * len(run):
        return HOLDS
    return IN_PART if sum(run) >= HALF * len(run) else FAILS


def judge(folder: str | os.PathLike[str]) -> list[Verdict]:
    """Judge every claim by the documents in a folder that `reproduce` has written."""
    return decide(Book.read(folder))


def decide(book: Book, claims: Iterable[Claim] = CLAIMS) -> list[Verdict]:
    """Judge the claims by these documents.

    >>> {v.key: v.verdict for v in decide(Book([]))}["competitive"]
    'not run'
    """
    verdicts = []
    for claim in claims:
        checks, ours = (tuple(claim.checks(book, variant)) for variant in (PUBLISHED, THEORY))
        drawn = () if claim.experiment not in book.documents else claim.figures
        headline = checks if claim.experiment != "rates" else ours  # it has our settings only
        quick = _quick(book, claim.experiment)
        verdicts.append(
            Verdict(
                claim.key, claim.claim, claim.where, claim.experiment, claim.rule, verdict_of(headline, quick),
                verdict_of(ours, quick), _because(headline, quick), claim.note, headline, ours, drawn,
            )
        )  # fmt: skip
    return verdicts


def _quick(book: Book, experiment: str) -> bool:
    return bool(book.documents.get(experiment, {}).get("settings", {}).get("quick"))


def _because(checks: Sequence[Check], quick: bool) -> str:
    """How many comparisons came out as claimed, which did not, and how many were not run."""
    run = [check for check in checks if check.passed is not None]
    if not run:
        return "It was not run."
    failed = [check for check in run if not check.passed]
    text = f"{len(run) - len(failed)} of {len(run)} comparisons came out as claimed."
    if failed:
        shown = "; ".join(f"{check.name} ({_figures(check.figures)})" for check in failed[:3])
        text += f" Not so: {shown}{f'; and {len(failed) - 3} more' if len(failed) > 3 else ''}."
    if len(run) < len(checks):
        text += f" {len(checks) - len(run)} could not be made: their series were not run."
    return text + (" A quick run decides nothing." if quick else "")


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown table."""
    lines = ["| claim | with the paper's settings | with ours | because |", "|---|---|---|---|"]
    lines += [f"| {v.claim} | {v.verdict} | {v.by_theory} | {v.because} |" for v in verdicts]
    return "\n".join(lines)


# --- beside the published end points ----------------------------------------------------------------------------------


class EndPoint(NamedTuple):
    """A published end point beside ours; they agree within 1 % or three standard errors of the difference."""

    point: published.Point
    ours: float | None
    stderr: float | None
    agrees: bool | None


def compare(folder: str | os.PathLike[str]) -> list[EndPoint]:
    """Every published end point beside ours with the same settings, where those were run."""
    book, found = Book.read(folder), []
    for point in published.POINTS:
        labels = {name: getattr(point, name) for name in ("method", "objective", "dataset", "level", "variant")}
        try:
            series = book.series(point.experiment, point.metric, **labels)
        except Missing:
            found.append(EndPoint(point, None, None, None))
            continue
        place = int(np.argmin(np.abs(np.array(series["rounds"], float) - point.round)))
        ours, stderr = series["mean"][place], series["stderr"][place]
        spread = published.SPREAD.get((point.experiment, point.method, point.level))
        theirs = stderr if spread is None else spread / math.sqrt(PUBLISHED_RUNS)
        near = (
            None
            if ours is None
            else abs(ours - point.value) <= max(CLOSE * point.value, STANDARD_ERRORS * math.hypot(stderr, theirs))
        )
        found.append(EndPoint(point, ours, stderr, near))
    return found
