"""Importance sampling: rows drawn in proportion to their smoothness, from alias tables, with 32-bit words.

Client m's row j is drawn with probability π_j ∝ V_j, the data part of the row's smoothness (κ‖x_j‖² for a linear loss), and
its gradient has weight 1/(n b π_j) in a batch of b. Then E‖ĝ − ∇f‖² is bounded by the mean of the V_j instead of their
maximum (`theory.tight.variance`). The weights apply to the data part alone: a ridge or a penalty is the same for every row,
and must be added once, with weight one.
"""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import randomness
from twofold.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt32

__all__ = ["FLOOR", "AliasTable", "alias_rows", "alias_table", "importance", "row_noise", "row_weights"]

FLOOR = 1e-6
"""Every row with V_j > 0 is drawn as if V_j were at least this fraction of the mean, so that weights stay finite in float32."""


class AliasTable(NamedTuple):
    """For each bucket, the probability of its own row in units of 2⁻³², and the row that it gives otherwise."""

    probability: UInt32[NDArray[np.uint32], "*clients rows"]
    alias: Int[NDArray[np.int32], "*clients rows"]


def _real(shape: tuple[int, ...], count: ArrayLike) -> Bool[NDArray[np.bool_], "*clients rows"]:
    """A mask of a padded stack: True for real rows, False for padding."""
    rows = np.asarray(count)
    if rows.shape != shape[:-1] or np.any(rows < 1) or np.any(rows > shape[-1]):
        raise InputError(f"There must be one count between 1 and {shape[-1]} per client, got {count}.")
    return np.arange(shape[-1]) < rows[..., None]


