"""Several iterations of a client for little more than the price of one, for linear models whose clients have few rows.

All that a method does with parameters is to add and to scale them, and a linear model's gradient is a sum of rows, each times
slopes that depend on the row's scores x·W alone. So whatever the parameters become in some iterations, they are a sum of the
states at the beginning and of the rows; and scores of a sum are the sum of scores. So the scores of all states are found once,
and the products of rows with rows. Then `algorithm.client` itself runs on parameters that are such sums (`Sum`), a few hundred
numbers each, for as many iterations as nobody speaks, and in the end what they have become is written. Parameters, by far the
most of what a memory has to move, are read twice and written once for all of these iterations. No algorithm and no objective
is written twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

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
"""Rows of one iteration, or of some together; with more, their products with each other cost more than they save."""
TOGETHER = 16
"""Silent iterations that are done together, where so many are usual and their rows are not too many."""


class Unsupported(Exception):  # noqa: N818  (not an error: iterations are done one by one)
    """Something that cannot be done in this way."""


class Recipe(NamedTuple):
    """How an algorithm's iterations are done together: some silent ones, and one with which a round ends."""

    draws: tuple[int, ...]  # rows of each sample of an iteration; none where gradients are of all rows
    together: int  # silent iterations
    moves: tuple[bool, ...]  # which of the private states change
    kinds: tuple[int, ...]  # of the last iteration: by the coins that fell in it, as in `Schedule`


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
    if not (objective.whole and isinstance(loss, Linear) and loss.link.outputs) or loss.intercept:
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
    if algorithm.silent:  # up to twice as many as are usual, so that most rounds are one piece
        usual = int(memory.usual_stretch(algorithm))
        together = min(TOGETHER, 1 << usual.bit_length(), MOST_ROWS // first.rows if first.draws else TOGETHER)
    last = [kind for kind in kinds if kind or not algorithm.silent]
    alike = {kind: look for kind in last if (look := found[kind]) is not None and look.draws == first.draws}
    moves = np.any([look.moves for look in (first, *alike.values())], axis=0)
    return Recipe(first.draws, together, tuple(moves.tolist()), tuple(alike))


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
    rows = sum(draws) if draws else problem.abstract_member.x.shape[0]
    if draws and None in asked:
        raise Unsupported("some gradients of all rows, some of a few")
    if rows > MOST_ROWS:
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


class _Client(NamedTuple):
    """What is known of one client while its parameters are sums, and, with a leading axis, of many."""

    scores: Any  # of each state
    products: Any  # of rows with rows
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
            return Sum(_exactly(jnp.dot, one.products, slopes), slopes, none)
        size, first = how.draws[draw], i * sum(how.draws) + sum(how.draws[:draw])
        mine = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        slopes = slope(mine(at.scores), mine(one.labels)) / size
        # A sum of products, not a dot: of so few rows it becomes a part of whatever comes next.
        scores = jnp.sum(mine(one.products, axis=1)[:, :, None] * slopes[None], axis=1)
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


class Silent(NamedTuple):
    """Iterations in which nobody speaks: plans, numbers, and which are to be done by clients and by the server."""

    plans: Any
    k: Any
    by_clients: Any
    by_server: Any


class Last(NamedTuple):
    """The iteration after them: what kind it is, its plan and its number."""

    kind: int
    plan: Any
    k: Any


def _drawn(
    algorithm: Algorithm, program: tuple, states: tuple, streams: Any, silent: Silent | None, last: Last | None
) -> jax.Array:
    """The rows of all samples of all clients, iteration after iteration."""
    objective, scale, (stack,) = program
    shared, private = states

    def one(plan: Any, k: Any) -> jax.Array:
        def client(member: Any, private: Any, stream: Any) -> jax.Array:
            oracle = _Drawing(objective, scale, member)
            with unrolled():
                algorithm.client(plan, shared, private, oracle, randomness.of(stream, k))
            return jnp.concatenate(oracle.drawn)

        return jax.vmap(client)(stack, private, streams)

    found = []
    if silent is not None:
        some = jax.vmap(lambda plan, k: one(_known(plan, 0), k), out_axes=1)(silent.plans, silent.k)
        found.append(some.reshape(len(some), -1))
    if last is not None:
        found.append(one(_known(last.plan, last.kind), last.k))
    return jnp.concatenate(found, axis=1)


def clients(
    how: Recipe, algorithm: Algorithm, program: tuple, states: tuple, streams: Any, silent: Silent | None, last: Last | None
) -> tuple[Any, Any]:  # fmt: skip
    """Several iterations of all clients of a chunk: the states after them, and their share of the last mean message.

    `states` are the shared and the private state, with parameters as (classes, features). The last iteration ends with the
    message: the server's part of it is not done here.
    """
    objective, scale, (stack,) = program
    many = 0 if silent is None else len(silent.k)
    x, labels = stack.x, stack.y
    if how.draws:
        rows = _drawn(algorithm, program, states, streams, silent, last)
        x, labels = (jax.vmap(lambda leaf, index: leaf[index])(leaf, rows) for leaf in (x, labels))
    x = tree.cast(x)
    # All rows times all parameters are products as XLA makes them for one iteration, in the precision that it has for them.
    product = partial(_exactly, jnp.einsum) if how.draws else jnp.einsum
    ours, (mine, form) = jax.tree.leaves(states[0]), jax.tree.flatten(states[1])
    scores = list(product("mnd,qcd->qmnc", x, jnp.stack(ours))) if ours else []
    scores += [product("mnd,mcd->mnc", x, leaf) for leaf in mine]
    known = _Client(scores, product("mnd,mkd->mnk", x, x), labels, stack.count, stack.weight, stack.own)

    def one(known: _Client) -> tuple[Any, Any]:
        basis = jnp.eye(len(scores), dtype=x.dtype)
        begin = [Sum(s, jnp.zeros_like(s), e) for s, e in zip(known.scores, basis, strict=True)]
        state, message = jax.tree.unflatten(jax.tree.structure(states), begin), ()
        run = partial(_iteration, how, algorithm, objective, scale, known)

        def quiet(state: tuple, each: tuple) -> tuple[tuple, None]:
            """An iteration in which nobody speaks, and after which everybody knows what the server does."""
            (plan, _, by_client, by_server), i = each
            plan = _known(plan, 0)
            moved, message = run(plan, i, state)
            after = algorithm.server(plan, state[0], tree.zeros(message))
            return (tree.select(by_server, after, state[0]), tree.select(by_client, moved, state[1])), None

        if silent is not None:
            state, _ = jax.lax.scan(quiet, state, (silent, jnp.arange(many)))
        if last is not None:
            moved, message = run(_known(last.plan, last.kind), many, state)
            state = state[0], moved
        return state, message

    def everyones(found: Sum) -> jax.Array:
        """The parameters that the sums are."""
        shares = zip(found.states.T, [*(leaf[None] for leaf in ours), *mine], strict=True)
        return sum((a[:, None, None] * leaf for a, leaf in shares), product("mnc,mnd->mcd", found.rows, x))

    def servers(found: Sum) -> jax.Array:
        """The same of the shared state, which is a sum of shared states alone, and the same for everyone."""
        return sum((a * leaf for a, leaf in zip(found.states[0], ours, strict=False)), jnp.zeros_like(ours[0]))

    def mean(found: Sum) -> jax.Array:
        """Their weighted mean, for which nobody has to write all of them."""
        weights = (stack.share[:, None] * found.states).T
        shared = (jnp.sum(a) * leaf for a, leaf in zip(weights, ours, strict=False))
        private = (jnp.sum(a[:, None, None] * leaf, axis=0) for a, leaf in zip(weights[len(ours) :], mine, strict=True))
        return sum((*shared, *private), product("mnc,mnd->cd", stack.share[:, None, None] * found.rows, x))

    def whole(of: Callable[[Sum], jax.Array], found: Any) -> Any:
        return jax.tree.map(of, found, is_leaf=lambda node: isinstance(node, Sum))

    (shared, private), message = jax.vmap(one)(known)
    moves = jax.tree.unflatten(form, how.moves)
    private = jax.tree.map(lambda moves, found, leaf: everyones(found) if moves else leaf, moves, private, states[1])
    if last is not None:  # nobody reads anything for a part that is not sent
        with jax.ensure_compile_time_eval():
            sent = algorithm.sends(_known(last.plan, last.kind, 3))
        none = jnp.zeros((objective.loss.link.outputs, x.shape[2]), x.dtype)
        message = jax.tree.map(lambda flag, part: whole(mean if flag else lambda _: none, part), sent, message)
    return (whole(servers, shared) if many else states[0], private), message
