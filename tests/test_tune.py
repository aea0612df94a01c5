"""The strength chosen for the user: the path against fits of its own kind, the choice against its ends and a fine grid."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path as FilePath
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from test_compilations import compiling
from twofold.clients import Clients
from twofold.objectives.mixture import Mixture
from twofold.tune import curvature_of
from twofold.tune.choice import Judge
from twofold.tune.path import Path, assign

M, ROWS, FEATURES, FOLDS = 6, 40, 3, 3  # the same for nearly all tests: one compiled program


def made(spread: float, noise: float = 1.0, seed: int = 0, classes: bool = False) -> Clients:
    """Clients whose true models differ by so much."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=FEATURES)
    pairs = []
    for m in range(M):
        x = rng.normal(size=(ROWS - 2 * m, FEATURES))
        score = x @ (centre + spread * rng.normal(size=FEATURES))
        y = (score + rng.logistic(size=len(x)) > 0).astype(int) if classes else score + noise * rng.normal(size=len(x))
        pairs.append((x, y))
    return Clients.from_list(pairs)


SQUARED = tw.losses.squared(l2=0.01, intercept=True)
LOGISTIC = tw.losses.logistic(l2=0.01, intercept=True)


def held_out(objective: Any, clients: Clients, fold: np.ndarray, f: int) -> np.ndarray:
    """The losses of a fold's rows, by the optimum of a problem without these rows."""
    train = fold != f
    names = np.repeat(np.arange(len(clients)), clients.counts)
    without = Clients.from_groups(clients.x[train], clients.y[train], names[train])
    problem = tw.Problem(objective, without)
    best = problem.optimum()
    losses = np.full(clients.rows, np.nan)
    for m in range(len(clients)):
        beta = {name: leaf[m] for name, leaf in best.beta.items()} if best.beta != () else ()
        params = problem.objective.personal(best.w, beta, None, ())
        mine = (names == m) & ~train
        score = clients.x[mine] @ params["weight"] + params["bias"]
        y = clients.y[mine]
        squared = objective.loss.link.name == "squared"
        losses[mine] = 0.5 * (score - y) ** 2 if squared else np.logaddexp(0, score) - y * score
    return losses


@pytest.mark.parametrize("loss", [SQUARED, LOGISTIC], ids=["squared", "logistic"])
def test_every_fit_on_the_path_is_that_of_the_rows_left(loss: Any):
    """The far end of the path is one model for everybody, and the near end everyone alone."""
    clients = made(0.5, classes=loss is LOGISTIC)
    fold = assign(clients, FOLDS, 0, stratify=loss is LOGISTIC)
    size = curvature_of(loss, clients)
    path = Path(tw.objectives.mixture(loss, lam=np.ones(M)), clients, fold, FOLDS)
    ends = {
        1e6 * size: tw.objectives.traditional(loss),
        0.3: tw.objectives.mixture(loss, lam=0.3),
        0.0: tw.objectives.local(loss),
    }
    for lam, objective in ends.items():
        found = path.fit(Mixture(loss, np.full(M, lam)))
        mine = fold == 0
        assert_allclose(found.loss[mine], held_out(objective, clients, fold, 0)[mine], rtol=1e-4, atol=1e-6)
        if loss is SQUARED:  # Newton's second point is the minimum, and nobody looks for a better one
            assert found.rounds.tolist() == [2] * FOLDS


def test_errors_are_those_of_rows_drawn_anew():
    """With many rows the standard error of a mean is that of the textbook, and a difference's is paired."""
    rng = np.random.default_rng(0)
    clients = Clients.from_list([(np.ones((n, 1)), np.zeros(n)) for n in (400, 500)], weights=[0.25, 0.75])
    judge = Judge(clients, np.zeros(900, np.int32), 1)
    rows = rng.normal(size=900) * np.repeat([1.0, 3.0], [400, 500])
    mean = [rows[:400].mean(), rows[400:].mean()]
    assert_allclose(judge.mean(rows), 0.25 * mean[0] + 0.75 * mean[1])
    expected = np.sqrt(0.25**2 * rows[:400].var(ddof=1) / 400 + 0.75**2 * rows[400:].var(ddof=1) / 500)
    assert_allclose(judge.error(rows), expected, rtol=0.01)
    gain = judge.gain(rows, rows + 0.1)
    assert_allclose(gain, (0.1, 0.0), atol=1e-12)
    weighted = Clients.from_list([(np.ones((4, 1)), np.zeros(4))])
    weighted = dataclasses.replace(weighted, row_weights=np.array([2.0, 1.0, 1.0, 0.0]))
    assert_allclose(Judge(weighted, np.zeros(4, np.int32), 1).mean(np.array([1.0, 2.0, 4.0, 99.0])), 2.0)


