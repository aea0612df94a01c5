"""Branches and loops: the values of lax.cond and lax.fori_loop everywhere, and no work for the side not taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_array_equal

from twofold.control import branch, is_traced, repeat

X = np.arange(12.0).reshape(4, 3) + 1
FLAGS = np.array([True, False, False, True])


def ours(flag: Any, x: Any) -> Any:
    """A branch whose sides close over x, share nothing else, and give a pytree."""
    return branch(flag, lambda: {"a": jnp.sin(x) * x[0], "b": (x + 1,)}, lambda: {"a": -x, "b": (jnp.cumsum(x),)})


def theirs(flag: Any, x: Any) -> Any:
    """The same by lax.cond."""
    return lax.cond(
        flag, lambda x: {"a": jnp.sin(x) * x[0], "b": (x + 1,)}, lambda x: {"a": -x, "b": (jnp.cumsum(x),)}, x
    )


def loop(times: Any, start: Any) -> Any:
    """Σ (i+1)·start in `times` steps, by repeat."""
    return repeat(times, lambda i, total: jax.tree.map(lambda t, s: t + (i + 1) * s, total, start), start)


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: assert_array_equal(a, b, strict=True), *jax.tree.map(np.asarray, (found, expected)))


# --- values -----------------------------------------------------------------------------------------------------------

IN_AXES = [(0, 0), (0, None), (None, 0)]


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_branch_has_the_values_of_cond(flag: bool, wrap: Callable):
    assert_equal(wrap(ours)(flag, X[1]), theirs(flag, X[1]))


@pytest.mark.parametrize("axes", IN_AXES, ids=str)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("flags", [FLAGS, ~FLAGS, FLAGS & False, FLAGS | True], ids=["some", "others", "none", "all"])
def test_branch_under_vmap_has_the_values_of_cond(axes: tuple, wrap: Callable, flags: np.ndarray):
    arguments = (flags if axes[0] == 0 else flags[0], X if axes[1] == 0 else X[1])
    found, expected = (wrap(jax.vmap(f, in_axes=axes))(*arguments) for f in (ours, theirs))
    assert_equal(found, expected)


@pytest.mark.parametrize("inner", IN_AXES, ids=str)
@pytest.mark.parametrize("outer", IN_AXES, ids=str)
def test_branch_under_nested_vmap_has_the_values_of_cond(inner: tuple, outer: tuple):
    def leading(axes_first: Any, axes_second: Any, value: np.ndarray) -> np.ndarray:
        shape = [3] * (axes_second is not None) + [4] * (axes_first is not None)
        return np.resize(value, (*shape, *value.shape[1:]))

    flags, x = leading(inner[0], outer[0], FLAGS), leading(inner[1], outer[1], X + 0.5)
    found, expected = (jax.jit(jax.vmap(jax.vmap(f, in_axes=inner), in_axes=outer))(flags, x) for f in (ours, theirs))
    assert_equal(found, expected)


@pytest.mark.parametrize("batched", [False, True], ids=["one", "many"])
def test_branch_under_scan_has_the_values_of_cond(batched: bool):
    flags = np.random.default_rng(0).random((50, 4) if batched else 50) < 0.3

    def course(f: Callable) -> Any:
        def body(x: Any, flag: Any) -> Any:
            step = jax.vmap(f)(flag, x) if batched else f(flag, x)
            return 0.5 * (step["a"] + step["b"][0]), step

        return jax.jit(lambda: lax.scan(body, jnp.asarray(X if batched else X[0]) / 12, flags))()

    (end, steps), (expected_end, expected_steps) = course(ours), course(theirs)
    # XLA fuses the two programs differently, so the last bit may differ.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), (end, steps), (expected_end, expected_steps)
    )


def test_branches_nest():
    def f(one: Any, two: Any, x: Any) -> Any:
        return branch(
            one, lambda: branch(two, lambda: x, lambda: 2 * x), lambda: branch(two, lambda: 3 * x, lambda: -x)
        )

    ones, twos = np.array([True, True, False, False]), np.array([True, False, True, False])
    expected = X * np.array([1.0, 2.0, 3.0, -1.0])[:, None]
    assert_equal(jax.jit(jax.vmap(f))(ones, twos, X), expected)
    assert_equal([f(*each) for each in zip(ones, twos, X, strict=True)], list(expected))


def test_a_branch_of_nothing():
    """An empty block, like the β of traditional federated learning, is a branch without values."""
    assert jax.jit(lambda flag: branch(flag, lambda: (), lambda: ()))(True) == ()
    assert jax.jit(jax.vmap(lambda flag, x: branch(flag, lambda: ((), x), lambda: ((), -x))))(FLAGS, X)[0] == ()


@pytest.mark.parametrize("times", [0, 1, 7])
def test_repeat_has_the_values_of_fori_loop(times: int):
    start = {"a": jnp.asarray(X), "b": (jnp.asarray(2.0),)}
    expected = jax.tree.map(lambda leaf: leaf * (1 + times * (times + 1) / 2), start)
    assert_equal(loop(times, start), expected)
    assert_equal(jax.jit(loop)(times, start), expected)
    assert_equal(jax.jit(lambda start: loop(times, start))(start), expected)


def test_repeat_may_have_another_number_of_steps_for_each():
    times = np.array([0, 3, 1, 5])
    expected = X * (1 + times * (times + 1) / 2)[:, None]
    assert_equal(jax.vmap(loop)(times, X), expected)
    assert_equal(jax.jit(jax.vmap(loop))(times, X), expected)


# --- work ---------------------------------------------------------------------------------------------------------------


class Counter:
    """A function that counts, on the host, how often it is really computed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        def count(_: Any) -> None:
            self.calls += 1

        jax.debug.callback(count, x)
        return 2 * x

    def read(self) -> int:
        jax.effects_barrier()
        calls, self.calls = self.calls, 0
        return calls


