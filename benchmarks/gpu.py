"""How near one accelerator's memory bandwidth the methods come, as a share of a copy measured in the same run.

    python benchmarks/gpu.py [--case a|b|million|small] [--rows bfloat16] [--json FILE]

Case a: 100,000 clients × 20 rows; case b: 1,000 clients × 1,000 rows; case million: 1,000,000 clients × 5 rows; all with 784
features × 10 classes, softmax mixture. A method that does not fit says so with its arithmetic.
The bytes that must move in an iteration are counted once each: every row that it uses, and every sequence of w and β that
it reads and writes. Iterations are timed as the engine runs them, many in one call: of ACD and ASVRCD silent ones, the most
frequent kind, and then all kinds, with the coins of theory. With `--rows bfloat16` features are kept
in two bytes each, and two are counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold import engines
from twofold.solver import complete
from twofold.theory.constants import Constants

CASES = {"a": (100_000, 20), "b": (1_000, 1_000), "million": (1_000_000, 5), "small": (500, 20)}
ITERATIONS = {"a": 24, "b": 240, "million": 8, "small": 24}
"""In one call, as `solve` does between two records."""
FEATURES, CLASSES = 784, 10


def copy_bandwidth(gib: float = 4.0) -> float:
    """Bytes per second of a large copy (read and written both counted), many in a row, the best of several."""
    x = jnp.zeros((int(gib * 2**30) // 4,), jnp.float32)
    copy = jax.jit(lambda x: x + 1, donate_argnums=0)
    best, count = np.inf, 10
    for _ in range(5):
        x = copy(x).block_until_ready()
        began = time.perf_counter()
        for _ in range(count):
            x = copy(x)
        x.block_until_ready()
        best = min(best, (time.perf_counter() - began) / count)
    return 2 * x.nbytes / best


def problem(clients: int, rows: int, kept: str | None = None) -> tw.Problem:
    """A softmax mixture on random data."""
    rng = np.random.default_rng(0)
    few = rng.standard_normal((min(clients * rows, 10_000), FEATURES), dtype=np.float32) / np.float32(FEATURES**0.5)
    x = np.tile(few, (clients * rows // len(few), 1))  # the same rows again and again: nobody looks at them
    y = rng.integers(0, CLASSES, clients * rows).astype(np.int32)
    everyone = tw.Clients(x, y, np.full(clients, rows, np.int32))
    return tw.Problem(tw.objectives.mixture(tw.losses.softmax(CLASSES, l2=1e-3), lam=0.1), everyone, rows=kept)


def must_move(name: str, clients: int, rows: int, itemsize: int, algorithm: Any) -> float:
    """Bytes of one iteration: rows used once (`itemsize` bytes a feature), parameters read and written once per step.

    With coins, on average: who changes w alone uses no rows here, and a refresh of ASVRCD uses all rows and writes v and ∇F(v).
    """
    beta, row = clients * FEATURES * CLASSES * 4, clients * FEATURES * itemsize
    if name == "lsgd":  # each of τ steps: one row; w_m and β_m read and written
        return algorithm.tau * (row + 4 * beta)
    used = 1 - float(algorithm.p_w)
    if name == "acd":  # all rows; y and z read and written
        return used * rows * row + 4 * beta
    # asvrcd: one row; y, z read and written, v and ∇F(v) read
    return used * row + (4 + 2) * beta + float(algorithm.rho) * (rows * row + 2 * beta)


def silent(algorithm: Any) -> Any:
    """The same with coins that never fall: only silent iterations, the kind that theory makes the most frequent."""
    coins = {"p_w": 1e-9} | ({"rho": 1e-9} if hasattr(algorithm, "rho") else {})
    return type(algorithm)(**{**vars(algorithm), **coins})


def timed(algorithm: Any, task: tw.Problem, count: int, of: Callable[[list[float]], Any]) -> tuple[float, str]:
    """Milliseconds per iteration of stretches of `count` as `solve` runs them, the least or the mean, and the engine."""
    kind, options = engines.choose("simulate", algorithm, task)
    engine = kind(algorithm, task, [0], task.host_start, 0, **options)
    nowhere, times = np.zeros(count, np.int32), []
    for i in [0, 1, 2] * 2:  # the first time every kind of iteration is compiled
        began = time.perf_counter()
        engine.advance(count * i, count, nowhere)
        engine.wait()
        times.append(1e3 * (time.perf_counter() - began) / count)
    return float(of(times[3:])), kind.__name__


def write(path: str | None, out: dict) -> None:
    """What is known so far, for whoever runs out of time."""
    if path:
        with open(path, "w") as file:
            json.dump(out, file, indent=1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="default: b on an accelerator, small on a CPU")
    parser.add_argument("--rows", choices=["bfloat16"], help="how features are kept; default: as float32")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    case = arguments.case or ("small" if device.platform == "cpu" else "b")
    clients, rows = CASES[case]
    bandwidth = copy_bandwidth(0.25 if device.platform == "cpu" else 4.0)
    print(f"{device.device_kind}, jax {jax.__version__}; copy {bandwidth / 1e9:,.0f} GB/s")
    task = problem(clients, rows, arguments.rows)
    M = clients
    constants = Constants(mu=1e-4 / M, L_w=0.1 / M, L_beta=0.6 / M, calL_w=0.1 / M, calL_beta=0.6 / M)
    out = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "copy": bandwidth,
        "case": case,
        "kept": arguments.rows,
        "rows": [],
    }
    for name in ("acd", "lsgd", "asvrcd"):
        algorithm, _ = complete(task, name, constants)
        moved = partial(must_move, name, clients, rows, 4 if arguments.rows is None else 2)
        quiet = algorithm if name == "lsgd" else silent(algorithm)  # of LSGD, every iteration is a round
        row: dict[str, Any] = {"method": name, "must_move_GB": moved(quiet) / 1e9}
        out["rows"].append(row)
        try:
            row["ms"], row["engine"] = timed(quiet, task, ITERATIONS[case], min)
            if quiet is not algorithm:
                row["run_ms"], _ = timed(algorithm, task, 2 * ITERATIONS[case], np.mean)
        except ValueError as error:
            print(f"{name:8}{error}", flush=True)
            row |= {"share": None, "note": str(error)}
            write(arguments.json, out)
            continue
        row["share"] = moved(quiet) / (row["ms"] / 1e3) / bandwidth
        row["peak_GiB"] = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
        line = f"{name:8}{row['ms']:10.3f} ms{row['must_move_GB']:9.2f} GB{100 * row['share']:7.0f} % of copy"
        if "run_ms" in row:
            row["p_w"], row["run_share"] = float(algorithm.p_w), moved(algorithm) / (row["run_ms"] / 1e3) / bandwidth
            line += f"; with theory's coins {row['run_ms']:.3f} ms, {100 * row['run_share']:.0f} %"
        print(f"{line}; peak {row['peak_GiB']:.1f} GiB", flush=True)
        write(arguments.json, out)


if __name__ == "__main__":
    main()
