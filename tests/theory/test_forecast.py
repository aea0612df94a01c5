"""A forecast is the theory's rates for one problem, with the bytes that its messages have; coins are known beforehand."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

import twofold as tw
from twofold import randomness, tree
from twofold.algorithms import Algorithm
from twofold.algorithms.lsgd import LSGD
from twofold.solver import complete
from twofold.solver.steps import facts_of
from twofold.theory import rates

SIZES = [5, 9, 10]
L2 = 0.1


def problem(make: Any = tw.objectives.mixture, **options: Any) -> tw.Problem:
    """Three unequal clients with four features."""
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(n, 4)), rng.integers(0, 2, n)) for n in SIZES])
    return tw.Problem(make(tw.losses.logistic(l2=L2), **options), clients)


MIXTURE = problem(lam=0.5)
C = MIXTURE.constants()
ITEM = 8  # bytes of a float64


def test_every_registered_method_is_listed() -> None:
    found = tw.theory.forecast(MIXTURE, 1e-3)
    assert [row.method for row in found] == list(tw.algorithms.REGISTRY)
    assert len(found) == len(tw.algorithms.REGISTRY)
    for row in found:
        values = (row.iterations, row.rounds, row.bytes, row.gradients_w, row.gradients_beta)
        if row.is_proven:
            assert all(math.isfinite(value) for value in values)
            assert row.seconds == tw.theory.cost.PRESETS["cross-silo"].total(*values[1:3], sum(values[3:]))
        elif row.is_known:
            assert "no proven rate" in row.note if row.certainty == "measured" else "not proven" in row.note
            assert all(math.isfinite(value) for value in (*values, row.seconds))
        else:
            assert all(math.isnan(value) for value in values) and row.note
    assert {row.method for row in found if not row.is_proven} == {
        "ascd",
        "pfedme",
        "hybrid",
        "profile",
        "fedprox",
        "saga",
    }
    assert "exactly" in found["saga"].note and found["saga"].certainty == "unproven"
    dear = tw.theory.forecast(MIXTURE, 1e-3, ["acd"], cost=tw.theory.Cost(round=7.0, byte=0.0, gradient=0.0))["acd"]
    assert dear.seconds == 7 * found["acd"].rounds


@pytest.mark.parametrize("name", ["scaffnew", "scafflix", "al2sgd_plus"])
def test_a_newer_method_is_there_when_its_rate_says(name: str) -> None:
    """Run for as long as predicted: ‖x − x*‖², or F − F*, has fallen as it should, and as many rounds were needed."""
    row = tw.theory.forecast(MIXTURE, 1e-6, [name])[name]
    assert row.certainty == "certified" and row.iterations < 20_000
    k = math.ceil(row.iterations)
    found = tw.solve(MIXTURE, name, iterations=k, every=k, record="gap")
    first, last = found.history["gap"]
    assert last <= 1e-5 * first  # the first error has the control variates' in it, too
    assert abs(found.ledger.rounds - row.rounds) <= 5 * math.sqrt(k)
    assert (
        "of your own" in tw.theory.forecast(MIXTURE, 0.1, [type(row.algorithm)(eta=0.1)])[name].note
        if name != "scafflix"
        else True
    )


@tree.record
class Steady(LSGD):
    """Registered by its user, who knows by how much it contracts."""

    kappa: float = 0.5
    name = "steady"

    def rate(self, facts: Any, eps: float) -> Any:
        return rates.Rate(self.kappa) if facts.constants.mu > 0 else "steady needs mu > 0."


def test_a_method_of_ones_own_is_known_by_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tw.algorithms.REGISTRY, "steady", Steady)
    row = tw.theory.forecast(MIXTURE, 1e-3)["steady"]
    assert row.iterations == pytest.approx(math.log(1e3) / math.log(2)) and row.certainty == "certified"
    assert row.rounds == pytest.approx(row.iterations) and row.seconds > 0
    flat = problem(lam=0.5).constants(mu=0.0)
    assert tw.theory.forecast(MIXTURE, 1e-3, ["steady"], constants=flat)["steady"].note == "steady needs mu > 0."
    with pytest.warns(tw.TheoryWarning, match="theory needs about"):
        tw.solve(MIXTURE, Steady(kappa=1e-3), rounds=5, tol=1e-9)
    monkeypatch.delattr(Steady, "rate")
    monkeypatch.setattr(Steady, "rate", Algorithm.rate, raising=False)
    assert tw.theory.forecast(MIXTURE, 1e-3, ["steady"])["steady"].note == "no rate is proven for steady."


def test_a_step_of_ones_own_has_no_theorem() -> None:
    for method in (tw.algorithms.SVRCD(eta=0.9), tw.algorithms.ASVRCD(theta1=0.1), tw.algorithms.SCD(eta=0.9)):
        row = tw.theory.forecast(MIXTURE, 1e-3, [method])[method.name]
        assert not row.is_known and "of your own" in row.note


def test_too_few_rounds_are_told_before_the_run() -> None:
    with pytest.warns(tw.TheoryWarning, match="5 rounds will hardly do: theory needs about"):
        told = tw.solve(MIXTURE, "acd", rounds=5, tol=1e-9)
    assert "larger tol" in told.notes[-1] and told.status == "budget"
    assert tw.solve(MIXTURE, "acd", rounds=500, tol=1e-3).notes == ()


def test_the_numbers_are_the_rates_of_this_problem() -> None:
    mean = float(np.mean(SIZES))
    found = tw.theory.forecast(MIXTURE, 1e-4, ["acd", "asvrcd", tw.algorithms.LSGD(tau=3, batch=None)])
    used, row = complete(MIXTURE, "acd")[0], found["acd"]
    acd = rates.predict_acd(
        float(used.theta), float(used.p_w), mean, 1e-4
    )  # with its own coin, for which rounds are dear
    assert acd.rounds < tw.theory.predict("acd", C, 1e-4, n=mean).rounds
    assert (row.iterations, row.rounds, row.criterion) == (acd.iterations, acd.rounds, "F − F*")
    assert (row.gradients_w, row.gradients_beta) == (acd.grad_w * mean, acd.grad_beta * mean)
    assert row.bytes == pytest.approx(acd.rounds * 2 * 4 * ITEM)  # four parameters go up and four come down
    assert row.note == "" and row.algorithm == complete(MIXTURE, "acd")[0]
    chosen: Any = found["asvrcd"].algorithm  # with its own p_w, ρ and batch, which the cost has chosen
    own = {"p_w": chosen.p_w, "rho": chosen.rho, "batch": chosen.batch}
    asvrcd = tw.theory.predict("asvrcd", C, 1e-4, n=mean, **own)
    assert (found["asvrcd"].rounds, found["asvrcd"].gradients_w) == (asvrcd.rounds, asvrcd.grad_w)
    assert asvrcd.rounds * 64 < found["asvrcd"].bytes < asvrcd.rounds * 128  # one part of a message, or both
    lsgd = tw.theory.predict("lsgd", C, 1e-4, n=mean, tau=3, batch=mean, M=3)
    assert found["lsgd"].rounds == lsgd.rounds and found["lsgd"].gradients_w == lsgd.grad_w * mean
    assert "left out" in found["lsgd"].note  # local steps drift
    assert "left out" not in tw.theory.forecast(MIXTURE, 1e-4, [tw.algorithms.LSGD(tau=1, batch=None)])["lsgd"].note


def test_what_the_user_sets_counts() -> None:
    plain, rare = (
        tw.theory.forecast(MIXTURE, 0.1, [a])["svrcd"] for a in ("svrcd", tw.algorithms.SVRCD(p_w=0.01, rho=0.01))
    )
    mean = float(np.mean(SIZES))
    batch: Any = getattr(rare.algorithm, "batch", 1)
    assert rare.iterations == tw.theory.predict("svrcd", C, 0.1, n=mean, p_w=0.01, rho=0.01, batch=batch).iterations
    assert rare.seconds > plain.seconds  # what theory chooses is the cheapest
    stronger = C.replace(mu=2 * C.mu)
    given = tw.theory.forecast(MIXTURE, 0.1, ["acd"], constants=stronger)
    assert given["acd"].iterations == tw.theory.predict("acd", stronger, 0.1).iterations and given.constants is stronger


def test_l2sgd_plus_is_as_slow_as_its_largest_client() -> None:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(n, 2)), rng.integers(0, 2, n)) for n in (2, 400)])
    well_conditioned = tw.Problem(
        tw.objectives.mixture(tw.losses.logistic(l2=100.0), lam=100.0), clients
    )  # memory is the limit
    c = well_conditioned.constants()
    of_largest, of_mean = (tw.theory.predict("l2sgd_plus", c, 0.1, n=n).rounds for n in (400, 201))
    assert tw.theory.forecast(well_conditioned, 0.1, ["l2sgd_plus"])["l2sgd_plus"].rounds == of_largest > of_mean


def test_lower_bounds_stand_beside() -> None:
    found = tw.theory.forecast(MIXTURE, 1e-2, ["acd"])
    assert found.lower_bounds == tw.theory.lower_bounds(C, float(np.mean(SIZES)), 1e-2)
    flat = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), lam=0.5), MIXTURE.clients)
    found = tw.theory.forecast(flat, 1e-2, ["acd", "lsgd"])
    assert found.lower_bounds is None
    assert "rate only for μ > 0" in found["acd"].note and math.isfinite(found["lsgd"].rounds)


def test_a_method_that_does_not_fit_is_listed_with_the_reason() -> None:
    found = tw.theory.forecast(problem(tw.objectives.traditional), 1e-2)
    assert "solves the mixture objective only" in found["l2sgd_plus"].note and found["l2sgd_plus"].algorithm is None
    assert math.isfinite(found["acd"].rounds) and found["acd"].gradients_beta == 0


def test_nothing_shared_costs_no_rounds_and_no_bytes() -> None:
    row = tw.theory.forecast(problem(tw.objectives.local), 1e-2, ["acd"])["acd"]
    assert (row.rounds, row.bytes, row.gradients_w) == (0, 0, 0) and row.gradients_beta > 0


def test_it_prints_as_a_table() -> None:
    lines = str(tw.theory.forecast(MIXTURE, 1e-3, ["acd", "ascd", "scd", "lsgd"])).splitlines()
    assert lines[0] == "Predicted per client, to bring F − F* or ‖x − x*‖² to 0.001 of its initial bound"
    assert lines[1].split() == ["iterations", "rounds", "traffic", "∇w", "rows", "∇β", "rows", "seconds"]
    assert [line.split(" (")[0] for line in lines[2:5]] == ["acd", "scd", "lsgd"] and lines[5].startswith("lower bound")
    assert len({len(line) for line in lines[1:5]}) == 1  # aligned
    assert lines[6] == "ascd: ascd has no convergence theorem for this problem."
    assert lines[7].startswith("scd, lsgd: sampling noise")
    nothing = tw.theory.forecast(MIXTURE, 1e-3, ["hybrid"])
    assert "lower bound" in str(nothing) and "no rate is proven for hybrid" in str(nothing)


@pytest.mark.parametrize("tol", [0.0, 1.0, -1.0, math.nan])
def test_a_tolerance_is_a_fraction(tol: float) -> None:
    with pytest.raises(tw.TwofoldError, match="must lie between 0 and 1, got tol="):
        tw.theory.forecast(MIXTURE, tol)


def test_names_that_are_not_there() -> None:
    with pytest.raises(KeyError, match="no method 'scd'; it has acd"):
        tw.theory.forecast(MIXTURE, 0.1, ["acd"])["scd"]
    with pytest.raises(tw.TwofoldError, match="Did you mean 'acd'"):
        tw.theory.forecast(MIXTURE, 0.1, ["acdd"])


def test_two_stages_have_a_forecast_each() -> None:
    both = problem(tw.objectives.multitask, lam=0.5, Lambda=math.inf)
    with pytest.raises(tw.TwofoldError, match="two stages"):
        tw.theory.forecast(both, 0.1)
    first, second = (tw.theory.forecast(stage, 0.1, ["acd"])["acd"] for stage in tw.theory.stages(both))
    assert first.rounds > 0 and first.gradients_beta == 0
    assert second.rounds == 0 and second.gradients_beta > 0
    assert tw.theory.stages(MIXTURE) == (MIXTURE,)


# --- what the coins say -----------------------------------------------------------------------------------------------


def test_the_cost_of_rounds_is_what_the_run_pays() -> None:
    cost = tw.theory.cost_of_rounds(MIXTURE, "asvrcd", 7, seed=3)
    ledger = tw.solve(MIXTURE, "asvrcd", rounds=7, seed=3, every=7).ledger
    assert cost is not None
    assert (cost.rounds, cost.iterations, cost.floats) == (ledger.rounds, ledger.iterations, ledger.floats_up)
    assert cost.bytes == ledger.bytes_up + ledger.bytes_down


@pytest.mark.parametrize("name", ["acd", "svrcd", "pfedme"])
def test_the_cost_of_rounds_by_hand(name: str) -> None:
    algorithm = tree.cast(complete(MIXTURE, name)[0])
    stream = randomness.common(randomness.root(0))
    sent, k = [], 0
    while np.count_nonzero(sent) < 5:
        sent.append(4 * sum(bool(flag) for flag in jax.tree.leaves(algorithm.sends(algorithm.plan(stream, k)))))
        k += 1
    assert tw.theory.cost_of_rounds(MIXTURE, name, 5) == (5, k, sum(sent), 2 * ITEM * sum(sent))


@tree.record
class EveryThird(Algorithm):
    """Sends in every third iteration, by the number of the iteration and not by a coin."""

    name = "every_third"

    def is_complete(self) -> bool:
        return True

    def plan(self, stream: jax.Array, k: Any) -> Any:
        return LSGD.plan(LSGD(), stream, k), k

    def sends(self, plan: Any) -> Any:
        return (plan[1] % 3 == 2,)

    def init(self, w0: Any) -> Any:
        return w0

    def init_private(self, w0: Any, beta0: Any, oracle: Any) -> Any:
        return beta0

    def client(self, plan: Any, shared: Any, private: Any, oracle: Any, key: Any) -> Any:
        return private, (oracle.gradient_w(shared, private),)

    def server(self, plan: Any, shared: Any, mean: Any) -> Any:
        return shared

    def complete(self, setting: Any) -> Any:
        return self, None

    def evaluations(self, plan: Any, rows: Any) -> Any:
        return rows, 0 * rows

    def model(self, shared: Any) -> Any:
        return shared

    def personal(self, private: Any) -> Any:
        return private


def test_rounds_follow_sends_and_not_coins() -> None:
    assert tw.theory.cost_of_rounds(MIXTURE, EveryThird(), 5) == (5, 15, 20, 2 * ITEM * 20)
    late = 1400  # beyond the first block of coins
    assert tw.theory.cost_of_rounds(MIXTURE, EveryThird(), late) == (late, 3 * late, 4 * late, 2 * ITEM * 4 * late)


def test_rounds_that_never_come() -> None:
    rare = tw.algorithms.SCD(eta=0.1, p_w=1e-30)
    assert tw.theory.cost_of_rounds(MIXTURE, rare, 1, most=5000) is None
    with pytest.raises(tw.TwofoldError, match="no round ever takes place"):
        tw.theory.cost_of_rounds(problem(tw.objectives.local), "acd", 1)
    with pytest.raises(tw.TwofoldError, match="rounds must be a whole number ≥ 1, got rounds=0"):
        tw.theory.cost_of_rounds(MIXTURE, "acd", 0)


def hard(l2: float = 1e-6) -> tw.Problem:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(4)])
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=l2), lam=1e-5), clients)


def test_a_run_that_will_not_end_in_time_is_told_before():
    with pytest.warns(
        tw.TheoryWarning, match=r"hardly end in 20 s: .* lsgd needs .* times as long\). Remedy: acd needs"
    ):
        tw.theory.forecast(hard(), 1e-3, ["lsgd", "acd"], seconds=20)
    with pytest.warns(
        tw.TheoryWarning, match=r"Remedy: allow .* s for acd, ask for tol = 0\.\d+, or make the problem easier"
    ):
        tw.theory.forecast(hard(), 1e-6, ["acd"], seconds=1)
    tw.theory.forecast(hard(), 1e-6, ["acd"], seconds=1e9)
    tw.theory.forecast(hard(), 1e-6, seconds=1e4)  # some method will do
    with pytest.raises(tw.TwofoldError, match="the time that you have"):
        tw.theory.forecast(hard(), 1e-6, seconds=0)


def test_solve_tells_when_its_seconds_will_not_do():
    with pytest.warns(tw.TheoryWarning, match="5 iterations will hardly do"):
        tw.solve(hard(1e-11), "acd", tol=1e-12, iterations=5)  # compiled beforehand
    with pytest.warns(tw.TheoryWarning, match=r"0\.3 s will hardly do: theory needs about .* s of acd for tol = 1e-12"):
        result = tw.solve(hard(1e-11), "acd", tol=1e-12, seconds=0.3)
    assert "0.3 s will hardly do" in " ".join(result.notes)


def test_the_table_fits_eighty_columns_and_travels():
    table = tw.theory.forecast(hard(), 1e-6)
    assert max(map(len, str(table).splitlines())) <= 80 and "…" not in str(table)
    assert "<table>" in table._repr_html_() and r"\toprule" in table.to_latex()


@pytest.mark.parametrize("name", ["scaffnew", "scafflix"])
def test_no_rate_of_single_clients_is_claimed_where_their_curvature_is_not_known(name: str) -> None:
    """F's μ is no client's μ_m: in a metric, and with constants of one's own, only F's is there."""
    known = tw.theory.forecast(MIXTURE, 1e-3, [name])[name]
    assert known.certainty == "certified" and known.iterations > 1
    in_a_metric = tw.Problem(MIXTURE.objective, MIXTURE.clients, precondition="matrix")
    for found in (
        tw.theory.forecast(in_a_metric, 1e-3, [name]),
        tw.theory.forecast(MIXTURE, 1e-3, [name], constants=C),
    ):
        assert not found[name].is_known and "every client's own curvature is known: not in a metric" in found[name].note


@pytest.mark.parametrize("kind", ["traditional", "mixture"])
def test_sagas_forecast_is_for_who_takes_part_and_is_proven_without_beta_only(kind: str) -> None:
    whole = problem(tw.objectives.traditional) if kind == "traditional" else MIXTURE
    everyone = tw.theory.forecast(whole, 1e-3, ["saga"])["saga"]
    one = tw.theory.forecast(whole, 1e-3, ["saga"], participation=1)["saga"]
    facts = facts_of(whole, participation=1)
    kappa = tw.theory.stepsizes_newer.saga(facts.constants, facts.each(), np.full(3, 1 / 3))["kappa"]
    assert one.rounds == pytest.approx(math.log(1e3) / -math.log1p(-kappa)) and one.rounds > everyone.rounds
    assert one.bytes == pytest.approx(
        everyone.bytes * one.rounds / everyone.rounds / 3
    )  # one of three sends in a round
    assert one.gradients_w == pytest.approx(everyone.gradients_w * one.rounds / everyone.rounds / 3)
    for row in (everyone, one):
        assert row.is_known and row.is_proven == (kind == "traditional")
        assert row.certainty == ("certified" if kind == "traditional" else "unproven")
        assert ("not proven" in row.note) == (kind == "mixture")


def test_a_forecast_for_some_is_refused_to_methods_that_need_everyone() -> None:
    row = tw.theory.forecast(MIXTURE, 1e-3, ["acd"], participation=0.5)["acd"]
    assert not row.is_known and "acd needs every client in every round" in row.note
    with pytest.raises(tw.TwofoldError, match="how probably each client takes part"):
        tw.theory.forecast(MIXTURE, 1e-3, ["saga"], participation=lambda k: [0])
