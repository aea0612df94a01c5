"""The sharded engine gives simulate's coins, ledger and iterates, over two devices and over two processes, and in turns."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from engines import sharded_worker
from problems import CONFIG, FEATURES, clients
from twofold.algorithms import ASCD, ASVRCD, LSGD
from twofold.engines import memory
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver import run

WORKER = Path(sharded_worker.__file__)


def _start(devices: int, process: int, processes: int, port: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, (devices, process, processes, port))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _finish(worker: subprocess.Popen) -> dict:
    out, err = worker.communicate(timeout=300)
    assert worker.returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.fixture(scope="module")
def simulated() -> dict:
    """The same runs by `simulate`, and as the others' come: through JSON."""
    return json.loads(json.dumps(sharded_worker.runs("simulate")))


def _assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, runs in expected.items():
        pairs = zip(found[name], runs, strict=True) if isinstance(runs, list) else [(found[name], runs)]
        for mine, other in pairs:
            assert mine["ledger"] == other["ledger"], name
            for column in ("round", "iteration", "bytes"):
                assert mine["history"][column] == other["history"][column], (name, column)
            for block in ("w", "beta"):
                np.testing.assert_allclose(mine[block], other[block], rtol=0, atol=1e-10, err_msg=f"{name} {block}")
            for column in ("loss", "size"):
                a, b = mine["history"][column], other["history"][column]
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=f"{name} {column}")


def test_two_devices_agree_with_one(simulated: dict) -> None:
    """Seven clients on two devices: one place is filled up and counts for nothing."""
    _assert_same(_finish(_start(2, 0, 1, 0)), simulated)


def test_two_processes_agree_with_one(simulated: dict) -> None:
    """Two processes on loopback, one device each, collectives by gloo; both end with the whole result."""
    port = _port()
    workers = [_start(1, process, 2, port) for process in range(2)]
    for worker in workers:
        _assert_same(_finish(worker), simulated)


def test_the_command_line_runs_over_two_processes(tmp_path: Path) -> None:
    """`twofold run --coordinator` on loopback gives the files of one process; process 0 alone writes and prints."""
    config = CONFIG.replace("lsgd", "asvrcd").replace("clients = 3", "clients = 5").replace("rounds = 4", "rounds = 8")
    (tmp_path / "run.toml").write_text(config + "[run]\nx64 = true\n")
    command = [sys.executable, "-m", "twofold.cli", "run", "run.toml", "--out"]
    together = ["--coordinator", f"127.0.0.1:{_port()}", "--processes", "2", "--process"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}

    def start(*arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    workers = [start("one"), start("two", *together, "0"), start("other", *together, "1")]
    told = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], told
    assert "Written to two" in told[1][0] and "run:" not in told[2][0]  # gloo says hello in both
    assert not (tmp_path / "other").exists()
    one, two = (Result.load(tmp_path / name) for name in ("one", "two"))
    assert one.ledger.as_dict() == two.ledger.as_dict()
    np.testing.assert_allclose(two.beta, one.beta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(two.history["loss"], one.history["loss"], rtol=0, atol=1e-10)


# --- clients of a device that take turns, with weights kept transposed -------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let only so many clients of a device work at once; gives the list of the turns that runs then take."""

    def at_once(chunk: int) -> list:
        taken, choose = [], memory.turns

        def turns(need: memory.Need, *more: Any) -> Any:
            monkeypatch.setattr(memory, "CHUNK", 2 * more[-1] * chunk * need.working)
            taken.append(choose(need, *more))
            return taken[-1]

        monkeypatch.setattr(memory, "SPREAD", 0)
        monkeypatch.setattr(memory, "turns", turns)
        return taken

    return at_once


def _unequal() -> Problem:
    """Ten unequal clients with unequal weights in two buckets, of which one has as many clients as there are features."""
    everyone = clients("softmax", weights="rows", sizes=(7, 15, 9, 12, 10, 8, 14, 5, 11, 13))
    objective = tw.objectives.mixture(tw.losses.softmax(4, l2=0.25, intercept=True), lam=0.5)
    return Problem(objective, everyone, buckets=[[0, 9, 4, 2, 5, 7, 3], [8, 1, 6]])


def _places(w: Any, beta: Any) -> jax.Array:
    """A figure that changes when clients, features or classes change places."""
    leaves = jax.tree.leaves((w, beta))
    return sum((jnp.vdot(leaf, jnp.sin(jnp.arange(leaf.size)).reshape(leaf.shape)) for leaf in leaves), jnp.zeros(()))


@pytest.mark.parametrize(
    ("method", "seeds", "chunk", "turns", "keeps"),
    [
        (LSGD(), [3], 2, (4, 2), True),
        (ASCD(p_w=0.5), [3], 3, (3, 1), False),
        (ASVRCD(p_w=0.5), [3, 4], 2, (4, 2), True),
    ],
    ids=["lsgd", "ascd", "asvrcd"],
)
def test_turns_change_nothing(
    method: Any, seeds: list, chunk: int, turns: tuple, keeps: bool, few: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not so many divide the clients, with messages and coins, with slots for iterates and without."""
    whole, rng = _unequal(), np.random.default_rng(1)
    assert FEATURES == len(whole.positions[1]) == 3
    start = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), whole.start)
    record = {
        "loss": "loss", "gradient_norm": "gradient_norm", "places": _places,
    }  # fmt: skip
    options = {"iterations": 12, "every": 2, "seeds": seeds, "start": start, "record": record}
    expected = tw.solve(whole, method, **options)
    if not keeps:
        monkeypatch.setattr(run, "SNAPSHOT_BYTES", 0)
    taken = few(chunk)
    found = tw.solve(whole, method, engine="sharded", **options)
    assert taken == [turns]
    for one, other in zip(found, expected, strict=True):
        assert 0 < other.ledger.rounds < 12 or not method.may_skip_messages
        assert one.ledger.as_dict() == other.ledger.as_dict()
        for column in ("round", "iteration", "bytes"):
            assert_array_equal(one.history[column], other.history[column])
        for column in record:
            assert_allclose(one.history[column], other.history[column], rtol=0, atol=1e-10, err_msg=column)
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=0, atol=1e-10), (one.w, one.beta), (other.w, other.beta))
