"""`twofold report DIR`: one self-contained HTML page with the results in a folder.

The templates hold the page's words and tables; page.js draws the figures. Everything is inlined, and a content security
policy forbids every request: the page works offline, and no text from a JSON file can ever run.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twofold.paper import published
from twofold.paper.report import endpoints, verdicts
from twofold.paper.report.chapters import CHAPTERS, KNOWN
from twofold.paper.report.slips import SLIPS
from twofold.report import figures
from twofold.report.markup import templates
from twofold.report.sheet import REPORT, render, write_page
from twofold.report.words import Chapter, title

__all__ = ["Article", "page", "read", "shown", "write"]

TITLE = "One objective, many solvers: the paper’s claims, run again"
AREAS = {"algorithms": "Algorithms", "theory": "Theorems, lemmas and tables", "experiments": "Experiments"}

Document = dict[str, Any]
Series = Mapping[str, Any]


def write(folder: str | os.PathLike[str]) -> Path:
    """Write FOLDER/report.html from the result documents in the folder, and return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; `twofold reproduce all --out {folder}` would make it.")
    return write_page(folder / REPORT, page(folder))


def page(folder: Path) -> str:
    """The page as text."""
    documents, unreadable = read(folder)
    found = verdicts.judged(documents)
    quick = {name for name, document in documents.items() if _mapping(document.get("settings")).get("quick")}
    commands = {chapter.name: _reproduce(chapter.name, folder) for chapter in CHAPTERS}
    chapters = [*CHAPTERS, *(Chapter(name, name, name, "", part="beyond") for name in documents if name not in KNOWN)]
    pool, drawn = figures.Pool(), {}
    articles = []
    for chapter in chapters:
        document = documents.get(chapter.name)
        articles.append(_article(chapter, document, unreadable.get(chapter.name), folder))
        curves = _curves(chapter, document)
        if curves:
            drawn[chapter.name] = figures.payload(chapter, curves, _published(chapter), pool)
    environment = templates("twofold.paper.report")
    environment.filters |= {"named": verdicts.named}
    return render(
        environment,
        "page.html",
        {"figures": drawn, "pool": pool.arrays},
        title=TITLE,
        tally=verdicts.tally(found, quick),
        quick=sorted(quick),
        contents=_contents([article.chapter for article in articles if not article.missing]),
        claims=verdicts.rows(found, set(documents), quick, commands),
        run=[article for article in articles if not article.missing],
        unrun=[article for article in articles if article.missing],
        slips=SLIPS,
        areas=AREAS,
        environments=_environments(documents),
        command=shlex.join(["twofold", "report", str(folder)]),
    )


def read(folder: Path) -> tuple[dict[str, Document], dict[str, str]]:
    """The result documents of a folder by name; and for each JSON file that is not one, the reason."""
    documents: dict[str, Document] = {}
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            unreadable[path.stem] = f"{path.name} cannot be read: {error}."
            continue
        if isinstance(document, dict) and isinstance(document.get("series"), list):
            documents[path.stem] = document
        else:
            unreadable[path.stem] = f"{path.name} is not a result: it has no list “series”."
    return documents, unreadable


# --- experiments --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Article:
    """One experiment on the page: its question, its figure, its end points beside the published ones, how to run it."""

    chapter: Chapter
    command: str
    missing: str = ""  # why there is nothing to show
    caption: str = ""  # of the figure, where there is one
    ends: endpoints.Ends | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    hyper: Sequence[tuple[str, str, str]] = ()  # method, where, hyper-parameters of each run


def _article(chapter: Chapter, document: Document | None, broken: str | None, folder: Path) -> Article:
    found = shown(chapter, document) if document else []
    if document is None or not found:
        why = broken or ("This experiment is not in the folder." if document is None else "There is no series to show.")
        return Article(chapter, _reproduce(chapter.name, folder), missing=why)
    settings = _mapping(document.get("settings"))
    cells = [about for about in settings.get("cells") or [] if isinstance(about, dict)]
    curves = _curves(chapter, document)
    has_values = any(s.get("metric") != "rounds" for s in found)
    return Article(
        chapter,
        command=_command(chapter, settings, folder),
        caption=_caption(chapter, curves) if curves else "",
        ends=endpoints.end_points(chapter, found, _published(chapter)) if has_values else None,
        facts=_facts(settings, cells),
        hyper=[_hyper_parameters(chapter, about) for about in cells],
    )


def _curves(chapter: Chapter, document: Document | None) -> list[Series]:
    return [s for s in shown(chapter, document) if figures.drawable(s)] if document else []


