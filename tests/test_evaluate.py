"""Grades are what a plain loop over clients gives, whatever the padding; tables say what was measured."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold.evaluate import ALONE, SHARED, Evaluation, Report, compare, evaluate, predict, report
from twofold.evaluate.gains import least_rows
from twofold.evaluate.scoring import Metric

COUNTS, WIDTH = (4, 9, 6), 3


def clients(counts: tuple[int, ...], seed: int, labels: int | None = 2) -> tw.Clients:
    rng = np.random.default_rng(seed)

    def one(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, WIDTH)), rng.normal(size=n) if labels is None else rng.integers(labels, size=n)

    return tw.Clients.from_list([one(n) for n in counts], names=["ann", "bob", "cy"])


TRAIN, TEST = clients(COUNTS, 0), clients((7, 2, 5), 1)
LOSS = tw.losses.logistic(l2=0.1)


def some(problem: tw.Problem, seed: int = 2) -> tuple[Any, Any]:
    """Any parameters of the right shape."""
    rng = np.random.default_rng(seed)

    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), problem.start)


def accuracy(x: np.ndarray, y: np.ndarray, model: np.ndarray) -> float:
    return float(np.mean((x @ model > 0) == y))


def each(function: Any, test: tw.Clients = TEST) -> np.ndarray:
    return np.array([function(m, test[m].x, test[m].y) for m in range(test.M)])


@pytest.mark.parametrize("buckets", [None, [[1], [2, 0]]])
def test_grades_are_those_of_a_loop_over_clients(buckets: Any) -> None:
    problem = tw.Problem(tw.objectives.adaptive(LOSS, [0.2, 0.5, 0.7]), TRAIN, buckets=buckets)
    w, beta = some(problem)
    found = evaluate(problem, (w, beta), TEST)
    blend = [(1 - a) * beta[m] + a * w for m, a in enumerate((0.2, 0.5, 0.7))]
    assert list(found.grades) == ["personal", "only w", "only β"]
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: accuracy(x, y, blend[m])))
    np.testing.assert_allclose(found["only w"], each(lambda m, x, y: accuracy(x, y, w)))
    assert found["shared"] is found["only w"] and found["alone"] is found["only β"]  # their old names
    np.testing.assert_allclose(found["alone"], each(lambda m, x, y: accuracy(x, y, beta[m])))
    assert found.rows.tolist() == [7, 2, 5]
    assert found.names == ("ann", "bob", "cy")


def test_without_test_clients_the_training_rows_are_graded() -> None:
    problem = tw.Problem(tw.objectives.local(LOSS), TRAIN)
    point = some(problem)
    assert evaluate(problem, point).held_out is False
    np.testing.assert_allclose(evaluate(problem, point).personal, evaluate(problem, point, TRAIN).personal)


def test_real_targets_are_graded_by_minus_the_squared_error() -> None:
    train, test = clients(COUNTS, 0, None), clients((7, 2, 5), 1, None)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(), 0.1), train)
    w, beta = some(problem)
    found = evaluate(problem, (w, beta), test)
    assert found.measure == "minus squared error"
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: -np.mean((x @ beta[m] - y) ** 2), test))


def test_a_part_that_is_no_model_by_itself_is_left_out() -> None:
    def parts(objective: Any) -> list[str]:
        problem = tw.Problem(objective, TRAIN)
        return list(evaluate(problem, some(problem), TEST).grades)

    assert parts(tw.objectives.weight_sharing(LOSS, 2)) == ["personal"]
    assert parts(tw.objectives.traditional(LOSS)) == ["personal", "only w"]
    assert parts(tw.objectives.local(LOSS)) == ["personal", "only β"]


def test_a_part_of_a_sum_is_graded_without_the_other() -> None:
    problem = tw.Problem(tw.objectives.residual(LOSS, [0, 1], [2]), TRAIN)
    w, beta = some(problem)
    found = evaluate(problem, (w, beta), TEST)
    np.testing.assert_allclose(found["shared"], each(lambda m, x, y: accuracy(x[:, :2], y, w)))
    np.testing.assert_allclose(found["alone"], each(lambda m, x, y: accuracy(x[:, 2:], y, beta[m])))


def test_maml_takes_its_step_on_the_training_rows() -> None:
    problem = tw.Problem(tw.objectives.maml(LOSS, 0.3), TRAIN)
    w, _ = some(problem)

    def stepped(m: int) -> np.ndarray:
        x, y = TRAIN[m].x, TRAIN[m].y
        return w - 0.3 * (x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y) + 0.1 * w)

    found = evaluate(problem, (w, ()), TEST)
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: accuracy(x, y, stepped(m))))


def test_an_objective_of_ones_own_is_graded_as_its_author_says() -> None:
    def f(w: Any, beta: Any, batch: Any) -> Any:
        return jnp.mean((batch.x @ w + beta - batch.y) ** 2)

    plain = tw.Problem(tw.objectives.custom(f, np.zeros(WIDTH), np.zeros(())), TRAIN)
    w, beta = some(plain)
    found = evaluate(plain, (w, beta), TEST)
    assert found.measure == "minus loss"
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: -np.mean((x @ w + beta[m] - y) ** 2)))
    graded = tw.objectives.custom(f, np.zeros(WIDTH), np.zeros(()), grade=lambda w, beta, batch: batch.y * 1.0)
    found = evaluate(tw.Problem(graded, TRAIN), (w, beta), TEST)
    assert found.measure == "grade"
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: y.mean()))


def test_predictions_are_the_clients_own() -> None:
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    w, beta = some(problem)
    x = TEST["bob"].x
    np.testing.assert_array_equal(predict(problem, (w, beta), "bob", x), (x @ beta[1] > 0).astype(int))
    np.testing.assert_array_equal(predict(problem, (w, beta), 1, x), predict(problem, (w, beta), "bob", x))
    np.testing.assert_array_equal(predict(problem, (w, beta), -2, x), predict(problem, (w, beta), "bob", x))
    with pytest.raises(tw.ClientError, match=r"there is no client 'bop'.*did you mean 'bob'"):
        predict(problem, (w, beta), "bop", x)
    with pytest.raises(IndexError, match="no client at position 3"):
        predict(problem, (w, beta), 3, x)


def test_every_client_predicts_with_its_own_parameters() -> None:
    train = clients(COUNTS, 0, None)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(), 0.1), train)
    w, beta = some(problem)
    x = np.eye(WIDTH)
    for m, name in enumerate(train.names):
        np.testing.assert_allclose(predict(problem, (w, beta), name, x), beta[m], rtol=1e-12)
        np.testing.assert_allclose(predict(problem, (w, beta), m, x), beta[m], rtol=1e-12)


# --- tw.evaluate as a function ----------------------------------------------------------------------------------------


def test_the_module_can_be_called() -> None:
    problem = tw.Problem(tw.objectives.local(LOSS), TRAIN)
    point = some(problem)
    found = tw.evaluate(problem, point, TEST)
    np.testing.assert_array_equal(found.personal, tw.evaluate.evaluate(problem, point, TEST).personal)
    assert tw.evaluate(problem, point).held_out is False
    assert (tw.evaluate.compare, tw.evaluate.predict) == (compare, predict)


def test_the_class_offers_what_the_module_exports() -> None:
    """Type checkers know `tw.evaluate` by its class alone."""
    offered = vars(type(tw.evaluate))
    for name in tw.evaluate.__all__:
        assert getattr(type(tw.evaluate), name) is getattr(tw.evaluate, name), name
        assert name in offered


# --- features ---------------------------------------------------------------------------------------------------------


def five_features() -> tuple[tw.Problem, tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 5)), rng.integers(2, size=n)) for n in (4, 6)]
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), tw.Clients.from_list(pairs, names=["ann", "bob"]))
    return problem, some(problem)


@pytest.mark.parametrize("width", [3, 6])
def test_rows_of_another_width_are_refused(width: int) -> None:
    problem, point = five_features()
    wrong = np.ones((2, width))
    with pytest.raises(ValueError, match=rf"Client 'bob' has x of width {width}.*trained on width 5"):
        predict(problem, point, "bob", wrong)
    test = tw.Clients.from_list([(wrong, [0, 1]), (wrong, [1, 1])], names=["ann", "bob"])
    with pytest.raises(tw.TwofoldError, match=rf"Client 'ann' has x of width {width}.*trained on width 5"):
        evaluate(problem, point, test)


def test_features_of_another_structure_are_refused() -> None:
    problem, point = five_features()
    with pytest.raises(ValueError, match="x of a single row, but the problem was trained on width 5"):
        predict(problem, point, 0, np.ones(5))
    with pytest.raises(ValueError, match=r"x of width 5 in \['a'\], but the problem was trained on width 5"):
        predict(problem, point, 0, {"a": np.ones((2, 5))})
    with pytest.raises(ValueError, match="x of a single value, but"):
        predict(problem, point, 0, 1.0)


# --- the evaluation itself --------------------------------------------------------------------------------------------

GRADES = np.array([0.9, 0.5, 0.7, 0.5])
SHOWN = Evaluation(("a", "b", "c", "d"), np.array([10, 20, 30, 40]), {"personal": GRADES}, "accuracy", "local", True)


def test_summaries() -> None:
    assert SHOWN.mean == pytest.approx(0.65)
    assert SHOWN.worst == ("b", 0.5)
    np.testing.assert_allclose(SHOWN.quantiles([0, 0.5, 1]), [0.5, 0.6, 0.9])
    assert SHOWN.summary()["personal"]["worst_client"] == "b"
    assert list(SHOWN.to_pandas().columns) == ["client", "rows", "personal"]
    with pytest.raises(KeyError, match="local has no 'shared' model; it has personal"):
        SHOWN["shared"]


def test_the_text_holds_every_figure() -> None:
    text = str(SHOWN)
    for part in ("local: accuracy of 4 clients on 100 rows held out", "65.0 %", "90.0 %", "worst client"):
        assert part in text
    many = Evaluation(tuple(range(30)), np.ones(30, int), {"personal": np.zeros(30)}, "minus loss", "x", False)
    assert "… and 10 more clients" in str(many)
    assert "on 30 training rows" in str(many)
    assert "mean 65.0 %, worst 50.0 % (b)" in repr(SHOWN)


# --- metrics ----------------------------------------------------------------------------------------------------------

BINARY = ("accuracy", "balanced_accuracy", "roc_auc", "neg_log_loss", "neg_brier_score")
REAL = ("r2", "neg_mean_squared_error", "neg_root_mean_squared_error", "neg_mean_absolute_error")


@pytest.mark.parametrize("name", [*BINARY, *REAL])
def test_a_resamples_metric_is_that_of_the_rows_drawn(name: str) -> None:
    from sklearn import metrics

    rng = np.random.default_rng(0)
    rows, draws = 12, 30
    weights = rng.multinomial(rows, np.full(rows, 1 / rows), size=draws).astype(float)
    y = rng.normal(size=rows) if name in REAL else rng.integers(2, size=rows)
    scores = np.round(rng.normal(size=rows), 1)  # with ties
    high = 1 / (1 + np.exp(-scores))
    pair = np.stack([1 - high, high], axis=1)
    said = {"roc_auc": scores, "neg_log_loss": pair, "neg_brier_score": pair}.get(
        name, scores if name in REAL else scores > 0
    )
    found = Metric.named(name, None).of(weights, y, said)
    functions: dict[str, Any] = {
        "accuracy": metrics.accuracy_score,
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "roc_auc": metrics.roc_auc_score,
        "neg_log_loss": lambda y, p: -metrics.log_loss(y, p[:, 1], labels=[0, 1]),
        "neg_brier_score": lambda y, p: -metrics.brier_score_loss(y, p[:, 1]),
        "r2": metrics.r2_score,
        "neg_mean_squared_error": lambda y, s: -metrics.mean_squared_error(y, s),
        "neg_root_mean_squared_error": lambda y, s: -metrics.root_mean_squared_error(y, s),
        "neg_mean_absolute_error": lambda y, s: -metrics.mean_absolute_error(y, s),
    }
    for b in range(draws):
        chosen = np.repeat(np.arange(rows), weights[b].astype(int))
        assert found[b] == pytest.approx(functions[name](y[chosen], said[chosen]), abs=1e-12)


def test_any_scorer_of_scikit_learn_by_its_name() -> None:
    from sklearn.metrics import f1_score, matthews_corrcoef

    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    w, beta = some(problem)
    found = evaluate(problem, (w, beta), TEST, metric="f1")
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: f1_score(y, x @ beta[m] > 0)))
    np.testing.assert_allclose(found["only w"], each(lambda m, x, y: f1_score(y, x @ w > 0)))
    again = report(problem, (w, beta), TEST, metric="matthews_corrcoef", baselines=some_baselines())
    np.testing.assert_allclose(again["personal"], each(lambda m, x, y: matthews_corrcoef(y, x @ beta[m] > 0)))
    assert again.resamples == 2000
    rare = report(problem, (w, beta), TEST, metric="homogeneity_score", baselines=some_baselines())
    assert rare.resamples == 333 and np.isfinite(rare["personal"]).all()
    with pytest.raises(ValueError, match=r"no metric 'roc_ac': .*Did you mean 'roc_auc'"):
        evaluate(problem, (w, beta), TEST, metric="roc_ac")
    with pytest.raises(
        ValueError, match="r2 does not fit the logistic loss, which predicts a class: choose from accuracy"
    ):
        evaluate(problem, (w, beta), TEST, metric="r2")
    for name, more in (("roc_auc", "roc_auc_ovr"), ("f1", "f1_macro"), ("average_precision", "roc_auc_ovr")):
        with pytest.raises(ValueError, match=f"{name} is for two classes; for more use {more}"):
            Metric.named(name, tw.losses.softmax(3))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighted", [True, False])
def test_metrics_of_resamples_are_those_of_scikit_learns_scorers(classes: int, weighted: bool) -> None:
    """Every formula of ours against the scorer of its name, on the rows that were drawn, with ties and classes that are missing."""
    from twofold.evaluate.scoring import KNOWN, OF_NUMBERS, OF_TWO, _scorer

    rng = np.random.default_rng(classes)
    rows = 12
    weights = rng.multinomial(rows, np.full(rows, 1 / rows), size=25).astype(float)
    scores = np.round(rng.normal(size=(rows, classes)), 1)
    for name, (needs, formula) in KNOWN.items():
        if name == "calibration" or (classes == 3 and name in OF_TWO):
            continue
        y = np.round(rng.normal(size=rows), 1) if name in OF_NUMBERS else rng.integers(classes, size=rows)
        if name in OF_NUMBERS:
            told = said = scores[:, :1]
            said = said[:, 0]
        else:
            told = scores[:, 1:] - scores[:, :1] if classes == 2 else scores
            odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            labels = (told[:, 0] > 0).astype(int) if classes == 2 else np.argmax(scores, axis=1)
            said = {"predictions": labels, "scores": told[:, 0], "probabilities": odds}[needs]
        theirs = _scorer(name)(weights, y, told)
        ours = formula(weights, y, said)
        there = np.isfinite(ours) & np.isfinite(theirs)
        np.testing.assert_allclose(ours[there], theirs[there], atol=1e-10, err_msg=name)
        assert there.sum() > 5, name


@pytest.mark.parametrize("name", ["r2", "explained_variance"])
def test_a_share_of_no_variance_is_no_number_and_far_targets_lose_no_digits(name: str) -> None:
    """A resample of two rows may be one row twice. Its variance is 0, and not what rounding leaves of 20.1² − 20.1²."""
    from twofold.evaluate.scoring import KNOWN, _scorer

    y, said = np.array([20.1, 23.7, 24.3]), np.array([19.0, 25.0, 24.0])
    formula = KNOWN[name][1]
    found = formula(np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 3], [1, 1, 1]]), y, said)
    assert np.isnan(found[:3]).all() and np.isfinite(found[3])
    far = formula(np.ones((1, 3)), y + 1e7, said + 1e7)
    np.testing.assert_allclose(far, _scorer(name)(np.ones((1, 3)), y + 1e7, (said + 1e7)[:, None]), rtol=1e-7)


def test_calibration_is_minus_the_expected_calibration_error() -> None:
    sure = np.array([0.05, 0.05, 0.95, 0.95])
    said = np.stack([1 - sure, sure], axis=1)
    found = Metric.named("calibration", tw.losses.logistic()).of(np.ones((1, 4)), np.array([0, 1, 1, 1]), said)
    np.testing.assert_allclose(found, [-(2 * 0.45 + 2 * 0.05) / 4])
    assert Metric.named("ece", tw.losses.softmax(3)).name == "calibration"


def test_compare_and_report_take_a_metric_and_clients_without_one_are_left_out() -> None:
    loss = tw.losses.logistic(l2=0.1)
    one = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])])
    found = compare(loss, one, one, {"near": tw.objectives.mixture(loss, lam=1.0)}, rounds=5, metric="roc_auc")
    assert found.measure == "roc_auc" and found["near"].mean == 1.0 and np.isnan(found["near"].evaluation.personal[1])
    assert "nan" not in str(found["near"].evaluation)
    with pytest.raises(ValueError, match="Did you mean 'roc_auc'"):
        compare(loss, one, one, {}, rounds=5, metric="roc_ac")


# --- who gains, who is hurt -------------------------------------------------------------------------------------------


def some_baselines() -> dict[str, Any]:
    rng = np.random.default_rng(8)
    return {"shared": (rng.normal(size=WIDTH), ()), "alone": ((), rng.normal(size=(3, WIDTH)))}


def test_the_baselines_are_trained_as_one_model_and_alone() -> None:
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    w, beta = problem.optimum()[:2]
    found = report(problem, (w, beta), TEST, resamples=10)
    one = tw.Problem(tw.objectives.traditional(LOSS), TRAIN).optimum().w
    alone = tw.Problem(tw.objectives.local(LOSS), TRAIN).optimum().beta
    np.testing.assert_allclose(found["shared"], each(lambda m, x, y: accuracy(x, y, one)))
    np.testing.assert_allclose(found["alone"], each(lambda m, x, y: accuracy(x, y, alone[m])))
    np.testing.assert_allclose(found["personal"], each(lambda m, x, y: accuracy(x, y, beta[m])))
    assert {name: run.status for name, run in found.runs.items()} == {"shared": "converged", "alone": "converged"}
    np.testing.assert_allclose(found.runs["alone"].beta, alone, atol=1e-3)
    same = report(tw.Problem(tw.objectives.local(LOSS), TRAIN), ((), alone), TEST, resamples=10)
    assert not same.gain("alone").value.any() and not same.helped("alone") and not same.hurt("alone")


def test_intervals_are_those_of_a_paired_bootstrap() -> None:
    train, test = clients((9, 9, 9), 0, None), clients((30, 40, 4), 1, None)
    loss = tw.losses.squared(l2=0.1)
    problem = tw.Problem(tw.objectives.mixture(loss, 0.1), train)
    w, beta = some(problem)
    given = some_baselines()
    found = report(problem, (w, beta), test, baselines=given, resamples=4000, seed=1)
    gain, rng = found.gain("alone"), np.random.default_rng(77)
    for m in range(2):
        x, y = test[m].x, test[m].y
        each_row = (x @ given["alone"][1][m] - y) ** 2 - (x @ beta[m] - y) ** 2
        drawn = each_row[rng.integers(len(y), size=(4000, len(y)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        width = high - low
        assert gain.value[m] == pytest.approx(each_row.mean())
        assert gain.low[m] == pytest.approx(low, abs=0.1 * width) and gain.high[m] == pytest.approx(
            high, abs=0.1 * width
        )
        # Unpaired, the interval would be another: that of the difference of independent draws.
        apart = [np.var((x @ b - y) ** 2) for b in (given["alone"][1][m], beta[m])]
        assert abs(width - 2 * 1.96 * np.sqrt(sum(apart) / len(y))) > 0.05 * width
    assert gain.mean[1] < gain.mean[0] < gain.mean[2]
    assert gain.enough.tolist() == [True, True, False] and least_rows(0.95) == 6 and least_rows(0.99) == 8


def test_few_rows_make_nobody_sure() -> None:
    x = np.eye(WIDTH)
    data = tw.Clients.from_list([(np.tile(x, (n, 1))[:n], np.ones(n)) for n in (5, 6)], names=["few", "enough"])
    problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.1), 0.1), data)
    right, wrong = np.ones((2, WIDTH)), np.zeros((2, WIDTH))
    found = report(
        problem, (np.zeros(WIDTH), right), data, baselines={"shared": (np.zeros(WIDTH), ()), "alone": ((), wrong)}
    )
    assert found.helped("alone") == ("enough",) and found.hurt("alone") == ()
    found = report(
        problem, (np.zeros(WIDTH), wrong), data, baselines={"shared": (np.ones(WIDTH), ()), "alone": ((), right)}
    )
    assert found.hurt("shared") == ("enough",)
    assert "1 clients have too few rows here for a sure verdict (6 are needed)" in str(found)


def made_up(M: int = 42, most: int = 90) -> Report:
    rng = np.random.default_rng(0)
    counts = rng.integers(6, most, size=M)
    data = tw.Clients.from_list([(rng.normal(size=(n, WIDTH)), rng.integers(2, size=n)) for n in counts],
                                names=[f"a patient with a long name {m}" for m in range(M)])  # fmt: skip
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), data)
    given = {"shared": (rng.normal(size=WIDTH), ()), "alone": ((), rng.normal(size=(M, WIDTH)))}
    return report(problem, some(problem), data, baselines=given, resamples=200)


def test_the_report_reads_well_on_a_narrow_screen_and_in_a_notebook() -> None:
    found = made_up()
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("shared, trained as one model", "trained alone", "surely helped", "surely hurt", "by chance", "over alone",
                  "training rows", "… and 22 more clients"):  # fmt: skip
        assert words in text
    assert [group[2] for group in found.by_rows("alone")] == [14, 14, 14] or sum(
        g[2] for g in found.by_rows("alone")
    ) == 42
    page = found._repr_html_()
    assert page.count("<circle") == 42 * 5 and "a patient with a long name 7:" in page and "<script" not in page
    table = found.to_pandas()
    assert len(table) == 42 and set(table["over_alone_verdict"]) <= {"helped", "hurt", "unsure"}
    assert (table["over_alone_verdict"] == "helped").sum() == len(found.helped("alone"))
    assert f"over alone: {len(found.helped('alone'))} surely helped" in repr(found)
    np.testing.assert_allclose(table["personal"] - table["shared"], table["over_shared"])
    with pytest.raises(KeyError, match="A gain is over shared or alone, not over 'w'"):
        found.gain("w")


def test_clients_of_one_size_stand_in_the_middle_of_the_picture() -> None:
    ends = r">\d+ rows</text>"
    page, unequal = made_up(M=3, most=7)._repr_html_(), made_up(M=3)._repr_html_()
    assert page.count(">6 rows each</text>") == 2 and not re.findall(ends, page)
    assert "rows each</text>" not in unequal and len(re.findall(ends, unequal)) == 4


def test_a_metric_without_a_value_leaves_its_client_out() -> None:
    x = np.random.default_rng(0).normal(size=(8, WIDTH))
    data = tw.Clients.from_list([(x, np.ones(8, int)), (x, np.arange(8) % 2)], names=["one class", "two"])
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), data)
    given = {"shared": (np.ones(WIDTH), ()), "alone": ((), np.ones((2, WIDTH)))}
    found = report(problem, some(problem), data, metric="auc", baselines=given, resamples=50)
    assert np.isnan(found["personal"][0]) and np.isfinite(found["personal"][1])
    assert np.isfinite(found.gain("shared").mean).all()
    assert "–" in str(found) and found.measure == "roc_auc"


def test_reports_that_cannot_be() -> None:
    problem = tw.Problem(tw.objectives.custom(lambda w, b, batch: jnp.mean(batch.x @ w) + b, np.zeros(3), 0.0), TRAIN)
    with pytest.raises(ValueError, match="custom has no loss of its own with which to train the baselines"):
        report(problem, problem.start, TEST)
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    with pytest.raises(ValueError, match="A baseline is shared or alone, not 'w'"):
        report(problem, problem.start, TEST, baselines={"w": problem.start})
    with pytest.raises(ValueError, match="level must be a probability"):
        report(problem, problem.start, TEST, level=95)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    point = some(problem)
    with pytest.raises(TypeError, match=r"one run's Result or a pair \(w, beta\), got Results"):
        evaluate(problem, tw.Results([]), TEST)  # type: ignore[arg-type]
    for grade in (evaluate, report):
        with pytest.raises(
            TypeError, match=r"The problem comes first, .* \(problem, result, test\); got Results as the problem"
        ):
            grade(tw.Results([]), problem, TEST)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 training clients but 2 test clients"):
        evaluate(problem, point, TEST.subset([0, 1]))
    with pytest.raises(ValueError, match="client 0 is named 'ann' in training and 'bob' in the test"):
        evaluate(problem, point, TEST.subset([1, 0, 2]))
    with pytest.raises(TypeError, match=r"must be Clients .*got list"):
        evaluate(problem, point, [1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have shapes"):
        evaluate(problem, (point[0], point[1][:2]), TEST)


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_compare_trains_the_baselines_and_every_objective() -> None:
    found = compare(
        LOSS, TRAIN, TEST, {"near": tw.objectives.mixture(LOSS, 1.0)}, rounds=7, algorithm="lsgd", record=(), seed=3
    )
    assert [row.name for row in found] == [SHARED, ALONE, "near"]
    assert [row.rounds for row in found] == [7, 0, 7]
    assert found["near"].bytes == 2 * 7 * WIDTH * 8
    near = tw.Problem(tw.objectives.mixture(LOSS, 1.0), TRAIN)
    again = tw.solve(near, "lsgd", rounds=7, seed=3, record=())
    np.testing.assert_allclose(found["near"].evaluation.personal, evaluate(near, again, TEST).personal)
    assert list(found.to_pandas().columns) == ["name", "mean", "worst", "rounds", "bytes", "seconds", "status"]
    assert "near" in str(found) and "336" in str(found)
    with pytest.raises(KeyError, match="There is no 'far' here"):
        found["far"]


def test_compare_refuses_what_it_cannot_name() -> None:
    with pytest.raises(ValueError, match="'each client alone' is the name of a baseline"):
        compare(LOSS, TRAIN, TEST, {ALONE: tw.objectives.local(LOSS)}, rounds=1)
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(LOSS, TRAIN, TEST, {}, rounds=1, baselines=False)


def test_long_names_stay_apart_in_eighty_columns() -> None:
    rng = np.random.default_rng(0)
    names = [f"school-district-{i:03}" for i in range(8)]
    clients = tw.Clients.from_list([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in names], names=names)
    problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), clients)
    found = tw.evaluate.report(problem, problem.start, clients, baselines={"shared": (np.zeros(3), ())})
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"district-{i:03}" in text for i in range(8)) and "school-di…" not in text
    assert r"\toprule" in found.to_latex() and "school-district-003" in found.to_latex()
