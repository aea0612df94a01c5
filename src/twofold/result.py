"""The outcome of a run: Result, History and Ledger, which are saved as safetensors and JSON."""
# JAX and safetensors leave parts of their signatures untyped, and pandas comes without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, overload

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import storage
from twofold.errors import InputError, NotFound
from twofold.exports import WIDTH, FilePath, Table, latex, write_csv, write_parquet
from twofold.extras import require
from twofold.model.base import Model
from twofold.model.files import DOCUMENT, document_of
from twofold.model.files import TENSORS as MODEL
from twofold.tree import Pytree

if TYPE_CHECKING:
    from pandas import DataFrame

    from twofold.problem import Problem

__all__ = ["FORMAT", "Best", "History", "Ledger", "Result", "Results", "Status", "frame"]

FORMAT = 1
"""The version of the files that `Result.save` writes."""
RESULT, RESULTS = "result.json", "results.json"
SUMS = ("round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds")
"""Columns of a history that count what a run has done so far."""

Status: TypeAlias = Literal["converged", "budget", "diverged", "interrupted"]
"""The ways in which a run can end."""
_STATUSES: tuple[Status, ...] = ("converged", "budget", "diverged", "interrupted")
_ALWAYS = ("rounds", "iterations", "bytes_up", "bytes_down")
SHOWN = 10
"""Records at either end of a history that a notebook shows."""
_Column: TypeAlias = NDArray[Any]  # integers or floats, depending on the metric


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The cost of a run: each client's communication, and how many single-row gradients it evaluated.

    Floats and bytes are counted per client. Each client sends its message and receives the mean of all messages, so all send and
    receive the same amount, and these entries are single numbers. With `participation` they differ, and there is one number per
    client: what it sent and received in its own rounds, plus the shared state that it downloads when it comes back.
    `gradients_w` and `gradients_beta` have one entry per client. Ledgers of successive runs can be added.

    A real federation adds how many numbers each client reported besides its messages (`reported`), the bytes that actually
    went over the wire (`wire_up`, `wire_down`) and, with noise for differential privacy, the largest ε of any client.

    >>> import numpy as np
    >>> from twofold import Ledger
    >>> one = Ledger(1, 4, 10, 10, 80, 80, gradients_w=np.array([8, 6]), gradients_beta=np.array([24, 18]))
    >>> (one + one).rounds
    2
    >>> print(one)
    1 rounds in 4 iterations; per client 80 bytes up and 80 down; 7 ∇w and 21 ∇β
    single-row evaluations a client
    """

    rounds: int
    iterations: int
    floats_up: int | NDArray[np.integer]
    floats_down: int | NDArray[np.integer]
    bytes_up: int | NDArray[np.integer]
    bytes_down: int | NDArray[np.integer]
    gradients_w: NDArray[np.integer]
    gradients_beta: NDArray[np.integer]
    reported: int | NDArray[np.integer] = 0
    wire_up: int | NDArray[np.integer] = 0
    wire_down: int | NDArray[np.integer] = 0
    epsilon: float = 0.0

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)))

    def __str__(self) -> str:
        text = (
            f"{self.rounds:,} rounds in {self.iterations:,} iterations; per client {np.mean(self.bytes_up):,.0f} bytes up and "
            f"{np.mean(self.bytes_down):,.0f} down; {self.gradients_w.mean():,.0f} ∇w and {self.gradients_beta.mean():,.0f} ∇β "
            "single-row evaluations a client"
        )
        return textwrap.fill(text, WIDTH)

    def _repr_html_(self) -> str:
        """The table that a notebook shows: every entry, as its mean over clients where these differ."""
        entries = {name: float(np.mean(np.asarray(value, np.float64))) for name, value in self.as_dict().items()}
        rows = [
            [name.replace("_", " "), f"{value:,.6g}"] for name, value in entries.items() if value or name in _ALWAYS
        ]
        return Table("twofold.Ledger, per client", ["", "number"], rows).to_html()

    @property
    def bytes_per_client(self) -> float:
        """Bytes sent plus bytes received per client; the mean over clients if these differ."""
        return float(np.mean(self.bytes_up) + np.mean(self.bytes_down))

    def as_dict(self) -> dict[str, int | list[int]]:
        """All entries as plain numbers and lists.

        >>> none = np.zeros(2, int)
        >>> Ledger(1, 4, 10, 10, 80, 80, none, none).as_dict()["gradients_w"]
        [0, 0]
        """
        entries = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in entries.items()}


class History(Mapping[str, _Column]):
    """The course of a run: columns by name, with one row per record.

    There is always `round`, `iteration`, `bytes`, `gradients_w`, `gradients_beta` and `seconds`, and one column for each
    recorded metric. `seconds` is the time from the start of the run until the record's iterations were done. If records are only
    a few milliseconds apart, reading the clock at each would slow the run down; it is then read about every 30 ms and
    interpolated in between. With `callbacks=` it is read at every record.

    >>> from twofold import History
    >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
    >>> history["loss"][-1]
    np.float64(0.5)
    >>> history
    History(2 records of round, loss)
    """

    def __init__(self, columns: Mapping[str, ArrayLike]) -> None:
        self._columns: dict[str, _Column] = {name: np.asarray(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> _Column:
        if name not in self._columns:
            raise NotFound(f"The history has no column {name!r}; it has {', '.join(self._columns)}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        records = len(next(iter(self._columns.values()), ()))
        return textwrap.fill(f"History({records} records of {', '.join(self._columns)})", WIDTH, subsequent_indent="  ")

    def _repr_html_(self) -> str:
        """The table that a notebook shows: the first records and the last."""
        lines = list(
            zip(*([_short(value) for value in column.tolist()] for column in self._columns.values()), strict=True)
        )
        gap = [["…"] * len(self._columns)] if len(lines) > 2 * SHOWN else []
        rows = [*lines[:SHOWN], *gap, *lines[-SHOWN:]] if gap else lines
        return Table(f"twofold.History, {len(lines)} records", list(self._columns), rows).to_html()

    def then(self, later: History) -> History:
        """Both courses, one after the other, with a column that says which `stage` a record belongs to.

        What a run counts (rounds, bytes, seconds, …) goes on from where this course ended; a column that only one of them has is NaN
        in the other.

        >>> both = History({"round": [0, 2], "loss": [0.7, 0.5]}).then(History({"round": [1], "loss": [0.4]}))
        >>> both["round"].tolist(), both["loss"].tolist(), both["stage"].tolist()
        ([0, 2, 3], [0.7, 0.5, 0.4], [1, 1, 2])
        """
        records, new = (len(next(iter(course.values()), ())) for course in (self, later))
        columns: dict[str, _Column] = {}
        for name in dict.fromkeys([*later, *self]):
            before = self[name] if name in self else np.full(records, np.nan)
            after = later[name] if name in later else np.full(new, np.nan)
            columns[name] = np.concatenate([before, after + before[-1]] if name in SUMS else [before, after])
        stage = self["stage"] if "stage" in self else np.ones(records, int)
        return History({**columns, "stage": np.concatenate([stage, np.full(new, stage[-1] + 1)])})

    def to_pandas(self) -> DataFrame:
        """The columns as a pandas DataFrame (needs pandas).

        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> history.to_pandas().loss.tolist()
        [0.7, 0.5]
        """
        return frame("History.to_pandas", self._columns)

    def to_csv(self, path: FilePath) -> Path:
        """Write the columns as CSV, one line per record, and return the path.

        >>> import tempfile
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> history.to_csv(Path(tempfile.mkdtemp()) / "run.csv").read_text().split()
        ['round,loss', '0,0.7', '1,0.5']
        """
        return write_csv(path, self._columns)

    def to_parquet(self, path: FilePath) -> Path:
        """Write the columns as Parquet (needs pyarrow), and return the path.

        >>> import tempfile
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> history.to_parquet(Path(tempfile.mkdtemp()) / "run.parquet").name
        'run.parquet'
        """
        return write_parquet(path, self._columns)

    def to_latex(self) -> str:
        """The records as a LaTeX table (package booktabs).

        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> history.to_latex().splitlines()[2]
        'round & loss \\\\\\\\'
        """
        columns = [[_short(value) for value in values.tolist()] for values in self._columns.values()]
        return latex([name.replace("_", " ") for name in self._columns], list(zip(*columns, strict=True)))


class Best(NamedTuple):
    """The best round of a run that was evaluated on held-out rows: its number, the column and value it won by, and its models.

    >>> from twofold import Best
    >>> Best(round=40, column="test_accuracy", value=0.97, w=(), beta=())
    Best(round=40, column='test_accuracy', value=0.97, w=…, beta=…)
    """

    round: int
    column: str
    value: float
    w: Pytree
    beta: Pytree

    def __repr__(self) -> str:
        return f"Best(round={self.round}, column={self.column!r}, value={self.value:.6g}, w=…, beta=…)"


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of one run: its real (unscaled) parameters, its history, its cost, and how it ended.

    `status` is "converged" (a tolerance or target was reached), "budget" (rounds, iterations or time ran out),
    "diverged" (`w` and `beta` are then the last finite recorded iterate, and `message` says where and why) or
    "interrupted" (by the user; `w` and `beta` are the last recorded iterate). `beta` has a leading client axis.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> result = tw.solve(tw.Problem(objective, tw.Clients.from_list(made.clients)), "acd", rounds=3)
    >>> result.status, result.ledger.rounds, result.beta.shape
    ('budget', 3, (3, 2))
    >>> bool(result.history["loss"][-1] < result.history["loss"][0])
    True
    """

    w: Pytree
    beta: Pytree
    history: History
    ledger: Ledger
    status: Status
    message: str
    algorithm: Any  # the Algorithm, with theory's numbers in its fields; in a loaded result, a dict of those fields
    seed: int
    seconds: float
    notes: tuple[str, ...] = ()
    best: Best | None = dataclasses.field(default=None, repr=False)
    """The round with the best score on the held-out rows (`solve(..., validation=)` or `test=`); `w` and `beta` are the last."""
    problem: Problem | None = dataclasses.field(default=None, repr=False, compare=False)
    """The problem that was solved; `save` needs it to make the model. None in a loaded result."""

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items() if len(values)}
        shown = ", ".join(f"{k}={v:.6g}" for k, v in last.items() if k not in ("seconds", "stage"))
        return f"Result({self.status}: {shown})"

    @property
    def settings(self) -> dict[str, Any]:
        """The algorithm's name and fields, in a form that JSON can hold."""
        return _settings(self.algorithm)

    def at_best(self) -> Result:
        """This run with the models of its best round in place of its last.

        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> best = Best(round=0, column="test_loss", value=0.4, w=np.zeros(2), beta=())
        >>> dataclasses.replace(run, best=best).at_best().w.tolist()
        [0.0, 0.0]
        """
        if self.best is None:
            raise InputError(
                "This run has no best round, since it was not evaluated on held-out rows: say solve(..., validation=clients) "
                "or test=clients."
            )
        return dataclasses.replace(self, w=self.best.w, beta=self.best.beta)

    def save(self, folder: str | Path) -> Path:
        """Write the run and its model into a folder: `result.json`, `model.json` and `model.safetensors`.

        Files that an earlier `save` left there, of one run or of several seeds, are replaced. `Result.load` reads the run with its
        history and cost; `tw.load` reads the model, which predicts. A loaded result no longer knows its problem, so it writes no
        `model.json`; `tw.Model.of(problem, result).save(folder)` does.

        >>> import tempfile
        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2, names=["north", "south"])
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=1.0), clients)
        >>> folder = tw.solve(problem, "lsgd", rounds=2).save(tempfile.mkdtemp())
        >>> tw.Result.load(folder).ledger.rounds, tw.load(folder).names
        (2, ('north', 'south'))
        """
        folder = storage.made(folder)
        if (folder / RESULTS).is_file():  # of several seeds
            (folder / RESULTS).unlink()
            delete_other_seeds(folder, ())
        (w, of_w), (beta, of_beta) = (storage.pack(block, getattr(self, block)) for block in ("w", "beta"))
        tensors = w | beta
        if self.problem is None:
            (folder / DOCUMENT).unlink(missing_ok=True)  # of another run
        else:
            described, others = document_of(Model.of(self.problem, self))
            tensors = others | tensors
            storage.write_json(folder / DOCUMENT, described)
        storage.write_tensors(folder / MODEL, tensors)
        document = {
            "format": FORMAT,
            "structure": {"w": of_w, "beta": of_beta},
            "status": self.status,
            "message": self.message,
            "seed": self.seed,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "algorithm": self.settings,
            "ledger": self.ledger.as_dict(),
            "history": {name: [_plain(v) for v in values.tolist()] for name, values in self.history.items()},
        }
        (folder / RESULT).write_text(json.dumps(document, indent=1))
        return folder

    @classmethod
    def load(cls, folder: str | Path, problem: Problem | None = None) -> Result:
        """Read what `save` wrote; the algorithm comes back as a dict of its fields.

        If the parameters are modules of another library (Equinox, for example), they come back as a tuple of their arrays, and
        `notes` says so; pass their `problem` to get the modules back.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> folder = run.save(tempfile.mkdtemp())
        >>> Result.load(folder).w.tolist()
        [1.0, 1.0]
        """
        folder = Path(folder)
        document = storage.read_json(folder / RESULT)
        if document.get("format") != FORMAT:
            raise InputError(f"{folder / RESULT} has format {document.get('format')!r}; this version reads {FORMAT}.")
        tensors = storage.read_tensors(folder / MODEL)
        costs: dict[str, int | list[int]] = document["ledger"]
        ledger: dict[str, Any] = {name: np.asarray(v) if isinstance(v, list) else v for name, v in costs.items()}
        stored: dict[str, list[float | None]] = document["history"]
        history = {name: np.array([np.nan if v is None else v for v in values]) for name, values in stored.items()}
        blocks, notes = _parameters(folder, document["structure"], tensors, problem)
        return cls(
            w=blocks[0],
            beta=blocks[1],
            history=History(history),
            ledger=Ledger(**ledger),
            algorithm=document["algorithm"],
            notes=(*document["notes"], *notes),
            problem=problem,
            **{name: document[name] for name in ("status", "message", "seed", "seconds")},
        )

    def _said(self) -> dict[str, str]:
        """How the run ended, what it cost, and its last record, as texts by name."""
        last = {name: values[-1] for name, values in self.history.items() if len(values)}
        return {
            "status": f"{self.status}: {self.message}" if self.message else self.status,
            "algorithm": self.settings["name"],
            "seed": str(self.seed),
            "cost": str(self.ledger),
            "seconds": f"{self.seconds:.3g}",
            **{
                name: f"{value:.6g}"
                for name, value in last.items()
                if name not in ("seconds", "stage", "round", "iteration")
            },
            **({"notes": " ".join(self.notes)} if self.notes else {}),
        }

    def _table(self) -> Table:
        return Table(
            "twofold.Result", ["", "value"], [[name, text] for name, text in self._said().items()], left=("value",)
        )

    def _repr_html_(self) -> str:
        """The table that a notebook shows: how the run ended, what it cost, and its last record."""
        return self._table().to_html()

    def __str__(self) -> str:
        return str(self._table())

    def to_csv(self, path: FilePath) -> Path:
        """Write the run's history as CSV, as `result.history.to_csv` does, and return the path.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> run.to_csv(Path(tempfile.mkdtemp()) / "run.csv").read_text().split()
        ['round,loss', '0,0.7', '1,0.5']
        """
        return self.history.to_csv(path)

    def to_parquet(self, path: FilePath) -> Path:
        """Write the run's history as Parquet (needs pyarrow), as `result.history.to_parquet` does, and return the path.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> run.to_parquet(Path(tempfile.mkdtemp()) / "run.parquet").name
        'run.parquet'
        """
        return self.history.to_parquet(path)

    def to_latex(self, path: FilePath | None = None) -> str:
        """A LaTeX table of how the run ended, what it cost, and its last record; written to `path` if one is given.

        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> "lsgd" in run.to_latex()
        True
        """
        return self._table().to_latex(path)


