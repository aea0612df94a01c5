"""What is measured at a record: metrics of the iterate, and figures derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from twofold import metrics as measure
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.solver.options import Options, warn
from twofold.solver.watch import SHARED, Watch, columns, watch

__all__ = ["Recording", "recording"]


class Recording(NamedTuple):
    """The metrics of a run, with the names that the user gave them, and what turns them into a gap or a bound."""

    metrics: dict[str, measure.Metric]
    aliases: Mapping[str, str]  # a built-in metric under a name of the user's own gets a column of that name too
    best: float | None  # F*, where the gap is wanted
    mu: float | None  # μ, where ‖∇F‖²/(2μ) is wanted
    graded: Mapping[str, list[str]]  # sets of rows that are graded, and the columns that they give
    watch: Watch | None  # by which column rounds are compared, where one is

    def derive(self, values: dict[str, Any]) -> None:
        """Add the figures that come from another metric and a number, and give each grade a column of its own."""
        for which, names in self.graded.items():
            found = values.pop(which)
            values |= {name: found[:, i] for i, name in enumerate(names)}
        if self.best is not None:
            values["gap"] = values["loss"] - self.best
        if self.mu is not None:
            with np.errstate(over="ignore"):  # a diverging float32 run may overflow here, and ends with a message
                values["bound"] = values["gradient_norm"] ** 2 / (2 * self.mu)


def recording(problem: Problem, options: Options) -> Recording:
    """What to measure: what the user asked to record, and what the end of the run is recognised by."""
    budget, given = options.budget, options.constants
    metrics, names = measure.resolve(options.record, problem), measure.named(options.record)
    wanted = {metric for metric in names.values() if isinstance(metric, str)}
    aliases = {name: metric for name, metric in names.items() if isinstance(metric, str) and name != metric}
    wants_bound, mu = "bound" in wanted or budget.tol is not None, None
    if budget.target is not None or budget.relative is not None:
        metrics["loss"] = measure.loss
    if budget.relative is not None:
        # A relative gap is seen by a certified bound, or where there is none by the gradient.
        wants_bound = problem.has_proof or (problem.constants() if given is None else given).mu > 0
        if not wants_bound:
            metrics["gradient_norm"] = measure.gradient_norm
    if wants_bound and given is None and problem.has_proof:
        metrics["bound"] = measure.bound
        if "gradient_norm" not in wanted:
            metrics.pop("gradient_norm", None)
    elif wants_bound:
        metrics["gradient_norm"] = measure.gradient_norm
        mu = _certified_mu(problem, options)
    best = problem.optimum().value if "gap" in wanted else None
    if options.test is options.validation is options.patience is None:
        return Recording(metrics, aliases, best, mu, {}, None)
    held_out, watched = watch(problem, options.test, options.validation, options.patience)
    measured = {which: columns(which, problem.objective.measure()) for which in held_out}
    if "shared" not in problem.objective.parts(problem.clients):
        measured = {which: names[:SHARED] for which, names in measured.items()}
    return Recording(metrics | held_out, aliases, best, mu, measured, watched)


def _certified_mu(problem: Problem, options: Options) -> float:
    constants = problem.constants() if options.constants is None else options.constants
    if not constants.mu > 0:
        raise InputError(
            f"tol needs strong convexity to certify a gap, but μ = {constants.mu:g} here: add a ridge (l2 > 0), pass "
            "constants=problem.constants(mu=...), or stop on rounds or a target loss."
        )
    if constants.how.get("mu") == "local":
        warn("The gap is bounded with a local μ, which certifies nothing far away.")
    return constants.mu
