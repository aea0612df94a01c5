"""The demo is honest: its rows do not overlap, settings are chosen without the test rows, words follow from figures."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import twofold as tw
from twofold import demo
from twofold.evaluate import ALONE, SHARED, Comparison, Evaluation, Row

SMALL = demo.Setting(clients=5, train=4, validation=4, test=8, algorithm="lsgd", rounds=3, tol=0.1)


def row(name: str, grades: list[float], rounds: int, status: str = "converged") -> Row:
    zeros = np.zeros(len(grades))
    ledger = tw.Ledger(rounds, rounds, 10, 10, 1500, 1500, zeros, zeros)
    result = tw.Result((), (), tw.History({}), ledger, status, "", "acd", 0, 0.1)
    names = tuple(f"client {m}" for m in range(len(grades)))
    graded = Evaluation(names, np.full(len(grades), 60), {"personal": np.array(grades)}, "accuracy", name, True)
    return Row(name, graded, result, "")


def made_up(**changes: Any) -> demo.Demo:
    rows = {
        SHARED: row(SHARED, [0.9, 0.8], 100),
        ALONE: row(ALONE, [0.95, 0.85], 0),
        "mixture": row("mixture", [0.98, 0.92], 20),
        "residual": row("residual", [1.0, 1.0], 90),
    } | changes
    chosen = {SHARED: "", ALONE: "", "mixture": "λ = 0.1", "residual": ""}
    validation = {SHARED: 0.8, ALONE: 0.8, "mixture": 0.9, "residual": 0.7}
    return demo.Demo(demo.Setting(clients=2), Comparison(tuple(rows.values())), chosen, validation)


# --- data -------------------------------------------------------------------------------------------------------------


def test_nobodys_row_is_anybody_elses() -> None:
    setting = demo.Setting()
    parts = demo.data(setting)
    for part, rows in zip(parts, (setting.train, setting.validation, setting.test), strict=True):
        assert part.M == 20 and (part.counts == rows).all()
        assert all(len(set(client.y.tolist())) == 2 for client in part)
    pixels = np.concatenate([part.x for part in parts])
    assert pixels.min() == 0 and pixels.max() == 1
    from sklearn.datasets import load_digits

    distinct = len(np.unique(load_digits().data, axis=0))
    assert distinct == 1797  # so that equal rows would be the same row
    assert len(np.unique(pixels, axis=0)) == len(pixels)


def test_every_objective_that_predicts_is_there() -> None:
    names = {objective.name for choices in demo.candidates(tw.losses.softmax(10, intercept=True)).values()
             for objective in choices.values()}  # fmt: skip
    assert names == {
        "traditional", "local", "mixture", "multitask", "two_stage", "adaptive", "weight_sharing", "residual"
    }  # fmt: skip


# --- a small run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> demo.Demo:
    def few(loss: Any) -> dict[str, dict[str, Any]]:
        mixtures = {f"λ = {lam:g}": tw.objectives.mixture(loss, lam) for lam in (1e-6, 1.0)}
        return {
            SHARED: {"": tw.objectives.traditional(loss)},
            ALONE: {"": tw.objectives.local(loss)},
            "mixture": mixtures,
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "candidates", few)
        told: list[str] = []
        found = demo.run(SMALL, told.append)
    assert told == [SHARED, ALONE, "mixture λ = 1e-06", "mixture λ = 1"]
    return found


def test_the_setting_is_chosen_on_the_validation_rows(small: demo.Demo) -> None:
    train, validation, test = demo.data(SMALL)
    loss = tw.losses.softmax(10, l2=demo.RIDGE, intercept=True)
    grades = {}
    for lam in (1e-6, 1.0):
        problem = tw.Problem(tw.objectives.mixture(loss, lam), train)
        result = tw.solve(problem, "lsgd", rounds=3, tol=SMALL.tol, record=())
        grades[f"λ = {lam:g}"] = (tw.evaluate.evaluate(problem, result, validation).mean, problem, result)
    best = max(grades, key=lambda label: grades[label][0])
    assert small.chosen["mixture"] == best
    assert small.validation["mixture"] == grades[best][0]
    expected = tw.evaluate.evaluate(*grades[best][1:], test)
    np.testing.assert_array_equal(small.comparison["mixture"].evaluation.personal, expected.personal)


def test_who_gains_is_told_and_drawn(small: demo.Demo, tmp_path: Path) -> None:
    """The report grades the very models of the table, and its sentence has its counts."""
    assert small.gains is not None
    np.testing.assert_allclose(small.gains["personal"], small.comparison["mixture"].evaluation.personal)
    np.testing.assert_allclose(small.gains["alone"], small.comparison[ALONE].evaluation.personal)
    told = demo.sentences(small)[2]
    counts = [len(named(name)) for name in ("shared", "alone") for named in (small.gains.helped, small.gains.hurt)]
    assert [int(n) for n in re.findall(r"\d+", told)[:5]] == [counts[0], 5, *counts[1:]]
    demo.write(small, tmp_path)
    assert (tmp_path / "gains.svg").read_text(encoding="utf-8").count("<circle") == 5 * 5


def test_the_files(small: demo.Demo, tmp_path: Path) -> None:
    picture, numbers = demo.write(small, tmp_path / "new" / "folder")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with numbers.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [line["client"] for line in rows] == [f"client {m}" for m in range(5)]
    np.testing.assert_allclose(
        [float(line["mixture"]) for line in rows], small.comparison["mixture"].evaluation.personal
    )
    again, _ = demo.write(small, tmp_path / "again")
    assert again.read_bytes() == picture.read_bytes()


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_words_follow_from_the_figures() -> None:
    first, second, third = demo.sentences(made_up())
    assert "the shared model alone is right on 85.0 %" in first and "each client alone on 90.0 %" in first
    # The mixture did best in validation, whatever the residual's test rows say.
    assert second.startswith("Mixture (λ = 0.1), the personalised objective that did best on the validation images")
    assert "is right on 95.0 %: 3.0 times fewer mistakes than the shared model and 2.0 times fewer" in second
    assert "its worst client has 92.0 %, against 80.0 % and 85.0 %" in second
    assert "the shared model needs 100 rounds of communication and mixture 20" in third


def test_the_words_do_not_flatter() -> None:
    worse = made_up(
        mixture=row("mixture", [0.8, 0.7], 500, "budget"), residual=row("residual", [0.9, 0.9], 9, "budget")
    )
    _, second, third = demo.sentences(worse)
    assert "1.7 times more mistakes than the shared model and 2.5 times more mistakes than each client alone" in second
    assert third == f"Rounds of communication: {SHARED} 100 and mixture 500."
    equal = made_up(mixture=row("mixture", [0.9, 0.8], 20))
    assert "as many mistakes as the shared model" in demo.sentences(equal)[1]
    perfect = made_up(mixture=row("mixture", [1.0, 1.0], 20))
    assert "no mistake, unlike the shared model" in demo.sentences(perfect)[1]


def test_the_table_fits_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(demo.table(made_up(residual=row("residual", [1.0, 1.0], 500, "budget"))))
        text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"mixture +λ = 0.1 +95.0 % +92.0 % +20 +3 *\n", text)
    assert "500+" in text and "of the best (+: not yet)" in text
    assert not re.search("…", text)  # nothing was cut


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_shows_what_it_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = demo.show(out=tmp_path)
    shared, alone = found.comparison[SHARED], found.comparison[ALONE]
    assert found.best.mean > max(shared.mean, alone.mean)
    assert found.best.worst >= max(shared.worst, alone.worst)
    assert found.comparison["mixture"].rounds < shared.rounds
    assert all(one.status == "converged" for one in (shared, alone, found.comparison["mixture"]))
    text = capsys.readouterr().out
    assert all(name in text for name in found.chosen) and "times fewer mistakes" in text
    assert (tmp_path / "accuracy.png").is_file()
