"""Result, History, Ledger and Results, and what is left of them after saving and loading."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import plain
import twofold as tw
from twofold.algorithms import LSGD
from twofold.result import FORMAT, History, Ledger, Result, Results

LOSS = tw.losses.logistic(0.1)
OBJECTIVES = {
    "arrays": tw.objectives.mixture(LOSS, 0.5),
    "dicts with a number": tw.objectives.mixture(tw.losses.logistic(0.1, intercept=True), 0.5),
    "nothing shared": tw.objectives.local(LOSS),
    "nothing private": tw.objectives.traditional(LOSS),
    "named leaves": tw.objectives.weight_sharing(tw.losses.logistic(0.1, intercept=True), "weight"),
}


def ledger(value=1):
    return Ledger(
        value,
        2 * value,
        3 * value,
        4 * value,
        5 * value,
        6 * value,
        np.array([7, 8]) * value,
        np.array([9, 10]) * value,
    )


def result(w=(), beta=(), **changes):
    history = History({"round": np.arange(3), "loss": np.array([1.0, 0.5, 0.1])})
    fields = {"w": w, "beta": beta, "history": history, "ledger": ledger(), "status": "budget", "message": "done"}
    return Result(**{**fields, "algorithm": LSGD(eta=0.1), "seed": 3, "seconds": 0.25, **changes})


def same(left, right):
    """Bit for bit, with dtypes and structure."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype and np.shape(a) == np.shape(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# ---- saving and loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_comes_back_bit_for_bit(name, tmp_path):
    run = tw.solve(
        tw.Problem(OBJECTIVES[name], plain.clients()),
        tw.algorithms.SCD(batch=1),
        rounds=5,
        record=("loss", "gradient_norm"),
    )
    folder = run.save(tmp_path / "deep" / "folder")
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors", "result.json"]
    back = Result.load(folder)
    same((back.w, back.beta), (run.w, run.beta))
    assert list(back.history) == list(run.history)
    for column in run.history:
        same(back.history[column], run.history[column])
    same(dataclasses.astuple(back.ledger), dataclasses.astuple(run.ledger))
    for field in ("status", "message", "seed", "seconds", "notes"):
        assert getattr(back, field) == getattr(run, field)
    assert back.algorithm == {"name": "scd", "eta": run.algorithm.eta, "p_w": run.algorithm.p_w, "batch": 1}
    again = Result.load(back.save(tmp_path / "again"))
    same((again.w, again.beta), (run.w, run.beta))
    assert again.algorithm == back.algorithm


def test_float32_comes_back_as_float32(tmp_path):
    with jax.enable_x64(False):
        run = tw.solve(tw.Problem(OBJECTIVES["arrays"], plain.clients()), "lsgd", rounds=2)
        back = Result.load(run.save(tmp_path))
    assert back.w.dtype == np.float32
    same((back.w, back.beta), (run.w, run.beta))


leaves = st.tuples(
    st.lists(st.integers(0, 3), max_size=3), st.sampled_from([np.float64, np.float32, np.int32, np.bool_])
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers(-9, 9), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=5,
)


def filled(plan, rng):
    if isinstance(plan, tuple) and len(plan) == 2 and isinstance(plan[1], type):
        shape, dtype = plan
        return (9 * rng.normal(size=shape)).astype(dtype) if shape else np.asarray(rng.normal(), dtype)
    if isinstance(plan, dict):
        return {key: filled(value, rng) for key, value in plan.items()}
    return type(plan)(filled(value, rng) for value in plan)


@given(trees, trees, st.integers(0, 99))
def test_any_pytree_comes_back_bit_for_bit(tmp_path_factory, w, beta, seed):
    rng = np.random.default_rng(seed)
    run = result(filled(w, rng), filled(beta, rng))
    back = Result.load(run.save(tmp_path_factory.mktemp("run")))
    same((back.w, back.beta), (run.w, run.beta))


def test_the_order_of_keys_does_not_mix_up_the_arrays(tmp_path):
    """JAX sorts the keys of a dict but not those of an OrderedDict."""
    run = result(OrderedDict([("z", np.array([1.0])), ("a", np.array([2.0, 3.0]))]), {"b": np.array(4), "a": None})
    back = Result.load(run.save(tmp_path))
    assert_array_equal(back.w["z"], [1.0])
    assert_array_equal(back.w["a"], [2.0, 3.0])
    assert back.beta["b"] == 4 and back.beta["a"] is None


