"""How far one `solve` walks through the package: these numbers may only fall."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import twofold

PACKAGE = Path(twofold.__file__).parent
MOST_FILES, MOST_FUNCTIONS, MOST_EDGES = 42, 312, 104
"""What `python benchmarks/walk.py` prints today (aim: 15 files and 120 functions). Lower them whenever it prints less."""


def test_one_solve_walks_no_further_than_before():
    script = Path(__file__).parents[2] / "benchmarks" / "walk.py"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}  # and the flags of conftest.py
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    found = re.search(r"(\d+) files, (\d+) functions, (\d+) edges .* traced (\d+) times", done.stdout)
    assert found is not None, done.stdout
    files, functions, edges, traced = map(int, found.groups())
    assert files <= MOST_FILES
    assert functions <= MOST_FUNCTIONS
    assert edges <= MOST_EDGES
    assert traced <= 2


def test_the_page_tells_these_numbers_and_the_engines_lines():
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    assert f"finds {MOST_FUNCTIONS} functions in {MOST_FILES} files" in page
    told = re.search(r"have about ([\d,]+) lines", page)
    assert told is not None
    files = [*(PACKAGE / "engines").glob("*.py"), PACKAGE / "kernels.py", PACKAGE / "control.py"]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    assert abs(lines / int(told[1].replace(",", "")) - 1) < 0.02, lines
