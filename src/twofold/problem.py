"""A problem is an objective, the clients, and the scaling of w: values, gradients, constants, reference optimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree

from twofold import control, machine, randomness, tree
from twofold.clients import ClientError, Clients
from twofold.curvature import real_weight
from twofold.errors import InputError, KindError
from twofold.losses import Rows
from twofold.objectives.base import Objective
from twofold.objectives.two_stage import TwoStage
from twofold.randomness import Key
from twofold.theory.constants import Constants
from twofold.tree import Pytree, record, static


class Member(NamedTuple):
    """One client's data as the engines hold it, or, with a leading axis, that of many clients."""

    x: Pytree
    y: Pytree
    count: Any
    weight: Any
    position: Any
    own: Pytree
    share: Any  # in means over clients: its weight, or zero for a repeat that only fills up a shard

    @property
    def capacity(self) -> int:
        """The number of one client's rows, padding included."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def rows(self, sample: Sample | None = None) -> Rows:
        """One client's rows, or a sample of them, as losses see them: in the run's precision, however they are kept.

        This is the one place where features that are kept in fewer bits are widened: after a sample is taken, so that only
        its rows are, and where XLA can make that a part of whatever reads them.
        """
        if sample is None:
            return Rows(tree.cast(self.x), self.y, real_weight(self.capacity, self.count))
        x, y = jax.tree.map(lambda leaf: _take(leaf, sample), (self.x, self.y))
        return Rows(tree.cast(x), y, sample.weight)


@record
class Sample:
    """Some of a client's rows, with their weights in the mean."""

    index: jax.Array
    weight: jax.Array
    loops: int | None = static(default=None)  # in how many loops it was taken, where that is known


@record
class Slice(Sample):
    """A batch of a reshuffling: its row numbers are in memory, where a draw's are hashed again wherever they are used."""


LONG, LINE = 1024, 64
"""Bytes of a row from which on one client's sample is copied as `_long_rows` does, and of a line of a CPU's cache."""


def _take(table: jax.Array, sample: Sample) -> jax.Array:
    """The sample's rows of a table."""
    index, row = sample.index, math.prod(table.shape[1:]) * table.dtype.itemsize
    long = row >= LONG and len(index) > 1 and control.is_traced(index) and machine.on_cpu()
    return _long_rows(isinstance(sample, Slice))(table, index) if long else table[index]


