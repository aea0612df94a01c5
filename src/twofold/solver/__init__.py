"""solve(): fills in step sizes, runs an engine, watches for divergence, returns a Result."""
# What users hand over is looked at, whatever its annotation says.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Unpack, cast, overload

import numpy as np

from twofold.algorithms import Algorithm
from twofold.clients import Clients
from twofold.engines import EngineName
from twofold.engines.memory import Place
from twofold.errors import InputError, KindError
from twofold.problem import Problem
from twofold.result import Result, Results
from twofold.solver.budget import Budget
from twofold.solver.checkpoint import refuse_settings
from twofold.solver.names import refuse_arguments
from twofold.solver.options import Callback, Metrics, Options, RunOptions, SolveOptions, Start, TheoryWarning
from twofold.solver.participation import Participation, Who
from twofold.solver.progress import Interrupt
from twofold.solver.rehearsal import rehearsed
from twofold.solver.run import Run
from twofold.solver.stages import solve_stages
from twofold.solver.steps import complete, make
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost, Preset
from twofold.tree import Pytree

__all__ = [
    "AlgorithmName", "Budget", "Options", "Participation", "RunOptions", "SolveOptions", "TheoryWarning", "complete", "make", "solve",
]  # fmt: skip

AlgorithmName = Literal[
    "auto", "profile", "lsgd", "acd", "scd", "ascd", "svrcd", "asvrcd", "hybrid", "l2sgd_plus", "pfedme",
    "fedprox", "scaffnew", "scafflix", "al2sgd_plus", "saga",
]  # fmt: skip


