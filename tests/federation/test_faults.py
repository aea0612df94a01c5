"""What can go wrong, in one process: after each of these faults the run ends with the same model and the same ledger."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from federation.small import NAMES, Small, by_hand, identities, study
from twofold.federation import (
    Coordinator,
    Gone,
    Identity,
    InProcess,
    Node,
    Patience,
    Seat,
    Stopped,
    Study,
    masks,
    store,
    wire,
)
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

    def __init__(
        self,
        do: Callable[[Any, bytes], list[Any]],
        r: int | None = 3,
        name: str = "east",
        times: int = 1,
        kind: str = "round",
    ) -> None:
        self.do, self.r, self.name, self.left, self.kind = do, r, name, times, kind

    def __call__(self, who: Any, content: bytes) -> list[Any]:
        asked = about(content)
        if self.left and who.name == self.name and asked["kind"] == self.kind and asked.get("round") == self.r:
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
    "behind in front": (changed(behind=17), "behind must be a whole number from 0 to 2, got 17"),
    "behind nonsense": (changed(behind="soon"), "behind must be a whole number from 0 to 2, got 'soon'"),
    "behind without end": (changed(behind=float("inf")), "behind must be a whole number from 0 to 2, got inf"),
    "later as a list": (changed(later=[1]), r"later must be a text, got \[1\]"),
    "refusal": (changed(refused="the dog ate it"), "says: the dog ate it"),
    "refusal as a number": (changed(refused=5), "refused must be a text, got 5"),
    "another question": (changed(question="0" * 64), "answered another question than the one that it was asked"),
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
    return altered(alter), sentence


def altered(alter: Callable[[Note], Note]) -> Callable[[Any, bytes], list[Any]]:
    """A client that answers something else, and signs that."""

    def do(who: Any, content: bytes) -> list[Any]:
        return [wire.sealed(alter(wire.opened("x", who.handle(content))), who.identity and who.identity.sign)]

    return do


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
    assert counts[:4] == [1 + 4] * 4  # a new folder; the contract and the state, each with its folder
    assert set(counts[4:]) == {2}
    assert len(synced) == sum(counts) + 2 + 2 * (1 + 5 + 1)  # two new folders; the contract, five rounds and the end


def test_a_new_folder_is_synced_into_the_one_it_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Else the file is on the disk after a power cut, and nobody knows where."""
    found: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: found.append(os.readlink(f"/proc/self/fd/{number}")))
    store.replace_file(tmp_path / "run" / "log" / "a", b"a")
    folders = [str(tmp_path), str(tmp_path / "run")]
    assert found[:2] == folders and found[-1] == str(tmp_path / "run" / "log") and len(found) == 4
    store.replace_file(tmp_path / "run" / "log" / "a", b"b")
    assert len(found) == 6


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


# --- bad hellos ---------------------------------------------------------------------------------------------------------


def telling(**fields: Any) -> Callable[[Note], Note]:
    return lambda answer: Note(answer.about | {"told": answer.about["told"] | fields}, answer.arrays)


def silent_of(name: str) -> Callable[[Note], Note]:
    return lambda a: Note(a.about | {"told": {k: v for k, v in a.about["told"].items() if k != name}}, a.arrays)


