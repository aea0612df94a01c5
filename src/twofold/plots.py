"""Plots of runs and of an evaluation, readable on a screen and in print, and with any colour vision.

`tw.plot(results)` draws the course of runs: medians and bands over seeds, theory's line and the lower bound. `clients` draws
one dot per client of a comparison. A method looks the same everywhere (`twofold.looks`).
"""
# Matplotlib's keyword arguments are untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import math
import os
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from twofold import looks
from twofold.algorithms import ACD, ASVRCD, REGISTRY, Algorithm
from twofold.errors import InputError, KindError, TwofoldError
from twofold.evaluate import Comparison
from twofold.extras import require
from twofold.looks import Look
from twofold.problem import Optimum, Problem
from twofold.result import Result, Results
from twofold.theory import rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "STYLE", "Band", "Runs", "clients", "median_and_band", "plot", "save"]

COLOURS = tuple(looks.COLOURS[name] for name in ("blue", "red", "green", "pink", "orange", "sky", "ink"))
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


Runs: TypeAlias = Result | Results | Sequence[Result] | Mapping[str, Result | Results | Sequence[Result]]
"""What can be drawn: one run, the runs of several seeds, or several of these by name."""
Array: TypeAlias = NDArray[np.float64]

AXES = {
    "rounds": "communication rounds",
    "iterations": "iterations",
    "bytes": "bytes per client, sent and received",
    "gradients": "gradients of single rows per client, ∇w and ∇β",
    "seconds": "seconds",
}
"""What a run's course can be drawn against."""
METRICS = {
    "loss": "training loss F",
    "gap": "F − F*",
    "bound": "certified bound on F − F*",
    "gradient_norm": "‖∇F‖",
}
FALLING = ("gap", "bound", "gradient_norm")
"""Metrics that go to zero, and hence have a logarithmic axis."""
ROUNDING = 1e-14
"""A gap of so much of the first one is rounding, and not drawn."""
MOST_POINTS = 800
"""Points of a drawn line; more could not be told apart."""


