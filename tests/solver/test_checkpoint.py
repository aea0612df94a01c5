"""A run that was killed goes on to the same trajectory, ledger and history, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import killed
import plain
import twofold as tw
from twofold.cli import app
from twofold.errors import CheckpointError
from twofold.solver import checkpoint, run
from twofold.solver.identity import fingerprint


def problem(lam: float = 0.5) -> tw.Problem:
    return tw.Problem(
        tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=lam),
        plain.clients("logistic", (5, 9, 7)),
        buckets=[[0, 2], [1]],
    )


def assert_same(one: tw.Result, other: tw.Result) -> None:
    assert_array_equal(one.w, other.w)
    assert_array_equal(one.beta, other.beta)
    assert one.ledger.as_dict() == other.ledger.as_dict()
    assert (one.status, one.message) == (other.status, other.message)
    assert list(one.history) == list(other.history)
    for name in one.history:
        if name != "seconds":
            assert_array_equal(one.history[name], other.history[name], err_msg=name)


class Killed(Exception):  # noqa: N818
    pass


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a run die right after its n-th checkpoint."""
    write = checkpoint.Checkpoints.write

    def after(n: int) -> None:
        left = [n]

        def dying(self: Any, k: int, saved: Any) -> None:
            write(self, k, saved)
            left[0] -= 1
            if not left[0]:
                raise Killed

        monkeypatch.setattr(checkpoint.Checkpoints, "write", dying)

    return after


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("asvrcd", {}),
        ("asvrcd", {"chunk": 2}),
        (tw.algorithms.LSGD(eta=0.1, tau=1, average=True, mu=0.1), {"engine": "messages", "rounds": 18}),
        ("lsgd", {"participation": 2, "every": 7}),
        ("acd", {"seeds": [1, 2], "tol": 1e-7, "checkpoint_every": 2}),
    ],
)
def test_a_killed_run_goes_on(method: Any, options: dict[str, Any], tmp_path: Path, killer: Any, monkeypatch: Any):
    options = {"rounds": 23, "record": ["loss", "gradient_norm"], "checkpoint_every": 5, **options}
    expected = tw.solve(problem(), method, **{k: v for k, v in options.items() if k != "checkpoint_every"})
    for times in (1, 2):  # it dies after its first checkpoint, and after the second one of those that follow
        with monkeypatch.context():
            killer(times)
            with pytest.raises(Killed):
                tw.solve(problem(), method, checkpoint=tmp_path, **options)
        monkeypatch.undo()
        assert len(list(tmp_path.glob("checkpoint-*"))) == times
    found = tw.solve(problem(), method, checkpoint=tmp_path, **options)
    for one, other in zip(*(r if isinstance(r, tw.Results) else [r] for r in (found, expected)), strict=True):
        assert_same(one, other)
    again = tw.solve(problem(), method, checkpoint=tmp_path, **options)  # it is over, and stays so
    assert_same(
        again[0] if isinstance(again, tw.Results) else again, found[0] if isinstance(found, tw.Results) else found
    )


def test_a_larger_budget_goes_on_from_the_end(tmp_path: Path):
    expected = tw.solve(problem(), "acd", rounds=20, every=4)
    tw.solve(problem(), "acd", rounds=10, every=4, checkpoint=tmp_path)
    assert_same(tw.solve(problem(), "acd", rounds=20, every=4, checkpoint=tmp_path), expected)


@pytest.mark.parametrize("method", ["acd", "asvrcd"])
def test_a_smaller_budget_ends_at_once(method: str, tmp_path: Path, killer: Any, monkeypatch: pytest.MonkeyPatch):
    """At the budget it is the run that asked for so much; past it, what there is, and the message says so."""
    options = {"seed": 3, "checkpoint": tmp_path, "checkpoint_every": 10}
    with monkeypatch.context():
        killer(2)
        with pytest.raises(Killed):
            tw.solve(problem(), method, rounds=70, **options)
    monkeypatch.undo()
    assert_same(tw.solve(problem(), method, rounds=20, **options), tw.solve(problem(), method, rounds=20, seed=3))
    stopped = tw.solve(problem(), method, rounds=15, **options)
    assert (stopped.ledger.rounds, stopped.status) == (20, "budget")
    assert stopped.message.endswith("where its checkpoint was: past rounds=15")
    whole = tw.solve(problem(), method, rounds=70, **options)
    assert_same(whole, tw.solve(problem(), method, rounds=70, seed=3))
    ended = tw.solve(problem(), method, rounds=30, **options)
    assert ended.ledger.as_dict() == whole.ledger.as_dict()
    assert_array_equal(ended.w, whole.w)
    assert_same(tw.solve(problem(), method, rounds=75, **options), tw.solve(problem(), method, rounds=75, seed=3))


