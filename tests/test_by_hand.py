"""Every method against a plain NumPy loop, written from its equations, with the same coins and the same rows.

The problem is the mixture over least squares with unequal clients and unequal weights p_m, in the scaled space:
F(w, β) = Σ p_m [½ mean (xβ_m − y)² + (r/2)‖β_m‖² + (λ/2)‖s w − β_m‖²].
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from problems import FEATURES, LOSSES, clients
from twofold import randomness
from twofold.algorithms import ACD, ASCD, ASVRCD, LSGD, SCD, SVRCD, Algorithm, L2SGDPlus, PFedMe
from twofold.problem import Problem
from twofold.sampling import alias_rows, alias_table
from twofold.solver import complete

LAM, SEED, ITERATIONS = 0.5, 6, 24


@cache
def problem(sampling: Any) -> Problem:
    """The mixture, weighted by rows."""
    everyone = clients("squared", weights="rows")
    return Problem(tw.objectives.mixture(LOSSES["squared"], lam=LAM), everyone, sampling=sampling)


class Drawn(NamedTuple):
    """Some rows, and the weight of each in a mean over them."""

    index: np.ndarray
    weight: np.ndarray


def alike(index: Any) -> Drawn:
    """Rows that all count one."""
    return Drawn(np.asarray(index), np.ones(len(index)))


class Plain:
    """The problem in NumPy: gradients on given rows, and the draws that the library would make.

    The draws of one method are those of the next, so each is made once.
    """

    def __init__(self, sampling: str) -> None:
        self.whole, self.sampling = problem(sampling), sampling
        everyone = self.whole.clients
        self.data = [(client.x, client.y) for client in everyone]
        self.p, self.s, self.M = np.array(everyone.weights), self.whole.scale, len(everyone)
        self.zero_w, self.zero = np.zeros(FEATURES), np.zeros((self.M, FEATURES))
        root = randomness.root(SEED)
        self._common = randomness.common(root)
        self._own = [randomness.private(root, m) for m in range(self.M)]
        self.coin, self.coins, self.rows = cache(self._coin), cache(self._coins), cache(self._rows)

    def _coin(self, k: int, p: Any) -> bool:
        return bool(randomness.coin(randomness.of(self._common, k), p))

    def _coins(self, k: int, *p: Any) -> list[bool]:
        key = randomness.of(self._common, k)
        return [bool(randomness.coin(randomness.at(key, i), each)) for i, each in enumerate(p)]

    def _rows(self, m: int, k: int, size: int | None, step: int | None = None, uniform: bool = False) -> Drawn:
        """The rows that client m draws in iteration k (in its local step): row j with π_j ∝ ‖x_j‖², weighed by 1/(nπ_j)."""
        (x, y), key = self.data[m], randomness.of(self._own[m], k)
        key = key if step is None else randomness.at(key, step)
        if size is None:
            return alike(np.arange(len(y)))
        if uniform or self.sampling == "uniform":
            return alike(randomness.rows(key, len(y), size))
        pi = np.sum(x**2, axis=1) / np.sum(x**2)
        found = np.asarray(alias_rows(randomness.bits(key, 2 * size), *alias_table(pi), len(y), size))
        return Drawn(found, 1 / (len(y) * pi[found]))

    def order(self, m: int, k: int, epoch: int) -> np.ndarray:
        count = len(self.data[m][1])
        return np.asarray(randomness.shuffle(randomness.at(randomness.of(self._own[m], k), epoch), count, count))

    def of_loss(self, m: int, beta: np.ndarray, rows: Drawn) -> np.ndarray:
        """∇f'_m on some rows."""
        x, y = (array[rows.index] for array in self.data[m])
        return x.T @ (rows.weight * (x @ beta - y)) / len(y) + LOSSES["squared"].l2 * beta

    def of_w(self, w: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """∇_w F, which has no rows in it."""
        return self.s * LAM * self.p @ (self.s * w - beta)

    def of_beta(self, w: np.ndarray, beta: np.ndarray, rows: list[Drawn]) -> np.ndarray:
        """∇_β F on some rows of each client."""
        fits = [self.of_loss(m, beta[m], rows[m]) for m in range(self.M)]
        return self.p[:, None] * (np.stack(fits) + LAM * (beta - self.s * w))

    def all_rows(self, k: int, size: int | None) -> list[Drawn]:
        return [self.rows(m, k, size) for m in range(self.M)]


def lsgd(f: Plain, a: LSGD) -> tuple[np.ndarray, np.ndarray]:
    w, beta = f.zero_w, f.zero.copy()
    sum_w, sum_beta, totals = np.zeros((f.M, FEATURES)), f.zero.copy(), np.zeros(f.M)
    steps = np.zeros(f.M, int)
    for k in range(ITERATIONS):
        sent = np.empty((f.M, FEATURES))
        for m in range(f.M):
            mine = w
            if a.epochs is None:
                batches = [f.rows(m, k, a.batch, i) for i in range(a.tau)]
            else:
                orders = [f.order(m, k, e) for e in range(a.epochs)]
                batches = [alike(order[i : i + a.batch]) for order in orders for i in range(0, len(order), a.batch)]
            for rows in batches:
                eta = a.eta(steps[m]) if callable(a.eta) else a.eta
                if a.average:  # the weight of iterate k is (1−ημ)^(−k−1)
                    weight = (1 - eta * a.mu) ** (-steps[m] - 1.0)
                    sum_w[m] += weight * mine
                    sum_beta[m] += weight * beta[m]
                    totals[m] += weight
                pull = LAM * (beta[m] - f.s * mine)
                mine, beta[m] = (
                    mine + eta * f.s * pull,
                    beta[m] - eta * f.p[m] * (f.of_loss(m, beta[m], rows) + pull),
                )
                steps[m] += 1
            sent[m] = mine
        w = f.p @ sent
    return (f.p @ (sum_w / totals[:, None]), sum_beta / totals[:, None]) if a.average else (w, beta)


def acd(f: Plain, a: ACD) -> tuple[np.ndarray, np.ndarray]:
    w_y = w_z = f.zero_w
    y = z = f.zero
    for k in range(ITERATIONS):
        w_x, x = (1 - a.theta) * w_y + a.theta * w_z, (1 - a.theta) * y + a.theta * z
        drawn = f.coin(k, a.p_w)
        g_w = f.of_w(w_x, x) if drawn else f.zero_w
        g = f.zero if drawn else f.of_beta(w_x, x, f.all_rows(k, None))
        w_y, y = w_x - g_w / a.L_w, x - g / a.L_beta
        w_z = (w_z + a.eta * a.nu * w_x - a.eta * a.p_w / a.L_w * g_w) / (1 + a.eta * a.nu)
        z = (z + a.eta * a.nu * x - a.eta * (1 - a.p_w) / a.L_beta * g) / (1 + a.eta * a.nu)
    return w_y, y


def scd(f: Plain, a: SCD) -> tuple[np.ndarray, np.ndarray]:
    w, beta = f.zero_w, f.zero
    for k in range(ITERATIONS):
        if f.coin(k, a.p_w):
            w = w - a.eta / a.p_w * f.of_w(w, beta)
        else:
            beta = beta - a.eta / (1 - a.p_w) * f.of_beta(w, beta, f.all_rows(k, a.batch))
    return w, beta


def ascd(f: Plain, a: ASCD) -> tuple[np.ndarray, np.ndarray]:
    w_y = w_z = f.zero_w
    y = z = f.zero
    for k in range(ITERATIONS):
        w_x, x = a.theta * w_z + (1 - a.theta) * w_y, a.theta * z + (1 - a.theta) * y
        if f.coin(k, a.p_w):
            w_y = w_x - a.eta / a.p_w * f.of_w(w_x, x)
            w_z = a.nu * w_z + (1 - a.nu) * w_x + a.gamma / a.eta * (w_y - w_x)
        else:
            y = x - a.eta / (1 - a.p_w) * f.of_beta(w_x, x, f.all_rows(k, a.batch))
            z = a.nu * z + (1 - a.nu) * x + a.gamma / a.eta * (y - x)
    return w_y, y


def svrcd(f: Plain, a: SVRCD) -> tuple[np.ndarray, np.ndarray]:
    w = w_v = full_w = f.zero_w
    beta = v = full = f.zero
    for k in range(ITERATIONS):
        drawn, refresh = f.coins(k, a.p_w, a.rho)
        g_w, g = full_w, full
        if drawn:
            g_w = (f.of_w(w, beta) - f.of_w(w_v, v)) / a.p_w + full_w
        else:
            rows = f.all_rows(k, a.batch)
            g = (f.of_beta(w, beta, rows) - f.of_beta(w_v, v, rows)) / (1 - a.p_w) + full
        if refresh or k == 0:
            w_v, v = w, beta
            full_w, full = f.of_w(w, beta), f.of_beta(w, beta, f.all_rows(k, None))
        w, beta = w - a.eta * g_w, beta - a.eta * g
    return w, beta


def asvrcd(f: Plain, a: ASVRCD) -> tuple[np.ndarray, np.ndarray]:
    w_y = w_z = w_v = full_w = f.zero_w
    y = z = v = full = f.zero
    rest = 1 - a.theta1 - a.theta2
    for k in range(ITERATIONS):
        drawn, refresh = f.coins(k, a.p_w, a.rho)
        w_x, x = a.theta1 * w_z + a.theta2 * w_v + rest * w_y, a.theta1 * z + a.theta2 * v + rest * y
        g_w, g = full_w, full
        if drawn:
            g_w = (f.of_w(w_x, x) - f.of_w(w_v, v)) / a.p_w + full_w
        else:
            rows = f.all_rows(k, a.batch)
            g = (f.of_beta(w_x, x, rows) - f.of_beta(w_v, v, rows)) / (1 - a.p_w) + full
        if refresh or k == 0:
            w_v, v = w_y, y
            full_w, full = f.of_w(w_y, y), f.of_beta(w_y, y, f.all_rows(k, None))
        w_y, y = w_x - a.eta * g_w, x - a.eta * g
        w_z = a.nu * w_z + (1 - a.nu) * w_x + a.gamma / a.eta * (w_y - w_x)
        z = a.nu * z + (1 - a.nu) * x + a.gamma / a.eta * (y - x)
    return w_y, y


def l2sgd_plus(f: Plain, a: L2SGDPlus) -> tuple[np.ndarray, np.ndarray]:
    beta, mean, psi = f.zero.copy(), f.zero_w, f.zero
    table = [np.zeros((len(y), FEATURES)) for _, y in f.data]
    for k in range(ITERATIONS):
        if f.coin(k, a.p_w):
            memory = np.stack([rows.mean(axis=0) for rows in table])
            mean = f.p @ beta
            pull = LAM * (beta - mean)
            g = pull / a.p_w - (1 / a.p_w - 1) * psi + memory
            beta, psi = beta - a.eta * f.p[:, None] * g, pull
            continue
        for m in range(f.M):
            rows = f.rows(m, k, a.batch, uniform=True).index
            new = np.stack([f.of_loss(m, beta[m], alike([j])) for j in rows])
            g = (new - table[m][rows]).mean(axis=0) / (1 - a.p_w) + table[m].mean(axis=0) + psi[m]
            beta[m] = beta[m] - a.eta * f.p[m] * g
            table[m][rows] = new
    return mean / f.s, beta


def pfedme(f: Plain, a: PFedMe) -> tuple[np.ndarray, np.ndarray]:
    w, theta = f.zero_w, f.zero.copy()
    for k in range(ITERATIONS):
        sent = np.empty((f.M, FEATURES))
        for m in range(f.M):
            mine = f.s * w  # in real units, as its authors have it
            for r in range(a.local_rounds):
                rows = f.rows(m, k, a.batch, r, uniform=True)
                for _ in range(a.inner_steps):
                    g = f.of_loss(m, theta[m], rows) + LAM * (theta[m] - mine)
                    theta[m] = theta[m] - a.inner_eta * g
                mine = mine - a.eta * LAM * (mine - theta[m])
            sent[m] = mine / f.s
        w = (1 - a.delta) * w + a.delta * f.p @ sent
    return w, theta


CASES = {
    "lsgd": (lsgd, LSGD(tau=3)),
    "lsgd-average": (lsgd, LSGD(tau=3, batch=2, average=True, mu=0.3)),
    "lsgd-epochs": (lsgd, LSGD(epochs=2, batch=4)),
    "lsgd-schedule": (lsgd, LSGD(eta=optax.cosine_decay_schedule(0.2, 30), tau=2)),
    "lsgd-full": (lsgd, LSGD(tau=2, batch=None)),
    "acd": (acd, ACD()),
    "scd": (scd, SCD(p_w=0.4)),
    "scd-batch3": (scd, SCD(batch=3)),
    "ascd": (ascd, ASCD()),
    "ascd-full": (ascd, ASCD(batch=None)),
    "svrcd": (svrcd, SVRCD(rho=0.2)),
    "svrcd-batch3": (svrcd, SVRCD(rho=0.2, batch=3)),
    "asvrcd": (asvrcd, ASVRCD(rho=0.2)),
    "asvrcd-beta": (asvrcd, ASVRCD(rho=0.2, batch=3, optimal="beta")),
    "l2sgd_plus": (l2sgd_plus, L2SGDPlus()),
    "l2sgd_plus-batch8": (l2sgd_plus, L2SGDPlus(batch=8)),  # more than a client's rows: some are drawn twice
    "l2sgd_plus-full": (l2sgd_plus, L2SGDPlus(batch=None)),
    "pfedme": (pfedme, PFedMe(local_rounds=3, inner_steps=2, batch=2, delta=0.7)),
    "pfedme-full": (pfedme, PFedMe(local_rounds=1, inner_steps=4, batch=None)),
}


UNIFORM = ("lsgd-average", "scd", "ascd", "svrcd-batch3")
"""Where rows are drawn uniformly; elsewhere they are drawn by importance, which is the default for a linear loss."""


in_numpy = cache(Plain)


@pytest.mark.parametrize("case", CASES)
def test_every_method_is_its_equations(case: str):
    by_hand, method = CASES[case]
    plain = in_numpy("uniform" if case in UNIFORM else "importance")
    method, _ = complete(plain.whole, method, cost=None)  # a round costs as much as all rows: both blocks move soon
    result = tw.solve(plain.whole, method, iterations=ITERATIONS, seed=SEED)
    w, beta = by_hand(plain, numbers(method))
    assert np.abs(w).max() > 1e-3
    assert_allclose(result.w, plain.whole.scale * w, rtol=0, atol=1e-11)
    assert_allclose(result.beta, beta, rtol=0, atol=1e-11)


def numbers(method: Algorithm) -> Any:
    """The method with plain floats in its fields."""
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    return dataclasses.replace(method, **{k: float(v) for k, v in fields.items() if hasattr(v, "dtype")})
