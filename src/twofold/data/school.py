"""The School data: exam scores of 15,362 pupils in 139 schools of inner London, from MALSAR's `school.mat`."""
# SciPy comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twofold.data.files import DataError, DataFile, Downloader, fetch

__all__ = ["COLUMNS", "FILE", "SchoolData", "load"]

FILE = DataFile(
    "school",
    "school.mat",
    "869a6ee9d48f83d4e88db72627b56149",
    "https://raw.githubusercontent.com/jiayuzhou/MALSAR/master/data/school.mat",
    44_759,
)

# The file names no columns. These names follow the usual description of the data, and the numbers agree with it: each group
# below consists of 0/1 indicators of which each pupil has exactly one (15 pupils have no band); the girls' and boys' schools show
# which gender is which; the bands are identified by their pupils' scores and their correlation with the share in band 1. The
# numbers do not show which ethnic group or denomination is which, so those are numbered.
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
    """One client per school: 28 features of each pupil and the exam score.

    >>> from twofold.data.school import COLUMNS, SchoolData
    >>> SchoolData(clients=[], names=(), columns=COLUMNS, files=()).columns[-1]
    'constant'
    """

    clients: list[tuple[NDArray[np.float64], NDArray[np.float64]]]  # (X, y) with one row per pupil
    names: tuple[str, ...]
    columns: tuple[str, ...]
    files: tuple[tuple[str, str], ...]  # (file name, md5) of what was read


def load(
    folder: str | os.PathLike[str] | None = None, *, downloader: Downloader | None = None, file: DataFile = FILE
) -> SchoolData:
    """Load the School data as one `(X, y)` per school.

    The last of the 28 columns is constantly 1 (leave it out, or fit no intercept), the six before it are the same for all pupils
    of a school, and each group of 0/1 columns adds up to 1. So a school's features never have full rank, and least squares on one
    school needs a ridge. Rows keep the order of the file, which is sorted.

    The values are those of the file, unscaled. The file does not name the schools, so they are numbered from 001.
    `downloader` and `file` are for tests.

    >>> import twofold as tw
    >>> schools = tw.data.school.load()  # doctest: +SKIP
    >>> len(schools.clients), schools.names[0]  # doctest: +SKIP
    (139, 'school 001')
    """
    import scipy.io

    path = fetch(file, folder, downloader=downloader)
    try:
        content = cast(dict[str, NDArray[Any]], scipy.io.loadmat(path, variable_names=("X", "Y")))
        pairs: list[tuple[Any, Any]] = list(zip(content["X"].ravel(), content["Y"].ravel(), strict=True))
        clients = [(np.asarray(x, np.float64), np.asarray(y, np.float64).ravel()) for x, y in pairs]
    except (KeyError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise DataError(f"{path} is not the School data in MATLAB's format: {error}.") from error
    if not clients or any(x.ndim != 2 or x.shape != (len(y), len(COLUMNS)) for x, y in clients):
        raise DataError(f"{path} does not hold {len(COLUMNS)} features and one score for each pupil of each school.")
    names = tuple(f"school {i:03d}" for i in range(1, len(clients) + 1))
    return SchoolData(clients, names, COLUMNS, ((file.name, file.md5),))
