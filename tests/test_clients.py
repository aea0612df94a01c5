"""Clients: storage, constructors, stacking, bucketing, splitting, and a sentence for every kind of bad input."""

import pickle
import re
import tracemalloc
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from twofold.clients import Client, ClientError, Clients

counts_of = st.lists(st.integers(1, 12), min_size=1, max_size=8)
quick = settings(max_examples=60, deadline=None)


def make(counts, names=None, weights=None, width=3, seed=0) -> Clients:
    """Clients whose features say which row they are."""
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(n, width)), rng.integers(0, 3, size=n)) for n in counts]
    return Clients.from_list(pairs, names, weights)


def same(a: Clients, b: Clients) -> None:
    assert a.names == b.names
    assert jax.tree_util.tree_structure(a._data) == jax.tree_util.tree_structure(b._data)
    for left, right in zip(jax.tree_util.tree_leaves(a._data), jax.tree_util.tree_leaves(b._data), strict=True):
        assert left.dtype == right.dtype
        assert_array_equal(left, right)
    assert_array_equal(a.counts, b.counts)
    assert_array_equal(a.weights, b.weights)


def refuses(*parts: Any):
    """The error is one line that holds every part."""
    return pytest.raises(ClientError, match="^" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts) + ".*$")


# ---- storage and access ---------------------------------------------------------------------------------------------


def test_storage_and_access():
    x = [np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2) + 10]
    y = [np.array([0, 1, 0]), np.array([1, 1])]
    clients = Clients.from_list(zip(x, y, strict=True), names=["ann", "bob"])
    assert clients.M == len(clients) == 2
    assert clients.rows == 5
    assert clients.counts.dtype == np.int32 and clients.counts.tolist() == [3, 2]
    assert clients.offsets.dtype == np.int64 and clients.offsets.tolist() == [0, 3, 5]
    assert clients.weights.dtype == np.float64 and clients.weights.tolist() == [0.5, 0.5]
    for m, name in enumerate(["ann", "bob"]):
        for client in (clients[m], clients[m - 2], clients[np.int64(m)], clients[name], list(clients)[m]):
            assert isinstance(client, Client) and client.name == name and client.weight == 0.5
            assert_array_equal(client.x, x[m])
            assert_array_equal(client.y, y[m])
            assert np.shares_memory(client.x, clients.x)
    assert clients.position("bob") == 1


def test_integers_index_by_position_whatever_the_names():
    clients = make([1, 2], names=np.array([1, 0]))
    assert clients[0].name == 1 and clients.position(1) == 0
    assert type(clients.names[0]) is int


def test_unknown_client():
    clients = make([1, 2], names=["hospital_1", "hospital_2"])
    with refuses("no client 'hospitl_2'", "'hospital_1', 'hospital_2'", "did you mean 'hospital_2'?"):
        clients["hospitl_2"]
    with pytest.raises(IndexError, match="position 2: positions go from 0 to 1"):
        clients[2]


def test_arrays_are_read_only_and_inputs_are_untouched():
    x, y, weights = np.ones((3, 2)), np.zeros(3), np.array([2.0])
    clients = Clients.from_list([(x, y)], weights=weights)
    for array in (clients.x, clients[0].y, clients.counts, clients.weights, clients.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    x[:], y[:], weights[:] = 5, 5, 5
    assert (clients.x == 1).all() and (clients.y == 0).all() and clients.weights == [1.0]


@pytest.mark.parametrize(
    ("clients", "text"),
    [
        (make([7, 412, 9], width=64), "Clients(3 clients, 7 to 412 rows each, 428 in all, x: float64[64], y: int64)"),
        (make([2000] * 2), "Clients(2 clients, 2,000 rows each, 4,000 in all, x: float64[3], y: int64)"),
        (
            Clients.from_list([({"a": np.zeros((1, 2, 3), np.float32), "b": [True]}, None)]),
            "Clients(1 client, 1 row each, 1 in all, x['a']: float32[2,3], x['b']: bool)",
        ),
    ],
)
def test_repr(clients, text):
    assert repr(clients) == text


def test_pickle():
    clients = make([3, 1, 4], names=["a", "b", "c"], weights="rows")
    _ = clients.offsets, clients.position("a")
    same(pickle.loads(pickle.dumps(clients)), clients)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.uint8, np.float16, np.float32, np.float64])