class Results(Sequence[Result]):
    """The runs of several seeds, in the order of the seeds.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
    >>> results = tw.Results([tw.solve(problem, "acd", rounds=3, seed=seed) for seed in (0, 1)])
    >>> results
    Results(2 seeds: 2 budget)
    >>> results.column("loss").shape
    (2, 4)
    """

    def __init__(self, runs: Sequence[Result]) -> None:
        self.runs = tuple(runs)

    @overload
    def __getitem__(self, i: int) -> Result: ...
    @overload
    def __getitem__(self, i: slice) -> Results: ...
    def __getitem__(self, i: int | slice) -> Result | Results:
        return Results(self.runs[i]) if isinstance(i, slice) else self.runs[i]

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        ends = {status: sum(run.status == status for run in self.runs) for status in _STATUSES}
        return f"Results({len(self)} seeds: {', '.join(f'{n} {status}' for status, n in ends.items() if n)})"

    def column(self, name: str) -> NDArray[np.float64]:
        """One column of every seed's history: (seeds, records). Seeds that stopped early are padded with NaN.

        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> Results([run, run]).column("loss").tolist()
        [[0.7, 0.5], [0.7, 0.5]]
        """
        columns = [np.asarray(run.history[name], float) for run in self.runs]
        out = np.full((len(columns), max(map(len, columns))), np.nan)
        for row, values in zip(out, columns, strict=True):
            row[: len(values)] = values
        return out

    def save(self, folder: str | Path) -> Path:
        """Write each run into its own folder, `seed-0`, `seed-1`, …, and a `results.json` that lists the seeds.

        Files that an earlier `save` left in the folder, of one run or of other seeds, are deleted.

        >>> import tempfile
        >>> import twofold as tw
        >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2)
        >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=1.0), clients)
        >>> folder = tw.solve(problem, "lsgd", rounds=2, seeds=[3, 4]).save(tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['results.json', 'seed-3', 'seed-4']
        >>> [result.seed for result in Results.load(folder)]
        [3, 4]
        """
        folder = Path(folder)
        seeds = [run.seed for run in self.runs]
        if len(set(seeds)) < len(seeds):
            raise InputError(f"Two runs with the same seed cannot be saved in one folder; the seeds are {seeds}.")
        storage.made(folder)
        if (folder / RESULT).is_file():  # of one run
            for name in (RESULT, MODEL, DOCUMENT):
                (folder / name).unlink(missing_ok=True)
        for run in self.runs:
            run.save(_seed_folder(folder, run.seed))
        (folder / RESULTS).write_text(json.dumps({"format": FORMAT, "seeds": seeds}, indent=1))
        delete_other_seeds(folder, seeds)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """Read what `save` wrote; the runs keep their order.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> folder = Results([run, dataclasses.replace(run, seed=1)]).save(tempfile.mkdtemp())
        >>> [run.seed for run in Results.load(folder)]
        [0, 1]
        """
        path = Path(folder) / RESULTS
        if not path.is_file():
            raise InputError(
                f"There is no {path}: Results.load reads what Results.save wrote; for one run use Result.load."
            )
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise InputError(f"{path} has format {document.get('format')!r}; this version reads {FORMAT}.")
        return cls([Result.load(_seed_folder(Path(folder), seed)) for seed in document["seeds"]])

    def to_pandas(self) -> DataFrame:
        """All histories, concatenated into one DataFrame with a column `seed` (needs pandas).

        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> Results([run, run]).to_pandas().shape
        (4, 3)
        """
        return frame("Results.to_pandas", self._by_column())

    def to_csv(self, path: FilePath) -> Path:
        """Write all histories, concatenated with a column `seed`, as CSV, and return the path.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> Results([run]).to_csv(Path(tempfile.mkdtemp()) / "runs.csv").read_text().split()
        ['round,loss,seed', '0,0.7,0', '1,0.5,0']
        """
        return write_csv(path, self._by_column())

    def to_parquet(self, path: FilePath) -> Path:
        """Write all histories, concatenated with a column `seed`, as Parquet (needs pyarrow), and return the path.

        >>> import tempfile
        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> Results([run]).to_parquet(Path(tempfile.mkdtemp()) / "runs.parquet").name
        'runs.parquet'
        """
        return write_parquet(path, self._by_column())

    def to_latex(self) -> str:
        """A LaTeX table (package booktabs) of how each seed ended: status, rounds, bytes, metrics, seconds.

        >>> ledger = Ledger(1, 1, 2, 2, 16, 16, np.zeros(1, int), np.zeros(1, int))
        >>> history = History({"round": [0, 1], "loss": [0.7, 0.5]})
        >>> run = Result(np.ones(2), (), history, ledger, "budget", "", {"name": "lsgd"}, seed=0, seconds=0.1)
        >>> Results([run, run]).to_latex().count("budget")
        2
        """
        return self._table().to_latex()

    def _repr_html_(self) -> str:
        """The table that a notebook shows: how each seed ended."""
        return self._table().to_html()

    def __str__(self) -> str:
        return str(self._table())

    def _table(self) -> Table:
        if not self.runs:
            return Table("", ["seed", "status"], [])
        skipped = ("round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds", "stage")
        last = [name for name in self.runs[0].history if name not in skipped]
        rows = [
            [str(run.seed), run.status, f"{run.ledger.rounds:,}", f"{run.ledger.bytes_per_client:,.0f}",
             *(_short(float(run.history[name][-1])) for name in last), f"{run.seconds:.1f}"]
            for run in self.runs
        ]  # fmt: skip
        head = ["seed", "status", "rounds", "bytes per client", *(name.replace("_", " ") for name in last), "seconds"]
        return Table("", head, rows)

    def _by_column(self) -> dict[str, _Column]:
        """All histories, concatenated, with a column `seed`."""
        names = list(dict.fromkeys(name for run in self.runs for name in run.history))
        columns = {name: np.concatenate([_of_length(run, name) for run in self.runs]) for name in names}
        return {**columns, "seed": np.repeat([run.seed for run in self.runs], [_records(run) for run in self.runs])}


