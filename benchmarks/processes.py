"""Two processes against one, each with one thread on a core of its own: how near the ideal factor of two.

    python benchmarks/processes.py [--clients 400] [--rounds 3] [--json FILE]

A softmax mixture with 784 features and 10 classes, 20 rows for each client, solved by LSGD with the engine `sharded`; the two
processes meet on loopback (jax.distributed, gloo). A round's time is the difference between a long and a short run, both
after a run that compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROWS, FEATURES, CLASSES = 20, 784, 10
GOAL = 1.6


def worker(arguments: argparse.Namespace) -> None:
    """One process of a run; prints its seconds per round."""
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

    def seconds(rounds: int) -> float:
        began = time.perf_counter()
        tw.solve(task, method, rounds=rounds, every=rounds, engine="sharded", progress=False)
        return time.perf_counter() - began

    seconds(1)
    times = [(seconds(arguments.rounds + 1) - seconds(1)) / arguments.rounds for _ in range(3)]
    print(json.dumps({"seconds": min(times)}))


def measure(processes: int, arguments: argparse.Namespace) -> float:
    """Seconds per round of a run by so many processes."""
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
    return max(json.loads(text.splitlines()[-1])["seconds"] for text in told)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.processes:
        worker(arguments)
        return
    one, two = (measure(processes, arguments) for processes in (1, 2))
    print(f"one process {one:.3f} s a round, two {two:.3f} s: {one / two:.2f} times as fast (goal {GOAL})")
    if arguments.json:
        result = {
            "one_seconds": one,
            "two_seconds": two,
            "ratio": one / two,
            "goal": GOAL,
            "clients": arguments.clients,
        }
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
