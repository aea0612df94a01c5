"""A model travels: what comes back predicts as the run did, knows its rows, and holds nothing that is not its client's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import problems
import twofold as tw
from test_compilations import compiling
from twofold.losses import Rows
from twofold.model import adapting
from twofold.objectives.two_stage import Around

OBJECTIVES = [name for name in problems.OBJECTIVES if name != "custom"]
X = np.random.default_rng(5).normal(size=(6, problems.FEATURES))


def some(problem: tw.Problem, seed: int = 2) -> tuple[Any, Any]:
    """Any parameters of the right shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), problem.start)


def problem_of(name: str, loss: str = "logistic") -> tw.Problem:
    return problems.maml(loss) if name == "maml" else problems.problem(name, loss)


def made(name: str = "mixture", loss: str = "logistic", **options: Any) -> tw.Model:
    problem = problem_of(name, loss)
    return tw.Model.of(problem, some(problem), **options)


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OBJECTIVES, "maml"])
def test_a_loaded_model_predicts_as_the_run_did(name: str, tmp_path: Path) -> None:
    problem = problem_of(name)
    point = some(problem)
    model = tw.load(tw.Model.of(problem, point).save(tmp_path))
    assert (
        model.names == problem.clients.names
        and model.objective.describe() == tw.Model.of(problem, point).objective.describe()
    )
    for client in model.names:
        expected = tw.evaluate.predict(problem, point, client, X)  # with the client's training rows, where they matter
        assert_array_equal(model.predict(client, X), expected)
    everyone = model.predict([0, 4, 2, 2, 1, 0], X)
    assert_array_equal(everyone, [model.predict(m, X)[i] for i, m in enumerate((0, 4, 2, 2, 1, 0))])


@pytest.mark.parametrize("name", ["mixture", "residual", "weight_sharing"])
def test_scores_and_probabilities(name: str, tmp_path: Path) -> None:
    def by_hand(m: int) -> np.ndarray:
        if name == "mixture":
            return X @ model.beta[m]
        if name == "residual":
            return X[:, :2] @ model.w + X[:, 1:] @ model.beta[m]
        return X @ np.concatenate([model.w, model.beta[m]])

    for loss in ("softmax", "squared"):
        model = tw.load(made(name, loss).save(tmp_path))
        assert_allclose(model.decision_function(3, X), by_hand(3), rtol=1e-12)
        if loss == "softmax":
            rises = np.exp(by_hand(3))
            assert_allclose(model.predict_proba(3, X), rises / rises.sum(axis=1, keepdims=True), rtol=1e-12)
            assert_array_equal(model.predict(3, X), np.argmax(rises, axis=1))
        else:
            assert_allclose(model.predict(3, X), by_hand(3), rtol=1e-12)
            with pytest.raises(tw.TwofoldError, match="squared loss predicts a number, not probabilities"):
                model.predict_proba(3, X)


def test_probabilities_of_two_classes_do_not_overflow() -> None:
    model = made("local")
    far = model.predict_proba(0, 1e4 * X)
    assert np.isfinite(far).all()
    assert_allclose(far.sum(axis=1), 1)
    assert_array_equal(np.argmax(far, axis=1), model.predict(0, X))


def test_everything_that_was_known_comes_back(tmp_path: Path) -> None:
    problem = problems.problem("mixture", "logistic")
    run = tw.solve(problem, "acd", rounds=3, seed=7)
    model = tw.Model.of(problem, run, features=["age", "height", "weight"], classes=["no", "yes"])
    back = tw.load(model.save(tmp_path))
    assert (back.features, back.classes) == (("age", "height", "weight"), ("no", "yes"))
    assert repr(back) == repr(model) == "Model(mixture of logistic losses, 5 clients, 3 features, classes no and yes)"
    assert back.constants == problem.constants()
    assert back.provenance["algorithm"]["name"] == "acd" and back.provenance["seed"] == 7
    assert back.provenance["ledger"] == run.ledger.as_dict() and back.provenance["status"] == "budget"
    assert back.provenance["twofold"] == tw.__version__ and back.provenance["date"].startswith("20")
    assert set(back.predict(0, X)) <= {"no", "yes"}
    assert_array_equal(back.predict(0, X) == "yes", model.decision_function(0, X) > 0)


