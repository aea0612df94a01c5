"""Something of one's own stands beside what is built in: by @tw.register, and by "my.module:Thing" in a file."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

import twofold as tw
from problems import CONFIG
from twofold import config, engines
from twofold.cli import app
from twofold.engines import EngineName
from twofold.solver import AlgorithmName

MODULE = '''
"""A reader's own things."""
import jax.numpy as jnp
import numpy as np
import twofold as tw
from twofold.algorithms import LSGD
from twofold.data import Dataset


def pulled(loss, lam: float = 0.25):
    """The mixture by another name."""
    return tw.objectives.mixture(loss, lam)


def huber(width: float = 1.0, l2: float = 0.0):
    """A loss that forgives outliers."""
    def value(params, x, y):
        return jnp.mean(jnp.sqrt(width**2 + (x @ params - y) ** 2))
    return tw.losses.custom(value, init=np.zeros(2), l2=l2, L=1.0, calL=1.0)


@tw.register("data", name="own-coins-of-a-file", owned=True)
def coins(rows: int = 6) -> Dataset:
    """Some rows of two clients."""
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(rows, 2)), np.arange(rows) % 2, "Coins.", owner=np.arange(rows) // (rows // 2))


Descent = LSGD
'''


pytestmark = pytest.mark.usefixtures("own_registries")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "readers_own.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_names_things_by_their_module(home: Path) -> None:
    file = home / "own.toml"
    file.write_text(
        '[data]\nsource = "readers_own:coins"\nrows = 12\n[partition]\ntest = 0.0\n[loss]\nname = "logistic"\nl2 = 0.1\n'
        '[objective]\nname = "readers_own:pulled"\nlam = 0.5\n[algorithm]\nname = "readers_own:Descent"\n[stop]\nrounds = 2\n'
    )
    built = config.load(file).build()
    assert built.problem.objective.lam == 0.5  # type: ignore[attr-defined]
    assert built.train.M == 2 and built.train.rows == 12
    done = CliRunner().invoke(app, ["run", "own.toml", "-q", "--out", "runs/own"])
    assert done.exit_code == 0, done.output
    again = config.load("runs/own/config.toml").build()  # the file that is kept finds them too
    assert again.problem.objective.name == "mixture"
    squared = config.load(file, ["loss.name=readers_own:huber", "loss.l2=0.2", "loss.width=2.0"]).build()
    assert squared.problem.objective.loss.l2 == 0.2


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("objective.name=readers_own:nothing", "readers_own has no 'nothing'; it has"),
        ("objective.name=no_such_module_at_all:f", "There is no module 'no_such_module_at_all'"),
        ("algorithm.name=readers_own:pulled", "is no subclass of twofold.algorithms.Algorithm"),
        ("objective.name=readers_own:", "is not of the form module:name"),
    ],
)
def test_a_wrong_path_is_one_sentence(home: Path, setting: str, sentence: str) -> None:
    (home / "small.toml").write_text(CONFIG)
    with pytest.raises(config.ConfigError, match=sentence):
        config.load("small.toml", [setting])
    with pytest.raises(config.ConfigError, match="objective.lamda"):
        config.load("small.toml", ["objective.name=readers_own:pulled", "objective.lamda=1"])


def test_register_knows_what_a_thing_is() -> None:
    from twofold.algorithms import LSGD
    from twofold.data import Dataset

    @tw.register
    class Mine(LSGD):
        name = "mine"

    @tw.register
    def gentle(loss, lam: float = 0.1):
        return tw.objectives.mixture(loss, lam)

    @tw.register
    def rows() -> Dataset:
        raise NotImplementedError

    @tw.register("loss", name="other")
    def function(l2: float = 0.0):
        return tw.losses.squared(l2)

    assert tw.algorithms.REGISTRY["mine"] is Mine
    assert config.model_of("objective", "gentle").model_fields["lam"].default == 0.1
    assert tw.data.REGISTRY["rows"].load is rows
    assert tw.losses.REGISTRY["other"] is function
    assert "gentle" in CliRunner().invoke(app, ["list", "objectives"]).output


def test_register_refuses_what_it_cannot_place() -> None:
    with pytest.raises(tw.TwofoldError, match='Say what something is, as in @tw.register\\("loss"\\)'):

        @tw.register
        def something(a: int) -> int:
            return a

    with pytest.raises(tw.TwofoldError, match="The objective 'mixture' is built in"):
        tw.register("objective", name="mixture")(lambda loss: loss)
    with pytest.raises(tw.TwofoldError, match="one of objective, algorithm"):
        tw.register("cheese")  # type: ignore[call-overload]
    with pytest.raises(tw.TwofoldError, match=r"subclass of tw\.algorithms\.Algorithm"):
        tw.register("algorithm")(dict)


def test_the_names_that_an_editor_offers_are_those_that_there_are() -> None:
    """A Literal cannot be made of a registry: it is a line of its own, and this says when it is missing."""
    assert set(get_args(AlgorithmName)) == {"auto", *tw.algorithms.REGISTRY}
    assert set(get_args(EngineName)) == {*engines.REGISTRY, "flower"}
