"""Metrics of recorded iterates, evaluated many iterates at a time."""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from twofold import tree
from twofold.control import traced_once
from twofold.curvature.certificate import Partial, bound_client, finish
from twofold.errors import InputError
from twofold.objectives.base import Objective
from twofold.oracle import Member, Program
from twofold.problem import Problem
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = [
    "BUILT_IN", "DERIVED", "SUMS", "Additive", "HeldOut", "Metric", "OfHeldOut", "OfProgram", "OfUser", "as_tree", "bound", "evaluate",
    "gradient_norm", "loss", "named", "norm_squared", "resolve", "value_of",
]  # fmt: skip

ROWS_AT_ONCE = 1 << 13
"""Iterates are evaluated in blocks of about this many rows. A block is always evaluated whole, even for a single iterate."""

Metric = Callable[[Program, Pytree, tuple[Pytree, ...]], jax.Array]
"""A function of (program, w̃, each bucket's β̃), in the algorithm's variables, that returns a scalar."""


def loss(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """F(w, β)."""
    return program.mean(program.values(w, parts))


def gradient_norm(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """‖∇F‖ in the algorithm's variables."""
    return _norm(_gradients(program, w, parts), w)


def _gradients(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Pytree, jax.Array]:
    """These clients' part of ∇_w F, and the sum of their ‖∇_β F‖²."""
    of_w = program.mean(program.gradients_w(w, parts))
    return of_w, tree.squared_norm(program.gradients_beta(w, parts))


def _norm(gradients: tuple[Pytree, jax.Array], w: Pytree) -> jax.Array:
    return jnp.sqrt(tree.squared_norm(gradients[0]) + gradients[1])


def bound(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """A certified gap: ½ gᵀA⁻¹g ≥ F − F*, where A ⪯ ∇²F everywhere; only for programs with a `proof`."""
    return _finish_bound(program, _parts_of_bound(program, w, parts), w)


def _parts_of_bound(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> tuple[Partial, Pytree]:
    """These clients' part of the certificate, and of ∇_w F in the user's parameters."""
    real = program._replace(variables=Variables())
    here = program.variables.w(w)

    def of_client(member: Member, beta: Pytree) -> tuple[Partial, Pytree]:
        there = program.variables.beta(beta, member.factor)
        of_w, of_beta = real.oracle(member).gradients(here, there)
        assert member.proof is not None
        return bound_client(member.proof, of_beta, here, there, jnp.asarray(member.share > 0, of_w_dtype)), of_w

    of_w_dtype = jnp.result_type(float)
    found = [jax.vmap(of_client)(stack, part) for stack, part in zip(program.stacks, parts, strict=True)]
    sums = [jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), one) for one, _ in found]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *sums), program.mean([of_w for _, of_w in found])


def _finish_bound(program: Program, total: tuple[Partial, Pytree], w: Pytree) -> jax.Array:
    assert program.proof is not None
    return finish(program.proof, total[1], total[0])


def norm_squared(program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """‖(w, β)‖²: finite exactly when the iterate is."""
    return tree.squared_norm((w, parts))


class Additive(NamedTuple):
    """A metric computed from sums over clients.

    `of_some(program, w, parts)` is the contribution of some clients; `finish(program, sum, w)` is the metric's value.
    """

    of_some: Callable[[Program, Pytree, tuple[Pytree, ...]], Any]
    finish: Callable[[Program, Any, Pytree], jax.Array]


SUMS: dict[Metric, Additive] = {
    loss: Additive(loss, lambda program, total, w: total),
    gradient_norm: Additive(_gradients, lambda program, total, w: _norm(total, w)),
    bound: Additive(_parts_of_bound, _finish_bound),
    norm_squared: Additive(
        lambda program, w, parts: tree.squared_norm(parts), lambda program, total, w: total + tree.squared_norm(w)
    ),
}
"""The metrics that can be computed chunk by chunk of clients."""
BUILT_IN: dict[str, Metric] = {"loss": loss, "gradient_norm": gradient_norm}
DERIVED = {"gap": "loss", "bound": "gradient_norm"}
"""Metrics that are computed from another metric and a number: F − F*, and ‖∇F‖²/(2μ)."""


COLUMNS = ("round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds", "stage")
"""The columns that every history has besides its metrics."""


class HeldOut(NamedTuple):
    """One bucket's rows that are not trained on: features, targets, and how many rows each client really has."""

    x: Pytree
    y: Pytree
    counts: jax.Array | np.ndarray


class OfProgram(NamedTuple):
    """A metric of (program, w, parts), to be put into a `record=` mapping; it finds all it needs in the program's objective."""

    function: Metric


class _Program(NamedTuple):
    """The static part of a user's metric, which is compiled in: the function, and each bucket's client positions."""

    function: Callable[..., Any]
    positions: tuple[tuple[int, ...], ...]


@jax.tree_util.register_pytree_node_class
class OfUser:
    """A user's metric of (w, beta), with beta in client order.

    The arguments of a `jax.tree_util.Partial` (test rows, for example) are traced as data, so another problem of the same
    shape with other test rows needs no new compilation. Values bound in any other function are compiled in.
    """

    def __init__(self, function: Callable[[Pytree, Pytree], ArrayLike], problem: Problem) -> None:
        positions = tuple(tuple(p.tolist()) for p in problem.positions)
        self._join = problem.join
        if isinstance(function, jax.tree_util.Partial) and _all_numbers((function.args, function.keywords)):
            self._program = _Program(function.func, positions)
            self._data = jax.tree.map(jnp.asarray, (function.args, function.keywords))
        else:
            self._program, self._data = _Program(function, positions), ((), {})

    def __call__(self, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
        """The user's number for one iterate."""
        w, parts = program.outward(w, parts)
        # A sharded run may pad its stacks with copies of clients at weight zero, which the user must not see.
        sizes = [len(positions) for positions in self._program.positions]
        real = tuple(jax.tree.map(lambda leaf, n=n: leaf[:n], part) for part, n in zip(parts, sizes, strict=True))
        first, named = self._data
        value = jnp.asarray(self._program.function(*first, w, self._join(real), **named))
        if value.shape != ():
            raise InputError(
                f"A metric must give one number, but {self._program.function} gave an array of shape {value.shape}."
            )
        return value

    def tree_flatten(self) -> tuple[tuple[Pytree], tuple[_Program, _Uncompared]]:
        """The traced data and the static part."""
        return (self._data,), (self._program, _Uncompared(self._join))

    @classmethod
    def tree_unflatten(cls, static: tuple[_Program, _Uncompared], children: tuple[Pytree]) -> OfUser:
        """The same metric with other data."""
        metric = object.__new__(cls)
        (metric._program, join), (metric._data,) = static, children
        metric._join = join.function
        return metric


class _Uncompared:
    """A function that equals every other, because the rest of the static part already determines it."""

    def __init__(self, function: Callable[[tuple[Pytree, ...]], Pytree]) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncompared)

    def __hash__(self) -> int:
        return hash(_Uncompared)


Wanted = str | OfProgram | Callable[[Pytree, Pytree], ArrayLike]
"""What `record=` maps a name to: a metric's name, or a function of (w, beta)."""
Grade = Callable[[Objective, Member, Pytree, Pytree, HeldOut], jax.Array]
"""Of one client's rows that are not trained on: the sums of its grades."""


class Recorded(Protocol):
    """Recorded iterates, with leading axes (slot, seed)."""

    @property
    def w(self) -> Pytree:
        """The shared part."""
        ...

    @property
    def parts(self) -> tuple[Pytree, ...]:
        """Each bucket's private parts."""
        ...


@jax.tree_util.register_pytree_node_class
class OfHeldOut:
    """Scores of all clients' models on held-out rows; the rows are traced as data, the scoring function is compiled in.

    It returns four numbers: the score over all rows, the mean and the minimum over clients, and the score of w alone over all rows.
    """

    def __init__(self, data: tuple[HeldOut, ...], grade: Grade, sizes: tuple[int, ...]) -> None:
        self._data, self._grade, self._sizes = data, grade, sizes

    def __call__(self, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
        """The four numbers of one iterate."""
        w, parts = program.outward(w, parts)
        sums, counts = [], []
        for stack, part, size, rows in zip(program.stacks, parts, self._sizes, self._data, strict=True):
            # A sharded run may pad its stacks with copies of clients at weight zero: leave them out.
            member, beta = jax.tree.map(lambda leaf, n=size: leaf[:n], (stack, part))
            of_client = partial(self._grade, program.objective)
            sums.append(jax.vmap(of_client, in_axes=(0, None, 0, 0))(member, w, beta, tree.cast(rows)))
            counts.append(rows.counts)
        total, count = jnp.concatenate(sums), jnp.concatenate(counts).astype(jnp.result_type(float))
        own = total[:, 0] / count
        return jnp.stack([total[:, 0].sum() / count.sum(), own.mean(), own.min(), total[:, 1].sum() / count.sum()])

    def tree_flatten(self) -> tuple[tuple[Pytree], tuple[Grade, tuple[int, ...]]]:
        """The traced data and the static part."""
        return (self._data,), (self._grade, self._sizes)

    @classmethod
    def tree_unflatten(cls, static: tuple[Grade, tuple[int, ...]], children: tuple[Pytree]) -> OfHeldOut:
        """The same metric with other rows."""
        return cls(children[0], *static)


def _all_numbers(x: Pytree) -> bool:
    return all(isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float)) for leaf in jax.tree.leaves(x))


def as_tree(metric: Metric) -> Metric:
    """Wrap a metric as a pytree for a compiled program: its data are traced, its function is static."""
    return metric if isinstance(metric, OfUser | OfHeldOut) else jax.tree_util.Partial(metric)


def value_of(metric: Metric, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    """The value of a metric at one iterate; compiled."""
    return _value_of(as_tree(metric), program, w, parts)


@traced_once
def _value_of(metric: Metric, program: Program, w: Pytree, parts: tuple[Pytree, ...]) -> jax.Array:
    return metric(program, w, parts)


def named(record: str | Sequence[str] | Mapping[str, Wanted]) -> dict[str, Wanted]:
    """The argument `record` (one name, several, or a mapping to names and functions) as a dict of name → metric.

    >>> named(("loss", "gap")), named({"error": "loss"})
    ({'loss': 'loss', 'gap': 'gap'}, {'error': 'loss'})
    """
    if isinstance(record, str):
        record = (record,)
    return dict(record) if isinstance(record, Mapping) else {name: name for name in record}


def resolve(record: str | Sequence[str] | Mapping[str, Wanted], problem: Problem) -> dict[str, Metric]:
    """The metrics to evaluate, from built-in names and the user's own functions."""
    wanted = named(record)
    found: dict[str, Metric] = {}
    for name, metric in wanted.items():
        if name in COLUMNS:
            raise InputError(f"A metric cannot be called {name!r}: the history already has a column of that name.")
        if callable(metric) or isinstance(metric, OfProgram):
            if name in BUILT_IN or name in DERIVED:
                raise InputError(f"A metric of your own cannot be called {name!r}: that name is built in.")
            found[name] = metric.function if isinstance(metric, OfProgram) else OfUser(metric, problem)
            continue
        base = DERIVED.get(metric, metric)
        if base not in BUILT_IN:
            known = ", ".join([*BUILT_IN, *DERIVED])
            raise InputError(f"Unknown metric {metric!r}: choose from {known}, or give a function of (w, beta).")
        found[base] = BUILT_IN[base]
    return found


def evaluate(
    metrics: dict[str, Metric], program: Program, snapshots: Recorded, index: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every metric, and ‖(w, β)‖², of the snapshots at the flat (slot, seed) positions `index`."""
    rows = sum(int(np.prod(jax.tree.leaves(stack.x)[0].shape[:2])) for stack in program.stacks)
    places = int(np.prod(jax.tree.leaves(snapshots)[0].shape[:2]))
    block = int(np.clip(ROWS_AT_ONCE // max(rows, 1), 1, min(64, places)))
    padded = np.zeros(-(-places // block) * block, np.int32)
    padded[: len(index)] = index
    functions = tuple(as_tree(function) for function in (*metrics.values(), norm_squared))
    blocks = np.int32(-(-len(index) // block))
    values = _evaluate(functions, block, program, snapshots, padded, blocks)
    *found, norms = (np.asarray(v)[: len(index)] for v in values)
    return dict(zip(metrics, found, strict=True)), norms


@partial(jax.jit, static_argnums=1)
def _evaluate(
    functions: tuple[Metric, ...],
    block: int,
    program: Program,
    snapshots: Recorded,
    index: jax.Array | np.ndarray,
    blocks: jax.Array,
) -> tuple[jax.Array, ...]:
    flat = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), snapshots)

    def some(i: jax.Array, out: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        chosen = jax.lax.dynamic_slice(index, (i * block,), (block,))
        w, parts = jax.tree.map(lambda leaf: leaf[chosen], (flat.w, flat.parts))
        new = [jax.vmap(partial(_value_of, f, program))(w, parts) for f in functions]
        return tuple(
            jax.lax.dynamic_update_slice(o, n.astype(o.dtype), (i * block, *(jnp.int32(0),) * (n.ndim - 1)))
            for o, n in zip(out, new, strict=True)
        )

    first = jax.tree.map(lambda leaf: leaf[0], (flat.w, flat.parts))
    shapes = [jax.eval_shape(_value_of, f, program, *first).shape for f in functions]
    empty = tuple(jnp.zeros((*index.shape, *shape), jnp.result_type(float)) for shape in shapes)
    return jax.lax.fori_loop(jnp.int32(0), blocks, some, empty)
