"""The estimators, by scikit-learn's own checks and in the company of its tools."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import twofold as tw
from test_compilations import compiling
from twofold.clients import ClientWarning
from twofold.sklearn import PersonalizedClassifier, PersonalizedRegressor, WholeClients, WithinClients, load
from twofold.sklearn.checks import TOLD


@parametrize_with_checks([PersonalizedClassifier(), PersonalizedRegressor()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def table(seed: int = 0, patients: int = 6, rows: int = 30) -> tuple[pd.DataFrame, pd.Series]:
    """Patients on whom a drug works in their own way, with strings, a category and gaps.

    As large as here wherever the size does not matter: another one means other programs, about twenty where the strength is chosen.
    """
    rng = np.random.default_rng(seed)
    n = patients * rows
    who = np.repeat([f"p{i}" for i in range(patients)], rows)
    frame = pd.DataFrame({"patient": who, "age": rng.normal(60, 10, n), "dose": rng.normal(size=n)})
    frame["drug"] = pd.Categorical(rng.choice(["old", "new", "none"], n))
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    slope = np.repeat(np.where(np.arange(patients) % 2, 2.0, -2.0) + 0.2 * rng.normal(size=patients), rows)
    score = slope * frame["dose"] + (frame["drug"] == "new") + rng.logistic(size=n) * 0.5
    return frame, pd.Series(np.where(score > 0, "better", "worse"))


@pytest.fixture(scope="module")
def fitted() -> PersonalizedClassifier:
    return PersonalizedClassifier(client="patient").fit(*table())


def test_a_table_with_strings_gaps_and_categories(fitted: PersonalizedClassifier):
    frame, labels = table()
    new, truth = table(seed=1)
    assert fitted.classes_.tolist() == ["better", "worse"] and fitted.clients_.tolist() == [f"p{i}" for i in range(6)]
    assert fitted.feature_names_in_.tolist() == list(frame.columns) and fitted.n_features_in_ == 4
    assert fitted.schema_.features == ("age", "age missing", "dose", "drug=new", "drug=none", "drug=old")
    shared = PersonalizedClassifier(client="patient", objective="shared").fit(frame, labels)
    assert fitted.score(new, truth) > shared.score(new, truth) + 0.15
    assert fitted.tuned_.gain_over_shared.mean > 3 * fitted.tuned_.gain_over_shared.error
    proba = fitted.predict_proba(new)
    assert_allclose(proba.sum(axis=1), 1)
    assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(new))
    assert_allclose(proba[:, 1], 1 / (1 + np.exp(-fitted.decision_function(new))))
    assert fitted.ledger_.rounds > fitted.n_rounds_ and np.isfinite(fitted.strength_).all()


@pytest.mark.filterwarnings("ignore::twofold.clients.ClientWarning")
def test_who_is_not_known_gets_the_shared_part(fitted: PersonalizedClassifier):
    frame, _ = table(seed=2)
    strangers = frame.assign(patient="nobody")
    x = fitted.schema_.transform(strangers)
    assert_allclose(fitted.decision_function(strangers), x @ fitted.shared_coef_ + fitted.shared_intercept_)
    assert_allclose(fitted.decision_function(frame.assign(patient=None)), fitted.decision_function(strangers))
    mine = frame["patient"] == "p3"
    own = fitted.decision_function(frame)[mine]
    assert_allclose(own, x[mine] @ fitted.coef_[3] + fitted.intercept_[3])
    alone = PersonalizedClassifier(client="patient", objective="alone", weights="equal").fit(*table())
    assert_allclose(alone.shared_coef_, alone.coef_.mean(axis=0))


@pytest.mark.parametrize("strength", [0.3, 30.0])
def test_a_new_client_joins_without_another_fit(strength: float):
    """Its β is the exact minimiser for this w, and nobody else's model moves."""
    x, y, who = numbers()
    model = PersonalizedRegressor(strength=strength, l2=0.05, standardize=None).fit(x, y, client=who)
    before, few = model.predict(x, client=who), slice(0, 7)
    new_x, new_y, _ = numbers(seed=5)
    assert model.adapt(new_x[few], new_y[few], client=9) is model
    assert_array_equal(model.predict(x, client=who), before)
    assert model.clients_.tolist() == [0, 1, 2, 3, 9] and 0 <= model.adapted_[9] < 1e-10
    padded = np.column_stack([new_x[few], np.ones(7)])
    target = (new_y[few] - y.mean()) / y.std()
    centre = np.append(model.shared_coef_, model.shared_intercept_ - y.mean()) / y.std()
    hessian = padded.T @ padded / 7 + (0.05 + strength) * np.eye(4)
    exact = np.linalg.solve(hessian, padded.T @ target / 7 + strength * centre)
    assert_allclose(model.coef_[4], exact[:3] * y.std(), atol=1e-8)
    assert_allclose(model.predict(new_x, client=[9] * len(new_x)), new_x @ model.coef_[4] + model.intercept_[4])