def test_the_choice_of_the_judge():
    clients = Clients.from_list([(np.ones((4, 1)), np.zeros(4))])
    fold = np.array([0, 0, 1, 1], np.int32)
    judge = Judge(clients, fold, 2)
    lines = np.array([[1.0, 1.0, 4.0, 4.0], [3.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.4, 2.4]])
    assert judge.best(lines) == 2 and judge.best(lines, most_shared=True) == 0  # 0.3 worse, with an error of far more
    nested, chosen = judge.nested(lines)
    # The rows of fold 1 choose line 2 for fold 0, and those of fold 0 line 0 for fold 1.
    assert chosen.tolist() == [2, 0] and nested.tolist() == [2.0, 2.0, 4.0, 4.0]


def digits() -> Clients:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    x, y = load_digits(return_X_y=True)
    x = PCA(FEATURES, random_state=0).fit_transform(x)
    keep = y < 3
    x, y = x[keep] / x[keep].std(axis=0), y[keep]
    rng = np.random.default_rng(0)
    who = np.where(rng.random(len(y)) < 0.7, y * 2 + rng.integers(0, 2, len(y)), rng.integers(0, M, len(y)))
    rows = np.concatenate([np.flatnonzero(who == m)[:ROWS] for m in range(M)])
    return Clients.from_groups(x[rows], y[rows], who[rows])


