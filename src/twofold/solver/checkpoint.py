"""Checkpoints: a run that was killed goes on where it was, to the same trajectory, ledger and history.

A checkpoint is one file, written beside its final name and renamed, so that there is never half of one. The last two are kept.
It holds the engine's whole state, what was recorded, and a fingerprint of the run: a checkpoint of another problem, algorithm or
version is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from twofold.errors import CheckpointError
from twofold.tree import Pytree

__all__ = ["Checkpoints", "Saved", "fingerprint"]

FORMAT = 1
KEPT = 2


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


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, there is either the old one or the new one, and the new one is on the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
