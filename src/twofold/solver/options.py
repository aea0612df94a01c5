"""What `solve` was asked for, besides the problem, the algorithm and the seeds."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from twofold.clients import Clients
from twofold.engines import EngineName
from twofold.engines.memory import Place
from twofold.result import Result
from twofold.solver.budget import Budget
from twofold.solver.participation import Participation, Who
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost, Preset
from twofold.tree import Pytree

__all__ = ["Callback", "Metrics", "Options", "RunOptions", "SolveOptions", "Start", "TheoryWarning", "warn"]

Metrics = str | Sequence[str] | Mapping[str, str | Callable[[Pytree, Pytree], Any]]
"""Names of metrics, or a mapping from names to metrics and to functions of (w, beta)."""
Callback = Callable[[Mapping[str, float]], None]
"""Called with each record as it happens: seed, round, iteration, bytes, seconds and the metrics."""
Start = tuple[Pytree, Pytree] | Result
"""Where to begin: a pair (w, beta), or a run to go on from."""


class RunOptions(TypedDict, total=False):
    """What `solve` may be told by name, besides `rounds`, `start` and `seeds`: for functions that hand it on.

    >>> options: RunOptions = {"every": 5, "seed": 1}
    """

    iterations: int | None
    seconds: float | None
    target: float | None
    tol: float | None
    seed: int
    record: Metrics
    every: int
    engine: EngineName | str
    chunk: int | None
    state: Place | None
    constants: Constants | None
    progress: bool | None
    participation: Who | Participation | None
    checkpoint: str | Path | None
    checkpoint_every: int | None
    callbacks: Sequence[Callback] | Callback
    cost: Cost | Preset
    test: Clients | None
    validation: Clients | None
    patience: int | None


class SolveOptions(RunOptions, total=False):
    """What `solve` may be told by name, besides `seeds`.

    >>> options: SolveOptions = {"rounds": 100, "tol": 1e-6}
    """

    rounds: int | None
    start: Start | None


class TheoryWarning(UserWarning):
    """Theory had to assume something that the problem does not guarantee, or foresees trouble.

    >>> issubclass(TheoryWarning, UserWarning)
    True
    """


PACKAGE = str(Path(__file__).parents[1])


def warn(text: str) -> None:
    """Warn with a `TheoryWarning` that names the user's line: the innermost one outside this package.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("No strong convexity is known.")
    >>> print(caught[0].message)
    No strong convexity is known.
    """
    frame, inside = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, inside = frame.f_back, inside + 1
    warnings.warn(text, TheoryWarning, stacklevel=inside + 1)


@dataclasses.dataclass(frozen=True)
class Options:
    """How a run is to be done.

    >>> Options(Budget(rounds=10)).engine
    'simulate'
    """

    budget: Budget
    record: Metrics = ("loss",)
    engine: str = "simulate"
    start: tuple[Pytree, Pytree] | None = None
    constants: Constants | None = None
    progress: bool | None = None
    chunk: int | None = None
    state: Place | None = None
    participation: Who | Participation | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    callbacks: Sequence[Callback] = ()
    cost: Cost | Preset = "cross-silo"
    test: Clients | None = None
    validation: Clients | None = None
    patience: int | None = None
