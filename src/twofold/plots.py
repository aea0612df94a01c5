"""Plots of an evaluation, readable on a screen and in print, and with any colour vision."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twofold.evaluate import Comparison
from twofold.extras import require

__all__ = ["COLOURS", "STYLE", "clients", "save"]

# Okabe and Ito's palette, distinguishable with any colour blindness; the most different colours come first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, QUIET, GRID = "#222222", "#767676", "#E4E4E4"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.6,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "pdf.fonttype": 42,  # text stays text in print
    "svg.hashsalt": "twofold",
}


def clients(
    comparison: Comparison,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    notes: Mapping[str, str] | None = None,
    baselines: Sequence[str] = (),
) -> Path:
    """Draw one dot per client and objective, with a bar at the mean, and rounds and bytes at the side.

    `notes` are a few words below a name (the hyper-parameter that was chosen, say); the rows named in `baselines` have
    another colour. The ending of `path` chooses the format (png, pdf, svg). Returns the path.
    """
    require("matplotlib", "A plot", "paper")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    percent = comparison.measure == "accuracy"
    factor = 100.0 if percent else 1.0
    grades = [factor * row.evaluation.personal for row in comparison]
    low, high = min(g.min() for g in grades), max(g.max() for g in grades)
    pad = 0.04 * max(high - low, 1e-12)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(8.2, 1.55 + 0.5 * len(comparison)), layout="constrained"
        )  # not pyplot: no global state
        axes = figure.add_subplot()
        for i, (row, values) in enumerate(zip(comparison, grades, strict=True)):
            colour = COLOURS[1] if row.name in baselines else COLOURS[0]
            x, y = _swarm(values, (high - low + 2 * pad) / 90)
            axes.scatter(x, i + y, s=19, color=colour, alpha=0.8, linewidths=0, zorder=3)
            axes.plot([values.mean()] * 2, [i - 0.34, i + 0.3], color=INK, linewidth=1.6, zorder=2)
            axes.annotate(
                f"{values.mean():.1f}" if percent else f"{values.mean():.3g}",
                (values.mean(), i - 0.34), xytext=(0, 0), textcoords="offset points", ha="center", va="bottom",
                fontsize=8, fontweight="bold", zorder=5,
            )  # fmt: skip
            if i and (row.name in baselines) != (comparison.rows[i - 1].name in baselines):
                axes.axhline(i - 0.66, color=QUIET, linewidth=0.6, linestyle=(0, (1, 3)), zorder=1)
            note = (notes or {}).get(row.name, "")
            side = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "annotation_clip": False}
            axes.annotate(row.name, (0, i), xytext=(-8, 4 if note else 0), ha="right", va="center", **side)
            if note:
                axes.annotate(note, (0, i), xytext=(-8, -7), ha="right", va="center", fontsize=7.5, color=QUIET, **side)
            axes.annotate(f"{row.rounds:,}", (1, i), xytext=(44, 0), ha="right", va="center", **side)
            axes.annotate(_size(row.bytes), (1, i), xytext=(104, 0), ha="right", va="center", **side)
        for text, offset in (("rounds", 44), ("sent + received\nper client", 104)):
            axes.annotate(text, (1, 1), xycoords="axes fraction", xytext=(offset, 4), textcoords="offset points",
                          ha="right", va="bottom", fontsize=7.5, color=QUIET, annotation_clip=False)  # fmt: skip
        axes.set_xlim(low - pad, high + pad)
        axes.set_ylim(len(comparison) - 0.4, -0.75)
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=percent))
        axes.set_xlabel("test accuracy of each client, %" if percent else f"{comparison.measure} of each client")
        axes.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
        axes.set_axisbelow(True)
        for edge in ("top", "right", "left"):
            axes.spines[edge].set_visible(False)
        caption = "one dot per client, a bar at the mean"
        axes.set_title(f"{title}\n" if title else "", loc="left", pad=10)
        axes.annotate(caption, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", ha="left",
                      va="bottom", fontsize=8, color=QUIET)  # fmt: skip
        return save(figure, path)


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure, and make its folder if need be; the same figure always gives the same file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    figure.savefig(path, dpi=160, facecolor="white", metadata=metadata.get(path.suffix.lower()))
    return path


def _swarm(values: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the dots, with those that would cover each other moved apart: up, down, up, …"""
    order = np.argsort(values, kind="stable")
    offsets = np.zeros(len(values))
    column = np.round(values / max(width, 1e-300))
    for place in np.unique(column):
        group = order[column[order] == place]
        rank = np.arange(len(group))
        offsets[group] = np.ceil(rank / 2) * np.where(rank % 2, -1, 1)
    step = min(0.085, 0.3 / max(float(np.abs(offsets).max()), 1.0))
    return values, offsets * step


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
