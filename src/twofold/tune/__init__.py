"""The strength of personalisation chosen for the user: `tw.tune(objective, clients)`, by rows that the models have not seen.

The path goes from one model for everybody to every client alone. Each strength is fitted on all folds at once, from where the
stronger one ended; no strength compiles anything anew.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold import objectives as catalogue
from twofold.clients import Clients, Name
from twofold.errors import InputError, KindError
from twofold.exports import Table
from twofold.extras import require
from twofold.losses import Linear
from twofold.objectives.adaptive import Adaptive
from twofold.objectives.base import Loss, Objective
from twofold.objectives.mixture import Mixture
from twofold.objectives.multitask import Multitask
from twofold.objectives.weight_sharing import WeightSharing
from twofold.problem import Problem
from twofold.result import Ledger, Result
from twofold.solver import solve
from twofold.tree import Pytree
from twofold.tune.choice import Gain, Judge
from twofold.tune.path import Fit, Path, Point, assign

__all__ = ["Gain", "Tuned", "curvature_of", "tune"]

Strength: TypeAlias = float | str | NDArray[np.float64]
"""A number, one per client, or for a split its name."""
By: TypeAlias = Literal["loss", "grade"]
Rule: TypeAlias = Literal["best", "one standard error"]

FAR = 1e6
"""How many times the loss's curvature λ is where the personal models are one: they differ by about 1e-6 of themselves."""
GRID = (1e-3, 1e2)
"""The ends of the default path over λ, in units of the loss's curvature."""


class _Family(NamedTuple):
    """The objectives along a path."""

    name: str
    values: list[Any]  # from the most shared to the least
    make: Callable[[Any], Objective]  # as it is fitted on the path
    final: Callable[[Any], Objective]  # as it is handed to the user
    shared: Objective
    alone: Objective
    own: Callable[[NDArray[np.float64]], Objective] | None  # with one strength per client, where there is such a thing
    ends: tuple[Strength, Strength] = ("shared", "alone")


