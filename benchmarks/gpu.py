"""How near whole runs come to one accelerator's memory bandwidth, as a share of a copy measured in the same process.

    python benchmarks/gpu.py [--case a|b|million|small] [--feature-dtype bfloat16] [--json FILE]

Case a: 100,000 clients × 20 rows; case b: 1,000 clients × 1,000 rows; case million: 1,000,000 clients × 5 rows; all with 784
features × 10 classes, softmax mixture. A row is a call of `tw.solve` with theory's coins, the second one, whose programs are
compiled; its time is that between the records at the start and at the end, so without the start itself and without the copy of
the result to the host. The bytes that must move in an iteration are counted once each: every row that it uses, and every sequence
of w and β that it reads and writes. A method that does not fit says so with its arithmetic.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold.solver import complete
from twofold.theory.constants import Constants

CASES = {"a": (100_000, 20), "b": (1_000, 1_000), "million": (1_000_000, 5), "small": (500, 20)}
ROUNDS = {"a": 40, "b": 200, "million": 10, "small": 40}
"""Of one run."""
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
    return tw.Problem(tw.objectives.mixture(tw.losses.softmax(CLASSES, l2=1e-3), lam=0.1), everyone, feature_dtype=kept)


def must_move(name: str, clients: int, rows: int, itemsize: int, algorithm: Any) -> float:
    """Bytes of one iteration: rows used once (`itemsize` bytes a feature), parameters read and written once per step.

    On average over the coins: who changes w alone uses no rows here, and a refresh of ASVRCD uses all rows and writes v and ∇F(v).
    """
    beta, row = clients * FEATURES * CLASSES * 4, clients * FEATURES * itemsize
    if name == "lsgd":  # each of τ steps: one row; w_m and β_m read and written
        return algorithm.tau * (row + 4 * beta)
    used = 1 - float(algorithm.p_w)
    if name == "acd":  # all rows; y and z read and written
        return used * rows * row + 4 * beta
    # asvrcd: one row; y, z read and written, v and ∇F(v) read
    return used * row + (4 + 2) * beta + float(algorithm.rho) * (rows * row + 2 * beta)


def timed(task: tw.Problem, algorithm: Any, rounds: int) -> dict[str, float]:
    """A run whose programs are compiled: its iterations, and the milliseconds of one."""
    for _ in range(2):
        result = tw.solve(task, algorithm, rounds=rounds, every=rounds, record=(), progress=False)
        seconds = result.history["seconds"]
        found = {
            "iterations": result.ledger.iterations,
            "ms": 1e3 * (seconds[-1] - seconds[0]) / result.ledger.iterations,
        }
        del result  # everyone's β, on the host
    return found


def write(path: str | None, out: dict) -> None:
    """What is known so far, for whoever runs out of time."""
    if path:
        with open(path, "w") as file:
            json.dump(out, file, indent=1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="default: b on an accelerator, small on a CPU")
    parser.add_argument("--feature-dtype", choices=["bfloat16"], help="how features are kept; default: as float32")
    parser.add_argument("--methods", default="acd,lsgd,asvrcd")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    case = arguments.case or ("small" if device.platform == "cpu" else "b")
    clients, rows = CASES[case]
    bandwidth = copy_bandwidth(0.25 if device.platform == "cpu" else 4.0)
    print(f"{device.device_kind}, jax {jax.__version__}; copy {bandwidth / 1e9:,.0f} GB/s")
    task = problem(clients, rows, arguments.feature_dtype)
    constants = Constants(
        mu=1e-4 / clients, L_w=0.1 / clients, L_beta=0.6 / clients, calL_w=0.1 / clients, calL_beta=0.6 / clients
    )
    out = {"device": device.device_kind, "jax": jax.__version__, "copy": bandwidth, "case": case,
           "feature_dtype": arguments.feature_dtype, "rows": []}  # fmt: skip
    for name in arguments.methods.split(","):
        algorithm, _ = complete(task, name, constants)
        moved = must_move(name, clients, rows, 4 if arguments.feature_dtype is None else 2, algorithm)
        row: dict[str, Any] = {"method": name, "must_move_GB": moved / 1e9, "p_w": getattr(algorithm, "p_w", None)}
        out["rows"].append(row)
        try:
            row |= timed(task, algorithm, arguments.rounds or ROUNDS[case])
        except (
            ValueError,
            jax.errors.JaxRuntimeError,
        ) as error:  # it does not fit, by our arithmetic or by the device's
            row |= {"share": None, "note": str(error).splitlines()[0]}
            print(f"{name:8}{row['note']}", flush=True)
            write(arguments.json, out)
            continue
        row["share"] = moved / (row["ms"] / 1e3) / bandwidth
        row["peak_GiB"] = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
        print(
            f"{name:8}{row['iterations']:6,} iterations{row['ms']:10.3f} ms{row['must_move_GB']:9.2f} GB"
            f"{100 * row['share']:7.0f} % of copy; peak {row['peak_GiB']:.1f} GiB", flush=True,
        )  # fmt: skip
        write(arguments.json, out)


if __name__ == "__main__":
    main()
