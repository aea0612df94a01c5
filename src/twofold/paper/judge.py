"""The paper's claims, and whether they hold in what was run: each by a rule that anyone can read and apply.

A claim is a list of comparisons. It **holds** if at most one comparison in ten fails, holds **in part** if at least half of
them pass, and otherwise **does not hold**. Comparisons whose series were not run are counted and named, never guessed;
where fewer than half could be made, or the run was a quick one, there is **too little** to say.
The same rule is put to the runs with the paper's settings (the verdict) and to ours (beside it).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twofold.errors import InputError
from twofold.paper import ews, images, mx2, published, pw, rates, relaxation, slips
from twofold.paper.base import PUBLISHED, THEORY
from twofold.theory import constants as theory
from twofold.theory.constants import LossConstants

HOLDS, IN_PART, FAILS, TOO_LITTLE, MISSING = "holds", "holds in part", "does not hold", "too little was run", "not run"


class Missing(Exception):  # noqa: N818  (not an error: the series was not run)
    """A series that a comparison needs is not there."""


class Check(NamedTuple):
    """One comparison of a claim: what is compared, the figures, and whether it came out as claimed (None: not run)."""

    name: str
    passed: bool | None
    figures: dict[str, float]


@dataclass(frozen=True)
class Verdict:
    """A claim with its rule, what became of it with the paper's settings and with ours, and the figures that decide it."""

    key: str
    claim: str
    where: str
    experiment: str
    rule: str
    verdict: str
    by_theory: str
    because: str
    note: str
    checks: tuple[Check, ...]
    checks_by_theory: tuple[Check, ...]
    figures: tuple[str, ...]


class Book:
    """The documents of a folder, with their series by label."""

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self.documents = {document["experiment"]: document for document in documents}

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Book:
        """All documents of a folder that `reproduce` wrote."""
        found = (_document(path) for path in sorted(Path(folder).glob("*.json")))
        return cls(document for document in found if isinstance(document, dict) and "experiment" in document)

    def series(self, experiment: str, metric: str, **labels: Any) -> Mapping[str, Any]:
        """The one series with these labels."""
        for series in self.documents.get(experiment, {"series": ()})["series"]:
            if series["metric"] == metric and all(series[name] == value for name, value in labels.items()):
                return series
        raise Missing(f"{experiment}: {metric} of {labels}")

    def at(self, experiment: str, metric: str, share: float, **labels: Any) -> float:
        """The mean at this share of the rounds: 0 at the start, 1 at the end; infinite if a run diverged before."""
        last = self.series(experiment, metric, **labels)["rounds"][-1]
        return self.near(experiment, metric, share * last, **labels)

    def near(self, experiment: str, metric: str, when: float, **labels: Any) -> float:
        """The mean at the record next to this round; infinite if a run diverged before."""
        series = self.series(experiment, metric, **labels)
        value = series["mean"][int(np.argmin(np.abs(np.array(series["rounds"], float) - when)))]
        return math.inf if value is None else float(value)

    def end(self, experiment: str, metric: str, **labels: Any) -> float:
        """The mean at the last round."""
        return self.at(experiment, metric, 1.0, **labels)

    def left(self, experiment: str, **labels: Any) -> float:
        """The share of the first gap that is left at the end."""
        series = self.series(experiment, "loss", **labels)
        if series.get("optimum") is None:
            raise Missing(f"{experiment}: no optimum for {labels}")
        first = series["mean"][0] - series["optimum"]
        return (self.end(experiment, "loss", **labels) - series["optimum"]) / first


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not a JSON document ({error}); delete it and run its experiment again.") from None


Checks = list[Check]


def compare_by(name: str, figures: Callable[[], dict[str, float]], passed: Callable[[dict[str, float]], bool]) -> Check:
    """A comparison: its figures, and whether it passed; not run if a series is missing."""
    try:
        found = figures()
    except Missing:
        return Check(name, None, {})
    return Check(name, bool(passed(found)), found)


