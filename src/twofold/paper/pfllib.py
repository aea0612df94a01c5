"""PFLlib's table again: its CNN on Fashion-MNIST and MNIST, 20 clients, thirteen methods, at settings written here.

`run` trains every (data, split, method, seed) and writes one JSON for each as soon as it is done. What is there with the same settings
is not run again, so an interrupted run goes on where it stopped, and `pfllib_page` makes the page from whatever is there.
"""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import twofold as tw
from twofold.errors import InputError, choose_from
from twofold.extras import require
from twofold.paper import pfllib_data, pfllib_page
from twofold.paper.pfllib_data import DATA, SPLITS, Pack
from twofold.paper.pfllib_page import Cell

__all__ = ["COMMON", "HEAD", "METHODS", "PUBLISHED", "QUICK", "Plan", "cnn", "everything", "packs", "run", "train"]

TITLE = "PFLlib's table: a CNN on Fashion-MNIST and MNIST, 20 clients, thirteen methods"
HEAD = "Dense_1"
"""The last layer of the CNN, which heads of methods are."""
COMMON: dict[str, Any] = {"lr": 0.005, "batch": 10, "epochs": 1, "drop_last": True}
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "finetuned": {"finetune_epochs": 5},
    "fedprox": {"prox": 0.001},
    "scaffold": {},
    "per_fedavg": {"alpha": 0.01},
    "pfedme": {"lam": 50.0, "delta": 3.0, "inner_lr": 0.01, "inner_steps": 5},
    "ditto": {"lam": 0.1},
    "apfl": {"alpha": 0.5, "lr_beta": 0.02},
    "fedper": {"head": HEAD},
    "lg_fedavg": {"head": HEAD},
    "fedrep": {"head": HEAD, "head_epochs": 1},
    "fedbabu": {"head": HEAD, "finetune_epochs": 5},
}
"""The settings of each method beside the common ones, the same on both data sets and both splits: the defaults of `tw.methods`, but for

drop_last=True among the common ones, which leaves out a shorter last batch, as PFLlib does; pFedMe, whose server goes δ = 3 times
as far as the mean, as PFLlib's author advises, and whose λ is 50 for 15: a personal model is a step of 1/λ on one batch of ten rows
away from w_m, and 1/15 is thirteen times the learning rate; and APFL, whose own model learns from the blend at (1−α)² of its rate:
`lr_beta` = lr/(1−α)² undoes that.
"""
PUBLISHED = pfllib_page.PUBLISHED


