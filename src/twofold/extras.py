"""Optional libraries: imported where they are used; if one is missing, the error says what to install."""

from __future__ import annotations

from importlib import import_module, metadata
from types import ModuleType

from twofold.errors import MissingExtra

__all__ = ["require", "version"]


def require(module: str, what: str, extra: str) -> ModuleType:
    """Import an optional library, or say which extra installs it.

    `what` is the thing that needs the library, as the subject of a sentence; `extra` is the name of the extra in
    pyproject.toml that contains it.

    >>> require("json", "This example", "paper").dumps([1])
    '[1]'
    >>> require("no_such_library", "This example", "paper")
    Traceback (most recent call last):
    twofold.errors.MissingExtra: This example needs no_such_library, which is not installed: pip install 'twofold[paper]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(what, extra, library=module.split(".", maxsplit=1)[0]) from error


def version() -> str:
    """The version of twofold that is installed.

    >>> version() == __import__("twofold").__version__
    True
    """
    try:
        return metadata.version("twofold")
    except metadata.PackageNotFoundError:  # run from a source folder on the path, not installed
        return "0+source"
