"""Every inequality of docs/two-references.md, exactly, on random quadratics (the numbers are those of the page).

On quadratics D_F(v, x) = ½(v−x)ᵀH(v−x), a bound by it is an eigenvalue relative to H, and one iteration is a random linear map
of the state (y, z, v^w, v^β), so a bound for all states is an eigenvalue too.
"""

import itertools
import math

import numpy as np
import pytest

from quadratics import KINDS, Quadratic, instance, largest, radius
from twofold.theory import rates, stepsizes, tight
from twofold.theory.constants import Constants

TOL = 1e-9


def problems(number, seed=0, M=(1, 6), n=(2, 8), d=(1, 4), ridge=(-2.0, -2.0)):
    rng = np.random.default_rng(seed)
    for i in range(number):
        shape = (int(rng.integers(*M)), int(rng.integers(*n)), int(rng.integers(*d)), int(rng.integers(*d)))
        yield rng, instance(rng, *shape, KINDS[i % len(KINDS)], 10 ** rng.uniform(*ridge))


# --- 1. the variance --------------------------------------------------------------------------------------------------


def test_lemma_1_cocoercivity_in_a_block():
    """‖∇_i φ(x) − ∇_i φ(v)‖² ≤ 2V D_φ(v, x) for convex φ that is V-smooth in block i."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        root = rng.standard_normal((2, 4)) * rng.pareto(1.0, 4)
        H = root.T @ root
        V = np.linalg.eigvalsh(H[:2, :2])[-1]
        assert np.linalg.eigvalsh(H[:2].T @ H[:2] - V * H)[-1] <= TOL * V**2


@pytest.mark.parametrize("sampling", ["uniform", "importance", None])
@pytest.mark.parametrize("batch", [1, 4, None])
def test_lemma_2_variance(sampling, batch):
    """E‖g_i − ∇_i F(x)‖² = E‖a‖²/p_i − ‖ā‖² ≤ 2σ_i D_F(v^i, x); with sampling=None from the largest row alone."""
    worst = 0.0
    for rng, q in problems(40):
        p = float(rng.choice([0.05, 0.3, 0.5, 0.9]))
        sigma = tight.variance(q.constants(sampling), p, batch)
        for block, chance, bound, mask in zip(("w", "beta"), (p, 1 - p), sigma, q.masks, strict=True):
            mean = mask @ q.hessian
            spread = q.second_moment(block, sampling or "uniform", batch) / chance - mean.T @ mean
            worst = max(worst, largest(spread, q.hessian) / bound)
    assert 0.5 < worst <= 1 + TOL


def below(a, b):
    """Whether one quadratic form is at most another at every point, up to rounding."""
    scale = max(np.max(np.abs(a)), np.max(np.abs(b)))
    return np.linalg.eigvalsh((b - a + (b - a).T) / 2)[0] >= -TOL * scale


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("batch", [1, 4])
def test_every_step_of_lemma_2(sampling, batch):
    """The variance in three bounds, one after the other, and the mean's part, as forms in x − v^i."""
    for _, q in problems(24, seed=7):
        c, p, H = q.constants(sampling), q.weights, q.hessian
        for block, L, V, mask in (("w", c.L_w, c.noise_w, q.masks[0]), ("beta", c.L_beta, c.noise_beta, q.masks[1])):
            mean, shares, smooth = mask @ H, q.shares(block, sampling), q.row_smoothness(block)
            drawn = [(m, j) for m in range(q.M) for j in range(q.n) if shares[m, j] > 0]
            phi = {(m, j): np.outer(q.rows[m, j], q.rows[m, j]) for m, j in drawn}
            share = {(m, j): smooth[m, j] / (q.n * shares[m, j]) for m, j in drawn}
            spread = q.second_moment(block, sampling, batch) - mean.T @ mean
            delta = {at: mask @ form / (q.n * shares[at]) for at, form in phi.items()}
            first = sum(p[m] ** 2 * shares[m, j] * delta[m, j].T @ delta[m, j] for m, j in drawn) / batch
            second = sum(p[m] ** 2 * share[m, j] * phi[m, j] for m, j in drawn) / (batch * q.n)
            largest_V = max(p[m] * share[m, j] for m, j in drawn)
            third = largest_V * sum(p[m] * phi[m, j] for m, j in drawn) / (batch * q.n)
            assert largest_V == pytest.approx(V)
            assert below(spread, first) and below(first, second) and below(second, third)
            assert below(third, V / batch * H) and below(mean.T @ mean, L * H)
            assert V == 0 or not below(third, 0.01 * V / batch * H)  # the check can fail