@pytest.mark.filterwarnings("ignore::twofold.clients.ClientWarning")
def test_new_clients_of_a_table_and_what_is_refused(fitted: PersonalizedClassifier):
    model = pickle.loads(pickle.dumps(fitted))
    frame, labels = table(seed=1, patients=2)
    names = frame["patient"].map({"p0": "zoe", "p1": "max"})
    joined = model.adapt(frame.assign(patient=names), labels)
    assert joined.clients_.tolist()[-2:] == ["zoe", "max"]
    assert (
        joined.score(frame.assign(patient=names), labels) > joined.score(frame.assign(patient="nobody"), labels) + 0.1
    )
    with pytest.raises(ValueError, match="Client 'p0' has a model already"):
        model.adapt(frame, labels)
    with pytest.raises(
        ValueError, match="Row 1 has the label 'cured', which was not there in fit: it knows 'better', 'worse'"
    ):
        model.adapt(frame[:2].assign(patient="eve"), ["better", "cured"])
    with pytest.raises(ValueError, match="whose rows these are"):
        PersonalizedRegressor(objective="shared").fit([[0.0], [1.0]], [0.0, 1.0]).adapt([[1.0]], [1.0])
    everybody = PersonalizedRegressor(objective="shared").fit([[0.0], [1.0]], [0.0, 1.0], client=["a", "b"])
    everybody.adapt([[1.0]], [7.0], client="c")
    assert_array_equal(everybody.coef_[2], everybody.shared_coef_)


def test_the_same_clients_by_column_and_by_name(fitted: PersonalizedClassifier):
    frame, labels = table()
    rest = frame.drop(columns="patient")
    for name in ("client", "groups"):
        other = PersonalizedClassifier().fit(rest, labels, **{name: frame["patient"]})
        assert_allclose(other.coef_, fitted.coef_, rtol=1e-9)
        assert_allclose(other.predict_proba(rest, **{name: frame["patient"]}), fitted.predict_proba(frame), rtol=1e-9)
    with pytest.raises(ValueError, match="two names for the same thing"):
        PersonalizedClassifier().fit(rest, labels, client=frame["patient"], groups=frame["patient"])
    polars = pytest.importorskip("polars").from_pandas(frame)
    assert_allclose(fitted.predict_proba(polars), fitted.predict_proba(frame))


def numbers(seed: int = 0, M: int = 4, rows: int = 20, d: int = 3) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(M), rows)
    x = rng.normal(size=(M * rows, d))
    slopes = rng.normal(size=d) + 0.5 * rng.normal(size=(M, d))
    return x, np.sum(x * slopes[who], axis=1) + 100 + 0.3 * rng.normal(size=len(x)), who