def verdict_of(checks: Sequence[Check], quick: bool = False) -> str:
    """The rule of this module's first paragraph."""
    run = [check.passed for check in checks if check.passed is not None]
    if not run:
        return MISSING
    if quick or len(run) < len(checks) / 2:
        return TOO_LITTLE
    if sum(not passed for passed in run) <= len(run) / 10:
        return HOLDS
    return IN_PART if sum(run) >= len(run) / 2 else FAILS


# --- the claims -------------------------------------------------------------------------------------------------------


def _competitive(book: Book, variant: str) -> Checks:
    ours, theirs = ("ascd", "asvrcd"), ("l2sgd_plus", "pfedme")

    def figures(level: float) -> dict[str, float]:
        return {m: book.left("mx2", variant=variant, level=level, method=m) for m in (*ours, *theirs)}

    return [
        compare_by(
            f"σ_h = {level:g}",
            lambda level=level: figures(level),
            lambda f: min(f[m] for m in ours) <= min(f[m] for m in theirs) + 0.01,
        )
        for level in mx2.LEVELS
    ]


def _heterogeneity(book: Book, variant: str) -> Checks:
    low, high = mx2.LEVELS[0], mx2.LEVELS[-1]

    def left(method: str, level: float) -> float:
        return book.left("mx2", variant=variant, level=level, method=method)

    unaffected = [
        compare_by(
            f"ASVRCD at σ_h = {level:g}",
            lambda level=level: {"asvrcd": left("asvrcd", level)},
            lambda f: f["asvrcd"] <= 0.05,
        )
        for level in mx2.LEVELS
    ]
    suffers = compare_by(
        f"LSGD at σ_h = {high:g} against {low:g}",
        lambda: {"high": left("lsgd", high), "low": left("lsgd", low)},
        lambda f: f["high"] >= 1.5 * f["low"],
    )
    return [*unaffected, suffers]


def _sharing(book: Book, variant: str) -> Checks:
    def figures(level: float, share: float, *methods: str) -> dict[str, float]:
        return {m: book.at("ews", "loss", share, variant=variant, level=level, method=m) for m in methods}

    checks = []
    for level in ews.LEVELS:
        checks += [
            compare_by(
                f"σ_h = {level:g}, a tenth of the rounds",
                lambda level=level: figures(level, 0.1, "ascd", "asvrcd"),
                lambda f: f["ascd"] < f["asvrcd"],
            ),
            compare_by(
                f"σ_h = {level:g}, the end",
                lambda level=level: figures(level, 1.0, "ascd", "asvrcd"),
                lambda f: f["asvrcd"] < f["ascd"],
            ),
            compare_by(
                f"σ_h = {level:g}, against LSGD",
                lambda level=level: figures(level, 1.0, "lsgd", "ascd", "asvrcd"),
                lambda f: max(f["ascd"], f["asvrcd"]) < f["lsgd"],
            ),
        ]
    return checks


def _each_image(
    book: Book, variant: str, methods: tuple[str, str], passed: Callable[[dict[str, float]], bool]
) -> Checks:
    """A comparison of two methods' losses at the end, on every objective, data set and number of labels."""

    def figures(**where: Any) -> dict[str, float]:
        ends = {m: book.end("images", "loss", method=m, **where) for m in methods}
        return {**ends, "start": book.at("images", "loss", 0.0, method=methods[0], **where)}

    return [
        compare_by(
            f"{objective}, {dataset}, K = {level}",
            lambda where={"objective": objective, "dataset": dataset, "level": level}: figures(
                variant=variant, **where
            ),
            passed,
        )
        for objective in images.OBJECTIVES
        for dataset in images.DATASETS
        for level in images.levels(variant, dataset)
    ]


def _ascd_beats_lsgd(book: Book, variant: str) -> Checks:
    return _each_image(book, variant, ("ascd", "lsgd"), lambda f: f["ascd"] < f["lsgd"])


def _slow(f: dict[str, float]) -> bool:
    return f["start"] - f["asvrcd"] < 0.95 * (f["start"] - f["ascd"])


