"""The coins of the variance-reduced methods."""

from __future__ import annotations

import pytest

from twofold import randomness
from twofold.algorithms.variance_reduction import coins


@pytest.mark.parametrize("seed", [0, 1])
def test_only_the_first_iteration_must_refresh(seed: int) -> None:
    """Iteration 0 brings the first full gradient; after it a refresh is up to the ρ-coin alone."""
    stream = randomness.common(randomness.root(seed))
    assert [bool(coins(stream, k, 0.5, 0.0).refresh) for k in range(5)] == [True] + 4 * [False]
    assert all(bool(coins(stream, k, 0.5, 1.0).refresh) for k in range(5))
