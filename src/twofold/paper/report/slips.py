"""The slips of the paper: what is printed, what is right, the effect, and how we know.

Formulas are between backticks; inside them `^` raises and `_` lowers the next word or parenthesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SLIPS", "Slip"]

Area = Literal["algorithms", "theory", "experiments"]


@dataclass(frozen=True)
class Slip:
    """One slip: where it is, what is printed, what is right, its effect, and the evidence.

    `tests` are the names of our tests that show it; `evidence` says how else it is known.
    """

    area: Area
    where: str
    printed: str
    right: str
    effect: str
    evidence: str = ""
    tests: tuple[str, ...] = ()


CHECKED = "checked numerically in float64"
INSPECTION = "by inspection"
CODE = "the authors' code, its stored results and its running times"
FOUND = "found while reproducing the published curves"

ALGORITHMS = (
    Slip(
        "algorithms",
        "LSGD-PFL, step of `β_m`",
        "uses `∇_β f_m`",
        "uses `(1/M) ∇_β f_m`, the gradient of F; averaging supplies the 1/M of w",
        "With the step size of Theorem 1, `η = 1/(4L^β)`, the printed form diverges and the corrected one converges.",
        CHECKED,
        ("test_lsgd_converges_with_its_step_where_the_printed_beta_step_diverges",),
    ),
    Slip(
        "algorithms",
        "ACD-PFL, the branch",
        "“if ξ = 0” updates w, while ξ = 1 has probability `p_w`",
        "w is updated with probability `p_w = √L^w/(√L^w + √L^β)`",
        "As printed it still converges, but communicates about twice as often.",
        CHECKED,
    ),
    Slip(
        "algorithms",
        "ACD-PFL, step of `β_m`",
        "`(1/L^β) ∇_β f_m` and `η/(√L^β(√L^w + √L^β)) ∇_β f_m`",
        "each times 1/M",
        "As printed it diverges.",
        CHECKED,
    ),
    Slip(
        "algorithms",
        "ACD-PFL, the block not drawn",
        "y of the other block is not mentioned",
        "y of the block not drawn becomes x of that block",
        "Left unchanged, an ill-conditioned quadratic needs 3 to 5 times the rounds.",
        CHECKED,
    ),
    Slip(
        "algorithms",
        "ASVRCD-PFL, lifted listing",
        "`Z^+ = νZ + (1−ν)X + (γ/η)(Y^+ − Y)`",
        "`(γ/η)(Y^+ − X)`, as in the listing without lifting",
        "As printed it does not converge.",
        CHECKED,
    ),
    Slip(
        "algorithms",
        "SVRCD-PFL, the estimator",
        "`(1/p_w) Σ ∇_w f_(m,j)(y) + ∇_w F(v)`",
        "subtract `∇f_(m,j)(v)` inside the 1/p term, in both blocks",
        "As printed it does not converge.",
        CHECKED,
    ),
    Slip(
        "algorithms",
        "ASCD-PFL, the state",
        "carries `w_v` and `β_v`",
        "they are never used and are left out",
        "None on the iterates; less memory.",
        "checked against the published runs",
    ),
)

THEORY = (
    Slip(
        "theory",
        "Theorem 1, step size of LSGD-PFL",
        "`η ≤ min{1/(4L^β), 1/(8√(3e)(τ−1)L^w)}`",
        "also `η ≤ 1/(4L^w)`",
        "For τ = 1, or `L^β = 0`, the printed bound is void: traditional FL with τ = 1 would get an infinite step.",
        INSPECTION,
        ("test_lsgd_by_hand",),
    ),
    Slip(
        "theory",
        "Theorem PLNonConvex, the rate",
        "the gap falls like `b^3/(K + βτ)^3`",
        "the recursion gives `O(1/K)`, and `O(log K/K)` with noise",
        "The cubic rate is false: for `f = x^2/2`, exact gradients, β = 2.1, τ = 1, K = 100 the gap is 4.2e-4, "
        "against a bound of 2.8e-5.",
        "",
        ("test_slip_pl_theorem_rate_is_not_cubic",),
    ),
    Slip(
        "theory",
        "Theorem PLNonConvex, the conditions",
        "β above three terms, and a least τ",
        "`β^2 > κe^(1/β)` as well",
        "For κ = 1.2 and β = 1.25 the printed conditions hold for every τ, but the inequality that they should give "
        "fails for a large τ.",
        "",
        ("test_slip_pl_theorem_leaves_out_a_condition_on_beta",),
    ),
    Slip(
        "theory",
        "Lemma dhkabdsbhja, second bound",
        "`4L(F − F*) + 2(L^w)^2 V`",
        "`4(L^w + L^β)(F − F*) + 2L^w(L^w + L^β)V`: the drift of w moves `∇_β` too",
        "The printed bound fails whenever `L^β > 2L^w`; with more than one local step the theorem needs "
        "`η ≤ 1/(4(L^w + L^β))`.",
        "",
        ("test_slip_lemma_dhkabdsbhja_misses_the_drift_of_the_beta_gradient",),
    ),
    Slip(
        "theory",
        "Lemma asvrcd-smooth-const",
        "`L^β`",
        "`𝓛^β`, the smoothness of a single sample",
        "With ten rows of which nine are flat, the printed bound is five times too small.",
        "",
        ("test_slip_lemma_asvrcd_smooth_const_prints_the_wrong_smoothness",),
    ),
    Slip(
        "theory",
        "Lemma and Table for APFL2, μ",
        "`μ'(1−α_max)^2/M`",
        "`μ'(1−α_max)^2/(2M)`, as in the proof",
        "Half of the printed μ is attained (0.5009 of it), so a step built on the printed one is not covered.",
        CHECKED,
        ("test_slip_apfl2_printed_mu_without_the_half",),
    ),
    Slip(
        "theory",
        "Lemma and Table for WS2",
        "`μ = μ'` and `L^β = L'`",
        "`μ'/M` and `L'/M`",
        "Conditioning looks M times better for w than it is, and β gets a step M times too short.",
        CHECKED,
        ("test_slip_ws2_printed_mu_and_smoothness_without_the_mean",),
    ),
    Slip(
        "theory",
        "Table of constants, MT2",
        "`L^w` and `L^β` with an extra ½",
        "`(ΛL' + λ)/M` and `(L' + λ)/M`, as in the lemma",
        "Steps would be twice too long.",
        CHECKED,
        ("test_slip_mt2_table_has_an_extra_half_in_the_smoothness",),
    ),
    Slip(
        "theory",
        "Table 2, MT2, evaluations of `∇_β`",
        "`√(L'/λ)`",
        "`√((L' + λ)/λ)`; likewise `√((ΛL' + λ)/λ)` for `∇_w`",
        "For λ = 100 L' the printed entry promises a tenth of an evaluation.",
        "",
        ("test_slip_mt2_table_has_no_gradients_left_for_a_large_penalty",),
    ),
    Slip(
        "theory",
        "Proof of Theorem lb, the construction",
        "`f_m(w, β_m) = g(w) + h(β_m)`",
        "`g_m(w)`, a part of g for each client",
        "As printed every client holds the whole of g and could minimise it without communicating; the bound itself stands.",
        INSPECTION,
    ),
    Slip(
        "theory",
        "Real-data section, constants",
        "`L^β = L' + λ`",
        "`(L' + λ)/M`",
        "The captions' `p_w` = 0.5, 0.25 and 0.55 come out only with the 1/M.",
        "computed by hand",
    ),
    Slip(
        "theory",
        "Real-data section, cross references",
        "“ASCD-PFL (Algorithm SCD)” and “ASVRCD-PFL (Algorithm SVRCD)”",
        "Algorithms ASCD and ASVRCD",
        "None, once known.",
        INSPECTION,
    ),
)

EXPERIMENTS = (
    Slip(
        "experiments",
        "Synthetic mixture, penalty",
        "`λ = 10^(−2) · σ_h`",
        "`λ = 10^(−2)/σ_h` was run",
        "The penalties differ by a factor 100 at σ_h = 0.1; the published times grow with σ_h as 1/σ_h predicts.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic data, labels",
        "1 with probability `1/(1 + exp(β*·x))`",
        "`1/(1 + exp(−β*·x))`",
        "With the printed sign the estimated parameters would be the negative of the true ones.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, smoothness",
        "`𝓛' = max‖x‖^2/4`",
        "`max‖x‖/4` was used",
        "Other step sizes and another `p_w` than the text's.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, pFedMe",
        "mini-batches of 5",
        "20",
        "Less noise than the text says.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, what a round is",
        "not said",
        "an iteration in which the w-coin or the ρ-coin fell",
        "Needed to place the curves on the axis.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, estimation error",
        "`‖ŵ − w*‖^2 + Σ‖β̂_m − β*_m‖^2`",
        "`Σ‖β̂_m − β*_m‖^2` was plotted",
        "The w part is missing from the figure.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic experiments, LSGD-PFL",
        "η = 0.01 in the scaled space",
        "η = 0.01 in the unscaled space, with the 1/M on β: an effective step of 0.0005 for β",
        "Its curve is slow because of the tiny step, not because of heterogeneity. Theory's step is shown beside it in the figures.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, LSGD-PFL's gradient of w",
        "device m uses its own `β_m`",
        "every device's β was used (a bug)",
        "Local steps that no device could take.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic mixture, L2SGD+ and ASVRCD-PFL",
        "the curves of the figure",
        "stored by an earlier version of the authors' code; they stop short of the optimum",
        "Correct implementations with the same settings end lower: L2SGD+ within 1e-6 of the optimum for σ_h = 0.3 and "
        "1e-9 for 1.0, ASVRCD-PFL within 2e-3 for all three.",
        CHECKED,
    ),
    Slip(
        "experiments",
        "Synthetic weight sharing, objective",
        "a copy of the mixture's paragraph, with its penalty",
        "no penalty at all; the error is `‖sw − w*‖^2 + (1/M) Σ‖β_m − β*_m‖^2`",
        "Another problem than the text's.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic weight sharing, smoothness",
        "as in the section before",
        "the largest row norm, neither squared nor divided by 4, for both blocks",
        "Other step sizes than the text's.",
        CODE,
    ),
    Slip(
        "experiments",
        "Synthetic weight sharing, gradient of β",
        "`(1/M) ∇_β f_m`",
        "run without the 1/M, which is the correct method on private features stretched by √M",
        "Together with the wrong smoothness the two slips nearly cancel. Our runs as published do the same.",
        FOUND,
    ),
    Slip(
        "experiments",
        "Images, LSGD-PFL’s step on w",
        "`w_m` moves by `η ∇_w f_m`",
        "that step was divided by M once too often",
        "The published LSGD-PFL hardly moves w, and looks worse than it is.",
        FOUND,
    ),
    Slip(
        "experiments",
        "Images, ASVRCD-PFL’s full gradient",
        "of the mean loss",
        "of 0.02 times the mean loss: 50 times too small",
        "This alone makes the published ASVRCD-PFL slow on images.",
        FOUND,
    ),
    Slip(
        "experiments",
        "Images, LSGD-PFL’s step size",
        "no step size given",
        "ASVRCD-PFL's `η = 1/(4𝓛)`",
        "Its curve says as much about that step as about the method.",
        CODE,
    ),
    Slip(
        "experiments",
        "Images, partition",
        "samples chosen at random for each device",
        "labels drawn with replacement, each device scanning the same file from its start",
        "Devices share images, and some of one device's test images are another's training images: the accuracies are "
        "too good. Ours draw without replacement.",
        CODE,
    ),
    Slip(
        "experiments",
        "Images, training loss",
        "training loss",
        "the sum of two mini-batch means divided by 100: 0.02 times the mean loss",
        "The axis is 50 times too small (0.0461 at the start for MX2).",
        CODE,
    ),
    Slip(
        "experiments",
        "Images, CIFAR-10",
        "one of four data sets",
        "in the text only",
        "No published number to compare with.",
        CODE,
    ),
)

SLIPS: tuple[Slip, ...] = ALGORITHMS + THEORY + EXPERIMENTS