@overload
def solve(
    problem: Problem,
    algorithm: AlgorithmName | str | Algorithm = ...,
    *,
    seeds: None = ...,
    **options: Unpack[SolveOptions],
) -> Result: ...
@overload
def solve(
    problem: Problem,
    algorithm: AlgorithmName | str | Algorithm = ...,
    *,
    seeds: Iterable[int] | int,
    **options: Unpack[SolveOptions],
) -> Results: ...
def solve(
    problem: Problem,
    algorithm: AlgorithmName | str | Algorithm = "auto",
    *more: object,  # here only to say what to write instead, as `unknown`
    rounds: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    tol: float | None = None,
    seed: int = 0,
    seeds: Iterable[int] | int | None = None,
    record: Metrics = ("loss",),
    every: int = 1,
    engine: EngineName | str = "simulate",
    chunk: int | None = None,
    state: Place | None = None,
    start: Start | None = None,
    constants: Constants | None = None,
    progress: bool | None = None,
    participation: Who | Participation | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    cost: Cost | Preset = "cross-silo",
    test: Clients | None = None,
    validation: Clients | None = None,
    patience: int | None = None,
    **unknown: object,  # hidden by the overloads: here only to say what to write instead
) -> Result | Results:
    """Minimise the problem: `solve(problem)` chooses the method and knows when to stop.

    **By which algorithm.** "auto" takes the one that is predicted to cost least; `cost` says what a round, a byte and a row's gradient
    cost ("cross-silo", "cross-device", "simulation" or a `Cost`), and `result.notes` says which it was and why. A name takes every
    step size from theory; an instance (`tw.algorithms.ACD(p_w=0.5)`) keeps the fields that you set.

    **When to stop.** If nothing is said, when the gap is certified to be 1e-8 of the initial one (1e-4 in single precision).
    Otherwise on `rounds` of communication, `iterations`, wall `seconds`, a `target` loss, or `tol` ≥ F − F*, a certified gap (it
    needs strong convexity), whichever comes first. A problem with nothing to share communicates nothing: there `rounds` counts
    iterations. Stopping on `target` or `tol` happens at a record. Ctrl-C ends all of it and gives what there is, with status
    "interrupted"; seeds and stages that had not begun are left out.

    **What to record.** `record` names metrics ("loss", "gap", "gradient_norm", "bound") or maps names to functions of (w, beta). They
    are taken at every `every`-th round, at the start and at the end, and handed to each of `callbacks` as they come.

    **What to watch.** `test` and `validation` are clients with rows that are not trained on. At every record everyone's models are
    graded on them: over all rows (`test_accuracy`), the mean and the worst client (`…_clients`, `…_worst`), and, where w is a model by
    itself, with w alone (`…_shared`). `result.best` is the best round by the validation rows, or else by the test rows. With `patience`
    the run ends when so many records have brought nothing better.

    **Where to begin.** `start` is a pair (w, beta), or a Result to go on from. `seed` decides all coins; `seeds` (some numbers, or
    how many) runs many at once and gives a `Results`. `constants` replaces the problem's own in the choice of step sizes.

    **How to run.** `engine` is "simulate" (all clients at once; where memory or caches are too small for that they take turns),
    "streamed" (they take turns: `chunk` of them at a time, those who wait keeping their private state on the `state` "device", "host"
    or "disk"), "sharded" (over devices and processes), "messages" (client by client) or "flower" (a rehearsal
    of a real federation: one process a client, on this machine; needs `rounds`).

    **Who takes part.** `participation` is a number of clients, a probability, one probability per client, or a function of the round;
    see `Participation`. Those who are absent keep their β and cost nothing; the ledger counts what they download on return.

    **Checkpoints.** With `checkpoint="folder"` the state is written there every `checkpoint_every` rounds (default: every minute), and
    the same call with the same folder goes on from there, to the same result; a larger budget continues it. A smaller one, of which
    the checkpoint is already at the end or past it, ends at once with what the checkpoint has recorded last: its ledger says how far.

    >>> import numpy as np, twofold as tw
    >>> rng = np.random.default_rng(0)
    >>> clients = tw.Clients.from_list([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(4)])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)
    >>> result = tw.solve(problem, "acd", tol=1e-6)
    >>> result.status, result.beta.shape
    ('converged', (4, 3))
    """
    if isinstance(algorithm, Clients) and not isinstance(problem, Problem):
        raise KindError(
            "Put the objective and the clients together first: tw.solve(tw.Problem(objective, clients), ...)."
        )
    if more:
        raise KindError(f"solve takes a problem and an algorithm, and all else by name, but there is also {more[0]!r}.")
    if unknown:
        refuse_arguments(solve, algorithm, unknown)
    if not isinstance(problem, Problem):
        raise KindError(f"solve needs a Problem (tw.Problem(objective, clients)), got {type(problem).__name__}.")
    is_endless = algorithm != "auto" and all(limit is None for limit in (rounds, iterations, seconds, target, tol))
    if is_endless or not isinstance(algorithm, str | Algorithm):
        make(algorithm)  # says what to write instead, before anything else is said
    if checkpoint is not None or checkpoint_every is not None:
        refuse_settings(checkpoint, checkpoint_every)
    all_seeds = _seeds(seed, seeds)
    called = (callbacks,) if callable(callbacks) else tuple(callbacks)
    if not all(map(callable, called)):
        raise KindError(f"callbacks are functions, which are called with every record, got {callbacks!r}.")
    options = Options(
        budget=Budget.asked(algorithm, rounds, iterations, seconds, target, tol, every),
        record=record, engine=engine, start=None if start is None else _start(start),
        constants=constants, progress=progress, chunk=chunk, state=state, participation=participation,
        checkpoint=checkpoint, checkpoint_every=checkpoint_every, callbacks=called, cost=cost,
        test=test, validation=validation, patience=patience,
    )  # fmt: skip
    stages, interrupt = problem.objective.stages(), Interrupt()
    if engine == "flower":
        runs = [rehearsed(problem, algorithm, options, s) for s in all_seeds]
    elif stages is None:
        runs = Run(problem, algorithm, options, all_seeds, interrupt).go()
    else:
        runs = interrupt.runs(lambda s: solve_stages(problem, stages, algorithm, options, s, interrupt), all_seeds)
    runs = [dataclasses.replace(run, problem=problem) for run in runs]
    return runs[0] if seeds is None else Results(runs)


def _start(start: object) -> tuple[Pytree, Pytree]:
    """The pair (w, beta) to begin from."""
    if isinstance(start, Results):
        raise KindError(f"start=Results holds {len(start)} runs: begin from one of them, as in start=results[0].")
    if hasattr(start, "w") and hasattr(start, "beta"):  # a Result or a Model
        return cast(Result, start).w, cast(Result, start).beta
    kind, parts = type(start).__name__, cast(tuple[Pytree, ...], start) if isinstance(start, tuple) else ()
    if len(parts) != 2:
        raise KindError(f"start is a pair (w, beta), a Result or a Model to go on from, got {kind}.")
    return parts[0], parts[1]


def _seeds(seed: int, seeds: Iterable[int] | int | None) -> list[int]:
    """All seeds of a call."""
    if seeds is None:
        return [int(seed)]
    if isinstance(seeds, float | str):
        raise KindError(f"seeds is a whole number (how many) or some whole numbers, such as [3, 4], got {seeds!r}.")
    found = [int(s) for s in (range(seeds) if isinstance(seeds, int | np.integer) else seeds)]
    if not found:
        raise InputError("seeds is empty: give at least one seed.")
    return found
