"""Tables as they come: kinds of columns, gaps, levels, scales, labels; pandas, Polars, Arrow and dicts alike."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from twofold.clients import Clients, ClientWarning
from twofold.tables import Schema, columns

COLUMNS: dict[str, list[Any]] = {
    "patient": ["b", "a", "b", "a", "c"],
    "age": [30.0, None, 50.0, 40.0, 20.0],
    "visits": [1, 2, 3, 4, 5],
    "smoker": [True, False, None, True, False],
    "city": ["Rome", "Oslo", None, "Rome", "Oslo"],
    "y": ["well", "ill", "ill", "well", "ill"],
}


def pandas_frame() -> pd.DataFrame:
    return pd.DataFrame(COLUMNS)


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def arrow_table() -> Any:
    return pytest.importorskip("pyarrow").table(COLUMNS)


def categories() -> pd.DataFrame:
    return pandas_frame().astype({"city": "category", "y": "category", "smoker": "boolean", "visits": "Int64"})


FRAMES = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "lazy polars": lambda: polars_frame().lazy(),
    "arrow": arrow_table,
    "arrow stream": lambda: arrow_table().to_reader(),
    "dict": lambda: COLUMNS,
    "pandas categories": categories,
    "pandas objects": lambda: pandas_frame().astype(object),
    "arrow-backed pandas": lambda: arrow_table().to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_kind_of_table_gives_the_same_clients(name: str):
    clients = Clients.from_frame(FRAMES[name](), client="patient")
    assert clients.names == ("a", "b", "c") and clients.schema is not None
    assert clients.schema.features == (
        "age", "age missing", "visits", "smoker", "smoker missing", "city=Oslo", "city=Rome", "city missing",
    )  # fmt: skip
    mean = (30 + 50 + 40 + 20) / 4
    expected = [
        [mean, 1, 2, 0, 0, 1, 0, 0], [40, 0, 4, 1, 0, 0, 1, 0],  # a
        [30, 0, 1, 1, 0, 0, 1, 0], [50, 0, 3, 0.5, 1, 0, 0, 1],  # b
        [20, 0, 5, 0, 0, 1, 0, 0],  # c
    ]  # fmt: skip
    assert_array_equal(clients.x, expected)
    assert_array_equal(clients.y, [0, 1, 1, 0, 0])
    assert clients.schema.classes == ("ill", "well")
    assert clients.schema.decode(clients.y[:2]).tolist() == ["ill", "well"]
    again = Schema.from_dict(json.loads(json.dumps(clients.schema.as_dict())))
    assert again == clients.schema
    assert_array_equal(again.transform(pandas_frame().iloc[[1, 3, 0, 2, 4]]), expected)


def made(seed: int = 0, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"user": rng.choice(["u", "v", "w"], rows), "big": rng.normal(5e4, 1e4, rows), "y": rng.normal(size=rows)}
    )
    return frame.assign(
        small=np.where(rng.random(rows) < 0.1, np.nan, rng.normal(0.01, 0.002, rows)), sex=rng.choice(["f", "m"], rows)
    )


def test_pooled_moments_are_everybodys():
    df = made()
    clients = Clients.from_frame(df, features=["big", "small", "sex"], standardize="pooled")
    assert_allclose(clients.x[:, 0].mean(), 0, atol=1e-12)
    assert_allclose(clients.x[:, 0].std(), 1)
    known = clients.x[:, 2] == 0
    assert_allclose([clients.x[known, 1].mean(), clients.x[known, 1].std()], [0, 1], atol=1e-12)
    assert_array_equal(clients.x[~known, 1], 0.0)  # the mean, standardised
    assert set(np.unique(clients.x[:, 3:])) == {0.0, 1.0}  # levels stay as they are
    new = clients.schema.transform({"big": [5e4], "small": [None], "sex": ["x"], "more": ["?"]})
    assert_allclose(new, [[(5e4 - df["big"].mean()) / df["big"].std(ddof=0), 0, 1, 0, 0]])
    # n once; sums, squares for both; one count more for the column with gaps; two levels
    assert clients.opening_floats == 1 + 2 + 3 + 2
    assert Clients.from_frame(df[["user", "y", "big"]]).opening_floats == 0


def test_each_clients_own_moments():
    df = made()
    clients = Clients.from_frame(df, features=["big", "small"], standardize="per client")
    for client in clients:
        known = client.x[:, 2] == 0
        for values in (client.x[:, 0], client.x[known, 1]):
            assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-9)
    schema = clients.schema
    mine = schema.only("u")
    assert list(mine.moments) == ["u"] and len(schema.moments) == 3
    assert_allclose(mine.transform(df[df["user"] == "u"]), clients["u"].x)
    assert_allclose(
        schema.transform({"big": df["big"], "small": df["small"]}, client=df["user"].tolist()), schema.transform(df)
    )
    groups = df.groupby("user")["big"]
    wanted = (6e4 - groups.mean().mean()) / groups.std(ddof=0).mean()
    assert_allclose(schema.transform({"big": [6e4], "small": [None]}, client="stranger"), [[wanted, 0.0, 1.0]])
    with pytest.raises(tw.TwofoldError, match="say whose rows"):
        schema.transform(df[["big", "small"]])


def test_the_opening_message_is_in_the_ledger():
    df = made()
    loss = tw.losses.squared(l2=0.1)

    def floats(**options: Any) -> int:
        clients = Clients.from_frame(df, features=["big"], **options)
        problem = tw.Problem(
            tw.objectives.mixture(loss, lam=1.0), clients.map(lambda x, y: (x / max(abs(x).max(), 1), y))
        )
        return tw.solve(problem, "profile", rounds=2).ledger.floats_up

    assert floats(standardize="pooled") == floats() + 3


def test_features_of_very_different_size_are_told_before_a_run():
    df = made()[["user", "big", "y", "small"]].dropna()
    objective = tw.objectives.mixture(tw.losses.squared(l2=0.1), lam=1.0)
    with pytest.warns(tw.TheoryWarning, match=r"'big' \(about 5.4e\+04\) and 'small' .* standardize=\"pooled\""):
        tw.solve(tw.Problem(objective, Clients.from_frame(df)), "profile", rounds=1)
    clients = Clients.from_frame(df, standardize="pooled")
    tw.solve(tw.Problem(objective, clients), "profile", rounds=1)  # no warning: warnings are errors here
    tw.solve(tw.Problem(objective, Clients.from_frame(df), precondition="diagonal"), "profile", rounds=1)


def refuses(*words: str, **options: Any) -> None:
    frame = options.pop("frame")
    with pytest.raises(tw.ClientError) as caught:
        Clients.from_frame(frame, client="patient", **options)
    for word in words:
        assert word in str(caught.value)


def test_what_cannot_be_a_feature_is_named_all_at_once():
    df = pandas_frame().assign(
        born=pd.Timestamp("2020-01-01"), both=[1, "a", 2.5, None, "b"], nothing=np.nan, pairs=[(1, 2)] * 5
    )
    refuses(
        "'born' holds dates",
        "'both' holds int values such as 1 and str values such as 'a'",
        "'nothing' has no value",
        "'pairs'",
        frame=df,
    )
    refuses(
        "missing values in 'age' (1), 'smoker' (1), 'city' (1)",
        'missing="impute"',
        frame=pandas_frame(),
        missing="refuse",
    )
    words = pd.DataFrame({"patient": 1, "note": [f"text {i}" for i in range(80)], "y": 0.5})
    refuses("'note' has 80 different values in 80 rows", "Leave it out", frame=words)
    refuses("there is no column 'agee'", "did you mean 'age'?", frame=pandas_frame(), features=["agee"])
    refuses('standardize must be None, "pooled" or "per client"', frame=pandas_frame(), standardize="z")
    refuses("no client for row 1", frame=pandas_frame().assign(patient=["a", None, "b", "b", "b"]))
    with pytest.raises(TypeError, match="data frame"):
        Clients.from_frame(np.eye(2))  # type: ignore[arg-type]


def test_a_level_in_other_capitals_is_not_ignored_in_silence():
    schema = Clients.from_frame(pandas_frame(), client="patient").schema
    row: dict[str, list[Any]] = {"age": [60.0], "visits": [1], "smoker": [True], "city": ["Rome"]}
    known = schema.transform(row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elsewhere = schema.transform(row | {"city": ["Paris"]})
    with pytest.warns(UserWarning, match="'city' has ' rome', which did not occur in training, where 'Rome' did"):
        np.testing.assert_array_equal(schema.transform(row | {"city": [" rome"]}), elsewhere)
    assert known.sum() == elsewhere.sum() + 1


def test_new_rows_of_another_shape_are_refused():
    schema = Clients.from_frame(pandas_frame(), client="patient").schema
    with pytest.raises(ValueError, match="no columns 'age', 'visits'"):
        schema.transform({"smoker": [True], "city": ["Rome"]})
    with pytest.raises(
        ValueError, match="'age' holds strings or categories, such as 'old', but in training it held numbers"
    ):
        schema.transform({"age": ["old"], "visits": [1], "smoker": [True], "city": ["Rome"]})
    with pytest.raises(ValueError, match="needs 4 columns"):
        schema.transform(np.ones((2, 3)))
    with pytest.raises(ValueError, match="'dead' at row 0 is none of the classes"):
        schema.codes(["dead"])


def test_labels():
    def read(y: list[Any], **options: Any) -> Clients:
        return Clients.from_frame({"user": [0] * len(y), "x": np.arange(len(y)), "y": y}, **options)

    with pytest.warns(ClientWarning, match='-1, 1.*labels="classes"'):
        assert read([1, -1, 1]).y.tolist() == [1, 0, 1]
    with pytest.warns(ClientWarning, match="1, 2, 3"):
        three = read([1, 3, 2])
    assert three.y.tolist() == [0, 2, 1] and three.schema.decode([2]).tolist() == [3]
    assert read([1, 3, 2], labels="numbers").y.tolist() == [1, 3, 2]
    assert read([7, 3], labels="classes").schema.classes == (3, 7)
    assert read([0, 1, 2]).schema.classes is None
    assert read([1.0, 2.0, 3.0]).y.tolist() == [1.0, 2.0, 3.0]
    assert read([True, False]).y.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"squared loss needs numbers.*\(1, 2, 3\).*labels=\"numbers\""):
        tw.Problem(tw.objectives.local(tw.losses.squared()), three)
    tw.Problem(tw.objectives.local(tw.losses.softmax(3)), three)
    with pytest.raises(ValueError, match="turn labels 1 to 3 into these with y - 1"):
        tw.Problem(tw.objectives.local(tw.losses.softmax(3)), read([1, 3, 2], labels="numbers"))


def test_objects_in_an_array_or_a_frame_are_named_column_by_column_with_the_remedy():
    frame = pandas_frame()
    rows, y = frame[["age", "city", "smoker"]], frame["y"]
    named = r"there is None at row 2 of column 'smoker'|there is '.*' at row 0 of column 'city'.* of column 'smoker'"
    for make in (
        lambda: Clients.from_groups(rows, y, frame["patient"]),
        lambda: Clients.from_list([(rows, y)]),
    ):
        with pytest.raises(tw.ClientError, match=named) as caught:
            make()
        assert "Give the whole table, whose strings, categories and gaps are encoded for you" in str(caught.value)
        assert "tw.Clients.from_frame(df, client=..., target=...)" in str(caught.value)
    objects = np.array([[1.0, "a", 2.0, True], [1.0, "b", 3.0, None]], object)
    with pytest.raises(
        tw.ClientError, match=r"'a' at row 0 of column 1, None at row 1 of column 3\. Encode such columns"
    ):
        Clients.from_list([(objects, [0, 1])])
    many = np.full((2, 40), "a", object)
    with pytest.raises(tw.ClientError, match=r"'a' at row 0 of column 11, and more in 28 other columns"):
        Clients.from_list([(many, [0, 1])])
    with pytest.raises(tw.ClientError, match=r"x at row 1, column 0 is nan, .* fill the gaps .*Clients\.from_frame"):
        Clients.from_list([([[1.0], [np.nan]], [0, 1])])
    with pytest.raises(tw.ClientError, match="dtype complex128 in x, but needs an array of .* per sample$"):
        Clients.from_list([(np.ones((2, 2), complex), [0, 1])])


def test_string_labels_elsewhere():
    groups = Clients.from_groups(np.eye(3), ["no", "yes", "no"], ["b", "a", "b"])
    assert groups.y.tolist() == [1, 0, 0] and groups.schema.classes == ("no", "yes")
    pairs = Clients.from_list([(np.eye(2), ["yes", "yes"]), (np.eye(2), np.array(["no", "yes"]))])
    assert pairs.y.tolist() == [1, 1, 0, 1] and pairs.schema.classes == ("no", "yes")


def test_sparse_matrices(monkeypatch: pytest.MonkeyPatch):
    from scipy import sparse

    matrix = sparse.random_array((6, 4), density=0.5, rng=np.random.default_rng(0), format="csr")
    clients = Clients.from_groups(matrix, np.zeros(6), [0, 0, 1, 1, 1, 0])
    assert_array_equal(clients[1].x, matrix.toarray()[[2, 3, 4]])
    free = 10 * 6 * 4 * 8 // 4  # room for two and a half copies
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    with pytest.raises(tw.ClientError, match="and 3 times that while it is read"):
        Clients.from_groups(matrix, np.zeros(6), [0, 0, 1, 1, 1, 0])
    monkeypatch.undo()
    huge = sparse.csr_array((10_000_000, 10_000_000))
    with pytest.raises(tw.ClientError, match=r"takes 8e\+05 GB as a dense one.*fewer features"):
        Clients.from_groups(huge, np.zeros(10_000_000), np.zeros(10_000_000, int))


def test_the_schema_says_what_it_does():
    text = str(Clients.from_frame(pandas_frame(), client="patient", standardize="pooled").schema)
    for line in (
        "age: number, mean 35",
        "gaps become 35",
        "city: category of 2 levels: Oslo, Rome",
        "target y: one of ill, well",
    ):
        assert line in text


def test_plain():
    assert columns.plain(np.float64(0.5)) == 0.5 and columns.plain(pd.Interval(0, 1)) == "(0, 1]"
    binned = Clients.from_frame(
        pandas_frame().assign(age=pd.cut([1, 2, 3, 4, 5], 2)), client="patient", features=["age"]
    )
    assert len(binned.schema.features) == 2


# --- tables that were made apart ----------------------------------------------------------------------------------------


def letters(keep: list[str], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(12, 2)), np.array(keep)[np.arange(12) % len(keep)]) for _ in range(2)]


def test_test_rows_are_coded_like_the_training_rows_or_refused():
    train = Clients.from_list(letters(["a", "b", "c"], 0), names=["ann", "bob"])
    problem = tw.Problem(tw.objectives.traditional(tw.losses.softmax(3, l2=0.1)), train)
    apart = Clients.from_list(letters(["b", "c"], 1), names=["ann", "bob"])
    said = r"stand for 'a', 'b', 'c' in the training rows and for 'b', 'c' in these\. Read them with .*like=train"
    for grade in (
        lambda: tw.evaluate(problem, problem.start, apart),
        lambda: tw.evaluate.report(problem, problem.start, apart),
        lambda: tw.solve(problem, "acd", rounds=1, test=apart),
        lambda: tw.evaluate.compare(problem.objective.loss, train, apart, {}, rounds=1),
    ):
        with pytest.raises(ValueError, match=said):
            grade()
    like = Clients.from_list(letters(["b", "c"], 1), like=train)
    assert like.names == train.names and set(like.y.tolist()) == {1, 2}
    assert tw.evaluate(problem, problem.start, like).held_out
    by_row = Clients.from_groups(apart.x, np.repeat(["c", "b"], 12), np.repeat(["bob", "ann"], 12), like=train)
    assert by_row.names == train.names and by_row["ann"].y.tolist() == [1] * 12
    with pytest.raises(
        ValueError,
        match=r"client 'bob': the label at row 1 is 'd', but the labels of the clients like= are 'a', 'b', 'c'",
    ):
        Clients.from_list([(np.eye(2), ["a", "b"]), (np.eye(2), ["a", "d"])], like=train)
    with pytest.raises(TypeError, match="like must be Clients"):
        Clients.from_list(letters(["b"], 1), like=[1])  # type: ignore[arg-type]
    numbers = train.map(lambda x, y: (x, y + 3))
    for grade in (tw.evaluate, tw.evaluate.report):
        with pytest.raises(
            ValueError, match=r"client 'ann': y at row 0 is 3, but a label must be a whole number from 0 to 2"
        ):
            grade(problem, problem.start, numbers)


def ages(shift: float = 0.0, cities: tuple[str, ...] = ("Oslo", "Rome")) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "who": np.repeat(["v", "u"], 12),
            "age": rng.normal(60 + shift, 10, 24),
            "city": np.array(cities)[np.arange(24) % len(cities)],
            "ill": np.array(["no", "yes"])[np.arange(24) % 2],
        }
    )


@pytest.mark.parametrize(
    "other, options, said",
    [
        (ages(30), {"standardize": "pooled"}, "column 'age' was scaled by mean .* in the training rows and by mean"),
        (ages(30), {"standardize": "per client"}, "have standardize='pooled', and these 'per client'"),
        (ages(), {}, "have standardize='pooled', and these None"),
        (
            ages(cities=("Oslo", "Bari")),
            {"standardize": "pooled"},
            "'city=Rome' only in the training rows and 'city=Bari' only",
        ),
        (ages()[["who", "city", "age", "ill"]], {"standardize": "pooled"}, "the features come in another order"),
    ],
)
def test_test_tables_are_scaled_like_the_training_table_or_refused(other: pd.DataFrame, options: Any, said: str):
    train = Clients.from_frame(ages(), client="who", target="ill", standardize="pooled")
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), train)
    apart = Clients.from_frame(other, client="who", target="ill", **options)
    with pytest.raises(ValueError, match=said):
        tw.evaluate(problem, problem.start, apart)
    like = Clients.from_frame(other, like=train)
    assert like.schema == train.schema
    rows = other[other.who == "u"]
    model, run = tw.Model.of(problem, problem.start), problem.start
    assert_array_equal(
        tw.evaluate.predict(problem, run, "u", rows), np.array([0, 1])[(model.predict("u", rows) == "yes") * 1]
    )
    found = tw.evaluate(problem, run, like)
    right = [np.mean(model.predict(who, other[other.who == who]) == other.ill[other.who == who]) for who in ("u", "v")]
    assert_allclose(found.personal, right)


def test_each_clients_own_scale_is_that_of_training():
    train = Clients.from_frame(ages(), client="who", target="ill", standardize="per client")
    problem = tw.Problem(tw.objectives.local(tw.losses.logistic(l2=0.1)), train)
    apart = Clients.from_frame(ages(30), client="who", target="ill", standardize="per client")
    with pytest.raises(ValueError, match="(column 'age'|client 'u') was"):
        tw.evaluate(problem, problem.start, apart)
    assert_allclose(Clients.from_frame(ages(), like=train).x, train.x)
    assert Clients.from_frame(ages(30), like=train).x[:, 0].mean() > 1
    for part in train.split(0.5):
        tw.evaluate(problem, problem.start, part)


def test_like_settles_what_else_one_would_say():
    train = Clients.from_frame(ages(), client="who", target="ill")
    with pytest.raises(ValueError, match="standardize and labels cannot be combined with like="):
        Clients.from_frame(ages(), like=train, standardize="pooled", labels="classes")
    with pytest.raises(ValueError, match="for arrays use Clients.from_list"):
        Clients.from_frame(ages(), like=Clients.from_list(letters(["a", "b"], 0)))
    with pytest.raises(
        ValueError,
        match=r"client 'v': the label at row 0 of the table is 'perhaps', but",
    ):
        Clients.from_frame(ages().assign(ill="perhaps"), like=train)
    assert Clients.from_frame(ages().drop(columns="ill"), like=train, target=None).y is None
    backwards = Clients.from_list([(ages()[:3], ["no"] * 3), (ages()[3:6], ["yes"] * 3)], names=["v", "u"], like=train)
    assert Clients.from_frame(ages(), like=backwards).names == ("v", "u")
    codes = Clients.from_frame(
        ages().assign(ill=np.arange(24) % 2 * 2 - 1), client="who", target="ill", labels="classes"
    )
    assert set(Clients.from_groups(codes.x, [-1, 1] * 12, ["u"] * 24, like=codes).y.tolist()) == {0, 1}
