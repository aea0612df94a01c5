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
ENVIRONMENT = {
    "date": "2026-11-15 11:20:03 +0000", "python": "3.11.7", "versions": {"twofold": "0.1.0", "jax": "0.10.2"},
    "cpu": "none", "cores": 2, "device": "cpu:0", "seconds": 12.5,
}  # fmt: skip


def make_up(folder: Path, *, rounds: int = 1000, only: tuple[str, ...] = ()) -> Path:
    """Write made-up documents for mx2, images, pw, times and rates, or only for some of them."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"mx2": mx2(rounds), "images": images(rounds), "pw": pw(rounds), "times": times(), "rates": rates()}
    for name, document in documents.items():
        if not only or name in only:
            (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def series(method: str, metric: str, rounds: int, best: float, start: float, **fields: Any) -> dict[str, Any]:
    """A curve that falls from `start` to a little above `best`."""
    noise = random.Random(f"{method}{metric}{sorted(fields.items())}")
    ks = [rounds * i // 100 for i in range(101)]
    fast = 1.6 if fields.get("variant") == "by theory" else 1.0
    gaps = [
        (start - best) * math.exp(-fast * SPEED[method] * k * 5 / rounds) + FLOOR[method] * (1 + 0.3 * noise.random())
        for k in ks
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
    fields = ("method", "variant", "objective", "dataset", "level")
    cells = [
        {
            "cell": {f: s[f] for f in fields} | {"seeds": list(range(s["runs"]))},
            "hyper": {"eta": 0.25, "tau": 5},
            "notes": [],
        }
        for s in found
        if s["metric"] == "loss"
    ]
    settings = {
        "command": f"twofold reproduce {name}",
        "quick": False,
        "facts": {"problem": f"made up for {name}", "as published": "nothing was published: all of it is made up"},
        "data": ["no file at all"],
        "cells": cells,
    }
    return {"experiment": name, "settings": settings, "environment": ENVIRONMENT, "optimum": optimum, "series": found}


def mx2(rounds: int) -> dict[str, Any]:
    """Five methods, three levels, two variants, loss and error."""
    found, optima = [], []
    for level, best in ((0.1, 0.2771), (0.3, 0.3437), (1.0, 0.2811)):
        for variant in VARIANTS:
            where = {"variant": variant, "objective": "mixture", "dataset": "synthetic", "level": level}
            optima.append({**where, "value": best, "gradient_norm": 1e-16})
            for method in ("lsgd", "ascd", "asvrcd", "l2sgd_plus", "pfedme"):
                found.append({**series(method, "loss", rounds, best, math.log(2), **where), "optimum": best})
                found.append(series(method, "error", rounds, 3.0, 72.2, **where))
    return document("mx2", found, optima)


def images(rounds: int) -> dict[str, Any]:
    """Three objectives, two data sets, K = 2 and 4; by theory only K = 2 here; a loss and an accuracy."""
    found = []
    for variant, levels in zip(VARIANTS, ((2, 4), (2,)), strict=True):
        for objective in ("multitask", "mixture", "adaptive"):
            for dataset in ("mnist", "kmnist"):
                for level in levels:
                    where = {"variant": variant, "objective": objective, "dataset": dataset, "level": level, "runs": 1}
                    for method in ("lsgd", "ascd", "asvrcd"):
                        found.append({**series(method, "loss", rounds, 0.4, 2.3, **where), "runs": 1, "stderr": None})
                        found.append({**series(method, "accuracy", rounds, 0.9, 0.1, **where), "runs": 1})
    return document("images", found, [])


def pw(rounds: int) -> dict[str, Any]:
    """ASCD with theory's p_w and with others."""
    found = []
    for dataset in ("mnist", "kmnist"):
        for level in ("theory", 0.1, 0.5, 0.9):
            where = {"variant": "as published", "objective": "mixture", "dataset": dataset, "level": level}
            found.append(series("ascd", "loss", rounds, 0.4, 2.3, **where))
    return document("pw", found, [])


def times() -> dict[str, Any]:
    """One run of each method; only its seconds matter."""
    found = []
    for method in ("lsgd", "ascd", "asvrcd"):
        for level in (5.0, 10.0, 15.0):
            where = {"variant": "as published", "objective": "weight_sharing", "dataset": "synthetic", "level": level}
            found.append({**series(method, "loss", 20, 0.4, 2.3, **where), "runs": 1, "seconds": 0.125})
    rows = [{**s, "published": 250.0} for s in found]
    return {**document("times", found, []), "table": rows}


def rates() -> dict[str, Any]:
    """Rounds to a gap against the condition number, with theory's line."""
    found = []
    condition = [3.0, 10.0, 30.0]
    for objective, dataset in (("lower_bound", "chain"), ("mixture", "school")):
        for method, factor in (("acd", 20), ("lsgd", 60), ("theory", 40), ("lower bound", 7)):
            where = {"variant": "by theory", "objective": objective, "dataset": dataset, "level": None}
            mean = [round(factor * c ** (2 if method == "lsgd" else 1)) for c in condition]
            mean = [None if value > 20_000 else value for value in mean]
            spread = {"stderr": [0.0] * 3, "runs": 3, "seconds": 1.0, "rounds": None, "condition": condition}
            found.append({"method": method, "metric": "rounds", **where, "mean": mean, **spread})
    return document("rates", found, [])