def plot(
    results: Runs,
    problem: Problem | None = None,
    *,
    x: str = "rounds",
    y: str | None = None,
    quantiles: tuple[float, float] = (0.1, 0.9),
    title: str = "",
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the course of runs: the median over seeds with a band of quantiles, and a caption that says what is seen.

    `results` is what `solve` gave: a Result, a Results (several seeds), or a dict from names to these. `x` is "rounds",
    "iterations", "bytes", "gradients" or "seconds"; `y` a column of the history. A run that has ended keeps its last value.

    With the `problem`, the gap F − F* is drawn (unless `y` says otherwise), against what theory guarantees for the methods that
    have a proven rate on it, and against what the worst problem of this condition number demands of any method.

    Gives a matplotlib Figure, and writes it to `path` (png, pdf or svg) if one is given. Needs matplotlib.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> objective = tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5)
    >>> problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
    >>> figure = tw.plot(tw.solve(problem, "acd", rounds=5, seeds=3), problem)
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['ACD', 'guarantee for ACD', 'worst case of any method']
    """
    require("matplotlib", "A plot", "paper")
    import matplotlib

    if x not in AXES:
        raise InputError(f"x must be one of {', '.join(AXES)}, got {x=}.")
    if not 0 <= quantiles[0] <= quantiles[1] <= 1:
        raise InputError(f"quantiles are two numbers between 0 and 1, the smaller first; got {quantiles=}.")
    named = _named(results)
    best = _optimum(problem) if problem is not None and y in (None, "gap") else None
    metric = y or ("gap" if best is not None else _metric(named.values()))
    curves = {name: _curve(runs, x, metric, quantiles, best) for name, runs in named.items()}
    curves = {name: curves[name]._replace(look=look) for name, look in _distinct(named).items()}
    with matplotlib.rc_context(STYLE):
        figure = _figure((6.8, 4.4))
        axes = figure.add_subplot()
        floor = _scales(axes, metric, curves.values())
        for curve in curves.values():
            look = curve.look
            axes.plot(curve.x, np.maximum(curve.middle, floor), label=look.title, linewidth=1.6, zorder=3, **look.line)
            if curve.seeds > 1:
                low, high = np.maximum(curve.low, floor), np.maximum(curve.high, floor)
                colour = looks.COLOURS[look.colour]
                axes.fill_between(curve.x, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
        told = [_seeds(curves.values(), quantiles)]
        if problem is not None and best is not None and metric == "gap":
            told += _theory(axes, problem, best, named, x, curves)
        _finish(figure, axes, title, AXES[x], METRICS.get(metric, metric), " ".join(told))
        if path is not None:
            save(figure, path)
    return figure


class Band(NamedTuple):
    """The median of several seeds on a common axis, and its quantiles.

    >>> import numpy as np
    >>> Band(x=np.arange(2.0), middle=np.ones(2), low=np.zeros(2), high=np.full(2, 3.0)).high.tolist()
    [3.0, 3.0]
    """

    x: Array
    middle: Array
    low: Array
    high: Array


class _Curve(NamedTuple):
    """One line: a band, of how many seeds, and how it looks."""

    x: Array
    middle: Array
    low: Array
    high: Array
    seeds: int
    look: Look


def _named(results: Runs) -> dict[str, list[Result]]:
    """The runs by name: the dict's, or the algorithm's."""
    if isinstance(results, Mapping):
        found = {str(name): _runs(value) for name, value in results.items()}
    else:
        runs = _runs(results)
        found: dict[str, list[Result]] = {}
        for run in runs:
            found.setdefault(_method(run), []).append(run)
    if not found or not all(found.values()):
        raise InputError("There is nothing to draw: give a Result, a Results, or a dict from names to these.")
    return found


def _runs(value: object) -> list[Result]:
    given = [value] if isinstance(value, Result) or not isinstance(value, Iterable) else cast("Iterable[object]", value)
    runs: list[Result] = []
    for run in given:
        if not isinstance(run, Result):
            raise KindError(f"tw.plot draws what tw.solve gave (a Result or a Results), got {type(run).__name__}.")
        runs.append(run)
    return runs


def _method(run: Result) -> str:
    """The name of a run's algorithm."""
    return str(run.settings["name"])


def _metric(named: Iterable[list[Result]]) -> str:
    histories = [run.history for runs in named for run in runs]
    for name in ("gap", "loss", "bound", "gradient_norm"):
        if all(name in history for history in histories):
            return name
    raise InputError("These runs have recorded no metric in common: say y=, the name of a column of their histories.")


def _optimum(problem: Problem) -> Optimum | None:
    """The optimum, where there is one to be had."""
    if not isinstance(problem, Problem):  # pyright: ignore[reportUnnecessaryIsInstance]  (users may pass anything)
        raise KindError(f"The second argument of tw.plot is the Problem, got {type(problem).__name__}.")
    if not problem.objective.convex or problem.objective.stages() is not None:
        return None
    try:
        return problem.optimum()
    except TwofoldError:  # a problem of the user's own whose minimum cannot be certified
        return None


def _column(run: Result, name: str, best: float | None) -> Array:
    history = run.history
    if name == "gap" and best is not None and "loss" in history:
        return np.asarray(history["loss"], np.float64) - best
    return np.asarray(history[name], np.float64)


def _across(run: Result, x: str) -> Array:
    history = run.history
    if x == "gradients":
        return np.asarray(history["gradients_w"], np.float64) + np.asarray(history["gradients_beta"], np.float64)
    return np.asarray(history[{"rounds": "round", "iterations": "iteration"}.get(x, x)], np.float64)


def _curve(runs: list[Result], x: str, metric: str, quantiles: tuple[float, float], best: Optimum | None) -> _Curve:
    band = median_and_band(runs, x, metric, quantiles, None if best is None else best.value)
    return _Curve(*band, len(runs), looks.look(_method(runs[0])))


