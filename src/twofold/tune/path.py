"""Fits along a path of strengths, all folds at once: one compiled program, each fit started where the last one ended.

A row that is held out has the weight zero in its client's mean, so that all folds have the same shapes. The strength is a number
of the objective, which is data to the compiled program: another one compiles nothing.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from twofold import randomness, tree
from twofold.algorithms import Profile
from twofold.algorithms.base import Algorithm
from twofold.clients import Clients
from twofold.engines.loop import Layout, State, client_streams, first_state, iteration, report, step
from twofold.engines.schedule import footprint
from twofold.objectives.base import Objective
from twofold.oracle import Member, Program
from twofold.problem import Problem
from twofold.result import Ledger
from twofold.solver import complete
from twofold.solver.steps import facts_of
from twofold.tree import Pytree
from twofold.variables import Variables

__all__ = ["Fit", "Path", "assign"]

MOST_ROUNDS = {"quadratic": 2, "newton": 30, "lbfgs": 150}
CALM = {"quadratic": (1e-4, 1), "newton": (1e-4, 1), "lbfgs": (1e-7, 2)}
"""The second round of Newton's method has found the minimum of a quadratic. Elsewhere a fit is over when F has fallen by less than this
part of itself in so many rounds on end. A step of Newton's that lowers F by a ten-thousandth leaves about the square of that, far below
the error of any loss held out; the first steps of L-BFGS say nothing."""
AT_ONCE = 1 << 28
"""Bytes of (folds × rows × features) up to which all folds are fitted together."""

Rows: TypeAlias = NDArray[np.float64]
"""One number per row, of all clients one after the other."""
Buckets: TypeAlias = tuple[jax.Array, ...]
"""Padded arrays (clients, rows), one for each bucket of clients of similar size."""


class Fit(NamedTuple):
    """What one strength gives: the loss and the grade of every row, by the model that has not seen it, the rounds, and the end."""

    loss: Rows
    grade: Rows
    rounds: NDArray[np.int64]  # of each fold
    end: Point


class Point(NamedTuple):
    """Where each fold's fit ended: w, and each bucket's β, with a leading axis of folds."""

    w: Pytree
    parts: tuple[Pytree, ...]


class Fitted(NamedTuple):
    """A `Fit` as the compiled program gives it: padded; the end and the rounds have a leading axis of folds."""

    end: Point
    rounds: jax.Array
    losses: Buckets  # each row's own fold's
    grades: Buckets


Search: TypeAlias = tuple[jax.Array, State, jax.Array, jax.Array]
"""Iteration k, the engine's state, F at it, and for how many rounds on end F has hardly fallen."""


def assign(clients: Clients, folds: int, seed: int, stratify: bool) -> NDArray[np.int32]:
    """The fold in which each row is held out: inside every client, in parts as equal as can be.

    With `stratify` each label's share in a fold is that among the client's rows, up to one row. Rows of weight zero take up no place.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.ones((4, 1)), np.ones(4)), (np.ones((2, 1)), np.ones(2))])
    >>> np.bincount(assign(clients, 2, seed=0, stratify=False)[:4]).tolist()
    [2, 2]
    """
    fold = np.zeros(clients.rows, np.int32)
    there = np.ones(clients.rows, bool) if clients.row_weights is None else clients.row_weights > 0
    for m, (start, end) in enumerate(itertools.pairwise(clients.offsets)):
        rng = np.random.default_rng((seed, m))
        row = start + rng.permutation(np.flatnonzero(there[start:end]))
        if stratify:
            row = row[np.argsort(np.asarray(clients.y)[row], kind="stable")]
        fold[row] = (np.arange(len(row)) + rng.integers(folds)) % folds
    return fold


