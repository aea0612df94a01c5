"""Flower (https://flower.ai) as the network of a federation: its Fleet API and nothing else of it.

`serve` is the coordinator, `join` a node that stays, `rehearse` a whole federation of real processes on this machine. Flower's
own server would let whoever reaches its port start a run, whose code every stock node then executes. Here no code travels.
This uses parts of Flower that are not documented, so its version is pinned.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING, Any

for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}.items():
    os.environ.setdefault(_name, _value)
if "FLWR_HOME" not in os.environ:  # Flower wants a folder: one that nobody can have made before us
    _home, _owner = os.environ.setdefault("FLWR_HOME", tempfile.mkdtemp(prefix="twofold-flwr-")), os.getpid()

    @atexit.register
    def _tidy() -> None:
        if os.getpid() == _owner:  # a process that was forked from us ends before we do
            shutil.rmtree(_home, ignore_errors=True)


from twofold.extras import require  # noqa: E402  (Flower reads its environment when it is imported)

require("flwr", "A federation", "flower")
for _name in ("flwr", "httpx"):
    logging.getLogger(_name).setLevel(logging.WARNING)

from twofold.engines.flower.join import join  # noqa: E402

if TYPE_CHECKING:
    from twofold.engines.flower.rehearsal import rehearse
    from twofold.engines.flower.server import FlowerGrid, serve

__all__ = ["FlowerGrid", "join", "rehearse", "serve"]
_LATER = {"FlowerGrid": "server", "serve": "server", "rehearse": "rehearsal"}


def __getattr__(name: str) -> Any:
    """The coordinator's side when it is asked for: a node needs no web server and no database."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