def _asvrcd_is_slow(book: Book, variant: str) -> Checks:
    return _each_image(book, variant, ("asvrcd", "ascd"), _slow)


def _best_p_w(book: Book, variant: str) -> Checks:
    def figures(**where: Any) -> dict[str, float]:
        ends = {str(level): book.end("pw", "loss", level=level, **where) for level in pw.LEVELS}
        return {**ends, "start": book.at("pw", "loss", 0.0, level=pw.LEVELS[0], **where)}

    def best(f: dict[str, float]) -> bool:
        lowest = min(f[str(level)] for level in pw.LEVELS)
        return f["theory"] - lowest <= 0.01 * (f["start"] - lowest)

    return [
        compare_by(
            f"{objective}, {dataset}",
            lambda where={"objective": objective, "dataset": dataset}: figures(variant=variant, **where),
            best,
        )
        for objective in images.OBJECTIVES
        for dataset in (images.DATASETS if variant == PUBLISHED else images.DATASETS[:3])
    ]


def _scaled(book: Book, variant: str, metric: str, **where: Any) -> dict[str, float]:
    return {
        level: book.end("reparam", metric, variant=variant, level=level, **where) for level in ("scaled", "unscaled")
    }


def _scaling_helps_training(book: Book, variant: str) -> Checks:
    checks = [
        compare_by(
            f"{objective}, {dataset}",
            lambda where={"objective": objective, "dataset": dataset}: _scaled(book, variant, "loss", **where),
            lambda f: f["scaled"] < f["unscaled"],
        )
        for objective in ("multitask", "mixture")
        for dataset in images.DATASETS
    ]

    def exception() -> dict[str, float]:
        both = [_scaled(book, variant, "loss", objective="adaptive", dataset=d) for d in images.DATASETS]
        return {"unscaled is lower on": float(sum(f["unscaled"] < f["scaled"] for f in both))}

    return [*checks, compare_by("adaptive is the exception", exception, lambda f: f["unscaled is lower on"] >= 3)]


def _scaling_helps_accuracy(book: Book, variant: str) -> Checks:
    return [
        compare_by(
            f"{objective}, {dataset}",
            lambda where={"objective": objective, "dataset": dataset}: _scaled(book, variant, "accuracy", **where),
            lambda f: f["scaled"] > f["unscaled"],
        )
        for objective in images.OBJECTIVES
        for dataset in images.DATASETS
    ]


def _relaxation(book: Book, variant: str) -> Checks:
    def figures(dataset: str, *levels: float) -> dict[str, float]:
        at = {"variant": variant, "dataset": dataset}
        return {f"{level:g}": book.end("relaxation", "accuracy", level=level, **at) for level in levels}

    low, middle, high = relaxation.LEVELS
    return [
        compare_by(
            f"{dataset}, {middle:g} against {other:g}",
            lambda dataset=dataset, other=other: figures(dataset, middle, other),
            lambda f, other=other: f[f"{middle:g}"] > f[f"{other:g}"],
        )
        for dataset in images.DATASETS
        for other in (low, high)
    ]


GRID = np.geomspace(1e-3, 1e3, 61)
ALPHAS = np.linspace(0.02, 0.98, 49)


