"""Two versions of twofold on the same work: whole runs of each, in turns, so that both meet the same busy moments.

    python benchmarks/against.py OLD_SRC [--new src] [--rows mx2,seeds,mnist,scale,fedavg] [--times 7] [--json FILE]

OLD_SRC is the `src` folder of another version (`git worktree add ../old COMMIT`, then `../old/src`). Each version works in a
process of its own, with its own compiled programs. A row is a call of `tw.solve` as a user makes it, start and records included,
with the step sizes that the old version chooses (so that both draw the same coins). Each call is made once to compile, then
`times` times by the two versions in turns. The table has the best time of each, and the ratio of old to new: below one, the new
version is slower. Processor seconds stand beside it: on a busy machine they are the steadier of the two.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Values = dict[str, float | int]
METHODS = ("lsgd", "ascd", "asvrcd", "l2sgd_plus", "pfedme")
ROWS = {
    "mx2": [f"mx2/{name}/1/{rounds}/{every}" for name in METHODS for rounds, every in ((1000, 1), (1000, 100))],
    "seeds": [f"mx2/{name}/30/{300 if name == 'pfedme' else 1000}/10" for name in METHODS],
    "mnist": ["mnist/fedavg", "mnist/pfedme"],
    "scale": ["scale/10000"],
    "fedavg": ["fedavg/20/32", "fedavg/300/32"],
}


# --- in the process of one version --------------------------------------------------------------------------------------


def mx2(name: str, seeds: str, rounds: str, every: str) -> tuple[Any, Any, dict[str, Any]]:
    """The paper's synthetic mixture: the problem, the method with theory's numbers, and the other arguments of `solve`.

    Every row is as likely as any other, as it was in versions that knew nothing else.
    """
    import twofold as tw
    from twofold.solver import complete

    data = tw.data.synthetic.mixture(0.3)
    alike = {"sampling": "uniform"} if "sampling" in inspect.signature(tw.Problem).parameters else {}
    objective = tw.objectives.mixture(tw.losses.logistic(), lam=data.lam)
    problem = tw.Problem(objective, tw.Clients.from_list(data.clients), **alike)
    constants = problem.constants(mu=tw.data.synthetic.paper_constants(data).mu / (3 * problem.M))
    many = {"seeds": range(int(seeds))} if int(seeds) > 1 else {"seed": 0}
    return problem, complete(problem, name, constants)[0], {"rounds": int(rounds), "every": int(every), **many}


def mnist(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Ten rounds as `peers.py` has them."""
    import peers

    everyone = peers.clients(small=False)
    task = {**peers.TASK, "local_rounds": -(-everyone.rows // (peers.TASK["batch"] * peers.CLIENTS))}
    problem, algorithm = peers.problems(everyone, task)[name]
    return problem, algorithm, {"rounds": 10 if name == "fedavg" else 4, "every": 10}


def scale(clients: str) -> tuple[Any, Any, dict[str, Any]]:
    """Five rounds as `scale.py` has them."""
    import scale as many
    import twofold as tw

    task, _ = many.small(tw, int(clients), net=None)
    return task, many.method(task, "lsgd"), {"rounds": 5, "every": 5}


def fedavg(features: str, batch: str) -> tuple[Any, Any, dict[str, Any]]:
    """Fifty rounds of FedAvg for a logistic model: an epoch in a new order each, for 20 clients of 2,000 rows."""
    import numpy as np

    import twofold as tw

    rng = np.random.default_rng(0)
    shape = (2000, int(features))
    data = [(rng.normal(size=shape).astype(np.float32), rng.integers(0, 2, 2000)) for _ in range(20)]
    problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.01)), tw.Clients.from_list(data))
    return problem, tw.algorithms.LSGD(eta=0.05, epochs=1, batch=int(batch)), {"rounds": 50, "every": 10}


KINDS: dict[str, Callable[..., tuple[Any, Any, dict[str, Any]]]] = {
    "mx2": mx2, "mnist": mnist, "scale": scale, "fedavg": fedavg,
}  # fmt: skip


