"""Numbers are traced, so another seed, step size, penalty or data set of the same shape compiles nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from problems import FEATURES, clients
from twofold import engines
from twofold.algorithms import ACD, ASCD, ASVRCD, LSGD, SCD, SVRCD, L2SGDPlus, PFedMe
from twofold.engines import simulate
from twofold.engines.schedule import Schedule, footprint
from twofold.problem import Problem
from twofold.solver import complete
from twofold.theory.stepsizes import pl_schedule

COMPILED: list[str] = []
"""One entry for each program that XLA has compiled in this process."""


def _listen(event: str, duration: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@pytest.fixture(scope="module", autouse=True)
def _empty_caches() -> None:
    """What other tests have compiled would hide a compilation here, and JAX's caches, when full, forget what is needed."""
    jax.clear_caches()


@contextmanager
def compiling(most: int, least: int = 0) -> Iterator[None]:
    """Fails if fewer or more programs are compiled inside. In other modules, `jax.clear_caches()` goes first."""
    before = len(COMPILED)
    yield
    assert least <= len(COMPILED) - before <= most


# A batch is the shape of a program, and theory may choose another for other numbers.
METHODS = {
    "lsgd": LSGD(),
    "acd": ACD(),
    "scd": SCD(batch=1),
    "ascd": ASCD(batch=1),
    "svrcd": SVRCD(batch=1),
    "asvrcd": ASVRCD(batch=1),
    "l2sgd_plus": L2SGDPlus(),
    "pfedme": PFedMe(local_rounds=2, inner_steps=2, batch=2),
}


def mixture(lam: float = 0.5, l2: float = 0.25, data: int = 0) -> Problem:
    """The mixture, with numbers that may differ and shapes that do not."""
    return Problem(tw.objectives.mixture(tw.losses.logistic(l2=l2), lam=lam), clients("logistic", seed=data))


def test_the_count_counts():
    with compiling(least=1, most=1):
        jax.jit(lambda x: x + 1.2345)(0.0)


@pytest.mark.parametrize("name", METHODS)
def test_other_numbers_compile_nothing(name: str):
    method = METHODS[name]
    loops = simulate._advance._cache_size()
    first = tw.solve(mixture(), method, rounds=6, every=2)
    assert simulate._advance._cache_size() - loops <= 1
    shorter = dataclasses.replace(method, eta=0.7 * float(first.algorithm.eta))
    with compiling(most=0):
        tw.solve(mixture(), method, rounds=6, every=2, seed=1)
        tw.solve(mixture(), method, rounds=11, every=3)
        tw.solve(mixture(), shorter, rounds=6, every=2)
        tw.solve(mixture(lam=0.8), method, rounds=6, every=2)
        tw.solve(mixture(l2=0.1), method, rounds=6, every=2)
        tw.solve(mixture(data=1), method, rounds=6, every=2)


def test_other_seeds_together_compile_nothing():
    tw.solve(mixture(), METHODS["asvrcd"], rounds=6, seeds=range(3))
    with compiling(most=0):
        tw.solve(mixture(lam=0.7, data=2), METHODS["asvrcd"], rounds=9, seeds=[5, 2, 100])


def test_clients_of_other_sizes_in_the_same_buckets_compile_nothing():
    """A chunk is padded to the longest client of its bucket, so that the same programs do for all of them."""

    def run(sizes: tuple[int, ...]) -> None:
        everyone = clients("logistic", sizes=sizes)
        whole = Problem(mixture().objective, everyone, buckets=[[0, 1, 2], [3, 4]])
        method = LSGD(eta=0.1, epochs=1, batch=2)
        shapes = footprint(method, whole)
        make = engines.choose("streamed", Schedule(method, whole, shapes.parts, [0]), shapes, chunk=1)
        engine = make(method, whole, [0], [whole.start], 0)
        engine.advance(0, 2, np.zeros(2, np.int32))

    run((8, 7, 7, 4, 3))
    with compiling(most=0):
        run((1, 8, 1, 4, 4))


def test_the_engine_of_messages_compiles_nothing_new_either():
    def alike(lam: float = 0.5, data: int = 0) -> Problem:  # clients of one size: one set of gradients
        return Problem(mixture(lam).objective, clients("logistic", seed=data, sizes=(7, 7)))

    tw.solve(alike(), SVRCD(batch=1), iterations=8, engine="messages")
    with compiling(most=0):
        tw.solve(alike(lam=0.7), SVRCD(batch=1), iterations=8, engine="messages")
        tw.solve(alike(data=1), SVRCD(eta=0.01, batch=1), iterations=8, engine="messages")


