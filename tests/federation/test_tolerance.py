"""A study that ends at a certified gap: where every other engine would end, with nobody's gradient in the open."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from federation.small import Small, node, problem, study
from twofold.errors import InputError
from twofold.federation import Coordinator, InProcess, Node, Patience, Seat, Stopped, Study, store, wire
from twofold.federation.dp import Noise
from twofold.federation.tells import TELLS

SHARED = ("rounds", "iterations", "floats_up", "floats_down", "bytes_up", "bytes_down", "gradients_w", "gradients_beta")
WAITING = Patience(poll=0.0, again=0.01, look=0.0, limit=5.0)
TOLERANCE = {"acd": 1e-4, "asvrcd": 5e-3}


def agreed(name: str = "acd", kind: str = "mixture", tolerance: float | None = None, **more: Any) -> Study:
    sections = {"round": {"record": 2}} | more
    stop = {"rounds": 60, "tolerance": TOLERANCE.get(name, 0.1) if tolerance is None else tolerance}
    return study(name, kind, rounds=60, stop=stop, **sections)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, np.ndarray]:
    small = Small(agreed(), tmp_path_factory.mktemp("right"))
    return small.run(), small.beta()


def assert_same(found: Any, beta: Any, expected: Any, atol: float) -> None:
    assert (found.status, found.message) == (expected.status, expected.message)
    assert_allclose(found.w, expected.w, rtol=0, atol=atol)
    assert_allclose(beta, expected.beta, rtol=0, atol=atol)
    ledgers = [result.ledger.as_dict() for result in (found, expected)]
    assert {k: ledgers[0][k] for k in SHARED} == {k: ledgers[1][k] for k in SHARED}
    for column in ("round", "iteration", "bytes"):
        assert_array_equal(found.history[column], expected.history[column])
    assert_allclose(found.history["bound"], expected.history["bound"], rtol=1e-9, atol=atol)


@pytest.mark.parametrize(("name", "kind"), [("acd", "mixture"), ("asvrcd", "weight_sharing")])
def test_a_study_ends_where_every_engine_would(name: str, kind: str, tmp_path: Path):
    small = Small(agreed(name, kind), tmp_path, kind=kind)
    found = small.run()
    tol = TOLERANCE[name]
    expected = tw.solve(problem(kind), found.algorithm, tol=tol, rounds=60, every=2, seed=3, engine="messages")
    assert_same(found, small.beta(), expected, 1e-12)
    assert found.status == "converged" and 2 < found.ledger.rounds < 60
    gap = found.history["loss"] - problem(kind).optimum().value
    assert np.all(gap <= found.history["bound"]) and found.history["bound"][-1] <= tol < found.history["bound"][-2]


def test_behind_masks_it_is_the_same_and_a_little_more_careful(right: Any, tmp_path: Path):
    small = Small(agreed(keys=True, masks={"on": True}), tmp_path)
    found = small.run()
    assert found.ledger.rounds == right[0].ledger.rounds
    assert_allclose(found.w, right[0].w, rtol=0, atol=1e-11)
    assert_allclose(small.beta(), right[1], rtol=0, atol=1e-11)
    more = found.history["bound"] - right[0].history["bound"]
    assert np.all(more > 0) and np.all(more < 1e-10)
    # Nobody's part of the gap has passed in the open, and every number of it is counted.
    records = len(found.history["round"])
    assert found.ledger.reported.tolist() == [4 + records * (1 + 2 + 3)] * 4


@pytest.mark.parametrize("dies", ["coordinator", "both"])
def test_nothing_is_lost_at_the_end(dies: str, right: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The coordinator dies once it has written down that this is the end; a node has lost its folder when it hears of it."""
    small, replace = Small(agreed(), tmp_path), store.replace_file

    def dying(path: Path, content: bytes) -> None:
        replace(path, content)
        if path.name == "stop.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "replace_file", dying)
    with pytest.raises(KeyboardInterrupt):
        small.run(patience=WAITING)
    monkeypatch.setattr(store, "replace_file", replace)
    if dies == "both":
        shutil.rmtree(tmp_path / "east")
        small.restart("east")
        small.restart("west")
    found = small.run(patience=WAITING)
    assert_array_equal(found.w, right[0].w)
    assert_array_equal(small.beta(), right[1])
    assert found.ledger.rounds == right[0].ledger.rounds
    assert_array_equal(found.history["bound"], right[0].history["bound"])
    again = small.run(patience=WAITING)  # whoever types the command once more gets the same
    assert_array_equal(again.w, right[0].w)
    assert again.status == "converged"


