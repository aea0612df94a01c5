"""MAML: the exact second-order gradient, which is not the first-order one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import plain
import twofold as tw

ALPHA, L2 = 0.5, 0.05


def setting():
    problem = tw.Problem(tw.objectives.maml(tw.losses.logistic(L2), ALPHA), plain.clients(weights=[0.5, 0.2, 0.3]))
    return problem, plain.point(problem)[0]


def by_hand(problem, w, second_order):
    """Σ p_m (I − α∇²f'(w)) ∇f'(w − α∇f'(w)); without the matrix it is first-order MAML."""
    total = np.zeros(3)
    for c in problem.clients:
        ahead = w - ALPHA * plain.gradient("logistic", w, c.x, c.y, L2)
        matrix = np.eye(3) - ALPHA * second_order * plain.logistic_hessian(w, c.x, L2)
        total += c.weight * matrix @ plain.gradient("logistic", ahead, c.x, c.y, L2)
    return total


def test_the_gradient_is_the_exact_second_order_one():
    problem, w = setting()
    found = problem.gradient_w(w, ())
    assert_allclose(found, by_hand(problem, w, True), rtol=1e-12)
    plain.assert_gradient(problem)
    first_order = by_hand(problem, w, False)
    assert np.linalg.norm(found - first_order) > 0.01 * np.linalg.norm(first_order)


def test_everyone_predicts_after_its_own_step():
    problem, w = setting()
    c, member = problem.clients[1], problem.member(1)
    rows = tw.losses.Rows(member.x, member.y, np.full(11, 1 / 11))
    expected = w - ALPHA * plain.gradient("logistic", w, c.x, c.y, L2)
    assert_allclose(problem.objective.personal(w, (), rows, ()), expected, rtol=1e-14)


def test_it_has_no_optimum_to_certify_and_only_local_constants():
    problem, w = setting()
    with pytest.raises(ValueError, match=r"^The maml objective is not convex, so there is no optimum"):
        problem.optimum()
    constants = problem.constants()
    assert constants.mu == 0 and set(constants.how.values()) == {"local"}
    at = problem.constants(at=(w, ()))
    assert at.L_w > 0 and at.L_beta == at.calL_beta == 0


def test_it_is_not_convex():
    """The property that optimum() refuses it for: with a long inner step there is negative curvature."""
    problem = tw.Problem(tw.objectives.maml(tw.losses.logistic(), 20.0), plain.clients())
    hessian = plain.derivative(lambda v: problem.gradient_w(v, ()), plain.point(problem)[0])
    assert np.linalg.eigvalsh((hessian + hessian.T) / 2)[0] < -0.1
