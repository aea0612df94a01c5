"""Tables to read and to keep: text that fits a terminal, HTML for a notebook, LaTeX for a paper, CSV and Parquet files."""
# pandas and pyarrow come without types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import csv
import os
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from twofold.extras import require

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["WIDTH", "Table", "aligned", "html", "latex", "write_csv", "write_parquet"]

WIDTH = 80
"""The width of a standard terminal, in characters."""
FilePath = str | os.PathLike[str]
Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""A table as a mapping from column names to values (sequences or NumPy arrays)."""


@dataclass(frozen=True)
class Table:
    """A table of texts whose first column names the row; the other columns are right-aligned unless named in `left`.

    Printing it gives text at most 80 characters wide; in a notebook it is shown as HTML. `columns` holds the same values as
    numbers, for `to_pandas`, `to_csv` and `to_parquet`; without it these write the texts.

    >>> print(Table("Two runs", ["", "rounds"], [["acd", "12"], ["lsgd", "1,024"]]))
    Two runs
          rounds
    acd       12
    lsgd   1,024
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    columns: Columns = field(default_factory=dict[str, Sequence[Any]])
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        lines = aligned([self.head, *self.rows], WIDTH, left=[i for i, h in enumerate(self.head) if h in self.left])
        told = [line for note in self.notes for line in textwrap.wrap(note, WIDTH)]
        return "\n".join([*textwrap.wrap(self.title, WIDTH), *lines, *told])

    def to_html(self) -> str:
        """Give the table as HTML, as the last line of a notebook's cell shows it.

        >>> Table("", ["", "rounds"], [["acd", "12"]]).to_html().count("<td")
        2
        """
        return html(
            self.head, self.rows, self.title, [i for i, h in enumerate(self.head) if h in self.left], self.notes
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_latex(self, path: FilePath | None = None) -> str:
        """The table as LaTeX (package booktabs); written to `path` if one is given.

        >>> print(Table("", ["", "rounds"], [["acd", "12"]]).to_latex().splitlines()[4])
        acd & 12 \\\\
        """
        return _written(latex(self.head, self.rows, self.title), path)

    def to_pandas(self) -> DataFrame:
        """The table as a pandas DataFrame (needs pandas).

        >>> Table(
        ...     "", ["method", "rounds"], [["acd", "12"]], columns={"method": ["acd"], "rounds": [12]}
        ... ).to_pandas().rounds.sum()
        np.int64(12)
        """
        return require("pandas", "Table.to_pandas", "sklearn").DataFrame(dict(self._by_column()))

    def to_csv(self, path: FilePath) -> Path:
        """Write the table as CSV, and return the path.

        >>> import tempfile
        >>> Table("", ["", "rounds"], [["acd", "12"]]).to_csv(Path(tempfile.mkdtemp()) / "a.csv").read_text()
        'name,rounds\\nacd,12\\n'
        """
        return write_csv(path, self._by_column())

    def to_parquet(self, path: FilePath) -> Path:
        """Write the table as Parquet (needs pyarrow), and return the path.

        >>> import tempfile
        >>> Table("", ["", "rounds"], [["acd", "12"]]).to_parquet(Path(tempfile.mkdtemp()) / "a.parquet").name
        'a.parquet'
        """
        return write_parquet(path, self._by_column())

    def _by_column(self) -> Columns:
        if self.columns:
            return self.columns
        return {name or "name": [row[i] for row in self.rows] for i, name in enumerate(self.head)}


def aligned(lines: Sequence[Sequence[str]], width: int = WIDTH, left: Collection[int] = ()) -> list[str]:
    """Lines of text for rows of cells, at most `width` wide; the first column and those in `left` are left-aligned.

    If the table is too wide, the widest columns are wrapped at spaces, the first column only after all others. Words are broken
    only if nothing else helps. No cell is ever cut off.

    >>> for line in aligned([["", "n"], ["a", "12"], ["bc", "3"]]):
    ...     print(line)
         n
    a   12
    bc   3
    >>> max(map(len, aligned([["a name of many words that goes on", "7"]], width=20)))
    20
    """
    if not lines:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    room = max(width - 2 * (len(widths) - 1), len(widths))
    least = [max([1, *(len(word) for cell in column for word in cell.split())]) for column in zip(*lines, strict=True)]
    while sum(widths) > room:
        able = [i for i, (now, need) in enumerate(zip(widths, least, strict=True)) if now > need]
        widest = max([i for i in able if i] or able or range(len(widths)), key=lambda i: widths[i])  # names last
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    out: list[str] = []
    for line in lines:
        cells = [textwrap.wrap(cell, n) or [""] for cell, n in zip(line, widths, strict=True)]
        for k in range(max(map(len, cells))):
            parts = [cell[k] if k < len(cell) else "" for cell in cells]
            placed = (
                part.ljust(n) if i == 0 or i in left else part.rjust(n)
                for i, (part, n) in enumerate(zip(parts, widths, strict=True))
            )  # fmt: skip
            out.append("  ".join(placed).rstrip())
    return out


def html(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    left: Collection[int] = (),
    notes: Sequence[str] = (),
) -> str:
    """A table as HTML, with everything escaped: for `_repr_html_` in notebooks.

    >>> html(["", "n"], [["a<b", "1"]], title="t")[:52]
    '<table><caption style="text-align:left">t</caption><'
    """

    def cell(tag: str, i: int, text: str) -> str:
        side = "left" if i == 0 or i in left else "right"
        return f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>'

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(tag, i, text) for i, text in enumerate(cells))}</tr>"

    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    body = "".join(line("td", row) for row in rows)
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table>{caption}<thead>{line('th', head)}</thead><tbody>{body}</tbody></table>{told}"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "∇": r"$\nabla$", "β": r"$\beta$", "λ": r"$\lambda$",
    "Λ": r"$\Lambda$", "α": r"$\alpha$", "μ": r"$\mu$", "η": r"$\eta$", "ρ": r"$\rho$", "σ": r"$\sigma$", "−": "$-$",
    "±": r"$\pm$", "×": r"$\times$", "√": r"$\surd$", "≥": r"$\geq$", "≤": r"$\leq$",
    "∞": r"$\infty$", "–": "--", "𝓛": r"$\mathcal{L}$",
}  # fmt: skip


