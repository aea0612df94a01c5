"""The paper's experiments as data, one runner, one judge, one report; made only of what any user of twofold could use.

`reproduce("mx2", "results")` runs an experiment and writes its document, its histories and its figures. `judge("results")`
says for each claim of the paper whether it holds in what was run. `write("results")` makes one HTML page of everything,
`write_markdown` a Markdown document. `available()` lists the experiments.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twofold.errors import InputError
from twofold.paper.base import Experiment

# Imported here and not on first use: the function and its module have the same name, and the function is to win.
from twofold.paper.judge import Verdict, judge

if TYPE_CHECKING:
    from twofold.paper.document import without_times
    from twofold.paper.report.markdown import write as write_markdown
    from twofold.paper.report.page import write
    from twofold.paper.runner import reproduce

NAMES = ("mx2", "ews", "images", "pw", "reparam", "relaxation", "times", "rates", "hybrid", "slips")

_HOMES = {
    "reproduce": ("runner", "reproduce"),
    "without_times": ("document", "without_times"),
    "write": ("report.page", "write"),
    "write_markdown": ("report.markdown", "write"),
}

__all__ = [
    "NAMES", "Experiment", "Verdict", "available", "judge", "load", "reproduce", "without_times", "write", "write_markdown",
]  # fmt: skip


def available() -> list[str]:
    """The names of all experiments, in the order of the paper.

    >>> available()[:3]
    ['mx2', 'ews', 'images']
    """
    return list(NAMES)


def load(name: str) -> Experiment:
    """An experiment by name, as data.

    >>> load("mx2").title
    'Mixture on synthetic data'
    """
    if name not in NAMES:
        import difflib

        near = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"There is no experiment {name!r}; there are {', '.join(NAMES)}, or all.{hint}")
    return import_module(f"twofold.paper.studies.{name}").EXPERIMENT


def __getattr__(name: str) -> Any:
    """Import on first use: listing the experiments must not load what runs them."""
    if name in _HOMES:
        module, function = _HOMES[name]
        return getattr(import_module(f"twofold.paper.{module}"), function)
    raise AttributeError(f"module 'twofold.paper' has no attribute {name!r}")
