"""MNIST, Fashion-MNIST, KMNIST and CIFAR-10, read from their canonical files.

Training and test files are pooled, because federated experiments split the rows between clients anyway. `ImageData.files`
records which files were read, with their checksums.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twofold.data.files import DataError, DataFile, Downloader, fetch, fetch_members, find
from twofold.errors import InputError

__all__ = ["CATALOGUE", "ImageData", "ImageSet", "load", "read_idx"]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images as rows of pixels in [0, 1], their labels, and the files that they came from.

    >>> import numpy as np
    >>> from twofold.data.images import ImageData
    >>> found = ImageData("mnist", np.zeros((2, 784), np.float32), np.zeros(2, np.int32), (("a.gz", "f00"),), (28, 28))
    >>> found.provenance
    'mnist: 2 images from a.gz (md5 f00).'
    """

    name: str
    x: NDArray[np.float32]  # (images, pixels)
    y: NDArray[np.int32]  # (images,)
    files: tuple[tuple[str, str], ...]  # (file name, md5) of everything that was read, in order
    shape: tuple[int, ...]  # of one image: (28, 28), or (3, 32, 32) with the colours first

    @property
    def provenance(self) -> str:
        """One sentence that says which files were used."""
        used = ", ".join(f"{name} (md5 {md5})" for name, md5 in self.files)
        return f"{self.name}: {len(self.y):,} images from {used}."


@dataclass(frozen=True)
class ImageSet:
    """The catalogue's entry for one data set: the files of its training and test parts, and how to get and read them.

    With an `archive`, every file is a CIFAR batch that holds labels and images together, and only the archive can be downloaded.
    Without one, files come in pairs of images and labels.

    >>> from twofold.data.images import CATALOGUE
    >>> [file.name for file in CATALOGUE["mnist"].parts["test"]]
    ['t10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz']
    """

    name: str
    parts: Mapping[str, tuple[DataFile, ...]]
    archive: DataFile | None = None
    required: tuple[str, ...] = ("train", "test")  # the parts that are fetched even if the caller names none


def _idx_set(
    name: str,
    url: str,
    md5: Sequence[str],
    sizes: Sequence[int | None],
    required: tuple[str, ...] = ("train", "test"),
) -> ImageSet:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    files = [DataFile(name, n, m, url + n, s) for n, m, s in zip(names, md5, sizes, strict=True)]
    return ImageSet(name, {"train": tuple(files[:2]), "test": tuple(files[2:])}, required=required)


def _cifar_set() -> ImageSet:
    folder, url = "cifar-10-batches-bin", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    md5 = (
        "5dd7e06a14cb22eb9f671a540d1b7c25",
        "5ea93a67294ea407fff1d09f752e9692",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
        "53f37980c15c3d472c316c40844f3f0d",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    )
    batches = tuple(DataFile(folder, n, m, url, 30_730_000) for n, m in zip(names, md5, strict=True))
    archive = DataFile(folder, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", url, 170_052_171)
    return ImageSet("cifar10", {"train": batches[:5], "test": batches[5:]}, archive, required=())


CATALOGUE: Mapping[str, ImageSet] = {
    "mnist": _idx_set(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (9_912_422, 28_881, 1_648_877, 4_542),
    ),
    "fashion-mnist": _idx_set(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (26_421_880, 29_515, 4_422_102, 5_148),
    ),
    "kmnist": _idx_set(
        "kmnist",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        (18_165_135, None, 3_041_136, 5_120),
        required=("test",),
    ),
    "cifar10": _cifar_set(),
}

_ALIASES = {
    "fashion": "fashion-mnist",
    "fmnist": "fashion-mnist",
    "fashionmnist": "fashion-mnist",
    "cifar-10": "cifar10",
}


def load(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    parts: Sequence[str] | None = None,
    *,
    downloader: Downloader | None = None,
    catalogue: Mapping[str, ImageSet] = CATALOGUE,
) -> ImageData:
    """Load a data set of images, as rows of pixels in [0, 1], pooled over its training and test files.

    `name` is "mnist", "fashion-mnist", "kmnist" or "cifar10". Files are looked for in `folder` if one is given, else in
    `TWOFOLD_DATA` and the user's cache folder, and downloaded if need be. Each is checked against its md5.

    `parts` chooses from "train" and "test". Without it you get all of MNIST and Fashion-MNIST; KMNIST's test file (10,000 images),
    and its training file if that is on this machine; and those of CIFAR-10's six batches that are on this machine. If no file of a
    data set is on this machine, all of it is downloaded. A part that you name is downloaded if it is missing; for CIFAR-10's
    "train", one of its five batches is enough, and the missing ones are not downloaded. `files` lists what was read, and
    `provenance` says so in a sentence.

    `downloader` and `catalogue` are for tests.

    >>> import twofold as tw
    >>> digits = tw.data.images.load("mnist")  # doctest: +SKIP
    >>> digits.x.shape, digits.shape  # doctest: +SKIP
    ((70000, 784), (28, 28))
    """
    image_set = _lookup(name, catalogue)
    unknown = [part for part in parts or () if part not in image_set.parts]
    if unknown or (parts is not None and (not parts or len(set(parts)) != len(parts))):
        raise InputError(f"parts must be some of {tuple(image_set.parts)}, each once, but got {tuple(parts or ())}")

    read = _fetch_batches if image_set.archive else _fetch_pairs
    blocks: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.uint8]] = []
    used: list[tuple[str, str]] = []
    for group in read(image_set, parts, folder, downloader):
        images, classes = _read_batch(group[0][1]) if image_set.archive else _read_pair(group[0][1], group[1][1])
        blocks.append(images)
        labels.append(classes)
        used.extend((file.name, file.md5) for file, _ in group)
    shape = blocks[0].shape[1:]
    if any(block.shape[1:] != shape for block in blocks):
        raise DataError(
            f"The images of {image_set.name} differ in size between its files: {[b.shape for b in blocks]}."
        )
    x = np.concatenate([block.reshape(len(block), -1) for block in blocks]).astype(np.float32)
    x /= np.float32(255)
    return ImageData(image_set.name, x, np.concatenate(labels).astype(np.int32), tuple(used), shape)