def test_the_second_moments_are_those_of_all_draws():
    for _, q in problems(8, M=(1, 4), n=(2, 4)):
        for block, mask in zip(("w", "beta"), q.masks, strict=True):
            for sampling in ("uniform", "importance"):
                draws = [(c, mask @ H) for c, H in q.draws(block, sampling)]
                assert sum(c * a for c, a in draws) == pytest.approx(mask @ q.hessian)
                found = q.second_moment(block, sampling, 1)
                assert sum(c * a.T @ a for c, a in draws) == pytest.approx(found, abs=TOL * np.max(found))


def test_the_variance_is_attained():
    """M = 1, no rest, one row that is not flat: σ_w = V/p − … is reached up to the mean's part."""
    rows = np.zeros((1, 50, 2))
    rows[0, 0] = [1.0, 0.0]
    q = Quadratic(np.ones(1), rows, 1e-9 * np.eye(2)[None], 1, 1)
    p = 0.25
    mean = q.masks[0] @ q.hessian
    spread = q.second_moment("w", "uniform", 1) / p - mean.T @ mean
    assert largest(spread, q.hessian) / tight.variance(q.constants(), p)[0] == pytest.approx(1, rel=0.05)


# --- 2. and 3. the two steps ------------------------------------------------------------------------------------------


def two_steps(q, seed=0, batch=1, sampling="uniform"):
    c = q.constants(sampling)
    h = stepsizes.asvrcd(c, q.n, batch=batch, reference="two")
    return c, h, np.random.default_rng(seed)


def outcomes(q, h, sampling="uniform"):
    """(probability, matrix of g in the state (y, z, v^w, v^β), matrix of x) for every block and row."""
    eye, zero = np.eye(q.dim), np.zeros((q.dim, q.dim))
    y, z, v_w, v_beta = (np.hstack([eye if i == j else zero for i in range(4)]) for j in range(4))
    rest = 1 - h["theta1"] - h["theta_w"] - h["theta_beta"]
    x = rest * y + h["theta1"] * z + h["theta_w"] * v_w + h["theta_beta"] * v_beta
    of_w, of_beta = q.masks
    full = of_w @ q.hessian @ v_w + of_beta @ q.hessian @ v_beta
    found = []
    for block, p, mask, v in (("w", h["p_w"], of_w, v_w), ("beta", 1 - h["p_w"], of_beta, v_beta)):
        found += [(p * c, full + mask @ H @ (x - v) / p) for c, H in q.draws(block, sampling)]
    return found, x, (y, z, v_w, v_beta)


@pytest.mark.parametrize("seed", range(6))
def test_steps_2_and_3_term_by_term(seed):
    """E F(y⁺) ≤ F(x) − ηcE‖g‖² + Σθ_i D(v^i, x), the bound on E‖z⁺ − x*‖², and both together, at random states."""
    for _, q in problems(4, seed=seed, M=(1, 3), n=(2, 4), d=(1, 3), ridge=(-4, -1)):
        c, h, rng = two_steps(q, seed)
        found, x_of, (y_of, z_of, w_of, b_of) = outcomes(q, h)
        L, eta, gamma, nu = c.L_w + c.L_beta, h["eta"], h["gamma"], h["nu"]
        assert np.linalg.eigvalsh(q.hessian)[-1] <= L * (1 + TOL)
        cc, A, H = 1 - L * eta / 2, 2 * gamma * nu / h["theta1"], q.hessian
        rest = 1 - h["theta1"] - h["theta_w"] - h["theta_beta"]

        def f(u, H=H):
            return u @ H @ u / 2

        for _ in range(10):
            state = np.concatenate([rng.standard_normal(q.dim) * 10 ** rng.uniform(-2, 2) for _ in range(4)])
            x, y, z, v_w, v_b = (m @ state for m in (x_of, y_of, z_of, w_of, b_of))
            gs = [(p, g @ state) for p, g in found]
            assert sum(p * g for p, g in gs) == pytest.approx(H @ x, abs=1e-9 * np.max(np.abs(state)))  # unbiased
            square = sum(p * g @ g for p, g in gs)
            bregman = h["theta_w"] * f(v_w - x) + h["theta_beta"] * f(v_b - x)
            after = sum(p * f(x - eta * g) for p, g in gs)
            scale = 1 + f(x) + square
            assert after <= f(x) - eta * cc * square + bregman + 1e-9 * scale  # (2)
            moved = sum(p * np.sum((nu * z + (1 - nu) * x - gamma * g) ** 2) for p, g in gs)
            inner = (1 - h["theta1"]) * f(x) - h["theta_w"] * f(v_w) - h["theta_beta"] * f(v_b) - rest * f(y) + bregman
            scale += z @ z + A * (f(y) + f(v_w) + f(v_b))
            assert moved <= nu * z @ z - 2 * gamma * f(x) - A * inner + gamma**2 * square + 1e-9 * scale  # (3)
            together = nu * z @ z + A * (h["theta_w"] * f(v_w) + h["theta_beta"] * f(v_b) + rest * f(y))
            assert moved + A * after <= together + 1e-9 * scale  # (4)