def _personalisation(book: Book, variant: str) -> Checks:
    """L^w/μ from μ' = 0.01, L' = 1, M = 20, from little personalisation to much; by the lemmas and by exact μ."""
    loss = LossConstants(0.01, 1.0, 1.0)
    families: dict[str, tuple[str, Callable[[float, bool], Any], np.ndarray]] = {
        "mixture": ("λ", lambda x, sharp: theory.mixture(loss, x, clients=20, sharp=sharp), GRID[::-1]),
        "multitask": ("λ", lambda x, sharp: theory.multitask(loss, x, 1.0, clients=20, sharp=sharp), GRID[::-1]),
        "adaptive": ("α", lambda x, sharp: theory.adaptive(loss, x, 1.0, clients=20, sharp=sharp), ALPHAS[::-1]),
    }

    def conditions(name: str, sharp: bool) -> list[float]:
        _, make, values = families[name]
        return [math.sqrt(c.L_w / c.mu) for c in (make(float(x), sharp) for x in values)]

    def figures(name: str, sharp: bool) -> dict[str, float]:
        found, symbol = conditions(name, sharp), families[name][0]
        rises = [later / earlier - 1 for earlier, later in pairwise(found)]
        first, last = families[name][2][[0, -1]]
        return {f"{symbol} = {first:g}": found[0], f"{symbol} = {last:g}": found[-1], "largest rise": max(rises)}

    return [
        compare_by(
            f"{name}, {'exact μ' if sharp else 'by the lemma'}",
            lambda name=name, sharp=sharp: figures(name, sharp),
            lambda f: f["largest rise"] <= 1e-9,
        )
        for name in families
        for sharp in (False, True)
    ]


def _hybrid(book: Book, variant: str) -> Checks:
    places = [("weight_sharing", "synthetic", level) for level in ews.LEVELS]
    places += [("mixture", "synthetic", level) for level in mx2.LEVELS]
    places += [(objective, "mnist", 2) for objective in images.OBJECTIVES]

    def figures(share: float, **where: Any) -> dict[str, float]:
        return {
            m: book.at("hybrid", "loss", share, variant=variant, method=m, **where)
            for m in ("ascd", "asvrcd", "hybrid")
        }

    checks = []
    for objective, dataset, level in places:
        where = {"objective": objective, "dataset": dataset, "level": level}
        name = f"{objective}, {dataset}, {level:g}"
        checks += [
            compare_by(
                f"{name}: a tenth of the rounds",
                lambda where=where: figures(0.1, **where),
                lambda f: f["hybrid"] <= f["asvrcd"],
            ),
            compare_by(
                f"{name}: the end",
                lambda where=where: figures(1.0, **where),
                lambda f: f["hybrid"] <= min(f["ascd"], f["asvrcd"]),
            ),
        ]
    return checks


def _slips(book: Book, _: str) -> Checks:
    """Whatever the settings: the published end points beside the runs with the slips and beside the mended ones."""

    def apart(variant: str, **where: Any) -> float:
        points = [p for p in published.POINTS if p.experiment == "slips" and where.items() <= vars(p).items()]
        ours = (book.near("slips", "accuracy", p.round, variant=variant, method=p.method, **where) for p in points)
        return float(np.mean([abs(p.value - value) for p, value in zip(points, ours, strict=True)]))

    def losses(**where: Any) -> dict[str, float]:
        ends = {m: book.end("slips", "loss", method=m, variant=slips.AS_RUN, **where) for m in images.METHODS}
        return {**ends, "start": book.at("slips", "loss", 0.0, method="ascd", variant=slips.AS_RUN, **where)}

    checks = []
    for objective in images.OBJECTIVES:
        for level in images.LABELS_PER_CLIENT:
            name, where = f"{objective}, K = {level}", {"objective": objective, "level": level}
            checks += [
                compare_by(
                    f"{name}: mean distance from the published accuracies",
                    lambda where=where: {v: apart(v, **where) for v in (slips.AS_RUN, PUBLISHED)},
                    lambda f: f[slips.AS_RUN] < f[PUBLISHED],
                ),
                compare_by(
                    f"{name}: ASCD below LSGD",
                    lambda where=where: losses(**where),
                    lambda f: f["ascd"] < f["lsgd"],
                ),
                compare_by(f"{name}: ASVRCD slow", lambda where=where: losses(**where), _slow),
            ]
    return checks


def _slope(series: Mapping[str, Any]) -> float:
    """The exponent with which rounds grow in √(L^w/μ), by least squares on logarithms."""
    points = [(x, y) for x, y in zip(series["condition"], series["mean"], strict=True) if y]
    if len(points) < 3:
        raise Missing("too few points reached the accuracy")
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])


