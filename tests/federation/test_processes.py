"""Real processes on loopback, with TLS, keys and masks: killed, stopped, brought back, and nothing is lost.

Each of the three runs here is of another method (lsgd, acd, asvrcd). They share the compiled programs of the test suite.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import twofold as tw
from forked import Forked, Zygote
from twofold.cli import app
from twofold.federation.named import made

pytest.importorskip("flwr")

from twofold.engines.flower.rehearsal import Rehearsal

SHARED = ("rounds", "iterations", "floats_up", "floats_down", "bytes_up", "bytes_down", "gradients_w", "gradients_beta")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tw.__file__).parents[1]))


def problem() -> tw.Problem:
    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    clients = tw.Clients.from_list(made.clients, names=["north", "south", "west"])
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients, sampling="uniform")


def assert_same(found: Any, expected: Any, beta: Any, atol: float) -> None:
    assert_allclose(found.w, expected.w, rtol=0, atol=atol)
    assert_allclose(beta, expected.beta, rtol=0, atol=atol)
    ledgers = [result.ledger.as_dict() for result in (found, expected)]
    assert {k: ledgers[0][k] for k in SHARED} == {k: ledgers[1][k] for k in SHARED}


def test_a_rehearsal_is_the_same_run():
    """`solve(engine="flower")`: processes, sockets, certificates, keys, masks, disks, and the same numbers."""
    whole = problem()
    found = tw.solve(whole, "acd", rounds=6, seed=3, every=2, engine="flower")
    expected = tw.solve(whole, "acd", rounds=6, seed=3, every=2, engine="messages")
    assert_same(found, expected, found.beta, 1e-11)
    assert_allclose(found.history["loss"], expected.history["loss"], rtol=0, atol=1e-11)
    assert np.all(found.ledger.wire_up > found.ledger.bytes_up)
    with pytest.raises(tw.TwofoldError, match="needs rounds="):
        tw.solve(whole, "acd", tol=1e-3, engine="flower")


def test_two_processes_in_the_open_are_the_same_to_rounding():
    """Two clients cannot have masks, so there is no fixed point in between."""
    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=2, rows=8, features=2)
    clients = tw.Clients.from_list(made.clients, names=["north", "south"])
    whole = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients, sampling="uniform")
    found = tw.solve(whole, "lsgd", rounds=4, seed=3, every=2, engine="flower")
    expected = tw.solve(whole, "lsgd", rounds=4, seed=3, every=2, engine="messages")
    assert_same(found, expected, found.beta, 1e-12)
    assert_allclose(found.history["loss"], expected.history["loss"], rtol=0, atol=1e-12)


# --- faults -------------------------------------------------------------------------------------------------------------


KILLED = """
import os, signal
from twofold import result
from twofold.federation import store
keep, save = store.replace_file, result.Result.save
def replace(path, content):
    if path.name == "{name}":
        os.kill(os.getpid(), signal.SIGKILL)
    keep(path, content)
def into(self, folder):
    if os.path.basename(folder) == "{name}":
        os.kill(os.getpid(), signal.SIGKILL)
    return save(self, folder)
