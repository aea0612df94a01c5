"""Grades on rows that are not trained on, taken while a run goes on: which round was the best, and when to stop."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold.clients import Clients
from twofold.errors import InputError
from twofold.metrics import HeldOut, OfHeldOut
from twofold.objectives.base import Objective
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["SHARED", "Watch", "columns", "watch"]

FIGURES = ("", "_clients", "_worst", "_shared")
"""What is recorded of a set of rows: over all rows, the mean and the worst client, and over all rows with w alone."""
SHARED = 3


class Watch(NamedTuple):
    """What to watch: the column by which rounds are compared, and after how many records without improvement to stop."""

    column: str
    patience: int | None

    def stops(self, values: np.ndarray) -> np.ndarray:
        """After which records the best one is `patience` records old.

        >>> Watch("test_accuracy", patience=2).stops(np.array([0.1, 0.5, 0.4, 0.5, 0.6])).tolist()
        [False, False, False, True, True]
        """
        if self.patience is None:
            return np.zeros(len(values), bool)
        best = [int(np.argmax(values[: i + 1])) for i in range(len(values))]
        waited = np.arange(len(values)) - np.array(best)
        return np.maximum.accumulate(waited >= self.patience)


def columns(which: str, measure: str) -> list[str]:
    """The names of a history's columns for a set of rows ("test", "validation").

    >>> columns("test", "accuracy")
    ['test_accuracy', 'test_accuracy_clients', 'test_accuracy_worst', 'test_accuracy_shared']
    """
    return [f"{which}_{measure.replace(' ', '_')}{figure}" for figure in FIGURES]


def watch(
    problem: Problem, test: Clients | None, validation: Clients | None, patience: int | None
) -> tuple[dict[str, OfHeldOut], Watch | None]:
    """What to measure on which rows, and what to watch: validation rows if there are any, else test rows."""
    given = {name: rows for name, rows in (("test", test), ("validation", validation)) if rows is not None}
    if patience is not None and (int(patience) != patience or patience < 1):
        raise InputError(f"patience is a number of records ≥ 1, got {patience=}.")
    if not given:
        if patience is not None:
            raise InputError(
                "patience needs rows to watch: give validation=, clients with rows that are not trained on."
            )
        return {}, None
    from twofold.evaluate.grading import check_test  # whose neighbours import the solver

    metrics: dict[str, OfHeldOut] = {}
    for name, rows in given.items():
        check_test(problem.clients, rows, problem.objective)
        metrics[name] = _metric(problem, rows)
    followed = "validation" if validation is not None else "test"
    return metrics, Watch(columns(followed, problem.objective.measure())[0], patience)


def _metric(problem: Problem, rows: Clients) -> OfHeldOut:
    stacks = tuple(rows.stack(positions) for positions in problem.positions)
    data = tuple(HeldOut(stack.x, stack.y, stack.count) for stack in stacks)
    sizes = tuple(len(positions) for positions in problem.positions)
    return OfHeldOut(data, _Grade("shared" in problem.objective.parts(problem.clients)), sizes)


class _Grade(NamedTuple):
    """How one client's rows are graded; equal ones compile once."""

    shared: bool

    def __call__(self, objective: Objective, member: Member, w: Pytree, beta: Pytree, rows: HeldOut) -> jax.Array:
        """The sum of the grades of a client's rows: with its own model, and with w alone (zero where that is no model)."""
        x, y, count = rows
        train, real = member.rows(), jnp.arange(len(jax.tree.leaves(x)[0])) < count
        own = objective.grade(w, beta, train, member.own, x, y)
        grade: Callable[..., jax.Array] = objective.grade_part
        alone = grade("shared", w, beta, train, member.own, x, y) if self.shared else jnp.zeros_like(own)
        return jnp.stack([jnp.sum(jnp.where(real, found, 0)) for found in (own, alone)])
