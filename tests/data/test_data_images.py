"""Images are read rightly from small files written here, and from the real ones where TWOFOLD_DATA has them."""

import gzip
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import requests

from twofold.data import files, images, partition
from twofold.data.files import DataError, DataFile
from twofold.data.images import CATALOGUE, ImageSet, load

REAL = os.environ.get("TWOFOLD_DATA", "")
real = pytest.mark.skipif(not (REAL and Path(REAL).is_dir()), reason="TWOFOLD_DATA is not set to a folder of real data")

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (7, 4, 3), dtype=np.uint8), np.arange(7, dtype=np.uint8)
TEST = RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)[::-1].copy()
BATCHES = [(np.array([9, 0, i], np.uint8), RANDOM.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)) for i in range(6)]


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def batch(labels: np.ndarray, pictures: np.ndarray) -> bytes:
    return b"".join(bytes([k]) + x.tobytes() for k, x in zip(labels, pictures, strict=True))


IDX_CONTENT = {
    "train-images-idx3-ubyte.gz": idx(TRAIN[0]),
    "train-labels-idx1-ubyte.gz": idx(TRAIN[1]),
    "t10k-images-idx3-ubyte.gz": idx(TEST[0]),
    "t10k-labels-idx1-ubyte.gz": idx(TEST[1]),
}
BATCH_CONTENT = {f.name: batch(*b) for f, b in zip(sum(CATALOGUE["cifar10"].parts.values(), ()), BATCHES, strict=True)}


def tar_of_batches() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"readme.html": b"read me", **BATCH_CONTENT}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVE = tar_of_batches()


def small(file: DataFile, content: bytes) -> DataFile:
    return replace(file, md5=hashlib.md5(content).hexdigest(), size=len(content))


def small_set(image_set: ImageSet) -> ImageSet:
    contents = BATCH_CONTENT if image_set.archive else IDX_CONTENT
    parts = {part: tuple(small(f, contents[f.name]) for f in group) for part, group in image_set.parts.items()}
    archive = small(image_set.archive, ARCHIVE) if image_set.archive else None
    return replace(image_set, parts=MappingProxyType(parts), archive=archive)


SMALL = {name: small_set(image_set) for name, image_set in CATALOGUE.items()}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TWOFOLD_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "data"


def write(root: Path, name: str, *wanted: str) -> None:
    """Write those files of a small data set whose names contain one of the words."""
    for part in SMALL[name].parts.values():
        for file in part:
            if any(word in file.name for word in wanted):
                path = root / file.relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((BATCH_CONTENT if SMALL[name].archive else IDX_CONTENT)[file.name])


