"""`twofold report DIR`: one self-contained HTML page out of the results in a folder.

Words and tables are written here; page.js draws the figures. Everything is inlined, and a content security policy
forbids every request: the page opens offline, and text out of a JSON file can never run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from twofold.paper import published
from twofold.paper.judge import Verdict
from twofold.paper.report import endpoints, figures
from twofold.paper.report.chapters import CHAPTERS, KNOWN, Chapter, title
from twofold.paper.report.claims import claims, judged, tally
from twofold.paper.report.markup import column, command, facts, group, more, rich, row, scripts, table, tag, text
from twofold.paper.report.slips import SLIPS, Slip

TITLE = "One objective, many solvers: the paper’s claims, run again"
PAPER = (
    "F. Hanzely, B. Zhao and M. Kolar, <cite>Personalized Federated Learning: A Unified Framework and Universal "
    "Optimization Techniques</cite> (TMLR 2023)"
)
AREAS = {"algorithms": "Algorithms", "theory": "Theorems, lemmas and tables", "experiments": "Experiments"}

Document = dict[str, Any]
Series = Mapping[str, Any]


def write(folder: str | os.PathLike[str]) -> Path:
    """Write FOLDER/report.html from the result documents in the folder, and return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; `twofold reproduce all --out {folder}` would make it.")
    path, draft = folder / "report.html", folder / f".report.html.{os.getpid()}.part"
    try:
        draft.write_text(page(folder), encoding="utf-8")
        draft.replace(path)  # a reader never sees half a page
    finally:
        draft.unlink(missing_ok=True)
    return path


def page(folder: Path) -> str:
    """The page as text."""
    documents, unreadable = read(folder)
    verdicts = judged(documents)
    quick = {name for name, document in documents.items() if _mapping(document.get("settings")).get("quick")}
    commands = {chapter.name: _reproduce(chapter.name, folder) for chapter in CHAPTERS}
    pool, drawn = figures.Pool(), {}
    chapters = [*CHAPTERS, *(Chapter(name, name, name, "", part="beyond") for name in documents if name not in KNOWN)]
    articles: dict[str, list[str]] = {"paper": [], "beyond": []}
    for chapter in chapters:
        name = chapter.name
        articles[chapter.part].append(_article(chapter, documents.get(name), unreadable.get(name), folder, pool, drawn))
    main = [
        _section("verdicts", CLAIMS, tag("p", JUDGED), claims(verdicts, set(documents), quick, commands)),
        _section(
            "paper", "The paper’s experiments", tag("p", HOW_TO_READ), tag("noscript", NO_SCRIPT), *articles["paper"]
        ),
        _section("beyond", "Beyond the paper", *articles["beyond"]),
        _slips(),
        _environment(documents),
    ]
    in_order = sorted(chapters, key=lambda chapter: chapter.part != "paper")
    places = {
        "verdicts": "Verdicts",
        **{c.name: c.short for c in in_order},
        "errata": "Slips",
        "environment": "Environment",
    }
    script, library = _asset("page.js"), _library()
    return Template(_asset("template.html")).substitute(
        title=TITLE,
        policy=_policy(library, script),
        style=_asset("page.css"),
        lede=_lede(verdicts, quick),
        contents="".join(tag("li", tag("a", scripts(short), href=f"#{name}")) for name, short in places.items()),
        main="\n".join(main),
        footer=_footer(folder),
        data=_embedded({"figures": drawn, "pool": pool.arrays}),
        library=library,
        script=script,
    )


def read(folder: Path) -> tuple[dict[str, Document], dict[str, str]]:
    """The result documents of a folder by name, and for each JSON file that is none, why."""
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
            unreadable[path.stem] = f"{path.name} is no result: it has no list “series”."
    return documents, unreadable


# --- the top ----------------------------------------------------------------------------------------------------------

