"""Features kept in bfloat16: half the bytes on the device, and otherwise the run, the theory and the optimum of the rounded data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from problems import LOSSES
from problems import clients as make_clients
from twofold import config, engines
from twofold.algorithms import ASVRCD, LSGD, L2SGDPlus
from twofold.engines import memory
from twofold.engines.schedule import Schedule, footprint
from twofold.engines.sides import CountingOracle
from twofold.evaluate import compare, evaluate, predict
from twofold.oracle import Sample
from twofold.problem import Problem
from twofold.solver import complete

pytestmark = pytest.mark.usefixtures("few_slots")
KEPT = "bfloat16"
SIZES = (7, 12, 7, 12)
ENGINES = {
    "simulate": {"engine": "simulate"},
    "streamed": {"engine": "streamed", "chunk": 2, "state": "host"},
    "messages": {"engine": "messages"},
}
METHODS = {"asvrcd": ASVRCD(rho=0.2), "lsgd": LSGD(batch=3, tau=2), "l2sgd_plus": L2SGDPlus(batch=3)}


def general(loss: str = "logistic") -> tw.Clients:
    """Unequal clients whose features bfloat16 does not hold."""
    return make_clients(loss, sizes=SIZES)


def beforehand(clients: tw.Clients) -> tw.Clients:
    """The same with features that somebody has rounded by other means: the 16 highest bits of a float32, to nearest even."""

    def near(leaf: np.ndarray) -> np.ndarray:
        bits = leaf.astype(np.float32).view(np.uint32)
        bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(leaf.dtype)

    return clients.map(lambda x, y: (near(x), y))


def whole(loss: str = "logistic") -> tw.Clients:
    """Clients whose features are small whole numbers."""
    return general(loss).map(lambda x, y: (np.rint(3 * x), y))


def mixture(clients: tw.Clients, loss: str = "logistic", **options: Any) -> Problem:
    return Problem(tw.objectives.mixture(LOSSES[loss], lam=0.5), clients, **options)


def solve(problem: Problem, method: Any, engine: str, iterations: int = 20) -> Any:
    return tw.solve(problem, method, iterations=iterations, seed=3, **ENGINES[engine])


def assert_same(one: Any, other: Any) -> None:
    """The same iterates and recorded losses."""
    for a, b in ((one.w, other.w), (one.beta, other.beta)):
        assert_allclose(ravel_pytree(a)[0], ravel_pytree(b)[0], rtol=0, atol=1e-12)
    assert_allclose(one.history["loss"], other.history["loss"], rtol=0, atol=1e-12)


def dtypes(x: Any) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.floating)}


# --- the same run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "name"), [("streamed", "lsgd")])
def test_features_that_it_holds_exactly_change_nothing(engine: str, name: str):
    expected = solve(mixture(whole()), METHODS[name], engine)
    assert_same(solve(mixture(whole(), feature_dtype=KEPT), METHODS[name], engine), expected)
    assert expected.history["loss"][-1] < expected.history["loss"][0] - 0.01  # it did run


@pytest.mark.parametrize(
    ("engine", "loss"),
    [("simulate", "logistic"), ("messages", "logistic"), ("streamed", "softmax")],  # there with transposed weights
)
def test_other_features_are_rounded_and_nothing_else_is(engine: str, loss: str):
    expected = solve(mixture(beforehand(general(loss)), loss), METHODS["asvrcd"], engine)
    found = solve(mixture(general(loss), loss, feature_dtype=KEPT), METHODS["asvrcd"], engine)
    assert_same(found, expected)
    exact = solve(mixture(general(loss), loss), METHODS["asvrcd"], engine)
    assert 1e-6 < np.max(np.abs(exact.w - found.w)) < 0.01


def test_a_comparison_keeps_them_so():
    """All that is trained sees rounded rows; what is graded is not rounded."""
    objectives = {"near": tw.objectives.mixture(LOSSES["logistic"], 0.5)}
    models = {}
    for label, train, rows in (
        ("kept", general(), KEPT),
        ("rounded", beforehand(general()), None),
        ("exact", general(), None),
    ):
        found = compare(LOSSES["logistic"], train, general(), objectives, rounds=3, algorithm=LSGD(eta=0.1), rows=rows)
        models[label] = np.concatenate([ravel_pytree((row.result.w, row.result.beta))[0] for row in found])
    assert_allclose(models["kept"], models["rounded"], rtol=0, atol=1e-12)
    assert np.max(np.abs(models["kept"] - models["exact"])) > 1e-6


def test_both_stages_keep_their_rows_so(monkeypatch: pytest.MonkeyPatch):
    kept = []

    class Noted(Problem):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            kept.append(str(self.abstract_member.x.dtype))

    monkeypatch.setattr("twofold.problem.Problem", Noted)
    objective = tw.objectives.multitask(LOSSES["logistic"], lam=0.5, Lambda=np.inf)
    tw.solve(Problem(objective, general(), feature_dtype=KEPT), LSGD(eta=0.1, batch=None), iterations=3)
    assert kept == [KEPT, KEPT]


# --- the same theory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_constants_are_those_of_the_rounded_features(loss: str):
    found, expected = mixture(general(loss), loss, feature_dtype=KEPT), mixture(beforehand(general(loss)), loss)
    exact = mixture(general(loss), loss)
    assert_array_equal(found.clients.x, expected.clients.x)
    assert found.constants() == expected.constants() != exact.constants()


def test_the_optimum_is_that_of_the_rounded_features():
    found, expected = mixture(general(), feature_dtype=KEPT), mixture(beforehand(general()))
    assert_allclose(found.optimum().value, expected.optimum().value, rtol=1e-15)
    assert abs(found.optimum().value - mixture(general()).optimum().value) > 1e-8
    w, beta, best, _ = found.optimum()
    assert found.value(w, beta) - best == pytest.approx(0, abs=1e-14)
    gap = tw.solve(found, "acd", rounds=200, every=50, record="gap").history["gap"]
    assert -1e-14 < gap[-1] < 1e-9


def test_curvature_at_a_point_is_that_of_the_rounded_features():
    found, expected = mixture(general(), feature_dtype=KEPT), mixture(beforehand(general()))
    for name in ("L_w", "L_beta", "calL_w", "calL_beta", "mu"):
        one, other = (getattr(problem.constants(at=problem.start), name) for problem in (found, expected))
        assert_allclose(one, other, rtol=1e-12, err_msg=name)


def test_models_are_graded_on_held_out_rows_as_these_are():
    objective, held_out = tw.objectives.maml(LOSSES["squared"], alpha=0.5), make_clients("squared", seed=1, sizes=SIZES)
    kept, expected, exact = (
        Problem(objective, clients, **options)
        for clients, options in (
            (general("squared"), {"feature_dtype": KEPT}), (beforehand(general("squared")), {}), (general("squared"), {}),
        )
    )  # fmt: skip
    at = jax.tree.map(lambda leaf: leaf + 0.1, kept.start)
    for test in (held_out, None):  # None: the training rows
        grades = [evaluate(problem, at, test).personal for problem in (kept, expected, exact)]
        assert_allclose(grades[0], grades[1], rtol=1e-14)
        assert np.max(np.abs(grades[0] - grades[2])) > 1e-8
    x = held_out[0].x
    assert_allclose(predict(kept, at, 0, x), predict(expected, at, 0, x), rtol=1e-14)


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [("simulate", {}), ("sharded", {}), *(("streamed", {"chunk": 2, "state": state}) for state in ("device", "host"))],
)
def test_features_are_narrow_on_the_device_and_nothing_else_is(name: str, options: dict, x64: bool):
    with jax.enable_x64(x64):
        problem, wide = mixture(general("squared"), "squared", feature_dtype=KEPT), str(jnp.result_type(float))
        method = complete(problem, "asvrcd")[0]
        shapes = footprint(method, problem)
        make = engines.choose(name, Schedule(method, problem, shapes.parts, [3]), shapes, **options)
        engine: Any = make(method, problem, [3], [problem.host_start], slots=0)
        if isinstance(engine, engines.Streamed):
            stacks = tuple(engine._program(one).stacks[0] for one in engine._chunks)
            state = (engine.shared, [engine._kept.get(i, one) for i, one in enumerate(engine._chunks)])
        else:
            stacks, state = engine.program.stacks, engine.state()
        for stack in stacks:
            assert dtypes(stack.x) == {KEPT}
            assert dtypes((stack.y, stack.weight, stack.share)) == {wide}
        assert dtypes(state) == {wide}


def test_features_are_narrow_wherever_a_problem_hands_them_out():
    problem = mixture(general("squared"), "squared", feature_dtype=KEPT)
    members = (*problem.stacks, *problem.host_stacks, problem.abstract_member, problem.member(1))
    for member in (*members, CountingOracle(problem, 1).member):
        assert dtypes(member.x) == {KEPT} and dtypes((member.y, member.weight)) == {"float64"}
    assert dtypes(problem.clients.x) == dtypes(problem.start) == {"float64"}
    assert dtypes(problem.gradient(*problem.start)) == dtypes(problem.value(*problem.start)) == {"float64"}
    assert repr(problem).endswith(f", feature_dtype={KEPT!r})")


def test_a_sample_is_taken_before_it_is_widened():
    """Else a method of sampled rows would read all of them."""
    member = mixture(general(), feature_dtype=KEPT).member(1)
    read = jax.make_jaxpr(lambda member, index: member.rows(Sample(index, jnp.ones(2) / 2)).x)
    made = [str(e.outvars[0].aval) for e in read(member, jnp.array([3, 1])).eqns if e.outvars[0].aval.ndim == 2]
    assert "bfloat16[2,3]" in made and "float64[2,3]" in made and "float64[12,3]" not in made


def test_narrow_features_are_counted_with_two_bytes():
    problem = mixture(general("squared"), "squared", feature_dtype=KEPT)
    padded, features = len(SIZES) * max(SIZES), 3

    def need(p: Problem) -> memory.Need:
        method, _ = complete(p, "acd")
        return memory.need(p, footprint(method, p), method)

    found, exact = need(problem), need(mixture(general("squared"), "squared"))
    assert (found.data, exact.data) == (padded * (2 * features + 8), padded * (8 * features + 8))
    assert (found.state, found.working) == (exact.state, exact.working)


# --- features of all kinds --------------------------------------------------------------------------------------------


def test_ones_own_functions_see_features_in_the_precision_of_the_run():
    seen = []

    def fn(params: Any, x: Any, y: Any) -> Any:
        seen.append(str(x.dtype))
        return jnp.mean((x @ params - y) ** 2)

    def f(w: Any, beta: Any, batch: Any) -> Any:
        return fn(w + beta, *batch) + 0.1 * jnp.sum(w**2)

    def init(clients: tw.Clients) -> np.ndarray:
        seen.append(str(clients.x.dtype))
        return np.zeros(3)

    clients = general("squared")
    own = tw.losses.custom(fn, init, l2=0.1, predict=lambda params, x: fn(params, x, 0.0))
    for objective in (
        tw.objectives.mixture(own, lam=0.5),
        tw.objectives.maml(own, alpha=0.1),
        tw.objectives.custom(f, np.zeros(3), np.zeros(3)),
    ):
        problem = Problem(objective, clients, feature_dtype=KEPT)
        problem.gradient_w(*problem.start)
        evaluate(problem, problem.start, clients)
        if objective.name == "mixture":
            problem.constants()
            predict(problem, problem.start, 0, clients[0].x)
            for engine in ENGINES:
                solve(problem, LSGD(eta=0.01, batch=2), engine, iterations=2)
    assert set(seen) == {"float64"}


def test_only_floating_features_are_kept_so():
    rng = np.random.default_rng(0)

    def features(n: int) -> dict:
        real, half = rng.normal(size=(n, 2)), np.array([65504, 0.1], np.float16)[rng.integers(0, 2, n)]
        return {"real": real, "half": half, "word": rng.integers(0, 1000, n), "flag": rng.integers(0, 2, n) == 1}

    def fn(params: Any, x: Any, y: Any) -> Any:
        assert x["word"].dtype == jnp.int64 and x["flag"].dtype == bool
        score = x["real"] @ params["real"] + params["word"][x["word"]] + params["flag"] * x["flag"]
        return jnp.mean((score + 1e-5 * x["half"] - y) ** 2)

    start = {"real": np.zeros(2), "word": np.zeros(1000), "flag": np.zeros(())}
    clients = tw.Clients.from_list([(features(n), rng.normal(size=n)) for n in (4, 7)])
    objective = tw.objectives.local(tw.losses.custom(fn, start, l2=0.1, L=10.0, calL=20.0))
    problem = Problem(objective, clients, feature_dtype=KEPT)
    kinds = {name: str(leaf.dtype) for name, leaf in problem.stacks[0].x.items()}
    assert kinds == {"real": KEPT, "half": KEPT, "word": "int64", "flag": "bool"}
    for name in ("word", "flag"):
        assert_array_equal(problem.clients.x[name], clients.x[name])
    assert problem.clients.x["half"].max() == 65536  # nearest, though float16 itself has no such number
    assert_array_equal(problem.clients.y, clients.y)
    rounded = clients.map(lambda x, y: (x | {name: problem.clients.x[name] for name in ("real", "half")}, y))
    method = LSGD(eta=0.01, batch=None)
    assert_same(solve(problem, method, "simulate", 5), solve(Problem(objective, rounded), method, "simulate", 5))


def test_exact_features_are_not_copied():
    pixels = whole().map(lambda x, y: (np.abs(x).astype(np.float32) * 85, y))
    assert pixels.x.max() == 255
    assert np.shares_memory(mixture(pixels, feature_dtype=KEPT).clients.x, pixels.x)


# --- how it is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["float16", "bf16", "", 16, True, jnp.bfloat16])
def test_any_other_kind_is_a_sentence(rows: Any):
    with pytest.raises(ValueError, match=r"^feature_dtype is None or 'bfloat16', got .+\.$"):
        mixture(general(), feature_dtype=rows)


def test_features_that_are_too_large_are_a_sentence():
    x = np.ones((4, 3))
    x[2, 1] = 3.4e38
    clients = tw.Clients.from_list([(x[:1], np.ones(1)), (x, np.ones(4))], names=("ann", "bob"))
    sentence = (
        r"^The features are too large for feature_dtype='bfloat16': client 'bob': x at row 2, column 1 is inf, but every value "
        r"must be finite\.$"
    )
    with pytest.raises(ValueError, match=sentence):
        mixture(clients, feature_dtype=KEPT)


def test_a_file_may_ask_for_it():
    document = {
        "data": {"source": "synthetic-mixture", "sigma_h": 0.3, "clients": 3, "rows": 8, "features": 2},
        "loss": {"name": "logistic", "l2": 0.1},
        "objective": {"name": "mixture", "lam": 0.5},
    }
    assert config.parse(document).build().problem.feature_dtype is None
    assert config.parse(document | {"run": {"rows": KEPT}}).build().problem.feature_dtype == KEPT
    with pytest.raises(config.ConfigError, match=r"run\.rows"):
        config.parse(document | {"run": {"rows": "float16"}})
