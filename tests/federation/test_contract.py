"""What a node does not do for a coordinator that lies, and what it never says twice behind the same mask or the same noise."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import twofold as tw
from federation.small import NAMES, Small, identities, node, problem, study
from federation.test_inprocess import METHODS
from twofold.algorithms import REGISTRY, TRAINING
from twofold.federation import Coordinator, InProcess, Node, Patience, Seat, Stopped, Study, contract, wire
from twofold.federation.dp import Noise
from twofold.federation.masks import decode
from twofold.federation.named import fields_of
from twofold.federation.steps import complete, misfit
from twofold.federation.wire import Note

WAITING = Patience(poll=0.0, again=0.01, look=0.0, limit=5.0)


def masked(**more: Any) -> Study:
    return study(tw.algorithms.LSGD(eta=0.1), rounds=2, keys=True, masks={"on": True}, **more)


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What north's messages were before masks, in order."""
    found: list[np.ndarray] = []
    sealed = Node._sealed

    def spy(self: Any, raw: Any, kept: Any, report: Any, *rest: Any) -> Any:
        if self.name == "north":
            found.append(np.concatenate([np.ravel(a) for a in (*raw.values(), *report.values())]))
        return sealed(self, raw, kept, report, *rest)

    monkeypatch.setattr(Node, "_sealed", spy)
    return found


def sent(small: Small, part: str) -> list[np.ndarray]:
    """North's answers as the coordinator has them."""
    answers = [wire.opened("x", c).arrays for way, name, c in small.grid.carried if way == "up" and name == "north"]
    return [arrays[part] for arrays in answers if part in arrays]


# --- a mask and a noise for one message only ----------------------------------------------------------------------------


def with_other_rows(small: Small, noise: Noise | None = None) -> None:
    """North has another table from now on: made up for a rehearsal, or corrected."""
    mine, before = problem().clients["north"], small.grid.all[100]
    seat = Seat(small.study, "north", np.zeros_like(mine.x), np.zeros_like(mine.y))
    who = identities()["north"]
    small.grid.all[100] = Node(seat, small.folder / "north", identity=who, tells=before.tells, noise=noise)


