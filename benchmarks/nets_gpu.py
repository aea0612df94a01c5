"""Rounds of PFLlib's CNN on one accelerator: 20 clients of Fashion-MNIST, Dirichlet(0.1), one epoch of batches of 10.

    python benchmarks/pfllib.py --pack fmnist.npz --data fmnist            # where the images are
    PYTHONPATH=src python benchmarks/nets_gpu.py --from fmnist.npz [--rounds 30] [--json FILE]

Each row is a call of `tw.solve` with all test rows graded after every round, in float32 with the card's default products (TF32); its
time is that between the second record and the last, so without compilation. PyTorch, where it is installed, does three rounds of
FedAvg on the same card as PFLlib does: client after client, batches from a DataLoader; the best of them counts.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

import twofold as tw
from twofold.paper import pfllib, pfllib_data

ROWS: tuple[tuple[str, str, dict[str, Any], int, float | None], ...] = (
    ("FedAvg", "fedavg", {}, 1, 0.15),
    ("FedAvg, bfloat16", "fedavg", {"dtype": "bfloat16"}, 1, None),
    ("FedPer", "fedper", {}, 1, None),
    ("Ditto", "ditto", {}, 1, 0.3),
    ("FedAvg, three seeds", "fedavg", {}, 3, None),
)
"""What is run, how many seeds, and the most seconds a round."""
MORE_SEEDS, TORCH = 1.5, 50.0
"""Goals: three seeds by one, and PyTorch by FedAvg."""


def ours(clients: tw.Clients, test: tw.Clients, name: str, net: dict[str, Any], seeds: int, rounds: int) -> float:
    """Seconds a round."""
    loss = tw.losses.net(pfllib.cnn(), **net)
    method = tw.methods.REGISTRY[name](loss, **pfllib.COMMON, **pfllib.METHODS[name])
    many: dict[str, Any] = {"seeds": seeds} if seeds > 1 else {"seed": 0}
    found: Any = tw.solve(method.problem(clients), method.algorithm, rounds=rounds, record=(), test=test, **many)
    history = (found[0] if seeds > 1 else found).history
    seconds, done = history["seconds"], history["round"]
    return float((seconds[-1] - seconds[2]) / (done[-1] - done[2]))


def theirs(clients: tw.Clients) -> float:
    """Seconds of PyTorch's best round of three."""
    import torch
    from torch import nn

    from peer_torch import average, copied

    card = "cuda" if torch.cuda.is_available() else "cpu"
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(inplace=True), nn.Linear(512, 10)).to(card)
    sets = [
        torch.utils.data.TensorDataset(
            torch.from_numpy(np.ascontiguousarray(np.moveaxis(one.x, -1, 1))), torch.from_numpy(one.y.astype(np.int64))
        )
        for one in clients
    ]
    shares, shared, best = [len(one) / clients.rows for one in sets], copied(net.state_dict()), np.inf
    for _ in range(3):
        began, states = time.perf_counter(), []
        for rows in sets:
            net.load_state_dict(shared)
            optimizer = torch.optim.SGD(net.parameters(), lr=pfllib.COMMON["lr"])
            for x, y in torch.utils.data.DataLoader(rows, pfllib.COMMON["batch"], shuffle=True, drop_last=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x.to(card)), y.to(card)).backward()
                optimizer.step()
            states.append(copied(net.state_dict()))
        shared = average(states, shares)
        float(next(iter(shared.values())).sum())  # all of it is done
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", dest="given", type=Path, required=True, help="the pack that benchmarks/pfllib.py wrote"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, help="of each client at most so many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", tw.TheoryWarning)
    clients, test = pfllib_data.read(arguments.given).clients("dirichlet", arguments.rows)
    found: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "seconds": {}}
    print(f"{found['device']}, jax {found['jax']}; {clients.rows:,} rows for training, {test.rows:,} for testing")
    for told, name, net, seeds, most in ROWS:
        jax.clear_caches()
        seconds = found["seconds"][told] = ours(clients, test, name, net, seeds, arguments.rounds)
        print(f"{told:22}{seconds:8.3f} s a round" + ("" if most is None else f" (at most {most})"), flush=True)
    more = found["seconds"]["FedAvg, three seeds"] / found["seconds"]["FedAvg"]
    print(f"three seeds by one    {more:8.2f} (at most {MORE_SEEDS})")
    if find_spec("torch") is not None:
        found["torch"] = theirs(clients)
        ratio = found["torch"] / found["seconds"]["FedAvg"]
        print(f"PyTorch, FedAvg       {found['torch']:8.2f} s a round: {ratio:.0f}× (goal {TORCH:.0f}×)")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
