"""Steps that know batch and clients: by hand, at their limits, and exactly on quadratics."""

import itertools
import math

import numpy as np
import pytest

from quadratics import KINDS, instance, largest, radius
from twofold.errors import InputError
from twofold.theory import stepsizes, tight
from twofold.theory.constants import Constants
from twofold.theory.cost import PRESETS, Cost, cost_of

PAPER = Constants(mu=0.01, L_w=1.0, L_beta=4.0, calL_w=3.0, calL_beta=9.0)
C = PAPER.replace(noise_w=0.5, noise_beta=6.0, sampling="uniform")


def problems(number, seed=0, M=(1, 4), n=(2, 4), d=(1, 3), ridge=(-3.0, -1.0)):
    rng = np.random.default_rng(seed)
    for i in range(number):
        shape = (int(rng.integers(*M)), int(rng.integers(*n)), int(rng.integers(*d)), int(rng.integers(*d)))
        yield instance(rng, *shape, KINDS[i % len(KINDS)], 10 ** rng.uniform(*ridge))


# --- the constants ----------------------------------------------------------------------------------------------------


def test_noise_constants_come_together():
    assert C.how["noise_w"] == "given"
    assert C.why["noise_beta"] == "set by hand"
    assert C.replace(noise_w=None, noise_beta=None, sampling=None) == PAPER
    assert set(PAPER.how) == {"mu", "L_w", "L_beta", "calL_w", "calL_beta"}  # the paper's have the five and no more
    known = Constants(1, 1, 1, 1, 1, {"noise_w": "certified"}, {"noise_w": "rows"}, 0.5, 0.5, "importance")
    assert "V^w   0.5    certified  rows (importance sampling)" in str(known)
    for wrong, words in (
        ({"noise_w": 1.0}, "both blocks"),
        ({"noise_w": 1.0, "noise_beta": 1.0}, "come together"),
        ({"sampling": "uniform"}, "come together"),
        ({"noise_w": 1.0, "noise_beta": 1.0, "sampling": "both"}, "sampling must be"),
        ({"noise_w": -1.0, "noise_beta": 1.0, "sampling": "uniform"}, "V\\^w must be"),
        ({"L_client": math.inf}, "L\\^w_m must be"),
        ({"drawn_w": 1.0}, "largest drawn row of both blocks"),
        ({"drawn_w": 1.0, "drawn_beta": 1.0}, "belongs to a sampling"),
    ):
        with pytest.raises(InputError, match=words):
            PAPER.replace(**wrong)
    with pytest.raises(InputError, match="no constant 'noise_w'"):
        Constants(1, 1, 1, 1, 1, {"noise_w": "given"})


# --- variance and expected smoothness ---------------------------------------------------------------------------------


def test_variance_by_hand():
    assert tight.variance(C, 0.25, 2) == pytest.approx((0.25 / 0.25 + 3 * 1, 3 / 0.75 + 4 / 3))
    assert tight.variance(C, 0.25, None) == pytest.approx((3.0, 4 / 3))
    assert tight.variance(PAPER, 0.25, 1) == pytest.approx((12, 12))
    assert tight.variance(PAPER, 0.25, 4) == pytest.approx((3 + 0.5 / 0.25, 3))
    assert tight.variance(PAPER, 0.25, None) == tight.variance(C, 0.25, None)
    assert tight.variance(C.replace(L_beta=0.0, noise_beta=0.0), 1.0, 1) == (0.5, 0.0)
    with pytest.raises(InputError, match="batch=0"):
        tight.variance(C, 0.5, 0)


def test_expected_smoothness_of_a_batch():
    """E‖G(x) − G(x')‖² ≤ 2𝓛(b) D_F(x, x'): exact second moments of both blocks against 𝓛(b)."""
    for q, batch, sampling in itertools.product(
        problems(24, M=(1, 6), n=(2, 8)), (1, 8, None), ("uniform", "importance")
    ):
        c = q.constants(sampling)
        for p in (0.1, 0.6):
            square = q.second_moment("w", sampling, batch) / p + q.second_moment("beta", sampling, batch) / (1 - p)
            assert largest(square, q.hessian) <= stepsizes.expected_smoothness(c, p, batch) * (1 + 1e-9)
    assert stepsizes.expected_smoothness(PAPER, 0.25, 100) == 24  # the paper's, whatever the batch


