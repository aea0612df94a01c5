"""A budget that theory says will not do is told before the run, with the remedy; one that will do is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import twofold as tw
from twofold import TheoryWarning, tree
from twofold.solver.foresight import is_exact

ACD, LSGD, SAGA = tw.algorithms.ACD(), tw.algorithms.LSGD, tw.algorithms.SAGA()


def problem(kind: str = "mixture") -> tw.Problem:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(12, 3)), rng.integers(0, 2, 12)) for _ in range(5)])
    loss = tw.losses.logistic(l2=0.05)
    made = {
        "mixture": lambda: tw.objectives.mixture(loss, lam=0.5), "local": lambda: tw.objectives.local(loss),
        "traditional": lambda: tw.objectives.traditional(loss),
    }  # fmt: skip
    return tw.Problem(made[kind](), clients)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        (ACD, {"iterations": 3, "tol": 1e-9}, "3 iterations will hardly do: theory needs about .* iterations of acd for tol = 1e-09"),
        (ACD, {"rounds": 3, "tol": 1e-9}, "3 rounds will hardly do: theory needs about .* rounds of acd for tol = 1e-09"),
        ("acd", {"rounds": 1, "tol": 1e-9, "constants": 3.0}, "1 rounds will hardly do: theory needs about .* rounds of acd"),
        (LSGD(), {"rounds": 4, "tol": 1e-9}, r"lsgd on sampled rows stops short .*: take all rows \(batch=None\), or svrcd"),
        (LSGD(batch=None), {"rounds": 4, "tol": 1e-9}, "lsgd with several local steps in a round stops short .*: take one, or acd"),
        (LSGD(batch=None, tau=1), {"rounds": 4, "tol": 1e-9, "participation": 2}, "lsgd with only some clients .*: take saga"),
        ("profile", {"rounds": 1, "tol": 1e-9}, r"1 rounds will hardly do: as measured elsewhere \(it has no proven rate\)"),
        ("auto", {"rounds": 1, "tol": 1e-9}, "1 rounds will hardly do: .* of profile .* Allow more rounds, or ask for a larger tol.$"),
        ("acd", {"rounds": 3, "target": -0.1}, "The target = -0.1, from F = 0.693 at the start, is out of reach: .* F is larger"),
        ("acd", {"seconds": 1e-7, "tol": 1e-12, "cost": "simulation"}, "1e-07 s will hardly do: .* by the cost model simulation"),
    ],
)  # fmt: skip
def test_a_budget_that_will_not_do_is_told(method: Any, options: dict[str, Any], sentence: str) -> None:
    whole = problem()
    if "constants" in options:
        c = whole.constants()
        options = {**options, "constants": c.replace(L_w=options["constants"] * c.L_w)}
    with pytest.warns(TheoryWarning, match=sentence) as told:
        found = tw.solve(whole, method, **options)
    assert len(told) == 1 and str(told[0].message) in found.notes


@pytest.mark.parametrize("participation", [2, 0.4])
def test_saga_is_held_to_its_own_participation(participation: Any) -> None:
    with pytest.warns(TheoryWarning, match="3 rounds will hardly do: theory needs about .* rounds of saga"):
        tw.solve(problem("traditional"), SAGA, rounds=3, tol=1e-9, participation=participation)


def test_a_target_is_held_against_the_optimum_where_that_is_known() -> None:
    whole = problem()
    first = float(whole.value(*whole.start))
    with pytest.warns(
        TheoryWarning, match="3 rounds will hardly do: .* for target = 1e-06, from F = 0.693 at the start"
    ):
        tw.solve(whole, "acd", rounds=3, target=1e-6)  # F ≥ 0 says enough
    best = whole.optimum().value
    near = best + 1e-9 * (first - best)
    unknown = problem()
    assert tw.solve(unknown, "acd", rounds=3, target=near).status == "budget"  # nobody knows F* here
    with pytest.warns(TheoryWarning, match="3 rounds will hardly do: theory needs about .* ask for a larger target"):
        tw.solve(whole, "acd", rounds=3, target=near)
    with pytest.warns(TheoryWarning, match="is out of reach"):
        tw.solve(whole, "acd", rounds=3, target=best - 1e-4 * (first - best))
    tw.solve(whole, "acd", rounds=3, target=best - 1e-9 * (first - best))  # no warning: F* is known to some digits only


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("acd", {"rounds": 200, "tol": 1e-6}),
        ("acd", {"iterations": 3, "tol": 1e-1}),
        ("lsgd", {"rounds": 4, "tol": 1e-2}),
        ("profile", {"rounds": 6, "tol": 1e-3}),
        ("acd", {"rounds": 2}),
        ("svrcd", {"rounds": 4000, "tol": 1e-6}),
        (LSGD(eta=lambda k: 0.1 / (1 + k)), {"rounds": 3, "tol": 1e-9}),  # a falling step stops nowhere
        (LSGD(batch=None, tau=1), {"rounds": 3000, "tol": 1e-6}),
    ],
)
def test_a_budget_that_may_do_is_not(method: Any, options: dict[str, Any]) -> None:
    """Warnings are errors here."""
    tw.solve(problem(), method, **options)


def test_a_target_says_nothing_where_f_may_be_negative() -> None:
    """A function of one's own may fall below 0: then nothing is known of F*, and 3 rounds may well do."""
    clients = tw.Clients.from_list([(np.eye(2), np.zeros(2))] * 3)

    def f(w: Any, beta: Any, batch: Any) -> Any:
        return ((w - 1) ** 2).sum() / 2 + 1e-4 * (w**2).sum() - 0.9 * w.sum() / w.size

    own = tw.objectives.custom(f, w0=np.zeros(2), beta0=())
    whole = tw.Problem(own, clients)
    known = whole.constants(mu=1e-4)
    tw.solve(whole, "acd", rounds=3, target=1e-6, constants=known)


def test_of_a_method_of_ones_own_nothing_is_claimed() -> None:
    @tree.record
    class Mine(LSGD):
        name = "mine"

    tw.solve(problem(), Mine(), rounds=3, tol=1e-9)


def test_where_nothing_is_shared_rounds_are_iterations() -> None:
    with pytest.warns(TheoryWarning, match="3 rounds will hardly do: theory needs about .* of acd"):
        tw.solve(problem("local"), "acd", rounds=3, tol=1e-9)


def test_what_each_method_corrects() -> None:
    kinds: dict[str, Any] = {name: kind() for name, kind in tw.algorithms.REGISTRY.items()}
    sampled = {
        name: dataclasses.replace(method, batch=1) if hasattr(method, "batch") else method
        for name, method in kinds.items()
    }
    assert {name for name, method in sampled.items() if is_exact(method)} == {
        "profile", "acd", "svrcd", "asvrcd", "hybrid", "l2sgd_plus", "saga",
    }  # fmt: skip
    assert is_exact(SAGA, some=True) and not is_exact(LSGD(batch=None, tau=1), some=True)
