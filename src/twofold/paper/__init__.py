"""The paper's experiments as data, one runner, one judge.

`reproduce("mx2", "results")` runs an experiment and writes its document, its histories and its figures; `judge("results")`
says claim by claim whether the paper's holds in what was run; `available()` names the experiments.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twofold.errors import InputError
from twofold.paper.base import Experiment
from twofold.paper.judge import Verdict, judge  # not on first use: the name must not become that of the module

if TYPE_CHECKING:
    from twofold.paper.runner import reproduce, without_times

NAMES = ("mx2", "ews", "images", "pw", "reparam", "relaxation", "times", "rates", "hybrid", "slips")

_HOMES = {"reproduce": "runner", "without_times": "runner"}

__all__ = ["NAMES", "Experiment", "Verdict", "available", "judge", "load", "reproduce", "without_times"]


def available() -> list[str]:
    """The names of all experiments, in the order of the paper."""
    return list(NAMES)


def load(name: str) -> Experiment:
    """An experiment by name, as data."""
    if name not in NAMES:
        import difflib

        near = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"There is no experiment {name!r}; there are {', '.join(NAMES)}, or all.{hint}")
    return import_module(f"twofold.paper.{name}").EXPERIMENT


def __getattr__(name: str) -> Any:
    """Import on first use: naming the experiments must not load what runs them."""
    if name in _HOMES:
        return getattr(import_module(f"twofold.paper.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'twofold.paper' has no attribute {name!r}")
