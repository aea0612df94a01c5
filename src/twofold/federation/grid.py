"""What a federation needs of a network: three methods. Flower has them (`engines.flower`), and one process (`InProcess`)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Gone", "Grid", "Question"]


class Question(NamedTuple):
    """Bytes for one node."""

    node: int
    content: bytes


class Gone(NamedTuple):
    """The network's word that a node is not there."""

    why: str


class Grid(Protocol):
    """All that a network has to offer."""

    def nodes(self) -> dict[int, str]:
        """Who is there: a number for each node, and a mark that changes when it comes back."""
        ...

    def push(self, questions: list[Question]) -> list[str]:
        """Ask; one ticket for each question."""
        ...

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """The answers that are there by now, each with its ticket."""
        ...
