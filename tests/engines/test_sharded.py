"""The sharded engine gives simulate's coins, ledger and iterates, over two devices and over two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from problems import CONFIG
from twofold.result import Result

WORKER = Path(__file__).with_name("sharded_worker.py")


def _start(devices: int, process: int, processes: int, port: int) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS",)}
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, (devices, process, processes, port))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
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
    """The same runs by `simulate`, in a process of its own."""
    return _finish(_start(1, 0, 1, 0))


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
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}

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
