"""Several iterations of a client for little more than the price of one, for linear models whose clients have few rows.

All that a method does with parameters is to add and to scale them, and a linear model's gradient is a sum of rows, each times
slopes that depend on the row's scores x·W alone. So whatever the parameters become in some iterations, they are a sum of the
states at the beginning and of the rows; and scores of a sum are the sum of scores. So the scores of all states are found once,
and the products of rows with rows. Then `algorithm.client` itself runs on parameters that are such sums (`Sum`), a few hundred
numbers each, for as many iterations as nobody speaks and one more, and in the end what they have become is written.
Parameters, by far the most of what a memory has to move, are read twice and written once for all of these iterations. No
algorithm and no objective is written twice.

Where clients have many rows, products of rows with rows are what is read most. These are kept, in half precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm
from twofold.control import is_traced, unrolled
from twofold.curvature import real_weight
from twofold.engines import memory
from twofold.losses import Linear
from twofold.problem import Oracle, Problem, Sample
from twofold.tree import Pytree

MOST_ROWS = 64
"""Rows of samples together; with more, their products with each other cost more than they save."""
FEW_ROWS = 20
"""Rows up to which a sum of them is written as a sum, a part of the loop that adds up everything else."""
TOGETHER = 16
"""Silent iterations that are done together on samples, where so many are usual and their rows are not too many."""
AT_MOST = 64
"""Silent iterations that are done together on all rows: after so many, scores are found anew, and so is their rounding."""


class Unsupported(Exception):  # noqa: N818  (not an error: iterations are done one by one)
    """Something that cannot be done in this way."""


class Recipe(NamedTuple):
    """How an algorithm's iterations are done together: some silent ones, and one more, silent or not."""

    draws: tuple[int, ...]  # rows of each sample of an iteration; none where gradients are of all rows
    together: int  # silent iterations before the last one, at most
    moves: tuple[bool, ...]  # which of the private states change
    kinds: tuple[int, ...]  # that the last one can be of: by the coins that fell in it, as in `Schedule`
    halves: bool = False  # products of rows with rows are many, and kept in half precision


# --- gradients where slopes are known ---------------------------------------------------------------------------------


class _Heard:
    """A loss whose value is of no use, but which has heard at which parameters it was asked."""

    def __init__(self) -> None:
        self.points: list[Pytree] = []

    def value(self, params: Pytree, rows: Any) -> float:
        self.points.append(params)
        return 0.0


class _Known:
    """A loss with known gradients, one for each time that it is asked, to which the ridge's are added."""

    def __init__(self, loss: Linear, gradients: list[Pytree]) -> None:
        self._loss, self._gradients = loss, iter(gradients)

    def value(self, params: Pytree, rows: Any) -> jax.Array:
        products = jax.tree.map(lambda leaf, of: jnp.sum(leaf * of), params, next(self._gradients))
        return reduce(jnp.add, jax.tree.leaves(products)) + self._loss.ridge(params)


class _Answers:
    """An oracle that hears at which parameters the loss is asked, and is told the loss's gradients there."""

    def __init__(self, objective: Any, scale: Any, member: Any, answer: Callable[[Any, Pytree], Pytree]) -> None:
        self.objective, self.scale, self.answer = objective, scale, answer
        self.count, self.weight, self._own = member
        self.draws: list[int] = []

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(name)

    def sample(self, key: Any, size: int | None) -> int | None:
        """The number of a draw of this iteration: the rows themselves are drawn elsewhere."""
        if size is None:
            return None
        self.draws.append(size)
        return len(self.draws) - 1

    def _gradient(self, which: tuple[int, ...], w: Pytree, beta: Pytree, sample: Any) -> Any:
        def value(loss: Any, w: Pytree, beta: Pytree) -> Any:
            objective = dataclasses.replace(self.objective, loss=loss)
            return objective.value(tree.scale(self.scale, w), beta, None, self._own)

        heard = _Heard()
        value(heard, w, beta)
        known = [self.answer(sample, point) for point in heard.points]
        return jax.grad(lambda w, beta: value(_Known(self.objective.loss, known), w, beta), argnums=which)(w, beta)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        return self._gradient((0,), w, beta, sample)[0]

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        return tree.scale(self.weight, self._gradient((1,), w, beta, sample)[0])

    def gradients(self, w: Pytree, beta: Pytree, sample: Any = None) -> tuple[Pytree, Pytree]:
        of_w, of_beta = self._gradient((0, 1), w, beta, sample)
        return of_w, tree.scale(self.weight, of_beta)


