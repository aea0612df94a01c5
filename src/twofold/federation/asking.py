"""To ask some clients one thing each, until all have answered, or as many as the study needs when its deadline is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from twofold.federation import wire
from twofold.federation.grid import Gone, Grid, Question
from twofold.federation.journal import Journal
from twofold.federation.patience import Patience, Stopped
from twofold.federation.roll import Roll
from twofold.federation.study import Study
from twofold.federation.wire import Note, Refused

__all__ = ["Asking", "Query"]

SLOW = 4e5
"""Bytes a second of a line that is slow, but not broken."""


class Query(NamedTuple):
    """What is asked: of whom, in which round, and when an answer will do."""

    round: int
    kind: str
    names: list[str]
    among: list[str]  # whose answers count
    ask: Callable[[str], bytes]  # a question for one client
    accept: Callable[[str, Note], bool]  # takes an answer, or asks for another (False); raises Refused
    enough: Callable[[dict[str, Note]], bool] = lambda answers: False


class _Course:
    """Who was asked what, and who has answered."""

    def __init__(self, query: Query, again: float) -> None:
        self.query = query
        self.tickets: dict[str, tuple[str, str]] = {}  # → who was asked, and the digest of the question
        self.when: dict[str, float] = {}
        # Doubled with each repeat: what is asked too often only queues up.
        self.patience = dict.fromkeys(query.names, again)
        self.tries, self.put_off = dict.fromkeys(query.names, 0), dict.fromkeys(query.names, 0)
        self.lost: set[str] = set()
        self.answers: dict[str, Note] = {}
        self.began = self.looked = time.monotonic()

    @property
    def open(self) -> list[str]:
        return [n for n in self.query.names if n not in self.answers and n not in self.lost]

    @property
    def missing(self) -> list[str]:
        """Whose answers are not there, of those that count."""
        return [n for n in self.query.among if n not in self.answers]

    @property
    def counted(self) -> int:
        """How many of those that count have answered."""
        return len(self.query.among) - len(self.missing)


class Asking:
    """Questions and answers of a study; `waiting` hears, from time to time, in which round who is waited for.

    `up` and `down` are the bytes that each client has sent and received since `begin`.
    """

    def __init__(
        self, study: Study, grid: Grid, patience: Patience, roll: Roll, journal: Journal, waiting: Callable[[int, list[str]], None]
    ) -> None:  # fmt: skip
        self.study, self.grid, self.patience, self.roll, self.journal, self.waiting = (
            study,
            grid,
            patience,
            roll,
            journal,
            waiting,
        )
        self.begin()

    def begin(self) -> None:
        """Count bytes anew."""
        self.up, self.down = (dict.fromkeys(self.study.names, 0) for _ in range(2))

    def collect(self, query: Query) -> dict[str, Note]:
        """The answers by client, in the order in which they were asked."""
        course, r = _Course(query, self.patience.again), query.round
        quorum = self.study.quorum if self.study.missing == "skip" else len(query.names)
        self._push(course, query.names)
        while course.open and not query.enough(course.answers):
            arrived = self.grid.pull(list(course.tickets))
            for ticket, content in arrived:
                name, question = course.tickets.pop(ticket, ("", ""))
                if name in course.open:  # else a second or late answer: of no use, and no harm
                    self._take(course, name, content, question)
            if arrived:  # somebody may be on the way back: time is only up when nothing comes any more
                continue
            now = time.monotonic()
            self._welcome(course, now)
            self._remind(course, now)
            if course.counted >= quorum and now - course.began > self.study.deadline:
                self.journal.note(f"round {r}: goes on without {', '.join(course.open)}", round=r, absent=course.open)
                break
            if now - course.began > self.patience.limit:
                raise Stopped(f"round {r}: {', '.join(course.open)} did not answer within {self.patience.limit:g} s.")
            time.sleep(self.patience.poll)
        if course.counted < quorum:
            raise Stopped(
                f"round {r}: {', '.join(course.missing)} cannot be reckoned with: it takes {quorum} of {', '.join(query.among)}."
            )
        return {n: course.answers[n] for n in query.names if n in course.answers}

    def _push(self, course: _Course, some: list[str]) -> None:
        """Ask; who has not come yet is asked when it does."""
        course.when |= dict.fromkeys(some, time.monotonic())
        here = [name for name in some if name in self.roll.where]
        contents = [course.query.ask(name) for name in here]
        digests = {content: wire.question_of(content) for content in set(contents)}
        tickets = self.grid.push([Question(self.roll.where[n], c) for n, c in zip(here, contents, strict=True)])
        for name, content, ticket in zip(here, contents, tickets, strict=True):
            course.tickets[ticket] = name, digests[content]
            self.down[name] += len(content)
            # A long message takes its time, and so does its answer: to ask again would only double the load.
            course.patience[name] = max(course.patience[name], len(content) / SLOW)

    def _take(self, course: _Course, name: str, content: bytes | Gone, question: str) -> None:
        """One answer: taken, asked for once more, or given up."""
        r, query = course.query.round, course.query
        if isinstance(content, Gone):  # not the client's answer, but the network's word that it is not there
            self.journal.note(f"round {r}: {name} is not there ({content.why[:80]})", client=name, round=r)
            course.when[name] = time.monotonic()
            return
        self.up[name] += len(content)
        try:
            answer = wire.answer(self.study.digest, self.study.keys.get(name), name, content, query.kind, question)
            if "later" in answer.about:
                self._put_off(course, name, answer.about["later"])
            elif query.accept(name, answer):
                course.answers[name] = answer
            else:
                self._push(course, [name])
        except (Refused, ArithmeticError, LookupError, TypeError, ValueError) as error:
            fits_not = f"sent a document that does not fit ({error})"
            refused = error if isinstance(error, Refused) else Refused(name, fits_not)
            course.tries[name] += 1
            self.journal.note(f"round {r}: refused: {refused}", client=name, round=r)
            if course.tries[name] < 2:
                self._push(course, [name])
            elif self.study.missing == "skip":
                course.lost.add(name)
            else:
                raise Stopped(f"round {r}: {refused}") from error

    def _put_off(self, course: _Course, name: str, why: str) -> None:
        """A full disk, say: asked again with growing patience, like one who is not there."""
        r = course.query.round
        self.journal.note(f"round {r}: {name} cannot answer now: {why}", client=name, round=r)
        course.put_off[name] += 1
        course.when[name] = time.monotonic()
        course.patience[name] = min(self.patience.again, 2.0 ** course.put_off[name])

    def _welcome(self, course: _Course, now: float) -> None:
        """Look from time to time who has come back, as another node or as the same one, and ask them again."""
        if now - course.looked <= self.patience.look:
            return
        r, course.looked = course.query.round, now
        self.waiting(r, course.open)
        if self.roll.has_news and (back := [n for n in self.roll.meet() if n in course.open]):
            self.journal.note(f"round {r}: {', '.join(back)} came back", round=r, back=back)
            self._push(course, back)

    def _remind(self, course: _Course, now: float) -> None:
        """Ask those again who have not answered for long."""
        r = course.query.round
        late = [n for n in course.open if n in self.roll.where and now - course.when[n] > course.patience[n]]
        if late:
            self.journal.note(f"round {r}: no answer from {', '.join(late)} yet; asked again", round=r, late=late)
            course.patience |= {n: 2 * course.patience[n] for n in late}
            self._push(course, late)
