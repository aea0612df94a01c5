"""A made-up folder of results, small and shaped like `twofold reproduce`'s, for the tests of the page."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

SPEED = {"lsgd": 0.4, "ascd": 2.5, "asvrcd": 4.0, "l2sgd_plus": 5.0, "pfedme": 1.2, "hybrid": 5.0}
FLOOR = {"lsgd": 3e-3, "ascd": 5e-4, "asvrcd": 1e-8, "l2sgd_plus": 1e-9, "pfedme": 2e-3, "hybrid": 1e-8}
VARIANTS = ("as published", "by theory")
ENVIRONMENT = {"twofold": "0.1.0", "jax": "0.10.2", "python": "3.11.7", "device": "cpu", "cores": 2}


def make_up(folder: Path, *, rounds: int = 300, only: tuple[str, ...] = ()) -> Path:
    """Write made-up documents for mx2, images and pw, or only for some of them."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"mx2": mx2(rounds), "images": images(rounds), "pw": pw(rounds)}
    for name, document in documents.items():
        if not only or name in only:
            (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def series(method: str, metric: str, rounds: int, best: float, start: float, **fields: Any) -> dict[str, Any]:
    """A curve that falls from `start` to a little above `best`."""
    noise = random.Random(f"{method}{metric}{sorted(fields.items())}")
    ks = list(range(rounds + 1))
    fast = 1.6 if fields.get("variant") == "by theory" else 1.0
    gaps = [
        (start - best) * math.exp(-fast * SPEED[method] * k * 5 / rounds) + FLOOR[method] * (1 + 0.3 * noise.random()) for k in ks
    ]
    return {
        "method": method,
        "metric": metric,
        **fields,
        "rounds": ks,
        "mean": [best + gap for gap in gaps],
        "stderr": [0.06 * gap for gap in gaps],
        "runs": 30,
        "seconds": 1.25,
        "bytes": [240 * k for k in ks],
        "gradients_w": [(5 if method == "lsgd" else 1) * k for k in ks],
        "gradients_beta": [(5 if method == "lsgd" else 4) * k for k in ks],
    }


def document(name: str, found: list[dict[str, Any]], optimum: Any) -> dict[str, Any]:
    """A result document."""
    settings = {"seeds": list(range(30)), "quick": False, "rounds": 300}
    return {"experiment": name, "settings": settings, "environment": ENVIRONMENT, "optimum": optimum, "series": found}
