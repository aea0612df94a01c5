"""A grid without a network: the nodes are objects of this process, and everything still passes as bytes."""

from __future__ import annotations

from collections.abc import Callable

from twofold.federation.grid import Gone, Question
from twofold.federation.node import Node

__all__ = ["InProcess"]

Fault = Callable[[Node, bytes], "list[bytes | Gone]"]
"""(node, question) → what arrives as answers to it."""


class InProcess:
    """All nodes of a study in this process; `fault` decides what arrives, for tests of what can go wrong.

    `carried` holds every byte that has passed.
    """

    def __init__(self, nodes: list[Node], fault: Fault | None = None) -> None:
        self.all = {100 + i: node for i, node in enumerate(nodes)}
        self.marks = dict.fromkeys(self.all, "0")
        self.fault = fault
        self.carried: list[tuple[str, str, bytes]] = []
        self._waiting: dict[str, list[bytes | Gone]] = {}
        self._tickets = 0

    def nodes(self) -> dict[int, str]:
        """See `Grid.nodes`."""
        return dict(self.marks)

    def push(self, questions: list[Question]) -> list[str]:
        """See `Grid.push`; a node answers at once."""
        tickets = []
        for node, content in questions:
            self._tickets += 1
            ticket = str(self._tickets)
            asked = self.all[node]
            self.carried.append(("down", asked.name, content))
            arrives: list[bytes | Gone] = [asked.handle(content)] if self.fault is None else self.fault(asked, content)
            self.carried += [("up", asked.name, each) for each in arrives if isinstance(each, bytes)]
            self._waiting[ticket] = arrives
            tickets.append(ticket)
        return tickets

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """See `Grid.pull`."""
        return [(ticket, each) for ticket in tickets for each in self._waiting.pop(ticket, [])]
