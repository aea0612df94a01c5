"""Step sizes: by hand on small numbers, and exactly on a finite sum of quadratics.

On quadratics one iteration of a variance-reduced method is a random linear map T of the deviation from the optimum, and
a Lyapunov function is a quadratic form P. So E[TᵀPT] ≼ (1−κ)P is an eigenvalue, which covers every state at once.
"""

import itertools
import math

import numpy as np
import pytest

from twofold.theory import constants, rates, stepsizes
from twofold.theory.constants import Constants, LossConstants

C = Constants(mu=0.01, L_w=1.0, L_beta=4.0, calL_w=3.0, calL_beta=9.0)
FLAT = C.replace(mu=0.0)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_lsgd_by_hand():
    assert stepsizes.lsgd(C, tau=1) == {"eta": 1 / 16, "note": None}
    assert stepsizes.lsgd(C, tau=2)["eta"] == pytest.approx(1 / (8 * math.sqrt(3 * math.e)))  # 1/22.8 < 1/16
    assert stepsizes.lsgd(C, tau=5)["eta"] == pytest.approx(1 / (8 * 2.855669 * 4), rel=1e-6)
    assert stepsizes.lsgd(C.replace(L_beta=0.0), tau=1)["eta"] == 0.25  # the printed bound is void here
    assert stepsizes.lsgd(C.replace(L_w=0.0), tau=7)["eta"] == 1 / 16
    with pytest.raises(ValueError, match="both 0"):
        stepsizes.lsgd(C.replace(L_w=0.0, L_beta=0.0), 3)
    with pytest.raises(ValueError, match="tau=0"):
        stepsizes.lsgd(C, 0)


def test_acd_by_hand():
    h = stepsizes.acd(C)
    nu = 0.01 / 9  # (√1 + √4)² = 9
    theta = (math.sqrt(nu**2 + 4 * nu) - nu) / 2
    assert h["p_w"] == pytest.approx(1 / 3)
    assert h["nu"] == pytest.approx(nu)
    assert h["theta"] == pytest.approx(theta)
    assert h["eta"] == pytest.approx(1 / theta)
    assert h["theta"] ** 2 == pytest.approx(h["nu"] * (1 - h["theta"]))
    assert (h["L_w"], h["L_beta"], h["note"]) == (1.0, 4.0, None)
    assert stepsizes.acd(C.replace(L_beta=0.0))["p_w"] == 1
    assert stepsizes.acd(C.replace(L_w=0.0))["p_w"] == 0
    with pytest.raises(ValueError, match="both 0"):
        stepsizes.acd(C.replace(L_w=0.0, L_beta=0.0))


def test_asvrcd_by_hand():
    h = stepsizes.asvrcd(C, n=100)
    assert h["p_w"] == 0.25
    assert h["rho"] == 0.0025
    assert h["eta"] == pytest.approx(1 / 96)
    theta1 = math.sqrt(0.01 / 96 * 200)  # θ₂/ρ = 200
    assert h["theta2"] == 0.5
    assert h["theta1"] == pytest.approx(theta1)
    gamma = 1 / (4 * theta1 * 96)
    assert h["gamma"] == pytest.approx(gamma)
    assert h["nu"] == pytest.approx(1 - 0.01 * gamma)
    assert h["note"] is None
    assert stepsizes.asvrcd(C, 100, "beta")["rho"] == 0.0075
    assert stepsizes.asvrcd(C, 100, rho=0.5)["rho"] == 0.5
    assert stepsizes.asvrcd(C, 100, p_w=0.5)["eta"] == pytest.approx(1 / (4 * 2 * 18))
    assert stepsizes.asvrcd(C, 12.5)["rho"] == 0.02  # a mean number of rows
    strong = stepsizes.asvrcd(C.replace(mu=100.0), 100)
    assert (strong["theta1"], strong["gamma"], strong["nu"]) == (0.5, pytest.approx(1 / 200), 0.5)


