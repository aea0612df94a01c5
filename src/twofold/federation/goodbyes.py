"""The end of a study: a node stays until it hears goodbye, since its last answer may have been lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from twofold.federation import wire
from twofold.federation.asking import Asking
from twofold.federation.grid import Gone, Question
from twofold.federation.wire import Refused

__all__ = ["Goodbyes"]


class Goodbyes:
    """Says goodbye to whoever comes; who was missing in the last exchange (not `closed`) has that first.

    `last` makes the last question for a node that has answered so many rounds.
    """

    def __init__(
        self, asking: Asking, rounds: int, closed: set[str], parted: set[str], last: Callable[[int], bytes]
    ) -> None:
        self.asking, self.roll, self.study = asking, asking.roll, asking.study
        self.rounds, self.closed, self.parted, self.last = rounds, closed, parted, last
        self._reached = dict.fromkeys(self.study.names, rounds)
        self._tickets: dict[str, tuple[str, str]] = {}  # → who was asked, and the digest of the question
        self._when: dict[str, float] = {}

    @property
    def left(self) -> list[str]:
        """Who has not heard it."""
        return [name for name in self.study.names if name not in self.parted]

    def say(self, seconds: float) -> None:
        """Say it, for so many seconds at most."""
        until = time.monotonic() + seconds
        while self.left and time.monotonic() < until:
            self._ask()
            self._hear()
            time.sleep(max(self.asking.patience.poll, 0.01))

    def _ask(self) -> None:
        for name in self.roll.meet(0.05):
            self._when.pop(name, None)
        now, again = time.monotonic(), self.asking.patience.again
        due = [n for n in self.left if n in self.roll.where and now - self._when.get(n, -math.inf) > again]
        self._when |= dict.fromkeys(due, now)
        if due:
            contents = [self._question(n) for n in due]
            tickets = self.asking.grid.push(
                [Question(self.roll.where[n], c) for n, c in zip(due, contents, strict=True)]
            )
            asked = [(n, wire.question_of(c)) for n, c in zip(due, contents, strict=True)]
            self._tickets |= dict(zip(tickets, asked, strict=True))

    def _question(self, name: str) -> bytes:
        return wire.question(self.study.digest, "bye", {}) if name in self.closed else self.last(self._reached[name])

    def _hear(self) -> None:
        for ticket, content in self.asking.grid.pull(list(self._tickets)):
            name, question = self._tickets.pop(ticket)
            try:
                if not isinstance(content, Gone):
                    self._take(name, content, question)
            except Refused as error:
                self.asking.journal.note(f"after the last round: refused: {error}", client=name)

    def _take(self, name: str, content: bytes, question: str) -> None:
        kind = "bye" if name in self.closed else "round"
        about = wire.answer(self.study.digest, self.study.keys.get(name), name, content, kind, question).about
        if "later" in about:
            return
        if name in self.closed:
            self.parted.add(name)
            return
        reached = wire.whole_in(name, about, "behind" if "behind" in about else "round", 0, self.rounds + 1)
        self._reached[name] = min(reached, self.rounds)
        if "behind" not in about and reached > self.rounds:
            self.closed.add(name)
        self._when.pop(name)
