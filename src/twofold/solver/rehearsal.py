"""`solve(problem, engine="flower")`: the same run as a real federation, with a process for every client on this machine."""

from __future__ import annotations

import math

from twofold.algorithms import Algorithm
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver.auto import USUAL, accuracy, choose
from twofold.solver.options import Options
from twofold.solver.steps import complete
from twofold.theory.cost import cost_of

__all__ = ["rehearsed"]


def rehearsed(problem: Problem, algorithm: str | Algorithm, options: Options, seed: int) -> Result:
    """One seed's run by real processes, with the step sizes that any engine would take."""
    budget = options.budget
    asked = {
        "iterations": budget.iterations, "seconds": budget.seconds, "target": budget.target,
        "start": options.start, "participation": options.participation, "checkpoint": options.checkpoint,
        "chunk": options.chunk, "state": options.state, "callbacks": options.callbacks or None, "test": options.test,
        "validation": options.validation, "patience": options.patience, "checkpoint_every": options.checkpoint_every,
    }  # fmt: skip
    for name, value in asked.items():
        if value is not None:
            why = "nobody has everyone's data" if name in ("test", "validation", "patience") else "from the usual start"
            raise InputError(
                f"engine='flower' does not know {name}=: a federation ends after rounds= or at tol=, {why}."
            )
    record = (options.record,) if isinstance(options.record, str) else tuple(options.record)
    if set(record) - {"loss"}:
        unknown = next(name for name in record if name != "loss")
        raise InputError(
            f"engine='flower' does not know record={unknown!r}: a node tells its loss and nothing else; say record='loss', or ()."
        )
    if algorithm == "auto":
        # A federation knows no metric yet: nobody adds up the second moments.
        relative = USUAL if budget.tol is None else accuracy(problem, budget.tol)
        algorithm = choose(problem, cost_of(options.cost), relative, False, metric=False, work=math.inf).algorithm
    method, _ = complete(problem, algorithm, options.constants, cost=options.cost)
    from twofold.engines.flower import rehearse

    rounds = None if budget.relative else budget.rounds
    every = budget.every if record or budget.tol is not None else 0
    return rehearse(problem, method, rounds=rounds, seed=seed, every=every, tolerance=budget.tol, losses=bool(record))