def test_a_result_saves_its_model_beside_its_history(tmp_path: Path, fresh_python: Callable[..., str]) -> None:
    problem = problems.maml("logistic")
    run = tw.solve(problem, "lsgd", rounds=2, record=())
    run.save(tmp_path)
    assert tw.Result.load(tmp_path).ledger.rounds == 2
    # A process that never saw the data, and has single precision: MAML's step on the training rows is in the file.
    np.save(tmp_path / "x.npy", X)
    code = (
        "import numpy as np, twofold as tw; "
        f"print(tw.load({str(tmp_path)!r}).predict(3, np.load({str(tmp_path / 'x.npy')!r})).tolist())"
    )
    assert json.loads(fresh_python(code)) == tw.evaluate.predict(problem, run, 3, X).tolist()


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = tw.solve(problems.problem("local", "logistic"), "lsgd", rounds=1, record=()).save(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("model.json", "model.safetensors", "result.json"), 0o644)


# --- one client's part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixture", "adaptive_each", "adaptive_inf", "flix", "maml", "weight_sharing"])
def test_one_clients_part_holds_nothing_of_the_others(name: str, tmp_path: Path) -> None:
    loss, data, alphas = (
        problems.LOSSES["logistic"],
        problems.clients("logistic"),
        (0.2113, 0.5177, 0.3501, 0.3323, 0.4519),
    )
    people = tw.Clients.from_list([(c.x, c.y) for c in data], names=["ann", "bob", "cy", "dot", "eve"])
    objectives = {
        "adaptive_each": lambda: tw.objectives.adaptive(loss, alphas),
        "adaptive_inf": lambda: tw.objectives.adaptive(loss, alphas, np.inf),
        "flix": lambda: tw.objectives.flix(loss, alphas),
    }
    problem = tw.Problem(objectives.get(name, lambda: problem_of(name).objective)(), people)
    result = tw.Result(*some(problem), tw.History({}), tw.Ledger(1, 1, 1, 1, 1, 1, np.arange(5), 10**9 + np.arange(5)), "budget",
                       "", tw.algorithms.LSGD(eta=0.1), 0, 0.0)  # fmt: skip
    model = tw.Model.of(problem, result)
    folder = model.only("cy").save(tmp_path)
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    mine = tw.load(folder)
    assert_array_equal(mine.predict(X), model.predict("cy", X))
    assert_array_equal(mine.predict("cy", X), model.predict("cy", X))
    blocks = [model.beta, model.stored, problem.objective.alone if name == "flix" else ()]
    checked = 0
    for leaf in jax.tree.leaves(blocks):
        for m in range(5):
            checked += 1
            if not (name == "flix" and leaf is blocks[2]) and m == 2:
                assert leaf[m].tobytes() in content
            else:  # not one number of theirs
                assert all(number.tobytes() not in content for number in leaf[m].ravel())
    assert checked >= 5
    for other, alpha in zip(("ann", "bob", "dot", "eve"), np.delete(alphas, 2), strict=True):
        assert other.encode() not in content
        assert (
            f"{1e9:.0f}"[:-1].encode() + str(people.position(other)).encode() not in content
        )  # its gradients in the ledger
        assert str(alpha).encode() not in content
    with pytest.raises(KeyError, match=r"no client 'bob'; it is that of 'cy' alone"):
        mine.predict("bob", X)


# --- a new client -----------------------------------------------------------------------------------------------------

NEW = problems.clients("logistic", seed=9, sizes=(11,))[0]


