"""Four nodes as real processes behind masks, a dropout by kill -9, and the end of a study in which the coordinator is killed twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from federation.small import by_hand, problem
from federation.test_processes import Stage, _cached

pytest.importorskip("flwr")

__all__ = ["_cached"]  # the programs that test_processes has compiled
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
    from twofold.federation import store

    heres = [store.read(path)[1]["here"] for path in sorted(log.iterdir())]
    absent = {r: set(range(4)) - set(here) for r, here in enumerate(heres, 1) if here is not None}
    assert {3} in absent.values()
    contract = json.loads((folder / "run" / "contract.json").read_text())
    from twofold.federation.study import made

    w, beta = by_hand(stage.play.study, made(contract["algorithm"]), "mixture", absent, False)
    assert_allclose(found.w, w, rtol=0, atol=1e-10)
    assert_allclose(stage.play.beta(), beta, rtol=0, atol=1e-10)
    assert np.all(found.ledger.wire_up > 0) and found.ledger.rounds == ROUNDS