def test_dtypes_are_kept(dtype):
    clients = Clients.from_list([(np.ones((2, 2), dtype), np.ones(2, dtype))])
    assert clients.x.dtype == clients.y.dtype == clients.stack(rows=5).x.dtype == dtype


def test_x_may_be_any_pytree_or_list_or_sparse():
    class Point(NamedTuple):
        a: Any
        b: Any

    class Sparse:
        def toarray(self):
            return np.eye(2)

    assert_array_equal(Clients.from_list([([[1, 2], [3, 4]], [0, 1])]).x, [[1, 2], [3, 4]])
    assert_array_equal(Clients.from_list([(Sparse(), [0, 1])]).x, np.eye(2))
    assert_array_equal(Clients.from_list([(jax.numpy.ones((2, 1)), [0, 1])]).x, [[1], [1]])
    tree = Point({"u": [1, 2]}, np.ones((2, 3, 4)))
    clients = Clients.from_list([(tree, (np.zeros(2), None)), (tree, (np.zeros(2), None))])
    assert_array_equal(clients[1].x.a["u"], [1, 2])
    assert clients.stack().x.b.shape == (2, 2, 3, 4)
    assert clients.y[1] is None


def test_from_list_copies_once():
    pairs = [(np.ones((10_000, 16)), np.zeros(10_000)) for _ in range(5)]
    size = sum(x.nbytes + y.nbytes for x, y in pairs)
    Clients.from_list(pairs[:1])
    tracemalloc.start()
    Clients.from_list(pairs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * size  # one copy, and one byte per number while looking for NaN


# ---- constructors ---------------------------------------------------------------------------------------------------


@quick
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.sampled_from(["int", "str", "object", "float"]))
def test_from_groups_is_from_list_of_the_parts(labels, kind):
    labels = np.array(labels).astype({"int": np.int64, "str": str, "object": object, "float": float}[kind])
    x, y = {"a": np.arange(len(labels)), "b": np.random.default_rng(0).normal(size=(len(labels), 2))}, labels == labels
    groups = np.unique(labels)
    pairs = [(jax.tree_util.tree_map(lambda leaf, g=g: leaf[labels == g], x), y[labels == g]) for g in groups]
    same(Clients.from_groups(x, y, labels), Clients.from_list(pairs, names=groups))
    same(Clients.from_groups(x, y, labels.tolist(), "rows"), Clients.from_list(pairs, names=groups, weights="rows"))


def test_from_groups_orders():
    x, y = np.arange(4), np.zeros(4)
    assert Clients.from_groups(x, y, ["b", "a", "b", "a"]).names == ("a", "b")
    mixed = Clients.from_groups(x, y, ["b", 1, "b", 1])
    assert mixed.names == ("b", 1)
    assert_array_equal(mixed.x, [0, 2, 1, 3])
    assert Clients.from_groups(x, y, [True, False, True, 2.5]).names == ("False", "True", "2.5")
    assert Clients.from_groups(x, y, pd.Series(["b", "a", "b", "a"], dtype="category")).names == ("a", "b")


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_from_groups_refuses_missing_labels(missing):
    with refuses("groups", "row 2", missing):
        Clients.from_groups(np.arange(3), np.arange(3), [1, 1, missing])


def test_from_groups_refusals():
    with refuses("the data has 2 rows in groups but 3 in x"):
        Clients.from_groups(np.arange(3), np.arange(3), [1, 2])
    with refuses("the data has 3 rows in groups but 2 in y"):
        Clients.from_groups(np.arange(3), np.arange(2), [1, 2, 2])
    with refuses("groups", "one plain label per row", "list"):
        Clients.from_groups(np.arange(3), np.arange(3), np.zeros((3, 1)))
    with refuses("no clients"):
        Clients.from_groups(np.zeros((0, 2)), np.zeros(0), [])
    with refuses("the data has dtype", "in y"):
        Clients.from_groups(np.arange(3), np.array(["a", None, 3], object), [1, 2, 2])
    with refuses("client 'b': x at row 1, column 0 is inf"):
        Clients.from_groups([[0.0], [1.0], [2.0], [np.inf]], np.zeros(4), ["b", "a", "a", "b"])


def frame() -> pd.DataFrame:
    return pd.DataFrame({"user": ["b", "a", "b"], "age": [30, 40, 50], "y": [0, 1, 1], "height": [1.5, 1.6, 1.7]})