def latex(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    r"""A table as LaTeX, for the package booktabs; special characters are escaped and Greek letters become math symbols.

    >>> print(latex(["", "λ"], [["50 %", "0.1"]]))
    \begin{tabular}{lr}
    \toprule
     & $\lambda$ \\
    \midrule
    50 \% & 0.1 \\
    \bottomrule
    \end{tabular}
    """

    def safe(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(safe, cells)) + r" \\"

    inside = "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", line(head), r"\midrule", *map(line, rows),
         r"\bottomrule", r"\end{tabular}"]
    )  # fmt: skip
    if not caption:
        return inside
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{safe(caption)}}}", inside, r"\end{table}"])


def write_csv(path: FilePath, columns: Columns) -> Path:
    """Write columns as CSV, and return the path; a missing folder is created.

    >>> import tempfile
    >>> write_csv(Path(tempfile.mkdtemp()) / "a.csv", {"round": [0, 1], "loss": [0.5, 0.25]}).read_text().split()
    ['round,loss', '0,0.5', '1,0.25']
    """
    path = _ready(path)
    plain = [getattr(values, "tolist", lambda values=values: values)() for values in columns.values()]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([list(columns), *zip(*plain, strict=True)])
    return path


def write_parquet(path: FilePath, columns: Columns) -> Path:
    """Write columns as Parquet (needs pyarrow), and return the path.

    >>> import tempfile
    >>> write_parquet(Path(tempfile.mkdtemp()) / "a.parquet", {"round": [0, 1]}).name
    'a.parquet'
    """
    arrow = require("pyarrow", "A Parquet file", "paper")
    path = _ready(path)
    require("pyarrow.parquet", "A Parquet file", "paper").write_table(arrow.table(dict(columns)), path)
    return path


def _written(text: str, path: FilePath | None) -> str:
    if path is not None:
        _ready(path).write_text(text + "\n", encoding="utf-8")
    return text


def _ready(path: FilePath) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