def _rates(book: Book, variant: str) -> Checks:
    def figures(objective: str) -> dict[str, float]:
        found = {m: book.series("rates", "rounds", objective=objective, method=m) for m in ("acd", "theory")}
        pairs = [(a, t) for a, t in zip(found["acd"]["mean"], found["theory"]["mean"], strict=True) if a and t]
        return {
            "exponent": _slope(found["acd"]),
            "largest share of theory's": max((a / t for a, t in pairs), default=0.0),
        }

    return [
        compare_by(
            objective,
            lambda objective=objective: figures(objective),
            lambda f: 0.75 <= f["exponent"] <= 1.25 and f["largest share of theory's"] <= 1,
        )
        for objective in ("lower_bound", *rates.OBJECTIVES)
    ]


class Claim(NamedTuple):
    """A claim of the paper (or a promise of its theory), where it stands, and how it is judged."""

    key: str
    claim: str
    where: str
    experiment: str
    rule: str
    checks: Callable[[Book, str], Checks]
    figures: tuple[str, ...]
    note: str = ""


CLAIMS = (
    Claim(
        "competitive",
        "Our general solvers are competitive with L2SGD+ and pFedMe on the mixture",
        "Section Simulations, Figure expsynthetic",
        "mx2",
        "At each σ_h the better of ASCD and ASVRCD has at most 1 % more of the first gap F⁰ − F* left after 1,000 "
        "rounds than the better of L2SGD+ and pFedMe.",
        _competitive,
        ("mx2-as-published", "mx2-by-theory"),
        "The stored L2SGD+ and ASVRCD curves came from an earlier version of the authors' code; right "
        "implementations with the same settings end lower.",
    ),
    Claim(
        "heterogeneity",
        "ASVRCD is not affected by heterogeneity, LSGD suffers from it",
        "Section Simulations, Figure expsynthetic",
        "mx2",
        "ASVRCD has at most 5 % of the first gap left after 1,000 rounds at every σ_h, and LSGD has at least 1.5 "
        "times as large a share left at σ_h = 1 as at σ_h = 0.1.",
        _heterogeneity,
        ("mx2-as-published", "mx2-by-theory"),
        "LSGD's published step on β is 0.0005: its slow curve is a tiny step. The theory's step stands beside it.",
    ),
    Claim(
        "sharing",
        "ASCD drives the loss down quickly at first, ASVRCD ends lower, both beat LSGD (weight sharing)",
        "Section Explicit Weight Sharing Objective, Figure synthetic_ews",
        "ews",
        "At each σ_h: ASCD's loss is below ASVRCD's after a tenth of the rounds, ASVRCD's below ASCD's at the end, "
        "and both below LSGD's at the end.",
        _sharing,
        ("ews-as-published", "ews-by-theory"),
        "The published code has no 1/M in its gradient of β, and the wrong smoothness; the two slips nearly cancel. "
        "LSGD had the step 0.01.",
    ),
    Claim(
        "images-ascd",
        "ASCD outperforms LSGD on images",
        "Section Performance on Real Data, Figures realdataexp_K2, _K4, _K8",
        "images",
        "ASCD's training loss after 1,000 rounds is below LSGD's, on each objective, data set and K.",
        _ascd_beats_lsgd,
        ("images-as-published-K2-loss", "images-as-published-K4-loss", "images-as-published-K8-loss"),
        "The published LSGD divided its step on w by M once more; with that put back ASCD is ahead (`slips`). LSGD also "
        "takes five local steps per round, ASCD 1/p_w on average.",
    ),
    Claim(
        "images-asvrcd",
        "ASVRCD converges slowly on images, where the problem is overparametrised",
        "Section Performance on Real Data, Figures realdataexp_K2, _K4, _K8",
        "images",
        "After 1,000 rounds ASVRCD has lowered the training loss by less than 95 % of what ASCD has, on each "
        "objective, data set and K.",
        _asvrcd_is_slow,
        ("images-as-published-K2-loss", "images-by-theory-K2-gap"),
        "The published ASVRCD used a full gradient that was 50 times too small (that of its 0.02-fold loss), which "
        "makes it slow (`slips`).",
    ),
    Claim(
        "p_w",
        "Theory's p_w gives the best communication complexity",
        "Section Subsampling of the Global and Local Parameters, Figure expp_w",
        "pw",
        "On each objective and data set the loss after 1,000 rounds with theory's p_w is the lowest of the six, or "
        "above it by at most 1 % of what the lowest has gained since the start.",
        _best_p_w,
        ("pw-as-published-loss", "pw-by-theory-loss"),
        "A small p_w buys more local steps per round; Theorem e1 balances rounds and local steps for a method with "
        "control variates, which ASCD is not.",
    ),
    Claim(
        "scaling-training",
        "Reparametrisation helps training, except for APFL2",
        "Section Effect of Reparametrization, Figure exp_reparam",
        "reparam",
        "On MT2 and MX2 and each data set the loss after 1,000 rounds is lower with w scaled; on APFL2 it is lower "
        "unscaled on at least three of the four data sets.",
        _scaling_helps_training,
        ("reparam-as-published-loss", "reparam-by-theory-loss"),
    ),
    Claim(
        "scaling-accuracy",
        "Reparametrisation always helps test accuracy",
        "Section Effect of Reparametrization, Figure exp_reparam",
        "reparam",
        "On each objective and data set the test accuracy of the private part after 1,000 rounds is higher with w "
        "scaled.",
        _scaling_helps_accuracy,
        ("reparam-as-published-accuracy", "reparam-by-theory-accuracy"),
        "Part of the gain on test images in the published runs may come from images that devices shared.",
    ),
    Claim(
        "relaxation",
        "Λ = 10 is better than Λ = 1 and than Λ = 100",
        "Section Potential Benefits of Extended Objectives, Figure new_obj_supp",
        "relaxation",
        "On each data set the mean test accuracy of the private part after 1,000 rounds is higher for Λ = 10 than "
        "for Λ = 1, and than for Λ = 100.",
        _relaxation,
        ("relaxation-as-published", "relaxation-by-theory"),
        "Losses of different Λ cannot be compared. The paper does not say which method and data it ran.",
    ),
    Claim(
        "personalisation",
        "More personalisation never needs more communication: √(L^w/μ) is non-increasing in it",
        "Section 1, Personalization and communication complexity",
        "theory",
        "From μ' = 0.01, L' = 1, M = 20, Λ = 1: √(L^w/μ) does not rise as λ falls from 1,000 to 0.001 (MX2, MT2) or "
        "α from 0.98 to 0.02 (APFL2), neither with the lemmas' μ nor with the exact one.",
        _personalisation,
        (),
        "MT2's lemma has μ = λ/(2M) for small λ, and so L^w/μ = 2(ΛL'+λ)/λ, which rises as λ falls: the lemma is "
        "loose there.",
    ),
    Claim(
        "hybrid",
        "ASCD at first and ASVRCD later combines the benefits of both",
        "Sections Explicit Weight Sharing and Real Data (a suggestion that the paper does not run)",
        "hybrid",
        "On each problem the hybrid's loss is at most ASVRCD's after a tenth of the rounds, and at most the lower of "
        "ASCD's and ASVRCD's at the end.",
        _hybrid,
        ("hybrid-as-published-weight-sharing", "hybrid-by-theory-weight-sharing", "hybrid-by-theory-mixture"),
        "The hybrid's checks are rounds too, and are counted; they also renew its reference point.",
    ),
    Claim(
        "rates",
        "ACD needs rounds of the order √(L^w/μ), which is optimal",
        "Theorems ACD-PFL and lb",
        "rates",
        "On the lower-bound instance and on each objective the rounds to 10⁻⁶ grow with √(L^w/μ) by an exponent "
        "between 0.75 and 1.25, and are at most what the theorem guarantees.",
        _rates,
        ("rates",),
        "Theory's line is an upper bound for the worst case; real data may be easier than their condition number.",
    ),
    Claim(
        "slips",
        "The slips of the published image runs explain their results (ours, not the paper's claim)",
        "Notes on what the published runs really did",
        "slips",
        "On MNIST, for each objective and K, with the slips put back: the three accuracies are on average nearer to the "
        "published ones than the mended runs', ASCD's loss ends below LSGD's, and ASVRCD has lowered it by less than 95 % of "
        "what ASCD has.",
        _slips,
        ("slips-with-the-slips-loss", "slips-as-published-loss"),
        "The seed of the published labels is not known, so single figures need not agree.",
    ),
)


