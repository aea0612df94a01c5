"""A file says what is run; all that is wrong with it is told at once: the key, the value and what is allowed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold import config
from twofold.config import ConfigError
from twofold.tree import record, static

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL: dict[str, Any] = {
    "data": {"source": "synthetic-mixture", "sigma_h": 0.3, "clients": 3, "rows": 8, "features": 2},
    "loss": {"name": "logistic", "l2": 0.1},
    "objective": {"name": "mixture", "lam": 0.5},
}


def with_(**sections: Any) -> dict[str, Any]:
    """The small document with some sections replaced."""
    return SMALL | sections


def errors(document: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config.parse(document)
    return caught.value.errors


# --- what a file builds -----------------------------------------------------------------------------------------------


def test_three_sections_are_enough() -> None:
    settings = config.parse(SMALL, name="small")
    built = settings.build()
    assert built.problem.objective.name == "mixture"
    assert built.algorithm == "auto"
    assert (settings.budget, settings.seeds, settings.folder) == ({}, [0], Path("runs/small"))
    assert config.parse(with_(algorithm={"name": "acd"})).budget == {"rounds": 1000}
    assert built.train.counts.tolist() == [6, 6, 6] and built.test is not None  # a fifth of the rows is held out


def test_a_file_gives_what_the_same_lines_of_python_give() -> None:
    document = with_(
        partition={"test": 0.0},
        algorithm={"name": "lsgd", "tau": 2, "batch": "all", "eta": 0.1},
        stop={"rounds": 5},
        record={"metrics": ["loss", "gradient_norm"], "every": 2},
        run={"seeds": 2},
    )
    settings = config.parse(document)
    built = settings.build()
    found = settings.solve(built)
    data = tw.data.synthetic.mixture(0.3, 3, 8, 2)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), tw.Clients.from_list(data.clients))
    method = tw.algorithms.LSGD(tau=2, batch=None, eta=0.1)
    expected = tw.solve(problem, method, rounds=5, seeds=[0, 1], record=["loss", "gradient_norm"], every=2)
    assert built.algorithm == method
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.history["gradient_norm"], theirs.history["gradient_norm"])
        np.testing.assert_array_equal(mine.beta, theirs.beta)


OBJECTIVES = [
    ({"name": "traditional"}, tw.objectives.traditional, ()),
    ({"name": "multitask", "lam": 0.5, "Lambda": 2.0}, tw.objectives.multitask, (0.5, 2.0)),
    ({"name": "adaptive", "alpha": [0.1, 0.2, 0.3]}, tw.objectives.adaptive, ([0.1, 0.2, 0.3],)),
    ({"name": "weight_sharing", "split": 1}, tw.objectives.weight_sharing, (1,)),
    ({"name": "residual", "shared": [0], "private": "0:2"}, tw.objectives.residual, ([0], slice(0, 2))),
    ({"name": "maml", "alpha": 0.1}, tw.objectives.maml, (0.1,)),
]


@pytest.mark.parametrize(
    ("table", "make", "arguments"), OBJECTIVES, ids=lambda v: v["name"] if isinstance(v, dict) else ""
)
def test_objectives_take_their_own_arguments(table: dict[str, Any], make: Any, arguments: tuple) -> None:
    problem = config.parse(with_(objective=table)).build().problem
    expected = tw.Problem(make(tw.losses.logistic(l2=0.1), *arguments), problem.clients)
    rng = np.random.default_rng(0)
    w, beta = (rng.normal(size=leaf.shape) if hasattr(leaf, "shape") else leaf for leaf in problem.start)
    assert float(problem.value(w, beta)) == float(expected.value(w, beta))


def test_infinity_is_the_two_stage_problem() -> None:
    document = tomllib.loads('[objective]\nname = "multitask"\nlam = 1.0\nLambda = inf\nrescale = false')
    assert config.parse(with_(**document)).build().problem.objective.name == "two_stage"


@pytest.mark.parametrize(
    "table",
    [
        {"method": "by_labels", "clients": 5, "labels_per_client": 3, "train": 12, "test": 6, "seed": 1},
        {"method": "dirichlet", "clients": 5, "alpha": 1.0},
        {"method": "power_law", "clients": 5, "exponent": 1.0, "weights": "rows"},
    ],
    ids=lambda t: t["method"],
)
def test_rows_without_owners_are_dealt_out(table: dict[str, Any]) -> None:
    document = with_(data={"source": "digits"}, loss={"name": "softmax"}, partition=table)
    train, test = config.parse(document).build()[2:4]
    assert train.M == test.M == 5 and train.names == test.names
    assert train.x.max() == 1.0
    by_rows = np.allclose(train.weights, train.counts / train.rows)
    assert by_rows == (table.get("weights") == "rows" or table["method"] == "by_labels")


def test_softmax_finds_its_classes_in_the_data() -> None:
    document = with_(data={"source": "digits"}, loss={"name": "softmax"})
    built = config.parse(document).build()
    assert built.problem.start[0].shape == (64, 10)
    assert (built.train.M, built.train.counts[0], built.test.counts[0]) == (
        20,
        40,
        40,
    )  # what fits without a [partition]
    document["loss"] = {"name": "softmax", "classes": 12, "intercept": True}
    assert config.parse(document).build().problem.start[0]["bias"].shape == (12,)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = ["who,height,y,weight", *(f"{w},{i},{i % 2},{i * i}" for w in ("ann", "bob") for i in range(6))]
    (tmp_path / "people.csv").write_text("\n".join(rows))
    return tmp_path


def test_csv(table: Path) -> None:
    data = {"source": "csv", "path": "people.csv", "client": "who", "target": "y", "features": ["weight", "height"]}
    train = config.parse(with_(data=data, partition={"test": 0.0}), home=table).build().train
    assert train.names == ("ann", "bob")
    np.testing.assert_array_equal(train["bob"].x, [[i * i, i] for i in range(6)])
    del data["client"]
    data["features"] = ["height"]
    dealt = config.parse(with_(data=data, partition={"method": "power_law", "clients": 3, "exponent": 0.0}), home=table)
    built = dealt.build()
    assert built.train.M == 3 and built.train.rows + built.test.rows == 12


def test_a_table_with_strings_and_gaps_runs_and_its_model_takes_raw_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    age = [str(n) for n in rng.integers(20, 80, 40)]
    age[3] = ""
    lines = [f"{w},{a},{c},{'ill' if int(a or 50) > 50 else 'well'}" for w, a, c in
             zip(np.repeat(["ann", "bob"], 20), age, rng.choice(["Oslo", "Rome"], 40), strict=True)]  # fmt: skip
    (tmp_path / "visits.csv").write_text("\n".join(["who,age,city,state", *lines]))
    data = {"source": "csv", "path": "visits.csv", "client": "who", "target": "state", "standardize": "pooled"}
    found = config.parse(with_(data=data), home=tmp_path)
    built = found.build()
    result = found.solve(built, progress=False)[0]
    assert result.ledger.floats_up > built.train.opening_floats > 0
    model = tw.load(result.save(tmp_path / "model"))
    said = model.predict("ann", {"age": [25.0, 75.0, None], "city": ["Oslo", "Rome", None]})
    assert said.tolist()[:2] == ["well", "ill"] and said[2] in ("well", "ill")
    data.pop("standardize")
    for how in (
        "standardise",
        "paper",
        "unit-rows",
    ):  # of the features that a schema would make anew: it keeps the classes only
        schema = config.parse(with_(data=data | {"normalise": how}), home=tmp_path).build().train.schema
        assert schema.columns == () and schema.classes == ("ill", "well")
    del data["client"]
    dealt = config.parse(
        with_(data=data, partition={"method": "power_law", "clients": 3, "exponent": 0.0}), home=tmp_path
    )
    assert dealt.build().train.schema.features[2:4] == ("age", "age missing")  # after who=ann and who=bob


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(24.0).reshape(12, 2), y=np.arange(12) % 2, group=np.repeat([3, 1], 6))
    data = {"source": "npz", "path": "d.npz", "client": "group"}
    train = config.parse(with_(data=data, partition={"test": 0.0}), home=tmp_path).build().train
    assert train.names == (1, 3)
    np.testing.assert_array_equal(train[0].x[0], [12.0, 13.0])


def test_normalisation_looks_at_training_rows_only() -> None:
    def build(how: str) -> Any:
        return config.parse(with_(data=SMALL["data"] | {"normalise": how})).build()

    raw, standard, unit, paper = map(build, ("none", "standardise", "unit-rows", "paper"))
    reference = raw.train.x
    np.testing.assert_allclose(standard.test.x, (raw.test.x - reference.mean(0)) / reference.std(0))
    np.testing.assert_allclose(np.linalg.norm(unit.test.x, axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(paper.train.x, axis=1), 1)


def test_normalisation_of_rows_that_are_dealt_out() -> None:
    def build(how: str) -> Any:
        dealt = {"method": "power_law", "clients": 4, "exponent": 0.5}
        return config.parse(
            with_(data={"source": "digits", "normalise": how}, loss={"name": "softmax"}, partition=dealt)
        ).build()

    raw, standard, unit, paper = map(build, ("none", "standardise", "unit-rows", "paper"))
    np.testing.assert_allclose(standard.test.x, tw.data.normalise.standardise(raw.test.x, raw.train.x))
    np.testing.assert_allclose(unit.train.x, tw.data.normalise.unit_rows(raw.train.x))
    whole = tw.data.normalise.paper(tw.data.load("digits").x)  # the paper looks at all rows, before they are dealt out
    assert {row.tobytes() for row in paper.train.x} <= {row.tobytes() for row in whole}
    assert "Features are normalised: paper." in paper.provenance and "normalised" not in raw.provenance


def test_images_are_normalised_as_in_the_paper_unless_the_file_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).uniform(size=(60, 9)).astype(np.float32)
    made_up = tw.data.images.ImageData("mnist", x, np.arange(60, dtype=np.int32) % 3, (), (3, 3))
    monkeypatch.setattr(tw.data.images, "load", lambda name, folder, parts: made_up)
    document = with_(
        data={"source": "mnist"}, loss={"name": "softmax"}, partition={"clients": 3, "train": 4, "test": 4}
    )
    np.testing.assert_allclose(np.linalg.norm(config.parse(document).build().train.x, axis=1), 1, rtol=1e-6)
    document["data"]["normalise"] = "none"
    assert config.parse(document).build().train.x.min() >= 0


@pytest.mark.parametrize(("given", "scale"), [({}, 3**-0.5), ({"rescale": True}, 3**-0.5), ({"rescale": False}, 1.0)])
def test_rescale_reaches_the_problem(given: dict[str, bool], scale: float) -> None:
    problem = config.parse(with_(objective=SMALL["objective"] | given)).build().problem
    assert float(problem.scale) == pytest.approx(scale)


def test_variables_sampling_and_types_of_features_reach_the_problem() -> None:
    objective = SMALL["objective"] | {"precondition": "diagonal", "sampling": "uniform"}
    for name in ("feature_dtype", "rows"):  # `rows` is its name in older files
        problem = config.parse(with_(objective=objective, run={name: "bfloat16"})).build().problem
        assert (problem.precondition, problem.sampling, problem.feature_dtype) == ("diagonal", "uniform", "bfloat16")


def test_auto_and_its_cost_are_those_of_solve() -> None:
    for cost in ("cross-silo", "simulation"):
        settings = config.parse(with_(loss={"name": "logistic", "l2": 0.1}, run={"cost": cost}))
        built = settings.build()
        (found,) = settings.solve(built)
        assert found.notes == tw.solve(built.problem, cost=cost).notes and found.status == "converged"


# --- overrides and the file again -------------------------------------------------------------------------------------


def test_overrides_win_and_make_sections() -> None:
    document = config.override(SMALL, ["objective.lam=2", "stop.rounds = 7", "run.seeds=[4, 5]", "output.folder=a b"])
    assert document["objective"] == {"name": "mixture", "lam": 2}
    assert (document["stop"], document["run"], document["output"]) == (
        {"rounds": 7},
        {"seeds": [4, 5]},
        {"folder": "a b"},
    )
    assert SMALL["objective"]["lam"] == 0.5  # the original is left alone
    with pytest.raises(ConfigError, match=r"'lam=2' is not of the form section\.key=value"):
        config.override(SMALL, ["lam=2"])


def test_a_config_prints_as_a_file_that_says_the_same(table: Path) -> None:
    data = {"source": "csv", "path": "people.csv", "client": "who", "target": "y", "separator": ","}
    settings = config.parse(
        with_(data=data, objective={"name": "multitask", "lam": 1e-7, "Lambda": float("inf")}), home=table
    )
    again = tomllib.loads(str(settings))
    assert again["objective"] == settings.document["objective"]
    assert again["data"] == data | {"path": str(table / "people.csv")}


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dta": {}}, "[dta] is not a section: choose from data, partition, loss, objective, algorithm, stop, record, run, "
     "output; did you mean data?"),
    ({"seed": 3}, "seed = 3 stands outside of any section; did you mean data.seed or partition.seed or run.seed?"),
    ({"stop": 3}, "stop = 3 must be a table: write [stop] on a line of its own."),
    ({"data": {"source": "digit"}}, 'data.source = "digit" is not known: choose from synthetic-mixture, '
     "synthetic-weight-sharing, digits, mnist, fashion-mnist, kmnist, cifar10, school, csv, npz; did you mean digits?"),
    ({"loss": {"l2": 0.1}}, "loss.name is missing: choose from logistic, softmax, squared."),
    ({"loss": {"name": "logistic", "l2": "big"}}, 'loss.l2 = "big" is not allowed: it must be a number.'),
    ({"loss": {"name": "logistic", "l2": -1.0}}, "loss: The ridge must be a number ≥ 0, got l2=-1.0."),
    ({"objective": {"name": "mixture"}}, 'objective.lam is missing: [objective] with name = "mixture" needs it, a '
     "number or a list of numbers (λ, the penalty towards the shared model)."),
    ({"objective": {"name": "mixture", "lam": 1, "lamda": 1}}, 'objective.lamda is not a key of [objective] with name '
     '= "mixture": choose from name, rescale, precondition, '
     'sampling, lam; did you mean lam?'),
    ({"objective": {"name": "mixture", "lam": 0.0}}, "objective: lam must be a finite number > 0, got lam=0.0."),
    ({"objective": {"name": "residual", "shared": "first"}}, 'objective.shared = "first" is not allowed: it must be a '
     'list of whole numbers or a range such as "0:10".'),
    ({"algorithm": {"name": "lsgd", "tau": 2.5}}, "algorithm.tau = 2.5 is not allowed: it must be a whole number."),
    ({"algorithm": {"name": "lsgd", "batch": "al"}}, 'algorithm.batch = "al" is not allowed: it must be a whole number '
     'or "all"; did you mean "all"?'),
    ({"algorithm": {"name": "pfedme"}, "objective": {"name": "local"}}, 'algorithm.name = "pfedme" solves the mixture '
     'objective only, but objective.name = "local": choose another of the two.'),
    ({"stop": {"rounds": 0}}, "stop.rounds = 0 is not allowed: it must be greater than or equal to 1."),
    ({"stop": {"tol": 0.0}}, "stop.tol = 0.0 is not allowed: it must be greater than 0."),
    ({"record": {"metrics": ["gap", "los"]}}, 'record.metrics.1 = "los" is not allowed: it must be one of "loss", '
     '"gradient_norm", "gap", "bound"; did you mean "loss"?'),
    ({"run": {"x64": 1}}, "run.x64 = 1 is not allowed: it must be true or false."),
    ({"run": {"seed": 1, "seeds": [2]}}, "run.seed = 1 and run.seeds = [2] contradict each other: give one of them."),
    ({"run": {"seeds": []}}, "run.seeds = [] is not allowed: there must be at least one seed."),
    ({"run": {"seeds": [3, 4, 3]}}, "run.seeds = [3, 4, 3] is not allowed: every seed may appear only once."),
    ({"output": {"history": ["cvs"]}}, 'output.history.0 = "cvs" is not allowed: it must be one of "csv", "parquet"; did you '
     'mean "csv"?'),
    ({"objective": {"name": 3}}, "objective.name = 3 is not known: choose from traditional, local, multitask, mixture, "
     "adaptive, blended, flix, weight_sharing, residual, maml."),
    ({"data": {"source": "digit"}, "partition": {"clients": 5}}, 'data.source = "digit" is not known: choose from '
     "synthetic-mixture, synthetic-weight-sharing, digits, mnist, fashion-mnist, kmnist, cifar10, school, csv, npz; did you "
     "mean digits?"),  # and nothing about [partition], whose default depends on the data
    ({"partition": {"method": "dirichlet", "clients": 3, "alpha": 1.0}}, 'partition.method = "dirichlet" does not fit, '
     'because data.source = "synthetic-mixture" has clients of its own: choose from natural.'),
    ({"data": {"source": "digits"}, "partition": {"method": "natural"}}, 'partition.method = "natural" does not fit, '
     'because data.source = "digits" has no clients of its own: choose from by_labels, unequal_labels, dirichlet, power_law.'),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), MISTAKES, ids=[sentence.split(" ")[0] for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    assert errors(with_(**change)) == (sentence,)


def test_all_mistakes_come_at_once() -> None:
    found = errors({"data": {"source": "digit"}, "loss": {"name": "softmax", "l3": 1}, "stop": {"rounds": -1}, "x": 1})
    assert len(found) == 5  # and the objective is missing
    assert all(len(sentence.splitlines()) == 1 for sentence in found)


def test_what_only_the_data_can_tell(table: Path) -> None:
    def refusal(document: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as caught:
            config.parse(document, home=table).build()
        return "\n".join(caught.value.errors)

    csv = {"source": "csv", "path": "people.csv", "client": "woh", "target": "yy"}
    assert (
        'data.client: people.csv has no column "woh": choose from who, height, y, weight; did you mean who?'
        in refusal(with_(data=csv))
    )
    assert "data.target" in refusal(with_(data=csv))
    assert "there is no file" in refusal(with_(data=csv | {"path": "nobody.csv"}))
    (table / "gap.csv").write_text("who,height,y\nann,1,0\nann,2,\n")
    assert "data and partition: gap.csv: client 'ann': column 'y' at row 1" in refusal(
        with_(data=csv | {"path": "gap.csv", "client": "who", "target": "y"})
    )
    digits = with_(data={"source": "digits"}, loss={"name": "softmax"}, partition={"method": "by_labels", "train": 400})
    assert refusal(digits).startswith("data and partition: label 8 has 174 rows")
    digits = with_(data={"source": "digits"})
    assert 'loss.name = "logistic" does not fit: client' in refusal(digits)
    (table / "broken.npz").write_text("no")
    assert "is not a file of plain arrays written by np.savez" in refusal(
        with_(data={"source": "npz", "path": "broken.npz", "client": "c"})
    )
    np.savez(table / "d.npz", x=np.ones((2, 2)), labels=np.ones(2))
    npz = {"source": "npz", "path": "d.npz", "client": "c"}
    assert refusal(with_(data=npz)).splitlines() == [
        'data.y: d.npz has no array "y": choose from x, labels.',
        'data.client: d.npz has no array "c": choose from x, labels.',
    ]
    csv = {"source": "csv", "path": "people.csv", "client": "who", "target": "y"}
    assert 'data.separator: it must be one character, got ";;".' in refusal(with_(data=csv | {"separator": ";;"}))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be read: no such file"):
        config.load(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ConfigError, match=r"is not valid TOML: .*line 1, column"):
        config.load(tmp_path / "bad.toml")


# --- documentation ----------------------------------------------------------------------------------------------------


def test_every_key_is_documented_by_type_and_default() -> None:
    found = {key.path for key in config.all_keys()}
    assert {"data.source", "objective.lam", "algorithm.eta", "stop.tol", "output.folder", "partition.weights"} <= found
    for name in tw.algorithms.REGISTRY:
        assert config.model_of("algorithm", name).model_fields
    keys = {(key.path, key.kind): key for key in config.all_keys()}
    assert (
        keys["loss.classes", "softmax"].default == ""
        and "taken from the data" in keys["loss.classes", "softmax"].meaning
    )
    assert keys["algorithm.batch", "asvrcd"].type == 'a whole number or "auto" or "all"'
    assert keys["data.path", "csv"].type == "the path of a file"
    assert keys["data.folder", "mnist, fashion-mnist, kmnist, cifar10"].meaning
    assert keys["data.normalise", "school"].default == '"standardise"'
    assert keys["objective.shared", "residual"].type == 'a list of whole numbers or a range such as "0:10"'
    assert keys["objective.split", "weight_sharing"].type == "a whole number or a text or a list of texts"
    described = [key for key in config.all_keys() if key.path.split(".")[0] in config.PLAIN]
    assert all(key.meaning and key.type for key in described)


@pytest.mark.filterwarnings("ignore:2 rounds will hardly do:twofold.TheoryWarning")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_right_and_small_steps_of_them_run(path: Path) -> None:
    settings = config.load(path, ["stop.rounds=2", "run.seeds=[0]", "record.every=2", 'record.metrics=["loss"]'])
    built = settings.build()
    (result,) = settings.solve(built)
    assert result.ledger.rounds == 2 and result.status == "budget"


def test_there_are_examples() -> None:
    assert len(list(EXAMPLES.glob("*.toml"))) >= 3


# --- what is registered is known --------------------------------------------------------------------------------------


def absolute(l2: float = 0.0, width: Annotated[float, "where the corner is rounded"] = 1.0) -> Any:
    """A rounded absolute value: √(r² + width²)."""

    def mean(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.sqrt(jnp.square(x @ w - y) + width**2))

    return tw.losses.custom(mean, lambda clients: np.zeros(clients.x.shape[1]), l2=l2, L=1.0, calL=1.0)


def anchored(loss: Any, pull: float = 0.5) -> Any:
    """The mixture under another name."""
    return tw.objectives.mixture(loss, lam=pull)


@record
class Halves(tw.algorithms.LSGD):
    """LSGD with a field of its own."""

    name = "halves"
    share: Literal["half", "third"] = static(default="half")


def ramp(steps: int, slope: float = 1.0, owner: str | None = None) -> tw.data.Dataset:
    """One feature that goes up in steps."""
    x = np.arange(1.0, steps + 1)[:, None] / steps
    return tw.data.Dataset(x, slope * x[:, 0], "A ramp.", None if owner is None else np.arange(steps) % 2)


def in_turn(n_rows: int, hands: int = 2) -> tw.data.Partition:
    """Deal rows out in turn."""
    rows = [np.arange(hand, n_rows, hands) for hand in range(hands)]
    return tw.data.Partition(
        tuple(r[1:] for r in rows), tuple(r[:1] for r in rows), tuple(f"hand {i}" for i in range(hands)), ((),) * hands,
        f"{hands} hands",
    )  # fmt: skip


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One made-up thing of each kind: one line in a registry each."""
    monkeypatch.setitem(tw.losses.REGISTRY, "absolute", absolute)
    monkeypatch.setitem(tw.objectives.REGISTRY, "anchored", anchored)
    monkeypatch.setitem(tw.algorithms.REGISTRY, "halves", Halves)
    monkeypatch.setitem(tw.data.REGISTRY, "ramp", tw.data.Source(ramp, owned="owner", normalise="unit-rows"))
    monkeypatch.setitem(tw.data.partition.REGISTRY, "in_turn", in_turn)