def shown(chapter: Chapter, document: Document) -> list[Series]:
    """The series of a document that its chapter shows; in the table of times, each run's seconds are its only point."""
    found = [s for s in document["series"] if isinstance(s, dict)]
    if chapter.metrics == ("seconds",):
        timed = (s for s in found if s.get("metric") == "loss" and figures.number(s.get("seconds")) is not None)
        rounds = ((s, endpoints.last(s.get("rounds")) or 1000) for s in timed)
        return [{**figures.at(s), "metric": "seconds", "mean": [s["seconds"] * 1000 / k]} for s, k in rounds]
    return [
        s
        for s in found
        if isinstance(s.get("mean"), list) and (not chapter.metrics or s.get("metric") in chapter.metrics)
    ]


def _published(chapter: Chapter) -> list[dict[str, Any]]:
    """The published end points of one experiment; for the times, those are the paper's two tables."""
    if chapter.metrics != ("seconds",):
        return published.points(chapter.name)
    return [
        {
            "objective": objective,
            "method": method,
            "level": level,
            "variant": published.Point.variant,
            "metric": "seconds",
            "value": value,
        }
        for (objective, method, level), value in published.SECONDS.items()
    ]


def _caption(chapter: Chapter, series: Sequence[Series]) -> str:
    runs = sorted({int(s.get("runs") or 1) for s in series})
    if runs[-1] == 1:
        averaged = "One run."
    else:
        averaged = f"Mean of {runs[0]} runs." if len(runs) == 1 else f"Mean of {runs[0]} to {runs[-1]} runs."
    return f"{chapter.caption} {averaged}".strip()


def _command(chapter: Chapter, settings: Mapping[str, Any], folder: Path) -> str:
    """The command that makes this experiment again, with its folder."""
    line = str(settings.get("command") or _reproduce(chapter.name, folder, bool(settings.get("quick"))))
    return line if "--out" in line else f"{line} --out {shlex.quote(str(folder))}"


def _facts(settings: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seeds and settings of an experiment, and which data files were used."""
    notes = dict.fromkeys(str(note) for about in cells for note in about.get("notes") or [])
    told = {
        "seeds": _seeds(cells, settings),
        **_mapping(settings.get("facts")),
        "data": settings.get("data"),
        "notes of the solvers": list(notes),
    }
    return {key: value for key, value in told.items() if value}


def _seeds(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """Seeds in a few words: 0 to 29 rather than thirty numbers."""
    found = {tuple(_mapping(about.get("cell")).get("seeds") or ()) for about in cells}
    found = found or {tuple(settings.get("seeds") or ())}
    spans = []
    for seeds in sorted(s for s in found if s):
        run = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
        spans.append(f"{seeds[0]} to {seeds[-1]}" if run else ", ".join(map(str, seeds)))
    return "; ".join(spans)


def _hyper_parameters(chapter: Chapter, about: Mapping[str, Any]) -> tuple[str, str, str]:
    """A run's method, its place in the experiment, and every hyper-parameter that it really had."""
    cell, hyper = _mapping(about.get("cell")), _mapping(about.get("hyper"))
    names = [
        title(f, cell[f], chapter, cell.get("dataset"))
        for f in figures.FIELDS
        if cell.get(f) is not None and f != "method"
    ]
    numbers = ", ".join(f"{name} = {_short(value)}" for name, value in hyper.items() if value is not None)
    return title("method", cell.get("method")), " · ".join(names), numbers


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- the rest -----------------------------------------------------------------------------------------------------------


def _contents(chapters: Sequence[Chapter]) -> dict[str, str]:
    """Every place of the page by the name of its anchor."""
    in_order = sorted(chapters, key=lambda chapter: chapter.part != "paper")
    places = {chapter.name: chapter.short for chapter in in_order}
    return {**places, "verdicts": "Verdicts", "errata": "Slips", "environment": "Environment"}


def _environments(documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """Where the runs were made; experiments that ran on the same machine share an entry."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, document in documents.items():
        there = {k: v for k, v in _mapping(document.get("environment")).items() if k not in ("date", "seconds")}
        if there:
            when = _mapping(document["environment"]).get("date")
            made = f"{name} ({when})" if when else name
            found.setdefault(json.dumps(there, sort_keys=True, default=str), (there, []))[1].append(made)
    return [{"experiments": names, **there} for there, names in found.values()]


def _reproduce(name: str, folder: Path, quick: bool = False) -> str:
    return shlex.join(["twofold", "reproduce", name, "--out", str(folder), *(["--quick"] if quick else [])])


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
