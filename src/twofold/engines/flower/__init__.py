"""Flower (https://flower.ai) as the network of a federation: its Fleet API and nothing else of it.

`serve` is the coordinator, `join` a node that stays, `rehearse` a whole federation of real processes on this machine. Flower's
own server would let whoever reaches its port start a run, whose code every stock node then executes. Here no code travels.
This uses parts of Flower that are not documented, so its version is pinned.
"""

from __future__ import annotations

import logging
import os
import tempfile

for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_HOME": os.path.join(tempfile.gettempdir(), f"twofold-flwr-{os.getuid()}"),
}.items():
    os.environ.setdefault(_name, _value)

from twofold.extras import require  # noqa: E402  (Flower reads its environment when it is imported)

require("flwr", "A federation", "flower")
for _name in ("flwr", "httpx"):
    logging.getLogger(_name).setLevel(logging.WARNING)

from twofold.engines.flower.join import join  # noqa: E402
from twofold.engines.flower.rehearse import rehearse  # noqa: E402
from twofold.engines.flower.serve import FlowerGrid, serve  # noqa: E402

__all__ = ["FlowerGrid", "join", "rehearse", "serve"]