def test_from_frame():
    df = frame()
    clients = Clients.from_frame(df)
    same(clients, Clients.from_groups(df[["age", "height"]].to_numpy(), df["y"].to_numpy(), df["user"].to_numpy()))
    assert clients.names == ("a", "b")
    assert_array_equal(clients["b"].x, [[30, 1.5], [50, 1.7]])
    ages = Clients.from_frame(df, client="user", target="height", features="age", weights="rows")
    assert ages.x.dtype == np.int64 and ages.x.shape == (3, 1)
    assert_array_equal(ages.weights, [1 / 3, 2 / 3])
    pd.testing.assert_frame_equal(df, frame())


def test_from_frame_refusals():
    with refuses("no column 'usr'", "'user', 'age', 'y', 'height'", "did you mean 'user'?"):
        Clients.from_frame(frame(), client="usr")
    with refuses("no column 'qqq'", "'age'"):
        Clients.from_frame(frame(), target="qqq")
    with refuses("no column 'hieght'", "did you mean 'height'?"):
        Clients.from_frame(frame(), features=["age", "hieght"])
    with refuses("features is empty", "['user', 'y']"):
        Clients.from_frame(frame()[["user", "y"]])
    with refuses("client 'a'", "column 'height'", "row 1 of the table", "is inf"):
        Clients.from_frame(frame().assign(height=[1.0, np.inf, 2.0]))
    with refuses("client 'a'", "column 'y'", "row 1 of the table", "is missing"):
        Clients.from_frame(frame().assign(y=[1.0, np.nan, 2.0]))
    with refuses("client 'b'", "column 'y'", "row 2 of the table", "is -inf"):
        Clients.from_frame(frame().assign(y=[1.0, 0.0, -np.inf]))
    with refuses("2 columns named 'age'"):
        Clients.from_frame(pd.concat([frame(), frame()[["age"]]], axis=1))
    with refuses("groups", "row 1"):
        Clients.from_frame(frame().assign(user=["b", None, "b"]))


def test_weights():
    assert_array_equal(make([1, 3], weights="rows").weights, [0.25, 0.75])
    assert_array_equal(make([1, 3], weights=[2, 6]).weights, [0.25, 0.75])
    kept = np.random.default_rng(0).dirichlet(np.ones(7))
    assert_array_equal(make([1] * 7, weights=kept).weights, kept)


# ---- refusals of from_list and of the plain constructor -------------------------------------------------------------

X, Y = np.ones((3, 2)), np.zeros(3)


def spoiled(array, index, value):
    array = np.array(array, dtype=float)
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("second", "parts"),
    [
        ((np.ones((0, 2)), np.zeros(0)), ["no rows", "(0, 2)"]),
        (([], []), ["no rows", "(0,)"]),
        ((spoiled(X, (2, 1), np.nan), Y), ["x at row 2, column 1 is nan", "finite"]),
        ((spoiled(X, (1, 0), -np.inf), Y), ["x at row 1, column 0 is -inf", "finite"]),
        ((X, spoiled(Y, 1, np.nan)), ["y at row 1 is nan", "finite"]),
        ((X, spoiled(Y, 0, np.inf)), ["y at row 0 is inf", "finite"]),
        ((np.ones((3, 5)), Y), ["x: float64[5]", "client 'ann' holds x: float64[2]"]),
        ((X, np.ones((3, 2))), ["y: float64[2]", "client 'ann' holds x: float64[2], y: float64"]),
        (({"a": X}, Y), ["x['a']: float64[2]", "client 'ann' holds x: float64[2]"]),
        ((X, None), ["holds x: float64[2] where", "client 'ann' holds x: float64[2], y: float64"]),
        ((None, Y), ["no array in x", "None"]),
        ((X, np.zeros(4)), ["3 rows in x but 4 in y"]),
        (({"a": X, "b": np.ones(2)}, Y), ["3 rows in x but 2 in x['b']"]),
        ((np.array([[1, "a"], [2, "b"], [3, "c"]], dtype=object), Y), ["dtype object in x", "array of booleans"]),
        ((X, ["a", "b", "c"]), ["dtype <U1 in y", "array of booleans"]),
        ((X, np.ones(3, complex)), ["dtype complex128 in y"]),
        (([[1.0, 2.0], [3.0], [4.0, 5.0]], Y), ["rows of unequal length in x"]),
        (({"a": [[1.0], [2.0, 3.0]]}, Y), ["rows of unequal length in x['a']"]),
        ((X, 3.0), ["the single value 3.0 in y", "one row per sample"]),
        ((np.ma.masked_greater(X * 2, 1), Y), ["masked values in x"]),
        ((X, Y, Y), ["pair (x, y)", "tuple of length 3"]),
        (X, ["pair (x, y)", "ndarray"]),
    ],
)
def test_from_list_names_the_client_the_field_and_the_value(second, parts):
    before = pickle.dumps(second)
    with refuses("client 'bob'", *parts):
        Clients.from_list([(X, Y), second], names=["ann", "bob"])
    assert pickle.dumps(second) == before


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.ones((3, 6, 6)), "images of 6×6 in x where those of client 'ann' are 8×8: bring all to one size"),
        (np.ones((3, 6, 8, 3)), None),  # another number of axes: no images of another size
        (
            [np.ones((8, 8)), np.ones((8, 8)), np.ones((6, 7))],
            r"images of two sizes \(8×8 in row 0, 6×7 in row 2: bring them to one\) in x",
        ),
    ],
)
def test_images_of_two_sizes_are_called_so(x, sentence):
    sentence = sentence or r"holds x: float64\[6,8,3\]"
    with pytest.raises(ValueError, match=sentence):
        Clients.from_list([(np.ones((3, 8, 8)), Y), (x, Y)], names=["ann", "bob"])


