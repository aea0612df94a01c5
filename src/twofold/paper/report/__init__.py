"""Plots and the page: what people look at after a run.

`plots` draws with matplotlib. `write(folder)` makes the self-contained HTML page of `twofold reproduce`'s results; it
lives in `twofold.paper.report.page` and is imported on first use, so that drawing a plot does not load it. `write_markdown`
tells the same, shorter, in a file for a repository.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twofold.paper.report import plots
    from twofold.paper.report.markdown import write as write_markdown
    from twofold.paper.report.page import write

_HOMES = {"write": ("page", "write"), "write_markdown": ("markdown", "write")}
_MODULES = ("markdown", "page", "plots")

__all__ = ["plots", "write", "write_markdown"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in _HOMES:
        module, function = _HOMES[name]
        return getattr(import_module(f"twofold.paper.report.{module}"), function)
    if name in _MODULES:
        return import_module(f"twofold.paper.report.{name}")
    raise AttributeError(f"module 'twofold.paper.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
