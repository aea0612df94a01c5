"""FedAvg by Apple's pfl; `peers.py` runs this in an environment with pfl[pytorch], which has no pFedMe.

    python benchmarks/peer_pfl.py FOLDER

FOLDER holds task.npz (x, y, counts) and task.json (rounds, threads and the step size). `pfl.algorithm.FederatedAveraging` on
a PyTorch model in the simulated backend, one process. Its in-memory datasets cut a client's rows into batches once, in the
warm-up round, and never reshuffle them: pfl does less here than the others do.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Softmax(torch.nn.Linear):
    """A linear model with the two methods that pfl asks for; it counts its steps and their rows."""

    steps = rows = 0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of a batch."""
        self.steps += 1
        self.rows += len(y)
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        """What an evaluation reports (only the warm-up round has one: pfl always evaluates the first)."""
        return {"loss": Weighted(torch.nn.functional.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Watch(TrainingProcessCallback):
    """When training began and when each round was over."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start."""
        self.stamps.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time, go on."""
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def main(folder: Path) -> None:
    """Time the rounds, save where they led, print what was measured."""
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(task["threads"])
    data = np.load(folder / "task.npz")
    x, y, counts = torch.from_numpy(data["x"]), torch.from_numpy(data["y"].astype(np.int64)), data["counts"].tolist()
    parts = zip(torch.split(x, counts), torch.split(y, counts), strict=True)
    sets = [PyTorchTensorDataset((a.clone(), b.clone()), user_id=str(m)) for m, (a, b) in enumerate(parts)]
    everyone = FederatedDataset(sets.__getitem__, MinimizeReuseUserSampler(list(range(len(sets)))))
    module = Softmax(x.shape[1], task["classes"])
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    watch = Watch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task["rounds"],
            evaluation_frequency=10**9,
            train_cohort_size=len(sets),
            val_cohort_size=None,
        ),
        SimulatedBackend(everyone, everyone, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=task["batch"], local_num_epochs=task["epochs"], local_learning_rate=task["eta"]
        ),
        NNEvalHyperParams(local_batch_size=None),
        [watch],
        send_metrics_to_platform=False,
    )
    np.savez(folder / "fedavg.npz", weight=module.weight.detach().T.numpy(), bias=module.bias.detach().numpy())
    work = {"steps": module.steps // task["rounds"], "rows": module.rows // task["rounds"]}
    version = f"pfl {importlib.metadata.version('pfl')}, torch {torch.__version__}"
    print(json.dumps({"version": version, "fedavg": {"seconds": np.diff(watch.stamps).tolist(), **work}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
