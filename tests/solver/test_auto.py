"""`solve(problem)` takes other variables where gradients are what costs, and gives the user's own back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import twofold as tw
from twofold.algorithms import rated_clients
from twofold.algorithms.newton import MATRIX_BETA
from twofold.solver import complete
from twofold.solver.auto import RATED, TYPICAL, accuracy, candidates, choose, needs
from twofold.solver.auto import _floor as floor
from twofold.theory.constants import Constants
from twofold.theory.cost import PRESETS, Cost


@pytest.fixture(scope="module")
def problem() -> tw.Problem:
    """Least squares with correlated features: ACD in a matrix metric needs few gradients, profile few rounds."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.normal(size=(12, 12)))[0] * np.geomspace(1, 30, 12)
    pairs = [((x := rng.normal(size=(40, 12)) @ mix), x @ rng.normal(size=12)) for _ in range(3)]
    return tw.Problem(
        tw.objectives.adaptive(tw.losses.squared(l2=0.01), alpha=0.5, Lambda=1.0), tw.Clients.from_list(pairs)
    )


def test_where_gradients_cost_a_metric_is_chosen_and_w_and_beta_are_the_users(problem: tw.Problem) -> None:
    found = tw.solve(problem, cost="simulation")
    assert "acd in a matrix metric" in found.notes[0] and found.problem is problem
    best = problem.optimum()
    first = float(problem.value(*problem.start)) - best.value
    assert float(problem.value(found.w, found.beta)) - best.value <= 1e-8 * first


def test_where_rounds_cost_no_metric_is_looked_at(problem: tw.Problem) -> None:
    names = [one.name for one in candidates(problem, PRESETS["cross-silo"], 1e-8)]
    assert names[0] == "profile" and "acd in a matrix metric" not in names
    assert choose(problem, PRESETS["cross-silo"], 1e-8, False).algorithm.name == "profile"


def test_a_federation_is_offered_no_metric(problem: tw.Problem) -> None:
    assert choose(problem, PRESETS["simulation"], 1e-8, False, metric=False).problem is problem


@pytest.mark.parametrize("cost", [*PRESETS, Cost(0.0, 0.0, 1.0), Cost(0.0, 1.0, 0.0), Cost(1.0, 0.0, 0.0)])
def test_no_method_is_cheaper_than_its_floor(problem: tw.Problem, cost: object) -> None:
    """What is left out unseen could not have won: a proven rate never costs less than the floor, whatever the problem."""
    prices = PRESETS[cost] if isinstance(cost, str) else cost
    easy = tw.Problem(
        tw.objectives.mixture(tw.losses.logistic(l2=100.0), lam=100.0),
        tw.Clients.from_list([(np.eye(2), [0, 1]), (np.ones((3, 2)), [0, 1, 1])]),
    )
    for whole in (problem, easy):
        for name in ("acd", "asvrcd", "svrcd"):
            row = tw.theory.forecast(whole, 1e-6, [name], cost=prices)[name]  # pyright: ignore[reportArgumentType]
            assert row.is_proven
            spent = prices.total(row.rounds, row.bytes, row.gradients_w + row.gradients_beta)  # pyright: ignore
            for known in (None, whole.constants()):
                assert spent >= 0.999 * TYPICAL * floor(whole, name, prices, 1e-6, known)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("L_beta", [0.0, 1e-3, 1.0, 4.9, 5.1, 1e3])
def test_the_floor_of_svrcd_is_its_best_p(L_beta: float) -> None:
    """Rounds per factor e of 1/(L + 6σ) with no noise but the coin's, for every p_w; the floor is nearly attained."""
    c = Constants(
        1e-3 * min(1.0, L_beta or 1.0), 1.0, L_beta, 9.0, 9.0, noise_w=0.0, noise_beta=0.0, sampling="uniform"
    )
    p = np.concatenate([np.geomspace(1e-8, 1e-4, 99), np.linspace(1e-4, 1.0 if L_beta == 0 else 1 - 1e-4, 20_000)])
    sigma = (1 - p) / p + (p / (1 - p) * L_beta if L_beta else 0.0)
    rounds = p / -np.log1p(-c.mu / (1 + L_beta + 6 * sigma))
    found = tw.algorithms.SVRCD().floor(c)
    assert found is not None
    assert 0.99 * rounds.min() <= found.rounds <= rounds.min() * (1 + 1e-9)


