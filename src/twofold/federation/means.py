"""From the answers of a round to its means: in the open, or from the sum behind masks; and what was told with them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from twofold.engines.sides import mean_of
from twofold.federation import gap
from twofold.federation.journal import Journal
from twofold.federation.masks import decode
from twofold.federation.patience import Stopped
from twofold.federation.rounds import Rounds
from twofold.federation.store import Arrays
from twofold.federation.study import KEPT, Study
from twofold.federation.sums import nonsense
from twofold.federation.wire import Note

__all__ = ["Means"]


class Means:
    """Takes means of what clients have sent, with their weights; `keeps` says whether they send changes since their last message."""

    def __init__(self, study: Study, method: str, rounds: Rounds, journal: Journal) -> None:
        self.study, self.rounds, self.journal = study, rounds, journal
        self.weights = np.asarray(study.stand_in.clients.weights, np.float64)
        self.keeps = study.missing == "skip" and method in KEPT

    def _share(self, here: list[int]) -> float:
        """The weight of those present; all of it where absent clients' last messages stand in."""
        return 1.0 if self.keeps or len(here) == self.study.M else float(self.weights[here].sum())

    def in_the_open(self, due: dict[str, Any], answers: dict[str, Note], here: list[int]) -> tuple[Arrays, Arrays]:
        """The mean of each part, from everybody's own message."""
        mean: Arrays = {}
        for name in due:
            sent = [answers[self.study.names[m]].arrays[name] for m in here]
            weights = jnp.asarray(self.weights[here] / self._share(here)).astype(sent[0].dtype)
            mean[name] = np.asarray(mean_of(weights, sent))
            if self.keeps and name != "report" and (last := self.rounds.before(name)):
                mean[name] = np.asarray(mean[name] + last.mean[name])
        return mean, {}

    def behind_masks(self, r: int, due: dict[str, Any], sums: Arrays, here: list[int]) -> tuple[Arrays, Arrays]:
        """The mean of each part, from sums; and the sums in whole numbers, where they stand in for later messages."""
        mean, whole = {}, {}
        for name, leaf in due.items():
            found, share = sums[name], self._share(here)
            if self.keeps and name != "report":
                last = self.rounds.before(name)
                found = whole[name] = found if last is None else np.asarray(found + last.sums[name])
            self._look_at(r, name, found, share)
            mean[name] = np.asarray(decode(found, self.study.bits) / share, leaf.dtype).reshape(leaf.shape)
        return mean, whole

    def _look_at(self, r: int, name: str, found: np.ndarray, share: float) -> None:
        """A sum of what are no messages must not become everybody's model."""
        most = math.inf if self.study.most is None else self.study.most * share
        why = nonsense({name: found}, self.study.bits, most, self.study.step)
        if why is None:
            return
        sentence = f"round {r}: the sum is nonsense: {why}; somebody sent what is no message, and behind masks nobody can be named"
        self.journal.note(sentence, round=r)
        raise Stopped(
            f"{sentence}: find out who with the same clients, made-up rows and [masks] on = false, and agree on a study without it."
        )

    def told(self, report: np.ndarray, everybody: bool) -> dict[str, float]:
        """The loss of those who told it, and the gap where everybody is there."""
        found = {"loss": float(report[0] / report[1])} if report[1] > 0 else {}
        if self.study.proof is not None and everybody:
            found["bound"] = gap.bound_of(self.study.proof, report[2:], self.study.step)
        return found