MADE_UP = """
[data]
source = "ramp"
steps = 10
slope = 2.0
normalise = "none"
[partition]
method = "in_turn"
hands = 2
[loss]
name = "absolute"
l2 = 0.1
width = 0.5
[objective]
name = "anchored"
pull = 0.25
[algorithm]
name = "halves"
share = "third"
batch = "all"
[stop]
rounds = 2
"""


@pytest.mark.usefixtures("registered")
def test_what_is_registered_can_be_named_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "made-up.toml").write_text(MADE_UP, encoding="utf-8")
    settings = config.load(tmp_path / "made-up.toml")
    built = settings.build()
    (result,) = settings.solve(built)
    assert built.train.names == ("hand 0", "hand 1") and built.provenance == "A ramp. 2 hands."
    assert built.train["hand 1"].y.tolist() == [0.8, 1.2, 1.6, 2.0]
    assert built.algorithm == Halves(share="third", batch=None)
    assert built.problem.objective == tw.objectives.mixture(built.problem.objective.loss, lam=0.25)
    r = built.train.y  # at w = β = 0
    expected = np.mean(np.sqrt(np.square(r) + 0.25))
    assert result.history["loss"][0] == pytest.approx(expected) and result.ledger.rounds == 2


@pytest.mark.usefixtures("registered")
def test_what_is_registered_is_checked_documented_and_predicted_for() -> None:
    document = tomllib.loads(MADE_UP)
    document["loss"]["widht"] = document["loss"].pop("width")
    document["algorithm"]["share"] = "haff"
    assert errors(document) == (
        'loss.widht is not a key of [loss] with name = "absolute": choose from name, l2, width; did you mean width?',
        'algorithm.share = "haff" is not allowed: it must be one of "half", "third"; did you mean "half"?',
    )
    document = tomllib.loads(MADE_UP)
    document["data"]["owner"] = "me"
    assert errors(document) == (
        'partition.method = "in_turn" does not fit, because data.owner is given: choose from natural.',
    )
    keys = {(key.path, key.kind): key for key in config.all_keys()}
    assert keys["loss.width", "absolute"] == config.ConfigKey(
        "loss.width", "absolute", "a number", "1.0", "where the corner is rounded"
    )
    assert keys["data.normalise", "ramp"].default == '"unit-rows"'
    problem = config.parse(tomllib.loads(MADE_UP)).build().problem
    assert tw.theory.forecast(problem, 0.1, ["halves"])["halves"].note == "no rate is proven for halves."


def test_a_name_that_is_taken_out_of_a_registry_is_gone(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tw.losses.REGISTRY, "absolute")
    assert errors(with_(loss={"name": "absolute"})) == (
        'loss.name = "absolute" is not known: choose from logistic, softmax, squared.',
    )
