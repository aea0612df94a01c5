"""`twofold report DIR`: one self-contained HTML page out of the results in a folder.

Words and tables are written here; page.js draws the figures. Everything is inlined, and a content security policy
forbids any request: the page opens offline, and text out of a JSON file can never run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from twofold.report import figures
from twofold.report.chapters import CHAPTERS, KNOWN, Chapter, title
from twofold.report.slips import SLIPS, Slip

TITLE = "One objective, every solver: the paper’s claims, run again"
PAPER = (
    "F. Hanzely, B. Zhao, M. Kolar, <cite>Personalized Federated Learning: A Unified Framework and Universal "
    "Optimization Techniques</cite>, TMLR 2023"
)
CHIPS = {"holds": "holds", "holds in part": "part", "does not hold": "fails", "not enough data": "open"}
AREAS = {"algorithms": "Algorithms", "theory": "Theorems, lemmas and tables", "experiments": "Experiments"}

Document = dict[str, Any]


def write(folder: str | os.PathLike[str]) -> Path:
    """Write FOLDER/report.html from the result documents in the folder, and return its path."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: `twofold reproduce all --out {folder}` would make it.")
    path = folder / "report.html"
    text = page(folder)
    draft = path.with_suffix(".html.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)  # a reader never sees half a page
    return path


def page(folder: Path) -> str:
    """The page as text."""
    documents, unreadable = read(folder)
    pool, drawn = figures.Pool(), {}
    chapters = [*CHAPTERS, *(_unknown(name) for name in documents if name not in KNOWN)]
    sections = {
        chapter.name: _section(chapter, documents.get(chapter.name), unreadable.get(chapter.name), folder, pool, drawn)
        for chapter in chapters
    }
    verdicts = judged(folder)
    paper = [c for c in chapters if c.part == "paper"]
    beyond = [c for c in chapters if c.part == "beyond"]
    main = [
        _verdict_section(verdicts, set(documents), folder),
        '<section aria-labelledby="paper"><h2 id="paper">The paper’s experiments</h2>'
        "<p>Every figure answers to a click: choose what is drawn above it, hide a line in its legend, point at a curve for "
        "its numbers, drag to zoom and double-click to return. Bands are one standard error to each side.</p>"
        "<noscript><p class=missing>The figures need JavaScript. The tables below them hold the same end points.</p>"
        "</noscript>" + "".join(sections[c.name] for c in paper) + "</section>",
        '<section aria-labelledby="beyond"><h2 id="beyond">Beyond the paper</h2>'
        + "".join(sections[c.name] for c in beyond)
        + "</section>",
        _slip_section(),
        _environment_section(documents),
    ]
    contents = [
        ("verdicts", "Verdicts"),
        *((c.name, _short_name(c)) for c in (*paper, *beyond)),
        ("slips", "Slips"),
        ("environment", "Environment"),
    ]
    script, library = _asset("page.js"), _library()
    return Template(_asset("template.html")).substitute(
        title=escape(TITLE),
        policy=_policy(script, library),
        style=_asset("page.css"),
        lede=_lede(verdicts),
        contents="".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in contents),
        main="\n".join(main),
        footer=_footer(folder),
        data=_embedded({"figures": drawn, "pool": pool.arrays}),
        library=library,
        script=script,
    )


def read(folder: Path) -> tuple[dict[str, Document], dict[str, str]]:
    """The result documents of a folder by name, and for each file that is none, why."""
    documents: dict[str, Document] = {}
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            unreadable[path.stem] = f"{path.name} cannot be read: {error}"
            continue
        if not isinstance(document, dict) or not isinstance(document.get("series"), list):
            unreadable[path.stem] = f"{path.name} is no result document: it has no list “series”"
            continue
        documents[str(document.get("experiment") or path.stem)] = document
    return documents, unreadable


# --- sections ---------------------------------------------------------------------------------------------------------


def _lede(verdicts: Sequence[Mapping[str, Any]]) -> str:
    counts = {word: sum(v["verdict"] == word for v in verdicts) for word in CHIPS}
    tally = "".join(
        f'<li class="{CHIPS[word]}"><b>{count}</b> {_claims(count, word)}</li>' for word, count in counts.items() if count
    )
    return (
        f'<p class="lede">{PAPER}, proposes one objective for personalised federated learning and solvers for all of it. '
        "Here every experiment of the paper is run again, with its settings as they were really used and with step sizes "
        "from theory, and each claim gets a verdict from the numbers.</p>"
        f'<ul class="tally" aria-label="Verdicts in short">{tally}</ul>'
    )