def test_a_block_that_is_absent():
    only_w, only_beta = C.replace(calL_beta=0.0, L_beta=0.0), C.replace(calL_w=0.0, L_w=0.0)
    h = stepsizes.asvrcd(only_w, 10)
    assert (h["p_w"], h["rho"], h["eta"]) == (1.0, 0.1, 1 / 24)
    assert stepsizes.asvrcd(only_w, 10, "beta")["rho"] == 0.1
    h = stepsizes.asvrcd(only_beta, 10)
    assert (h["p_w"], h["rho"], h["eta"]) == (0.0, 0.1, 1 / 72)
    with pytest.raises(ValueError, match="both 0"):
        stepsizes.scd(only_w.replace(calL_w=0.0))
    with pytest.raises(ValueError, match="never move"):
        stepsizes.scd(C, p_w=1.0)
    with pytest.raises(ValueError, match="probability"):
        stepsizes.scd(C, p_w=1.5)
    with pytest.raises(ValueError, match="at least one row"):
        stepsizes.asvrcd(C, 0)
    with pytest.raises(ValueError, match="optimal must be"):
        stepsizes.asvrcd(C, 5, "both")
    with pytest.raises(ValueError, match="rho is a probability"):
        stepsizes.asvrcd(C, 5, rho=0.0)


def test_the_other_methods_by_hand():
    assert stepsizes.svrcd(C, 100) == {"p_w": 0.25, "rho": 0.0025, "eta": 1 / 144, "note": None}
    assert stepsizes.scd(C) == {"p_w": 0.25, "eta": 1 / 48, "note": None}
    assert stepsizes.scd_neighbourhood(0.1, 0.5, 3.0) == pytest.approx(1.2)
    a, b = stepsizes.ascd(C, 100), stepsizes.asvrcd(C, 100)
    assert {k: a[k] for k in ("p_w", "eta", "gamma", "nu")} == {k: b[k] for k in ("p_w", "eta", "gamma", "nu")}
    assert a["theta"] == 0.8  # 1/η = 96
    assert stepsizes.ascd(C.replace(calL_w=0.01, calL_beta=0.03), 100)["theta"] == pytest.approx(0.32)
    assert stepsizes.l2sgd_plus(C) == {"p": 0.25, "eta": 1 / 72, "note": None}
    assert stepsizes.l2sgd_plus(C, rule="paper")["eta"] == stepsizes.asvrcd(C, 9)["eta"] == 1 / 96
    assert stepsizes.l2sgd_plus(C, penalty=6.0) == {"p": 0.4, "eta": pytest.approx(1 / 90), "note": None}
    assert stepsizes.l2sgd_plus(C, p_w=0.5)["eta"] == pytest.approx(1 / 108)
    h = stepsizes.pfedme(2.0, LossConstants(0.1, 1.0, np.array([3.0, 8.0])), local_rounds=20)
    assert h == {"eta": 1 / 40, "inner_eta": 0.1, "note": None}
    with pytest.raises(ValueError, match="λ > 0"):
        stepsizes.pfedme(0.0, LossConstants(0.1, 1.0, 1.0), 1)


def test_the_captions_of_the_paper():
    """p_w = 0.5, 0.25, 0.55 for MT2, MX2, APFL2 with K = 2 labels: right only with /M in L^β (M = 20, 𝓛' = 1)."""
    loss, lam, alpha = LossConstants(0.01, 1.0, 1.0), 0.5, 0.1
    for c, p_w in (
        (constants.multitask(loss, lam, 1.0, clients=20), 0.5),
        (constants.mixture(loss, lam, clients=20), 0.25),
        (constants.adaptive(loss, alpha, 1.0, clients=20), 0.55),
    ):
        assert stepsizes.scd(c)["p_w"] == pytest.approx(p_w, abs=0.006)


def test_without_strong_convexity():
    for h, mu in ((stepsizes.acd(FLAT), 9e-4), (stepsizes.asvrcd(FLAT, 9), 12e-4), (stepsizes.ascd(FLAT, 9), 12e-4)):
        assert h["note"].endswith("for a guaranteed rate.")
        assert f"{mu:.3g}" in h["note"]
        assert "10000" in h["note"]
    assert stepsizes.acd(FLAT)["nu"] == pytest.approx(1e-4)
    stretched, own = stepsizes.asvrcd(FLAT, 9), stepsizes.asvrcd(C.replace(mu=12e-4), 9)
    assert all(stretched[name] == pytest.approx(own[name]) for name in own if name != "note")
    assert stepsizes.usable_mu(C, 5.0) == (0.01, None)
    for h in (stepsizes.lsgd(FLAT, 2), stepsizes.svrcd(FLAT, 9), stepsizes.scd(FLAT), stepsizes.l2sgd_plus(FLAT)):
        assert h["note"] is None