def _lookup(name: str, catalogue: Mapping[str, ImageSet]) -> ImageSet:
    key = name.lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in catalogue:
        raise InputError(f"there is no image data set {name!r}; there are {', '.join(catalogue)}")
    return catalogue[key]


_Located = list[tuple[DataFile, Path]]


def _fetch_pairs(
    image_set: ImageSet,
    parts: Sequence[str] | None,
    folder: str | os.PathLike[str] | None,
    downloader: Downloader | None,
) -> list[_Located]:
    """The files of each part asked for; if none was named, of the required parts and those already on this machine."""
    asked = [part for part in image_set.parts if parts is None or part in parts]
    found = {part: [find(file, folder) for file in image_set.parts[part]] for part in asked}
    if parts is None and any(all(paths) for paths in found.values()):
        asked = [part for part in asked if part in image_set.required or all(found[part])]
    return [
        [
            (file, path or fetch(file, folder, downloader=downloader))
            for file, path in zip(image_set.parts[p], found[p], strict=True)
        ]
        for p in asked
    ]


def _fetch_batches(
    image_set: ImageSet,
    parts: Sequence[str] | None,
    folder: str | os.PathLike[str] | None,
    downloader: Downloader | None,
) -> list[_Located]:
    """The batches on this machine of each part asked for; if a part has none, they come from the archive."""
    assert image_set.archive is not None
    wanted = [part for part in image_set.parts if parts is None or part in parts]

    def local() -> dict[str, _Located]:
        paths = {part: [(file, find(file, folder)) for file in image_set.parts[part]] for part in wanted}
        return {part: [(file, path) for file, path in pairs if path] for part, pairs in paths.items()}

    there = local()
    missing = [part for part in wanted if not there[part]] if parts is not None else []
    if missing or not any(there.values()):
        files = [file for part in missing or wanted for file in image_set.parts[part]]
        fetch_members(image_set.archive, files, folder, downloader=downloader)
        there = local()
    return [[pair] for part in wanted for pair in there[part]]


def _read_pair(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y) or len(y) == 0:
        raise DataError(f"{images} holds an array {x.shape} and {labels} one {y.shape}: not images with their labels.")
    return x, y


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one array of bytes in the idx format of MNIST, compressed by gzip.

    >>> import gzip
    >>> from pathlib import Path
    >>> from twofold.data.images import read_idx
    >>> path = Path("labels.gz")
    >>> _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])))
    >>> read_idx(path).tolist()
    [7, 8, 9]
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}).") from error
    # The header: two zero bytes, 8 for unsigned bytes, the number of axes, then each axis as a big-endian int32.
    axes = content[3] if len(content) >= 4 and content[:3] == b"\x00\x00\x08" else 0
    if axes == 0 or len(content) < 4 + 4 * axes:
        raise DataError(f"{path} is not an idx file of bytes: it begins with {content[:4]!r}.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    count = int(np.prod(shape, dtype=object))
    if len(content) != 4 + 4 * axes + count:
        raise DataError(
            f"{path} declares an array {shape}, {count:,} bytes, but holds {len(content) - 4 - 4 * axes:,}."
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read one batch of the binary version of CIFAR-10: a label and 3·32·32 bytes for each image."""
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % 3073:
        raise DataError(
            f"{path} has {content.size:,} bytes, which is not a multiple of the 3,073 bytes of a CIFAR-10 record."
        )
    records = content.reshape(-1, 3073)
    if records[:, 0].max() > 9:
        raise DataError(f"{path} has the label {records[:, 0].max()}, but CIFAR-10 labels are 0 to 9.")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]