def test_against_scikit_learn_where_it_has_the_same_model():
    """Without clients it is ridge or logistic regression, and "alone" is one of them for each client."""
    x, y, who = numbers()
    l2 = 0.05
    own = PersonalizedRegressor(objective="alone", l2=l2, standardize=None).fit(x, y, client=who)
    for m in range(4):
        mine = x[who == m]
        padded = np.column_stack([mine, np.ones(len(mine))])
        target = (y[who == m] - y.mean()) / y.std()
        reference = Ridge(alpha=l2 * len(mine), fit_intercept=False).fit(padded, target)
        assert_allclose(own.coef_[m], reference.coef_[:-1] * y.std(), rtol=1e-6)
        assert_allclose(own.intercept_[m], reference.coef_[-1] * y.std() + y.mean(), rtol=1e-9)
    labels = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    padded = np.column_stack([x, np.ones(len(x))])
    for target in (labels, labels > 1):
        ours = PersonalizedClassifier(l2=l2, standardize=None).fit(x, target)
        reference = LogisticRegression(C=1 / (l2 * len(x)), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(
            padded, target
        )
        assert_allclose(ours.predict_proba(x), reference.predict_proba(padded), atol=1e-5)


def test_weights_of_samples_among_clients():
    x, y, who = numbers()
    copies = np.random.default_rng(3).integers(0, 3, len(x))
    index = np.repeat(np.arange(len(x)), copies)
    estimator = PersonalizedRegressor(strength=0.3)
    weighted = clone(estimator).fit(x, y, sample_weight=0.5 * copies, client=who)
    copied = clone(estimator).fit(x[index], y[index], client=who[index])
    assert_allclose(weighted.coef_, copied.coef_, rtol=1e-6)
    assert weighted.score(x, y, client=who) > 0.9


@pytest.mark.parametrize(
    "objective, strength",
    [("mixture", "auto"), ("multitask", 0.3), ("adaptive", 0.5), ("weight_sharing", "weight"), ("shared", "auto")],
)
def test_every_objective(objective: str, strength: Any):
    x, y, who = numbers()
    model = PersonalizedRegressor(objective=objective, strength=strength, folds=3).fit(x, y, client=who)
    assert model.score(x, y, client=who) > 0.5
    assert model.coef_.shape == (4, 3) and np.isfinite(model.predict(x, client=who)).all()


def test_in_the_company_of_scikit_learn():
    frame, labels = table()
    rest = frame.drop(columns="patient")
    plain = PersonalizedClassifier(client="patient", strength=0.1)
    scores = cross_val_score(plain, frame, labels, cv=WithinClients(3), groups=frame["patient"])
    assert scores.shape == (3,) and scores.mean() > 0.7
    search = GridSearchCV(plain, {"strength": [0.01, 1.0, float("inf")], "l2": [1e-3]}, cv=WithinClients(2))
    search.fit(frame, labels, groups=frame["patient"])
    assert search.best_params_["strength"] != float("inf")
    with sklearn.config_context(enable_metadata_routing=True):
        columns = ColumnTransformer([("n", StandardScaler(), ["dose"]), ("c", OneHotEncoder(), ["drug"])])
        pipe = make_pipeline(columns, PersonalizedClassifier(strength=0.1)).fit(rest, labels, client=frame["patient"])
        right = pipe.predict(rest, client=frame["patient"]) == labels
        assert right.mean() > 0.75
        both = {"client": frame["patient"], "groups": frame["patient"]}
        routed = cross_val_score(PersonalizedClassifier(strength=0.1), rest, labels, cv=WithinClients(2), params=both)
        assert routed.mean() > 0.7


def test_splitters():
    who = np.repeat(["a", "b", "c"], [7, 4, 1])
    y = np.array([0, 1] * 6)
    splits = list(WithinClients(3).split(np.zeros((12, 1)), y, who))
    everyone = np.concatenate([test for _, test in splits])
    assert sorted(everyone.tolist()) == list(range(11))  # the only row of c is always trained on
    for train, test in splits:
        assert not set(train) & set(test) and len(train) + len(test) == 12
        assert set(who[train]) == {"a", "b", "c"}
    for train, test in WholeClients(3).split(np.zeros((12, 1)), y, who):
        assert not set(who[train]) & set(who[test])
    with pytest.raises(ValueError, match="needs the clients"):
        next(WithinClients(2).split(np.zeros((4, 1))))


def test_a_second_fit_compiles_nothing_and_neither_does_one_of_nearly_the_same_size():
    jax.clear_caches()  # what other tests have compiled would hide a compilation, and full caches forget
    x, y, who = numbers(rows=21)
    y = y + np.random.default_rng(1).normal(
        size=len(y)
    )  # so much noise that clients help each other, whatever the rows
    chosen = [PersonalizedRegressor(folds=3, per_client=False).fit(x, y, client=who).strength_]
    with compiling(most=0):
        other = PersonalizedRegressor(folds=3, per_client=False, l2=0.01)
        chosen.append(other.fit(2 * x, 3 * y, client=who).strength_)
        fewer = np.arange(len(x)) % 21 != 0  # twenty rows each
        nearly = PersonalizedRegressor(folds=3, per_client=False).fit(x[fewer], y[fewer], client=who[fewer])
        chosen.append(nearly.strength_)
    assert all(0 < strength < np.inf for strength in chosen)  # or it would be another objective, and another program


def of_two_kinds(alike: bool) -> tuple[Any, Any, Any]:
    """Twelve clients: all much alike, or half of them alike and noisy, and the others with nothing in common."""
    rng = np.random.default_rng(1)
    centre, pairs = rng.normal(size=4), []
    for m in range(12):
        own, noise = (
            (centre + 0.5 * rng.normal(size=4), 1.0)
            if alike
            else (centre, 2.0)
            if m < 6
            else (4 * rng.normal(size=4), 0.3)
        )
        x = rng.normal(size=(40, 4))
        pairs.append((x, x @ own + noise * rng.normal(size=40)))
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]), np.repeat(np.arange(12), 40)


