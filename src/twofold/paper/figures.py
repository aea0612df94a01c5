"""An experiment's figures as PNG and PDF: a grid of panels, one legend, mean ± standard error, log axes where they help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twofold.extras import require
from twofold.looks import METHODS, look
from twofold.paper.base import Experiment, Figure
from twofold.paper.published import SECONDS
from twofold.plots import COLOURS, GRID, INK, QUIET, STYLE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw"]

NAMES = {
    **{name: look.title for name, look in METHODS.items()},
    "asvrcd (ρ = p_w)": "ASVRCD, $\\rho = p_w$", "theory": "theory", "lower bound": "lower bound",
    "multitask": "MT2", "mixture": "MX2", "adaptive": "APFL2", "weight_sharing": "WS2", "lower_bound": "lower-bound instance",
    "mnist": "MNIST", "kmnist": "KMNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "school": "School",
    "loss": "training loss", "gap": "$F - F^*$", "error": "estimation error", "accuracy": "test accuracy",
    "accuracy_personal": "test accuracy\nof the prediction",
}  # fmt: skip
ORDER = (
    "lsgd",
    "ascd",
    "asvrcd",
    "l2sgd_plus",
    "pfedme",
    "hybrid",
    "acd",
    "svrcd",
    "asvrcd (ρ = p_w)",
    "theory",
    "lower bound",
)
Series = Mapping[str, Any]
Handles = dict[str, Any]
"""What the legend shows, by its text."""


def draw(experiment: Experiment, document: Mapping[str, Any], out: Path) -> list[Path]:
    """Draw every figure of an experiment for which its document has series; the paths of the files."""
    require("matplotlib", "A figure", "paper")
    paths = []
    for figure in experiment.figures:
        series = [s for s in _with_gaps(document["series"]) if _fits(s, figure)]
        if series:
            canvas = {"curves": _curves, "bars": _bars, "rates": _rates}[figure.kind](figure, series)
            paths += [save(canvas, out / "figures" / f"{figure.name}.{ending}") for ending in ("png", "pdf")]
    return paths


def _with_gaps(series: Iterable[Series]) -> list[Series]:
    """The series, and the gap to the optimum for each loss whose optimum is known."""
    found: list[Series] = []
    for s in series:
        found.append(s)
        if s.get("optimum") is not None:
            means = [None if value is None else value - s["optimum"] for value in s["mean"]]
            found.append({**s, "metric": "gap", "mean": means})
    return found


def _fits(series: Series, figure: Figure) -> bool:
    wanted = figure.metrics if figure.kind != "bars" else ("loss",)
    return series["metric"] in wanted and all(series[name] == value for name, value in figure.where.items())


def _values(series: Sequence[Series], field: str, figure: Figure) -> list[Any]:
    found = list(dict.fromkeys(s[field] for s in series))
    if field == "metric":
        return [metric for metric in figure.metrics if metric in found]
    if field == "method":
        return sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return found


def _name(value: Any, pattern: str = "{}") -> str:
    if isinstance(value, (int, float)):
        return pattern.format(f"{value:g}")
    return NAMES.get(value, pattern.format(value) if pattern != "{}" and value == "theory" else str(value))


def _look(field: str, value: Any, place: int) -> dict[str, Any]:
    """A colour and a dash: the same for a method in all figures, in order for everything else."""
    return look(value if field == "method" else "", place).line


def _canvas(rows: int, columns: int, title: str, size: tuple[float, float] = (2.35, 1.75)) -> tuple[Canvas, np.ndarray]:
    """An empty figure and its panels as an array (rows, columns); `size` is that of a panel, in inches."""
    from matplotlib.figure import Figure as Canvas

    width = max(0.7 + size[0] * columns, 0.085 * len(title) + 0.6, 4.6)  # wide enough for its title and its legend
    canvas = Canvas(figsize=(width, 0.85 + size[1] * rows), layout="constrained")
    canvas.get_layout_engine().set(w_pad=0.04, h_pad=0.04)  # type: ignore[union-attr]
    panels = canvas.subplots(rows, columns, squeeze=False)
    canvas.suptitle(title, fontsize=10.5, fontweight="bold", color=INK)
    for panel in panels.flat:
        panel.grid(color=GRID, linewidth=0.5, zorder=0)
        panel.set_axisbelow(True)
        for edge in ("top", "right"):
            panel.spines[edge].set_visible(False)
    return canvas, panels


def _legend(canvas: Canvas, handles: Handles) -> None:
    columns = len(handles) if len(handles) <= 6 else (len(handles) + 1) // 2
    canvas.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5,
        handlelength=2.6, columnspacing=1.4,
    )  # fmt: skip


def _curves(figure: Figure, series: Sequence[Series]) -> Canvas:
    """One curve per line, by communication round."""
    import matplotlib

    rows, columns = (_values(series, field, figure) for field in (figure.rows, figure.columns))
    lines = _values(series, figure.lines, figure)
    looks = {value: _look(figure.lines, value, place) for place, value in enumerate(lines)}
    with matplotlib.rc_context(STYLE):
        canvas, panels = _canvas(len(rows), len(columns), figure.title)
        handles: Handles = {}
        for row, across in zip(rows, panels, strict=True):
            metric = row if figure.rows == "metric" else figure.metrics[0]
            for column, panel in zip(columns, across, strict=True):
                here = [s for s in series if s[figure.rows] == row and s[figure.columns] == column]
                for s in here:
                    value = s[figure.lines]
                    handles[_name(value, figure.line_title)] = _line(panel, s, looks[value])
                _axes(panel, metric, here)
            across[0].set_ylabel(_name(metric) if figure.rows == "metric" else f"{_name(row)}\n{_name(metric)}")
        for column, top, bottom in zip(columns, panels[0], panels[-1], strict=True):
            top.set_title(_name(column, figure.column_title), fontsize=9, fontweight="normal")
            bottom.set_xlabel("communication rounds")
        _legend(canvas, {_name(v, figure.line_title): handles[_name(v, figure.line_title)] for v in lines})
    return canvas


def _line(panel: Axes, series: Series, look: Mapping[str, Any]) -> Any:
    """A curve with its band of one standard error to each side."""
    x, mean, stderr = (
        np.array([np.nan if v is None else v for v in series[k]], float) for k in ("rounds", "mean", "stderr")
    )
    (line,) = panel.plot(x, mean, linewidth=1.3, zorder=3, **look)
    if np.any(stderr > 0):
        low = mean - stderr
        if series["metric"] == "gap":
            low = np.maximum(low, mean / 10)  # a band that reaches below zero has no place on a log axis
        panel.fill_between(x, low, mean + stderr, color=look["color"], alpha=0.22, linewidth=0, zorder=2)
    return line


def _axes(panel: Axes, metric: str, series: Sequence[Series]) -> None:
    """A gap has a logarithmic axis, and so has a loss or an error that falls by more than a factor of 30."""
    values = np.array([v for s in series for v in s["mean"] if v is not None and v > 0], float)
    spread = values.max() / values.min() if values.size else 1.0
    if metric == "gap" or (metric in ("error", "loss") and spread > 30):
        panel.set_yscale("log")
        if metric == "gap" and values.size:
            panel.set_ylim(bottom=max(values.min() / 2, 1e-12))
        _few_ticks(panel.yaxis)
    panel.margins(x=0.01)
    panel.set_xlim(left=0)


def _few_ticks(axis: Axis, plain: bool = False) -> None:
    """Label a log axis at powers of ten; also at 2 and 5 where it spans less than two decades, and at 3 if `plain`."""
    from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    short = high / max(low, 1e-300) < 100
    axis.set_major_locator(LogLocator(10, subs=(1, 3) if plain else (1, 2, 5) if short else (1,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}") if plain or short else LogFormatterMathtext())
    axis.set_minor_formatter(NullFormatter())


def _rates(figure: Figure, series: Sequence[Series]) -> Canvas:
    """Rounds against √(L^w/μ), both axes logarithmic, one panel per objective."""
    import matplotlib

    columns = _values(series, "objective", figure)
    with matplotlib.rc_context(STYLE):
        canvas, panels = _canvas(1, len(columns), figure.title, (2.3, 2.3))
        handles: Handles = {}
        for panel, column in zip(panels[0], columns, strict=True):
            here = [s for s in series if s["objective"] == column]
            for s in here:
                y = np.array([np.nan if v is None else v for v in s["mean"]], float)
                look = _rate_look(s["method"])
                (line,) = panel.plot(s["condition"], y, markersize=4, linewidth=1.1, zorder=3, **look)
                handles[_name(s["method"])] = line
            panel.set_xscale("log")
            panel.set_yscale("log")
            _few_ticks(panel.xaxis, plain=True)
            _few_ticks(panel.yaxis)
            data = "" if here[0]["dataset"] == "chain" else f", {_name(here[0]['dataset'])}"
            panel.set_title(_name(column) + data, fontsize=9, fontweight="normal")
            panel.set_xlabel("$\\sqrt{L^w/\\mu}$")
        panels[0, 0].set_ylabel("communication rounds")
        lines = (_name(v) for v in _values(series, "method", figure))
        _legend(canvas, {name: handles[name] for name in lines if name in handles})
    return canvas


def _rate_look(method: str) -> dict[str, Any]:
    """Marks for what was run; dashes without marks for what theory says."""
    found = look(method)
    return found.line | {"marker": found.mark} | ({"linestyle": "-"} if found.mark else {})


def _bars(figure: Figure, series: Sequence[Series]) -> Canvas:
    """Seconds as bars, ours beside the published ones, grouped by method."""
    import matplotlib

    rows, columns = (_values(series, field, figure) for field in ("objective", "level"))
    methods = _values(series, "method", figure)
    seconds = {(s["objective"], s["level"], s["method"]): s["seconds"] for s in series}
    levels = {row: [level for level in columns if any((row, level, m) in seconds for m in methods)] for row in rows}
    with matplotlib.rc_context(STYLE):
        canvas, panels = _canvas(len(rows), max(map(len, levels.values())), figure.title)
        handles: Handles = {}
        for row, across in zip(rows, panels, strict=True):
            for panel, level in zip(across, levels[row], strict=False):
                ours = {m: seconds[row, level, m] for m in methods if (row, level, m) in seconds}
                published = [SECONDS.get((row, m, level), np.nan) for m in ours]
                handles |= _pairs_of_bars(panel, ours, published)
                panel.set_title(f"{_name(row)}, {_name(level, figure.column_title)}", fontsize=9, fontweight="normal")
            across[0].set_ylabel("seconds")
        _legend(canvas, handles)
    return canvas


def _pairs_of_bars(panel: Axes, ours: Mapping[str, float], published: Sequence[float]) -> Handles:
    place = np.arange(len(ours))
    theirs = panel.bar(place - 0.2, published, 0.38, color=GRID, edgecolor=QUIET, linewidth=0.6)
    bars = panel.bar(place + 0.2, list(ours.values()), 0.38, color=COLOURS[0])
    for x, value in zip(place, ours.values(), strict=True):
        panel.annotate(f"{value:.2g}", (x + 0.2, value), ha="center", va="bottom", fontsize=6.5)
    panel.set_yscale("log")
    panel.set_ylim(top=2000)
    panel.set_xticks(place, [_name(m) for m in ours], fontsize=6.5)
    return {"published (one laptop core)": theirs, "twofold": bars}
