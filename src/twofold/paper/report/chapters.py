"""What the page says about each experiment of the paper. Words only, no numbers."""

from __future__ import annotations

from twofold.report.words import Chapter

__all__ = ["CHAPTERS", "KNOWN"]

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
