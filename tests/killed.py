"""A run that writes checkpoints, in a process that may be killed: python killed.py folder pace options."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import twofold as tw


def run(folder: Path, pace: str, options: dict[str, Any]) -> tw.Result:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in (5, 9, 7)])
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    slowly = [lambda record: time.sleep(0.004)] if pace == "slow" else []
    return tw.solve(
        problem, "acd", rounds=300, checkpoint=folder, checkpoint_every=10, callbacks=slowly, **options
    )  # fmt: skip


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3]))