def delete_other_seeds(folder: Path, seeds: Collection[int]) -> None:
    """Delete the runs in `seed-…` folders except those of `seeds`; files that `Result.save` did not write stay."""
    kept = {_seed_folder(folder, seed) for seed in seeds}
    for old in set(folder.glob("seed-*")) - kept:
        if (old / RESULT).is_file():
            for name in (MODEL, DOCUMENT, RESULT):
                (old / name).unlink(missing_ok=True)
            with suppress(OSError):  # the folder also holds files of the user's
                old.rmdir()


def _seed_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def frame(what: str, columns: Mapping[str, Sequence[object] | NDArray[Any]]) -> DataFrame:
    """Make a pandas DataFrame; without pandas, say what to install.

    >>> from twofold.result import frame
    >>> list(frame("this example", {"client": ["ann", "bob"], "rows": [3, 4]}).columns)
    ['client', 'rows']
    """
    return require("pandas", what, "sklearn").DataFrame(dict(columns))


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _records(run: Result) -> int:
    return len(next(iter(run.history.values()), ()))


def _of_length(run: Result, name: str) -> _Column:
    """One column of a run's history; all NaN if this run has no such column."""
    return run.history[name] if name in run.history else np.full(_records(run), np.nan)


# --- files ------------------------------------------------------------------------------------------------------------


