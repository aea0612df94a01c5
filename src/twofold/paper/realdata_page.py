"""The page of `twofold reproduce realdata`: what was asked of the solvers, what they did, and every problem in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from twofold.theory.cost import PRESETS, Preset

__all__ = ["LEVELS", "Row", "claims", "extract", "line", "page"]

LEVELS = (1e-2, 1e-4, 1e-8)
KEYS = tuple(f"{level:g}" for level in LEVELS)
MOST_ROUNDS, MOST_SECONDS = 3000, 10.0
"""The most of a run; of one that stops short of the optimum FEWER rounds, and of one about which nothing is claimed SHORT_SECONDS."""
FEWER, SHORT_SECONDS, NEWTON_SECONDS = 300, 1.0, 30.0
Row = dict[str, Any]
"""One method on one problem; for each level what it cost to get there, or None."""

OPENING = """\
Printed by `twofold reproduce realdata --out DIR` (`src/twofold/paper/realdata.py`). Every solver with its defaults, against what a
colleague would do. School (139 schools, squared loss), digits, MNIST and Fashion-MNIST (7 × 7 pixels, 2,000 rows, softmax, about
two labels a client) and made data with heavy-tailed rows and correlated, badly scaled features (logistic), each under four
objectives (l2 = 0.01, λ = 0.1, Λ = 1, α = 0.5), in float64. A gap is relative to the first one, F(x⁰) − F*. Nothing is tuned but
FedAvg, which gets the best of six steps. Pooled L-BFGS (SciPy) and gradient descent with a line search work on all variables at
once; each evaluation of F and its gradient is a round for them. Nothing that is timed compiles. Two problems are measured at a
time, each with all its methods on one core of its own: seconds are those of one core. Of `tw.solve(problem)` (auto) and of pooled
L-BFGS the fastest of three calls counts."""
REASONS = """\
What is fitted, and what is not. The steps of every method with a proven rate follow from its theorem and the data: nothing in them was
fitted. `auto` has four numbers that were, on the twenty problems of the main table: a proven bound is divided by 2.5, and `profile`,
which has no rate, is taken to need 2 rounds for a quadratic, 5 with Newton's directions, and 2 for each factor of ten by L-BFGS.
So "by the best in hindsight" is a fit on those twenty, and a test on the sixteen problems of the table of other data, which had no
part in it. There the best in hindsight is looked for among the methods of that table.

How auto chooses. `profile` by L-BFGS is run in its own metric, about the Hessian of min_β F (*profile, own metric*); its d² numbers are
sent once and counted. The rule of its rounds was fitted without that metric and stayed as it was. Where gradients are most of the cost
(simulation), `acd` in a matrix metric is a candidate, too. `profile` with Newton's directions is one everywhere, priced with its d²
numbers and d³ operations. `tw.solve` leaves both out where the clients, who share one machine here, would take more than about a tenth
of a second over the algebra (a real federation has no own metric yet, and leaves out no Newton); in hindsight they count all the same.

What a row costs under. *asvrcd* is run with the steps of solve's default cost, cross-silo, where rounds are dear: p_w, ρ and the batch
follow from it. *asvrcd, gradients only* has those of a cost in which only row gradients count, and is what the claim about row
gradients is about; no number of rounds ends it, but 1e-4 does, the level of that claim. A forecast for ‖x − x*‖² is held against the
gap like one for F − F*. saga's with a β is not counted, as its theorem is for exact minimisation over β. One that was not reached
within its own number counts against the claim, and one whose run was stopped before is counted as open.

