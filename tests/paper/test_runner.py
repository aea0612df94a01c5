"""The runner: documents by their schema, the same twice, going on where it stopped, and nothing taken from other settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twofold.paper import available, base, cells, load, numbers, reproduce, runner, without_times
from twofold.paper import document as document_module
from twofold.paper.base import PUBLISHED, THEORY, Cell, Experiment, Figure
from twofold.paper.studies.slips import AS_RUN

SERIES = {
    "method": str, "variant": str, "objective": str, "dataset": str, "level": float, "metric": str, "rounds": list,
    "mean": list, "stderr": list, "runs": int, "seconds": float, "bytes": list, "gradients_w": list, "gradients_beta": list,
}  # fmt: skip


def tiny(rounds: int = 300, **more: Any) -> Experiment:
    """Two methods, two variants, three seeds, on the paper's synthetic data with a few rows."""
    problem = {
        "data": "mixture", "sigma_h": 0.3, "clients": 3, "rows": 100, "rescale": True,
        "objective": {"name": "mixture", "lam": 0.1},
    }  # fmt: skip
    cells = tuple(
        Cell(
            method, problem, "mixture", "synthetic", 0.3, variant, fields=fields, metrics=("loss", "error"), rounds=rounds,
            seeds=(0, 1, 2), optimum=True,
        )
        for variant in (PUBLISHED, THEORY)
        for method, fields in (("ascd", {}), ("lsgd", {"eta": "asvrcd.eta"}))
    )  # fmt: skip
    figures = (Figure("tiny", ("loss", "gap", "error"), where={"variant": PUBLISHED}, title="A tiny one"),)
    return Experiment("tiny", "A tiny one", cells, figures, facts={"why": "to test"}, **more)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Experiment], None]:
    """Make an experiment known under its name."""

    def make(experiment: Experiment) -> None:
        monkeypatch.setattr("twofold.paper.load", lambda name: {experiment.name: experiment}[name])

    return make


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twofold.paper.load", lambda name: tiny())
        (path,) = reproduce("tiny", folder)
    assert path == folder / "tiny.json"
    return folder


@pytest.fixture(scope="module")
def document(written: Path) -> dict[str, Any]:
    return json.loads((written / "tiny.json").read_text())


def test_the_document_has_what_it_must(document: dict[str, Any]):
    assert {"experiment", "settings", "environment", "optimum", "series"} <= set(document)
    assert document["experiment"] == "tiny"
    assert document["settings"]["facts"] == {"why": "to test"}
    assert document["settings"]["command"] == "twofold reproduce tiny --out DIR"
    assert {"python", "versions", "cpu", "cores", "seconds"} <= set(document["environment"])
    assert len(document["series"]) == 2 * 2 * 2
    for series in document["series"]:
        assert {name: type(series[name]) for name in SERIES} == SERIES
        assert series["runs"] == 3
        arrays = [series[name] for name in ("rounds", "mean", "stderr", "bytes", "gradients_w", "gradients_beta")]
        assert len({len(array) for array in arrays}) == 1
        assert len(series["rounds"]) <= 200
        assert (series["rounds"][0], series["rounds"][-1]) == (0, 300)
        assert all(np.diff(series["rounds"]) > 0)
        assert series["stderr"][0] < 1e-15 < series["stderr"][-1]


def test_cells_say_how_they_were_run(document: dict[str, Any]):
    cells = {(c["cell"]["method"], c["cell"]["variant"]): c for c in document["settings"]["cells"]}
    published, ours = cells["lsgd", PUBLISHED], cells["lsgd", THEORY]
    assert published["hyper"]["eta"] == cells["ascd", PUBLISHED]["hyper"]["eta"]  # ASVRCD's, as ASCD's is
    assert published["constants"] != ours["constants"]
    assert cells["ascd", THEORY]["notes"]  # μ = 0: theory had to assume something
    assert published["status"] == ["budget"] * 3
    assert document["settings"]["data"] == ["synthetic mixture data, seed 111, σ_h = 0.3"]


def test_the_optimum_is_exact_and_below_every_loss(document: dict[str, Any]):
    best = {entry["variant"]: entry for entry in document["optimum"]}
    assert set(best) == {PUBLISHED, THEORY}
    assert best[PUBLISHED]["value"] == best[THEORY]["value"]
    assert best[PUBLISHED]["gradient_norm"] < 1e-12
    for series in document["series"]:
        assert ("optimum" in series) == (series["metric"] == "loss")
        if "optimum" in series:
            assert min(series["mean"]) > series["optimum"] == best[PUBLISHED]["value"]


