"""Every data set has a name, a loader, and options that its signature says; your own tables are read with care."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from twofold.data import REGISTRY, Dataset, OptionError, Source, load
from twofold.data.tables import read_csv, read_npz


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(
        tw.TwofoldError, match="There is no data set 'digit': choose from .*csv, npz; did you mean digits?"
    ):
        load("digit")


def test_the_synthetic_sets_are_the_papers_with_their_owners() -> None:
    options = {"sigma_h": 0.3, "clients": 3, "rows": 4}
    for name, make in [("mixture", tw.data.synthetic.mixture), ("weight-sharing", tw.data.synthetic.weight_sharing)]:
        found, made = load(f"synthetic-{name}", **options), make(**options)
        clients = tw.Clients.from_groups(found.x, found.y, found.owner)
        for mine, (x, y) in zip(clients, made.clients, strict=True):
            np.testing.assert_array_equal(mine.x, x)
            np.testing.assert_array_equal(mine.y, y)
        assert found.provenance == f"The paper's synthetic-{name} data, σ_h = 0.3."


def test_digits_are_in_the_unit_interval_and_belong_to_nobody() -> None:
    found = load("digits")
    assert found.x.shape == (1797, 64) and (found.x.min(), found.x.max()) == (0, 1)
    assert found.owner is None and set(found.y) == set(range(10))


def test_images_are_loaded_by_their_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(name: str, folder: object, parts: object) -> tw.data.images.ImageData:
        asked.append((name, folder, parts))
        return tw.data.images.ImageData(
            name, np.zeros((2, 4), np.float32), np.zeros(2, np.int32), (("f", "0"),), (2, 2)
        )

    monkeypatch.setattr(tw.data.images, "load", fake)
    names = ["mnist", "fashion-mnist", "kmnist", "cifar10"]
    assert [load(name, parts=["test"], folder="here").provenance.split(":")[0] for name in names] == names
    assert asked == [(name, "here", ["test"]) for name in names]


def test_school_has_a_client_for_each_school(data_folder: Path) -> None:
    found = load("school", folder=str(data_folder))
    clients = tw.Clients.from_groups(found.x, found.y, found.owner)
    assert (clients.M, clients.rows, clients.names[0]) == (139, 15362, "school 001")
    np.testing.assert_array_equal(clients["school 007"].y, tw.data.school.load(str(data_folder)).clients[6][1])


def test_who_owns_the_rows_is_known_before_they_are_read() -> None:
    source = Source(lambda path, who=None: Dataset(np.ones((1, 1)), np.ones(1), "."), owned="who")
    assert (
        source.is_owned({"who": "column"}) and not source.is_owned({"path": "x"}) and not source.is_owned({"who": None})
    )
    assert REGISTRY["school"].is_owned({}) and not REGISTRY["mnist"].is_owned({})


def test_names_of_clients_go_with_their_rows() -> None:
    pairs = [(np.full((2, 1), 5.0), np.zeros(2)), (np.full((1, 1), 7.0), np.ones(1))]
    found = Dataset.of_clients(pairs, "Made up.", names=["zoe", "ann"])
    clients = tw.Clients.from_groups(found.x, found.y, found.owner)
    assert clients["zoe"].x.tolist() == [[5.0], [5.0]] and clients["ann"].y.tolist() == [1.0]


# --- your own tables --------------------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("who;height;y;weight\nbob;1.5;0;70\nann;1.6;1;80\nbob;1.7;1;90\n", encoding="utf-8")
    return path


def test_csv_columns_come_in_the_order_asked_for(people: Path) -> None:
    found = read_csv(people, "y", "who", ["weight", "height"], separator=";")
    assert found.x.tolist() == [[70, 1.5], [80, 1.6], [90, 1.7]] and found.y.tolist() == [0, 1, 1]
    assert found.owner is not None and found.owner.tolist() == ["bob", "ann", "bob"]
    assert found.provenance == "people.csv: 3 rows of 2 clients."
    all_others = read_csv(people, "y", "who", separator=";")
    assert all_others.x.tolist() == [[1.5, 70], [1.6, 80], [1.7, 90]]
    alone = read_csv(people, "y", features=["height"], separator=";")
    assert alone.owner is None and alone.provenance == "people.csv: 3 rows."


def refusal(*arguments: object, **options: object) -> dict[str, str]:
    with pytest.raises(OptionError) as caught:
        read_csv(*arguments, **options)  # type: ignore[arg-type]
    return caught.value.sentences


def test_csv_says_what_does_not_fit(people: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv", "y") == {"path": f"there is no file {tmp_path / 'none.csv'}."}
    wrong = refusal(people, "yy", "woh", ["height", "wieght", "hat"], separator=";")
    assert wrong == {
        "client": 'people.csv has no column "woh": choose from who, height, y, weight; did you mean who?',
        "target": 'people.csv has no column "yy": choose from who, height, y, weight; did you mean y?',
        "features": 'people.csv has no column "wieght": choose from who, height, y, weight; did you mean weight?',
    }
    assert "no columns are left" in refusal(people, "y", features=[], separator=";")["features"]
    (tmp_path / "empty.csv").write_text("a,b\n")
    assert "no rows below its header" in refusal(tmp_path / "empty.csv", "a")["path"]
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    assert "could not be read as CSV" in refusal(tmp_path / "ragged.csv", "a")["path"]
    (tmp_path / "gap.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(
        tw.TwofoldError, match=r"gap.csv: column 'a' at row 1 of the table is missing, but every target"
    ):
        read_csv(tmp_path / "gap.csv", "a")
    with pytest.raises(tw.TwofoldError, match=r"gap.csv: There are missing values in 'a' \(1\)"):
        read_csv(tmp_path / "gap.csv", "b", missing="refuse")
    assert (
        "there is no column of clients" in refusal(people, "y", standardize="per client", separator=";")["standardize"]
    )
    (tmp_path / "dates.csv").write_text("a,b\n2020-01-01,2\n2020-01-02,3\n")
    with pytest.raises(tw.TwofoldError, match="dates.csv: Column 'a' holds dates"):
        read_csv(tmp_path / "dates.csv", "b")


def test_csv_becomes_features_as_a_data_frame_does(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "visits.csv"
    path.write_text(
        "who,age,smoker,city,y\nann,30,true,Oslo,ill\nbob,,false,Rome,well\nann,50,,Oslo,well\nbob,40,true,,ill\neve,20,true,Rome,ill\n"
    )
    frame = pd.read_csv(path)
    for how in ("pooled", "per client", None):
        found = read_csv(path, "y", "who", standardize=how)
        clients = tw.Clients.from_groups(found.x, found.y, found.owner, schema=found.schema)
        wanted = tw.Clients.from_frame(frame, client="who", standardize=how)
        assert clients.schema.features == wanted.schema.features and clients.schema.classes == ("ill", "well")
        np.testing.assert_allclose(clients.x, wanted.x)
        assert clients.y.tolist() == wanted.y.tolist() and clients.opening_floats == wanted.opening_floats


def test_csv_without_pyarrow(people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"Reading a CSV file needs pyarrow, which is not installed: pip install"):
        read_csv(people, "y")


def test_npz_arrays_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=np.ones((3, 2)), b=np.arange(3), short=np.arange(2))
    found = read_npz(tmp_path / "d.npz", x="a", y="b")
    assert found.x.shape == (3, 2) and found.owner is None and found.provenance == "d.npz: 3 rows."
    with pytest.raises(OptionError, match=r"path: the arrays of d\.npz differ in their number of rows: .*'short': 2"):
        read_npz(tmp_path / "d.npz", x="a", y="b", client="short")
    with pytest.raises(OptionError, match=r'x: d\.npz has no array "x": choose from a, b, short\.'):
        read_npz(tmp_path / "d.npz", y="b")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(OptionError, match="is not a file of plain arrays written by np.savez"):
        read_npz(tmp_path / "one.npy")
