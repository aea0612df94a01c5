"""solve(): when it stops, what it records, what it tells, what it refuses, and what it leaves to the user."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose, assert_array_equal

import plain
import twofold as tw
from twofold.algorithms import ACD, ASCD, ASVRCD, LSGD, REGISTRY, SCD, SVRCD, L2SGDPlus, PFedMe
from twofold.engines import loop
from twofold.theory import stepsizes
from twofold.theory.cost import PRESETS

METHODS = tuple(REGISTRY)
FLAT = "No strong convexity is known (μ = 0), so momentum is set as for"
NEEDS_MU = dict.fromkeys(("acd", "ascd", "asvrcd", "hybrid", "al2sgd_plus"), FLAT) | dict.fromkeys(
    ("scaffnew", "scafflix"), "Client 0's own function is not known to be strongly convex, so rounds come as for"
)
"""What needs a μ > 0 to set its momentum or its coin by, and what it says without."""
# All questions to one method come one after the other, as long as its programs are at hand.
every_method = pytest.mark.parametrize("method", METHODS, scope="module")


def make(objective=None, kind="logistic", l2=0.1, **options):
    loss = plain.loss(kind, l2)
    return tw.Problem(
        tw.objectives.mixture(loss, 0.5) if objective is None else objective(loss), plain.clients(kind), **options
    )


PROBLEM = make()


def finite(result):
    return bool(np.all(np.isfinite(ravel_pytree((result.w, result.beta))[0])))


# ---- when it stops --------------------------------------------------------------------------------------------------


@every_method
def test_it_stops_on_rounds(method):
    result = tw.solve(PROBLEM, method, rounds=7)
    assert result.status == "budget" and "7 rounds" in result.message
    assert result.ledger.rounds == result.history["round"][-1] == 7
    assert_array_equal(result.history["round"], np.arange(8))
    assert result.ledger.iterations == result.history["iteration"][-1]
    assert result.history["loss"][-1] < result.history["loss"][0]


@every_method
def test_it_stops_on_iterations(method):
    result = tw.solve(PROBLEM, method, iterations=9)
    assert result.status == "budget" and "9 iterations" in result.message
    assert result.ledger.iterations == result.history["iteration"][-1] == 9


def test_whichever_budget_is_spent_first():
    many = tw.solve(PROBLEM, "asvrcd", rounds=6)
    needed = many.ledger.iterations
    assert tw.solve(PROBLEM, "asvrcd", rounds=6, iterations=needed - 2).ledger.iterations == needed - 2
    assert tw.solve(PROBLEM, "asvrcd", rounds=6, iterations=needed + 100).ledger.iterations == needed


def test_it_stops_on_time():
    result = tw.solve(PROBLEM, "lsgd", seconds=1e-3)
    assert result.status == "budget" and result.seconds >= 1e-3
    assert len(result.history["round"]) > 0 and result.ledger.rounds < loop.CAPACITY / 10


def test_it_stops_at_a_target():
    best = PROBLEM.optimum().value
    start = float(PROBLEM.value(*PROBLEM.start))
    target = best + 0.01 * (start - best)
    result = tw.solve(PROBLEM, "acd", target=target)
    losses = result.history["loss"]
    assert result.status == "converged" and f"≤ target {target:g}" in result.message
    assert losses[-1] <= target and np.all(losses[:-1] > target)


def test_a_target_need_not_be_recorded():
    """The loss is then evaluated all the same."""
    target = float(PROBLEM.value(*PROBLEM.start)) - 1e-3
    result = tw.solve(PROBLEM, "acd", target=target, record=("gradient_norm",))
    assert result.status == "converged" and result.history["loss"][-1] <= target


CERTIFIED = {
    "mixture": PROBLEM,
    "weights": tw.Problem(
        tw.objectives.mixture(tw.losses.squared(0.1), 0.5), plain.clients("squared", weights=[0.6, 0.1, 0.3])
    ),
    "multitask": make(lambda loss: tw.objectives.multitask(loss, 0.5, 2.0), rescale=False),
    "weight_sharing": make(lambda loss: tw.objectives.weight_sharing(loss, 1), "squared"),
    "local": make(tw.objectives.local, "softmax"),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_certified_gap_bounds_the_true_one(name):
    problem = CERTIFIED[name]
    result = tw.solve(problem, "acd", tol=1e-6, record=("loss", "gap", "bound", "gradient_norm"))
    history = result.history
    assert result.status == "converged" and "≤ tol = 1e-06" in result.message
    assert history["bound"][-1] <= 1e-6 and np.all(history["bound"][:-1] > 1e-6)
    true = float(problem.value(result.w, result.beta)) - problem.optimum().value
    assert_allclose(history["gap"][-1], true, atol=1e-14)
    assert 0 <= true <= 1e-6
    assert np.all(history["gap"] <= history["bound"] + 1e-15)
    by_norm = history["gradient_norm"] ** 2 / (2 * problem.constants().mu)
    assert np.all(history["bound"] <= by_norm * (1 + 1e-6))
    norm = float(problem.gradient_norm_squared(result.w, result.beta)) ** 0.5
    assert_allclose(history["gradient_norm"][-1], norm, rtol=1e-9)


def test_with_constants_of_ones_own_the_gap_is_bounded_by_their_mu():
    known = PROBLEM.constants(mu=0.05)
    history = tw.solve(PROBLEM, "acd", tol=1e-4, record=("loss", "bound", "gradient_norm"), constants=known).history
    assert_allclose(history["bound"], history["gradient_norm"] ** 2 / 0.1, rtol=1e-12)


def test_a_tolerance_is_met_at_a_record():
    fine = tw.solve(PROBLEM, "acd", tol=1e-4)
    coarse = tw.solve(PROBLEM, "acd", tol=1e-4, every=10)
    rounds = fine.history["round"][-1]
    assert coarse.history["round"][-1] == 10 * np.ceil(rounds / 10)


def test_a_tolerance_needs_a_certified_mu():
    flat = make(l2=0.0)
    with pytest.raises(
        ValueError, match=r"^tol needs strong convexity to certify a gap, but μ = 0 here: add a ridge \(l2 > 0\), pass"
    ):
        tw.solve(flat, "scd", tol=1e-3)
    local = flat.constants(at=flat.start)
    assert local.mu > 0
    with pytest.warns(tw.TheoryWarning, match="^The gap is bounded with a local μ, which certifies nothing far away"):
        tw.solve(flat, "scd", tol=1e9, constants=local)
    given = tw.solve(flat, "scd", tol=1e9, constants=flat.constants(mu=0.1), record=("bound",))
    norm = float(flat.gradient_norm_squared(*flat.start)) ** 0.5
    assert_allclose(given.history["bound"][0], norm**2 / 0.2, rtol=1e-12)


def test_a_start_that_is_good_enough_is_the_end():
    best = PROBLEM.optimum()
    result = tw.solve(PROBLEM, "acd", tol=1e-12, start=best[:2])
    assert result.status == "converged" and result.ledger.iterations == 0
    assert_array_equal(result.w, best.w)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({}, "^Say when to stop: rounds, iterations, seconds, target or tol"),
        ({"rounds": 0}, "^rounds must be a whole number ≥ 1, got rounds=0"),
        ({"rounds": 2.5}, "^rounds must be a whole number ≥ 1, got rounds=2.5"),
        ({"iterations": -1}, "^iterations must be a whole number ≥ 1, got iterations=-1"),
        ({"rounds": 1, "every": 0}, "^every must be a whole number ≥ 1, got every=0"),
        ({"seconds": 0}, "^seconds must be positive, got seconds=0"),
        ({"tol": float("nan")}, "^tol must be positive, got tol=nan"),
        ({"rounds": 1, "seeds": []}, "^seeds is empty: give at least one seed"),
    ],
)
def test_a_bad_budget(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(PROBLEM, "acd", **options)


# ---- what it records ------------------------------------------------------------------------------------------------


def test_records_at_every_third_round_at_the_start_and_at_the_end():
    result = tw.solve(PROBLEM, "lsgd", rounds=10, every=3)
    assert_array_equal(result.history["round"], [0, 3, 6, 9, 10])
    assert_array_equal(result.history["iteration"], [0, 3, 6, 9, 10])  # an iteration of LSGD is a round
    assert len(tw.solve(PROBLEM, "lsgd", rounds=9, every=3).history["round"]) == 4  # the end only once


@pytest.mark.parametrize("method", ["asvrcd", "acd", "l2sgd_plus"])
def test_a_thinned_history_is_a_part_of_the_full_one(method):
    full, thin = (tw.solve(PROBLEM, method, rounds=17, every=every, seed=3).history for every in (1, 5))
    assert_array_equal(thin["round"], [0, 5, 10, 15, 17])
    at = np.searchsorted(full["round"], thin["round"])
    assert np.all(np.diff(full["iteration"]) >= 1) and full["iteration"][-1] > 17
    for name in ("iteration", "bytes", "gradients_w", "gradients_beta"):
        assert_array_equal(thin[name], full[name][at])
    assert_allclose(thin["loss"], full["loss"][at], rtol=1e-13)


def test_a_record_is_of_the_iterate_at_the_end_of_its_round():
    """Stopping at that very round gives the same loss and the same iterate."""
    history = tw.solve(PROBLEM, "asvrcd", rounds=12, seed=1).history
    for rounds in (1, 5, 12):
        short = tw.solve(PROBLEM, "asvrcd", rounds=rounds, seed=1)
        assert short.ledger.iterations == history["iteration"][rounds]
        assert_allclose(PROBLEM.value(short.w, short.beta), history["loss"][rounds], rtol=1e-13)


def test_the_last_iteration_is_recorded_although_it_ends_no_round():
    rounds = tw.solve(PROBLEM, "asvrcd", rounds=8, seed=0).history["iteration"]
    silent = next(int(k) + 1 for k, after in itertools.pairwise(rounds) if after > k + 1)
    history = tw.solve(PROBLEM, "asvrcd", iterations=silent, seed=0).history
    assert history["iteration"][-1] == silent and history["iteration"][-2] == silent - 1
    assert history["round"][-1] == history["round"][-2]


def test_columns_and_what_they_add_up_to():
    result = tw.solve(PROBLEM, "asvrcd", rounds=15)
    history, ledger = result.history, result.ledger
    assert list(history) == ["round", "iteration", "bytes", "gradients_w", "gradients_beta", "seconds", "loss"]
    assert history["bytes"][-1] == ledger.bytes_up + ledger.bytes_down
    assert_allclose(history["gradients_w"][-1], np.mean(ledger.gradients_w), rtol=1e-12)
    assert_allclose(history["gradients_beta"][-1], np.mean(ledger.gradients_beta), rtol=1e-12)
    assert ledger.bytes_up == ledger.floats_up * 8
    for name in ("bytes", "gradients_w", "gradients_beta", "seconds"):
        assert history[name][0] == 0 or name == "seconds"
        assert np.all(np.diff(history[name]) >= 0)
    assert list(tw.solve(PROBLEM, "lsgd", rounds=2, record=()).history)[-1] == "seconds"


def test_metrics_of_the_users_own():
    def distance(w, beta):
        return jnp.sum((beta - w[None, :]) ** 2)

    result = tw.solve(
        PROBLEM, "lsgd", rounds=4, record={"distance": distance, "loss": "loss", "first": lambda w, beta: beta[0, 0]}
    )
    assert {"distance", "loss", "first"} <= set(result.history)
    assert result.history["distance"][0] == 0
    assert_allclose(result.history["distance"][-1], distance(result.w, result.beta), rtol=1e-13)
    assert_allclose(result.history["first"][-1], result.beta[0, 0], rtol=1e-15)


def test_metrics_see_beta_in_the_order_of_the_clients():
    for buckets in (None, [[2], [1, 0]]):
        problem = make(buckets=buckets)
        start = (np.zeros(3), np.arange(9.0).reshape(3, 3))
        result = tw.solve(problem, "lsgd", rounds=1, start=start, record={"m": lambda w, beta: beta[2, 1]})
        assert result.history["m"][0] == 7


def test_a_metric_that_is_not_a_number_does_not_stop_the_run():
    result = tw.solve(PROBLEM, "lsgd", rounds=2, record={"odd": lambda w, beta: jnp.sum(w) / 0.0 * 0.0})
    assert np.all(np.isnan(result.history["odd"])) and result.status == "budget"


@pytest.mark.parametrize(
    "record, sentence",
    [
        (("los",), "^Unknown metric 'los': choose from loss, gradient_norm, gap, bound, or give a function"),
        ({"mine": "los"}, "^Unknown metric 'los'"),
        ({"mine": lambda w, beta: beta[0]}, r"^A metric must give one number, but .* gave an array of shape \(3,\)"),
    ],
)
def test_a_bad_metric(record, sentence):
    with pytest.raises(ValueError, match=sentence):
        tw.solve(PROBLEM, "lsgd", rounds=1, record=record)


# ---- seeds ----------------------------------------------------------------------------------------------------------


def test_seeds_run_at_once_and_as_if_alone():
    results = tw.solve(PROBLEM, "asvrcd", rounds=10, seeds=[4, 7])
    assert isinstance(results, tw.Results) and [run.seed for run in results] == [4, 7]
    for run in results:
        alone = tw.solve(PROBLEM, "asvrcd", rounds=10, seed=run.seed)
        assert_array_equal(run.history["iteration"], alone.history["iteration"])
        assert_allclose(run.history["loss"], alone.history["loss"], rtol=1e-12)
        assert_allclose(run.beta, alone.beta, atol=1e-13)
        assert run.ledger.as_dict() == alone.ledger.as_dict()
    assert not np.allclose(results[0].beta, results[1].beta)
    assert results.column("loss").shape == (2, 11)


def test_one_seed_in_a_list_is_still_a_list():
    assert len(tw.solve(PROBLEM, "lsgd", rounds=1, seeds=range(1))) == 1


def test_each_seed_has_its_own_end():
    results = tw.solve(PROBLEM, "svrcd", tol=1e-2, seeds=range(4))
    lengths = [len(run.history["loss"]) for run in results]
    assert len(set(lengths)) > 1 and {run.status for run in results} == {"converged"}
    column = results.column("bound")
    for row, length in zip(column, lengths, strict=True):
        assert np.all(np.isfinite(row[:length])) and np.all(np.isnan(row[length:]))
        assert row[length - 1] <= 1e-2
    for run in results:
        assert run.ledger.rounds == run.history["round"][-1] and run.ledger.iterations == run.history["iteration"][-1]


# ---- theory and the user --------------------------------------------------------------------------------------------


@every_method
def test_without_strong_convexity_there_is_a_warning_and_no_crash(method):
    problem, algorithm = make(l2=0.0), REGISTRY[method]()
    if any(field.name == "batch" for field in dataclasses.fields(algorithm)):
        algorithm = dataclasses.replace(algorithm, batch=None)  # no noise, so the loss must fall
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tw.solve(problem, algorithm, rounds=30, every=30)
    told = [w for w in caught if issubclass(w.category, tw.TheoryWarning)]
    assert len(told) == len(caught) == len(result.notes) == (method in NEEDS_MU)
    for warning in told:
        assert NEEDS_MU[method] in str(warning.message)
        assert result.notes == (str(warning.message),)
        assert warning.filename == __file__
    assert result.status == "budget" and result.history["loss"][-1] < result.history["loss"][0]


def test_a_warning_from_a_stage_names_the_users_line():
    whole = make(lambda loss: tw.objectives.multitask(loss, 0.5, np.inf), l2=0.0)
    with pytest.warns(tw.TheoryWarning, match="No strong convexity is known") as caught:
        tw.solve(whole, "acd", rounds=2)
    assert {warning.filename for warning in caught} == {__file__}


def test_with_strong_convexity_nobody_is_warned():
    for method in METHODS:  # warnings are errors here
        assert tw.solve(PROBLEM, method, rounds=1).notes == ()


GIVEN = [
    LSGD(eta=0.01, tau=3, batch=2),
    ACD(theta=0.1, p_w=0.4),
    SCD(eta=0.02, batch=None),
    ASCD(gamma=0.3, rho=0.1),
    SVRCD(rho=0.2, eta=0.03),
    ASVRCD(p_w=0.7, theta2=0.25),
    L2SGDPlus(p_w=0.3),
    PFedMe(eta=0.1, local_rounds=2, inner_steps=3),
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda a: a.name)
def test_the_users_fields_win_and_theory_fills_the_rest(given):
    used = tw.solve(PROBLEM, given, rounds=1).algorithm
    default = tw.solve(PROBLEM, given.name, rounds=1).algorithm
    for field in dataclasses.fields(given):
        chosen = getattr(given, field.name)
        if chosen == "auto":  # a batch, which theory fills with a number, or with None for all rows
            assert getattr(used, field.name) != "auto"
        elif chosen is not None:
            assert getattr(used, field.name) == chosen
        elif not field.metadata.get("static"):
            # ρ of ASCD and μ of LSGD are only there for what is derived from them, learning rates in place of theory's steps.
            spare = (given.name, field.name) in {("ascd", "rho"), ("lsgd", "mu")} or field.name in ("lr", "lr_beta")
            assert spare or getattr(used, field.name) is not None
    changed = [f.name for f in dataclasses.fields(given) if getattr(used, f.name) != getattr(default, f.name)]
    assert changed


def test_a_users_probability_moves_what_theory_derives_from_it():
    used = tw.solve(PROBLEM, ASVRCD(p_w=0.7), rounds=1).algorithm
    prices = {"cost": PRESETS["cross-silo"], "message": 2.0 * 8 * np.size(PROBLEM.start[0])}
    expected = stepsizes.asvrcd(PROBLEM.constants(), np.mean(PROBLEM.clients.counts), p_w=0.7, batch="auto", **prices)
    for name in ("eta", "theta1", "gamma", "nu", "rho", "batch"):
        assert getattr(used, name) == expected[name]


def test_given_constants_replace_the_problems_own():
    constants = PROBLEM.constants().replace(L_w=3.0, L_beta=5.0, mu=0.5)
    used = tw.solve(PROBLEM, "acd", rounds=1, constants=constants).algorithm
    expected = stepsizes.acd(constants)
    assert (used.p_w, used.theta, used.L_w, used.L_beta) == tuple(
        expected[n] for n in ("p_w", "theta", "L_w", "L_beta")
    )


@pytest.mark.parametrize(
    "method, name", [(L2SGDPlus(eta=1.0), "l2sgd_plus"), ("pfedme", "pfedme"), ("al2sgd_plus", "al2sgd_plus")]
)
@pytest.mark.parametrize("objective", ["traditional", "local", "multitask", "weight_sharing"])
def test_the_baselines_solve_the_mixture_only(method, name, objective):
    make_one = {
        "traditional": tw.objectives.traditional,
        "local": tw.objectives.local,
        "multitask": lambda loss: tw.objectives.multitask(loss, 0.1),
        "weight_sharing": lambda loss: tw.objectives.weight_sharing(loss, 1),
    }[objective]
    sentence = rf"^{name} solves the mixture objective only, but this problem's is {objective}; use lsgd, acd or asvrcd"
    with pytest.raises(ValueError, match=sentence):
        tw.solve(make(make_one), method, rounds=1)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"^Unknown algorithm 'asvrdc'; there are lsgd, acd, .* Did you mean 'asvrcd'"):
        tw.solve(PROBLEM, "asvrdc", rounds=1)
    with pytest.raises(ValueError, match=r"^Unknown engine 'fast'; there are simulate, messages"):
        tw.solve(PROBLEM, "lsgd", rounds=1, engine="fast")


# ---- divergence -----------------------------------------------------------------------------------------------------

TOO_LARGE = [
    LSGD(eta=300.0, batch=None),
    SCD(eta=1e3),
    ASCD(eta=1e3),
    SVRCD(eta=1e3),
    ASVRCD(eta=1e3),
    ACD(eta=1e6),
    L2SGDPlus(eta=1e4),
]


@pytest.mark.parametrize(
    ("given", "x64"),
    [*((given, True) for given in TOO_LARGE), (TOO_LARGE[0], False)],
    ids=lambda a: getattr(a, "name", f"x64={a}"),
)
def test_too_large_a_step_is_told(given, x64):
    with jax.enable_x64(x64):
        problem = make(kind="squared")
        told = pytest.warns(tw.TheoryWarning, match="Theory covers a smaller step than eta=1000")
        with told if given.name == "asvrcd" else nullcontext():
            result = tw.solve(problem, given, iterations=3000)
        theory = tw.solve(problem, given.name, rounds=1).algorithm.eta
        assert result.w.dtype == (np.float64 if x64 else np.float32)
    assert result.status == "diverged" and finite(result)
    before, after = result.history["iteration"][-1], result.ledger.iterations
    assert f"{given.name} diverged between iterations {before:,} and {after:,}" in result.message
    assert f"your eta = {given.eta:g} is {given.eta / theory:.3g} times theory's {theory:.3g}" in result.message
    assert before < after < 3000
    assert np.all(np.isfinite(result.history["loss"]))
    with jax.enable_x64(x64):
        assert_allclose(problem.value(result.w, result.beta), result.history["loss"][-1], rtol=1e-4)


def test_divergence_is_noticed_between_thin_records():
    result = tw.solve(make(kind="squared"), LSGD(eta=300.0, batch=None), rounds=5000, every=1000)
    assert result.status == "diverged" and finite(result)
    assert "between iterations 0 and 1,000" in result.message
    assert_array_equal(result.w, np.zeros(3))  # the last finite recorded iterate is the start


def test_divergence_is_noticed_without_any_metric():
    result = tw.solve(make(kind="squared"), LSGD(eta=300.0, batch=None), rounds=3000, record=())
    assert result.status == "diverged" and finite(result) and "iterate not finite" in result.message


def test_other_causes_of_divergence():
    problem = make(kind="squared")
    steep = tw.solve(problem, LSGD(eta=lambda k: 300.0 + 0.0 * k, batch=None), rounds=3000)
    assert steep.status == "diverged" and steep.message.endswith("the schedule's steps are too large, most likely.")
    small = dict.fromkeys(("L_w", "L_beta", "calL_w", "calL_beta"), 0.0001)
    wrong = tw.solve(problem, "lsgd", rounds=3000, constants=problem.constants(rule="paper", **small))
    assert wrong.status == "diverged"
    assert "constants that are not certified (L_beta, L_w, calL_beta, calL_w), most likely too small" in wrong.message


def test_one_seed_may_diverge_alone():
    """SCD with a step at its limit: what one seed does is no business of the others."""
    problem = make(kind="squared", sampling="uniform")
    method = SCD(eta=1.0, p_w=stepsizes.w_probability(problem.constants(rule="paper")))
    alone = [tw.solve(problem, method, iterations=400, seed=s) for s in range(4)]
    assert {run.status for run in alone} == {"diverged", "budget"}
    for run, other in zip(tw.solve(problem, method, iterations=400, seeds=range(4)), alone, strict=True):
        assert run.status == other.status and run.ledger.iterations == other.ledger.iterations
        assert_allclose(run.beta, other.beta, rtol=1e-9)


# ---- special problems -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["acd", "lsgd"])
def test_a_local_problem_counts_iterations_and_sends_nothing(method):
    problem = make(tw.objectives.local)
    result = tw.solve(problem, method, rounds=12, every=5)
    assert_array_equal(result.history["iteration"], [0, 5, 10, 12])
    assert_array_equal(result.history["round"], np.zeros(4))
    ledger = result.ledger
    assert (ledger.rounds, ledger.iterations) == (0, 12)
    assert ledger.floats_up == ledger.floats_down == ledger.bytes_up == ledger.bytes_down == 0
    assert not ledger.gradients_w.any() and ledger.gradients_beta.all()
    assert result.w == () and result.beta.shape == (3, 3)


@pytest.mark.parametrize("method", ["acd", "lsgd"])
def test_a_traditional_problem_has_no_beta(method):
    problem = make(tw.objectives.traditional)
    result = tw.solve(problem, method, rounds=12)
    assert result.beta == () and result.w.shape == (3,)
    assert not result.ledger.gradients_beta.any() and result.ledger.gradients_w.all()
    assert result.ledger.rounds == 12
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_maml_is_solved_without_a_certificate():
    problem = make(lambda loss: tw.objectives.maml(loss, 0.3))
    result = tw.solve(problem, LSGD(batch=None), rounds=200, every=200, record=("loss", "gradient_norm"))
    assert result.history["gradient_norm"][-1] < 0.1 * result.history["gradient_norm"][0]
    with pytest.raises(ValueError, match="The maml objective is not convex"):
        tw.solve(problem, "lsgd", rounds=1, record=("gap",))


def test_two_stages_take_no_constants():
    problem = make(lambda loss: tw.objectives.multitask(loss, 0.5, np.inf))
    with pytest.raises(
        ValueError, match=r"^With Lambda=inf each stage has its own constants: solve the stages separately"
    ):
        tw.solve(problem, "acd", rounds=1, constants=PROBLEM.constants())


# ---- start, progress ------------------------------------------------------------------------------------------------


@every_method
def test_a_start_of_ones_own(method):
    start = plain.point(PROBLEM)
    result = tw.solve(PROBLEM, method, rounds=1, start=start)
    assert_allclose(result.history["loss"][0], PROBLEM.value(*start), rtol=1e-14)
    near = tw.solve(PROBLEM, method, rounds=1, start=PROBLEM.optimum()[:2])
    far = tw.solve(PROBLEM, method, rounds=1)
    assert near.history["loss"][-1] < far.history["loss"][-1]


def test_a_start_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"must have shapes \(\(3,\), \(3, 3\)\), got"):
        tw.solve(PROBLEM, "lsgd", rounds=1, start=(np.zeros(3), np.zeros((4, 3))))


@pytest.mark.parametrize("progress", [True, None])
def test_a_progress_bar_when_asked_for(progress, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then writes as to a terminal
    tw.solve(PROBLEM, "lsgd", rounds=3, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    # There is no terminal here, so without being asked it stays silent.
    assert ("rounds" in err and "3/3" in err) if progress else err == ""
