"""A checked file, and what it describes: the clients' rows, the problem, the method, and the runs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import tomli_w

from twofold.clients import Clients
from twofold.config.mistakes import ConfigError
from twofold.config.sections import (
    AlgorithmSection,
    DataSection,
    LossSection,
    Method,
    ObjectiveSection,
    Output,
    PartitionSection,
    Record,
    RunSection,
    Stop,
)
from twofold.data import Dataset, OptionError, normalise
from twofold.errors import InputError
from twofold.evaluate.scoring import Metric
from twofold.problem import Problem
from twofold.result import Results
from twofold.solver import solve
from twofold.tables import Schema
from twofold.tree import Pytree

__all__ = ["Budget", "Built", "Config"]

DEFAULT_ROUNDS = 1000
Weights = Literal["rows"] | None


class Built(NamedTuple):
    """What a file describes: the problem, the method as far as it is set, the clients' rows, and their provenance."""

    problem: Problem
    algorithm: Method
    train: Clients
    test: Clients | None
    provenance: str


class Budget(TypedDict, total=False):
    """The stopping arguments of `solve`."""

    rounds: int
    iterations: int
    seconds: float
    target: float
    tol: float


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked file, section by section."""

    data: DataSection
    partition: PartitionSection
    loss: LossSection
    objective: ObjectiveSection
    algorithm: AlgorithmSection
    stop: Stop
    record: Record
    run: RunSection
    output: Output
    name: str
    home: Path
    document: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        """The configuration as TOML, with overrides applied and the data's paths made absolute, so that it runs from anywhere."""
        document = {section: dict(table) for section, table in self.document.items()}
        for key in self.data.paths():
            if key in document["data"]:
                document["data"][key] = str(self.home / Path(document["data"][key]).expanduser())
        return tomli_w.dumps(document)

    @property
    def seeds(self) -> list[int]:
        """The seeds to run."""
        if self.run.seeds is None:
            return [self.run.seed or 0]
        return list(range(self.run.seeds)) if isinstance(self.run.seeds, int) else self.run.seeds

    @property
    def several(self) -> bool:
        """Whether the file gives `seeds`, even if there is only one: each seed then gets its own folder."""
        return self.run.seeds is not None

    @property
    def folder(self) -> Path:
        """The folder that the results are written to."""
        return Path(self.output.folder or Path("runs") / self.name).expanduser()

    @property
    def checkpoints(self) -> Path | None:
        """The folder for checkpoints; None if the file asks for none."""
        wanted = self.run.checkpoint_every is not None if self.run.checkpoint is None else self.run.checkpoint
        return self.folder / "checkpoints" if wanted else None

    @property
    def budget(self) -> Budget:
        """The stopping arguments for `solve`."""
        given: Any = {key: value for key, value in self.stop if value is not None}
        return given or ({} if self.algorithm.build() == "auto" else {"rounds": DEFAULT_ROUNDS})

    def build(self) -> Built:
        """Load the data, split it between clients, and build the problem."""
        train, test, provenance = _clients(self)
        objective = self.objective.build(self.loss.build(_classes(train, test)))
        try:
            problem = Problem(objective, train, **self.objective.variables, feature_dtype=self.run.feature_dtype)
        except InputError as mistake:
            raise ConfigError(
                [f'loss.name = "{self.loss.registered.name}" does not fit: {mistake}.'], self.name
            ) from mistake
        if self.output.metric is not None:
            try:
                Metric.named(self.output.metric, getattr(objective, "loss", None))
            except InputError as mistake:
                raise ConfigError([f'output.metric = "{self.output.metric}": {mistake}'], self.name) from mistake
        return Built(problem, self.algorithm.build(), train, test, provenance)

    def solve(self, built: Built, progress: bool | None = None) -> Results:
        """Solve the problem for all seeds at once; if there are checkpoints of the same run, continue from the last one."""
        every = None if self.checkpoints is None else self.run.checkpoint_every
        return solve(
            built.problem, built.algorithm, seeds=self.seeds, record=tuple(self.record.metrics), every=self.record.every,
            engine=self.run.engine, chunk=self.run.chunk, state=self.run.state, participation=self.run.participation,
            cost=self.run.cost, checkpoint=self.checkpoints, checkpoint_every=every, progress=progress, **self.budget,
        )  # fmt: skip


