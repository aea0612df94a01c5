"""Predictions by hand, against the lower bounds, and against runs of small problems."""

import math

import numpy as np
import pytest

from twofold.theory import constants, rates, stepsizes
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.cost import Cost
from twofold.theory.rates import chain_rounds, initial_error, lower_bounds, predict, table1, table2

C = Constants(mu=0.01, L_w=1.0, L_beta=4.0, calL_w=3.0, calL_beta=9.0)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_acd_by_hand():
    theta = stepsizes.acd(C)["theta"]
    p = predict("acd", C, 1e-6, n=50)
    k = math.log(1e6) / -math.log(1 - theta)
    assert (p.iterations, p.rounds, p.grad_w, p.grad_beta) == pytest.approx((k, k / 3, k / 3, 2 * k / 3))
    assert p.rows_per_gradient == 50
    assert p.certainty == "certified"
    assert (1 - theta) ** p.iterations == pytest.approx(1e-6)
    assert predict("acd", C, 1e-6, initial=100.0).iterations == pytest.approx(k * 8 / 6)
    assert predict("acd", C, 2.0).iterations == 0


def test_asvrcd_by_hand():
    h = stepsizes.asvrcd(C, 100)
    kappa = 1 - rates.asvrcd_contraction(h, 0.01)
    total = h["rho"] + h["theta1"] + 0.5
    root = (total - math.sqrt(total**2 - 4 * h["rho"] * h["theta1"])) / 2
    assert kappa == pytest.approx(min(h["gamma"] * 0.01, root))
    p = predict("asvrcd", C, 1e-6, n=100)
    k = math.log(1e6) / -math.log(1 - kappa)
    assert p.iterations == pytest.approx(k)
    assert p.rounds == pytest.approx(k * (1 - 0.75 * 0.9975))
    assert (p.grad_w, p.grad_beta) == pytest.approx((k * (0.5 + 0.25), k * (1.5 + 0.25)))
    assert predict("asvrcd", C, 1e-6, n=100, optimal="beta").grad_beta < p.grad_beta
    with pytest.raises(ValueError, match="give n"):
        predict("asvrcd", C, 1e-6)


def test_svrcd_scd_and_l2sgd_plus_by_hand():
    # SVRCD: η = 1/144, ρ = 0.25/100: 1−ημ = 1 − 6.94e-5 is the slower one
    p = predict("svrcd", C, 1e-3, n=100)
    k = math.log(1e3) / -math.log(1 - 0.01 / 144)
    assert (p.iterations, p.rounds) == pytest.approx((k, k * (1 - 0.75 * 0.9975)))
    slow = predict("svrcd", C.replace(mu=1.0), 1e-3, n=1e6)  # now 1 − ρ/2 is
    assert slow.iterations == pytest.approx(math.log(1e3) / -math.log1p(-0.25e-6 / 2))
    p = predict("scd", C, 1e-3)
    k = math.log(1e3) / -math.log(1 - 0.01 / 48)
    assert (p.iterations, p.rounds, p.grad_beta, p.eta) == pytest.approx((k, k / 4, 3 * k / 4, 1 / 48))
    p = predict("scd", C, 1e-3, sigma2=2.0)  # η = εμ/(4σ²), and half of ε for the rest
    assert p.eta == pytest.approx(1e-5 / 8)
    assert stepsizes.scd_neighbourhood(p.eta, C.mu, 2.0) == pytest.approx(1e-3 / 2)
    assert (1 - p.eta * C.mu) ** p.iterations == pytest.approx(1e-3 / 2)
    p = predict("l2sgd_plus", C, 1e-3, n=100)
    k = math.log(1e3) / -math.log(1 - 0.01 / 72)
    assert (p.iterations, p.rounds, p.grad_w, p.grad_beta) == pytest.approx((k, k / 4, 0, 3 * k / 4))
    assert predict("l2sgd_plus", C, 1e-3, n=1e6).iterations == pytest.approx(math.log(1e3) / -math.log1p(-0.75e-6 / 2))


