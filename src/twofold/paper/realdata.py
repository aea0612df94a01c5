"""All solvers by default on real data, against what a colleague would do: rounds, bytes, gradients and seconds to a relative gap.

Problems: School, digits, MNIST and Fashion-MNIST (7 × 7 pixels, 2,000 rows, about two labels a client), and made data with heavy-tailed
rows and correlated, badly scaled features; each under four objectives. A gap is relative to the initial one, F(x⁰) − F*. Nothing is
tuned but FedAvg, which gets the best of six steps. Pooled L-BFGS and gradient descent with a line search work on all blocks at once;
each evaluation of F and its gradient is one round for them.

`run` measures and writes `realdata.json`, problem by problem, and goes on where it was interrupted; `realdata_page` makes the page, and
the short table of docs/choosing.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

import twofold as tw
from twofold.curvature.metric import Kind
from twofold.errors import TwofoldError
from twofold.extras import require
from twofold.paper import realdata_page
from twofold.paper.realdata_page import FEWER, LEVELS, MOST_ROUNDS, MOST_SECONDS, NEWTON_SECONDS, SHORT_SECONDS, Row
from twofold.theory.cost import PRESETS, Preset

__all__ = [
    "DATA",
    "LARGE",
    "METHODS",
    "OBJECTIVES",
    "OTHERS",
    "OURS",
    "QUICK",
    "Gaps",
    "choice",
    "measure",
    "problem",
    "run",
]

TITLE = "All solvers by default on real data"
CALLS = 3
"""Calls of `tw.solve` and of pooled L-BFGS, whose wall times are compared; the fastest of each counts."""
GRADIENTS_ONLY = tw.theory.Cost(round=0.0, byte=0.0, gradient=1e-6)
"""For the comparison of row gradients: nothing else costs anything, and no number of rounds ends a run."""
WORKERS = 2
"""Problems that the command measures at a time, each on a core of its own."""
L2, LAM, LARGE_LAMBDA, ALPHA = 0.01, 0.1, 1.0, 0.5
STEPS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Multiples of theory's step of which FedAvg gets the best."""

Array = NDArray[np.float64]
_Task = tuple[str, str, list[str]]
"""Data, an objective, and methods."""


class Gaps(NamedTuple):
    """Relative gaps of a run, and what each had cost: rounds, bytes, single-row gradients in w and β per client, seconds."""

    gap: Array
    rounds: Array
    bytes: Array
    of_w: Array
    of_beta: Array
    seconds: Array

    def reached(self, level: float) -> dict[str, float] | None:
        """What it cost to come below a level; None if it never did."""
        below = np.flatnonzero(self.gap <= level)
        if not len(below):
            return None
        return {name: float(getattr(self, name)[below[0]]) for name in self._fields if name != "gap"}


# --- problems -----------------------------------------------------------------------------------------------------------


def _school() -> tuple[tw.Clients, Any]:
    data = tw.data.school.load()
    pairs = [(x[:, :-1], y) for x, y in data.clients]
    x, y = np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
    mean, spread = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1)
    clients = [((x - mean) / spread, (t - y.mean()) / y.std()) for x, t in pairs]
    return tw.Clients.from_list(clients), tw.losses.squared(l2=L2)


def _digits() -> tuple[tw.Clients, Any]:
    datasets = require("sklearn.datasets", "The digits", "sklearn")
    x, y = datasets.load_digits(return_X_y=True)
    return _by_labels(x / 16.0, y), tw.losses.softmax(10, l2=L2)


def _images(name: str, rows: int = 2000, clients: int = 20) -> tuple[tw.Clients, Any]:
    found = tw.data.images.load(name, parts=["test"])
    small = found.x[:rows].reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49)
    return _by_labels(small / small.max(), found.y[:rows].astype(int), clients), tw.losses.softmax(10, l2=L2)


def _cifar() -> tuple[tw.Clients, Any]:
    """Grey 4 × 4 means of patches of 8 × 8 pixels."""
    found = tw.data.images.load("cifar10", parts=["test"])
    grey = np.asarray(found.x[:1000], float).reshape(-1, 3, 32, 32).mean(axis=1)
    small = grey.reshape(-1, 4, 8, 4, 8).mean(axis=(2, 4)).reshape(-1, 16)
    return _by_labels(small / small.max(), found.y[:1000].astype(int), 10), tw.losses.softmax(10, l2=L2)