def newton(score: np.ndarray, offset: Any, inner: np.ndarray, shift: Any, lam: float, w: Any) -> np.ndarray:
    """argmin_b of mean log(1 + e^s) − y·s + ⅛‖inner·b + shift‖² + (λ/2)‖b − w‖², s = score·b + offset, in plain NumPy."""
    b = np.zeros(score.shape[1])
    for _ in range(12):
        sigma = 1 / (1 + np.exp(-(score @ b + offset)))
        slope = score.T @ (sigma - NEW.y) / len(NEW.y) + 0.25 * inner.T @ (inner @ b + shift) + lam * (b - w)
        curvature = (
            (score.T * (sigma * (1 - sigma))) @ score / len(NEW.y) + 0.25 * inner.T @ inner + lam * np.eye(len(b))
        )
        b = b - np.linalg.solve(curvature, slope)
    return b


def exact(name: str, w: Any) -> np.ndarray:
    """The new client's β of each objective, with w held fixed."""
    x, one = NEW.x, np.eye(3)
    if name == "local":
        return newton(x, 0, one, 0, 0.0, 0)
    if name in ("mixture", "multitask_inf"):
        return newton(x, 0, one, 0, 0.5, w)
    if name == "adaptive":
        return newton(0.7 * x, 0.3 * x @ w, 0.7 * one, 0.3 * w, 0.0, 0)
    if name == "weight_sharing":
        return newton(x[:, 2:], x[:, :2] @ w, np.eye(1), 0, 0.0, 0)
    return newton(x[:, 1:], x[:, :2] @ w, np.eye(2), 0, 0.0, 0)  # residual


@pytest.mark.parametrize("name", ["local", "mixture", "adaptive", "weight_sharing", "residual", "multitask_inf"])
def test_a_new_clients_part_is_the_exact_one(name: str) -> None:
    problem = problem_of(name)
    w, beta = some(problem)
    found = tw.Model.of(problem, (w, beta)).adapt(NEW.x, NEW.y, name="zoe")
    expected = exact(name, w)
    assert_allclose(found.beta[0], expected, rtol=0, atol=1e-12)
    assert found.names == ("zoe",) and 0 <= found.gap < 1e-12
    as_trained = tw.Model.of(problem, (w, np.broadcast_to(expected, beta.shape)))
    assert_array_equal(found.predict("zoe", X), as_trained.predict(0, X))


def test_the_gap_bounds_the_distance_from_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    # Held at its start, β is far off: the bound must say so, and not by much more than there is.
    monkeypatch.setattr(adapting, "MOST", 0)
    problem = problem_of("mixture")
    point = some(problem)
    found = tw.Model.of(problem, point).adapt(NEW.x, NEW.y)
    alone = tw.Problem(Around(problem.objective, point[0], None), tw.Clients.from_list([(NEW.x, NEW.y)]))  # type: ignore[arg-type]
    true = float(alone.value((), np.zeros((1, 3)))) - alone.optimum().value
    assert_array_equal(found.beta, 0)
    assert true <= found.gap <= 2 * true


def test_a_new_client_of_many_classes_with_an_intercept_needs_products() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 30)), rng.integers(8, size=9)
    problem = tw.Problem(
        tw.objectives.mixture(tw.losses.softmax(8, l2=0.1, intercept=True), lam=0.2), tw.Clients.from_list([(x, y)])
    )
    found = tw.Model.of(problem, some(problem)).adapt(x[::-1], y[::-1])
    assert adapting.MATRIX_W < 31 * 8  # so that the Hessian is only multiplied
    assert found.gap < 1e-14

    def value(b: Any) -> Any:
        rows = Rows(x, y, np.full(9, 1 / 9))
        return problem.objective.value(found.w, b, rows, ())

    slope = jax.grad(value)(jax.tree.map(lambda leaf: leaf[0], found.beta))
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) < 1e-9 * 0.3  # ‖β − β*‖ ≤ ‖∇‖/(l2 + λ)