# --- exactly, on quadratics -------------------------------------------------------------------------------------------


class Sum:
    """F = Σ_m p_m (1/n) Σ_i f_{m,i}(w, β_m) with quadratic f_{m,i}, minimum at 0, its constants from eigenvalues."""

    def __init__(self, rng, M=2, n=2, d_w=2, d_beta=1, rank=2, ridge=0.02, beta_size=1.0):
        self.M, self.n, self.d_w, self.d_beta = M, n, d_w, d_beta
        self.p = rng.dirichlet(3 * np.ones(M))
        d = d_w + d_beta
        size = np.concatenate([np.ones(d_w), np.full(d_beta, beta_size)])
        roots = rng.standard_normal((M, n, rank, d)) * size
        self.samples = np.einsum("mnrd,mnre->mnde", roots, roots) + ridge * np.diag(size**2)
        self.dim = d_w + M * d_beta
        self.full = self.hessian(self.samples.mean(1))
        w, b = slice(0, d_w), slice(d_w, d)

        def top(h):
            return np.linalg.eigvalsh(h)[..., -1] if h.shape[-1] else np.zeros(h.shape[:-2])

        means = self.samples.mean(1)
        self.c = Constants(
            mu=np.linalg.eigvalsh(self.full)[0],
            L_w=top(means[:, w, w]).max(),
            L_beta=(self.p * top(means[:, b, b])).max(),
            calL_w=top(self.samples[..., w, w]).max(),
            calL_beta=(self.p[:, None] * top(self.samples[..., b, b])).max(),
        )
        self.w_mask = np.diag((np.arange(self.dim) < d_w).astype(float))
        self.beta_mask = np.eye(self.dim) - self.w_mask

    def hessian(self, of_clients):
        full = np.zeros((self.dim, self.dim))
        for m, h in enumerate(of_clients):
            index = np.concatenate([np.arange(self.d_w), self.d_w + m * self.d_beta + np.arange(self.d_beta)])
            full[np.ix_(index, index)] += self.p[m] * h
        return full

    def draws(self, p_w):
        """Every outcome of the estimator G, a matrix, with its probability: one row per client, drawn independently."""
        for rows in itertools.product(range(self.n), repeat=self.M):
            h = self.hessian([self.samples[m, i] for m, i in enumerate(rows)])
            share = self.n**-self.M
            if p_w > 0:
                yield p_w * share, self.w_mask @ h / p_w
            if p_w < 1:
                yield (1 - p_w) * share, self.beta_mask @ h / (1 - p_w)


def sums(**kwargs):
    for seed in range(6):
        for beta_size in (0.1, 1.0, 10.0):
            yield Sum(np.random.default_rng(seed), beta_size=beta_size, **kwargs)
    yield Sum(np.random.default_rng(7), d_beta=0)
    yield Sum(np.random.default_rng(7), d_w=0, d_beta=2)


def excess(maps, lyapunov, contraction):
    """The largest eigenvalue of E[TᵀPT] − contraction·P relative to P: at most 0 if the Lyapunov function contracts."""
    change = sum(q * t.T @ lyapunov @ t for q, t in maps) - contraction * lyapunov
    values, vectors = np.linalg.eigh(lyapunov)
    keep = values > 1e-13 * values[-1]
    half = vectors[:, keep] / np.sqrt(values[keep])
    return np.linalg.eigvalsh(half.T @ change @ half)[-1]


def blocks(*rows):
    return np.block([list(row) for row in rows])


@pytest.mark.parametrize("p_w", [None, 0.2, 0.7])
def test_expected_smoothness_of_the_estimator(p_w):
    """E‖G(x) − G(x')‖² ≤ 2𝓛 D_F(x, x') (Lemma asvrcd-smooth-const): E[GᵀG] ≼ 𝓛 ∇²F on quadratics."""
    for problem in sums():
        if p_w is not None and 0 in (problem.d_w, problem.d_beta):
            continue
        p = stepsizes.w_probability(problem.c, p_w)
        square = sum(q * g.T @ g for q, g in problem.draws(p))
        assert sum(q * g for q, g in problem.draws(p)) == pytest.approx(problem.full)
        smoothness = stepsizes.expected_smoothness(problem.c, p)
        assert np.linalg.eigvalsh(square - smoothness * problem.full)[-1] <= 1e-9 * smoothness


