"""Convolutions and max-pools as matrix products and maxima, in a model that was written with `lax.conv_general_dilated`.

A convolution is a product: every output pixel is (the patch of x under the kernel) · (the kernel). Written so, it is fast where
XLA's own convolution is slow: inside a loop on a CPU (XLA canonicalises convolutions only outside of loops), and on a GPU when
every client has a kernel of its own (one batched product instead of one convolution with a group for each client).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from twofold import kernels

__all__ = ["fast"]

F = TypeVar("F", bound=Callable[..., Any])


def fast(function: F) -> F:
    """The same function, with its convolutions computed as products of patches and its max-pools as maxima of blocks.

    Values and gradients are those of `lax.conv_general_dilated` and `lax.reduce_window`, up to rounding. The function is
    traced as `jax.jit` would trace it: it must be pure, and arguments that are no arrays (flags, names) are constants.
    Convolutions inside of jit, scan, while, cond and checkpoint are found as well, and so are those of a gradient. A max-pool
    counts if its windows do not overlap and nothing is padded. Other pools, derivatives of your own (`jax.custom_vjp`) and
    all the rest of the function stay as they are.

    Every patch is laid out in memory: a kernel of 5×5 takes 25 times the memory of its input. Many rows go in chunks.

    >>> import jax, jax.numpy as jnp
    >>> def layer(kernel, x):
    ...     return jax.lax.conv(x, kernel, window_strides=(1, 1), padding="SAME")
    >>> kernel, x = jnp.ones((2, 1, 3, 3)), jnp.ones((1, 1, 4, 4))
    >>> fast(layer)(kernel, x)[0, 0].astype(int).tolist()
    [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]
    >>> "conv_general_dilated" in str(jax.make_jaxpr(jax.grad(lambda k: fast(layer)(k, x).sum()))(kernel))
    False
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given, structure = jax.tree.flatten((args, kwargs))
        place = [i for i, leaf in enumerate(given) if _is_array(leaf)]
        made: list[Any] = []

        def of_arrays(arrays: list[Any]) -> list[Any]:
            leaves = list(given)
            for i, array in zip(place, arrays, strict=True):
                leaves[i] = array
            args, kwargs = jax.tree.unflatten(structure, leaves)
            result, form = jax.tree.flatten(function(*args, **kwargs))
            made[:] = result, form
            return [leaf for leaf in result if _is_array(leaf)]

        arrays = [given[i] for i in place]
        traced = jax.make_jaxpr(of_arrays)(arrays)
        quick = _program(traced)
        if quick is traced:
            return function(*args, **kwargs)
        result, form = made
        values = iter(core.jaxpr_as_fun(quick)(*arrays))
        return jax.tree.unflatten(form, [next(values) if _is_array(leaf) else leaf for leaf in result])

    return run  # pyright: ignore[reportReturnType]  (wraps keeps the signature)


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


# --- finding them in a program ----------------------------------------------------------------------------------------

_done: WeakKeyDictionary[core.Jaxpr | core.ClosedJaxpr, Any] = WeakKeyDictionary()
"""What became of each program, None if it stays: JAX compiles a jitted layer again if its program is another object."""


def _program(program: Any) -> Any:
    """The program with its convolutions replaced; the very same object if it has none."""
    if program not in _done:
        _done[program] = _replaced(program)
    found = _done[program]
    return program if found is None else found


def _replaced(program: Any) -> core.Jaxpr | core.ClosedJaxpr | None:
    if isinstance(program, core.ClosedJaxpr) and program.jaxpr is not program:  # from JAX 0.11 on, they are one class
        inner = _program(program.jaxpr)
        return None if inner is program.jaxpr else core.ClosedJaxpr(inner, program.consts)
    lines = [_line(line) for line in program.eqns]
    same = all(new is old for new, old in zip(lines, program.eqns, strict=True))
    return None if same else cast(Any, program).replace(eqns=lines)