def test_a_checkpoint_past_the_budget_without_a_record_there_is_refused(
    tmp_path: Path, killer: Any, monkeypatch: pytest.MonkeyPatch
):
    options = {"every": 8, "checkpoint": tmp_path, "checkpoint_every": 10}
    with monkeypatch.context():
        killer(1)
        with pytest.raises(Killed):
            tw.solve(problem(), "acd", rounds=70, **options)
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match="is at 10 rounds and .* which is all that rounds=9 allows, .* is of round 8"
    ):
        tw.solve(problem(), "acd", rounds=9, **options)


def test_both_stages_have_checkpoints(tmp_path: Path):
    whole = tw.Problem(
        tw.objectives.multitask(tw.losses.logistic(l2=0.1), 0.5, np.inf), plain.clients("logistic", (5, 9))
    )
    expected = tw.solve(whole, "acd", rounds=6)
    for _ in range(2):
        assert_same(tw.solve(whole, "acd", rounds=6, checkpoint=tmp_path), expected)
    assert {folder.name for folder in tmp_path.iterdir()} == {"seed-0-stage-1", "seed-0-stage-2"}


def with_loss(power: float, shift: float = 0.0, data: Any = None, **options: Any) -> tw.Problem:
    """A problem whose loss is a function that refers to values of this one."""

    def root(x: Any) -> Any:
        return (x**2 + power) ** 0.5

    def loss(params: Any, x: Any, y: Any, shift: float = shift) -> Any:
        return jnp.mean(root(x @ params - y + shift))

    custom = tw.losses.custom(loss, init=np.zeros(3), mu=0.1, L=5.0, calL=5.0)
    return tw.Problem(tw.objectives.mixture(custom, lam=0.5), plain.clients("squared", (5, 9, 7)), **options)


def linear(**options: Any) -> tw.Problem:
    return tw.Problem(problem().objective, problem().clients, **options)


def grown(amount: float) -> tw.Clients:
    return problem().clients.map(lambda x, y: (x + amount, y))


DESCENT = tw.algorithms.LSGD(eta=0.01, tau=2)


@pytest.mark.parametrize(
    ("what", "first", "second"),
    [
        ("precondition = None there, diagonal here", {}, {"whole": partial(linear, precondition="diagonal")}),
        ("sampling = importance there, uniform here", {}, {"whole": partial(linear, sampling="uniform")}),
        ("rescale = True there, False here", {}, {"whole": partial(linear, rescale=False)}),
        ("the data differs; feature_dtype = None there, bfloat16 here", {}, {"whole": partial(linear, feature_dtype="bfloat16")}),
        ("loss.fn differs", {"whole": partial(with_loss, 1.0)}, {"whole": partial(with_loss, 2.0)}),
        ("loss.fn differs", {"whole": partial(with_loss, 1.0)}, {"whole": partial(with_loss, 1.0, 0.5)}),
        ("the start differs", {}, {"start": (np.ones(3), np.ones((3, 3)))}),
        ("participation = None there, 2 here", {}, {"participation": 2}),
        ("participation differs", {"participation": lambda k: [k % 2]}, {"participation": lambda k: [k % 3]}),
        ("test differs", {"test": grown(0.0)}, {"test": grown(0.1)}),
        ("validation differs", {"validation": grown(0.0)}, {"validation": grown(0.1)}),
        ("what is recorded differs", {"record": {"a": lambda w, beta: w[0]}}, {"record": {"a": lambda w, beta: w[1]}}),
    ],
)  # fmt: skip
def test_every_part_of_a_run_counts(what: str, first: dict[str, Any], second: dict[str, Any], tmp_path: Path):
    def solve(whole: Any = linear, **options: Any) -> tw.Result:
        return tw.solve(whole(), DESCENT, rounds=2, checkpoint=tmp_path, **options)

    solve(**first)
    solve(**first)  # what is made anew in the same way is the same
    with pytest.raises(CheckpointError, match=rf"belongs to another run: {what}\. Name another folder"):
        solve(**second)


@pytest.mark.parametrize("name", ["lsgd", "l2sgd_plus"])
@pytest.mark.parametrize("options", [{}, {"engine": "messages"}, {"chunk": 1}])
def test_a_checkpoint_knows_nothing_of_buckets_and_engines(name: str, options: dict[str, Any], tmp_path: Path):
    """How clients are grouped differs from machine to machine. L2SGD+ has a table with an entry for each row of a client."""
    method = {"lsgd": DESCENT, "l2sgd_plus": tw.algorithms.L2SGDPlus(eta=0.05, p_w=0.5, lam=0.5, batch=2)}[name]
    problems = [linear(buckets=buckets) for buckets in ([[2, 0], [1]], None, [[1], [0], [2]])]
    for rounds, whole in enumerate(problems, start=1):
        more = options if rounds == 2 else {}
        found = tw.solve(whole, method, rounds=3 * rounds, checkpoint=tmp_path, test=grown(0.0), **more)
        assert len(found.history["round"]) == 3 * rounds + 1
    expected = tw.solve(problems[0], method, rounds=9, test=grown(0.0))
    assert_allclose(found.beta, expected.beta, atol=1e-12)
    assert_allclose(found.history["loss"], expected.history["loss"], atol=1e-12)
    assert_allclose(found.best.beta, expected.best.beta, atol=1e-12)


