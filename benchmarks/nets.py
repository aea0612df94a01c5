"""Rounds of FedAvg with PFLlib's CNN on one core: plain flax convolutions in twofold against PyTorch, client after client.

    taskset -c 0 python benchmarks/nets.py [--torch-python PATH] [--turns 5] [--rows 200] [--plain] [--json FILE]

The net is PFLlib's: two valid 5×5 convolutions (32 and 64 channels), each followed by relu and a 2×2 max-pool, then 512 and 10
units; 582,026 parameters. 20 clients of Fashion-MNIST with --rows images each, batches of 10, one reshuffled epoch a round,
plain steps of 0.005. Both sides start at the same parameters, in processes of their own that wait while the other one works:
a turn is one round of PyTorch (`peer_torch.fedavg`) and then one of ours. Seconds are CPU seconds of the process, all threads
counted, per gradient step; the median of the turns counts. `first` is what the first round costs more than the median one:
tracing, compiling and XLA's own start for us, PyTorch's first touch of its libraries for them. `memory` is the peak of the
process. `loss` is the mean over all rows after the last turn: the work is the same, only the shuffles differ.

`--plain` leaves our convolutions to XLA. It is about ten times as slow: take --rows 20.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, BATCH, RATE, PARAMETERS = 20, 10, 0.005, 582_026
GOAL, FIRST, MEMORY = 1.5, 15.0, 1e9
ALONE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}


def ours(data: Any, start: dict[str, np.ndarray], plain: bool) -> tuple[Callable[[], None], Callable[[], float]]:
    """One round of LSGD as FedAvg, and the loss where it is now."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    import twofold as tw
    from twofold.convolutions import fast

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = x.reshape(len(x), 28, 28, 1)
            for channels in (32, 64):
                x = nn.max_pool(nn.relu(nn.Conv(channels, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
            x = nn.relu(nn.Dense(512)(x.reshape(len(x), -1)))
            return nn.Dense(10)(x)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = Net().apply({"params": params}, x)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], -1)[:, 0])  # pyright: ignore

    params: dict[str, dict[str, np.ndarray]] = {}
    for name, value in start.items():
        layer, part = name.split(".")
        params.setdefault(layer, {})[part] = value
    everyone = tw.Clients(data["x"], data["y"], data["counts"], weights="rows")
    held = tw.losses.custom(loss if plain else fast(loss), init=params, L=1.0, calL=1.0)
    problem = tw.Problem(tw.objectives.traditional(held), everyone)
    algorithm = tw.algorithms.LSGD(eta=RATE, epochs=1, batch=BATCH)
    w, rounds = problem.start[0], 0

    def one_round() -> None:
        nonlocal w, rounds
        here = (w, problem.start[1])
        w = tw.solve(problem, algorithm, rounds=1, record=(), progress=False, seed=rounds, start=here).w
        rounds += 1

    return one_round, lambda: float(problem.value(w, problem.start[1]))


def theirs(data: Any, start: dict[str, np.ndarray]) -> tuple[Callable[[], None], Callable[[], float]]:
    """One round of peer_torch's FedAvg, and the loss where it is now."""
    import torch
    from torch import nn

    import peer_torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
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
    counts = data["counts"].tolist()
    x, y = torch.from_numpy(data["x"]).reshape(-1, 1, 28, 28), torch.from_numpy(data["y"].astype(np.int64))
    parts = zip(torch.split(x, counts), torch.split(y, counts), strict=True)
    sets = [torch.utils.data.TensorDataset(a.clone(), b.clone()) for a, b in parts]
    shares = [n / sum(counts) for n in counts]
    task = {"eta": RATE, "batch": BATCH, "epochs": 1}
    shared = peer_torch.copied(net.state_dict())

    def one_round() -> None:
        nonlocal shared
        shared = peer_torch.fedavg(task, sets, shares, net, shared, peer_torch.Work())

    def loss() -> float:
        net.load_state_dict(shared)
        with torch.no_grad():
            each = [float(nn.functional.cross_entropy(net(x), y)) for x, y in (part.tensors for part in sets)]
        return float(np.average(each, weights=shares))

    return one_round, loss