@pytest.mark.parametrize("change", ["rows", "tells", "nothing"])
def test_two_runs_of_one_study_have_other_masks(
    change: str, raw: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A new state folder, the same keys: who subtracts the two masked messages must not have the difference of the two.

    Neither where the coordinator draws the same nonce again on purpose, if anything has changed at the node.
    """
    if change != "nothing":
        monkeypatch.setattr(contract, "nonce", lambda: "always the same")
    agreed = masked(tell={"norm": 99.0, "rows": 9, "salt": False})
    first = Small(agreed, tmp_path / "first", tells=("loss",))
    first.run()
    second = Small(agreed, tmp_path / "second", tells=() if change == "tells" else ("loss",))
    if change == "rows":
        with_other_rows(second)
    second.run()
    assert len(raw) == 2 * 3
    for one, other, before, after in zip(sent(first, "masked"), sent(second, "masked"), raw[:3], raw[3:], strict=True):
        if change == "nothing":
            assert_array_equal(before, after)
        assert np.abs(decode(other - one, agreed.bits) * 4 - (after - before)).min() > 1.0


@pytest.mark.parametrize("tells", [("constants", "rows", "loss"), ("constants", "rows")])
def test_a_node_that_lost_its_folder_comes_back_as_it_was_or_not_at_all(
    tells: tuple[str, ...], raw: list[np.ndarray], tmp_path: Path
):
    """If it would tell less than before, its loss would stand in the difference of two messages behind one mask."""
    small = Small(masked(), tmp_path, tells=("constants", "rows", "loss"))
    lost: list[np.ndarray] = []

    def fault(who: Any, content: bytes) -> list[Any]:
        answer, asked = who.handle(content), wire.opened("x", content).about
        if who.name == "north" and asked.get("round") == 2 and not lost:
            lost.append(wire.opened("x", answer).arrays["masked"])
            shutil.rmtree(who.folder)
            small.grid.all[100] = node(small.study, "north", tmp_path, tells=tells)
            small.grid.marks[100] += "+"
            return []
        return [answer]

    small.grid.fault = fault
    if "loss" not in tells:
        with pytest.raises(Stopped, match="client 'north': this run began with other rows, or with another --tell"):
            small.run(patience=WAITING)
        assert len(raw) == 2
        return
    found = small.run(patience=WAITING)
    assert_array_equal(sent(small, "masked")[1], lost[0])  # rebuilt from the log: the same message behind the same mask
    assert_array_equal(found.w, Small(masked(), tmp_path / "right", tells=tells).run().w)


@pytest.mark.parametrize("keys", [True, False])
def test_noise_is_not_drawn_twice(keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two runs of one study: with the same noise, the difference of two messages would have none."""
    agreed = study(
        tw.algorithms.LSGD(eta=0.1), rounds=2, keys=keys, round={}, tell={"norm": 99.0, "rows": 9, "salt": False}
    )

    def noise(multiplier: float = 8.0) -> Noise:
        return Noise(1.0, multiplier, 1e-6, lambda said: identities()["north"].secret("noise", said.encode()))

    def run(folder: str, change: str = "") -> np.ndarray:
        small = Small(agreed, tmp_path / folder, tells=(), noise=noise(4.0 if change == "noise" else 8.0))
        if change == "rows":
            with_other_rows(small, noise=noise())
        small.run()
        return sent(small, "w.0")[0]

    first = run("first")
    assert np.abs(run("again") - first).max() > 4.0  # the deviation is 16, and a message is at most 1 long
    monkeypatch.setattr(contract, "nonce", lambda: "always the same")
    first = run("one")
    assert_array_equal(run("the same"), first)
    assert np.abs(run("other rows", "rows") - first).max() > 4.0
    assert np.abs(2 * run("other noise", "noise") - first).max() > 4.0


def test_a_resumed_run_keeps_its_nonce(tmp_path: Path):
    small = Small(masked(), tmp_path)
    with pytest.raises(Stopped, match="on purpose"):
        small.run(stop_after=1)
    before = small.server.roll.nonce, small.server.contract
    small.run()
    assert (small.server.roll.nonce, small.server.contract) == before


def test_nobody_hears_what_another_one_has_told(tmp_path: Path):
    """A question has the contract's terms alone: no rows, no constants, no ε; commitments are digests under each client's key."""
    agreed = study("scd", rounds=2, keys=True)
    small = Small(agreed, tmp_path)
    small.run()
    kept = json.loads((tmp_path / "server" / "contract.json").read_text())
    assert kept["rows"] == [9] * 4
    down = [wire.opened("x", content).about for way, _, content in small.grid.carried if way == "down"]
    found = [json.loads(about["contract"]) for about in down if "contract" in about]
    assert len(found) == 4 * 3 and all(terms == found[0] for terms in found)
    assert found[0].keys() == {"v", "study", "algorithm", "nonce", "commitments"}
    assert set().union(*down) == {
        "v", "study", "kind", "token", "nonce", "contract", "round", "last", "t", "lines", "said", "record",
    }  # fmt: skip
    assert len(set(found[0]["commitments"])) == 4  # though they have equally many rows, and tell the same things
    other = Small(agreed, tmp_path / "other")
    other.run()
    again = json.loads(other.server.contract)["commitments"]
    assert not set(again) & set(found[0]["commitments"])  # nor can anybody see that the rows are those of another run


# --- a coordinator that lies --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[Note]:
    """The questions of an honest run to east, and what it needs to be asked them again."""
    agreed = study(tw.algorithms.LSGD(eta=0.1), rounds=3, round={"record": 2})
    small = Small(agreed, tmp_path_factory.mktemp("honest"))
    small.run()
    return [wire.opened("x", c) for way, name, c in small.grid.carried if way == "down" and name == "east"]


def ask(who: Node, about: dict[str, Any], arrays: Any = None) -> str:
    """What a node says to a question: the refusal, or nothing."""
    return wire.opened("x", who.handle(wire.sealed(Note(about, arrays or {})))).about.get("refused", "")


def fresh(folder: Path) -> Node:
    return node(study(tw.algorithms.LSGD(eta=0.1), rounds=3, round={"record": 2}), "east", folder)


def with_terms(question: Note, **terms: Any) -> dict[str, Any]:
    """The question with another contract; what was said follows from it, as an evil coordinator would see to."""
    text = json.dumps(json.loads(question.about["contract"]) | terms, sort_keys=True)
    return question.about | {"contract": text, "said": wire.fingerprint(text)}


L2SGD = fields_of(tw.algorithms.L2SGDPlus(eta=0.5, p_w=0.5, lam=0.5))
LSGD = fields_of(tw.algorithms.LSGD(eta=0.1))
CONTRACTS: dict[str, tuple[dict[str, Any], str]] = {
    "another method, whose message is β": ({"algorithm": L2SGD}, r"does not keep to the study: \[algorithm\] "),
    "another step": ({"algorithm": LSGD | {"eta": 0.2}}, r"\[algorithm\] eta is 0.2, due is 0.1"),
    "more local steps": ({"algorithm": LSGD | {"epochs": 7}}, r"\[algorithm\] epochs is 7, due is None"),
    "all rows": ({"algorithm": LSGD | {"batch": "none"}}, r"\[algorithm\] batch is 'none', due is 1"),
    "a field of its own": ({"algorithm": LSGD | {"colour": 1}}, r"\[algorithm\] colour is 1, due is None"),
    "no method": ({"algorithm": {}}, r"\[algorithm\] "),
    "another study": ({"study": "whatever"}, "a contract of another study file"),
    "another version": ({"v": 2}, "a contract of another study file"),
    "another promise": ({"commitments": ["0" * 64] * 4}, "client 'east': this run began with other rows"),
    "somebody more": ({"commitments": [""] * 5}, "5 commitments for 4 clients"),
    "no nonce": ({"nonce": 7}, "a contract with nonce = 7, which must be a text"),
}


@pytest.mark.parametrize("kind", CONTRACTS)
def test_a_contract_that_is_not_the_studys_is_refused(kind: str, honest: list[Note], tmp_path: Path):
    change, sentence = CONTRACTS[kind]
    who = fresh(tmp_path)
    refused = ask(who, with_terms(honest[1], **change))
    assert re.search(sentence, refused), refused
    assert not (tmp_path / "east").exists()  # nothing of it is kept
    for text in ("{", "[]", "[" * 100_000):
        assert "a contract that is no JSON document" in ask(who, honest[1].about | {"contract": text})
    assert ask(who, *honest[1]) == ""  # and the right one is taken


@pytest.mark.parametrize(("name", "kind"), METHODS)
def test_every_field_that_a_file_sets_is_held_to(name: str, kind: str):
    """For every method: theory's step sizes are taken, as they come out of JSON, and no other value of a field that is set."""
    method = REGISTRY[name]() if name in REGISTRY else TRAINING[name](lr=0.1, batch=4)
    agreed = study(method, kind, rounds=2)
    for size in (0.3, 1.0, 40.0):
        told = {"mu": [0.1 * size] * 2, "L": [size] * 2, "calL": [2 * size] * 2, "rows": 50}
        whole = complete(agreed, dict.fromkeys(NAMES, told))[0]
        document = json.loads(json.dumps(fields_of(whole)))
        assert misfit(agreed, document) is None
    said = fields_of(agreed.open_algorithm)
    held = [key for key, value in said.items() if value not in ("auto", None)]
    assert "name" in held
    for key in held:
        assert misfit(agreed, document | {key: 0.777}) is not None, key
        assert misfit(agreed, {k: v for k, v in document.items() if k != key}) is not None, key
    for key in set(document) - set(said):
        assert misfit(agreed, document | {key: float("nan")}) is not None, key
        assert misfit(agreed, document | {key: [1.0] * 9}) is not None, key


def changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda about: about | fields


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda about: {k: v for k, v in about.items() if k != name}


def first_line(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda about: about | {"lines": [about["lines"][0] | fields, *about["lines"][1:]]}


QUESTIONS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    # what the study and its coins do not have (of round 2 of 3; a record is due in rounds 1 and 3, and at the end)
    "a round too many": (changed(round=5, last=True), "asks round 5 as the last of a study of 3 rounds"),
    "a message after the end": (changed(round=4), "asks round 4 as not the last of a study of 3 rounds"),
    "an early end": (changed(last=True), "asks round 2 as the last of a study of 3 rounds"),
    "a record that is not due": (changed(record=True), r"asks for record in round 2, .* \[round\] record = 2"),
    "an iteration without a message": (changed(t=7), "puts round 2 into iteration 7; by the common coins it is 1"),
    "an old iteration elsewhere": (first_line(t=4), "puts round 1 into iteration 4; by the common coins it is 0"),
    "a sum of one": (first_line(here=[1]), r"a sum without somebody \(\[1\]\), and the study says missing = 'wait'"),
    "a line of the future": (first_line(round=2, t=1), "tells of round 2 in a question of round 2"),
    # what is no question
    "no contract": (without("contract"), "sent a question without contract, which must be a text"),
    "a contract that is a number": (changed(contract=5), "sent a question with contract = 5, which must be a text"),
    "no round": (without("round"), "sent a question without round"),
    "a round in words": (changed(round="two"), "sent a question with round = 'two', which must be a whole number ≥ 1"),
    "half a round": (changed(round=1.5), "sent a question with round = 1.5"),
    "lines that are none": (changed(lines=5), "sent a question with lines = 5, which must be a list of tables"),
    "a line without a round": (changed(lines=[{}]), "sent a line without round"),
    "last in words": (changed(last="no"), "sent a question with last = 'no', which must be true or false"),
    "time in words": (changed(t=None), "sent a question with t = None"),
    "said as a number": (changed(said=3), "sent a question with said = 3"),
    "an unknown kind": (changed(kind="run"), "asks 'run', which this node does not know"),
    "a kind that is a list": (changed(kind=[]), r"asks \[\], which this node does not know"),
    "no version": (without("v"), "speaks version None"),
    "an opening of nothing": (
        lambda a: {k: a[k] for k in ("v", "study")} | {"kind": "open"},
        "sent a question without contract",
    ),
    "a hello without a nonce": (
        lambda a: {k: a[k] for k in ("v", "study")} | {"kind": "hello"},
        "sent a question without nonce",
    ),
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_question_that_the_study_does_not_have_is_refused_by_name(kind: str, honest: list[Note], tmp_path: Path):
    change, sentence = QUESTIONS[kind]
    who = fresh(tmp_path)
    assert ask(who, *honest[1]) == ""
    before = (tmp_path / "east" / "state.safetensors").read_bytes()
    refused = ask(who, change(honest[2].about), honest[2].arrays)
    assert refused.startswith("the coordinator: ") and re.search(sentence, refused), refused
    assert (tmp_path / "east" / "state.safetensors").read_bytes() == before
    assert ask(who, *honest[2]) == ""  # the node is there still


def test_shares_that_are_missing_are_named(tmp_path: Path):
    agreed = study(
        tw.algorithms.LSGD(eta=0.1),
        rounds=2,
        keys=True,
        masks={"on": True},
        round={"missing": "skip", "deadline": 30.0},
    )
    opened: list[tuple[Node, Note]] = []

    def fault(who: Any, content: bytes) -> list[Any]:
        question = wire.opened("x", content)
        if question.about["kind"] == "open":
            opened.append((who, question))
        return [who.handle(content)]

    with pytest.raises(Stopped, match="on purpose"):
        Small(agreed, tmp_path, fault).run(stop_after=2)
    who, question = opened[-1]
    assert "asks to open a sum without the shares of" in ask(who, question.about)
    assert "fewer than the 3 that it takes" in ask(who, question.about | {"here": [0, 1]}, question.arrays)
    assert "which are no clients of the study" in ask(who, question.about | {"here": [0, 1, 9]}, question.arrays)


def test_a_contract_is_looked_at_before_a_node_comes_back(tmp_path: Path):
    """A run that has begun tells its contract with the hello, so that who has changed hears it before anything is asked."""
    small = Small(masked(), tmp_path, tells=("constants", "rows"))
    with pytest.raises(Stopped, match="on purpose"):
        small.run(stop_after=1)
    with_other_rows(small)
    small.grid.marks[100] += "+"
    with pytest.raises(
        Stopped, match="Nobody is left to wait for: north: says: client 'north': this run began with other"
    ):
        Coordinator(small.study, InProcess(list(small.grid.all.values())), tmp_path / "server", patience=WAITING).run()


@pytest.mark.parametrize("value", [5, "x" * 64, "0" * 1_000_000])
def test_a_commitment_that_is_no_digest_is_refused(value: Any, tmp_path: Path):
    """It would go into everybody's contract."""

    def fault(who: Any, content: bytes) -> list[Any]:
        answer = wire.opened("x", who.handle(content))
        return [wire.sealed(Note(answer.about | ({"commitment": value} if who.name == "east" else {}), {}))]

    with pytest.raises(Stopped, match="east: sent commitment = .*, which is no digest") as error:
        Small(study("scd"), tmp_path, fault).run(patience=WAITING)
    assert len(str(error.value)) < 200
