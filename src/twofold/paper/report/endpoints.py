"""The last point of every series in a table, the published one below ours, and the optimum below both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twofold.paper.report.chapters import LABELS, Chapter, title
from twofold.paper.report.figures import FIELDS, Series, at, distinct, layout, number, titles
from twofold.paper.report.markup import column, more, rich, row, scripts, table, tag, text

FEW_ROWS = 16
"""With at most so many rows the table is open from the start."""
CAPTION = "The last point of each series, ± one standard error; below it, where it is known, the paper’s."


def end_points(chapter: Chapter, series: Sequence[Series], known: Sequence[Series]) -> str:
    """A table with one block for each problem, one row for each line and variant, one column for each panel."""
    values = distinct(chapter, series)
    lines, across = layout(chapter, values)
    place = {field: {value: i for i, value in enumerate(values[field])} for field in FIELDS}
    apart = [field for field in ("metric", "objective", "dataset", "level", "method") if field not in (lines, across)]

    def key(s: Series, *fields: str) -> tuple[int, ...]:
        return tuple(place[field].get(s.get(field), -1) for field in fields)

    blocks: dict[tuple[int, ...], list[Series]] = {}
    for s in sorted(series, key=lambda s: key(s, *apart, lines, "variant", across)):
        blocks.setdefault(key(s, *apart), []).append(s)
    columns = {
        k: sorted({s.get(across) for s in block}, key=lambda v: place[across].get(v, -1)) for k, block in blocks.items()
    }
    width = max(len(found) for found in columns.values())
    notes: dict[str, str] = {}
    first = [column(LABELS[lines]), column(LABELS["variant"])]
    rows: list[str] = []
    for k, block in blocks.items():
        told = [title(f, block[0][f], chapter, block[0].get("dataset")) for f in apart if len(values[f]) > 1]
        heads = [scripts(h) for h in titles(across, columns[k], chapter, block)] if columns[k] != [None] else ["value"]
        if told:
            rows.append(_head(" · ".join(told), heads, width))
        else:
            first += [column(head, numbers=True) for head in heads]
        rows += _lines(block, columns[k], width, lines, across, chapter, known, notes)
        rows += _optima(block, columns[k], width, across)
    if len(first) == 2:
        first.append(tag("td", colspan=width))
    why = (
        [tag("p", "<br>".join(f"{mark} {text(why)}" for why, mark in notes.items()), class_="minor notes")]
        if notes
        else []
    )
    count = sum(not row.startswith('<tr class="group"') for row in rows)
    timed = chapter.metrics == ("seconds",)
    made = table(
        first, rows, f"End points of {chapter.short}", rich(chapter.caption) if timed else CAPTION, class_="ends"
    )
    if timed:
        return "".join([made, *why])
    return more(f"End points in numbers ({count} rows)", made, *why, open_=count <= FEW_ROWS)


def _head(name: str, heads: Sequence[str], width: int) -> str:
    """The row above a block: its problem, and its columns."""
    cells = [tag("th", head, scope="col", class_="n") for head in heads] + ["<td></td>"] * (width - len(heads))
    return tag("tr", tag("th", scripts(name), scope="rowgroup", colspan=2), *cells, class_="group")


def _lines(
    block: Sequence[Series],
    columns: Sequence[Any],
    width: int,
    lines: str,
    across: str,
    chapter: Chapter,
    known: Sequence[Series],
    notes: dict[str, str],
) -> list[str]:
    """One row for each line and variant of a block."""
    found: dict[tuple[Any, Any], dict[Any, Series]] = {}
    for s in block:
        found.setdefault((s.get(lines), s.get("variant")), {})[s.get(across)] = s
    rows = []
    for (line, variant), cells in found.items():
        name = scripts(title(lines, line, chapter, block[0].get("dataset"))) if line is not None else ""
        written = [_cell(cells.get(c), known, notes) for c in columns]
        rows.append(row(name, text(variant or ""), *written, *[""] * (width - len(columns)), words=1))
    return rows


def _cell(series: Series | None, known: Sequence[Series], notes: dict[str, str]) -> str:
    """Our end point, and the paper's; where ours should differ from it, a mark that leads to the reason."""
    if series is None:
        return "–"
    ours = last(series["mean"])
    out = "–" if ours is None else f"{ours:.4g}"
    spread = last(series.get("stderr"))
    if ours is not None and spread:
        out += f' <span class="minor">± {_spread(spread)}</span>'
    runs, diverged = series.get("runs") or 1, series.get("diverged") or 0
    if diverged:
        out += f'<br><span class="far">{diverged} of {runs} diverged</span>'
    end = last(series.get("rounds"))
    where = at(series)
    for point in known:
        if all(where.get(field, value) == value for field, value in at(point).items()):
            mark = "" if point.get("sound", True) or not point.get("why") else _mark(point["why"], notes)
            when = f" at round {point['round']}" if point.get("round", end) != end else ""
            out += f'<br><span class="minor">paper {point["value"]:.4g}{when}{mark}</span>'
            break
    return out


def _spread(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _mark(why: str, notes: dict[str, str]) -> str:
    """*, †, ‡, …: the same mark for the same reason."""
    return notes.setdefault(why, "*†‡§¶#"[len(notes) % 6])


def _optima(block: Sequence[Series], columns: Sequence[Any], width: int, across: str) -> list[str]:
    """The minimum of each problem to twelve digits; once, if all variants share it."""
    best: dict[Any, dict[Any, float]] = {}
    for s in block:
        value = number(s.get("optimum"))
        if value is not None:
            best.setdefault(s.get("variant"), {})[s.get(across)] = value
    if len(best) > 1 and len({tuple(sorted(map(repr, found.items()))) for found in best.values()}) == 1:
        best = {"": next(iter(best.values()))}
    return [
        row(
            "optimum",
            text(variant or ""),
            *(f"{found[c]:.12g}" if c in found else "–" for c in columns),
            *[""] * (width - len(columns)),
            words=1,
        )
        for variant, found in best.items()
    ]


def last(values: Any) -> float | int | None:
    """The last value of a series, if it is a number."""
    return number(values[-1]) if isinstance(values, list) and values else None
