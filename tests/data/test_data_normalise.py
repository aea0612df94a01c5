"""Columns come out with mean 0 and variance 1, rows with norm 1, and nothing ever becomes NaN."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from twofold.data.normalise import paper, standardise, unit_rows

matrices = st.tuples(st.integers(1, 12), st.integers(1, 6)).flatmap(
    lambda shape: arrays(
        np.float64, shape, elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e100, 1e100, width=64))
    )
)
quick = settings(deadline=None, max_examples=80)


def constant(x: np.ndarray) -> np.ndarray:
    return np.max(x, axis=0) == np.min(x, axis=0)


@quick
@given(matrices)
def test_columns_have_mean_0_and_variance_1(x: np.ndarray) -> None:
    before = x.copy()
    z = standardise(x)
    np.testing.assert_array_equal(x, before)
    assert z.shape == x.shape and z.dtype == np.float64
    assert (z[:, constant(x)] == 0).all()
    # Where a column varies by little more than its rounding error, so does what can be promised.
    scale = np.max(np.abs(x), axis=0)
    spread = np.max(x, axis=0) - np.min(x, axis=0)
    fine = ~constant(x) & (spread > 1e-6 * scale) & (spread > 1e-290)
    np.testing.assert_allclose(z[:, fine].mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(z[:, fine].var(axis=0), 1, rtol=1e-6)
    assert np.isfinite(z).all()


@quick
@given(matrices)
def test_rows_have_norm_1_or_0(x: np.ndarray) -> None:
    z = unit_rows(x)
    zero = (x == 0).all(axis=1)
    assert (z[zero] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(z[~zero], axis=1), 1, rtol=1e-12)
    largest = np.max(np.abs(x), axis=1, keepdims=True)
    np.testing.assert_allclose(
        z[~zero] * np.max(np.abs(z[~zero]), axis=1, keepdims=True) ** -1,
        (x / np.where(largest > 0, largest, 1))[~zero],
        atol=1e-12,
    )


@quick
@given(matrices)
def test_the_paper_does_columns_first_and_rows_last(x: np.ndarray) -> None:
    np.testing.assert_array_equal(paper(x), unit_rows(standardise(x)))


def test_against_numbers_worked_by_hand() -> None:
    x = np.array([[1, 5, 2], [3, 5, 2], [5, 5, 8]])
    root = np.sqrt(1.5)
    np.testing.assert_allclose(
        standardise(x), [[-root, 0, -np.sqrt(0.5)], [0, 0, -np.sqrt(0.5)], [root, 0, np.sqrt(2)]], atol=1e-15
    )
    np.testing.assert_allclose(
        paper(x), [[-np.sqrt(0.75), 0, -0.5], [0, 0, -1], [np.sqrt(3 / 7), 0, np.sqrt(4 / 7)]], atol=1e-15
    )


def test_a_reference_supplies_mean_and_variance() -> None:
    random = np.random.default_rng(0)
    train, test = random.normal(3, 2, (50, 130)), random.normal(3, 2, (20, 130))
    train[:, 4] = 7.0
    expected = (test - train.mean(axis=0)) / np.where(constant(train), 1, train.std(axis=0))
    expected[:, 4] = 0
    np.testing.assert_allclose(standardise(test, train), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(standardise(train, train), standardise(train))
    np.testing.assert_array_equal(paper(test, train), unit_rows(standardise(test, train)))


def test_a_constant_that_no_float_holds_exactly_becomes_0() -> None:
    x = np.full((1000, 3), 0.1)  # its computed mean is off, so its computed deviation is not 0
    x[:, 1] = np.arange(1000)
    z = standardise(x)
    assert (z[:, [0, 2]] == 0).all()
    assert (standardise(x.astype(np.float32))[:, [0, 2]] == 0).all()


def test_float32_stays_float32_and_is_exact_enough() -> None:
    x = np.random.default_rng(0).random((5000, 100), dtype=np.float32) + np.float32(100)
    z = standardise(x)
    assert z.dtype == unit_rows(x).dtype == paper(x).dtype == np.float32
    assert np.abs(z.mean(axis=0, dtype=np.float64)).max() < 1e-7
    assert np.abs(z.var(axis=0, dtype=np.float64) - 1).max() < 1e-6
    assert np.abs(np.linalg.norm(paper(x).astype(np.float64), axis=1) - 1).max() < 3e-7


def test_tiny_and_huge_numbers_survive() -> None:
    for scale in (1e-200, 1e200):
        x = np.array([[1.0, 2.0], [3.0, 5.0]])
        np.testing.assert_allclose(standardise(x * scale), standardise(x), rtol=1e-12)
        np.testing.assert_allclose(unit_rows(x * scale), unit_rows(x), rtol=1e-12)


def test_integers_are_welcome() -> None:
    x = np.array([[0, 255], [255, 0]], np.uint8)
    np.testing.assert_array_equal(standardise(x), [[-1, 1], [1, -1]])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be a matrix.*\(3,\)"):
        standardise(np.zeros(3))
    with pytest.raises(ValueError, match="x contains NaN"):
        unit_rows(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="reference contains NaN"):
        standardise(np.zeros((1, 2)), np.array([[np.inf, 1.0]]))
    with pytest.raises(ValueError, match="2 columns and the reference 3"):
        standardise(np.zeros((1, 2)), np.zeros((1, 3)))
    with pytest.raises(ValueError, match="at least one row"):
        standardise(np.zeros((0, 2)))