def own_steps(q, rng, most):
    """Any η < 2/L, θ_i ≥ 2ησ_i (up to `most` times as large) and θ₁ with θ_y ≥ 0, with the γ and ν of the page."""
    c, p_w = q.constants(), float(rng.uniform(0.1, 0.9))
    L, sigma, more = c.L_w + c.L_beta, tight.variance(c, p_w), rng.uniform(1.0, most, 2)
    eta = rng.uniform(0.1, 0.9) * min(2 / L, 0.4 / max(float(more @ sigma), 1e-300))
    theta_w, theta_beta = 2 * eta * more * sigma
    theta1, cc = float(rng.uniform(0.05, 1.0)) * (1 - theta_w - theta_beta), 1 - L * eta / 2
    gamma = 2 * eta * cc / (theta1 + 2 * eta * cc * c.mu)
    return c, {"p_w": p_w, "eta": eta, "theta_w": theta_w, "theta_beta": theta_beta, "theta1": theta1,
               "gamma": gamma, "nu": 1 - gamma * c.mu}  # fmt: skip


@pytest.mark.parametrize("most", [1.0, 3.0])
def test_every_step_of_2_3_and_4_for_all_states_at_once(most):
    """Each line of both proofs as a form in (y, z, v^w, v^β); `most` > 1: any θ_i ≥ 2ησ_i will do."""
    for rng, q in problems(16, seed=11, M=(1, 3), n=(2, 4), d=(1, 3), ridge=(-4, -1)):
        c, h = own_steps(q, rng, most)
        found, x, (y, z, v_w, v_b) = outcomes(q, h)
        L, eta, gamma, nu, theta1 = c.L_w + c.L_beta, h["eta"], h["gamma"], h["nu"], h["theta1"]
        H, A, cc, slope = q.hessian, 2 * gamma * nu / theta1, 1 - L * eta / 2, q.hessian @ x
        pairs = [(h["theta_w"], v_w), (h["theta_beta"], v_b)]
        theta_y = 1 - theta1 - h["theta_w"] - h["theta_beta"]

        def f(u, H=H):
            return u.T @ H @ u / 2

        def times(a, b):
            return (a.T @ b + b.T @ a) / 2

        square, length = sum(p * g.T @ g for p, g in found), slope.T @ slope
        after = sum(p * f(x - eta * g) for p, g in found)
        bregman = sum(t * f(v - x) for t, v in pairs)
        sigma = tight.variance(c, h["p_w"])
        assert sum(p * g for p, g in found) == pytest.approx(
            slope, abs=1e-9 * np.max(np.abs(slope))
        )  # Lemma 2: unbiased
        varied = sum(p * (g - slope).T @ (g - slope) for p, g in found)
        assert varied == pytest.approx(square - length, abs=1e-9 * np.max(np.abs(square)))
        assert below(varied, sum(2 * s * f(v - x) for s, (_, v) in zip(sigma, pairs, strict=True)))
        # (2): smoothness, then Lemma 2.
        assert below(after, f(x) - eta * length + L * eta**2 / 2 * square)
        assert below(after, f(x) - eta * cc * square + bregman)
        # (3): the square, its two bounds, and what the definition of x gives.
        mixed = nu * z + (1 - nu) * x
        moved = sum(p * (mixed - gamma * g).T @ (mixed - gamma * g) for p, g in found)
        expanded = mixed.T @ mixed - 2 * gamma * times(slope, nu * (z - x) + x) + gamma**2 * square
        assert moved == pytest.approx(expanded, abs=1e-9 * np.max(np.abs(expanded)))
        assert below(mixed.T @ mixed, nu * z.T @ z + (1 - nu) * x.T @ x)
        assert below(-2 * gamma * times(slope, x), -2 * gamma * f(x) - gamma * c.mu * x.T @ x)
        assert theta1 * (z - x) == pytest.approx(sum(t * (x - v) for t, v in pairs) + theta_y * (x - y), abs=1e-9)
        for _, v in pairs:
            gap = f(x) - f(v) + f(v - x)
            assert times(slope, x - v) == pytest.approx(gap, abs=1e-9 * np.max(np.abs(gap)))
        assert below(f(x) - f(y), times(slope, x - y))
        inner = (1 - theta1) * f(x) - sum(t * f(v) for t, v in pairs) - theta_y * f(y) + bregman
        assert below(moved, nu * z.T @ z - 2 * gamma * f(x) + gamma**2 * square - A * inner)
        # Together: E‖g‖² and all D cancel, and the factor of f(x) is not positive.
        assert gamma**2 == pytest.approx(A * eta * cc) and nu == pytest.approx(theta1 / (theta1 + 2 * eta * cc * c.mu))
        assert A - 2 * gamma - A * (1 - theta1) == pytest.approx(2 * gamma * (nu - 1), abs=1e-9 * A) and nu <= 1
        assert below(moved + A * after, nu * z.T @ z + A * (sum(t * f(v) for t, v in pairs) + theta_y * f(y)))