def _line(line: core.JaxprEqn) -> core.JaxprEqn:
    rule = RULES.get(line.primitive.name)
    quick = rule(line) if rule else None
    if quick is not None:
        shapes = [_shape(x) for x in line.invars]
        (call,) = jax.make_jaxpr(jax.jit(quick))(*shapes).eqns
        return call.replace(invars=line.invars, outvars=line.outvars, source_info=line.source_info, ctx=line.ctx)
    params = {name: _inside(value) for name, value in line.params.items()}
    same = all(params[name] is value for name, value in line.params.items())
    return line if same else line.replace(params=params)


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _inside(value: Any) -> Any:
    """A parameter of a line: programs in it (a loop's body, the branches of a condition) are gone through."""
    if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
        return _program(value)
    if type(value) is tuple and any(isinstance(each, core.ClosedJaxpr | core.Jaxpr) for each in value):
        inner = tuple(_inside(each) for each in value)
        return value if all(new is old for new, old in zip(inner, value, strict=True)) else inner
    return value


def _convolution_of(line: core.JaxprEqn) -> Callable[..., jax.Array] | None:
    empty = any(math.prod(_shape(x).shape) == 0 for x in (*line.invars, *line.outvars))
    if empty or line.params.get("out_sharding") is not None:
        return None

    def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _convolution(x, kernel, **line.params)

    return convolution


def _pool_of(line: core.JaxprEqn) -> Callable[..., jax.Array] | None:
    if not _is_apart(line):
        return None
    window = line.params["window_dimensions"]

    def max_pool(x: jax.Array) -> jax.Array:
        return _max_pool(x, window)

    return max_pool


def _pool_gradient_of(line: core.JaxprEqn) -> Callable[..., jax.Array] | None:
    if not _is_apart(line) or line.params["select_prim"].name != "ge":
        return None
    window = line.params["window_dimensions"]

    def max_pool_gradient(slope: jax.Array, x: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: _max_pool(x, window), x)[1](slope)[0]

    return max_pool_gradient


def _is_apart(line: core.JaxprEqn) -> bool:
    """Whether the windows of a pool lie side by side and hold nothing but entries of the array."""
    plain = {"base_dilation": 1, "window_dilation": 1, "padding": (0, 0)}
    params = line.params
    inside = all(set(params.get(name, ())) <= {value} for name, value in plain.items())
    apart = tuple(params["window_strides"]) == tuple(params["window_dimensions"])
    return inside and apart and jnp.issubdtype(_shape(line.invars[-1]).dtype, jnp.floating)


RULES = {
    "conv_general_dilated": _convolution_of,
    "reduce_window_max": _pool_of,
    "select_and_scatter_add": _pool_gradient_of,
}

# --- a convolution as a product ---------------------------------------------------------------------------------------


def _convolution(
    x: jax.Array,
    kernel: jax.Array,
    *,
    dimension_numbers: lax.ConvDimensionNumbers,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    **_: Any,
) -> jax.Array:
    """out[n, p, o] = Σ_{t, c} x[n, stride·p + dilation·t, c] kernel[t, c, o], groups each by themselves."""
    rows, channels, *space = dimension_numbers.lhs_spec
    x = lax.transpose(x, (rows, *space, channels))
    outputs, inputs, *taps = dimension_numbers.rhs_spec
    kernel = lax.transpose(kernel, (*taps, inputs, outputs))
    size = kernel.shape[:-2]
    zero = jnp.zeros((), x.dtype)
    inner = ((*ends, gap - 1) for ends, gap in zip(padding, lhs_dilation, strict=True))
    x = lax.pad(x, zero, ((0, 0, 0), *inner, (0, 0, 0)))
    groups = feature_group_count * batch_group_count  # one of the two is 1
    kernel = kernel.reshape(-1, groups, kernel.shape[-1] // groups)
    batched = ((), ())
    if groups == 1:
        kernel = lax.squeeze(kernel, [1])
    else:  # the groups come first
        axis = 0 if batch_group_count > 1 else x.ndim - 1
        x = jnp.moveaxis(x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :]), axis, 0)
        batched = ((0,), (1,))
    patches = _patches(x, size, window_strides, rhs_dilation)
    sides = ((x.ndim - 1,), (0,)), batched
    if groups == 1 and kernels.wants_flat_products():
        flat = patches.reshape(-1, patches.shape[-1])
        out = _product(flat, kernel, precision, preferred_element_type).reshape(*patches.shape[:-1], -1)
    else:
        out = lax.dot_general(patches, kernel, sides, precision, preferred_element_type)
    if groups > 1:
        out = lax.collapse(jnp.moveaxis(out, 0, -2), out.ndim - 2)
    rows, channels, *space = dimension_numbers.out_spec
    order = (rows, *space, channels)
    return lax.transpose(out, [order.index(axis) for axis in range(out.ndim)])