def test_the_parquet_file_has_every_record_and_the_series_are_its_means(written: Path, document: dict[str, Any]):
    table = pq.read_table(written / "tiny.parquet").to_pandas()
    assert len(table) == 4 * 3 * 301
    series = next(s for s in document["series"] if (s["method"], s["variant"], s["metric"]) == ("ascd", THEORY, "loss"))
    mine = table[(table.method == "ascd") & (table.variant == THEORY)]
    by_round = mine.groupby("round").loss
    np.testing.assert_allclose(series["mean"], by_round.mean()[series["rounds"]], rtol=1e-14)
    np.testing.assert_allclose(series["stderr"], by_round.sem()[series["rounds"]], rtol=1e-9, atol=1e-16)
    np.testing.assert_allclose(series["bytes"], mine.groupby("round")["bytes"].mean()[series["rounds"]], rtol=1e-14)


def test_figures_are_written_and_the_same_twice(written: Path, tmp_path: Path, document: dict[str, Any]):
    from twofold.paper import figures

    paths = figures.draw(tiny(), document, tmp_path)
    assert [path.suffix for path in paths] == [".png", ".pdf"]
    for path in paths:
        assert path.stat().st_size > 5000
        assert path.read_bytes() == (written / "figures" / path.name).read_bytes()


def test_the_same_seeds_give_the_same_document(written: Path, tmp_path: Path, known: Callable[[Experiment], None]):
    known(tiny())
    reproduce(["tiny"], tmp_path)
    first, second = (json.loads((folder / "tiny.json").read_text()) for folder in (written, tmp_path))
    assert first != second
    assert without_times(first) == without_times(second)


class Interrupted(BaseException):
    """What Ctrl-C is: no Exception."""


def test_an_interrupted_run_goes_on_where_it_stopped(
    tmp_path: Path, written: Path, known: Callable[[Experiment], None], monkeypatch: pytest.MonkeyPatch
):
    known(tiny(alone=True))  # one at a time, so that it is known how many were finished
    ran: list[Any] = []
    really = cells.run

    def run(cell: Cell, stop_at: int | None = 2) -> Any:
        if len(ran) == stop_at:
            raise Interrupted
        ran.append(runner.key(cell))
        return really(cell)

    monkeypatch.setattr(cells, "run", run)
    with pytest.raises(Interrupted):
        reproduce("tiny", tmp_path)
    assert not (tmp_path / "tiny.json").exists()
    assert len(list((tmp_path / ".cells").glob("*.parquet"))) == 2
    monkeypatch.setattr(cells, "run", lambda cell: run(cell, None))
    reproduce("tiny", tmp_path)
    assert len(ran) == 4
    assert len(set(ran)) == 4
    assert not list((tmp_path / ".cells").glob(".*"))
    reproduce("tiny", tmp_path)
    assert len(ran) == 4
    first, second = (json.loads((folder / "tiny.json").read_text()) for folder in (written, tmp_path))
    assert without_times(first) == without_times(second)


def test_an_interruption_among_several_at_a_time_keeps_what_is_done(
    tmp_path: Path, known: Callable[[Experiment], None], monkeypatch: pytest.MonkeyPatch
):
    known(tiny())
    ran: list[Any] = []
    lock, really = threading.Lock(), cells.run

    def run(cell: Cell) -> Any:
        with lock:
            ran.append(runner.key(cell))
            if len(ran) == 3:
                raise Interrupted
        return really(cell)

    monkeypatch.setattr(cells, "run", run)
    with pytest.raises(Interrupted):
        reproduce("tiny", tmp_path)
    done = len(list((tmp_path / ".cells").glob("*.parquet")))
    assert done in (2, 3)
    ran.clear()
    ran.extend(["", "", ""])
    reproduce("tiny", tmp_path)
    assert len(ran) - 3 == 4 - done


def test_other_settings_and_other_code_are_other_cells(monkeypatch: pytest.MonkeyPatch):
    cell = tiny().cells[0]
    names = {
        runner.key(c)
        for c in (cell, replace(cell, rounds=7), replace(cell, seeds=(0,)), replace(cell, fields={"p_w": 0.1}))
    }
    assert len(names) == 4
    assert runner.key(replace(cell)) in names
    monkeypatch.setattr(runner, "_code", lambda: "other")
    assert runner.key(cell) not in names


def test_seeds_can_be_chosen(tmp_path: Path, known: Callable[[Experiment], None]):
    known(tiny(rounds=5))
    reproduce("tiny", tmp_path, seeds=[7, 4, 9])  # as many as elsewhere: nothing is compiled anew
    document = json.loads((tmp_path / "tiny.json").read_text())
    assert {s["runs"] for s in document["series"]} == {3}
    assert document["settings"]["cells"][0]["cell"]["seeds"] == [7, 4, 9]
    assert pq.read_table(tmp_path / "tiny.parquet").column("seed").unique().to_pylist() == [7, 4, 9]