class Path:
    """Fits of one family of objectives on one set of clients and folds. What it costs is counted in `ledger`."""

    def __init__(self, objective: Objective, clients: Clients, fold: NDArray[np.int32], folds: int) -> None:
        self.clients, self.folds = clients, folds
        problem = Problem(objective, clients, sampling="uniform")
        self._problem = problem
        self._algorithm, kind = _for_a_path(complete(problem, "profile")[0], facts_of(problem).quadratic)
        self._variables = problem.variables
        self._stacks = tuple(stack._replace(draws=None, proof=None) for stack in problem.stacks)
        self._held = tuple(jnp.asarray(part) for part in self._padded(fold, -1))
        weights = np.ones(clients.rows) if clients.row_weights is None else np.asarray(clients.row_weights)
        self._weights = tuple(
            jnp.asarray(np.stack(parts))
            for parts in zip(*(self._of_fold(weights, fold != f) for f in range(folds)), strict=True)
        )
        w, beta = problem.start
        self._point = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (folds, *leaf.shape)), Point(w, problem.split(beta))
        )
        width = sum(leaf[0].size for leaf in jax.tree.leaves(clients.x))
        self._together = folds * clients.rows * width * 8 <= AT_ONCE
        self._most, self._calm = MOST_ROUNDS[kind], CALM[kind]
        plan = self._algorithm.plan(randomness.common(randomness.root(0)), jnp.int32(0))
        billed, counting = problem.billed, self._algorithm
        if billed is not problem:
            counting = tree.cast(complete(billed, self._algorithm, problem.constants())[0])
        there = weights > 0
        counted = np.stack(
            [np.add.reduceat(there & (fold != f), clients.offsets[:-1], dtype=np.int64) for f in range(folds)]
        )
        each = counting.evaluations(plan, jnp.asarray(counted, jnp.result_type(float)))
        self._each_round = [np.asarray(part, np.int64) for part in each]  # (folds, clients)
        self._floats = int(sum(footprint(counting, billed).parts))
        self.opening_floats = billed.clients.opening_floats
        self.ledger = _nothing(len(clients))

    def _padded(self, values: NDArray[Any], fill: float) -> list[NDArray[Any]]:
        """One entry per row as padded stacks, one for each bucket."""
        found: list[NDArray[Any]] = []
        for positions, stack in zip(self._problem.positions, self._stacks, strict=True):
            counts, start = self.clients.counts[positions], self.clients.offsets[:-1][positions]
            row = np.arange(jax.tree.leaves(stack.x)[0].shape[1])
            real = row < counts[:, None]
            found.append(np.where(real, values[start[:, None] + np.where(real, row, 0)], fill).astype(values.dtype))
        return found

    def _of_fold(self, weights: NDArray[np.float64], train: NDArray[np.bool_]) -> list[NDArray[Any]]:
        """The weights of the rows that a fold is trained on, with mean one over every client's rows."""
        first, counts = self.clients.offsets[:-1], self.clients.counts
        mine = weights * train
        total = np.add.reduceat(mine, first)
        # A client with no row to train on has no loss in this fold, only what the objective pulls it to.
        return self._padded(mine * np.repeat(counts / np.where(total > 0, total, 1.0), counts), 0.0)

    def fit(self, objective: Objective, own: Pytree | None = None, start: Point | None = None) -> Fit:
        """Fit every fold with this objective, from `start` or else where the last fit ended; `own` has an axis of folds if given."""
        bound = objective.prepare(self.clients, lambda first: Problem(first, self.clients).optimum()[:2])
        each = bound.own(self.clients) if own is None else own
        spread = each if own is not None else jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (self.folds, *np.shape(leaf))), each
        )  # fmt: skip
        owns = tuple(
            jax.tree.map(lambda leaf, p=p: jnp.asarray(np.asarray(leaf)[:, p]), spread) for p in self._problem.positions
        )
        inner = bound.by_class()
        fixed = (
            tree.cast(bound if inner is None else inner),
            tree.cast(bound),
            self._variables,
            self._stacks,
            self._held,
        )
        numbers = jnp.arange(self.folds, dtype=jnp.int32)
        several = (numbers, self._weights, owns, self._point if start is None else start)
        if self._together:
            found = _fit(self._algorithm, *fixed, *several, most=self._most, calm=self._calm)
        else:
            alone = [jax.tree.map(lambda leaf, f=f: leaf[f : f + 1], several) for f in range(self.folds)]
            each_found = [_fit(self._algorithm, *fixed, *fold, most=self._most, calm=self._calm) for fold in alone]
            found = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each_found)
        self._point = found.end
        rounds = np.asarray(found.rounds, np.int64)
        self._count(rounds)
        return Fit(self._flat(found.losses), self._flat(found.grades), rounds, self._point)

    def _flat(self, parts: Buckets) -> Rows:
        """Padded stacks with an axis of folds as one entry per row: each row has its own fold's, elsewhere zero."""
        out = np.empty(self.clients.rows)
        for positions, part in zip(self._problem.positions, parts, strict=True):
            total = np.asarray(part, np.float64).sum(axis=0)
            for i, m in enumerate(positions):
                lo, hi = self.clients.offsets[m], self.clients.offsets[m + 1]
                out[lo:hi] = total[i, : hi - lo]
        return out

    def _count(self, rounds: NDArray[np.int64]) -> None:
        """Add what these rounds cost: the folds' messages travel together, so that a round of all of them is one."""
        of_w, of_beta = (rounds @ part for part in self._each_round)
        problem = self._problem
        floats = self._floats * int(rounds.sum()) if problem.has_shared else 0
        most = int(rounds.max())
        self.ledger = self.ledger + Ledger(
            most if problem.has_shared else 0, most, floats, floats, 8 * floats, 8 * floats,
            of_w * problem.has_shared, of_beta * problem.has_private,
        )  # fmt: skip