def other_loss() -> tw.Problem:
    return tw.Problem(tw.objectives.mixture(tw.losses.softmax(2, l2=0.3), lam=0.6), problem().clients)


def other_objective() -> tw.Problem:
    return tw.Problem(tw.objectives.adaptive(tw.losses.logistic(l2=0.1), alpha=0.5), problem().clients)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("lam = 0.5 there, 0.6 here", {"problem": problem(lam=0.6)}),
        ("loss.link = logistic there, softmax here; loss.l2 = 0.1 there, 0.3 here; lam = 0.5 there, 0.6 here",
         {"problem": other_loss()}),
        ("objective = mixture there, adaptive here", {"problem": other_objective()}),
        ("algorithm.p_w = 0.3 there, 0.4 here", {"algorithm": tw.algorithms.ACD(p_w=0.4)}),
        ("algorithm = acd there, lsgd here", {"algorithm": DESCENT}),
        (r"seeds = \[0\] there, \[1\] here", {"seed": 1}),
        ("every = 1 there, 2 here", {"every": 2}),
        ("target = None there, 0.1 here", {"target": 0.1}),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused(what: str, change: Any, tmp_path: Path):
    options: dict[str, Any] = {
        "problem": problem(),
        "algorithm": tw.algorithms.ACD(p_w=0.3),
        "rounds": 3,
        "checkpoint": tmp_path,
    }
    tw.solve(**options)
    sentence = rf"belongs to another run: {what}(; algorithm\.\w+ = [^;]*)*\. Name another folder, or delete"
    with pytest.raises(CheckpointError, match=sentence):
        tw.solve(**options | change)


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context():
        monkeypatch.setattr(checkpoint, "FORMAT", 2)
        tw.solve(problem(), "acd", rounds=3, checkpoint=tmp_path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has the format 2, and this version of twofold reads 3: name another"):
        tw.solve(problem(), "acd", rounds=3, checkpoint=tmp_path)


def test_other_data_are_refused(tmp_path: Path):
    tw.solve(problem(), "lsgd", rounds=3, checkpoint=tmp_path)
    other = tw.Problem(problem().objective, problem().clients.map(lambda x, y: (x + 1e-9, y)))
    with pytest.raises(CheckpointError, match=r"belongs to another run: the data differs\. Name"):
        tw.solve(other, tw.algorithms.LSGD(eta=0.1), rounds=3, checkpoint=tmp_path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path):
    expected = tw.solve(problem(), "acd", rounds=12)
    tw.solve(problem(), "acd", rounds=12, checkpoint=tmp_path, checkpoint_every=4)
    files = sorted(tmp_path.glob("checkpoint-*"))
    files[-1].write_bytes(files[-1].read_bytes()[:100])
    assert_same(tw.solve(problem(), "acd", rounds=12, checkpoint=tmp_path, checkpoint_every=4), expected)
    for file in tmp_path.glob("checkpoint-*"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="can be read: delete the folder, or name another one"):
        tw.solve(problem(), "acd", rounds=12, checkpoint=tmp_path)


def test_bad_folders_and_numbers(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file: name a folder"):
        tw.solve(problem(), "acd", rounds=3, checkpoint=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"checkpoint": ""}, r"^checkpoint is the name of a folder, got checkpoint=''\.$"),
        ({"checkpoint": 3}, r"^checkpoint is the name of a folder, got checkpoint=3\.$"),
        ({"checkpoint": "a", "checkpoint_every": 0}, r"is a whole number of rounds ≥ 1, got checkpoint_every=0\.$"),
        (
            {"checkpoint": "a", "checkpoint_every": 2.5},
            r"is a whole number of rounds ≥ 1, got checkpoint_every=2\.5\.$",
        ),
        (
            {"checkpoint_every": 5},
            r'^checkpoint_every=5 needs a folder to write into: give checkpoint="folder", too\.$',
        ),
    ],
)
def test_settings_that_cannot_be_meant(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        tw.solve(problem(), "acd", rounds=3, **options)
    assert not list(tmp_path.iterdir())


def test_a_fingerprint_is_the_same_in_every_process():
    code = "import twofold as tw, numpy as np; from twofold.solver.identity import fingerprint; " \
        "f = lambda x: x in {'a', 'b', 'c'}; f.__module__ = ''; " \
        "print(fingerprint(tw.objectives.mixture(tw.losses.logistic(l2=0.1), 0.5), np.arange(3.0), {'a': len}, f))"  # fmt: skip
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    mixture = tw.objectives.mixture(tw.losses.logistic(l2=0.1), 0.5)
    f = lambda x: x in {"a", "b", "c"}  # noqa: E731
    f.__module__, f.__qualname__ = "", "<lambda>"
    assert found == fingerprint(mixture, np.arange(3.0), {"a": len}, f)
    assert found != fingerprint(mixture, np.arange(3.0) + 1, {"a": len}, f)
    assert found != fingerprint(mixture, np.arange(3.0), {"a": len}, lambda x: x in {"a"})


# --- Ctrl-C --------------------------------------------------------------------------------------------------------------


def test_ctrl_c_gives_the_result_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(run, "STRETCH_SECONDS", 1e-6)  # 256 iterations, then a few at a time
    expected = tw.solve(problem(), "acd", rounds=600, every=10)

    pressed: list[int] = []

    def press(record: Any) -> None:
        if record["round"] >= 100 and not pressed:  # once: a second Ctrl-C ends a run at once
            pressed.append(record["round"])
            os.kill(os.getpid(), signal.SIGINT)

    found = tw.solve(problem(), "acd", rounds=600, every=10, callbacks=[press], checkpoint=tmp_path)
    assert found.status == "interrupted"
    assert 100 <= found.ledger.rounds < 600
    assert (
        found.message == f"interrupted after {found.ledger.rounds:,} rounds and {found.ledger.iterations:,} iterations"
    )
    assert_array_equal(found.history["loss"][:10], expected.history["loss"][:10])
    assert_same(tw.solve(problem(), "acd", rounds=600, every=10, checkpoint=tmp_path), expected)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def presses_at(*moments: tuple[int, int]) -> Any:
    """A callback that presses Ctrl-C once at the record of such a seed and round."""
    left = list(moments)

    def press(record: Any) -> None:
        if left and (record["seed"], record["round"]) == left[0]:
            left.pop()
            os.kill(os.getpid(), signal.SIGINT)

    return press


def two_stages() -> tw.Problem:
    objective = tw.objectives.multitask(tw.losses.logistic(l2=0.1), 0.5, np.inf)
    return tw.Problem(objective, plain.clients("logistic", (5, 9)))


@pytest.mark.parametrize("whole", [problem, two_stages])
def test_ctrl_c_ends_the_seeds_that_run_one_after_the_other(whole: Any):
    options = {"iterations": 9, "seeds": [4, 5, 6], "chunk": 2}
    expected = tw.solve(whole(), "lsgd", **options)
    found = tw.solve(whole(), "lsgd", callbacks=[presses_at((5, 3))], **options)
    assert [run.seed for run in found] == [4, 5]
    assert_same(found[0], expected[0])
    assert found[1].status == "interrupted"
    assert found[1].ledger.iterations < expected[1].ledger.iterations
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_first_stage_ends_both(tmp_path: Path):
    whole, (w, beta) = two_stages(), two_stages().start
    options = {"rounds": 9, "checkpoint": tmp_path, "start": (w, beta + 0.5)}
    found = tw.solve(whole, "lsgd", callbacks=[presses_at((0, 3))], **options)
    assert (found.status, found.ledger.rounds) == ("interrupted", 4)  # the round under way is finished
    assert found.message == "first stage: interrupted after 4 rounds and 4 iterations; there was no second stage"
    assert_array_equal(found.beta, beta + 0.5)
    assert_array_equal(found.history["stage"], [1] * 5)
    expected = tw.solve(whole, "lsgd", **options | {"checkpoint": None})
    assert_same(tw.solve(whole, "lsgd", **options), expected)


# --- SIGKILL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", killed.ENGINES)
def test_sigkill_at_any_moment_loses_nothing(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One moment an engine, between a checkpoint and the end of `twofold run`; `python tests/killed.py` tries ten."""
    runs = killed.Runs(tmp_path, engine, rounds=800)
    process = runs.start("killed")
    runs.reach_checkpoint("killed", process)
    assert killed.kill(process)
    assert not (tmp_path / "killed" / "result.json").exists()
    monkeypatch.chdir(tmp_path)
    for arguments in (["killed", "--resume"], ["whole"]):
        done = CliRunner().invoke(app, ["run", "run.toml", "-q", "--out", *arguments])
        assert done.exit_code == 0, done.output
    assert not killed.differences(tw.Result.load("killed"), tw.Result.load("whole"))
