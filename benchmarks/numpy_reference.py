"""The same methods as a careful person would write them in NumPy: a loop over clients, mini-batches, scipy's expit.

Used only as the yardstick of `mx2.py`; each function returns the losses it recorded.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit


class Mixture:
    """Synthetic MX2: f_m(w, β) = mean log-loss of β + (λ/2)‖w − β‖², everything client by client."""

    def __init__(self, data: list, lam: float) -> None:
        self.X, self.y, self.lam, self.M, self.d = (
            [x for x, _ in data],
            [y for _, y in data],
            lam,
            len(data),
            data[0][0].shape[1],
        )

    def loss(self, w: np.ndarray, betas: list[np.ndarray]) -> float:
        total = 0.0
        for X, y, beta in zip(self.X, self.y, betas, strict=True):
            score = X @ beta
            total += np.mean(np.logaddexp(0, score) - y * score) + self.lam / 2 * np.sum((w - beta) ** 2)
        return total / self.M

    def fit_gradient(self, m: int, beta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        X, y = self.X[m][rows], self.y[m][rows]
        return X.T @ (expit(X @ beta) - y) / len(rows)

    def gradient_beta(self, m: int, w: np.ndarray, beta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self.fit_gradient(m, beta, rows) + self.lam * (beta - w)

    def gradient_w(self, w: np.ndarray, beta: np.ndarray) -> np.ndarray:
        return self.lam * (w - beta)

    def full_gradient_beta(self, m: int, w: np.ndarray, beta: np.ndarray) -> np.ndarray:
        X, y = self.X[m], self.y[m]
        return X.T @ (expit(X @ beta) - y) / len(y) + self.lam * (beta - w)


def lsgd(p: Mixture, h: dict, rounds: int, every: int, seed: int, tau: int = 5, batch: int = 1) -> list[float]:
    rng, s, eta = np.random.default_rng(seed), p.M**-0.5, h["eta"]
    w, betas, out = np.zeros(p.d), [np.zeros(p.d) for _ in range(p.M)], []
    for r in range(1, rounds + 1):
        total = np.zeros(p.d)
        for m in range(p.M):
            local, beta = w.copy(), betas[m]
            for _ in range(tau):
                rows = rng.integers(len(p.y[m]), size=batch)
                of_w, of_beta = s * p.gradient_w(s * local, beta), p.gradient_beta(m, s * local, beta, rows) / p.M
                local, beta = local - eta * of_w, beta - eta * of_beta
            betas[m] = beta
            total += local
        w = total / p.M
        if r % every == 0:
            out.append(p.loss(s * w, betas))
    return out


def ascd(p: Mixture, h: dict, rounds: int, every: int, seed: int, batch: int = 1) -> list[float]:
    rng, s = np.random.default_rng(seed), p.M**-0.5
    y, z = np.zeros(p.d), np.zeros(p.d)
    by, bz, out, r = [np.zeros(p.d) for _ in range(p.M)], [np.zeros(p.d) for _ in range(p.M)], [], 0
    eta, theta, nu, gamma, p_w = h["eta"], h["theta"], h["nu"], h["gamma"], h["p_w"]
    while r < rounds:
        x = theta * z + (1 - theta) * y
        if rng.random() < p_w:
            g = np.zeros(p.d)
            for m in range(p.M):
                g += s * p.gradient_w(s * x, theta * bz[m] + (1 - theta) * by[m])
            g /= p_w * p.M
            y = x - eta * g
            z = nu * z + (1 - nu) * x + gamma / eta * (y - x)
            r += 1
            if r % every == 0:
                out.append(p.loss(s * y, by))
        else:
            for m in range(p.M):
                bx = theta * bz[m] + (1 - theta) * by[m]
                rows = rng.integers(len(p.y[m]), size=batch)
                g = p.gradient_beta(m, s * x, bx, rows) / (p.M * (1 - p_w))
                by[m] = bx - eta * g
                bz[m] = nu * bz[m] + (1 - nu) * bx + gamma / eta * (by[m] - bx)
    return out


def asvrcd(p: Mixture, h: dict, rounds: int, every: int, seed: int, batch: int = 1) -> list[float]:
    rng, s, M = np.random.default_rng(seed), p.M**-0.5, p.M
    zero = np.zeros(p.d)
    y, z, v = zero, zero, zero
    by, bz, bv = [zero] * M, [zero] * M, [zero] * M
    eta, t1, t2, nu, gamma, p_w, rho = (h[k] for k in ("eta", "theta1", "theta2", "nu", "gamma", "p_w", "rho"))
    full_w = sum(s * p.gradient_w(s * v, bv[m]) for m in range(M)) / M
    full_b = [p.full_gradient_beta(m, s * v, bv[m]) / M for m in range(M)]
    out, r = [], 0
    while r < rounds:
        draw, refresh = rng.random() < p_w, rng.random() < rho
        x = t1 * z + t2 * v + (1 - t1 - t2) * y
        g_w, new_by, new_bz = full_w, [], []
        if draw:
            g_w = full_w.copy()
        for m in range(M):
            bx = t1 * bz[m] + t2 * bv[m] + (1 - t1 - t2) * by[m]
            g = full_b[m]
            if draw:
                g_w += s * (p.gradient_w(s * x, bx) - p.gradient_w(s * v, bv[m])) / (p_w * M)
            else:
                rows = rng.integers(len(p.y[m]), size=batch)
                g = g + (p.gradient_beta(m, s * x, bx, rows) - p.gradient_beta(m, s * v, bv[m], rows)) / ((1 - p_w) * M)
            new_by.append(bx - eta * g)
            new_bz.append(nu * bz[m] + (1 - nu) * bx + gamma / eta * (new_by[m] - bx))
        old_y, old_by = y, by
        y = x - eta * g_w
        z = nu * z + (1 - nu) * x + gamma / eta * (y - x)
        by, bz = new_by, new_bz
        if refresh:
            v, bv = old_y, old_by
            full_w = sum(s * p.gradient_w(s * v, bv[m]) for m in range(M)) / M
            full_b = [p.full_gradient_beta(m, s * v, bv[m]) / M for m in range(M)]
        if draw or refresh:
            r += 1
            if r % every == 0:
                out.append(p.loss(s * y, by))
    return out


def l2sgd_plus(p: Mixture, h: dict, rounds: int, every: int, seed: int) -> list[float]:
    rng, M = np.random.default_rng(seed), p.M
    eta, prob = h["eta"], h["p_w"]
    betas = [np.zeros(p.d) for _ in range(M)]
    tables = [np.zeros((len(y), p.d)) for y in p.y]
    means, psis = [np.zeros(p.d) for _ in range(M)], [np.zeros(p.d) for _ in range(M)]
    out, r = [], 0
    while r < rounds:
        if rng.random() < prob:
            centre = sum(betas) / M
            for m in range(M):
                pull = p.lam * (betas[m] - centre)
                betas[m] = betas[m] - eta / M * (pull / prob - (1 / prob - 1) * psis[m] + means[m])
                psis[m] = pull
            r += 1
            if r % every == 0:
                out.append(p.loss(centre, betas))
        else:
            for m in range(M):
                j = rng.integers(len(p.y[m]), size=1)
                new = p.fit_gradient(m, betas[m], j)
                change = new - tables[m][j[0]]
                betas[m] = betas[m] - eta / M * (change / (1 - prob) + means[m] + psis[m])
                means[m] = means[m] + change / len(p.y[m])
                tables[m][j[0]] = new
    return out


def pfedme(
    p: Mixture, h: dict, rounds: int, every: int, seed: int, R: int = 20, K: int = 5, batch: int = 20
) -> list[float]:
    rng = np.random.default_rng(seed)
    eta, inner, lam = h["eta"], h["inner_eta"], p.lam
    w, thetas, out = np.zeros(p.d), [np.zeros(p.d) for _ in range(p.M)], []
    for r in range(1, rounds + 1):
        total = np.zeros(p.d)
        for m in range(p.M):
            local, theta = w.copy(), thetas[m]
            for _ in range(R):
                rows = rng.integers(len(p.y[m]), size=batch)
                for _ in range(K):
                    theta = theta - inner * p.gradient_beta(m, local, theta, rows)
                local = local - eta * lam * (local - theta)
            thetas[m] = theta
            total += local
        w = total / p.M
        if r % every == 0:
            out.append(p.loss(w, thetas))
    return out


METHODS = {"lsgd": lsgd, "ascd": ascd, "asvrcd": asvrcd, "l2sgd_plus": l2sgd_plus, "pfedme": pfedme}