Why some are missed. *Wall time of the whole call*: with 490 or 640 weights (softmax) a round of `profile` is 10 passes over the
rows, and the small problems take pooled L-BFGS less time than a call of `solve` needs to bound the curvature and certify the gap.
Pooled L-BFGS is stopped here by the known F*; a call of `solve` stops by its own certificate, a few rounds later."""
HEAD = ("method", "reached", "rounds", "kB", "∇w, 1,000 rows", "∇β, 1,000 rows", "seconds")
SHORT_HEAD = {name: HEAD.index(name) for name in ("method", "reached", "rounds", "seconds")}
SHORT = ("auto", "acd", "asvrcd", "svrcd", "pooled L-BFGS", "gradient descent", "lsgd")
"""What docs/choosing.md shows of the table of medians."""
BASELINES = ("pooled L-BFGS", "gradient descent", "FedAvg, best of 6 steps")


def line(row: Row) -> str:
    """A row in one line, as it is measured."""
    name = f"{row['data']}, {row['objective']}: {row['method']}"
    if "refused" in row:
        return f"{name} refused: {row['refused']}"
    rounds = [f"{row[key]['rounds']:,.0f}" if row[key] else "–" for key in KEYS]
    return f"{name}: rounds {' / '.join(rounds)}, {row['call']:.3f} s"


def claims(rows: list[Row], data: Iterable[str], others: Iterable[str] = ()) -> list[tuple[str, str, str]]:
    """What was asked, what was measured, and "yes" or "**no**"; data and others as for `page`."""
    return _claims(*_parts(rows, data, others))


def _parts(rows: list[Row], data: Iterable[str], others: Iterable[str]) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of the main data, of those with many rows a client, and of those that auto was not fitted on."""
    first, last = set(data), set(others)
    main, unseen = ([row for row in rows if row["data"] in names] for names in (first, last))
    return main, [row for row in rows if row["data"] not in first | last], unseen


def page(rows: list[Row], data: Sequence[str], others: Sequence[str] = ()) -> str:
    """The rows as a Markdown page. `data` are those of the main table, `others` those that auto was not fitted on.

    All that are left have many rows a client.
    """
    main, large, unseen = _parts(rows, data, others)
    text = [
        "# Solvers on real data", "", OPENING, "",
        "## What was asked, and what was measured", "",
        *_table(("asked", "measured", ""), _claims(main, large, unseen)), "", REASONS, "",
        *_medians(main), "", *_problems(main), "", *_unseen(unseen), "", *_large(large), "",
    ]  # fmt: skip
    return "\n".join(text).rstrip() + "\n"


# --- what was asked -------------------------------------------------------------------------------------------------------


def _claims(main: list[Row], large: list[Row], unseen: list[Row]) -> list[tuple[str, str, str]]:
    auto, lbfgs = _of(main, "auto"), _of(main, "pooled L-BFGS")
    found: list[tuple[str, str, bool]] = []
    if auto:
        there = sum(row["1e-08"] is not None for row in auto)
        found.append(("`tw.solve(problem)` reaches 1e-8 on all", f"{there} of {len(auto)}", there == len(auto)))
        for key, most in (("0.0001", 12), ("1e-08", 25)):
            rounds = [row[key]["rounds"] if row[key] else np.inf for row in auto]
            text = f"{np.median(rounds):g} (at most {max(rounds):g})"
            found.append((f"median rounds to {float(key):g} at most {most}", text, bool(np.median(rounds) <= most)))
    found += _costs(main, "") + _costs(unseen, " (data that it was not fitted on)")
    if auto and lbfgs:
        for what, mine in (("of the rounds alone", _seconds), ("of the whole call", lambda row: row["call"])):
            both = [(mine(row), _seconds(_same(lbfgs, row))) for row in auto if _same(lbfgs, row)]
            ratios = [a / b for a, b in both]
            text = f"{np.median(ratios):.2g} in the median, {max(ratios):.2g} at worst, {sum(r > 2 for r in ratios)} above 2"
            found.append((f"wall time {what} by that of pooled L-BFGS: at most 2", text, max(ratios) <= 2))
    for method in ("asvrcd", "asvrcd, batch 16"):
        mine = _of(main, method) + _of(large, method)
        if mine:
            there = sum(row["1e-08"] is not None for row in mine)
            found.append(
                (f"{method} (importance sampling) reaches 1e-8 on all", f"{there} of {len(mine)}", there == len(mine))
            )
    shares = [_rows_of(best) / _rows_of(row) for row in _of(large, "acd") if (best := _fewest(large, row))]
    if shares:
        text = f"{np.median(shares):.2g} in the median, {max(shares):.2g} at worst"
        found.append(
            (
                "row gradients to 1e-4 at ≥ 1,000 rows a client, asvrcd (gradients only) by acd: at most 1/3",
                text,
                max(shares) <= 1 / 3,
            )
        )
    proven = [row for row in main + large + unseen if row.get("forecast")]
    if proven:
        there = [row for row in proven if row["1e-08"]]
        over = [row for row in there if row["1e-08"]["rounds"] > row["forecast"]]
        # Not there within its own number is a violation; stopped before that number says nothing.
        over += [row for row in proven if not row["1e-08"] and row["ran"] >= row["forecast"]]
        left = sum(not row["1e-08"] and row["ran"] < row["forecast"] for row in proven)
        decided, ratios = len(proven) - left, [row["forecast"] / row["1e-08"]["rounds"] for row in there]
        text = f"{decided - len(over)} of {decided}"
        text += f"; the forecast is {np.median(ratios):.2g} × what was measured (median)" if ratios else ""
        text += f"; {left} stopped before" if left else ""
        found.append(("measured rounds to 1e-8 at most the forecast, where a rate is proven", text, not over))
    return [(asked, text, "yes" if held else "**no**") for asked, text, held in found]