def test_the_next_new_client_compiles_nothing_however_many_rows_it_has() -> None:
    jax.clear_caches()
    model, rng = made("mixture"), np.random.default_rng(3)
    model.adapt(NEW.x, NEW.y)
    with compiling(0):
        for rows in (1, 40, 256):
            assert model.adapt(rng.normal(size=(rows, 3)), rng.integers(0, 2, rows)).gap < 1e-12


def test_clients_that_differ_without_a_private_part() -> None:
    maml = made("maml")
    stepped = maml.adapt(NEW.x, NEW.y)
    sigma = 1 / (1 + np.exp(-NEW.x @ maml.w))
    by_hand = maml.w - 0.5 * (NEW.x.T @ (sigma - NEW.y) / len(NEW.y) + 0.25 * maml.w)
    assert_allclose(stepped.parameters("new client"), by_hand, rtol=1e-12)
    flix = made("flix")
    with pytest.raises(
        tw.TwofoldError,
        match=r"Each of the 5 clients has its own alpha: give the new client's, as in adapt\(x, y, alpha=0\.5\)",
    ):
        flix.adapt(NEW.x, NEW.y)
    blended = flix.adapt(NEW.x, NEW.y, alpha=0.75)
    alone = made("local").adapt(NEW.x, NEW.y).beta[0]
    assert_allclose(blended.parameters("new client"), 0.75 * flix.w + 0.25 * alone, rtol=1e-12)
    with pytest.raises(
        tw.TwofoldError, match=r"traditional has no private part that could be adapted: everyone predicts with w"
    ):
        made("traditional").adapt(NEW.x, NEW.y)
    with pytest.raises(tw.TwofoldError, match="mixture has no alpha: it has lam"):
        made("mixture").adapt(NEW.x, NEW.y, alpha=0.5)
    with pytest.raises(tw.TwofoldError, match="strictly between 0 and 1, got 1.5"):
        made("adaptive").adapt(NEW.x, NEW.y, alpha=1.5)


def test_an_adapted_model_travels_too_whatever_the_precision(tmp_path: Path) -> None:
    model = made("adaptive_each", classes=["no", "yes"])
    labels = np.where(NEW.y == 1, "yes", "no")
    found = model.adapt(NEW.x, labels, alpha=0.4)
    with jax.enable_x64(False):
        again = tw.load(model.save(tmp_path / "all")).adapt(NEW.x, labels, alpha=0.4)
    assert again.beta.dtype == np.float64
    assert_array_equal(again.beta, found.beta)
    back = tw.load(again.save(tmp_path / "one"))
    assert back.gap == found.gap and back.predict(X).tolist() == found.predict(X).tolist()
    assert back.adapt(NEW.x, labels).predict(X).tolist() == found.predict(X).tolist()  # its own α is in it
    with pytest.raises(
        tw.TwofoldError, match=r"'new client' has the label 'maybe' at row 1, but the model knows 'no', 'yes'"
    ):
        model.adapt(NEW.x[:2], ["no", "maybe"], alpha=0.4)


def test_without_a_known_curvature_the_gap_is_not_certified(tmp_path: Path) -> None:
    model, problem = made("custom"), problem_of("custom")
    found = model.adapt(NEW.x, NEW.y)
    assert np.isnan(found.gap) and model.gap is None
    assert_allclose(found.beta[0], newton(NEW.x, NEW.x @ model.w, np.eye(3), 0, 0.0, 0), atol=1e-12)
    with pytest.raises(tw.TwofoldError, match="custom objective cannot predict"):
        model.predict(0, X)
    model.save(tmp_path)
    with pytest.raises(tw.TwofoldError, match=r"function of your own in it.*tw\.load\(folder, objective=\.\.\.\)"):
        tw.load(tmp_path)
    assert_array_equal(tw.load(tmp_path, objective=problem.objective).beta, model.beta)