def test_what_cannot_win_is_not_looked_at(problem: tw.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of profile: no constants are asked for, and the sentence still says what else there is."""
    fresh = tw.Problem(problem.objective, problem.clients)
    monkeypatch.setattr(tw.Problem, "constants", lambda *_, **__: pytest.fail("constants were asked for"))
    found = choose(fresh, PRESETS["cross-silo"], 1e-8, False)
    assert found.algorithm.name == "profile" and "would cost at least" in found.why


def test_known_constants_raise_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen rounds of L-BFGS are more than the first floor, but no p_w, ρ and step of asvrcd need be tried."""
    rng = np.random.default_rng(2)
    pairs = [(rng.normal(size=(20, 30)), rng.integers(0, 10, 20)) for _ in range(3)]
    many = tw.Problem(tw.objectives.multitask(tw.losses.softmax(10, l2=0.01), lam=0.1), tw.Clients.from_list(pairs))
    prices = PRESETS["cross-silo"]
    profile = next(one for one in candidates(many, prices, 1e-8) if one.algorithm.name == "profile")
    for name in ("asvrcd", "svrcd"):
        assert floor(many, name, prices, 1e-8) < profile.cost < floor(many, name, prices, 1e-8, many.constants())
    monkeypatch.setattr(
        "twofold.theory.stepsizes.design", lambda *_, **__: pytest.fail("p_w, ρ and a step were looked for")
    )
    assert choose(many, prices, 1e-8, False).algorithm.name == "profile"


def test_the_tolerance_that_is_asked_for_decides(problem: tw.Problem) -> None:
    first = float(problem.value(*problem.start))
    assert accuracy(problem, 1e-3 * first) == pytest.approx(1e-3)
    assert accuracy(problem, 1e9) == 0.5 and accuracy(problem, 1e-300) == 1e-12
    assert "to 0.001 of the initial gap" in tw.solve(problem, tol=1e-3 * first, rounds=50).notes[0]


def test_newtons_directions_are_priced_with_their_work() -> None:
    """Where rounds are all that counts they win; where work counts, or all clients are simulated here, they do not."""
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(10, 40)), rng.integers(0, 10, 10)) for _ in range(3)]
    many = tw.Problem(tw.objectives.adaptive(tw.losses.softmax(10, l2=0.01), alpha=0.5), tw.Clients.from_list(pairs))
    dear = Cost(round=1e4, byte=0.0, gradient=1e-6)
    names = [
        {one.name: one.cost for one in candidates(many, cost, 1e-8, work=work)}
        for cost, work in ((dear, np.inf), (PRESETS["simulation"], np.inf), (dear, 1e6))
    ]
    newton = "profile with Newton's directions"
    assert min(names[0], key=names[0].__getitem__) == newton
    assert names[1][newton] > names[1]["profile in its own metric"]
    assert newton not in names[2]
    assert choose(many, dear, 1e-8, False, work=np.inf).algorithm == tw.algorithms.Profile(outer="newton")


def test_profiles_price_is_what_a_run_pays(problem: tw.Problem) -> None:
    found = next(one for one in candidates(problem, PRESETS["cross-silo"], 1e-8) if one.name == "profile")
    used = needs(problem, complete(problem, "profile")[0], found.rounds)
    assert found.bytes == pytest.approx(used.bytes)
    assert found.gradients == pytest.approx(used.gradients_w + used.gradients_beta)


