"""tw.plot: what is drawn is the median and the quantiles of what was run, and theory's lines are the theorems'."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from twofold import looks, plots


@pytest.fixture(scope="module")
def problem() -> tw.Problem:
    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    return tw.Problem(objective, tw.Clients.from_list(made.clients))


@pytest.fixture(scope="module")
def runs(problem: tw.Problem) -> tw.Results:
    return tw.solve(problem, "acd", rounds=30, seeds=5)


def line(figure, label: str):
    return next(line for line in figure.axes[0].get_lines() if line.get_label() == label)


def test_the_line_is_the_median_of_the_gaps(problem: tw.Problem, runs: tw.Results) -> None:
    drawn = line(tw.plot(runs, problem), "ACD")
    gaps = runs.column("loss") - problem.optimum().value
    np.testing.assert_array_equal(drawn.get_xdata(), np.arange(31))
    early = gaps.min(axis=0) > 1e-10
    np.testing.assert_allclose(drawn.get_ydata()[early], np.median(gaps, axis=0)[early], rtol=1e-12)


def test_a_band_has_the_quantiles_and_a_single_seed_none(runs: tw.Results) -> None:
    figure = tw.plot(runs, y="loss", quantiles=(0.25, 0.75))
    (band,) = figure.axes[0].collections
    low, high = np.quantile(runs.column("loss"), [0.25, 0.75], axis=0)
    ys = band.get_paths()[0].vertices[:, 1]
    assert ys.min() == pytest.approx(low.min(), rel=1e-9)
    assert ys.max() == pytest.approx(high.max(), rel=1e-9)
    assert not tw.plot(runs[0]).axes[0].collections


def test_other_axes_take_the_last_record_so_far(runs: tw.Results) -> None:
    found = plots.median_and_band(list(runs), "gradients", "loss")
    for x in (found.x[3], found.x[-1]):
        last = []
        for run in runs:
            cost = run.history["gradients_w"] + run.history["gradients_beta"]
            last.append(run.history["loss"][np.flatnonzero(cost <= x)[-1]])
        assert found.middle[found.x == x][0] == pytest.approx(np.median(last))


def test_theorys_line_is_the_theorem_and_is_above_what_was_run(problem: tw.Problem, runs: tw.Results) -> None:
    figure = tw.plot(runs, problem)
    rounds, gaps = line(figure, "guarantee for ACD").get_data()
    algorithm, best = runs[0].algorithm, problem.optimum()
    (w, beta), c = problem.start, problem.constants()
    start = float(problem.value(w, beta)) - best.value
    apart = np.sum((w - best.w) ** 2) / problem.scale**2 + np.sum((beta - best.beta) ** 2)
    # Theorem ACD-PFL, by hand: E[F − F*] ≤ (1−θ)^k (gap + (μ/2)‖x⁰ − x*‖²), and p_w k rounds in k iterations.
    k = np.log((start + c.mu / 2 * apart) / gaps) / -math.log1p(-float(algorithm.theta))
    np.testing.assert_allclose(rounds, float(algorithm.p_w) * k, rtol=1e-9)
    mean = runs.column("loss").mean(axis=0) - best.value
    for r, gap in zip(rounds, gaps, strict=True):
        if gap > 1e-10 and r <= 30:
            assert mean[math.ceil(r)] <= gap
    needed, levels = line(figure, "worst case of any method").get_data()
    assert needed[-1] == pytest.approx(tw.theory.chain_rounds(c.L_w / c.mu, levels[-1] / start))


def test_steps_set_by_hand_have_no_guarantee(problem: tw.Problem, tmp_path: Path) -> None:
    result = tw.solve(problem, tw.algorithms.ASVRCD(eta=1e-3), rounds=3)
    labels = [line.get_label() for line in tw.plot(result, problem).axes[0].get_lines()]
    assert not [label for label in labels if label.startswith("guarantee")]
    loaded = tw.Result.load(tw.solve(problem, "acd", rounds=3).save(tmp_path))
    labels = [line.get_label() for line in tw.plot(loaded, problem).axes[0].get_lines()]
    assert "guarantee for ACD" in labels  # the steps are in the file


def test_a_method_looks_the_same_everywhere(problem: tw.Problem, runs: tw.Results) -> None:
    both = {"mine": runs, "lsgd": tw.solve(problem, "lsgd", rounds=5)}
    figure = tw.plot(both, problem, x="bytes", title="Two")
    assert line(figure, "mine").get_color() == looks.METHODS["acd"].line["color"]
    assert line(figure, "LSGD").get_color() == looks.COLOURS["ink"]
    same = tw.plot({"one": runs[0], "two": runs[1]})  # one method twice: told apart by place
    assert len({drawn.get_color() for drawn in same.axes[0].get_lines()}) == 2
    from twofold.paper.figures import _look
    from twofold.report.figures import _styles

    for name in tw.algorithms.REGISTRY:
        look = looks.METHODS[name]
        assert _look("method", name, 3) == look.line
        assert _styles("method", [name], [name])[0]["colour"] == look.colour
    drawn = [(look.colour, look.dash) for name, look in looks.METHODS.items() if name in tw.algorithms.REGISTRY]
    assert len(set(drawn)) == len(drawn)


def test_what_cannot_be_drawn_is_one_sentence(runs: tw.Results) -> None:
    with pytest.raises(tw.TwofoldError, match="x must be one of rounds"):
        tw.plot(runs, x="round")
    with pytest.raises(tw.TwofoldError, match="tw.plot draws what tw.solve gave .* got int"):
        tw.plot(3)  # type: ignore[arg-type]
    with pytest.raises(tw.TwofoldError, match="nothing to draw"):
        tw.plot({})
    with pytest.raises(tw.TwofoldError, match="no column 'accuracy'"):
        tw.plot(runs, y="accuracy")


def test_a_figure_is_written_and_shows_in_a_notebook(runs: tw.Results, tmp_path: Path) -> None:
    figure = tw.plot(runs, x="seconds", path=tmp_path / "a" / "run.svg")
    assert (tmp_path / "a" / "run.svg").read_text().startswith("<?xml")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_histories_and_results_become_files(runs: tw.Results, tmp_path: Path) -> None:
    import csv

    from pyarrow import parquet

    with runs.to_csv(tmp_path / "all.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in rows] == runs.column("loss").ravel().tolist()
    assert [row["seed"] for row in rows[:31]] == ["0"] * 31
    table = parquet.read_table(runs[0].history.to_parquet(tmp_path / "one.parquet"))
    assert table.column("loss").to_pylist() == runs[0].history["loss"].tolist()
    assert parquet.read_table(runs[0].to_parquet(tmp_path / "run.parquet")) == table
    assert runs[0].to_csv(tmp_path / "run.csv").read_text() == runs[0].history.to_csv(tmp_path / "one.csv").read_text()
    assert r"gradients w & gradients beta" in runs[0].history.to_latex()
    assert runs.to_latex().count("budget") == 5