def judge(folder: str | os.PathLike[str]) -> list[Verdict]:
    """Every claim, judged by the documents in a folder that `reproduce` wrote."""
    return decide(Book.read(folder))


def decide(book: Book) -> list[Verdict]:
    """Every claim, judged by these documents."""
    verdicts = []
    for claim in CLAIMS:
        checks, ours = (tuple(claim.checks(book, variant)) for variant in (PUBLISHED, THEORY))
        drawn = () if claim.experiment not in book.documents else claim.figures
        headline = checks if claim.experiment != "rates" else ours  # which has our settings only
        quick = _quick(book, claim.experiment)
        verdicts.append(
            Verdict(
                claim.key, claim.claim, claim.where, claim.experiment, claim.rule, verdict_of(headline, quick),
                verdict_of(ours, quick), _because(headline, quick), claim.note, headline, ours, drawn,
            )
        )  # fmt: skip
    return verdicts


def _quick(book: Book, experiment: str) -> bool:
    return bool(book.documents.get(experiment, {}).get("settings", {}).get("quick"))


def _because(checks: Sequence[Check], quick: bool) -> str:
    """How many comparisons came out as claimed, which did not, and what was not run."""
    run = [check for check in checks if check.passed is not None]
    if not run:
        return "It was not run."
    failed = [check for check in run if not check.passed]
    text = f"{len(run) - len(failed)} of {len(run)} comparisons came out as claimed."
    if failed:
        shown = "; ".join(f"{check.name} ({_figures(check.figures)})" for check in failed[:3])
        text += f" Not so: {shown}{f'; and {len(failed) - 3} more' if len(failed) > 3 else ''}."
    if len(run) < len(checks):
        text += f" {len(checks) - len(run)} could not be made: their series were not run."
    return text + (" A quick run decides nothing." if quick else "")


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def table(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as a Markdown table."""
    lines = ["| claim | with the paper's settings | with ours | because |", "|---|---|---|---|"]
    lines += [f"| {v.claim} | {v.verdict} | {v.by_theory} | {v.because} |" for v in verdicts]
    return "\n".join(lines)


# --- beside the published end points ----------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """A published end point beside ours; `agrees` within 1 % or three standard errors of the difference."""

    point: published.Point
    ours: float | None
    stderr: float | None
    agrees: bool | None


def compare(folder: str | os.PathLike[str]) -> list[Comparison]:
    """Every published end point beside ours with the same settings, where we have run them."""
    book, found = Book.read(folder), []
    for point in published.POINTS:
        labels = {name: getattr(point, name) for name in ("method", "objective", "dataset", "level", "variant")}
        try:
            series = book.series(point.experiment, point.metric, **labels)
        except Missing:
            found.append(Comparison(point, None, None, None))
            continue
        place = int(np.argmin(np.abs(np.array(series["rounds"], float) - point.round)))
        ours, stderr = series["mean"][place], series["stderr"][place]
        spread = published.SPREAD.get((point.experiment, point.method, point.level))
        theirs = stderr if spread is None else spread / math.sqrt(30)
        near = (
            None if ours is None else abs(ours - point.value) <= max(0.01 * point.value, 3 * math.hypot(stderr, theirs))
        )
        found.append(Comparison(point, ours, stderr, near))
    return found
