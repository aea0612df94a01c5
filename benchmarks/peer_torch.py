"""FedAvg and pFedMe as a plain PyTorch loop, client after client; `peers.py` runs this in an environment with torch.

    python benchmarks/peer_torch.py FOLDER

FOLDER holds task.npz (x, y, counts) and task.json (rounds, threads and the step sizes). Written the way FedLab, PFLlib and
Flower's examples are: nn.Linear, a shuffling DataLoader over a TensorDataset, an optimizer, state_dicts that are averaged.
pFedMe's optimizer and loop follow PFLlib's, but θ_m is kept from round to round, as in `twofold.algorithms.PFedMe`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Work:
    """SGD steps and rows of the last round, counted where they happen."""

    def __init__(self) -> None:
        self.steps = self.rows = 0


def average(states: list[dict], weights: list[float]) -> dict:
    """Σ p_m state_m, key by key."""
    return {key: sum(p * state[key] for p, state in zip(weights, states, strict=True)) for key in states[0]}


def copied(state: dict) -> dict:
    """A state_dict that training does not change."""
    return {key: value.clone() for key, value in state.items()}


def fedavg(task: dict, sets: list[TensorDataset], weights: list[float], model: nn.Module, shared: dict, work: Work):
    """One round: every client makes `epochs` passes over its own rows from the shared state."""
    loss_of, states = nn.CrossEntropyLoss(), []
    for rows in sets:
        model.load_state_dict(shared)
        optimizer = torch.optim.SGD(model.parameters(), lr=task["eta"])
        loader = DataLoader(rows, batch_size=task["batch"], shuffle=True)
        for _ in range(task["epochs"]):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
                work.steps += 1
                work.rows += len(y)
        states.append(copied(model.state_dict()))
    return average(states, weights)


class MoreauOptimizer(torch.optim.Optimizer):
    """θ −= lr (∇f̂(θ) + λ(θ − w)), as PFLlib's pFedMeOptimizer."""

    def __init__(self, parameters, lr: float, lam: float) -> None:
        super().__init__(parameters, {"lr": lr, "lam": lam})

    @torch.no_grad()
    def step(self, local: list[torch.Tensor]) -> None:
        """One inner step, w being `local`."""
        for group in self.param_groups:
            for theta, w in zip(group["params"], local, strict=True):
                theta.sub_(group["lr"] * (theta.grad + group["lam"] * (theta - w)))


def pfedme(
    task: dict,
    sets: list[TensorDataset],
    weights: list[float],
    model: nn.Module,
    shared: dict,
    own: list[dict],
    work: Work,
):
    """One round: R batches for every client, on each K inner steps of θ_m and one pull of w_m."""
    loss_of, states = nn.CrossEntropyLoss(), []
    for m, rows in enumerate(sets):
        model.load_state_dict(own[m])
        local = [value.clone() for value in shared.values()]
        optimizer = MoreauOptimizer(model.parameters(), task["inner_eta"], task["lam"])
        sampler = RandomSampler(rows, replacement=True, num_samples=task["local_rounds"] * task["batch"])
        for x, y in DataLoader(rows, batch_size=task["batch"], sampler=sampler):
            for _ in range(task["inner_steps"]):
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step(local)
                work.steps += 1
            work.rows += len(y)
            with torch.no_grad():
                for w, theta in zip(local, model.parameters(), strict=True):
                    w.sub_(task["pfedme_eta"] * task["lam"] * (w - theta))
        own[m] = copied(model.state_dict())
        states.append(dict(zip(shared, local, strict=True)))
    return average(states, weights)


def main(folder: Path) -> None:
    """Time the rounds, save where they led, print what was measured."""
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    data = np.load(folder / "task.npz")
    x, y, counts = torch.from_numpy(data["x"]), torch.from_numpy(data["y"].astype(np.int64)), data["counts"].tolist()
    parts = zip(torch.split(x, counts), torch.split(y, counts), strict=True)
    sets = [TensorDataset(a.clone(), b.clone()) for a, b in parts]
    weights = [n / sum(counts) for n in counts]
    out = {"version": f"torch {torch.__version__}"}
    for name in ("fedavg", "pfedme"):
        model = nn.Linear(x.shape[1], task["classes"])
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        shared, own = copied(model.state_dict()), [copied(model.state_dict()) for _ in sets]
        times = []
        for _ in range(task["rounds"]):
            work, began = Work(), time.perf_counter()
            if name == "fedavg":
                shared = fedavg(task, sets, weights, model, shared, work)
            else:
                shared = pfedme(task, sets, weights, model, shared, own, work)
            times.append(time.perf_counter() - began)
        out[name] = {"seconds": times, "steps": work.steps, "rows": work.rows}
        saved = {"weight": shared["weight"].T.numpy(), "bias": shared["bias"].numpy()}
        if name == "pfedme":
            saved["own_weight"] = np.stack([state["weight"].T.numpy() for state in own])
            saved["own_bias"] = np.stack([state["bias"].numpy() for state in own])
        np.savez(folder / f"{name}.npz", **saved)
    print(json.dumps(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
