"""Weight sharing: any split of any parameter pytree, put together again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw

LOSS = tw.losses.logistic(0.1)


def network(params, x, y):
    hidden = jnp.tanh(x @ params["body"]["first"] + params["body"]["bias"][None, :])
    return jnp.mean((hidden @ params["head"] - y) ** 2)


def start(clients=None):
    return {"body": {"first": np.ones((3, 2)), "bias": np.ones(2)}, "head": np.ones(2)}


def sizes(problem):
    """The shapes of w and of one client's β."""
    w, beta = problem.start
    return jax.tree.map(np.shape, w), jax.tree.map(lambda leaf: leaf.shape[1:], beta)


@pytest.mark.parametrize(
    "split, shared, private",
    [
        (2, [0, 1], [2, 3, 4]),  # the first rows
        (-2, [0, 1, 2], [3, 4]),
        (slice(2, None), [2, 3, 4], [0, 1]),  # the last rows
        (slice(None, None, 2), [0, 2, 4], [1, 3]),
        (lambda name, leaf: np.arange(len(leaf)) % 3 == 0, [0, 3], [1, 2, 4]),  # a mask
    ],
    ids=["first", "all but the last", "last", "every other", "mask"],
)
def test_splits_of_one_array(split, shared, private):
    clients = plain.clients(width=5)
    problem = tw.Problem(tw.objectives.weight_sharing(LOSS, split), clients)
    assert sizes(problem) == ((len(shared),), (len(private),))
    w, beta = plain.point(problem)
    for m, c in enumerate(clients):
        whole = np.zeros(5)
        whole[shared], whole[private] = w, beta[m]
        assert_array_equal(problem.objective.personal(w, beta[m], None, ()), whole)
        assert_allclose(problem.values(w, beta)[m], plain.value("logistic", whole, c.x, c.y, 0.1), rtol=1e-14)
    plain.assert_gradient(problem)


def test_splits_of_a_matrix_are_splits_of_its_rows():
    clients = plain.clients("softmax", width=4)
    problem = tw.Problem(tw.objectives.weight_sharing(plain.loss("softmax", 0.1), slice(3, None)), clients)
    assert sizes(problem) == ((1, 3), (3, 3))
    w, beta = plain.point(problem)
    whole = np.concatenate([beta[0], w])
    c = clients[0]
    assert_allclose(problem.values(w, beta)[0], plain.value("softmax", whole, c.x, c.y, 0.1), rtol=1e-14)


@pytest.mark.parametrize(
    "split, shared",
    [
        ("head", {"head"}),
        ("body", {"body/first", "body/bias"}),
        ("body/first", {"body/first"}),
        (["head", "body/bias"], {"head", "body/bias"}),
        (lambda name, leaf: leaf.ndim == 1, {"head", "body/bias"}),
    ],
    ids=["last layer", "first layers", "one leaf", "several", "a function"],
)
def test_splits_of_a_network(split, shared):
    """First layers or last layers private: names of leaves, of branches, or a function of both."""
    clients = plain.clients("squared")
    problem = tw.Problem(tw.objectives.weight_sharing(tw.losses.custom(network, start), split), clients)
    w, beta = plain.point(problem)
    assert set(w) == shared
    assert set(w) | set(beta) == {"body/first", "body/bias", "head"} and not set(w) & set(beta)
    for m, c in enumerate(clients):
        leaves = w | plain.client(beta, m)
        whole = {"body": {"first": leaves["body/first"], "bias": leaves["body/bias"]}, "head": leaves["head"]}
        fit = np.tanh(c.x @ whole["body"]["first"] + whole["body"]["bias"]) @ whole["head"]
        assert_allclose(problem.values(w, beta)[m], np.mean((fit - c.y) ** 2), rtol=1e-13)
    plain.assert_gradient(problem)


def test_a_name_is_not_a_prefix():
    """`head` is that leaf or branch, and not everything that begins so."""
    params = {"head": np.zeros(1), "header": np.zeros(2), "heads": {"a": np.zeros(3)}}
    loss = tw.losses.custom(lambda p, x, y: 0.0, params)
    problem = tw.Problem(tw.objectives.weight_sharing(loss, "head"), plain.clients())
    assert sizes(problem) == ({"head": (1,)}, {"header": (2,), "heads/a": (3,)})


def test_the_intercept_alone_can_be_private():
    clients = plain.clients()
    problem = tw.Problem(tw.objectives.weight_sharing(tw.losses.logistic(0.1, intercept=True), "weight"), clients)
    assert sizes(problem) == ({"weight": (3,)}, {"bias": ()})
    plain.assert_gradient(problem)


# ---- merge ∘ split = identity ----------------------------------------------------------------------------------------


