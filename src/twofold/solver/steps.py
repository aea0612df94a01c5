"""An algorithm by name or by itself, with every open step size filled in from theory."""

from __future__ import annotations

import difflib

import numpy as np

from twofold import tree
from twofold.algorithms import REGISTRY, Algorithm
from twofold.algorithms.base import Facts
from twofold.errors import InputError, KindError
from twofold.problem import Problem
from twofold.theory.constants import Constants

__all__ = ["complete", "make"]


def make(algorithm: str | Algorithm) -> Algorithm:
    """An algorithm from its name, or itself."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, type):
        raise KindError(f"Give an algorithm, not its class: {algorithm.__name__}().")
    if algorithm not in REGISTRY:
        near = difflib.get_close_matches(str(algorithm), REGISTRY, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"Unknown algorithm {algorithm!r}; there are {', '.join(REGISTRY)}.{hint}")
    return REGISTRY[algorithm]()


def complete(
    problem: Problem, algorithm: str | Algorithm, constants: Constants | None = None
) -> tuple[Algorithm, str | None]:
    """The algorithm with every open field filled in from theory, and theory's note to the user."""
    algorithm = make(algorithm)
    objective = problem.objective
    if algorithm.needs not in (None, objective.name):
        raise InputError(
            f"{algorithm.name} solves the {algorithm.needs} objective only, but this problem's is {objective.name}; "
            "use lsgd, acd or asvrcd, which solve any."
        )
    if algorithm.needs == "mixture" and problem.metric is not None:
        raise InputError(
            f"{algorithm.name} works in the user's own variables only: leave out precondition={problem.precondition!r}."
        )
    if algorithm.is_complete():
        return algorithm, None
    lam = objective.mixture_strength()
    facts = Facts(
        constants=problem.constants() if constants is None else constants,
        rows=float(np.mean(problem.clients.counts)),
        M=problem.M,
        max_weight=float(np.max(problem.clients.weights)),
        lam=lam,
        loss=None if lam is None else objective.loss.constants(problem.clients),
        sizes=(tree.size(problem.abstract_start[0]), tree.size(problem.abstract_start[1])),
        convex=objective.convex,
        coin=problem.best_coin if constants is None and algorithm.name == "acd" else None,
    )
    return algorithm.complete(facts)
