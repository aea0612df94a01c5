"""Λ = ∞: traditional federated learning, then everyone alone around its solution; one Result for both."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from twofold import metrics as measure
from twofold.algorithms.base import Algorithm
from twofold.errors import InputError
from twofold.objectives.base import Objective, Stages
from twofold.problem import Problem
from twofold.result import History, Result
from twofold.solver.budget import Budget
from twofold.solver.options import Options
from twofold.solver.progress import Interrupt
from twofold.solver.run import Run
from twofold.tree import Pytree

__all__ = ["solve_stages"]


def solve_stages(
    problem: Problem, stages: Stages, algorithm: str | Algorithm, options: Options, seed: int, interrupt: Interrupt
) -> Result:
    """Both stages of one seed's run; after Ctrl-C in the first, its w and the β that the second would have begun with."""
    if options.constants is not None:
        raise InputError("With Lambda=inf each stage has its own constants: solve the stages separately to give them.")
    w0, beta0 = problem.start if options.start is None else options.start

    def solve_stage(number: int, objective: Objective, **changes: Any) -> Result:
        part = problem.staged(objective)
        folder = None if options.checkpoint is None else f"{options.checkpoint}/seed-{seed}-stage-{number}"
        changed = dataclasses.replace(options, checkpoint=folder, **changes)
        return Run(part, algorithm, changed, [seed], interrupt).go()[0]

    # The first stage has no β: a metric of (w, beta) and a target loss are about the second.
    shared = {name: metric for name, metric in measure.named(options.record).items() if isinstance(metric, str)}
    _refuse_target_alone(options.budget)
    budget = dataclasses.replace(options.budget, target=None)
    first = solve_stage(1, stages.first, start=(w0, ()), record=shared, budget=budget)
    if interrupt.asked:
        return _first_alone(first, beta0)
    second = solve_stage(2, stages.second(first.w), start=((), beta0), participation=None)
    return _joined(first, second, seed)


def _refuse_target_alone(budget: Budget) -> None:
    others = (budget.rounds, budget.iterations, budget.seconds, budget.tol)
    if budget.target is not None and all(limit is None for limit in others):
        raise InputError("With Lambda=inf a target is for the second stage: say also when the first is over (rounds=).")


def _first_alone(first: Result, beta: Pytree) -> Result:
    """The result of a run that was interrupted before its second stage."""
    stage = np.ones(len(first.history["round"]), int)
    return dataclasses.replace(
        first, beta=jax.tree.map(np.asarray, beta), history=History({**first.history, "stage": stage}),
        status="interrupted", message=f"first stage: {first.message}; there was no second stage",
    )  # fmt: skip


def _joined(first: Result, second: Result, seed: int) -> Result:
    """One result of both stages, with a column that says which a record belongs to."""
    ends = ("diverged", "interrupted")
    worst = next((run for run in (first, second) if run.status in ends), second)
    return Result(
        w=first.w, beta=second.beta, history=first.history.then(second.history), ledger=first.ledger + second.ledger,
        status=worst.status, message=f"first stage: {first.message}; second stage: {second.message}", algorithm=second.algorithm,
        seed=seed, seconds=first.seconds + second.seconds, notes=tuple(dict.fromkeys(first.notes + second.notes)),
    )  # fmt: skip
