"""`twofold reproduce pfllib` with a net and images that are tiny: cells, the page, going on, files that were tampered with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import twofold as tw
from twofold.cli import app
from twofold.paper import pfllib, pfllib_data, pfllib_page
from twofold.paper.pfllib_data import Pack

DOCS = Path(__file__).parents[2] / "docs"
ROWS = 4000


class Tiny(nn.Module):
    """Two dense layers, the last of them named as the CNN's is."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(10)(nn.relu(nn.Dense(4)(x.reshape(len(x), -1))))


def made(data: str = "fmnist") -> Pack:
    """Images of 2×2 whose brightness says a little about their labels."""
    rng, y = np.random.default_rng(0), (np.arange(ROWS) % 10).astype(np.uint8)
    x = np.clip(rng.integers(0, 100, (ROWS, 2, 2)) + 15 * y[:, None, None], 0, 255).astype(np.uint8)
    return Pack(data, x, y, {name: pfllib_data.split(name, y) for name in pfllib_data.SPLITS})


PACK = made()
PLAN = pfllib.Plan(("fmnist",), ("dirichlet",), ("local", "fedavg", "finetuned"), rounds=3, seeds=1, every=1, rows=40)


def train(out: Path, plan: pfllib.Plan = PLAN) -> list[str]:
    """What a run told."""
    told: list[str] = []
    assert pfllib.run(out, plan, lambda _: PACK, told.append, Tiny()) == out / "pfllib.md"
    return told


def cells(out: Path) -> dict[str, Any]:
    return {cell["method"]: cell for cell in pfllib.everything(out)}


def test_every_cell_says_what_its_run_was_and_a_second_call_goes_on(tmp_path: Path):
    assert [line.split(",")[1] for line in train(tmp_path)] == [f" dirichlet: {name}" for name in PLAN.methods]
    first = cells(tmp_path)
    for name, cell in first.items():
        assert cell["checksum"] == pfllib_data.checksum(PACK.splits["dirichlet"])
        assert cell["settings"] == {
            **pfllib.COMMON,
            **pfllib.METHODS[name],
            "rounds": 3,
            "every": 1,
            "rows": 40,
            "seconds": None,
        }
        assert cell["rounds"] == 3 and cell["course"]["round"] == [0, 1, 2, 3] and len(cell["best"]["clients"]) == 20
        assert cell["last"]["round"] == 3
    for name in ("local", "fedavg"):
        course = first[name]["course"]["accuracy"]
        assert_allclose(first[name]["best"]["accuracy"], max(course), atol=1e-6)
        assert_allclose(first[name]["last"]["accuracy"], course[-1], atol=1e-6)
    tuned, shared = first["finetuned"], first["fedavg"]
    assert tuned["course"]["accuracy"] == shared["course"]["accuracy"]  # the rounds are FedAvg's
    assert tuned["best"] == tuned["last"] != shared["last"]
    assert train(tmp_path) == []
    (tmp_path / "pfllib_fmnist_dirichlet_fedavg_0.json").unlink()
    assert len(train(tmp_path)) == 1  # what is missing
    assert cells(tmp_path)["fedavg"]["course"]["accuracy"] == shared["course"]["accuracy"]
    assert len(train(tmp_path, replace(PLAN, rounds=4, methods=("local",)))) == 1  # what was asked otherwise


def test_the_page_has_every_method_beside_what_is_published(tmp_path: Path):
    train(tmp_path)
    page, found = (tmp_path / "pfllib.md").read_text(), cells(tmp_path)
    row = next(line for line in page.splitlines() if line.startswith("| fedavg | 85.85 ± .19 |"))
    best, last = (f"{100 * found['fedavg'][end]['accuracy']:.2f}" for end in ("best", "last"))
    assert [part.strip() for part in row.split("|")][3:8] == [
        best,
        str(found["fedavg"]["best"]["round"]),
        last,
        "3",
        "1",
    ]
    gains = 100 * np.subtract(found["fedavg"]["best"]["clients"], found["local"]["best"]["clients"])
    worst = int(np.argmin(gains))
    assert f"| fedavg | {sum(gains < 0)} of 20 | {gains[worst]:+.2f} (client {worst}) | {np.mean(gains):+.2f} |" in page
    assert "At most 40 rows of each client: a smoke run" in page and "Asked of" not in page
    settings = page.partition("## Settings")[2]
    assert re.findall(r"^\| (\w+) \|", settings, re.MULTILINE) == [
        "method",
        *PLAN.methods,
    ]  # no row of what was not run


