"""A net's first parameters, and what is refused before it trains: a net that cannot be applied, outputs and targets that do not fit."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from twofold.clients import ClientError, Clients
from twofold.errors import InputError, TwofoldError
from twofold.losses.linear import Link
from twofold.losses.modules import Net as Module
from twofold.tree import Pytree

__all__ = ["begin", "check_outputs", "check_own", "check_targets"]

RowShape: TypeAlias = tuple[tuple[int, ...], str]
"""One row's shape and dtype."""


@lru_cache(maxsize=8)
def begin(
    module: Module, seed: int, rows: tuple[RowShape, ...], structure: Hashable
) -> tuple[Pytree, Pytree, tuple[int, ...]]:
    """First parameters and state on the host, and the shape of the outputs of one row."""
    x = jax.tree.unflatten(
        structure, [jnp.zeros((1, *shape), jax.dtypes.canonicalize_dtype(dtype)) for shape, dtype in rows]
    )
    try:
        params, state = module.begin(jax.random.key(seed), x)
        out, _ = jax.eval_shape(lambda p, s: module(p, s, x, None, False), params, state)
        as_in_a_run = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(float)), (params, state)
        )
        jax.eval_shape(lambda p, s, key: module(p, s, x, key, True), *as_in_a_run, jax.random.key(0))
    except TwofoldError:
        raise
    except Exception as mistake:  # whatever a user's net, or its library, has to say
        shapes = ", ".join(str(shape) for shape, _ in rows)
        said = f"{type(mistake).__name__}: {mistake}"
        remedy = next(
            (remedy for sign, remedy in REMEDIES.items() if sign in said), f"{said.rstrip('.')}. {module.sees}"
        )
        raise InputError(f"The net cannot be applied to rows of shape {shapes}: {remedy}") from mistake
    if not hasattr(out, "shape"):
        raise InputError(
            f"The net gives a {type(out).__name__} for a batch, where a loss needs one array of outputs: return the outputs alone, as "
            "in a module around it that takes the first of them."
        )
    return jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, state), tuple(out.shape)


REMEDIES = {
    "ModifyScopeVariableError": "a layer updates its state (BatchNorm its statistics) also when the net is not training: have "
    "its call take `train`, and say use_running_average=not train.",
    "InvalidRngError": "it draws random numbers (make_rng) also when it is not training: have its call take `train`, and draw only "
    "where that is True.",
    "must be passed to the constructor or at call time": "a layer (Dropout, BatchNorm) is not told whether the net is training: have "
    "its call take `train`, and say deterministic=not train or use_running_average=not train.",
    "unbound axis name": 'a layer that looks at the whole batch must know its axis as "batch", as in eqx.nn.BatchNorm(size, '
    'axis_name="batch", mode="batch").',
}
"""What to do about errors of flax and equinox that do not say it, by a part of them."""


def check_outputs(link: Link, out: tuple[int, ...]) -> None:
    """Refuse outputs of a shape that the link has no meaning for."""
    if link.name == "softmax" and len(out) == 1 and out[0] > 1:
        raise InputError(
            f"For a batch of one row this net gives an array of shape {out}, and not (1, {out[0]}): keep the axis of the rows, as in "
            "x.reshape(len(x), -1)."
        )
    if link.name == "softmax" and (len(out) != 2 or out[1] < 2):
        raise InputError(
            f"With the link softmax a net gives one number per class, but for one row this one gives an array of shape {out}: let its "
            'last layer have as many outputs as there are classes, or say link="logistic" (two classes, one output).'
        )
    if link.name in ("logistic", "squared") and not (len(out) == 1 or (len(out) == 2 and out[1] == 1)):
        raise InputError(
            f"With the link {link.name} a net gives one number per row, but for one row this one gives an array of shape {out}."
        )


def check_own(link: Link, out: tuple[int, ...], y: Pytree) -> None:
    """Refuse a function of outputs and targets that does not give one loss for each row."""
    rows = 7  # not as many as there are classes, most likely
    outputs = jax.ShapeDtypeStruct((rows, *out[1:]), jnp.result_type(float))
    targets = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), y)
    try:
        found = jax.eval_shape(link.loss, outputs, targets)
    except (TypeError, ValueError) as mistake:
        raise InputError(f"link= cannot be applied to outputs of shape {outputs.shape}: {mistake}") from mistake
    if getattr(found, "shape", None) != (rows,):
        gave = f"an array of shape {found.shape}" if hasattr(found, "shape") else type(found).__name__
        raise InputError(
            f"link= must give one loss for each row, but for {rows} rows with outputs of shape {outputs.shape} it gives {gave}: do not "
            "take their mean, which twofold does."
        )


def check_targets(clients: Clients, link: Link, out: tuple[int, ...]) -> None:
    """Refuse targets that the link has no meaning for."""
    y = clients.y
    if not isinstance(y, np.ndarray) or y.ndim != 1:
        found, remedy = type(y).__name__, ""
        if isinstance(y, np.ndarray):
            found = f"{' × '.join(map(str, y.shape[1:]))} of them in a row"
            remedy = (
                ": take y[:, 0]"
                if y.shape[1:] == (1,)
                else ": if they are one-hot, take y.argmax(axis=1)"
                if y.ndim == 2
                else ""
            )
        raise InputError(
            f"A net with the link {link.name} needs one target per row, but the clients have {found}{remedy}."
        )
    if link.labels is None:
        return
    classes = 2 if link.name == "logistic" else out[1]
    try:
        clients.check_labels(classes)
    except ClientError as mistake:
        raise ClientError(f"{mistake}. The net has {classes} outputs, one per class.") from None
