"""FedAvg, FedPer, Ditto and APFL with PFLlib's CNN as plain PyTorch loops, client after client; `nets.py` runs this.

Written the way PFLlib's clients are: a model on the client, `torch.optim.SGD`, a shuffling DataLoader, parameters that are averaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from peer_torch import average, copied


def cnn(start: dict[str, np.ndarray]) -> nn.Sequential:
    """The net, with these parameters."""
    flat = [nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(inplace=True), nn.Linear(512, 10)]
    layers = []
    for inputs, outputs in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, *flat)
    convolutions = [torch.tensor(start[f"Conv_{i}.kernel"]).permute(3, 2, 0, 1) for i in range(2)]
    first = torch.tensor(start["Dense_0.kernel"]).reshape(4, 4, 64, 512).permute(3, 2, 0, 1).reshape(512, 1024)
    weights = [*convolutions, first, torch.tensor(start["Dense_1.kernel"]).T]
    with torch.no_grad():
        for layer, weight in zip([layer for layer in net if hasattr(layer, "weight")], weights, strict=True):
            layer.weight.copy_(weight)
            layer.bias.zero_()
    return net


class Peer:
    """All clients of one method. FedPer's head is the last layer."""

    def __init__(
        self,
        name: str,
        data: Any,
        start: dict[str, np.ndarray],
        rate: float,
        batch: int,
        lam: float = 0.0,
        alpha: float = 0.5,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        counts = data["counts"].tolist()
        x, y = torch.from_numpy(data["x"]).reshape(-1, 1, 28, 28), torch.from_numpy(data["y"].astype(np.int64))
        parts = zip(torch.split(x, counts), torch.split(y, counts), strict=True)
        self.sets = [torch.utils.data.TensorDataset(a.clone(), b.clone()) for a, b in parts]
        self.shares = [n / sum(counts) for n in counts]
        self.rate, self.batch, self.lam = rate, batch, lam
        self.net, self.own, self.blend = cnn(start), cnn(start), cnn(start)
        self.shared = copied(self.net.state_dict())
        self.mine = [copied(self.shared) for _ in self.sets]
        self.alphas = [alpha] * len(self.sets)
        self.last = [key for key in self.shared if key.startswith("9.")]
        self.client, self.model = {
            "fedavg": (self.fedavg, lambda m: self.shared), "fedper": (self.fedper, self.with_head),
            "ditto": (self.ditto, lambda m: self.mine[m]), "apfl": (self.apfl, self.blended),
        }[name]  # fmt: skip

    def batches(self, m: int) -> Any:
        return torch.utils.data.DataLoader(self.sets[m], batch_size=self.batch, shuffle=True)

    def descend(self, model: nn.Module, m: int, to: dict | None = None) -> None:
        """One epoch of client m, drawn to `to` where it is given."""
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate)
        for a, b in self.batches(m):
            optimizer.zero_grad()
            cross_entropy(model(a), b).backward()
            if to is not None:
                with torch.no_grad():
                    for key, value in model.named_parameters():
                        value.grad.add_(value - to[key], alpha=self.lam)  # pyright: ignore[reportOptionalMemberAccess]
            optimizer.step()

    def fedavg(self, m: int) -> dict:
        """What client m sends."""
        self.net.load_state_dict(self.shared)
        self.descend(self.net, m)
        return copied(self.net.state_dict())

    def with_head(self, m: int) -> dict:
        return {**self.shared, **{key: self.mine[m][key] for key in self.last}}

    def fedper(self, m: int) -> dict:
        """The head stays."""
        self.net.load_state_dict(self.with_head(m))
        self.descend(self.net, m)
        self.mine[m] = copied(self.net.state_dict())
        return self.mine[m]

    def ditto(self, m: int) -> dict:
        """The own model first."""
        self.own.load_state_dict(self.mine[m])
        self.descend(self.own, m, self.shared)
        self.mine[m] = copied(self.own.state_dict())
        return self.fedavg(m)

    def blended(self, m: int) -> dict:
        c = self.alphas[m]
        return {key: (1 - c) * self.mine[m][key] + c * self.shared[key] for key in self.shared}

    def apfl(self, m: int) -> dict:
        """As PFLlib's clientAPFL: on each batch a step of the shared model, and one of the own model along the blend's gradient."""
        self.net.load_state_dict(self.shared)
        self.own.load_state_dict(self.mine[m])
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.rate)
        models = [list(model.parameters()) for model in (self.blend, self.own, self.net)]
        for i, (a, b) in enumerate(self.batches(m)):
            c = self.alphas[m]
            with torch.no_grad():
                for mixed, v, w in zip(*models, strict=True):
                    mixed.copy_((1 - c) * v + c * w)
            self.blend.zero_grad()
            cross_entropy(self.blend(a), b).backward()
            optimizer.zero_grad()
            cross_entropy(self.net(a), b).backward()
            with torch.no_grad():
                if i == 0:
                    slope = sum(float(((w - v) * mixed.grad).sum()) for mixed, v, w in zip(*models, strict=True))
                    self.alphas[m] = min(max(c - self.rate * slope, 0.0), 1.0)
                for mixed, v, _ in zip(*models, strict=True):
                    v.sub_(mixed.grad, alpha=self.rate * (1 - c))
            optimizer.step()
        self.mine[m] = copied(self.own.state_dict())
        return copied(self.net.state_dict())

    def one_round(self) -> None:
        """Client after client, and the mean."""
        self.shared = average([self.client(m) for m in range(len(self.sets))], self.shares)

    def loss(self) -> float:
        """The mean loss of everyone's own model over all training rows."""
        each = []
        with torch.no_grad():
            for m, part in enumerate(self.sets):
                self.net.load_state_dict(self.model(m))
                each.append(float(cross_entropy(self.net(part.tensors[0]), part.tensors[1])))
        return float(np.average(each, weights=self.shares))
