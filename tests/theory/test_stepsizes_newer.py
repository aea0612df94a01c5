"""The numbers of the newer methods, held against their theorems."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from quadratics import largest, radius
from twofold.theory import stepsizes_newer
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.each import common

C = Constants(0.02, 1.0, 2.0, 9.0, 8.0)
WEIGHTS = np.array([0.2, 0.3, 0.5])
EACH = common(C, WEIGHTS)._replace(mu=np.array([0.02, 0.05, 0.01]), L=np.array([2.0, 4.0, 0.5]))


def test_scaffnew_takes_the_worst_of_all_clients():
    found = stepsizes_newer.scaffnew(C, EACH)
    assert_allclose([found["eta"], found["p_w"], found["kappa"]], [1 / 4, np.sqrt(0.01 / 4), 0.01 / 4])


def test_scafflix_takes_the_worst_client():
    found = stepsizes_newer.scafflix(C, EACH)
    assert_allclose(found["steps"], 1 / EACH.L)
    assert_allclose([found["p_w"], found["kappa"]], [np.sqrt(0.02 / 2), 0.02 / 2])
    assert_allclose(found["mass"], np.sum(WEIGHTS / found["steps"]))


@pytest.mark.parametrize("method", [stepsizes_newer.scaffnew, stepsizes_newer.scafflix])
def test_rare_rounds_cost_speed(method):
    """κ = min{ημ, p²}."""
    assert_allclose(method(C, EACH, p_w=0.01)["kappa"], 1e-4)
    assert method(C, EACH, p_w=1.0)["kappa"] == method(C, EACH)["kappa"]


@pytest.mark.parametrize("method", [stepsizes_newer.scaffnew, stepsizes_newer.scafflix])
def test_sampled_rows_take_half_of_a_step_for_the_worst_row(method):
    found = method(C, EACH, batch=1)
    assert_allclose(found.get("eta", found.get("steps")), 1 / (2 * 17.0))
    drawn = C.replace(noise_w=0.5, noise_beta=4.0, sampling="importance", drawn_w=3.0, drawn_beta=2.0)
    found = method(drawn, EACH, batch=1)
    assert_allclose(found.get("eta", found.get("steps")), 1 / 10)
    found = method(drawn, EACH, batch=10)  # 2R/10 + L
    assert_allclose(found.get("eta", found.get("steps")), 1 / (1 + 4.0) if "eta" in found else 1 / (1 + EACH.L))
    assert_allclose(method(drawn, EACH)["kappa"], method(C, EACH)["kappa"])


@pytest.mark.parametrize("method", ["scaffnew", "scafflix"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_scaffnew_on_sampled_rows_contracts_as_fast_as_is_proven(method: str, batch: int, seed: int):
    """ProxSkip on a random quadratic whose blocks share one π, all draws summed: E‖·‖² falls by 1 − κ in the long run."""
    rng, M, n = np.random.default_rng(seed), 2, 2
    own = rng.standard_normal((M, n, 2)) * (rng.pareto(1.0, (M, n, 1)) + 0.1) * 10.0 ** rng.uniform(-1, 1, (M, n, 2))
    ridge, s, p_m = 10.0 ** rng.uniform(-2, -0.5), M**-0.5, rng.dirichlet(np.ones(M) * 3)
    own[..., 0] *= s
    rest = ridge * np.diag([s * s, 1.0])
    smooth = own**2
    pi = np.mean(smooth / smooth.sum(axis=1, keepdims=True), axis=2)
    counted = smooth / (n * pi)[..., None]
    H = np.einsum("mji,mjk->mik", own, own) / n + rest
    norm = np.stack([np.diag([1.0, p**0.5]) for p in p_m])
    ends = np.linalg.eigvalsh(norm @ H @ norm)
    each = EACH._replace(weights=p_m, mu=ends[:, 0], L=ends[:, 1])
    most = [np.max(share * (counted[..., i].max(axis=1) + rest[i, i])) for i, share in ((0, np.ones(M)), (1, p_m))]
    c = C.replace(noise_w=1.0, noise_beta=1.0, sampling="importance", drawn_w=most[0], drawn_beta=most[1])
    h = getattr(stepsizes_newer, method)(c, each, batch)
    steps, p = np.broadcast_to(h.get("eta", h.get("steps")), M), h["p_w"]
    eye = np.eye(3 * M)  # w_m, h_m, β_m of every client
    w, control, beta = eye[:M], eye[M : 2 * M], eye[2 * M :]
    mean, maps = p_m / steps / np.sum(p_m / steps), []
    for rows in np.ndindex(*(n,) * (M * batch)):
        mine = np.reshape(rows, (M, batch))
        new_w, new_beta, chance = np.zeros_like(w), np.zeros_like(beta), 1.0
        for m in range(M):
            A = rest + sum(np.outer(own[m, j], own[m, j]) / (n * pi[m, j]) for j in mine[m]) / batch
            chance *= np.prod(pi[m, mine[m]])
            new_w[m] = w[m] - steps[m] * (A[0, 0] * w[m] + A[0, 1] * beta[m] - control[m])
            new_beta[m] = beta[m] - steps[m] * p_m[m] * (A[1, 0] * w[m] + A[1, 1] * beta[m])
        together = np.tile(mean @ new_w, (M, 1))
        moved = control + p / steps[:, None] * (together - new_w)
        maps += [(chance * p, np.vstack([together, moved, new_beta])),
                 (chance * (1 - p), np.vstack([new_w, control, new_beta]))]  # fmt: skip
    assert sum(q for q, _ in maps) == pytest.approx(1)
    assert 0 < h["kappa"] < 1 and radius_of_controlled(maps, p_m, M) <= 1 - h["kappa"] + 1e-9


def radius_of_controlled(maps: list, p_m: np.ndarray, M: int) -> float:
    """The spectral radius of E[T⊗T] on the states with Σ p_m h_m = 0, which every iteration keeps."""
    normal = np.zeros(3 * M)
    normal[M : 2 * M] = p_m
    basis = np.linalg.svd(normal[None])[2][1:].T
    return radius([(q, basis.T @ T @ basis) for q, T in maps])


@pytest.mark.parametrize("method", [stepsizes_newer.scaffnew, stepsizes_newer.scafflix])
def test_a_client_that_may_be_flat_is_told(method):
    found = method(C, EACH._replace(mu=np.array([0.02, 0.0, 0.01])))
    assert found["note"].startswith("Client 1's own function is not known to be strongly convex")


def test_al2sgd_plus_has_the_numbers_of_l_katyusha():
    loss = LossConstants(np.array([0.1, 0.2, 0.3]), 1.0, np.array([3.0, 2.0, 4.0]))
    found = stepsizes_newer.al2sgd_plus(loss, WEIGHTS, lam=0.5)
    of_loss, of_pull = 2.0, 0.25  # max p_m 𝓛'_m, λ max p_m
    p = of_pull / (of_loss + of_pull)
    eta, rho, mu = 1 / (4 * (of_loss + of_pull)), p * (1 - p), 0.02
    theta1 = np.sqrt(eta * mu * 0.5 / rho)
    assert 0.5 / rho > 0.5 and theta1 < 0.5
    gamma = eta / (4 * theta1)
    assert_allclose(
        [found[name] for name in ("p_w", "eta", "rho", "theta1", "theta2", "gamma", "nu")],
        [p, eta, rho, theta1, 0.5, gamma, 1 - gamma * mu],
    )
    rare = stepsizes_newer.al2sgd_plus(loss, WEIGHTS, lam=0.5, p_w=0.01)
    assert_allclose(rare["eta"], 1 / (4 * 25.0))  # the penalty's part, divided by p, is now the larger one


def rounds_of(h: dict) -> float:
    """Rounds per factor e: averaging steps, of which only the first in a row sends if means are carried, and refreshes."""
    sends = h["p_w"] * (1 - h["p_w"] if h["carry"] else 1)
    return (1 - (1 - sends) * (1 - h["rho"])) / h["kappa"]


@pytest.mark.parametrize("lam", [1e-2, 1.0, 1e2, 1e4])
def test_al2sgd_plus_has_rounds_of_the_order_of_the_penalty_for_every_lambda(lam: float):
    """With unequal weights O(√(λ/μ')), whichever of λ and 𝓛' is larger, and no other p needs half of it."""
    loss, weights = LossConstants(np.full(4, 1e-4), 1.0, np.full(4, 1.0)), np.array([0.249, 0.249, 0.249, 0.253])

    def rounds(p_w: float | None = None) -> float:
        return rounds_of(stepsizes_newer.al2sgd_plus(loss, weights, lam, p_w))

    assert rounds() <= 2.1 * (2 + 8 * np.sqrt(lam / 1e-4))
    assert rounds() <= 2 * min(rounds(p) for p in np.geomspace(1e-3, 0.5, 20))
    assert rounds() <= 1.5 * min(rounds(1 - p) for p in np.geomspace(1e-3, 0.5, 20))
    if lam > 1:
        assert stepsizes_newer.al2sgd_plus(loss, weights, lam)["p_w"] == 0.5


@pytest.mark.parametrize("lam", [1e-2, 1.0, 1e2, 1e4])
def test_al2sgd_plus_has_its_theorems_rounds_with_equal_weights(lam: float):
    """O(√(min{λ, 𝓛'}/μ')): for λ > 𝓛' they no longer grow, as of averaging steps in a row only the first sends."""
    loss = LossConstants(np.full(4, 1e-4), 1.0, np.full(4, 1.0))

    def found(p_w: float | None = None) -> dict:
        return stepsizes_newer.al2sgd_plus(loss, np.full(4, 0.25), lam, p_w)

    assert_allclose(found()["p_w"], lam / (1 + lam))
    assert found()["carry"] == (lam > 1)
    assert rounds_of(found()) <= 2 * (2 + 8 * np.sqrt(min(lam, 1.0) / 1e-4))
    others = [rounds_of(found(p)) for p in [*np.geomspace(1e-3, 0.5, 20), *(1 - np.geomspace(1e-5, 0.5, 20))]]
    assert rounds_of(found()) <= 2 * min(others)


def drawn(smooth: np.ndarray, by: float) -> np.ndarray:
    """π_mj between uniform (by = 0) and importance (by = 1), rows of a client beside each other."""
    uniform = np.full(smooth.shape, 1 / smooth.shape[1])
    return by * smooth / smooth.sum(axis=1, keepdims=True) + (1 - by) * uniform


@pytest.mark.parametrize("by", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch", [1, 3, None])
def test_al2sgd_plus_knows_the_second_moment_of_its_rows(by: float, batch: int | None):
    """E‖∇f_J(x) − ∇f_J(v)‖² ≤ 2𝓛_f D_f: exactly, for rows drawn by any π, and 𝓛_f is at most twice what is needed."""
    rng, ratios, M, n, d = np.random.default_rng(0), [], 2, 4, 2
    for _ in range(20):
        x = rng.standard_normal((M, n, d)) * (rng.pareto(1.0, (M, n, 1)) + 0.05)
        smooth, ridge, p_m = np.sum(x**2, axis=-1), 10.0 ** rng.uniform(-3, 0), rng.dirichlet(np.ones(M) * 5)
        pi = drawn(smooth, by)
        H = np.einsum("mji,mjk->mik", x, x) / n + ridge * np.eye(d)
        top = np.linalg.eigvalsh(H)[:, -1]
        loss = LossConstants(ridge, top, smooth.max(axis=1) + ridge)
        noise = float(np.max(p_m[:, None] * smooth / (n * pi)))
        lam = 1e-6
        found = stepsizes_newer.al2sgd_plus(loss, p_m, lam, batch=batch, noise=noise)
        calL = 1 / (4 * found["eta"]) - lam * p_m.max()
        single = np.einsum("mji,mjk->mjik", x, x) / (n * pi)[..., None, None] + ridge * np.eye(d)
        square = np.einsum("mj,mjik,mjkl->mil", pi, single, single)
        share = 0.0 if batch is None else 1 / batch
        needed = max(largest(p_m[m] * ((1 - share) * H[m] @ H[m] + share * square[m]), H[m]) for m in range(M))
        assert needed <= calL * (1 + 1e-9)
        ratios.append(calL / needed)
    assert min(ratios) < 1.05 and max(ratios) < 2
    if batch is None:
        assert_allclose(ratios, 1, rtol=1e-6)


def test_al2sgd_plus_steps_for_the_rows_that_it_draws():
    """One row in a hundred has all the curvature: drawn by importance it counts as the mean row, and a batch counts less."""
    loss = LossConstants(0.01, 1.01, 100.01)
    step = {
        (noise, b): stepsizes_newer.al2sgd_plus(loss, [0.5, 0.5], 0.02, batch=b, noise=noise)["eta"]
        for noise in (None, 50.0, 0.5)
        for b in (1, 16, None)
    }
    assert step[None, 1] == step[50.0, 1]  # uniformly drawn, 𝓛' is 100 and the ridge
    assert_allclose([step[0.5, b] for b in (1, 16, None)], 1 / (4 * 0.515))
    assert_allclose(step[None, 16], 1 / (4 * (0.01 + (15 * 0.505 + 50.005) / 16)))
    assert step[None, None] == step[0.5, None]


@pytest.mark.parametrize("seed", range(9))
def test_al2sgd_plus_contracts_as_fast_as_is_proven(seed: int):
    """Second moments of (y, z, v) on a random quadratic with all draws summed: their spectral radius is at most 1 − κ."""
    rng = np.random.default_rng(seed)
    M, n, lam, ridge = 3, 2, 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(-3, -1)
    smooth = rng.normal(size=(M, n)) ** 2 * 10.0 ** rng.uniform(-1, 1, (M, n))
    a = smooth + ridge  # f'_mj = a_mj β²/2
    p_m = np.full(M, 1 / M) if seed % 2 else rng.dirichlet(np.ones(M))
    pi = drawn(smooth, 0.5 * (seed % 3))
    loss = LossConstants(a.mean(axis=1), a.mean(axis=1), a.max(axis=1))
    noise = float(np.max(p_m[:, None] * smooth / (n * pi))) if seed % 3 else None
    h = stepsizes_newer.al2sgd_plus(loss, p_m, lam, rho=None if seed < 3 else 0.3, noise=noise)
    eye, zero = np.eye(M), np.zeros((M, M))
    psi, f = lam * (np.diag(p_m) - np.outer(p_m, p_m)), np.diag(p_m * a.mean(axis=1))
    x = np.hstack([(1 - h["theta1"] - h["theta2"]) * eye, h["theta1"] * eye, h["theta2"] * eye])
    y, z, v = (np.hstack(row) for row in ((eye, zero, zero), (zero, eye, zero), (zero, zero, eye)))
    second = 0.0
    single = smooth / (n * pi) + ridge
    for averages, rows in [(True, None), *((False, rows) for rows in np.ndindex(*(n,) * M))]:
        part = psi / h["p_w"] if averages else np.diag(p_m * single[range(M), list(rows)]) / (1 - h["p_w"])
        chance = h["p_w"] if averages else (1 - h["p_w"]) * np.prod(pi[range(M), list(rows)])
        g = part @ (x - v) + (psi + f) @ v
        new_y, new_z = x - h["eta"] * g, h["nu"] * z + (1 - h["nu"]) * x - h["gamma"] * g
        for new_v, rho in ((y, h["rho"]), (v, 1 - h["rho"])):
            T = np.vstack([new_y, new_z, new_v])
            second = second + chance * rho * np.kron(T, T)
    radius = np.max(np.abs(np.linalg.eigvals(second)))
    assert 0 < h["kappa"] < 1 and radius <= 1 - h["kappa"] + 1e-12


def test_fedprox_pulls_six_times_as_hard_as_the_loss_bends():
    each = EACH._replace(L_w=np.array([1.0, 3.0, 0.5]))
    found = stepsizes_newer.fedprox(C, each)
    assert_allclose([found["prox"], found["eta"]], [18.0, 1 / 22])
    assert_allclose(stepsizes_newer.fedprox(C, each, batch=1, prox=3.0)["eta"], 1 / (2 * 20.0))
    assert_allclose(stepsizes_newer.fedprox(C, each, batch=2, prox=3.0)["eta"], 1 / (20.0 + 7.0))


def test_saga_knows_who_takes_part():
    each = EACH._replace(L_w=np.array([1.0, 3.0, 0.5]))
    q = np.array([0.5, 0.2, 0.4])
    extra = max(0.2 * 1.0 * 1.0, 0.3 * 3.0 * 4.0, 0.5 * 0.5 * 1.5)
    found = stepsizes_newer.saga(C, each, q)
    assert_allclose([found["eta"], found["kappa"]], [1 / (1 + 6 * extra), 0.02 / (1 + 6 * extra)])
    # Three clients with the same q: drawn without replacement they count 3/2.
    assert_allclose(stepsizes_newer.saga(C, each, 0.5)["eta"], 1 / (1 + 6 * 1.5 * 0.9))
    assert stepsizes_newer.saga(C, each, 1.0)["eta"] == 1.0


def test_constants_of_all_stand_in_for_those_of_each():
    """Sharp constants have F's own L^w, which is no client's: there 𝓛^w takes its place, unless L_client is known."""
    sharp = Constants(0.02, 1.0, 2.0, 9.0, 8.0, noise_w=0.5, noise_beta=4.0, sampling="uniform")
    assert common(sharp, WEIGHTS).L_w.tolist() == [9.0] * 3
    assert common(C.replace(L_client=3.0), WEIGHTS).L.tolist() == [5.0] * 3
    assert_allclose(common(C, WEIGHTS).mu_beta, 0.02 / WEIGHTS)
