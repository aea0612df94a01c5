"""Runs of one's own: sweeps that resume and overwrite nothing, tables that say which is better, a page about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import twofold as tw
from paper.report.made_up import make_up
from problems import CONFIG
from twofold.cli import app
from twofold.config.sweep import axis, folder_name
from twofold.report import runs as reading
from twofold.report.versus import _interval, compare

GRID = ["--grid", "objective.lam=0.1,1,10", "--out", "sw", "--set", "partition.test=0.4"]


class Done:
    def __init__(self, *arguments: str) -> None:
        result = CliRunner().invoke(app, list(arguments))
        self.code, self.output = result.exit_code, result.output
        self.line = " ".join(result.output.split())


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"TWOFOLD_NO_CACHE": "1", "NO_COLOR": "1", "COLUMNS": "80", "TERMINAL_WIDTH": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG, encoding="utf-8")


def times(folder: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(folder).rglob("*") if path.is_file()}


# --- sweep ------------------------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_cell_and_says_which_is_best() -> None:
    done = Done("sweep", "small.toml", *GRID, "--seeds", "2")
    assert done.code == 0, done.output
    assert [path.name for path in sorted(Path("sw").iterdir())] == [f"objective.lam={v}" for v in ("0.1", "1", "10")]
    for lam in (0.1, 1, 10):
        folder = Path(f"sw/objective.lam={lam}")
        assert [result.seed for result in tw.Results.load(folder)] == [0, 1]
        assert json.loads((folder / "run.json").read_text())["measure"] == "accuracy"
    assert "No difference can be told on" in done.line  # after four rounds of few rows
    assert max(map(len, done.output.splitlines())) <= 80 and "…" not in done.output


def test_a_sweep_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Done("sweep", "small.toml", *GRID, "-q").code == 0
    before = times("sw")
    monkeypatch.setattr("twofold.config.Config.build", lambda self: pytest.fail("a finished cell was run again"))
    done = Done("sweep", "small.toml", *GRID)
    assert done.code == 0 and "of which 3 are finished already" in done.line
    assert times("sw") == before
    monkeypatch.undo()
    monkeypatch.chdir(Path.cwd())


def test_only_what_is_missing_or_was_interrupted_is_run() -> None:
    import shutil

    assert Done("sweep", "small.toml", *GRID, "-q").code == 0
    shutil.rmtree("sw/objective.lam=1")
    broken = Path("sw/objective.lam=10/result.json")
    broken.write_text(broken.read_text().replace('"status": "budget"', '"status": "interrupted"'))
    kept = times("sw/objective.lam=0.1")
    done = Done("sweep", "small.toml", *GRID)
    assert done.code == 0 and "1 are finished" in done.line and "2/2" in done.line
    assert times("sw/objective.lam=0.1") == kept
    assert tw.Result.load("sw/objective.lam=10").status == "budget"


def test_a_sweep_never_overwrites_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Done("sweep", "small.toml", *GRID, "--seeds", "3", "-q").code == 0
    before = times("sw")
    with monkeypatch.context() as patch:
        patch.setattr("twofold.config.Config.build", lambda self: pytest.fail("it has started to work"))
        refused = Done("sweep", "small.toml", *GRID, "--seeds", "2")
    assert refused.code == 2 and "run.seeds is 3 there, 2 here" in refused.line
    assert times("sw") == before
    assert Done("sweep", "small.toml", *GRID, "--seeds", "2", "--force", "-q").code == 0
    assert sorted(path.name for path in Path("sw").glob("*/seed-*")) == ["seed-0", "seed-1"] * 0 + sorted(
        ["seed-0", "seed-1"] * 3
    )
    fewer = Done("sweep", "small.toml", "--grid", "objective.lam=1", *GRID[2:], "--seeds", "2")
    assert fewer.code == 0 and "runs that are not in this grid, and were left alone: objective.lam=0.1" in fewer.line


def test_a_sweep_checks_its_folder_and_all_its_cells_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twofold.config.Config.build", lambda self: pytest.fail("it has started to work"))
    Path("file").write_text("")
    done = Done("sweep", "small.toml", "--grid", "objective.lam=1", "--out", "file")
    assert done.code == 2 and "file" in done.line and "name another folder" in done.line
    done = Done("sweep", "small.toml", "--grid", "objective.lam=1,-1", "--grid", "stop.rounds=0,2")
    assert done.code == 2 and "lam=-1" in done.line and "stop.rounds = 0" in done.line
    for grid, sentence in [
        ("objective.lam", "not of the form"),
        ("objective.lam=1,1", "a value twice"),
        ("objective.lam=", "no value"),
    ]:
        assert sentence in Done("sweep", "small.toml", "--grid", grid).line
    assert "a key twice" in Done("sweep", "small.toml", "--grid", "objective.lam=1", "--grid", "objective.lam=2").line


def test_names_of_cells() -> None:
    assert axis('objective.name="a,b",c').values == ('"a', 'b"', '"c"') or axis("stop.tol=1e-3,1e-4").values == (
        "0.001",
        "0.0001",
    )
    assert "/" not in folder_name(['data.path="../a b/c.csv"'])
    long = [f"objective.lam={'1' * 300}"]
    assert len(folder_name(long)) <= 150 and folder_name(long) != folder_name([*long, "a=b"])


# --- compare ----------------------------------------------------------------------------------------------------------


def fake(name: str, grades: np.ndarray, losses: list[float], lam: float = 1.0, algorithm: str = "acd") -> reading.Run:
    ledger = tw.Ledger(5, 5, 1, 1, 8, 8, np.ones(1, int), np.ones(1, int))
    results = [
        tw.Result(
            (),
            (),
            tw.History({"round": [0, 5], "loss": [1.0, value]}),
            ledger,
            "budget",
            "",
            {"name": algorithm},
            seed,
            0.1,
        )
        for seed, value in enumerate(losses)
    ]
    found = reading.Grades(tuple(map(str, range(len(grades)))), np.ones(len(grades), int), grades, "accuracy")
    document = {"objective": {"name": "mixture", "lam": lam}, "algorithm": {"name": algorithm}}
    return reading.SavedRun(name, Path(name), document, tw.Results(results), found, {})


def test_the_better_run_is_found_and_chance_is_not_taken_for_skill() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.5, 0.9, 40)
    sure = compare([fake("a", base, [0.5]), fake("b", base + 0.05 + rng.normal(0, 0.02, 40), [0.6], lam=2.0)])
    assert sure.best == "lam = 2" and "It is surely better than lam = 1 by" in " ".join(sure.because)
    luck = compare([fake("a", base, [0.5]), fake("b", base + rng.normal(0.001, 0.05, 40), [0.6], lam=2.0)])
    assert "No difference can be told on 40 clients between lam = 1, lam = 2" in " ".join(luck.because)
    assert luck.best is None and "marks the best" not in str(luck)
    two = [fake("a", base, [0.5]), fake("b", base + rng.normal(0.001, 0.05, 40), [0.6], lam=2.0, algorithm="lsgd")]
    assert "between lam = 1, acd; lam = 2, lsgd." in " ".join(compare(two).because)
    ties = compare([fake("a", base, [0.5]), fake("b", base, [0.5])])
    assert ties.best is None and "no difference between a, b" in " ".join(ties.because)
    assert "marks the best" not in str(ties) and "Best" not in str(ties)
    low, high = _interval(np.full(10, 0.25))
    assert low == high == 0.25


def test_one_problem_is_judged_by_its_loss() -> None:
    same = np.full(4, 0.5)
    found = compare([fake("a", same, [0.5, 0.5, 0.6]), fake("b", same, [0.3, 0.2, 0.4], algorithm="lsgd")])
    assert found.best == "lsgd" and "least loss at the end" in found.because[0] and "100%" in found.because[1]
    few = compare([fake("a", same, [0.5]), fake("b", same, [0.3], algorithm="lsgd")])
    assert "With so few seeds, that may be chance" in few.because[1]


def test_compare_reads_folders_and_writes_tables() -> None:
    for name, lam in (("one", "0.1"), ("two", "5")):
        assert Done("run", "small.toml", "-q", "--out", f"runs/{name}", "--set", f"objective.lam={lam}").code == 0
    done = Done("compare", "runs", "--csv", "t.csv", "--latex", "t.tex")
    assert done.code == 0, done.output
    assert "lam = 0.1" in done.line and "lam = 5" in done.line and "accuracy" in done.line
    assert Path("t.csv").read_text().startswith("run,seeds,rounds,bytes,seconds,loss,mean,worst,status\none,1,4,")
    assert r"\toprule" in Path("t.tex").read_text()
    assert Done("compare", "runs/one", "runs/two").output.splitlines()[:3] == done.output.splitlines()[:3]
    assert "There is no folder nowhere" in Done("compare", "nowhere").line
    Path("empty").mkdir()
    assert Done("compare", "empty").code == 2


def test_a_metric_of_ones_choice_in_runs_and_their_comparison() -> None:
    for name, lam in (("one", "0.1"), ("two", "5")):
        options = ("--set", f"objective.lam={lam}", "--set", 'output.metric="roc_auc"')
        assert Done("run", "small.toml", "-q", "--out", f"auc/{name}", *options).code == 0
    assert json.loads(Path("auc/one/run.json").read_text())["measure"] == "roc_auc"
    done = Done("compare", "auc")
    assert done.code == 0 and "roc_auc" in done.line
    wrong = Done("run", "small.toml", "--out", "auc/three", "--set", 'output.metric="roc_ac"')
    assert wrong.code != 0 and "Did you mean 'roc_auc'" in wrong.line


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_report_of_ones_own_runs_is_about_them() -> None:
    assert Done("sweep", "small.toml", *GRID, "--seeds", "3", "-q").code == 0
    done = Done("report", "sw")
    assert done.code == 0 and done.output.split() == ["sw/report.html"]
    page = Path("sw/report.html").read_text(encoding="utf-8")
    assert re.search(r'class="n">rounds</th>.*<th scope="col">ended</th>', page)  # a name stands over its numbers
    assert "Hanzely" not in page and "claim" not in page.split("<script")[0]
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))  # type: ignore[union-attr]
    drawn = data["figures"]["course"]["series"]
    assert [s["at"]["method"] for s in drawn] == ["lam = 0.1", "lam = 1", "lam = 10"]
    runs = tw.Results.load("sw/objective.lam=1")
    median = np.median(runs.column("loss"), axis=0)
    np.testing.assert_allclose(data["pool"][drawn[1]["mean"]], median, rtol=1e-4)
    assert set(drawn[0]["x"]) == {"rounds", "bytes", "gradients_w", "gradients_beta", "seconds"}
    swept = data["figures"]["sweep"]
    assert data["pool"][swept["series"][0]["x"]["setting"]] == [0.1, 1, 10] and swept["across"] == "log"
    assert "config.toml" not in Done("report", "sw").output


def test_a_folder_with_both_gets_both_and_an_empty_one_a_sentence() -> None:
    make_up(Path("both"), only=("mx2",))
    assert Done("run", "small.toml", "-q", "--out", "both/mine").code == 0
    done = Done("report", "both")
    assert done.code == 0, done.output
    assert done.output.splitlines()[:2] == ["both/runs.html", "both/report.html"]
    Path("empty").mkdir()
    done = Done("report", "empty")
    assert done.code == 2 and "There are no results in empty" in done.line
    done = Done("report", "both/mine", "--markdown", "m.md")
    assert done.code == 2 and "--markdown is for the paper's experiments" in done.line


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_tables_fit_eighty_columns_and_nothing_ends_in_dots() -> None:
    metrics = 'record.metrics=["loss", "gap", "gradient_norm", "bound"]'
    for arguments in (
        ["run", "small.toml", "--set", metrics, "--set", "run.seeds=2", "--set", "algorithm.name=acd"],
        ["theory", "small.toml", "--all"],
        ["list"],
        ["compare", "runs"],
    ):
        done = Done(*arguments)
        assert done.code == 0, done.output
        assert max(map(len, done.output.splitlines())) <= 80, arguments
        assert not re.search(r"\w…", done.output), arguments


def test_shells_complete_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"_TWOFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "twofold sw", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], env=env, prog_name="twofold")
    assert done.output.split() == ["sweep"]
    assert "--install-completion" in Done("--help").line


def test_progress_in_a_notebook_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys
    import types

    from twofold.solver import progress

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with progress.bar(None, 4) as tell:
        for done in range(5):
            tell(done)
    assert "\r2 of 4 rounds" in capsys.readouterr().out
    with progress.bar(False, 4) as tell:
        tell(3)
    assert capsys.readouterr().out == ""


def test_runs_saved_in_python_are_judged_by_their_models() -> None:
    clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 0])])
    loss = tw.losses.logistic(l2=0.1)

    def save(name: str, objective: Any, clients: Any = clients, algorithm: str = "acd") -> None:
        tw.solve(tw.Problem(objective, clients), algorithm, rounds=5).save(Path("saved") / name)

    save("traditional", tw.objectives.traditional(loss))
    save("local", tw.objectives.local(tw.losses.logistic(l2=1.0)))
    found = compare(reading.read_runs("saved"))
    told = " ".join(found.because)
    assert found.best is None and "different objectives" in told and "Same problem" not in told
    assert "traditional" in str(found) and "local" in str(found)
    save("local", tw.objectives.traditional(loss), algorithm="lsgd")
    assert "Same problem: acd has the least loss" in " ".join(compare(reading.read_runs("saved")).because)
    save("local", tw.objectives.traditional(loss), clients.map(lambda x, y: (3 * x, y * 0)))
    Path("saved/local/result.json").write_text(Path("saved/local/result.json").read_text().replace("0.69314", "0.5"))
    assert "begin at different losses" in " ".join(compare(reading.read_runs("saved")).because)
    own = tw.losses.custom(lambda p, x, y: jnp.mean((x @ p - y) ** 2), init=np.zeros(2), l2=0.1)
    save("local", tw.objectives.traditional(own), algorithm="lsgd")
    mixed = compare(reading.read_runs("saved"))
    assert mixed.best is None and "The problem of local is unknown" in " ".join(mixed.because)
