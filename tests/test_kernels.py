"""What depends on the machine gives what the plain way gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from problems import clients
from twofold import kernels, randomness, tree
from twofold.algorithms import LSGD, PFedMe
from twofold.algorithms.base import Algorithm
from twofold.engines.loop import Layout, client_streams, first_state, step
from twofold.solver import complete


@pytest.mark.parametrize("index", [[3], [2, 2, 0], [5, 0, 5, 1, 4, 4, 2]])
@pytest.mark.parametrize("shape", [(6, 256), (6, 8, 40), (6, 300), (6, 5)])
def test_rows_are_the_rows_of_the_sample(index: list[int], shape: tuple[int, ...]) -> None:
    table = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = jax.jit(kernels.rows)(jnp.asarray(table), jnp.asarray(index))
    np.testing.assert_array_equal(found, table[index])


def test_rows_of_many_clients_are_each_ones_own() -> None:
    tables = np.random.default_rng(0).normal(size=(3, 6, 256))
    index = np.array([[0, 5], [1, 1], [4, 2]])
    found = jax.jit(jax.vmap(kernels.rows))(jnp.asarray(tables), jnp.asarray(index))
    np.testing.assert_array_equal(found, np.take_along_axis(tables, index[..., None], 1))
    shared = jax.jit(jax.vmap(kernels.rows, in_axes=(None, 0)))(jnp.asarray(tables[0]), jnp.asarray(index))
    np.testing.assert_array_equal(shared, tables[0][index])


def loops(jaxpr: Any) -> int:
    """How many loops a program has, those inside others included."""
    values = [value for eqn in jaxpr.eqns for value in jax.tree.leaves(tuple(eqn.params.values()))]
    inside = [value.jaxpr for value in values if hasattr(value, "jaxpr")]
    return sum(eqn.primitive.name in ("while", "scan") for eqn in jaxpr.eqns) + sum(map(loops, inside))


@pytest.mark.parametrize("method, most", [(LSGD(tau=3), 1), (PFedMe(local_rounds=2, inner_steps=2, batch=2), 2)])
def test_local_steps_are_computed_once_for_the_state_and_the_message(method: Algorithm, most: int) -> None:
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.25), lam=0.5), clients("logistic"))
    algorithm, program = tree.cast(complete(problem, method)[0]), problem.program()
    state = first_state(algorithm, program, *problem.inward(problem.start[0], problem.split(problem.start[1])))
    streams = client_streams(randomness.root(0), program.stacks)
    plan, k = algorithm.plan(streams.common, 0), jnp.int32(0)
    traced = jax.make_jaxpr(lambda state: step(algorithm, program, Layout(), state, plan, streams.own, k))(state)
    assert 0 < loops(traced.jaxpr) <= most * len(program.stacks)