def test_smoothness_of_rows_drawn_with_replacement():
    """Formula 2: E[A_J²] ≼ ((1−1/b)L + 𝓛/b) H for one client without a rest, attained by equal rows."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        X = rng.standard_normal((5, 2)) * (rng.pareto(1.0, (5, 1)) + 0.05)
        H, rows = X.T @ X / 5 + 1e-9 * np.eye(2), np.sum(X**2, axis=1)
        L = np.linalg.eigvalsh(H)[-1]
        for b in (1, 3, 5):
            second = (1 - 1 / b) * H @ H + sum(r * np.outer(x, x) for r, x in zip(rows, X, strict=True)) / 5 / b
            assert largest(second, H) <= tight.smoothness(L, rows.max(), b) * (1 + 1e-6)
    assert tight.smoothness(2.0, 2.0, 7) == 2


# --- the contraction --------------------------------------------------------------------------------------------------


def test_contraction_is_the_root():
    rng = np.random.default_rng(0)
    for _ in range(200):
        eta, L, mu = 10 ** rng.uniform(-3, 0), 1.0, 10 ** rng.uniform(-12, -1)
        theta, rho = rng.uniform(0, 0.3, 2) * rng.integers(0, 2, 2), 10 ** rng.uniform(-5, 0, 2)
        kappa, theta1 = tight.contraction(eta, L, mu, tuple(theta), tuple(rho))
        slowed = 1 + sum(t / (r - kappa) for t, r in zip(theta, rho, strict=True) if t > 0)
        if kappa > 0:
            assert kappa**2 * slowed == pytest.approx(2 * eta * (1 - eta / 2) * mu * (1 - kappa), rel=1e-6)
            assert theta1 == pytest.approx(kappa * slowed)
        else:
            assert theta1 + sum(theta) > 1


def test_contraction_at_its_ends():
    assert tight.contraction(2.0, 1.0, 0.1, (0.0, 0.0), (1.0, 1.0))[0] == 0  # c = 0
    assert tight.contraction(0.1, 1.0, 0.1, (0.9, 0.2), (0.5, 0.5))[0] == 0  # Σθ > 1
    tiny = float(tight.contraction(0.5, 1.0, 1e-280, (0.1, 0.1), (0.5, 0.5))[0])
    assert tiny == pytest.approx(math.sqrt(2 * 0.5 * 0.75 * 1e-280 / 1.4), rel=1e-6)


def test_tight_finds_the_best_step():
    for sigma, rho, mu in itertools.product(
        ((0.0, 0.0), (1.0, 3.0), (50.0, 0.0)), ((0.3, 0.02), (0.001, 0.001)), (1e-2, 1e-6)
    ):
        h = tight.tight(sigma, rho, 1.0, mu)
        top = min(2.0, 0.5 / sum(sigma) if sum(sigma) else 2.0)
        ladder = top * np.geomspace(1e-4, 0.9999, 5000)
        theta = (2 * ladder * sigma[0], 2 * ladder * sigma[1])
        assert h.kappa >= np.max(tight.contraction(ladder, 1.0, mu, theta, rho)[0]) * (1 - 1e-3)
        assert h.gamma * mu == pytest.approx(1 - h.nu, rel=1e-9)  # z's pull to x and its step are one proximal step
        assert h.nu / h.theta1 * 2 * h.eta * (1 - h.eta / 2) == pytest.approx(h.gamma, rel=1e-12)
        again = tight.tight(sigma, rho, 1.0, mu, eta=h.eta)
        assert again == h
    assert tight.tight((1.0, 1.0), (0.1, 0.1), 1.0, 0.01, eta=5.0).eta < 0.25  # not covered: the best one instead


def test_all_rows_and_one_block_is_nesterov():
    """b = n and no β: nothing is random, and the steps are the deterministic method's, η = 1/L, κ² = (μ/L)(1−κ)."""
    c = Constants(1e-3, 1.0, 0.0, 9.0, 0.0, noise_w=4.0, noise_beta=0.0, sampling="uniform")
    h = stepsizes.asvrcd(c, 50, batch=None)
    acd = stepsizes.acd(c)
    assert (h["p_w"], h["theta2"]) == (1, 0)
    assert h["eta"] == pytest.approx(1, rel=0.02)  # the line search's: κ is flat around its maximum
    assert h["kappa"] == pytest.approx(acd["theta"], rel=1e-4)
    assert stepsizes.scd(c, batch=None)["eta"] == 1
    assert stepsizes.svrcd(c, 50, batch=None)["eta"] == 1
    assert stepsizes.lsgd(c.replace(L_client=2.0), 1, None)["eta"] == 1 / 8