def test_a_new_client_without_rows_gets_the_shared_part() -> None:
    for name in ("traditional", "mixture", "adaptive_each", "flix", "maml", "multitask_inf"):
        model = made(name)
        assert_array_equal(model.predict_new(X), X @ model.w > 0)
    residual = made("residual")
    assert_array_equal(residual.predict_new(X), X[:, :2] @ residual.w > 0)
    assert_allclose(made("mixture", "softmax").shared().predict_proba(X).sum(axis=1), 1)
    for name, sentence in {
        "local": "local shares nothing",
        "weight_sharing": "has a shared part that is no model by itself",
    }.items():
        with pytest.raises(tw.TwofoldError, match=rf"{sentence}, so it has no prediction for a new client: adapt"):
            made(name).predict_new(X)


# --- rows that do not fit ---------------------------------------------------------------------------------------------

FRAME = pd.DataFrame(X, columns=["age", "height", "weight"])
NAMED = {"features": ["age", "height", "weight"]}


def test_columns_are_found_by_their_names() -> None:
    model = made(**NAMED)
    expected = model.predict(1, X)
    assert_array_equal(model.predict(1, FRAME), expected)
    assert_array_equal(model.predict(1, FRAME[["weight", "age", "height"]].assign(user="ann")), expected)
    polars = pytest.importorskip("polars")
    assert_array_equal(model.predict(1, polars.from_numpy(X[:, ::-1], schema=["weight", "height", "age"])), expected)


WRONG: dict[str, tuple[Any, str]] = {
    "width": (
        np.ones((2, 2)),
        r"Client 1 has x of width 2, but the model was trained on width 3 \(age, height, weight\)",
    ),
    "a row": (np.ones(3), "x of a single row, but the model was trained on width 3"),
    "a missing column": (
        FRAME.drop(columns="height"),
        r"no column height; the model was trained on age, height, weight, and the fr",
    ),
    "strings": (
        FRAME.assign(age="old", weight="much"),
        r"columns that are not numeric: age \(.*\), weight \(.*\)\. Encode them",
    ),
    "objects": (
        np.array([[1.0, "a", 2.0]], object),
        r"has 'a' in x at row 0, column 'height', but features are numbers",
    ),
    "text": (np.array([["a", "b", "c"]]), r"x of dtype <U1, but features are numbers"),
    "a gap": (
        np.array([[1.0, 2.0, np.nan]]),
        r"has nan in x at row 0, column 'weight', but every value must be finite",
    ),
    "ragged": ([[1.0], [1.0, 2.0]], "rows of unequal length"),
    "a dict": ({"a": X}, r"x of width 3 in \['a'\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_rows_that_do_not_fit_are_refused(case: str) -> None:
    x, sentence = WRONG[case]
    for call in (lambda: made(**NAMED).predict(1, x), lambda: made(**NAMED).decision_function([1] * len(x), x)):
        with pytest.raises(ValueError, match=sentence.replace("Client 1", "Client .*")):
            call()
    with pytest.raises(ValueError, match=sentence.replace("Client 1", "Client 'new client'")):
        made(**NAMED).adapt(x, [0] * len(x))


def test_one_row_of_a_frame_is_told_how_to_stay_a_table() -> None:
    frame = pd.DataFrame(
        {"user": ["ann", "bob"] * 4, "age": np.arange(8.0), "size": np.arange(8.0) ** 2, "y": [0, 1] * 4}
    )
    problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), tw.Clients.from_frame(frame))
    model = tw.Model.of(problem, problem.start)
    for row in (frame.iloc[0], pl.Series([1.0, 2.0])):
        for call in (lambda row=row: model.predict("ann", row), lambda row=row: model.adapt(row, [1])):
            with pytest.raises(TypeError, match=r"got Series\. For one row of a frame say frame\.iloc\[\[0\]\]"):
                call()
    with pytest.raises(ValueError, match=r"x of a single row, .* width 3.*: give rows, as in x\[None, :\]"):
        made(**NAMED).predict(1, X[0])
    assert model.predict("ann", frame.iloc[[0]]).shape == (1,)