def test_a_theta_below_2_eta_sigma_will_not_do():
    """The variance is nearly attained where one row holds all: with half of θ_w, (2) fails."""
    rows = np.zeros((1, 50, 2))
    rows[0, 0] = [1.0, 0.0]
    q = Quadratic(np.ones(1), rows, 1e-9 * np.eye(2)[None], 1, 1)
    c, p_w = q.constants(), 0.25
    L, eta = c.L_w + c.L_beta, 0.1
    sigma = tight.variance(c, p_w)
    for factor, holds in ((1.0, True), (0.5, False)):
        h = {
            "p_w": p_w,
            "eta": eta,
            "theta_w": 2 * eta * sigma[0] * factor,
            "theta_beta": 2 * eta * sigma[1],
            "theta1": 0.1,
        }
        found, x, (_, _, v_w, v_b) = outcomes(q, h)
        square = sum(p * g.T @ g for p, g in found)
        after = sum(p * (x - eta * g).T @ q.hessian @ (x - eta * g) / 2 for p, g in found)
        bound = sum(h[f"theta_{i}"] * (v - x).T @ q.hessian @ (v - x) / 2 for i, v in (("w", v_w), ("beta", v_b)))
        bound = bound + x.T @ q.hessian @ x / 2 - eta * (1 - L * eta / 2) * square
        assert below(after, bound) == holds


def test_the_steps_meet_the_conditions_of_the_proof():
    for _, q in problems(12, ridge=(-6, 0)):
        for batch, sampling in itertools.product((1, 8, None), ("uniform", "importance")):
            c, h, _ = two_steps(q, batch=batch, sampling=sampling)
            L = c.L_w + c.L_beta
            cc, sigma = 1 - L * h["eta"] / 2, tight.variance(c, h["p_w"], batch)
            pairs = [(h["theta_w"], h["rho_w"]), (h["theta_beta"], h["rho_beta"])]
            for (theta, rho), s in zip(pairs, sigma, strict=True):
                assert theta == pytest.approx(2 * h["eta"] * s)
                assert h["kappa"] < rho or theta == 0
            assert cc > 0
            assert h["theta1"] + h["theta_w"] + h["theta_beta"] <= 1 + TOL
            slowed = 1 + sum(t / (r - h["kappa"]) for t, r in pairs if t > 0)
            assert h["theta1"] == pytest.approx(h["kappa"] * slowed)
            assert 1 - h["nu"] == pytest.approx(h["gamma"] * c.mu, rel=1e-6)
            assert h["nu"] <= (1 - h["kappa"]) * (1 + 1e-6)
            A = 2 * h["gamma"] * h["nu"] / h["theta1"]
            assert h["gamma"] ** 2 <= A * h["eta"] * cc * (1 + 1e-9)