class Network:
    """A downloader that serves the small files and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        self.asked.append(url)
        name = url.rsplit("/", 1)[1]
        Path(output_file).write_bytes(ARCHIVE if name.endswith(".tar.gz") else IDX_CONTENT[name])


def offline(url: str, output_file: str, pooch: object) -> None:
    raise requests.ConnectionError("no network here")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_idx_files_become_rows_between_0_and_1(root: Path, name: str) -> None:
    write(root, name, "train", "t10k")
    data = load(name, downloader=offline, catalogue=SMALL)
    assert data.name == name and data.shape == (4, 3)
    assert data.x.dtype == np.float32 and data.y.dtype == np.int32
    pictures = np.concatenate([TRAIN[0], TEST[0]]).reshape(12, 12)
    np.testing.assert_array_equal(data.x, pictures.astype(np.float32) / np.float32(255))
    assert data.x.min() >= 0 and data.x.max() <= 1
    np.testing.assert_array_equal(data.y, np.concatenate([TRAIN[1], TEST[1]]))
    expected = [f for part in ("train", "test") for f in SMALL[name].parts[part]]
    assert data.files == tuple((f.name, f.md5) for f in expected)
    for file in expected:
        assert file.name in data.provenance and file.md5 in data.provenance
    assert "12 images" in data.provenance


def test_cifar_batches_become_rows_with_the_colours_first(root: Path) -> None:
    write(root, "cifar10", "data_batch_1", "test_batch")
    data = load("cifar10", downloader=offline, catalogue=SMALL)
    assert data.shape == (3, 32, 32) and data.x.shape == (6, 3072)
    np.testing.assert_array_equal(data.y, [9, 0, 0, 9, 0, 5])
    pictures = np.concatenate([BATCHES[0][1], BATCHES[5][1]]).reshape(6, -1)
    np.testing.assert_array_equal(data.x, pictures.astype(np.float32) / np.float32(255))
    assert [name for name, _ in data.files] == ["data_batch_1.bin", "test_batch.bin"]


@pytest.mark.parametrize(
    ("name", "alias"),
    [("mnist", "MNIST"), ("fashion-mnist", "fashion_mnist"), ("fashion-mnist", "fmnist"), ("cifar10", "CIFAR-10")],
)
def test_other_spellings_mean_the_same(root: Path, name: str, alias: str) -> None:
    write(root, name, "train", "t10k", "batch")
    assert load(alias, downloader=offline, catalogue=SMALL).name == name


def test_an_unknown_name_or_part_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="no image data set 'imagenet'; there are mnist, fashion-mnist, kmnist, cifar"):
        load("imagenet")
    for parts in (("validation",), (), ("test", "test")):
        with pytest.raises(ValueError, match="parts must be some of"):
            load("mnist", parts=parts)


def test_the_folder_given_wins(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "mnist", "train", "t10k")
    assert len(load("mnist", tmp_path / "elsewhere", downloader=offline, catalogue=SMALL).y) == 12


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_what_is_missing_of_mnist_is_downloaded(root: Path, name: str) -> None:
    write(root, name, "t10k")
    network = Network()
    assert len(load(name, downloader=network, catalogue=SMALL).y) == 12
    assert network.asked == [file.url for file in SMALL[name].parts["train"]]
    assert len(load(name, downloader=offline, catalogue=SMALL).y) == 12  # now it is in the cache
    assert len(load(name, parts=("test",), downloader=offline, catalogue=SMALL).y) == 5


@pytest.mark.parametrize(
    ("there", "parts", "images_read", "downloads"),
    [
        (("t10k",), None, 5, 0),  # the situation on the authors' machine: nothing more is asked for
        (("t10k", "train"), None, 12, 0),
        (("train",), None, 12, 2),  # the test file is the least that there has to be
        ((), None, 12, 4),
        (("t10k-images",), None, 12, 3),  # half a pair is nothing
        (("t10k",), ("train", "test"), 12, 2),
        (("t10k", "train"), ("test",), 5, 0),
    ],
)
def test_kmnist_takes_what_is_there(
    root: Path, there: tuple[str, ...], parts: tuple[str, ...] | None, images_read: int, downloads: int
) -> None:
    write(root, "kmnist", *there)
    network = Network()
    assert len(load("kmnist", parts=parts, downloader=network, catalogue=SMALL).y) == images_read
    assert len(network.asked) == downloads


@pytest.mark.parametrize(
    ("there", "parts", "read", "downloads"),
    [
        (("data_batch_1", "test_batch"), None, ["data_batch_1", "test_batch"], 0),
        (("data_batch_3",), None, ["data_batch_3"], 0),
        (("data_batch_2", "data_batch_3"), ("train",), ["data_batch_2", "data_batch_3"], 0),
        (("data_batch_3", "test_batch"), ("test",), ["test_batch"], 0),
        (("data_batch_3",), ("test",), ["test_batch"], 1),
        (("data_batch_3",), ("train", "test"), ["data_batch_3", "test_batch"], 1),
        ((), None, [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], 1),
    ],
)
def test_cifar_takes_the_batches_that_are_there(
    root: Path, there: tuple[str, ...], parts: tuple[str, ...] | None, read: list[str], downloads: int
) -> None:
    write(root, "cifar10", *there)
    network = Network()
    data = load("cifar10", parts=parts, downloader=network, catalogue=SMALL)
    assert [name.removesuffix(".bin") for name, _ in data.files] == read
    assert len(data.y) == 3 * len(read)
    assert network.asked == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"] * downloads


@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "cifar-10-binary.tar.gz")]
)
def test_offline_names_the_file_its_checksum_and_its_place(root: Path, name: str, file: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, downloader=offline)
    entry = CATALOGUE[name].archive or CATALOGUE[name].parts["train"][0]
    for part in (file, entry.md5, entry.url, str(root / entry.relative), "no network here"):
        assert part in str(caught.value)


def test_a_file_with_the_wrong_checksum_is_refused(root: Path) -> None:
    write(root, "mnist", "train", "t10k")
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz is truncated.*expected md5 f68b3c2dcbeaaa9fbdd348"):
        load("mnist", downloader=offline)  # against the real catalogue


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not gzip at all", "not a complete gzip file"),
        (idx(TEST[0])[:-9], "not a complete gzip file"),
        (gzip.compress(b"\0\0\x0d\x03" + bytes(12)), "not an idx file of bytes"),
        (gzip.compress(b"\0\0"), "not an idx file of bytes"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "not an idx file of bytes"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 5]) + b"1234"), r"declares an array \(5,\), 5 bytes, but holds 4"),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 5]) + b"123456"), "but holds 6"),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "but holds 0"),  # the product does not fit into 64 bits
    ],
)
def test_a_malformed_idx_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(DataError, match=words):
        images.read_idx(tmp_path / "file.gz")


def load_altered(root: Path, name: str, changed: dict[str, bytes]) -> images.ImageData:
    """Load a small data set in which some files are replaced, checksums and all."""
    write(root, name, "train", "t10k", "batch")
    parts = {}
    for part, group in SMALL[name].parts.items():
        parts[part] = tuple(small(f, changed[f.name]) if f.name in changed else f for f in group)
        for file in group:
            if file.name in changed:
                (root / file.relative).write_bytes(changed[file.name])
    return load(name, downloader=offline, catalogue={name: replace(SMALL[name], parts=parts)})


def test_a_part_that_is_not_asked_for_is_not_looked_at(root: Path) -> None:
    write(root, "mnist", "train", "t10k")
    (root / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    assert len(load("mnist", parts=("test",), downloader=offline, catalogue=SMALL).y) == 5
    with pytest.raises(DataError, match="train-images"):
        load("mnist", parts=("train",), downloader=offline, catalogue=SMALL)


def test_images_and_labels_must_fit(root: Path) -> None:
    with pytest.raises(DataError, match="not images with their labels"):
        load_altered(root, "mnist", {"t10k-labels-idx1-ubyte.gz": idx(np.zeros(4, np.uint8))})
    with pytest.raises(DataError, match="not images with their labels"):
        load_altered(root, "mnist", {"t10k-images-idx3-ubyte.gz": idx(np.zeros((5, 2), np.uint8))})
    with pytest.raises(DataError, match="differ in size between its files"):
        load_altered(root, "mnist", {"t10k-images-idx3-ubyte.gz": idx(np.zeros((5, 2, 2), np.uint8))})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes, which is not a multiple of the 3,073 bytes of a CIFAR-10 record"),
        (bytes(3072), "3,072 bytes, which is not a multiple of the 3,073 bytes of a CIFAR-10 record"),
        (bytes([10]) + bytes(3072), "the label 10"),
    ],
)
def test_a_malformed_batch_is_refused(root: Path, content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_altered(root, "cifar10", {"test_batch.bin": content})


# --- the real files -------------------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_the_real_test_files(name: str) -> None:
    data = load(name, REAL, parts=("test",), downloader=offline)
    assert data.x.shape == (10_000, 784) and data.y.shape == (10_000,) and data.shape == (28, 28)
    # The same bytes, read in the plainest way: 16 and 8 bytes of header, then pixels and labels.
    pixels, labels = (
        np.frombuffer(gzip.decompress((Path(REAL) / name / f"t10k-{kind}-ubyte.gz").read_bytes())[skip:], np.uint8)
        for kind, skip in (("images-idx3", 16), ("labels-idx1", 8))
    )
    np.testing.assert_array_equal(data.x.ravel(), pixels.astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(data.y, labels)
    assert set(np.unique(data.y)) == set(range(10)) and data.x.min() == 0 and data.x.max() == 1
    assert [file for file, _ in data.files] == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


@real
def test_real_mnist_is_pooled() -> None:
    data = load("mnist", REAL, downloader=offline)
    assert data.x.shape == (70_000, 784)
    assert list(data.y[:5]) == [5, 0, 4, 1, 9] and list(data.y[60_000:60_005]) == [7, 2, 1, 0, 4]
    np.testing.assert_allclose(data.x[:60_000].mean(dtype=np.float64), 0.1306604762738429, rtol=1e-6)


@real
def test_the_protocol_of_the_paper_fits_into_10000_images() -> None:
    """8,000 images are needed; of KMNIST the test file and of CIFAR-10 one batch are enough, for every K."""
    kmnist = load("kmnist", REAL, parts=("test",), downloader=offline)
    np.testing.assert_array_equal(np.bincount(kmnist.y), np.full(10, 1000))
    cifar = load("cifar10", REAL, downloader=offline)
    assert cifar.x.shape[1] == 3072 and cifar.x.max() == 1
    first = cifar.y[:10_000]
    assert cifar.files[0][0] == "data_batch_1.bin" and list(first[:5]) == [6, 9, 9, 4, 1]
    for y in (kmnist.y, first):
        for labels in (2, 4, 8):
            split = partition.by_labels(y, labels_per_client=labels)
            assert len(np.unique(np.concatenate(split.train + split.test))) == 8_000