# --- what an iteration does -------------------------------------------------------------------------------------------


def recipe(algorithm: Algorithm, problem: Problem) -> Recipe | None:
    """How to do it, or None where iterations have to be done one by one."""
    try:
        return _recipe(algorithm, problem)
    except Unsupported:
        return None


def _recipe(algorithm: Algorithm, problem: Problem) -> Recipe:
    objective: Any = problem.objective
    loss = getattr(objective, "loss", None)
    if not (objective.whole_models and isinstance(loss, Linear) and loss.link.outputs) or loss.intercept:
        raise Unsupported("another model")
    if type(algorithm).receive is not Algorithm.receive:
        raise Unsupported("something to do on receipt")
    if any(jnp.ndim(leaf) for leaf in jax.tree.leaves(algorithm)):
        raise Unsupported("numbers that are not scalars")
    heard = _Heard()
    dataclasses.replace(objective, loss=heard).value(0.3, 0.7, None, 0.5)
    if is_traced(heard.points):
        raise Unsupported("a gradient inside the objective")
    shape = jax.eval_shape(algorithm.plan, randomness.root(0), jnp.int32(0))
    kinds = range(2 ** sum(leaf.dtype == bool for leaf in jax.tree.leaves(shape)))
    found = {kind: _look(algorithm, problem, _known(shape, kind, 3)) for kind in kinds}
    first = found[0]
    if first is None:
        raise Unsupported("an iteration without coins")
    together = 0
    if algorithm.silent and not first.draws:
        together = AT_MOST
    elif algorithm.silent:  # up to twice as many as are usual, so that most rounds are one piece
        usual = int(memory.usual_stretch(algorithm))
        together = min(TOGETHER, 1 << usual.bit_length(), MOST_ROWS // first.rows)
    alike = {kind: look for kind, look in found.items() if look is not None and look.draws == first.draws}
    moves = np.any([look.moves for look in alike.values()], axis=0)
    halves = first.rows > MOST_ROWS
    if halves and not _worth_it(algorithm, problem, together):
        raise Unsupported("too many rows")
    return Recipe(first.draws, together, tuple(moves.tolist()), tuple(alike), halves)


def _worth_it(algorithm: Algorithm, problem: Problem, together: int) -> bool:
    """Whether products of many rows with each other, in half precision, are read faster than the rows, and fit.

    Half precision is as precise as products of float32 are on tensor cores, unless somebody asked for more. An iteration by
    itself reads all rows twice. Done together, each reads the products once, and a few numbers for each row and class; rows
    are read twice, and once more for what is said.
    """
    objective, x = cast(Any, problem.objective), problem.abstract_member.x
    one_by_one = 2 * x.dtype.itemsize * x.shape[1]
    by_products = 2 * int(problem.clients.counts.max()) + 48 * objective.loss.link.outputs
    silent = min(memory.usual_stretch(algorithm) - 1, together)
    tensor_cores = jnp.result_type(float) == jnp.float32 and cast(Any, jax.config).jax_default_matmul_precision in (
        None,
        "default",
    )
    if not tensor_cores or silent * (one_by_one - by_products) <= 2 * one_by_one:
        return False
    need, counts = memory.need(algorithm, problem), problem.clients.counts
    kept = sum(2 * len(some) * int(counts[some].max()) ** 2 for some in problem.positions)
    return memory.fits(need._replace(data=need.data + kept), 1)


class _Look(NamedTuple):
    """What an iteration does: rows of each of its samples, rows in all, and which private states it changes."""

    draws: tuple[int, ...]
    rows: int
    moves: list[bool]


def _look(algorithm: Algorithm, problem: Problem, plan: Any) -> _Look | None:
    """What an iteration with this plan does, from a run on numbers in place of parameters; None if something else."""
    try:
        return _look_at(algorithm, problem, plan)
    except Unsupported:
        return None


def _look_at(algorithm: Algorithm, problem: Problem, plan: Any) -> _Look:
    leaves, structure = jax.tree.flatten(algorithm)
    # Any numbers will do, as long as none is special.
    generic = jax.tree.unflatten(structure, [0.31 + 0.07 * i for i in range(len(leaves))])
    own = jax.tree.map(lambda _: 0.5, problem.abstract_member.own)
    w, beta = (jax.tree.map(lambda _: jnp.asarray(0.3, float), part) for part in problem.abstract_start)

    def oracle(answer: Callable[[Any, Pytree], Pytree]) -> Any:
        return _Answers(problem.objective, 0.25, (7, 0.5, own), answer)

    def nothing(sample: Any, point: Pytree) -> Pytree:
        raise Unsupported("a gradient at the start")

    def begin(w: Pytree, beta: Pytree) -> tuple[Any, Any]:
        return generic.init(w), generic.init_private(w, beta, oracle(nothing))

    real = jax.tree.leaves(jax.eval_shape(begin, *problem.abstract_start))
    weight = jax.tree.leaves(problem.abstract_start)[0]
    if any((leaf.shape, leaf.dtype) != (weight.shape, weight.dtype) for leaf in real):
        raise Unsupported("states that are not parameters")
    states, form = jax.tree.flatten(begin(w, beta))
    private = len(jax.tree.leaves(begin(w, beta)[1]))
    draws, asked = [], []

    def iteration(numbers: jax.Array) -> jax.Array:
        """New private states, what is said, the new shared state and where gradients are asked for, from the old states."""
        shared, mine = jax.tree.unflatten(form, list(numbers[: len(states)]))
        told, points = iter(numbers[len(states) :]), []
        asked.clear()

        def answer(sample: Any, point: Pytree) -> Pytree:
            points.append(point)
            asked.append(sample)
            return next(told, jnp.zeros_like(point))

        once, key = oracle(answer), None  # nothing is drawn
        with unrolled():
            moved, message = generic.client(plan, shared, mine, once, key)
        draws[:] = once.draws
        after = generic.server(plan, shared, tree.zeros(message))
        return jnp.stack(jax.tree.leaves((moved, message, after, points)))

    jax.eval_shape(iteration, jnp.ones(len(states)))
    rows = sum(draws) if draws else int(problem.clients.counts.max())
    if draws and None in asked:
        raise Unsupported("some gradients of all rows, some of a few")
    if draws and rows > MOST_ROWS:
        raise Unsupported("too many rows")
    size = len(states) + len(asked)
    matrix, same = _linear(iteration, size)[:private], np.eye(size)[len(states) - private : len(states)]
    return _Look(tuple(draws), rows, np.any(matrix != same, axis=1).tolist())


def _linear(function: Callable[[jax.Array], jax.Array], size: int) -> np.ndarray:
    """The matrix of a function of `size` numbers, if it only ever adds them up and scales them."""
    some = np.random.default_rng(0).normal(size=(2, size))
    both = jax.jit(lambda x: (jax.jacfwd(function)(x), function(jnp.zeros(size))))
    (near, at_zero), (far, _) = (jax.tree.map(np.asarray, both(jnp.asarray(x))) for x in (some[0], 1e4 * some[1]))
    if np.any(at_zero != 0) or not np.allclose(near, far, rtol=1e-5, atol=1e-7):
        raise Unsupported("more than sums of parameters")
    return near


def _known(plan: Any, kind: int, number: Any = None) -> Any:
    """A plan in which the coins of a kind fell, known while tracing; what is not a coin stays, or is the number."""
    bits = iter(range(len(jax.tree.leaves(plan))))
    other = (lambda leaf: leaf) if number is None else (lambda leaf: number)
    return jax.tree.map(lambda leaf: np.bool_(kind >> next(bits) & 1) if leaf.dtype == bool else other(leaf), plan)


# --- doing it ---------------------------------------------------------------------------------------------------------


class Sum(NamedTuple):
    """Parameters W as Σ_j states_j·(the j-th state at the beginning) + rows·X, and their scores.

    Adding and scaling sums leaf by leaf is adding and scaling parameters; gradients are told.
    """

    scores: jax.Array  # (rows, classes): X·W
    rows: jax.Array  # (rows, classes)
    states: jax.Array  # (states,)


class Products(NamedTuple):
    """Of rows with rows: X·Xᵀ, of one client, or of many with a leading axis; if there is a unit, in half precision."""

    table: jax.Array  # (rows, rows), or some columns of it
    unit: jax.Array | None = None

    def times(self, slopes: jax.Array) -> jax.Array:
        """X·Xᵀ·slopes, in full precision as far as the table goes."""
        if self.unit is None:  # a sum of products, not a dot: of so few rows it becomes a part of whatever comes next
            return jnp.sum(self.table[:, :, None] * slopes[None], axis=1)
        # Two halves for each of the slopes, in units of the largest: together they have 21 bits, and none is out of range.
        largest = jnp.maximum(jnp.max(jnp.abs(slopes)), jnp.finfo(slopes.dtype).tiny)
        scaled = slopes / largest
        high = scaled.astype(self.table.dtype)
        low = (scaled - high).astype(self.table.dtype)
        found = jnp.dot(self.table, jnp.concatenate([high, low], axis=1), preferred_element_type=slopes.dtype)
        return self.unit * largest * sum(jnp.split(found, 2, axis=1))


@partial(jax.jit, static_argnums=0)
def products(how: Recipe, x: jax.Array) -> Products:
    """Those of all rows of many clients, in the precision that XLA has for them, or kept in half of it."""
    if not how.halves:
        return Products(jnp.einsum("mnd,mkd->mnk", *[tree.cast(x)] * 2))

    def one(x: jax.Array) -> Products:
        table = jnp.einsum("nd,kd->nk", *[tree.cast(x)] * 2)
        _, power = jnp.frexp(jnp.max(jnp.abs(table)))
        unit = jnp.ldexp(jnp.ones((), table.dtype), power)
        return Products((table / unit).astype(jnp.float16), unit)

    return jax.lax.map(one, x, batch_size=64)  # a few at a time: in whole floats all of them may not fit


class _Client(NamedTuple):
    """What is known of one client while its parameters are sums, and, with a leading axis, of many."""

    scores: Any  # of each state
    products: Products
    labels: Any
    count: Any
    weight: Any
    own: Any


def _iteration(
    how: Recipe, algorithm: Algorithm, objective: Any, scale: Any, one: _Client, plan: Any, i: Any, state: tuple
) -> tuple[Any, Any]:
    """The i-th iteration of a client: its new private state, and what it says."""

    def gradient(draw: int | None, at: Sum) -> Sum:
        """The loss's: rows, each times the weighted derivative of the link at its scores."""
        slope, none = objective.loss.link.slope, jnp.zeros_like(at.states)
        if draw is None:
            slopes = real_weight(len(one.labels), one.count)[:, None] * slope(at.scores, one.labels)
            slopes = jax.lax.optimization_barrier(slopes)  # XLA would find them again for every row
            return Sum(one.products.times(slopes), slopes, none)
        size, first = how.draws[draw], i * sum(how.draws) + sum(how.draws[:draw])
        mine = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        slopes = slope(mine(at.scores), mine(one.labels)) / size
        scores = Products(mine(one.products.table, axis=1)).times(slopes)
        return Sum(scores, jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(at.rows), slopes, first, axis=0), none)

    oracle: Any = _Answers(objective, scale, (one.count, one.weight, one.own), gradient)
    key: Any = None  # everything is drawn already
    with unrolled():
        return algorithm.client(plan, state[0], state[1], oracle, key)