def _classes(train: Clients, test: Clients | None) -> int:
    """The number of classes if the targets are 0, 1, 2, …; at least two."""
    targets = [clients.y for clients in (train, test) if clients is not None]
    if any(np.ndim(y) != 1 for y in targets):
        return 2
    largest = max(float(np.max(y)) for y in targets)
    return max(int(largest) + 1, 2) if np.isfinite(largest) else 2


def _clients(config: Config) -> tuple[Clients, Clients | None, str]:
    """The clients' training and test rows, and a sentence or two on their provenance."""
    how = config.data.normalise
    try:
        data = config.data.load(config.home)
        if how == "paper":  # the paper normalises each data set as a whole, before it is split between clients
            data = dataclasses.replace(data, x=normalise.paper(data.x))
        if how != "none" and data.schema is not None:  # its columns are not what the model is trained on
            data = dataclasses.replace(data, schema=Schema(classes=data.schema.classes))
        train, test, dealing = _with_owners(config, data) if config.data.owned else _dealt_out(config, data)
    except OptionError as mistake:
        raise ConfigError([f"data.{option}: {s}" for option, s in mistake.sentences.items()], config.name) from mistake
    except InputError as mistake:
        raise ConfigError([f"data and partition: {str(mistake).rstrip('.')}."], config.name) from mistake
    if how in LATER:
        reference, change = train.x, LATER[how]

        def changed(x: Pytree, y: Pytree) -> tuple[Pytree, Pytree]:
            return change(x, reference), y

        train, test = train.map(changed), None if test is None else test.map(changed)
    features = "" if how == "none" else f" Features are normalised: {how}."
    return train, test, f"{data.provenance} {dealing[:1].upper()}{dealing[1:]}.{features}"


LATER: dict[str, Callable[[Pytree, Pytree], Pytree]] = {
    "standardise": normalise.standardise,
    "unit-rows": lambda x, reference: normalise.unit_rows(x),
}
"""Normalisations that use only the training rows, and therefore come after the split into training and test rows."""


def _with_owners(config: Config, data: Dataset) -> tuple[Clients, Clients | None, str]:
    """Clients from data that name each row's client; a share of each client's rows is held out."""
    assert data.owner is not None  # a source with `owned` always returns owners
    clients = Clients.from_groups(data.x, data.y, data.owner, weights=_weights(config), schema=data.schema)
    given: dict[str, Any] = {"test": 0.2, "seed": 0} | config.partition.given()
    if given["test"] == 0:
        return clients, None, "nothing is held out"
    train, test = clients.split(given["test"], seed=given["seed"])
    return train, test, f"{100 * given['test']:g} % of each client's rows are held out"


def _dealt_out(config: Config, data: Dataset) -> tuple[Clients, Clients | None, str]:
    """Clients from data without owners, whose rows the partitioner divides."""
    deal = config.partition.registered.factory
    wants_rows = next(iter(inspect.signature(deal).parameters)) == "n_rows"
    parts = deal(len(data.y) if wants_rows else data.y, **config.partition.given())
    mine, held_out = parts.take(data.x, data.y)
    weights = _weights(config)

    def made(pairs: Sequence[tuple[Pytree, Pytree]]) -> Clients:
        return dataclasses.replace(Clients.from_list(pairs, names=parts.names, weights=weights), schema=data.schema)

    train = made(mine)
    test = made(held_out) if all(len(rows) for rows in parts.test) else None
    return train, test, parts.description


def _weights(config: Config) -> Weights:
    return "rows" if config.partition.weights == "rows" else None
