"""Who is there: which node of the network is which client, and what each says of itself before the first round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from twofold.federation import wire
from twofold.federation.grid import Gone, Grid, Question
from twofold.federation.hello import heard
from twofold.federation.journal import Journal
from twofold.federation.patience import Patience, Stopped
from twofold.federation.study import Study
from twofold.federation.wire import Refused

__all__ = ["Roll"]


class _Greeted(NamedTuple):
    """A hello that is on its way."""

    node: int
    mark: str
    when: float
    question: str  # its digest


class Roll:
    """The clients of a study that have said hello. Where a run has begun already, `contract` is what they have to agree to."""

    def __init__(self, study: Study, grid: Grid, patience: Patience, journal: Journal, nonce: str) -> None:
        self.study, self.grid, self.patience, self.journal = study, grid, patience, journal
        self.nonce, self.contract = nonce, ""
        self.where: dict[str, int] = {}
        self.told: dict[str, dict[str, Any]] = {}
        self.tells: dict[str, list[str]] = {}
        self.commitments: dict[str, str] = {}
        self._seen: dict[int, str] = {}
        self._hellos: dict[str, _Greeted] = {}
        self._again: set[tuple[int, str]] = set()  # nodes whose hello was refused once
        self._turned: dict[str, str] = {}  # clients that are there and refuse to take part, and why

    def call(self, waiting: Callable[[list[str]], None]) -> None:
        """Find out which node is which client, until all are there; `waiting` hears who is not.

        Where a study goes on without those who are missing, and its contract is there, as many as a round takes will do.
        """
        began, names = time.monotonic(), self.study.names
        enough = self.study.quorum if self.study.missing == "skip" and self.contract else self.study.M
        while True:
            self.meet()
            gone = [n for n in names if n not in self.where]
            waited = time.monotonic() - began
            if not gone:
                return
            if len(names) - len(gone) >= enough and waited > self.study.deadline:
                self.journal.note(f"begins without {', '.join(gone)}", absent=gone)
                return
            if all(n in self._turned for n in gone) and len(names) - len(gone) < enough:
                raise Stopped(f"Nobody is left to wait for: {'; '.join(self._turned[n] for n in gone)}.")
            if waited > self.patience.limit:
                raise Stopped(f"{', '.join(gone)} did not come within {self.patience.limit:g} s.")
            waiting(gone)
            time.sleep(max(self.patience.poll, 0.05))

    @property
    def has_news(self) -> bool:
        """Whether somebody is new, or back, or has not answered a hello yet."""
        return bool(self._hellos) or any(self._seen.get(n) != mark for n, mark in self.grid.nodes().items())

    def meet(self, wait: float = 0.2) -> list[str]:
        """Say hello to every node that is new or back, and hear who has answered; who is slow is heard the next time."""
        nodes, now = self.grid.nodes(), time.monotonic()
        asked = {(g.node, g.mark) for g in self._hellos.values() if now - g.when < self.patience.again}
        fresh = [n for n, mark in nodes.items() if self._seen.get(n) != mark and (n, mark) not in asked]
        about = {"nonce": self.nonce} | ({"contract": self.contract} if self.contract else {})
        hello = wire.question(self.study.digest, "hello", about)
        tickets = self.grid.push([Question(n, hello) for n in fresh]) if fresh else []
        for node, ticket in zip(fresh, tickets, strict=True):
            self._hellos[ticket] = _Greeted(node, nodes[node], now, wire.question_of(hello))
        found: list[str] = []
        while self._hellos:
            for ticket, content in self.grid.pull(list(self._hellos)):
                greeted = self._hellos.pop(ticket)
                self._seen[greeted.node] = greeted.mark
                found += self._hear(greeted, content)
            if time.monotonic() - now > wait:
                break
            time.sleep(self.patience.poll if self._hellos else 0)
        return found

    def _hear(self, greeted: _Greeted, content: bytes | Gone) -> list[str]:
        """Who a node says that it is, if that is so; nobody where it is refused."""
        node = greeted.node
        try:
            if isinstance(content, Gone):
                raise Refused(f"node {node}", content.why)
            name = str(wire.opened(f"node {node}", content).about.get("name"))
            if name not in self.study.names:
                raise Refused(f"node {node}", f"says it is {name!r}, who is not in the study")
            answer = wire.answer(self.study.digest, self.study.keys.get(name), name, content, "hello", greeted.question)
            hello = heard(name, answer.about, self.study)
        except Refused as error:
            self.journal.note(f"node {node} does not join: {error}", node=node)
            if (node, greeted.mark) not in self._again:  # asked once more
                self._again.add((node, greeted.mark))
                del self._seen[node]
            elif error.who in self.study.names:
                self._turned[error.who] = str(error)
            return []
        self._turned.pop(name, None)
        self.commitments[name] = hello.commitment
        if self.where.get(name) not in (None, node):
            self.journal.note(f"{name} is now node {node}, was {self.where[name]}", client=name)
        self.where[name], self.told[name], self.tells[name] = node, hello.told, hello.tells
        return [name]