def test_one_strength_for_all_and_one_per_client_are_one_program():
    """By default either may be chosen. Only the two ends are objectives of their own, compiled when first chosen."""
    jax.clear_caches()
    x, y, who = of_two_kinds(alike=False)
    assert PersonalizedRegressor().fit(x, y, client=who).strength_.shape == (12,)
    with compiling(most=0):
        again = PersonalizedRegressor(l2=0.01).fit(*of_two_kinds(alike=True)[:2], client=who)
        assert isinstance(again.strength_, float) and 0 < again.strength_ < np.inf
        PersonalizedRegressor(strength=0.3).fit(x, y, client=who)
    PersonalizedRegressor(strength=np.inf).fit(x, y, client=who)
    with compiling(most=0):
        PersonalizedRegressor(strength=np.inf, l2=0.1).fit(y[:, None] * x, y, client=who)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_the_ledger_is_that_of_solve_on_the_same_table(kind: str):
    """Sizes are rounded up so that programs can be used again; nobody sends or evaluates what was added."""
    frame, labels = table()
    frame = frame[:-4]  # clients of unequal size
    labels = labels[:-4]
    score = 50 + 3 * frame["dose"].to_numpy()
    moments = 0
    if kind == "classifier":
        model = PersonalizedClassifier(client="patient", strength=0.1).fit(frame, labels)
        loss, y = tw.losses.logistic(l2=1e-3, intercept=True), (labels == "worse").astype(int)
    else:
        model = PersonalizedRegressor(client="patient", strength=0.1).fit(frame, score)
        loss, y, moments = tw.losses.squared(l2=1e-3, intercept=True), (score - score.mean()) / score.std(), 2
    clients = tw.Clients.from_frame(frame.assign(y=y), client="patient", standardize="pooled", weights="rows")
    with jax.enable_x64(True):
        problem = tw.Problem(tw.objectives.mixture(loss, lam=0.1), clients, sampling="uniform")
        plain = tw.solve(problem, "profile", tol=1e-12, rounds=200)
    said, wanted = model.ledger_.as_dict(), plain.ledger.as_dict()
    for name in ("floats_up", "floats_down", "bytes_up", "bytes_down"):
        said[name] -= moments * (8 if "bytes" in name else 1)  # the sums of the targets and of their squares
    assert said == wanted and wanted["floats_up"] > clients.opening_floats > 0
    assert model.result_.history["bytes"][-1] == model.ledger_.bytes_per_client


def test_the_ledger_of_a_choice_counts_what_is_sent_before_training_once():
    frame, labels = table(patients=5, rows=21)
    model = PersonalizedClassifier(client="patient", folds=3).fit(frame, labels)
    clients = tw.Clients.from_frame(frame.assign(y=labels), client="patient", standardize="pooled", weights="rows")
    objective = tw.objectives.mixture(tw.losses.logistic(l2=1e-3, intercept=True), lam=1.0)
    plain = tw.tune(objective, clients, folds=3)
    assert model.tuned_.ledger.floats_up == plain.ledger.floats_up
    assert_array_equal(model.tuned_.ledger.gradients_w, plain.ledger.gradients_w)
    assert model.ledger_.floats_up == plain.ledger.floats_up + model.result_.ledger.floats_up
    with jax.enable_x64(True):
        final = tw.solve(tw.Problem(plain.objective, clients), "profile", tol=1e-12, rounds=200)
    assert model.result_.ledger.floats_up == final.ledger.floats_up - clients.opening_floats


def test_a_fitted_estimator_travels_without_anybodys_rows(fitted: PersonalizedClassifier):
    frame, _ = table()
    written = pickle.dumps(fitted)
    assert_array_equal(pickle.loads(written).predict(frame), fitted.predict(frame))
    assert len(written) < 60_000
    assert fitted.result_.problem is None and fitted.tuned_.clients is None


