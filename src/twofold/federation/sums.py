"""The coordinator's side of masks: sums of what it cannot read, and the opening of a sum in which somebody is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twofold.errors import InputError
from twofold.federation import store, wire
from twofold.federation.asking import Asking, Query
from twofold.federation.masks import COMMITMENT, SEED, SHARE, combined, commitment, decode, share_at, stream
from twofold.federation.patience import Stopped
from twofold.federation.store import Arrays
from twofold.federation.study import Study
from twofold.federation.wire import Note, Refused

__all__ = ["Opening", "Place", "Sums", "nonsense", "total", "wanted"]


def total(vectors: list[np.ndarray], due: dict[str, Any]) -> Arrays:
    """The sum modulo 2^64, cut into the parts that are due."""
    added = np.zeros_like(vectors[0])
    for vector in vectors:
        np.add(added, vector, out=added)
    found, place = {}, 0
    for name, leaf in due.items():
        size = int(np.prod(leaf.shape))
        found[name] = added[place : place + size].reshape(leaf.shape)
        place += size
    return found


def wanted(study: Study, m: int, due: dict[str, Any]) -> dict[str, Any]:
    """What client m sends behind its mask, in the form in which it is due: one vector, and shares where it may be missing."""
    size = sum(int(np.prod(leaf.shape)) for leaf in due.values())
    found: dict[str, Any] = {"masked": np.zeros(size, np.uint64)}
    if study.missing == "skip":
        seeds = study.M + 1
        found |= {f"share.{j}": np.zeros(SHARE * seeds + 16, np.uint8) for j in range(study.M) if j != m}
        found["commitments"] = np.zeros((seeds, study.M, COMMITMENT), np.uint8)
    return found


class Opening:
    """One sum of one round, of the clients whose masked messages and shares are `handed`, by position."""

    def __init__(self, study: Study, handed: dict[int, Arrays]) -> None:
        self.study, self.here, self.handed = study, sorted(handed), handed
        self.gone = [k for k in range(study.M) if k not in handed]

    @property
    def names(self) -> list[str]:
        """Who is in it."""
        return [self.study.names[m] for m in self.here]

    def without(self, some: list[int]) -> Opening:
        """The sum of the others."""
        return Opening(self.study, {m: self.handed[m] for m in self.here if m not in some})

    @property
    def masked(self) -> list[np.ndarray]:
        """The messages behind their masks."""
        return [self.handed[m]["masked"] for m in self.here]

    def shares_for(self, m: int) -> Arrays:
        """What the others in the sum have handed in for node m, and what they have committed to."""
        others = [j for j in self.here if j != m]
        return {f"share.{j}": self.handed[j][f"share.{m}"] for j in others} | {
            f"commitments.{j}": np.ascontiguousarray(self.handed[j]["commitments"][:, m]) for j in others
        }

    def check(self, name: str, answer: Note) -> None:
        """As many shares as there are seeds to open, each of them the one that was committed to; or whose cannot be opened."""
        if "unopened" in answer.about:
            self._check_unopened(name, answer)
            return
        seeds = len(self.here)
        sizes = {"own": SHARE * seeds, "pair": SHARE * seeds * len(self.gone)}
        wire.check(name, {part: np.zeros(size, np.uint8) for part, size in sizes.items()}, answer.arrays)
        m = self.study.names.index(name)
        for part, place, j, secret in self._seeds():
            if commitment(_cut(answer, part, place)) != self.handed[j]["commitments"][secret, m].tobytes():
                raise Refused(name, f"sent a share that is not the one that {self.study.names[j]} committed to")

    def _check_unopened(self, name: str, answer: Note) -> None:
        whose, m = answer.about["unopened"], self.study.names.index(name)
        fits = isinstance(whose, list) and bool(whose) and all(type(j) is int and j in self.here for j in whose)
        if not fits or m in whose or answer.arrays:
            raise Refused(name, f"unopened must be others in the sum, and no shares with them, got {whose!r}")

    def _seeds(self) -> Iterator[tuple[str, int, int, int]]:
        """Each seed that is opened: where its share lies in an answer, whose it is, and which of this node's seeds."""
        for i, j in enumerate(self.here):
            yield "own", i, j, 0
            for place, k in enumerate(self.gone):
                yield "pair", i * len(self.gone) + place, j, 1 + k

    def masks(self, answers: dict[int, Note], size: int) -> list[np.ndarray]:
        """What has to be added to the masked messages so that only their sum remains."""
        found = []
        for part, place, j, secret in self._seeds():
            shares = {m: _cut(answer, part, place) for m, answer in answers.items()}
            words = stream(self._seed(shares, j, secret), size)
            found.append(words if secret and secret - 1 < j else np.uint64(0) - words)
        return found

    def _seed(self, shares: dict[int, bytes], j: int, secret: int) -> bytes:
        """A seed of node j's. All shares that it committed to must be of one polynomial, else it is refused."""
        committed = self.handed[j]["commitments"][secret]
        if any(commitment(share_at(shares, m)) != committed[m].tobytes() for m in range(self.study.M)):
            raise Refused(self.study.names[j], "handed out shares of a seed that do not fit together")
        try:
            return combined(shares)
        except InputError as error:
            raise Refused(self.study.names[j], "handed out shares of what is no seed") from error


