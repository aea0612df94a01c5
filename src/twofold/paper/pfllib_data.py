"""The data of `twofold reproduce pfllib`: pooled images and splits made once, in one file that is checked whenever it is read.

A pack is an .npz with the images as bytes, their labels, and for each split the row numbers of every client, for training and for
testing. Each split has a SHA-256 checksum beside it, and so have the images.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients
from twofold.data import images, partition
from twofold.data.partition import Partition
from twofold.errors import InputError, choose_from

__all__ = ["CLIENTS", "DATA", "SPLITS", "Pack", "checksum", "make", "read", "split", "write"]

DATA = {"fmnist": "Fashion-MNIST", "mnist": "MNIST"}
SPLITS = ("dirichlet", "pathological")
CLIENTS, TEST, ALPHA, LABELS_EACH, SEED = 20, 0.25, 0.1, 2, 0
LEAST = 40
"""Rows of the smallest client: ten of them for testing, one batch."""


@dataclass(frozen=True, eq=False)
class Pack:
    """Images as bytes (rows, height, width), their labels, and the splits by name.

    >>> y = np.arange(4000) % 10
    >>> pack = Pack("fmnist", np.zeros((4000, 2, 2), np.uint8), y, {"pathological": split("pathological", y)})
    >>> train, test = pack.clients("pathological", rows=100)
    >>> train.M, train.x.shape[1:], float(train.x[0, 0, 0, 0]), int(max(train.counts + test.counts))
    (20, (2, 2, 1), -1.0, 100)
    """

    data: str
    x: NDArray[np.uint8]
    y: NDArray[Any]
    splits: dict[str, Partition]

    def clients(self, name: str, rows: int | None = None) -> tuple[Clients, Clients]:
        """Everyone's training and test rows, pixels from −1 to 1; of each client at most the first `rows`, drawn in the same shares."""
        if name not in self.splits:
            raise InputError(choose_from(f"The pack of {self.data} has no split {name!r}", name, self.splits))
        parts = self.splits[name]
        found: list[Clients] = []
        for pieces, share in ((parts.train, 1 - TEST), (parts.test, TEST)):
            mine = [_some(piece, None if rows is None else max(1, round(share * rows))) for piece in pieces]
            pairs = [
                ((self.x[piece][..., None] / np.float32(255) - np.float32(0.5)) / np.float32(0.5), self.y[piece])
                for piece in mine
            ]
            found.append(Clients.from_list(pairs, names=parts.names, weights="rows"))
        return found[0], found[1]


def _some(rows: NDArray[np.int64], most: int | None) -> NDArray[np.int64]:
    if most is None or len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(SEED).choice(rows, most, replace=False))


def split(name: str, y: NDArray[Any], clients: int = CLIENTS) -> Partition:
    """One of the two splits of these labels, 75/25 inside each client.

    >>> len(split("dirichlet", np.arange(20_000) % 10))
    20
    """
    if name == "dirichlet":
        return partition.dirichlet(y, clients, ALPHA, SEED, TEST, LEAST, level=True)
    if name == "pathological":
        return partition.unequal_labels(y, clients, LABELS_EACH, SEED, TEST, LEAST)
    raise InputError(choose_from(f"There is no split {name!r}", name, SPLITS))


def make(data: str, folder: str | Path | None = None) -> Pack:
    """All images of a data set, training and test files pooled, with both splits."""
    if data not in DATA:
        raise InputError(choose_from(f"There is no data set {data!r} in this study", data, DATA))
    found = images.load(data, folder)
    x = np.rint(found.x * 255).astype(np.uint8).reshape(-1, *found.shape)
    return Pack(data, x, found.y.astype(np.uint8), {name: split(name, found.y) for name in SPLITS})


# --- files ------------------------------------------------------------------------------------------------------------


def checksum(parts: Partition) -> str:
    """The SHA-256 of a split: who has which rows, for training and for testing.

    >>> one = split("pathological", np.arange(4000) % 10)
    >>> checksum(one) == checksum(split("pathological", np.arange(4000) % 10)), len(checksum(one))
    (True, 64)
    """
    return _digest(*(piece for pieces in (parts.train, parts.test) for piece in pieces))


def _digest(*arrays: NDArray[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.kind}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).astype("<u1" if array.dtype == np.uint8 else "<i8").tobytes())
    return found.hexdigest()


def write(pack: Pack, path: str | Path) -> Path:
    """Write a pack; give its path."""
    content: dict[str, Any] = {"data": pack.data, "x": pack.x, "y": pack.y, "images_sha256": _digest(pack.x, pack.y)}
    for name, parts in pack.splits.items():
        sizes = np.array([[len(piece) for piece in pieces] for pieces in (parts.train, parts.test)])
        content |= {
            f"{name}_rows": np.concatenate([*parts.train, *parts.test]).astype(np.int32), f"{name}_sizes": sizes,
            f"{name}_sha256": checksum(parts), f"{name}_description": parts.description,
        }  # fmt: skip
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **content)
    return path


def read(path: str | Path) -> Pack:
    """Read a pack, and refuse one whose images or splits are not those that were written."""
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    x, y = content["x"], content["y"]
    if _digest(x, y) != str(content["images_sha256"]):
        raise InputError(f"The images in {path} do not have the checksum beside them: make the file again.")
    splits: dict[str, Partition] = {}
    for name in (key.removesuffix("_rows") for key in content if key.endswith("_rows")):
        sizes = content[f"{name}_sizes"]
        pieces = np.split(content[f"{name}_rows"].astype(np.int64), np.cumsum(sizes.ravel())[:-1])
        M = sizes.shape[1]
        names = tuple(f"client {m}" for m in range(M))
        labels = tuple(tuple(np.unique(y[np.concatenate([pieces[m], pieces[M + m]])]).tolist()) for m in range(M))
        parts = Partition(tuple(pieces[:M]), tuple(pieces[M:]), names, labels, str(content[f"{name}_description"]))
        if checksum(parts) != str(content[f"{name}_sha256"]):
            raise InputError(f"The split {name!r} in {path} does not have the checksum beside it: make the file again.")
        splits[name] = parts
    return Pack(str(content["data"]), x, y, splits)
