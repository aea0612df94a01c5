"""FedAvg by FedJAX; `peers.py` runs this in an environment with fedjax, which has no pFedMe.

    python benchmarks/peer_fedjax.py FOLDER

FOLDER holds task.npz (x, y, counts) and task.json (rounds and the step size). `fedjax.algorithms.fed_avg` with its default
backend (a compiled step, client after client) and its own batching, which fills a client's last batch up with more of its
rows: as many steps as everyone else, up to nine rows more for each client. fedjax 0.0.17 still calls `jax.tree_map`, which
JAX has since moved; it is given back here, so that fedjax runs on the same JAX as we do, where it is faster than on an old one.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree.map


def main(folder: Path) -> None:
    """Time the rounds, save where they led, print what was measured."""
    task = json.loads((folder / "task.json").read_text())
    data = np.load(folder / "task.npz")
    x, y, counts = data["x"], data["y"].astype(np.int32), data["counts"]
    cuts = np.cumsum(counts)[:-1]
    parts = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
    sets = [fedjax.ClientDataset({"x": a.copy(), "y": b.copy()}) for a, b in parts]
    forward = hk.transform(lambda batch: hk.Linear(task["classes"], w_init=jnp.zeros, name="linear")(batch["x"]))
    model = fedjax.create_model_from_haiku(
        forward,
        sets[0][:1].all_examples(),
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
    )
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=task["batch"], num_epochs=task["epochs"])
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model), fedjax.optimizers.sgd(task["eta"]), fedjax.optimizers.sgd(1.0), batches
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    key, times = jax.random.PRNGKey(1), []
    for _ in range(task["rounds"]):
        began = time.perf_counter()
        key, now = jax.random.split(key)
        keys = jax.random.split(now, len(sets))
        state, _ = algorithm.apply(state, [(m, rows, keys[m]) for m, rows in enumerate(sets)])
        jax.block_until_ready(state.params)
        times.append(time.perf_counter() - began)
    sizes = [len(batch["y"]) for rows in sets for batch in rows.shuffle_repeat_batch(batches)]
    parameters = state.params["linear"]
    np.savez(folder / "fedavg.npz", weight=parameters["w"], bias=parameters["b"])
    version = f"fedjax {importlib.metadata.version('fedjax')}, jax {jax.__version__}"
    print(
        json.dumps({"version": version, "fedavg": {"seconds": times, "steps": len(sizes), "rows": int(np.sum(sizes))}})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
