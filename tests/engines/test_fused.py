"""The kernel that does a client's iteration in one go: the same steps as XLA's, found out from the algorithm itself.

There is no GPU in tests. The kernel is run by Pallas' interpreter, and lowered for one without being run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from twofold.control import repeat, unrolled
from twofold.engines import fused, memory, streamed
from twofold.engines.fused import Call, recipe
from twofold.engines.streamed import Streamed
from twofold.solver import complete

FEATURES, CLASSES = 21, 3
A = tw.algorithms
OBJECTIVES = {
    "mixture": lambda loss: tw.objectives.mixture(loss, 0.3),
    "multitask": lambda loss: tw.objectives.multitask(loss, 0.3, 0.7),
    "adaptive": lambda loss: tw.objectives.adaptive(loss, 0.3, 0.9),
    "local": tw.objectives.local,
    "traditional": tw.objectives.traditional,
}
METHODS = {
    "acd": A.ACD(),
    "ascd": A.ASCD(),
    "asvrcd": A.ASVRCD(),
    "svrcd": A.SVRCD(batch=3),
    "lsgd": A.LSGD(tau=3, batch=1),
    "lsgd, batches": A.LSGD(tau=2, batch=4),
    "lsgd, all rows": A.LSGD(tau=2, batch=None),
}


@pytest.fixture(autouse=True)
def _in_float32() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


def make(
    objective: str = "mixture", counts: tuple[int, ...] = (20, 17, 5), features: int = FEATURES, **loss: Any
) -> tw.Problem:
    """Clients of several sizes, padded to one."""
    random = np.random.default_rng(3)
    pairs = [(random.normal(size=(n, features)).astype(np.float32) / 4, random.integers(0, CLASSES, n)) for n in counts]
    made = OBJECTIVES[objective](tw.losses.softmax(CLASSES, l2=0.01, **loss))
    return tw.Problem(made, tw.Clients.from_list(pairs), buckets=[list(range(len(counts)))])


def run(problem: tw.Problem, algorithm: Any, kernel: bool, iterations: tuple[int, ...] = (11, 3)) -> Any:
    engine = Streamed(algorithm, problem, [5], problem.start, fused=kernel)
    assert (engine.recipe is not None) is kernel
    done = 0
    for count in iterations:
        engine.advance(done, count, np.zeros(count, np.int32))
        done += count
    return engine.fetch(None, 0, 0)


def near(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, atol=3e-6 * max(1.0, float(np.abs(b).max(initial=0))))


@pytest.mark.parametrize("name", METHODS)
def test_the_same_iterates_as_without_it(name: str):
    problem = make()
    algorithm, _ = complete(problem, METHODS[name], None)
    expected = run(problem, algorithm, False)
    near(run(problem, algorithm, True), expected)
    assert float(np.abs(expected.parts[0]).max()) > 1e-3  # something has moved


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "mixture"])
def test_the_same_iterates_for_every_objective(objective: str):
    problem = make(objective)
    algorithm, _ = complete(problem, A.ASCD() if objective != "traditional" else A.LSGD(tau=2), None)
    near(run(problem, algorithm, True), run(problem, algorithm, False))


# One walk before the last, and two: the last one goes either way. No other test has so many features, so that no program of
# another tile can stand in for this one.
@pytest.mark.parametrize(("name", "features"), [("acd", 37), ("acd", 48), ("lsgd, batches", 40)])
def test_more_features_than_a_tile_holds(name: str, features: int, monkeypatch: pytest.MonkeyPatch):
    problem = make(features=features)
    algorithm, _ = complete(problem, METHODS[name], None)
    expected = run(problem, algorithm, False)
    monkeypatch.setattr(fused, "_size", lambda how, features: fused._Size(16, 4, 1))
    near(run(problem, algorithm, True), expected)


def test_which_gradient_needs_which_is_found_out():
    problem = make()

    def calls(algorithm: Any) -> tuple[Call, ...]:
        found = recipe(complete(problem, algorithm, None)[0], problem)
        assert found is not None
        return found.calls

    assert calls(A.ACD()) == (Call(None, 0),)
    assert calls(A.ASVRCD()) == (Call(0, 0), Call(0, 0))  # at two points, neither of which needs the other
    assert calls(A.LSGD(tau=3)) == (Call(0, 0), Call(1, 1), Call(2, 2))  # each step needs the one before
    assert calls(A.LSGD(tau=1, batch=None)) == (Call(None, 0),)


@pytest.mark.parametrize(
    "problem, algorithm",
    [
        (make(intercept=True), A.ACD()),
        (make(counts=(70, 5, 5)), A.ACD()),  # too many rows for one product
        (make(), A.LSGD(tau=9)),  # too many gradients
        (make(), A.LSGD(epochs=1, batch=5)),
        (make(), A.PFedMe()),
        (make(), A.L2SGDPlus()),
    ],
    ids=["intercept", "rows", "steps", "epochs", "pfedme", "l2sgd_plus"],
)
def test_what_it_cannot_do_is_left_to_xla(problem: tw.Problem, algorithm: Any):
    assert recipe(complete(problem, algorithm, None)[0], problem) is None


def test_in_float64_everything_is_left_to_xla():
    with jax.enable_x64(True):
        problem = make()
        assert recipe(complete(problem, A.ACD(), None)[0], problem) is None


@pytest.mark.parametrize("name", ["acd", "asvrcd", "lsgd", "lsgd, batches"])
def test_it_can_be_lowered_for_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch):
    problem = make("multitask")
    algorithm, _ = complete(problem, METHODS[name], None)
    engine = Streamed(algorithm, problem, [5], problem.start, fused=True)
    assert engine.recipe is not None
    chunk, alone = engine._chunks[0], not engine.recipe.speaks
    monkeypatch.setattr(memory, "on_cpu", lambda: False)

    def turn(shared: Any, private: Any) -> Any:
        return streamed._turn(
            engine.algorithm, engine._program(chunk, turned=True), shared, private, (engine._common, chunk.streams),
            (jnp.int32(-1), jnp.int32(0), jnp.int32(9)), alone=alone, quiet=alone, how=engine.recipe,
        )  # fmt: skip

    card = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")  # JAX 0.11 wants to know for which
    with fused.quietly(), jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=card)):
        traced = jax.jit(turn).trace(engine.shared, engine._kept.get(0, chunk))
        assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_without_this_kind_of_kernel_everything_is_left_to_xla(monkeypatch: pytest.MonkeyPatch):
    problem = make()
    algorithm, _ = complete(problem, A.ACD(), None)
    assert recipe(algorithm, problem) is not None
    monkeypatch.setattr(fused, "triton", None)
    assert recipe(algorithm, problem) is None


def test_a_loop_written_out_is_the_same_loop():
    def steps(times: Any, x: jax.Array) -> jax.Array:
        return repeat(times, lambda i, x: x * 1.5 + i, x)

    with unrolled():
        assert "while" in str(jax.make_jaxpr(lambda x: steps(jnp.int32(4), x))(2.0))  # nobody knows how often
        assert "while" not in str(jax.make_jaxpr(lambda x: steps(4, x))(2.0))
        assert jax.jit(lambda x: steps(4, x))(2.0) == steps(jnp.int32(4), jnp.float32(2.0))
