"""The picture is drawn for every kind of partition, says the right numbers, and is the same each time."""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.image import imread

from twofold.data.partition import Partition, by_labels, dirichlet, natural, power_law
from twofold.data.picture import who_got_what

Y = np.tile(np.arange(4), 250)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures as they are saved, so that a test can look inside."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *args: object, **kwargs: object) -> None:
        figures.append(self)
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


def bar_lengths(figure: Figure, horizontal: bool) -> tuple[list[float], list[float]]:
    first, second = figure.axes[-1].containers[:2]
    size = (lambda bar: bar.get_width()) if horizontal else (lambda bar: bar.get_height())
    return [size(bar) for bar in first], [size(bar) for bar in second]


@pytest.mark.parametrize("clients", [4, 70])  # with the numbers written into the cells, and with a colour bar
def test_the_heat_map_and_the_bars_show_the_counts(tmp_path: Path, drawn: list[Figure], clients: int) -> None:
    split = by_labels(Y, clients, 2, train=3, test=4)
    path = who_got_what(split, Y, tmp_path / "new folder" / "picture.png")
    assert path == tmp_path / "new folder" / "picture.png"
    (figure,) = drawn
    left = figure.axes[0]
    counts = np.stack([np.bincount(Y[rows], minlength=4) for rows in split.train])
    (mesh,) = (artist for artist in left.collections if isinstance(artist, QuadMesh))
    shown = np.ma.asarray(mesh.get_array()).filled(0).reshape(counts.shape)
    np.testing.assert_array_equal(shown, counts)
    written = sorted(text.get_text() for text in left.texts)
    assert written == (sorted(str(n) for n in counts[counts > 0]) if clients == 4 else [])
    bars = [axes for axes in figure.axes if axes.containers]
    assert len(bars) == 1
    assert [bar.get_width() for bar in bars[0].containers[0]] == [3] * clients
    assert [bar.get_width() for bar in bars[0].containers[1]] == [4] * clients
    assert left.get_ylim() == (clients - 0.5, -0.5)  # the first client on top
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["0", "1", "2", "3"]
    assert left.get_yticklabels()[0].get_text() == "client 0"
    assert figure.get_suptitle() == split.description
    pixels = imread(path)
    assert pixels.shape[1] == 1320 and 400 <= pixels.shape[0] <= 2000


@pytest.mark.parametrize("y", [None, np.linspace(0, 1, 1000), np.arange(1000)])
def test_without_labels_the_bars_stand_alone(tmp_path: Path, drawn: list[Figure], y: np.ndarray | None) -> None:
    split = power_law(1000, 30, 1.0, test=0.2)
    who_got_what(split, y, tmp_path / "picture.png")
    (figure,) = drawn
    assert len(figure.axes) == 1
    train, test = bar_lengths(figure, horizontal=False)
    assert train == [len(rows) for rows in split.train] and test == [len(rows) for rows in split.test]


@pytest.mark.parametrize(
    "split",
    [
        natural(np.repeat(["x" * 60, "b"], 500), test=0.0),
        natural(np.zeros(1000)),
        natural(np.arange(1000) // 4),
        dirichlet(Y, 3, 0.1),
        power_law(1000, 200, 2.0),
    ],
    ids=lambda split: split.description,
)
@pytest.mark.parametrize("y", [None, Y, Y.astype(float), np.array(["cat", "dog", "cow", "hen"])[Y]], ids=type)
@pytest.mark.filterwarnings("error")
def test_every_kind_of_partition_can_be_drawn(tmp_path: Path, split: Partition, y: np.ndarray | None) -> None:
    assert who_got_what(split, y, tmp_path / "picture.svg").stat().st_size > 1000


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_partition_gives_the_same_file(tmp_path: Path, ending: str) -> None:
    first, second = (
        who_got_what(by_labels(Y, 4, 2, 5, 5), Y, tmp_path / f"{name}.{ending}").read_bytes() for name in "ab"
    )
    assert first == second


def test_nothing_global_is_touched(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    pyplot = "matplotlib.pyplot" in sys.modules
    who_got_what(by_labels(Y, 4, 2, 5, 5), Y, tmp_path / "picture.png")
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == pyplot
