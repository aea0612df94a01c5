"""Seeds spread over cores: the same iterates and the same figures, in the same order, as all of them together."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import problems
import twofold as tw
from twofold import engines, machine, metrics
from twofold.engines.grouped import Grouped
from twofold.engines.simulate import Simulate
from twofold.solver import complete

SEEDS = [3, 1, 4, 15, 9, 2]


@pytest.fixture(name="problem")
def _problem() -> tw.Problem:
    return problems.problem("mixture", "logistic")


@pytest.mark.parametrize("method", ["asvrcd", "lsgd", "l2sgd_plus"])
@pytest.mark.parametrize("groups", [2, 3])
def test_the_same_iterates_and_figures(problem: tw.Problem, method: str, groups: int):
    algorithm, _ = complete(problem, method, None)
    together = Simulate(algorithm, problem, SEEDS, problem.start, 4)
    apart = Grouped(algorithm, problem, SEEDS, problem.start, 4, groups=groups)
    where = np.array([4, 0, 4, 1, 2, 4, 3])
    wanted = {"loss": metrics.loss, "gradient_norm": metrics.gradient_norm}
    for k in (0, 7):
        one, other = together.advance(k, 7, where), apart.advance(k, 7, where)
        apart.wait()
        for slot, row in ((0, 0), (2, 3), (3, 5)):
            jax.tree.map(
                lambda a, b: assert_allclose(a, b, atol=1e-13),
                together.fetch(one, slot, row),
                apart.fetch(other, slot, row),
            )
        index = np.random.default_rng(k).permutation(4 * len(SEEDS))[:13]
        expected, sizes = together.measure(wanted, one, index)
        found, others = apart.measure(wanted, other, index)
        for name in wanted:
            assert_allclose(found[name], expected[name], rtol=1e-12)
        assert_allclose(others, sizes, rtol=1e-12)
        few = np.array([2, 1])  # both of the first group: the others have nothing to measure
        assert_array_equal(
            apart.measure(wanted, other, few)[0]["loss"], apart.measure(wanted, other, few[::-1])[0]["loss"][::-1]
        )


@pytest.mark.parametrize(
    "seeds, cores, groups", [(6, 2, 2), (6, 4, 3), (30, 16, 15), (5, 2, None), (2, 2, None), (1, 2, None), (6, 1, None)]
)
def test_who_is_spread_over_how_many_cores(
    problem: tw.Problem, seeds: int, cores: int, groups: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    algorithm, _ = complete(problem, "ascd", None)
    made, how = engines.choose("simulate", algorithm, problem, seeds)
    assert (made, how) == ((Simulate, {}) if groups is None else (Grouped, {"groups": groups}))


def test_groups_are_equal(problem: tw.Problem):
    with pytest.raises(ValueError, match="6 seeds do not make 4 equal groups"):
        Grouped(complete(problem, "ascd", None)[0], problem, SEEDS, problem.start, 4, groups=4)
