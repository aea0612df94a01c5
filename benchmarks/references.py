"""One reference point against two: row gradients of both blocks where the blocks' smoothness differs by 1/300 to 3,000.

    python benchmarks/references.py [--seconds 20] [--json FILE]

prints the table of docs/two-references.md: what a factor e of the gap costs in ∇_w and in ∇_β, in units of n + √(nℓ_i/μ), the order of
the lower bound; in parentheses what the theorem promises. Weight sharing of squared losses, 4 clients with 50 rows, 3 + 3 features of
sizes 1, 0.3 and 0.003, the private ones times a factor that sets ℓ_β/ℓ_w; ridge 0.002, rows drawn uniformly one at a time, one seed, to
a gap of 1e-6 of the first one.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path

import jax
import numpy as np

import twofold as tw
from twofold.solver import TheoryWarning, complete
from twofold.theory import tight

M, N, SIDE, RIDGE, GAP = 4, 50, 3, 0.002, 1e-6
FACTORS = (0.0275, 0.05, 0.5, 1.6, 15.0, 29.0)
SIZES = np.array([1.0, 0.3, 0.003])


def problem(factor: float) -> tw.Problem:
    """The instance whose private features are so many times as large."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(M):
        x = rng.normal(size=(N, 2 * SIDE)) * np.concatenate([SIZES, factor * SIZES])
        pairs.append((x, x @ rng.normal(size=2 * SIDE) + 0.1 * rng.normal(size=N)))
    objective = tw.objectives.weight_sharing(tw.losses.squared(l2=RIDGE), split=SIDE)
    return tw.Problem(objective, tw.Clients.from_list(pairs), sampling="uniform")


def line(factor: float, seconds: float) -> tuple[str, dict]:
    """One row of the table, and its figures: the larger of the two counts in units of the lower bound, for each choice."""
    whole = problem(factor)
    c, best = whole.constants(), whole.optimum().value
    of_w, of_beta = c.L_w + (c.noise_w or 0), c.L_beta + (c.noise_beta or 0)
    units = [N + math.sqrt(N * each / c.mu) for each in (of_w, of_beta)]
    first, p = float(whole.value(*whole.start)) - best, of_w / (of_w + of_beta)
    ours, two = tw.algorithms.ASVRCD, tight.balanced(c, N, c.mu)
    choices = [
        (ours(p_w=p, rho=p / N), (p, p / N, p / N)),
        (ours(p_w=p, rho=(1 - p) / N), (p, (1 - p) / N, (1 - p) / N)),
        (ours(reference="two"), two),
    ]
    cells, worst = [], []
    for method, (p_w, *rho) in choices:
        kappa = tight.tight(tight.variance(c, p_w), (rho[0], rho[1]), c.L_w + c.L_beta, c.mu).kappa
        promised = [(2 * q + r * N) / kappa / unit for q, r, unit in zip((p_w, 1 - p_w), rho, units, strict=True)]
        # Optimal in gradients and one row at a time, whatever a round costs.
        algorithm = complete(whole, method, cost=None)[0]
        h = tw.solve(whole, algorithm, target=best + GAP * first, seconds=seconds, iterations=10**8, every=50).history
        folds = math.log(first / max(h["loss"][-1] - best, 1e-300))
        counts = (h["gradients_w"][-1], h["gradients_beta"][-1])
        measured = [count / folds / unit for count, unit in zip(counts, units, strict=True)]
        worst.append(max(measured))
        mark = "" if folds >= -math.log(GAP) else "*"
        cells.append(f"{measured[0]:.3g} / {measured[1]:.3g} ({promised[0]:.2g} / {promised[1]:.2g}){mark}")
    ratio = of_beta / of_w
    name = f"1/{1 / ratio:,.3g}" if ratio < 1 else f"{ratio:,.3g}"
    figures = {"ratio": ratio, "one": min(worst[:2]), "two": worst[2]}
    return f"| {name} | " + " | ".join(cells) + " |", figures


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="a run stops after so long, and is marked by a star"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", TheoryWarning)  # features of unequal sizes are the point here
    print("| ℓ_β/ℓ_w | one, ρ = p_w/n | one, ρ = p_β/n | two |\n|---|---|---|---|")
    found = []
    for factor in FACTORS:
        text, figures = line(factor, arguments.seconds)
        print(text, flush=True)
        found.append(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
