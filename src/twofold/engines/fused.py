"""A client's whole iteration in one kernel, for linear models on a GPU: parameters and rows come from memory once.

XLA makes a dozen kernels of an iteration, and each reads and writes every client's parameters. But all that a method does with
parameters is to add and to scale them, gradients apart; and a linear model's gradient in some of its features needs the others
only through the scores x·W, a few numbers a row. So one program per client walks over its features in tiles: once, or once for
each gradient that needs another, to add up scores, and a last time to finish. What it does in a tile is `algorithm.client`
itself, traced on tiles with an oracle that hears scores in the walks and knows the gradients in the end. No algorithm and no
objective is written twice.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm
from twofold.control import unrolled
from twofold.engines import memory
from twofold.losses import Linear
from twofold.problem import Oracle, Problem, Sample
from twofold.tree import Pytree

try:
    pl: Any = import_module("jax.experimental.pallas")
    triton: Any = import_module("jax.experimental.pallas.triton")
except ImportError:  # JAX 0.11 calls this backend deprecated; without it everything is left to XLA
    pl = triton = None

MOST_CALLS, MOST_ROWS = 8, 64
"""Gradients of an iteration, and rows of one gradient, up to which a kernel is built; what is longer is left to XLA."""
LANES = 16
"""The least size of a side of a product on tensor cores; classes are padded to it, in registers only."""


@contextmanager
def quietly() -> Iterator[None]:
    """Without JAX's warning that this kind of kernel will go: there is nothing that the user could do about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Triton backend is deprecated", category=DeprecationWarning)
        yield


class Unsupported(Exception):  # noqa: N818  (not an error: XLA takes over)
    """Something that a kernel cannot do."""


class Call(NamedTuple):
    """A gradient that an iteration asks for: the number of its draw (None: all rows), and the walk that hears its scores."""

    draw: int | None
    level: int


class Recipe(NamedTuple):
    """How an algorithm's silent iteration (or one of a method without coins) is done in one kernel."""

    calls: tuple[Call, ...]
    draws: tuple[int, ...]  # rows of each sample
    losses: int  # of the objective, each with scores of its own
    speaks: bool

    @property
    def levels(self) -> int:
        """Walks before the last."""
        return 1 + max((call.level for call in self.calls), default=-1)


# --- what an iteration asks for ---------------------------------------------------------------------------------------