def test_a_single_run_has_no_spread_and_a_short_one_ends_in_nothing():
    columns = {"seed": [1] * 3, "round": [0, 1, 2], "loss": [3.0, 2.0, 1.0]}
    rest = {name: [0, 1, 2] for name in ("bytes", "gradients_w", "gradients_beta")}
    cell = replace(tiny().cells[0], metrics=("loss",), seeds=(1,)).as_dict()
    about = {"cell": cell, "seconds": 1.0, "status": ["budget"]}
    (found,) = document_module._series(pa.table(columns | rest), about, None)
    assert (found["runs"], found["mean"], found["stderr"]) == (1, [3, 2, 1], [0, 0, 0])
    two = {name: [*values, *values[:2]] for name, values in (columns | rest).items()} | {"seed": [1, 1, 1, 2, 2]}
    (found,) = document_module._series(pa.table(two), {**about, "cell": {**cell, "seeds": [1, 2]}}, None)
    assert (found["mean"], found["stderr"]) == ([3, 2, None], [0, 0, None])


def test_a_run_that_diverges_is_told_and_leaves_no_number(tmp_path: Path, known: Callable[[Experiment], None]):
    one = tiny(rounds=60)
    known(replace(one, cells=(replace(one.cells[1], fields={"eta": 1e4}),)))
    reproduce("tiny", tmp_path)
    document = json.loads((tmp_path / "tiny.json").read_text())
    assert {s["diverged"] for s in document["series"]} == {3}
    assert "diverged" in document["settings"]["cells"][0]["message"]


def test_thinning_keeps_the_ends_and_the_beginning():
    for count in (1, 2, 199, 200, 201, 1001, 50_000):
        kept = numbers.thin(count)
        assert len(kept) <= 200
        assert kept[0] == 0
        assert kept[-1] == count - 1
        assert np.all(np.diff(kept) > 0)
    assert set(range(1, 8)) <= set(numbers.thin(1001).tolist())


def test_unknown_names_get_a_sentence(tmp_path: Path):
    with pytest.raises(ValueError, match=r"There is no experiment 'mx3'; there are mx2, ews, .*Did you mean 'mx2'"):
        reproduce("mx3", tmp_path)


# --- the experiments as data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", available())
def test_an_experiment_is_plain_data(name: str):
    experiment = load(name)
    assert experiment.name == name
    assert len({runner.key(cell) for cell in experiment.cells}) == len(experiment.cells)
    assert len({(*cell.labels.values(),) for cell in experiment.cells}) == len(experiment.cells)
    for cell in experiment.cells:
        assert json.loads(json.dumps(cell.as_dict())) == cell.as_dict()
    assert len({figure.name for figure in experiment.figures}) == len(experiment.figures)
    variants = {cell.variant for cell in experiment.cells}
    assert variants == {"rates": {THEORY}, "slips": {PUBLISHED, AS_RUN}}.get(name, {PUBLISHED, THEORY})
    small = experiment.quick()
    assert 0 < len(small.cells) <= len(experiment.cells)
    assert max(cell.rounds for cell in small.cells) <= 40


def test_the_grids_are_the_papers():
    def shape(name: str, variant: str = PUBLISHED) -> tuple[int, ...]:
        cells = [cell for cell in load(name).cells if cell.variant == variant]
        return tuple(
            len({getattr(cell, f) for cell in cells}) for f in ("method", "objective", "dataset", "level", "seeds")
        )

    assert shape("mx2") == (5, 1, 1, 3, 1)
    assert shape("ews") == (3, 1, 1, 3, 1)
    assert shape("images") == (3, 3, 4, 3, 1)
    assert shape("pw") == (1, 3, 4, 6, 1)
    assert shape("reparam") == (1, 3, 4, 2, 1)
    assert shape("relaxation") == (1, 1, 4, 3, 1)
    for name in ("mx2", "ews"):
        cells = [cell for cell in load(name).cells if cell.published]
        assert {(len(cell.seeds), cell.rounds, cell.every) for cell in cells} == {(30, 1000, 1)}


def test_the_hybrid_takes_over_the_cells_of_other_experiments():
    keys = {name: {runner.key(cell) for cell in load(name).cells} for name in ("mx2", "ews", "images", "hybrid")}
    own = keys["hybrid"] - keys["mx2"] - keys["ews"] - keys["images"]
    assert len(own) == len(keys["hybrid"]) / 3


def test_the_slips_stand_beside_the_mended_runs_of_images():
    cells = load("slips").cells
    wrong = [cell for cell in cells if cell.faulty]
    assert len(wrong) == len(cells) / 2 == 27
    assert {runner.key(cell) for cell in cells if not cell.faulty} <= {
        runner.key(cell) for cell in load("images").cells
    }
    assert {cell.problem["rescale"] for cell in wrong if cell.method == "lsgd"} == {1 / 20}
    assert all(cell.problem["shared"] and cell.published for cell in wrong)


def test_a_quick_experiment_is_smaller_in_every_respect():
    small = base.replace(load("images"), name="images").quick()
    assert {cell.dataset for cell in small.cells} == {"mnist"}
    assert {cell.level for cell in small.cells} == {2}
    assert {cell.problem["clients"] for cell in small.cells} == {4}
    assert not any(cell.optimum for cell in small.cells)
