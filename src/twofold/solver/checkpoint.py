"""Checkpoints: a run that was killed goes on where it was, to the same trajectory, ledger and history.

A checkpoint is one file, written beside its final name and renamed, so that there is never half of one. The last two are kept.
It holds the engine's whole state, what was recorded, and a fingerprint of each part of the run: a checkpoint of another problem,
algorithm or version is refused, with what differs.
"""
# What users hand over is looked at, whatever its annotation says.
# pyright: reportUnnecessaryIsInstance=false
# safetensors comes without types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from twofold.engines.base import Engine, Point
from twofold.engines.schedule import Course
from twofold.errors import CheckpointError, InputError
from twofold.solver.identity import Identity, differences, identity
from twofold.storage import replace_file
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.solver.run import Run
    from twofold.solver.track import Track

__all__ = ["Checkpoints", "Keeper", "Saved", "refuse_settings"]

FORMAT = 3
"""What is in a checkpoint, and how; another number is refused."""
KEPT = 2
"""Checkpoints that are kept: the newest, and the one before it in case that one is damaged."""
CHECKPOINT_SECONDS = 60.0
"""Seconds between checkpoints, unless `checkpoint_every` is given."""


class Saved(NamedTuple):
    """What a checkpoint holds: the arrays of a pytree, and plain data."""

    arrays: Pytree
    plain: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: str | Path, identity: Identity) -> None:
        self.folder, self._identity = Path(folder), identity
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"checkpoint={str(folder)!r} is a file: name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)

    def _files(self) -> list[Path]:
        """The checkpoints there are, the newest last."""
        return sorted(self.folder.glob("checkpoint-*.safetensors"))

    def write(self, k: int, saved: Saved) -> None:
        """Write the state after k iterations, and forget all but the last two."""
        from safetensors.numpy import save

        leaves = jax.tree.leaves(saved.arrays)
        tensors = {f"{i:06d}": np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for i, leaf in enumerate(leaves)}
        header = {"format": FORMAT, "identity": self._identity, "plain": saved.plain}
        content = save(tensors, metadata={"twofold": json.dumps(header)})
        replace_file(self.folder / f"checkpoint-{k:012d}.safetensors", content)
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)

    def read(self, like: Callable[[], Pytree]) -> Saved | None:
        """The newest checkpoint, its arrays in the structure of `like()`; None where there is none."""
        from safetensors import SafetensorError, safe_open

        for file in reversed(self._files()):
            try:
                with safe_open(file, framework="numpy") as content:
                    header = json.loads((content.metadata() or {}).get("twofold", "{}"))
                    leaves = [content.get_tensor(name) for name in sorted(content.keys())]
            except (SafetensorError, OSError, json.JSONDecodeError):
                continue  # damaged by something other than us (a full disk, say): the one before it is still good
            self._check(file, header)
            return Saved(jax.tree.unflatten(jax.tree.structure(like()), leaves), header["plain"])
        if self._files():
            raise CheckpointError(
                f"No checkpoint in {self.folder} can be read: delete the folder, or name another one."
            )
        return None

    def _check(self, file: Path, header: dict[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise CheckpointError(
                f"{file} has the format {header.get('format')!r}, and this version of twofold reads {FORMAT}: name another folder."
            )
        for found, mine in zip(header["identity"], self._identity, strict=True):
            if told := differences(found, mine):
                raise CheckpointError(
                    f"{file} belongs to another run: {'; '.join(told)}. Name another folder, or delete this one to begin anew."
                )


class Keeper:
    """Writes a run's checkpoints when they are due, and puts the run back to where the newest one was taken."""

    def __init__(self, run: Run, folder: str | Path, every: int | None) -> None:
        self._run, self._folder, self._every = run, Checkpoints(folder, identity(run)), every
        self._due = every or 0
        self._last = time.perf_counter()

    def limit(self, tracks: list[Track], most: int) -> int:
        """At most so many iterations, such that the stretch ends when a checkpoint is due."""
        if self._every is None:
            return most
        slowest = min((t for t in tracks if t.status is None), key=lambda t: t.rounds)
        if self._run.by_rounds:
            ahead = self._run.schedule.ahead(slowest.k, most).rounds[slowest.row]
        else:
            ahead = slowest.k + np.arange(most + 1)
        there = np.flatnonzero(ahead >= self._due)
        return int(np.clip(there[0], 1, most)) if len(there) else most

    def after(self, k: int, tracks: list[Track], engine: Engine, now: bool) -> None:
        """Write a checkpoint if one is due, at the end of the run, and before an interruption."""
        over, done = all(track.status is not None for track in tracks), self._run.done(tracks)
        due = time.perf_counter() - self._last >= CHECKPOINT_SECONDS if self._every is None else done >= self._due
        if not (due or over or now):
            return
        if self._every is not None:
            self._due = (done // self._every + 1) * self._every
        self._folder.write(k, self._content(k, tracks, engine))
        self._last = time.perf_counter()

    def _content(self, k: int, tracks: list[Track], engine: Engine) -> Saved:
        plain = {
            "k": k,
            "seconds": self._run.clock.now(),
            "budget": dataclasses.asdict(self._run.budget),
            "tracks": [
                {"k": t.k, "spent": [float(n) for n in t.spent], "status": t.status, "message": t.message}
                for t in tracks
            ],
        }
        recorded = [(list(t.columns.values()), self._joined(t.last), self._joined(t.best)) for t in tracks]
        return Saved((engine.state(), recorded), plain)

    def _joined(self, point: Point | None) -> tuple[Pytree, Pytree] | None:
        """An iterate whose β are in the clients' order: how clients are grouped may be another when the run goes on."""
        return None if point is None else (point.w, self._run.problem.join(point.parts))

    def _split(self, point: tuple[Pytree, Pytree] | None) -> Point | None:
        return None if point is None else Point(point[0], self._run.problem.split(point[1]))

    def restore(self, tracks: list[Track], engine: Engine) -> int:
        """Put everything back to where the newest checkpoint was taken; returns the iteration to continue from."""
        saved = self._folder.read(lambda: self._content(0, tracks, engine).arrays)
        if saved is None:
            return 0
        state, recorded = saved.arrays
        engine.restore(state)
        budget, seconds = self._run.budget, saved.plain["seconds"]
        longer = saved.plain["budget"] != dataclasses.asdict(budget) and seconds < (budget.seconds or math.inf)
        for track, (columns, last, best), plain in zip(tracks, recorded, saved.plain["tracks"], strict=True):
            track.columns = dict(zip(track.columns, columns, strict=True))
            track.last, track.best = self._split(last), self._split(best)
            track.k, track.spent, track.message = plain["k"], Course(*plain["spent"]), plain["message"]
            track.status = plain["status"]
            if track.status in (None, "budget") and self._is_spent(track.k, track.rounds):
                self._end_at_record(track)
            elif track.status == "budget" and longer:
                self._reopen(track)
        self._run.clock.go_back(seconds)
        if self._every is not None:
            self._due = (self._run.done(tracks) // self._every + 1) * self._every
        return int(saved.plain["k"])

    def _is_spent(self, k: int, rounds: int) -> bool:
        """Whether the budget ends a run after so many iterations and rounds."""
        return bool(self._run.budget.is_over(np.array([k]), np.array([rounds]), self._run.by_rounds)[0])

    def _end_at_record(self, track: Track) -> None:
        """End at once with the newest record, after which there may have been iterations without a round."""
        k, budget = int(track.columns["iteration"][-1]), self._run.budget
        spent = track.spent if k == track.k else self._run.schedule.ahead(k, 0).at((track.row, 0))
        rounds = int(spent.rounds)
        asked = {"rounds": budget.most_rounds, "iterations": budget.iterations}
        told = " and ".join(f"{name}={most}" for name, most in asked.items() if most is not None)
        if not self._is_spent(k, rounds):
            raise CheckpointError(
                f"{self._folder.folder} is at {track.rounds:,} rounds and {track.k:,} iterations, which is all that {told} allows, "
                f"but its newest record is of round {rounds:,}: ask for more, or name another folder."
            )
        track.k, track.spent, track.status = k, spent, "budget"
        track.message = f"stopped after {rounds:,} rounds and {k:,} iterations"
        if self._is_spent(k - 1, rounds - 1):
            track.message += f", where its checkpoint was: past {told}"

    def _reopen(self, track: Track) -> None:
        """Let a run that was over continue with a larger budget, without the record that marked its end."""
        track.status = None
        count = track.columns["round" if self._run.by_rounds else "iteration"][-1]
        if count % self._run.budget.every and len(track.columns["round"]) > 1:
            track.columns = {name: column[:-1] for name, column in track.columns.items()}


def refuse_settings(folder: str | Path | None, every: int | None) -> None:
    """Refuse a folder or a number of rounds that cannot be meant.

    >>> try:
    ...     refuse_settings(None, 5)
    ... except InputError as mistake:
    ...     print(mistake)
    checkpoint_every=5 needs a folder to write into: give checkpoint="folder", too.
    """
    if folder is not None and (not isinstance(folder, str | PathLike) or not str(folder)):
        raise InputError(f"checkpoint is the name of a folder, got checkpoint={folder!r}.")
    if every is None:
        return
    if not isinstance(every, int | np.integer) or isinstance(every, bool) or every < 1:
        raise InputError(f"checkpoint_every is a whole number of rounds ≥ 1, got checkpoint_every={every!r}.")
    if folder is None:
        raise InputError(f'checkpoint_every={every} needs a folder to write into: give checkpoint="folder", too.')
