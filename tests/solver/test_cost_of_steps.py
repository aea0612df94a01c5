"""What a round, a byte and a gradient cost decides p_w, ρ and the batch of the methods that sample rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import twofold as tw
from twofold.algorithms.base import Algorithm
from twofold.errors import InputError
from twofold.solver import complete
from twofold.solver.steps import facts_of
from twofold.theory import tight
from twofold.theory.cost import PRESETS, Cost

ROWS = Cost(round=0.0, byte=0.0, gradient=1.0)
METHODS = ("scd", "ascd", "svrcd", "asvrcd")


@pytest.fixture(scope="module")
def problem() -> tw.Problem:
    """Least squares in which a few rows are large, under weight sharing."""
    rng = np.random.default_rng(3)
    pairs = []
    for _ in range(4):
        x = rng.normal(size=(300, 6)) * (1 + rng.pareto(2.0, size=(300, 1)))
        pairs.append((x, x @ rng.normal(size=6) + rng.normal(size=300)))
    return tw.Problem(tw.objectives.weight_sharing(tw.losses.squared(l2=0.1), split=3), tw.Clients.from_list(pairs))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("cost", ["cross-silo", ROWS])
def test_the_steps_are_those_of_the_cheapest_design(problem: tw.Problem, name: str, cost: object) -> None:
    facts = facts_of(problem, cost=cost)  # pyright: ignore[reportArgumentType]
    asked = tight.design(
        name,  # pyright: ignore[reportArgumentType]
        facts.constants, facts.rows, facts.constants.mu, batches=tight.batches_of("auto", facts.rows, facts.cost),
        cost=facts.cost, message=2 * 3 * 8,
    )  # fmt: skip
    for found in (complete(problem, name, cost=cost)[0], tw.solve(problem, name, cost=cost, rounds=1).algorithm):
        assert (found.p_w, found.batch) == (asked.p_w, asked.batch)
        if name in ("svrcd", "asvrcd"):
            assert found.rho == asked.rho_w


@pytest.mark.parametrize("cost", ["cross-silo", ROWS])
def test_two_reference_points_follow_the_cost(problem: tw.Problem, cost: object) -> None:
    facts = facts_of(problem, cost=cost)  # pyright: ignore[reportArgumentType]
    c, n = facts.constants, facts.rows
    asked = tight.design(
        "asvrcd", c, n, c.mu, batches=tight.batches_of("auto", n, facts.cost), cost=facts.cost, message=2 * 3 * 8,
        references="two",
    )  # fmt: skip
    two = tw.algorithms.ASVRCD(reference="two")
    for found in (complete(problem, two, cost=cost)[0], tw.solve(problem, two, cost=cost, rounds=1).algorithm):
        assert (found.p_w, found.rho_w, found.rho_beta, found.batch) == (
            asked.p_w, asked.rho_w, asked.rho_beta, asked.batch
        )  # fmt: skip
    plain = complete(problem, two, cost=None)[0]
    assert (plain.p_w, plain.rho_w, plain.rho_beta) == tight.balanced(c, n, c.mu) and plain.batch == 1


def test_dear_rounds_take_more_rows_and_less_often_w(problem: tw.Problem) -> None:
    few, many = (complete(problem, "asvrcd", cost=cost)[0] for cost in ("cross-silo", ROWS))
    size = [np.inf if each.batch is None else each.batch for each in (few, many)]
    assert size[0] > size[1]
    rows = [tw.theory.forecast(problem, 1e-6, ["asvrcd"], cost=cost)["asvrcd"] for cost in ("cross-silo", ROWS)]
    assert rows[0].rounds < rows[1].rounds
    assert rows[0].gradients_w + rows[0].gradients_beta > rows[1].gradients_w + rows[1].gradients_beta
    assert [row.algorithm for row in rows] == [few, many]  # a forecast is for the steps that a run takes


def test_a_byte_counts(problem: tw.Problem) -> None:
    dear, free = (complete(problem, "asvrcd", cost=Cost(1.0, byte, 1.0))[0].p_w for byte in (1e4, 0.0))
    assert dear < free


def test_a_number_always_wins(problem: tw.Problem) -> None:
    for batch in (1, 7, None):
        assert complete(problem, tw.algorithms.ASVRCD(batch=batch))[0].batch == batch
    assert complete(problem, tw.algorithms.ASVRCD(), cost=None)[0].batch == 1
    given = complete(problem, tw.algorithms.SVRCD(p_w=0.3, rho=0.2))[0]
    assert (given.p_w, given.rho) == (0.3, 0.2) and given.batch != "auto"
    with pytest.raises(InputError, match="a batch that is a whole number"):
        tw.solve(problem, tw.algorithms.SVRCD(batch="all"), rounds=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="a batch that is a whole number"):
        tw.solve(problem, tw.algorithms.PFedMe(batch="auto"), rounds=1)  # pyright: ignore[reportArgumentType]


def test_the_papers_constants_know_no_batch(problem: tw.Problem) -> None:
    plain = problem.constants(rule="paper")
    for name in (*METHODS, "hybrid"):
        one, other = (complete(problem, name, plain, cost=cost)[0] for cost in ("cross-silo", ROWS))
        assert one == other and one.batch == 1


def test_nobody_is_left_open(problem: tw.Problem) -> None:
    open_one: Algorithm = tw.algorithms.Hybrid()
    found = complete(problem, open_one)[0]
    assert all(getattr(found, f.name) not in (None, "auto") for f in dataclasses.fields(found) if f.name != "batch")  # type: ignore[arg-type]
    assert PRESETS["cross-silo"].round > 0 and found.batch != "auto"
