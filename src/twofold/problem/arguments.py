"""What may be handed to `Problem`: each argument is read, or refused with what to write instead."""
# What users hand over is looked at, whatever its annotation says; and `jnp.finfo` is untyped.
# pyright: reportUnnecessaryIsInstance=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from inspect import isfunction
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from twofold.clients import ClientError, Clients
from twofold.errors import InputError, KindError

__all__ = ["FeatureDtype", "check_loss", "feature_dtype_of", "no_objective", "rounded", "sampling_of", "scale_of"]

FeatureDtype = Literal["bfloat16"]
"""The narrower types that features can be kept in."""


def no_objective(found: object) -> str:
    """A sentence for something that is no objective."""
    name = getattr(found, "__name__", type(found).__name__)
    if callable(found) and hasattr(found, "__module__") and str(found.__module__).startswith("twofold.objectives"):
        kind = "class" if isinstance(found, type) else "function"
        return f"Problem needs an objective, but got the {kind} {name}: call it, as in {name.lower()}(loss, ...)."
    if hasattr(found, "value") and str(type(found).__module__).startswith("twofold.losses"):
        return "Problem needs an objective, but got a loss: say what is shared, as in tw.objectives.mixture(loss, lam=0.1)."
    if isinstance(found, Clients):
        return "Problem needs an objective first and the clients second: tw.Problem(objective, clients)."
    return f"Problem needs an objective of twofold.objectives, got {name}."


def check_loss(loss: object) -> None:
    """Refuse a loss that was not called."""
    if isinstance(loss, type) or isfunction(loss):
        raise KindError(
            f"The objective's loss is {loss.__name__} itself: call it, as in tw.losses.{loss.__name__}(...), before you hand it over."
        )


def feature_dtype_of(feature_dtype: str | None, rows: str | None) -> FeatureDtype | None:
    """How features are kept; `rows` is the old name of that option."""
    wanted = rows if feature_dtype is None else feature_dtype
    if wanted not in (None, "bfloat16"):
        raise InputError(f"feature_dtype is None or 'bfloat16', got {wanted!r}.")
    return wanted


def rounded(clients: Clients, dtype: np.dtype) -> Clients:
    """The clients with every floating feature the nearest number that `dtype` holds, in at least its old precision."""

    def nearest(leaf: np.ndarray) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        with np.errstate(over="ignore"):  # Clients refuse what is not finite, and say where it is
            found = leaf.astype(dtype).astype(np.promote_types(leaf.dtype, np.float32))
        return leaf if np.array_equal(leaf, found) else found  # pixels and counts need no second copy

    try:
        return clients.map(lambda x, y: (jax.tree.map(nearest, x), y))
    except ClientError as mistake:
        raise InputError(f"The features are too large for feature_dtype={dtype.name!r}: {mistake}.") from None


def scale_of(rescale: bool | float, clients: int) -> float:
    """s: M^(-1/2), 1, or what the user says."""
    if isinstance(rescale, bool):
        return clients**-0.5 if rescale else 1.0
    if not isinstance(rescale, int | float) or not 0 < rescale < float("inf"):
        raise InputError(f"rescale must be True, False or a positive number, got {rescale!r}.")
    limits = jnp.finfo(jnp.result_type(float))
    if not float(limits.tiny) ** 0.5 <= rescale <= float(limits.max) ** 0.5:
        raise InputError(
            f"rescale={rescale:g} is out of range: curvature in w is multiplied with its square, which {limits.dtype} cannot "
            "hold. Leave it at True, which is M^(-1/2)."
        )
    return float(rescale)


def sampling_of(key: jax.Array | None, batch: int | None) -> tuple[jax.Array | None, int | None]:
    """The words of a key and the number of rows, both or neither."""
    if (key is None) != (batch is None):
        raise InputError("A sampled gradient needs both key= and batch=; a full one neither.")
    if key is not None and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return key, batch
