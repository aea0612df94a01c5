"""Finite sums of quadratics, small enough that every expectation is a sum over all draws: exact, with NumPy alone.

F(w, β) = Σ_m p_m [(1/n) Σ_j ½(aᵀx)² + ½ xᵀ R_m x], the rows' a = (s·a_w, a_β) with a_β in client m's own block, minimum at 0.
Any method that is linear in its state is then a random matrix T, and its second moments evolve by E[T⊗T].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twofold.theory.constants import Constants

KINDS = ("light", "heavy", "one", "uneven")


@dataclass(frozen=True)
class Quadratic:
    """One instance; `rows[m, j]` is row j of client m in the joint space, `rest[m]` the part of f_m without data."""

    weights: np.ndarray
    rows: np.ndarray
    rest: np.ndarray
    d_w: int
    d_beta: int

    @property
    def M(self) -> int:
        return len(self.weights)

    @property
    def n(self) -> int:
        return self.rows.shape[1]

    @property
    def dim(self) -> int:
        return self.rows.shape[2]

    def block(self, m: int | None) -> slice:
        """The place of w (None), or of client m's β."""
        return slice(0, self.d_w) if m is None else slice(self.d_w + m * self.d_beta, self.d_w + (m + 1) * self.d_beta)

    @property
    def of_clients(self) -> np.ndarray:
        return np.einsum("mji,mjk->mik", self.rows, self.rows) / self.n + self.rest

    @property
    def hessian(self) -> np.ndarray:
        return np.tensordot(self.weights, self.of_clients, axes=1)

    def row_smoothness(self, block: str) -> np.ndarray:
        """The data part of each row's smoothness in a block, (M, n)."""
        places = [self.block(None if block == "w" else m) for m in range(self.M)]
        return np.array([np.sum(self.rows[m][:, at] ** 2, axis=1) for m, at in enumerate(places)])

    def shares(self, block: str, sampling: str) -> np.ndarray:
        """The probability of each row of each client."""
        if sampling == "uniform":
            return np.full((self.M, self.n), 1 / self.n)
        smooth = self.row_smoothness(block)
        total = smooth.sum(1)[:, None]
        return np.where(total > 0, smooth / np.where(total > 0, total, 1), 1 / self.n)

    def constants(self, sampling: str | None = "uniform") -> Constants:
        """By eigenvalues; with sampling=None the paper's: the largest client's L^w, and no noise."""
        H, p, own = self.hessian, self.weights, self.of_clients
        w, betas = self.block(None), [self.block(m) for m in range(self.M)]
        L_w, rest_w = (np.array([_top(h[w, w]) for h in forms]) for forms in (own, self.rest))
        L_beta, rest_beta = (
            np.array([_top(h[at, at]) for h, at in zip(forms, betas, strict=True)]) for forms in (own, self.rest)
        )
        of_w, of_beta = self.row_smoothness("w"), self.row_smoothness("beta")
        known = {
            "mu": np.linalg.eigvalsh(H)[0],
            "L_beta": np.max(p * L_beta),
            "calL_w": np.max(of_w.max(1) + rest_w),
            "calL_beta": np.max(p * (of_beta.max(1) + rest_beta)),
        }
        if sampling is None:
            return Constants(L_w=np.max(L_w), **known)
        pick = np.max if sampling == "uniform" else np.mean
        return Constants(
            L_w=_top(H[w, w]),
            noise_w=np.max(p * pick(of_w, axis=1)),
            noise_beta=np.max(p * pick(of_beta, axis=1)),
            sampling=sampling,  # type: ignore[arg-type]
            L_client=np.max(L_w),
            drawn_w=np.max(pick(of_w, axis=1) + rest_w),
            drawn_beta=np.max(p * (pick(of_beta, axis=1) + rest_beta)),
            **known,
        )

    @property
    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """The projections onto w and onto β."""
        of_w = np.diag((np.arange(self.dim) < self.d_w).astype(float))
        return of_w, np.eye(self.dim) - of_w

    def draws(self, block: str, sampling: str = "uniform") -> Iterator[tuple[float, np.ndarray]]:
        """Every sampled Hessian of one row per client, drawn for a block, with its probability."""
        shares = self.shares(block, sampling)
        for rows in itertools.product(range(self.n), repeat=self.M):
            chance = float(np.prod([shares[m, j] for m, j in enumerate(rows)]))
            if chance > 0:
                data = [
                    np.outer(self.rows[m, j], self.rows[m, j]) / (self.n * shares[m, j]) for m, j in enumerate(rows)
                ]
                yield chance, np.tensordot(self.weights, np.array(data) + self.rest, axes=1)

    def second_moment(self, block: str, sampling: str, batch: int | None) -> np.ndarray:
        """E[aaᵀ] as a form in x − v: the sampled difference of gradients in a block, rows independent between clients."""
        mask = self.masks[0 if block == "w" else 1]
        mean = mask @ self.hessian
        found = mean.T @ mean
        if batch is None:
            return found
        shares = self.shares(block, sampling)
        for m in range(self.M):
            each = [(shares[m, j], mask @ np.outer(a, a) / (self.n * shares[m, j]))
                    for j, a in enumerate(self.rows[m]) if shares[m, j] > 0]  # fmt: skip
            center = sum(q * g for q, g in each)
            found = found + self.weights[m] ** 2 / batch * (sum(q * g.T @ g for q, g in each) - center.T @ center)
        return found


def _top(form: np.ndarray) -> float:
    """The largest eigenvalue; 0 for a block that is not there."""
    return float(np.linalg.eigvalsh(form)[-1]) if form.size else 0.0


def instance(
    rng: np.random.Generator, M: int, n: int, d_w: int, d_beta: int, kind: str = "light", ridge: float = 1e-2
) -> Quadratic:
    """A random one: plain rows, heavy-tailed rows, rows with one feature each, or unequal clients with heavy rows."""
    weights = rng.dirichlet(np.ones(M) * 0.7) * 0.9 + 0.1 / M if kind == "uneven" else np.full(M, 1 / M)
    s, dim = M**-0.5, d_w + M * d_beta
    own = rng.standard_normal((M, n, d_w + d_beta))
    if kind in ("heavy", "uneven"):
        own *= rng.pareto(1.0, (M, n, 1)) + 0.05
    if kind == "one":
        place = rng.integers(d_w + d_beta, size=(M, n, 1))
        own = np.where(np.arange(d_w + d_beta) == place, rng.pareto(0.7, (M, n, 1)) + 0.01, 0.0)
    rows, rest = np.zeros((M, n, dim)), np.zeros((M, dim, dim))
    for m in range(M):
        at = slice(d_w + m * d_beta, d_w + (m + 1) * d_beta)
        rows[m, :, :d_w], rows[m, :, at] = s * own[m, :, :d_w], own[m, :, d_w:]
        rest[m][:d_w, :d_w], rest[m][at, at] = ridge * s * s * np.eye(d_w), ridge * np.eye(d_beta)
    return Quadratic(weights, rows, rest, d_w, d_beta)


def largest(form: np.ndarray, relative_to: np.ndarray) -> float:
    """The largest eigenvalue of a form relative to a positive definite one."""
    half = np.linalg.inv(np.linalg.cholesky(relative_to))
    return float(np.linalg.eigvalsh(half @ form @ half.T)[-1])


def radius(maps: list[tuple[float, np.ndarray]]) -> float:
    """The spectral radius of E[T⊗T]: the factor by which second moments grow in the long run."""
    moments = sum(q * np.kron(t, t) for q, t in maps)
    return float(np.max(np.abs(np.linalg.eigvals(moments))))
