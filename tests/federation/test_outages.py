"""A full disk and a network that is gone, met by real processes: what they say, how they end, and that nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from federation.small import Small, study
from federation.test_processes import Stage, _path, assert_same
from forked import Forked
from twofold.federation import Stopped, store
from twofold.federation.named import made

pytest.importorskip("flwr")
__all__ = ["_path"]  # a fixture for all tests here

ROUNDS = 40
SHORT = """
import sys, twofold.engines.flower.server
from twofold.federation import Patience
sys.modules["twofold.engines.flower.server"].ALIVE = 1.0  # 4.0
Patience.__init__.__defaults__ = (0.005, 1.0, 0.5, 600.0)  # asked again after 1 s, not 20 s
"""
write = store.write


class Cable:
    """A line to a port that can be cut: connections break and new ones are refused, or everything hangs on the way."""

    def __init__(self, port: int) -> None:
        self.goal, self.flows = port, threading.Event()
        self.flows.set()
        self.ends: list[socket.socket] = []
        self.port = self._open(0)

    def _open(self, port: int) -> int:
        self.door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self.door,), daemon=True).start()
        return self.door.getsockname()[1]

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                near, _ = door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.goal))
            except OSError:  # nobody is there yet
                self._shut(near)
                continue
            self.ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while some := one.recv(1 << 16):
                self.heard(one, some)
                self.flows.wait()
                other.sendall(some)
        except OSError:
            pass
        self._shut(one, other)

    def heard(self, end: socket.socket, some: bytes) -> None:
        """For who wants to listen in."""

    def _shut(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self._shut(self.door, *self.ends)
        self.ends.clear()

    def mend(self) -> None:
        self._open(self.port)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path / "play", rounds=ROUNDS)
    yield found
    found.end()


def events(stage: Stage) -> list[str]:
    path = stage.play.folder / "run" / "events.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


def limit(process: Forked | None, most: int) -> None:
    """No file of this process may grow beyond so many bytes: to it, the disk is full."""
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_full_disks_and_broken_lines_lose_nothing(stage: Stage):
    folder = stage.play.folder
    cable = Cable(stage.port)
    stage.serve(before=SHORT)
    for i in range(3):
        stage.join(i, cable.port)
    stage.further(2)
    # 1. A node's disk is full. It says so, stays, and goes on once there is room.
    kept = (folder / "state-1" / "state.safetensors").read_bytes()
    limit(stage.nodes[1], 100)
    stage.until(lambda: any("cannot answer now" in event for event in events(stage)))
    (told,) = {event.split(": ", 1)[1] for event in events(stage) if "cannot answer now" in event}
    assert told == "south cannot answer now: its disk says: File too large"  # and no name of a folder
    now = sorted(path.name for path in (folder / "state-1").iterdir())
    assert not [name for name in now if name.startswith(".")]  # nothing half-written
    assert len(kept) == (folder / "state-1" / "state.safetensors").stat().st_size
    limit(stage.nodes[1], resource.RLIM_INFINITY)
    stage.further(2)
    # 2. The network is gone for longer than anybody is thought to be alive: connections break, and nobody can connect.
    cable.cut()
    time.sleep(2.0)
    cable.mend()
    stage.further(2)
    # 3. Then everything hangs on its way, so long that the coordinator asks again.
    before = sum("asked again" in event for event in events(stage))
    cable.flows.clear()
    stage.until(lambda: sum("asked again" in event for event in events(stage)) > before)
    cable.flows.set()
    stage.further(2)
    # 4. The coordinator's disk is full, its log's too: it ends with the code for "the same command goes on".
    half_written = shutil.ignore_patterns(".*")
    shutil.copytree(folder / "run", folder / "copy", ignore=half_written)
    limit(stage.server, 100)
    assert stage.server is not None and stage.server.wait(timeout=30) == 4
    copied = {path.name: path.read_bytes() for path in (folder / "copy" / "log").iterdir()}
    assert copied.items() <= {path.name: path.read_bytes() for path in (folder / "run" / "log").iterdir()}.items()
    stage.serve()
    stage.until(lambda: stage.server is not None and stage.server.poll() is not None)
    assert stage.server.returncode == 0, stage.said()
    for process in stage.nodes.values():
        assert process.wait(timeout=30) == 0, stage.said()
    found = tw.Result.load(folder / "run" / "result")
    algorithm = made(json.loads((folder / "run" / "contract.json").read_text())["algorithm"])
    expected = tw.solve(stage.whole, algorithm, rounds=ROUNDS, seed=3, record=())
    assert_same(found, expected, stage.play.beta(), 1e-10)
    assert np.all(found.ledger.wire_up > 0)


def test_a_coordinator_without_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *rest: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    small = Small(study("scd"), tmp_path)
    monkeypatch.setattr(store, "write", lambda path, *rest: full(path) if "log" in path.parts else write(path, *rest))
    with pytest.raises(
        Stopped, match=r"There is no room left in .*server \(No space left on device\): make some; nothing is lost"
    ):
        small.run()
    monkeypatch.setattr(store, "write", write)
    assert small.run().ledger.rounds == 5