def test_a_larger_batch_allows_larger_steps():
    for find in (
        lambda b: stepsizes.scd(C, 0.3, batch=b),
        lambda b: stepsizes.svrcd(C, 100, p_w=0.3, rho=0.01, batch=b),
        lambda b: stepsizes.asvrcd(C, 100, p_w=0.3, rho=0.01, batch=b),
        lambda b: stepsizes.lsgd(C, 1, b),
        lambda b: stepsizes.l2sgd_plus(C, 0.3, batch=b),
    ):
        etas = [find(b)["eta"] for b in (1, 4, 64, None)]
        assert etas == sorted(etas)
        assert etas[-1] > etas[0]


def test_the_papers_constants_do_not_see_the_batch():
    for find in (
        lambda c, b: stepsizes.scd(c, n=50, batch=b),
        lambda c, b: stepsizes.svrcd(c, 100, batch=b),
        lambda c, b: stepsizes.asvrcd(c, 100, batch=b),
        lambda c, b: stepsizes.ascd(c, 100, batch=b),
        lambda c, b: stepsizes.hybrid(c, 100, batch=b),
        lambda c, b: stepsizes.lsgd(c, 3, b),
        lambda c, b: stepsizes.l2sgd_plus(c, batch=b),
    ):
        assert find(PAPER, 1) == find(PAPER, 64) == find(PAPER, None)


def test_what_the_user_sets_wins():
    h = stepsizes.asvrcd(C, 100, p_w=0.37, rho=0.05, eta=1e-3)
    assert (h["p_w"], h["rho"], h["eta"], h["note"]) == (0.37, 0.05, 1e-3, None)
    h = stepsizes.asvrcd(C, 100, eta=10.0)
    assert "smaller step than eta=10" in h["note"]
    h = stepsizes.asvrcd(C, 100, rho=(None, 0.5), p_w=0.2, reference="two")
    assert (h["rho_w"], h["rho_beta"]) == (pytest.approx(0.002), 0.5)
    assert stepsizes.asvrcd(C, 100, rho=0.1, cost=Cost(1, 0, 1), reference="two")["rho_w"] == 0.1
    assert stepsizes.svrcd(C, 100, p_w=0.4, rho=0.3)["rho"] == 0.3
    for wrong in (
        {"rho": 0.0},
        {"rho": (0.1, 2.0), "reference": "two"},
        {"p_w": 1.0},
        {"reference": "three"},
        {"rho": (0.1, 0.1)},
    ):
        with pytest.raises(InputError):
            stepsizes.asvrcd(C, 100, **wrong)
    with pytest.raises(InputError, match="one probability"):
        stepsizes.asvrcd(PAPER, 100, rho=(0.1, 0.1))
    with pytest.raises(InputError, match="at least one row"):
        stepsizes.asvrcd(C, 0)
    with pytest.raises(InputError, match="both 0"):
        stepsizes.asvrcd(Constants(0, 0, 0, 0, 0, noise_w=0, noise_beta=0, sampling="uniform"), 5)


def test_without_strong_convexity_it_says_so():
    flat = C.replace(mu=0.0)
    for h in (stepsizes.asvrcd(flat, 9), stepsizes.ascd(flat, 9), stepsizes.hybrid(flat, 9)):
        assert h["note"].endswith("for a guaranteed rate.")
        assert h["eta"] > 0


