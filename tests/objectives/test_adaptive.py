"""The adaptive objective with one α, or one per client."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw

LOSS = tw.losses.logistic(0.1)


def test_one_alpha_is_the_same_alpha_for_all():
    clients = plain.clients()
    one, each = (tw.Problem(tw.objectives.adaptive(LOSS, a, 0.7), clients) for a in (0.3, [0.3, 0.3, 0.3]))
    at = plain.point(one)
    assert one.value(*at) == each.value(*at)
    assert_array_equal(one.gradient_beta(*at), each.gradient_beta(*at))
    assert one.constants() == each.constants()


def test_each_client_keeps_its_own_alpha_in_any_bucketing():
    alpha = np.array([0.1, 0.6, 0.9])
    objective = tw.objectives.adaptive(LOSS, alpha, 0.0)
    buckets = [None, [[2, 0], [1]], [[1], [0], [2]]]
    problems = [tw.Problem(objective, plain.clients(), buckets=b) for b in buckets]
    at = plain.point(problems[0])
    for problem in problems:
        for m, c in enumerate(problem.clients):
            assert float(problem.member(m).own) == alpha[m]
            blend = (1 - alpha[m]) * at[1][m] + alpha[m] * at[0]
            assert_allclose(problem.values(*at)[m], plain.value("logistic", blend, c.x, c.y, 0.1), rtol=1e-14)


def test_the_blend_weighs_w_by_alpha():
    """With α near 1 the personal part hardly counts, near 0 it is everything."""
    clients = plain.clients()
    at = plain.point(tw.Problem(tw.objectives.adaptive(LOSS, 0.5, 0.0), clients))
    shared, personal = (tw.Problem(tw.objectives.adaptive(LOSS, a, 0.0), clients) for a in (1 - 1e-9, 1e-9))
    assert_allclose(shared.value(*at), tw.Problem(tw.objectives.traditional(LOSS), clients).value(at[0], ()), rtol=1e-7)
    assert_allclose(personal.value(*at), tw.Problem(tw.objectives.local(LOSS), clients).value((), at[1]), rtol=1e-7)


@pytest.mark.parametrize(
    "alpha, found",
    [
        (0.0, "0.0."),
        (1.0, "1.0."),
        (-0.1, "-0.1."),
        (np.nan, "nan."),
        ([0.5, 1.5, 0.5], r"1.5 \(client 1\)"),
        ([[0.5]], r"\[\[0.5\]\]."),
    ],
)
def test_a_bad_alpha(alpha, found):
    with pytest.raises(ValueError, match=f"^Every alpha must lie strictly between 0 and 1, got {found}"):
        tw.objectives.adaptive(LOSS, alpha)


def test_as_many_alphas_as_clients():
    with pytest.raises(
        ValueError, match=r"alpha has shape \(2,\), but there are 3 clients: give one number, or one per client"
    ):
        tw.Problem(tw.objectives.adaptive(LOSS, [0.5, 0.5]), plain.clients()).value(np.zeros(3), np.zeros((3, 3)))