# --- 4. the contraction -----------------------------------------------------------------------------------------------


def maps(q, h, sampling="uniform", tied=False):
    found, x, (y, z, v_w, v_beta) = outcomes(q, h, sampling)
    coins = [((True, True), h["rho_w"]), ((False, False), 1 - h["rho_w"])] if tied else [
        ((a, b), (h["rho_w"] if a else 1 - h["rho_w"]) * (h["rho_beta"] if b else 1 - h["rho_beta"]))
        for a, b in itertools.product((True, False), repeat=2)
    ]  # fmt: skip
    return [
        (p * chance, np.vstack([x - h["eta"] * g, h["nu"] * z + (1 - h["nu"]) * x - h["gamma"] * g,
                                y if a else v_w, y if b else v_beta]))
        for p, g in found for (a, b), chance in coins
    ]  # fmt: skip


def potential(q, h):
    """Ψ = ‖z − x*‖² + A[f(y) + Σ θ_i/(ρ_i − κ) f(v^i)] as a form in the state."""
    A = 2 * h["gamma"] * h["nu"] / h["theta1"]
    weights = [A, 0.0] + [A * h[f"theta_{i}"] / (h[f"rho_{i}"] - h["kappa"]) for i in ("w", "beta")]
    form = np.kron(np.diag(weights), q.hessian / 2)
    at = slice(q.dim, 2 * q.dim)
    form[at, at] += np.eye(q.dim)
    return form


def test_the_factors_of_the_theorem():
    """With any κ for which (5) holds: the factors of f(v^i), f(y) and ‖z − x*‖² in the bound of E Ψ⁺."""
    for rng, q in problems(16, seed=13, ridge=(-6, 0)):
        c = q.constants()
        h = stepsizes.asvrcd(c, q.n, reference="two")
        L, rho = c.L_w + c.L_beta, np.array([h["rho_w"], h["rho_beta"]])
        theta, cmu = np.array([h["theta_w"], h["theta_beta"]]), 2 * h["eta"] * (1 - L * h["eta"] / 2) * c.mu
        for kappa in h["kappa"] * rng.uniform(0.05, 1.0, 3):
            B = theta / (rho - kappa)
            theta1 = kappa * (1 + B.sum())
            assert kappa**2 * (1 + B.sum()) <= cmu * (1 - kappa) * (1 + 1e-6)  # (5), which falls with κ
            theta_y, nu = 1 - theta1 - theta.sum(), theta1 / (theta1 + cmu)
            assert theta + (1 - rho) * B == pytest.approx((1 - kappa) * B)
            assert theta_y + rho @ B == pytest.approx(1 - kappa)
            assert nu <= (1 - kappa) * (1 + 1e-6)


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("reference", ["one", "two"])
def test_theorem_the_potential_contracts(reference, sampling):
    """E[TᵀΨT] ≼ (1−κ)Ψ for every state at once."""
    for _, q in problems(24, seed=3, M=(1, 3), n=(2, 4), d=(1, 3), ridge=(-4, -1)):
        h = stepsizes.asvrcd(q.constants(sampling), q.n, reference=reference)
        if reference == "one":
            q_maps = one_maps(q, h, sampling)
            weight = 2 * h["gamma"] * h["nu"] / h["theta1"]
            form = np.kron(np.diag([weight, 0, weight * h["theta2"] / (h["rho"] - h["kappa"])]), q.hessian / 2)
            form[q.dim : 2 * q.dim, q.dim : 2 * q.dim] += np.eye(q.dim)
        else:
            q_maps, form = maps(q, h, sampling), potential(q, h)
        change = sum(p * t.T @ form @ t for p, t in q_maps)
        assert largest(change, form) <= 1 - h["kappa"] + 1e-9