def test_lsgd_by_hand():
    p = predict("lsgd", C, 1e-3, tau=5)
    eta = stepsizes.lsgd(C, 5)["eta"]
    k = math.log(1e3) / -math.log(1 - eta * 0.01)
    assert (p.iterations, p.rounds, p.grad_w, p.grad_beta) == pytest.approx((k, k / 5, k, k))
    noisy = predict("lsgd", C, 1e-3, tau=5, batch=2, sigma2=0.3, zeta2=0.7, M=10)
    psi = 4 * 0.3 / 20 + 8 * 1.0 * noisy.eta * math.e * 20 * (3 * 0.7 + 0.15)
    assert noisy.eta < eta
    assert noisy.eta * psi == pytest.approx(1e-3 / 2)
    assert (1 - noisy.eta * 0.01) ** noisy.iterations * eta / noisy.eta == pytest.approx(1e-3 / 2)
    assert noisy.rows_per_gradient == 2
    assert noisy.certainty == "theorem"
    flat = C.replace(mu=0.0)
    assert predict("lsgd", flat, 1e-3, tau=5).iterations == pytest.approx(1e3)
    # zero step left to the noise: one step size decides, not both
    assert predict("lsgd", C, 10.0, tau=5, initial=1e3, zeta2=1e-9).eta == pytest.approx(eta)


def test_absent_blocks_cost_nothing():
    only_beta = C.replace(L_w=0.0, calL_w=0.0)
    only_w = C.replace(L_beta=0.0, calL_beta=0.0)
    for method in ("lsgd", "acd", "scd", "svrcd", "asvrcd"):
        p = predict(method, only_beta, 1e-3, n=10, tau=2)
        assert p.rounds == 0
        assert p.grad_w == 0
        assert 0 < p.grad_beta < math.inf
        p = predict(method, only_w, 1e-3, n=10, tau=2)
        assert p.grad_beta == 0
        assert p.rounds > 0


def test_what_cannot_be_predicted():
    for method in ("ascd", "pfedme"):
        p = predict(method, C, 1e-3, n=10)
        assert math.isnan(p.iterations)
        assert p.certainty == "none"
        assert method in p.note
    for method in ("acd", "scd", "svrcd", "asvrcd", "l2sgd_plus"):
        p = predict(method, C.replace(mu=0.0), 1e-3, n=10)
        assert p.iterations == math.inf
        assert "μ > 0" in p.note
    with pytest.raises(ValueError, match="choose from lsgd, acd"):
        predict("adam", C, 1e-3)
    with pytest.raises(ValueError, match="eps=0"):
        predict("acd", C, 0)
    with pytest.raises(ValueError, match="no initial error"):
        initial_error("ascd", C, 1.0, 1.0, n=10)


def test_initial_errors_by_hand():
    assert initial_error("acd", C, 2.0, 5.0) == pytest.approx(2.025)
    assert initial_error("scd", C, 2.0, 5.0) == 5
    assert initial_error("lsgd", C, 2.0, 5.0, tau=1) == pytest.approx(160)
    # SVRCD: 4η²/ρ · 2𝓛 · gap with η = 1/144, ρ = 0.0025, 𝓛 = 24
    assert initial_error("svrcd", C, 2.0, 5.0, n=100) == pytest.approx(5 + 4 / 144**2 / 0.0025 * 48 * 2)
    # L2SGD+: η = 1/72, the slower memory is renewed with 0.75/100
    assert initial_error("l2sgd_plus", C, 2.0, 5.0, n=100, sigma2=3.0) == pytest.approx(5 + 4 / 72**2 / 0.0075 * 3)
    h = stepsizes.asvrcd(C, 100)
    kappa = 1 - rates.asvrcd_contraction(h, 0.01)
    a = 2 * h["gamma"] * h["nu"] / h["theta1"]
    expected = 5 / a + 2 * (1 + 0.5 / (0.0025 - kappa))
    assert initial_error("asvrcd", C, 2.0, 5.0, n=100) == pytest.approx(expected)


