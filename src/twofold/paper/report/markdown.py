"""The results of a folder as one Markdown document for a repository: verdicts, end points, optima, times and figures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twofold.errors import InputError
from twofold.extras import require
from twofold.paper.base import LABELS
from twofold.paper.book import Book
from twofold.paper.judge import compare, decide, table

__all__ = ["write"]

HEAD = """# Every experiment of the paper, run again

Written by `twofold report DIR --markdown FILE` from the results of `twofold reproduce` in DIR; nothing here was typed by hand.
Each claim has a rule that anyone can read (`twofold.paper.claims`): it *holds* if at most one of its
comparisons in ten fails, *in part* if at least half of them pass, and otherwise *does not hold*. `as published` has the
paper's settings with its slips corrected, `by theory` sets nothing by hand. The page that `twofold report DIR` makes shows the
same with every comparison and interactive curves.
"""


def write(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write the document, and the figures that decide the claims into a folder of the same name beside it."""
    book, out = Book.read(folder), Path(out)
    if not book.documents:
        raise InputError(f"There are no results in {folder}: run `twofold reproduce all --out {folder}` first.")
    verdicts = decide(book)
    drawn = dict.fromkeys(name for verdict in verdicts for name in verdict.figures)
    pictures = {name: path for name in drawn if (path := Path(folder) / "figures" / f"{name}.png").exists()}
    parts = [
        HEAD,
        _made_by(book),
        "## The claims\n\n" + table(verdicts),
        "## Published end points beside ours\n\n" + _points(folder),
        "## Optima\n\nThe minimum of each convex problem that has a minimiser, from a Newton or L-BFGS method that shares no "
        "code with the algorithms.\n\n" + _optima(book),
        "## Seconds per 1,000 rounds\n\n" + _seconds(book) if "times" in book.documents else "",
        "## Figures\n\n" + "\n\n".join(f"![{name}]({out.stem}/{name}.png)" for name in pictures) if pictures else "",
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    for name, path in pictures.items():
        _small(path, out.parent / out.stem / f"{name}.png")
    return out


def _small(source: Path, target: Path) -> None:
    """Copy a figure with fewer colours, at a quarter of the size; nobody could see a difference in lines and letters."""
    require("PIL", "Copying a figure", "paper")  # it comes with matplotlib
    from PIL import Image

    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as image:
        image.convert("RGB").quantize(96).save(target, optimize=True)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _made_by(book: Book) -> str:
    rows, found = [], {}
    for name, document in book.documents.items():
        found = document["environment"]
        quick = ", **a quick run**" if document["settings"].get("quick") else ""
        rows.append(
            [name, document.get("title", "") + quick, f"`{document['settings']['command']}`", f"{found['seconds']:.0f}"]
        )
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = f"{found['cpu']}, {found['cores']} cores, {found['device']}; Python {found['python']}, {versions}; {found['date']}."
    files = dict.fromkeys(line for document in book.documents.values() for line in document["settings"].get("data", ()))
    told = _rows(["experiment", "what", "command", "seconds"], rows)
    return f"{machine}\n\n{told}\n\nData:\n\n" + "\n".join(f"- {line}" for line in files)


def _labels(labels: Mapping[str, Any]) -> list[str]:
    return [
        "" if (value := labels.get(name)) is None else f"{value:g}" if isinstance(value, float) else str(value)
        for name in LABELS
    ]


def _points(folder: str | os.PathLike[str]) -> str:
    def cells(found: Any) -> list[str]:
        point = found.point
        spread = f" ± {found.stderr:.1g}" if found.stderr else ""
        verdict = "yes" if found.agrees else "no" if point.sound else "need not: " + point.why
        return [
            point.experiment, *_labels(vars(point)), point.metric, f"{point.value:.4f}", f"{found.ours:.4f}{spread}", verdict,
        ]  # fmt: skip

    rows = [cells(found) for found in compare(folder) if found.ours is not None]
    told = "`agrees`: within 1 % or three standard errors of the difference.\n\n"
    return told + _rows(["experiment", *LABELS, "metric", "paper", "ours", "agrees"], rows)


def _optima(book: Book) -> str:
    names = ("variant", "objective", "dataset", "level")
    rows: dict[tuple[str, ...], None] = {}
    for document in book.documents.values():
        for found in document["optimum"]:
            if found.get("value") is None:
                continue
            size = found.get("gradient_norm")
            where = dict(zip(LABELS, _labels(found), strict=True))
            told = f"{found['value']:.12g}", "" if size is None else f"{size:.0e}"
            rows[(document["experiment"], *(where[name] for name in names), *told)] = None
    return _rows(["experiment", *names, "F*", "‖∇F‖"], rows)


def _seconds(book: Book) -> str:
    rows = [
        [row["method"], row["variant"], row["objective"], f"{row['level']:g}", f"{row['published']:.2f}", f"{row['seconds']:.2f}"]
        for row in book.documents["times"]["table"]
    ]  # fmt: skip
    return _rows(["method", "variant", "objective", "σ_h", "paper, one laptop core", "ours"], rows)