def _by_labels(x: Array, y: Any, clients: int = 20) -> tw.Clients:
    """Clients with rows of few labels each."""
    order = np.argsort(np.asarray(y) + np.random.default_rng(0).uniform(0, 1.5, len(y)), kind="stable")
    return tw.Clients.from_list([(x[part], np.asarray(y)[part]) for part in np.array_split(order, clients)])


def _made(clients: int = 25, least: int = 30, most: int = 300, seed: int = 7) -> tuple[tw.Clients, Any]:
    rng = np.random.default_rng(seed)
    mix = np.linalg.qr(rng.normal(size=(12, 12)))[0] @ np.diag(np.geomspace(1, 1e2, 12))
    taste = rng.normal(size=12)

    def client() -> tuple[Array, Any]:
        n = int(rng.integers(least, most))
        heavy = np.minimum(rng.pareto(2.0, size=(n, 1)) + 0.3, 50)
        x = heavy * rng.normal(size=(n, 12)) @ mix / 50
        own = taste + 0.5 * rng.normal(size=12)
        return x, (x @ own + rng.logistic(size=n) > 0).astype(int)

    return tw.Clients.from_list([client() for _ in range(clients)]), tw.losses.logistic(l2=L2)


DATA: dict[str, Callable[[], tuple[tw.Clients, Any]]] = {
    "school": _school,
    "digits": _digits,
    "mnist": lambda: _images("mnist"),
    "fmnist": lambda: _images("fmnist"),
    "made": _made,
}
LARGE: dict[str, Callable[[], tuple[tw.Clients, Any]]] = {
    "mnist, 8 clients": lambda: _images("mnist", 10_000, 8),
    "made, 20 clients": lambda: _made(20, 1000, 2000),
}
"""Data with at least 1,000 rows a client, for the comparison of row gradients."""
OTHERS: dict[str, Callable[[], tuple[tw.Clients, Any]]] = {
    "kmnist": lambda: _images("kmnist", 1000, 10),
    "cifar": _cifar,
    "made, 40 small clients": lambda: _made(40, 8, 40, seed=11),
    "made, 8 clients": lambda: _made(8, 200, 600, seed=12),
}
"""Data that no number in `solver.auto` was fitted on."""
TWINS = {"fmnist": "mnist"}
"""Data with the shapes of others."""
OBJECTIVES: dict[str, Callable[[Any, int], Any]] = {
    "mixture": lambda loss, d: tw.objectives.mixture(loss, lam=LAM),
    "multitask": lambda loss, d: tw.objectives.multitask(loss, lam=LAM, Lambda=LARGE_LAMBDA),
    "weight_sharing": lambda loss, d: tw.objectives.weight_sharing(loss, split=d // 2),
    "adaptive": lambda loss, d: tw.objectives.adaptive(loss, alpha=ALPHA, Lambda=LARGE_LAMBDA),
}


def problem(data: str, objective: str, **options: Any) -> tw.Problem:
    """One of the twenty problems."""
    clients, loss = {**DATA, **LARGE, **OTHERS}[data]()
    return tw.Problem(OBJECTIVES[objective](loss, np.shape(clients.x)[1]), clients, **options)


# --- methods ------------------------------------------------------------------------------------------------------------


def _solved(whole: tw.Problem, method: Any, level: float = LEVELS[-1], **options: Any) -> Gaps:
    """A run of ours to a relative gap of half a level, recorded at every round."""
    best, first = whole.optimum().value, _first_gap(whole)
    options |= {"rounds": MOST_ROUNDS, "seconds": MOST_SECONDS, "target": best + 0.5 * level * first} | options
    short: dict[str, Any] = options | {"rounds": 2, "seconds": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", tw.TheoryWarning
        )  # that methods by default do not get there is what is measured
        tw.solve(whole, method, **short)  # compiled before the clock starts, as it is for the others
        return _course(tw.solve(whole, method, **options), best, first)


def _course(found: tw.Result, best: float, first: float) -> Gaps:
    h = found.history
    gap = (h["loss"] - best) / first
    return Gaps(gap, h["round"], h["bytes"], h["gradients_w"], h["gradients_beta"], h["seconds"] - h["seconds"][0])


def _auto(data: str, objective: str, whole: tw.Problem) -> Row:
    """`tw.solve(problem)`, and what it chooses under each cost model; `call` is the time of a whole call that compiles nothing."""
    tw.solve(whole)

    def call() -> tuple[float, tw.Problem, tw.Result]:
        fresh = problem(data, objective)
        since = time.perf_counter()
        found = tw.solve(fresh)
        return time.perf_counter() - since, fresh, found

    took, fresh, found = min((call() for _ in range(CALLS)), key=lambda made: made[0])
    choices = {name: choice(fresh, name) for name in PRESETS}
    row = _row(_course(found, whole.optimum().value, _first_gap(whole)))
    # The steps of these follow from the cost: under another one than the default they are another method.
    own = {
        name: OURS[taken] for name, taken in choices.items() if taken in ("asvrcd", "svrcd") and name != "cross-silo"
    }
    runs = {name: _row(_solved(whole, method, cost=name)) for name, (method, _) in own.items()}
    about = {"status": found.status, "algorithm": found.algorithm.name, "choices": choices, "runs": runs}
    return {**row, "call": took, **about}


def choice(whole: tw.Problem, cost: Preset) -> str:
    """The method that auto takes under a cost model, by its name here.

    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2))] * 3)
    >>> choice(tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.1), lam=0.5), clients), "cross-device")
    'profile'
    """
    found = tw.solve(whole, cost=cost, rounds=1, record=())
    if "auto chose acd in a matrix metric" in found.notes[0]:
        return MATRIX
    if "auto chose profile in its own metric" in found.notes[0]:
        return OWN
    return NEWTON if "auto chose profile with Newton" in found.notes[0] else found.algorithm.name


def _first_gap(whole: tw.Problem) -> float:
    return float(whole.value(*whole.start)) - whole.optimum().value


def _fedavg(whole: tw.Problem) -> Gaps:
    theory = tw.solver.complete(whole, tw.algorithms.LSGD(batch=10))[0].eta
    runs = [
        _solved(whole, tw.algorithms.LSGD(eta=theory * step, batch=10), rounds=FEWER, seconds=SHORT_SECONDS)
        for step in STEPS
    ]
    return min(runs, key=lambda run: float(np.min(run.gap)))


class _Pooled:
    """F and its gradient in all variables at once, each evaluation a round."""

    def __init__(self, whole: tw.Problem) -> None:
        self.whole = whole
        w, beta = whole.start
        scaled = jax.tree.map(lambda leaf: leaf / whole.scale, w)
        flat, unravel = ravel_pytree((scaled, beta))
        self.start, self.size = np.asarray(flat, float), ravel_pytree(w)[0].size

        def value(x: jax.Array) -> jax.Array:
            w, beta = unravel(x)
            return whole.value(jax.tree.map(lambda leaf: leaf * whole.scale, w), beta)

        self._both = jax.jit(jax.value_and_grad(value))
        self._both(flat)
        self.best, self.first = whole.optimum().value, _first_gap(whole)
        self.gaps: list[float] = []
        self.times: list[float] = []
        self.began = time.perf_counter()

    def __call__(self, x: Array) -> tuple[float, Array]:
        value, gradient = self._both(jnp.asarray(x))
        self.gaps.append((float(value) - self.best) / self.first)
        self.times.append(time.perf_counter() - self.began)
        if self.gaps[-1] <= 0.5e-8 or len(self.gaps) >= MOST_ROUNDS or self.times[-1] > MOST_SECONDS:
            raise StopIteration
        return float(value), np.asarray(gradient, float)

    def course(self) -> Gaps:
        """What was seen."""
        gap = np.minimum.accumulate(np.array(self.gaps))
        k = np.arange(1, len(gap) + 1.0)
        rows = k * float(np.mean(self.whole.clients.counts))
        return Gaps(gap, k, 2 * 8 * self.size * k, rows, rows, np.array(self.times))


def _lbfgs(whole: tw.Problem) -> Gaps:
    from scipy.optimize import minimize

    def course() -> Gaps:
        pooled = _Pooled(whole)
        with suppress(StopIteration):
            minimize(pooled, pooled.start, jac=True, method="L-BFGS-B",
                     options={"maxcor": 10, "maxiter": MOST_ROUNDS, "maxfun": MOST_ROUNDS, "ftol": 0, "gtol": 0})  # fmt: skip
        return pooled.course()

    return min((course() for _ in range(CALLS)), key=lambda gaps: gaps.seconds[-1])


def _descent(whole: tw.Problem) -> Gaps:
    """Gradient descent with backtracking (Armijo), the step doubled after each success."""
    pooled = _Pooled(whole)
    x, step = pooled.start, 1.0
    try:
        value, gradient = pooled(x)
        while True:
            trial = x - step * gradient
            there, slope = pooled(trial)
            if there <= value - 0.5 * step * float(gradient @ gradient):
                x, value, gradient, step = trial, there, slope, 2 * step
            else:
                step /= 2
    except StopIteration:
        return pooled.course()


MATRIX, NEWTON, ROWS = "acd, matrix metric", "profile, Newton", "asvrcd, gradients only"
OWN = "profile, own metric"
METRICS: dict[str, Kind] = {MATRIX: "matrix", OWN: "profile"}
"""Methods that are measured in other variables."""
OURS: dict[str, tuple[tw.algorithms.Algorithm, dict[str, Any]]] = {
    "profile": (tw.algorithms.Profile(), {}),
    OWN: (tw.algorithms.Profile(), {}),
    NEWTON: (tw.algorithms.Profile(outer="newton"), {"seconds": NEWTON_SECONDS}),
    "acd": (tw.algorithms.ACD(), {}),
    MATRIX: (tw.algorithms.ACD(), {}),
    "asvrcd": (tw.algorithms.ASVRCD(), {}),
    "asvrcd, batch 16": (tw.algorithms.ASVRCD(batch=16), {}),
    "asvrcd, two references": (tw.algorithms.ASVRCD(batch=16, reference="two"), {}),
    ROWS: (tw.algorithms.ASVRCD(), {"cost": GRADIENTS_ONLY, "rounds": 10**6, "seconds": 120.0, "level": LEVELS[1]}),
    "svrcd": (tw.algorithms.SVRCD(), {"seconds": SHORT_SECONDS}),
    "scaffnew": (tw.algorithms.Scaffnew(), {"seconds": SHORT_SECONDS}),
    "scafflix": (tw.algorithms.Scafflix(), {"seconds": SHORT_SECONDS}),
    "al2sgd_plus": (tw.algorithms.AL2SGDPlus(), {"seconds": SHORT_SECONDS}),
    "l2sgd_plus": (tw.algorithms.L2SGDPlus(), {"seconds": SHORT_SECONDS}),
    "saga": (tw.algorithms.SAGA(), {"seconds": SHORT_SECONDS}),
    "hybrid": (tw.algorithms.Hybrid(), {"seconds": SHORT_SECONDS}),
    "ascd": (tw.algorithms.ASCD(), {"rounds": FEWER, "seconds": SHORT_SECONDS}),
    "scd": (tw.algorithms.SCD(), {"rounds": FEWER, "seconds": SHORT_SECONDS}),
    "lsgd": (tw.algorithms.LSGD(), {"rounds": FEWER, "seconds": SHORT_SECONDS}),
    "fedprox": (tw.algorithms.FedProx(), {"rounds": FEWER, "seconds": SHORT_SECONDS}),
    "pfedme": (tw.algorithms.PFedMe(), {"rounds": FEWER, "seconds": SHORT_SECONDS}),
}
"""Our methods, each with its defaults, and what `solve` is told besides."""
BASELINES: dict[str, Callable[[tw.Problem], Gaps]] = {
    "pooled L-BFGS": _lbfgs,
    "gradient descent": _descent,
    "FedAvg, best of 6 steps": _fedavg,
}
METHODS = ("auto", *(name for name in OURS if name != ROWS), *BASELINES)
ON_MANY_ROWS = ("acd", "asvrcd", "asvrcd, batch 16", ROWS)
ON_OTHERS = ("auto", "profile", OWN, NEWTON, "acd", MATRIX, "asvrcd")
QUICK: dict[str, list[str]] = {
    "data": ["digits", "made"],
    "methods": ["auto", "profile", OWN, "acd", "asvrcd", "pooled L-BFGS"],
}
"""What `--quick` measures: two kinds of data, the methods that are promised, and what a colleague would do."""


# --- the run ------------------------------------------------------------------------------------------------------------


def measure(data: str, objective: str, methods: list[str]) -> Iterator[Row]:
    """One row for each of the methods on one problem."""
    plain = problem(data, objective)
    labels = {"data": data, "objective": objective, "rows": float(np.mean(plain.clients.counts))}
    for name in methods:
        whole = problem(data, objective, precondition=METRICS[name]) if name in METRICS else plain
        try:
            row = _auto(data, objective, plain) if name == "auto" else _measured(whole, name)
        except TwofoldError as refusal:
            row = dict[str, Any](refused=str(refusal))
        yield {**labels, "method": name, **row}


def _measured(whole: tw.Problem, name: str) -> Row:
    """A method's row; with what theory had forecast for it, where a rate is proven that leaves nothing out."""
    if name in BASELINES:
        return _row(BASELINES[name](whole))
    method, options = OURS[name]
    row = _row(_solved(whole, method, **options))
    if "level" in options:  # it ends before 1e-8, and forecasts are for that
        return row
    asked = tw.theory.forecast(whole, LEVELS[-1], [method], cost=options.get("cost", "cross-silo"))[method.name]
    if asked.is_proven and "left out" not in asked.note:
        row |= {"forecast": asked.rounds, "criterion": asked.criterion}
    return row


def _row(course: Gaps) -> Row:
    reached = {f"{level:g}": course.reached(level) for level in LEVELS}
    return {
        "ran": float(course.rounds[-1]),
        "last": float(np.min(course.gap)),
        "call": float(course.seconds[-1]),
        **reached,
    }


def run(
    out: str | Path,
    data: list[str] | None = None,
    methods: list[str] | None = None,
    tell: Callable[[str], object] = lambda text: None,
    workers: int = 1,
) -> Path:
    """Measure everything and write `realdata.json`, `realdata.md` and `choosing.md` into a folder, after every few problems.

    What the folder has already is not measured again. `data` and `methods` are all if not given. With two `workers`, two problems are
    measured at a time, each in a process that keeps to a core of its own.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "realdata.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    tasks = list[list[_Task]]()
    for name in data or [*DATA, *LARGE, *OTHERS]:
        all_here = METHODS if name in DATA else ON_MANY_ROWS if name in LARGE else ON_OTHERS
        for objective in OBJECTIVES:
            done = {row["method"] for row in rows if (row["data"], row["objective"]) == (name, objective)}
            wanted = [m for m in (methods or all_here) if m in all_here and m not in done]
            # Data of the same shape run in the same process, which compiles for both at once.
            with_twin = next((task for task in tasks if (TWINS.get(name), objective) == task[0][:2]), None)
            if wanted and with_twin is not None:
                with_twin.append((name, objective, wanted))
            elif wanted:
                tasks.append([(name, objective, wanted)])
    for found in _all(tasks, workers):
        rows += found
        rows.sort(key=_place)
        path.write_text(json.dumps(rows, indent=1))
        for row in found:
            tell(realdata_page.line(row))
        (folder / "realdata.md").write_text(realdata_page.page(rows, list(DATA), list(OTHERS)))
        (folder / "choosing.md").write_text(realdata_page.extract(rows, list(DATA)))
    return folder / "realdata.md"


def _place(row: Row) -> tuple[int, ...]:
    """Where a row stands, whichever problem was done first."""
    names = ([*DATA, *LARGE, *OTHERS], list(OBJECTIVES), [*METHODS, ROWS])
    return tuple(
        known.index(row[key]) if row[key] in known else len(known)
        for known, key in zip(names, ("data", "objective", "method"), strict=True)
    )


def _all(tasks: list[list[_Task]], workers: int) -> Iterator[list[Row]]:
    """The rows of each task, as they are done."""
    if workers == 1:
        yield from map(_measure_all, tasks)
        return
    context = multiprocessing.get_context("spawn")
    numbers: Any = context.Queue()
    for number in range(workers):
        numbers.put(number)
    with ProcessPoolExecutor(workers, context, initializer=_keep_to_a_core, initargs=(numbers,)) as pool:
        # Those with many rows take longest, and begin first.
        longest = sorted(tasks, key=lambda task: task[0][0] not in LARGE)
        for future in as_completed([pool.submit(_measure_all, task) for task in longest]):
            yield future.result()


def _keep_to_a_core(numbers: Any) -> None:
    """Before XLA makes its threads: one core for everything that this process does."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[numbers.get() % len(cores)]})


def _measure_all(task: list[_Task]) -> list[Row]:
    with jax.enable_x64(True):
        return [row for each in task for row in measure(*each)]
