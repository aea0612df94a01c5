"""The table of end points: the last value of every series, with the published one below it and the optimum below both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from twofold.report.figures import FIELDS, Series, at, distinct, layout, number, titles
from twofold.report.words import LABELS, Chapter, title

__all__ = ["Ends", "Head", "Line", "TableCell", "end_points", "last"]

FEW_ROWS = 16
"""A table with at most this many rows is open from the start."""
CAPTION = "The last point of each series, ± one standard error; below it, where it is known, the paper’s."


class TableCell(NamedTuple):
    """One cell of the table."""

    value: str
    spread: str = ""  # one standard error
    diverged: str = ""  # "2 of 30", where runs diverged
    paper: str = ""  # the published value


class Line(NamedTuple):
    """A row of the table: one line of the figure with one kind of settings, or an optimum."""

    name: str
    variant: str
    cells: list[TableCell]


class Head(NamedTuple):
    """A row above the rows of one problem: the problem, and the heads of its columns."""

    name: str
    heads: list[str]


@dataclass(frozen=True)
class Ends:
    """The table, with the reasons for which published values differ from ours."""

    short: str
    caption: str
    head: list[str]
    columns: list[str]  # heads of the columns of values, where the table has only one problem
    width: int
    rows: list[Line | Head]
    notes: Mapping[str, str]  # reason → its mark
    folded: bool
    open: bool
    count: int


def end_points(chapter: Chapter, series: Sequence[Series], known: Sequence[Series]) -> Ends:
    """A table with one block per problem, one row per line and kind of settings, one column per panel.

    `known` are the published end points.
    """
    values = distinct(chapter, series)
    lines, across = layout(chapter, values)
    place = {field: {value: i for i, value in enumerate(values[field])} for field in FIELDS}
    apart = [field for field in ("metric", "objective", "dataset", "level", "method") if field not in (lines, across)]

    def order(s: Series, *fields: str) -> tuple[int, ...]:
        return tuple(place[field].get(s.get(field), -1) for field in fields)

    blocks: dict[tuple[int, ...], list[Series]] = {}
    for s in sorted(series, key=lambda s: order(s, *apart, lines, "variant", across)):
        blocks.setdefault(order(s, *apart), []).append(s)
    rows: list[Line | Head] = []
    columns: list[str] = []
    widths = [1]
    notes: dict[str, str] = {}
    for block in blocks.values():
        found = sorted({s.get(across) for s in block}, key=lambda v: place[across].get(v, -1))
        widths.append(len(found))
        heads = titles(across, found, chapter, block) if found != [None] else ["value"]
        problem = [title(f, block[0][f], chapter, block[0].get("dataset")) for f in apart if len(values[f]) > 1]
        if problem:
            rows.append(Head(" · ".join(problem), heads))
        else:
            columns = heads
        rows += _lines(block, found, (lines, across), chapter, known, notes)
        rows += _optima(block, found, across)
    count = sum(isinstance(row, Line) for row in rows)
    timed = chapter.metrics == ("seconds",)
    return Ends(
        short=chapter.short,
        caption=chapter.caption if timed else CAPTION,
        head=[LABELS[lines], LABELS["variant"]],
        columns=columns,
        width=max(widths),
        rows=rows,
        notes=notes,
        folded=not timed,
        open=count <= FEW_ROWS,
        count=count,
    )


def _lines(
    block: Sequence[Series],
    columns: Sequence[Any],
    fields: tuple[str, str],
    chapter: Chapter,
    known: Sequence[Series],
    notes: dict[str, str],
) -> Iterator[Line]:
    """One row for each line and kind of settings of a block; `fields` tell lines, and columns, apart."""
    lines, across = fields
    found: dict[tuple[Any, Any], dict[Any, Series]] = {}
    for s in block:
        found.setdefault((s.get(lines), s.get("variant")), {})[s.get(across)] = s
    for (line, variant), cells in found.items():
        name = title(lines, line, chapter, block[0].get("dataset")) if line is not None else ""
        yield Line(name, variant or "", [_cell(cells.get(c), known, notes) for c in columns])


def _cell(series: Series | None, known: Sequence[Series], notes: dict[str, str]) -> TableCell:
    """Our end point beside the paper's."""
    if series is None:
        return TableCell("–")
    ours, spread = last(series["mean"]), last(series.get("stderr"))
    runs, diverged = series.get("runs") or 1, series.get("diverged") or 0
    return TableCell(
        value="–" if ours is None else f"{ours:.4g}",
        spread=_spread(spread) if ours is not None and spread else "",
        diverged=f"{diverged} of {runs}" if diverged else "",
        paper=_paper(series, known, notes),
    )


def _paper(series: Series, known: Sequence[Series], notes: dict[str, str]) -> str:
    """The published end point of a series; where ours should differ from it, with a mark that leads to the reason."""
    end, where = last(series.get("rounds")), at(series)
    for point in known:
        if all(where.get(field, value) == value for field, value in at(point).items()):
            mark = "" if point.get("sound", True) or not point.get("why") else _mark(point["why"], notes)
            when = f" at round {point['round']}" if point.get("round", end) != end else ""
            return f"{point['value']:.4g}{when}{mark}"
    return ""


def _spread(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _mark(why: str, notes: dict[str, str]) -> str:
    """*, †, ‡, …: the same mark for the same reason."""
    return notes.setdefault(why, "*†‡§¶#"[len(notes) % 6])


def _optima(block: Sequence[Series], columns: Sequence[Any], across: str) -> list[Line]:
    """The minimum of each problem to twelve digits; only once if all variants share it."""
    best: dict[Any, dict[Any, float]] = {}
    for s in block:
        value = number(s.get("optimum"))
        if value is not None:
            best.setdefault(s.get("variant"), {})[s.get(across)] = value
    if len(best) > 1 and len({tuple(sorted(map(repr, found.items()))) for found in best.values()}) == 1:
        best = {"": next(iter(best.values()))}
    return [
        Line("optimum", variant or "", [TableCell(f"{found[c]:.12g}" if c in found else "–") for c in columns])
        for variant, found in best.items()
    ]


def last(values: object) -> float | int | None:
    """The last value of a series, if it is a number.

    >>> last([0.5, 0.25]), last([1.0, None]), last(None)
    (0.25, None, None)
    """
    return number(values[-1]) if isinstance(values, list) and values else None
