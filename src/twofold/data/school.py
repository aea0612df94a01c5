"""The School data: exam scores of 15,362 pupils in 139 schools of inner London, as `school.mat` of MALSAR."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twofold.data.files import DataError, DataFile, Downloader, fetch

FILE = DataFile(
    "school",
    "school.mat",
    "869a6ee9d48f83d4e88db72627b56149",
    "https://raw.githubusercontent.com/jiayuzhou/MALSAR/master/data/school.mat",
    44_759,
)

# The file names no columns. These follow the usual description of the data, and the numbers bear it out: the groups
# below are 0/1 indicators of which each pupil has exactly one (15 pupils have no band); girls' and boys' schools tell
# the two genders apart; the bands are ordered by their pupils' scores and by their tie to the share in band 1. Nothing
# in the numbers says which ethnic group or denomination is which, so those are numbered.
COLUMNS: tuple[str, ...] = (
    *(f"year {i}" for i in (1, 2, 3)),
    "free school meals (% of the school's pupils that year)",
    "verbal reasoning band 1 (% of the school's pupils that year)",
    "female",
    "male",
    *(f"verbal reasoning band {i}" for i in (3, 1, 2)),
    *(f"ethnic group {i}" for i in range(1, 12)),
    "mixed school",
    "boys' school",
    "girls' school",
    *(f"denomination {i}" for i in (1, 2, 3)),
    "constant",
)


@dataclass(frozen=True, eq=False)
class SchoolData:
    """One client per school: 28 features of each pupil and the exam score."""

    clients: list[tuple[NDArray[np.float64], NDArray[np.float64]]]  # (X, y) with one row per pupil
    names: tuple[str, ...]
    columns: tuple[str, ...]
    files: tuple[tuple[str, str], ...]  # (file name, md5) of what was read


def load(
    folder: str | os.PathLike[str] | None = None, *, downloader: Downloader | None = None, file: DataFile = FILE
) -> SchoolData:
    """Load the School data as one `(X, y)` per school.

    The last of the 28 columns is constantly 1 (leave it out, or fit no intercept), the six before it are the same for
    all pupils of a school, and the 0/1 groups of `columns` each add up to 1, so a school's features are never of full
    rank: least squares on one school needs a ridge. Rows are sorted in the file, not shuffled.

    The numbers are as in the file, unscaled; schools have no names there, so they are numbered from 001.
    `downloader` and `file` are for tests.
    """
    import scipy.io

    path = fetch(file, folder, downloader=downloader)
    try:
        content = scipy.io.loadmat(path, variable_names=("X", "Y"))
        pairs = list(zip(content["X"].ravel(), content["Y"].ravel(), strict=True))
        clients = [(np.asarray(x, np.float64), np.asarray(y, np.float64).ravel()) for x, y in pairs]
    except (KeyError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise DataError(f"{path} is not the School data in MATLAB's format: {error}.") from error
    if not clients or any(x.ndim != 2 or x.shape != (len(y), len(COLUMNS)) for x, y in clients):
        raise DataError(f"{path} does not hold {len(COLUMNS)} features and one score for each pupil of each school.")
    names = tuple(f"school {i:03d}" for i in range(1, len(clients) + 1))
    return SchoolData(clients, names, COLUMNS, ((file.name, file.md5),))
