"""Puts every mutant of mutants.toml into a copy of src/ and runs the tests that must notice it: `make mutants`.

    python tests/mutants.py                     all of them
    python tests/mutants.py asvrcd "the judge"  those whose name contains one of these words

A mutant is killed when its tests fail. One that survives, one whose text is not in the file exactly once, and one that breaks
the import or names no test are faults, and the exit status says so. First all named tests run on src/ as it is: tests that
are red anyway kill nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "twofold"
WORKERS = int(os.environ.get("WORKERS") or os.cpu_count() or 1)
SECONDS = 600
"""How long a mutant's tests may take; one that hangs them is killed, too."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: in a file of the package one text in place of another, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def written(self, package: Path) -> str:
        """The file with the mistake in it."""
        text = (package / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise LookupError(f"{self.file} has its text {found} times: {self.old!r}")
        return text.replace(self.old, self.new)


def read() -> list[Mutant]:
    """The list in mutants.toml."""
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for each in listed]


def run_tests(source: Path, tests: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run some tests with the package in `source`."""
    env = os.environ | {"PYTHONPATH": str(source), "PYTEST_XDIST_WORKER": "mutants"}  # one thread each, see conftest.py
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def fate(mutant: Mutant) -> str:
    """What became of a mutant: killed, or what is wrong."""
    with tempfile.TemporaryDirectory(prefix="twofold-mutant-") as folder:
        package = Path(folder) / "twofold"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            (package / mutant.file).write_text(mutant.written(package), encoding="utf-8")
            done = run_tests(Path(folder), mutant.tests, "-x", "--tb=line")
        except (LookupError, OSError) as error:
            return f"not there: {error}"
        except subprocess.TimeoutExpired:
            return "killed"
    return {0: "SURVIVED", 1: "killed"}.get(
        done.returncode, f"no test ran:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )


def main(words: Sequence[str]) -> int:
    """Judge the mutants whose name contains one of the words (default: all); the number of faults."""
    chosen = [mutant for mutant in read() if not words or any(word in mutant.name for word in words)]
    began, faults = time.monotonic(), 0
    everyone = sorted({test for mutant in chosen for test in mutant.tests})
    print(f"{len(chosen)} mutants. First their tests on the package as it is ...", flush=True)
    healthy = run_tests(PACKAGE.parent, everyone, "--tb=line")
    if healthy.returncode:
        print(f"RED WITHOUT A MUTANT\n{healthy.stdout[-4000:]}{healthy.stderr[-2000:]}")
        return 1
    with ThreadPoolExecutor(WORKERS) as threads:
        for mutant, found in zip(chosen, threads.map(fate, chosen), strict=True):
            print(f"{mutant.file:<26} {mutant.name:<76} {found}", flush=True)
            faults += found != "killed"
    print(f"{len(chosen)} mutants, {faults} faults, {time.monotonic() - began:.0f} s")
    return faults


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