def worker() -> None:
    """Answer every line of orders with a line of JSON: a row's name prepares it, `again` times a call of it."""
    import twofold as tw

    problem: Any = None
    algorithm: Any = None
    options: dict[str, Any] = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints does not mix with the answers
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if "row" in order:
            kind, *rest = order["row"].split("/")
            problem, algorithm, options = KINDS[kind](*rest)
        if "values" in order:
            algorithm = dataclasses.replace(algorithm, **order["values"])
        if "row" in order:
            known = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
            answer["values"] = {name: value for name, value in known.items() if isinstance(value, (int, float))}
        wall, used = time.perf_counter(), time.process_time()
        result = tw.solve(problem, algorithm, progress=False, **options)
        answer |= {"wall": time.perf_counter() - wall, "used": time.process_time() - used}
        first = result[0] if "seeds" in options else result
        answer |= {"loss": float(first.history["loss"][-1]), "rounds": first.ledger.rounds}
        print(json.dumps(answer), file=answers, flush=True)


# --- in the process that compares ---------------------------------------------------------------------------------------


@contextmanager
def version(source: Path) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """A process that works with the twofold in this folder; what it gives takes an order and returns the answer."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "TWOFOLD_NO_CACHE": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    orders, answers = process.stdin, process.stdout
    assert orders is not None and answers is not None

    def ask(order: dict[str, Any], orders: IO[str] = orders, answers: IO[str] = answers) -> dict[str, Any]:
        print(json.dumps(order), file=orders, flush=True)
        line = answers.readline()
        if not line:
            raise SystemExit(f"The version in {source} failed; its error stands above.")
        return json.loads(line)

    try:
        yield ask
    finally:
        orders.close()
        process.wait()


def compared(row: str, old: Callable, new: Callable, times: int) -> dict[str, Any]:
    """The best times of a row by both versions, in turns."""
    first_old = old({"row": row})
    first_new = new({"row": row, "values": first_old["values"]})
    found = {"old": [first_old], "new": [first_new]}
    for i in range(times):
        for name, ask in [("old", old), ("new", new)][:: 1 if i % 2 else -1]:
            found[name].append(ask({}))
    best = {
        f"{name}_{what}": min(each[what] for each in answers[1:])
        for name, answers in found.items() for what in ("wall", "used")
    }  # fmt: skip
    ends = {f"{name}_{what}": answers[0][what] for name, answers in found.items() for what in ("loss", "rounds")}
    first = {"old_first": first_old["wall"], "new_first": first_new["wall"]}
    ratios = {what: best[f"old_{what}"] / best[f"new_{what}"] for what in ("wall", "used")}
    return {"row": row, **best, **first, **ends, **{f"ratio_{what}": value for what, value in ratios.items()}}


def main() -> None:
    """Compare and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_SRC")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"groups ({', '.join(ROWS)}), or parts of rows' names")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    asked = arguments.rows.split(",")
    rows = [
        row for group, inside in ROWS.items() for row in inside if any(a in (group, row) or a in row for a in asked)
    ]
    out = []
    print(
        f"{'row':28}{'old s':>9}{'new s':>9}{'old/new':>9}{'old cpu':>9}{'new cpu':>9}{'old/new':>9}{'first':>14}  end"
    )
    for row in rows:
        with version(arguments.old) as old, version(arguments.new) as new:
            r = compared(row, old, new, arguments.times)
        out.append(r)
        same = "same" if abs(r["old_loss"] - r["new_loss"]) <= 1e-4 * abs(r["old_loss"]) else "other loss"
        print(
            f"{row:28}{r['old_wall']:>9.3f}{r['new_wall']:>9.3f}{r['ratio_wall']:>9.2f}{r['old_used']:>9.3f}"
            f"{r['new_used']:>9.3f}{r['ratio_used']:>9.2f}{r['old_first']:>8.1f}{r['new_first']:>6.1f}  {same}", flush=True,
        )  # fmt: skip
        if arguments.json:
            arguments.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()