def one_maps(q, h, sampling):
    eye, zero = np.eye(q.dim), np.zeros((q.dim, q.dim))
    y, z, v = (np.hstack([eye if i == j else zero for i in range(3)]) for j in range(3))
    x = h["theta1"] * z + h["theta2"] * v + (1 - h["theta1"] - h["theta2"]) * y
    found = []
    for block, p, mask in zip(("w", "beta"), (h["p_w"], 1 - h["p_w"]), q.masks, strict=True):
        for c, H in q.draws(block, sampling):
            g = q.hessian @ v + mask @ H @ (x - v) / p
            for coin, new in ((h["rho"], y), (1 - h["rho"], v)):
                found.append(
                    (p * c * coin, np.vstack([x - h["eta"] * g, h["nu"] * z + (1 - h["nu"]) * x - h["gamma"] * g, new]))
                )
    return found


def test_theorem_tied_coins_contract_too():
    """Only E f(v^i⁺) enters, so one coin may move both points: ρ_w = ρ_β with equal coins."""
    for _, q in problems(6, seed=4, M=(1, 3), n=(2, 3), d=(1, 2), ridge=(-3, -1)):
        h = stepsizes.asvrcd(q.constants(), q.n, rho=0.2, reference="two")
        form = potential(q, h)
        change = sum(p * t.T @ form @ t for p, t in maps(q, h, tied=True))
        assert largest(change, form) <= 1 - h["kappa"] + 1e-9


def test_the_rate_is_not_far_from_the_truth():
    """1 − κ against the spectral radius of E[T⊗T], the true rate of second moments: within a factor of three."""
    ratios = []
    for _, q in problems(8, seed=5, M=(2, 3), n=(2, 3), d=(1, 2), ridge=(-4, -1)):
        h = stepsizes.asvrcd(q.constants(), q.n, reference="two")
        ratios.append((1 - radius(maps(q, h))) / h["kappa"])
    assert min(ratios) >= 1 - TOL
    assert max(ratios) < 3


# --- 5. the corollary -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1 / 300, 0.1, 1.0, 30.0, 3000.0])
@pytest.mark.parametrize("n", [1, 20, 1000])
@pytest.mark.parametrize("mu", [1e-2, 1e-5])
def test_corollary_optimal_in_both_blocks(ratio, n, mu):
    """κ ≥ ¼√(μ/n)/S, and at most 12(n + √(nℓ_i/μ)) row gradients in block i per factor e, for both i."""
    row_w, row_beta = 1.0, ratio
    c = Constants(mu * min(1, ratio), row_w / 10, row_beta / 10, row_w, row_beta, noise_w=0.9 * row_w,
                  noise_beta=0.9 * row_beta, sampling="uniform")  # fmt: skip
    p_w, rho_w, rho_beta = tight.balanced(c, n, c.mu)
    S = sum(math.sqrt(max(r, n * c.mu)) for r in (row_w, row_beta))
    h = tight.tight(tight.variance(c, p_w), (rho_w, rho_beta), c.L_w + c.L_beta, c.mu)
    assert h.kappa >= math.sqrt(c.mu / n) / S / 4
    found = rates.predict("asvrcd", c, math.exp(-1), n=n, reference="two")
    assert found.grad_w <= 12 * (n + math.sqrt(n * row_w / c.mu))
    assert found.grad_beta <= 12 * (n + math.sqrt(n * row_beta / c.mu))
    # The proof's own step η = 1/(8S²) is enough.
    eta = 1 / (8 * S * S)
    theta = tuple(2 * eta * s for s in tight.variance(c, p_w))
    assert tight.contraction(eta, c.L_w + c.L_beta, c.mu, theta, (rho_w, rho_beta))[0] >= math.sqrt(c.mu / n) / S / 4


def grid():
    for ratio, n, mu in itertools.product((1 / 300, 0.1, 1.0, 30.0, 3000.0), (1, 20, 1000), (1e-2, 1e-5)):
        known = {"noise_w": 0.9, "noise_beta": 0.9 * ratio, "sampling": "uniform"}
        yield Constants(mu * min(1, ratio), 0.1, ratio / 10, 1.0, ratio, **known), n
    for _, q in problems(24, seed=17, ridge=(-6, 0)):
        for sampling in ("uniform", "importance"):
            yield q.constants(sampling), q.n