def _costs(rows: list[Row], where: str) -> list[tuple[str, str, bool]]:
    """How well auto chose, under each cost model."""
    found: list[tuple[str, str, bool]] = []
    for preset in PRESETS if _of(rows, "auto") else ():
        ratios = _hindsight(rows, preset)
        text = f"{np.median(ratios):.3g} in the median, {max(ratios):.3g} at worst"
        held = bool(np.median(ratios) <= 1.2 and max(ratios) <= 3)
        found.append((f"cost by the best in hindsight, {preset}: 1.2, at worst 3{where}", text, held))
    return found


def _hindsight(rows: list[Row], preset: Preset) -> list[float]:
    """What the method that auto chooses under a cost model cost, by the cheapest of ours in hindsight, for every problem."""
    cost, ratios = PRESETS[preset], []

    def total(row: Row) -> float:
        at = row["1e-08"]
        return cost.total(at["rounds"], at["bytes"], at["of_w"] + at["of_beta"]) if at else np.inf

    for auto in _of(rows, "auto"):
        mine = [
            row
            for row in rows
            if _where(row) == _where(auto) and row["method"] not in BASELINES and "refused" not in row
        ]
        name = auto["choices"][preset]
        usual = auto if name == auto["algorithm"] else None
        chosen = auto.get("runs", {}).get(preset) or next((row for row in mine if row["method"] == name), usual)
        ratios.append(total(chosen) / min(map(total, [*mine, chosen])) if chosen else np.inf)
    return ratios


def _fewest(rows: list[Row], like: Row) -> Row:
    """The run of asvrcd whose steps are for the fewest row gradients; nothing if there is none."""
    return _same([row for row in rows if row["method"] == "asvrcd, gradients only"], like)


# --- tables ---------------------------------------------------------------------------------------------------------------


def extract(rows: list[Row], data: Iterable[str]) -> str:
    """The short table of docs/choosing.md: some methods of the table of medians, with rounds and seconds only."""
    main, *_ = _parts(rows, data, ())
    cells = {row[0]: row for row in _middle(main)}
    return (
        "\n".join(_table(tuple(SHORT_HEAD), [[cells[m][i] for i in SHORT_HEAD.values()] for m in SHORT if m in cells]))
        + "\n"
    )


