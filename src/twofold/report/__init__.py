"""Plots and the page: what people look at after a run.

`plots` draws with matplotlib. `write(folder)` makes the self-contained HTML page of `twofold reproduce`'s results; it
lives in `twofold.report.page` and is imported on first use, so that drawing a plot does not load it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twofold.report import plots
    from twofold.report.page import write

_HOMES = {"write": "page"}
_MODULES = ("page", "plots")

__all__ = ["plots", "write"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in _HOMES:
        return getattr(import_module(f"twofold.report.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"twofold.report.{name}")
    raise AttributeError(f"module 'twofold.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