def _for_a_path(algorithm: Algorithm, quadratic: bool) -> tuple[Algorithm, str]:
    """The method with as many steps of each client in a round as a path needs, and its kind: a key of `MOST_ROUNDS`.

    One step of Newton's finds the minimum of a quadratic. Elsewhere two will do, since every fit starts where its neighbour ended.
    (One is too few there: with a strong pull, ∇φ_m is then that of a quadratic model, and F stands still before the end.)
    """
    if not isinstance(algorithm, Profile) or algorithm.outer != "newton":
        return tree.cast(algorithm), "lbfgs"
    there = dataclasses.replace(cast(Any, algorithm), steps=1 if quadratic else 2)
    return tree.cast(there), "quadratic" if quadratic else "newton"


def _nothing(clients: int) -> Ledger:
    none = np.zeros(clients, np.int64)
    return Ledger(0, 0, 0, 0, 0, 0, none, none)


@partial(jax.jit, static_argnames=("most", "calm"))
def _fit(
    algorithm: Algorithm, inner: Objective, outer: Objective, variables: Variables, stacks: tuple[Member, ...],
    held: Buckets, fold: jax.Array, weights: Buckets, owns: tuple[Pytree, ...], start: Point, *, most: int,
    calm: tuple[float, int],
) -> Fitted:  # fmt: skip
    """Every fold's fit: where it ended, its rounds, and the loss and the grade of the rows that it held out."""

    def of_fold(fold: jax.Array, weights: Buckets, owns: tuple[Pytree, ...], start: Point) -> Fitted:
        mine = tuple(
            stack._replace(row_weight=weight, own=own) for stack, weight, own in zip(stacks, weights, owns, strict=True)
        )
        program = Program(inner, variables, mine)
        streams = client_streams(randomness.root(0), tuple(stack.position for stack in mine))

        def value(state: State) -> jax.Array:
            here = report(algorithm, state, program.sizes)
            return program.mean(program.values(here.w, here.parts))

        def going(carry: Search) -> jax.Array:
            k, _, _, quiet = carry
            return (k < most) & (quiet < calm[1])

        def once(carry: Search) -> Search:
            k, state, before, calm_for = carry
            state = step(algorithm, program, Layout(), *iteration(algorithm, program, streams, k, state))
            after = value(state)
            quiet = before - after <= calm[0] * jnp.abs(after)
            return k + 1, state, after, jnp.where(quiet, calm_for + 1, 0)

        state = first_state(algorithm, program, *program.inward(start.w, start.parts))
        carry = (jnp.int32(0), state, jnp.asarray(jnp.inf, jnp.result_type(float)), jnp.int32(0))
        k, state, _, _ = jax.lax.while_loop(going, once, carry)
        here = report(algorithm, state, program.sizes)
        end = Point(*program.outward(here.w, here.parts))
        graded = [
            _held_out(outer, stack, end.w, part, h == fold)
            for stack, part, h in zip(mine, end.parts, held, strict=True)
        ]
        losses, grades = zip(*graded, strict=True)
        return Fitted(end, k, losses, grades)

    return jax.vmap(of_fold)(fold, weights, owns, start)


def _held_out(
    objective: Objective, stack: Member, w: Pytree, beta: Pytree, held: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The loss and the grade of every client's rows that are held out, zero for the others."""

    def of_client(member: Member, beta: Pytree, held: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = member.rows()
        params = objective.personal(w, beta, rows, member.own)
        loss = objective.loss.row_losses(params, rows.x, rows.y)
        grade = objective.loss.grade(params, rows.x, rows.y)
        return jnp.where(held, loss, 0), jnp.where(held, grade, 0)

    size = len(stack.count)
    return jax.vmap(of_client, axis_size=size)(stack, beta, held)
