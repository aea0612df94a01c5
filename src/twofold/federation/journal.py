"""What happens in a run, in words: for the log, for `events.jsonl`, for the page and for the result."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twofold.federation.wire import said_by

__all__ = ["Journal", "Watch"]

Watch = Callable[[dict[str, Any]], None]
"""Hears how far a run is."""
log = logging.getLogger("twofold.coordinator")


class Journal:
    """The events of a run, and how far it is."""

    def __init__(self, folder: Path, watch: Watch | None) -> None:
        self.folder, self.watch = folder, watch
        self.events: list[str] = []

    def note(self, text: str, **more: Any) -> None:
        """Write an event down, for people and for programs."""
        text = said_by(text, 2000)
        self.events.append(text)
        log.info(text, extra={"twofold": more})
        line = json.dumps({"time": round(time.time(), 3), "event": text, **more}) + "\n"
        with (self.folder / "events.jsonl").open("ab", buffering=0) as file:
            before = file.tell()
            if file.write(line.encode()) < len(line.encode()):  # a full disk took half of it
                file.truncate(before)

    def show(self, status: dict[str, Any]) -> None:
        """How far it is, for `twofold status` and the page."""
        status = {**status, "time": time.time(), "events": self.events[-20:]}
        beside = self.folder / ".status.json"
        beside.write_text(json.dumps(status))
        beside.replace(self.folder / "status.json")
        if self.watch is not None:
            self.watch(status)
