"""Weights kept the other way round: (classes, features), where a model has them as (features, classes).

Long rows are what vector units like, and GPUs, too. Methods only ever add and scale parameters, so only the loss has to know;
an engine transposes the start when it comes in, and what it reports when it goes out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from twofold.losses import Linear
from twofold.problem import Problem


def transposable(problem: Problem) -> bool:
    """Whether all parameters of this problem are those of one linear model that has a weight for each class."""
    loss = getattr(problem.objective, "loss", None)
    return problem.objective.whole_models and isinstance(loss, Linear) and loss.link.outputs is not None


def turned(objective: Any, turned: bool = True) -> Any:
    """The objective for transposed weights, or (false) for the user's own again."""
    return dataclasses.replace(objective, loss=dataclasses.replace(objective.loss, turned=turned))


def swapped(w: Any, parts: tuple) -> tuple[Any, tuple]:
    """w and each bucket's β with all weights transposed; a bias is a vector, or one for each client, and stays."""

    def swap(x: Any, ndim: int) -> Any:
        return jax.tree.map(lambda leaf: leaf.swapaxes(-1, -2) if leaf.ndim == ndim else leaf, x)

    return swap(w, 2), swap(parts, 3)