def median_and_band(
    runs: Sequence[Result],
    x: str = "rounds",
    metric: str = "loss",
    quantiles: tuple[float, float] = (0.1, 0.9),
    best: float | None = None,
    most: int = MOST_POINTS,
) -> Band:
    """Every seed on one axis, by its last record so far, and the quantiles over seeds.

    A run that has ended keeps its last value; one that has diverged counts as above all others from there on. With `best`, the
    metric "gap" is the loss minus it.

    >>> import numpy as np
    >>> from twofold import History, Ledger, Result
    >>> ledger = Ledger(2, 2, 0, 0, 0, 0, np.zeros(1, int), np.zeros(1, int))
    >>> def run(seed, rounds, losses):
    ...     return Result(
    ...         (), (), History({"round": rounds, "loss": losses}), ledger, "budget", "", {"name": "mine"}, seed, 0.0
    ...     )
    >>> found = median_and_band([run(0, [0, 1, 2], [4.0, 2.0, 1.0]), run(1, [0, 1], [4.0, 3.0])])
    >>> found.middle.tolist()
    [4.0, 2.5, 2.0]
    """
    xs, ys = [_across(run, x) for run in runs], [_column(run, metric, best) for run in runs]
    grid = np.unique(np.concatenate(xs))
    grid = grid[grid >= max(values[0] for values in xs)]  # where all seeds have begun
    if len(grid) > most:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, most).astype(int))]
    seeds: list[Array] = []
    for run, where, values in zip(runs, xs, ys, strict=True):
        held = values[np.searchsorted(where, grid, side="right") - 1]
        seeds.append(np.where(grid > where[-1], np.inf, held) if run.status == "diverged" else held)
    ordered = np.sort(np.nan_to_num(np.stack(seeds), nan=np.inf, posinf=np.inf), axis=0)
    low, middle, high = (_quantile(ordered, q) for q in (quantiles[0], 0.5, quantiles[1]))
    return Band(grid, middle, low, high)


def _quantile(ordered: Array, q: float) -> Array:
    """A quantile of sorted columns, linear between neighbours; infinite entries stay infinite and are not drawn."""
    place = q * (len(ordered) - 1)
    below, part = math.floor(place), place - math.floor(place)
    above = ordered[min(below + 1, len(ordered) - 1)]
    mixed = ordered[below] if part == 0 else (1 - part) * ordered[below] + part * above
    return np.where(np.isfinite(mixed), mixed, np.nan)


def _distinct(named: Mapping[str, list[Result]]) -> dict[str, Look]:
    """A look for each line: the method's own where every line is another method, else one for each place."""
    methods = [_method(runs[0]) for runs in named.values()]
    if len(set(methods)) == len(methods):
        found = looks.looks(methods)
        titles = {m: name if name != m else found[m].title for m, name in zip(methods, named, strict=True)}
        return {name: found[m]._replace(title=titles[m]) for m, name in zip(methods, named, strict=True)}
    return {name: looks.look("", place, title=name) for place, name in enumerate(named)}


def _seeds(curves: Iterable[_Curve], quantiles: tuple[float, float]) -> str:
    counts = sorted({curve.seeds for curve in curves})
    if counts == [1]:
        return "One seed."
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Median of {many} seeds; bands from the {quantiles[0]:.0%} to the {quantiles[1]:.0%} quantile."


def _scales(axes: Axes, metric: str, curves: Collection[_Curve]) -> float:
    """A logarithmic axis for what goes to zero and for what falls by more than a factor of thirty; the least value drawn."""
    found = np.concatenate([curve.middle for curve in curves])
    values = found[np.isfinite(found) & (found > 0)]
    falls = metric in FALLING or (len(values) and values.max() / values.min() > 30 and not (found < 0).any())
    low, right = -math.inf, max(float(curve.x[-1]) for curve in curves)
    if len(values) and falls:
        axes.set_yscale("log", nonpositive="clip")
        # A gap below rounding is noise, and one that ran away would press all others flat.
        low = max(values.min() / 2, ROUNDING * values.max())
        axes.set_ylim(low, min(values.max() * 2, 1e3 * values[0]))
        above = [curve.x[np.nan_to_num(curve.middle, nan=math.inf) > 2 * low] for curve in curves]
        right = max([float(x[-1]) for x in above if len(x)], default=right)
    axes.set_xlim(0, 1.02 * right if right > 0 else 1)
    return low / 10