# --- exactly, on quadratics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("batch", [1, 8, None])
def test_svrcd_and_scd_contract_as_claimed(sampling, batch):
    """E‖x⁺ − x*‖² ≼ (1−ημ)‖x − x*‖² and the potential of SVRCD, as quadratic forms, from exact second moments of G."""
    gains = []
    for q in problems(24, seed=1, M=(1, 6), n=(2, 8)):
        c, H, eye = q.constants(sampling), q.hessian, np.eye(q.dim)

        def square(p, q=q):  # E[GᵀG]
            return q.second_moment("w", sampling, batch) / p + q.second_moment("beta", sampling, batch) / (1 - p)

        h = stepsizes.scd(c, n=q.n, batch=batch)
        step = eye - 2 * h["eta"] * H + h["eta"] ** 2 * square(h["p_w"])
        assert np.linalg.eigvalsh(step)[-1] <= 1 - h["eta"] * c.mu + 1e-9
        gains.append(h["eta"] * 2 * stepsizes.expected_smoothness(c, h["p_w"], batch))
        h = stepsizes.svrcd(c, q.n, batch=batch)
        noise, eta, rho = square(h["p_w"]) - H @ H, h["eta"], h["rho"]
        weight = 4 * eta**2 / rho * noise + 1e-12 * eye  # s² = Var(G(v) − G(x*))
        form = np.block([[eye, 0 * eye], [0 * eye, weight]])
        after = np.block(
            [[(eye - eta * H) @ (eye - eta * H) + eta**2 * noise + rho * weight, -(eta**2) * noise],
             [-(eta**2) * noise, eta**2 * noise + (1 - rho) * weight]]
        )  # fmt: skip
        assert largest(after, form) <= max(1 - eta * c.mu, 1 - rho / 2) + 1e-6
    assert min(gains) > 1 and max(gains) < 2  # over 1/(2𝓛(b))


def test_svrcd_contracts_with_every_draw_summed():
    """The same without second moments by formula: all draws of rows, coins and refreshes."""
    for q in problems(8, seed=1):
        c, eye, zero = q.constants(), np.eye(q.dim), np.zeros((q.dim, q.dim))
        h = stepsizes.svrcd(c, q.n)
        y, v, found = np.hstack([eye, zero]), np.hstack([zero, eye]), []
        for block, chance, mask in zip(("w", "beta"), (h["p_w"], 1 - h["p_w"]), q.masks, strict=True):
            for share, H in q.draws(block, "uniform"):
                new = y - h["eta"] * (mask @ H / chance @ (y - v) + q.hessian @ v)
                found += [(chance * share * h["rho"], np.vstack([new, y])),
                          (chance * share * (1 - h["rho"]), np.vstack([new, v]))]  # fmt: skip
        assert radius(found) <= max(1 - h["eta"] * c.mu, 1 - h["rho"] / 2) + 1e-9


def test_l2sgd_plus_knows_its_batch():
    """State: β, a memory of each row and of the penalty, two rows a client drawn with replacement."""
    rng, M, n, d, b, lam = np.random.default_rng(0), 2, 3, 1, 2, 0.4
    for _ in range(4):
        a = (rng.standard_normal((M, n)) * (rng.pareto(1.0, (M, n)) + 0.1)) ** 2 + 0.05
        share = np.full(M, 1 / M)
        mu_beta = np.linalg.eigvalsh(np.diag(a.mean(1) * share) + lam * (np.diag(share) - np.outer(share, share)))[0]
        c = Constants(mu_beta, lam / M, np.max(share * (a.mean(1) + lam)), lam / M, np.max(share * (a.max(1) + lam)),
                      noise_w=0.0, noise_beta=np.max(share * a.max(1)), sampling="uniform")  # fmt: skip
        h = stepsizes.l2sgd_plus(c, batch=b)
        p, eta = h["p"], h["eta"]
        one = stepsizes.l2sgd_plus(c, p_w=p, batch=1)["eta"]
        assert one <= eta
        penalty = lam * (np.diag(share) - np.outer(share, share))
        state = np.eye(M * (2 + n))
        x, memory, psi = state[:M], state[M : M + M * n].reshape(M, n, -1), state[M + M * n :]
        mean = share[:, None] * memory.mean(1)
        flat = memory.reshape(M * n, -1)
        maps = [(p, np.vstack([x - eta * ((penalty @ x - psi) / p + psi + mean), flat, penalty @ x]))]
        for rows in itertools.product(itertools.product(range(n), repeat=b), repeat=M):
            new = memory.copy()
            difference = np.zeros_like(mean)
            for m, chosen in enumerate(rows):
                for j in chosen:
                    new[m, j] = a[m, j] * x[m]
                    difference[m] += share[m] * (a[m, j] * x[m] - memory[m, j]) / b
            step = x - eta * (difference / (1 - p) + mean + psi)
            maps.append(((1 - p) / n ** (b * M), np.vstack([step, new.reshape(M * n, -1), psi])))
        assert sum(q for q, _ in maps) == pytest.approx(1)
        assert radius(maps) <= max(1 - eta * c.mu, 1 - min(p, (1 - p) / n) / 2) + 1e-9
        assert d == 1
    assert stepsizes.l2sgd_plus(C, 0.5, batch=None)["eta"] == pytest.approx(1 / (6 * 4 / 0.5))
    assert stepsizes.l2sgd_plus(C, 0.5, batch=1)["eta"] == stepsizes.l2sgd_plus(PAPER, 0.5)["eta"]


