"""One round of FedAvg and of pFedMe against other libraries doing the same work on two CPU cores, measured in one run.

    python benchmarks/peers.py [--torch-python PATH] [--fedjax-python PATH] [--pfl-python PATH] [--small] [--json FILE]

Multinomial logistic regression on MNIST, float32, batches of 10: 20 clients of 374 to 4,641 rows, 52,492 in all, drawn
without replacement from the 60,000 training images; everyone weighs as many as its rows. FedAvg makes one reshuffled epoch.
pFedMe takes R = 263 batches for every client, as many as one epoch has for the average client (2,624.6 rows), and K = 5 inner
steps on each; its batches are drawn with replacement.

Each peer runs in an environment of its own, named by its Python: `torch` (a plain loop, client after client), `fedjax` and
`pfl[pytorch]`; see peer_torch.py, peer_fedjax.py, peer_pfl.py. One that is not given, not there or not importable is
"not installed". Data are in memory before the clock starts. Everybody makes one warm-up round and then three timed rounds, of
which the best counts. Ours are the rounds of a call of `tw.solve` whose programs are compiled, timed between two records, without
evaluating the loss.

That the work is the same shows in steps and rows (a fedjax client fills its last batch up) and in the loss, which is the
objective after the four rounds, evaluated by us for all. `share of copy` is what must move over time and over the bandwidth
of a large copy (of both, the best of many): each sampled row once, and a client's parameters read and written once
per step (θ_m in each inner step and w_m in each of the R pulls). They can stay in a core's cache, so a share may exceed 100 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

import twofold as tw

CLIENTS, SMALLEST, LARGEST, ROWS = 20, 374, 4_641, 52_492
FEATURES, CLASSES = 784, 10
THREADS, ROUNDS, TRIES = 2, 4, 10
TASK = {"batch": 10, "epochs": 1, "eta": 0.03, "inner_steps": 5, "inner_eta": 0.03, "lam": 15.0, "pfedme_eta": 0.005,
        "classes": CLASSES, "rounds": ROUNDS, "threads": THREADS}  # fmt: skip
GOALS = {"torch": 25, "fedjax": 4, "pfl": 15, "copy": 0.3}
HAS = {"torch": ("fedavg", "pfedme"), "fedjax": ("fedavg",), "pfl": ("fedavg",)}


def sizes(smallest: int, largest: int, rows: int) -> np.ndarray:
    """CLIENTS sizes that rise from the smallest to the largest as a power of their rank, and sum to `rows`."""
    rank = np.linspace(0, 1, CLIENTS)
    low, high = 0.01, 100.0
    for _ in range(100):
        power = (low + high) / 2
        counts = np.rint(smallest + (largest - smallest) * rank**power).astype(int)
        low, high = (power, high) if counts.sum() > rows else (low, power)
    counts[CLIENTS // 2] += rows - counts.sum()  # what rounding has left
    return counts


def clients(small: bool) -> tw.Clients:
    """The split, the same in every run."""
    images = tw.data.images.load("mnist", parts=["train"])
    counts = sizes(*((n // 10 for n in (SMALLEST, LARGEST, ROWS)) if small else (SMALLEST, LARGEST, ROWS)))
    rows = np.random.default_rng(0).permutation(len(images.y))[: counts.sum()]
    return tw.Clients(images.x[rows], images.y[rows], counts, weights="rows")


def copy_bandwidth(mib: int = 512) -> float:
    """Bytes per second of a large copy by both cores (read and written both counted), the best of several."""
    source, target = np.ones((THREADS, mib << 17), np.float32), np.zeros((THREADS, mib << 17), np.float32)
    best = np.inf
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(TRIES):
            began = time.perf_counter()
            list(pool.map(np.copyto, target, source))
            best = min(best, time.perf_counter() - began)
    return 2 * source.nbytes / best


def must_move(name: str, counts: np.ndarray, task: dict) -> float:
    """Bytes of one round: each sampled row once, a client's parameters read and written once per step."""
    row, parameters = 4 * FEATURES, 4 * (FEATURES + 1) * CLASSES
    if name == "fedavg":
        return float(counts.sum() * row + 2 * parameters * np.sum(-(-counts // task["batch"])))
    batches = CLIENTS * task["local_rounds"]
    return float(batches * task["batch"] * row + 2 * parameters * batches * (task["inner_steps"] + 1))


def work(name: str, counts: np.ndarray, task: dict) -> tuple[int, int]:
    """SGD steps and sampled rows of one round."""
    if name == "fedavg":
        return int(np.sum(-(-counts // task["batch"]))), int(counts.sum())
    batches = CLIENTS * task["local_rounds"]
    return batches * task["inner_steps"], batches * task["batch"]


def problems(everyone: tw.Clients, task: dict) -> dict[str, tuple[tw.Problem, tw.algorithms.Algorithm]]:
    """What is solved, and by what."""
    loss = tw.losses.softmax(CLASSES, intercept=True)
    fedavg = tw.algorithms.LSGD(eta=task["eta"], epochs=task["epochs"], batch=task["batch"])
    same = {name: task[name] for name in ("lam", "inner_eta", "inner_steps", "local_rounds", "batch")}
    pfedme = tw.algorithms.PFedMe(eta=task["pfedme_eta"], **same)
    return {
        "fedavg": (tw.Problem(tw.objectives.traditional(loss), everyone), fedavg),
        "pfedme": (tw.Problem(tw.objectives.mixture(loss, lam=task["lam"]), everyone), pfedme),
    }


def ours(problem: tw.Problem, algorithm: tw.algorithms.Algorithm) -> dict:
    """Seconds of a round, the best of several runs; the loss after as many rounds as peers make; seconds of the first call."""
    began = time.perf_counter()
    end = tw.solve(problem, algorithm, rounds=ROUNDS, every=ROUNDS, progress=False)
    first = time.perf_counter() - began

    def run() -> float:
        seconds = tw.solve(problem, algorithm, rounds=ROUNDS, every=ROUNDS, record=(), progress=False).history[
            "seconds"
        ]
        return float(seconds[-1] - seconds[0]) / ROUNDS

    return {"seconds": min(run() for _ in range(TRIES)), "first": first, "loss": float(end.history["loss"][-1])}


def theirs(peer: str, python: str | None, folder: Path) -> tuple[dict | None, str]:
    """What a peer measured, or why there is nothing."""
    if python is None or not Path(python).exists():
        return None, "not installed"
    script = Path(__file__).with_name(f"peer_{peer}.py")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(THREADS))
    done = subprocess.run(
        [python, str(script), str(folder)], capture_output=True, text=True, check=False, env={**os.environ, **threads}
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line.split(":")[0] and line[0] != " "]
        why = errors[-1] if errors else f"exit code {done.returncode}"
        missing = why.startswith(("ModuleNotFoundError", "ImportError"))
        return None, f"{'not installed' if missing else 'failed'}: {why}"
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def loss_of(problem: tw.Problem, file: Path) -> float:
    """The objective where a peer ended."""
    end = np.load(file)
    w = {"weight": end["weight"], "bias": end["bias"]}
    beta = {"weight": end["own_weight"], "bias": end["own_bias"]} if problem.has_private else problem.start[1]
    return float(problem.value(w, beta))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in HAS:
        parser.add_argument(f"--{peer}-python", metavar="PATH", help=f"the Python of an environment with {peer}")
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, to try it out; goals do not apply")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # before JAX makes its threads; peers inherit it
    everyone = clients(arguments.small)
    task = {**TASK, "local_rounds": -(-everyone.rows // (TASK["batch"] * CLIENTS))}
    solved, rows, versions = problems(everyone, task), [], {}
    bandwidth = copy_bandwidth()
    mine = {name: ours(*solved[name]) for name in solved}
    bandwidth = max(bandwidth, copy_bandwidth())  # before and after: a moment in which others are busy would flatter us
    print(f"{everyone!r}; twofold on jax {jax.__version__}; copy {bandwidth / 1e9:.1f} GB/s", flush=True)
    print(
        f"{'work':8}{'against':15}{'peer s':>9}{'ours s':>9}{'ratio':>8}{'goal':>7}{'peer loss':>11}{'our loss':>10}"
        f"{'peer steps':>12}{'our steps':>11}{'peer rows':>11}{'our rows':>10}"
    )

    def show(name: str, against: str, goal: float, ratio: float | None, **more: object) -> None:
        steps, used = work(name, everyone.counts, task)
        row = {"work": name, "against": against, "ratio": ratio, "goal": None if arguments.small else goal,
               "seconds": mine[name]["seconds"], "loss": mine[name]["loss"], "steps": steps, "rows": used}  # fmt: skip
        rows.append(row | more)
        percent = against == "copy"
        print(
            f"{name:8}{'share of ' * percent + against:15}"
            + (f"{more['peer_seconds']:>9.3f}" if "peer_seconds" in more else f"{'':>9}")
            + f"{row['seconds']:>9.4f}"
            + (f"{'':>8}" if ratio is None else f"{ratio:>8.0%}" if percent else f"{ratio:>8.1f}")
            + ("" if row["goal"] is None else f"{goal:>7.0%}" if percent else f"{goal:>7}").rjust(7)
            + (
                f"{more['peer_loss']:>11.4f}{row['loss']:>10.4f}{more['peer_steps']:>12,}{steps:>11,}"
                f"{more['peer_rows']:>11,}{used:>10,}"
                if "peer_loss" in more
                else f"  {more.get('note', '')}"
            ),
            flush=True,
        )

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "task.npz", x=everyone.x, y=everyone.y, counts=everyone.counts)
        (folder / "task.json").write_text(json.dumps(task))
        for peer, has in HAS.items():
            found, why = theirs(peer, getattr(arguments, f"{peer}_python"), folder)
            versions[peer] = found["version"] if found else why
            for name, (problem, _) in solved.items():
                if name not in has:
                    show(name, peer, GOALS[peer], None, note=f"{peer} has no pFedMe")
                elif found is None:
                    show(name, peer, GOALS[peer], None, note=why)
                else:
                    slow = min(found[name]["seconds"][1:])
                    show(
                        name, peer, GOALS[peer], slow / mine[name]["seconds"], peer_seconds=slow,
                        peer_loss=loss_of(problem, folder / f"{name}.npz"), peer_steps=found[name]["steps"],
                        peer_rows=found[name]["rows"], peer_rounds=found[name]["seconds"],
                    )  # fmt: skip
    for name in solved:
        moved = must_move(name, everyone.counts, task)
        share = moved / mine[name]["seconds"] / bandwidth
        show(
            name,
            "copy",
            GOALS["copy"],
            share,
            note=f"{mine[name]['seconds']:.4f} s, {moved / 1e6:,.0f} MB must move",
            must_move=moved,
        )
    print("; ".join(f"{peer}: {version}" for peer, version in versions.items()))
    if arguments.json:
        out = {"copy": bandwidth, "python": sys.version.split()[0], "jax": jax.__version__, "versions": versions,
               "task": task, "counts": everyone.counts.tolist(), "ours": mine,
               "rows": rows}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(out, indent=1))
    judged = [row["ratio"] / row["goal"] for row in rows if row["ratio"] is not None and row["goal"] is not None]
    print(f"smallest ratio over goal: {min(judged, default=np.nan):.2f}")


if __name__ == "__main__":
    main()
