"""What a run leaves behind: Result, History, Ledger; saved as safetensors and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from twofold.errors import InputError, NotFound
from twofold.extras import require
from twofold.tree import Pytree

FORMAT = 1
MODEL, RESULT, RESULTS = "model.safetensors", "result.json", "results.json"


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What a run cost: communication per client, and single-row gradient evaluations.

    Every client sends and receives the same amount: it sends its message, and receives the mean of all messages.
    """

    rounds: int
    iterations: int
    floats_up: int
    floats_down: int
    bytes_up: int
    bytes_down: int
    gradients_w: np.ndarray
    gradients_beta: np.ndarray

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)))

    def __str__(self) -> str:
        return (
            f"{self.rounds:,} rounds in {self.iterations:,} iterations; per client {self.bytes_up:,} bytes up and "
            f"{self.bytes_down:,} down; {self.gradients_w.mean():,.0f} ∇w and {self.gradients_beta.mean():,.0f} ∇β "
            "single-row evaluations a client"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in dataclasses.asdict(self).items()}


class History(Mapping[str, np.ndarray]):
    """Columns by name, one row per record: `round`, `iteration`, `bytes`, `gradients_w`, `gradients_beta`, your metrics."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise NotFound(f"The history has no column {name!r}; it has {', '.join(self._columns)}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        records = len(next(iter(self._columns.values()), ()))
        return f"History({records} records of {', '.join(self._columns)})"

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame (needs pandas)."""
        pd = require("pandas", "A data frame", "sklearn")
        return pd.DataFrame(self._columns)


