"""How near one accelerator's memory bandwidth the methods come, as a share of a copy measured in the same run.

    python benchmarks/gpu.py [--case a|b|million|small] [--rows bfloat16] [--json FILE]

Case a: 100,000 clients × 20 rows; case b: 1,000 clients × 1,000 rows; case million: 1,000,000 clients × 5 rows; all with 784
features × 10 classes, softmax mixture. A method that does not fit says so with its arithmetic.
The bytes that must move in an iteration are counted once each: every row that it uses, and every sequence of w and β that
it reads and writes. Iterations are timed as the engine runs them, many in one call. With `--rows bfloat16` features are kept
in two bytes each, and two are counted.
"""

from __future__ import annotations

import argparse
import json
import time

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


def must_move(name: str, clients: int, rows: int, itemsize: int, tau: int) -> float:
    """Bytes of one iteration: rows used once (`itemsize` bytes a feature), parameters read and written once per step."""
    beta, row = clients * FEATURES * CLASSES * 4, clients * FEATURES * itemsize
    if name == "acd":  # all rows; y and z read and written
        return rows * row + 4 * beta
    if name == "lsgd":  # each of τ steps: one row; w_m and β_m read and written
        return tau * (row + 4 * beta)
    return 1 * row + (4 + 2) * beta  # asvrcd, a silent iteration: one row; y, z read and written, v and ∇F(v) read


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
        if name != "lsgd":  # only silent iterations, the kind that theory makes the most frequent
            algorithm = type(algorithm)(
                **{**vars(algorithm), "p_w": 1e-9, **({"rho": 1e-9} if name == "asvrcd" else {})}
            )
        kind, options = engines.choose("simulate", algorithm, task)
        try:
            engine = kind(algorithm, task, [0], task.host_start, 0, **options)
        except ValueError as error:
            print(f"{name:8}{error}", flush=True)
            out["rows"].append({"method": name, "share": None, "note": str(error)})
            continue
        count = ITERATIONS[case]
        nowhere = np.zeros(count, np.int32)
        engine.advance(0, count, nowhere)
        engine.wait()
        times = []
        for i in range(3):
            began = time.perf_counter()
            engine.advance(count * (i + 1), count, nowhere)
            engine.wait()
            times.append((time.perf_counter() - began) / count)
        moved = must_move(name, clients, rows, 4 if arguments.rows is None else 2, 5)
        share = moved / min(times) / bandwidth
        memory = device.memory_stats() or {}
        peak = memory.get("peak_bytes_in_use", 0) / 2**30
        row = {"method": name, "ms": 1e3 * min(times), "must_move_GB": moved / 1e9, "share": share, "peak_GiB": peak}
        row["engine"] = kind.__name__
        out["rows"].append(row)
        print(
            f"{name:8}{row['ms']:10.3f} ms{row['must_move_GB']:9.2f} GB{100 * share:7.0f} % of copy, peak {peak:.1f} GiB",
            flush=True,
        )
        del engine
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(out, file, indent=1)


if __name__ == "__main__":
    main()
