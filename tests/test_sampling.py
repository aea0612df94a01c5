"""Rows drawn in proportion to their smoothness: the table's own probabilities, draws, weights, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold import randomness
from twofold.errors import InputError
from twofold.sampling import FLOOR, alias_rows, alias_table, importance, row_noise, row_weights


def implied(table, count):
    """The probability of each row that a table really gives."""
    found, each = np.zeros(len(table.alias)), table.probability[:count] / 2.0**32
    each = np.where(table.probability[:count] == 2**32 - 1, 1.0, each)
    found[:count] += each / count
    np.add.at(found, table.alias[:count], (1 - each) / count)
    return found


def test_probabilities_by_hand():
    assert importance([2.0, 2.0]) == pytest.approx([0.5, 0.5])
    assert importance([0.0, 3.0, 1.0]) == pytest.approx([0, 0.75, 0.25])
    assert importance([0.0, 0.0]) == pytest.approx([0.5, 0.5])  # nothing to go by
    assert importance([1e300, 1e300, 0.0]) == pytest.approx([0.5, 0.5, 0.0])
    low = importance([1e-30, 1.0])
    assert low[0] == pytest.approx(FLOOR / 2, rel=1e-3)  # rows that matter little, but do, still come
    stack = importance([[1.0, 3.0, 99.0], [1.0, 1.0, 2.0]], [2, 3])
    assert stack == pytest.approx(np.array([[0.25, 0.75, 0], [0.25, 0.25, 0.5]]))
    for wrong in ([1.0, -1.0], [np.nan], [], 3.0):
        with pytest.raises(InputError):
            importance(wrong)
    with pytest.raises(InputError, match="one count"):
        importance([[1.0, 2.0]], [3])
    with pytest.raises(InputError, match="sum to one"):
        alias_table([0.5, 0.6])


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-8, 1e8)), min_size=1, max_size=40), st.integers(0, 5))
def test_the_table_has_the_probabilities(values, padding):
    """Exactly, from its entries; rows with π = 0 and padding never come; a padded table is the same table."""
    count = len(values)
    pi = importance(values)
    table = alias_table(pi)
    assert implied(table, count) == pytest.approx(pi, abs=1e-9)
    assert np.all(implied(table, count)[pi == 0] == 0)
    padded = np.r_[values, np.full(padding, 7.0)]
    wide_pi = importance(padded[None], [count])
    wide = alias_table(wide_pi, [count])
    assert wide_pi[0, :count] == pytest.approx(pi)
    assert np.all(wide_pi[0, count:] == 0)
    assert implied(type(wide)(*(x[0] for x in wide)), count)[:count] == pytest.approx(pi, abs=1e-9)


def test_a_stack_is_its_clients_one_by_one():
    rng = np.random.default_rng(0)
    counts = np.array([1, 7, 30, 12])
    values = rng.pareto(0.8, (4, 30)) * rng.integers(0, 2, (4, 30))
    values[0, 0] = 1.0
    stack = alias_table(importance(values, counts), counts)
    for m, count in enumerate(counts):
        alone = alias_table(importance(values[m, :count]))
        assert np.array_equal(stack.probability[m, :count], alone.probability)
        assert np.array_equal(stack.alias[m, :count], alone.alias)
        assert np.all(stack.alias[m, :count] < count)


def test_a_large_client():
    values = np.random.default_rng(0).pareto(0.6, 200_000)
    pi = importance(values)
    assert np.allclose(implied(alias_table(pi), len(pi)), pi, rtol=1e-3, atol=1e-12)


def test_frequencies():
    pi = importance([4.0, 0.0, 1.0, 3.0, 0.0, 2.0])
    words = randomness.bits(randomness.of(randomness.root(0), 1), 2 * 40_000)
    rows = np.asarray(alias_rows(words, *alias_table(pi), 6, 40_000))
    found = np.bincount(rows, minlength=6) / len(rows)
    assert np.all(found[pi == 0] == 0)
    assert np.all(np.abs(found - pi) < 5 * np.sqrt(pi * (1 - pi) / len(rows)) + 1e-12)


def test_draws_do_not_depend_on_padding_number_or_precision():
    rng = np.random.default_rng(1)
    values = rng.pareto(1.0, 9)
    words = randomness.bits(randomness.of(randomness.root(3), 5), 40)
    alone = alias_rows(words, *alias_table(importance(values)), 9, 20)
    padded = importance(np.r_[values, 5.0, 5.0][None], [9])
    table = alias_table(padded, [9])
    wide = alias_rows(words, table.probability[0], table.alias[0], 9, 20)
    assert np.array_equal(alone, wide)
    assert np.array_equal(alias_rows(words, *alias_table(importance(values)), 9, 6), alone[:6])
    with jax.enable_x64(False):
        narrow = alias_rows(jnp.asarray(np.asarray(words)), *alias_table(importance(values)), 9, 20)
    assert np.array_equal(alone, narrow)
    assert alone.dtype == jnp.int32


def test_weights_make_the_mean_unbiased():
    """Σ_j π_j · g_j/(n π_j) = mean g over rows with data; exactly, for gradients that vanish where V_j = 0."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8, 3)) * rng.pareto(1.0, (8, 1))
    x[3] = 0.0
    pi = importance(np.sum(x**2, axis=1))
    gradients = x * rng.standard_normal((8, 1))
    weights = row_weights(pi)
    assert weights[3] == 0
    assert pi @ (weights[:, None] * gradients) == pytest.approx(gradients.mean(0))
    real = implied(alias_table(pi), 8)  # and with what the table really gives
    assert real @ (weights[:, None] * gradients) == pytest.approx(gradients.mean(0), rel=1e-6)
    wide = row_weights(importance(np.r_[np.sum(x**2, axis=1), 4.0][None], [8]), [8])
    assert wide[0] == pytest.approx(np.r_[weights, 0.0])


def test_noise_of_any_probabilities():
    """E‖ĝ‖² = Σ (1/n²π_j)‖g_j‖² ≤ V_m · mean ‖g_j‖²/V_j, with equality for one row."""
    values = np.array([4.0, 1.0, 0.0, 3.0])
    assert row_noise(values, np.full(4, 0.25)) == 4
    assert row_noise(values, importance(values)) == pytest.approx(2)
    other = importance([1.0, 1.0, 1.0, 5.0])
    assert row_noise(values, other) == pytest.approx(np.max(values / (4 * other)))
    assert row_noise(np.r_[values, 9.0][None], importance(np.r_[values, 9.0][None], [4]), [4]) == pytest.approx([2])
    tiny = np.r_[1e-20, np.ones(9)]
    assert row_noise(tiny, importance(tiny)) <= np.mean(tiny) * (1 + 2 * FLOOR)
    with pytest.raises(InputError, match="never drawn"):
        row_noise(values, importance([1.0, 0.0, 1.0, 1.0]))
