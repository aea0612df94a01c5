"""Loggers for `solve(..., callbacks=[…])`: CSV and Parquet files, TensorBoard and MLflow.

Each is called with every record as it happens, and has `close`, which `with` calls. They need the extra `track`, but for CSV.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twofold.errors import InputError
from twofold.exports import write_parquet
from twofold.extras import require

__all__ = ["CSV", "Logger", "MLflow", "Parquet", "TensorBoard"]

COUNTS = ("seed", "round", "iteration")
"""What counts a record, and is no figure of it."""


class Logger(ABC):
    """Something that is told every record of a run: a callback that can be closed.

    >>> class Printer(Logger):
    ...     def __call__(self, record):
    ...         print(record["loss"])
    >>> log = Printer()
    >>> log({"seed": 0, "round": 1, "loss": 0.5})
    0.5
    >>> log.close()
    """

    @abstractmethod
    def __call__(self, record: Mapping[str, float]) -> None:
        """Take a record."""

    def close(self) -> None:  # noqa: B027  (a hook: some loggers have nothing open)
        """Write what is left, and let go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CSV(Logger):
    """One line a record, written at once, so that a run that is killed leaves all it had.

    >>> import tempfile, twofold as tw
    >>> from twofold.track import CSV
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> path = Path(tempfile.mkdtemp()) / "run.csv"
    >>> with CSV(path) as log:
    ...     result = tw.solve(problem, "lsgd", rounds=2, callbacks=[log])
    >>> len(path.read_text().splitlines())
    4
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def __call__(self, record: Mapping[str, float]) -> None:
        """Write a line; the first record gives the head."""
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(record))
            self._writer.writeheader()
        names = list(self._writer.fieldnames)
        if set(record) != set(names):
            raise InputError(
                f"{self._path} has the columns {', '.join(names)}, but this record has {', '.join(record)}: give every "
                "run a file of its own."
            )
        self._writer.writerow(record)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Parquet(Logger):
    """All records as one Parquet file, which `close` writes (needs pyarrow).

    >>> import tempfile
    >>> with Parquet(Path(tempfile.mkdtemp()) / "run.parquet") as log:
    ...     log({"seed": 0, "round": 1, "loss": 0.5})
    >>> log.records
    [{'seed': 0, 'round': 1, 'loss': 0.5}]
    """

    def __init__(self, path: str | Path) -> None:
        require("pyarrow", "track.Parquet", "track")
        self._path = Path(path)
        self.records: list[dict[str, float]] = []

    def __call__(self, record: Mapping[str, float]) -> None:
        """Keep a record."""
        self.records.append(dict(record))

    def close(self) -> None:
        """Write the file."""
        names = dict.fromkeys(name for record in self.records for name in record)
        write_parquet(self._path, {name: [record.get(name) for record in self.records] for name in names})


class TensorBoard(Logger):
    """Scalars by round, for `tensorboard --logdir FOLDER`; every seed in a folder of its own (needs tensorboardX).

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with TensorBoard(folder) as log:
    ...     log({"seed": 0, "round": 1, "loss": 0.5})
    >>> [path.name for path in folder.iterdir()]
    ['seed-0']
    """

    def __init__(self, folder: str | Path) -> None:
        self._make = require("tensorboardX", "track.TensorBoard", "track").SummaryWriter
        self._folder, self._writers = Path(folder), dict[int, Any]()

    def __call__(self, record: Mapping[str, float]) -> None:
        """Write every figure of a record."""
        seed = int(record["seed"])
        if seed not in self._writers:
            self._writers[seed] = self._make(str(self._folder / f"seed-{seed}"))
        for name, value in _figures(record).items():
            self._writers[seed].add_scalar(name, value, _step(record))

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()


class MLflow(Logger):
    """Metrics of the active MLflow run, by round (needs mlflow); of many seeds, with the seed before the name.

    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     tw.solve(problem, "acd", rounds=10, callbacks=[MLflow()])
    """

    def __init__(self) -> None:
        self._mlflow = require("mlflow", "track.MLflow", "track")
        self._seeds: dict[int, None] = {}

    def __call__(self, record: Mapping[str, float]) -> None:
        """Log every figure of a record."""
        self._seeds[int(record["seed"])] = None
        first = next(iter(self._seeds)) == record["seed"]
        before = "" if first else f"seed-{int(record['seed'])}/"
        self._mlflow.log_metrics({before + name: value for name, value in _figures(record).items()}, step=_step(record))


def _figures(record: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in record.items() if name not in COUNTS}


def _step(record: Mapping[str, float]) -> int:
    """The round; where nothing is communicated, the iteration."""
    return int(record["round"] or record["iteration"])
