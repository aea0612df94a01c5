"""Rows drawn ahead are those of a draw on the spot, bit for bit, for every client, seed, iteration and local step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import problems
import twofold as tw
from twofold import randomness
from twofold.algorithms.base import Algorithm
from twofold.control import repeat
from twofold.engines import ahead
from twofold.engines.simulate import Simulate
from twofold.tree import record, static

STEPS, OWN = 3, 11
DRAWN = 16  # in place of OWN: whole lanes of a CPU's


class Plan(NamedTuple):
    k: Any


class Seen(NamedTuple):
    own: Any
    steps: Any


@record
class Samples(Algorithm):
    """Nothing but samples: some of the key itself, and some of each local step's key, whose number is off by `shift`."""

    shift: int = static(default=0)
    name = "samples"
    silent = False

    def init(self, w0: Any) -> Any:
        return w0

    def init_private(self, w0: Any, beta0: Any, oracle: Any) -> Seen:
        return Seen(jnp.zeros(OWN, jnp.int32), jnp.zeros((STEPS, 2), jnp.int32))

    def plan(self, stream: Any, k: Any) -> Plan:
        return Plan(jnp.asarray(k, jnp.int32))

    def client(self, plan: Plan, shared: Any, private: Seen, oracle: Any, key: Any) -> tuple[Seen, Any]:
        def one(r: Any, seen: Any) -> Any:
            number = r + self.shift if self.shift else r
            return seen.at[r].set(oracle.sample(randomness.at(key, number), 2).index)

        few = oracle.sample(key, 2).index  # the first of those below
        own = jnp.where(few[0] == oracle.sample(key, OWN).index[0], oracle.sample(key, OWN).index, -1)
        return Seen(own, repeat(STEPS, one, private.steps)), (shared,)

    def server(self, plan: Plan, shared: Any, mean: Any) -> Any:
        return shared

    def sends(self, plan: Plan) -> Any:
        return (jnp.ones_like(plan.k, dtype=bool),)

    def model(self, shared: Any) -> Any:
        return shared

    def personal(self, private: Seen) -> Any:
        return private


def expected(problem: Any, seed: int, k: int, shift: int) -> list[Seen]:
    """By hand, client by client, each bucket's in its order."""

    def one(m: int) -> Seen:
        key, count = randomness.of(randomness.private(randomness.root(seed), m), k), problem.clients.counts[m]
        steps = [randomness.rows(randomness.at(key, r + shift), count, 2) for r in range(STEPS)]
        return Seen(np.asarray(randomness.rows(key, count, OWN)), np.stack(steps))

    found = [[one(int(m)) for m in positions] for positions in problem.positions]
    return [Seen(*map(np.stack, zip(*bucket, strict=True))) for bucket in found]


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("seeds", [[3], [3, 1]])
def test_the_same_rows(shift: int, seeds: list[int]):
    """In the first iteration of a call, in its last, and in a call that goes on."""
    whole = problems.problem("mixture", "logistic")
    order = np.arange(whole.M)[::-1]
    problem = tw.Problem(whole.objective, whole.clients, buckets=[order[:1], order[1:]])
    engine, k = Simulate(Samples(shift), problem, seeds, problem.start, 1), 0
    for count in (1, 3, 2):
        engine.advance(k, count, np.zeros(count, np.int32))
        k += count
        for row, seed in enumerate(seeds):
            for found, wanted in zip(engine.state.privates, expected(problem, seed, k - 1, shift), strict=True):
                mine = Seen(*(leaf[row] for leaf in found)) if len(seeds) > 1 else found
                assert_array_equal(mine.own, wanted.own)
                assert_array_equal(mine.steps, wanted.steps)


@pytest.mark.parametrize("seeds", [[3], [3, 1]])
def test_what_is_drawn_ahead(seeds: list[int], monkeypatch: pytest.MonkeyPatch):
    """Rows of a loop's steps only where their keys' numbers are the steps' own, and nothing where it would be too much."""
    problem = problems.problem("mixture", "logistic")

    def asked(shift: int) -> tuple[int, tuple[int, int]]:
        engine = Simulate(Samples(shift), problem, seeds, problem.start, 1)
        plans = Plan(np.zeros((5, len(seeds))[: len(seeds)], np.int32))
        streams = engine._streams[1]
        (found,) = ahead.asked(engine.algorithm, engine.program, engine.state, plans, streams, len(seeds) > 1)
        return found.size, found.shape

    assert asked(0) == (DRAWN, (STEPS, 2))
    assert asked(1) == (DRAWN, (0, 0))
    monkeypatch.setattr(ahead, "MOST", 4 * (DRAWN + STEPS * 2) * problem.M * len(seeds))
    assert asked(0) == (DRAWN, (STEPS, 2))
    monkeypatch.setattr(ahead, "MOST", ahead.MOST - 1)
    assert asked(0) == (0, (0, 0))