@cache
def _long_rows(look: bool) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """table[index], written as updates in place, maybe with one number of every cache line looked up first.

    XLA shares a gather out among all cores, which have clients of their own to work on; an update in place it does not. And a
    core that copies row after row mostly waits for memory: it soon has as many stores pending as it can. Looking at one
    number of each line, it asks for all of them faster. These numbers are written where the rows themselves come next,
    so that XLA cannot leave them out.
    """

    @custom_vmap
    def rows(table: jax.Array, index: jax.Array) -> jax.Array:
        flat, put = table.reshape(len(table), -1), jax.lax.dynamic_update_slice
        first, rest = jax.lax.dynamic_slice_in_dim(flat, index[0], 1), index[1:]
        found = put(jnp.zeros((len(index), flat.shape[1]), flat.dtype), first, (0, 0))
        if look:  # at the first line of all rows, then at the second of all, …, which is faster than row by row
            lines = jnp.arange(0, flat.shape[1], LINE // flat.dtype.itemsize)
            seen = flat.at[rest[None, :], lines[:, None]].get(mode="promise_in_bounds")
            found = put(found, seen.reshape(len(rest), len(lines)), (1, 0))
        found = put(found, flat.at[rest].get(mode="promise_in_bounds"), (1, 0))
        return found.reshape(len(index), *table.shape[1:])

    @rows.def_vmap
    def _(axis_size: int, batched: Any, table: jax.Array, index: jax.Array) -> tuple[jax.Array, bool]:
        # Many clients' samples are one large gather, of which all cores do well to take a share.
        axes = tuple(0 if each else None for each in batched)
        return jax.vmap(lambda table, index: table[index], in_axes=axes, axis_size=axis_size)(table, index), True

    return rows


class Oracle:
    """One client's gradients, in the scaled space, on a sample or (sample None) on all of its rows.

    `gradient_w` is ∇_w f_m(s·w, β_m), whose mean over clients is the w-block of ∇F. `gradient_beta` is p_m ∇_β f_m, the
    β_m-block of ∇F itself (p_m = 1/M by default): algorithms never write that 1/M, so they cannot drop it.
    """

    def __init__(self, objective: Objective, scale: Any, member: Member) -> None:
        self._objective, self._scale, self._member = objective, scale, member
        self.count, self.weight = member.count, member.weight
        self.scale = scale
        self.capacity = member.capacity

    def sample(self, key: Key, size: int | None) -> Sample | None:
        """`size` rows drawn uniformly with replacement; None for all rows."""
        if size is None:
            return None
        return Sample(randomness.rows(key, self.count, size), jnp.full((size,), 1.0 / size), control.loops())

    def order(self, key: Key) -> jax.Array:
        """A reshuffling of this client's own rows (padding, if any, comes last)."""
        return randomness.shuffle(key, self.count, self.capacity)

    def slice(self, order: jax.Array, start: Any, size: int) -> Slice:
        """The rows at start … start+size−1 of a reshuffling; the last, shorter batch has only its own rows."""
        place = start + jnp.arange(size)
        real = place < self.count
        weight = real.astype(jnp.result_type(float)) / jnp.maximum(jnp.sum(real), 1)
        return Slice(order[jnp.minimum(place, self.count - 1)], weight)

    def value(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> jax.Array:
        """f_m(s·w, β_m)."""
        with control.reused(None if sample is None else sample.loops):
            return self._objective.value(tree.scale(self._scale, w), beta, self._member.rows(sample), self._member.own)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """∇_w f_m(s·w, β_m)."""
        return jax.grad(self.value, argnums=0)(w, beta, sample)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_m(s·w, β_m)."""
        return tree.scale(self.weight, jax.grad(self.value, argnums=1)(w, beta, sample))

    def gradients(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[Pytree, Pytree]:
        """Both at once, for the price of one pass."""
        of_w, of_beta = jax.grad(self.value, argnums=(0, 1))(w, beta, sample)
        return of_w, tree.scale(self.weight, of_beta)

    def value_and_gradient_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[jax.Array, Pytree]:
        """f_m and ∇_w f_m, for the price of the gradient."""
        return jax.value_and_grad(self.value, argnums=0)(w, beta, sample)

    def value_and_gradient_beta(
        self, w: Pytree, beta: Pytree, sample: Sample | None = None
    ) -> tuple[jax.Array, Pytree]:
        """f_m and p_m ∇_β f_m, for the price of the gradient."""
        value, of_beta = jax.value_and_grad(self.value, argnums=1)(w, beta, sample)
        return value, tree.scale(self.weight, of_beta)

    def hessian_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> jax.Array:
        """p_m ∇²_ββ f_m, a matrix over the entries of β in the order of `ravel_pytree`: one product a column."""
        flat, unravel = ravel_pytree(beta)
        return jax.jacfwd(lambda v: ravel_pytree(self.gradient_beta(w, unravel(v), sample))[0])(flat)

    def hessian_beta_times(self, w: Pytree, beta: Pytree, v: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇²_ββ f_m v for a direction v shaped like β."""
        return jax.jvp(lambda at: self.gradient_beta(w, at, sample), (beta,), (v,))[1]

    def hessian_w(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> tuple[jax.Array, jax.Array]:
        """∇²_ww f_m and p_m ∇²_βw f_m: how `gradients` change with w, matrices with one column for each entry of w."""
        flat, unravel = ravel_pytree(w)

        def gradients(v: jax.Array) -> tuple[jax.Array, jax.Array]:
            of_w, of_beta = self.gradients(unravel(v), beta, sample)
            return ravel_pytree(of_w)[0], ravel_pytree(of_beta)[0]

        return jax.jacfwd(gradients)(flat)

    def row_gradients_beta(self, w: Pytree, beta: Pytree, sample: Sample | None = None) -> Pytree:
        """p_m ∇_β f_{m,j} for each row j of the sample, or of all rows (padding included, for whoever masks it)."""
        index = jnp.arange(self.capacity) if sample is None else sample.index
        alone = jnp.ones((1,))
        return jax.vmap(lambda j: self.gradient_beta(w, beta, Sample(j[None], alone)))(index)


def _now(put: Callable[[Pytree], Pytree], x: Pytree) -> Pytree:
    """x on the device, also when first asked for inside somebody's jit: what is kept must not belong to a trace."""
    with jax.ensure_compile_time_eval():
        return put(x)


def _in(dtype: np.dtype, x: Pytree) -> Pytree:
    """x as NumPy arrays, with floating numbers in the given precision."""

    def one(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return array.astype(dtype, copy=False) if np.issubdtype(array.dtype, np.floating) else array

    return jax.tree.map(one, x)


def _rounded(clients: Clients, dtype: np.dtype) -> Clients:
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
        raise InputError(f"The features are too large for rows={dtype.name!r}: {mistake}.") from None


class Optimum(NamedTuple):
    """The minimiser of F in real (unscaled) parameters, its value, and ‖∇F‖ there (in the scaled space)."""

    w: Pytree
    beta: Pytree
    value: float
    gradient_norm: float


class Problem:
    """min F(w, β) = Σ_m p_m f_m(w, β_m), with p_m = 1/M unless the clients have weights of their own.

    Algorithms work on w/s with s = M^(-1/2) (`rescale=True`), or with s = 1 (False), or with the s that `rescale` is;
    everything that this class takes and gives is in real, unscaled w. Without a private part (traditional FL) there is
    nothing to balance and s = 1.
    `buckets` groups clients by size so that padding stays cheap; None decides by itself.

    `rows="bfloat16"` keeps floating features in two bytes each, for an accelerator whose memory is what limits it. (Nothing is
    gained on a CPU, where XLA widens them in memory before it reads them.) Targets, parameters and all arithmetic are in the
    run's precision, and losses see features in it. Such features have 8 significant bits: whole numbers up to 256 (raw
    pixels, counts, 0 and 1) are exact, and others are rounded by up to 1/256 of themselves. What is solved is then the
    problem of the rounded features, which this problem's `clients` have: constants, step sizes, gaps and the optimum are all
    its own. Rows held out are graded as they are.
    """

    def __init__(
        self,
        objective: Objective,
        clients: Clients,
        *,
        rescale: bool | float = True,
        buckets: Any = None,
        rows: Literal["bfloat16"] | None = None,
    ) -> None:
        if not isinstance(objective, Objective):
            raise KindError(f"Problem needs an objective of twofold.objectives, got {type(objective).__name__}.")
        if not isinstance(clients, Clients):
            raise KindError(f"Problem needs Clients (see Clients.from_list), got {type(clients).__name__}.")
        if rows not in (None, "bfloat16"):
            raise InputError(f"rows is None or 'bfloat16', got {rows!r}.")
        self.rows: Literal["bfloat16"] | None = rows
        self._kept = None if rows is None else np.dtype(jnp.bfloat16)  # of features; None: as all numbers
        if self._kept is not None:
            clients = _rounded(clients, self._kept)
        self.objective = objective.bind(clients)
        self.clients = clients
        self.rescale = rescale
        self.M = len(clients)
        w, beta = self.objective.init(clients)
        self.has_shared, self.has_private = tree.size(w) > 0, tree.size(beta) > 0
        if not isinstance(rescale, bool) and not (isinstance(rescale, int | float) and 0 < rescale < float("inf")):
            raise InputError(f"rescale must be True, False or a positive number, got {rescale!r}.")
        scale = rescale if not isinstance(rescale, bool) else self.M**-0.5 if rescale else 1.0
        self.scale = float(scale) if self.has_shared and self.has_private else 1.0
        self._start = (w, beta)
        self.positions = tuple(np.asarray(b) for b in (clients.buckets() if buckets is None else buckets))
        if np.sort(np.concatenate(self.positions)).tolist() != list(range(self.M)):
            raise InputError(f"buckets must hold each of the {self.M} client positions exactly once.")

    @property
    def traced_scale(self) -> jax.Array | None:
        """The scale for a compiled program; None where there is none, which saves a pass over w in every step."""
        return None if self.scale == 1 else jnp.asarray(self.scale, jnp.result_type(float))

    def __repr__(self) -> str:
        kept = "" if self.rows is None else f", rows={self.rows!r}"
        solved = f"{self.objective.name}: {self.objective.equation}"
        return f"Problem({solved}, {self.clients!r}, scale={self.scale:.4g}{kept})"

    # --- data ---------------------------------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> tuple[Member, ...]:
        """The clients' data on the device, one stack per bucket."""
        return _now(tree.arrays, self.host_stacks)

    @cached_property
    def host_stacks(self) -> tuple[Member, ...]:
        """The same on the host, in the precision that the device will have."""
        return self.stacks_as(np.dtype(jnp.result_type(float)))

    def stacks_as(self, dtype: np.dtype) -> tuple[Member, ...]:
        """The padded stacks as NumPy arrays, with floating numbers in the given precision, features as they are kept."""
        return tuple(self.stack(positions, dtype) for positions in self.positions)

    def stack(self, positions: np.ndarray, dtype: np.dtype, rows: int | None = None) -> Member:
        """Some clients' data, padded to `rows` (default: the largest of them) on the host."""
        stack = self.clients.stack(positions, rows)
        mine = jax.tree.map(lambda leaf: np.asarray(leaf)[positions], self._own)
        return self._as_kept(
            Member(stack.x, stack.y, stack.count, stack.weight, stack.position, mine, stack.weight), dtype
        )

    def _as_kept(self, member: Member, dtype: np.dtype) -> Member:
        return Member(_in(self._kept or dtype, member.x), *_in(dtype, tuple(member)[1:]))

    @cached_property
    def _own(self) -> Pytree:
        return self.objective.own(self.clients)

    @cached_property
    def abstract_member(self) -> Member:
        """The shapes of one client's data, as large as the largest of the first bucket."""
        positions, dtype = self.positions[0], np.dtype(jnp.result_type(float))
        one = _now(tree.arrays, self.stack(positions[:1], dtype, rows=int(self.clients.counts[positions].max())))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), one)

    @cached_property
    def abstract_start(self) -> tuple[Pytree, Pytree]:
        """The shapes of w and of one client's β."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _now(tree.cast, self._start))

    def member(self, m: int) -> Member:
        """Client m's data alone, unpadded."""
        client = self.clients[m]
        own = jax.tree.map(lambda leaf: np.asarray(leaf)[m], self.objective.own(self.clients))
        count, weight = np.int32(self.clients.counts[m]), np.float64(client.weight)
        alone = Member(client.x, client.y, count, weight, np.int32(m), own, weight)
        return tree.arrays(self._as_kept(alone, np.dtype(jnp.result_type(float))))

    def split(self, beta: Pytree) -> tuple[Pytree, ...]:
        """Everyone's β (leading client axis) cut into the buckets."""
        if self._trivial:
            return (beta,)
        return tuple(jax.tree.map(lambda leaf, p=positions: leaf[p], beta) for positions in self.positions)

    def join(self, parts: tuple[Pytree, ...]) -> Pytree:
        """The inverse of `split`."""
        if self._trivial:
            return parts[0]
        order = np.argsort(np.concatenate(self.positions))
        on_host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(parts))
        concatenate = np.concatenate if on_host else jnp.concatenate
        return jax.tree.map(lambda *leaves: concatenate(leaves)[order], *parts)

    @cached_property
    def _trivial(self) -> bool:
        return len(self.positions) == 1 and np.array_equal(self.positions[0], np.arange(self.M))

    @cached_property
    def start(self) -> tuple[Pytree, Pytree]:
        """The starting point, real w and everyone's β."""
        return _now(tree.cast, self.host_start)

    @cached_property
    def host_start(self) -> tuple[Pytree, Pytree]:
        """The same on the host, where everyone's β is one and the same piece of memory."""
        w, beta = jax.tree.map(np.asarray, _now(tree.cast, self._start))
        return w, jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.M, *leaf.shape)), beta)

    # --- values and gradients -----------------------------------------------------------------------------------------

    def value(self, w: Pytree, beta: Pytree) -> jax.Array:
        """F(w, β) at real parameters; β has a leading client axis."""
        return _value(self.objective, self.stacks, *self._real(w, beta))

    def values(self, w: Pytree, beta: Pytree) -> jax.Array:
        """f_m(w, β_m) of every client."""
        parts = _client_values(self.objective, self.stacks, *self._real(w, beta))
        return self.join(parts)

    def gradient(self, w: Pytree, beta: Pytree, *, key: Any = None, batch: int | None = None) -> tuple[Pytree, Pytree]:
        """(∇_w F, ∇_β F) at real parameters, full or, with a key (`jax.random.key(seed)`), on `batch` sampled rows each."""
        return self.gradient_w(w, beta, key=key, batch=batch), self.gradient_beta(w, beta, key=key, batch=batch)

    def gradient_w(self, w: Pytree, beta: Pytree, *, key: Any = None, batch: int | None = None) -> Pytree:
        """∇_w F = Σ p_m ∇_w f_m; where the objective decouples the blocks this touches no β-gradient."""
        w, parts = self._real(w, beta)
        return _gradient_w(self.objective, self.stacks, w, parts, *self._sampling(key, batch))

    def gradient_beta(self, w: Pytree, beta: Pytree, *, key: Any = None, batch: int | None = None) -> Pytree:
        """∇_β F, whose block m is p_m ∇_β f_m, with a leading client axis."""
        w, parts = self._real(w, beta)
        return self.join(_gradient_beta(self.objective, self.stacks, w, parts, *self._sampling(key, batch)))

    def gradient_norm_squared(self, w: Pytree, beta: Pytree) -> jax.Array:
        """‖∇F‖² in the scaled space: what the gap certificate ‖∇F‖²/(2μ) needs."""
        of_w, of_beta = self.gradient(w, beta)
        return self.scale**2 * tree.squared_norm(of_w) + tree.squared_norm(of_beta)

    def _sampling(self, key: Any, batch: int | None) -> tuple[Any, int | None]:
        if (key is None) != (batch is None):
            raise InputError("A sampled gradient needs both key= and batch=; a full one neither.")
        if key is not None and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        return key, batch

    def _real(self, w: Pytree, beta: Pytree) -> tuple[Pytree, tuple[Pytree, ...]]:
        self.check(w, beta)
        return tree.cast(w), self.split(tree.cast(beta))

    def check(self, w: Pytree, beta: Pytree) -> None:
        """Refuse parameters of another shape than this problem's."""
        expected = jax.tree.map(jnp.shape, self.host_start)
        found = jax.tree.map(jnp.shape, (w, beta))
        if found != expected:
            raise InputError(f"(w, beta) must have shapes {expected}, got {found}.")

    # --- theory -------------------------------------------------------------------------------------------------------

    def constants(self, at: tuple[Pytree, Pytree] | None = None, **given: float) -> Constants:
        """μ, L^w, L^β, 𝓛^w, 𝓛^β of F in the scaled space, each with how it was obtained.

        "certified" follows from the data and the objective's lemma; "local" is the curvature at a point: pass
        `at=(w, beta)`, or have an objective without formula, for which the smoothness is taken at the start; "given"
        is what you pass by name (`constants(mu=1e-3)`). Strong convexity is never guessed: without formula it is 0
        unless you give it or ask for a point.
        """
        if at is not None:
            found = _local(self, at)
        else:
            found = self._certified
            if found is None:
                found = _local(self, self.start, smallest=False)
        return found.replace(**given) if given else found

    @cached_property
    def _certified(self) -> Constants | None:
        return self.objective.constants(self.clients, self.scale)

    def optimum(self) -> Optimum:
        """The minimiser to machine precision (convex problems), by a method that shares no code with the algorithms."""
        return self._optimum

    @cached_property
    def _optimum(self) -> Optimum:
        from twofold.reference import minimise  # SciPy only when asked

        if not isinstance(self.objective, TwoStage):
            return minimise(self)
        first = Problem(self.objective.first(), self.clients).optimum()
        second = Problem(self.objective.second(first.w), self.clients).optimum()
        return Optimum(first.w, second.beta, second.value, second.gradient_norm)


