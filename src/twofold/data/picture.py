"""A picture of a partition: each client's labels and numbers of rows."""
# Matplotlib leaves parts of its signatures untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.data.partition import Partition
from twofold.extras import require

__all__ = ["who_got_what"]

# Blue and orange from Okabe and Ito's palette: people with any kind of colour blindness can tell them apart, and they also
# differ in lightness, so they stay distinct in a grey print.
_TRAIN, _TEST, _GRID = "#0072B2", "#E9B872", "#D9D9D9"
_MOST_LABELS = 100  # with more, a heat map of labels is useless (a regression's targets are many different "labels")
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # text stays text in print
    "svg.hashsalt": "twofold",
}


def who_got_what(partition: Partition, y: ArrayLike | None, path: str | os.PathLike[str]) -> Path:
    """Draw each client's training rows by label as a heat map, with a bar for its number of rows, and return the path.

    `y` holds the labels of all rows; without them, or with real-valued targets, only the bars are drawn. The ending of `path`
    chooses the format (png, pdf, svg).

    >>> import twofold as tw
    >>> parts = tw.data.partition.natural(["bob", "ann", "bob"], test=0.0)
    >>> tw.data.picture.who_got_what(parts, [0, 1, 1], "clients.svg").name  # doctest: +SKIP
    'clients.svg'
    """
    require("matplotlib", "A picture of a partition", "paper")
    import matplotlib
    from matplotlib.figure import Figure

    counts, labels = _counts(partition, y)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(layout="constrained")  # not pyplot: nothing global, no window, safe in threads
        if counts is None:
            _draw_bars_alone(figure, partition)
        else:
            _draw_heat_map(figure, partition, counts, labels)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a date, the same partition always gives the same file.
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
        figure.savefig(path, dpi=200, facecolor="white", metadata=metadata)
    return path


def _counts(partition: Partition, y: ArrayLike | None) -> tuple[NDArray[np.int64] | None, list[str]]:
    """The number of training rows of each client and label, and the labels; None if there are no labels to draw."""
    if y is None:
        return None, []
    values, label = np.unique(np.asarray(y), return_inverse=True)
    if len(values) > _MOST_LABELS or (values.dtype.kind == "f" and np.any(values != np.rint(values))):
        return None, []
    rows = [np.bincount(label[train], minlength=len(values)) for train in partition.train]
    integers = values.astype(np.int64) if values.dtype.kind == "f" else values
    return np.stack(rows), [str(value) for value in integers]


def _draw_heat_map(figure: Any, partition: Partition, counts: NDArray[np.int64], labels: list[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    clients, kinds = counts.shape
    height = float(np.clip(1.3 + 0.17 * clients, 2.2, 9.8))
    figure.set_size_inches(6.6, height)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(max(2.0, min(kinds / 5, 4.0)), 1.3))

    # White means no rows, and one row is already slightly blue. Darker means more, in grey prints too. The scale is the square
    # root of the number, because clients often differ tenfold in size.
    colours = ListedColormap(colormaps["Blues"](np.linspace(0.06, 0.85, 256)))
    most = max(int(counts.max()), 1)
    image = left.pcolormesh(
        np.arange(kinds + 1) - 0.5,
        np.arange(clients + 1) - 0.5,
        np.ma.masked_equal(counts, 0),
        cmap=colours,
        norm=PowerNorm(0.5, vmin=0, vmax=most),
        edgecolors=_GRID if clients <= 60 else "none",
        linewidth=0.4,
        rasterized=counts.size > 5000,
    )
    if clients <= 50 and kinds <= 12 and most < 10_000:  # beyond that the numbers are too small to read
        left.set_title("training rows by label", loc="left")
        for (m, k), value in np.ndenumerate(counts):
            if value:
                dark = value > 0.4 * most
                left.text(
                    k, m, f"{value:d}", ha="center", va="center", fontsize=6, color="white" if dark else "#222222"
                )
    else:
        bar = figure.colorbar(image, ax=left, location="top", shrink=0.5, aspect=30, pad=0.01, anchor=(0.0, 0.0))
        bar.set_ticks(sorted({round(most * (i / 3) ** 2) for i in range(4)}))  # evenly spread on this scale
        bar.ax.tick_params(labelsize=6, length=2)
        bar.outline.set_linewidth(0.4)
        bar.set_label("training rows by label", loc="left")
    left.set_ylim(clients - 0.5, -0.5)  # the first client on top
    _name_ticks(left.xaxis, labels, most_ticks=25)
    _name_ticks(left.yaxis, list(partition.names), most_ticks=int(height / 0.16))
    left.tick_params(length=0)
    left.set_xlabel("label")

    train, test = _sizes(partition)
    positions = np.arange(len(partition))
    thick = 0.72 if clients <= 60 else 1.0
    right.barh(positions, train, height=thick, color=_TRAIN, label="training")
    if test.any():
        right.barh(positions, test, left=train, height=thick, color=_TEST, label="test")
        right.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=7, **_LEGEND)
        right.set_xlabel("rows")
    else:
        right.set_xlabel("training rows")
    _tidy_value_axis(right, "x")
    right.tick_params(axis="y", length=0)
    _title(figure, partition.description, width=100)


def _draw_bars_alone(figure: Any, partition: Partition) -> None:
    clients = len(partition)
    figure.set_size_inches(6.6, 2.8)
    axes = figure.subplots()
    train, test = _sizes(partition)
    positions = np.arange(clients)
    width = 0.72 if clients <= 60 else 1.0
    axes.bar(positions, train, width=width, color=_TRAIN, label="training", linewidth=0)
    if test.any():
        axes.bar(positions, test, bottom=train, width=width, color=_TEST, label="test", linewidth=0)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=7, **_LEGEND)
    axes.set_xlim(-0.8, clients - 0.2)
    longest = max(len(name) for name in partition.names)
    _name_ticks(axes.xaxis, list(partition.names), most_ticks=max(2, min(20, 90 // (longest + 2))))
    axes.set_ylabel("rows" if test.any() else "training rows")
    _tidy_value_axis(axes, "y")
    axes.tick_params(axis="x", length=2)
    _title(figure, partition.description, width=100)


_LEGEND = {"borderaxespad": 0.2, "handlelength": 1.0, "handletextpad": 0.4, "columnspacing": 1.0}


def _sizes(partition: Partition) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([len(rows) for rows in partition.train]), np.array([len(rows) for rows in partition.test])


def _name_ticks(axis: Any, names: list[str], most_ticks: int) -> None:
    """Label every position if there is room, else every second, fifth, tenth, …"""
    steps = (step * 10**power for power in range(9) for step in (1, 2, 5))
    step = next(s for s in steps if len(names) <= s * max(most_ticks, 1))
    axis.set_ticks(range(0, len(names), step), [textwrap.shorten(name, 24, placeholder="…") for name in names[::step]])


def _tidy_value_axis(axes: Any, direction: str) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis=direction, color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(figure: Any, text: str, width: int) -> None:
    sentence = text[:1].upper() + text[1:]
    figure.suptitle("\n".join(textwrap.wrap(sentence, width)), x=0.01, ha="left", fontsize=8.5, fontweight="bold")