HOW_TO_READ = (
    "Every figure answers: choose above it what is drawn, hide a line in its legend, point at a curve for its numbers, "
    "drag to zoom, double-click to return. Bands are one standard error to each side, diamonds published end points."
)
CLAIMS = "What the paper claims, and what we found"
JUDGED = (
    "Each claim has a rule, shown with it; it reads the verdict off the results in this folder, with "
    "the settings of the published runs and with ours."
)
NO_SCRIPT = '<p class="missing">The figures need JavaScript. The tables below them hold the same end points.</p>'


def _lede(verdicts: Sequence[Verdict], quick: set[str]) -> str:
    told = tag(
        "p",
        f"{PAPER} propose one objective for personalised federated learning, and solvers for all of it. Here every "
        "experiment of the paper is run again, with the settings that were really used and with steps from theory, "
        "and each claim gets a verdict from the numbers.",
        class_="lede",
    )
    hasty = tag(
        "p",
        f"Quick runs, which decide nothing: {', '.join(sorted(map(text, quick)))}. Without {tag('code', '--quick')} the "
        "same commands make the real ones.",
        class_="missing",
    )
    return told + tally(verdicts, quick) + (hasty if quick else "")


# --- experiments ------------------------------------------------------------------------------------------------------


def _article(
    chapter: Chapter,
    document: Document | None,
    broken: str | None,
    folder: Path,
    pool: figures.Pool,
    drawn: dict[str, Any],
) -> str:
    """One experiment: its question, its figure, its end points beside the published ones, and how to run it."""
    name = chapter.name
    parts = [
        tag("h3", rich(chapter.title), id=name),
        tag("p", rich(chapter.question), class_="question") if chapter.question else "",
    ]
    found = shown(chapter, document) if document else []
    if document is None or not found:
        why = broken or ("This experiment is not in the folder." if document is None else "There is no series to show.")
        missing = tag("p", text(why), " This command would make it:") + command(_reproduce(name, folder))
        parts.append(tag("div", missing, class_="missing"))
    else:
        known = _published(chapter)
        curves = [s for s in found if figures.drawable(s)]
        if curves:
            drawn[name] = figures.payload(chapter, curves, known, pool)
            parts.append(
                tag(
                    "figure",
                    tag("div", class_="controls"),
                    tag("ul", class_="legend", aria_label="Lines; press one to hide or show it"),
                    tag("div", class_="panels"),
                    tag("figcaption", _caption(chapter, curves)),
                    data_figure=name,
                    id=f"figure-{name}",
                )
            )
        if any(s.get("metric") != "rounds" for s in found):
            parts.append(endpoints.end_points(chapter, found, known))
        parts.append(_how(chapter, document, folder))
    return tag("article", *parts, class_="experiment", aria_labelledby=name)


def shown(chapter: Chapter, document: Document) -> list[Series]:
    """The series of a document that its chapter shows; a table of times shows each run's seconds as its only point."""
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
    """The published end points of one experiment; for the times, the paper's two tables."""
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
    return f"{rich(chapter.caption)} {averaged}".strip()


def _how(chapter: Chapter, document: Document, folder: Path) -> str:
    """The exact command, the seeds and the settings of one experiment, and which data files were used."""
    settings = document.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    line = str(settings.get("command") or _reproduce(chapter.name, folder, bool(settings.get("quick"))))
    if "--out" not in line:
        line += f" --out {shlex.quote(str(folder))}"
    cells = [about for about in settings.get("cells") or [] if isinstance(about, dict)]
    told = {"seeds": _seeds(cells, settings), **_mapping(settings.get("facts")), "data": settings.get("data")}
    notes = dict.fromkeys(str(note) for about in cells for note in about.get("notes") or [])
    if notes:
        told["notes of the solvers"] = list(notes)
    return more(
        "How this figure was made: command, seeds, settings",
        command(line),
        facts({key: value for key, value in told.items() if value}),
        _hyper(chapter, cells),
    )