# --- compiled once for all problems of one shape -----------------------------------------------------------------------


def _per_client(function: Any, stacks: tuple[Member, ...], parts: tuple[Pytree, ...], *shared: Any) -> list[Pytree]:
    """function(member, β_m, *shared) for every client, bucket by bucket."""
    axes = (0, 0) + (None,) * len(shared)
    return [jax.vmap(function, in_axes=axes)(stack, part, *shared) for stack, part in zip(stacks, parts, strict=True)]


def weighted_mean(stacks: tuple[Member, ...], values: list[Pytree] | tuple[Pytree, ...]) -> Pytree:
    """Σ_m p_m v_m, in client order: the one mean over clients that every engine takes."""

    def total(share: jax.Array, leaf: jax.Array) -> jax.Array:
        # A product and a sum, not a dot: under vmap over seeds a dot would first have to transpose.
        return jnp.sum(share.reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf, axis=0)

    totals = [
        jax.tree.map(lambda leaf, share=stack.share: total(share, leaf), value)
        for stack, value in zip(stacks, values, strict=True)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *totals)


def client_values(objective: Objective, stacks: Any, w: Pytree, parts: tuple[Pytree, ...]) -> list[jax.Array]:
    """f_m(w, β_m) at real parameters, bucket by bucket."""
    return _per_client(lambda member, beta, w: Oracle(objective, 1.0, member).value(w, beta), stacks, parts, w)


