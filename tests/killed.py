"""Ends `twofold run` by SIGKILL at random moments and holds what is resumed against a run that nobody disturbed.

    python tests/killed.py                            ten moments on each of two engines, and a verdict
    python tests/killed.py --times 3 --engines streamed

A trial starts a run with checkpoints in a process of its own, ends it at a random moment, and starts it again with --resume (or
anew, where it had not come to its first checkpoint) until it is over. Every other moment is drawn from the whole time that such a
run takes, most of which is start and compilation; the others from the time after its first checkpoint. Model, history, ledger and
status must then be those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import twofold
from twofold.result import Result

CONFIG = """
[data]
source = "synthetic-mixture"
sigma_h = 0.3
clients = 4
rows = 12
features = 3
[loss]
name = "logistic"
l2 = 0.1
[objective]
name = "mixture"
lam = 0.5
[algorithm]
name = "asvrcd"
[stop]
rounds = {rounds}
[record]
metrics = ["loss", "gradient_norm"]
[run]
seed = 3
x64 = true
checkpoint_every = 10
{engine}
"""
ENGINES = {"simulate": 'engine = "simulate"', "streamed": 'engine = "streamed"\nchunk = 2'}
FOREVER = 300.0


class Runs:
    """The runs of one configuration on one engine, all in one folder, with their compiled programs."""

    def __init__(self, folder: Path, engine: str, rounds: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / "run.toml").write_text(CONFIG.format(rounds=rounds, engine=ENGINES[engine]), encoding="utf-8")
        self._environment = os.environ | {
            "PYTHONPATH": str(Path(twofold.__file__).parents[1]),  # the same package, wherever the process starts
            "XDG_CACHE_HOME": str(folder / "compiled"),  # where the command line keeps its programs
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def checkpoints(self, name: str) -> list[Path]:
        """The checkpoints of a run."""
        return sorted((self.folder / name / "checkpoints").rglob("checkpoint-*"))

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a run, or go on with it where it has checkpoints."""
        resume = ["--resume"] if self.checkpoints(name) else []
        command = [sys.executable, "-m", "twofold.cli", "run", "run.toml", "--out", name, "-q", *resume]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment)

    def reach_checkpoint(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until a run has written its first checkpoint, or is over."""
        deadline = time.monotonic() + FOREVER
        while not self.checkpoints(name) and process.poll() is None:
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.002)

    def finish(self, name: str) -> Result:
        """Start a run, or go on with it, and wait for its end."""
        process = self.start(name)
        assert process.wait(FOREVER) == 0, f"twofold run ended with {process.returncode}"
        return Result.load(self.folder / name)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """End a process at once; whether it was still at work."""
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return alive


def differences(one: Result, other: Result) -> list[str]:
    """What is not the same to the last bit in two results, the time they took apart."""
    found = [name for name in ("w", "beta") if not np.array_equal(getattr(one, name), getattr(other, name))]
    if list(one.history) != list(other.history):
        found.append("the columns of the history")
    found += [
        f"history[{name!r}]"
        for name in one.history
        if name != "seconds" and not np.array_equal(one.history[name], other.history.get(name))
    ]
    if one.ledger.as_dict() != other.ledger.as_dict():
        found.append("ledger")
    if (one.status, one.message) != (other.status, other.message):
        found.append("status")
    return found


def trials(engine: str, times: int, rounds: int, rng: random.Random, folder: Path) -> int:
    """Do `times` trials on one engine; gives the number of those whose result differs."""
    runs, wrong, done = Runs(folder / engine, engine, rounds), 0, 0
    expected = runs.finish("first")  # it compiles
    began = time.monotonic()
    process = runs.start("whole")
    runs.reach_checkpoint("whole", process)
    first = time.monotonic() - began
    assert process.wait(FOREVER) == 0
    took, again = time.monotonic() - began, Result.load(runs.folder / "whole")
    assert not differences(expected, again), "two undisturbed runs differ already"
    how_long = f"{took:.1f} s, {first:.1f} s until its first checkpoint, {expected.ledger.iterations:,} iterations"
    print(f"{engine}: an undisturbed run takes {how_long}", flush=True)
    for attempt in itertools.count():
        if done == times:
            break
        name, process = f"trial-{attempt}", runs.start(f"trial-{attempt}")
        since, later = time.monotonic(), bool(done % 2)
        if later:
            runs.reach_checkpoint(name, process)
        time.sleep(rng.uniform(0, took - first if later else took))
        moment = time.monotonic() - since
        if not kill(process) or (runs.folder / name / "result.json").exists():
            # It was over by then: that is no trial, and the machine has become faster.
            took, first = min(took, moment), first * min(1.0, moment / took)
            continue
        there = [int(file.stem.split("-")[-1]) for file in runs.checkpoints(name)]
        found = differences(runs.finish(name), expected)
        wrong, done = wrong + bool(found), done + 1
        last = f"after the checkpoint at iteration {there[-1]:,}" if there else "before its first checkpoint"
        print(f"  killed at {moment:5.2f} s, {last}: {', '.join(found) or 'equal'}", flush=True)
    return wrong


def main() -> int:
    """Read the options, run the trials, and say what came of them; 1 if a resumed run differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=10, help="trials on each engine")
    parser.add_argument("--rounds", type=int, default=4000, help="the length of a run")
    parser.add_argument("--engines", default="simulate,streamed", help=f"some of {', '.join(ENGINES)}")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="twofold-killed-") as folder:
        wrong = {
            engine: trials(engine, options.times, options.rounds, rng, Path(folder))
            for engine in options.engines.split(",")
        }
    for engine, count in wrong.items():
        print(f"{engine}: {options.times - count} of {options.times} resumed runs equal the undisturbed one")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
