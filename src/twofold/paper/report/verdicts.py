"""The table of the paper's claims: the judge's verdict on each, its rule, and every comparison that decides it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twofold.paper.base import LABELS, PUBLISHED, THEORY
from twofold.paper.book import Book, Check
from twofold.paper.judge import FAILS, HOLDS, IN_PART, Verdict, decide
from twofold.paper.report.chapters import KNOWN
from twofold.report.markup import scripts
from twofold.report.words import DATASETS, METHODS, Chapter

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["ClaimRow", "Tally", "judged", "named", "rows", "tally", "word"]

UNDECIDED = "not enough data"
STYLES = {HOLDS: "holds", IN_PART: "part", FAILS: "fails", UNDECIDED: "open"}
"""The four words of a verdict, and the class of each in page.css."""

_WORDS = {name: words[0] for name, words in METHODS.items() if name.isidentifier() and name not in ("hybrid", "theory")}
_WORDS |= {name: words for name, words in DATASETS.items() if name != words}
_WORDS |= {"multitask": "multi-task", "weight_sharing": "weight sharing", "lower_bound": "lower-bound instance"}
_NAMES = re.compile(rf"(?<![\w-])({'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})(?![\w-])")


@dataclass(frozen=True)
class Tally:
    """How many claims have one of the four verdicts."""

    count: int
    words: str
    style: str


class ClaimRow(NamedTuple):
    """One row of the table: a verdict, its chips (word, style, settings), and its comparisons side by side."""

    verdict: Verdict
    chips: list[tuple[str, str, str]]
    settings: list[str]  # the heads of the comparisons' columns
    comparisons: list[tuple[str, list[Check | None]]]
    chapter: Chapter | None  # where the experiment is shown; None where no run is needed
    command: str  # what would run the experiment, where it was not run


def judged(documents: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """The judge's verdicts on documents that may be incomplete: series without values are left out, missing labels are None."""
    blank = dict.fromkeys((*LABELS, "metric", "rounds"))
    return decide(
        Book(
            {"settings": {}, **document, "experiment": name, "series": [{**blank, **s} for s in _usable(document)]}
            for name, document in documents.items()
        )
    )


def _usable(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    series = (s for s in document["series"] if isinstance(s, dict) and isinstance(s.get("mean"), list) and s["mean"])
    return [s for s in series if s["mean"][0] is not None or s.get("metric") == "rounds"]


def word(verdict: str, quick: bool) -> str:
    """One of the four words; a quick run decides nothing, whatever its numbers are.

    >>> word("holds", quick=False), word("holds", quick=True)
    ('holds', 'not enough data')
    """
    return verdict if verdict in STYLES and not quick else UNDECIDED


def tally(verdicts: Sequence[Verdict], quick: set[str]) -> list[Tally]:
    """How many claims got which verdict."""
    found = [word(v.verdict, v.experiment in quick) for v in verdicts]
    counts = {verdict: found.count(verdict) for verdict in STYLES}
    return [Tally(n, _claims(n, verdict), STYLES[verdict]) for verdict, n in counts.items() if n]


def _claims(count: int, verdict: str) -> str:
    noun = "claim " if count == 1 else "claims "
    if verdict == UNDECIDED:
        return f"{noun} without enough data"
    return noun + (verdict if count == 1 else verdict.replace("holds", "hold").replace("does", "do"))


def rows(
    verdicts: Sequence[Verdict], present: set[str], quick: set[str], commands: Mapping[str, str]
) -> list[ClaimRow]:
    """The rows of the table of claims."""
    out = []
    for v in verdicts:
        settings, comparisons = _comparisons(v)
        command = commands.get(v.experiment, "") if v.experiment not in present else ""
        chapter = KNOWN.get(v.experiment)
        out.append(ClaimRow(v, _chips(v, v.experiment in quick), settings, comparisons, chapter, command))
    return out


def _chips(v: Verdict, quick: bool) -> list[tuple[str, str, str]]:
    """The verdict with the paper's settings and with ours; only one where the comparisons are the same."""
    pairs = {PUBLISHED: v.verdict, THEORY: v.by_theory} if v.checks != v.checks_by_theory else {"": v.verdict}
    words = {settings: word(verdict, quick) for settings, verdict in pairs.items()}
    return [(chosen, STYLES[chosen], settings) for settings, chosen in words.items()]


def _comparisons(v: Verdict) -> tuple[list[str], list[tuple[str, list[Check | None]]]]:
    """The heads of the columns, and every comparison that was made with either settings."""
    theirs, ours = ({check.name: check for check in checks} for checks in (v.checks, v.checks_by_theory))
    sides = [theirs, ours] if v.checks != v.checks_by_theory else [theirs]
    found = [(name, [side.get(name) for side in sides]) for name in dict.fromkeys([*theirs, *ours])]
    made = [(name, checks) for name, checks in found if any(c is not None and c.passed is not None for c in checks)]
    return ([PUBLISHED, THEORY] if len(sides) > 1 else ["Figures"]), made


def named(words: str) -> Markup:
    """A sentence of the judge's with the names of methods and data sets as people write them, as HTML.

    >>> print(named("ascd on fashion-mnist"))
    ASCD on Fashion-MNIST
    """
    return scripts(_NAMES.sub(lambda match: _WORDS[match[0]], words))
