"""Every split is a split: no row twice, the promised sizes and labels, and the same again for the same seed."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twofold.data.partition import Partition, by_labels, dirichlet, natural, power_law, unequal_labels

quick = settings(deadline=None, max_examples=80)
seeds = st.integers(0, 2**32 - 1)


def check(split: Partition, n_rows: int, everything: bool) -> None:
    """What holds for every partition."""
    assert len(split) == len(split.train) == len(split.test) == len(split.names) == len(split.labels)
    assert len(set(split.names)) == len(split)
    pieces = split.train + split.test
    for rows in pieces:
        assert rows.dtype == np.int64 and rows.ndim == 1
        assert (np.diff(rows) > 0).all()
        assert not rows.flags.writeable
    assert all(len(rows) > 0 for rows in split.train)
    used = np.concatenate(pieces)
    assert len(np.unique(used)) == len(used), "a row was given out twice"
    assert used.min() >= 0 and used.max() < n_rows
    if everything:
        assert len(used) == n_rows
    assert split.description and "\n" not in split.description


def same(a: Partition, b: Partition) -> bool:
    pairs = zip(a.train + a.test, b.train + b.test, strict=True)
    return all(np.array_equal(p, q) for p, q in pairs) and (a.names, a.labels, a.description) == (
        b.names,
        b.labels,
        b.description,
    )


def global_state() -> np.ndarray:
    return np.array(np.random.get_state(legacy=False)["state"]["key"])


def check_deterministic(split: Callable[[], Partition], first: Partition) -> None:
    """The same again, whatever has happened to NumPy's global generator in between."""
    np.random.seed(len(first))
    state = global_state()
    assert same(split(), first)
    np.testing.assert_array_equal(global_state(), state)


# --- K labels per client --------------------------------------------------------------------------------------------