def _patches(x: jax.Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> jax.Array:
    """What lies under the kernel at every place: (…, places, taps · channels) of (…, pixels, channels).

    One axis after the other, the last one first: 5 + 5 copies instead of 25, and as many sums in the gradient.
    """
    first = x.ndim - 1 - len(size)
    for axis in reversed(range(len(size))):
        taps, stride, gap = size[axis], strides[axis], dilation[axis]
        places = (x.shape[first + axis] - gap * (taps - 1) - 1) // stride + 1
        reach = stride * (places - 1) + 1
        cut = [lax.slice_in_dim(x, gap * t, gap * t + reach, stride, first + axis) for t in range(taps)]
        x = lax.concatenate(cut, x.ndim - 1) if taps > 1 else cut[0]
    return x


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _product(patches: jax.Array, kernel: jax.Array, precision: Any, dtype: Any) -> jax.Array:
    """patches · kernel, for CPUs.

    The kernel's gradient is patchesᵀ · slope. XLA's quick product wants both factors row by row and takes a slow one
    otherwise: so the patches are transposed first, in memory.
    """
    return lax.dot_general(patches, kernel, (((1,), (0,)), ((), ())), precision, dtype)


@partial(_product.defjvp, symbolic_zeros=True)
def _(precision: Any, dtype: Any, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (patches, kernel), (of_patches, of_kernel) = primals, tangents
    out = _product(patches, kernel, precision, dtype)
    slope = jnp.zeros_like(out)
    if not isinstance(of_patches, SymbolicZero):
        slope += _product(of_patches, kernel, precision, dtype)
    if not isinstance(of_kernel, SymbolicZero):
        transposed = lax.optimization_barrier(patches.T)
        slope += lax.dot_general(transposed, of_kernel, (((0,), (0,)), ((), ())), precision, dtype)
    return out, slope


# --- a max-pool as a maximum ------------------------------------------------------------------------------------------


def _max_pool(x: jax.Array, window: Sequence[int]) -> jax.Array:
    """The maximum of every block; what is left over at the end of an axis belongs to no block."""
    x = lax.slice(x, [0] * x.ndim, [n // k * k for n, k in zip(x.shape, window, strict=True)])
    shape: list[int] = []
    blocks: list[int] = []
    for n, k in zip(x.shape, window, strict=True):
        shape.append(n // k)
        if k > 1:
            blocks.append(len(shape))
            shape.append(k)
    return _maximum(x.reshape(shape), tuple(blocks))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _maximum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The maximum over some axes. Its derivative is that of the first entry that attains it, as in XLA's select-and-scatter."""
    return lax.reduce_max(x, axes)


@_maximum.defjvp
def _(axes: tuple[int, ...], primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (slope,) = primals, tangents
    top = _maximum(x, axes)
    number, place = math.prod(x.shape[axis] for axis in axes), jnp.zeros([1] * x.ndim, jnp.int32)
    for axis in axes:
        local = lax.broadcasted_iota(jnp.int32, [n if i == axis else 1 for i, n in enumerate(x.shape)], axis)
        place = place * x.shape[axis] + local
    wide = jnp.expand_dims(top, axes)
    first = lax.reduce_min(jnp.where(x == wide, place, number - 1), axes)
    chosen = place == jnp.expand_dims(first, axes)
    return top, jnp.sum(jnp.where(chosen, slope, jnp.zeros((), slope.dtype)), axes)
