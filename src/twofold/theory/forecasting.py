"""What a run will cost, before it runs: iterations, rounds, bytes and gradients for every method that has a proven rate.

`forecast` turns the rates of `theory.rates` into a table for one problem; `cost_of_rounds` counts what a number of rounds
costs exactly, since the coins of a run are known beforehand. Nothing is trained here.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold import randomness, tree
from twofold.algorithms import REGISTRY, Algorithm
from twofold.engines.memory import in_words as in_bytes
from twofold.engines.schedule import footprint
from twofold.errors import InputError, NotFound, TwofoldError
from twofold.exports import FilePath, Table
from twofold.problem import Problem
from twofold.solver import complete, make
from twofold.solver.foresight import PROVEN, Needs, is_exact, needs
from twofold.solver.options import warn
from twofold.solver.participation import Participation, Who, refuse_some
from twofold.solver.steps import facts_of
from twofold.theory import rates
from twofold.theory.constants import Constants
from twofold.theory.cost import PRESETS, Cost, Preset, cost_of

__all__ = ["Forecast", "MethodForecast", "RoundsCost", "cost_of_rounds", "forecast", "stages"]

BLOCK = 4096
"""Iterations whose coins are looked at together."""
NOISE = "sampling noise and client drift, unknown before a run, are left out of this prediction."


@dataclasses.dataclass(frozen=True)
class MethodForecast:
    """What one method needs, per client; NaN where nothing is known, and then `note` says why. "measured" and
    "unproven" are no proof.

    `bytes` counts what a client sends and receives; gradients are evaluations of single rows. `algorithm` is the method
    with the steps that theory chose, None if it does not fit the problem.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=1.0), clients)
    >>> row = tw.theory.forecast(problem, 1e-4, ["acd"])["acd"]
    >>> row.method, row.certainty, row.rounds < row.iterations
    ('acd', 'certified', True)
    """

    method: str
    iterations: float
    rounds: float
    bytes: float
    gradients_w: float
    gradients_beta: float
    criterion: str  # what is brought to the tolerance
    certainty: str  # "certified", "theorem", "unproven" or "none", as in `theory.rates.Rate`; "measured": what it took elsewhere
    note: str
    algorithm: Algorithm | None
    seconds: float = math.nan  # under the forecast's cost model; what our own code needs on top is not in it

    @property
    def is_proven(self) -> bool:
        """Whether there is a rate for this method on this problem."""
        return self.certainty in PROVEN

    @property
    def is_known(self) -> bool:
        """Whether there are numbers at all, proven or measured."""
        return self.certainty != "none"


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The forecasts of several methods for one problem; printing it gives a table.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=1.0), clients)
    >>> table = tw.theory.forecast(problem, 1e-4, ["acd", "lsgd"])
    >>> [row.method for row in table]
    ['acd', 'lsgd']
    >>> table.table()[0][:3]
    ['', 'iterations', 'rounds']
    >>> table.to_latex().splitlines()[0]
    '\\\\begin{table}'
    """

    tol: float
    methods: tuple[MethodForecast, ...]
    constants: Constants
    lower_bounds: rates.LowerBounds | None  # for μ > 0
    cost: Cost = PRESETS["cross-silo"]

    def __getitem__(self, method: str) -> MethodForecast:
        for row in self.methods:
            if row.method == method:
                return row
        raise NotFound(
            f"The forecast has no method {method!r}; it has {', '.join(row.method for row in self.methods)}."
        )

    def __iter__(self) -> Iterator[MethodForecast]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    @property
    def title(self) -> str:
        """What the numbers are."""
        proven = dict.fromkeys(row.criterion for row in self.methods if row.is_proven)
        return f"Predicted per client, to bring {' or '.join(proven) or 'F − F*'} to {self.tol:g} of its initial bound"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the cells of the table of all methods with a rate, and of the lower bounds."""
        header = ["", "iterations", "rounds", "traffic", "∇w rows", "∇β rows", "seconds"]
        body = [
            [f"{row.method} ({row.certainty})", _count(row.iterations), _count(row.rounds), _traffic(row.bytes),
             _count(row.gradients_w), _count(row.gradients_beta), f"{row.seconds:,.3g}"]
            for row in self.methods if row.is_known
        ]  # fmt: skip
        if self.lower_bounds is not None:
            least = self.lower_bounds
            bounds = [_count(least.rounds), "", _count(least.grad_w), _count(least.grad_beta), ""]
            body.append(["lower bound (order)", "", *bounds])
        return header, body

    @property
    def notes(self) -> list[str]:
        """What is left out of a prediction, and why a method has none; methods with the same note together."""
        whose: dict[str, list[str]] = {}
        for row in self.methods:
            if row.note:
                whose.setdefault(row.note, []).append(row.method)
        return [f"{', '.join(methods)}: {note}" for note, methods in whose.items()]

    def _table(self) -> Table:
        header, body = self.table()
        columns = {
            name: [getattr(row, name) for row in self.methods]
            for name in (
                "method",
                "iterations",
                "rounds",
                "bytes",
                "gradients_w",
                "gradients_beta",
                "seconds",
                "certainty",
            )
        }
        return Table(self.title, header, body, columns=columns, notes=self.notes)

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().to_html()

    def to_latex(self, path: FilePath | None = None) -> str:
        """Give the table as LaTeX (package booktabs), and write it to `path` if one is given."""
        return self._table().to_latex(path)


def forecast(
    problem: Problem,
    tol: float = 1e-3,
    methods: Sequence[str | Algorithm] | None = None,
    *,
    constants: Constants | None = None,
    seed: int = 0,
    cost: Cost | Preset = "cross-silo",
    seconds: float | None = None,
    participation: Who | Participation | None = None,
) -> Forecast:
    """Predict what every method needs until its error is `tol` times the initial one (Table 1 of the paper).

    The predictions are upper bounds on expectations, with theory's step sizes; a run may well be faster. `methods` are
    names or algorithms with fields of your own, all that are registered if not given, yours with them (`Algorithm.rate`
    says what is known of it); those without a rate are listed with the reason, and what was only measured is marked so.
    `constants` replaces the problem's own. Bytes follow from the sizes of the messages and from the first coins of `seed`.
    Seconds are those of the `cost` model ("cross-silo", "cross-device", "simulation" or a `Cost`). With `seconds`, the time that
    you have, it warns where a run will not end in it, by how much, and what would help. `participation` is who takes part in a round,
    as in `solve`: bytes and gradients are then those of a client on average, without what it loads when it returns.

    >>> import twofold as tw
    >>> data = tw.data.load("synthetic-mixture", sigma_h=0.3, clients=4, rows=10, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_groups(data.x, data.y, data.owner))
    >>> table = tw.theory.forecast(problem, 1e-4, ["acd", "ascd"])
    >>> table["acd"].rounds > 0, table["acd"].certainty, table["ascd"].note
    (True, 'certified', 'ascd has no convergence theorem for this problem.')
    """
    if not 0 < tol < 1:
        raise InputError(f"tol is relative to the initial error and must lie between 0 and 1, got {tol=}.")
    if len(stages(problem)) > 1:
        raise InputError(
            "With Lambda=inf the problem has two stages, each with a forecast of its own: "
            "[forecast(stage) for stage in theory.stages(problem)]."
        )
    found = problem.constants() if constants is None else constants
    rows = float(problem.clients.counted.mean())
    least = rates.lower_bounds(found, rows, tol) if found.mu > 0 else None
    asked = list(REGISTRY) if methods is None else methods
    prices = cost_of(cost)
    chosen = _chosen(participation)
    every = (_method(problem, method, tol, constants, seed, prices, chosen) for method in asked)
    table = Forecast(tol, tuple(_priced(row, prices) for row in every), found, least, prices)
    if seconds is not None:
        _warn_of_time(table, seconds, cost if isinstance(cost, str) else "given", methods is not None)
    return table


def _chosen(participation: Who | Participation | None) -> Participation | None:
    """Who takes part, by known probabilities; None for everyone."""
    if participation is None:
        return None
    chosen = participation if isinstance(participation, Participation) else Participation(participation)
    if callable(chosen.who):
        raise InputError(
            "A forecast needs to know how probably each client takes part: give participation= a number or probabilities."
        )
    return chosen


def _warn_of_time(table: Forecast, seconds: float, cost: str, asked: bool) -> None:
    """Say which methods will not end in the time there is: all that were asked for, or the fastest if none was named."""
    if not seconds > 0:
        raise InputError(f"seconds is the time that you have, a number > 0, got {seconds=}.")
    timed = sorted((row for row in table if math.isfinite(row.seconds)), key=lambda row: row.seconds)
    late = [row for row in timed if row.seconds > seconds]
    if not timed or not late or (len(late) < len(timed) and not asked):
        return
    best = timed[0]
    told = ", ".join(
        f"{row.method} needs {_time(row.seconds)} ({row.seconds / seconds:,.3g} times as long)" for row in late[:4]
    )
    if best.seconds <= seconds:
        remedy = f"{best.method} needs {_time(best.seconds)}: take that"
    else:
        reached = table.tol ** (seconds / best.seconds)
        remedy = (
            f"allow {_time(best.seconds)} for {best.method}, ask for tol = {reached:.2g}, or make the problem easier: features of "
            'one scale (standardize="pooled"), Problem(..., precondition="matrix"), a larger l2 or λ'
        )
    warn(
        f"The run will hardly end in {_time(seconds)}: to tol = {table.tol:g}, by its proven rate and the cost model {cost}, {told}. "
        f"Remedy: {remedy}."
    )


def _time(seconds: float) -> str:
    """Seconds, or what they are called when there are many.

    >>> _time(90.0), _time(7200.0)
    ('90 s', '2 hours')
    """
    for size, name in ((31_557_600, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {name}"
    return f"{seconds:,.3g} s"


def _priced(row: MethodForecast, cost: Cost) -> MethodForecast:
    """The same with its seconds, where there is something to price."""
    if not (row.is_known and math.isfinite(row.iterations)):
        return row
    seconds = cost.total(row.rounds, row.bytes, row.gradients_w + row.gradients_beta)
    return dataclasses.replace(row, seconds=seconds)


def _method(
    problem: Problem,
    method: str | Algorithm,
    tol: float,
    own: Constants | None,
    seed: int,
    cost: Cost,
    who: Participation | None,
) -> MethodForecast:
    given = make(method)
    try:
        if who is not None:
            refuse_some(given, problem, who)
        algorithm, _ = complete(problem, given, own, who, cost)
    except TwofoldError as refusal:  # it does not fit this problem
        return _unproven(given, str(refusal), None)
    facts = facts_of(problem, own, who, cost)
    found = algorithm.rate(facts, tol)
    if isinstance(found, str):
        return _unproven(given, found, algorithm)
    if found.certainty == "none":
        return _unproven(given, found.note, algorithm)
    if isinstance(found, rates.Rate):  # the rest follows from what it does in an iteration
        iterations = found.iterations(tol)
        needed = needs(problem, algorithm, iterations, seed)
        needed = needed if problem.has_shared else needed._replace(rounds=0.0, bytes=0.0)
    else:
        iterations, rounds = found.iterations, found.rounds if problem.has_shared else 0.0
        per_round = 2 * _floats_per_round(problem, algorithm, seed) * _itemsize() if rounds else 0.0
        rows = found.rows_per_gradient
        needed = Needs(rounds, rounds * per_round, found.grad_w * rows, found.grad_beta * rows)
    if facts.participation is not None:  # those who are absent send and compute nothing
        share = float(np.mean(facts.participation))
        needed = Needs(needed.rounds, *(share * each for each in needed[1:]))
    exact = is_exact(algorithm, who is not None)
    noisy = isinstance(found, rates.Prediction) and found.certainty != "measured" and not exact
    return MethodForecast(
        given.name, iterations, *needed, criterion=found.criterion, certainty=found.certainty,
        note=found.note or (NOISE if noisy else ""), algorithm=algorithm,
    )  # fmt: skip


def _unproven(given: Algorithm, reason: str, algorithm: Algorithm | None) -> MethodForecast:
    return MethodForecast(
        given.name, *([math.nan] * 5), criterion="", certainty="none", note=reason, algorithm=algorithm
    )


def stages(problem: Problem) -> tuple[Problem, ...]:
    """The problems that `solve` solves one after the other: two for Lambda=inf, else the problem itself.

    The second stage is taken around the start of the first one: its constants are the same wherever that ends.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2)
    >>> problem = tw.Problem(tw.objectives.multitask(tw.losses.logistic(l2=0.1), lam=1.0, Lambda=np.inf), clients)
    >>> [stage.objective.name for stage in stages(problem)]
    ['traditional', 'around']
    """
    both = problem.objective.stages()
    if both is None:
        return (problem,)
    return problem.staged(both.first), problem.staged(both.second(problem.start[0]))


# --- what the coins say -----------------------------------------------------------------------------------------------


class RoundsCost(NamedTuple):
    """What a number of rounds costs each client; `bytes` are sent and received.

    >>> RoundsCost(rounds=3, iterations=3, floats=6, bytes=48).bytes
    48
    """

    rounds: int
    iterations: int
    floats: int  # sent; as many are received
    bytes: int


def cost_of_rounds(
    problem: Problem,
    algorithm: str | Algorithm,
    rounds: int,
    seed: int = 0,
    most: int = 1_000_000,
    cost: Cost | Preset = "cross-silo",
) -> RoundsCost | None:
    """What so many rounds cost, exactly, as the coins are known beforehand; None if they take over `most` iterations.

    `cost` is that of `solve`: it decides how probable the coins of methods that sample rows are.

    >>> import numpy as np
    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.array([0, 1]))] * 2)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=1.0), clients)
    >>> cost_of_rounds(problem, "lsgd", rounds=3).floats  # two parameters, three times
    6
    """
    if rounds < 1:
        raise InputError(f"rounds must be a whole number ≥ 1, got {rounds=}.")
    if not problem.has_shared:
        raise InputError(
            "Nothing is shared in this problem, so that no round ever takes place: count iterations instead."
        )
    completed, _ = complete(problem, algorithm, cost=cost)
    sizes = footprint(tree.cast(completed), problem).parts
    floats = np.zeros(0, np.int64)
    while np.count_nonzero(floats) < rounds:
        if len(floats) >= most:
            return None
        floats = np.concatenate([floats, _floats_sent(completed, sizes, seed, len(floats))])
    iterations = int(np.flatnonzero(floats)[rounds - 1]) + 1
    total = int(floats[:iterations].sum())
    return RoundsCost(rounds, iterations, total, 2 * total * _itemsize())


def _floats_per_round(problem: Problem, algorithm: Algorithm, seed: int) -> float:
    """Scalars that a client sends in an iteration in which it sends, on average over the first coins."""
    floats = _floats_sent(algorithm, footprint(tree.cast(algorithm), problem).parts, seed, 0)
    return float(floats[floats > 0].mean()) if (floats > 0).any() else 0.0


def _floats_sent(algorithm: Algorithm, sizes: Sequence[int], seed: int, first: int) -> NDArray[np.int64]:
    """Scalars that a client sends in each of the next iterations from `first` on, by `plan` and `sends`."""
    k = jnp.int32(first) + jnp.arange(BLOCK, dtype=jnp.int32)
    flags = _flags(tree.cast(algorithm), randomness.common(randomness.root(seed)), k)
    sent = [np.broadcast_to(np.asarray(flag), BLOCK) for flag in flags]
    return sum(
        (size * flag.astype(np.int64) for size, flag in zip(sizes, sent, strict=True)), np.zeros(BLOCK, np.int64)
    )


@jax.jit
def _flags(algorithm: Algorithm, stream: jax.Array, k: jax.Array) -> list[jax.Array]:
    return jax.vmap(lambda k: jax.tree.map(jnp.asarray, jax.tree.leaves(algorithm.sends(algorithm.plan(stream, k)))))(k)


def _itemsize() -> int:
    return jnp.result_type(float).itemsize


def _count(value: float) -> str:
    if math.isnan(value):
        return "–"
    if not math.isfinite(value):
        return "∞"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.2e}"


def _traffic(value: float) -> str:
    return in_bytes(value) if math.isfinite(value) else "∞"