def test_participation_contracts_as_claimed():
    """SAGA over clients, state (w, h_1, …, h_M) of deviations, each present with its own probability."""
    rng = np.random.default_rng(0)
    for trial in range(12):
        M, d = 3, 2
        p, q = rng.dirichlet(np.ones(M)), rng.uniform(0.1, 1, M) if trial else np.ones(M)
        roots = rng.standard_normal((M, 2, d)) * (rng.pareto(1.0, (M, 1, 1)) + 0.1)
        own = np.einsum("mri,mrj->mij", roots, roots) + 0.05 * np.eye(d)
        F = np.tensordot(p, own, axes=1)
        ends = np.linalg.eigvalsh(F)
        h = stepsizes.participation(ends[-1], np.linalg.eigvalsh(own)[:, -1], p, q, mu=ends[0])
        state = np.eye(d * (M + 1))
        w, memory = state[:d], state[d:].reshape(M, d, -1)
        maps, form = [], w.T @ w
        for here in itertools.product((0, 1), repeat=M):
            chance = float(np.prod([a if i else 1 - a for i, a in zip(here, q, strict=True)]))
            g = sum(p[m] * (memory[m] + here[m] / q[m] * (own[m] @ w - memory[m])) for m in range(M))
            new = [own[m] @ w if here[m] else memory[m] for m in range(M)]
            maps.append((chance, np.vstack([w - h["eta"] * g, *new])))
        for m in range(M):
            weight = 4 * h["eta"] ** 2 / q[m] * p[m] ** 2 * (1 - q[m]) / q[m]
            form = form + (weight + 1e-13) * memory[m].T @ memory[m]
        change = sum(c * t.T @ form @ t for c, t in maps)
        assert largest(change, form) <= 1 - h["kappa"] + 1e-6
    with pytest.raises(InputError, match="probability in"):
        stepsizes.participation(1.0, 1.0, 1.0, 0.0)


# --- LSGD -------------------------------------------------------------------------------------------------------------


def test_lsgd_is_capped_by_what_a_batch_may_do():
    known = C.replace(L_client=2.0, calL_w=30.0)
    assert stepsizes.lsgd(known, 1, 1)["eta"] == 1 / 120
    assert stepsizes.lsgd(known, 1, 4)["eta"] == 1 / (4 * 9)
    assert stepsizes.lsgd(known, 1, None)["eta"] == 1 / 16  # L^β
    assert stepsizes.lsgd(C.replace(calL_w=30.0), 1, None)["eta"] == 1 / 120  # no L_client: the largest row's
    assert stepsizes.lsgd(known, 3, None)["eta"] == pytest.approx(1 / (8 * math.sqrt(3 * math.e) * 2 * 2))
    by_share = known.replace(sampling="importance")
    assert stepsizes.lsgd(by_share, 1, 4)["eta"] == 1 / (4 * (1.5 + 15))  # a row may count twice, if no more is known
    as_drawn = by_share.replace(drawn_w=6.0, drawn_beta=5.0)
    assert stepsizes.lsgd(as_drawn, 1, 1)["eta"] == 1 / (4 * 6)
    assert stepsizes.lsgd(as_drawn, 1, 4)["eta"] == 1 / (4 * (3 + 1.25))
    assert stepsizes.lsgd(as_drawn, 1, None)["eta"] == 1 / 16