def test_clients_are_called_by_their_names() -> None:
    data = problems.clients("logistic")
    numbered = tw.Clients.from_list([(c.x, c.y) for c in data], names=[2, 3, 4, 5, 1])
    problem = tw.Problem(tw.objectives.local(problems.LOSSES["logistic"]), numbered)
    point = some(problem)
    model = tw.Model.of(problem, point)
    assert_array_equal(model.predict(1, X), X @ point[1][4] > 0)  # the client named 1, not the second one
    assert_array_equal(model.predict(np.int64(1), X), X @ point[1][4] > 0)
    with pytest.raises(KeyError, match=r"no client 0; it has 2, 3, 4, 5, 1.* use adapt"):
        model.predict(0, X)
    with pytest.raises(TypeError, match=r"needs a client and its rows x, since there are 5 clients: predict\(2, x\)"):
        model.predict(X)
    with pytest.raises(KeyError, match=r"no client 5; it is that of 1 alone\. For a client that was not there"):
        model.only(1).predict(5, X)
    with pytest.raises(ValueError, match="2 clients' names for 6 rows of x"):
        model.predict([1, 2], X)


def test_names_and_classes_are_counted() -> None:
    with pytest.raises(ValueError, match="2 names of features, age, height, but x has width 3"):
        made(features=["age", "height"])
    with pytest.raises(ValueError, match=r"logistic loss has 2 classes, but there are 3 labels: \['a', 'b', 'c'\]"):
        made(classes=["a", "b", "c"])


# --- files that do not fit --------------------------------------------------------------------------------------------


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(tw.TwofoldError, match="There is no folder"):
        tw.load(tmp_path / "nowhere")
    with pytest.raises(tw.TwofoldError, match=r"There is no .*model\.json: tw\.load reads what"):
        tw.load(tmp_path)
    problem = problems.problem("local", "logistic")
    runs = tw.solve(problem, "lsgd", rounds=1, record=(), seeds=2)
    runs.save(tmp_path / "many")
    with pytest.raises(
        tw.TwofoldError, match=r"holds the runs of 2 seeds: load one of them, as in tw\.load\('.*seed-0'\)"
    ):
        tw.load(tmp_path / "many")
    # As an older twofold saved it: the result is read, and says how to get a model.
    tw.Result.load(tmp_path / "many" / "seed-0").save(tmp_path / "old")
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == ["model.safetensors", "result.json"]
    with pytest.raises(
        tw.TwofoldError, match=r"a result without its model, .*tw\.Model\.of\(problem, tw\.Result\.load"
    ):
        tw.load(tmp_path / "old")
    tw.Result.load(tmp_path / "old", problem).save(tmp_path / "old")
    assert_array_equal(tw.load(tmp_path / "old").beta, runs[0].beta)


def test_files_that_are_damaged_or_newer(tmp_path: Path) -> None:
    folder = made().save(tmp_path)
    document = json.loads((folder / "model.json").read_text())
    for change, sentence in (
        ({"version": 99}, "has version 99 of the format, and this twofold reads 1: upgrade"),
        ({"kind": "recipe"}, "is no model of twofold: its kind is 'recipe'"),
        ({"clients": [0, 1]}, "do not belong together"),
    ):
        (folder / "model.json").write_text(json.dumps(document | change))
        with pytest.raises(tw.TwofoldError, match=sentence):
            tw.load(folder)
    (folder / "model.json").write_text("{")
    with pytest.raises(tw.TwofoldError, match="is not JSON"):
        tw.load(folder)
    (folder / "model.json").write_text(json.dumps(document))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(tw.TwofoldError, match="is damaged"):
        tw.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tw.TwofoldError, match="Copy the whole folder"):
        tw.load(folder)