def test_arrays_that_are_not_contiguous(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    back = Result.load(result(array.T, array[:, ::2]).save(tmp_path))
    assert_array_equal(back.w, array.T)
    assert_array_equal(back.beta, array[:, ::2])


def test_numbers_that_are_not_finite_come_back_as_nan(tmp_path):
    run = result(history=History({"odd": np.array([1.0, np.inf, np.nan])}))
    folder = run.save(tmp_path)
    json.loads((folder / "result.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert_array_equal(Result.load(folder).history["odd"], [1.0, np.nan, np.nan])


def test_a_schedule_is_saved_by_its_description(tmp_path):
    schedule = tw.theory.stepsizes.pl_schedule(0.1, 2.0, 5)
    back = Result.load(result(algorithm=LSGD(eta=schedule)).save(tmp_path))
    assert back.algorithm["eta"] == repr(schedule)


def test_saving_twice_overwrites(tmp_path):
    result(np.zeros(2)).save(tmp_path)
    result(np.ones(3)).save(tmp_path)
    assert_array_equal(Result.load(tmp_path).w, np.ones(3))


def test_another_format_is_refused(tmp_path):
    folder = result().save(tmp_path)
    document = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(ValueError, match=f"result.json has format 99; this version reads {FORMAT}"):
        Result.load(folder)


# ---- history, ledger, results ---------------------------------------------------------------------------------------


def test_a_history_is_a_mapping_of_columns():
    history = result().history
    assert len(history) == 2 and list(history) == ["round", "loss"] and "loss" in history
    assert repr(history) == "History(3 records of round, loss)"
    with pytest.raises(KeyError, match="The history has no column 'los'; it has round, loss"):
        history["los"]
    frame = history.to_pandas()
    assert list(frame.columns) == ["round", "loss"] and frame["loss"].tolist() == [1.0, 0.5, 0.1]


def test_ledgers_add_up():
    total = ledger(1) + ledger(10)
    assert (total.rounds, total.iterations, total.floats_up, total.floats_down) == (11, 22, 33, 44)
    assert (total.bytes_up, total.bytes_down) == (55, 66)
    assert_array_equal(total.gradients_w, [77, 88])
    assert_array_equal(total.gradients_beta, [99, 110])
    assert total.as_dict()["gradients_beta"] == [99, 110]
    assert str(ledger(1000)).startswith(
        "1,000 rounds in 2,000 iterations; per client 5,000 bytes up and 6,000 down;\n7,500 ∇w"
    )


def test_what_a_result_says_of_itself():
    assert repr(result()) == "Result(budget: round=2, loss=0.1)"


def test_results_are_a_sequence():
    runs = [result(seed=s, status=status) for s, status in enumerate(["converged", "budget", "budget", "diverged"])]
    results = Results(runs)
    assert len(results) == 4 and results[1] is runs[1] and list(results) == runs
    assert isinstance(results[1:3], Results) and [run.seed for run in results[1:3]] == [1, 2]
    assert repr(results) == "Results(4 seeds: 1 converged, 2 budget, 1 diverged)"
    frame = results.to_pandas()
    assert len(frame) == 12 and frame["seed"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_column_of_all_seeds_is_padded():
    short = result(history=History({"loss": np.array([1.0])}))
    assert_array_equal(Results([result(), short]).column("loss"), [[1.0, 0.5, 0.1], [1.0, np.nan, np.nan]])


# ---- several seeds ---------------------------------------------------------------------------------------------------


def test_several_runs_come_back_in_their_order(tmp_path):
    runs = Results([result(w=np.arange(3.0) + seed, seed=seed) for seed in (10, 2, 7)])
    assert runs.save(tmp_path / "runs") == tmp_path / "runs"
    loaded = Results.load(tmp_path / "runs")
    assert [run.seed for run in loaded] == [10, 2, 7]
    for mine, theirs in zip(loaded, runs, strict=True):
        same(mine.w, theirs.w)
    assert Result.load(tmp_path / "runs" / "seed-2").seed == 2


def test_no_stale_seeds_are_left(tmp_path):
    Results([result(seed=seed) for seed in range(30)]).save(tmp_path)
    (tmp_path / "seed-9" / "notes.txt").write_text("mine")
    (tmp_path / "seed-of-doubt").mkdir()
    Results([result(seed=seed) for seed in (4, 5, 31)]).save(tmp_path)
    assert [run.seed for run in Results.load(tmp_path)] == [4, 5, 31]
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"results.json", "seed-9/notes.txt"} | {
        f"seed-{seed}/{name}" for seed in (4, 5, 31) for name in ("model.safetensors", "result.json")
    }  # what we have not written stays
    assert (tmp_path / "seed-of-doubt").is_dir()


def test_runs_that_cannot_be_saved_or_loaded_together(tmp_path):
    with pytest.raises(tw.TwofoldError, match=r"Two runs with the same seed .* the seeds are \[1, 1\]"):
        Results([result(seed=1), result(seed=1)]).save(tmp_path)
    result().save(tmp_path)
    with pytest.raises(tw.TwofoldError, match=r"no .*results\.json: .* for one run use Result\.load"):
        Results.load(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(tw.TwofoldError, match=f"has format 99; this version reads {FORMAT}"):
        Results.load(tmp_path)


def test_one_run_and_several_seeds_do_not_lie_in_one_folder(tmp_path):
    several = Results([result(seed=seed) for seed in range(3)])
    several.save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    result(seed=7).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "result.json", "notes.txt"}
    assert Result.load(tmp_path).seed == 7
    several[:2].save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "seed-0", "seed-1", "notes.txt"}
    with pytest.raises(tw.TwofoldError, match=r"no folder|holds|There is no"):
        tw.load(tmp_path)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_file_in_the_way_gets_a_sentence(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    for one in (result(), Results([result()])):
        with pytest.raises(
            tw.TwofoldError, match=r"file is a file, so the folder .* cannot be made: move it, or give another"
        ):
            one.save(tmp_path / "file" / below)


def test_everything_that_a_notebook_shows_is_a_table_and_fits_eighty_columns():
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(4)])
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)
    runs = tw.solve(problem, "acd", rounds=40, record=("loss", "gap", "gradient_norm"), seeds=2)
    shown = {
        "results": (runs, "budget"),
        "ledger": (runs[0].ledger, "40"),
        "history": (runs[0].history, "gradient_norm"),
        "model": (tw.Model.of(problem, runs[0]), "mixture of logistic losses"),
        "result": (runs[0], "acd"),
    }
    for name, (thing, word) in shown.items():
        page = thing._repr_html_()
        assert page.startswith("<table>") and word in page, name
        assert max(map(len, str(thing).splitlines())) <= 80, name
    assert runs[0].history._repr_html_().count("<tr>") == 1 + 10 + 1 + 10
    constants = problem.constants()
    for thing in (problem, tw.theory.predict("acd", constants, eps=1e-3), tw.theory.lower_bounds(constants, 20, 1e-3)):
        assert max(map(len, str(thing).splitlines())) <= 80 and len(str(thing).splitlines()) > 1