def test_where_somebody_is_missing_there_is_no_gap(tmp_path: Path):
    """Without east's part nothing is certified: the study goes on to its next record."""

    def fault(who: Any, content: bytes) -> list[Any]:
        about = wire.opened("x", content).about
        silent = who.name == "east" and about["kind"] == "round" and about["round"] in silence
        return [] if silent else [who.handle(content)]

    plain = Small(
        agreed("lsgd", tolerance=0.5, round={"record": 1, "missing": "skip", "deadline": 0.0}), tmp_path / "a"
    )
    stops = plain.run().ledger.rounds
    silence = {stops + 1}
    small = Small(plain.study, tmp_path / "b", fault)
    found = small.run(patience=Patience(poll=0.0, again=60.0, look=60.0, limit=60.0))
    assert found.ledger.rounds == stops + 1
    assert np.isnan(found.history["bound"][found.history["round"] == stops]).all()


def test_a_ridge_alone_bounds_the_gap_of_a_squared_loss(tmp_path: Path):
    """Elsewhere second moments sharpen the bound. They would have to be told, so a federation does without them."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (4, 6, 6)]
    clients = tw.Clients.from_list(rows, names=["a", "b", "c"], weights=[1, 2, 3])
    whole = tw.Problem(tw.objectives.multitask(tw.losses.squared(l2=0.5, intercept=True), lam=0.5), clients)
    plain = Study.of(
        whole, tw.algorithms.LSGD(eta=0.05, tau=2), rounds=4, tolerance=1e-6, masks={"on": False}, round={"record": 1}
    )
    nodes = [Node(Seat(plain, n, clients[n].x, clients[n].y), tmp_path / str(n), tells=TELLS) for n in clients.names]
    found = Coordinator(plain, InProcess(nodes), tmp_path / "server").run()
    gap = found.history["loss"] - whole.optimum().value
    assert np.all(gap <= found.history["bound"]) and np.all(found.history["bound"] < 1e3 * gap)
    assert found.status == "budget"


def test_sentences(tmp_path: Path):
    for change, sentence in (
        ({"tolerance": -1.0}, "is a gap F − F\\* > 0, got -1"),
        ({"tolerance": 1e-20}, "tolerance = 1e-20 cannot be seen behind masks with 44 bits after the point"),
    ):
        with pytest.raises(InputError, match=sentence):
            getattr(study("acd", keys=True, masks={"on": True}, stop={"rounds": 5} | change), "proof")  # noqa: B009
    with pytest.raises(InputError, match="set \\[round\\] record = 10"):
        agreed(round={})
    bare = agreed().document | {"loss": {"name": "logistic", "l2": 0.0}}
    with pytest.raises(InputError, match="give the loss a ridge, l2 > 0"):
        getattr(Study(bare), "proof")  # noqa: B009
    curved = agreed().document | {"objective": {"name": "maml", "alpha": 0.1}}
    with pytest.raises(InputError, match="there is none for maml here: leave it out"):
        getattr(Study(curved), "proof")  # noqa: B009
    with pytest.raises(InputError, match="join with --tell rows,gap"):
        node(agreed(), "north", tmp_path, tells=("rows",))
    with pytest.raises(InputError, match="the study must have no \\[stop\\] tolerance"):
        node(agreed(), "north", tmp_path, tells=("rows",), noise=Noise(1.0, 1.0, 1e-6, lambda said: b""))


@pytest.mark.parametrize("measured", [False, True])
def test_a_coordinator_cannot_end_a_study_where_nothing_was_measured(measured: bool, tmp_path: Path):
    small = Small(agreed(tolerance=1e-12) if measured else study("scd", rounds=5), tmp_path)
    with pytest.raises(Stopped, match="on purpose"):
        small.run(stop_after=4)
    who, server = small.grid.all[101], small.server
    server.rounds = (
        3  # a gap was measured with rounds 1 and 3 of the study that has a tolerance, and with none of the other
    )
    answer = wire.opened("x", who.handle(server._question(4, 3)[1]))
    said = (
        "ends the study before round 4, where no gap was measured"
        if measured
        else "asks round 4 as the last of a study"
    )
    assert said in answer.about["refused"]