def _claims(count: int, word: str) -> str:
    if word == "not enough data":
        return "claim without enough data" if count == 1 else "claims without enough data"
    if count == 1:
        return f"claim {word}"
    return "claims " + word.replace("holds", "hold").replace("does not", "do not")


def _verdict_section(verdicts: Sequence[Mapping[str, Any]], present: set[str], folder: Path) -> str:
    rows = []
    for v in verdicts:
        links = [
            f'<a href="#{escape(name)}">{escape(_short_name(KNOWN.get(name) or _unknown(name)))}</a>'
            for name in v["experiments"]
        ]
        missing = [name for name in v["experiments"] if name not in present]
        numbers = "".join(f"<li>{rich(number)}</li>" for number in v["numbers"])
        told = f"<p>{rich(v['why'])}</p>" if v["why"] else ""
        if numbers:
            told += f"<ul>{numbers}</ul>"
        if missing:
            commands = " and ".join(f"<code>{escape(_command(name, folder))}</code>" for name in missing)
            told += f'<p class="minor">Needs {commands}</p>'
        rows.append(
            f'<tr><th scope="row">{rich(v["claim"])}</th><td><span class="chip {CHIPS.get(v["verdict"], "open")}">'
            f"{escape(v['verdict'])}</span></td><td>{told}</td><td>{'<br>'.join(links)}</td></tr>"
        )
    return (
        '<section aria-labelledby="verdicts"><h2 id="verdicts">What the paper claims, and what we found</h2>'
        "<p>A rule fixed beforehand reads each verdict off the results in this folder; nobody chooses it by eye.</p>"
        f'{_scroll("Claims and verdicts")}<table class="verdicts"><thead><tr><th scope="col">Claim</th><th scope="col">'
        'Verdict</th><th scope="col">What decides it</th><th scope="col">Figures</th></tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div></section>"
    )


def _section(
    chapter: Chapter,
    document: Document | None,
    broken: str | None,
    folder: Path,
    pool: figures.Pool,
    drawn: dict[str, Any],
) -> str:
    """One experiment: its question, its figure, its end points beside the published ones, and how to run it."""
    name = escape(chapter.name)
    parts = [
        f'<article class="experiment" aria-labelledby="{name}"><h3 id="{name}">{rich(chapter.title)}</h3>',
        f'<p class="question">{rich(chapter.question)}</p>' if chapter.question else "",
    ]
    series = [s for s in (document or {}).get("series", []) if isinstance(s, dict)]
    if document is None or not series:
        why = escape(broken) if broken else "It has no series." if document else "This experiment is not in the folder."
        parts.append(f'<div class="missing"><p>{why} This command would make it:</p>{_pre(_command(chapter.name, folder))}</div>')
        return "".join([*parts, "</article>"])
    assert document is not None
    series = with_optimum(document, series)
    published = known_end_points(chapter.name)
    curves = [s for s in series if isinstance(s.get("mean"), list) and len(s["mean"]) > 1]
    if curves:
        drawn[chapter.name] = figures.payload(chapter, curves, published, pool)
        parts.append(
            f'<figure data-figure="{name}" id="figure-{name}"><div class="controls only-script"></div>'
            f'<ul class="legend only-legend" aria-label="Lines: press to show or hide"></ul><div class="panels"></div>'
            f"<figcaption>{_caption(chapter, series)}</figcaption></figure>"
        )
    parts += [_end_points(chapter, series, published), _how(chapter, document, folder), "</article>"]
    return "".join(parts)


def _caption(chapter: Chapter, series: Sequence[Mapping[str, Any]]) -> str:
    runs = sorted({int(s.get("runs") or 1) for s in series})
    words = f"Mean of {runs[0]} runs" if len(runs) == 1 else f"Mean of {runs[0]} to {runs[-1]} runs"
    averaged = "One run." if runs[-1] == 1 else f"{words}, with bands of one standard error."
    return f"{rich(chapter.caption)} {averaged}".strip()