def full_value(objective: Objective, stacks: Any, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """F(w, β) at real parameters."""
    return weighted_mean(stacks, client_values(objective, stacks, w, parts))


_client_values = jax.jit(lambda *a: tuple(client_values(*a)))
_value = jax.jit(full_value)


def gradient_w(objective: Objective, stacks: Any, w: Pytree, parts: Any, key: Any, batch: int | None) -> Pytree:
    """∇_w F at real parameters."""

    def one(member: Member, beta: Pytree, w: Pytree) -> Pytree:
        oracle = Oracle(objective, 1.0, member)
        return oracle.gradient_w(w, beta, _sample(oracle, member, key, batch))

    return weighted_mean(stacks, _per_client(one, stacks, parts, w))


def gradient_beta(objective: Objective, stacks: Any, w: Pytree, parts: Any, key: Any, batch: int | None) -> Any:
    """∇_β F at real parameters, bucket by bucket."""

    def one(member: Member, beta: Pytree, w: Pytree) -> Pytree:
        oracle = Oracle(objective, 1.0, member)
        return oracle.gradient_beta(w, beta, _sample(oracle, member, key, batch))

    return tuple(_per_client(one, stacks, parts, w))


_gradient_w = partial(jax.jit, static_argnums=5)(gradient_w)
_gradient_beta = partial(jax.jit, static_argnums=5)(gradient_beta)


def _sample(oracle: Oracle, member: Member, key: Any, batch: int | None) -> Sample | None:
    return None if batch is None else oracle.sample(randomness.of(randomness.private(key, member.position), 0), batch)


def _local(problem: Problem, at: tuple[Pytree, Pytree], smallest: bool = True) -> Constants:
    """The curvature of F at a point: per client and per row for the smoothness, the smallest eigenvalue for μ."""
    from twofold import reference
    from twofold.curvature import largest_eigenvalue

    w, beta = at
    w = tree.scale(1 / problem.scale, tree.cast(w))
    rows_at_once = 64

    def blocks(member: Member, beta: Pytree, sample: Sample | None) -> tuple[jax.Array, jax.Array]:
        oracle = Oracle(problem.objective, problem.scale, member)
        of_w = largest_eigenvalue(lambda v: oracle.value(v, beta, sample), w)
        of_beta = member.weight * largest_eigenvalue(lambda v: oracle.value(w, v, sample), beta)
        return of_w, of_beta

    def rows(member: Member, beta: Pytree) -> tuple[jax.Array, jax.Array]:
        def one(j: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Past the client's last row: take its first again, which cannot raise the maximum.
            index = jnp.where(j < member.count, j, 0)[None]
            return blocks(member, beta, Sample(index, jnp.ones((1,))))

        of_w, of_beta = jax.lax.map(one, jnp.arange(member.capacity), batch_size=rows_at_once)
        return jnp.max(of_w), jnp.max(of_beta)

    found: dict[str, float] = dict.fromkeys(("L_w", "L_beta", "calL_w", "calL_beta"), 0.0)
    for stack, part in zip(problem.stacks, problem.split(tree.cast(beta)), strict=True):
        of_w, of_beta = jax.jit(lambda s, p: jax.lax.map(lambda c: blocks(c[0], c[1], None), (s, p)))(stack, part)
        row_w, row_beta = jax.jit(lambda s, p: jax.lax.map(lambda c: rows(*c), (s, p)))(stack, part)
        for name, values in zip(found, (of_w, of_beta, row_w, row_beta), strict=True):
            found[name] = max(found[name], float(jnp.max(values)))
    mu = max(reference.smallest_eigenvalue(problem, at), 0.0) if smallest else 0.0
    names = ("mu", *found)
    why = dict.fromkeys(names, "curvature at a point")
    if not smallest:
        why["mu"] = "unknown, so none is assumed"
    return Constants(mu=mu, **found, how=dict.fromkeys(names, "local"), why=why)