def test_a_saved_estimator_comes_back_with_its_columns_labels_and_clients(
    fitted: PersonalizedClassifier, tmp_path: Path
):
    frame, labels = table()
    new = frame[:8].assign(patient="zoe")
    regressor = PersonalizedRegressor(client="patient", strength=0.5, standardize="per client")
    regressor.fit(frame, 50 + 3 * frame["dose"])
    for name, model, target in (("c", fitted, labels), ("r", regressor, 50 + 3 * frame["dose"])):
        back = load(model.save(tmp_path / name))
        assert type(back) is type(model) and back.get_params() == model.get_params()
        assert_array_equal(back.predict(frame), model.predict(frame))
        assert_array_equal(back.clients_, model.clients_)
        assert_array_equal(back.strength_, model.strength_)
        mine, theirs = (pickle.loads(pickle.dumps(each)).adapt(new, target[:8]) for each in (model, back))
        assert_array_equal(theirs.predict(new), mine.predict(new))
        assert theirs.adapted_ == mine.adapted_
    assert_array_equal(load(tmp_path / "c").predict_proba(frame), fitted.predict_proba(frame))
    with pytest.raises(
        tw.TwofoldError, match=r"There is no .*estimator\.json: load reads what an estimator's save wrote"
    ):
        load(tmp_path)


def test_mistakes_get_a_sentence():
    frame, labels = table(patients=2)
    for options, words in (
        ({"client": "patien"}, "no column 'patien'"),
        ({"objective": "ditto"}, "objective is one of"),
        ({"client": "patient", "weights": "x"}, 'weights is "rows" or "equal"'),
        ({"client": "patient", "per_client": "no"}, "per_client is True, False or \"auto\", got 'no'"),
        ({"client": "patient", "strength": 1.0, "per_client": None}, "per_client is True"),
    ):
        with pytest.raises(ValueError, match=words):
            PersonalizedClassifier(**options).fit(frame, labels)
    with pytest.raises(ValueError, match="no client"):
        PersonalizedClassifier(client="patient").fit(frame.assign(patient=[None, *frame["patient"][1:]]), labels)
    with pytest.raises(ValueError, match="The target has only one class, 'well': there is nothing to tell apart"):
        PersonalizedClassifier(client="patient").fit(frame, ["well"] * len(frame))
    with pytest.raises(
        ValueError, match="y has '(better|worse)' at row 0, which is no number: .* PersonalizedClassifier"
    ):
        PersonalizedRegressor(client="patient").fit(frame, labels)
    whole = frame.assign(motion=labels)
    with pytest.raises(ValueError, match=r"X still has the column 'motion', which is y: .* X.drop\(columns='motion'\)"):
        PersonalizedClassifier(client="patient").fit(whole, whole["motion"])
    PersonalizedClassifier(client="patient", strength=1.0).fit(frame, labels.rename("drug"))  # another column's name
    with pytest.raises(tw.TwofoldError, match="infinity, first at row 1, column 0"):
        PersonalizedRegressor().fit([[1.0], [np.inf]], [0.0, 1.0])


def test_nobody_falls_back_to_the_shared_model_without_a_word():
    frame, labels = table()
    rest, who = frame.drop(columns="patient"), frame["patient"]
    model = PersonalizedClassifier(strength=0.1).fit(rest, labels, client=who)
    with pytest.warns(ClientWarning, match=r"nobody says whose rows .* predict\(X, client=labels\)"):
        model.score(rest, labels)
    with pytest.warns(
        ClientWarning, match=r"no row is of a client that was there .*; is 'P0' the client 'p0' of fit\?"
    ):
        model.predict_proba(rest, client=who.str.upper())
    model.predict(rest, client=who.where(who != "p0", "zoe"))  # some are known: no warning
    with pytest.warns(ClientWarning, match=r"fit: nobody says whose rows these are, so all are one client's"):
        PersonalizedClassifier(strength=0.1).fit(rest, labels)
    search = GridSearchCV(PersonalizedClassifier(), {"strength": [0.01, 1.0]}, cv=WithinClients(2), scoring="accuracy")
    with pytest.warns(ClientWarning, match="groups= goes to the splitters alone"):
        search.fit(rest, labels, groups=who)
    with pytest.warns(ClientWarning, match="nobody says whose rows these are"):  # a column of strings may be meant to
        PersonalizedClassifier().fit(rest, labels)
    PersonalizedClassifier().fit(rest[["dose"]], labels).predict(rest[["dose"]])  # the usual model, by its defaults
    PersonalizedClassifier(objective="shared", strength=0.1).fit(rest, labels)


