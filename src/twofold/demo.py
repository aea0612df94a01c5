"""`twofold demo`: personalised digit recognition, small enough for a coffee break.

Twenty clients have a few labelled images of two digits each (scikit-learn's digits). Each client's rows are split into
training, validation and test rows. Every objective is trained on the training rows until its loss is certified to be
within a tolerance of the best. The validation rows choose its hyper-parameter. The table shows the accuracy on the test
rows, which nothing else has seen.
"""
# scikit-learn comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from twofold import losses, objectives
from twofold.clients import Clients
from twofold.data import partition
from twofold.evaluate import ALONE, SHARED, Comparison, Report, Row, evaluate, report
from twofold.extras import require
from twofold.objectives import Objective
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver import solve

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Demo", "Setting", "candidates", "data", "run", "sentences", "show", "table", "write"]

RIDGE = 0.01
PENALTIES = (0.03, 0.1, 0.3)
BLENDS = (0.25, 0.5, 0.75)
LARGEST_PIXEL = 16


@dataclass(frozen=True)
class Setting:
    """The sizes, the algorithm and the budget of the demo.

    >>> from twofold.demo import Setting
    >>> Setting(clients=5).train
    10
    """

    clients: int = 20
    labels: int = 2
    train: int = 10
    validation: int = 10
    test: int = 60
    seed: int = 0
    algorithm: str = "acd"
    tol: float = 1e-3
    rounds: int = 500


@dataclass(frozen=True, eq=False)
class Demo:
    """The outcome: the comparison on the test rows, each objective's chosen setting, its validation grade, and who gains by the best.

    >>> from twofold.demo import Demo, Setting
    >>> from twofold.evaluate import Comparison
    >>> Demo(Setting(), Comparison(()), chosen={}, validation={}).personalised
    ()
    """

    setting: Setting
    comparison: Comparison
    chosen: Mapping[str, str]
    validation: Mapping[str, float]
    gains: Report | None = None

    @property
    def personalised(self) -> tuple[Row, ...]:
        """The rows that are not baselines."""
        return tuple(row for row in self.comparison if row.name not in (SHARED, ALONE))

    @property
    def best(self) -> Row:
        """The personalised objective that did best on the validation rows; the test rows play no part in this."""
        return max(self.personalised, key=lambda row: self.validation[row.name])


def candidates(loss: losses.Linear) -> dict[str, dict[str, Objective]]:
    """Give every objective of the demo, with the few settings from which the validation rows choose.

    >>> import twofold as tw
    >>> from twofold.demo import candidates
    >>> list(candidates(tw.losses.softmax(10))["mixture"])
    ['λ = 0.03', 'λ = 0.1', 'λ = 0.3']
    """
    return {
        SHARED: {"": objectives.traditional(loss)},
        ALONE: {"": objectives.local(loss)},
        "mixture": {f"λ = {lam:g}": objectives.mixture(loss, lam) for lam in PENALTIES},
        "multi-task": {f"Λ = 1, λ = {lam:g}": objectives.multitask(loss, lam) for lam in PENALTIES},
        "Ditto": {f"Λ = ∞, λ = {lam:g}": objectives.multitask(loss, lam, np.inf) for lam in PENALTIES},
        "adaptive": {f"Λ = 1, α = {alpha:g}": objectives.adaptive(loss, alpha) for alpha in BLENDS},
        "weight sharing": {
            "private bias": objectives.weight_sharing(loss, "weight"),
            "private weights": objectives.weight_sharing(loss, "bias"),
        },
        "residual": {"": objectives.residual(loss)},
    }


def data(setting: Setting) -> tuple[Clients, Clients, Clients]:
    """Give the clients' training, validation and test rows, with pixels scaled to [0, 1].

    >>> from twofold.demo import Setting, data
    >>> [part.rows for part in data(Setting(clients=2, train=4, validation=4, test=6))]
    [8, 8, 12]
    """
    datasets = require("sklearn.datasets", "The demo", "sklearn")
    x, y = cast(tuple[NDArray[np.float64], NDArray[np.int64]], datasets.load_digits(return_X_y=True))
    known = setting.train + setting.validation
    parts = partition.by_labels(y, setting.clients, setting.labels, known, setting.test, setting.seed)
    rows, held_out = parts.take(x / LARGEST_PIXEL, y)
    everything = Clients.from_list(rows, names=parts.names)
    train, validation = everything.split(setting.validation / known, seed=setting.seed, stratify=True)
    return train, validation, Clients.from_list(held_out, names=parts.names)