def _cut(answer: Note, part: str, place: int) -> bytes:
    return answer.arrays[part].tobytes()[SHARE * place : SHARE * (place + 1)]


def nonsense(sums: Arrays, bits: int, most: float, slack: float) -> str | None:
    """What gives away that a sum behind masks is none of messages, if anything does.

    Everyone's number is below 2^62 / M in fixed point, and every part within `most`, where the study agrees on that.

    >>> nonsense({"w": np.array([2**62], np.uint64)}, 44, np.inf, 0.0)
    'w has a number of 2.62e+05, and all clients together can have at most 2.62e+05'
    >>> nonsense({"w": np.array([2**44], np.uint64)}, 44, 2.0, 0.0)
    """
    for name, total in sums.items():
        found, top = np.abs(decode(total, bits)), 2.0 ** (62 - bits)
        if np.any(found >= top):
            return f"{name} has a number of {found.max():.3g}, and all clients together can have at most {top:.3g}"
        size = float(np.linalg.norm(found))
        if name != "report" and size > most + slack * found.size:
            return f"{name} has the norm {size:.3g}, and the study allows {most:g}"
    return None


assert SEED < SHARE


# --- the sum of a round -------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a run is: what a question to open a sum has to name."""

    contract: str
    round: int
    said: str


class Sums:
    """The sum of each round where somebody may be missing. Which one it is stands on the disk before anybody helps to open it."""

    def __init__(self, study: Study, asking: Asking, folder: Path) -> None:
        self.study, self.asking, self.journal = study, asking, asking.journal
        self.file = folder / "opening.safetensors"

    def begun(self, r: int) -> Opening | None:
        """The sum of this round that was being opened when the coordinator ended: nodes help to open no other one."""
        if not self.file.exists():
            return None
        arrays, about = store.read(self.file)
        if about["round"] != r:
            return None
        handed: dict[int, Arrays] = {m: {} for m in about["here"]}
        for name, array in arrays.items():
            m, what = name.split("/", 1)
            handed[int(m)][what] = array
        found = Opening(self.study, handed)
        self.journal.note(f"round {r}: the sum of {', '.join(found.names)} is opened, as was begun", round=r)
        return found

    def over(self) -> None:
        """The round is in the log."""
        self.file.unlink(missing_ok=True)

    def of(
        self, place: Place, due: dict[str, Any], answers: dict[str, Note], begun: Opening | None
    ) -> tuple[list[int], Arrays]:
        """Who is in the sum, and the sum part by part, in whole numbers."""
        r, quorum, where = place.round, self.study.quorum, {name: self.study.names.index(name) for name in answers}
        opening = begun or Opening(self.study, {m: answers[name].arrays for name, m in where.items()})
        helpers = [name for name in answers if where[name] in opening.here]
        while True:
            # Which sum it is has to be remembered, and what is in it: with that, any quorum of its clients will do.
            arrays = {f"{m}/{n}": a for m, sent in opening.handed.items() for n, a in sent.items()}
            store.write(self.file, arrays, {"round": r, "here": opening.here})
            opened, closed = self._open(place, opening, helpers)
            if len(opened) >= quorum:
                break
            opening = opening.without([m for m, whose in closed.items() if len(opening.here) - len(whose) < quorum])
            # Who has helped to open the first sum helps with no other one.
            helpers = [n for n in helpers if n not in opened and where[n] in opening.here]
            if len(helpers) < quorum:
                raise Stopped(
                    f"round {r}: the shares of {', '.join(self.study.names[m] for m in closed)} could not be opened, and "
                    f"{quorum} clients are not left to open another sum: agree on a study without who sent them."
                )
        try:
            masks = opening.masks({where[n]: a for n, a in opened.items()}, opening.masked[0].size)
        except Refused as refused:
            self.journal.note(f"round {r}: refused: {refused}", client=refused.who, round=r)
            raise Stopped(
                f"round {r}: {refused}, and no other sum of this round can be opened: agree on a study without {refused.who}."
            ) from refused
        return opening.here, total([*opening.masked, *masks], due)

    def _open(self, place: Place, opening: Opening, helpers: list[str]) -> tuple[dict[str, Note], dict[int, list[str]]]:
        """Who has opened its shares of the sum; and for each client whose shares were not what it committed to, who says so."""
        about = {"contract": place.contract, "round": place.round, "here": opening.here, "said": place.said}

        def ask(name: str) -> bytes:
            shares = opening.shares_for(self.study.names.index(name))
            return wire.question(self.study.digest, "open", about, shares)

        def accept(name: str, answer: Note) -> bool:
            opening.check(name, answer)
            return True

        def opened(answers: dict[str, Note]) -> dict[str, Note]:
            return {name: answer for name, answer in answers.items() if "unopened" not in answer.about}

        r, quorum = place.round, self.study.quorum
        enough = lambda answers: len(opened(answers)) >= quorum  # noqa: E731
        found = self.asking.collect(Query(r, "open", helpers, helpers, ask, accept, enough))
        closed: dict[int, list[str]] = {}
        for name, answer in found.items():
            for m in answer.about.get("unopened", ()):
                closed.setdefault(m, []).append(name)
        for m, whose in closed.items():
            who, some = self.study.names[m], ", ".join(whose)
            self.journal.note(
                f"round {r}: refused: {who}: handed out shares that {some} cannot open", client=who, round=r
            )
        return opened(found), closed