def test_whole_clients_held_out_are_told_of_once_and_briefly():
    TOLD.clear()
    x, y, who = numbers()
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        both = {"client": who, "groups": who}
        cross_val_score(PersonalizedRegressor(strength=1.0), x, y, cv=WholeClients(4), params=both)
    texts = [str(each.message) for each in told if each.category is ClientWarning]
    assert len(texts) == 1 and len(texts[0]) < 150 and "every row gets the shared model" in texts[0]


def test_a_column_that_a_pipeline_has_renamed_is_told_the_three_ways():
    frame, labels = table(patients=3)
    scaled = ColumnTransformer([("n", StandardScaler(), ["dose"])], remainder="passthrough")
    by_name = PersonalizedClassifier(client="patient", strength=1.0)
    for columns in (scaled, clone(scaled).set_output(transform="pandas")):
        with pytest.raises(
            tw.TwofoldError, match=r"no column 'patient' .*verbose_feature_names_out=False.*client=-1.*routing"
        ):
            make_pipeline(columns, by_name).fit(frame[["dose", "patient"]], labels)
    kept = ColumnTransformer(
        [("n", StandardScaler(), ["dose"])], remainder="passthrough", verbose_feature_names_out=False
    )
    first = make_pipeline(kept.set_output(transform="pandas"), by_name).fit(frame[["dose", "patient"]], labels)
    second = make_pipeline(scaled, clone(by_name).set_params(client=-1)).fit(frame[["dose", "patient"]], labels)
    assert first[-1].clients_.tolist() == second[-1].clients_.tolist() == ["p0", "p1", "p2"]


def test_labels_that_are_missing_or_mixed_are_named_by_row():
    frame, labels = table(patients=2)
    for gap in (None, np.nan, pd.NA):
        with pytest.raises(tw.TwofoldError, match=r"y is missing \(NaN or None\) in rows 3, 7: leave such rows out"):
            PersonalizedClassifier(client="patient").fit(
                frame, [gap if i in (3, 7) else v for i, v in enumerate(labels)]
            )
    with pytest.raises(tw.TwofoldError, match=r"several kinds: .* at row 0 and 1 at row 2"):
        PersonalizedClassifier(client="patient").fit(frame, np.array([*labels[:2], 1, *labels[3:]], object))


def test_strengths_that_cannot_be():
    frame, labels = table(patients=2)
    for options, words in (
        ({"strength": "aut"}, "got 'aut'; did you mean \"auto\""),
        ({"objective": "weight_sharing", "strength": 0.5}, 'strength="weight", "bias" or "auto", got 0.5'),
        ({"objective": "weight_sharing", "strength": "wieght"}, "got 'wieght'"),
        ({"strength": -1}, r'strength is "auto" or a number ≥ 0 \(0 leaves everyone alone.*for mixture, got -1'),
        ({"strength": float("nan")}, "got nan"),
        ({"strength": [1.0]}, r"got \[1.0\]"),
        ({"objective": "adaptive", "strength": 2}, "a number strictly between 0 and 1 for adaptive, got 2"),
    ):
        with pytest.raises(tw.TwofoldError, match=words):
            PersonalizedClassifier(client="patient", **options).fit(frame, labels)


def test_what_strength_was_taken_is_a_strength():
    x, y = np.arange(10.0).reshape(5, 2), np.arange(5.0)
    with pytest.warns(ClientWarning, match="no client has two rows"):
        alone = PersonalizedRegressor().fit(x, y, client=list("abcde"))
    assert isinstance(alone.strength_, float) and alone.strength_ > 0
    assert PersonalizedRegressor().fit(x, y).strength_ == np.inf
    assert PersonalizedRegressor(objective="shared").fit(x, y, client=list("aabbb")).strength_ == "shared"


def test_a_random_state_of_numpys():
    frame, labels = table()
    found = [
        PersonalizedClassifier(client="patient", random_state=np.random.RandomState(3)).fit(frame, labels).strength_
        for _ in range(2)
    ]
    assert_array_equal(*found)
