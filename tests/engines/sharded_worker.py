"""Run by test_sharded.py: one process of a sharded run; prints its results as JSON.

python sharded_worker.py DEVICES PROCESS PROCESSES PORT
"""

import json
import os
import sys

if __name__ == "__main__":
    devices, process, processes, port = (int(a) for a in sys.argv[1:])
    more = os.environ.get("XLA_FLAGS", "")  # those of conftest.py, with which programs compile in half the time
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {more}"
    os.environ["JAX_PLATFORMS"] = "cpu"

    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)

import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold.engines import memory


def problem(buckets=None, precondition=None):
    """Seven unequal clients: no number of devices but one divides them."""
    rng = np.random.default_rng(5)
    pairs = []
    for _ in range(7):
        x = rng.normal(size=(int(rng.integers(4, 12)), 3))
        pairs.append((x, (x @ rng.normal(size=3) + rng.normal(size=len(x)) > 0).astype(int)))
    objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    return tw.Problem(objective, tw.Clients.from_list(pairs), buckets=buckets, precondition=precondition)


def summary(run):
    """Everything that must agree between engines."""
    ledger = run.ledger.as_dict()
    history = {name: run.history[name].tolist() for name in ("round", "iteration", "loss", "size", "bytes")}
    return {"w": run.w.tolist(), "beta": run.beta.tolist(), "ledger": ledger, "history": history}


def runs(engine):
    """Methods that use everything (a receive, a table, epochs, two coins, a step or a chance of each client's own), bucketed or not,
    and one in a metric.

    Over many devices all but the first let a device's clients take turns, one at a time. (It would have to copy its tables.)
    """
    options = {"rounds": 6, "record": {"loss": "loss", "size": lambda w, b: jnp.sum(b**2)}, "engine": engine}
    plain, bucketed = problem(), problem([[0, 3, 4], [5, 1, 2, 6]])
    out = {"l2sgd_plus": summary(tw.solve(bucketed, "l2sgd_plus", seed=3, **options))}
    memory.SPREAD, memory.CHUNK = (0, 1) if engine == "sharded" else (memory.SPREAD, memory.CHUNK)
    metric = problem(precondition="matrix")
    out["epochs"] = summary(tw.solve(metric, tw.algorithms.LSGD(epochs=1, batch=3), seed=3, **options))
    out["seeds"] = [summary(run) for run in tw.solve(bucketed, "asvrcd", seeds=[3, 4], **options)]
    out["scafflix"] = summary(tw.solve(bucketed, "scafflix", seed=3, **options))
    chances = (0.9, 0.3, 0.5, 1.0, 0.7, 0.4, 0.6)
    out["saga"] = summary(tw.solve(plain, tw.algorithms.SAGA(inner=2), seed=3, participation=chances, **options))
    return out


if __name__ == "__main__":
    print("RESULT" + json.dumps(runs("sharded")))
