"""`convolutions.fast`: the values and gradients of lax.conv and lax.reduce_window, without either of them in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import twofold as tw
from twofold.convolutions import fast
from twofold.losses import Rows

SLOW = ("conv_general_dilated", "reduce_window_max", "select_and_scatter", "select_and_gather_add")
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def is_plain(function: Callable[..., Any], *args: Any) -> bool:
    """Whether neither the function's program nor its gradient's has a convolution or a pool of XLA's own."""

    def scalar(*args: Any) -> jax.Array:
        return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(function(*args))), jnp.zeros(()))

    programs = jax.make_jaxpr(function)(*args), jax.make_jaxpr(jax.grad(scalar))(*args)
    return not any(name in str(program) for program in programs for name in SLOW)


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(jnp.max(jnp.abs(b)))))


def agrees(function: Callable[..., Any], *args: Any) -> None:
    """Value and gradient in the direction of some fixed weights, of every argument, compiled."""

    def both(function: Callable[..., Any]) -> Any:
        def run(*args: Any) -> Any:
            value, back = jax.vjp(function, *args)
            return value, back(jax.tree.map(lambda out: normal(9, *out.shape).astype(out.dtype), value))

        return jax.jit(run)(*args)

    same(both(fast(function)), both(function))
    assert is_plain(fast(function), *args)


# --- the convolution --------------------------------------------------------------------------------------------------

