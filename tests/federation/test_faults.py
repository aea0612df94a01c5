"""What can go wrong, in one process: after each of these faults the run ends with the same model and the same ledger."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import twofold as tw
from federation.small import NAMES, Small, identities, study
from twofold.federation import Gone, Identity, Patience, Stopped, store, wire
from twofold.federation.wire import Note

WAITING = Patience(poll=0.0, again=0.01, look=0.0, limit=5.0)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, np.ndarray, dict[str, Any]]:
    small = Small(study("scd"), tmp_path_factory.mktemp("right"))
    found = small.run()
    return found.w, small.beta(), costs(found)


def costs(found: Any) -> dict[str, Any]:
    return {k: v for k, v in found.ledger.as_dict().items() if not k.startswith("wire")}


def assert_nothing_lost(small: Small, found: Any, right: Any) -> None:
    assert_array_equal(found.w, right[0])
    assert_array_equal(small.beta(), right[1])
    assert costs(found) == right[2]


def about(content: bytes) -> dict[str, Any]:
    return wire.opened("x", content).about


class Once:
    """A fault that strikes the question of one kind to one client, the first so many times."""

    def __init__(self, do: Callable[[Any, bytes], list[Any]], r: int = 3, name: str = "east", times: int = 1) -> None:
        self.do, self.r, self.name, self.left = do, r, name, times

    def __call__(self, who: Any, content: bytes) -> list[Any]:
        asked = about(content)
        if self.left and who.name == self.name and asked["kind"] == "round" and asked["round"] == self.r:
            self.left -= 1
            return self.do(who, content)
        return [who.handle(content)]


# --- faults of machines and networks ------------------------------------------------------------------------------------


def lost_question(small: Small, who: Any, content: bytes) -> list[Any]:
    return []


def lost_answer(small: Small, who: Any, content: bytes) -> list[Any]:
    who.handle(content)
    return []


def twice(small: Small, who: Any, content: bytes) -> list[Any]:
    return [who.handle(content), who.handle(content)]


def network_gone(small: Small, who: Any, content: bytes) -> list[Any]:
    return [Gone("no route to host")]


def killed_before(small: Small, who: Any, content: bytes) -> list[Any]:
    small.restart(who.name)
    return []


def killed_after_writing(small: Small, who: Any, content: bytes) -> list[Any]:
    who.handle(content)
    small.restart(who.name)
    return []


def killed_half_written(small: Small, who: Any, content: bytes) -> list[Any]:
    (who.folder / ".state.safetensors.1").write_bytes(b"half")
    small.restart(who.name)
    return []


def lost_folder(small: Small, who: Any, content: bytes) -> list[Any]:
    shutil.rmtree(who.folder)
    small.restart(who.name)
    return []


def old_backup(small: Small, who: Any, content: bytes) -> list[Any]:
    old = small.folder / "backup"
    shutil.rmtree(who.folder)
    shutil.copytree(old, who.folder)
    small.restart(who.name)
    return []


def another_machine(small: Small, who: Any, content: bytes) -> list[Any]:
    """The client comes back under another number."""
    place = next(n for n, old in small.grid.all.items() if old.name == who.name)
    small.grid.all[900] = small.node(who.name)
    del small.grid.all[place], small.grid.marks[place]
    small.grid.marks[900] = "0"
    return [Gone("left")]


def disk_full(small: Small, who: Any, content: bytes) -> list[Any]:
    keep, store.replace_file = store.replace_file, _full
    try:
        return [who.handle(content)]
    finally:
        store.replace_file = keep


def _full(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


FAULTS = [
    lost_question, lost_answer, twice, network_gone, killed_before, killed_after_writing, killed_half_written, lost_folder,
    old_backup, another_machine, disk_full,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_nothing_is_lost(fault: Any, right: Any, tmp_path: Path):
    small = Small(study("scd"), tmp_path)

    def strike(who: Any, content: bytes) -> list[Any]:
        return fault(small, who, content)

    def save(who: Any, content: bytes) -> list[Any]:
        answer = who.handle(content)
        shutil.copytree(who.folder, tmp_path / "backup")
        return [answer]

    once, before = Once(strike), Once(save, r=1)
    small.grid.fault = lambda who, content: (before if before.left and about(content).get("round") == 1 else once)(
        who, content
    )
    assert_nothing_lost(small, small.run(patience=WAITING), right)
    assert not once.left


@pytest.mark.parametrize("when", ["before", "after", "with a node"])
def test_a_coordinator_that_dies_goes_on_where_it_was(
    when: str, right: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small, write = Small(study("scd"), tmp_path), store.write

    def dying(path: Path, *rest: Any) -> None:
        dies = path.name == "000003.safetensors"
        if dies and when != "after":
            raise KeyboardInterrupt
        write(path, *rest)
        if dies:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        small.run(patience=WAITING)
    monkeypatch.setattr(store, "write", write)
    if when == "with a node":
        small.restart("south")
    assert_nothing_lost(small, small.run(patience=WAITING), right)


def test_another_study_or_run_in_an_old_folder_is_refused(tmp_path: Path):
    small = Small(study("scd"), tmp_path)
    small.run()
    shutil.rmtree(tmp_path / "server")
    other = Small(study("scd", rounds=4), tmp_path)
    with pytest.raises(Stopped, match=r"north: says: the coordinator: changed the contract of this study"):
        other.run(patience=WAITING)


def test_a_second_question_with_other_numbers_is_refused(tmp_path: Path):
    asked: list[bytes] = []

    def fault(who: Any, content: bytes) -> list[Any]:
        if who.name == "east" and about(content).get("round") == 3:
            asked.append(content)
        return [who.handle(content)]

    small = Small(study("scd"), tmp_path, fault)
    with pytest.raises(Stopped, match="on purpose"):
        small.run(stop_after=3)
    document, arrays = wire.opened("x", asked[0])
    who = small.grid.all[101]
    (name,) = (n for n in arrays if n.startswith("2/"))
    other = wire.sealed(Note(document | {"said": "something else"}, arrays))
    assert "a second time with other numbers" in about(who.handle(other))["refused"]
    small.restart("east")
    who = small.grid.all[101]
    shutil.copytree(who.folder, tmp_path / "copy")
    forged = wire.sealed(
        Note(
            document
            | {
                "round": 4,
                "t": int(small.server.account.times[3]),
                "lines": [{"round": 3, "t": document["t"], "here": None}],
            },
            {f"3/{name[2:]}": arrays[name] + 1},
        )
    )
    assert "another history" in about(who.handle(forged))["refused"]


# --- bad messages -------------------------------------------------------------------------------------------------------


def changed(**fields: Any) -> Callable[[Note], Note]:
    return lambda answer: Note(answer.about | fields, answer.arrays)


def arrays(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Note], Note]:
    return lambda answer: Note(
        answer.about, {n: change(a) if n == "gradient.0" else a for n, a in answer.arrays.items()}
    )


BAD: dict[str, tuple[Callable[[Note], Note], str]] = {
    "nan": (arrays(lambda a: a * np.nan), "3 numbers that are not finite"),
    "infinity": (arrays(lambda a: a + np.inf), "3 numbers that are not finite"),
    "shape": (arrays(lambda a: a[:2]), r"due is float64\(3,\)"),
    "more axes": (arrays(lambda a: a[None]), r"due is float64\(3,\)"),
    "dtype": (arrays(lambda a: a.astype(np.float32)), r"is float32\(3,\)"),
    "whole numbers": (arrays(lambda a: a.astype(np.int64)), r"is int64\(3,\)"),
    "norm": (arrays(lambda a: a + 1e9), "and the study allows 1000"),
    "part missing": (lambda answer: Note(answer.about, {}), "due are \\['gradient.0', 'report'\\]"),
    "part more": (
        lambda answer: Note(answer.about, answer.arrays | {"beta.0": np.zeros(3)}),
        "sent the parts \\['beta.0'",
    ),
    "report not finite": (
        lambda a: Note(a.about, a.arrays | {"report": np.array([np.nan, 1.0])}),
        "report has 1 numbers",
    ),
    "old round": (changed(round=2), "answered round 2, asked was 3"),
    "later round": (changed(round=4), "answered round 4, asked was 3"),
    "no round": (lambda a: Note({k: v for k, v in a.about.items() if k != "round"}, a.arrays), "answered round None"),
    "version": (changed(v=99), "speaks version 99"),
    "digest": (changed(study="0" * 64), "another study file"),
    "somebody else": (changed(name="south"), "answered as 'south'"),
    "kind": (changed(kind="hello"), "answered 'hello'"),
    "behind in front": (changed(behind=17), "says it is at round 17"),
    "behind nonsense": (changed(behind="soon"), "a document that does not fit"),
    "refusal": (changed(refused="the dog ate it"), "says: the dog ate it"),
}
BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda b: b"", "no message of twofold's"),
    "plain text": (lambda b: b"HTTP/1.1 200 OK\r\n\r\nhello", "no message of twofold's"),
    "cut short": (lambda b: b[:-9], "cut short or damaged"),
    "header only": (lambda b: b[:12], "cut short or damaged"),
    "a huge header": (lambda b: b[:9] + b"\xff" * 8 + b[17:], "cut short or damaged"),
    "a list": (lambda b: b[:9] + store.pack({}, [1]), "cut short or damaged"),  # type: ignore[arg-type]
}


def spoil(kind: str) -> tuple[Callable[[Any, bytes], list[Any]], str]:
    if kind in BYTES:
        change, sentence = BYTES[kind]
        return lambda who, content: [change(who.handle(content))], sentence
    alter, sentence = BAD[kind]
    return lambda who, content: [wire.sealed(alter(wire.opened("x", who.handle(content))))], sentence


@pytest.mark.parametrize("kind", [*BAD, *BYTES])
def test_a_bad_message_is_refused_by_name_twice_and_then_the_run_stops(kind: str, tmp_path: Path):
    do, sentence = spoil(kind)
    agreed = study("scd", round={"record": 1, "norm": 1000.0}) if kind == "norm" else study("scd")
    small = Small(agreed, tmp_path, Once(do, times=9))
    with pytest.raises(Stopped, match=f"round 3: east: .*{sentence}"):
        small.run(patience=WAITING)
    told = [event for event in small.server.events if "refused" in event]
    assert len(told) == 2 and all(event.startswith("round 3: refused: east: ") for event in told)


@pytest.mark.parametrize("kind", ["nan", "old round", "behind nonsense", "cut short"])
def test_a_bad_message_is_asked_for_once_more_and_nothing_is_lost(kind: str, right: Any, tmp_path: Path):
    small = Small(study("scd"), tmp_path, Once(spoil(kind)[0]))
    assert_nothing_lost(small, small.run(patience=WAITING), right)
    assert sum("refused: east" in event for event in small.server.events) == 1


def test_what_is_answered_is_on_the_disk_before(tmp_path: Path, synced: list[int]):
    """A file and its folder are synced before a node answers, and before a mean is told."""
    counts: list[int] = []

    def fault(who: Any, content: bytes) -> list[Any]:
        before = len(synced)
        answer = who.handle(content)
        if about(content)["kind"] == "round":
            counts.append(len(synced) - before)
        return [answer]

    small = Small(study("scd"), tmp_path, fault)
    small.run(patience=WAITING)
    assert counts[:4] == [4] * 4  # the contract and the state, each with its folder
    assert set(counts[4:]) == {2}
    assert len(synced) == sum(counts) + 2 * (1 + 5 + 1)  # the contract, five rounds and the end


def test_where_the_study_says_skip_a_bad_client_is_left_out(tmp_path: Path):
    do, _ = spoil("nan")
    agreed = study("scd", round={"missing": "skip", "deadline": 30.0})
    small = Small(agreed, tmp_path, Once(do, times=9))
    small.run(patience=WAITING)
    assert [line.here for line in small.server.log] == [None, None, [0, 2, 3], None, None]


@pytest.mark.parametrize("kind", ["nobody", "another key", "changed on the way"])
def test_a_body_is_signed_by_whom_the_study_lists(kind: str, tmp_path: Path):
    def do(who: Any, content: bytes) -> list[Any]:
        answer = who.handle(content)
        note = wire.opened("x", answer)
        if kind == "nobody":
            return [wire.sealed(note)]
        if kind == "another key":
            return [wire.sealed(note, Identity.new().sign)]
        return [answer[:-1] + bytes([answer[-1] ^ 1])]

    small = Small(study("scd", keys=True), tmp_path, Once(do, times=9))
    with pytest.raises(Stopped, match="east: sent a message that is not signed with the key in the study file"):
        small.run(patience=WAITING)


def test_a_key_that_is_not_in_the_study_cannot_join(tmp_path: Path):
    agreed = study("scd", keys=True)
    small = Small(agreed, tmp_path)
    from twofold.federation import Node

    seat = small.grid.all[100].seat
    with pytest.raises(tw.TwofoldError, match="not the one that the study lists for 'north'"):
        Node(seat, tmp_path / "x", identity=identities()["south"])
    with pytest.raises(tw.TwofoldError, match="join with --key"):
        Node(seat, tmp_path / "x")


def test_events_and_status_are_written_for_programs(tmp_path: Path):
    small = Small(study("scd"), tmp_path, Once(spoil("nan")[0]))
    small.run(patience=WAITING)
    events = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    assert [(e["client"], e["round"]) for e in events if "refused" in e["event"]] == [("east", 3)]
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert (status["round"], status["over"], status["clients"]) == (5, True, list(NAMES))
