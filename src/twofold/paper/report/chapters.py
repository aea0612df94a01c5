"""What the page says about each experiment, and which labels become lines and panels. Words only, no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Chapter:
    """One experiment on the page: its title, the question it answers, and how its series are laid out.

    `lines` names the label that distinguishes curves, `panels` the one that distinguishes panels; all other labels with
    more than one value become choices above the figure. `level` is the pattern for a level whose data set does not say
    what it is. Only `metrics` are shown, or all if it is empty. `together` are labels that go with the panels.
    """

    name: str
    short: str
    title: str
    question: str
    caption: str = ""
    lines: str = "method"
    panels: str = "level"
    level: str = ""
    metrics: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    part: Literal["paper", "beyond"] = "paper"
    markers: bool = False
    across: Scale = "linear"


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(
        "mx2",
        "Mixture",
        "The mixture objective on synthetic data",
        "Are general solvers competitive with L2SGD+ and pFedMe, which were made for this one objective, and which "
        "methods suffer from heterogeneity?",
        "One panel for each level of heterogeneity `σ_h`: the larger, the more the clients differ.",
    ),
    Chapter(
        "ews",
        "Weight sharing",
        "Weight sharing on synthetic data",
        "Is ASCD fast at first, and does ASVRCD end lower?",
        "One panel for each level of heterogeneity `σ_h`: the larger, the more the clients differ.",
    ),
    Chapter(
        "images",
        "Images",
        "Images: three objectives, four data sets",
        "Does ASCD beat LSGD on real data, and is ASVRCD slow when there are more weights than rows?",
        "One panel for each number K of labels per client: the fewer, the more the clients differ.",
    ),
    Chapter(
        "pw",
        "Choice of p_w",
        "How often to communicate: the choice of `p_w`",
        "Does theory’s `p_w` reach a given loss in the fewest rounds?",
        "ASCD, with one line for each probability `p_w` of updating the shared part.",
        lines="level",
        panels="dataset",
        level="p_w = {}",
    ),
    Chapter(
        "reparam",
        "Scaling w",
        "The shared part scaled by `M^(−1/2)`, or not",
        "Does the reparametrisation help training, and always help accuracy?",
        "ASCD on the scaled and on the unscaled w.",
        lines="level",
        panels="dataset",
        level="{}",
    ),
    Chapter(
        "relaxation",
        "Relaxation Λ",
        "The relaxation parameter Λ of multi-task learning",
        "Is Λ = 10 better than both 1 and 100?",
        "One line for each Λ. Losses for different Λ belong to different problems: only accuracies can be compared.",
        lines="level",
        panels="dataset",
        level="Λ = {}",
        metrics=("accuracy", "accuracy_personal", "loss"),
    ),
    Chapter(
        "times",
        "Times",
        "Seconds per 1,000 rounds",
        "How long do 1,000 communication rounds take?",
        "Seconds of one run with loss and error at every round; below them the paper’s, on one laptop core.",
        metrics=("seconds",),
    ),
    Chapter(
        "rates",
        "Rates",
        "Rounds against the condition number",
        "Do the rounds to a given gap grow like `√(L^w/μ)`, as theory says and the lower bound demands?",
        "Both axes are logarithmic: a method that follows theory runs parallel to its line.",
        panels="objective",
        metrics=("rounds",),
        together=("dataset",),
        part="beyond",
        markers=True,
        across="log",
    ),
    Chapter(
        "hybrid",
        "Hybrid",
        "ASCD first, then ASVRCD",
        "The paper suggests starting without control variates and adding them later, but never tries it. Does it pay?",
        "The switch is automatic; the rounds that it costs to decide are counted.",
        part="beyond",
    ),
    Chapter(
        "slips",
        "As run",
        "The published image runs with their slips put back",
        "Do the slips explain why the published curves on images are not ours?",
        "MNIST. With the slips: LSGD’s step on w divided by M once too often, ASVRCD’s full gradient 50 times too small, "
        "devices that share images. As published: the same settings with the slips corrected.",
        part="beyond",
    ),
)

KNOWN = {chapter.name: chapter for chapter in CHAPTERS}

METHODS: dict[str, tuple[str, str, str]] = {  # title, colour of page.css, dash: told apart without colour too
    "lsgd": ("LSGD", "ink", "dash"),
    "ascd": ("ASCD", "red", "solid"),
    "asvrcd": ("ASVRCD", "blue", "solid"),
    "l2sgd_plus": ("L2SGD+", "green", "dashdot"),
    "pfedme": ("pFedMe", "pink", "longdash"),
    "hybrid": ("hybrid", "orange", "solid"),
    "acd": ("ACD", "sky", "solid"),
    "scd": ("SCD", "red", "dot"),
    "svrcd": ("SVRCD", "blue", "dot"),
    "asvrcd (ρ = p_w)": ("ASVRCD, ρ = p_w", "pink", "solid"),
    "theory": ("theory’s guarantee for ACD", "grey", "dash"),
    "lower bound": ("lower bound for any method", "grey", "dot"),
}
OTHERS = (
    ("blue", "solid"),
    ("red", "longdash"),
    ("green", "dash"),
    ("pink", "dashdot"),
    ("orange", "dot"),
    ("sky", "solid"),
    ("ink", "dash"),
    ("grey", "dot"),
)

METRICS: dict[str, tuple[str, Scale]] = {
    "loss": ("training loss", "linear"),
    "error": ("estimation error", "log"),
    "accuracy": ("test accuracy of the private part", "linear"),
    "accuracy_personal": ("test accuracy of the personal model", "linear"),
    "rounds": ("rounds to 10^(−6) of the first gap", "log"),
    "seconds": ("seconds per 1,000 rounds", "linear"),
}
OBJECTIVES = {
    "mixture": "mixture (MX2)",
    "multitask": "multi-task (MT2)",
    "adaptive": "adaptive (APFL2)",
    "weight_sharing": "weight sharing (WS2)",
    "lower_bound": "lower-bound instance",
}
DATASETS = {
    "synthetic": "synthetic",
    "mnist": "MNIST",
    "kmnist": "KMNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "school": "School",
    "chain": "chain",
}
LEVELS = {"synthetic": "σ_h = {}", "chain": "κ_w = {}", "school": "ridge {}"}
"""What a level means, by data set; for images it is the number K of labels per client."""
LABELS = {
    "method": "Method",
    "metric": "Measure",
    "objective": "Objective",
    "dataset": "Data",
    "level": "Level",
    "variant": "Settings",
}
AXES: dict[str, tuple[str, str]] = {  # key of a series: the axis' title, and the word on its button
    "rounds": ("communication rounds", "rounds"),
    "bytes": ("bytes per client, sent and received", "bytes"),
    "gradients_w": ("gradients ∇_w of single rows, per client", "∇_w"),
    "gradients_beta": ("gradients ∇_β of single rows, per client", "∇_β"),
    "condition": ("√(L^w/μ)", "√(L^w/μ)"),
}
VARIANTS = ("with the slips", "as published", "by theory")


def title(field: str, value: Any, chapter: Chapter | None = None, dataset: Any = None) -> str:
    """The value of a label as a reader wants to see it; `_` lowers and `^` raises what follows.

    >>> title("level", 0.1, dataset="synthetic"), title("method", "ascd")
    ('σ_h = 0.1', 'ASCD')
    """
    text = str(value)
    if field == "level":
        number = f"{value:g}" if isinstance(value, int | float) else "theory’s" if value == "theory" else plain(text)
        form = (chapter.level if chapter else "") or LEVELS.get(dataset) or ("K = {}" if dataset in DATASETS else "{}")
        return form.format(number)
    words = {"method": METHODS, "metric": METRICS, "objective": OBJECTIVES, "dataset": DATASETS}
    found = words.get(field, {}).get(text)
    if found is None:
        return plain(text)
    return found if isinstance(found, str) else found[0]


def plain(text: str) -> str:
    """A word from outside, in which `_` and `^` are to mean nothing."""
    return text.replace("_", " ").replace("^", " ").replace("`", "'")