def _seeds(cells: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """0 to 29, not thirty numbers."""
    found = {tuple(_mapping(about.get("cell")).get("seeds") or ()) for about in cells} or {
        tuple(settings.get("seeds") or ())
    }
    spans = []
    for seeds in sorted(s for s in found if s):
        run = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
        spans.append(f"{seeds[0]} to {seeds[-1]}" if run else ", ".join(map(str, seeds)))
    return "; ".join(spans)


def _hyper(chapter: Chapter, cells: Sequence[Mapping[str, Any]]) -> str:
    """Every hyper-parameter that a run really had."""
    rows = []
    for about in cells:
        cell, hyper = _mapping(about.get("cell")), _mapping(about.get("hyper"))
        names = [
            title(f, cell[f], chapter, cell.get("dataset"))
            for f in figures.FIELDS
            if cell.get(f) is not None and f != "method"
        ]
        numbers = ", ".join(f"{name} = {_short(value)}" for name, value in hyper.items() if value is not None)
        rows.append(row(scripts(title("method", cell.get("method"))), scripts(" · ".join(names)), text(numbers)))
    if not rows:
        return ""
    head = [column("Method"), column("Where"), column("Hyper-parameters")]
    return more(f"Hyper-parameters of all {len(rows)} runs", table(head, rows, f"Hyper-parameters of {chapter.short}"))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- the rest ---------------------------------------------------------------------------------------------------------


def _slips() -> str:
    rows = []
    for area, name in AREAS.items():
        rows.append(group(name, 5))
        rows += [_slip(slip) for slip in SLIPS if slip.area == area]
    head = [column(name) for name in ("Where", "As printed", "Right", "Effect", "How we know")]
    told = (
        f"{len(SLIPS)} places where what is printed, or what was run, is not what was meant. None of them touches the "
        "paper’s main idea; many drop a factor 1/M. Where one of our tests shows a slip, the test is named."
    )
    return _section(
        "errata", "Slips of the paper, and their effect", tag("p", told), table(head, rows, "Slips", class_="slips")
    )


def _slip(slip: Slip) -> str:
    known = [rich(slip.evidence)] if slip.evidence else []
    known += [tag("code", text(test).replace("_", "_<wbr>")) for test in slip.tests]
    return row(rich(slip.where), rich(slip.printed), rich(slip.right), rich(slip.effect), "<br>".join(known))


def _environment(documents: Mapping[str, Document]) -> str:
    """Where the runs were made; experiments that share a machine share an entry."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, document in documents.items():
        there = {k: v for k, v in _mapping(document.get("environment")).items() if k not in ("date", "seconds")}
        if there:
            when = _mapping(document["environment"]).get("date")
            made = f"{name} ({when})" if when else name
            found.setdefault(json.dumps(there, sort_keys=True, default=str), (there, []))[1].append(made)
    blocks = [facts({"experiments": names, **there}) for there, names in found.values()]
    nothing = tag("p", "No result in this folder says where it was made.", class_="missing")
    return _section("environment", "Where this was run", *(blocks or [nothing]))


def _footer(folder: Path) -> str:
    line = tag("code", text(shlex.join(["twofold", "report", str(folder)])))
    return tag(
        "p",
        f"Written by {line} from the JSON documents beside it; the Parquet files hold every run and every round. This page "
        "asks nothing of the network.",
    )


# --- small pieces -----------------------------------------------------------------------------------------------------


def _section(name: str, heading: str, *content: str) -> str:
    return tag("section", tag("h2", heading, id=name), *content, aria_labelledby=name)


def _reproduce(name: str, folder: Path, quick: bool = False) -> str:
    return shlex.join(["twofold", "reproduce", name, "--out", str(folder), *(["--quick"] if quick else [])])


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _asset(name: str) -> str:
    return resources.files("twofold.paper.report").joinpath(name).read_text(encoding="utf-8")


def _library() -> str:
    """plotly.js out of the installed package; nothing in it may end the script element."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")


def _embedded(data: Any) -> str:
    """JSON that may stand inside a script element: no tag can open or close in it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _policy(*trusted: str) -> str:
    """Only these scripts run, and nothing is ever fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in trusted)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
