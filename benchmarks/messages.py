"""SAGA over clients: how many messages a client sends until the gap is 1e-8 of the first one, by who takes part.

    python benchmarks/messages.py [--clients 20]

prints the table at the end of docs/two-references.md: everyone, 30 %, 10 %, and 10 % on average by importance (q_m
of `theory.stepsizes_newer.importance`), five seeds each, the median of the mean number of messages per client. Made data with
heavy-tailed rows and badly scaled features, clients of unequal size, logistic loss with l2 = 0.01, three objectives.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import twofold as tw
from twofold.solver.steps import facts_of
from twofold.theory import stepsizes_newer

GAP, ROUNDS, SEEDS = 1e-8, 30_000, 5
OBJECTIVES = {
    "traditional": tw.objectives.traditional,
    "mixture": lambda loss: tw.objectives.mixture(loss, lam=0.1),
    "weight_sharing": lambda loss: tw.objectives.weight_sharing(loss, split=4),
}


def clients(number: int) -> tw.Clients:
    """Clients of 20 to 200 rows; one in five has features three times as large."""
    rng = np.random.default_rng(5)
    taste, pairs = rng.normal(size=8), []
    for m in range(number):
        n = int(rng.integers(20, 200))
        heavy = np.minimum(rng.pareto(2.5, size=(n, 1)) + 0.3, 10)
        x = heavy * rng.normal(size=(n, 8)) * np.geomspace(1, 0.1, 8) * (3.0 if m % 5 == 0 else 1.0)
        pairs.append((x, (x @ (taste + 0.5 * rng.normal(size=8)) + rng.logistic(size=n) > 0).astype(int)))
    return tw.Clients.from_list(pairs)


def messages(problem: tw.Problem, participation: object) -> str:
    """The median over the seeds of a client's messages, and the rounds."""
    best = problem.optimum().value
    first = float(problem.value(*problem.start)) - best
    runs = tw.solve(
        problem, "saga", participation=participation, target=best + GAP * first, rounds=ROUNDS, seeds=SEEDS, every=5
    )  # pyright: ignore[reportCallIssue, reportArgumentType]
    there = [run for run in runs if run.status == "converged"]
    if len(there) < SEEDS:
        return f"{len(there)} of {SEEDS} there"
    size = np.size(problem.start[0])
    sent = [float(np.mean(run.ledger.floats_up)) / size for run in there]
    return f"{np.median(sent):,.0f} ({np.median([run.ledger.rounds for run in there]):,.0f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    number = parser.parse_args().clients
    jax.config.update("jax_enable_x64", True)
    data = clients(number)
    print("| objective | everyone | 30 % | 10 % | 10 % by importance |\n|---|---|---|---|---|")
    for name, make in OBJECTIVES.items():
        problem = tw.Problem(make(tw.losses.logistic(l2=0.01)), data)
        facts = facts_of(problem)
        each, c = facts.each(), facts.constants
        q = stepsizes_newer.importance(c.L_w, each.L_w, each.weights, 0.1 * number, c.mu)
        cells = [messages(problem, who) for who in (None, 0.3, 0.1, q)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