# Of "between", with its 24 rows a client, one draw says little, so five are averaged: the first alone is 1.5 standard errors off the
# best, the other four are within one.
PROBLEMS = {
    "alike": ([lambda: made(0.05)], SQUARED),
    "unlike": ([lambda: made(1.0, noise=0.5)], SQUARED),
    "between": ([lambda seed=seed: made(0.4, classes=True, seed=seed) for seed in range(5)], LOGISTIC),
    "digits": ([digits], tw.losses.softmax(3, l2=0.01, intercept=True)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_auto_is_never_worse_than_the_worse_end_and_near_the_best_of_a_fine_grid(name: str):
    draws, loss = PROBLEMS[name]
    behind, errors = [], []
    for make in draws:
        clients = make()
        test = np.random.default_rng(1).random(clients.rows) < 0.4
        train = dataclasses.replace(clients, row_weights=(~test).astype(float))
        tuned = tw.tune(tw.objectives.mixture(loss, lam=1.0), train, folds=FOLDS)
        judge = Judge(dataclasses.replace(clients, row_weights=test.astype(float)), np.zeros(len(test), np.int32), 1)
        shared, *fine, alone, auto = graded(loss, train, test, tuned.strength)
        assert judge.mean(auto) <= max(judge.mean(shared), judge.mean(alone)) + 1e-9
        best = min([shared, *fine, alone], key=judge.mean)
        behind.append(judge.mean(auto) - judge.mean(best))
        errors.append(judge.error(best))
        # By its own measure the choice is the best of all that was tried, ends included.
        assert tuned.loss[tuned.chosen] == tuned.loss.min()
        if name in ("alike", "unlike"):
            assert (name == "unlike") == (tuned.gain_over_shared.mean > 2 * tuned.gain_over_shared.error)
    assert np.mean(behind) <= np.mean(errors)


def graded(loss: Any, train: Clients, test: np.ndarray, strength: Any) -> list[np.ndarray]:
    """The losses of rows that have had no part in the choice: with shared, 21 strengths, alone, and the one that was chosen.

    They have the weight zero in training, so that a fold that holds out just them is fitted as all others were.
    """
    base, size = tw.objectives.mixture(loss, lam=np.ones(M)), curvature_of(loss, train)
    with jax.enable_x64(True):
        path = Path(base, train, np.where(test, 0, FOLDS).astype(np.int32), FOLDS)
        chosen = strength if np.ndim(strength) else np.clip(strength, 0.0, 1e6 * size)
        strengths = (1e6 * size, *size * np.geomspace(1e2, 1e-3, 21), 0.0, chosen)
        return [path.fit(Mixture(loss, np.broadcast_to(lam, (M,)).copy())).loss for lam in strengths]


def test_one_strength_per_client_where_that_helps():
    """Half of the clients are alike with few noisy rows, the others have nothing to do with them, and many rows."""
    rng = np.random.default_rng(1)
    centre = rng.normal(size=4)
    pairs = []
    for m in range(12):
        n, truth, noise = (16, centre, 2.0) if m < 6 else (80, 4 * rng.normal(size=4), 0.3)
        x = rng.normal(size=(n, 4))
        pairs.append((x, x @ truth + noise * rng.normal(size=n)))
    clients = Clients.from_list(pairs)
    objective = tw.objectives.mixture(tw.losses.squared(l2=0.01), lam=1.0)
    tuned = tw.tune(objective, clients)
    assert tuned.per_client and tuned.gain_per_client.mean > tuned.gain_per_client.error
    assert tuned.strength.shape == (12,) and np.median(tuned.strength[:6]) > 10 * np.median(tuned.strength[6:])
    assert tuned.objective.lam is tuned.strength or np.array_equal(tuned.objective.lam, tuned.strength)
    assert not tw.tune(objective, clients, per_client=False).per_client


def test_problems_with_one_strength_per_client():
    """λ_m = 0 leaves a client alone, equal λ_m are one λ, and solvers certify what lies between."""
    clients = made(0.5)
    same = tw.Problem(tw.objectives.mixture(SQUARED, lam=[0.3] * 6), clients).optimum()
    assert_allclose(
        same.w["weight"], tw.Problem(tw.objectives.mixture(SQUARED, lam=0.3), clients).optimum().w["weight"], rtol=1e-9
    )
    lam = np.array([0.0, 0.1, 0.2, 0.4, 0.8, 100.0])
    problem = tw.Problem(tw.objectives.mixture(SQUARED, lam=lam), clients)
    best = problem.optimum()
    z = np.column_stack([clients[0].x, np.ones(ROWS)])
    alone = np.linalg.solve(z.T @ z / ROWS + 0.01 * np.eye(FEATURES + 1), z.T @ clients[0].y / ROWS)
    assert_allclose(best.beta["weight"][0], alone[:-1], rtol=1e-8)
    assert np.abs(best.beta["weight"][5] - best.w["weight"]).max() < 0.02
    result = tw.solve(problem, "profile", tol=1e-10, record=("gap", "bound"))
    assert result.status == "converged" and np.all(result.history["gap"] <= result.history["bound"] + 1e-13)
    multitask = tw.Problem(tw.objectives.multitask(SQUARED, lam=lam), clients)
    assert multitask.constants().how["mu"] == "certified" and multitask.constants().mu > 0
    with pytest.raises(ValueError, match="pfedme needs one λ for all"):
        tw.solve(tw.Problem(tw.objectives.mixture(SQUARED, lam=lam), clients), "pfedme", rounds=1)
    with pytest.raises(ValueError, match=r"lam has shape \(2,\), but there are 6 clients"):
        tw.Problem(tw.objectives.mixture(SQUARED, lam=[1.0, 2.0]), clients)
    for wrong in ([-1.0, 1.0], [0.0, 0.0], [[1.0]], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="lam must be one number > 0, or one number ≥ 0 per client"):
            tw.objectives.mixture(SQUARED, lam=wrong)
    objective = tw.objectives.mixture(SQUARED, lam=lam)
    assert objective.of_client(3).lam == 0.4 and objective.of_newcomer({}).lam == 0.4


def test_other_paths():
    clients = made(0.5)
    adaptive = tw.tune(tw.objectives.adaptive(SQUARED, alpha=0.5), clients, values=[0.2, 0.8], folds=FOLDS)
    assert adaptive.strengths == (1.0, 0.8, 0.2, 0.0) and "No alpha matters" in adaptive.notes[0]
    assert_allclose(adaptive.loss[1:3], adaptive.loss[3], rtol=1e-3)
    split = tw.tune(tw.objectives.weight_sharing(SQUARED, "weight"), clients, folds=FOLDS)
    assert split.strengths == ("shared", "weight", "alone") and split.ledger.rounds > 0
    many = tw.tune(tw.objectives.multitask(SQUARED, lam=0.3), clients, over="Lambda", values=[0.1, 10.0], folds=FOLDS)
    assert many.strengths == ("shared", 10.0, 0.1, "alone") and many.name == "Lambda"


def test_another_path_compiles_nothing_and_the_cost_is_counted():
    jax.clear_caches()  # what other tests have compiled would hide a compilation, and full caches forget
    clients = made(0.5)
    objective = tw.objectives.mixture(SQUARED, lam=1.0)
    fold = assign(clients, FOLDS, 0, stratify=False)
    first = tw.tune(objective, clients, folds=FOLDS, values=[0.1, 1.0], per_client=False)
    with compiling(most=0):
        second = tw.tune(objective, made(0.5, seed=1), folds=FOLDS, seed=1, per_client=False)
    d = 4  # three features and an intercept
    path = Path(tw.objectives.mixture(SQUARED, lam=np.ones(M)), clients, fold, FOLDS)
    fit = path.fit(tw.objectives.mixture(SQUARED, lam=np.full(M, 0.5)))
    assert path.ledger.floats_up == fit.rounds.sum() * (1 + d + d * (d + 1) // 2)
    assert path.ledger.rounds == fit.rounds.max()
    assert second.ledger.rounds > first.ledger.rounds > 4
    assert len(second.strengths) == 12 and second.seconds > 0


def test_rows_that_are_held_out_cost_nothing():
    """Each fold's gradients are those of the rows that it is trained on, and rows of weight zero are nobody's."""
    clients = made(0.5)
    weights = np.ones(clients.rows)
    weights[: clients.counts[0] // 2] = 0
    fold = assign(clients, FOLDS, 0, stratify=False)
    objective = tw.objectives.mixture(SQUARED, lam=np.ones(M))
    for rows in (clients, dataclasses.replace(clients, row_weights=weights)):
        there = np.ones(rows.rows, bool) if rows.row_weights is None else rows.row_weights > 0
        trained = [np.add.reduceat(there & (fold != f), rows.offsets[:-1], dtype=int) for f in range(FOLDS)]
        path = Path(objective, rows, fold, FOLDS)
        fit = path.fit(objective)
        d = FEATURES + 1
        assert path.ledger.gradients_w.tolist() == ((1 + d) * fit.rounds @ np.array(trained)).tolist()
        problem = tw.Problem(tw.objectives.mixture(SQUARED, lam=1.0), rows)
        run = tw.solve(problem, "profile", rounds=2)
        every = np.add.reduceat(there, rows.offsets[:-1], dtype=int)
        assert run.ledger.gradients_w.tolist() == ((1 + d) * run.ledger.iterations * every).tolist()


def test_the_report_and_the_plot(tmp_path: FilePath):
    tuned = tw.tune(tw.objectives.mixture(SQUARED, lam=1.0), made(0.5), values=[0.1, 1.0], folds=FOLDS)
    text = " ".join(str(tuned).split())
    for words in ("shared", "alone", "loss held out", "Chosen:", "than one model for everybody", "±"):
        assert words in text
    assert tuned.to_pandas().shape == (4, 4)
    assert tuned.plot(tmp_path / "path.png").stat().st_size > 5000
    assert tuned.problem.objective is tuned.objective or tuned.problem.objective.name == tuned.objective.name
    assert tuned.solve().status == "converged"


def test_the_report_does_not_say_that_shared_is_better_than_shared():
    """The gains are those of choosing, nested: where an end is chosen, they say how it does on rows without a say in it."""
    found = [
        tw.tune(tw.objectives.mixture(SQUARED, lam=1.0), made(0.05, seed=seed), folds=FOLDS, per_client=False)
        for seed in range(4)
    ]
    ends = [tuned for tuned in found if tuned.chosen == 0 and tuned.gain_over_shared.mean < 0]
    assert ends  # clients that are alike, so that one model is best, though not by every fold
    for tuned in ends:
        text = " ".join(str(tuned).split())
        worse = f"{-tuned.gain_over_shared.mean:.3g} ± {tuned.gain_over_shared.error:.1g} worse than one model for everybody"
        assert (
            f"Chosen: one model for everybody. On rows that had no say in the choice, choosing in this way is {worse}"
            in text
        )
        assert "lower" not in text


def test_what_cannot_be_tuned():
    clients = made(0.5)
    mixture = tw.objectives.mixture(SQUARED, lam=1.0)
    for arguments, options, words in (
        ((tw.objectives.local(SQUARED), clients), {}, "tune knows the strength of"),
        ((mixture, clients), {"over": "alpha"}, "For mixture, over is 'lam', got 'alpha'"),
        ((mixture, clients), {"values": [0.0]}, "must be > 0"),
        ((mixture, clients), {"values": []}, "values is empty"),
        ((mixture, clients), {"values": 0.1}, r"values is a list of strengths to try, such as \[0.1, 1.0\], got 0.1"),
        ((mixture, clients), {"values": "0.1"}, "values is a list of strengths to try, .* got '0.1'"),
        ((mixture, clients), {"values": ["a"]}, r"Every value of lam must be a number > 0, got \['a'\]"),
        ((mixture, clients), {"folds": 1}, "folds"),
        ((mixture, clients), {"per_client": "no"}, "per_client is True, False or \"auto\", got 'no'"),
        ((mixture, clients), {"by": "auc"}, 'by is "loss" or "grade"'),
        ((mixture, Clients.from_list([(np.ones((1, 1)), [0.0])] * 2)), {}, "nothing can be held out"),
        ((mixture,), {}, "tune needs Clients"),
        ((SQUARED, clients), {}, "tune needs an objective"),
        ((tw.Problem(mixture, clients), clients), {}, "has its clients already"),
    ):
        with pytest.raises(tw.TwofoldError, match=words):
            tw.tune(*arguments, **options)


def test_the_strength_chosen_for_school_is_near_the_best_of_a_fine_grid():
    """The real data, where there are some: by rows that had no say, never worse than the worse end, within an error of the best."""
    folder = os.environ.get("TWOFOLD_DATA", "")
    if not folder or not FilePath(folder, "school", "school.mat").is_file():
        pytest.skip("TWOFOLD_DATA is not set to a folder with school/school.mat")
    data = tw.data.school.load()
    x, y = (np.concatenate([pair[i] for pair in data.clients[:40]]) for i in (0, 1))
    owner = np.repeat(data.names[:40], [len(pair[1]) for pair in data.clients[:40]])
    x = x[:, :-1] / np.maximum(x[:, :-1].std(0), 1e-9)
    clients = Clients.from_groups(x - x.mean(0), (y - y.mean()) / y.std(), owner)
    test = np.random.default_rng(1).random(clients.rows) < 1 / 3
    test[clients.offsets[:-1]] = False
    train = dataclasses.replace(clients, row_weights=(~test).astype(float))
    loss = tw.losses.squared(l2=1e-3, intercept=True)
    tuned = tw.tune(tw.objectives.mixture(loss, lam=1.0), train, per_client=False)
    judge = Judge(dataclasses.replace(clients, row_weights=np.maximum(test, 1e-12)), np.zeros(len(test), np.int32), 1)
    base = tw.objectives.mixture(loss, lam=np.ones(40))
    with jax.enable_x64(True):
        path = Path(base, train, np.where(test, 0, 1).astype(np.int32), 1)
        far = 1e6 * curvature_of(loss, train)
        lams = (far, *far * np.geomspace(1e-4, 1e-9, 16), 0.0, np.clip(tuned.strength, 0.0, far))
        shared, *fine, alone, auto = (path.fit(Mixture(loss, np.full(40, lam))).loss for lam in lams)
    assert judge.mean(auto) <= max(judge.mean(shared), judge.mean(alone)) + 1e-9
    best = min([shared, *fine, alone], key=judge.mean)  # with hindsight, on the very rows that it is judged by
    assert judge.mean(auto) - judge.mean(best) <= judge.error(best)
    assert tuned.loss[tuned.chosen] == tuned.loss.min()


def test_looser_fits_on_the_path_change_no_figure_that_matters(monkeypatch: pytest.MonkeyPatch):
    """What stopping early leaves is far below the error of any held-out loss, and saves a good part of the rounds."""
    from twofold.tune import path as paths

    clients = made(0.5, classes=True)
    objective = tw.objectives.mixture(LOGISTIC, lam=1.0)
    early = tw.tune(objective, clients, folds=FOLDS, per_client=False)
    monkeypatch.setattr(paths, "CALM", {"newton": (1e-9, 2), "lbfgs": (1e-9, 2)})
    late = tw.tune(objective, clients, folds=FOLDS, per_client=False)
    assert np.max(np.abs(early.loss - late.loss) / late.error) < 0.01
    assert early.ledger.rounds < 0.75 * late.ledger.rounds