def test_predictions_with_noise_constants():
    known = C.replace(noise_w=0.5, noise_beta=6.0, sampling="uniform")
    h = stepsizes.asvrcd(known, 100, batch=4)
    p = predict("asvrcd", known, 1e-6, n=100, batch=4)
    k = math.log(1e6) / -math.log1p(-h["kappa"])
    talks = 1 - (1 - h["p_w"]) * (1 - h["rho"])
    calls = (8 * h["p_w"] + 100 * h["rho"], 8 * (1 - h["p_w"]) + 100 * h["rho"])  # in rows
    assert (p.iterations, p.rounds, p.grad_w, p.grad_beta) == pytest.approx((k, k * talks, k * calls[0], k * calls[1]))
    two = stepsizes.asvrcd(known, 100, reference="two")
    p = predict("asvrcd", known, 1e-6, n=100, reference="two")
    k = math.log(1e6) / -math.log1p(-two["kappa"])
    assert p.rounds == pytest.approx(k * (1 - (1 - two["p_w"]) * (1 - two["rho_w"])))  # a new v^β is silent
    assert p.grad_beta == pytest.approx(k * (2 * (1 - two["p_w"]) + 100 * two["rho_beta"]))
    start = initial_error("asvrcd", known, 2.0, 5.0, n=100, reference="two")
    a = 2 * two["gamma"] * two["nu"] / two["theta1"]
    anchors = sum(two[f"theta_{i}"] / (two[f"rho_{i}"] - two["kappa"]) for i in ("w", "beta"))
    assert start == pytest.approx(5 / a + 2 * (1 + anchors))
    h = stepsizes.svrcd(known, 100, batch=None)
    p = predict("svrcd", known, 1e-3, n=100, batch=None)
    k = math.log(1e3) / -math.log1p(-min(h["eta"] * 0.01, h["rho"] / 2))
    assert p.grad_w == pytest.approx(k * (200 * h["p_w"] + 100 * h["rho"]))
    h = stepsizes.scd(known, n=100, batch=4)
    p = predict("scd", known, 1e-3, n=100, batch=4)
    assert p.grad_beta == pytest.approx(4 * (1 - h["p_w"]) * math.log(1e3) / -math.log1p(-h["eta"] * 0.01))
    assert predict("lsgd", known, 1e-3, n=100, batch=None, sigma2=5.0).eta == stepsizes.lsgd(known, 1, None)["eta"]
    few, many = (predict("asvrcd", known, 1e-6, n=100, cost=Cost(price, 0, 1)).rounds for price in (1e6, 1e-6))
    assert few < many
    # Knowing the noise never costs iterations: the old steps are for the largest row of all.
    assert (
        predict("svrcd", known, 1e-6, n=100, p_w=0.25, rho=0.01).iterations
        < predict("svrcd", C, 1e-6, n=100, rho=0.01).iterations
    )


# --- upper and lower bounds meet --------------------------------------------------------------------------------------


