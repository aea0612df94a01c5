"""Speed on the paper's synthetic mixture problem against a careful NumPy loop, as ratios measured in one run.

    python benchmarks/mx2.py [--rounds 1000] [--seeds 30] [--methods lsgd,ascd,asvrcd] [--json FILE]

NumPy runs one seed (30 seeds are 30 such runs). Our times are the second call's, without compilation; the first call's
are shown beside them. NumPy works in float64, twofold in float32, each its library's default. Both draw one row for a gradient,
each with the same probability, and both have the step sizes and coins of the paper's theorems (pFedMe has its own batch).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from functools import partial

import numpy as np

import twofold as tw
from numpy_reference import METHODS, Mixture
from twofold.solver import complete

GOALS = {(1, False): 10, (100, False): 30, (1, True): 30, (100, True): 140, (10, True): 150}


def seconds(function) -> float:
    """Wall time of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--methods", default="lsgd,ascd,asvrcd")
    parser.add_argument("--every", default="1,100")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    data = tw.data.synthetic.mixture(arguments.sigma)
    clients = tw.Clients.from_list(data.clients)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=data.lam), clients, sampling="uniform")
    reference = Mixture(data.clients, data.lam)
    constants = problem.constants(rule="paper", mu=tw.data.synthetic.paper_constants(data).mu / (3 * problem.M))
    rows = []
    print(
        f"{'method':12}{'loss every':>11}{'seeds':>6}{'NumPy s':>10}{'ours s':>9}{'first s':>9}{'ratio':>8}{'goal':>6}"
    )
    for name in arguments.methods.split(","):
        method = tw.algorithms.REGISTRY[name]()
        if getattr(method, "batch", None) == "auto":
            method = dataclasses.replace(method, batch=1)  # pyright: ignore[reportCallIssue]
        algorithm, _ = complete(problem, method, constants)
        values = {
            f.name: float(v)
            for f in dataclasses.fields(algorithm)
            if isinstance(v := getattr(algorithm, f.name), (int, float))
        }
        for every in map(int, arguments.every.split(",")):
            slow = seconds(partial(METHODS[name], reference, values, arguments.rounds, every, 0))
            for seeds in (1, arguments.seeds):
                options = {"seeds": range(seeds)} if seeds > 1 else {"seed": 0}

                def ours(every: int = every, options: dict = options, algorithm=algorithm) -> None:
                    tw.solve(problem, algorithm, rounds=arguments.rounds, every=every, **options)

                first, fast = seconds(ours), min(seconds(ours) for _ in range(2))
                ratio, goal = seeds * slow / fast, GOALS.get((every, seeds > 1))
                rows.append(
                    {"method": name, "every": every, "seeds": seeds, "numpy_seconds": seeds * slow, "seconds": fast,
                     "first_seconds": first, "ratio": ratio, "goal": goal}
                )  # fmt: skip
                print(
                    f"{name:12}{every:>11}{seeds:>6}{seeds * slow:>10.2f}{fast:>9.3f}{first:>9.2f}{ratio:>8.0f}"
                    f"{goal or '':>6}", flush=True,
                )  # fmt: skip
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    worst = min(r["ratio"] / r["goal"] for r in rows if r["goal"]) if any(r["goal"] for r in rows) else np.nan
    print(f"smallest ratio over goal: {worst:.2f}")


if __name__ == "__main__":
    main()