def test_the_page_says_how_auto_chooses_with_the_numbers_that_it_uses() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/choosing.md").read_text().split())
    assert f"they are divided by {TYPICAL:g}" in page and all(
        f"`{name}`" in page.split("`cost=` says")[0] for name in RATED
    )
    assert (
        f"{rated_clients.QUADRATIC:g} rounds for a quadratic, {rated_clients.NEWTON:g} with Newton's directions, "
        f"{rated_clients.PER_DECADE:g} for each factor of ten by L-BFGS" in page
    )
    inner = tw.algorithms.Profile()
    assert (
        f"more than {MATRIX_BETA} numbers" in page
        and "two Newton steps of three conjugate" in page
        and inner.products == 3
    )


def test_what_is_not_convex_gets_lsgd_whoever_takes_part() -> None:
    """saga is proven for convex problems only: participation does not change that."""
    rng = np.random.default_rng(3)
    clients = tw.Clients.from_list([(rng.normal(size=(8, 2)), rng.normal(size=8)) for _ in range(4)])
    curved = tw.Problem(tw.objectives.maml(tw.losses.squared(l2=0.1), alpha=0.1), clients)
    for who in (None, 2):
        with pytest.warns(
            tw.TheoryWarning, match="auto chose lsgd, since the problem is not convex: nothing is proven"
        ):
            assert tw.solve(curved, rounds=1, participation=who).algorithm.name == "lsgd"
    convex = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.1), lam=0.5), clients)
    assert tw.solve(convex, rounds=1, participation=2).algorithm.name == "saga"


@pytest.mark.parametrize("kind", ["local", "ditto"])
def test_where_nothing_is_shared_no_rounds_are_told(kind: str) -> None:
    rng = np.random.default_rng(4)
    clients = tw.Clients.from_list([(rng.normal(size=(8, 2)), rng.integers(0, 2, 8)) for _ in range(3)])
    loss = tw.losses.logistic(l2=0.1)
    objective = tw.objectives.local(loss) if kind == "local" else tw.objectives.multitask(loss, lam=0.5, Lambda=np.inf)
    said = tw.solve(tw.Problem(objective, clients)).notes[-1]
    assert "0 rounds" not in said and "nothing is sent; about" in said


@pytest.fixture(scope="module")
def many_classes() -> tw.Problem:
    """240 weights, for which Newton's matrices are too large, and features that are correlated and of many sizes."""
    rng = np.random.default_rng(3)
    mix = np.linalg.qr(rng.normal(size=(24, 24)))[0] * np.geomspace(3, 0.1, 24)
    common = rng.normal(size=(24, 10))
    pairs = []
    for _ in range(6):
        x = rng.normal(size=(60, 24)) @ mix
        pairs.append((x, np.argmax(x @ (common + rng.normal(size=(24, 10))) + rng.gumbel(size=(60, 10)), axis=1)))
    objective = tw.objectives.multitask(tw.losses.softmax(10, l2=0.01), lam=0.1, Lambda=1.0)
    return tw.Problem(objective, tw.Clients.from_list(pairs))


def test_profile_by_lbfgs_is_in_its_own_metric_and_takes_fewer_rounds(many_classes: tw.Problem) -> None:
    found = tw.solve(many_classes)
    assert found.notes[0].startswith("auto chose profile in its own metric") and found.problem is many_classes
    assert found.history["bytes"][0] == 2 * 8 * 24**2  # the opening message, up and down
    best = many_classes.optimum()
    first = float(many_classes.value(*many_classes.start)) - best.value
    assert float(many_classes.value(found.w, found.beta)) - best.value <= 1e-8 * first
    plain = tw.solve(many_classes, "profile", target=best.value + 1e-8 * first)
    assert found.ledger.rounds <= 0.7 * plain.ledger.rounds


def test_profiles_own_metric_is_left_out_where_it_would_take_long(many_classes: tw.Problem) -> None:
    def names(**options: object) -> list[str]:
        return [one.name for one in candidates(many_classes, PRESETS["cross-silo"], 1e-8, **options)]  # pyright: ignore

    assert "profile in its own metric" in names()
    assert "profile" in names(work=1e6) and "profile" in names(metric=False)
