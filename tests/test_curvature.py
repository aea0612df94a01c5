"""Curvature at a point, of unequal clients: what a plain Hessian by hand gives, and padding never counts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold.curvature import STEPS, largest_eigenvalue, largest_of_loss

# The second client has the largest curvature and is padded, by its first and smaller row: a mean that counted
# the padding would be too small. The first, with the most rows, has the least.
ROWS = ([0.5, 0.5, 0.5, 0.5], [1.0, 3.0], [2.0, 0.1, 0.2])
CLIENTS = tw.Clients.from_list([(np.array(rows)[:, None], np.zeros(len(rows))) for rows in ROWS])


@pytest.mark.parametrize("single_rows, expected", [(False, 5.0), (True, 9.0)])
def test_the_curvature_of_a_loss_is_that_of_real_rows(single_rows: bool, expected: float) -> None:
    found = largest_of_loss(tw.losses.squared(), np.zeros(1), CLIENTS, single_rows=single_rows)
    assert found == pytest.approx(expected, rel=1e-12)


def test_local_constants_are_those_of_real_rows() -> None:
    """Problem.constants(at=...): max over clients of the Hessian's blocks, each with its weight and the scale."""
    lam, scale2 = 0.25, 1 / 3
    problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(), lam), CLIENTS)
    found = problem.constants(at=problem.start)
    assert found.L_w == pytest.approx(scale2 * lam, rel=1e-10)
    assert found.L_beta == pytest.approx((5 + lam) / 3, rel=1e-10)
    assert found.calL_w == pytest.approx(scale2 * lam, rel=1e-10)
    assert found.calL_beta == pytest.approx((9 + lam) / 3, rel=1e-10)


def test_lanczos_and_the_whole_hessian_agree() -> None:
    """Above `STEPS` parameters Lanczos takes over; the largest eigenvalue is the same."""
    values = jnp.linspace(-7.0, 5.0, STEPS + 8)
    assert float(largest_eigenvalue(lambda v: 0.5 * jnp.sum(values * v**2), jnp.ones(len(values)))) == pytest.approx(
        7.0
    )
    few = values[:8]
    assert float(largest_eigenvalue(lambda v: 0.5 * jnp.sum(few * v**2), jnp.ones(8))) == pytest.approx(7.0)
