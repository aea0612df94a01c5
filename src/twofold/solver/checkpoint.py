"""Checkpoints: a run that was killed goes on where it was, to the same trajectory, ledger and history.

A checkpoint is one file, written beside its final name and renamed, so that there is never half of one. The last two are kept.
It holds the engine's whole state, what was recorded, and a fingerprint of the run: a checkpoint of another problem, algorithm or
version is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold.engines.base import Engine, Point
from twofold.engines.schedule import Course
from twofold.errors import CheckpointError, InputError
from twofold.storage import replace_file
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.solver.run import Run
    from twofold.solver.track import Track

__all__ = ["Checkpoints", "Keeper", "Saved", "fingerprint"]

FORMAT = 1
KEPT = 2
CHECKPOINT_SECONDS = 60.0
"""Time between checkpoints where nobody says after how many rounds."""


class Saved(NamedTuple):
    """What a checkpoint holds: the arrays of a pytree, and plain data."""

    arrays: Pytree
    plain: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: str | Path, identity: Mapping[str, str]) -> None:
        self._folder, self._identity = Path(folder), dict(identity)
        if self._folder.exists() and not self._folder.is_dir():
            raise CheckpointError(f"checkpoint={str(folder)!r} is a file: name a folder.")
        self._folder.mkdir(parents=True, exist_ok=True)

    def _files(self) -> list[Path]:
        """The checkpoints there are, the newest last."""
        return sorted(self._folder.glob("checkpoint-*.safetensors"))

    def write(self, k: int, saved: Saved) -> None:
        """Write the state after k iterations, and forget all but the last two."""
        from safetensors.numpy import save

        leaves = jax.tree.leaves(saved.arrays)
        tensors = {f"{i:06d}": np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for i, leaf in enumerate(leaves)}
        header = {"format": FORMAT, "identity": self._identity, "plain": saved.plain}
        content = save(tensors, metadata={"twofold": json.dumps(header)})
        replace_file(self._folder / f"checkpoint-{k:012d}.safetensors", content)
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
                f"No checkpoint in {self._folder} can be read: delete the folder, or name another one."
            )
        return None

    def _check(self, file: Path, header: dict[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise CheckpointError(
                f"{file} has the format {header.get('format')!r}, and this version of twofold reads {FORMAT}: name another folder."
            )
        for what, value in self._identity.items():
            found = header["identity"].get(what)
            if found != value:
                raise CheckpointError(
                    f"{file} belongs to another run: its {what} is {found}, and this run's is {value}. Name another folder, or "
                    "delete this one to begin anew."
                )


class Keeper:
    """Writes a run's checkpoints when they are due, and puts the run back to where the newest one was taken."""

    def __init__(self, run: Run, folder: str | Path, every: int | None) -> None:
        if every is not None and every < 1:
            raise InputError(f"checkpoint_every is a number of rounds ≥ 1, got {every}.")
        self._run, self._folder, self._every = run, Checkpoints(folder, _identity(run)), every
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
        return Saved((engine.state(), [(list(t.columns.values()), t.last, t.best) for t in tracks]), plain)

    def restore(self, tracks: list[Track], engine: Engine) -> int:
        """Put everything back to where the newest checkpoint was taken; returns the iteration to continue from."""
        saved = self._folder.read(lambda: self._content(0, tracks, engine).arrays)
        if saved is None:
            return 0
        state, recorded = saved.arrays
        engine.restore(state)
        longer = saved.plain["budget"] != dataclasses.asdict(self._run.budget)
        for track, (columns, last, best), plain in zip(tracks, recorded, saved.plain["tracks"], strict=True):
            track.columns, track.last = dict(zip(track.columns, columns, strict=True)), Point(*last)
            track.best = None if best is None else Point(*best)
            track.k, track.spent, track.message = plain["k"], Course(*plain["spent"]), plain["message"]
            track.status = plain["status"]
            if track.status == "budget" and longer:
                self._reopen(track)
        self._run.clock.go_back(saved.plain["seconds"])
        if self._every is not None:
            self._due = (self._run.done(tracks) // self._every + 1) * self._every
        return int(saved.plain["k"])

    def _reopen(self, track: Track) -> None:
        """Let a run that was over continue with a larger budget, without the record that marked its end."""
        track.status = None
        count = track.columns["round" if self._run.by_rounds else "iteration"][-1]
        if count % self._run.budget.every and len(track.columns["round"]) > 1:
            track.columns = {name: column[:-1] for name, column in track.columns.items()}


def _identity(run: Run) -> dict[str, str]:
    """What two runs must have in common for one to continue from the other's checkpoint."""
    from twofold.extras import version

    problem, budget, clients = run.problem, run.budget, run.problem.clients
    data = fingerprint(
        jax.tree.leaves(clients.x), jax.tree.leaves(clients.y), clients.counts, clients.weights, list(clients.names),
        *([] if clients.row_weights is None else [clients.row_weights]),
    )  # fmt: skip
    stop = dataclasses.replace(budget, rounds=1, iterations=None, seconds=None) if len(run.seeds) == 1 else budget
    metrics, *derived = run.recording
    return {
        "version": version(),
        "precision": str(jnp.result_type(float)),
        "problem": fingerprint(problem.objective, problem.scale, str(problem.feature_dtype)),
        "data": data,
        "start": fingerprint(jax.tree.leaves(run.starts[0])),
        "algorithm": f"{run.algorithm.name} {fingerprint(run.algorithm)}",
        "seeds": str(run.seeds),
        "recording": fingerprint(stop, list(metrics), *derived),
        "participation": fingerprint(run.options.participation),
    }


def fingerprint(*values: object) -> str:
    """A short digest of values that is the same in every process: functions count by their name."""
    digest = hashlib.sha256()
    for piece in _pieces(values):
        digest.update(piece)
    return digest.hexdigest()[:16]


def _pieces(value: object) -> list[bytes]:
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        if array.dtype != object:
            return [f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(array).tobytes()]
        return [repr(array.tolist()).encode()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__qualname__.encode(), *_pieces(inside)]
    if isinstance(value, Mapping):
        return [piece for key, inner in value.items() for piece in (repr(key).encode(), *_pieces(inner))]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__.encode(), *(piece for inner in value for piece in _pieces(inner))]
    if callable(value):
        return [
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}".encode()
        ]
    if value is None or isinstance(value, (str, bool, int, float, bytes)):
        return [repr(value).encode()]
    return [type(value).__qualname__.encode()]