def trees(depth: int = 2) -> Any:
    """Nested dicts, lists and tuples of small arrays, each with numbers of its own."""
    arrays = st.lists(st.integers(1, 4), min_size=0, max_size=2).map(tuple)
    inner = arrays if depth == 0 else trees(depth - 1)
    return st.one_of(
        arrays.map(lambda shape: ("array", shape)),
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(lambda d: ("dict", d)),
        st.lists(inner, min_size=1, max_size=3).map(lambda v: ("list", v)),
        st.lists(inner, min_size=1, max_size=3).map(lambda v: ("tuple", v)),
    )


def build(plan: Any, numbers: Any) -> Any:
    if isinstance(plan, tuple) and plan and isinstance(plan[0], str):
        kind, inside = plan
        if kind == "array":
            return numbers(inside)
        if kind == "dict":
            return {key: build(value, numbers) for key, value in inside.items()}
        return (list if kind == "list" else tuple)(build(value, numbers) for value in inside)
    return numbers(plan)


@given(trees(), st.randoms(use_true_random=False))
def test_merge_after_split_is_the_identity(plan, random):
    rng = np.random.default_rng(random.getrandbits(32))
    params = build(plan, lambda shape: rng.normal(size=shape))
    masks: dict[str, Any] = {}

    def split(name, leaf):
        if name not in masks:
            masks[name] = rng.random(leaf.shape[:1]) < 0.5 if leaf.ndim else bool(rng.random() < 0.5)
        return masks[name]

    clients = plain.clients("squared", (2,))
    objective = tw.objectives.weight_sharing(tw.losses.custom(lambda p, x, y: 0.0, params), split)
    whole = [np.broadcast_to(split(name, leaf), np.shape(leaf)[:1]) for name, leaf in _named(params)]
    if all(mask.all() for mask in whole) or not any(mask.any() for mask in whole):
        with pytest.raises(ValueError, match=r"leaves nothing (shared|private)"):
            objective.bind(clients)
        return
    objective = objective.bind(clients)
    w, beta = objective.init(clients)
    merged = objective.personal(w, beta, None, ())
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    for left, right in zip(jax.tree.leaves(merged), jax.tree.leaves(params), strict=True):
        assert_array_equal(left, right)
    assert sum(leaf.size for leaf in jax.tree.leaves((w, beta))) == sum(leaf.size for leaf in jax.tree.leaves(params))
    shared = sum(int(np.sum(masks[name])) * (leaf[0].size if leaf.ndim else 1) for name, leaf in _named(params))
    assert sum(leaf.size for leaf in jax.tree.leaves(w)) == shared


def _named(params: Any) -> list[tuple[str, np.ndarray]]:
    pairs, _ = jax.tree_util.tree_flatten_with_path(params)
    return [("/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path), leaf) for path, leaf in pairs]


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split, missing", [(0, "shared"), (5, "private"), (9, "private"), (slice(0, 0), "shared")])
def test_neither_part_may_be_empty(split, missing):
    with pytest.raises(ValueError, match=rf"^The split .* leaves nothing {missing}; the parameters are ''\.$"):
        tw.Problem(tw.objectives.weight_sharing(LOSS, split), plain.clients(width=5))


def test_all_names_leave_nothing_private():
    loss = tw.losses.logistic(intercept=True)
    with pytest.raises(ValueError, match="leaves nothing private; the parameters are 'bias', 'weight'"):
        tw.Problem(tw.objectives.weight_sharing(loss, ["bias", "weight"]), plain.clients())


def test_all_layers_private_leave_nothing_shared():
    loss = tw.losses.logistic(intercept=True)
    sentence = r"^Keeping 'bias', 'weight' private leaves nothing shared; the parameters are 'bias', 'weight'\.$"
    with pytest.raises(ValueError, match=sentence):
        tw.Problem(tw.objectives.weight_sharing(loss, private=["bias", "weight"]), plain.clients())


@pytest.mark.parametrize("split", ["wieght", ["bias", "wieght"]])
def test_a_misspelt_name(split):
    loss = tw.losses.logistic(intercept=True)
    with pytest.raises(
        ValueError, match=r"^The split names 'wieght', but .* are 'bias', 'weight'; did you mean 'weight'\?$"
    ):
        tw.Problem(tw.objectives.weight_sharing(loss, split), plain.clients())


def test_a_number_cannot_cut_several_leaves():
    loss = tw.losses.logistic(intercept=True)
    with pytest.raises(
        ValueError, match="split=2 cuts a single array, but the model has 2 leaves: name the shared ones"
    ):
        tw.Problem(tw.objectives.weight_sharing(loss, 2), plain.clients())


@pytest.mark.parametrize("mask", [np.array([True, False]), np.ones(9, bool)])
def test_a_mask_of_the_wrong_length(mask):
    with pytest.raises(ValueError, match=rf"split of '' has shape \({len(mask)},\), but the leaf has shape \(5,\)"):
        tw.Problem(tw.objectives.weight_sharing(LOSS, lambda name, leaf: mask), plain.clients(width=5))