def importance(smoothness: ArrayLike, count: ArrayLike | None = None) -> Float[NDArray[np.float64], "*clients rows"]:
    """The probabilities π_j ∝ V_j of each client's rows, for one client or, with a leading axis, for a padded stack.

    A row with V_j = 0 has no data gradient and is never drawn: π_j = 0. Every other V_j is raised to at least `FLOOR` times the
    mean, which increases the mean, and so the noise, by at most that fraction. If all V_j are 0, rows are drawn uniformly.

    >>> importance([1.0, 3.0, 0.0]).tolist()
    [0.25, 0.75, 0.0]
    """
    values = np.asarray(smoothness, np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise InputError(f"There must be one smoothness per row, got shape {values.shape}.")
    if not np.all(np.isfinite(values) & (values >= 0)):
        bad = np.argwhere(~(np.isfinite(values) & (values >= 0)))[0]
        raise InputError(
            f"A row's smoothness must be a finite number ≥ 0, got {values[tuple(bad)]} at {tuple(bad.tolist())}."
        )
    real = _real(values.shape, np.full(values.shape[:-1], values.shape[-1]) if count is None else count)
    values = np.where(real, values, 0.0)
    peak = np.max(values, axis=-1, keepdims=True)
    # No overflow in sums; uniform if all are 0.
    values = np.where(peak > 0, values / np.where(peak > 0, peak, 1.0), real)
    rows = np.sum(real, axis=-1, keepdims=True)
    values = np.where(values > 0, np.maximum(values, FLOOR * np.sum(values, axis=-1, keepdims=True) / rows), 0.0)
    return values / np.sum(values, axis=-1, keepdims=True)


def alias_table(probabilities: ArrayLike, count: ArrayLike | None = None) -> AliasTable:
    """The alias table of each client's probabilities, for one client or a padded stack, with no loop over rows or clients.

    In Walker's table, bucket k of n gives row k with probability t_k, and its alias otherwise. Scale the probabilities to have
    mean one, and call rows below one light and the others heavy. Vose's method, in a fixed order, builds the table as follows.
    While heavy row j has more than its own bucket needs, it fills the next light bucket. When it has no more than that, its
    bucket is closed, and heavy row j + 1 fills what is missing. Let D_i be the total deficit of the first i light rows and E_j
    the total excess of the first j heavy rows. Then light row i is filled by the first j with E_j > D_{i−1}, and heavy row j
    keeps t = 1 + E_j − D_i for the first i with D_i ≥ E_j. One sort finds both.

    >>> table = alias_table([0.25, 0.75, 0.0])
    >>> (table.probability / 2**32).round(3).tolist(), table.alias.tolist()
    ([0.75, 1.0, 0.0], [1, 1, 1])
    """
    pi = np.asarray(probabilities, np.float64)
    if pi.ndim == 1:
        one = alias_table(pi[None], None if count is None else np.asarray(count)[None])
        return AliasTable(one.probability[0], one.alias[0])
    capacity = pi.shape[-1]
    real = _real(pi.shape, np.full(pi.shape[:-1], capacity) if count is None else count)
    if not (np.all(pi >= 0) and np.allclose(np.sum(np.where(real, pi, 0), axis=-1), 1, atol=1e-9)):
        raise InputError("Each client's probabilities must be numbers ≥ 0 that sum to one.")
    mass = np.where(real, pi * np.sum(real, axis=-1, keepdims=True), 0.0)
    # The largest always counts as heavy, because rounding may leave every row below one.
    heavy = real & (mass >= np.minimum(1.0, np.max(mass, axis=-1, keepdims=True)))
    light = real & ~heavy
    excess = np.cumsum(np.where(heavy, mass - 1, 0.0), axis=-1)
    deficit = np.cumsum(np.where(light, 1 - mass, 0.0), axis=-1)
    before = deficit - np.where(light, 1 - mass, 0.0)
    # One stable sort per client. Light row i is placed at D_{i−1} and heavy row j at E_j.
    place = np.where(heavy, excess, np.where(light, before, np.inf))
    order = np.lexsort((light, place), axis=-1)  # at equal places the heavy row is closed first
    sorted_heavy = np.take_along_axis(heavy, order, -1)
    closed = np.cumsum(sorted_heavy, axis=-1)  # heavy rows closed so far
    heavies = np.argsort(~heavy, axis=-1, kind="stable")  # heavy rows first, in their order
    last = np.sum(heavy, axis=-1, keepdims=True) - 1
    alias_sorted = np.take_along_axis(heavies, np.minimum(closed, last), -1)
    # The total that the light rows have taken by the time a heavy row is closed.
    taken_sorted = np.maximum.accumulate(
        np.where(np.take_along_axis(light, order, -1), np.take_along_axis(deficit, order, -1), 0.0), axis=-1
    )
    kept_sorted = 1 + np.take_along_axis(excess, order, -1) - taken_sorted
    alias, kept = np.empty(pi.shape, np.int64), np.empty(pi.shape)
    np.put_along_axis(alias, order, alias_sorted, -1)
    np.put_along_axis(kept, order, kept_sorted, -1)
    own = np.arange(capacity, dtype=np.int64)
    kept = np.clip(np.where(heavy, kept, mass), 0.0, 1.0)
    final = heavy & (np.cumsum(heavy, axis=-1) == last + 1)  # the last heavy row keeps what rounding leaves over
    whole = ~real | final | (kept >= 1)
    threshold = np.where(whole, 2.0**32 - 1, np.minimum(np.rint(kept * 2.0**32), 2.0**32 - 1))
    return AliasTable(threshold.astype(np.uint32), np.where(whole, own, alias).astype(np.int32))


def row_weights(
    probabilities: ArrayLike, count: ArrayLike | None = None
) -> Float[NDArray[np.float64], "*clients rows"]:
    """1/(n π_j), the weight of row j's data part (divided by b in a batch of b); 0 for a row that is never drawn.

    >>> row_weights([0.25, 0.75, 0.0]).round(3).tolist()
    [1.333, 0.444, 0.0]
    """
    pi = np.asarray(probabilities, np.float64)
    n = pi.shape[-1] if count is None else np.asarray(count)[..., None]
    with np.errstate(divide="ignore"):
        return np.where(pi > 0, 1 / (n * np.where(pi > 0, pi, 1.0)), 0.0)


def row_noise(
    smoothness: ArrayLike, probabilities: ArrayLike, count: ArrayLike | None = None
) -> Float[NDArray[np.float64], "*clients"]:
    """V_m = max_j V_j/(n π_j), the noise of a client whose rows are drawn with arbitrary probabilities π.

    It is the largest V_j for uniform π, and the mean of the V_j for π ∝ V. It also holds for `importance` with its floor, and
    for weight sharing, where both blocks share one table though their V_j are not proportional. A row that is never drawn must
    have V_j = 0.

    >>> (
    ...     float(row_noise([1.0, 3.0, 2.0], [1 / 3, 1 / 3, 1 / 3])),
    ...     float(row_noise([1.0, 3.0, 2.0], importance([1.0, 3.0, 2.0]))),
    ... )
    (3.0, 2.0)
    """
    values, weights = np.asarray(smoothness, np.float64), row_weights(probabilities, count)
    real = _real(values.shape, np.full(values.shape[:-1], values.shape[-1]) if count is None else count)
    if np.any(real & (values > 0) & (weights == 0)):
        raise InputError(
            "A row with a data gradient is never drawn: give every row with V_j > 0 a probability π_j > 0."
        )
    return np.max(np.where(real, values * weights, 0.0), axis=-1)


def alias_rows(
    words: UInt32[jax.Array, " words"],
    probability: ArrayLike | UInt32[jax.Array, " rows"],
    alias: ArrayLike | Int[jax.Array, " rows"],
    count: int | Int[jax.Array, ""],
    size: int,
) -> Int[jax.Array, " size"]:
    """Draw `size` rows of a client from its alias table and 2·`size` random words, identically in float32 and float64.

    Word 2i picks one of `count` buckets, and word 2i + 1 picks the bucket's own row or its alias. So the i-th row depends
    neither on `size` nor on padding. Probabilities are accurate to 2⁻³².

    >>> table = alias_table([0.25, 0.75, 0.0])
    >>> words = jnp.array([0, 0, 0, 2**32 - 1, 2**32 - 1, 5], jnp.uint32)
    >>> alias_rows(words, *table, 3, 3).tolist()
    [0, 1, 1]
    """
    bucket = randomness.high(words[0 : 2 * size : 2], jnp.asarray(count).astype(jnp.uint32)).astype(jnp.int32)
    own = words[1 : 2 * size : 2] < jnp.asarray(probability)[bucket]
    return jnp.where(own, bucket, jnp.asarray(alias)[bucket].astype(jnp.int32))