def test_grey_images_are_told_without_their_channel():
    with pytest.raises(ValueError, match="client 1 has images of 6×6 in x where those of client 0 are 8×8"):
        Clients.from_list([(np.ones((3, 8, 8, 1)), Y), (np.ones((3, 6, 6, 1)), Y)])


def test_deep_arrays_name_the_whole_column():
    image = np.ones((2, 4, 4))
    image[1, 2, 3] = np.nan
    with refuses("client 0: x['image'] at row 1, column 2, 3 is nan"):
        Clients.from_list([({"image": image}, [0, 1])])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"names": ["a"]}, ["names has 1 entries for 2 clients"]),
        ({"names": ["a", "a"]}, ["unique", "2 clients", "'a'"]),
        ({"weights": [1.0]}, ["weights has shape (1,) for 2 clients"]),
        ({"weights": 1.0}, ["weights has shape () for 2 clients"]),
        ({"weights": [1.0, 0.0]}, ["client 1 has weight 0.0", "positive"]),
        ({"weights": [-2.0, 1.0]}, ["client 0 has weight -2.0", "positive"]),
        ({"weights": [1.0, np.nan]}, ["client 1 has weight nan", "finite"]),
        ({"weights": [1.0, np.inf], "names": ["a", "b"]}, ["client 'b' has weight inf", "finite"]),
        ({"weights": "size"}, ["weights", "'rows'", "'size'"]),
        ({"weights": [[1.0], [1.0, 2.0]]}, ["weights", "one number per client"]),
    ],
)
def test_names_and_weights_are_checked(options, parts):
    with refuses(*parts):
        Clients.from_list([(X, Y), (X, Y)], **options)


def test_empty_list_and_plain_constructor():
    with refuses("no clients"):
        Clients.from_list([])
    with refuses("no clients"):
        Clients(X, Y, np.array([], int))
    with refuses("4 rows in counts but 3 in x"):
        Clients(X, Y, np.array([2, 2]))
    with refuses("client 'b' has no rows", "0"):
        Clients(X, Y, np.array([3, 0]), names=("a", "b"))
    with refuses("counts", "[1.5, 1.5]"):
        Clients(X, Y, [1.5, 1.5])  # pyright: ignore[reportArgumentType]
    assert Clients(X, Y, np.array([1, 2])).names == (0, 1)


# ---- labels ---------------------------------------------------------------------------------------------------------


def test_check_labels_accepts():
    for labels in ([0, 1], [True, False], [0.0, 1.0], np.array([1, 0], np.uint8)):
        clients = Clients.from_list([([1, 2], labels)])
        clients.check_labels({0, 1})
        clients.check_labels(2)
        clients.check_labels(np.int64(10))


@pytest.mark.parametrize(
    ("label", "classes", "parts"),
    [
        (2, {1, 0}, ["is 2", "one of 0, 1"]),
        (-1, {0, 1}, ["is -1", "one of 0, 1"]),
        (10, 10, ["is 10", "a whole number from 0 to 9"]),
        (-1, 10, ["is -1", "from 0 to 9"]),
        (0.5, 10, ["is 0.5", "a whole number from 0 to 9"]),
    ],
)
def test_check_labels_refuses(label, classes, parts):
    clients = Clients.from_list([([1], [0]), ([1, 2], [0, label])], names=["ann", "bob"])
    with refuses("client 'bob'", "y at row 1", *parts):
        clients.check_labels(classes)