def _end_points(chapter: Chapter, series: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]) -> str:
    """The last point of every series in a table, the published one below ours."""
    values = {field: figures.ordered(field, (s.get(field) for s in series)) for field in figures.FIELDS}
    lines, columns = figures.layout(chapter, values)
    if len(values[columns]) < 2:
        columns = next((f for f in ("level", "dataset", "objective") if f != lines and len(values[f]) > 1), columns)
    groups = [f for f in ("metric", "objective", "dataset", "level", "method") if f not in (lines, columns)]
    rows: dict[tuple[Any, ...], dict[tuple[Any, Any], dict[Any, Mapping[str, Any]]]] = {}
    for s in series:
        group = rows.setdefault(tuple(s.get(f) for f in groups), {})
        group.setdefault((s.get(lines), s.get("variant")), {})[s.get(columns)] = s
    order = {f: {v: i for i, v in enumerate(values[f])} for f in figures.FIELDS}
    heads = values[columns] or [None]
    body = []
    for group in sorted(rows, key=lambda g: [order[f].get(v, -1) for f, v in zip(groups, g, strict=True)]):
        names = [title(f, v, chapter) for f, v in zip(groups, group, strict=True) if len(values[f]) > 1]
        if names:
            body.append(f'<tr class="group"><th colspan="{len(heads) + 2}" scope="rowgroup">{rich(" · ".join(names))}</th></tr>')
        for line, variant in sorted(rows[group], key=lambda k: [order[lines].get(k[0], -1), order["variant"].get(k[1], -1)]):
            found = rows[group][line, variant]
            cells = "".join(f'<td class="n">{_cell(found.get(head), published)}</td>' for head in heads)
            body.append(
                f'<tr><th scope="row">{rich(title(lines, line, chapter))}</th><td>{rich(str(variant or ""))}</td>{cells}</tr>'
            )
        best = {head: s["optimum"] for row in rows[group].values() for head, s in row.items() if s.get("optimum") is not None}
        if best:
            cells = "".join(f'<td class="n">{best[h]:.12g}</td>' if h in best else "<td></td>" for h in heads)
            body.append(f'<tr><th scope="row">optimum</th><td></td>{cells}</tr>')
    top = "".join(f'<th scope="col" class="n">{rich(title(columns, head, chapter)) if head is not None else ""}</th>' for head in heads)
    count = sum(len(group) for group in rows.values())
    return (
        f"<details{' open' if count <= 12 else ''}><summary>End points in numbers ({count} rows)</summary>"
        f'{_scroll(f"End points of {chapter.title}")}<table><caption>The last point of each series, ± one standard error; below it, '
        f'where it is known, the paper’s.</caption><thead><tr><th scope="col">{rich(title_of(lines))}</th><th scope="col">'
        f"Settings</th>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div></details>"
    )


def _cell(series: Mapping[str, Any] | None, published: Sequence[Mapping[str, Any]]) -> str:
    """Our end point, and the paper's below it."""
    if series is None or not series.get("mean"):
        return "–"
    mean, stderr = _last(series["mean"]), _last(series.get("stderr"))
    text = "diverged" if mean is None else f"{mean:.4g}"
    if stderr:
        text += f' <span class="minor">± {stderr:.1g}</span>'
    same = [p for p in published if all(series.get(f) == v for f, v in figures.at(p).items() if f != "variant")]
    if same:
        text += f'<br><span class="minor">paper {same[0]["value"]:.4g}</span>'
    return text


def _last(values: Any) -> float | None:
    value = values[-1] if isinstance(values, list) and values else values
    return value if isinstance(value, int | float) and value == value else None


def _how(chapter: Chapter, document: Document, folder: Path) -> str:
    """The exact command, the seeds and every setting of one experiment."""
    settings = document.get("settings") if isinstance(document.get("settings"), dict) else {}
    command = settings.get("command") or _command(chapter.name, folder, quick=bool(settings.get("quick")))
    seconds = sum(s.get("seconds") or 0 for s in document["series"] if isinstance(s, dict))
    facts = _facts({key: value for key, value in settings.items() if key != "command"})
    took = f"<p>All series together took {seconds:,.1f} seconds.</p>" if seconds else ""
    return f"<details><summary>How to run this figure again: command, seeds, settings</summary>{_pre(command)}{took}{facts}</details>"