# --- functions and modules of the user's own --------------------------------------------------------------------------


def fit(params: Any, x: Any, y: Any) -> Any:
    return ((jax.vmap(params)(x)[:, 0] - y) ** 2).mean()


def test_a_module_is_parameters_and_comes_back_as_one(tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.Linear(problems.FEATURES, 1, key=jax.random.key(0))
    loss = tw.losses.custom(fit, init=module, l2=0.1, predict=lambda params, x: jax.vmap(params)(x)[:, 0])
    problem = tw.Problem(tw.objectives.mixture(loss, lam=0.5), problems.clients("squared"))
    run = tw.solve(problem, tw.algorithms.LSGD(eta=0.05), rounds=2, record=())
    assert isinstance(run.w, eqx.nn.Linear)
    run.save(tmp_path)
    loaded = tw.Result.load(tmp_path)
    assert "The parameters are Linear modules, which no file can hold" in loaded.notes[-1]
    whole = tw.Result.load(tmp_path, problem)
    assert isinstance(whole.beta, eqx.nn.Linear)
    assert_array_equal(whole.beta.weight, run.beta.weight)
    tw.solve(problem, tw.algorithms.LSGD(eta=0.05), rounds=1, record=(), start=whole)
    with pytest.raises(
        tw.TwofoldError, match=r"loss is a function of your own \(.*test_model\.fit\).*losses\.custom\(\.\.\.\)"
    ):
        tw.load(tmp_path)
    model = tw.load(tmp_path, loss=loss)
    by_hand = X @ np.asarray(run.beta.weight)[2, 0] + np.asarray(run.beta.bias)[2, 0]
    assert_allclose(model.predict(2, X), by_hand, rtol=1e-12)
    with pytest.raises(tw.TwofoldError, match="predictions but no scores or probabilities"):
        model.predict_proba(2, X)
    deep = tw.losses.custom(fit, init=eqx.nn.MLP(3, 1, 2, 1, key=jax.random.key(0)))
    with pytest.raises(tw.TwofoldError, match=r"init of losses\.custom has relu at \.activation, .*eqx\.partition"):
        tw.Problem(tw.objectives.local(deep), problems.clients("squared"))


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardize", [None, "pooled", "per client"])
def test_a_table_with_strings_and_gaps_goes_in_and_labels_come_out(standardize: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 60
    table = pd.DataFrame({"ward": np.repeat(["north", "south", "east"], 20), "age": 40 + 20 * rng.normal(size=n)})
    table["city"] = rng.choice(["Rome", "Oslo"], n)
    table["well"] = np.where(table["age"] + 30 * (table["city"] == "Rome") > 55, "yes", "no")
    table.loc[3, "age"] = np.nan
    people = tw.Clients.from_frame(table, client="ward", target="well", standardize=standardize)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), people)
    point = some(problem)
    model = tw.load(tw.Model.of(problem, point).save(tmp_path / "all"))
    assert model.classes == ("no", "yes") and model.features == people.schema.features
    for ward, rows in table.groupby("ward"):
        expected = np.array(model.classes)[np.asarray(people[ward].x @ point[1][people.position(ward)] > 0, int)]
        assert_array_equal(model.predict(ward, rows), expected)
        assert_array_equal(model.predict(rows["ward"], rows), expected)
    mine = tw.load(model.only("south").save(tmp_path / "south"))
    assert_array_equal(mine.predict(table[20:40]), model.predict("south", table[20:40]))
    assert "north" not in (tmp_path / "south" / "model.json").read_text()
    new = model.adapt(table[:8], table["well"][:8], name="west")
    assert set(new.predict(table)) <= {"no", "yes"} and new.gap < 1e-12
    with pytest.raises(ValueError, match="city"):
        model.predict("north", table[["age"]])
