"""`solve(problem)` takes other variables where gradients are what costs, and gives the user's own back."""

from __future__ import annotations

import numpy as np
import pytest

import twofold as tw
from twofold.solver.auto import candidates, choose
from twofold.theory.cost import PRESETS


@pytest.fixture(scope="module")
def problem() -> tw.Problem:
    """Least squares with correlated features: ACD in a matrix metric needs few gradients, profile few rounds."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.normal(size=(12, 12)))[0] * np.geomspace(1, 30, 12)
    pairs = [((x := rng.normal(size=(40, 12)) @ mix), x @ rng.normal(size=12)) for _ in range(3)]
    return tw.Problem(
        tw.objectives.adaptive(tw.losses.squared(l2=0.01), alpha=0.5, Lambda=1.0), tw.Clients.from_list(pairs)
    )


def test_where_gradients_cost_a_metric_is_chosen_and_w_and_beta_are_the_users(problem: tw.Problem) -> None:
    found = tw.solve(problem, cost="simulation")
    assert "acd in a matrix metric" in found.notes[0] and found.problem is problem
    best = problem.optimum()
    first = float(problem.value(*problem.start)) - best.value
    assert float(problem.value(found.w, found.beta)) - best.value <= 1e-8 * first


def test_where_rounds_cost_no_metric_is_looked_at(problem: tw.Problem) -> None:
    names = [one.name for one in candidates(problem, PRESETS["cross-silo"], 1e-8)]
    assert names[0] == "profile" and "acd in a matrix metric" not in names
    assert choose(problem, PRESETS["cross-silo"], 1e-8, False).algorithm.name == "profile"


def test_a_federation_is_offered_no_metric(problem: tw.Problem) -> None:
    assert choose(problem, PRESETS["simulation"], 1e-8, False, metric=False).problem is problem