def _exactly(product: Callable, *factors: Any) -> jax.Array:
    """A product in full precision also where tensor cores would have less."""
    return product(*factors, precision=jax.lax.Precision.HIGHEST)


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


class When(NamedTuple):
    """Iterations first … end−1, and which coins fall in the last of them."""

    first: Any
    end: Any
    kind: int


def _drawn(how: Recipe, algorithm: Algorithm, program: tuple, states: tuple, streams: tuple, when: When) -> jax.Array:
    """The rows of all samples of all clients, iteration after iteration, the last one's at the end."""
    objective, scale, (stack,) = program
    (shared, private), (common, own) = states, streams

    def one(k: Any, kind: int) -> jax.Array:
        plan = _known(algorithm.plan(common, k), kind)

        def client(member: Any, private: Any, stream: Any) -> jax.Array:
            oracle = _Drawing(objective, scale, member)
            with unrolled():
                algorithm.client(plan, shared, private, oracle, randomness.of(stream, k))
            return jnp.concatenate(oracle.drawn)

        return jax.vmap(client)(stack, private, own)

    last = one(when.end - 1, when.kind)
    if not how.together:
        return last
    k = when.first + jnp.arange(how.together, dtype=jnp.int32)
    silent = jax.vmap(partial(one, kind=0), out_axes=1)(k)
    return jnp.concatenate([silent.reshape(len(silent), -1), last], axis=1)