def test_expected_smoothness_is_attained():
    """f = ½(w + β)² needs the factor 2 of 𝓛 in full."""
    c = Constants(mu=0, L_w=1, L_beta=1, calL_w=1, calL_beta=1)
    h = np.ones((2, 2))
    square = sum(0.5 * (mask @ h / 0.5).T @ (mask @ h / 0.5) for mask in (np.diag([1, 0]), np.diag([0, 1])))
    ratio = (np.ones(2) @ square @ np.ones(2)) / (np.ones(2) @ h @ np.ones(2))
    assert ratio == pytest.approx(stepsizes.expected_smoothness(c, 0.5))


def test_slip_lemma_asvrcd_smooth_const_prints_the_wrong_smoothness():
    """Ten rows of which one is not flat, β only: E[GᵀG] = 𝓛²/10 exceeds 2L^β ∇²F = 𝓛²/50, but not 2𝓛^β ∇²F = 𝓛²/5."""
    calL, n = 3.0, 10
    L = calL / n  # also ∇²F
    square = calL**2 / n
    assert 2 * L * L < square <= 2 * calL * L


def test_acd_contracts_as_claimed():
    for problem in sums():
        h = stepsizes.acd(problem.c)
        eye, theta, eta, nu, c = np.eye(problem.dim), h["theta"], h["eta"], h["nu"], problem.c
        total = math.sqrt(c.L_w) + math.sqrt(c.L_beta)
        x = np.concatenate([(1 - theta) * eye, theta * eye], axis=1)  # of the state (y, z)
        z = np.concatenate([0 * eye, eye], axis=1)
        maps = []
        for p, mask, L in ((h["p_w"], problem.w_mask, c.L_w), (1 - h["p_w"], problem.beta_mask, c.L_beta)):
            if p > 0:
                gradient = mask @ problem.full @ x
                maps.append(
                    (
                        p,
                        blocks(
                            [x - gradient / L],
                            [(z + eta * nu * x - eta / (math.sqrt(L) * total) * gradient) / (1 + eta * nu)],
                        ),
                    )
                )
        lyapunov = blocks([problem.full / (2 * theta**2), 0 * eye], [0 * eye, total**2 / (2 * (1 - theta)) * eye])
        assert excess(maps, lyapunov, 1 - theta) <= 1e-9
        # (μ/2)‖z − x*‖² is the second part times θ²: the initial error of rates.initial_error.
        assert theta**2 * total**2 / (2 * (1 - theta)) == pytest.approx(c.mu / 2)


@pytest.mark.parametrize("p_w", [0.1, 0.4, 0.85])
@pytest.mark.parametrize("sharp", [False, True])
def test_acd_contracts_with_any_probability(p_w, sharp):
    """The Lyapunov function of the metric's proof, Σ L_i/p_i² ‖z_i‖² in place of S²‖z‖², with ν by the lemma or exact."""
    for problem in sums():
        c = problem.c
        if c.L_w == 0 or c.L_beta == 0:
            continue
        norm = problem.w_mask * (c.L_w / p_w**2) + problem.beta_mask * (c.L_beta / (1 - p_w) ** 2)
        root = np.diag(np.diag(norm) ** -0.5)
        exact = float(np.linalg.eigvalsh(root @ problem.full @ root)[0])
        h = stepsizes.acd_any(c, p_w, exact if sharp else None)
        assert h["p_w"] == p_w and h["nu"] <= exact * (1 + 1e-9)
        eye, theta, eta, nu = np.eye(problem.dim), h["theta"], h["eta"], h["nu"]
        x = np.concatenate([(1 - theta) * eye, theta * eye], axis=1)
        z = np.concatenate([0 * eye, eye], axis=1)
        maps = []
        for p, mask, L in ((p_w, problem.w_mask, c.L_w), (1 - p_w, problem.beta_mask, c.L_beta)):
            gradient = mask @ problem.full @ x
            maps.append((p, blocks([x - gradient / L], [(z + eta * nu * x - eta * p / L * gradient) / (1 + eta * nu)])))
        lyapunov = blocks([problem.full / (2 * theta**2), 0 * eye], [0 * eye, norm / (2 * (1 - theta))])
        assert excess(maps, lyapunov, 1 - theta) <= 1e-9