def work(side: str, folder: Path, plain: bool) -> None:
    """One side: a round for every line that comes in, and CPU seconds, the loss and the memory at the end."""
    data, start = np.load(folder / "data.npz"), dict(np.load(folder / "start.npz"))
    one_round, loss = theirs(data, start) if side == "torch" else ours(data, start, plain)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "round":
            began = time.process_time()
            one_round()
            print(time.process_time() - began, flush=True)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"memory": peak, "loss": loss()}), flush=True)


class Side:
    """A process that works when it is told to."""

    def __init__(self, name: str, python: str, folder: Path, plain: bool) -> None:
        command = [python, __file__, "--side", name, "--folder", str(folder), *["--plain"] * plain]
        environment = {**os.environ, **ALONE}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answer()

    def answer(self) -> str:
        """The next line that it prints."""
        line = self.process.stdout.readline()  # pyright: ignore[reportOptionalMemberAccess]
        if not line:
            raise SystemExit(f"{self.process.args} ended early, with code {self.process.wait()}.")
        return line

    def ask(self, what: str) -> Any:
        """Its answer to "round" or "end"."""
        print(what, file=self.process.stdin, flush=True)
        return json.loads(self.answer())

    def close(self) -> None:
        """Let it go."""
        self.process.communicate()


def prepare(folder: Path, rows: int) -> int:
    """Write the clients' images and the first parameters; the gradient steps of a round."""
    import twofold as tw

    images, random = tw.data.images.load("fashion-mnist", parts=["train"]), np.random.default_rng(0)
    chosen = random.permutation(len(images.y))[: CLIENTS * rows]
    counts = np.full(CLIENTS, rows)
    np.savez(folder / "data.npz", x=images.x[chosen].astype(np.float32), y=images.y[chosen], counts=counts)
    shapes = {"Conv_0": (5, 5, 1, 32), "Conv_1": (5, 5, 32, 64), "Dense_0": (1024, 512), "Dense_1": (512, 10)}
    start = {}
    for name, shape in shapes.items():
        start[f"{name}.kernel"] = random.normal(size=shape, scale=np.prod(shape[:-1]) ** -0.5).astype(np.float32)
        start[f"{name}.bias"] = np.zeros(shape[-1], np.float32)
    assert sum(value.size for value in start.values()) == PARAMETERS
    np.savez(folder / "start.npz", **start)
    return CLIENTS * -(-rows // BATCH)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default=sys.executable, help="the Python of an environment with torch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200, help="images of each client")
    parser.add_argument("--plain", action="store_true", help="leave our convolutions to XLA")
    parser.add_argument("--json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        work(arguments.side, arguments.folder, arguments.plain)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # both sides inherit it
    with tempfile.TemporaryDirectory() as place:
        steps = prepare(Path(place), arguments.rows)
        sides = {
            name: Side(name, python, Path(place), arguments.plain)
            for name, python in (("torch", arguments.torch_python), ("twofold", sys.executable))
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.turns + 1):
            for name, side in sides.items():
                seconds[name].append(side.ask("round"))
        ends = {name: side.ask("end") for name, side in sides.items()}
        for side in sides.values():
            side.close()
    found = {}
    for name, (first, *rest) in seconds.items():
        usual = statistics.median(rest)
        found[name] = {"step": usual / steps, "first": first - usual, "seconds": [first, *rest], **ends[name]}
    print(f"{CLIENTS} clients, {steps} gradient steps a round, {arguments.turns} turns")
    print(f"{'':9}{'ms a step':>10}{'best':>8}{'worst':>8}{'first s':>9}{'memory MB':>11}{'loss':>9}")
    for name, row in found.items():
        best, worst = (1e3 * of(row["seconds"][1:]) / steps for of in (min, max))
        print(
            f"{name:9}{1e3 * row['step']:>10.2f}{best:>8.2f}{worst:>8.2f}{row['first']:>9.1f}{row['memory'] / 1e6:>11.0f}"
            f"{row['loss']:>9.4f}"
        )
    mine, peer = found["twofold"], found["torch"]
    ratio, more = peer["step"] / mine["step"], mine["first"] - peer["first"]
    print(f"ratio {ratio:.2f} (goal {GOAL}); first solve {more:.1f} CPU seconds more (at most {FIRST:.0f}); ", end="")
    print(f"memory {mine['memory'] / 1e6:.0f} MB (at most {MEMORY / 1e6:.0f})")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"steps": steps, "ratio": ratio, "more": more, **found}, indent=1))


if __name__ == "__main__":
    main()