@quick
@given(st.data(), st.integers(1, 12), st.integers(1, 8), seeds)
def test_by_labels(data: st.DataObject, clients: int, classes: int, seed: int) -> None:
    k = data.draw(st.integers(1, classes))
    train, test = data.draw(st.integers(k, 20)), data.draw(st.integers(0, 30))
    # As many rows of each label as can be needed at worst, and up to five more.
    need = -(-clients * k // classes) * (-(-train // k) + -(-test // k))
    counts = need + np.array(data.draw(st.lists(st.integers(0, 5), min_size=classes, max_size=classes)))
    values = np.array(data.draw(st.lists(st.integers(-9, 99), min_size=classes, max_size=classes, unique=True)))
    y = np.random.default_rng(seed).permutation(np.repeat(values, counts))

    def split() -> Partition:
        return by_labels(y, clients, k, train, test, seed)

    first = split()
    check(first, len(y), everything=False)
    assert len(first) == clients
    used = {int(v): 0 for v in values}
    for rows_train, rows_test, labels in zip(first.train, first.test, first.labels, strict=True):
        assert len(rows_train) == train and len(rows_test) == test
        assert len(set(labels)) == k and list(labels) == sorted(labels)
        assert set(y[rows_train]) == set(labels) and set(y[rows_test]) <= set(labels)
        for rows in (rows_train, rows_test):
            per_label = [int((y[rows] == label).sum()) for label in labels]
            assert max(per_label) - min(per_label) <= 1
        for label in labels:
            assert type(label) is int
            used[label] += 1
    assert max(used.values()) - min(used.values()) <= 1
    check_deterministic(split, first)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_the_papers_protocol_fits_into_1000_images_a_label_and_uses_labels_equally(k: int) -> None:
    y = np.tile(np.arange(10), 1000)
    split = by_labels(y, labels_per_client=k)
    check(split, len(y), everything=False)
    assert len(split) == 20
    assert np.bincount(np.concatenate(split.labels)).tolist() == [2 * k] * 10
    assert sum(map(len, split.train)) == 2000 and sum(map(len, split.test)) == 6000
    # No test image of any device is a training image of another.
    assert not set(np.concatenate(split.train)) & set(np.concatenate(split.test))
    assert split.description == (
        f"{k} of 10 labels per client, 20 clients with 100 training and 300 test rows each, seed 0"
    )
    assert not same(split, by_labels(y, labels_per_client=k, seed=1))


def test_odd_rows_go_where_most_are_left() -> None:
    # Each of 3 clients needs 3 rows of one label and 2 of the other; with 6 and 9 rows only one way is left.
    y = np.repeat([0, 1], [6, 9])
    for seed in range(20):
        split = by_labels(y, 3, 2, train=5, test=0, seed=seed)
        check(split, 15, everything=True)


@pytest.mark.parametrize("counts", [(6, 6), (7, 5)])
@pytest.mark.parametrize("seed", range(5))
def test_odd_rows_count_as_used(counts: tuple[int, int], seed: int) -> None:
    """Four clients with three rows of two labels use up all twelve rows, if each odd row is taken off what is left."""
    y = np.repeat([0, 1], counts)
    split = by_labels(y, clients=4, labels_per_client=2, train=3, test=0, seed=seed)
    assert [len(rows) for rows in split.train] == [3] * 4
    assert np.array_equal(np.sort(np.concatenate(split.train)), np.arange(12))


def test_by_labels_draws_rows_at_random() -> None:
    y = np.tile(np.arange(10), 5000)
    split = by_labels(y, labels_per_client=4)
    for rows in (np.concatenate(split.train), np.concatenate(split.test), np.concatenate([*split.train[:3]])):
        assert abs(rows.mean() / len(y) - 0.5) < 5 / np.sqrt(12 * len(rows))


def test_by_labels_says_what_is_missing() -> None:
    y = np.repeat(np.arange(10), 1000)
    y[:500] = 1  # label 0 has 500, label 1 has 1,500
    with pytest.raises(ValueError, match=r"label 0 has 500 rows, but 4 of the 20 clients need 800 of them \(100 tra"):
        by_labels(y, labels_per_client=2)
    with pytest.raises(ValueError, match="labels_per_client=11 distinct labels were asked for, but y has only 10"):
        by_labels(y, labels_per_client=11)
    with pytest.raises(ValueError, match="train=3 rows cannot hold 4 labels"):
        by_labels(y, labels_per_client=4, train=3)
    with pytest.raises(ValueError, match="clients must be at least 1, but is 0"):
        by_labels(y, clients=0)
    with pytest.raises(ValueError, match="test must be at least 0, but is -1"):
        by_labels(y, test=-1)
    with pytest.raises(ValueError, match=r"y must be a vector.*\(2, 2\)"):
        by_labels(np.zeros((2, 2)))


# --- Dirichlet ------------------------------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=300),
    st.integers(1, 8),
    st.floats(0.05, 100),
    seeds,
    st.floats(0, 0.95),
    st.integers(1, 3),
)
def test_dirichlet(labels: list[int], clients: int, alpha: float, seed: int, test: float, min_rows: int) -> None:
    y = np.array(labels)
    assume(len(y) >= clients * min_rows)

    def split() -> Partition:
        return dirichlet(y, clients, alpha, seed, test, min_rows)

    try:
        first = split()
    except ValueError as error:
        assert "take a larger alpha" in str(error)
        return
    check(first, len(y), everything=True)
    assert len(first) == clients
    for rows_train, rows_test, mine in zip(first.train, first.test, first.labels, strict=True):
        both = np.concatenate([rows_train, rows_test])
        assert len(both) >= min_rows
        assert len(rows_test) == min(round(test * len(both)), len(both) - 1)
        assert list(mine) == sorted({int(v) for v in y[both]})
    check_deterministic(split, first)


def shares(split: Partition, y: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(y[rows], minlength=10) for rows in split.train]) / np.bincount(y)


def test_dirichlet_has_the_right_spread() -> None:
    """The variance of a share is a(1-a)/(M alpha + 1) with a = 1/M."""
    y = np.repeat(np.arange(10), 2000)
    for alpha in (0.5, 5.0):
        drawn = np.concatenate([shares(dirichlet(y, 10, alpha, seed, test=0), y) for seed in range(20)])
        np.testing.assert_allclose(drawn.mean(), 0.1, atol=1e-12)
        np.testing.assert_allclose(drawn.var(), 0.09 / (10 * alpha + 1), rtol=0.12)