def test_acd_any_refuses_what_cannot_be():
    assert stepsizes.acd_any(C) == stepsizes.acd(C)
    for p_w in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="p_w"):
            stepsizes.acd_any(C, p_w)
    with pytest.raises(ValueError, match="finite number > 0, got nu=0"):
        stepsizes.acd_any(C, 0.5, 0.0)


def asvrcd_maps(problem, h):
    eye, zero = np.eye(problem.dim), np.zeros((problem.dim,) * 2)
    y, z, v = (np.concatenate([eye if i == j else zero for i in range(3)], axis=1) for j in range(3))
    x = h["theta1"] * z + h["theta2"] * v + (1 - h["theta1"] - h["theta2"]) * y
    for q, g in problem.draws(h["p_w"]):
        gradient = g @ (x - v) + problem.full @ v
        y_new = x - h["eta"] * gradient
        z_new = h["nu"] * z + (1 - h["nu"]) * x - h["gamma"] * gradient
        for coin, v_new in ((h["rho"], y), (1 - h["rho"], v)):
            yield q * coin, blocks([y_new], [z_new], [v_new])


def asvrcd_lyapunov(problem, h):
    eye, zero = np.eye(problem.dim), np.zeros((problem.dim,) * 2)
    kappa = 1 - rates.asvrcd_contraction(h, problem.c.mu)
    a = 2 * h["gamma"] * h["nu"] / h["theta1"]
    b = a * h["theta2"] / (h["rho"] - kappa)
    return blocks([a * problem.full / 2, zero, zero], [zero, eye, zero], [zero, zero, b * problem.full / 2])


@pytest.mark.parametrize(
    ("optimal", "p_w", "rho"), [("w", None, None), ("beta", None, None), ("w", 0.4, 0.9), ("w", None, 0.01)]
)
def test_asvrcd_contracts_as_claimed(optimal, p_w, rho):
    for problem in sums():
        if p_w is not None and 0 in (problem.d_w, problem.d_beta):
            continue
        h = stepsizes.asvrcd(problem.c, problem.n, optimal, p_w, rho)
        contraction = rates.asvrcd_contraction(h, problem.c.mu)
        assert 0 < contraction < 1
        assert excess(list(asvrcd_maps(problem, h)), asvrcd_lyapunov(problem, h), contraction) <= 1e-9


def test_asvrcd_contracts_on_ill_conditioned_sums():
    for ridge in (1e-3, 1e-5):
        for problem in sums(ridge=ridge, rank=1):
            h = stepsizes.asvrcd(problem.c, 50)
            contraction = rates.asvrcd_contraction(h, problem.c.mu)
            assert excess(list(asvrcd_maps(problem, h)), asvrcd_lyapunov(problem, h), contraction) <= 1e-9


@pytest.mark.parametrize("optimal", ["w", "beta"])
def test_svrcd_contracts_as_claimed(optimal):
    for problem in sums():
        h = stepsizes.svrcd(problem.c, problem.n, optimal)
        eye, zero = np.eye(problem.dim), np.zeros((problem.dim,) * 2)
        y, v = np.concatenate([eye, zero], axis=1), np.concatenate([zero, eye], axis=1)
        draws = list(problem.draws(h["p_w"]))
        maps = []
        for q, g in draws:
            step = y - h["eta"] * (g @ (y - v) + problem.full @ v)
            maps += [(q * h["rho"], blocks([step], [y])), (q * (1 - h["rho"]), blocks([step], [v]))]
        memory = sum(q * g.T @ g for q, g in draws)  # σ² = E‖G(v) − G(x*)‖²
        lyapunov = blocks([eye, zero], [zero, 4 * h["eta"] ** 2 / h["rho"] * memory])
        contraction = max(1 - h["eta"] * problem.c.mu, 1 - h["rho"] / 2)
        assert excess(maps, lyapunov, contraction) <= 1e-9


