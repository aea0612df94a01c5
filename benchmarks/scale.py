"""Time per round and memory from 100 to 100,000 clients, each size in a process of its own.

    python benchmarks/scale.py [--clients 100,1000,10000,100000] [--method lsgd] [--state device] [--json FILE]
    python benchmarks/scale.py --net fedavg (or ditto, …) --clients 20,100,400 [--images 100]

Every client has 10 rows of 784 features and a softmax model of 10 classes in a mixture; with --net, 100 images and PFLlib's CNN under
one of `tw.methods`. A row is a call of `tw.solve`, the second
one, whose programs are compiled. A round's time is that between the records at its start and at its end, over the number of rounds:
as many as fit into about a second, and at least three. `memory` is the peak of the process less what it held before the data
were made, after a small run has compiled its programs and given its memory back to the system; `predicted` is the arithmetic of
twofold.engines.memory, with the data that the caller holds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import inspect
import json
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

ROWS, IMAGES, FEATURES, CLASSES = 10, 100, 784, 10
ROUNDS, SECONDS, MOST = 3, 1.0, 300
"""At least so many rounds are timed, as many more as fit into so many seconds, and at most so many."""
GOAL_SLOPE, GOAL_MEMORY = (0.9, 1.1), 0.2


def held() -> int:
    """Bytes that this process has in memory now."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def give_back() -> None:
    """Return freed memory to the system: kept by the allocator, it would hide as much of what a run takes."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


class Peak(threading.Thread):
    """The largest number of bytes that this process holds while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = held(), threading.Event()

    def run(self) -> None:
        """Look every few milliseconds."""
        while not self.over.wait(0.005):
            self.most = max(self.most, held())


def one(clients: int, name: str, state: str | None, net: str | None, images: int) -> dict:
    """One size: seconds per round, memory, and what was predicted."""
    import twofold as tw
    from twofold import engines, tree
    from twofold.engines import memory
    from twofold.engines.schedule import Schedule, footprint

    def made(clients: int) -> tuple[tw.Problem, Any]:
        task, named = small(tw, clients, net, images)
        return task, named or method(task, name)

    warm, algorithm = made(4 if net else 64)
    tw.solve(warm, algorithm, rounds=1, record=(), state=state, progress=False)
    give_back()
    before, peak = held(), Peak()
    peak.start()
    task, algorithm = made(clients)

    def run(rounds: int) -> float:
        """Seconds of a round in a run of so many."""
        seconds = tw.solve(
            task, algorithm, rounds=rounds, every=rounds, record=(), state=state, progress=False
        ).history["seconds"]
        return float(seconds[-1] - seconds[0]) / rounds

    run(1)
    rounds = int(np.clip(SECONDS / run(ROUNDS), ROUNDS, MOST))
    found = min(run(rounds) for _ in range(2))
    peak.over.set()
    peak.join()
    cast = tree.cast(algorithm)
    shapes = footprint(cast, task)
    need = memory.need(task, shapes, cast)
    make = engines.choose("simulate", Schedule(cast, task, shapes.parts, [0]), shapes, 1, None, state)
    engine = getattr(make, "func", make)
    chunk = clients if engine is engines.Simulate else memory.choose_chunk(need, None, state or "device")
    return {
        "clients": clients, "engine": engine.__name__, "chunk": chunk, "rounds": rounds, "seconds": found,
        "memory": peak.most - before, "predicted": need.peak(chunk), "need": need._asdict(),
        "max_rss": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }  # fmt: skip


def method(task, name: str):
    """The method with step sizes from constants that suit any number of clients."""
    from twofold.solver import complete
    from twofold.theory.constants import Constants

    return complete(task, name, Constants(mu=1e-4, L_w=0.1, L_beta=0.6, calL_w=0.1, calL_beta=0.6))[0]


def small(tw, clients: int, net: str | None, images: int = IMAGES):
    """A softmax mixture on random data, float32, without a second copy of anything; or a method for nets, with its problem."""
    rng = np.random.default_rng(0)
    rows = images if net else ROWS
    x = rng.standard_normal((clients * rows, FEATURES), dtype=np.float32)
    x *= np.float32(FEATURES**-0.5)
    y = rng.integers(0, CLASSES, clients * rows).astype(np.int32)
    if not net:
        everyone = tw.Clients(x, y, np.full(clients, rows, np.int32))
        return tw.Problem(tw.objectives.mixture(tw.losses.softmax(CLASSES, l2=1e-3), lam=0.1), everyone), None
    from twofold.paper.pfllib import cnn

    everyone = tw.Clients(x.reshape(-1, 28, 28, 1), y, np.full(clients, rows, np.int32))
    made = tw.methods.REGISTRY[net]
    head = {"head": "Dense_1"} if "head" in inspect.signature(made).parameters else {}
    named = made(tw.losses.net(cnn()), **head)
    return named.problem(everyone), named.algorithm


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="100,1000,10000,100000")
    parser.add_argument("--method", default="lsgd")
    parser.add_argument("--net", help="a method of tw.methods")
    parser.add_argument("--images", type=int, default=IMAGES, help="rows of each client with --net")
    parser.add_argument("--state")
    parser.add_argument("--one", type=int, help="measure this number of clients here, and print JSON")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.method, arguments.state, arguments.net, arguments.images)))
        return
    rows = []
    print(f"{'clients':>9} {'engine':10}{'chunk':>8}{'s/round':>10}{'memory MB':>11}{'predicted':>11}{'off by':>8}")
    for clients in map(int, arguments.clients.split(",")):
        command = [sys.executable, __file__, "--one", str(clients), "--method", arguments.method]
        command += ["--state", arguments.state] if arguments.state else []
        command += ["--net", arguments.net, "--images", str(arguments.images)] if arguments.net else []
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(out.splitlines()[-1])
        rows.append(row)
        off = row["memory"] / row["predicted"] - 1
        print(
            f"{clients:>9,} {row['engine']:10}{row['chunk']:>8,}{row['seconds']:>10.4f}{row['memory'] / 1e6:>11,.0f}"
            f"{row['predicted'] / 1e6:>11,.0f}{off:>8.0%}", flush=True,
        )  # fmt: skip
    large = [row for row in rows if arguments.net or row["clients"] >= 1000]
    result = {"rows": rows}
    if len(rows) > 1:
        x, y = (np.log([row[name] for row in rows]) for name in ("clients", "seconds"))
        result["slope"] = float(np.polyfit(x, y, 1)[0])
        print(f"slope of log time against log clients: {result['slope']:.3f} (goal 0.9 to 1.1)")
    if large:
        worst = max(abs(row["memory"] / row["predicted"] - 1) for row in large)
        print(f"memory off its prediction by at most {worst:.0%} (goal 20 %; softmax: from 1,000 clients on)")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
