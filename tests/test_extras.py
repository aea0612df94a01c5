"""Without an optional library there is one sentence, with the command that installs it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from twofold import demo, evaluate, paper, plots
from twofold.data import partition, picture, tables
from twofold.errors import MissingExtra
from twofold.extras import require
from twofold.paper import cells, figures
from twofold.report import markup, sheet
from twofold.result import History

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "jinja2": "paper", "markupsafe": "paper", "matplotlib": "paper", "plotly": "paper", "pooch": "paper", "pyarrow": "paper",
    "pandas": "sklearn", "sklearn": "sklearn",
}  # fmt: skip


def hide(library: str, patch: pytest.MonkeyPatch) -> None:
    """Make a library look as if it were not installed, whatever has been imported of it."""
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        patch.setitem(sys.modules, name, None)
    patch.setitem(sys.modules, library, None)


def frame() -> None:
    History({"round": np.arange(2)}).to_pandas()


def csv(path: Path) -> None:
    path.write_text("client,x,y\na,1,0\n")
    tables.read_csv(path, target="y", client="client")


CALLS: list[tuple[str, Callable[[Path], object], str]] = [
    ("pandas", lambda _: frame(), "History.to_pandas"),
    ("pandas", lambda _: tw.Results([]).to_pandas(), "Results.to_pandas"),
    ("pandas", lambda _: evaluate.Comparison([]).to_pandas(), "Comparison.to_pandas"),
    ("sklearn", lambda _: demo.data(demo.Setting()), "The demo"),
    ("pyarrow", lambda path: csv(path / "rows.csv"), "Reading a CSV file"),
    ("pyarrow", lambda path: paper.reproduce("mx2", path, quick=True), "`twofold reproduce`"),
    ("pyarrow", lambda _: cells._table(tw.Results([]), {}), "`twofold reproduce`"),
    ("matplotlib", lambda path: paper.reproduce("mx2", path, quick=True), "`twofold reproduce`"),
    ("matplotlib", lambda path: figures.draw(paper.load("mx2"), {"series": []}, path), "A figure"),
    ("matplotlib", lambda path: plots.clients(evaluate.Comparison([]), path / "x.png"), "A plot"),
    (
        "matplotlib",
        lambda path: picture.who_got_what(partition.power_law(9, 2, 1.0), None, path),
        "A picture of a part",
    ),
    ("plotly", lambda _: sheet._library.__wrapped__(), "The report"),
    ("markupsafe", lambda _: markup.rich("x"), "The report"),
    ("jinja2", lambda _: markup.templates(), "The report"),
]


@pytest.mark.parametrize(("library", "call", "what"), CALLS)
def test_a_missing_library_is_one_sentence(
    library: str, call: Callable[[Path], object], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(library, monkeypatch)
    markup.templates.cache_clear()
    install = re.escape(f"pip install 'twofold[{OPTIONAL[library]}]'")
    with pytest.raises(
        MissingExtra, match=rf"^{re.escape(what)}.* needs {library}, which is not installed: {install}$"
    ):
        call(tmp_path)
    assert not (tmp_path / ".cells").exists()  # before anything was run


def test_what_is_there_is_imported() -> None:
    assert require("collections.abc", "Nothing", "paper").Mapping is not None


def test_a_library_that_is_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise ImportError('half installed')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="half installed") as caught:
        require("broken_library", "Nothing", "paper")
    assert not isinstance(caught.value, MissingExtra)


def test_extras_are_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=\[ ]", line)[0].replace("scikit-learn", "sklearn") for line in requirements}

    assert not names(project["dependencies"]) & set(OPTIONAL)
    for library, extra in OPTIONAL.items():
        assert library in names(extras[extra]) or library == "markupsafe"  # which jinja2 brings
    (ours,) = [line for line in extras["dev"] if line.startswith("twofold[")]
    assert set(ours[8:-1].split(",")) == set(extras) - {"bench", "dev", "docs"}


def test_no_optional_library_is_imported_when_a_module_is(monkeypatch: pytest.MonkeyPatch) -> None:
    behind_a_guard = {path for path in (ROOT / "src/twofold/sklearn").glob("*.py") if path.name != "__init__.py"}
    for path in {*(ROOT / "src").rglob("*.py")} - behind_a_guard:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            found = {"Import": lambda n: [a.name for a in n.names], "ImportFrom": lambda n: [n.module or ""]}
            tops = {name.split(".")[0] for name in found.get(type(node).__name__, lambda _: [])(node)}
            assert not tops & set(OPTIONAL), path
