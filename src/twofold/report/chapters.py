"""What the page says about each experiment, and which of its dimensions become lines and panels: words, no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Chapter:
    """One experiment on the page: its title, the question it answers, and how its series are laid out.

    `lines` and `panels` name the field of a series that tells curves, and panels, apart; all other fields with more
    than one value become choices above the figure. `level` writes a level: "σ_h = {}".
    """

    name: str
    title: str
    question: str
    caption: str = ""
    lines: str = "method"
    panels: str = "level"
    level: str = "{}"
    part: Literal["paper", "beyond"] = "paper"
    markers: bool = False
    across: Scale = "linear"


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(
        "mx2",
        "The mixture objective on synthetic data",
        "Are general solvers competitive with L2SGD+ and pFedMe, which were made for this one objective, and who "
        "suffers from heterogeneity?",
        "Each panel is one level of heterogeneity σ_h. Twenty clients with a thousand rows each.",
        level="heterogeneity σ_h = {}",
    ),
    Chapter(
        "ews",
        "Weight sharing on synthetic data",
        "Is ASCD fast at first, and does ASVRCD end lower?",
        "Each panel is one level of heterogeneity σ_h. Ten weights are shared, five belong to each client.",
        level="heterogeneity σ_h = {}",
    ),
    Chapter(
        "images",
        "Images: three objectives, four data sets",
        "Does ASCD beat LSGD on real data, and is ASVRCD slow when there are more weights than rows?",
        "Each panel is one number K of labels per client: the fewer, the more the clients differ. Twenty clients with 100 "
        "training and 300 test images each.",
        level="K = {} labels per client",
    ),
    Chapter(
        "pw",
        "How often to communicate: the choice of p_w",
        "Does theory's p_w reach a given loss in the fewest rounds?",
        "One line for each probability p_w of updating the shared part.",
        lines="level",
        panels="dataset",
        level="p_w = {}",
    ),
    Chapter(
        "reparam",
        "Scaling the shared part by M^(-1/2)",
        "Does the reparametrisation help training, and always help accuracy?",
        "The same method on the scaled and on the unscaled w.",
        lines="level",
        panels="dataset",
    ),
    Chapter(
        "relaxation",
        "The relaxation parameter Λ",
        "Is Λ = 10 better than both 1 and 100?",
        "One line for each Λ of the multi-task objective.",
        lines="level",
        panels="dataset",
        level="Λ = {}",
    ),
    Chapter(
        "times",
        "Running times",
        "How many seconds do 1,000 communication rounds take?",
        lines="method",
    ),
    Chapter(
        "rates",
        "Rounds against the condition number",
        "Do the rounds to a given gap grow like √(L^w/μ), as theory says and the lower bound demands?",
        "Both axes logarithmic: a method that follows theory runs parallel to its line.",
        panels="objective",
        part="beyond",
        markers=True,
        across="log",
    ),
    Chapter(
        "hybrid",
        "ASCD first, then ASVRCD",
        "The paper suggests to begin without control variates and to add them later. Does it pay?",
        "The switch is automatic.",
        level="heterogeneity σ_h = {}",
        part="beyond",
    ),
)

KNOWN = {chapter.name: chapter for chapter in CHAPTERS}

METHODS: dict[str, tuple[str, str, str]] = {  # title, colour of page.css, dash: told apart without colour too
    "asvrcd": ("ASVRCD", "blue", "solid"),
    "ascd": ("ASCD", "orange", "solid"),
    "lsgd": ("LSGD", "ink", "dash"),
    "l2sgd_plus": ("L2SGD+", "green", "dashdot"),
    "pfedme": ("pFedMe", "pink", "longdash"),
    "hybrid": ("hybrid", "red", "solid"),
    "acd": ("ACD", "sky", "solid"),
    "scd": ("SCD", "orange", "dot"),
    "svrcd": ("SVRCD", "blue", "dot"),
    "theory": ("theory", "grey", "dash"),
}
OTHERS = (
    ("blue", "solid"),
    ("orange", "solid"),
    ("green", "dash"),
    ("pink", "dashdot"),
    ("sky", "longdash"),
    ("red", "dot"),
    ("ink", "solid"),
    ("grey", "dash"),
)

METRICS: dict[str, tuple[str, Scale]] = {
    "loss": ("training loss", "linear"),
    "error": ("estimation error", "log"),
    "accuracy": ("test accuracy", "linear"),
    "rounds": ("communication rounds", "log"),
}
OBJECTIVES = {
    "mixture": "MX2 (mixture)",
    "mx2": "MX2 (mixture)",
    "multitask": "MT2 (multi-task)",
    "mt2": "MT2 (multi-task)",
    "adaptive": "APFL2 (adaptive)",
    "apfl2": "APFL2 (adaptive)",
    "weight_sharing": "WS2 (weight sharing)",
    "ws2": "WS2 (weight sharing)",
}
DATASETS = {
    "mnist": "MNIST",
    "fmnist": "Fashion-MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
    "cifar-10": "CIFAR-10",
    "school": "School",
}
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
    "bytes": ("bytes per client, both ways", "bytes"),
    "gradients_w": ("evaluations of ∇_w per client", "∇_w evaluations"),
    "gradients_beta": ("evaluations of ∇_β per client", "∇_β evaluations"),
}
VARIANTS = ("as published", "by theory")


def title(key: str, value: Any, chapter: Chapter | None = None) -> str:
    """A value of one field of a series, as a reader wants to see it."""
    text = str(value).replace("_", " ")
    if key == "method":
        return METHODS[value][0] if value in METHODS else text
    if key == "metric":
        return METRICS[value][0] if value in METRICS else text
    if key == "objective":
        return OBJECTIVES.get(str(value).lower(), text)
    if key == "dataset":
        return DATASETS.get(str(value).lower(), text)
    if key == "level" and chapter is not None and isinstance(value, int | float):
        return chapter.level.format(f"{value:g}")
    return text
