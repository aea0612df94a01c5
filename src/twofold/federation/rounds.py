"""The log of rounds: the means of each, on the disk before anybody hears of them. Whoever comes back replays it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from twofold.federation import store, wire
from twofold.federation.store import Arrays

__all__ = ["Line", "Rounds"]

MOST_BYTES = 1 << 26
"""Bytes of means that one question brings; who is further behind gets several."""


class Line(NamedTuple):
    """One round."""

    t: int
    here: list[int] | None  # None: everybody
    mean: Arrays
    sums: Arrays  # whole numbers, where messages stand in for later ones behind masks
    about: dict[str, Any]


class Rounds:
    """The rounds of one contract so far. `said[r]` is a digest of all that a node was told before it answers round r + 1."""

    def __init__(self, folder: Path, contract: str) -> None:
        self.folder, self.lines = folder, list[Line]()
        self.said = [wire.fingerprint(contract)]
        for file in sorted(folder.glob("*.safetensors")):
            arrays, about = store.read(file)
            groups = {
                g: {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{g}/")} for g in ("mean", "sum")
            }
            self._append(Line(about["t"], about["here"], groups["mean"], groups["sum"], about))

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def write(self, line: Line) -> None:
        """One more round, on the disk first."""
        arrays = {f"mean/{n}": a for n, a in line.mean.items()} | {f"sum/{n}": a for n, a in line.sums.items()}
        store.write(self.folder / f"{len(self) + 1:06d}.safetensors", arrays, line.about)
        self._append(line)

    def _append(self, line: Line) -> None:
        self.lines.append(line)
        self.said.append(wire.fingerprint(self.said[-1], len(self.lines), line.t, line.here, line.mean))

    def before(self, part: str) -> Line | None:
        """The last round in which a part was sent."""
        return next((line for line in reversed(self.lines) if part in line.mean), None)

    def since(self, base: int, r: int) -> tuple[int, list[dict[str, Any]], Arrays]:
        """What a node that has answered round `base` must hear before it answers round r: up to which round, and their lines and means.

        Where that is too much for one question, it ends with an earlier round.
        """
        first, size, until = max(base, 1), 0, r
        for i in range(first, r):
            size += sum(a.nbytes for a in self.lines[i - 1].mean.values())
            if size > MOST_BYTES and i > first:
                until = i
                break
        some = range(first, until)
        lines = [{"round": i, "t": self.lines[i - 1].t, "here": self.lines[i - 1].here} for i in some]
        return until, lines, {f"{i}/{n}": a for i in some for n, a in self.lines[i - 1].mean.items()}