class _Basis:
    """What the parameters of many clients are sums of: shared states, private states, and rows."""

    def __init__(self, exact: bool, x: jax.Array, shared: list[jax.Array], private: list[jax.Array]) -> None:
        self.x, self.shared, self.private = x, shared, private
        # All rows times all parameters are products as XLA makes them for one iteration, in the precision that it has.
        self.product = partial(_exactly, jnp.einsum) if exact else jnp.einsum
        self._few = x.shape[1] <= FEW_ROWS  # there is less of rows than of states

    def scores(self) -> list[jax.Array]:
        """Rows times each of the states."""
        x, many = self.x, len(self.shared) + len(self.private)
        if not self._few:  # many rows are read once for all states
            ours = [jnp.broadcast_to(leaf, (len(x), *leaf.shape)) for leaf in self.shared]
            return jnp.split(
                self.product("mnd,mqd->mnq", x, jnp.concatenate([*ours, *self.private], axis=1)), many, axis=2
            )
        ours = list(self.product("mnd,qcd->qmnc", x, jnp.stack(self.shared))) if self.shared else []
        return ours + [self.product("mnd,mcd->mnc", x, leaf) for leaf in self.private]

    def written(self, found: list[Sum]) -> list[jax.Array]:
        """The parameters that some sums are, for each client."""
        if self._few or not found:
            rows = [jnp.sum(one.rows[..., None] * self.x[:, :, None], axis=1) for one in found]
        else:
            all_rows = jnp.concatenate([one.rows for one in found], axis=2)
            rows = jnp.split(self.product("mnq,mnd->mqd", all_rows, self.x), len(found), axis=1)
        states = [*(leaf[None] for leaf in self.shared), *self.private]
        return [
            sum((a[:, None, None] * leaf for a, leaf in zip(one.states.T, states, strict=True)), part)
            for one, part in zip(found, rows, strict=True)
        ]

    def mean(self, found: Sum, share: jax.Array) -> jax.Array:
        """Their weighted mean, for which nobody has to write all of them."""
        weights, many = (share[:, None] * found.states).T, len(self.shared)
        ours = (jnp.sum(a) * leaf for a, leaf in zip(weights, self.shared, strict=False))
        mine = (jnp.sum(a[:, None, None] * leaf, axis=0) for a, leaf in zip(weights[many:], self.private, strict=True))
        # Many products of some rows, and their sum: XLA's product of so many rows at once takes three times as long.
        some = _divisor(self.x.shape[0] * self.x.shape[1])
        rows = (leaf.reshape(some, -1, leaf.shape[2]) for leaf in (share[:, None, None] * found.rows, self.x))
        return sum((*ours, *mine), jnp.sum(self.product("gkc,gkd->gcd", *rows), axis=0))

    def servers(self, states: jax.Array) -> jax.Array:
        """The server's, which is a sum of shared states, the same for everyone."""
        return sum((a * leaf for a, leaf in zip(states[0], self.shared, strict=False)), jnp.zeros_like(self.shared[0]))