@dataclasses.dataclass(frozen=True)
class Result:
    """One run: real (unscaled) parameters, the course, the cost, and how it ended.

    `status` is "converged" (a tolerance or target was reached), "budget" (rounds, iterations or time ran out) or
    "diverged" (then `w` and `beta` are the last finite recorded iterate, and `message` says where and why).
    """

    w: Pytree
    beta: Pytree
    history: History
    ledger: Ledger
    status: str
    message: str
    algorithm: Any
    seed: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items() if len(values)}
        shown = ", ".join(f"{k}={v:.6g}" for k, v in last.items() if k not in ("seconds", "stage"))
        return f"Result({self.status}: {shown})"

    def save(self, folder: str | Path) -> Path:
        """Write `model.safetensors` and `result.json` into a folder."""
        from safetensors.numpy import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors, structures = {}, {}
        for block in ("w", "beta"):
            value = getattr(self, block)
            names = jax.tree_util.tree_map_with_path(lambda path, _, b=block: b + jax.tree_util.keystr(path), value)
            pairs = zip(jax.tree.leaves(names), jax.tree.leaves(value), strict=True)
            tensors |= {name: np.asarray(leaf, order="C") for name, leaf in pairs}
            structures[block] = _describe(names)
        save_file(tensors, folder / MODEL)
        document = {
            "format": FORMAT,
            "structure": structures,
            "status": self.status,
            "message": self.message,
            "seed": self.seed,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "algorithm": _algorithm(self.algorithm),
            "ledger": self.ledger.as_dict(),
            "history": {name: [_plain(v) for v in values.tolist()] for name, values in self.history.items()},
        }
        (folder / RESULT).write_text(json.dumps(document, indent=1))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read what `save` wrote; the algorithm comes back as a dict of its settings."""
        from safetensors.numpy import load_file

        folder = Path(folder)
        document = json.loads((folder / RESULT).read_text())
        if document.get("format") != FORMAT:
            raise InputError(f"{folder / RESULT} has format {document.get('format')!r}; this version reads {FORMAT}.")
        tensors = load_file(folder / MODEL)
        ledger: dict[str, Any] = {k: np.asarray(v) if isinstance(v, list) else v for k, v in document["ledger"].items()}
        history = {k: np.array([np.nan if v is None else v for v in vs]) for k, vs in document["history"].items()}
        return cls(
            w=_rebuild(document["structure"]["w"], tensors),
            beta=_rebuild(document["structure"]["beta"], tensors),
            history=History(history),
            ledger=Ledger(**ledger),
            algorithm=document["algorithm"],
            notes=tuple(document["notes"]),
            **{name: document[name] for name in ("status", "message", "seed", "seconds")},
        )


class Results(Sequence[Result]):
    """The runs of several seeds."""

    def __init__(self, runs: Sequence[Result]) -> None:
        self.runs = tuple(runs)

    def __getitem__(self, i: Any) -> Any:
        return Results(self.runs[i]) if isinstance(i, slice) else self.runs[i]

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        ends = {
            status: sum(run.status == status for run in self.runs) for status in ("converged", "budget", "diverged")
        }
        return f"Results({len(self)} seeds: {', '.join(f'{n} {status}' for status, n in ends.items() if n)})"

    def column(self, name: str) -> np.ndarray:
        """One column of every seed's history: (seeds, records). Seeds that stopped early are padded with NaN."""
        columns = [np.asarray(run.history[name], float) for run in self.runs]
        out = np.full((len(columns), max(map(len, columns))), np.nan)
        for row, values in zip(out, columns, strict=True):
            row[: len(values)] = values
        return out

    def save(self, folder: str | Path) -> Path:
        """Write every run into a folder of its own, `seed-0`, `seed-1`, …, and `results.json`, which lists the seeds.

        Runs of other seeds that an earlier `save` has left in the folder are deleted.

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
            raise InputError(f"Two runs of one seed cannot be saved in one folder; the seeds are {seeds}.")
        for run in self.runs:
            run.save(_seed_folder(folder, run.seed))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS).write_text(json.dumps({"format": FORMAT, "seeds": seeds}, indent=1))
        delete_other_seeds(folder, seeds)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """Read what `save` wrote, in the order in which the runs were saved."""
        path = Path(folder) / RESULTS
        if not path.is_file():
            raise InputError(
                f"There is no {path}: Results.load reads what Results.save wrote; for one run use Result.load."
            )
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise InputError(f"{path} has format {document.get('format')!r}; this version reads {FORMAT}.")
        return cls([Result.load(_seed_folder(Path(folder), seed)) for seed in document["seeds"]])

    def to_pandas(self) -> Any:
        """All histories below each other, with a column `seed` (needs pandas)."""
        pd = require("pandas", "A data frame", "sklearn")
        return pd.concat([run.history.to_pandas().assign(seed=run.seed) for run in self.runs], ignore_index=True)


def delete_other_seeds(folder: Path, seeds: Collection[int]) -> None:
    """Delete the runs in `seed-…` folders except those of `seeds`; whatever `Result.save` has not written stays."""
    kept = {_seed_folder(folder, seed) for seed in seeds}
    for old in set(folder.glob("seed-*")) - kept:
        if (old / RESULT).is_file():
            for name in (MODEL, RESULT):
                (old / name).unlink(missing_ok=True)
            with suppress(OSError):  # something of the user's own is in it
                old.rmdir()


def _seed_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _algorithm(algorithm: Any) -> dict[str, Any]:
    if isinstance(algorithm, dict):
        return algorithm
    fields = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
    return {"name": algorithm.name} | {
        k: v if isinstance(v, (str, bool, int, type(None))) else float(v) if not callable(v) else repr(v)
        for k, v in fields.items()
    }


def _describe(names: Pytree) -> Any:
    """A JSON skeleton of a pytree whose leaves are the tensors' names; None stays None."""
    if names is None or isinstance(names, str):
        return names
    if isinstance(names, Mapping):
        return {
            "dict": [[key, _describe(value)] for key, value in names.items()]
        }  # pairs: JSON's keys are only strings
    if isinstance(names, (list, tuple)):
        return {"list" if isinstance(names, list) else "tuple": [_describe(value) for value in names]}
    return {"tuple": jax.tree.leaves(names)}  # another kind of node (a module of some library): its leaves, in order


def _rebuild(skeleton: Any, tensors: Mapping[str, np.ndarray]) -> Pytree:
    if not isinstance(skeleton, dict):
        return None if skeleton is None else tensors[skeleton]
    ((kind, inside),) = skeleton.items()
    if kind == "dict":
        return {key: _rebuild(value, tensors) for key, value in inside}
    return (list if kind == "list" else tuple)(_rebuild(v, tensors) for v in inside)
