"""What is known before anything runs: what each iteration sends, and from that when a run ends and what it costs.

A plan is pure in (stream, k), so all of a run's plans are known up front. What is counted is counted iteration by iteration
from `sends(plan)` and `evaluations(plan, rows)`, whatever kind of thing a plan is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness
from twofold.algorithms.base import Algorithm, Footprint, Plan, check, trace
from twofold.errors import ContractError
from twofold.oracle import Member, Program
from twofold.problem import Problem

__all__ = ["Course", "Schedule", "footprint"]

BLOCK = 8192
"""Iterations whose plans are drawn together."""


Total = Any
"""An array of totals, or one number of it."""
Array = jax.Array | np.ndarray


class Course(NamedTuple):
    """Totals after each iteration, (seeds, iterations): rounds, scalars that a client sends, its single-row gradients."""

    rounds: Total
    floats: Total
    gradients_w: Total
    gradients_beta: Total

    def at(self, places: Any) -> Course:
        """The totals at some places."""
        return Course(*(column[places] for column in self))


class Schedule:
    """The course of every seed's run, computed as far ahead as it is asked for. Gradients are those of a client of mean size.

    `opening` is the number of scalars that a client sends (and receives) once, before the first iteration.
    """

    def __init__(
        self, algorithm: Algorithm, problem: Problem, parts: tuple[int, ...], seeds: list[int], opening: int = 0
    ) -> None:
        self.algorithm, self.problem, self._parts = algorithm, problem, np.array(parts, np.int64)
        self._common = np.stack([np.asarray(randomness.common(randomness.root(seed))) for seed in seeds])
        self._rows = float(np.mean(problem.clients.counted))
        self._blocks = np.array([problem.has_shared, problem.has_private])  # nothing is evaluated in an empty one
        self._counts, self._of_client = np.unique(problem.clients.counted, return_inverse=True)
        self._first = 0  # the first iteration of `_known`
        nothing = np.zeros((len(seeds), 1))
        self._known = Course(nothing, nothing + opening, nothing, nothing)

    def ahead(self, k: int, count: int) -> Course:
        """The totals after k, k+1, …, k+count iterations. Earlier ones are forgotten."""
        while self._first + self._known.rounds.shape[1] - 1 < k + count:
            self._extend()
        here = k - self._first
        self._known = Course(*(column[:, max(here - BLOCK, 0) :] for column in self._known))
        self._first += max(here - BLOCK, 0)
        return self._known.at(np.s_[:, k - self._first : k - self._first + count + 1])

    def _extend(self) -> None:
        k = self._first + self._known.rounds.shape[1] - 1
        sent, evaluated = self._look(k, BLOCK, np.array([self._rows]))
        floats = sent @ self._parts
        new = (floats > 0, floats, *np.moveaxis(evaluated[..., 0] * self._blocks, -1, 0))
        grown = [
            np.concatenate([old, old[:, -1:] + np.cumsum(each, axis=1)], axis=1)
            for old, each in zip(self._known, new, strict=True)
        ]
        self._known = Course(*grown)

    def _look(self, k: int, count: int, rows: np.ndarray, seeds: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Which parts are sent (seeds, count, parts), and the gradients evaluated (seeds, count, 2, rows)."""
        numbers = np.arange(k, k + count, dtype=np.int32)
        plans = _plans(self.algorithm, self._common[seeds], numbers)
        sent, evaluated = _look(self.algorithm, plans, np.asarray(rows, jnp.result_type(float)))
        return np.asarray(sent), np.asarray(evaluated, np.float64)

    def sent(self, row: int, k: int, count: int) -> np.ndarray:
        """Scalars that a client sends in each of the iterations k … k+count−1 of one seed."""
        mine = slice(row, row + 1)
        flags = [self._look(i, BLOCK, self._counts[:1], mine)[0][0] for i in range(k, k + count, BLOCK)]
        return (np.concatenate(flags)[:count] if flags else np.zeros((0, len(self._parts)))) @ self._parts

    def evaluated(
        self, row: int, iterations: int, present: Callable[[int, int], np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Single-row gradients that each client evaluated in w and in β in one seed's first iterations.

        `present(k, count)` says who took part, (count, clients); by default everyone.
        """
        totals = np.zeros((2, len(self._of_client)))
        size = int(np.clip((1 << 20) // len(self._counts), 64, BLOCK))
        for k in range(0, iterations, size):
            _, found = self._look(k, size, self._counts, slice(row, row + 1))
            real = found[0, : iterations - k] * self._blocks[:, None]
            if present is None:
                totals += real.sum(axis=0)[:, self._of_client]
            else:
                here = present(k, len(real))
                totals += np.einsum("kcm,km->cm", real[:, :, self._of_client], here)
        return tuple(np.rint(totals).astype(np.int64))


@jax.jit
def _plans(algorithm: Algorithm, common: jax.Array, k: jax.Array) -> Plan:
    """Every plan, (seeds, iterations). On its own: fused with what follows, its hash takes XLA minutes to compile."""
    return jax.vmap(jax.vmap(algorithm.plan, (None, 0)), (0, None))(common, k)


@jax.jit
def _look(algorithm: Algorithm, plans: Plan, rows: Array) -> tuple[jax.Array, jax.Array]:
    def of_plan(plan: Plan) -> tuple[jax.Array, jax.Array]:
        found = algorithm.evaluations(plan, rows)
        evaluated = [jnp.broadcast_to(jnp.asarray(each, rows.dtype), rows.shape) for each in found]
        return jnp.stack([jnp.asarray(flag) for flag in algorithm.sends(plan)]), jnp.stack(evaluated)

    return jax.vmap(jax.vmap(of_plan))(plans)


def footprint(algorithm: Algorithm, problem: Problem) -> Footprint:
    """The shapes of an algorithm's states and message on this problem; refuses an algorithm that breaks the contract."""
    check(algorithm)
    program = problem.program(problem.abstract_member)
    try:
        return _footprint.eval_shape(algorithm, program, *problem.abstract_start)
    except ContractError as broken:  # anew, without what JAX adds about its own frames
        raise ContractError(*broken.args) from None
    except jax.errors.JAXTypeError as error:
        raise ContractError(
            f"{type(algorithm).__name__}: its functions must be ones that JAX can trace; use jnp.where or control.branch in place "
            f"of if, and jax.numpy in place of numpy. {str(error).splitlines()[0]}"
        ) from None


@jax.jit
def _footprint(algorithm: Algorithm, program: Program, w: Any, beta: Any) -> Footprint:
    """Never run, and traced once for all problems of one shape."""
    (member,) = program.stacks
    stream = randomness.root(0)
    oracle = program.oracle(Member(*member))
    return trace(algorithm, oracle, stream, randomness.of(stream, 0), w, beta)