def _divisor(count: int, most: int = 1024) -> int:
    """The largest one that is not larger."""
    return next(n for n in range(min(most, count), 0, -1) if count % n == 0)


def _whole(of: Callable[[Sum], Any], found: Any) -> Any:
    return jax.tree.map(of, found, is_leaf=lambda node: isinstance(node, Sum))


def clients(
    how: Recipe, algorithm: Algorithm, program: tuple, states: tuple, streams: tuple, kept: Products | None, when: When
) -> tuple[Any, list[jax.Array], Any]:
    """Several iterations of all clients of a chunk: the shared state after them, private states, and what is said.

    Of the private states only those that move are given back (see `put`), of what is said, these clients' share of the mean.

    `states` are the shared and the private state, with parameters as (classes, features); `streams` the common one and the
    clients' own; `kept` are the products of all rows, where somebody keeps them. The last iteration ends with the message:
    the server's part of it is not done here.
    """
    objective, scale, (stack,) = program
    x, labels = stack.x, stack.y
    if how.draws:
        rows = _drawn(how, algorithm, program, states, streams, when)
        x, labels = (jax.vmap(lambda leaf, index: leaf[index])(leaf, rows) for leaf in (x, labels))
    x, (mine, form) = tree.cast(x), jax.tree.flatten(states[1])
    basis = _Basis(bool(how.draws), x, jax.tree.leaves(states[0]), mine)
    if how.draws:
        kept = Products(basis.product("mnd,mkd->mnk", x, x))
    scores, kept = basis.scores(), products(how, x) if kept is None else kept
    everyone = _Client(scores, kept, labels, stack.count, stack.weight, stack.own)

    def one(known: _Client) -> tuple[Any, Any]:
        names = jnp.eye(len(scores), dtype=x.dtype)
        begin = [Sum(s, jnp.zeros_like(s), e) for s, e in zip(known.scores, names, strict=True)]
        shared, private = jax.tree.unflatten(jax.tree.structure(states), begin)
        run = partial(_iteration, how, algorithm, objective, scale, known)

        def servers(states: jax.Array) -> Sum:
            """The server's are sums of the shared states alone: nothing else has to be carried along."""
            parts = [a * s for a, s in zip(states, known.scores[: len(basis.shared)], strict=False)]
            scores = reduce(jnp.add, parts)
            return Sum(scores, jnp.zeros_like(scores), states)

        def quiet(i: Any, state: tuple) -> tuple:
            """An iteration in which nobody speaks, and after which everybody knows what the server does."""
            plan, before = _known(algorithm.plan(streams[0], when.first + i), 0), jax.tree.map(servers, state[0])
            moved, message = run(plan, i, (before, state[1]))
            return _whole(lambda found: found.states, algorithm.server(plan, before, tree.zeros(message))), moved

        def some(i: int, state: tuple) -> tuple:
            """The same, if it is not the last one already."""
            return tree.select(when.first + i < when.end - 1, quiet(i, state), state)

        state = _whole(lambda found: found.states, shared), private
        if how.draws:  # as many as rows were drawn for, for a GPU asks nobody about the end of a loop that it knows
            state = jax.lax.fori_loop(0, how.together, some, state)
        elif how.together:
            state = jax.lax.fori_loop(0, when.end - 1 - when.first, quiet, state)
        plan = _known(algorithm.plan(streams[0], when.end - 1), when.kind)
        private, message = run(plan, how.together, (jax.tree.map(servers, state[0]), state[1]))
        return (state[0], private), message

    # Sums are found before they are written: XLA would find them again for every feature.
    (shared, private), message = jax.lax.optimization_barrier(jax.vmap(one)(everyone))
    found = form.flatten_up_to(private)
    moved = basis.written([part for part, moves in zip(found, how.moves, strict=True) if moves])
    if len(moved) > 1:
        # What is said comes after what is written: a loop that does both for several states is three times as slow as both.
        moved, basis.private = jax.lax.optimization_barrier((moved, basis.private))
    # Nobody reads anything for a part that is not sent.
    with jax.ensure_compile_time_eval():
        sent = algorithm.sends(_known(jax.eval_shape(algorithm.plan, *streams[:1], when.end), when.kind, 3))
    none = jnp.zeros((objective.loss.link.outputs, x.shape[2]), x.dtype)
    said = partial(basis.mean, share=stack.share)
    message = jax.tree.map(lambda flag, part: _whole(said if flag else lambda _: none, part), sent, message)
    return jax.tree.map(basis.servers, shared) if how.together else states[0], moved, message


def put(how: Recipe, private: Any, moved: list[jax.Array]) -> Any:
    """Private states of which some have moved. The others are not passed through a program, which would copy them."""
    leaves, form = jax.tree.flatten(private)
    news = iter(moved)
    return form.unflatten(next(news) if moves else leaf for moves, leaf in zip(how.moves, leaves, strict=True))
