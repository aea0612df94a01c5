"""The limits Λ = ∞ of the multi-task and the adaptive objective: two stages, one after the other."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import plain
import twofold as tw

LOSS = tw.losses.logistic(0.1)
ALPHA = np.array([0.2, 0.5, 0.8])
MAKE = {
    "multitask": lambda Lambda: tw.objectives.multitask(LOSS, 0.3, Lambda),
    "adaptive": lambda Lambda: tw.objectives.adaptive(LOSS, ALPHA, Lambda),
    "adaptive with one alpha": lambda Lambda: tw.objectives.adaptive(LOSS, 0.4, Lambda),
}
both = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@cache
def limit(name):
    """One of them over clients of equal weight; made once, so that its optimum is found once."""
    return tw.Problem(MAKE[name](np.inf), plain.clients())


def distance(name, Lambda):
    """How far the relaxed optimum is from that of the limit."""
    relaxed, best = tw.Problem(MAKE[name](Lambda), plain.clients()).optimum(), limit(name).optimum()
    return max(np.max(np.abs(relaxed.w - best.w)), np.max(np.abs(relaxed.beta - best.beta)))


def test_its_optimum_is_the_limit_of_the_relaxed_ones():
    far, near = (distance("multitask", Lambda) for Lambda in (1e4, 1e6))
    assert near < 1e-6
    assert_allclose(far / near, 100, rtol=0.01)  # it comes near as 1/Λ


@pytest.mark.parametrize("name", ["adaptive", "adaptive with one alpha"])
def test_the_adaptive_optimum_does_not_depend_on_the_relaxation(name):
    """β makes up for any w, so w is free to minimise its own term, however small its weight."""
    for Lambda, rounding in ((0.5, 1e-14), (1e4, 1e-13), (1e6, 1e-11)):  # which Λ multiplies
        assert distance(name, Lambda) < rounding


def test_its_optimum_by_hand():
    """First traditional federated learning, then everyone alone with the penalty, both by SciPy."""
    clients, optimum = plain.clients(), limit("multitask").optimum()

    def together(w):
        f = [plain.value("logistic", w, c.x, c.y, 0.1) for c in clients]
        g = [plain.gradient("logistic", w, c.x, c.y, 0.1) for c in clients]
        return np.mean(f), np.mean(g, axis=0), np.mean([plain.logistic_hessian(w, c.x, 0.1) for c in clients], axis=0)

    w, _ = plain.minimise(together, np.zeros(3))
    assert_allclose(optimum.w, w, atol=1e-13)
    values = []
    for m, c in enumerate(clients):

        def alone(b, c=c):
            f = plain.value("logistic", b, c.x, c.y, 0.1) + 0.15 * np.sum((b - w) ** 2)
            g = plain.gradient("logistic", b, c.x, c.y, 0.1) + 0.3 * (b - w)
            return f, g, plain.logistic_hessian(b, c.x, 0.1) + 0.3 * np.eye(3)

        b, least = plain.minimise(alone, np.zeros(3))
        values.append(least)
        assert_allclose(optimum.beta[m], b, atol=1e-13)
    assert_allclose(optimum.value, np.mean(values), rtol=1e-14)


def test_the_second_stage_of_the_adaptive_objective_makes_up_for_the_shared_part():
    """(1−α)β + αw* can be any model at all, so everyone ends with its own local optimum."""
    clients, optimum = plain.clients(), limit("adaptive").optimum()
    blend = (1 - ALPHA[:, None]) * optimum.beta + ALPHA[:, None] * optimum.w
    assert_allclose(blend, tw.Problem(tw.objectives.local(LOSS), clients).optimum().beta, atol=1e-12)


@both
def test_the_constants_of_the_second_stage_bound_its_hessian(make):
    clients = plain.clients(weights=[0.5, 0.2, 0.3])
    two = tw.Problem(make(np.inf).second(np.array([0.3, -0.2, 0.1])), clients)
    constants = two.constants()
    assert constants.L_w == constants.calL_w == 0
    sizes = []
    for size in (0.0, 1.0, 10.0):
        at = ((), size * plain.point(two)[1])
        local = two.constants(at=at)
        assert local.L_beta <= constants.L_beta * (1 + 1e-9) and local.calL_beta <= constants.calL_beta * (1 + 1e-9)
        assert local.mu >= constants.mu * (1 - 1e-9)
        sizes.append(local.mu / constants.mu)
    assert sizes[-1] < 3  # far out only the ridge is left, so the bound is not idle


def test_each_stage_has_constants_of_its_own():
    objective = MAKE["multitask"](np.inf)
    with pytest.raises(
        ValueError, match=r"two stages, each with its own constants: ask Problem\(objective.first\(\), clients\)"
    ):
        tw.Problem(objective, plain.clients()).constants()
    first = tw.Problem(objective.first(), plain.clients())
    assert first.objective.name == "traditional" and first.constants().mu == pytest.approx(0.1, rel=1e-12)


@both
def test_value_and_gradient_at_a_centre(make):
    problem = tw.Problem(make(np.inf), plain.clients())
    w, beta = plain.point(problem)
    relaxed = tw.Problem(make(0.0), plain.clients())
    assert_allclose(problem.value(w, beta), relaxed.value(w, beta), rtol=1e-15)
    plain.assert_gradient(problem)
    second = tw.Problem(problem.objective.second(w), plain.clients())
    assert_allclose(second.value((), beta), problem.value(w, beta), rtol=1e-15)
    assert_allclose(second.gradient_beta((), beta), problem.gradient_beta(w, beta), rtol=1e-14)


@pytest.mark.parametrize("name", ["multitask", "adaptive"])
def test_solve_does_both_stages(name):
    problem = limit(name)
    best = problem.optimum()
    result = tw.solve(problem, "acd", tol=1e-24, every=50)
    assert result.status == "converged"
    assert_allclose(result.w, best.w, atol=1e-9)
    assert_allclose(result.beta, best.beta, atol=1e-9)
    assert_allclose(result.history["loss"][-1], best.value, rtol=1e-12)
    stage = result.history["stage"]
    assert set(stage) == {1, 2} and np.all(np.diff(stage) >= 0)
    assert np.all(np.diff(result.history["iteration"]) >= 0)
    # The second stage is silent: everything that was ever sent was sent in the first.
    bytes_sent = result.history["bytes"]
    assert np.all(bytes_sent[stage == 2] == bytes_sent[stage == 1][-1])
    assert result.ledger.iterations == result.history["iteration"][-1]
    assert result.ledger.bytes_up == result.ledger.rounds * 3 * 8


def test_predictions_are_those_of_the_personal_model():
    problem = tw.Problem(MAKE["adaptive"](np.inf), plain.clients())
    w, beta = plain.point(problem)
    member = problem.member(1)
    rows = tw.losses.Rows(member.x, member.y, np.full(11, 1 / 11))
    b = plain.client(beta, 1)
    x = np.random.default_rng(0).normal(size=(20, 3))
    expected = (x @ (0.5 * b + 0.5 * w) > 0).astype(int)
    assert np.array_equal(problem.objective.predict(w, b, rows, member.own, x), expected)
    second = problem.objective.second(w)
    assert np.array_equal(second.predict((), b, rows, member.own, x), expected)
    assert jax.tree.leaves(second.init(problem.clients)[0]) == []


def test_the_stages_keep_what_the_problem_was_asked_for() -> None:
    """Sampling, scale and buckets of the whole are those of both stages, in `solve` and in `theory.stages`."""
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in (4, 9)])
    ditto = tw.objectives.multitask(tw.losses.logistic(l2=0.1), lam=0.5, Lambda=float("inf"))
    kept = {"sampling": "uniform", "rescale": 0.5, "buckets": [[1], [0]], "feature_dtype": "bfloat16"}
    for stage in tw.theory.stages(tw.Problem(ditto, clients, **kept)):  # pyright: ignore[reportArgumentType]
        assert (stage.sampling, stage.rescale, stage.feature_dtype) == ("uniform", 0.5, "bfloat16")
        assert [group.tolist() for group in stage.positions] == [[1], [0]]
    usual = tw.theory.stages(tw.Problem(ditto, clients))
    assert [stage.sampling for stage in usual] == ["importance", "importance"]
    seen = [
        tw.solve(tw.Problem(ditto, clients, sampling=each), tw.algorithms.SVRCD(batch=1), iterations=30, seed=0).w  # pyright: ignore[reportArgumentType]
        for each in ("uniform", "importance")
    ]
    assert not np.array_equal(seen[0], seen[1])
