"""Iterations of a client that are done together: the same steps as one by one, found out from the algorithm itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from twofold import randomness, tree
from twofold.control import repeat, unrolled
from twofold.engines import memory, streamed
from twofold.engines.fused import Products, Recipe, products, recipe
from twofold.engines.streamed import Streamed
from twofold.solver import complete
from twofold.tree import record

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


def make(
    objective: str = "mixture", counts: tuple[int, ...] = (20, 17, 5), features: int = FEATURES, **loss: Any
) -> tw.Problem:
    """Clients of several sizes, padded to one."""
    random = np.random.default_rng(3)
    pairs = [(random.normal(size=(n, features)).astype(np.float32) / 4, random.integers(0, CLASSES, n)) for n in counts]
    made = OBJECTIVES[objective](tw.losses.softmax(CLASSES, l2=0.01, **loss))
    return tw.Problem(made, tw.Clients.from_list(pairs), buckets=[list(range(len(counts)))])


def run(
    problem: tw.Problem, algorithm: Any, together: bool, iterations: tuple[int, ...] = (11, 3), chunk: int | None = None
) -> Any:
    engine = Streamed(algorithm, problem, [5], problem.start, fused=together, chunk=chunk)
    assert (engine.recipe is not None) is together
    done = 0
    for count in iterations:
        engine.advance(done, count, np.zeros(count, np.int32))
        done += count
    return engine.fetch(None, 0, 0)


def test_more_silent_iterations_than_are_done_together():
    """Whole pieces, a piece with the last iteration, and pieces that end where nobody speaks."""
    problem = make()
    algorithm, _ = complete(problem, A.ASCD(p_w=0.05), None)
    engine = Streamed(algorithm, problem, [5], problem.start, fused=True)
    assert engine.recipe is not None and engine.recipe.together == 16
    lengths = np.diff(np.flatnonzero(engine._schedule.kinds(90)[0]), prepend=-1)
    assert max(lengths) > 2 * 16 and min(lengths) < 16
    near(run(problem, algorithm, True, (70, 20)), run(problem, algorithm, False, (70, 20)))


def test_an_iteration_that_cannot_be_done_with_others_stands_alone(monkeypatch: pytest.MonkeyPatch):
    """A refresh of ASVRCD takes all rows: the iterations before it are still done together."""
    problem, turns, pieces = make(), [], []

    def noted(function: Any, into: list) -> Any:
        return lambda *arguments, **options: into.append(arguments[5]) or function(*arguments, **options)

    monkeypatch.setattr(streamed, "_turns", noted(streamed._turns, turns))
    monkeypatch.setattr(streamed, "_piece", noted(streamed._piece, pieces))
    run(problem, complete(problem, A.ASVRCD(rho=0.3, p_w=0.2), None)[0], True, (60,))
    assert len(turns) > 5 and all(end == first + 1 for _, first, end in turns)
    assert max(end - first for first, end in pieces) > 2
    assert sum(end - first for *_, first, end in turns + pieces) == 60


class Coin(NamedTuple):
    k: Any
    skip: Any


@record
class Skips(A.LSGD):
    """Local steps, except where a coin falls: then everybody sends what it was sent."""

    def plan(self, stream: Any, k: Any) -> Any:
        return Coin(jnp.asarray(k, jnp.int32), randomness.coin(randomness.of(stream, k), 0.5))

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        moved, message = super().client(plan, shared, private, oracle, key)
        return tree.select(plan.skip, (private, message._replace(w=shared.w)), (moved, message))


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(
    ("objective", "algorithm"), [("local", A.ASCD(p_w=0.5)), ("mixture", Skips(eta=0.1))], ids=["nothing", "something"]
)
def test_a_coin_with_which_nobody_speaks_or_everybody(objective: str, algorithm: Any, chunk: int | None):
    """A coin of a method whose message is empty, and one of a method that speaks in every iteration."""
    problem = make(objective)
    near(run(problem, complete(problem, algorithm, None)[0], True, chunk=chunk),
         run(problem, complete(problem, algorithm, None)[0], False, chunk=chunk))  # fmt: skip


def near(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, atol=1e-13)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_iterates_as_without_it(name: str):
    problem = make()
    algorithm, _ = complete(problem, METHODS[name], None)
    expected = run(problem, algorithm, False)
    near(run(problem, algorithm, True), expected)
    assert float(np.abs(expected.parts[0]).max()) > 1e-3  # something has moved


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("acd", "mixture"),
        ("acd", "local"),
        ("svrcd", "mixture"),
        ("lsgd, all rows", "mixture"),
        ("lsgd, all rows", "traditional"),
    ],
)
def test_more_rows_than_are_written_as_a_sum(name: str, objective: str):
    problem = make(objective, counts=(50, 33, 7))
    algorithm, _ = complete(problem, METHODS[name], None)
    near(run(problem, algorithm, True), run(problem, algorithm, False))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "mixture"])
def test_the_same_iterates_for_every_objective(objective: str):
    problem = make(objective)
    algorithm, _ = complete(problem, A.ASCD() if objective != "traditional" else A.LSGD(tau=2), None)
    near(run(problem, algorithm, True), run(problem, algorithm, False))


def test_what_an_iteration_does_is_found_out():
    problem = make()

    def found(algorithm: Any) -> Recipe | None:
        return recipe(complete(problem, algorithm, None)[0], problem)

    assert found(A.ACD()) == Recipe((), 64, (True, True), (0, 1))
    # The reference point and its gradient are passed on, and need not be written. A refresh takes all rows.
    assert found(A.ASVRCD(p_w=0.01)) == Recipe((1,), 16, (True, True, False, False), (0, 1))
    assert found(A.ASVRCD(p_w=1e-9)) == Recipe(
        (1,), 16, (True, True, False, False), (0, 1)
    )  # nobody speaks that one sees
    assert found(A.ASVRCD(p_w=0.2)) == Recipe((1,), 8, (True, True, False, False), (0, 1))
    assert found(A.ASVRCD(p_w=0.01, batch=20)) == Recipe(
        (20,), 3, (True, True, False, False), (0, 1)
    )  # 64 rows at most
    assert found(A.LSGD(tau=3, batch=4)) == Recipe((4, 4, 4), 0, (True,), (0,))
    assert found(A.LSGD(tau=2, batch=None)) == Recipe((), 0, (True,), (0,))


# ---- many rows, whose products are kept in half precision ------------------------------------------------------------


def crowd(**options: Any) -> tw.Problem:
    return make(counts=(100, 80, 30), features=100, **options)


def test_many_rows_are_done_by_their_products():
    """Where they are worth it: float32, no higher precision asked for, rounds far apart, and memory for them."""
    slow, fast = A.ACD(p_w=0.1), A.ACD(p_w=0.5)
    assert recipe(complete(crowd(), slow, None)[0], crowd()) is None  # float64
    with jax.enable_x64(False):
        problem = crowd()
        slow, fast = (complete(problem, method, None)[0] for method in (slow, fast))
        assert recipe(slow, problem) == Recipe((), 64, (True, True), (0, 1), halves=True)
        assert recipe(fast, problem) is None
        with jax.default_matmul_precision("highest"):
            assert recipe(slow, problem) is None
        assert Streamed(slow, problem, [5], problem.start, fused=True, state="host").recipe is None


def test_the_largest_client_says_whether_rows_are_many():
    """Whatever bucket it is in: here the first one has few rows."""
    clients = make(counts=(10, 12, 100, 90), features=100).clients
    objective = OBJECTIVES["mixture"](tw.losses.softmax(CLASSES, l2=0.01))
    algorithm = A.ACD(p_w=0.1)
    for buckets in ([[0, 1], [2, 3]], [[2, 3], [0, 1]]):
        problem = tw.Problem(objective, clients, buckets=buckets)
        assert recipe(complete(problem, algorithm, None)[0], problem) is None  # float64: nothing is kept in halves
        with jax.enable_x64(False):
            problem = tw.Problem(objective, clients, buckets=buckets)
            completed, _ = complete(problem, algorithm, None)
            assert recipe(completed, problem) == Recipe((), 64, (True, True), (0, 1), halves=True)
            found, expected = (run(problem, completed, together, (40,)) for together in (True, False))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert_allclose(one, other, rtol=0, atol=2**-11 * np.abs(other).max())


def test_many_rows_are_not_if_there_is_no_room_for_products(monkeypatch: pytest.MonkeyPatch):
    with jax.enable_x64(False):
        problem = crowd()
        algorithm = complete(problem, A.ACD(p_w=0.1), None)[0]
        need = memory.need(algorithm, problem)
        monkeypatch.setattr(memory, "LARGE", 0)
        kept = 3 * 100**2 * 2
        for room, fits in ((need.at_once(3) + kept, True), (need.at_once(3) + kept - 10, False)):
            monkeypatch.setattr(memory, "free", lambda room=room: (room + 1) / memory.SHARE)
            assert (recipe(algorithm, problem) is not None) is fits


@pytest.mark.parametrize("objective", ["mixture", "adaptive", "local"])
def test_half_precision_products_make_the_same_steps(objective: str):
    with jax.enable_x64(False):
        problem = crowd(objective=objective)
        algorithm, _ = complete(problem, A.ACD(p_w=0.05), None)
        found, expected = (run(problem, algorithm, together, (100, 60)) for together in (True, False))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, rtol=0, atol=2**-11 * np.abs(b).max(initial=0))


def test_half_precision_products_lead_to_the_same_optimum():
    """F − F*, in float64, as one by one: scores are found anew in every round, and rounding with them."""
    exact = crowd()
    star = tw.solve(exact, "acd", iterations=3000)
    least = float(exact.value(star.w, star.beta))
    with jax.enable_x64(False):
        problem = crowd()
        algorithm, _ = complete(problem, A.ACD(p_w=0.1), None)
        ends = [run(problem, algorithm, together, (1500,)) for together in (True, False)]
    gaps = [float(exact.value(*jax.tree.map(np.float64, (end.w, exact.join(end.parts))))) - least for end in ends]
    assert max(gaps) < 1e-9 < 2**-23 * least  # nothing that a sum of float32 could tell


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e9])
def test_products_of_rows_in_half_precision(size: float):
    random = np.random.default_rng(0)
    x = (1e4 * random.normal(size=(3, 90, 70))).astype(np.float32)
    x[1] = 0
    slopes = (size * random.normal(size=(90, 4))).astype(np.float32)
    with jax.enable_x64(False):
        kept = products(Recipe((), 64, (), (), halves=True), jnp.asarray(x))
        assert kept.table.dtype == jnp.float16
        found = jax.vmap(lambda one: one.times(jnp.asarray(slopes)))(kept)
    assert found.dtype == jnp.float32
    table = np.einsum("mnd,mkd->mnk", x.astype(float), x.astype(float))
    exact = table @ slopes.astype(float)
    bound = np.abs(table) @ np.abs(slopes) + 2**-13 * table.max() * np.abs(slopes).sum()
    assert np.all(np.abs(found - exact) <= 2**-11 * bound)
    assert np.all(np.asarray(found)[1] == 0)
    # Where the table is exact, all that is left to round are slopes.
    few = Products(jnp.asarray(random.integers(-9, 9, (90, 90)), jnp.float16), jnp.float32(16.0))
    exact = 16.0 * np.asarray(few.table, float) @ slopes.astype(float)
    assert_allclose(few.times(jnp.asarray(slopes)), exact, rtol=0, atol=2**-19 * np.abs(exact).max())


@record
class Clipped(A.LSGD):
    """Local steps of which no coordinate is longer than one."""

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        moved, message = super().client(plan, shared, private, oracle, key)
        return moved._replace(beta=jnp.clip(moved.beta, private.beta - 1, private.beta + 1)), message


@pytest.mark.parametrize(
    "problem, algorithm",
    [
        (make(intercept=True), A.ACD()),
        (make(counts=(70, 5, 5)), A.ACD()),  # too many rows for one product
        (make(), A.LSGD(tau=13, batch=5)),  # 65 of them
        (make(), A.LSGD(average=True)),  # a number among the states
        (make(), A.LSGD(epochs=1, batch=5)),
        (make(), Clipped(eta=0.1)),  # not a sum of parameters
        (tw.Problem(tw.objectives.maml(tw.losses.softmax(CLASSES), 0.1), make().clients), A.LSGD(eta=0.1)),
        (make(), A.PFedMe()),
        (make(), A.L2SGDPlus()),
    ],
    ids=["intercept", "rows", "steps", "average", "epochs", "clipped", "maml", "pfedme", "l2sgd_plus"],
)
def test_what_it_cannot_do_is_left_to_xla(problem: tw.Problem, algorithm: Any):
    assert recipe(complete(problem, algorithm, None)[0], problem) is None


def test_a_loop_written_out_is_the_same_loop():
    def steps(times: Any, x: jax.Array) -> jax.Array:
        return repeat(times, lambda i, x: x * 1.5 + i, x)

    with unrolled():
        assert "while" in str(jax.make_jaxpr(lambda x: steps(jnp.int32(4), x))(2.0))  # nobody knows how often
        assert "while" not in str(jax.make_jaxpr(lambda x: steps(4, x))(2.0))
        assert jax.jit(lambda x: steps(4, x))(2.0) == steps(jnp.int32(4), jnp.float32(2.0))