HELLOS: dict[str, tuple[Callable[[Note], Note], str]] = {
    "told a number": (changed(told=5), "told must be numbers by name, got 5"),
    "told a list": (changed(told=[1]), r"told must be numbers by name, got \[1\]"),
    "tells a number": (changed(tells=5), "tells must be a list of constants, rows, loss, gap, got 5"),
    "tells what nobody knows": (changed(tells=["everything"]), r"tells must be a list of .*, got \['everything'\]"),
    "x64 as a word": (changed(x64="yes"), "x64 must be true or false, got 'yes'"),
    "another precision": (changed(x64=False), "does not compute in float64"),
    "a number that nobody asked for": (telling(age=3), "tells 'age', for which nobody has asked"),
    "rows as a word": (telling(rows="many"), "rows must be a whole number from 1 to 10+, got 'many'"),
    "rows below zero": (telling(rows=-5), "rows must be a whole number from 1 to 10+, got -5"),
    "rows as a fraction": (telling(rows=9.5), "rows must be a whole number from 1 to 10+, got 9.5"),
    "rows not a number": (telling(rows=float("nan")), "rows must be .*, got nan"),
    "rows without end": (telling(rows=float("inf")), "rows must be .*, got inf"),
    "rows beyond a float": (telling(rows=10**400), "rows must be .*, got 10+"),
    "L of no set": (telling(L=[]), r"L must be a list of 1, one for each set of columns, got \[\]"),
    "L of too many sets": (telling(L=[1.0, 1.0]), r"L must be a list of 1, .*, got \[1.0, 1.0\]"),
    "L as a word": (telling(L="a"), "L must be a list of 1, .*, got 'a'"),
    "L not a number": (telling(L=[float("nan")]), r"L\[0\] must be a finite number from 0 to 1e\+100, got nan"),
    "L zero": (telling(L=[0.0], calL=[0.0], mu=[0.0]), r"L\[0\] and calL\[0\] must be above 0, got 0 and 0"),
    "mu below zero": (telling(mu=[-1.0]), r"mu\[0\] must be a finite number from 0 to 1e\+100, got -1.0"),
    "mu above L": (telling(mu=[5.0], L=[1.0]), r"mu\[0\] must be at most L\[0\], got 5 and 1"),
    "no mu": (silent_of("mu"), "mu must be a list of 1, .*, got None"),
    "epsilon as a word": (telling(epsilon="x", delta=0.1), "epsilon must be a finite number from 0 to inf, got 'x'"),
    "epsilon without delta": (telling(epsilon=1.0), "delta must be a finite number from 0 to 1, got None"),
    "another study": (changed(study="0" * 64), "has another study file"),
    "an answer of an earlier run": (changed(question="0" * 64), "answered another question"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HELLOS)
def test_a_bad_hello_is_refused_by_name_and_field_twice(kind: str, tmp_path: Path):
    alter, sentence = HELLOS[kind]
    small = Small(study("scd"), tmp_path, Once(altered(alter), None, times=9, kind="hello"))
    with pytest.raises(Stopped, match=f"Nobody is left to wait for: east: {sentence}"):
        small.run(patience=WAITING)
    told = [event for event in small.server.events if "does not join" in event]
    assert len(told) == 2 and all(event.startswith("node 101 does not join: east: ") for event in told)
    assert not (tmp_path / "server" / "contract.json").exists()


def test_a_bad_hello_is_asked_for_once_more_and_nothing_is_lost(right: Any, tmp_path: Path):
    small = Small(study("scd"), tmp_path, Once(altered(HELLOS["told a number"][0]), None, kind="hello"))
    assert_nothing_lost(small, small.run(patience=WAITING), right)


# --- bad messages behind masks ------------------------------------------------------------------------------------------


def behind_masks(name: str = "lsgd", rounds: int = 3, **more: Any) -> Any:
    options = {"missing": "skip", "deadline": 0.0, "record": 0} | more
    return study(name, rounds=rounds, keys=True, masks={"on": True}, round=options)


def put(**fields: np.ndarray) -> Callable[[Note], Note]:
    return lambda answer: Note(answer.about, answer.arrays | fields)


def without(name: str) -> Callable[[Note], Note]:
    return lambda answer: Note(answer.about, {n: a for n, a in answer.arrays.items() if n != name})


def other(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Note], Note]:
    return lambda answer: Note(answer.about, answer.arrays | {name: change(answer.arrays[name].copy())})