def test_lsgds_cap_holds_for_rows_as_they_are_drawn():
    """E‖g − g*‖² ≤ 2𝓛(b)D in each block, with the second moment of b rows by any π, to which 𝓛(b) comes within a twentieth."""
    rng, ratios = np.random.default_rng(3), []
    for _ in range(60):
        x, b = rng.standard_normal((5, 2)) * (rng.pareto(1.0, (5, 1)) + 0.05), int(rng.integers(1, 6))
        smooth, ridge = np.sum(x**2, axis=1), 10.0 ** rng.uniform(-4, 0)
        pi = 0.5 * rng.dirichlet(np.ones(5)) + 0.5 * smooth / smooth.sum()  # another block has its say, too
        H = x.T @ x / 5 + ridge * np.eye(2)
        each = [np.outer(r, r) / (5 * q) + ridge * np.eye(2) for r, q in zip(x, pi, strict=True)]
        square = (1 - 1 / b) * H @ H + sum(q * a @ a for q, a in zip(pi, each, strict=True)) / b
        row, L = float(np.max(smooth / (5 * pi)) + ridge), float(np.linalg.eigvalsh(H)[-1])
        c = Constants(ridge, L, L, smooth.max() + ridge, smooth.max() + ridge, noise_w=row, noise_beta=row,
                      sampling="importance", L_client=L, drawn_w=row, drawn_beta=row)  # fmt: skip
        found, needed = 1 / (4 * stepsizes.lsgd(c, 1, b)["eta"]), largest(square, H)
        assert needed <= found * (1 + 1e-9)
        ratios.append(found / needed)
    assert min(ratios) < 1.05 and max(ratios) < 3


def test_reshuffled_rows_have_no_importance():
    by_share = C.replace(sampling="importance", drawn_w=0.6, drawn_beta=2.0)
    assert by_share.reshuffled.drawn == (3.0, 9.0)
    assert C.reshuffled is C
    assert stepsizes.lsgd(by_share.reshuffled, 1, 1)["eta"] == 1 / (4 * 9)


def test_lsgd_on_single_rows_diverges_without_the_cap():
    """One row in ten has all the curvature: the theorem's 1/(4L) lets E x² grow, 1/(4𝓛) does not."""
    rows = np.r_[10.0, np.zeros(9)] + 0.01
    c = Constants(rows.mean(), rows.mean(), 0.0, rows.max(), 0.0)
    known = c.replace(noise_w=10.0, noise_beta=0.0, sampling="uniform", L_client=rows.mean())
    assert np.mean((1 - stepsizes.lsgd(c, 1)["eta"] * rows) ** 2) > 1
    assert np.mean((1 - stepsizes.lsgd(known, 1, 1)["eta"] * rows) ** 2) < 1


# --- costs ------------------------------------------------------------------------------------------------------------


