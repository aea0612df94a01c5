"""What users see and what algorithms work on: scaled, and with a softmax model's weights class by class."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw
from twofold import metrics
from twofold.variables import Variables

RNG = np.random.default_rng(0)
W = {"bias": RNG.normal(size=4), "weight": RNG.normal(size=(3, 4))}
PARTS = tuple({"bias": RNG.normal(size=(n, 4)), "weight": RNG.normal(size=(n, 3, 4))} for n in (2, 5))


@pytest.mark.parametrize("scale", [None, 0.5])
def test_weights_are_transposed_and_biases_are_not(scale: float | None):
    variables = Variables(scale, by_class=True)
    w, parts = variables.inward(W, PARTS, (None, None))
    s = scale or 1.0
    assert_array_equal(w["weight"], W["weight"].T / s)
    assert_array_equal(w["bias"], W["bias"] / s)
    for part, whole in zip(parts, PARTS, strict=True):
        assert_array_equal(part["weight"], whole["weight"].swapaxes(1, 2))
        assert_array_equal(part["bias"], whole["bias"])
    back_w, back = variables.outward(w, parts, (None, None))
    for found, expected in zip((back_w, *back), (W, *PARTS), strict=True):
        assert_array_equal(found["weight"], expected["weight"])
        assert_array_equal(found["bias"], expected["bias"])


def test_only_the_scale_where_nothing_is_transposed():
    variables = Variables(0.25)
    w, parts = variables.inward(W, PARTS, (None, None))
    assert_array_equal(w["weight"], 4 * W["weight"])
    assert parts is PARTS
    assert_array_equal(variables.outward(w, parts, (None, None))[0]["weight"], W["weight"])


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_a_metric_of_working_variables_is_that_of_the_real_ones(kind: str):
    whole = tw.Problem(tw.objectives.mixture(plain.loss(kind, 0.1), 0.5), plain.clients(kind))
    w, beta = (RNG.normal(size=leaf.shape) for leaf in whole.start)
    inside = whole.inward(w, whole.split(beta))
    assert_allclose(metrics.loss(whole.program(), *inside), whole.value(w, beta), rtol=1e-13)
    assert_allclose(
        metrics.gradient_norm(whole.program(), *inside) ** 2, whole.gradient_norm_squared(w, beta), rtol=1e-12
    )
    back_w, back = whole.outward(*inside)
    assert_allclose(back_w, w, rtol=1e-15)
    assert_allclose(whole.join(back), beta, rtol=1e-15)
