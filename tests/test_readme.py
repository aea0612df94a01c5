"""What the README says is true: its Python runs, its tables name what there is, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twofold import algorithms, objectives
from twofold.cli import app

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that stand after running all blocks, one after the other, as a reader would."""
    names: dict[str, Any] = {"__name__": "__main__"}  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for i, block in enumerate(blocks("python")):
            exec(compile(block, f"README.md, block {i}", "exec"), names)  # our own text
    return names


def test_the_ten_lines_are_ten_lines() -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip() and not line.startswith("#")]
    after_the_data = lines[next(i for i, line in enumerate(lines) if line.startswith("clients")) :]
    assert len(after_the_data) + 2 <= 10  # and the two imports


def test_the_blocks_run_and_come_to_good_ends(after: dict[str, Any]) -> None:
    assert after["result"].status == "converged"
    assert 0 < after["again"].ledger.rounds < 30
    assert after["liked"].status == "converged"
    assert after["liked"].beta.shape == (4,)


def test_the_own_algorithm_is_gradient_descent_in_both_engines(after: dict[str, Any]) -> None:
    fast, slow, problem = after["fast"], after["slow"], after["problem"]
    assert abs(fast.history["loss"][-1] - slow.history["loss"][-1]) < 1e-10
    assert (np.diff(fast.history["loss"]) < 0).all()
    assert fast.ledger.floats_up == slow.ledger.floats_up == 50 * problem.start[0].size


def test_the_tables_name_everything_there_is_with_its_equation() -> None:
    for name, make in objectives.REGISTRY.items():
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}(")]
        module = __import__(make.__module__, fromlist=["_"])
        (equation,) = {c.equation for c in vars(module).values() if getattr(c, "__module__", "") == make.__module__
                       and hasattr(c, "equation")}  # fmt: skip
        assert equation in row
    missing = [name for name in algorithms.REGISTRY if f"| `{name}` |" not in TEXT]
    assert not missing, f"algorithms without a line in the README: {missing}"


def test_the_commands_exist() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    used = set(re.findall(r"^twofold (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE))
    assert used == known
    makefile = README.with_name("Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_the_files_it_names_are_there() -> None:
    for path in re.findall(r"examples/\w+\.toml", TEXT):
        assert (README.parent / path).is_file()
    for path in re.findall(r"objectives/\w+\.py", TEXT):
        assert (README.parent / "src" / "twofold" / path).is_file()
