"""The engines: one definition of each algorithm, run in different ways with the same trajectory."""

from __future__ import annotations

from typing import Any

from twofold.engines.messages import Messages
from twofold.engines.sharded import Sharded
from twofold.engines.simulate import Simulate

REGISTRY: dict[str, Any] = {"simulate": Simulate, "messages": Messages, "sharded": Sharded}


def get(name: str) -> Any:
    """The engine of that name."""
    if name not in REGISTRY:
        raise ValueError(f"Unknown engine {name!r}; there are {', '.join(REGISTRY)}.")
    return REGISTRY[name]