MASKED: dict[str, tuple[Callable[[Note], Note], str]] = {
    "in the open": (lambda a: Note(a.about, {"w.0": np.zeros(3)}), r"sent the parts \['w.0'\], due are \['commitments'"),
    "a number more": (other("masked", lambda a: np.append(a, a[:1])), r"masked is uint64\(4,\), due is uint64\(3,\)"),
    "as fractions": (other("masked", lambda a: a.view(np.float64)), r"masked is float64\(3,\), due is uint64\(3,\)"),
    "no commitments": (without("commitments"), "due are \\['commitments', 'masked', 'share.0'"),
    "commitments to less": (other("commitments", lambda a: a[1:]), r"commitments is uint8\(4, 4, 32\), due is uint8\(5, 4"),
    "a share for itself": (put(**{"share.1": np.zeros(176, np.uint8)}), r"sent the parts .*'share.1'"),
    "no share for west": (without("share.3"), "due are .*'share.3'"),
    "a short share": (other("share.0", lambda a: a[:-1]), r"share.0 is uint8\(175,\), due is uint8\(176,\)"),
}  # fmt: skip
OPEN: dict[str, tuple[Callable[[Note], Note], str]] = {
    "a wrong share": (other("own", lambda a: a ^ np.uint8(1)), "sent a share that is not the one that north committed to"),
    "one bit of one share": (
        other("own", lambda a: np.append(a[:-1], a[-1] ^ np.uint8(1))),
        "sent a share that is not the one that west committed to",
    ),
    "too few": (other("own", lambda a: a[32:]), r"own is uint8\(96,\), due is uint8\(128,\)"),
    "another type": (other("own", lambda a: a.view(np.float64)), r"own is float64\(16,\), due is uint8\(128,\)"),
    "nothing": (lambda a: Note(a.about, {}), r"sent the parts \[\], due are \['own', 'pair'\]"),
    "more": (put(beta=np.zeros(3)), r"sent the parts \['beta', 'own', 'pair'\]"),
    "its own shares cannot be opened": (lambda a: Note(a.about | {"unopened": [1]}, {}), r"unopened must be .*, got \[1\]"),
    "nobody's": (lambda a: Note(a.about | {"unopened": [9]}, {}), r"unopened must be others in the sum.*, got \[9\]"),
    "somebody's, in words": (lambda a: Note(a.about | {"unopened": "all"}, {}), "unopened must be .*, got 'all'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKED)
def test_a_bad_masked_message_is_left_out_by_name(kind: str, tmp_path: Path):
    alter, sentence = MASKED[kind]
    small = Small(behind_masks(rounds=1), tmp_path, Once(altered(alter), 1, times=9))
    small.run(patience=WAITING)
    assert [line.here for line in small.server.log] == [[0, 2, 3]]
    told = [event for event in small.server.events if "refused" in event]
    assert len(told) == 2 and all(re.search(f"refused: east: .*{sentence}", event) for event in told), told


@pytest.mark.parametrize("kind", OPEN)
def test_a_bad_answer_to_opening_a_sum_is_refused_by_name_and_the_others_open_it(kind: str, tmp_path: Path):
    alter, sentence = OPEN[kind]
    small = Small(behind_masks(rounds=1), tmp_path, Once(altered(alter), 1, times=9, kind="open"))
    found = small.run(patience=WAITING)
    assert [line.here for line in small.server.log] == [None]
    told = [event for event in small.server.events if "refused" in event]
    assert told and all(re.search(f"refused: east: .*{sentence}", event) for event in told), told
    w, _ = by_hand(small.study, found.algorithm, "mixture", {}, False)
    assert_allclose(found.w, w, rtol=0, atol=1e-10)


def junk(names: tuple[str, ...]) -> Callable[[Note], Note]:
    return lambda a: Note(a.about, {n: x ^ np.uint8(7) if n in names else x for n, x in a.arrays.items()})


def test_who_hands_out_shares_that_nobody_can_open_is_left_out_and_nobody_else_is_blamed(tmp_path: Path):
    do = altered(junk(("share.0", "share.2", "share.3")))
    small = Small(behind_masks(), tmp_path, Once(do, 2, times=9))
    found = small.run(patience=WAITING)
    assert [line.here for line in small.server.log] == [None, [0, 2, 3], None]
    told = [event for event in small.server.events if "refused" in event]
    assert told == ["round 2: refused: east: handed out shares that north, south, west cannot open"]
    w, beta = by_hand(small.study, found.algorithm, "mixture", {2: {1}}, False)
    assert_allclose(found.w, w, rtol=0, atol=1e-10)
    assert_allclose(small.beta(), beta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("what", ["share.0", "commitments.0"])
def test_a_question_to_open_a_sum_without_the_shares_gets_a_sentence(what: str, tmp_path: Path):
    def fault(who: Any, content: bytes) -> list[Any]:
        asked = wire.opened("x", content)
        if asked.about["kind"] == "open" and who.name == "west":
            short = Note(asked.about, {n: a for n, a in asked.arrays.items() if n != what})
            assert "asks to open a sum without the shares of north" in about(who.handle(wire.sealed(short)))["refused"]
        return [who.handle(content)]

    Small(behind_masks(rounds=1), tmp_path, fault).run(patience=WAITING)


def test_one_share_that_cannot_be_opened_spoils_nothing(tmp_path: Path):
    small = Small(behind_masks(), tmp_path, Once(altered(junk(("share.0",))), 2, times=9))
    small.run(patience=WAITING)
    assert [line.here for line in small.server.log] == [None, None, None]
    told = [event for event in small.server.events if "refused" in event]
    assert told == ["round 2: refused: east: handed out shares that north cannot open"]


@pytest.mark.parametrize("where", ["one polynomial", "no seed"])
def test_shares_that_were_committed_to_and_do_not_fit_are_their_senders(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keep = masks.Masks.shares

    def shares(self: masks.Masks, said: str) -> list[list[bytes]]:
        found = keep(self, said)
        if self.me == 1:
            found[0] = masks.shares_of(b"\xff" * 31 + b"\x3f", 4, 3, b"") if where == "no seed" else found[0]
            found[0][2] = found[0][2] if where == "no seed" else bytes(32)
        return found

    monkeypatch.setattr(masks.Masks, "shares", shares)
    with pytest.raises(Stopped, match="round 1: east: handed out shares of .* agree on a study without east"):
        Small(behind_masks(), tmp_path).run(patience=WAITING)


@pytest.mark.parametrize(("clients", "quorum", "default"), [(3, None, 3), (4, None, 3), (9, None, 7), (4, 4, 4)])
def test_a_node_opens_no_sum_of_fewer_than_the_quorum(clients: int, quorum: int | None, default: int, tmp_path: Path):
    """With the coordinator, all others in the smallest sum can read the last one's message in it: so it is not small."""
    names = [f"c{i}" for i in range(clients)]
    whole = tw.Clients.from_list([(np.eye(2), [0, 1])] * clients, names=names)
    keys = {name: Identity.new() for name in names}
    rounds = {"missing": "skip", "deadline": 0.0} | ({} if quorum is None else {"quorum": quorum})
    agreed = Study.of(
        tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), whole), tw.algorithms.LSGD(eta=0.1),
        rounds=2, keys={n: k.public.line for n, k in keys.items()}, round=rounds, tell={"rows": 2},
    )  # fmt: skip
    assert agreed.masks and agreed.quorum == default
    seats = {n: Seat(agreed, n, np.eye(2), np.array([0, 1])) for n in names}
    nodes = [Node(seats[n], tmp_path / n, identity=keys[n]) for n in names]
    server = Coordinator(agreed, InProcess(nodes), tmp_path / "server", patience=WAITING, stop_after=1)
    with pytest.raises(Stopped, match="on purpose"):
        server.run()
    _, question = server._question(2, 1)
    answers = [wire.opened("x", node.handle(question)) for node in nodes]
    for size in (default - 1, default):
        here = list(range(size))
        shares = {f"{n}.{j}": answers[j].arrays[n if n == "commitments" else f"{n}.0"]
                  for j in here[1:] for n in ("share", "commitments")}  # fmt: skip
        shares = {n: np.ascontiguousarray(a[:, 0]) if n.startswith("c") else a for n, a in shares.items()}
        asked = {"contract": server.contract, "round": 2, "here": here, "said": server.log.said[1]}
        found = about(nodes[0].handle(wire.question(agreed.digest, "open", asked, shares)))
        assert ("refused" in found) == (size < default)
        assert size == default or f"a sum of {size} clients, fewer than the {default} that it takes" in found["refused"]


def test_a_sum_that_was_being_opened_needs_a_quorum_of_its_clients_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The coordinator is killed after nodes have helped to open round 2, before it is in the log; and east never comes back."""
    small, write = Small(behind_masks(rounds=4), tmp_path), store.write

    def dying(path: Path, *rest: Any) -> None:
        if path.name == "000002.safetensors":
            raise KeyboardInterrupt
        write(path, *rest)

    monkeypatch.setattr(store, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        small.run(patience=WAITING)
    monkeypatch.setattr(store, "write", write)
    west = small.grid.all.pop(103), small.grid.marks.pop(103)
    east = small.grid.all.pop(101), small.grid.marks.pop(101)
    short = Patience(poll=0.0, again=0.01, look=0.0, limit=0.3)
    with pytest.raises(Stopped, match="east, west did not come"):
        small.run(patience=short)
    small.grid.all[103], small.grid.marks[103] = west
    found = small.run(patience=WAITING)
    assert any("the sum of north, east, south, west is opened, as was begun" in event for event in found.notes)
    assert [line.here for line in small.server.log] == [None, None, [0, 2, 3], [0, 2, 3]]
    w, _ = by_hand(small.study, found.algorithm, "mixture", {3: {1}, 4: {1}}, False)
    assert_allclose(found.w, w, rtol=0, atol=1e-10)
    small.grid.all[101], small.grid.marks[101] = east
    assert small.server.part(5.0) == []
    assert not list((tmp_path / "server").glob("opening*"))


@pytest.mark.parametrize("kind", ["no message", "longer than agreed"])
def test_nonsense_behind_masks_is_seen_in_the_sum_and_nobody_is_blamed(kind: str, tmp_path: Path):
    size = 2**63 if kind == "no message" else 5000 * 2**44
    agreed = study("scd", keys=True, masks={"on": True}, round={"record": 0, "norm": 1000.0})
    do = altered(other("masked", lambda a: a + np.uint64(size)))
    small = Small(agreed, tmp_path, Once(do, times=9))
    with pytest.raises(Stopped, match=r"round 3: the sum is nonsense: gradient.0 has .* nobody can be named: find out"):
        small.run(patience=WAITING)
    assert len(small.server.log) == 2  # nothing of it is in the model
    (told,) = [event for event in small.server.events if "nonsense" in event]
    assert not any(name in told for name in NAMES)
    assert not any("refused" in event for event in small.server.events)


# --- answers in the wrong place -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["an earlier round", "another run"])
def test_an_answer_is_good_for_one_question_only(kind: str, tmp_path: Path):
    kept: list[bytes] = []

    def keep(who: Any, content: bytes) -> list[Any]:
        kept.append(who.handle(content))
        return [kept[0]]

    agreed = study("scd", keys=True)
    before = Once(keep, 2 if kind == "an earlier round" else 3)
    if kind == "another run":
        Small(agreed, tmp_path / "before", before).run(patience=WAITING)
        before.left = 0
    again = Once(lambda who, content: [kept[0]], times=9)

    def fault(who: Any, content: bytes) -> list[Any]:
        return before(who, content) if before.left else again(who, content)

    small = Small(agreed, tmp_path, fault)
    with pytest.raises(Stopped, match="round 3: east: answered another question than the one that it was asked"):
        small.run(patience=WAITING)


def test_words_of_a_client_cannot_forge_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    said = "x\n12:00:00 forged line: north refused \x1b[31m" + "A" * 2_000_000
    for kind, at in (("round", 3), ("hello", None)):
        small = Small(study("scd"), tmp_path / kind, Once(altered(changed(refused=said)), at, kind=kind))
        with caplog.at_level("INFO", "twofold"):
            small.run(patience=WAITING)
    assert any("forged line" in record.getMessage() for record in caplog.records)
    for record in caplog.records:
        assert record.getMessage().isprintable() and len(record.getMessage()) < 1000
    assert (tmp_path / "round" / "server" / "status.json").stat().st_size < 5000