TABLE: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[str, str, str], dict[str, Any]]] = {
    "valid": ((10, 8, 7, 3), (3, 2, 3, 4), NHWC, {}),
    "one row": ((1, 8, 7, 3), (3, 2, 3, 4), NHWC, {}),
    "same": ((2, 8, 7, 3), (3, 2, 3, 4), NHWC, {"padding": "SAME"}),
    "same, stride": ((2, 8, 7, 3), (3, 2, 3, 4), NHWC, {"padding": "SAME", "window_strides": (2, 3)}),
    "asymmetric": ((2, 5, 6, 3), (3, 3, 3, 4), NHWC, {"padding": ((2, 0), (1, 3))}),
    "cropped": ((2, 7, 6, 3), (3, 3, 3, 4), NHWC, {"padding": ((-1, 2), (0, -2)), "window_strides": (2, 1)}),
    "dilated": ((2, 9, 8, 3), (3, 2, 3, 4), NHWC, {"rhs_dilation": (2, 3), "window_strides": (1, 2)}),
    "transposed": ((2, 4, 5, 3), (3, 3, 3, 4), NHWC, {"lhs_dilation": (2, 3), "padding": ((2, 1), (0, 2))}),
    "all": (
        (2, 6, 5, 4), (3, 2, 2, 6), NHWC,
        {"window_strides": (2, 1), "padding": ((1, 2), (3, 0)), "lhs_dilation": (1, 2), "rhs_dilation": (2, 2),
         "feature_group_count": 2},
    ),
    "groups": ((3, 6, 5, 6), (3, 3, 2, 9), NHWC, {"feature_group_count": 3}),
    "depthwise": ((3, 6, 5, 4), (3, 3, 1, 8), NHWC, {"feature_group_count": 4, "padding": "SAME"}),
    "batch groups": ((6, 6, 5, 2), (3, 3, 2, 9), NHWC, {"batch_group_count": 3}),
    "1 by 1": ((2, 4, 4, 3), (1, 1, 3, 5), NHWC, {"window_strides": (2, 2)}),
    "NCHW": ((10, 3, 8, 7), (4, 3, 3, 2), NCHW, {"padding": ((1, 0), (0, 2)), "window_strides": (1, 2)}),
    "NCHW, groups": ((2, 6, 5, 5), (9, 2, 3, 3), NCHW, {"feature_group_count": 3}),
    "mixed": ((8, 2, 3, 7), (2, 4, 3, 3), ("HNCW", "WOIH", "CWNH"), {}),
    "one axis": ((2, 9, 3), (4, 3, 5), ("NHC", "HIO", "NHC"), {"padding": "SAME", "window_strides": (2,)}),
    "one axis, NCH": ((2, 3, 9), (5, 3, 4), ("NCH", "OIH", "NCH"), {"rhs_dilation": (2,)}),
    "three axes": ((2, 4, 5, 4, 2), (2, 3, 2, 2, 3), ("NHWDC", "HWDIO", "NHWDC"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_convolution_is_lax_convolution(name: str) -> None:
    x, kernel, layout, options = TABLE[name]
    rest = {"window_strides": (1,) * (len(x) - 2), "padding": "VALID"} | options

    def layer(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, dimension_numbers=layout, **rest)

    agrees(layer, normal(1, *x), normal(2, *kernel))


def valid(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=NHWC)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("wanted", [None, jnp.float32])
def test_number_formats_are_kept(dtype: Any, wanted: Any) -> None:
    def layer(x: jax.Array, kernel: jax.Array) -> jax.Array:
        highest = lax.Precision.HIGHEST
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=NHWC, precision=highest, preferred_element_type=wanted
        )

    # Whole numbers, so that no format rounds and no order of the sum matters.
    x, kernel = jnp.round(normal(1, 2, 6, 5, 3)).astype(dtype), jnp.round(normal(2, 3, 3, 3, 4)).astype(dtype)
    same(fast(layer)(x, kernel), layer(x, kernel))
    program = str(jax.make_jaxpr(fast(layer))(x, kernel))
    assert "HIGHEST" in program and ("preferred_element_type=float32" in program) is (wanted is not None)


def test_whole_numbers_and_empty_batches() -> None:
    x, kernel = jnp.arange(32).reshape(1, 4, 4, 2), jnp.arange(24).reshape(2, 2, 2, 3)
    same(fast(valid)(x, kernel), valid(x, kernel))
    empty = jnp.zeros((0, 4, 4, 2))
    assert fast(valid)(empty, kernel.astype(float)).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_clients_with_their_own_kernels_are_one_batched_product(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twofold.kernels.on_cpu", lambda: on_cpu)
    x, kernel = normal(1, 5, 2, 6, 6, 3), normal(2, 5, 3, 3, 3, 4)
    agrees(jax.vmap(valid), x, kernel)  # written by the user
    agrees(jax.vmap(fast(valid)), x, kernel)
    program = "".join(str(jax.make_jaxpr(jax.vmap(fast(valid)))(x, kernel)).split())
    assert program.count("dot_general[") == 1
    assert f"dimension_numbers=(([{2 if on_cpu else 4}],[1]),([0],[0]))" in program


def test_what_a_gradient_convolves_is_found_as_well() -> None:
    def slopes(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, kernel: jnp.sum(jnp.tanh(valid(x, kernel))), (0, 1))(x, kernel)

    agrees(slopes, normal(1, 2, 6, 5, 3), normal(2, 3, 3, 3, 4))


# --- the pool ---------------------------------------------------------------------------------------------------------


def pool(x: jax.Array, window: tuple[int, ...] = (1, 2, 2, 1), padding: str = "VALID") -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, padding)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 7, 5, 3)])
@pytest.mark.parametrize("window", [(1, 2, 2, 1), (1, 3, 2, 1), (2, 2, 1, 3), (1, 1, 1, 1)])
def test_a_pool_is_reduce_window(shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    agrees(lambda x: pool(x, window), normal(1, *shape))


def test_ties_go_to_the_first() -> None:
    x = jnp.asarray(np.random.default_rng(1).integers(0, 2, (3, 8, 6, 2)).astype(float))
    agrees(pool, x)
    agrees(lambda x: pool(jax.nn.relu(x)), -jnp.abs(x))
    slope = jax.grad(lambda x: jnp.sum(fast(pool)(x)))(jnp.ones((1, 2, 2, 1)))
    assert slope.ravel().tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_pool_has_forward_and_second_derivatives() -> None:
    check_grads(lambda x: fast(pool)(x) ** 3, (normal(1, 1, 4, 4, 2),), order=2)


def test_infinities_and_what_is_no_number_come_through() -> None:
    x = normal(1, 1, 4, 4, 1).at[0, 0, 0, 0].set(jnp.nan).at[0, 2, 2, 0].set(jnp.inf).at[0, :2, 2:, 0].set(-jnp.inf)
    np.testing.assert_array_equal(fast(pool)(x), pool(x))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_other_pools_stay(padding: str) -> None:
    def overlapping(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    x = normal(1, 2, 7, 7, 2)
    assert str(jax.make_jaxpr(fast(overlapping))(x)) == str(jax.make_jaxpr(overlapping)(x))
    same(fast(overlapping)(x), overlapping(x))


# --- the program around them ------------------------------------------------------------------------------------------

X, KERNEL = normal(1, 2, 6, 6, 2), normal(2, 3, 3, 2, 2)


def same_size(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC))


def in_scan(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.scan(lambda x, scale: (same_size(x, kernel) * scale, jnp.sum(x)), x, jnp.array([0.1, 0.2]))[0]


def in_loop(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 2, lambda _, x: 0.1 * same_size(x, kernel), x)


def in_cond(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.cond(x[0, 0, 0, 0] > 0, same_size, lambda x, kernel: x * 2, x, kernel)


def in_checkpoint(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.checkpoint(lambda x, kernel: same_size(jnp.sin(same_size(x, kernel)), kernel))(x, kernel)


def in_jit(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.jit(same_size)(jax.jit(same_size)(x, kernel), kernel)


def in_vmap(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: same_size(row[None], kernel)[0])(x)


@pytest.mark.parametrize("function", [in_scan, in_loop, in_cond, in_checkpoint, in_jit, in_vmap])
def test_a_convolution_is_found_wherever_it_is(function: Callable[..., Any]) -> None:
    agrees(function, X, KERNEL)
    if function is not in_loop:
        agrees(jax.vmap(function, (0, None)), X[:, None], KERNEL)


def test_a_while_loop_keeps_its_value() -> None:
    def run(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.sum(x**2) > 1, lambda x: 0.01 * same_size(x, kernel), x)

    same(fast(run)(X, KERNEL), run(X, KERNEL))
    assert "conv_general" not in str(jax.make_jaxpr(fast(run))(X, KERNEL))


def test_derivatives_of_ones_own_are_kept() -> None:
    @jax.custom_vjp
    def backwards(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return same_size(x, kernel)

    backwards.defvjp(lambda x, k: (same_size(x, k), (x, k)), lambda saved, g: (7.0 * g, 5.0 * saved[1]))

    @jax.custom_jvp
    def forwards(x: jax.Array) -> jax.Array:
        return same_size(x, KERNEL)

    forwards.defjvp(lambda primals, tangents: (same_size(primals[0], KERNEL), 3.0 * tangents[0]))

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return forwards(backwards(x, kernel))

    found, expected = (jax.vjp(f, X, KERNEL) for f in (fast(function), function))
    same(found[0], expected[0])
    same(found[1](X), expected[1](X))
    np.testing.assert_allclose(found[1](X)[0], 21.0 * X)
    assert "conv_general" not in str(jax.make_jaxpr(fast(function))(X, KERNEL))


def test_fast_of_fast_in_a_loop_over_clients() -> None:
    def fit(x: jax.Array, kernel: jax.Array) -> jax.Array:
        def step(kernel: jax.Array, _: None) -> tuple[jax.Array, None]:
            return kernel - 0.01 * jax.grad(lambda k: jnp.sum(pool(fast(same_size)(x, k))))(kernel), None

        return lax.scan(step, kernel, None, 3)[0]

    kernels = normal(3, 4, 3, 3, 2, 2)
    xs = normal(4, 4, 2, 6, 6, 2)
    agrees(lambda x, k: lax.map(lambda pair: fast(fit)(*pair), (x, k)), xs, kernels)
    same(jax.vmap(fast(fit))(xs, kernels), lax.map(lambda pair: fit(*pair), (xs, kernels)))


def test_what_has_no_convolution_is_untouched() -> None:
    seen: list[Any] = []

    def function(x: Any, *, name: str) -> tuple[jax.Array, str]:
        seen.append(x)
        return jnp.sin(x), name

    x = normal(1, 3)
    value, name = fast(function)(x, name="plain")
    assert name == "plain" and seen[-1] is x
    same(value, jnp.sin(x))
    assert fast(function).__name__ == "function"


def test_arguments_and_results_may_be_anything() -> None:
    def function(tree: dict[str, Any], train: bool, *, how: str) -> dict[str, Any]:
        scale = 2.0 if train else 1.0
        return {"out": valid(tree["x"], tree["kernel"]) * scale, "how": how, "none": None, "tree": tree, "act": jnp.sin}

    tree = {"x": X, "kernel": np.asarray(KERNEL), "rate": 0.1}
    found, expected = fast(function)(tree, True, how="so"), function(tree, True, how="so")
    assert found["how"] == "so" and found["none"] is None and found["act"] is jnp.sin and found["tree"]["rate"] == 0.1
    same(found["out"], expected["out"])


def test_a_jitted_layer_is_compiled_once() -> None:
    layer = jax.jit(same_size)
    programs = {id(jax.make_jaxpr(fast(layer))(X, KERNEL).eqns[0].params["jaxpr"]) for _ in range(2)}
    assert len(programs) == 1


# --- models as users write them ---------------------------------------------------------------------------------------


def test_losses_and_objectives_of_ones_own_have_them_too() -> None:
    """Their functions go row by row: one product for all rows."""
    kernel, x, y = normal(0, 3, 3, 1, 2), normal(1, 5, 6, 6, 1), normal(2, 5)
    rows = Rows(x, y, jnp.full(5, 0.2))

    def fn(params: Any, x: Any, y: Any) -> Any:
        out = lax.conv_general_dilated(x, params, (1, 1), "SAME", dimension_numbers=NHWC)
        return jnp.mean((jnp.tanh(out).sum(axis=(1, 2, 3)) - y) ** 2)

    def f(w: Any, beta: Any, batch: Any) -> Any:
        return fn(w, batch.x, batch.y)

    loss, objective = tw.losses.custom(fn, init=kernel), tw.objectives.custom(f, w0=kernel, beta0=())
    for value in (lambda k: loss.value(k, rows), lambda k: objective.value(k, (), rows, ())):
        assert is_plain(value, kernel)
        found, expected = (jax.value_and_grad(one)(kernel) for one in (value, lambda k: fn(k, x, y)))
        same(found, expected)
    assert is_plain(lambda k: loss.row_losses(k, x, y), kernel)


def test_flax_linen() -> None:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
            x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3), strides=2, param_dtype=float)(x)), (2, 2), (2, 2))
            x = nn.BatchNorm(use_running_average=not train, param_dtype=float)(x)
            x = nn.Conv(4, (2, 2), feature_group_count=2, padding="VALID", param_dtype=float)(x)
            x = nn.Dropout(0.5, deterministic=not train)(nn.ConvTranspose(3, (2, 2), param_dtype=float)(x))
            return nn.Dense(3, param_dtype=float)(x.reshape(len(x), -1))

    net, x = Net(), normal(1, 2, 14, 14, 1)
    variables = net.init(jax.random.key(0), x, train=False)

    def apply(params: Any, x: jax.Array) -> Any:
        held = variables | {"params": params}
        return net.apply(held, x, train=True, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"])

    agrees(apply, variables["params"], x)


def test_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs, param_dtype=float)
            self.norm = nnx.BatchNorm(4, rngs=rngs, param_dtype=float)
            self.second = nnx.Conv(4, 2, (3, 3), padding="VALID", rngs=rngs, param_dtype=float)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.max_pool(nnx.relu(self.norm(self.first(x))), (2, 2), (2, 2))
            return self.second(x)

    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    rest = jax.tree.map(lambda leaf: leaf.astype(float), rest)  # flax keeps the statistics in float32

    def apply(params: Any, rest: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        net = nnx.merge(graph, params, rest)
        return net(x), nnx.split(net, nnx.Param, ...)[2]

    agrees(apply, params, rest, normal(1, 2, 8, 8, 1))


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 3)
    net = eqx.nn.Sequential([
        eqx.nn.Conv2d(1, 4, 3, key=keys[0], dtype=float),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2),
        eqx.nn.Conv2d(4, 2, 3, padding=1, groups=2, key=keys[1], dtype=float),
        eqx.nn.Lambda(jax.nn.gelu),
        eqx.nn.ConvTranspose2d(2, 1, 2, stride=2, key=keys[2], dtype=float),
    ])  # fmt: skip
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, rest))(x)

    x = normal(1, 2, 1, 9, 9)
    agrees(apply, params, x)
    same(jax.vmap(fast(net))(x), jax.vmap(net)(x))
