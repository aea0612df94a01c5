"""Step sizes of a study, from what its nodes tell: three numbers a set of columns and a count, never a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from twofold import tree
from twofold.algorithms.base import Algorithm, Facts
from twofold.errors import InputError
from twofold.federation.named import fields_of
from twofold.federation.study import Study
from twofold.losses import Linear
from twofold.theory.constants import LossConstants

__all__ = ["complete", "misfit", "rows_of"]

Told = Mapping[str, Any]


def complete(study: Study, told: Mapping[str, Told]) -> tuple[Algorithm, str | None]:
    """The method with all of its numbers, and a note where theory has something to say about them; `told` is by client."""
    algorithm, problem = study.open_algorithm, study.stand_in
    if algorithm.is_complete():
        return algorithm, None
    objective, lam = problem.objective, problem.objective.mixture_strength()
    bound = _agreed(study)
    numbers = [told[name] if bound is None else bound for name in study.names]
    if any("L" not in each for each in numbers):
        silent = next(n for n, each in zip(study.names, numbers, strict=True) if "L" not in each)
        raise InputError(
            f"Client {silent!r} tells no constants, so there are no step sizes: set every number of {algorithm.name} in "
            "[algorithm], agree on [tell] norm = c, or ask it to join with --tell constants."
        )
    answers = [
        LossConstants(
            **{name: np.array([each[name][i] for each in numbers]) for name in ("mu", "L", "calL")},
            how=dict.fromkeys(("mu", "L", "calL"), "certified"),
        )
        for i in range(len(numbers[0]["L"]))
    ]
    asked = dataclasses.replace(cast(Any, objective), loss=_AsTold(study.loss, answers))
    constants = asked.constants(problem.clients, problem.scale)
    if constants is None:
        raise InputError(
            f"There is no formula for the constants of {objective.name}: set every number of {algorithm.name} in [algorithm]."
        )
    rows = [rows_of(study, told[name]) for name in study.names]
    facts = Facts(
        constants=constants, rows=float(np.mean(rows)), M=study.M, max_weight=float(np.max(problem.clients.weights)),
        lam=lam, loss_of=None if lam is None else lambda: answers[0], convex=objective.convex,
        sizes=(tree.size(problem.abstract_start[0]), tree.size(problem.abstract_start[1])),
        weights=np.asarray(problem.clients.weights, np.float64),
    )  # fmt: skip
    return algorithm.complete(facts)


def rows_of(study: Study, told: Told) -> float:
    """How many rows to reckon with for a client."""
    found = told.get("rows", study.usual_rows)
    if found is None:
        raise InputError("A client does not tell how many rows it has: ask it to, or agree on [tell] rows = N.")
    return float(found)


def _agreed(study: Study) -> dict[str, Any] | None:
    """What stands in for what nodes would tell, where a bound on ‖x‖ is agreed on."""
    if study.norm is None:
        return None
    curvature, l2 = study.loss.link.curvature, float(study.loss.l2)
    most = curvature * (float(study.norm) ** 2 + study.loss.intercept) + l2
    return {"mu": [l2] * 2, "L": [most] * 2, "calL": [most] * 2}


class _AsTold:
    """Stands in for a loss whose constants were told; everything else about it is in the study."""

    def __init__(self, loss: Linear, answers: list[LossConstants]) -> None:
        self._loss, self._answers = loss, iter(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def constants(self, *_: Any, **__: Any) -> LossConstants:
        """The next answer, in the order in which the nodes found them."""
        return next(self._answers)

    def curvature(self, *_: Any) -> None:
        """Nobody told it."""


# --- a coordinator's word -----------------------------------------------------------------------------------------------


def misfit(study: Study, algorithm: Mapping[str, Any]) -> str | None:
    """What is wrong with a whole algorithm (as `fields_of` gives it) for this study; None if nothing is.

    The method and every field that the file sets must be the file's. A step size that theory fills in is the coordinator's word:
    a node does not know what the others have told.
    """
    like_any = {"mu": [0.1] * 2, "L": [1.0] * 2, "calL": [1.0] * 2, "rows": 100}
    said = fields_of(study.open_algorithm)
    filled = fields_of(complete(study, dict.fromkeys(study.names, like_any))[0])
    for key in sorted(said.keys() | filled.keys() | algorithm.keys()):
        wanted, found = filled.get(key), algorithm.get(key)
        is_open = said.get(key) != wanted
        if not (_is_like(found, wanted) if is_open else found == wanted):
            due = f"a number like {wanted!r}" if is_open and wanted is not None else repr(wanted)
            return f"[algorithm] {key} is {repr(found)[:60]}, due is {due}"
    return None


def _is_like(found: Any, example: Any) -> bool:
    """Whether a value can stand where theory would put another: as many finite numbers, and the same word.

    >>> _is_like(0.5, 0.1), _is_like("nan", 0.1), _is_like([1.0, 2.0], [0.5, 0.5]), _is_like(0, 3)
    (True, False, True, False)
    >>> _is_like(True, False), _is_like("newton", "lbfgs")
    (True, False)
    """
    if isinstance(example, list):
        return isinstance(found, list) and len(found) == len(example) and all(map(_is_like, found, example))
    if isinstance(example, bool):  # one that theory chooses may be the other
        return isinstance(found, bool)
    if isinstance(example, str | None):
        return found == example
    whole = isinstance(example, int)
    kind = isinstance(found, int if whole else int | float) and not isinstance(found, bool)
    return kind and (min(1, example) <= found <= 2**53 if whole else abs(found) <= 1e300)