def _parameters(
    folder: Path,
    structure: Mapping[str, storage.Skeleton],
    tensors: Mapping[str, NDArray[Any]],
    problem: Problem | None,
) -> tuple[list[Pytree], list[str]]:
    """The saved w and β, and a note if restoring their type needs a problem that was not given."""
    skeletons = [structure[block] for block in ("w", "beta")]
    found = [storage.rebuild(skeleton, tensors) for skeleton in skeletons]
    kinds = sorted({kind for skeleton in skeletons for kind in storage.modules(skeleton)})
    if problem is not None:
        wanted: Any = jax.tree.structure(problem.host_start)
        leaves = jax.tree.leaves(found)
        if wanted.num_leaves != len(leaves):
            raise InputError(
                f"{folder} has parameters of {len(leaves)} arrays, but the problem's have {wanted.num_leaves}."
            )
        found = list(jax.tree.unflatten(wanted, leaves))
        problem.check(*found)
        return found, []
    if not kinds:
        return found, []
    return found, [
        f"The parameters are {', '.join(kinds)} modules, which no file can hold: w and beta are tuples of their arrays. "
        "Result.load(folder, problem) restores the modules."
    ]


def _plain(value: float) -> float | None:
    """A number, or None for NaN and infinity, which JSON cannot hold."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _settings(algorithm: Any) -> dict[str, Any]:
    """An algorithm's name and fields, in a form that JSON can hold."""
    if isinstance(algorithm, dict):
        return cast(dict[str, Any], algorithm)
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}

    def plain(value: Any) -> str | bool | int | float | list[float] | None:
        if isinstance(value, (str, bool, int, type(None))):
            return value
        return repr(value) if callable(value) else np.asarray(value, np.float64).tolist()

    return {"name": algorithm.name} | {name: plain(value) for name, value in values.items()}
