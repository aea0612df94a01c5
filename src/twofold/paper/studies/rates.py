"""Rounds to reach a gap of ε against √(L^w/μ), on the lower-bound instance and on real data (beyond the paper)."""

from __future__ import annotations

from typing import Any

from twofold.paper.base import THEORY, Cell, Experiment, Figure, Plain, grid

__all__ = ["EXPERIMENT", "OBJECTIVES"]

EPSILON = 1e-6
CHAINS = (10, 30, 100, 300, 1000)
RIDGES = (0.1, 0.03, 0.01, 0.003, 0.001)

METHODS: dict[str, Plain] = {
    "acd": {},
    "asvrcd": {},
    "asvrcd (ρ = p_w)": {"rho": "asvrcd.p_w"},
    "svrcd": {},
    "lsgd": {"tau": 1, "batch": None},
}
OBJECTIVES: dict[str, Plain] = {
    "mixture": {"name": "mixture", "lam": 0.3},
    "multitask": {"name": "multitask", "lam": 0.1, "Lambda": 1.0},
    "adaptive": {"name": "adaptive", "alpha": 0.3, "Lambda": 1.0},
    "weight_sharing": {"name": "weight_sharing", "split": 14},
}


def _chain(kappa: float, method: str) -> dict[str, Any]:
    return {"data": "chain", "kappa_w": kappa, "kappa_beta": 10.0, "M": 4, "n": 4}


def _cells() -> tuple[Cell, ...]:
    common: dict[str, Any] = {"variant": THEORY, "reach": EPSILON, "rounds": 20_000, "seeds": (0, 1, 2)}
    chains = grid(METHODS, CHAINS, _chain, objective="lower_bound", dataset="chain", **common)
    school = (
        cell
        for objective, parameters in OBJECTIVES.items()
        for cell in grid(
            METHODS, RIDGES, lambda l2, _, p=parameters: {"data": "school", "schools": 40, "l2": l2, "objective": p},
            objective=objective, dataset="school", **common,
        )
    )  # fmt: skip
    return (*chains, *school)


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """One series per objective and method, of the rounds to ε (`mean`) against √(L^w/μ) (`condition`), and theory's beside it."""

    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for about in document["settings"]["cells"]:
        place = tuple(about["cell"][name] for name in ("objective", "dataset", "method"))
        groups.setdefault(place, []).append(about)
    drawn = []
    for (objective, dataset, method), group in groups.items():
        points = sorted(group, key=lambda about: about["condition"])
        where = {"variant": THEORY, "objective": objective, "dataset": dataset, "level": None, "metric": "rounds"}
        condition = [about["condition"] for about in points]
        several = {"rounds": None, "condition": condition, "runs": len(points[0]["status"])}
        drawn.append({
            "method": method, **where, **several, "mean": [about["rounds_to_reach"] for about in points],
            "stderr": [about["rounds_stderr"] for about in points], "seconds": sum(about["seconds"] for about in points),
        })  # fmt: skip
        for name, entry in (("theory", "predicted"), ("lower bound", "least")):
            values = [about.get(entry) for about in points]
            if method == "acd" and any(value is not None for value in values):
                drawn.append({
                    "method": name, **where, **several, "mean": values, "stderr": [0.0] * len(values), "seconds": 0.0,
                })  # fmt: skip
    return {"series": [*drawn, *document["series"]]}


EXPERIMENT = Experiment(
    name="rates",
    title="Rounds against the condition number",
    cells=_cells(),
    figures=(
        Figure("rates", ("rounds",), columns="objective", title="Rounds to a gap of $10^{-6}$ of the first", kind="rates"),
    ),
    facts={
        "reach": "rounds until F − F* is 10⁻⁶ of what it was at the start, or none within 20,000 rounds; three seeds",
        "chain": "the instance of Theorem lb (theory.instances) with 4 clients, 4 components, κ_β = 10, κ_w = 10 … 1,000",
        "school": "exam scores of the first 40 schools: squared loss, 27 standardised features, a ridge l2 = μ' from 0.1 to "
        "0.001",
        "theory": "the rounds after which Theorem ACD-PFL guarantees ε, from this very start; on the chain also the least "
        "number that any method in the span of its gradients needs for ‖w − w*‖² ≤ ε‖w*‖²",
        "by theory": "all step sizes from certified constants; LSGD with one local step and full gradients is gradient descent",
    },
    summary=summary,
)  # fmt: skip
