"""The School data: the reader on a small file written here, and the facts of the real one."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import requests
import scipy.io

from twofold.data import school
from twofold.data.files import DataError, DataFile

REAL = os.environ.get("TWOFOLD_DATA", "")
real = pytest.mark.skipif(not (REAL and Path(REAL).is_dir()), reason="TWOFOLD_DATA is not set to a folder of real data")


def cells(arrays: list[np.ndarray]) -> np.ndarray:
    row = np.empty((1, len(arrays)), object)
    row[0, :] = arrays
    return row


def write(folder: Path, content: dict[str, np.ndarray] | bytes) -> DataFile:
    path = folder / "school" / "school.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        scipy.io.savemat(path, content)
    return DataFile("school", "school.mat", hashlib.md5(path.read_bytes()).hexdigest(), "http://127.0.0.1:9/")


def test_each_school_is_a_client(tmp_path: Path) -> None:
    x = [np.full((n, 28), n, np.uint8) for n in (2, 3)]
    y = [np.arange(n, dtype=np.uint8)[:, None] for n in (2, 3)]
    data = school.load(tmp_path, file=write(tmp_path, {"X": cells(x), "Y": cells(y)}))
    assert data.names == ("school 001", "school 002")
    assert data.columns == school.COLUMNS and len(set(data.columns)) == 28
    for (features, score), n in zip(data.clients, (2, 3), strict=True):
        assert features.dtype == score.dtype == np.float64
        np.testing.assert_array_equal(features, np.full((n, 28), float(n)))
        np.testing.assert_array_equal(score, np.arange(n, dtype=float))


@pytest.mark.parametrize(
    "content",
    [
        b"not a mat file, but long enough to have a header" * 10,
        {"X": cells([np.zeros((2, 28))])},
        {"X": cells([np.zeros((2, 28))]), "Y": cells([])},
        {"X": cells([np.zeros((2, 27))]), "Y": cells([np.zeros((2, 1))])},
        {"X": cells([np.zeros((2, 28))]), "Y": cells([np.zeros((3, 1))])},
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: dict[str, np.ndarray] | bytes) -> None:
    with pytest.raises(DataError, match=r"school\.mat"):
        school.load(tmp_path, file=write(tmp_path, content))


def test_a_wrong_checksum_and_no_network_are_reported(tmp_path: Path) -> None:
    def offline(url: str, output_file: str, pooch: object) -> None:
        raise requests.ConnectionError("no network here")

    with pytest.raises(DataError, match="869a6ee9d48f83d4e88db72627b56149.*school/school.mat"):
        school.load(tmp_path, downloader=offline)
    write(tmp_path, b"damaged")
    with pytest.raises(DataError, match="truncated.*expected md5 869a6ee9d48f83d4e88db72627b56149"):
        school.load(tmp_path, downloader=offline)


@real
def test_the_real_file_and_what_we_say_about_its_columns() -> None:
    data = school.load(REAL)
    assert len(data.clients) == len(data.names) == 139
    x = np.vstack([x for x, _ in data.clients])
    y = np.concatenate([y for _, y in data.clients])
    assert x.shape == (15_362, 28) and y.shape == (15_362,)
    assert y.min() == 1 and y.max() == 70
    assert min(len(y) for _, y in data.clients) == 22 and max(len(y) for _, y in data.clients) == 251
    assert data.files == (("school.mat", "869a6ee9d48f83d4e88db72627b56149"),)

    column = {name: x[:, i] for i, name in enumerate(data.columns)}
    assert (column["constant"] == 1).all()
    assert [i for i in range(28) if np.ptp(x[:, i]) == 0] == [27]
    for features, _ in data.clients:
        assert (np.ptp(features[:, 21:], axis=0) == 0).all()
        assert np.linalg.matrix_rank(features) < 28
    groups = {
        "year": x[:, :3],
        "gender": x[:, 5:7],
        "ethnic group": x[:, 10:21],
        "school": x[:, 21:24],
        "denomination": x[:, 24:27],
    }
    for group in groups.values():
        assert set(np.unique(group)) == {0, 1} and (group.sum(axis=1) == 1).all()
    bands = np.stack([column[f"verbal reasoning band {i}"] for i in (1, 2, 3)])
    assert (bands.sum(axis=0) == 0).sum() == 15 and bands.sum(axis=0).max() == 1
    scores = [y[band == 1].mean() for band in bands]
    assert scores[0] > scores[1] > scores[2]
    share = column["verbal reasoning band 1 (% of the school's pupils that year)"]
    ties = [np.corrcoef(band, share)[0, 1] for band in bands]
    assert ties[0] > 0 > ties[2] and ties[0] > abs(ties[1])
    assert (column["female"][column["girls' school"] == 1] == 1).all()
    assert column["female"][column["boys' school"] == 1].mean() < 0.001
    assert 0.4 < column["female"][column["mixed school"] == 1].mean() < 0.6