def _medians(rows: list[Row]) -> list[str]:
    text = f"{_count(rows)} problems; per client, to 1e-2 / 1e-4 / 1e-8. –: fewer than half got there."
    return ["## Medians", "", text, "", *_table(HEAD, _middle(rows))]


def _count(rows: list[Row]) -> int:
    """How many problems there are."""
    return len({_where(row) for row in rows})


def _middle(rows: list[Row]) -> list[tuple[str, ...]]:
    """The table of medians, method by method."""
    problems, body = _count(rows), list[tuple[str, ...]]()
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in _of(rows, method) if "refused" not in row]
        costs = [[row[key] for row in mine if row[key] is not None] for key in KEYS]

        def middle(name: str, costs: list[list[Any]] = costs, by: float = 1.0) -> str:
            return " / ".join(_median([c[name] / by for c in level], problems) for level in costs)

        cells = [" / ".join(str(len(level)) for level in costs), middle("rounds"), middle("bytes", by=1e3)]
        body.append((method, *cells, middle("of_w", by=1e3), middle("of_beta", by=1e3), middle("seconds")))
    return body


def _unseen(rows: list[Row]) -> list[str]:
    """The table of data on which none of auto's numbers was fitted."""
    return ["## Other data, on which no number of auto was fitted", *_problems(rows)[1:]] if rows else []


def _problems(rows: list[Row]) -> list[str]:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = []
    for where in dict.fromkeys(map(_where, rows)):
        mine = {row["method"]: row for row in rows if _where(row) == where}
        body.append((", ".join(where), *(_cell(mine.get(method, {})) for method in methods)))
    text = (
        f"In parentheses the smallest gap of a run that did not get there. It was ended by {MOST_ROUNDS:,} rounds, by {FEWER} if the "
        f"method stops short of the optimum, or by the clock: {MOST_SECONDS:g} s, {NEWTON_SECONDS:g} s with Newton's directions, and "
        f"{SHORT_SECONDS:g} s for methods of which nothing is claimed above (all but auto, profile, acd, asvrcd, pooled L-BFGS and "
        "gradient descent). Some of those would get there later."
    )
    return ["## Rounds to 1e-8, problem by problem", "", text, "", *_table(("problem", *methods), body)]


def _large(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = []
    for where in dict.fromkeys(map(_where, rows)):
        mine = {row["method"]: row for row in rows if _where(row) == where}
        n = f"{next(iter(mine.values()))['rows']:,.0f}"
        cells = (f"{_rows_of(mine[m]) / 1e3:,.0f}" if m in mine and mine[m]["0.0001"] else "–" for m in methods)
        body.append((", ".join(where), n, *cells))
    text = "Row gradients of both blocks per client to 1e-4, in thousands."
    return ["## Many rows a client", "", text, "", *_table(("problem", "rows a client", *methods), body)]


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in body)]


def _cell(row: Row) -> str:
    if "last" not in row:
        return "refused" if "refused" in row else ""
    found = row["1e-08"]
    return f"{found['rounds']:,.0f}" if found else f"({row['last']:.0e})"


def _median(values: list[float], problems: int) -> str:
    if 2 * len(values) <= problems:
        return "–"
    middle = float(np.median(values + [np.inf] * (problems - len(values))))
    return f"{middle:,.3g}" if middle < 1000 else f"{middle:,.0f}"


# --- rows -----------------------------------------------------------------------------------------------------------------


def _of(rows: list[Row], method: str) -> list[Row]:
    return [row for row in rows if row["method"] == method]


def _where(row: Row) -> tuple[str, str]:
    return row["data"], row["objective"]


def _same(rows: list[Row], like: Row) -> Row:
    return next((row for row in rows if _where(row) == _where(like)), {})


def _seconds(row: Row) -> float:
    return row["1e-08"]["seconds"] if row["1e-08"] else np.inf


def _rows_of(row: Row) -> float:
    at = row["0.0001"]
    return at["of_w"] + at["of_beta"] if at else np.inf