@pytest.mark.parametrize("L_w", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("mu", [1e-4, 1e-6])
def test_acd_meets_the_lower_bounds(L_w, mu):
    c = Constants(mu=mu, L_w=L_w, L_beta=3.0, calL_w=L_w, calL_beta=3.0)
    p, bound = predict("acd", c, 1e-9), lower_bounds(c, 1, 1e-9)
    assert p.rounds == pytest.approx(bound.rounds, rel=0.05)  # √(L^w/μ) log(1/ε), with the constant 1
    assert p.grad_w == pytest.approx(bound.grad_w, rel=0.05)
    assert p.grad_beta == pytest.approx(bound.grad_beta, rel=0.05)


@pytest.mark.parametrize("n", [1, 10, 1e3, 1e5])
@pytest.mark.parametrize("mu", [1e-2, 1e-6])
@pytest.mark.parametrize("calL_w", [0.02, 1.0, 50.0])
def test_asvrcd_meets_the_lower_bounds_up_to_a_constant(n, mu, calL_w):
    """(n + √(n𝓛/μ)) log(1/ε) for the block that is optimised, with a constant below 30."""
    c = Constants(mu=mu, L_w=calL_w, L_beta=3.0, calL_w=calL_w, calL_beta=3.0)
    digits = math.log(1e9)
    p = predict("asvrcd", c, 1e-9, n=n)
    assert p.grad_w <= 30 * (n + math.sqrt(n * calL_w / mu)) * digits
    assert p.rounds <= p.grad_w
    p = predict("asvrcd", c, 1e-9, n=n, optimal="beta")
    assert p.grad_beta <= 30 * (n + math.sqrt(n * 3.0 / mu)) * digits


def test_asvrcd_is_accelerated():
    """For μ/100 ASVRCD takes ten times the iterations and SVRCD a hundred times, once n is no bottleneck."""

    def growth(method):
        few, many = (predict(method, C.replace(mu=mu), 1e-6, n=2).iterations for mu in (1e-5, 1e-7))
        return many / few

    assert growth("asvrcd") == pytest.approx(10, rel=0.05)
    assert growth("svrcd") == pytest.approx(100, rel=0.05)


def test_a_refresh_as_frequent_as_w_steps_saves_rounds():
    c = Constants(mu=1e-4, L_w=1.0, L_beta=3.0, calL_w=1.0, calL_beta=3.0)
    usual, often = predict("asvrcd", c, 1e-6, n=10**4), predict("asvrcd", c, 1e-6, n=10**4, rho=0.25)
    assert often.rounds < usual.rounds / 10


def test_lower_bounds_by_hand():
    bound = lower_bounds(C, 100, 1e-3)
    digits = math.log(1e3)
    expected = (10 * digits, 100 + math.sqrt(3e4) * digits, 100 + math.sqrt(9e4) * digits)
    assert (bound.rounds, bound.grad_w, bound.grad_beta) == pytest.approx(expected)
    assert lower_bounds(C.replace(calL_w=0.0), 100, 1e-3).grad_w == 0
    with pytest.raises(ValueError, match="μ = 0"):
        lower_bounds(C.replace(mu=0.0), 100, 1e-3)


# --- the chain --------------------------------------------------------------------------------------------------------


class Chain:
    """½wᵀAw − w_1 as the mean of two clients: the second has w_1 − w_2, w_3 − w_4, …; the first the rest and −w_1."""

    def __init__(self, kappa, d=120):
        self.c = 4 / (kappa - 1)
        edges = np.zeros((2, d, d))
        for i in range(-1, d):  # (−1, 0) and (d−1, d) are the half edges that make the diagonal 2
            e = np.zeros(d)
            if i >= 0:
                e[i] += 1
            if i + 1 < d:
                e[i + 1] -= 1
            edges[(i + 1) % 2] += np.outer(e, e)
        self.hessians = 2 * edges + self.c * np.eye(d)
        self.linear = np.stack([2 * np.eye(d)[0], np.zeros(d)])
        self.optimum = np.linalg.solve(self.hessians.mean(0), self.linear.mean(0))

    def error(self, w):
        return np.sum((w - self.optimum) ** 2) / np.sum(self.optimum**2)


@pytest.mark.parametrize("kappa", [10.0, 400.0])
def test_chain_has_the_constants_it_claims(kappa):
    chain = Chain(kappa)
    smooth = max(np.linalg.eigvalsh(h)[-1] for h in chain.hessians)
    assert smooth == pytest.approx(4 + chain.c)
    assert (4 + chain.c) / chain.c == pytest.approx(kappa)
    ends = np.linalg.eigvalsh(chain.hessians.mean(0))
    assert chain.c < ends[0] < chain.c + 1e-2
    assert 4 + chain.c - 1e-2 < ends[-1] < 4 + chain.c
    q = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    assert chain.optimum[:20] == pytest.approx(q ** np.arange(1, 21), rel=1e-6)


@pytest.mark.parametrize("kappa", [10.0, 100.0, 400.0])
@pytest.mark.parametrize("method", ["local steps", "optimal"])
def test_no_method_beats_the_chain(kappa, method):
    """Even each client minimising over all it can reach, or the best point in the span, needs chain_rounds rounds."""
    chain, w = Chain(kappa), np.zeros(120)
    for k in range(1, 31):
        if method == "local steps":
            step = 1 / (4 + chain.c)
            models = []
            for h, b in zip(chain.hessians, chain.linear, strict=True):
                local = w.copy()
                for _ in range(50):
                    local = local - step * (h @ local - b)
                models.append(local)
            w = np.mean(models, axis=0)
            assert np.flatnonzero(np.abs(w) > 0).max(initial=-1) < k  # one coordinate per round
        else:
            w = np.where(np.arange(120) < k, chain.optimum, 0)
        assert chain_rounds(kappa, chain.error(w)) <= k * (1 + 1e-6)
    if method == "optimal":
        assert chain_rounds(kappa, chain.error(w)) == pytest.approx(30, rel=1e-6)  # and the bound is exact


def test_acd_needs_at_least_the_rounds_of_the_chain_and_not_many_more():
    for kappa in (10.0, 1e3, 1e6):
        c = Constants(mu=1.0, L_w=kappa, L_beta=0.0, calL_w=kappa, calL_beta=0.0)
        needed = predict("acd", c, 1e-8).rounds
        assert chain_rounds(kappa, 1e-8) <= needed <= 4.5 * chain_rounds(kappa, 1e-8)


def test_chain_rounds_at_its_ends():
    assert chain_rounds(4.0, 1 / 81) == pytest.approx(2)  # q = 1/3
    assert chain_rounds(1.0, 1e-9) == 0
    assert chain_rounds(9.0, 1.0) == 0
    assert chain_rounds(1e10, 1e-4) == pytest.approx(math.sqrt(1e10) / 4 * math.log(1e4), rel=1e-6)
    with pytest.raises(ValueError, match="at least 1"):
        chain_rounds(0.5, 0.1)


# --- a run ------------------------------------------------------------------------------------------------------------


def test_lsgd_keeps_its_promise_on_heterogeneous_quadratics():
    """Full gradients, τ = 4, clients that disagree: the weighted mean of the iterates is ε-good when predicted."""
    M, lam, tau, eps = 3, 1.0, 4, 1e-2
    h, a = np.array([0.3, 1.0, 2.0]), np.array([-1.0, 0.5, 2.0])  # f'_m(β) = ½h(β − a)²
    c = constants.mixture(LossConstants(h, h, h), lam)
    s = M**-0.5

    def gradients(w, beta):
        return lam * s * (s * w - beta), h * (beta - a) + lam * (beta - s * w)

    def value(w, beta):
        return np.mean(0.5 * h * (beta - a) ** 2 + 0.5 * lam * (s * w - beta) ** 2)

    full = np.zeros((M + 1, M + 1))
    full[0, 0] = lam * s * s
    full[0, 1:] = full[1:, 0] = -lam * s / M
    full[1:, 1:] = np.diag((h + lam) / M)
    best = np.linalg.solve(full, np.concatenate([[0], h * a / M]))
    of_w, of_beta = gradients(best[0], best[1:])
    zeta2 = np.mean(of_w**2 + of_beta**2)
    p = predict(
        "lsgd", c, eps, tau=tau, zeta2=zeta2, M=M, initial=initial_error("lsgd", c, 0, np.sum(best**2), tau=tau)
    )
    w, beta = np.zeros(M), np.zeros(M)
    total, mean = 0.0, np.zeros(M + 1)
    for k in range(math.ceil(p.iterations)):
        if k % tau == 0:
            w = np.full(M, w.mean())
        weight = (1 - p.eta * c.mu) ** (-k - 1)
        total += weight
        mean += weight * np.concatenate([[w.mean()], beta])
        of_w, of_beta = gradients(w, beta)
        w, beta = w - p.eta * of_w, beta - p.eta / M * of_beta
    mean /= total
    assert value(mean[0], mean[1:]) - value(best[0], best[1:]) <= eps


# --- the tables -------------------------------------------------------------------------------------------------------


def test_table1():
    table = table1(C, 100, 1e-6, tau=5, M=10)
    assert list(table.rows) == [*rates.METHODS, "lower bound"]
    for method in rates.METHODS:
        p = predict(method, C, 1e-6, n=100, tau=5, M=10)
        assert table[method]["rounds"] == pytest.approx(p.rounds, nan_ok=True)
        assert table[method]["grad_beta"] == pytest.approx(p.grad_beta, nan_ok=True)
    assert table["lower bound"]["rounds"] == lower_bounds(C, 100, 1e-6).rounds
    lines = str(table).splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("To reach 1e-06")
    assert "rounds" in lines[1]
    assert "lower bound" not in table1(C.replace(mu=0.0), 100, 1e-6).rows


@pytest.mark.parametrize(
    ("objective", "more", "expected"),
    [
        ("traditional", {}, (5, 5, 0, 100 + 70, 0)),
        ("local", {}, (0, 0, 5, 0, 100 + 70)),
        ("weight_sharing", {}, (5, 5, 5, 170, 170)),
        ("mixture", {"lam": 0.16}, (2, 2, math.sqrt(29), None, 100 + math.sqrt(100 * 53))),
        (
            "multitask",
            {"lam": 0.02, "Lambda": 3.0},
            (math.sqrt(151), math.sqrt(151), math.sqrt(51), 100 + math.sqrt(29500), 100 + math.sqrt(9900)),
        ),
        (
            "adaptive",
            {"alpha": [0.5, 0.2], "Lambda": 1.0},
            (math.sqrt(125), math.sqrt(125), 8, 100 + math.sqrt(24500), 100 + 112),
        ),
    ],
)
def test_table2_by_hand(objective, more, expected):
    """μ' = 0.04, L' = 1, 𝓛' = 1.96: √(L'/μ') = 5, √(n𝓛'/μ') = 70."""
    table = table2(objective, 0.04, 1.0, 1.96, n=100, **more)
    row = table.rows[objective]
    assert row[:5] == pytest.approx(expected)
    assert row[5] == "yes"
    with_log = table2(objective, 0.04, 1.0, 1.96, n=100, eps=1e-3, **more).rows[objective]
    assert with_log[2] == pytest.approx(expected[2] * math.log(1e3))
    assert objective in str(table)


@pytest.mark.parametrize("objective", ["mixture", "multitask", "adaptive", "weight_sharing"])
def test_table2_follows_from_the_constants(objective):
    """Each entry is √(L/μ) of the objective's constants, up to the √2 or √3 that the table ignores."""
    loss, M = LossConstants(0.2, 3.0, 7.0), 6
    c, more = {
        "mixture": (constants.mixture(loss, 0.5, clients=M), {"lam": 0.5}),
        "multitask": (constants.multitask(loss, 0.5, 4.0, clients=M), {"lam": 0.5, "Lambda": 4.0}),
        "adaptive": (constants.adaptive(loss, 0.3, 1.0, clients=M), {"alpha": 0.3, "Lambda": 1.0}),
        "weight_sharing": (constants.weight_sharing(loss, clients=M), {}),
    }[objective]
    ignored = {"mixture": 3, "multitask": 2, "adaptive": 2, "weight_sharing": 1}[objective]
    row = table2(objective, 0.2, 3.0, 7.0, n=50, **more)[objective]
    assert row["rounds"] * math.sqrt(ignored) == pytest.approx(math.sqrt(c.L_w / c.mu))
    assert row["full_grad_beta"] * math.sqrt(ignored) == pytest.approx(math.sqrt(c.L_beta / c.mu))
    if objective != "mixture":
        assert (row["row_grad_w"] - 50) * math.sqrt(ignored) == pytest.approx(math.sqrt(50 * c.calL_w / c.mu))
    assert (row["row_grad_beta"] - 50) * math.sqrt(ignored) == pytest.approx(math.sqrt(50 * c.calL_beta / c.mu))


def test_slip_mt2_table_has_no_gradients_left_for_a_large_penalty():
    """Printed √(L'/λ) for ∇_β: for λ = 100 L' a tenth of an evaluation, though √(L^β/μ) exceeds 1."""
    loss = LossConstants(1.0, 1.0, 1.0)
    c = constants.multitask(loss, 100.0, 150.0, clients=4)
    assert math.sqrt(1 / 100) == pytest.approx(0.1)
    assert math.sqrt(c.L_beta / c.mu) > 1.4
    assert table2("multitask", 1.0, 1.0, 1.0, lam=100.0, Lambda=150.0)["multitask"]["full_grad_beta"] >= 1


def test_table2_speaks():
    assert table2("mixture", 0.2, 1.0, 1.0, lam=0.1)["mixture"]["condition_holds"] == "no"
    with pytest.raises(ValueError, match="mixture needs lam"):
        table2("mixture", 0.1, 1.0, 1.0)
    with pytest.raises(ValueError, match="no objective 'maml'"):
        table2("maml", 0.1, 1.0, 1.0)
    with pytest.raises(ValueError, match="mu=0"):
        table2("local", 0, 1.0, 1.0)