def test_dirichlet_runs_from_one_label_to_all_alike() -> None:
    y = np.repeat(np.arange(10), 2000)
    alike = shares(dirichlet(y, 10, 1e6, test=0), y)
    assert np.abs(alike - 0.1).max() < 0.002
    exactly = dirichlet(np.zeros(1000, int), 10, 1e12, test=0)
    assert [len(rows) for rows in exactly.train] == [100] * 10
    apart = shares(dirichlet(y, 4, 1e-3, test=0, min_rows=1), y)
    assert np.median(apart.max(axis=0)) > 0.99
    assert not same(dirichlet(y, 10, 1.0, seed=0), dirichlet(y, 10, 1.0, seed=1))


def test_dirichlet_says_why_it_cannot() -> None:
    y = np.zeros(50, int)
    with pytest.raises(ValueError, match="in 100 draws with alpha=0.001 the smallest of 20 clients got at most 0 of"):
        dirichlet(y, 20, 0.001)
    with pytest.raises(ValueError, match="30 clients with at least 2 rows each need 60, not 50"):
        dirichlet(y, 30, 1.0)
    for alpha in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="alpha must be positive"):
            dirichlet(y, 2, alpha)
    for test in (-0.1, 1.0, np.nan, 300):
        with pytest.raises(ValueError, match=r"test is the fraction.*in \[0, 1\)"):
            dirichlet(y, 2, 1.0, test=test)


def test_dirichlet_level_keeps_sizes_together_and_names_the_emptiest_client() -> None:
    y = np.repeat(np.arange(10), 1000)
    plain, level = (dirichlet(y, 20, 0.1, level=level, test=0.25, min_rows=1) for level in (False, True))
    check(level, len(y), True)
    sizes = [[len(rows) for rows in split.train] for split in (plain, level)]
    assert max(sizes[1]) < max(sizes[0])
    assert max(sizes[1]) < 0.75 * (
        500 + 1000
    )  # below an equal share before the last label, of which there are 1,000 rows
    with pytest.raises(
        ValueError, match=r"in 3 draws .* at most \d+ of the 10,000 rows \(client \d+, in the best draw\)"
    ):
        dirichlet(y, 20, 0.01, level=True, min_rows=400, tries=3)


# --- few labels in unequal numbers ----------------------------------------------------------------------------------


@quick
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), seeds, st.floats(0, 0.9))
def test_unequal_labels(clients: int, labels: int, each: int, seed: int, test: float) -> None:
    y = np.repeat(np.arange(labels), 200)
    if each > labels or clients * each < labels:
        with pytest.raises(ValueError, match="labels"):
            unequal_labels(y, clients, each, seed, test)
        return
    split = unequal_labels(y, clients, each, seed, test)
    check(split, len(y), True)
    assert all(len(mine) == each for mine in split.labels)
    holders = [sum(label in mine for mine in split.labels) for label in range(labels)]
    assert max(holders) - min(holders) <= 1
    assert same(split, unequal_labels(y, clients, each, seed, test))