def test_costs():
    assert cost_of("simulation") is PRESETS["simulation"]
    assert cost_of(Cost(1, 0, 0)) == Cost(1.0, 0.0, 0.0)
    for wrong, words in ((lambda: cost_of("phone"), "no cost 'phone'"), (lambda: Cost(-1, 0, 0), "round=-1"),
                         (lambda: Cost(0, 0, 0), "positive"), (lambda: Cost(1, math.nan, 0), "byte=nan")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            wrong()


def test_design_follows_the_costs():
    rounds, rows = Cost(1e6, 0.0, 1.0), Cost(1e-6, 0.0, 1.0)
    for method in ("scd", "ascd", "svrcd", "asvrcd"):
        few, many = (tight.design(method, C, 1000, C.mu, cost=cost) for cost in (rounds, rows))
        assert few.p_w < many.p_w
        assert few.p_w / few.kappa < many.p_w / many.kappa  # fewer rounds per factor e
    dear, cheap = (tight.design("asvrcd", C, 1000, C.mu, cost=Cost(1, byte, 1), message=100.0) for byte in (1e3, 0.0))
    assert dear.p_w < cheap.p_w


def test_design_chooses_the_batch():
    batches = (1, 4, 16, 64, 256, None)
    noisy = C.replace(noise_w=50.0, noise_beta=600.0)
    few = tight.design("asvrcd", noisy, 1000, C.mu, batches=batches, cost=Cost(1e-6, 0.0, 1.0))
    many = tight.design("asvrcd", noisy, 1000, C.mu, batches=batches, cost=Cost(1e6, 0.0, 1.0))
    size = {b: 1000 if b is None else b for b in batches}
    assert size[few.batch] < size[many.batch]
    alone = [tight.design("asvrcd", noisy, 1000, C.mu, batches=(b,), cost=Cost(1.0, 0.0, 1.0)).cost for b in batches]
    assert tight.design("asvrcd", noisy, 1000, C.mu, batches=batches, cost=Cost(1.0, 0.0, 1.0)).cost == min(alone)


def test_design_is_what_the_steps_give():
    """The cost it reports is the one of the steps: (rounds · price + rows · price)/κ, with the κ of `tight`."""
    n, cost = 200, Cost(10.0, 0.0, 1.0)
    found = tight.design("asvrcd", C, n, C.mu, cost=cost)
    h = stepsizes.asvrcd(C, n, cost=cost)
    assert (h["p_w"], h["rho"]) == (found.p_w, found.rho_w)
    assert found.kappa == pytest.approx(h["kappa"], rel=0.05)
    price = 10 * (1 - (1 - h["p_w"]) * (1 - h["rho"])) + 2 + 2 * h["rho"] * n
    assert found.cost == pytest.approx(price / found.kappa)
    grid = [stepsizes.asvrcd(C, n, p_w=p, rho=r) for p in (0.05, 0.3, 0.7) for r in (1e-3, 1e-2, 0.1)]
    others = [(10 * (1 - (1 - g["p_w"]) * (1 - g["rho"])) + 2 + 2 * g["rho"] * n) / g["kappa"] for g in grid]
    assert price / h["kappa"] <= 1.1 * min(others)


@pytest.mark.parametrize("method", ["scd", "svrcd"])
def test_design_knows_the_rate_of_plain_steps(method):
    """κ = ημ, or ρ/2 where refreshes are slower, by the steps of `stepsizes` for what the design chose."""
    for n, mu in ((10, 1e-2), (1000, 1e-3)):
        c = C.replace(mu=mu)
        found = tight.design(method, c, n, mu)
        given = {"p_w": found.p_w, **({} if method == "scd" else {"rho": found.rho_w})}
        h = getattr(stepsizes, method)(c, n=n, **given)
        assert found.kappa == pytest.approx(min(h["eta"] * mu, math.inf if method == "scd" else h["rho"] / 2))


def test_a_flat_block_is_never_drawn():
    only_w = C.replace(L_beta=0.0, calL_beta=0.0, noise_beta=0.0)
    only_beta = C.replace(L_w=0.0, calL_w=0.0, noise_w=0.0)
    for reference in ("one", "two"):
        assert stepsizes.asvrcd(only_w, 10, reference=reference)["p_w"] == 1
        h = stepsizes.asvrcd(only_beta, 10, reference=reference)
        assert h["p_w"] == 0
        assert h["kappa"] > 0
    assert stepsizes.scd(only_beta, n=10)["p_w"] == 0
    assert stepsizes.svrcd(only_w, 10)["p_w"] == 1


def test_momentum_by_hand():
    """κ² + 4ησκ = 2ηcμ, γ = 2ηc(1−θ)/θ = κ/μ, θ/(1−θ) = κ + 4ησ; and its limits."""
    for sigma, mu in itertools.product((0.0, 0.3, 40.0), (1e-1, 1e-5)):
        h = tight.momentum(sigma, 2.0, mu)
        c = 1 - h.eta
        assert h.kappa**2 + 4 * h.eta * sigma * h.kappa == pytest.approx(2 * h.eta * c * mu)
        assert h.gamma == pytest.approx(2 * h.eta * c * (1 - h.theta) / h.theta)
        assert h.gamma * mu == pytest.approx(h.kappa)
        assert h.nu == pytest.approx(1 - h.kappa)
        assert h.theta / (1 - h.theta) == pytest.approx(h.kappa + 4 * h.eta * sigma)
    assert tight.momentum(1.0, 1.0, 0.01, eta=0.2).eta == 0.2


def test_balanced_by_hand():
    c = Constants(0.1, 0.5, 0.0625, 9.0, 9.0, noise_w=3.5, noise_beta=0.1875, sampling="uniform")
    assert tight.balanced(c, 1, 0.1) == pytest.approx((2 / 2.5, 0.8, 0.2))  # √4 : √¼
    assert tight.balanced(c, 10, 0.1) == pytest.approx((2 / 3, 2 / 30, 1 / 30))  # √4 : √(nμ), as nμ = 1 exceeds ¼
    assert tight.balanced(c, 1000, 0.1) == pytest.approx((0.5, 5e-4, 5e-4))  # nμ exceeds both
    assert tight.balanced(c, 10, 0.1, batch=5) == pytest.approx(
        (p := math.sqrt(1.2) / (math.sqrt(1.2) + math.sqrt(0.2)), p / 2, (1 - p) / 2)
    )
    assert tight.balanced(c, 10, 0.001, batch=None)[1:] == pytest.approx(
        (q := math.sqrt(0.5) / (math.sqrt(0.5) + 0.25), 1 - q)
    )
