"""The coordinator's side of masks: sums of what it cannot read, and the opening of a sum in which somebody is missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from twofold.federation.masks import SEED, SHARE, combined, stream
from twofold.federation.store import Arrays
from twofold.federation.study import Study
from twofold.federation.wire import Note, Refused

__all__ = ["Opening", "total"]


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
    """One sum of one round, of the clients in `here`."""

    def __init__(self, study: Study, here: list[int], said: str) -> None:
        self.study, self.here, self.said = study, here, said
        self.gone = [k for k in range(study.M) if k not in here]

    def shares_for(self, m: int, answers: dict[str, Note]) -> Arrays:
        """What the others in the sum have handed in for node m."""
        return {f"share.{j}": answers[self.study.names[j]].arrays[f"share.{m}"] for j in self.here if j != m}

    def check(self, name: str, answer: Note) -> None:
        """As many shares as there are seeds to open."""
        sizes = {n: a.nbytes for n, a in answer.arrays.items()}
        wanted = {"own": SHARE * len(self.here), "pair": SHARE * len(self.here) * len(self.gone)}
        if sizes != wanted:
            raise Refused(name, f"sent shares of {sizes} bytes, due are {wanted}")

    def masks(self, answers: dict[int, Note], size: int) -> list[np.ndarray]:
        """What has to be added to the masked messages so that only their sum remains."""

        def secret(part: str, place: int) -> bytes:
            cut = slice(SHARE * place, SHARE * (place + 1))
            return combined({m: answer.arrays[part].tobytes()[cut] for m, answer in answers.items()})

        found = [np.uint64(0) - stream(secret("own", i), size) for i in range(len(self.here))]
        for i, j in enumerate(self.here):
            for place, k in enumerate(self.gone):
                words = stream(secret("pair", i * len(self.gone) + place), size)
                found.append(np.uint64(0) - words if k > j else words)
        return found


assert SEED < SHARE