@dataclass(frozen=True)
class Plan:
    """What to run: all of it by default.

    >>> len(list(Plan(data=("fmnist",), methods=("fedavg", "local"), seeds=2).cells()))
    8
    """

    data: tuple[str, ...] = tuple(DATA)
    splits: tuple[str, ...] = SPLITS
    methods: tuple[str, ...] = tuple(METHODS)
    rounds: int = 2000
    seeds: int = 3
    every: int = 10
    rows: int | None = None  # of each client at most so many
    seconds: float | None = None  # for each cell; what it has by then is written

    def __post_init__(self) -> None:
        known: dict[str, Sequence[str]] = {"data": list(DATA), "splits": SPLITS, "methods": list(METHODS)}
        for field, names in known.items():
            for name in getattr(self, field):
                if name not in names:
                    raise InputError(choose_from(f"There is no {name!r} among the {field} of pfllib", name, names))
        for field in ("rounds", "seeds", "every"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {field}={getattr(self, field)}.")

    def cells(self) -> list[tuple[str, str, str, int]]:
        """Data, split, method and seed of all that is to be run: all methods with the first seed first."""
        return [
            (data, split, method, seed)
            for data in self.data
            for split in self.splits
            for seed in range(self.seeds)
            for method in self.methods
        ]

    def settings(self, method: str) -> dict[str, Any]:
        """All that the figures of a cell depend on."""
        asked = {name: asdict(self)[name] for name in ("rounds", "every", "rows", "seconds")}
        return {**COMMON, **METHODS[method], **asked}


QUICK = Plan(("fmnist",), ("dirichlet",), ("local", "fedavg", "fedper", "ditto"), rounds=5, seeds=1, every=1, rows=200)
"""A smoke run on a CPU."""


@lru_cache(maxsize=1)
def cnn() -> Any:
    """PFLlib's CNN as a flax module: two valid 5×5 convolutions of 32 and 64 channels with pooling, 512 units, 10 classes.

    Kernels begin as PyTorch's do, uniform within ±1/√fan_in, and biases at zero.

    >>> type(cnn()).__name__
    'CNN'
    """
    nn = require("flax.linen", "`twofold reproduce pfllib`", "nets")
    begin = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

    class CNN(nn.Module):
        """See above."""

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for channels in (32, 64):
                x = nn.relu(nn.Conv(channels, (5, 5), padding="VALID", kernel_init=begin)(x))
                x = nn.max_pool(x, (2, 2), strides=(2, 2))
            x = nn.relu(nn.Dense(512, kernel_init=begin)(x.reshape(len(x), -1)))
            return nn.Dense(10, kernel_init=begin)(x)

    return CNN()


# --- one cell ---------------------------------------------------------------------------------------------------------


def train(pack: Pack, split: str, name: str, seed: int, plan: Plan, model: Any = None) -> Cell:
    """Train one method from one seed in float32, and give all that the page says of it."""
    began = time.perf_counter()
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", tw.TheoryWarning)
        clients, test = pack.clients(split, plan.rows)
        loss = tw.losses.net(cnn() if model is None else model, seed=seed)
        method = tw.methods.REGISTRY[name](loss, **COMMON, **METHODS[name])
        watched: dict[str, Any] = {"test": test, "seed": seed}
        problem = method.problem(clients)
        found = tw.solve(
            problem, method.algorithm, rounds=plan.rounds, every=plan.every, record=(), seconds=plan.seconds, **watched
        )
        figures = _figures(problem, found, test)
        if method.after is not None:
            tuned = tw.methods.fine_tune(found, method.after, **watched)
            assert tuned.problem is not None
            last = {"round": int(found.ledger.rounds), **_grades(tuned.problem, tuned, test)}
            figures |= {"best": last, "last": last}
    return {
        "data": pack.data, "split": split, "method": name, "seed": seed, "settings": plan.settings(name),
        "minimises": method.minimises, "rounds": _rounds(found), "status": found.status, **figures,
        "call": time.perf_counter() - began, "checksum": pfllib_data.checksum(pack.splits[split]),
        "device": _device(), "jax": jax.__version__,
    }  # fmt: skip


def _rounds(found: tw.Result) -> int:
    """Rounds that were run; of a method that shares nothing, passes of everyone."""
    return int(found.history["iteration"][-1])


def _figures(problem: tw.Problem, found: tw.Result, test: tw.Clients) -> dict[str, Any]:
    """The course, the seconds a round, and every client's accuracy in the best and in the last round."""
    assert found.best is not None
    rounds, seconds = found.history["iteration"], found.history["seconds"]
    first = 1 if len(rounds) > 2 else 0  # what is compiled comes before the first record after the start
    return {
        "course": {"round": rounds.tolist(), "accuracy": np.asarray(found.history[found.best.column], float).tolist()},
        "seconds_a_round": float((seconds[-1] - seconds[first]) / max(rounds[-1] - rounds[first], 1)),
        "best": {"round": int(found.best.round), **_grades(problem, found.at_best(), test)},
        "last": {"round": int(rounds[-1]), **_grades(problem, found, test)},
    }


def _grades(problem: tw.Problem, found: tw.Result, test: tw.Clients) -> dict[str, Any]:
    """Accuracy pooled over rows, and of each client."""
    each = np.asarray(tw.evaluate(problem, found, test).personal, float)
    return {"accuracy": float(np.average(each, weights=test.counts)), "clients": each.tolist()}


def _device() -> str:
    device = jax.devices()[0]
    return f"{device.device_kind}, {platform.machine()}" if device.platform == "cpu" else str(device.device_kind)


# --- all of them ------------------------------------------------------------------------------------------------------


def packs(out: str | Path, made: Callable[[str], Pack] = pfllib_data.make) -> Callable[[str], Pack]:
    """The data sets, made once and kept in a folder; read and checked afterwards."""

    @lru_cache(maxsize=2)
    def pack(data: str) -> Pack:
        path = Path(out) / f"pfllib-{data}.npz"
        if not path.exists():
            pfllib_data.write(made(data), path)
        return pfllib_data.read(path)

    return pack


def everything(out: str | Path) -> list[Cell]:
    """All cells in a folder."""
    return [json.loads(path.read_text()) for path in sorted(Path(out).glob("pfllib_*.json"))]


def run(
    out: str | Path,
    plan: Plan = Plan(),
    pack: Callable[[str], Pack] | None = None,
    tell: Callable[[str], object] = lambda text: None,
    model: Any = None,
) -> Path:
    """Run what a plan asks for and a folder has not yet; write each cell as JSON, and the page after each. Gives the page's path."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    load = packs(folder) if pack is None else pack
    for data, split, name, seed in plan.cells():
        path = folder / f"pfllib_{data}_{split}_{name}_{seed}.json"
        if path.exists() and json.loads(path.read_text())["settings"] == plan.settings(name):
            continue
        cell = train(load(data), split, name, seed, plan, model)
        _write(path, json.dumps(cell, indent=1, ensure_ascii=False))
        tell(pfllib_page.line(cell))
        _write(folder / "pfllib.md", page(folder))
    return _write(folder / "pfllib.md", page(folder))


def page(out: str | Path, note: str = "") -> str:
    """The page of all cells in a folder, and of its nets_gpu.json if there is one; `note` says how they were run."""
    path = Path(out) / "nets_gpu.json"
    speed = json.loads(path.read_text()) if path.exists() else None
    return pfllib_page.page(everything(out), COMMON, METHODS, note, speed)


def _write(path: Path, text: str) -> Path:
    """Write a file so that nobody ever sees half of it."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
    return path
