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
from twofold.engines.loop import Layout, client_streams, first_state, iteration, step
from twofold.solver import complete


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
    streams = client_streams(randomness.root(0), tuple(stack.position for stack in program.stacks))
    now, everyone = iteration(algorithm, program, streams, jnp.int32(0), state)
    traced = jax.make_jaxpr(lambda *both: step(algorithm, program, Layout(), *both))(now, everyone)
    assert 0 < loops(traced.jaxpr) <= most * len(program.stacks)


# --- loops of clients of unequal size, as GPUs take them --------------------------------------------------------------


@pytest.mark.parametrize("times", [[3], [0, 9, 4], [8, 8, 8], [17, 0, 2, 33, 5, 5, 1, 12, 40, 7, 3], [0, 0]])
@pytest.mark.parametrize("gathered", [0, kernels.GATHERED])
def test_an_uneven_loop_is_a_loop_for_each_client(
    times: list[int], gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "GATHERED", gathered)  # whether lanes shrink
    factors = 0.5 + np.arange(len(times)) / len(times)

    def body(values: list, i: jax.Array, x: dict[str, jax.Array]) -> dict[str, jax.Array]:
        factor, common = values
        return {"x": factor * x["x"] + common * i, "last": i}

    def loop(times: Any, factor: Any, x: Any) -> Any:
        start = {"x": x, "last": jnp.int32(-1)}
        return kernels.uneven_loop(times, body, start, [factor, jnp.asarray(0.1)])

    x = np.random.default_rng(0).normal(size=(len(times), 2))
    found = jax.jit(jax.vmap(loop))(jnp.asarray(times, jnp.int32), jnp.asarray(factors), jnp.asarray(x))
    for m, count in enumerate(times):
        here = x[m]
        for i in range(count):
            here = factors[m] * here + 0.1 * i
        np.testing.assert_allclose(found["x"][m], here, rtol=1e-13)
        assert found["last"][m] == count - 1
    # Seeds around clients: their number of steps is the same.
    both = jax.vmap(jax.vmap(loop), in_axes=(None, None, 0))(
        jnp.asarray(times, jnp.int32), jnp.asarray(factors), jnp.stack([jnp.asarray(x), jnp.asarray(-x)])
    )
    np.testing.assert_allclose(both["x"][0], found["x"], rtol=1e-13)
    alone = loop(jnp.int32(times[-1]), jnp.asarray(factors[-1]), jnp.asarray(x[-1]))
    np.testing.assert_allclose(alone["x"], found["x"][-1], rtol=1e-13)


def test_rounds_of_unequal_clients_are_the_same_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sizes = (3, 40, 7, 21, 5, 12, 33, 2)
    everyone = tw.Clients.from_list([(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in sizes])
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=0.1), everyone)

    def run() -> Any:
        jax.clear_caches()
        return tw.solve(problem, LSGD(lr=0.3, batch=4, epochs=2), rounds=3, seeds=2, record=(), engine="simulate")[1]

    here = run()
    monkeypatch.setattr(kernels, "on_cpu", lambda: False)
    there = run()
    jax.clear_caches()
    np.testing.assert_allclose(there.w, here.w, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(there.beta, here.beta, rtol=1e-12, atol=1e-13)


def test_a_gpu_takes_clients_of_unequal_size_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = tw.Clients.from_list([(np.ones((n, 2000)), np.ones(n)) for n in (2, 1000)])
    objective = tw.objectives.local(tw.losses.squared())
    assert len(tw.Problem(objective, everyone).positions) == 2
    monkeypatch.setattr(kernels, "on_cpu", lambda: False)
    assert len(tw.Problem(objective, everyone).positions) == 1
