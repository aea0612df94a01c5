"""Loggers: what a run is told to write while it goes on."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from twofold.track import CSV, MLflow, Parquet, TensorBoard


@pytest.fixture(scope="module")
def parts() -> tuple[tw.Problem, tw.Clients]:
    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=12, features=2)
    train, test = tw.Clients.from_list(made.clients).split(test=0.5)
    return tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), train), test


def run(parts: tuple[tw.Problem, tw.Clients], *loggers: object, seeds: int = 1) -> tw.Results:
    return tw.solve(parts[0], tw.algorithms.LSGD(eta=0.1), rounds=3, seeds=seeds, test=parts[1], callbacks=loggers)  # type: ignore[arg-type]


def test_files_hold_what_the_history_has(parts, tmp_path: Path):
    arrow = pytest.importorskip("pyarrow.parquet")
    with CSV(tmp_path / "run.csv") as lines, Parquet(tmp_path / "run.parquet") as table:
        history = run(parts, lines, table)[0].history
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    read = arrow.read_table(tmp_path / "run.parquet").to_pydict()
    assert list(rows[0]) == ["seed", *history] == list(read)
    for name, values in history.items():
        np.testing.assert_allclose([float(row[name]) for row in rows], values, rtol=1e-15)
        np.testing.assert_allclose(read[name], values, rtol=1e-15)


def test_lines_are_there_before_the_run_is_over(parts, tmp_path: Path):
    log, seen = CSV(tmp_path / "run.csv"), []

    def look(record: object) -> None:
        seen.append(len((tmp_path / "run.csv").read_text().splitlines()))

    run(parts, log, look)
    log.close()
    assert seen == [2, 3, 4, 5]  # the head, and one line more each time


def test_a_file_of_other_columns_is_refused(parts, tmp_path: Path):
    with CSV(tmp_path / "run.csv") as log:
        run(parts, log)
        with pytest.raises(
            tw.TwofoldError, match=r"has the columns seed, round, .*this record has seed, round: give every run a file"
        ):
            log({"seed": 0, "round": 1})


def test_tensorboard_has_every_figure_by_round(parts, tmp_path: Path, monkeypatch):
    board = pytest.importorskip("tensorboardX")
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}

    class Writer:
        def __init__(self, folder: str) -> None:
            self.folder = Path(folder).name

        def add_scalar(self, name: str, value: float, step: int) -> None:
            found.setdefault((self.folder, name), []).append((step, value))

        def close(self) -> None:
            found[self.folder, "closed"] = []

    with monkeypatch.context() as patch:
        patch.setattr(board, "SummaryWriter", Writer)
        with TensorBoard(tmp_path) as log:
            runs = run(parts, log, seeds=2)
    for seed, result in enumerate(runs):
        expected = list(zip(range(4), result.history["test_accuracy"], strict=True))
        assert found[f"seed-{seed}", "test_accuracy"] == expected and (f"seed-{seed}", "closed") in found
    with TensorBoard(tmp_path) as log:
        run(parts, log)
    assert list((tmp_path / "seed-0").glob("events.*"))


def test_mlflow_has_every_figure_by_round(parts, tmp_path: Path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    logged: list[tuple[dict[str, float], int]] = []
    monkeypatch.setattr(mlflow, "log_metrics", lambda metrics, step: logged.append((metrics, step)))
    with MLflow() as log:
        runs = run(parts, log, seeds=2)
    losses = [(step, metrics["loss"]) for metrics, step in logged if "loss" in metrics]
    assert losses == list(zip(range(4), runs[0].history["loss"], strict=True))
    assert len([step for metrics, step in logged if "seed-1/loss" in metrics]) == 4


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(tw.TwofoldError, match=r"track\.TensorBoard needs tensorboardX.*twofold\[track\]"):
        TensorBoard(tmp_path)
