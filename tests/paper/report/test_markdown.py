"""The Markdown document: verdicts, end points, optima, times and figures of a folder, all read from its files."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from paper.report.made_up import make_up
from twofold.paper import judge, write_markdown


def test_the_document(tmp_path: Path):
    folder = make_up(tmp_path / "results", only=("mx2", "times"))
    (folder / "figures").mkdir()
    figure = plt.figure()
    figure.savefig(folder / "figures" / "mx2-as-published.png")
    plt.close(figure)
    out = write_markdown(folder, tmp_path / "docs" / "told.md")
    text = out.read_text()
    for verdict in judge(folder):
        assert f"| {verdict.claim} | {verdict.verdict} | {verdict.by_theory} |" in text
    assert "| mx2 | ascd | as published | mixture | synthetic | 0.1 | loss | 0.2822 |" in text
    assert "| ews |" not in text
    assert (out.parent / "told" / "mx2-as-published.png").stat().st_size > 0
    assert "![mx2-as-published](told/mx2-as-published.png)" in text
    assert "mx2-by-theory" not in text  # it was not drawn
    assert "## Seconds per 1,000 rounds" in text


def test_an_empty_folder(tmp_path: Path):
    with pytest.raises(ValueError, match="There are no results in .*: run `twofold reproduce all"):
        write_markdown(tmp_path, tmp_path / "told.md")
