"""The coordinator's side of masks: sums of what it cannot read, and the opening of a sum in which somebody is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from twofold.errors import InputError
from twofold.federation import wire
from twofold.federation.masks import SEED, SHARE, combined, commitment, decode, share_at, stream
from twofold.federation.store import Arrays
from twofold.federation.study import Study
from twofold.federation.wire import Note, Refused

__all__ = ["Opening", "nonsense", "total"]


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