def test_scd_contracts_to_its_neighbourhood():
    """With noise σ² at the optimum: E‖x⁺ − x*‖² ≤ (1−ημ)‖x − x*‖² + 2η²σ², whatever the noise."""
    for seed, problem in enumerate(sums()):
        rng = np.random.default_rng(seed)
        h = stepsizes.scd(problem.c)
        draws = list(problem.draws(h["p_w"]))
        # Shifted samples f_{m,i}(· − a_i): G(x) = g x + e with E e = 0, e in the range of the drawn block.
        shifts = [g @ rng.standard_normal(problem.dim) for _, g in draws]
        mean = sum(q * e for (q, _), e in zip(draws, shifts, strict=True))
        optimum = -np.linalg.solve(problem.full, mean)
        sigma2 = sum(q * np.sum((g @ optimum + e) ** 2) for (q, g), e in zip(draws, shifts, strict=True))
        for _ in range(20):
            x = optimum + rng.standard_normal(problem.dim) * 10.0 ** rng.integers(-3, 3)
            after = sum(
                q * np.sum((x - h["eta"] * (g @ x + e) - optimum) ** 2) for (q, g), e in zip(draws, shifts, strict=True)
            )
            before = np.sum((x - optimum) ** 2)
            bound = (1 - h["eta"] * problem.c.mu) * before + 2 * h["eta"] ** 2 * sigma2
            assert after <= bound * (1 + 1e-9)


@pytest.mark.parametrize("lam", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("rule", ["derived", "paper"])
@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.1, 0.9)])
def test_l2sgd_plus_contracts_as_claimed(lam, rule, weights):
    """State: the M personal models, a memory of each row's ∇f'_{m,i} and of the penalty; two memories, two weights."""
    rng, M, n, d, share = np.random.default_rng(0), 2, 2, 2, np.array(weights)
    for _ in range(5):
        roots = rng.standard_normal((M, n, 1, d))
        samples = np.einsum("mnrd,mnre->mnde", roots, roots) + 0.05 * np.eye(d)
        calL = np.linalg.eigvalsh(samples)[..., -1].max(1)
        mu = np.linalg.eigvalsh(samples.mean(1))[:, 0]
        c = constants.mixture(LossConstants(mu, calL, calL), lam, weights=share)
        h = stepsizes.l2sgd_plus(c, rule=rule, penalty=None if weights == (0.5, 0.5) else lam * max(weights))
        p, eta = h["p"], h["eta"]
        penalty = lam * np.kron(np.diag(share) - np.outer(share, share), np.eye(d))
        size = M * d * (2 + n)  # x, then the memory of each row (m, i), then that of the penalty
        state = np.eye(size)
        x, psi = state[: M * d], state[size - M * d :]
        memory = {(m, i): state[M * d + (m * n + i) * d :][:d] for m in range(M) for i in range(n)}
        mean = np.concatenate([share[m] * sum(memory[m, i] for i in range(n)) / n for m in range(M)])  # of ∇f
        maps = [(p, np.concatenate([x - eta * ((penalty @ x - psi) / p + psi + mean), *memory.values(), penalty @ x]))]
        for rows in itertools.product(range(n), repeat=M):
            new = {
                key: samples[key] @ x[key[0] * d : (key[0] + 1) * d] if rows[key[0]] == key[1] else old
                for key, old in memory.items()
            }
            difference = np.concatenate([share[m] * (new[m, i] - memory[m, i]) for m, i in enumerate(rows)])
            step = x - eta * (difference / (1 - p) + mean + psi)
            maps.append(((1 - p) * n**-M, np.concatenate([step, *new.values(), psi])))
        of_rows = sum(share[m] ** 2 * j.T @ j for (m, _), j in memory.items()) / (n * (1 - p))
        lyapunov = x.T @ x + 4 * eta**2 * (n / (1 - p) * of_rows + psi.T @ psi / p**2)
        hessian = penalty + block_diagonal(share[:, None, None] * samples.mean(1))
        assert np.linalg.eigvalsh(hessian)[0] >= c.mu * (1 - 1e-9)
        contraction = max(1 - eta * c.mu, 1 - min(p, (1 - p) / n) / 2)
        assert excess(maps, lyapunov, contraction) <= 1e-9


