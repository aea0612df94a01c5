"""Run one cell: solve its problem from every seed, and return all records as one table."""

from __future__ import annotations

import json
import math
import time
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import twofold as tw
from twofold.extras import require
from twofold.paper import faults, problems
from twofold.paper.base import Cell, Plain
from twofold.paper.numbers import number
from twofold.theory import Constants

if TYPE_CHECKING:
    import pyarrow

__all__ = ["run"]


def run(cell: Cell) -> pyarrow.Table:
    """Solve a cell; the table has one row per record of each seed, and everything else about the run in its metadata."""
    with jax.enable_x64(cell.wide):
        setup = problems.setup(cell.problem, cell.wide)
        given = setup.published if cell.published else None
        constants = setup.problem.constants(rule="paper") if given is None else given
        algorithm = _algorithm(cell, setup.problem, constants)
        record = {name: setup.measures.get(name, name) for name in cell.metrics}
        options = {
            "record": record,
            "every": cell.every,
            "constants": constants,
            "progress": False,
            "seeds": cell.seeds,
        }
        if cell.reach is not None:
            best, start = setup.problem.optimum().value, float(setup.problem.value(*setup.problem.start))
            options["target"] = best + cell.reach * (start - best)
        if cell.warm_up:
            tw.solve(setup.problem, algorithm, rounds=cell.warm_up, **options)
        began = time.perf_counter()
        runs = tw.solve(setup.problem, algorithm, rounds=cell.rounds, **options)
        seconds = time.perf_counter() - began
        reached = {} if cell.reach is None else _rounds_to_reach(cell, setup.problem, constants, runs)
    return _table(
        runs,
        {
            "cell": cell.as_dict(),
            "hyper": _hyper_parameters(runs[0].algorithm),
            "constants": {name: getattr(constants, name) for name in ("mu", "L_w", "L_beta", "calL_w", "calL_beta")},
            "status": [r.status for r in runs],
            "message": next((r.message for r in runs if r.status == "diverged"), runs[0].message),
            "notes": list(runs[0].notes),
            "provenance": setup.provenance,
            "seconds": seconds,
            **reached,
        },
    )


def _algorithm(cell: Cell, problem: tw.Problem, constants: Constants) -> tw.algorithms.Algorithm:
    """The cell's method with the fields that are set by hand; "asvrcd.eta" is the η that theory gives ASVRCD."""

    def resolve(value: Any) -> Any:
        if not isinstance(value, str) or "." not in value:
            return value
        method, name = value.split(".")
        rows = float(np.mean(problem.clients.counts))
        return float(getattr(tw.theory.stepsizes, method)(constants, rows)[name])

    values = {name: resolve(value) for name, value in cell.fields.items()}
    known = {**tw.algorithms.REGISTRY, **(faults.METHODS if cell.faulty else {})}
    return known[cell.algorithm](**values)


def _rounds_to_reach(cell: Cell, problem: tw.Problem, constants: Constants, runs: tw.Results) -> dict[str, Any]:
    """√(L^w/μ), the rounds that the accuracy took, and theory's numbers beside them.

    These are ACD's guarantee, and on the lower-bound instance the fewest rounds that any method needs.
    """
    assert cell.reach is not None
    rounds = [float(r.history["round"][-1]) if r.status == "converged" else math.nan for r in runs]
    spread = np.std(rounds, ddof=1) / math.sqrt(len(rounds)) if len(rounds) > 1 else 0.0
    out: dict[str, Any] = {
        "condition": math.sqrt(constants.L_w / constants.mu),
        "rounds_to_reach": number(np.mean(rounds)),
        "rounds_stderr": number(spread),
    }
    best, start = problem.optimum(), problem.start
    gap = float(problem.value(*start)) - best.value
    if cell.method == "acd":
        apart = [_squared_distance(a, b) for a, b in zip(start, best[:2], strict=True)]
        initial = tw.theory.rates.initial_error("acd", constants, gap, apart[0] / problem.scale**2 + apart[1])
        out["predicted"] = tw.theory.predict("acd", constants, cell.reach * gap, initial=initial).rounds
    if problem.objective.name == "lower_bound":
        out["least"] = tw.theory.instances.least(problem, cell.reach).rounds
    return out


def _squared_distance(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(sum(jnp.sum(jnp.square(x - y)) for x, y in pairs))


def _hyper_parameters(algorithm: tw.algorithms.Algorithm) -> dict[str, Any]:
    values = {f.name: getattr(algorithm, f.name) for f in fields_of(algorithm)}  # type: ignore[arg-type]
    return {k: v if isinstance(v, (str, bool, int, type(None))) else float(v) for k, v in values.items()}


def _table(runs: tw.Results, about: Plain) -> pyarrow.Table:
    pa = require("pyarrow", "`twofold reproduce`", "paper")
    lengths = [len(r.history["round"]) for r in runs]
    columns = {"seed": np.repeat([r.seed for r in runs], lengths)}
    for name in runs[0].history:
        values = np.concatenate([r.history[name] for r in runs])
        columns[name] = values.astype(np.float64) if values.dtype.kind == "f" else values  # whatever it was computed in
    return pa.table(columns).replace_schema_metadata({"twofold": json.dumps(about)})
