"""Grades are what a plain loop over clients gives, whatever the padding; tables say what was measured."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold.evaluate import ALONE, SHARED, Evaluation, compare, evaluate, predict

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
    assert list(found.grades) == ["personal", "shared", "alone"]
    np.testing.assert_allclose(found.personal, each(lambda m, x, y: accuracy(x, y, blend[m])))
    np.testing.assert_allclose(found["shared"], each(lambda m, x, y: accuracy(x, y, w)))
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
    assert parts(tw.objectives.traditional(LOSS)) == ["personal", "shared"]
    assert parts(tw.objectives.local(LOSS)) == ["personal", "alone"]


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


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    problem = tw.Problem(tw.objectives.mixture(LOSS, 0.1), TRAIN)
    point = some(problem)
    with pytest.raises(TypeError, match=r"one run's Result or a pair \(w, beta\), got Results"):
        evaluate(problem, tw.Results([]), TEST)  # type: ignore[arg-type]
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
