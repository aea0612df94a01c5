"""The words of a page: the names of methods, metrics and labels, and which labels become lines and panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from twofold.looks import METHODS

__all__ = ["AXES", "DATASETS", "LABELS", "METRICS", "VARIANTS", "Chapter", "plain", "title"]

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Chapter:
    """One experiment on the page: its title, the question it answers, and how its series are laid out.

    `lines` names the label that distinguishes curves, `panels` the one that distinguishes panels; all other labels with more than
    one value become choices above the figure. `level` is the text pattern for a level whose data set defines none. Only `metrics`
    are shown, or all if it is empty. `together` are labels that vary with the panels and get no choice. `seeds` is the word for
    the runs that a line summarises.
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
    seeds: str = "runs"


METRICS: dict[str, tuple[str, Scale]] = {
    "loss": ("training loss", "linear"),
    "gap": ("gap to the optimum", "log"),
    "bound": ("certified bound on the gap", "log"),
    "gradient_norm": ("‖∇F‖", "log"),
    "grade": ("grade of the clients", "linear"),
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
AXES: dict[str, tuple[str, str]] = {  # key of a series: the axis's title, and the word on its button
    "rounds": ("communication rounds", "rounds"),
    "bytes": ("bytes per client, sent and received", "bytes"),
    "gradients_w": ("gradients ∇_w of single rows, per client", "∇_w"),
    "gradients_beta": ("gradients ∇_β of single rows, per client", "∇_β"),
    "iterations": ("iterations", "iterations"),
    "seconds": ("seconds", "seconds"),
    "condition": ("√(L^w/μ)", "√(L^w/μ)"),
    "setting": ("setting", "setting"),
}
VARIANTS = ("with the slips", "as published", "by theory")


def title(field: str, value: Any, chapter: Chapter | None = None, dataset: Any = None) -> str:
    """The value of a label as shown to the reader; `_` makes a subscript and `^` a superscript of what follows.

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
    return found if isinstance(found, str) else found[0]  # a Look's first entry is its title


def plain(text: str) -> str:
    """A text from outside, with the markup characters `_`, `^` and backticks replaced."""
    return text.replace("_", " ").replace("^", " ").replace("`", "'")