def test_l2sgd_plus_needs_the_penalty_of_unequal_weights():
    """M = 100, one client with 30 % of the weight: the default's averaging step multiplies its distance by −2.5."""
    M, lam = 100, 1.0
    weights = np.r_[0.3, np.full(M - 1, 0.7 / (M - 1))]
    c = constants.mixture(LossConstants(0.1, 2.0, 2.0), lam, weights=weights)

    def factor(h):  # of β_1 − mean in β_1 −= p_1 η λ (β_1 − mean)/p, the others held
        return 1 - 0.3 * h["eta"] * lam / h["p"] * (1 - 0.3)

    assert abs(factor(stepsizes.l2sgd_plus(c))) > 2
    assert 0 < factor(stepsizes.l2sgd_plus(c, penalty=lam * weights.max())) < 1


def block_diagonal(parts):
    M, d, _ = parts.shape
    full = np.zeros((M * d, M * d))
    for m, part in enumerate(parts):
        full[m * d : (m + 1) * d, m * d : (m + 1) * d] = part
    return full


# --- LSGD -------------------------------------------------------------------------------------------------------------


def test_lsgd_converges_with_its_step_where_the_printed_beta_step_diverges():
    """One client's β with M = 10: η = 1/(4L^β) converges with the gradient (1/M)∇_β, but not with ∇_β (notes.md)."""
    M, smooth = 10, 3.0
    c = constants.mixture(LossConstants(1.0, smooth, smooth), 2.0, clients=M)
    eta = stepsizes.lsgd(c, 1)["eta"]
    assert eta == pytest.approx(M / (4 * (smooth + 2.0)))
    hessian = smooth + 2.0  # of f_m in β_m
    assert abs(1 - eta / M * hessian) < 1 < abs(1 - eta * hessian)


def test_slip_lemma_dhkabdsbhja_misses_the_drift_of_the_beta_gradient():
    """‖mean ∇_w f_m(w_m, β_m)‖² + (1/M²)Σ‖∇_β f_m(w_m, β_m)‖² ≤ 4L(F − F*) + 2(L^w)²V fails if L^β > 2L^w.

    f_m = ½(√L^w w + √(ML^β) β_m)² at w = β = 0 = the optimum, w_m = ±1: the left side is L^w L^β V, and F − F* = 0.
    What holds is 4(L^w + L^β)(F − F*) + 2L^w(L^w + L^β)V, hence η ≤ 1/(4(L^w + L^β)) in the theorem for τ > 1.
    """
    M, L_w, L_beta = 4, 1.0, 10.0
    a, b = math.sqrt(L_w), math.sqrt(M * L_beta)
    drift = np.array([1.0, -1.0, 1.0, -1.0])
    V = np.mean(drift**2)
    inner = a * drift
    left = np.mean(a * inner) ** 2 + np.sum((b * inner) ** 2) / M**2
    assert left == pytest.approx(L_w * L_beta * V)
    assert left > 2 * L_w**2 * V  # printed
    rng = np.random.default_rng(0)
    for _ in range(500):  # the mended one, on random states
        w, beta, drift = rng.standard_normal(), rng.standard_normal(M) * rng.choice([0.01, 1]), rng.standard_normal(M)
        drift -= drift.mean()
        inner = a * (w + drift) + b * beta
        left = np.mean(a * inner) ** 2 + np.sum((b * inner) ** 2) / M**2
        gap, V = np.mean((a * w + b * beta) ** 2) / 2, np.mean(drift**2)
        assert left <= 4 * (L_w + L_beta) * gap + 2 * L_w * (L_w + L_beta) * V + 1e-12


def test_nonconvex_condition_by_hand():
    # −1 + η·2·3·(4/8 + 0.5 + 1) + 3·η²·4·(5−1)·5·(4+1) with η = 0.01
    ok, value = stepsizes.check_nonconvex(0.01, L=2.0, tau=5, lam=3.0, C1=4.0, C2=0.5, M=8)
    assert ok
    assert value == pytest.approx(-1 + 0.12 + 0.12)
    for tau in (1, 2, 50):
        eta = stepsizes.largest_nonconvex_eta(2.0, tau, 3.0, 4.0, 0.5, 8)
        assert stepsizes.check_nonconvex(eta, 2.0, tau, 3.0, 4.0, 0.5, 8).ok
        assert not stepsizes.check_nonconvex(eta * (1 + 1e-9), 2.0, tau, 3.0, 4.0, 0.5, 8).ok
    assert stepsizes.largest_nonconvex_eta(2.0, 1, 3.0, 4.0, 0.5, 8) == pytest.approx(1 / 12)
    with pytest.raises(ValueError, match="flat"):
        stepsizes.largest_nonconvex_eta(0.0, 1, 3.0, 4.0, 0.5, 8)


