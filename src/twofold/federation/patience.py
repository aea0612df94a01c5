"""How long a coordinator waits, and what it says when it waits no longer."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.errors import TwofoldError

__all__ = ["Patience", "Stopped"]


class Stopped(TwofoldError):  # noqa: N818
    """A run that cannot go on for now: what there is can be resumed."""


@dataclass(frozen=True)
class Patience:
    """How long the coordinator waits, in seconds: between looks, before it asks again, and before it gives up."""

    poll: float = 0.005
    again: float = 20.0
    look: float = 0.5
    limit: float = 600.0
