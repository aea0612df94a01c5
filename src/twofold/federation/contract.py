"""What a coordinator may ask of a node: the contract of a run, and its questions, checked against the study before anything is done.

The contract has the run's nonce, a number drawn once by the coordinator, the whole algorithm with its step sizes, and one
commitment for each client: a keyed digest of its rows, of what it tells and of its noise. All masks follow from it. So in another
run, or with other rows in the same one, every mask is another, and two messages never stand behind the same.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from twofold.algorithms.base import Algorithm
from twofold.federation.account import Timetable
from twofold.federation.document import COUNT, FLAG, SOME, TEXT, Kind
from twofold.federation.named import fields_of, made
from twofold.federation.steps import misfit
from twofold.federation.study import Study
from twofold.federation.wire import VERSION, Refused

__all__ = [
    "HELLO", "OPEN", "ROUND", "SERVER", "Asked", "Contract", "Line", "asked", "check_here", "entries", "is_commitment", "nonce",
    "terms", "text_of",
]  # fmt: skip

SERVER = "the coordinator"
COMMITMENTS = Kind("a list of texts", lambda v: isinstance(v, list) and all(isinstance(each, str) for each in v))
TABLE = Kind("a table", lambda v: isinstance(v, dict))
TERMS = {"v": SOME, "study": TEXT, "algorithm": TABLE, "nonce": TEXT, "commitments": COMMITMENTS}
ROUND = {
    "contract": TEXT, "said": TEXT, "round": SOME, "t": COUNT, "last": FLAG, "record": FLAG,
    "lines": Kind("a list of tables", lambda v: isinstance(v, list) and all(isinstance(each, dict) for each in v)),
}  # fmt: skip
HERE = Kind("a list of whole numbers", lambda v: isinstance(v, list) and all(COUNT.fits(each) for each in v))
OPEN = {"contract": TEXT, "said": TEXT, "round": SOME, "here": HERE}
HELLO = {"nonce": TEXT}


def entries(about: Mapping[str, Any], kinds: Mapping[str, Kind], what: str = "a question") -> None:
    """Refuse a document of the coordinator's in which something is missing or of another kind than it should be.

    >>> entries({"round": "seven"}, {"round": SOME})
    Traceback (most recent call last):
    twofold.federation.wire.Refused: the coordinator: sent a question with round = 'seven', which must be a whole number ≥ 1
    """
    for name, kind in kinds.items():
        if name not in about:
            raise Refused(SERVER, f"sent {what} without {name}, which must be {kind.words}")
        if not kind.fits(about[name]):
            raise Refused(SERVER, f"sent {what} with {name} = {repr(about[name])[:60]}, which must be {kind.words}")


# --- the contract -------------------------------------------------------------------------------------------------------


def nonce() -> str:
    """A number for one run, that no other run has.

    >>> nonce() == nonce()
    False
    """
    return secrets.token_hex(16)


def is_commitment(value: Any) -> bool:
    """Whether a client's commitment looks like one: a digest, or nothing where it has no key.

    >>> is_commitment("0" * 64), is_commitment(""), is_commitment("x" * 64), is_commitment(5)
    (True, True, False, False)
    """
    return isinstance(value, str) and (not value or (len(value) == 64 and not set(value) - set("0123456789abcdef")))


def terms(study: Study, algorithm: Algorithm, number: str, commitments: Mapping[str, str]) -> dict[str, Any]:
    """What the coordinator draws up: the same for all clients, and nothing that one of them has told."""
    return {
        "v": VERSION, "study": study.digest, "algorithm": fields_of(algorithm), "nonce": number,
        "commitments": [commitments[name] for name in study.names],
    }  # fmt: skip


def text_of(document: Mapping[str, Any]) -> str:
    """The contract as it is sent; what else the coordinator keeps beside it stays where it is.

    >>> text_of({"v": 1, "study": "s", "algorithm": {}, "nonce": "n", "commitments": [], "rows": [9, 9]})
    '{"algorithm": {}, "commitments": [], "nonce": "n", "study": "s", "v": 1}'
    """
    return json.dumps({name: document[name] for name in TERMS}, sort_keys=True)


class Contract:
    """A contract as a node reads it: of this study, with its method and all that the file sets, or refused by name."""

    def __init__(self, study: Study, text: str) -> None:
        self.study = study
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise Refused(SERVER, "sent a contract that is no JSON document") from None
        if not isinstance(document, dict):
            raise Refused(SERVER, "sent a contract that is no JSON document")
        entries(document, TERMS, "a contract")
        if document["v"] != VERSION or document["study"] != study.digest:
            raise Refused(SERVER, "sent a contract of another study file than this node has")
        if len(document["commitments"]) != study.M:
            raise Refused(SERVER, f"sent {len(document['commitments'])} commitments for {study.M} clients")
        wrong = misfit(study, document["algorithm"])
        if wrong is not None:
            raise Refused(SERVER, f"sent a contract that does not keep to the study: {wrong}")
        self.nonce: str = document["nonce"]
        self.commitments: list[str] = document["commitments"]
        self.algorithm = made(document["algorithm"])


# --- questions ----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One round that is over: its iteration, and who was in its mean (None: everybody)."""

    t: int
    here: list[int] | None


class Asked(NamedTuple):
    """One question of a round, with the rounds before it."""

    round: int
    t: int
    last: bool
    record: bool
    said: str
    lines: dict[int, Line]


def asked(study: Study, timetable: Timetable, about: Mapping[str, Any]) -> Asked:
    """The question of a round, if the study and its common coins have such a one; refused by name if not."""
    r, last = about["round"], about["last"]
    least = 2 if study.tolerance is not None else study.rounds + 1  # before which the study cannot end
    if r > study.rounds + 1 or (last and r < least) or (r > study.rounds and not last):
        raise Refused(
            SERVER, f"asks round {r} as {'the last' if last else 'not the last'} of a study of {study.rounds} rounds"
        )
    if about["record"] != study.records(r, last):
        raise Refused(
            SERVER,
            f"asks {'for' if about['record'] else 'for no'} record in round {r}, and the study says [round] record = {study.record}",
        )
    _check_time(r, about["t"], timetable.end_of(r - 1) if last else int(timetable.times[r - 1]))
    lines: dict[int, Line] = {}
    for each in about["lines"]:
        entries(each, {"round": SOME, "t": COUNT}, "a line")
        i, here = each["round"], each.get("here")
        if i >= r:
            raise Refused(SERVER, f"tells of round {i} in a question of round {r}")
        _check_time(i, each["t"], int(timetable.times[i - 1]))
        if here is not None:
            check_here(study, here)
        lines[i] = Line(each["t"], here)
    return Asked(r, about["t"], last, about["record"], about["said"], lines)


def _check_time(r: int, t: int, due: int) -> None:
    if t != due:
        raise Refused(SERVER, f"puts round {r} into iteration {t}; by the common coins it is {due}")


def check_here(study: Study, here: Any) -> None:
    """Refuse who is said to be in a sum, where the study has no such sum."""
    if study.missing == "wait":
        raise Refused(
            SERVER, f"tells of a sum without somebody ({repr(here)[:60]}), and the study says missing = 'wait'"
        )
    if not HERE.fits(here) or len(set(here)) != len(here) or not all(j < study.M for j in here):
        raise Refused(SERVER, f"tells of a sum of {repr(here)[:60]}, which are no clients of the study")
    if len(here) < study.quorum:
        raise Refused(SERVER, f"tells of a sum of {len(here)} clients, fewer than the {study.quorum} that it takes")