def test_every_line_of_the_corollary():
    """On the grid, and with the constants of random quadratics."""
    for c, n in grid():
        mu, V, L = c.mu, np.array([c.noise_w, c.noise_beta]), np.array([c.L_w, c.L_beta])
        ell = V + L
        m = np.maximum(ell, n * mu)
        S = np.sqrt(m).sum()
        p = np.sqrt(m) / S
        rho = p / n
        assert (p[0], *rho) == pytest.approx(tight.balanced(c, n, mu))
        eta, kappa = 1 / (8 * S**2), math.sqrt(mu / n) / S / 4
        sigma = np.array(tight.variance(c, float(p[0])))
        theta, cc, up = 2 * eta * sigma, 1 - L.sum() * eta / 2, 1 + TOL
        assert np.all(sigma <= ell / p * up) and np.all(theta <= 2 * eta * np.sqrt(m) * S * up)
        assert theta.sum() <= 0.25 * up
        assert L.sum() <= ell.sum() * up and ell.sum() <= S**2 * up and cc >= 15 / 16 / up
        assert np.all(rho * up >= math.sqrt(mu / n) / S) and math.sqrt(mu / n) / S == pytest.approx(4 * kappa)
        assert np.all((rho - kappa) * up >= rho / 2)
        B = theta / (rho - kappa)
        assert B.sum() <= np.sum(4 * eta * np.sqrt(m) * S * n * S / np.sqrt(m)) * up
        assert np.sum(4 * eta * np.sqrt(m) * S * n * S / np.sqrt(m)) == pytest.approx(n)
        assert S * up >= 2 * math.sqrt(n * mu) and kappa <= up / (8 * n)
        left, right = kappa**2 * (1 + B.sum()), 2 * eta * cc * mu * (1 - kappa)
        assert left <= 2 * n * kappa**2 * up and 2 * n * kappa**2 == pytest.approx(mu / (8 * S**2))
        assert right * up >= 2 / (8 * S**2) * 15 / 16 * 7 / 8 * mu and right * up >= mu / (5 * S**2) >= left
        theta1 = kappa * (1 + B.sum())
        assert theta1 <= 2 * n * kappa * up and theta1 <= 0.25 * up and theta1 + theta.sum() <= 0.5 * up
        gain = 2 * eta * cc * mu
        nu = theta1 / (theta1 + gain)
        weight = 4 * eta * cc * nu**2 / theta1**2
        assert gain / theta1 <= math.sqrt(n * mu) / S * up and math.sqrt(n * mu) / S <= up / 2 and nu * up >= 2 / 3
        assert weight == pytest.approx(2 * (1 - nu) / mu * nu / theta1)  # A = 2γν/θ₁
        assert 1 / weight <= 1.2 * n * mu * up and 2 / (weight * mu) + 1 + B.sum() <= 5 * n
        assert 2 * p + rho * n == pytest.approx(3 * p)
        counts = 3 * p / kappa
        assert counts == pytest.approx(12 * np.sqrt(n * m / mu)) and np.all(
            counts <= 12 * (n + np.sqrt(n * ell / mu)) * up
        )


@pytest.mark.parametrize("ratio", [1 / 300, 3000.0])
def test_one_reference_point_is_optimal_in_one_block_only(ratio):
    """In units of n + √(nℓ_i/μ) per factor e: two points stay below 5 in both; one point takes twice that in a block, or more."""
    n = 100
    mu = 1e-4 * min(1.0, ratio)
    c = Constants(mu, 0.01, 0.01 * ratio, 1.0, ratio, noise_w=1.0, noise_beta=ratio, sampling="uniform")

    def units(p, rho_w, rho_beta):
        h = tight.tight(tight.variance(c, p), (rho_w, rho_beta), c.L_w + c.L_beta, mu)
        calls = (2 * p + rho_w * n, 2 * (1 - p) + rho_beta * n)
        return [k / h.kappa / (n + math.sqrt(n * ell / mu)) for k, ell in zip(calls, (1.01, 1.01 * ratio), strict=True)]

    p = 1 / (1 + ratio)
    both = units(*tight.balanced(c, n, mu))
    assert max(both) < 5
    assert max(units(p, p / n, p / n)) > 2 * max(both)
    assert max(units(p, (1 - p) / n, (1 - p) / n)) > 2 * max(both)