def _finish(figure: Figure, axes: Axes, title: str, across: str, up: str, caption: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    if title:
        axes.set_title(title, loc="left")
    axes.legend(frameon=False, fontsize=8.5, handlelength=2.8, loc="best")
    figure.supxlabel("\n".join(textwrap.wrap(caption, 112)), x=0.01, ha="left", fontsize=7.5, color=QUIET)


def _figure(size: tuple[float, float]) -> Figure:
    """An empty figure without pyplot's global state, which notebooks show all the same."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            from io import BytesIO

            stream = BytesIO()
            self.savefig(stream, format="png", dpi=120, facecolor="white")
            return stream.getvalue()

    return Shown(figsize=size, layout="constrained")


# --- theory ------------------------------------------------------------------------------------------------------------


def _theory(
    axes: Axes,
    problem: Problem,
    best: Optimum,
    named: Mapping[str, list[Result]],
    x: str,
    curves: Mapping[str, _Curve],
) -> list[str]:
    """Draw what theory guarantees and what it demands; give the sentences of the caption."""
    constants = problem.constants()
    start = _start(problem, best)
    if constants.mu <= 0 or start.gap <= 0 or x == "seconds":
        return []
    low = min(float(np.nanmin(np.where(c.middle > 0, c.middle, np.nan))) for c in curves.values())
    levels = np.geomspace(start.gap, max(min(low, 0.5 * start.gap), 1e-14), 60)
    right = max(float(curve.x[-1]) for curve in curves.values())
    told: list[str] = []
    proven: list[str] = []
    for name, runs in named.items():
        found = _guarantee(problem, runs[0], start, levels, x)
        if found is not None:
            inside = found <= right
            colour = looks.COLOURS[curves[name].look.colour]
            axes.plot(found[inside], levels[inside], color=colour, alpha=0.75, linewidth=1.0, linestyle=(0, (1, 2.2)), zorder=1,
                      label=f"guarantee for {curves[name].look.title}")  # fmt: skip
            proven.append(curves[name].look.title)
    if proven:
        told.append(f"Thin dots: what theory guarantees for {' and '.join(proven)}, in expectation.")
    if x == "rounds" and problem.has_shared and problem.has_private:
        needed = np.array(
            [rates.chain_rounds(max(constants.L_w / constants.mu, 1.0), level / start.gap) for level in levels]
        )
        inside = needed <= right
        axes.plot(needed[inside], levels[inside], color=QUIET, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1,
                  label="worst case of any method")  # fmt: skip
        told.append("Grey dashes: what the worst problem with this Lʷ/μ demands of any method (Theorem lb).")
    return told


class _Start(NamedTuple):
    """How far the start is from the optimum: in value, and squared in the space that algorithms work in."""

    gap: float
    distance2: float


def _start(problem: Problem, best: Optimum) -> _Start:
    import jax

    def apart(a: Any, b: Any) -> float:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return float(sum(np.sum(np.square(np.asarray(p) - np.asarray(q))) for p, q in pairs))

    w, beta = problem.start
    gap = float(problem.value(w, beta)) - best.value
    return _Start(gap, apart(w, best.w) / problem.scale**2 + apart(beta, best.beta))


def _guarantee(problem: Problem, run: Result, start: _Start, levels: Array, x: str) -> Array | None:
    """The x at which each gap is guaranteed, in expectation; None where no rate for F − F* is proven."""
    algorithm = _algorithm(run)
    if algorithm is None or problem.metric is not None or float(run.history["iteration"][0]) != 0:
        return None
    predict = _prediction(problem, algorithm, start)
    if predict is None:
        return None
    ledger = run.ledger
    per_round = ledger.bytes_per_client / max(ledger.rounds, 1)
    found = [predict(float(level)) for level in levels]
    return {
        "rounds": np.array([p.rounds for p in found]),
        "iterations": np.array([p.iterations for p in found]),
        "bytes": np.array([p.rounds * per_round for p in found]),
        "gradients": np.array([(p.grad_w + p.grad_beta) * p.rows_per_gradient for p in found]),
    }[x]


def _prediction(problem: Problem, algorithm: Algorithm, start: _Start) -> Callable[[float], rates.Prediction] | None:
    """The rate of a method with the fields it ran with; ACD's by its own θ and p_w, ASVRCD's where they are theory's."""
    constants, rows = problem.constants(), float(problem.clients.counted.mean())
    if algorithm.name not in ("acd", "asvrcd") or not _by_theory(problem, algorithm):
        return None
    if isinstance(algorithm, ACD):
        theta, p_w = float(algorithm.theta or 0.0), float(algorithm.p_w or 0.0)
        first = rates.initial_error("acd", constants, start.gap, start.distance2)
        return lambda eps: rates.predict_acd(theta, p_w, rows, eps, first)
    known: dict[str, Any] = {
        "n": rows,
        **{name: getattr(algorithm, name) for name in ("batch", "optimal", "p_w", "rho") if hasattr(algorithm, name)},
    }
    initial = rates.initial_error("asvrcd", constants, start.gap, start.distance2, **known)
    return lambda eps: rates.predict("asvrcd", constants, eps, initial=initial, **known)


def _by_theory(problem: Problem, algorithm: Algorithm) -> bool:
    """Whether the steps are those that theory gives for these coins and this batch; no theorem speaks of others set by hand."""
    from twofold.solver import complete

    asked: list[str | Algorithm] = [algorithm.name]
    if isinstance(algorithm, ACD):
        asked.append(ACD(p_w=algorithm.p_w))
    elif isinstance(algorithm, ASVRCD):
        asked.append(ASVRCD(p_w=algorithm.p_w, rho=algorithm.rho, batch=algorithm.batch))
    return any(_alike(algorithm, complete(problem, each)[0]) for each in asked)


def _alike(one: Algorithm, other: Algorithm) -> bool:
    """Whether two algorithms have the same fields, up to the rounding of a file."""
    for field in dataclasses.fields(one):  # type: ignore[arg-type]
        here, there = getattr(one, field.name), getattr(other, field.name)
        numbers = isinstance(here, float) and isinstance(there, float)
        if not (math.isclose(here, there, rel_tol=1e-5) if numbers else here == there):
            return False
    return True


def _algorithm(run: Result) -> Algorithm | None:
    """The algorithm with the fields that it ran with; rebuilt, if the run was loaded from a file."""
    if isinstance(run.algorithm, Algorithm):
        return run.algorithm
    fields = dict(run.algorithm)
    kind = REGISTRY.get(fields.pop("name", ""))
    if kind is None or not dataclasses.is_dataclass(kind):
        return None
    own = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in fields.items() if name in own})


# --- clients -----------------------------------------------------------------------------------------------------------


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

    >>> import tempfile
    >>> import numpy as np, twofold as tw
    >>> made = tw.Clients.from_list([(np.eye(2), np.ones(2)), (np.eye(2), np.zeros(2))])
    >>> loss = tw.losses.squared(l2=0.1)
    >>> near = {"near": tw.objectives.mixture(loss, lam=1.0)}
    >>> found = tw.evaluate.compare(loss, made, made, near, rounds=2, baselines=False, record=())
    >>> clients(found, Path(tempfile.mkdtemp()) / "clients.svg").name
    'clients.svg'
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
        # Not pyplot: no global state.
        figure = Figure(figsize=(8.2, 1.55 + 0.5 * len(comparison)), layout="constrained")
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
            side: dict[str, Any] = {
                "xycoords": ("axes fraction", "data"),
                "textcoords": "offset points",
                "annotation_clip": False,
            }
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
    """Write a figure, and make its folder if need be; the same figure always gives the same file.

    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> save(Figure(), Path(tempfile.mkdtemp()) / "figures" / "empty.svg").name
    'empty.svg'
    """
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