@dataclass(frozen=True, eq=False)
class Tuned:
    """What `tune` found: the chosen strength, how good every strength on the path is, and by how much the choice is better.

    `strengths` go from one model for everybody to every client alone; `loss` and `error` are the mean over clients of the loss of
    rows that were held out, and its standard error. `gain_over_shared` and `gain_over_alone` are those of the whole procedure: the loss
    of each row is that of the strength which the other folds' rows would choose.

    >>> import numpy as np, twofold as tw
    >>> rng = np.random.default_rng(0)
    >>> def client(shift):
    ...     x = rng.normal(size=(30, 3))
    ...     return x, x @ (np.ones(3) + shift) + rng.normal(size=30)
    >>> clients = tw.Clients.from_list([client(0.5 * rng.normal(size=3)) for _ in range(6)])
    >>> tuned = tw.tune(tw.objectives.mixture(tw.losses.squared(l2=0.01), lam=1.0), clients, values=[0.1, 1.0])
    >>> tuned.one_for_all, tuned.to_pandas().lam.tolist()
    (0.1, ['inf', '1', '0.1', '0'])
    >>> tuned.to_latex().splitlines()[0]
    '\\\\begin{tabular}{lrrr}'
    >>> len(tuned.plot().axes)
    1
    >>> tuned.solve(rounds=1).ledger.rounds
    1
    """

    name: str
    strength: Strength
    objective: Objective
    strengths: tuple[Strength, ...]
    loss: NDArray[np.float64]
    error: NDArray[np.float64]
    grade: NDArray[np.float64]
    each: NDArray[np.float64]
    """(strengths, clients): the mean loss of each client's rows."""
    chosen: int
    """The place of the one strength for all in `strengths`; see `one_for_all`."""
    per_client: bool
    gain_over_shared: Gain
    gain_over_alone: Gain
    gain_per_client: Gain | None
    """By how much one strength per client is better than one for all, where that was tried."""
    names: tuple[Name, ...]
    ledger: Ledger
    seconds: float
    notes: tuple[str, ...] = ()
    clients: Clients | None = None

    @property
    def one_for_all(self) -> Strength:
        """The best strength where everybody has the same."""
        return self.strengths[self.chosen]

    @property
    def problem(self) -> Problem:
        """The problem with the chosen strength, on all rows."""
        if self.clients is None:
            raise InputError("The rows were not kept: make the problem yourself, tw.Problem(tuned.objective, clients).")
        return Problem(self.objective, self.clients)

    def solve(self, *arguments: Any, **options: Any) -> Result:
        """Solve the problem with the chosen strength: `tw.solve(tuned.problem, ...)`."""
        return solve(self.problem, *arguments, **options)

    def to_pandas(self) -> Any:
        """Give a DataFrame with one row per strength: its mean loss, the standard error, the grade."""
        pandas: Any = require("pandas", "Tuned.to_pandas", "sklearn")
        shown = [_show(strength) for strength in self.strengths]
        return pandas.DataFrame({self.name: shown, "loss": self.loss, "error": self.error, "grade": self.grade})

    def __repr__(self) -> str:
        return f"Tuned({self._said()}; {self.gain_over_shared} over shared, {self.gain_over_alone} over alone)"

    def _said(self) -> str:
        if self.per_client:
            values = np.asarray(self.strength, np.float64)
            return f"{self.name} from {values.min():.3g} to {values.max():.3g}, one per client"
        words = {0: "one model for everybody", len(self.strengths) - 1: "every client alone"}
        return words.get(self.chosen, f"{self.name} = {_show(self.one_for_all)} for all")

    def _table(self) -> Table:
        ends = {0: "shared", len(self.strengths) - 1: "alone"}
        rows: list[list[str]] = []
        for k, strength in enumerate(self.strengths):
            mark = ("→ " if k == self.chosen else "  ") + ends.get(k, "")
            rows.append([mark, _show(strength), f"{self.loss[k]:.5g}", f"{self.error[k]:.2g}"])
        notes = [
            f"Chosen: {self._said()}. On rows that had no say in the choice, choosing in this way is "
            f"{self.gain_over_shared.said('one model for everybody')}, and {self.gain_over_alone.said('every client alone')}."
        ]
        if self.gain_per_client is not None:
            notes.append(f"There, one strength per client is {self.gain_per_client.said('one for all')}.")
        shown = [_show(strength) for strength in self.strengths]
        columns = {self.name: shown, "loss": self.loss, "error": self.error, "grade": self.grade}
        return Table("", ["", self.name, "loss held out", "error"], rows, columns=columns, notes=[*notes, *self.notes])

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().to_html()

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """Give the path as a LaTeX table (package booktabs), and write it to `path` if one is given."""
        return self._table().to_latex(path)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the path: the loss of rows held out against the strength, with the two ends as lines; needs matplotlib.

        With a `path` the figure is written there (png, pdf, svg), and the path is returned; else the figure is.
        """
        require("matplotlib", "A plot", "paper")
        import matplotlib
        from matplotlib.figure import Figure

        from twofold.plots import COLOURS, STYLE, save

        numbers = [s for s in self.strengths[1:-1] if isinstance(s, float)]
        inner = slice(1, len(self.strengths) - 1)
        with matplotlib.rc_context(STYLE):  # pyright: ignore[reportUnknownMemberType]
            figure = Figure(figsize=(6.4, 3.6), layout="constrained")
            axes: Any = figure.add_subplot()
            x: Any = numbers if len(numbers) == len(self.strengths) - 2 else range(len(self.strengths) - 2)
            axes.errorbar(
                x, self.loss[inner], self.error[inner], color=COLOURS[0], marker="o", markersize=4, capsize=2, zorder=3
            )
            for k, text, colour in ((0, "one model for everybody", COLOURS[1]), (-1, "every client alone", COLOURS[2])):
                axes.axhline(self.loss[k], color=colour, linewidth=1, linestyle=(0, (4, 3)))
                axes.annotate(
                    text,
                    (1, self.loss[k]),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="bottom",
                    color=colour,
                    fontsize=8,
                )
            if 0 < self.chosen < len(self.strengths) - 1:
                place = list(x)[self.chosen - 1]
                axes.plot(
                    [place],
                    [self.loss[self.chosen]],
                    marker="o",
                    markersize=11,
                    markerfacecolor="none",
                    color=COLOURS[6],
                    zorder=4,
                )
            if numbers and self.name in ("lam", "Lambda"):
                axes.set_xscale("log")
            elif not numbers:
                axes.set_xticks(list(x), [_show(s) for s in self.strengths[inner]])
            axes.set_xlabel({"lam": "λ", "Lambda": "Λ", "alpha": "α"}.get(self.name, self.name))
            axes.set_ylabel("loss of rows held out")
            axes.set_title(f"Chosen: {self._said()}", loc="left")
            for edge in ("top", "right"):
                axes.spines[edge].set_visible(False)
        return figure if path is None else save(figure, FilePath(path))


def tune(
    objective: Objective | Problem,
    clients: Clients | None = None,
    *,
    over: str | None = None,
    values: Iterable[Any] | None = None,
    folds: int = 5,
    per_client: bool | Literal["auto"] = "auto",
    by: By = "loss",
    rule: Rule = "best",
    seed: int = 0,
) -> Tuned:
    """Choose the strength of personalisation by cross-validation inside every client's rows.

    **What is tuned.** `lam` of the mixture and of multitask, `Lambda` of multitask (`over="Lambda"`), `alpha` of the adaptive
    objective, or the `split` of weight sharing. The objective's own value of it counts nothing. `values` are the strengths to try; by
    default ten of them, spread around the curvature of the loss. The two ends, one model for everybody and every client alone,
    are always on the path and may win.

    **How.** Every client cuts its own rows into `folds` parts (by label in classification). All folds are fitted together by
    `profile`, each strength from where the last one ended, in double precision. `by` is what counts: the "loss" of the rows held
    out, or the "grade" (right or wrong, or the squared error). `rule="one standard error"` takes the most shared strength that is
    not worse than the best by more than one standard error of their difference.

    **One for all or one per client.** With `per_client="auto"` every client may leave the common strength (λ only) where its own rows
    say so by more than one standard error; that is kept only if it is better by more than one standard error on rows that had
    no say in it.

    What all this costs is in `tuned.ledger`: as in a run, and the sums of losses that clients send.

    >>> import numpy as np, twofold as tw
    >>> rng = np.random.default_rng(0)
    >>> def client(shift):
    ...     x = rng.normal(size=(30, 3))
    ...     return x, x @ (np.ones(3) + shift) + rng.normal(size=30)
    >>> clients = tw.Clients.from_list([client(0.5 * rng.normal(size=3)) for _ in range(6)])
    >>> tuned = tw.tune(tw.objectives.mixture(tw.losses.squared(l2=0.01), lam=1.0), clients, values=[0.1, 1.0])
    >>> tuned.strengths, tuned.gain_over_shared.mean > 0
    ((inf, 1.0, 0.1, 0.0), True)
    """
    began = time.perf_counter()
    objective, clients = _given(objective, clients)
    if by not in ("loss", "grade") or rule not in ("best", "one standard error"):
        raise InputError(f'by is "loss" or "grade" and rule "best" or "one standard error", got {by=} and {rule=}.')
    check_per_client(per_client)
    if not isinstance(folds, int) or folds < 2:  # pyright: ignore[reportUnnecessaryIsInstance]  (users may pass anything)
        raise InputError(f"folds is a whole number of at least 2, got {folds!r}.")
    if clients.counted.max() < 2:
        raise InputError(
            "No client has more than one row, so nothing can be held out inside a client: give a strength."
        )
    family = _family(objective, clients, over, values)
    labels = getattr(getattr(objective.loss, "link", None), "labels", None) is not None
    fold = assign(clients, folds, seed, stratify=labels)
    with jax.enable_x64(True):
        fits, paths = _walk(family, clients, fold, folds)
        judge = Judge(clients, fold, folds)
        table = np.stack([fit.loss if by == "loss" else -fit.grade for fit in fits])
        shy = rule == "one standard error"
        chosen = judge.best(table, most_shared=shy)
        nested, lines = judge.nested(table, shy)
        alone_better = (
            _per_client(family, judge, table, lines, chosen, paths[0], fits[chosen].end, by, nested)
            if per_client
            else None
        )
    own = alone_better is not None and (per_client is True or alone_better.gain.mean > alone_better.gain.error)
    strengths = (family.ends[0], *family.values, family.ends[1])
    ledger = _total(paths, len(table), folds, paths[0].opening_floats)
    if alone_better is not None and own and family.own is not None:
        strength, final, nested = alone_better.strength, family.own(alone_better.strength), alone_better.rows
    else:
        own, strength = False, strengths[chosen]
        final = _end(objective.loss, chosen, len(table)) or family.final(family.values[chosen - 1])
    return Tuned(
        name=family.name,
        strength=strength,
        objective=final,
        strengths=strengths,
        loss=np.array([judge.mean(fit.loss) for fit in fits]),
        error=np.array([judge.error(fit.loss) for fit in fits]),
        grade=np.array([judge.mean(fit.grade) for fit in fits]),
        each=np.stack([judge.each(fit.loss) for fit in fits]),
        chosen=chosen,
        per_client=own,
        gain_over_shared=judge.gain(nested, table[0]),
        gain_over_alone=judge.gain(nested, table[-1]),
        gain_per_client=None if alone_better is None else alone_better.gain,
        names=clients.names,
        clients=clients,
        ledger=ledger,
        seconds=time.perf_counter() - began,
        notes=_notes(family, table),
    )


def check_per_client(asked: object) -> None:
    """Refuse what is neither yes nor no nor "auto".

    >>> check_per_client("auto")
    """
    if not (isinstance(asked, (bool, np.bool_)) or (isinstance(asked, str) and asked == "auto")):
        raise InputError(f'per_client is True, False or "auto", got {asked!r}.')


def _given(objective: Objective | Problem, clients: Clients | None) -> tuple[Objective, Clients]:
    if isinstance(objective, Problem):
        if clients is not None:
            raise InputError("tune(problem) has its clients already: leave out the second argument.")
        return objective.objective, objective.clients
    if not isinstance(objective, Objective):  # pyright: ignore[reportUnnecessaryIsInstance]  (users may pass anything)
        raise KindError(
            f"tune needs an objective (tw.objectives.mixture(loss, lam=1.0)) or a Problem, got {type(objective).__name__}."
        )
    if not isinstance(clients, Clients):
        raise KindError(f"tune needs Clients (see Clients.from_frame), got {type(clients).__name__}.")
    return objective, clients


# --- the path ---------------------------------------------------------------------------------------------------------


def _walk(family: _Family, clients: Clients, fold: NDArray[np.int32], folds: int) -> tuple[list[Fit], list[Path]]:
    """The fits of all strengths in their order, and the paths they were made on; the first one takes strengths per client."""
    middle = family.make(family.values[len(family.values) // 2])
    paths = [Path(middle, clients, fold, folds)]

    def fit(objective: Objective) -> Fit:
        if type(objective) is type(middle) and not isinstance(objective, WeightSharing):
            return paths[0].fit(objective)
        other = Path(objective, clients, fold, folds)
        paths.append(other)
        return other.fit(objective)

    return [fit(one) for one in (family.shared, *map(family.make, family.values), family.alone)], paths


def _family(objective: Objective, clients: Clients, over: str | None, values: Iterable[Any] | None) -> _Family:
    known: dict[type[Objective], tuple[str, ...]] = {
        Mixture: ("lam",),
        Multitask: ("lam", "Lambda"),
        Adaptive: ("alpha",),
        WeightSharing: ("split",),
    }
    names = known.get(type(objective))
    if names is None:
        raise InputError(
            "tune knows the strength of mixture (lam), multitask (lam, Lambda), adaptive (alpha) and weight_sharing (split), but the "
            f"objective is {objective.name}."
        )
    over = names[0] if over is None else over
    if over not in names:
        raise InputError(f"For {objective.name}, over is {' or '.join(map(repr, names))}, got {over!r}.")
    if values is not None and (isinstance(values, str) or not isinstance(cast(object, values), Iterable)):
        raise InputError(f"values is a list of strengths to try, such as [0.1, 1.0], got {values!r}.")
    given = None if values is None else list(values)
    if given is not None and not given:
        raise InputError("values is empty: give at least one strength, or leave it out.")
    if over == "split":
        return _of_split(objective, clients, given)
    if over == "alpha":
        numbers = sorted(_numbers(over, given or np.linspace(0.05, 0.95, 10), 1.0), reverse=True)
        ends = catalogue.traditional(objective.loss), catalogue.local(objective.loss)

        def blend(value: float) -> Objective:
            return dataclasses.replace(objective, alpha=float(value))  # type: ignore[type-var]

        return _Family(over, numbers, blend, blend, *ends, None, (1.0, 0.0))
    return _of_pull(objective, clients, over, given)


def _of_pull(objective: Objective, clients: Clients, over: str, given: list[Any] | None) -> _Family:
    """Mixture and multitask: one program for all, as λ is always one number per client on the path."""
    M, size = len(clients), curvature_of(objective.loss, clients)

    def pulled(lam: Any, **more: Any) -> Objective:
        return dataclasses.replace(objective, lam=np.broadcast_to(np.asarray(lam, np.float64), (M,)).copy(), **more)  # type: ignore[type-var]

    def between(lam: Any, Lambda: float) -> Objective:
        return pulled(lam, Lambda=float(Lambda))

    ends = pulled(FAR * size), pulled(0.0)
    if over == "Lambda":
        numbers = sorted(_numbers(over, given or np.geomspace(1e-2, 1e2, 10)), reverse=True)
        lam: Any = objective.lam  # type: ignore[attr-defined]
        return _Family(
            over, numbers, partial(between, lam), lambda v: dataclasses.replace(objective, Lambda=float(v)), *ends, None,  # type: ignore[type-var]
        )  # fmt: skip
    numbers = sorted(_numbers(over, given or size * np.geomspace(*GRID, 10)), reverse=True)
    return _Family(
        over, numbers, pulled, lambda v: dataclasses.replace(objective, lam=float(v)), *ends, pulled,  # type: ignore[type-var]
        (math.inf, 0.0),
    )  # fmt: skip


def _of_split(objective: Objective, clients: Clients, given: list[Any] | None) -> _Family:
    loss = objective.loss
    if given is None:
        params = loss.init(clients)
        if isinstance(params, dict):
            given = ["weight"] if isinstance(loss, Linear) else sorted(cast("dict[str, Pytree]", params))
        else:
            width = np.shape(params)[0]
            given = sorted({round(width * part) for part in (0.25, 0.5, 0.75)} & set(range(1, width)), reverse=True)
        if not given:
            raise InputError(
                "The model has one parameter, which cannot be split: give values=[...] to try, or another objective."
            )
    ends = catalogue.traditional(loss), catalogue.local(loss)

    def cut(split: Any) -> Objective:
        return catalogue.weight_sharing(loss, split)

    return _Family("split", given, cut, cut, *ends, None)


def _numbers(name: str, values: Sequence[Any] | NDArray[np.float64], below: float = math.inf) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        raise InputError(f"Every value of {name} must be a number > 0, got {list(values)!r}.") from None
    wrong = [value for value in numbers if not 0 < value < below]
    if wrong:
        limit = "" if below == math.inf else f" and < {below:g}"
        raise InputError(f"Every value of {name} must be > 0{limit}, got {wrong[0]:g}; the two ends are tried anyway.")
    return numbers


def curvature_of(loss: Loss, clients: Clients) -> float:
    """Give the size of the loss's curvature, with which λ is to be compared.

    >>> import numpy as np, twofold as tw
    >>> curvature_of(tw.losses.squared(), tw.Clients.from_list([(2 * np.ones((3, 2)), np.zeros(3))]))
    4.0
    """
    if isinstance(loss, Linear):
        loss.check(clients)
        found = loss.link.curvature * float(np.mean(np.square(np.asarray(clients.x, np.float64))))
    else:
        found = float(np.mean(np.asarray(loss.constants(clients).L, np.float64))) / 10
    return found if found > 0 else 1.0


def _end(loss: Loss, line: int, lines: int) -> Objective | None:
    """The objective of an end of the path."""
    if line == 0:
        return catalogue.traditional(loss)
    return catalogue.local(loss) if line == lines - 1 else None


# --- one strength per client ------------------------------------------------------------------------------------------


class _Own(NamedTuple):
    """One strength per client: the strengths, the losses of rows that had no say in them, and the gain over one for all."""

    strength: NDArray[np.float64]
    rows: NDArray[np.float64]
    gain: Gain


def _per_client(
    family: _Family, judge: Judge, table: NDArray[np.float64], lines: NDArray[np.int64], chosen: int, path: Path, start: Point,
    by: By, nested: NDArray[np.float64],
) -> _Own | None:  # fmt: skip
    """Every fold is fitted with the strengths that the rows of the other folds choose."""
    if family.own is None:
        return None
    numbers = np.array([*family.values, 0.0])  # without the far end, which is nearly that of the largest
    inside = table[1:]

    def strengths(common: int, use: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        return numbers[judge.each_best(inside, max(common - 1, 0), use)]

    by_fold = np.stack([strengths(int(common), judge.fold != f) for f, common in enumerate(lines)])
    if np.all(by_fold == by_fold[:, :1]):
        return None  # nobody wants another one
    fit = path.fit(family.own(by_fold[0]), own=by_fold, start=start)
    rows = fit.loss if by == "loss" else -fit.grade
    final = strengths(chosen, None)
    if not final.any() or np.all(final == final[0]):
        return None
    return _Own(final, rows, judge.gain(rows, nested))


def _total(paths: list[Path], lines: int, folds: int, opening: int) -> Ledger:
    """What all fits cost, and each client's sums of losses and of their squares for every strength and fold."""
    total = paths[0].ledger
    for path in paths[1:]:
        total = total + path.ledger
    floats = 2 * lines * folds + opening
    return total + Ledger(1, 0, floats, floats, 8 * floats, 8 * floats, 0 * total.gradients_w, 0 * total.gradients_beta)


def _notes(family: _Family, table: NDArray[np.float64]) -> tuple[str, ...]:
    if family.name != "alpha":
        return ()
    last: NDArray[np.float64] = table[-1]
    apart = float(np.max(np.abs(table[1:-1] - last)))
    if apart > 1e-3 * float(np.mean(np.abs(last)) + 1e-12):
        return ()
    return (
        "No alpha matters here: solved to the end, β makes the blend (1−α)β + αw each client's own minimiser, whatever α is.",
    )


def _show(strength: Strength) -> str:
    return f"{strength:.4g}" if isinstance(strength, float) else str(strength)


# --- tw.tune(...) -------------------------------------------------------------------------------------------------------


class TuneModule(ModuleType):
    """The type of `tw.tune`: this module, which can also be called (see `twofold.evaluate`).

    >>> import twofold as tw
    >>> callable(tw.tune)
    True
    """

    Gain, Tuned = Gain, Tuned
    tune = staticmethod(tune)

    def __call__(self, objective: Objective | Problem, clients: Clients | None = None, **options: Any) -> Tuned:
        """Choose the strength of personalisation: see `tune`."""
        return tune(objective, clients, **options)


sys.modules[__name__].__class__ = TuneModule
