"""The table of the paper's claims: the judge's verdict on each, its rule, and every comparison that decides it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from twofold.paper.base import LABELS, PUBLISHED, THEORY
from twofold.paper.judge import FAILS, HOLDS, IN_PART, Book, Check, Verdict, decide
from twofold.paper.report.chapters import DATASETS, KNOWN, METHODS
from twofold.paper.report.markup import column, more, row, scripts, table, tag, text

UNDECIDED = "not enough data"
CHIPS = {HOLDS: "holds", IN_PART: "part", FAILS: "fails", UNDECIDED: "open"}
"""The four words of a verdict, and the class of each in page.css."""

_WORDS = {name: words[0] for name, words in METHODS.items() if name.isidentifier() and name not in ("hybrid", "theory")}
_WORDS |= {name: words for name, words in DATASETS.items() if name != words}
_WORDS |= {"multitask": "multi-task", "weight_sharing": "weight sharing", "lower_bound": "lower-bound instance"}
_NAMES = re.compile(rf"(?<![\w-])({'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})(?![\w-])")


def judged(documents: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """The judge's verdicts on these documents; series without a value are left out, and labels without one are None."""
    blank = dict.fromkeys((*LABELS, "metric", "rounds"))
    return decide(
        Book(
            {"settings": {}, **document, "experiment": name, "series": [{**blank, **s} for s in _sound(document)]}
            for name, document in documents.items()
        )
    )


def _sound(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    series = (s for s in document["series"] if isinstance(s, dict) and isinstance(s.get("mean"), list) and s["mean"])
    return [s for s in series if s["mean"][0] is not None or s.get("metric") == "rounds"]


def word(verdict: str, quick: bool) -> str:
    """One of the four words; a quick run decides nothing, whatever its numbers say."""
    return verdict if verdict in CHIPS and not quick else UNDECIDED


def tally(verdicts: Sequence[Verdict], quick: set[str]) -> str:
    """How many claims got which verdict."""
    found = [word(v.verdict, v.experiment in quick) for v in verdicts]
    counts = {verdict: found.count(verdict) for verdict in CHIPS}
    items = (tag("li", tag("b", str(n)), _claims(n, v), class_=CHIPS[v]) for v, n in counts.items() if n)
    return tag("ul", *items, class_="tally", aria_label="Verdicts in short")


def _claims(count: int, verdict: str) -> str:
    noun = "claim " if count == 1 else "claims "
    if verdict == UNDECIDED:
        return f"{noun} without enough data"
    return noun + (verdict if count == 1 else verdict.replace("holds", "hold").replace("does", "do"))


def claims(verdicts: Sequence[Verdict], present: set[str], quick: set[str], commands: Mapping[str, str]) -> str:
    """The table: the claim, its verdict with the paper's settings and with ours, what decides it, where to look."""
    rows = []
    for v in verdicts:
        hasty = v.experiment in quick
        told = [tag("p", named(v.because))]
        if v.note:
            told.append(tag("p", named(v.note), class_="minor"))
        if v.experiment in commands and v.experiment not in present:
            told.append(tag("p", "This would run it: ", tag("code", text(commands[v.experiment])), class_="minor"))
        told.append(_comparisons(v))
        where = tag("span", text(v.where), class_="minor where")
        known = KNOWN.get(v.experiment)
        link = tag("a", scripts(known.short), href=f"#{v.experiment}") if known else "no run needed"
        rows.append(row(named(v.claim) + where, _chips(v, hasty), "".join(told), link))
    head = [column(name) for name in ("Claim", "Verdict", "What decides it", "Figure")]
    return table(head, rows, "Claims and verdicts", class_="verdicts")


def _chips(v: Verdict, quick: bool) -> str:
    """The verdict with the paper's settings and with ours; once, where there is only one kind of settings."""
    if v.checks == v.checks_by_theory:
        return _chip(word(v.verdict, quick))
    pairs = ((PUBLISHED, v.verdict), (THEORY, v.by_theory))
    return "".join(
        tag("div", _chip(word(verdict, quick)), tag("span", settings, class_="minor"), class_="side")
        for settings, verdict in pairs
    )


def _chip(verdict: str) -> str:
    return tag("span", text(verdict), class_=f"chip {CHIPS[verdict]}")


def _comparisons(v: Verdict) -> str:
    """The rule, and each comparison that it asks for with its figures."""
    both = v.checks != v.checks_by_theory
    ours = {check.name: check for check in v.checks_by_theory}
    names = dict.fromkeys([check.name for check in v.checks] + list(ours))
    first = {check.name: check for check in v.checks}
    rows = [
        row(named(name), _outcome(first.get(name)), *([_outcome(ours.get(name))] if both else []))
        for name in names
        if any(check is not None and check.passed is not None for check in (first.get(name), ours.get(name)))
    ]
    head = [column("Comparison"), *(column(name) for name in ((PUBLISHED, THEORY) if both else ("Figures",)))]
    rule = tag("p", tag("b", "Rule. "), named(v.rule))
    count = f"{len(rows)} comparisons" if len(rows) != 1 else "one comparison"
    shown = table(head, rows, f"Comparisons: {v.claim}", class_="checks") if rows else ""
    return more(f"The rule, and {count}" if rows else "The rule", rule, shown)


def _outcome(check: Check | None) -> str:
    if check is None or check.passed is None:
        return tag("span", "not run", class_="minor")
    mark = tag("span", "✓" if check.passed else "✕", class_="near" if check.passed else "far", aria_hidden="true")
    said = tag("span", "as claimed: " if check.passed else "not as claimed: ", class_="hear")
    numbers = ", ".join(f"{named(name)} {value:.4g}" for name, value in check.figures.items())
    return f"{mark} {said}{numbers}"


def named(words: str) -> str:
    """A sentence of the judge's, with the names of methods and data sets as one writes them; escaped."""
    return scripts(_NAMES.sub(lambda match: _WORDS[match[0]], words))
