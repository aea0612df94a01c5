"""Is the strength that `tw.tune` chooses a good one, and what does choosing cost? On School, digits and two made problems.

    TWOFOLD_DATA=/path/to/data python benchmarks/strength.py            # all
    python benchmarks/strength.py --only time,alike,unlike              # without School

For each problem a third of every client's rows is put aside. The loss on them is printed for the choice, for one model for
everybody, for every client alone, and for the best of a fine grid of 41 strengths (chosen with hindsight, on the very rows
it is judged by).
"time" compares ten strengths on 5,900 rows of 42 clients with one fit, both in processes of their own, cold and warm, in seconds
of CPU time (warm: the least of five calls).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import twofold as tw
from twofold.tune import curvature_of
from twofold.tune.choice import Judge
from twofold.tune.path import Path as StrengthPath

FAR = 1e6
GOAL = 3
"""Fits that ten strengths may cost."""


def made(spread: float, clients: int = 30, rows: int = 60, features: int = 10, seed: int = 0) -> tw.Clients:
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=features)

    def one() -> tuple[Any, Any]:
        x = rng.normal(size=(rows, features))
        return x, x @ (centre + spread * rng.normal(size=features)) + rng.normal(size=rows)

    return tw.Clients.from_list([one() for _ in range(clients)])


def parkinson(seed: int = 0) -> tw.Clients:
    """As large as the Parkinson data: 42 patients with about 140 recordings each, and 20 features."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=20)

    def one() -> tuple[Any, Any]:
        x = rng.normal(size=(140 + int(rng.integers(-20, 20)), 20))
        return x, x @ (centre + 0.3 * rng.normal(size=20)) + rng.normal(size=len(x))

    return tw.Clients.from_list([one() for _ in range(42)])


def school() -> tw.Clients:
    data = tw.data.school.load()
    y = np.concatenate([y for _, y in data.clients])
    x = np.concatenate([x[:, :-1] for x, _ in data.clients])  # without the constant column
    owner = np.repeat(data.names, [len(y) for _, y in data.clients])
    return tw.Clients.from_groups((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), owner)


def digits() -> tw.Clients:
    """Ten writers of digits, each mostly of three kinds."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    own = (y + rng.integers(0, 3, len(y))) % 10
    owner = np.where(rng.random(len(y)) < 0.8, own, rng.integers(0, 10, len(y)))
    return tw.Clients.from_groups(x / 16, y, owner)


PROBLEMS: dict[str, tuple[Callable[[], tw.Clients], Any]] = {
    "alike": (lambda: made(0.05), tw.losses.squared(l2=1e-3, intercept=True)),
    "unlike": (lambda: made(1.0), tw.losses.squared(l2=1e-3, intercept=True)),
    "school": (school, tw.losses.squared(l2=1e-3, intercept=True)),
    "digits": (digits, tw.losses.softmax(10, l2=1e-3, intercept=True)),
}


def judge(name: str, fine: int) -> None:
    make, loss = PROBLEMS[name]
    clients = make()
    test = np.random.default_rng(1).random(clients.rows) < 1 / 3
    for start in clients.offsets[:-1]:
        test[start] = False  # everyone has a row to train on
    train = dataclasses.replace(clients, row_weights=(~test).astype(float))
    began = time.perf_counter()
    tuned = tw.tune(tw.objectives.mixture(loss, lam=1.0), train)
    took = time.perf_counter() - began
    figures = Judge(dataclasses.replace(clients, row_weights=np.maximum(test, 1e-12)), np.zeros(len(test), np.int32), 1)
    size, M = curvature_of(loss, train), len(clients)
    base = tw.objectives.mixture(loss, lam=np.ones(M))
    with jax.enable_x64(True):
        path = StrengthPath(base, train, np.where(test, 0, 1).astype(np.int32), 1)

        def graded(lam: Any) -> np.ndarray:
            return path.fit(dataclasses.replace(base, lam=np.broadcast_to(lam, (M,)).copy())).loss

        shared, *grid, alone = (graded(lam) for lam in (FAR * size, *size * np.geomspace(1e3, 1e-4, fine), 0.0))
        auto = graded(tuned.strength if np.ndim(tuned.strength) else np.clip(tuned.strength, 0.0, FAR * size))
    best = min([shared, *grid, alone], key=figures.mean)
    worst = max(figures.mean(shared), figures.mean(alone))
    within = figures.mean(auto) - figures.mean(best) <= figures.error(best)
    print(
        f"{name:8} {tuned!r}\n"
        f"         test loss: auto {figures.mean(auto):.5f}, shared {figures.mean(shared):.5f}, alone {figures.mean(alone):.5f}, "
        f"best of {fine} {figures.mean(best):.5f} ± {figures.error(best):.5f}\n"
        f"         never worse than the worse end: {figures.mean(auto) <= worst}; within one standard error of the best: {within}; "
        f"tuned in {took:.1f} s",
        flush=True,
    )


FIT = """
import sys, time; sys.path.insert(0, {folder!r}); import jax; jax.config.update("jax_enable_x64", True)
import twofold as tw, strength
clients = strength.parkinson(); loss = tw.losses.{loss}(l2=1e-3, intercept=True)
if {loss!r} == "logistic": clients = clients.map(lambda x, y: (x, (y > 0).astype(int)))
for _ in range(6):
    began = time.process_time()
    {what}
    print(time.process_time() - began)
"""
ONE = "tw.solve(tw.Problem(tw.objectives.mixture(loss, lam=0.1), clients))"
TEN = "tw.tune(tw.objectives.mixture(loss, lam=0.1), clients)"


def times() -> list[dict[str, Any]]:
    folder, found = str(__file__).rsplit("/", 1)[0], []
    for loss in ("squared", "logistic"):
        cold, warm = [], []
        for what in (ONE, TEN):
            code = FIT.format(folder=folder, loss=loss, what=what)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            first, *later = map(float, done.stdout.split()[-6:])
            cold.append(first)
            warm.append(min(later))
        for when, (one, ten) in (("cold (with compilation)", cold), ("warm", warm)):
            print(
                f"time     {loss}, {when}: one fit {one:.2f} s, ten strengths and both ends {ten:.2f} s ({ten / one:.2f} times; goal "
                f"{GOAL}: {'reached' if ten <= GOAL * one else 'missed'})",
                flush=True,
            )
            found.append({"loss": loss, "when": when, "ratio": ten / one, "goal": GOAL})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(["time", *PROBLEMS]))
    parser.add_argument("--fine", type=int, default=41)
    parser.add_argument("--json", type=Path, help='also write the ratios of "time" here')
    chosen = parser.parse_args()
    for name in chosen.only.split(","):
        found = times() if name == "time" else judge(name, chosen.fine)
        if name == "time" and chosen.json:
            chosen.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