def run(setting: Setting | None = None, tell: Callable[[str], object] = lambda text: None) -> Demo:
    """Train everything and grade it; `tell` is called with the name of what is trained next.

    >>> from twofold.demo import run
    >>> demo = run()  # doctest: +SKIP
    >>> demo.best in demo.personalised  # doctest: +SKIP
    True
    """
    setting = setting or Setting()
    train, validation, test = data(setting)
    loss = losses.softmax(10, l2=RIDGE, intercept=True)
    rows: list[Row] = []
    chosen: dict[str, str] = {}
    figures: dict[str, float] = {}
    kept: dict[str, tuple[Problem, Result]] = {}
    for name, choices in candidates(loss).items():
        tried: list[tuple[float, str, Problem, Result]] = []
        for label, objective in choices.items():
            tell(f"{name} {label}".strip())
            problem = Problem(objective, train)
            # Only what the certificate needs is recorded: compiling more would take half of the demo's time.
            result = solve(
                problem, setting.algorithm, rounds=setting.rounds, tol=setting.tol, seed=setting.seed, record=(),
                progress=False,
            )  # fmt: skip
            tried.append((evaluate(problem, result, validation).mean, label, problem, result))
        figures[name], chosen[name], problem, result = max(tried, key=lambda choice: choice[0])  # the first, if equal
        kept[name] = problem, result
        rows.append(Row(name, evaluate(problem, result, test), result, problem.objective.equation))
    demo = Demo(setting, Comparison(tuple(rows)), chosen, figures)
    trained = {"shared": kept[SHARED][1], "alone": kept[ALONE][1]}
    return replace(demo, gains=report(*kept[demo.best.name], test, baselines=trained))


# --- words ------------------------------------------------------------------------------------------------------------


def sentences(demo: Demo) -> list[str]:
    """Describe the outcome in a few plain sentences made from the figures.

    >>> from twofold.demo import run, sentences
    >>> len(sentences(run()))  # doctest: +SKIP
    4
    """
    words = _figures(demo)
    if demo.gains is not None:
        over = {name: (len(demo.gains.helped(name)), len(demo.gains.hurt(name))) for name in ("shared", "alone")}
        words.insert(
            2,
            f"Who gains? Compared with the shared model, {over['shared'][0]} of the {len(demo.gains.names)} clients are surely "
            f"helped by it and {over['shared'][1]} surely hurt; compared with being alone, {over['alone'][0]} and {over['alone'][1]} "
            f"({100 * demo.gains.level:g} % intervals; of the others it is not sure which way they go).",
        )
    return words


def _figures(demo: Demo) -> list[str]:
    """How good everything is, and what it cost."""
    shared, alone, best = demo.comparison[SHARED], demo.comparison[ALONE], demo.best
    first = (
        f"With {demo.setting.train} training images of {demo.setting.labels} digits each, the shared model alone is "
        f"right on {_percent(shared.mean)} of the test images, and each client alone on {_percent(alone.mean)}."
    )
    choice = demo.chosen[best.name]
    second = (
        f"{_start(best.name)}{f' ({choice})' if choice else ''}, the personalised objective that did best on the "
        f"validation images, is right on {_percent(best.mean)}: {_mistakes(best.mean, shared.mean)} the shared model "
        f"and {_mistakes(best.mean, alone.mean)} each client alone; its worst client has {_percent(best.worst)}, "
        f"against {_percent(shared.worst)} and {_percent(alone.worst)}."
    )
    done = [row for row in demo.personalised if row.status == "converged"]
    if shared.status != "converged" or not done:
        needed = [f"{row.name} {row.rounds:,}" for row in (shared, best)]
        return [first, second, f"Rounds of communication: {' and '.join(needed)}."]
    least = min(done, key=lambda row: row.rounds)
    third = (
        f"To be certified within {demo.setting.tol:g} of its best loss, the shared model needs {shared.rounds:,} "
        f"rounds of communication and {least.name} {least.rounds:,}, the fewest of the personalised ones."
    )
    return [first, second, third]