def test_check_labels_without_labels():
    with refuses("y is None", "0 to 1"):
        Clients.from_list([(X, None)]).check_labels(2)


# ---- stack ----------------------------------------------------------------------------------------------------------


@quick
@given(st.data(), counts_of)
def test_stack_round_trip(data, counts):
    clients = make(counts)
    positions = data.draw(st.none() | st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=6))
    extra = data.draw(st.none() | st.integers(0, 3))
    chosen = list(range(len(counts))) if positions is None else positions
    most = max(counts[m] for m in chosen)
    stack = clients.stack(positions, None if extra is None else most + extra)
    rows = most + (extra or 0)
    assert stack.x.shape == (len(chosen), rows, 3) and stack.y.shape == (len(chosen), rows)
    assert stack.count.dtype == stack.position.dtype == np.int32
    assert stack.position.tolist() == chosen
    for i, m in enumerate(chosen):
        client, n = clients[m], stack.count[i]
        assert n == counts[m] and stack.weight[i] == client.weight
        for padded, real in ((stack.x[i], client.x), (stack.y[i], client.y)):
            assert_array_equal(padded[:n], real)
            assert_array_equal(padded[n:], np.broadcast_to(real[0], padded[n:].shape))


def test_stack_of_equal_neighbours_is_a_view():
    clients = make([2, 3, 3, 3])
    stack = clients.stack([1, 2])
    assert np.shares_memory(stack.x, clients.x)
    assert_array_equal(stack.x[1], clients[2].x)
    assert_array_equal(clients.stack([2, 1]).x, stack.x[::-1])


def test_stack_and_subset_refusals():
    clients = make([2, 5], names=["ann", "bob"])
    with refuses("client 'bob' has 5 rows", "rows=4"):
        clients.stack(rows=4)
    for positions in ([], [2], [-1], [0.5], [[0]], [True, False], "bob"):
        for method in (clients.stack, clients.subset):
            with refuses("positions", "from 0 to 1", repr(positions)):
                method(positions)


# ---- buckets --------------------------------------------------------------------------------------------------------


def partitions(items):
    """Every way to put the items into groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [items[0], *group], *rest[i + 1 :]]


def padding(counts, groups) -> int:
    return sum(max(counts[m] for m in group) * len(group) - sum(counts[m] for m in group) for group in groups)


wastes = st.sampled_from([0.0, 0.01, 0.05, 0.15, 0.3, 0.5, 1.0, np.inf])


@quick
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), wastes)
def test_buckets_are_an_ordered_partition_within_the_waste(counts, waste):
    groups = make(counts, width=1).buckets(waste, least=0)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(counts)))
    assert all((np.diff(group) > 0).all() for group in groups)
    assert padding(counts, groups) <= waste * sum(counts)


@quick
@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), wastes)
def test_buckets_are_as_few_as_possible(counts, waste):
    feasible = [p for p in partitions(list(range(len(counts)))) if padding(counts, p) <= waste * sum(counts)]
    assert len(make(counts, width=1).buckets(waste, least=0)) == min(map(len, feasible))


def test_buckets_agree_with_a_plain_dynamic_programme():
    counts = np.minimum(np.random.default_rng(0).lognormal(4, 1.5, 300).astype(int) + 1, 3000)
    sizes, clients = np.unique(counts, return_counts=True)
    total = np.r_[0, np.cumsum(clients)]
    cost = np.where(np.tri(len(total), k=-1, dtype=bool).T, np.r_[0, sizes] * (total - total[:, None]), 10**12)
    best = np.r_[0, np.full(len(sizes), 10**12)]
    least = [int((best := (best[:, None] + cost).min(0))[-1]) - counts.sum() for _ in range(40)]
    whole = make(counts, width=1)
    for waste in (0.05, 0.15, 0.5, 2.0):
        groups = whole.buckets(waste, least=0)
        assert len(groups) == 1 + next(k for k, rows in enumerate(least) if rows <= waste * counts.sum())


def test_buckets_keep_small_data_in_one_group():
    clients = make([1, 100], width=3)  # 99 rows of padding, 4 numbers each
    assert len(clients.buckets(0.15, least=397)) == 1
    assert len(clients.buckets(0.15, least=396)) == 2
    assert [group.tolist() for group in clients.buckets()] == [[0, 1]]
    with refuses("waste", "-0.1"):
        clients.buckets(-0.1)


# ---- split, subset, map ---------------------------------------------------------------------------------------------

splittable = st.lists(st.integers(2, 20), min_size=1, max_size=6)


def row_ids(counts, seed=0) -> Clients:
    """Clients whose x is the row's own number and whose y is one of three labels."""
    labels = np.random.default_rng(seed).integers(0, 3, sum(counts))
    return Clients(np.arange(sum(counts)), labels, np.array(counts), weights=np.arange(1.0, len(counts) + 1))