@pytest.mark.parametrize("make", ["multitask", "adaptive_inf"])
def test_other_weights_of_an_objective_compile_nothing(make: str):
    loss, everyone = tw.losses.squared(l2=0.3), clients("squared")

    def solve(a: float, Lambda: float) -> None:
        Lambda = np.inf if make.endswith("inf") else Lambda
        kind = tw.objectives.multitask if make.startswith("multitask") else tw.objectives.adaptive
        tw.solve(Problem(kind(loss, a, Lambda), everyone), "acd", iterations=5)

    solve(0.3, 1.0)
    with compiling(most=0):
        solve(0.6, 2.0)


@pytest.mark.parametrize("options", [{"engine": "sharded"}, {"chunk": 2}, {"chunk": 2, "state": "host"}])
def test_other_engines_compile_once_too(options: dict[str, Any]):
    def solve(lam: float, seed: int) -> None:
        tw.solve(mixture(lam), METHODS["asvrcd"], rounds=4, seed=seed, **options)

    solve(0.5, 0)
    with compiling(most=0):
        solve(0.7, 1)


def test_equal_schedules_and_metrics_are_one_program():
    def size(w: Any, beta: Any) -> Any:
        return jnp.sum(w**2)

    def solve(seed: int) -> None:
        method = LSGD(eta=pl_schedule(0.1, 5.0, 3), tau=3)
        tw.solve(mixture(), method, rounds=4, seed=seed, record={"loss": "loss", "size": size})

    solve(0)
    with compiling(most=0):
        solve(1)


def custom(start: np.ndarray, penalty: float) -> Any:
    """An objective of the user's own with a number that may change."""
    return tw.objectives.custom(_custom, start, start, params=penalty)


def _custom(w: Any, beta: Any, batch: Any, penalty: Any) -> Any:
    score = batch.x @ (w + beta)
    return jnp.mean(jnp.logaddexp(0.0, score) - batch.y * score) + penalty * (jnp.sum(w**2) + jnp.sum(beta**2))


def test_another_number_in_a_custom_objective_compiles_nothing():
    objective, method = custom(np.zeros(FEATURES), 0.1), LSGD(eta=0.1)
    tw.solve(Problem(objective, clients("logistic")), method, rounds=5)
    with compiling(most=0):
        tw.solve(Problem(dataclasses.replace(objective, params=0.2), clients("logistic")), method, rounds=5)


def test_a_custom_objective_made_again_compiles_nothing():
    start, method = np.zeros(FEATURES), LSGD(eta=0.1)
    tw.solve(Problem(custom(start, 0.1), clients("logistic")), method, rounds=5)
    with compiling(most=0):
        tw.solve(Problem(custom(start, 0.2), clients("logistic")), method, rounds=5)


def test_values_and_gradients_are_compiled_once():
    def ask(problem: Problem) -> None:
        start = problem.start
        problem.value(*start), problem.values(*start), problem.gradient(*start), problem.gradient_norm_squared(*start)

    ask(mixture())
    with compiling(most=0):
        ask(mixture(lam=0.9, l2=0.4, data=3))


def test_step_sizes_from_theory_compile_nothing():
    complete(mixture(), ACD())
    with compiling(most=0):
        for method in METHODS.values():
            complete(mixture(lam=0.6, data=1), method)


def _error(x: jax.Array, y: jax.Array, w: jax.Array, beta: jax.Array) -> jax.Array:
    return jnp.mean((jnp.einsum("mnd,md->mn", x, beta) - y) ** 2)


@pytest.mark.parametrize("engine", ["simulate", "streamed"])
def test_a_measure_with_other_test_rows_compiles_nothing(engine: str):
    def solve(data: int) -> tuple[float, float]:
        problem, rng = mixture(data=data), np.random.default_rng(data)
        x, y = rng.normal(size=(problem.M, 4, FEATURES)), rng.normal(size=(problem.M, 4))
        measure = {"error": jax.tree_util.Partial(_error, x, y)}
        found = tw.solve(problem, ACD(), rounds=3, record=measure, engine=engine)
        return found.history["error"][-1], float(_error(x, y, found.w, found.beta))

    first = solve(0)
    with compiling(0):
        second = solve(1)
    for found, expected in (first, second):
        assert found == pytest.approx(expected, rel=1e-12)
    assert first != second


def test_a_measure_with_arguments_that_are_no_numbers_still_works():
    problem, names = mixture(), ("a", "b")
    measure = {"count": jax.tree_util.Partial(lambda names, w, beta: len(names) + 0 * jnp.sum(beta), names)}
    assert tw.solve(problem, ACD(), rounds=1, record=measure).history["count"].tolist() == [2, 2]