@pytest.mark.parametrize("flag", [True, False])
def test_only_the_side_taken_is_computed(flag: bool):
    yes, no = Counter(), Counter()

    def f(flag: Any, x: Any) -> Any:
        return branch(flag, lambda: yes(x), lambda: no(x))

    for run in (f, jax.jit(f), lambda flag, x: jax.jit(jax.vmap(f, in_axes=(None, 0)))(flag, x[None])):
        run(jnp.asarray(flag), jnp.asarray(X[0]))
        assert (yes.read(), no.read()) == ((1, 0) if flag else (0, 1))


def test_a_rare_side_is_computed_only_where_somebody_takes_it():
    """Seeds in lock step, each with its own coin: an iteration in which no coin falls pays nothing."""
    rare = Counter()
    coins = np.zeros((100, 4), bool)
    coins[17, 2] = coins[60] = coins[61, 0] = True

    def body(x: Any, flags: Any) -> Any:
        return jax.vmap(lambda flag, x: branch(flag, lambda: rare(x), lambda: x))(flags, x), None

    (end, _) = jax.jit(lambda x: lax.scan(body, x, coins))(jnp.asarray(X))
    assert rare.read() == 3 * 4  # three iterations, in each of which the side is computed for all four
    assert_array_equal(end, X * np.array([4.0, 2.0, 4.0, 2.0])[:, None])


def test_a_shared_coin_stays_one_branch_for_all_clients():
    """Clients under vmap with one common coin: no client pays for the side not taken."""
    costly = Counter()
    coins = np.arange(40) % 10 == 0

    def body(x: Any, flag: Any) -> Any:
        return jax.vmap(lambda x: branch(flag, lambda: costly(x), lambda: x))(x), None

    jax.jit(lambda x: lax.scan(body, x, coins))(jnp.asarray(X))
    assert costly.read() == 4 * 4


def test_outside_a_trace_it_is_plain_python():
    """The engine of messages counts on this: concrete values, Python's own if and for, no tracer anywhere."""
    seen: list[Any] = []

    def note(name: str, value: Any) -> Any:
        seen.append(name)
        assert not is_traced(value)
        return value

    x = jnp.asarray(X[0])
    assert_array_equal(branch(jnp.asarray(True), lambda: note("yes", x), lambda: note("no", x)), X[0])
    assert branch(False, lambda: note("yes", 1), lambda: note("no", 2)) == 2  # any objects, of any shapes
    end = repeat(jnp.asarray(3), lambda i, total: note(f"step {int(i)}", total + i), x)
    assert_array_equal(end, X[0] + 3)
    assert seen == ["yes", "no", "step 0", "step 1", "step 2"]


def test_repeat_inside_a_trace_is_one_loop():
    """A loop of many steps is traced once, whether its length is known or not."""
    traced: list[int] = []

    def body(i: Any, x: Any) -> Any:
        traced.append(1)
        return x + i

    assert jax.jit(lambda x: repeat(1000, body, x))(0) == 499_500
    assert jax.jit(lambda n, x: repeat(n, body, x))(1000, 0) == 499_500
    assert len(traced) <= 4


def test_a_side_that_only_gives_what_is_there_needs_no_branch():
    here = jnp.arange(3.0)

    def one(flag: jax.Array, x: jax.Array, kept: jax.Array) -> jax.Array:
        return branch(flag, lambda: kept, lambda: jnp.sin(x))

    batched = jax.vmap(one)
    flags = jnp.array([True, False, True])
    assert_array_equal(batched(flags, here, -here), jnp.where(flags, -here, jnp.sin(here)))
    assert "cond[" not in str(jax.make_jaxpr(batched)(flags, here, -here))
    # One flag for all is still a real branch, and so is a batched one with a costly side.
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(one, in_axes=(None, 0, 0)))(flags[0], here, -here))
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(lambda f, x: branch(f, lambda: jnp.sin(x), lambda: x)))(flags, here))