store.replace_file, result.Result.save = replace, into
"""


def new_zygote() -> Zygote:
    return Zygote("twofold.cli", "twofold.engines.flower.server", "twofold.federation.page", "twofold.solver")


class Stage:
    """A coordinator and its nodes, each a process of its own (see forked.py)."""

    def __init__(
        self,
        folder: Path,
        rounds: int,
        method: Any = None,
        whole: tw.Problem | None = None,
        zygote: Zygote | None = None,
        **sections: Any,
    ) -> None:
        self.whole = whole or problem()
        sections = {"round": {"record": 20}, "tell": {"salt": False}} | sections
        self.play = Rehearsal(self.whole, method or tw.algorithms.ASVRCD(), folder, rounds=rounds, seed=3, **sections)
        self.port = free_port()
        self.zygote = zygote or new_zygote()
        self.server: Forked | None = None
        self.nodes: dict[int, Forked] = {}

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "twofold.cli", "serve", str(self.play.folder / "study.toml"), "--out", str(self.play.folder / "run"),
            "--port", str(self.port), "--certs", str(self.play.folder / "certs"), "--log", "json",
        ]  # fmt: skip

    def serve(self, dies: str | None = None, before: str = "") -> None:
        """Start the coordinator; with `dies`, one that is killed (SIGKILL) when it is about to write the file of that name.

        `before` is code that comes first: constants that are too long for a test.
        """
        if dies is not None:
            before += KILLED.format(name=dies)
        self.server = self.zygote.start(self.command(), self.play.folder / "server.log", before)

    def join(self, i: int, port: int | None = None) -> None:
        command = self.play.command(i, self.port if port is None else port)
        self.nodes[i] = self.zygote.start(command, self.play.folder / f"{i}.log")

    def kill(self, process: Forked | None) -> None:
        assert process is not None
        process.kill()
        process.wait()

    def round(self) -> int:
        try:
            return len(list((self.play.folder / "run" / "log").glob("0*.safetensors")))
        except OSError:
            return 0

    def until(self, ready: Callable[[], bool], seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)

    def further(self, rounds: int = 4) -> None:
        goal = self.round() + rounds
        self.until(lambda: self.round() >= goal)

    def said(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.play.folder.glob("*.log"))
        )

    def end(self) -> None:
        for process in (self.server, *self.nodes.values()):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                self.kill(process)
        self.zygote.end()


def test_three_nodes_in_the_open_are_the_same_to_rounding(tmp_path: Path):
    """acd and asvrcd with TLS and keys and without masks, so that there is no fixed point in between."""
    zygote, stages = new_zygote(), []
    try:
        for name in ("acd", "asvrcd"):
            sections: dict[str, Any] = {"masks": {"on": False}, "round": {"record": 4}}
            stages.append(Stage(tmp_path / name, 8, tw.algorithms.REGISTRY[name](), zygote=zygote, **sections))
            stages[-1].serve()
            for i in range(3):
                stages[-1].join(i)
        for stage in stages:
            assert stage.server is not None and stage.server.wait(timeout=120) == 0, stage.said()
            assert [node.wait(timeout=60) for node in stage.nodes.values()] == [0] * 3
            found = tw.Result.load(stage.play.folder / "run" / "result")
            contract = json.loads((stage.play.folder / "run" / "contract.json").read_text())
            assert stage.play.study.keys and not stage.play.study.masks
            method = made(contract["algorithm"])
            expected = tw.solve(stage.whole, method, rounds=8, seed=3, every=4, engine="messages")
            assert_same(found, expected, stage.play.beta(), 1e-12)
            assert_allclose(found.history["loss"], expected.history["loss"], rtol=0, atol=1e-12)
    finally:
        for stage in stages:
            stage.end()


ROUNDS = 80
"""Some 25 pass before the last fault, and those after it are there to show that all is well again."""


IMPATIENT = "import sys, twofold.engines.flower.join; sys.modules['twofold.engines.flower.join'].PERSISTENCE = 2.0"
"""A node that is turned away tries for two seconds, not for ten. (The package exports a function of the module's name.)"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "play", ROUNDS)
    yield found
    found.end()


def test_whatever_is_killed_nothing_is_lost(stage: Stage):
    """One run through eight faults, one after the other."""
    folder = stage.play.folder
    stage.serve()
    for i in range(3):
        stage.join(i)
    stage.further(8)
    shutil.copytree(folder / "state-0", folder / "backup")

    # 1. kill -9 of a node; while it is away, a second holder of another's key is turned away.
    stage.kill(stage.nodes[1])
    log = folder / "second.log"
    second = stage.zygote.start([*stage.play.command(2, stage.port), "--patience", "60"], log, IMPATIENT)
    assert second.wait(timeout=90) == 5, stage.said()
    assert "somebody is there with it already" in log.read_text()
    stage.join(1)
    stage.further()
    # 2. A node hangs (as if its network were gone) and comes back by itself.
    stage.nodes[2].send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    stage.nodes[2].send_signal(signal.SIGCONT)
    stage.further()
    # 3. kill -9 of the coordinator: nodes wait for it.
    stage.kill(stage.server)
    stage.serve()
    stage.further()
    # 4. A node's disk is lost, β and all, 5. and another one's is an old copy; both at once, and 6. the coordinator too.
    stage.kill(stage.nodes[2])
    stage.kill(stage.nodes[0])
    stage.kill(stage.server)
    shutil.rmtree(folder / "state-2")
    (folder / "state-2").mkdir()
    shutil.rmtree(folder / "state-0")
    shutil.copytree(folder / "backup", folder / "state-0")
    stage.serve()
    stage.join(0)
    stage.join(2)
    stage.further()
    # 7. A polite end of a node (SIGTERM), 8. and half a file left behind by one that was killed.
    stage.nodes[1].terminate()
    stage.nodes[1].wait(timeout=20)
    (folder / "state-1" / ".state.safetensors.999").write_bytes(b"half")
    stage.join(1)

    assert stage.server is not None
    stage.until(lambda: stage.server is not None and stage.server.poll() is not None)
    assert stage.server.returncode == 0, stage.said()
    for process in stage.nodes.values():
        assert process.wait(timeout=30) == 0, stage.said()
    found = tw.Result.load(folder / "run" / "result")
    contract = json.loads((folder / "run" / "contract.json").read_text())
    expected = tw.solve(stage.whole, made(contract["algorithm"]), rounds=ROUNDS, seed=3, record=())
    assert_same(found, expected, stage.play.beta(), 1e-10)
    events = [json.loads(line)["event"] for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    assert sum(event.startswith("resumed") for event in events) == 2
    assert any("gets the means since then" in event for event in events)


# --- what people type ---------------------------------------------------------------------------------------------------


def type_in(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_walk_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The shell blocks of docs/federation.md as they stand, from an empty folder to a model that predicts alone."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "federation.md").read_text().split("## Ten minutes, two terminals")[1].split("\n## ")[0]
    make, look, serve, join, model = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "twofold"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m twofold.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    ports = {"8443": str(free_port()), "8080": str(free_port())}

    def start(block: str) -> subprocess.Popen[str]:
        for before, after in ports.items():
            block = block.replace(before, after)
        words = ["bash", "-e", "-c", block]  # a session of its own, so that whatever it starts can be ended, too
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def run(block: str) -> str:
        said = (process := start(block)).communicate(timeout=180)[0]
        assert process.returncode == 0, said
        return said

    run(make)
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace("rounds = 100", "rounds = 6"))
    assert oct((tmp_path / "north.key").stat().st_mode)[-3:] == "600"
    told = run(look)
    assert (
        "Nothing was sent." in told
        and "behind masks" in told
        and "calL" in told
        and "loss" not in told
        and "commitment" in told
    )
    running = [start(serve), start(join)]
    try:
        said = [process.communicate(timeout=180)[0] for process in running]
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in running] == [0, 0], said
    assert "Every β stayed where it is" in said[0] and "Waiting for " in said[0]
    assert f"Watch it at http://127.0.0.1:{ports['8080']}/" in said[0]
    assert said[1].count("The study is done.") == 3
    assert "round 6 of 6, done" in type_in("status", "run")
    assert {"yes", "no"} & set(re.findall("yes|no", run(model).splitlines()[-1]))
    assert tw.load(tmp_path / "model").names == ("north",)
    assert os.stat(tmp_path / "state-north").st_mode & 0o077 == 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