def test_pl_schedule():
    schedule = stepsizes.pl_schedule(0.5, 3.0, 4)
    assert schedule(0) == pytest.approx(1 / 6.5)
    assert schedule(7) == 0.1
    assert schedule(np.arange(3)) == pytest.approx([1 / 6.5, 1 / 7, 1 / 7.5])
    assert hash(schedule) == hash(stepsizes.pl_schedule(0.5, 3.0, 4))
    assert schedule == stepsizes.pl_schedule(0.5, 3, 4)
    with pytest.raises(ValueError, match="mu > 0"):
        stepsizes.pl_schedule(0.0, 3.0, 4)


def test_pl_conditions_by_hand():
    # κ = 2·4·1·(1+1)/1 = 16; (2·1·2/1)(1/4 + 0.5 + 1) − 2 = 5
    assert stepsizes.pl_beta(mu=1.0, L=2.0, lam=1.0, C1=1.0, C2=0.5, M=4) == 16
    assert stepsizes.pl_beta(mu=1.0, L=2.0, lam=1.0, C1=1.0, C2=30.0, M=4) == pytest.approx(123)
    check = stepsizes.check_pl(20.0, 1, 1.0, 2.0, 1.0, 1.0, 0.5, 4)
    grown = 16 * math.exp(0.05)
    assert check == (True, 16, pytest.approx(math.sqrt((grown - 4) / (400 - grown))))
    assert not stepsizes.check_pl(15.0, 1, 1.0, 2.0, 1.0, 1.0, 0.5, 4).ok
    # The true requirement: (D + 2B_1(τ−1)/Δ_1^{τ−1}) η_1 ≤ 1 (eq. lemma14-eq3), for every τ allowed.
    for tau in range(math.ceil(check.tau_at_least), 200, 7):
        eta = stepsizes.pl_schedule(1.0, 20.0, tau)(1)
        D, B = 1 * 2 * (1 / 4 + 0.5 + 1), 0.5 * eta * 4 * 1 * (tau - 1) * 2
        assert (D + 2 * B * (tau - 1) / (1 - eta) ** (tau - 1)) * eta <= 1


def test_slip_pl_theorem_leaves_out_a_condition_on_beta():
    """For κ = 1.2 and β = 1.25 the printed conditions hold for any τ, but eq. NonCLemma7-1 fails for large τ."""
    mu, L, lam, C1, C2, M = 1.0, 1.0, 0.6, 0.0, 0.0, 1
    kappa, beta, tau = 1.2, 1.25, 1000
    assert beta > max(2 * lam * L / mu * (C1 / M + C2 + 1) - 2, kappa, 1)
    assert max(kappa * math.exp(1 / beta) - 4, 0) == 0  # so the printed bound on τ is 0
    left = kappa * ((tau - 1) / (beta * tau + 2)) ** 2 * ((beta * tau + 2) / (beta * tau + 1)) ** (tau - 1)
    assert left > 1
    ours = stepsizes.pl_beta(mu, L, lam, C1, C2, M)
    assert ours**2 == pytest.approx(kappa * math.exp(1 / ours))
    assert ours > beta
    assert not stepsizes.check_pl(beta, tau, mu, L, lam, C1, C2, M).ok
    assert stepsizes.check_pl(ours * 1.001, tau, mu, L, lam, C1, C2, M).ok


def test_slip_pl_theorem_rate_is_not_cubic():
    """f = ½x², exact gradients: the gap is (βτ/(K+βτ))², above the theorem's b³/(K+βτ)³."""
    beta, tau, K = 2.1, 1, 100
    assert stepsizes.check_pl(beta, tau, mu=1.0, L=1.0, lam=1.0, C1=0.0, C2=0.0, M=1).ok
    schedule, x = stepsizes.pl_schedule(1.0, beta, tau), 1.0
    for k in range(K):
        x -= schedule(k) * x
    assert x**2 == pytest.approx((beta / (K + beta)) ** 2)
    assert x**2 > 10 * (beta * tau + 1) ** 3 / (K + beta * tau) ** 3  # printed
    assert x**2 <= beta * tau / (K + beta * tau)  # what the recursion gives