def _slip_section() -> str:
    rows = []
    for area, name in AREAS.items():
        rows.append(f'<tr class="group"><th colspan="5" scope="rowgroup">{name}</th></tr>')
        rows += [_slip_row(slip) for slip in SLIPS if slip.area == area]
    return (
        '<section aria-labelledby="slips"><h2 id="slips">Slips of the paper, and their effect</h2>'
        f"<p>{len(SLIPS)} places where what is printed, or what was run, is not what is meant. None of them touches the "
        "paper’s main idea; most drop a factor 1/M. Where a test of ours shows one, it is named.</p>"
        f'{_scroll("Slips")}<table class="slips"><thead><tr><th scope="col">Where</th><th scope="col">As printed</th>'
        '<th scope="col">Right</th><th scope="col">Effect</th><th scope="col">How we know</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _slip_row(slip: Slip) -> str:
    known = [rich(slip.evidence)] if slip.evidence else []
    known += [f"<code>{escape(test)}</code>" for test in slip.tests]
    cells = "".join(f"<td>{rich(text)}</td>" for text in (slip.printed, slip.right, slip.effect))
    return f'<tr><th scope="row">{rich(slip.where)}</th>{cells}<td>{"<br>".join(known)}</td></tr>'


def _environment_section(documents: Mapping[str, Document]) -> str:
    """Where the runs were made; experiments that share an environment share an entry."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, document in documents.items():
        environment = document.get("environment")
        if isinstance(environment, dict):
            found.setdefault(json.dumps(environment, sort_keys=True, default=str), (environment, []))[1].append(name)
    blocks = []
    for environment, names in found.values():
        which = "" if len(found) == 1 else f"<h3>{escape(', '.join(names))}</h3>"
        blocks.append(which + _facts(environment))
    if not blocks:
        blocks.append('<p class="missing">No result in this folder says where it was made.</p>')
    return (
        '<section aria-labelledby="environment"><h2 id="environment">Where this was run</h2>' + "".join(blocks) + "</section>"
    )


def _footer(folder: Path) -> str:
    from twofold import __version__  # noqa: PLC0415

    return (
        f"<p>Written by twofold {escape(__version__)} with <code>{escape(shlex.join(['twofold', 'report', str(folder)]))}</code> "
        "from the JSON documents beside it, which hold every point; the figures here show at most about "
        f"{figures.MOST_POINTS} points of a curve, its ends always among them. The page asks nothing of the network.</p>"
    )


# --- what the experiments know ----------------------------------------------------------------------------------------


def judged(folder: Path) -> list[dict[str, Any]]:
    """The judge's verdicts."""
    from twofold.experiments.judge import judge  # noqa: PLC0415

    return [
        {"claim": v.claim, "verdict": v.verdict, "why": v.why, "numbers": v.numbers, "experiments": v.experiments}
        for v in judge(folder)
    ]


def known_end_points(name: str) -> list[dict[str, Any]]:
    """The published end points of one experiment."""
    return []


def with_optimum(document: Document, series: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each series with the optimum of its own problem, where there is one."""
    return [dict(s) for s in series]


# --- small pieces -----------------------------------------------------------------------------------------------------


def rich(text: Any) -> str:
    """Escaped text in which `…` is a formula: ^ raises and _ lowers the next letters or the next parenthesis."""
    pieces = re.split(r"`([^`]*)`", escape(str(text)))
    return "".join(_formula(piece) if i % 2 else piece for i, piece in enumerate(pieces))


def _formula(text: str) -> str:
    for mark, tag in (("^", "sup"), ("_", "sub")):
        text = re.sub(rf"\{mark}(?:\(([^()]*)\)|([^\W_]+|[+*⊤]))", rf"<{tag}>\1\2</{tag}>", text)
    return f'<span class="m">{text}</span>'


def _facts(facts: Mapping[str, Any]) -> str:
    """A mapping as a list of terms; what is nested inside is written as JSON."""
    items = []
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        items.append(f"<dt>{escape(str(key).replace('_', ' '))}</dt><dd>{escape(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""


def _pre(text: str) -> str:
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def _scroll(label: str) -> str:
    """A box in which a wide table scrolls, by keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'


def _command(name: str, folder: Path, quick: bool = False) -> str:
    return shlex.join(["twofold", "reproduce", name, "--out", str(folder), *(["--quick"] if quick else [])])


def _unknown(name: str) -> Chapter:
    """A chapter for a result that this page has no words for."""
    return Chapter(name, name, "", part="beyond")


def _short_name(chapter: Chapter) -> str:
    return chapter.name


def _asset(name: str) -> str:
    return resources.files("twofold.report").joinpath(name).read_text(encoding="utf-8")


def _library() -> str:
    """plotly.js, out of the installed package; nothing in it may end the script element."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    return get_plotlyjs().replace("</script", "<\\/script")


def _embedded(data: Any) -> str:
    """JSON that may stand inside a script element: no tag can open or close in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(*scripts: str) -> str:
    """Only our own scripts run, and nothing is ever fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
