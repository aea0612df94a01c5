"""The command line: quick to say hello, clear about mistakes, with exit codes and files that scripts can rely on."""

from __future__ import annotations

import csv
import json
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import twofold as tw
from paper.report.made_up import make_up
from problems import CONFIG
from twofold.cli import app
from twofold.cli.base import rich_table, show
from twofold.cli.listing import Listed
from twofold.cli.run import EXAMPLE


class Done:
    """A finished command: its exit code and all that it printed, on one line."""

    def __init__(self, *arguments: str) -> None:
        result = CliRunner().invoke(app, list(arguments))
        self.code, self.output = result.exit_code, result.output
        self.line = " ".join(result.output.split())


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cache that tests would share, no colours, a wide terminal, an empty folder."""
    for name, value in {"TWOFOLD_NO_CACHE": "1", "NO_COLOR": "1", "COLUMNS": "160", "TERMINAL_WIDTH": "160"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TWOFOLD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(CONFIG, encoding="utf-8")
    return "small.toml"


# --- tables -----------------------------------------------------------------------------------------------------------


def test_no_figure_is_cut_off_in_a_terminal_of_any_width(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    columns = ["", "iterations", "rounds", "traffic", "∇w rows", "∇β rows", "seconds"]
    body = [["profile (measured)", "6", "6", "61.5 kB", "240", "2,160", "1.2"], ["lower bound (order)", *["1,234"] * 6]]
    for width in range(50, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        show(rich_table("", columns, body, right=columns[1:]))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert sorted(" ".join(lines).split()).count("1,234") == 6 and all(
            " ".join(lines).count(name) for name in columns
        )


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_needs_nothing_heavy(fresh_python: Callable[..., str]) -> None:
    code = (
        "import sys\nfrom twofold.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit as end:\n    assert end.code in (0, None)\n"
        "heavy = {'jax', 'numpy', 'pydantic', 'sklearn', 'matplotlib', 'pyarrow', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert "demo" in fresh_python(code)


def test_help_says_it_all() -> None:
    done = Done("--help")
    assert done.code == 0
    for words in (
        "demo",
        "run",
        "theory",
        "list",
        "reproduce",
        "report",
        "0 all went well",
        "1 a run diverged",
        "TWOFOLD_DATA",
    ):
        assert words in done.line
    for command in ("demo", "run", "theory", "list", "reproduce", "report"):
        assert "Exit codes: 0" in Done(command, "--help").line


def test_the_format_in_the_help_is_a_file_that_is_right() -> None:
    shown = Done("run", "--help").line  # on one line: typer below 0.21, which flwr needs, folds it anyway
    for line in EXAMPLE.splitlines():
        assert line.split("  #")[0].strip() in shown
    Path("example.toml").write_text(EXAMPLE, encoding="utf-8")
    from twofold import config

    assert config.load("example.toml").build().train.M == 20


def test_version() -> None:
    assert Done("--version").line == f"twofold {tw.__version__}"


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_leaves_everything_on_disk(small: str) -> None:
    done = Done("run", small, "--set", 'record.metrics=["loss", "gradient_norm"]')
    assert done.code == 0, done.output
    for words in (
        "small: mixture",
        "by lsgd",
        "budget",
        "Accuracy on test rows",
        "personal models",
        "Written to runs/small",
    ):
        assert words in done.line
    folder = Path("runs/small")
    result = tw.Result.load(folder)
    assert result.ledger.rounds == 4
    with (folder / "history.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in rows] == result.history["loss"].tolist()
    assert parquet.read_table(folder / "history.parquet").column("round").to_pylist() == [0, 1, 2, 3, 4]
    with (folder / "clients.csv").open() as stream:
        clients = list(csv.DictReader(stream))
    assert [row["client"] for row in clients] == ["0", "1", "2"] and clients[0]["rows"] == "2"
    assert json.loads((folder / "result.json").read_text())["algorithm"]["name"] == "lsgd"


def test_the_config_that_is_kept_runs_the_same_again(small: str) -> None:
    assert Done("run", small, "--set", "objective.lam=0.7", "--out", "one", "--quiet").code == 0
    assert tomllib.loads(Path("one/config.toml").read_text())["objective"]["lam"] == 0.7
    assert Done("run", "one/config.toml", "--out", "two", "-q").code == 0
    np.testing.assert_array_equal(tw.Result.load("one").beta, tw.Result.load("two").beta)


def test_several_seeds_get_a_folder_each(small: str) -> None:
    done = Done(
        "run", small, "--set", "run.seeds=[5, 7]", "--set", 'output.history=["csv"]', "--set", "output.evaluate=false"
    )
    assert done.code == 0, done.output
    folder = Path("runs/small")
    names = ["config.toml", "history.csv", "results.json", "run.json", "seed-5", "seed-7"]
    assert sorted(path.name for path in folder.iterdir()) == names
    with (folder / "history.csv").open() as stream:
        assert [row["seed"] for row in csv.DictReader(stream)] == ["5"] * 5 + ["7"] * 5
    assert tw.Result.load(folder / "seed-7").seed == 7
    assert [result.seed for result in tw.Results.load(folder)] == [5, 7]


def test_a_folder_holds_one_run_and_nothing_of_an_earlier_one(small: str) -> None:
    few = ["--set", "stop.rounds=1", "-q"]
    assert Done("run", small, *few, "--set", "run.seeds=3").code == 0
    folder = Path("runs/small")
    (folder / "notes.txt").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    refused = Done("run", small, *few, "--set", "run.seed=1")
    assert refused.code == 2
    assert (
        "runs/small holds the results of another configuration (run.seeds is 3 there, not given here; run.seed is not "
        "given there, 1 here): name another folder, or replace them with --force." in refused.line
    )
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    output = [
        "--set",
        'output.history=["csv"]',
        "--set",
        "output.evaluate=false",
    ]  # where results go is not what is run
    assert Done("run", small, *few, *output, "--set", "run.seeds=3").code == 0
    assert not (folder / "clients.csv").exists() and not (folder / "history.parquet").exists()
    assert Done("run", small, *few, *output, "--set", "run.seeds=2", "--force").code == 0
    assert sorted(path.name for path in folder.glob("seed-*")) == ["seed-0", "seed-1"]
    assert Done("run", small, *few, *output, "--set", "run.seed=1", "--force").code == 0
    names = ["config.toml", "history.csv", "model.json", "model.safetensors", "notes.txt", "result.json", "run.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    (folder / "config.toml").unlink()
    assert "another configuration (it does not say which)" in Done("run", small, *few, "--set", "run.seed=1").line


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_before_the_work(
    small: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twofold.config.Config.build", lambda self: pytest.fail("it has started to work"))
    Path("file").write_text("a file where a folder should be")
    done = Done("run", small, "--out", out)
    assert done.code == 2 and "file is a file: name another folder." in done.line


def test_parquet_without_pyarrow(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    asked = Done("run", small, "--set", 'output.history=["parquet"]')
    assert asked.code == 2 and "needs pyarrow, which is not installed: pip install 'twofold[paper]'" in asked.line
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Done("run", small, "-q").code == 0
    assert Path("runs/small/history.csv").exists() and not Path("runs/small/history.parquet").exists()


def test_quiet_is_quiet(small: str) -> None:
    assert Done("run", small, "--quiet").output == ""


def test_a_run_that_diverges_exits_with_1_and_says_why(small: str) -> None:
    done = Done("run", small, "--set", "algorithm.eta=1e9", "--set", "loss.l2=1.0")
    assert done.code == 1
    assert "seed 0: lsgd diverged between iterations" in done.line and "times theory's" in done.line
    assert tw.Result.load("runs/small").status == "diverged"


def test_bad_input_exits_with_2_and_all_its_sentences(small: str) -> None:
    done = Done("run", small, "--set", "objective.lamda=1", "--set", "stop.round=3")
    assert done.code == 2
    assert done.output.count("twofold: ") == 2
    assert "did you mean lam?" in done.line and "did you mean rounds?" in done.line
    assert Done("run", "nothing.toml").code == 2
    assert Done("run").code == 2
    assert Done("runn").code == 2
    done = Done("run", small, "--set", "loss.l2=0.0", "--set", "stop.tol=1e-3")
    assert done.code == 2 and "add a ridge" in done.line


def test_an_error_inside_exits_with_3(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("twofold.config.load", broken)
    done = Done("run", small)
    assert done.code == 3 and "oops" in done.line and "please report it" in done.line


def test_an_error_of_jax_is_not_taken_for_a_mistake(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *_: object, **__: object) -> None:
        import jax

        jax.vmap(lambda x: x)(())

    monkeypatch.setattr("twofold.config.Config.solve", broken)
    assert Done("run", small).code == 3


def test_a_mistake_is_a_twofold_error_wherever_it_comes_from(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Callable[..., None]:
        def raise_it(*_: object, **__: object) -> None:
            raise error

        return raise_it

    class Own(tw.TwofoldError):
        """Of a module that the command line has never heard of."""

    for error, code in [
        (Own("own"), 2),
        (PermissionError("not yours"), 2),
        (ValueError("ours"), 3),
        (TypeError("t"), 3),
    ]:
        monkeypatch.setattr("twofold.config.Config.solve", raising(error))
        done = Done("run", small)
        assert (done.code, "Traceback" in done.output) == (code, code == 3), error
        assert str(error) in done.line


def test_an_interruption_exits_with_130(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("twofold.config.load", interrupted)
    assert Done("run", small).code == 130


# --- checkpoints ------------------------------------------------------------------------------------------------------


def same_run(one: str, two: str) -> None:
    """Both folders hold the same result, but for the time it took."""
    first, second = tw.Result.load(one), tw.Result.load(two)
    np.testing.assert_array_equal(first.w, second.w)
    np.testing.assert_array_equal(first.beta, second.beta)
    for name in first.history.keys() - {"seconds"}:
        np.testing.assert_array_equal(first.history[name], second.history[name])
    assert first.ledger.as_dict() == second.ledger.as_dict() and first.status == second.status


def test_a_run_that_was_cut_short_resumes_to_the_same_result(small: str) -> None:
    assert Done("run", small, "--out", "whole", "-q").code == 0
    assert Done("run", small, "--out", "parts", "-q", "--checkpoint-every", "1", "--set", "stop.rounds=2").code == 0
    assert len(list(Path("parts/checkpoints").iterdir())) == 2
    done = Done("run", small, "--out", "parts", "-q", "--resume")
    assert done.code == 0, done.output
    same_run("whole", "parts")
    assert Done("run", small, "--out", "parts", "-q", "--resume").code == 0  # a finished run, at once
    same_run("whole", "parts")


def test_resume_needs_a_checkpoint_and_a_new_run_an_empty_folder(small: str) -> None:
    done = Done("run", small, "--resume")
    assert (done.code, "nothing to resume in runs/small" in done.line, "--checkpoint-every N" in done.line) == (
        2,
        True,
        True,
    )
    keys = ("--set", "run.checkpoint=true", "-q")
    assert Done("run", small, *keys).code == 0
    done = Done("run", small, *keys)
    assert done.code == 2 and "continue from them with --resume, or start over with --force" in done.line
    assert Done("run", small, *keys, "--force").code == 0
    done = Done("run", small, "-q", "--resume", "--set", "objective.lam=0.7")
    assert done.code == 2 and "belongs to another run: lam = 0.5 there, 0.7 here" in done.line


def test_participation_is_a_key(small: str) -> None:
    assert Done("run", small, "-q", "--set", "run.participation=2", "--set", "output.evaluate=false").code == 0
    ledger = tw.Result.load("runs/small").ledger
    assert np.shape(ledger.floats_up) == (3,) and np.sum(ledger.floats_up) == 4 * 2 * 2
    done = Done("run", small, "--set", 'run.participation="all"')
    assert done.code == 2 and "run.participation" in done.line


def test_ctrl_c_keeps_what_there_is(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from twofold.solver.run import Run

    advance = Run._advance

    def interrupted(run: Run, tracks: list, engine: object, k: int, stretch: object) -> int:
        if k == 0:
            signal.raise_signal(signal.SIGINT)
        return advance(run, tracks, engine, k, stretch)

    monkeypatch.setattr(Run, "_advance", interrupted)
    done = Done("run", small, "-q", "--set", "stop.rounds=50", "--checkpoint-every", "2")
    assert done.code == 130 and "interrupted after" in done.line and "--resume goes on from here" in done.line
    found = tw.Result.load("runs/small")
    assert found.status == "interrupted" and 0 < found.ledger.rounds < 50
    monkeypatch.setattr(Run, "_advance", advance)
    assert Done("run", small, "-q", "--set", "stop.rounds=50", "--resume").code == 0
    assert Done("run", small, "-q", "--set", "stop.rounds=50", "--out", "whole").code == 0
    same_run("whole", "runs/small")


# --- set-up -----------------------------------------------------------------------------------------------------------


def test_precision_and_the_cache_are_set_up(small: str, fresh_python: Callable[..., str], tmp_path: Path) -> None:
    code = (
        "import os, sys\nos.environ.pop('TWOFOLD_NO_CACHE')\nos.environ.pop('JAX_COMPILATION_CACHE_DIR')\n"
        f"os.environ['XDG_CACHE_HOME'] = {str(tmp_path / 'cache')!r}\n"
        "from twofold.cli import app\n"
        "try:\n    app(['theory', 'small.toml', '--set', 'run.x64=true', '--set', 'algorithm.name=asvrcd'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "import jax, jax.numpy as jnp\n"
        # Nothing above need take long enough to be kept: this does, however short it takes.
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\njax.jit(lambda x: 3 * x + 1)(2.0)\n"
        "print(jnp.zeros(()).dtype)"
    )
    assert fresh_python(code).endswith("float64\n")
    assert fresh_python(code.replace("'run.x64=true'", "'run.x64=true', '--no-x64'")).endswith("float32\n")
    assert any((tmp_path / "cache" / "twofold" / "jax").iterdir())


# --- theory -----------------------------------------------------------------------------------------------------------


def test_theory_says_what_solve_will_use(small: str) -> None:
    done = Done("theory", small, "--set", "algorithm.name=acd", "--tol", "1e-4")
    assert done.code == 0, done.output
    from twofold import config
    from twofold.solver import complete

    built = config.load(small, ["algorithm.name=acd"]).build()
    constants, (method, _) = built.problem.constants(), complete(built.problem, "acd")
    for value in (constants.mu, constants.L_w, constants.calL_beta, method.theta, method.eta):
        assert f"{value:.6g}" in done.line
    predicted = tw.theory.rates.predict_acd(method.theta, method.p_w, n=8, eps=1e-4)
    assert f"acd (certified) {predicted.iterations:,.0f} {predicted.rounds:,.0f}" in done.line
    assert "asvrcd" not in done.line
    assert "certified" in done.line and "lower bound" in done.line


def test_theory_knows_the_cost_of_the_rounds_asked_for(small: str) -> None:
    from twofold import config

    asvrcd = ["--set", "algorithm.name=asvrcd", "--set", "run.seed=3"]
    line = Done("theory", small, *asvrcd).line
    problem = config.load(small).build().problem
    cost = tw.theory.cost_of_rounds(problem, "asvrcd", 4, seed=3)
    assert cost is not None and cost != tw.theory.cost_of_rounds(problem, "asvrcd", 4, seed=0)
    assert f"The file's 4 rounds are {cost.iterations:,} iterations and {cost.bytes} B" in line
    assert "exactly (seed 3" in line
    assert (
        "rounds are" not in Done("theory", small, "--set", "objective.name=local", "--set", "algorithm.name=acd").line
    )


@pytest.mark.parametrize("stop", ["tol=1e-3", "rounds=3", None])
def test_auto_says_what_it_takes_before_and_after(small: str, stop: str | None) -> None:
    text = Path(small).read_text().replace("rounds = 4", "" if stop is None else stop)
    Path(small).write_text(text)
    auto = ["--set", "algorithm.name=auto", "--set", "run.cost=simulation"]
    before, after = Done("theory", small, *auto), Done("run", small, *auto)
    assert (before.code, after.code) == (0, 0), before.output + after.output
    from twofold import config

    problem = config.load(small).build().problem
    limits: Any = config.load(small, ["algorithm.name=auto"]).budget
    taken = tw.solve(problem, cost="simulation", **limits).algorithm.name
    assert f"auto chose {taken}" in before.line and f"Hyper-parameters of {taken}" in before.line
    assert "by auto" in after.line and f"auto chose {taken}" in after.line


def test_rounds_are_counted_under_the_files_cost(small: str) -> None:
    from twofold import config

    asked = ["--set", "algorithm.name=svrcd", "--set", "run.cost=simulation"]
    line, problem = Done("theory", small, *asked).line, config.load(small).build().problem
    there = tw.theory.cost_of_rounds(problem, "svrcd", 4, cost="simulation")
    assert there is not None and there != tw.theory.cost_of_rounds(problem, "svrcd", 4)
    assert f"The file's 4 rounds are {there.iterations:,} iterations" in line
    ran = tw.solve(problem, "svrcd", rounds=4, cost="simulation").ledger
    assert (ran.iterations, ran.rounds) == (there.iterations, 4)


def test_theory_of_two_stages_and_of_methods_without_a_theorem(small: str) -> None:
    two = ["--set", "objective.name=multitask", "--set", "objective.Lambda=inf"]
    done = Done("theory", small, *two)
    assert done.code == 0 and "Stage 1: f'(w)" in done.line and "Stage 2: f(w*, β)" in done.line
    assert "ascd has no convergence theorem" in Done("theory", small, "--set", "algorithm.name=ascd").line
    assert Done("theory", small, "--tol", "3").code == 2


def test_theory_of_all_methods(small: str) -> None:
    done = Done("theory", small, "--all")
    assert done.code == 0, done.output
    for words in ("lsgd (theorem)", "asvrcd (certified)", "l2sgd_plus (certified)", "note: hybrid: no rate is proven"):
        assert words in done.line


def test_theory_without_strong_convexity_says_so(small: str) -> None:
    done = Done("theory", small, "--set", "loss.l2=0.0", "--set", "algorithm.name=acd")
    assert done.code == 0 and "No strong convexity is known" in done.line and "rate only for μ > 0" in done.line


# --- list, reproduce, report ------------------------------------------------------------------------------------------


def test_list_names_everything_there_is() -> None:
    line = Done("list").line
    for name in (*tw.objectives.REGISTRY, *tw.algorithms.REGISTRY, "simulate", "softmax", "kmnist", "dirichlet"):
        assert name in line
    assert "mixture" not in Done("list", Listed.engines.value).line
    assert (
        "[algorithm]" in Done("list", "keys").line and "penalty towards the shared model" in Done("list", "keys").line
    )
    assert Done("list", "cheese").code == 2


def test_list_learns_from_the_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    def gouda(l2: float = 0.0, age: int = 3) -> Any:
        """A loss of taste."""

    monkeypatch.setitem(tw.losses.REGISTRY, "gouda", gouda)
    assert "gouda A loss of taste." in Done("list", "losses").line
    assert "with name = gouda: l2 a number" in Done("list", "keys").line


def test_reproduce_runs_and_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import twofold.paper

    asked = []

    def reproduce(*arguments: Any, out: Path, **options: Any) -> list[str]:
        asked.append((arguments, options))
        make_up(out, only=("mx2",))
        return [str(out / "mx2.json")]

    monkeypatch.setattr(twofold.paper, "reproduce", reproduce)
    out = tmp_path / "r"
    done = Done("reproduce", "mx2", "ews", "--out", str(out), "--quick")
    assert done.code == 0, done.output
    assert asked == [((["mx2", "ews"],), {"quick": True, "seeds": None})]
    lines = done.output.splitlines()
    assert lines[:2] == [str(out / "mx2.json"), str(out / "report.html")]
    assert any(line.split()[:2] == ["holds", "holds"] and "competitive" in done.output for line in lines)
    assert any(line.split()[:4] == ["not", "run", "not", "run"] for line in lines)
    again = Done("report", str(out))
    assert again.output.splitlines() == lines[1:]


def test_report_of_nothing_exits_with_2() -> None:
    done = Done("report", "nowhere")
    assert done.code == 2 and "nowhere" in done.line


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--processes", "2"], "--processes and --process need --coordinator HOST:PORT"),
        (
            ["--coordinator", "here", "--processes", "2"],
            "--coordinator is HOST:PORT, for example 10.0.0.1:8476, not 'here'",
        ),
        (["--coordinator", "h:1", "--processes", "2", "--process", "2"], "must be below --processes: 2 of 2"),
    ],
)
def test_processes_that_cannot_be_joined(options: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    done = Done("run", str(tmp_path / "run.toml"), *options)
    assert done.code == 2 and sentence in " ".join(done.output.split()), done.output