def _mistakes(mine: float, other: float) -> str:
    """The ratio of mistakes in words, to be followed by "the shared model"."""
    mine, other = 1 - mine, 1 - other
    if round(mine, 6) == round(other, 6):
        return "as many mistakes as"
    if mine < other:
        return "no mistake, unlike" if mine <= 0 else f"{other / mine:.1f} times fewer mistakes than"
    return "more mistakes than" if other <= 0 else f"{mine / other:.1f} times more mistakes than"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _start(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- tables and files -------------------------------------------------------------------------------------------------


def table(demo: Demo) -> Table:
    """Give the comparison as one of rich's tables.

    >>> from twofold.demo import run, table
    >>> table(run()).row_count  # doctest: +SKIP
    8
    """
    from rich import box
    from rich.table import Table

    s = demo.setting
    out = Table(
        title=f"Digits: {s.clients} clients with {s.labels} digits each, {s.train} training and {s.test} test images",
        caption=_caption(demo),
        box=box.SIMPLE_HEAD,
        title_style="bold",
        caption_style="dim",
        caption_justify="left",
    )
    out.add_column("", no_wrap=True)
    out.add_column("setting", style="dim", no_wrap=True)
    for heading in ("accuracy", "worst client", "rounds", "kB"):
        out.add_column(heading, justify="right")
    top = max(row.mean for row in demo.comparison)
    for i, row in enumerate(demo.comparison):
        rounds = f"{row.rounds:,}" + _ENDED[row.status]
        figures = (_percent(row.mean), _percent(row.worst), rounds, f"{row.bytes / 1000:,.0f}")
        style = "bold" if row.mean == top else None
        out.add_row(row.name, demo.chosen[row.name], *figures, style=style, end_section=i == 1)
    return out


_ENDED = {"converged": "", "budget": "+", "diverged": " (diverged)", "interrupted": " (interrupted)"}


def _caption(demo: Demo) -> str:
    s = demo.setting
    over = " (+: not yet)" if any(row.status == "budget" and row.rounds for row in demo.comparison) else ""
    lines = (
        f"setting: chosen on {s.validation} further images of each client",
        f"rounds: of {s.algorithm}, until certified within {s.tol:g} of the best{over}",
        "kB: sent and received by each client",
    )
    return "\n".join(lines)


def write(demo: Demo, folder: str | Path) -> tuple[Path, Path]:
    """Write `accuracy.png`, `accuracy.csv` (one row per client, one column per objective) and `gains.svg` into a folder.

    >>> from twofold.demo import run, write
    >>> [path.name for path in write(run(), "out")]  # doctest: +SKIP
    ['accuracy.png', 'accuracy.csv']
    """
    from twofold import plots

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    s = demo.setting
    picture = plots.clients(
        demo.comparison,
        folder / "accuracy.png",
        title=f"Who recognises its own digits? {s.clients} clients, {s.labels} digits each",
        notes=demo.chosen,
        baselines=(SHARED, ALONE),
    )
    numbers = folder / "accuracy.csv"
    with numbers.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["client", *(row.name for row in demo.comparison)])
        columns = zip(*(row.evaluation.personal for row in demo.comparison), strict=True)
        names = demo.comparison.rows[0].evaluation.names
        writer.writerows([name, *(f"{v:.6f}" for v in values)] for name, values in zip(names, columns, strict=True))
    if demo.gains is not None:
        demo.gains.draw(folder / "gains.svg")
    return picture, numbers


def show(setting: Setting | None = None, out: str | Path = "twofold-demo") -> Demo:
    """Run the demo, print its table and its findings, and write the plot.

    >>> from twofold.demo import Setting, show
    >>> demo = show(Setting(clients=10), out="demo")  # doctest: +SKIP
    """
    from rich.console import Console

    console, aside = Console(), Console(stderr=True)
    with aside.status("Reading the digits …") as status:
        demo = run(setting, lambda what: status.update(f"Training {what} …"))
    picture, numbers = write(demo, out)
    console.print(table(demo))
    console.print()
    for sentence in sentences(demo):
        console.print(sentence, highlight=False)
    beside = f"{numbers.name}, and who gains in gains.svg, beside it" if demo.gains else f"{numbers.name} beside it"
    console.print(f"\nEvery client's accuracy: {picture} and {beside}.", highlight=False)
    return demo
