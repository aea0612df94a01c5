"""Four nodes as real processes behind masks, a dropout by kill -9, and the end of a study in which the coordinator is killed twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from federation.small import by_hand, problem
from federation.test_processes import SHARED, Stage, _path
from twofold.federation import store
from twofold.federation.named import made

pytest.importorskip("flwr")

__all__ = ["_path"]  # a fixture for all tests here
ROUNDS = 14


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    rounds = {"missing": "skip", "deadline": 1.0, "record": 4}
    found = Stage(tmp_path / "play", ROUNDS, tw.algorithms.LSGD(), problem(), round=rounds)
    yield found
    found.end()


def test_a_dropout_and_two_deaths_at_the_end(stage: Stage):
    folder = stage.play.folder
    log = folder / "run" / "log"
    stage.serve(dies="end.json")
    for i in range(4):
        stage.join(i)
    stage.further(3)
    # 1. kill -9 of a node: a majority opens the sum of the others, and its own message stays sealed.
    stage.kill(stage.nodes[3])
    stage.further(3)
    stage.join(3)
    # 2. kill -9 of the coordinator during the closing round: nodes have answered, nobody has written it down.
    stage.until(lambda: stage.server is not None and stage.server.poll() is not None)
    assert stage.server is not None and stage.server.returncode == -9, stage.said()
    assert len(list(log.glob("0*"))) == ROUNDS and not (folder / "run" / "end.json").exists()
    assert [process.poll() for process in stage.nodes.values()] == [None] * 4  # they stay: nobody has said goodbye
    # 3. Between the end and the result. 4. And a node, too, which comes back.
    stage.serve(dies="result")
    stage.until(lambda: stage.server is not None and stage.server.poll() is not None)
    assert stage.server.returncode == -9, stage.said()
    assert (folder / "run" / "end.json").exists() and not (folder / "run" / "result").exists()
    assert [process.poll() for process in stage.nodes.values()] == [None] * 4
    stage.kill(stage.nodes[0])
    stage.serve()
    stage.until((folder / "run" / "result").exists)  # without anybody's help
    stage.join(0)
    stage.until(lambda: stage.server is not None and stage.server.poll() is not None)
    assert stage.server.returncode == 0, stage.said()
    for i, process in stage.nodes.items():
        if i:
            assert process.wait(timeout=60) == 0, stage.said()
    if (
        stage.nodes[0].poll() is None and not stage.play.node(0).has_parted
    ):  # it came after the last word: there is another
        stage.serve()
    assert stage.nodes[0].wait(timeout=60) == 0, stage.said()
    # 5. Whoever types `join` once more needs no coordinator.
    stage.join(0)
    assert stage.nodes[0].wait(timeout=60) == 0, stage.said()
    found = tw.Result.load(folder / "run" / "result")
    heres = [store.read(path)[1]["here"] for path in sorted(log.iterdir())]
    absent = {r: set(range(4)) - set(here) for r, here in enumerate(heres, 1) if here is not None}
    assert {3} in absent.values()
    contract = json.loads((folder / "run" / "contract.json").read_text())
    w, beta = by_hand(stage.play.study, made(contract["algorithm"]), "mixture", absent, False)
    assert_allclose(found.w, w, rtol=0, atol=1e-10)
    assert_allclose(stage.play.beta(), beta, rtol=0, atol=1e-10)
    # The ledger: that of a run that nobody disturbed, less what one has not sent and not told while it was away.
    expected = tw.solve(problem(), made(contract["algorithm"]), rounds=ROUNDS, seed=3, record=()).ledger.as_dict()
    ledger, whole = found.ledger.as_dict(), {k: expected[k] for k in SHARED if not k.endswith("_up")}
    assert {k: int(np.max(ledger[k])) if k.endswith("down") else ledger[k] for k in whole} == whole
    away = np.array([sum(m in who for who in absent.values()) for m in range(4)])
    each = int(np.max(expected["floats_up"])) // ROUNDS
    assert away[3] and each * ROUNDS == expected["floats_up"]
    assert_array_equal(ledger["floats_up"], each * (ROUNDS - away))
    assert_array_equal(ledger["bytes_up"], 8 * each * (ROUNDS - away))
    end = json.loads((folder / "run" / "end.json").read_text())
    ends = set() if end["here"] is None else set(range(4)) - set(end["here"])
    told = [m not in absent.get(r, ()) for r in range(1, ROUNDS + 1, 4) for m in range(4)]
    losses = np.reshape(told, (-1, 4)).sum(0) + [m not in ends for m in range(4)]
    assert_array_equal(ledger["reported"], 4 + losses)  # μ', L', 𝓛', rows, and a loss each time
    lines = [store.read(path)[1] for path in sorted(log.iterdir())] + [end]
    for way in ("up", "down"):
        bytes_of = [sum(line[way][name] for line in lines) for name in stage.play.names]
        assert_array_equal(ledger[f"wire_{way}"], bytes_of)
    assert np.all(found.ledger.wire_up > found.ledger.bytes_up) and found.ledger.rounds == ROUNDS
