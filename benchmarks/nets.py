"""Rounds with PFLlib's CNN on one core: plain flax convolutions in `tw.methods` against PyTorch, client after client.

    python benchmarks/nets.py [--torch-python PATH] [--methods fedavg,fedper,ditto,apfl] [--turns 5] [--rows 200] [--json FILE]

The net is PFLlib's: two valid 5×5 convolutions (32 and 64 channels), each followed by relu and a 2×2 max-pool, then 512 and 10
units; 582,026 parameters. 20 clients of Fashion-MNIST with --rows images each, batches of 10, one reshuffled epoch a round,
plain steps of 0.005. Ours is what a user types, `tw.methods.fedper(CNN(), head="Dense_1")` and `tw.solve`; theirs is PFLlib's way
(`peer_torch_nets.py`). Both sides start at the same parameters, in processes of their own that wait while the other one works: a
turn is one round of PyTorch and then one of ours. Seconds are CPU seconds of the process, all threads counted, per gradient step
(Ditto and APFL take two gradients a batch, on both sides); the median of the turns counts. `first` is what the first round costs
more than the median one: tracing, compiling and XLA's own start for us, PyTorch's first touch of its libraries for them. `memory`
is the peak of the process. `loss` is that of everyone's own model over all training rows after the last turn: the work is the
same, only the shuffles differ.
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
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, BATCH, RATE, PARAMETERS = 20, 10, 0.005, 582_026
GOAL, FIRST, MEMORY = 1.5, 15.0, 1e9
OWN: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedper": {"head": "Dense_1"},
    "ditto": {"lam": 0.1},
    "apfl": {"alpha": 0.5},
}
"""The methods, and their own settings on both sides."""
GRADIENTS = {"fedavg": 1, "fedper": 1, "ditto": 2, "apfl": 2}
"""Gradients that a method takes on each batch."""
ALONE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}


def ours(name: str, data: Any, start: dict[str, np.ndarray], turns: Turns) -> float:
    """All turns in one call of `solve`; the mean loss of everyone's own model at the end."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    import twofold as tw
    from twofold.methods.finetuning import everyones_parameters

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for channels in (32, 64):
                x = nn.max_pool(nn.relu(nn.Conv(channels, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
            x = nn.relu(nn.Dense(512)(x.reshape(len(x), -1)))
            return nn.Dense(10)(x)

    params: dict[str, dict[str, np.ndarray]] = {}
    for key, value in start.items():
        layer, part = key.split(".")
        params.setdefault(layer, {})[part] = value
    # The pair of functions is what tw.losses.net makes of the module itself, but for the common start.
    net = (
        lambda key, x: (params, ()),
        lambda params, state, x, key, train: (CNN().apply({"params": params}, x), state),
    )
    everyone = tw.Clients(data["x"].reshape(-1, 28, 28, 1), data["y"], data["counts"], weights="rows")
    loss = tw.losses.net(net)
    method = tw.methods.REGISTRY[name](loss, lr=RATE, batch=BATCH, **OWN[name])
    problem = method.problem(everyone)

    def after_a_record(record: Any) -> None:
        if record["round"]:
            turns.end()
        if record["round"] < turns.count and record["round"]:
            turns.begin()

    turns.begin()
    found = tw.solve(
        problem, method.algorithm, rounds=turns.count, record=(), progress=False, callbacks=[after_a_record]
    )
    models = everyones_parameters(problem, found.w, found.beta)
    each = []
    for m, client in enumerate(everyone):
        mine = jax.tree.map(lambda leaf, m=m: leaf[m], models)
        each.append(float(jnp.mean(loss.row_losses(mine, jnp.asarray(client.x), jnp.asarray(client.y)))))
    return float(np.average(each, weights=data["counts"]))


def theirs(name: str, data: Any, start: dict[str, np.ndarray], turns: Turns) -> float:
    """The same in PyTorch."""
    from peer_torch_nets import Peer

    own = {key: value for key, value in OWN[name].items() if key != "head"}
    turns.begin()  # as for us: the problem is there, everything else counts
    peer = Peer(name, data, start, RATE, BATCH, **own)
    for i in range(turns.count):
        if i:
            turns.begin()
        peer.one_round()
        turns.end()
    return peer.loss()


class Turns:
    """A round for every line that comes in, and the CPU seconds that it took."""

    def __init__(self, count: int) -> None:
        self.count, self.began = count, 0.0

    def begin(self) -> None:
        """Wait until it is our turn."""
        sys.stdin.readline()
        self.began = time.process_time()

    def end(self) -> None:
        """Say how long it took."""
        print(time.process_time() - self.began, flush=True)


def work(side: str, name: str, folder: Path, count: int) -> None:
    """One side of one method: all turns, then the loss and the memory."""
    data, start = np.load(folder / "data.npz"), dict(np.load(folder / "start.npz"))
    turns = Turns(count)
    print("ready", flush=True)
    loss = (theirs if side == "torch" else ours)(name, data, start, turns)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdin.readline()
    print(json.dumps({"memory": peak, "loss": loss}), flush=True)


class Side:
    """A process that works when it is told to."""

    def __init__(self, side: str, name: str, python: str, folder: Path, turns: int) -> None:
        command = [python, __file__, "--side", side, "--methods", name, "--folder", str(folder), "--turns", str(turns)]
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


def compare(name: str, folder: Path, steps: int, turns: int, pythons: dict[str, str]) -> dict[str, Any]:
    """Both sides of one method, turn by turn."""
    sides = {side: Side(side, name, python, folder, turns + 1) for side, python in pythons.items()}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(turns + 1):
        for side, process in sides.items():
            seconds[side].append(process.ask("round"))
    ends = {side: process.ask("end") for side, process in sides.items()}
    for process in sides.values():
        process.close()
    found: dict[str, Any] = {"method": name, "steps": steps}
    for side, (first, *rest) in seconds.items():
        usual = statistics.median(rest)
        found[side] = {"step": usual / steps, "first": first - usual, "seconds": [first, *rest], **ends[side]}
    mine, peer = found["twofold"], found["torch"]
    return {**found, "ratio": peer["step"] / mine["step"], "more": mine["first"] - peer["first"]}


def told(found: dict[str, Any]) -> str:
    """The table of one method."""
    lines = [f"{found['method']}: {CLIENTS} clients, {found['steps']} gradient steps a round"]
    lines.append(f"{'':9}{'ms a step':>10}{'best':>8}{'worst':>8}{'first s':>9}{'memory MB':>11}{'loss':>9}")
    for side in ("torch", "twofold"):
        end = found[side]
        best, worst = (1e3 * of(end["seconds"][1:]) / found["steps"] for of in (min, max))
        figures = f"{1e3 * end['step']:>10.2f}{best:>8.2f}{worst:>8.2f}{end['first']:>9.1f}{end['memory'] / 1e6:>11.0f}"
        lines.append(f"{side:9}{figures}{end['loss']:>9.4f}")
    memory = found["twofold"]["memory"] / 1e6
    goals = (
        f"(goal {GOAL}); first solve {found['more']:.1f} CPU seconds more (at most {FIRST:.0f}); memory {memory:.0f} MB"
    )
    return "\n".join([*lines, f"ratio {found['ratio']:.2f} {goals} (at most {MEMORY / 1e6:.0f})"])


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", default=sys.executable, help="the Python of an environment with torch")
    parser.add_argument("--methods", default=",".join(OWN))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200, help="images of each client")
    parser.add_argument("--json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        work(arguments.side, arguments.methods, arguments.folder, arguments.turns)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # both sides inherit it
    pythons = {"torch": arguments.torch_python, "twofold": sys.executable}
    found = []
    with tempfile.TemporaryDirectory() as place:
        batches = prepare(Path(place), arguments.rows)
        for name in arguments.methods.split(","):
            found.append(compare(name, Path(place), GRADIENTS[name] * batches, arguments.turns, pythons))
            print(told(found[-1]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