def test_unequal_labels_are_pairs_of_neighbours_and_bounded() -> None:
    y = np.repeat(np.arange(10), 7000)
    split = unequal_labels(y, test=0.0)
    assert split.labels == tuple((2 * (m // 4), 2 * (m // 4) + 1) for m in range(20))
    for m, rows in enumerate(split.train):
        for label in split.labels[m]:
            count = int(np.sum(y[rows] == label))
            assert 1750 <= count <= 7000 - 3 * 175 if m % 4 == 3 else 175 <= count < 1750
    with pytest.raises(ValueError, match=r"client \d+ would get \d+ rows, but min_rows=3000: take fewer clients"):
        unequal_labels(y, min_rows=3000)


# --- power law ------------------------------------------------------------------------------------------------------


@quick
@given(st.integers(1, 25), st.integers(0, 500), st.floats(0, 4), seeds, st.integers(1, 5), st.floats(0, 0.95))
def test_power_law(clients: int, more: int, exponent: float, seed: int, min_rows: int, test: float) -> None:
    n_rows = clients * min_rows + more

    def split() -> Partition:
        return power_law(n_rows, clients, exponent, seed, min_rows, test)

    first = split()
    check(first, n_rows, everything=True)
    assert len(first) == clients and set(first.labels) == {()}
    sizes = np.array([len(a) + len(b) for a, b in zip(first.train, first.test, strict=True)])
    assert sizes.min() >= min_rows and (np.diff(sizes) <= 0).all()
    assert [len(rows) for rows in first.test] == [min(round(test * n), n - 1) for n in sizes]
    # The law, raised to the minimum where it falls below: max(c r^-exponent, min_rows), with c found by bisection.
    weights = np.arange(1.0, clients + 1) ** -exponent
    low, high = 0.0, float(n_rows) / weights[0] + min_rows / weights[-1]
    for _ in range(200):
        c = (low + high) / 2
        low, high = (low, c) if np.maximum(c * weights, min_rows).sum() > n_rows else (c, high)
    assert np.abs(sizes - np.maximum(low * weights, min_rows)).max() <= 1 + 1e-6
    check_deterministic(split, first)


def test_power_law_by_hand() -> None:
    sizes = [len(rows) for rows in power_law(1100, 3, 1.0, test=0).train]
    assert sizes == [600, 300, 200]
    assert [len(rows) for rows in power_law(10, 4, 0.0, test=0).train] == [3, 3, 2, 2]
    assert [len(rows) for rows in power_law(100, 4, 50.0, min_rows=5, test=0).train] == [85, 5, 5, 5]
    assert [len(rows) for rows in power_law(8, 4, 50.0, min_rows=2, test=0).train] == [2, 2, 2, 2]
    assert not same(power_law(100, 3, 1.0, seed=0), power_law(100, 3, 1.0, seed=1))


def test_power_law_draws_rows_at_random() -> None:
    rows = power_law(10_000, 2, 0.0, test=0.5).train[0]
    assert abs(rows.mean() - 5000) < 300


def test_power_law_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="4 clients with at least 3 rows each need 12, not 11"):
        power_law(11, 4, 1.0, min_rows=3)
    for exponent in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="exponent must not be negative"):
            power_law(100, 4, exponent)


# --- natural groups -------------------------------------------------------------------------------------------------


@quick
@given(st.lists(st.sampled_from(["anna", "bert", "c", "d e", ""]), min_size=1, max_size=100), st.floats(0, 0.95), seeds)
def test_natural(groups: list[str], test: float, seed: int) -> None:
    def split() -> Partition:
        return natural(groups, test, seed)

    first = split()
    check(first, len(groups), everything=True)
    assert first.names == tuple(sorted(set(groups)))
    for name, rows_train, rows_test in zip(first.names, first.train, first.test, strict=True):
        both = np.sort(np.concatenate([rows_train, rows_test]))
        np.testing.assert_array_equal(both, np.flatnonzero(np.array(groups) == name))
        assert len(rows_test) == min(round(test * len(both)), len(both) - 1)
    check_deterministic(split, first)


def test_natural_takes_numbers_and_sets_aside_at_random() -> None:
    groups = np.repeat([7, 3], 1000)
    split = natural(groups, test=0.25)
    assert split.names == ("3", "7")
    assert [len(rows) for rows in split.test] == [250, 250]
    assert abs(split.test[1].mean() - 500) < 60
    assert not same(split, natural(groups, test=0.25, seed=1))
    with pytest.raises(ValueError, match="groups must be a vector"):
        natural([])


# --- the partition itself -------------------------------------------------------------------------------------------


def test_every_client_gets_a_draw_of_its_own() -> None:
    split = natural(np.repeat(["a", "b", "c"], 30), test=0.5)
    assert len({tuple(rows - rows.min() // 30 * 30) for rows in split.test}) == 3


def test_take_gives_the_data() -> None:
    x, y = np.arange(20).reshape(10, 2), np.arange(10)
    split = natural(np.repeat(["a", "b"], 5), test=0.4)
    train, test = split.take(x, y)
    assert len(train) == len(test) == 2
    for (features, labels), rows in zip(train + test, split.train + split.test, strict=True):
        np.testing.assert_array_equal(features, x[rows])
        np.testing.assert_array_equal(labels, rows)


def test_a_partition_is_checked_and_frozen() -> None:
    rows = np.arange(3)
    Partition((rows,), (rows[:0],), ("a",), ((),), "right")
    rows[0] = 0  # the caller's array stays the caller's
    with pytest.raises(ValueError, match="has 1, 1, 2 and 1 of them"):
        Partition((rows,), (rows,), ("a", "b"), ((),), "wrong")
    split = natural([1, 1, 1])
    with pytest.raises(AttributeError):
        split.names = ()  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        split.train[0][0] = 1
