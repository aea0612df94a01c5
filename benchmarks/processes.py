"""Two processes against one, each with one thread on a core of its own: how near the ideal factor of two.

    python benchmarks/processes.py [--clients 4000] [--rounds 5] [--repeats 4] [--json FILE]

A softmax mixture with 784 features and 10 classes, 20 rows for each client, solved by LSGD with the engine `sharded`; the two
processes meet on loopback (jax.distributed, gloo). A process is bound to one core before it loads JAX, so that it computes
in one thread. One process and two alternate, `repeats` times each, always started anew. Each start first makes a run to compile
and then three more of `rounds` rounds each; a run's time is that between its records at the start and at the end, by the clock
of the slower process. The best run of each is compared, since whatever else is done on the machine only ever adds to it; the
medians are printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median

ROWS, FEATURES, CLASSES = 20, 784, 10
RUNS = 3
GOAL = 1.6


def worker(arguments: argparse.Namespace) -> None:
    """One process of a run; prints the seconds of a round in each of its runs."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[arguments.process]})  # before JAX makes its threads
    import jax

    if arguments.processes > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{arguments.port}", num_processes=arguments.processes, process_id=arguments.process
        )
    import numpy as np

    import twofold as tw

    rng = np.random.default_rng(0)
    x = rng.standard_normal((arguments.clients * ROWS, FEATURES), dtype=np.float32) / np.float32(FEATURES**0.5)
    y = rng.integers(0, CLASSES, arguments.clients * ROWS).astype(np.int32)
    everyone = tw.Clients(x, y, np.full(arguments.clients, ROWS, np.int32))
    task = tw.Problem(tw.objectives.mixture(tw.losses.softmax(CLASSES, l2=1e-3), lam=0.1), everyone)
    method = tw.algorithms.LSGD(eta=0.1, tau=5, batch=4)
    rounds = arguments.rounds

    def run() -> float:
        """Seconds of a round."""
        result = tw.solve(task, method, rounds=rounds, every=rounds, record=(), engine="sharded", progress=False)
        seconds = result.history["seconds"]
        return float(seconds[-1] - seconds[0]) / rounds

    run()
    print(json.dumps([run() for _ in range(RUNS)]))


def measure(processes: int, arguments: argparse.Namespace) -> list[float]:
    """Seconds of a round in each run by so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["--clients", str(arguments.clients), "--rounds", str(arguments.rounds), "--port", str(port)]
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *common, "--processes", str(processes), "--process", str(i)],
            stdout=subprocess.PIPE, text=True,
        )
        for i in range(processes)
    ]  # fmt: skip
    told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("A process failed; its error stands above.")
    return [max(times) for times in zip(*(json.loads(text.splitlines()[-1]) for text in told), strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--processes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.processes:
        worker(arguments)
        return
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("Two processes need two cores, and here is one.")
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(arguments.repeats):
        for processes, found in times.items():
            found.extend(measure(processes, arguments))
    (one, two), (usual, usually) = map(min, times.values()), map(median, times.values())
    print(
        f"{arguments.clients:,} clients: one process {one:.3f} s a round, two {two:.3f} s: {one / two:.2f} times as fast "
        f"(goal {GOAL}); in the median {usual:.3f} s and {usually:.3f} s: {usual / usually:.2f} times"
    )
    if arguments.json:
        result = {
            "one_seconds": one,
            "two_seconds": two,
            "ratio": one / two,
            "ratio_of_medians": usual / usually,
            "goal": GOAL,
            "clients": arguments.clients,
        }
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