def test_what_was_asked_and_how_fast_it_is_comes_from_the_files():
    cell = pfllib.everything(DOCS / "pfllib")[2]
    assert cell["method"] == "fedavg" and cell["split"] == "dirichlet"
    told: Any = pfllib_page.page
    for accuracy, sentence in ((0.85, "All are there."), (0.8314, "Not there: fedavg (83.14 after 300 rounds).")):
        changed = {**cell, "best": {**cell["best"], "accuracy": accuracy}}
        assert sentence in told([changed], pfllib.COMMON, pfllib.METHODS)
    seconds = {"FedAvg": 0.1, "FedAvg, three seeds": 0.14}
    for three, sentence in (
        (0.14, "take 1.40 times one, where at most 1.5 was asked: there."),
        (0.2, "2.00 times one, .* missed"),
    ):
        page = told([], {}, {}, "", {"device": "a card", "seconds": {**seconds, "FedAvg, three seeds": three}})
        assert re.search(sentence, page)


def test_the_page_in_the_docs_is_what_the_files_say():
    note = (DOCS / "pfllib" / "note.txt").read_text(encoding="utf-8")
    assert pfllib.page(DOCS / "pfllib", note) == (DOCS / "pfllib.md").read_text(encoding="utf-8")


def test_data_are_made_once_and_refused_if_they_were_changed(tmp_path: Path):
    asked: list[str] = []

    def make(data: str) -> Pack:
        asked.append(data)
        return PACK

    first, again = (pfllib.packs(tmp_path, make)("fmnist") for _ in range(2))
    assert (
        asked == ["fmnist"]
        and first.splits["dirichlet"].train[3].tolist() == again.splits["dirichlet"].train[3].tolist()
    )
    np.testing.assert_array_equal(again.x, PACK.x)
    path = tmp_path / "pfllib-fmnist.npz"
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    image = content["x"].copy()
    image[0, 0, 0] ^= 1
    rows = content["dirichlet_rows"].copy()
    rows[[0, -1]] = rows[[-1, 0]]  # a row for training and a row for testing change places
    for name, value, sentence in (
        ("x", image, "The images in .* checksum"),
        ("dirichlet_rows", rows, "The split 'dirichlet' in .* checksum"),
    ):
        np.savez(path, **{**content, name: value})
        with pytest.raises(tw.TwofoldError, match=sentence):
            pfllib.run(tmp_path / "out", PLAN, pfllib.packs(tmp_path, make), model=Tiny())
    assert asked == ["fmnist"] and not list((tmp_path / "out").glob("pfllib_*.json"))


def test_the_command_line_with_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pfllib, "cnn", Tiny)
    pfllib_data.write(PACK, tmp_path / "pfllib-fmnist.npz")
    done = CliRunner().invoke(app, ["reproduce", "pfllib", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.count("fmnist, dirichlet: ") == 4 and "# PFLlib's table" in done.output
    found = cells(tmp_path)
    assert found.keys() == set(pfllib.QUICK.methods) and all(cell["rounds"] == 5 for cell in found.values())
    assert json.loads((tmp_path / "pfllib_fmnist_dirichlet_ditto_0.json").read_text())["settings"]["rows"] == 200


def test_what_there_is_none_of_is_told():
    with pytest.raises(tw.TwofoldError, match="There is no 'fedavgg' among the methods of pfllib.*fedavg"):
        replace(PLAN, methods=("fedavgg",))
    with pytest.raises(tw.TwofoldError, match="rounds must be at least 1, got rounds=0"):
        replace(PLAN, rounds=0)