@quick
@given(splittable, st.floats(0.01, 0.99), st.integers(0, 5), st.booleans())
def test_split(counts, test, seed, stratify):
    clients = row_ids(counts, seed)
    train, held_out = clients.split(test, seed, stratify)
    for part in (train, held_out):
        assert part.names == clients.names
        assert_array_equal(part.weights, clients.weights)
        assert part.counts.min() >= 1
    for m, n in enumerate(counts):
        left, right = train[m], held_out[m]
        assert_array_equal(np.sort(np.r_[left.x, right.x]), clients[m].x)
        assert (np.diff(left.x) > 0).all() and (np.diff(right.x) > 0).all()
        assert len(right.x) == min(max(round(test * n), 1), n - 1)
        assert_array_equal(clients.y[right.x], right.y)
        if stratify:
            shares = np.bincount(clients[m].y, minlength=3) * len(right.y) / n
            assert (np.abs(np.bincount(right.y, minlength=3) - shares) < 1).all()
    same(clients.split(test, seed, stratify)[1], held_out)


def test_split_does_not_depend_on_the_other_clients():
    first, second = row_ids([10, 4, 9]).split()[1], row_ids([10, 7, 2, 3]).split()[1]
    assert_array_equal(first[0].x, second[0].x)
    splits = {tuple(row_ids([30]).split(seed=seed)[1].x) for seed in range(5)}
    assert len(splits) == 5


@pytest.mark.parametrize("stratify", [False, True])
def test_every_client_gets_a_split_of_its_own(stratify):
    """Clients with the same rows hold out different ones: each draws from a stream of its own."""
    rows = np.arange(30.0)[:, None]
    held_out = Clients.from_list([(rows, np.arange(30) % 2)] * 3).split(0.5, stratify=stratify)[1]
    assert len({tuple(held_out[m].x.ravel().tolist()) for m in range(3)}) == 3


def test_split_refusals():
    with refuses("client 'bob' has 1 row", "at least 2"):
        make([3, 1], names=["ann", "bob"]).split()
    for test in (0, 1, 1.5, np.nan):
        with refuses("test", str(test)):
            make([3]).split(test)
    with refuses("stratify", "y", "float64[2]"):
        Clients.from_list([(X, X)]).split(stratify=True)


@quick
@given(st.data(), counts_of)
def test_subset(data, counts):
    clients = make(counts, weights="rows")
    positions = data.draw(st.permutations(range(len(counts))))[: data.draw(st.integers(1, len(counts)))]
    part = clients.subset(positions)
    assert part.names == tuple(positions)
    np.testing.assert_allclose(part.weights, part.counts / part.counts.sum(), rtol=1e-12)
    for name, client in zip(positions, part, strict=True):
        assert_array_equal(client.x, clients[name].x)
        assert_array_equal(client.y, clients[name].y)


def test_subset_names_stay_unique():
    with refuses("unique", "2 clients are named 'b'"):
        make([1, 1], names=["a", "b"]).subset([1, 1])


def test_map():
    clients = make([3, 2], weights="rows")
    centred = clients.map(lambda x, y: (x - x.mean(0), y == 1))
    np.testing.assert_allclose(centred.x.mean(0), 0, atol=1e-15)
    assert centred.y.dtype == bool and centred.names == clients.names
    assert_array_equal(centred.weights, clients.weights)
    with refuses("client 1: x at row 0, column 2 is inf"):
        clients.map(lambda x, y: (spoiled(x, (3, 2), np.inf), y))
    with refuses("5 rows in counts but 4 in x"):
        clients.map(lambda x, y: (x[1:], y))
    with refuses("mapped function", "pair (x, y)", "ndarray"):
        clients.map(lambda x, y: x)
