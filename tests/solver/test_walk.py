"""How far one `solve` walks through the package: these numbers may only fall."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import twofold

MOST_FILES, MOST_FUNCTIONS, MOST_EDGES = 42, 312, 104
"""What `python benchmarks/walk.py` prints today (aim: 15 files and 120 functions). Lower them whenever it prints less."""


def test_one_solve_walks_no_further_than_before():
    script = Path(__file__).parents[2] / "benchmarks" / "walk.py"
    environment = {"PYTHONPATH": str(Path(twofold.__file__).parents[1]), "PATH": ""}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    found = re.search(r"(\d+) files, (\d+) functions, (\d+) edges .* traced (\d+) times", done.stdout)
    assert found is not None, done.stdout
    files, functions, edges, traced = map(int, found.groups())
    assert files <= MOST_FILES
    assert functions <= MOST_FUNCTIONS
    assert edges <= MOST_EDGES
    assert traced <= 2