class _Asked:
    """An oracle that answers with given numbers, and keeps where it was asked."""

    count, weight, scale = 7, 0.5, 0.25

    def __init__(self, answers: Any = None) -> None:
        self.answers, self.points, self.samples, self.draws = answers, [], [], []

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(name)

    def sample(self, key: Any, size: int | None) -> Any:
        if size is None:
            return None
        self.draws.append(size)
        return len(self.draws) - 1

    def _next(self, w: Pytree, beta: Pytree, sample: Any) -> Any:
        number = len(self.points)
        self.points.append(jnp.stack([jnp.asarray(leaf, float) for leaf in jax.tree.leaves((w, beta))]))
        self.samples.append(sample)
        return 0.1 if self.answers is None or number >= len(self.answers) else self.answers[number]

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        answer = self._next(w, beta, sample)
        return jax.tree.map(lambda _: answer, w)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        answer = self._next(w, beta, sample)
        return jax.tree.map(lambda _: answer, beta)

    def gradients(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[Pytree, Pytree]:
        answer = self._next(w, beta, sample)
        return jax.tree.map(lambda _: answer, (w, beta))


class _Counted:
    """A loss that only counts how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def value(self, params: Any, rows: Any) -> float:
        self.times += 1
        return 0.0


def recipe(algorithm: Algorithm, problem: Problem) -> Recipe | None:
    """The kernel's recipe, or None where XLA has to do it."""
    try:
        return _recipe(algorithm, problem)
    except Unsupported:
        return None


def _recipe(algorithm: Algorithm, problem: Problem) -> Recipe:
    objective: Any = problem.objective
    loss = getattr(objective, "loss", None)
    if not (objective.whole and objective.convex and isinstance(loss, Linear) and loss.link.outputs) or loss.intercept:
        raise Unsupported("another model")
    if triton is None:
        raise Unsupported("a JAX without this kind of kernel")
    if type(algorithm).receive is not Algorithm.receive or jnp.result_type(float) != jnp.float32:
        raise Unsupported("another kind of run")
    w, beta = (
        jax.tree.map(lambda _, value=value: value, part)
        for part, value in zip(problem.abstract_start, (0.3, -0.7), strict=True)
    )
    # Any numbers will do, as long as none is special: a zero could hide that one gradient needs another.
    leaves, structure = jax.tree.flatten(algorithm)
    if any(jnp.ndim(leaf) for leaf in (*leaves, *jax.tree.leaves(objective))):
        raise Unsupported("numbers that are not scalars")
    generic = jax.tree.unflatten(structure, [0.31 + 0.07 * i for i in range(len(leaves))])
    plan = silent_plan(jax.eval_shape(algorithm.plan, randomness.root(0), jnp.int32(0)), lambda leaf: 3)

    def run(oracle: _Asked) -> tuple:
        with unrolled():
            private = generic.init_private(w, beta, oracle)
            if oracle.points:
                raise Unsupported("a gradient at the start")
            return generic.client(plan, generic.init(w), private, oracle, None)

    def points(answers: jax.Array) -> jax.Array:
        oracle = _Asked(list(answers))
        run(oracle)
        return jnp.stack(oracle.points)

    counted, asked = _Counted(), _Asked()
    own = jax.tree.map(lambda _: 0.5, problem.abstract_member.own)
    dataclasses.replace(objective, loss=counted).value(w, beta, None, own)
    run(asked)
    capacity = problem.abstract_member.x.shape[0]
    rows = [capacity if sample is None else asked.draws[sample] for sample in asked.samples]
    if not 0 < len(rows) <= MOST_CALLS or max(rows) > MOST_ROWS:
        raise Unsupported("too much for one kernel")
    needs = np.any(np.asarray(jax.jacrev(points)(jnp.full(len(rows), 0.2))) != 0, axis=1)
    levels: list[int] = []
    for number, row in enumerate(needs):
        levels.append(1 + max((levels[i] for i in range(number) if row[i]), default=-1))
    calls = tuple(map(Call, asked.samples, levels))
    return Recipe(calls, tuple(asked.draws), counted.times, not algorithm.silent)


def silent_plan(plan: Any, number: Callable[[Any], Any]) -> Any:
    """A plan without coins that fell; what is not a coin is what `number` makes of it."""
    return jax.tree.map(lambda leaf: np.False_ if leaf.dtype == bool else number(leaf), plan)


class _Drawing(Oracle):
    """Keeps the samples that are drawn, and computes nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drawn: list[jax.Array] = []

    def sample(self, key: Any, size: int | None) -> Sample | None:
        found = super().sample(key, size)
        if found is not None:
            self.drawn.append(found.index)
        return found

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        return tree.zeros(w)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        return tree.zeros(beta)

    def gradients(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[Pytree, Pytree]:
        return tree.zeros((w, beta))


# --- one tile ---------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The rows of one gradient: one row's features in a tile, (tile,), or several rows', (rows, tile)."""

    x: jax.Array

    def score(self, params: jax.Array) -> jax.Array:
        """This tile's share of x·W for W of (classes, tile): (classes,) for one row, (classes, rows) for several."""
        return jnp.sum(params * self.x[None], axis=1) if self.x.ndim == 1 else jnp.dot(params, self.x.T)

    def gradient(self, residual: jax.Array) -> jax.Array:
        """This tile of xᵀ·(weighted slopes), as (classes, tile)."""
        return residual[:, None] * self.x[None] if self.x.ndim == 1 else jnp.dot(residual, self.x)


class _Heard:
    """A loss that adds up scores: its value is of no use, but it has heard at which parameters it was asked."""

    def __init__(self) -> None:
        self.scores: list[jax.Array] = []

    def value(self, params: jax.Array, rows: _Rows) -> Any:
        self.scores.append(rows.score(params))
        return 0.0


class _Known:
    """A loss whose slopes are known, so that its gradient in a tile is a product with the tile's features."""

    def __init__(self, loss: Linear, slopes: list[jax.Array]) -> None:
        self._loss, self._slopes = loss, iter(slopes)

    def value(self, params: jax.Array, rows: _Rows) -> jax.Array:
        return jnp.sum(params * rows.gradient(next(self._slopes))) + self._loss.ridge(params)


class _Replay:
    """The oracle of one tile in one walk: gradients of earlier walks are known, those of this one are heard."""

    def __init__(
        self, level: int, calls: tuple[Call, ...], objective: Any, scale: Any, member: Any, known: tuple, rows: Any
    ) -> None:
        self.level, self.calls, self.objective, self.known, self.rows = level, calls, objective, known, rows
        self.count, self.weight, self._own, self.scale = member.count, member.weight, member.own, scale
        self.heard: list[list[jax.Array]] = []
        self._made, self._drawn = 0, 0

    def sample(self, key: Any, size: int | None) -> Any:
        if size is None:
            return None
        self._drawn += 1
        return self._drawn - 1

    def _value(self, loss: Any, w: jax.Array, beta: jax.Array, rows: _Rows) -> Any:
        objective = dataclasses.replace(self.objective, loss=loss)
        return objective.value(tree.scale(self.scale, w), beta, rows, self._own)

    def _gradient(self, which: tuple[int, ...], w: Any, beta: Any, sample: Any) -> Any:
        number, self._made = self._made, self._made + 1
        level = self.calls[number].level
        if level < self.level:
            loss, rows = _Known(self.objective.loss, self.known[number]), self.rows(sample)
            return jax.grad(lambda w, beta: self._value(loss, w, beta, rows), argnums=which)(w, beta)
        if level == self.level:
            loss = _Heard()
            self._value(loss, w, beta, self.rows(sample))
            self.heard.append(loss.scores)
        return tuple(tree.zeros((w, beta)[i]) for i in which)

    def gradient_w(self, w: Any, beta: Any, sample: Any = None) -> Any:
        return self._gradient((0,), w, beta, sample)[0]

    def gradient_beta(self, w: Any, beta: Any, sample: Any = None) -> Any:
        return tree.scale(self.weight, self._gradient((1,), w, beta, sample)[0])

    def gradients(self, w: Any, beta: Any, sample: Any = None) -> tuple[Any, Any]:
        of_w, of_beta = self._gradient((0, 1), w, beta, sample)
        return of_w, tree.scale(self.weight, of_beta)


# --- the kernel -------------------------------------------------------------------------------------------------------


class _Size(NamedTuple):
    """The tile, and how a program is run: found by trying on one H200."""

    tile: int
    warps: int
    stages: int


def _size(how: Recipe, features: int) -> _Size:
    if any(call.draw is None or how.draws[call.draw] != 1 for call in how.calls):
        return _Size(min(128, _power(features, LANES)), 4, 2)  # products: small tiles, loaded ahead
    # One row a gradient: enough of a client at a time to keep the memory busy, little enough for many clients at work.
    return _Size(min(256 if how.levels == 1 else 128, _power(features, LANES)), 4, 1)


class _Tile(NamedTuple):
    """Some features, from the first on; the last tile may reach beyond the end."""

    first: Any
    width: int
    whole: bool

    @property
    def features(self) -> jax.Array:
        """Their numbers."""
        return self.first + jnp.arange(self.width)


def _power(least: int, lowest: int = 1) -> int:
    return max(lowest, 1 << (least - 1).bit_length())


class _Numbers:
    """Scalars of all kinds as one array on the way into a kernel, and as what they were inside it."""

    def __init__(self, values: Any) -> None:
        self.leaves, self.structure = jax.tree.flatten(values)

    def array(self, length: int) -> jax.Array:
        """All of them, for every iteration or every client."""
        leaves = [jnp.broadcast_to(jnp.asarray(leaf, jnp.float32), (length,)) for leaf in (*self.leaves, 0.0)]
        return jnp.stack(leaves, axis=-1)

    def read(self, number: Callable[[int], Any]) -> Any:
        """The values, scalar by scalar."""
        return jax.tree.unflatten(self.structure, [number(j) for j in range(len(self.leaves))])


class _Job(NamedTuple):
    """All that is known of a kernel before it runs: sizes, structures, and how scalars travel."""

    how: Recipe
    objective: Any
    plans: Any
    numbers: _Numbers  # of the algorithm, the objective, the scale and the plan, by iteration
    own: _Numbers  # of each client
    shared: Any  # structures of the shared and of the private state
    private: Any
    capacity: int
    features: int
    classes: int
    size: _Size
    lanes: int
    on_gpu: bool


class _Client:
    """One program of the kernel: one client's iterations."""

    def __init__(self, job: _Job, refs: tuple[Any, ...]) -> None:
        self.job = job
        self.numbers, self.index, self.x, self.y = refs[1], refs[4], refs[5], refs[6]
        first = 7 + job.shared.num_leaves
        self.shared, self.results = refs[7:first], refs[first + job.private.num_leaves :]
        self.private = self.results[
            : job.private.num_leaves
        ]  # the same memory as the inputs, and what was written last
        self.zero = pl.program_id(0) * 0  # so that a last tile may reach beyond the end: its mask keeps it inside
        self.count = refs[3][0]
        self.weight, self.own = job.own.read(lambda j: refs[2][j])
        self.classes = jnp.arange(job.lanes)
        jax.lax.fori_loop(0, refs[0][0], self.iteration, self.zero)

    def over(self, level: int, body: Callable[[_Tile, Any], Any], carry: Any) -> Any:
        """A walk over all tiles. Every other one goes backwards: it begins with what the last one has left in the cache."""
        tile = self.job.size.tile
        many, left = divmod(self.job.features, tile)

        def the_rest(carry: Any) -> Any:
            width = _power(left, LANES)
            return body(_Tile(many * tile, width, width == left), carry) if left else carry

        if level % 2 == 0:
            carry = jax.lax.fori_loop(0, many, lambda t, carry: body(_Tile(t * tile, tile, True), carry), carry)
            return the_rest(carry)
        return jax.lax.fori_loop(
            0, many, lambda t, carry: body(_Tile((many - 1 - t) * tile, tile, True), carry), the_rest(carry)
        )

    def columns(self, t: _Tile) -> Any:
        """A tile's features as a slice."""
        return pl.ds(self.zero + t.first, t.width)

    def inside(self, t: _Tile, rows: jax.Array) -> jax.Array:
        """Which places are real, given which rows are: (rows, features)."""
        inside = jnp.broadcast_to(rows[:, None], (len(rows), t.width))
        return inside if t.whole else inside & (t.features < self.job.features)[None]

    def tile(self, ref: Any, t: _Tile, *lead: Any) -> tuple[Any, jax.Array]:
        """Where a tile of parameters is, and which of its places are real."""
        real = self.inside(t, self.classes < self.job.classes)
        return ref.at[(*lead, pl.ds(self.zero, self.job.lanes), self.columns(t))], real

    def load(self, ref: Any, t: _Tile, *lead: Any) -> jax.Array:
        """A tile of parameters."""
        place, real = self.tile(ref, t, *lead)
        return triton.load(place, mask=real, other=0.0)

    def places(self, draw: int | None, i: Any) -> tuple[Any, Any]:
        """The numbers of a sample's rows, and their weights in the mean."""
        if draw is None:
            rows = jnp.arange(_power(self.job.capacity, LANES))
            return rows, jnp.where(rows < self.count, 1.0 / self.count.astype(jnp.float32), 0.0)
        n, first = self.job.how.draws[draw], sum(self.job.how.draws[:draw])
        if n == 1:
            return self.index[i, first], 1.0
        rows = jnp.arange(_power(n, LANES))
        index = triton.load(self.index.at[i, self.zero + first + rows], mask=rows < n, other=0)
        return index, jnp.where(rows < n, 1.0 / n, 0.0)

    def rows(self, draw: int | None, i: Any, t: _Tile) -> _Rows:
        """A tile of a sample's rows."""
        index = self.places(draw, i)[0]
        if index.ndim == 0:
            found = triton.load(self.x.at[index, self.columns(t)], mask=t.features < self.job.features, other=0.0)
            return _Rows(found.astype(jnp.float32))
        if draw is None:
            block = self.x.at[pl.ds(self.zero, len(index)), self.columns(t)]
        else:
            block = self.x.at[index[:, None], jnp.broadcast_to(t.features[None], (len(index), t.width))]
        found = triton.load(block, mask=self.inside(t, index < self.job.capacity), other=0.0)
        return _Rows(found.astype(jnp.float32))

    def slopes(self, draw: int | None, i: Any, scores: list[jax.Array]) -> list[jax.Array]:
        """The weighted derivative of the link at each row's scores."""
        index, weights = self.places(draw, i)
        single, link = index.ndim == 0, self.job.objective.loss.link
        y = self.y[index] if single else triton.load(self.y.at[index], mask=index < self.job.capacity, other=0)
        found = []
        for score in scores:
            real = jnp.where((self.classes < self.job.classes)[None], score[None] if single else score.T, -1e30)
            slope = link.slope(real, y[None] if single else y)
            found.append(jnp.sum(slope, axis=0) if single else (weights[:, None] * slope).T)
        return found

    def walk(self, i: Any, t: _Tile, level: int, known: tuple) -> tuple[_Replay, list, list]:
        """The algorithm's own client step on one tile: what was heard, where it moved (None: it did not), what it says."""
        job = self.job
        algorithm, told, scale, said = job.numbers.read(lambda j: self.numbers[i, j])
        objective = dataclasses.replace(told, loss=dataclasses.replace(job.objective.loss, l2=told.loss))
        shared = jax.tree.unflatten(job.shared, [self.load(ref, t, i) for ref in self.shared])
        private = jax.tree.unflatten(job.private, [self.load(ref, t) for ref in self.private])
        oracle = _Replay(level, job.how.calls, objective, scale, self, known, lambda draw: self.rows(draw, i, t))
        with unrolled():
            moved, message = algorithm.client(_with_coins(job.plans, said), shared, private, oracle, None)
        # What was only passed on, such as a reference point, need not be written.
        moves = [
            None if after is before else after
            for before, after in zip(jax.tree.leaves(private), jax.tree.leaves(moved), strict=True)
        ]
        return oracle, moves, jax.tree.leaves(message) if job.how.speaks else []

    def iteration(self, i: Any, carry: Any) -> Any:
        """The walks that hear, and the one that finishes."""
        how, job = self.job.how, self.job
        known: tuple = (None,) * len(how.calls)
        for level in range(how.levels):
            asked = [number for number, call in enumerate(how.calls) if call.level == level]
            shapes = [(job.lanes, *self.places(how.calls[number].draw, i)[0].shape) for number in asked]
            nothing = [[jnp.zeros(shape, jnp.float32) for _ in range(how.losses)] for shape in shapes]

            def hear(t: _Tile, total: list, level: int = level, known: tuple = known) -> list:
                return jax.tree.map(jnp.add, total, self.walk(i, t, level, known)[0].heard)

            total = self.over(level, hear, nothing)
            now = {number: self.slopes(how.calls[number].draw, i, s) for number, s in zip(asked, total, strict=True)}
            known = tuple(now.get(number, before) for number, before in enumerate(known))

        def finish(t: _Tile, carry: Any) -> Any:
            _, moved, spoken = self.walk(i, t, how.levels, known)
            for ref, leaf in zip(self.results, [*moved, *spoken], strict=True):
                if leaf is not None:
                    place, real = self.tile(ref, t)
                    triton.store(place, leaf, mask=real)
            return carry

        self.over(how.levels, finish, self.zero)
        if job.on_gpu:
            triton.debug_barrier()  # the next iteration reads what other threads have written
        return carry


def _drawn(
    algorithm: Algorithm, program: tuple, plans: Any, shared: Any, private: Any, streams: Any, k: Any
) -> jax.Array:
    """The rows of all samples of all clients and iterations, one after the other, and a zero: there may be none."""
    objective, scale, (stack,) = program

    def one(member: Any, private: Any, stream: Any, plan: Any, shared: Any, k: Any) -> jax.Array:
        oracle = _Drawing(objective, scale, member)
        with unrolled():
            algorithm.client(silent_plan(plan, lambda leaf: leaf), shared, private, oracle, randomness.of(stream, k))
        return jnp.concatenate([*oracle.drawn, jnp.zeros(1, jnp.int32)])

    by_iteration = jax.vmap(one, in_axes=(None, None, None, 0, 0, 0))
    return jax.vmap(by_iteration, in_axes=(0, 0, 0, None, None, None))(stack, private, streams, plans, shared, k)


def clients(
    how: Recipe, algorithm: Algorithm, program: tuple, at: tuple[Any, Any, Any], private: Any, streams: Any, count: Any
) -> tuple[Any, Any]:
    """`algorithm.client` of all clients of a chunk, `count` times: their states, written in place, and their messages.

    `at` are plans, shared states and numbers k with a leading axis of iterations, of which the first `count` are done; in no
    plan may a coin have fallen. There are messages only where every iteration has one, and then `count` is 1. Parameters are
    (classes, features).
    """
    (plans, shared, k), (objective, scale, (stack,)) = at, program
    M, capacity, features = stack.x.shape
    classes = objective.loss.link.outputs
    # The plan's own numbers travel as floats: exact up to 2²⁴, far more iterations than anybody runs.
    scalars = (algorithm, dataclasses.replace(objective, loss=objective.loss.l2), scale, _not_coins(plans))
    states, parts = (jax.tree.flatten(part) for part in (shared, private))
    job = _Job(
        how, objective, plans, _Numbers(scalars), _Numbers((stack.weight, stack.own)), states[1], parts[1], capacity,
        features, classes, _size(how, features), _power(classes, LANES), not memory.on_cpu(),
    )  # fmt: skip
    common = [jnp.asarray(count, jnp.int32)[None], job.numbers.array(len(k))]
    index = _drawn(algorithm, program, plans, shared, private, streams, k)
    personal = [job.own.array(M), stack.count.astype(jnp.int32)[:, None], index, stack.x, stack.y]

    def message(member: Any, private: Any, stream: Any) -> Any:
        plan, state = jax.tree.map(lambda leaf: leaf[0], (plans, shared))
        return algorithm.client(plan, state, private, Oracle(objective, scale, member), randomness.of(stream, k[0]))[1]

    spoken, form = jax.tree.flatten(jax.eval_shape(jax.vmap(message), stack, private, streams) if how.speaks else ())
    outputs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (*parts[0], *spoken)]

    def one_client(leaf: Any) -> Any:
        return pl.BlockSpec((None, *leaf.shape[1:]), lambda m: (m, *(0,) * (leaf.ndim - 1)))

    def everyone(leaf: Any) -> Any:
        return pl.BlockSpec(leaf.shape, lambda m: (0,) * leaf.ndim)

    first = 7 + len(states[0])
    found = pl.pallas_call(
        lambda *refs: _Client(job, refs) and None,
        grid=(M,),
        in_specs=[
            *map(everyone, common),
            *map(one_client, personal),
            *map(everyone, states[0]),
            *map(one_client, parts[0]),
        ],
        out_specs=[one_client(leaf) for leaf in outputs],
        out_shape=outputs,
        input_output_aliases={first + i: i for i in range(len(parts[0]))},
        compiler_params=triton.CompilerParams(num_warps=job.size.warps, num_stages=job.size.stages),
        interpret=not job.on_gpu,
    )(*common, *personal, *states[0], *parts[0])
    return jax.tree.unflatten(parts[1], found[: len(parts[0])]), jax.tree.unflatten(form, found[len(parts[0]) :])


def _not_coins(plans: Any) -> list:
    return [leaf for leaf in jax.tree.leaves(plans) if leaf.dtype != bool]


def _with_coins(plans: Any, numbers: list) -> Any:
    given: Iterator = iter(numbers)
    return jax.tree.map(lambda leaf: np.False_ if leaf.dtype == bool else next(given).astype(leaf.dtype), plans)
