"""The independent optimum: Newton with the block structure of the problem, or L-BFGS when the blocks are large.

Nothing here is shared with the algorithms but the objective's own value: Hessians come from `jax.hessian` in float64 (even when
JAX runs in float32), each β_m is eliminated, and the small system in w is solved by dense linear algebra.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (SciPy has no types of its own for its iterative solvers; what pyright infers for them is wrong.)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse.linalg
from jax.flatten_util import ravel_pytree

from twofold import tree
from twofold.errors import InputError
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.problem import Optimum, Problem

DENSE = 1200
"""Up to this many parameters per client (w and β_m together) the Newton blocks are formed."""


NEAR = 1e-6
"""The last leg of a search begins where the gradient has fallen to this fraction of the first one."""

FARTHEST = 1e8
"""An entry of this size is on its way to infinity."""


class NotConvexError(InputError):
    """The problem has no certified minimiser: it is not convex, or not bounded below."""


class _Blocks:
    """F in real parameters as flat float64 arrays: w of size a, β of shape (M, b)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        w, beta = jax.tree.map(lambda leaf: jnp.asarray(leaf, _float64(leaf)), problem._start)
        flat_w, self.unravel_w = ravel_pytree(w)
        flat_beta, self.unravel_beta = ravel_pytree(beta)
        self.a, self.b, self.M = flat_w.size, flat_beta.size, problem.M
        self.w0 = np.asarray(flat_w, np.float64)
        self.beta0 = np.tile(np.asarray(flat_beta, np.float64), (self.M, 1))
        self.weights = np.asarray(problem.clients.weights, np.float64)
        self.stacks = tree.cast(problem.stacks_as(np.dtype(np.float64)), jnp.float64)
        self._functions = {name: jax.jit(jax.vmap(f, in_axes=(0, None, 0))) for name, f in self._of_one().items()}

    def _of_one(self) -> dict[str, Any]:
        from twofold.oracle import Oracle
        from twofold.variables import Variables

        def value(member: Any, w: jax.Array, beta: jax.Array) -> jax.Array:
            oracle = Oracle(self.problem.objective, Variables(), member)
            return oracle.value(self.unravel_w(w), self.unravel_beta(beta))

        def both(member: Any, w: jax.Array, beta: jax.Array) -> Any:
            return jax.value_and_grad(value, argnums=(1, 2))(member, w, beta)

        def hessian(member: Any, w: jax.Array, beta: jax.Array) -> Any:
            return jax.hessian(value, argnums=(1, 2))(member, w, beta)

        def product(member: Any, at: Any, direction: Any) -> Any:
            return jax.jvp(lambda w, b: jax.grad(value, argnums=(1, 2))(member, w, b), at, direction)[1]

        self._product = jax.jit(
            jax.vmap(
                lambda member, w, beta, dw, db: product(member, (w, beta), (dw, db)), in_axes=(0, None, 0, None, 0)
            )
        )
        return {"both": both, "hessian": hessian}

    def _everyone(self, name: Any, w: np.ndarray, *betas: np.ndarray) -> Any:
        """The per-client answers of one compiled function, put back into client order."""
        function = self._functions[name] if isinstance(name, str) else name
        outs = [
            jax.tree.map(np.asarray, function(stack, w, *(beta[positions] for beta in betas)))
            for stack, positions in zip(self.stacks, self.problem.positions, strict=True)
        ]
        order = np.argsort(np.concatenate(self.problem.positions))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *outs)

    def value_and_gradient(self, w: np.ndarray, beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        values, (of_w, of_beta) = self._everyone("both", w, beta)
        return float(self.weights @ values), self.weights @ of_w, self.weights[:, None] * of_beta

    def hessians(self, w: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σ p_m H_ww (a, a), p_m H_wβ (M, a, b), p_m H_ββ (M, b, b)."""
        (ww, wb), (_, bb) = self._everyone("hessian", w, beta)
        p = self.weights[:, None, None]
        return np.tensordot(self.weights, ww, 1), p * wb, p * bb

    def hessian_times(self, w: np.ndarray, beta: np.ndarray, dw: np.ndarray, db: np.ndarray) -> tuple[Any, Any]:
        def call(stack: Any, w: Any, beta: Any, db: Any) -> Any:
            return self._product(stack, w, beta, dw, db)

        of_w, of_beta = self._everyone(call, w, beta, db)
        return self.weights @ of_w, self.weights[:, None] * of_beta

    def norm(self, of_w: np.ndarray, of_beta: np.ndarray) -> float:
        """‖∇F‖ in the scaled space."""
        return float(np.sqrt(self.problem.scale**2 * np.sum(of_w**2) + np.sum(of_beta**2)))


def _float64(leaf: Any) -> Any:
    return jnp.float64 if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None


def minimise(problem: Problem, dense: int = DENSE) -> Optimum:
    """The minimiser of a convex problem: Newton with eliminated β where the blocks are small, else L-BFGS."""
    from twofold.problem import Optimum

    if not problem.objective.convex:
        raise NotConvexError(
            f"The {problem.objective.name} objective is not convex, so there is no optimum() to certify; solve it and "
            "look at the gradient norm instead."
        )
    with jax.enable_x64(True):
        blocks = _Blocks(problem)
        search = _newton if blocks.a + blocks.b <= dense else _lbfgs
        w, beta = search(blocks)
        value, of_w, of_beta = blocks.value_and_gradient(w, beta)
        real_w = jax.tree.map(np.asarray, blocks.unravel_w(jnp.asarray(w)))
        real_beta = jax.tree.map(np.asarray, jax.vmap(blocks.unravel_beta)(jnp.asarray(beta)))
    return Optimum(real_w, real_beta, value, blocks.norm(of_w, of_beta))


def _newton(blocks: _Blocks, most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    w, beta = blocks.w0, blocks.beta0
    value, of_w, of_beta = blocks.value_and_gradient(w, beta)
    first = blocks.norm(of_w, of_beta)
    best = (first, w, beta)
    legs: list[Any] = []
    idle = 0
    for _ in range(most):
        dw, db = _newton_step(*blocks.hessians(w, beta), of_w, of_beta)
        slope = float(of_w @ dw + np.sum(of_beta * db))
        step, accepted = 1.0, False
        trial, new = (w, beta), (value, of_w, of_beta)
        while step > 1e-10 and not accepted:
            trial = (w + step * dw, beta + step * db)
            new = blocks.value_and_gradient(*trial)
            # Near the optimum the decrease drowns in rounding: a smaller gradient is then as good a sign.
            accepted = new[0] <= value + 1e-4 * step * slope or (
                new[0] <= value + 1e-13 * (1 + abs(value)) and blocks.norm(*new[1:]) < best[0]
            )
            step /= 2
        if not accepted:
            break
        before = value
        (w, beta), (value, of_w, of_beta) = trial, new
        if not np.isfinite(value):
            raise NotConvexError("Newton left the domain of the objective: its value is not finite.")
        norm = blocks.norm(of_w, of_beta)
        idle = 0 if norm < 0.5 * best[0] or value < before - 1e-12 * (1 + abs(before)) else idle + 1
        if norm < best[0]:
            best = (norm, w, beta)
        if norm <= NEAR * first and not legs:
            legs.append((w, beta))
        if norm == 0 or idle >= 3:
            break
    _check(blocks, first, legs, *best)
    return best[1], best[2]


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def _newton_step(ww: Any, wb: Any, bb: Any, of_w: Any, of_beta: Any) -> tuple[np.ndarray, np.ndarray]:
    """−H⁻¹∇F for the arrow-shaped Hessian: eliminate each β_m, solve the Schur complement in w, substitute back."""
    right = np.concatenate([of_beta[:, :, None], np.swapaxes(wb, 1, 2)], axis=2)  # (M, b, 1 + a)
    solved = (
        np.stack([_solve(*pair, _largest(pair[0])) for pair in zip(bb, right, strict=True)]) if bb.shape[1] else right
    )
    schur = ww - np.einsum("mab,mbc->ac", wb, solved[:, :, 1:])
    reduced = of_w - np.einsum("mab,mb->a", wb, solved[:, :, 0])
    dw = -_solve(schur, reduced[:, None], _largest(ww))[:, 0] if len(reduced) else reduced
    db = -(solved[:, :, 0] + np.einsum("mba,a->mb", solved[:, :, 1:], dw))
    return dw, db


def _solve(matrix: np.ndarray, right: np.ndarray, size: float) -> np.ndarray:
    """Solve a symmetric system; where it is singular (a flat direction of a convex problem), the least-norm solution.

    `size` is that of the entries from which the matrix was computed: anything far below it is rounding.
    """
    with contextlib.suppress(scipy.linalg.LinAlgError):
        factor = scipy.linalg.cho_factor(matrix)
        if np.min(np.diag(factor[0])) ** 2 > 1e-13 * size:
            return scipy.linalg.cho_solve(factor, right)
    values, vectors = scipy.linalg.eigh((matrix + matrix.T) / 2)
    _check_sign(float(values[0]), size)
    keep = values > 1e-13 * size
    return vectors[:, keep] @ ((vectors[:, keep].T @ right) / values[keep, None])


def _lbfgs(blocks: _Blocks) -> tuple[np.ndarray, np.ndarray]:
    """L-BFGS in the scaled space, with restarts until it no longer improves, then Newton-CG for the last digits."""
    s = blocks.problem.scale

    def unpack(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return s * v[: blocks.a], v[blocks.a :].reshape(blocks.M, blocks.b)

    def function(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, of_w, of_beta = blocks.value_and_gradient(*unpack(v))
        return value, np.concatenate([s * of_w, of_beta.ravel()])

    def product(v: np.ndarray, d: np.ndarray) -> np.ndarray:
        of_w, of_beta = blocks.hessian_times(*unpack(v), *unpack(d))
        return np.concatenate([s * of_w, of_beta.ravel()])

    v = np.concatenate([blocks.w0 / s, blocks.beta0.ravel()])
    _check_curvature(lambda d, at=v: product(at, d), v.size)
    options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 30, "ftol": 0.0}
    first = function(v)[1]
    legs = []
    for tolerance in (*(10.0**-k * _largest(first) for k in range(2, 10)), 1e-13):
        v = scipy.optimize.minimize(function, v, jac=True, method="L-BFGS-B", options={**options, "gtol": tolerance}).x
        legs.append(unpack(v))
    norm = float(np.linalg.norm(function(v)[1]))
    for _ in range(30 if _largest(v) < FARTHEST else 0):  # Newton-CG: quadratic convergence for the last digits
        _, gradient = function(v)
        operator = scipy.sparse.linalg.LinearOperator(
            (v.size, v.size), matvec=lambda d, at=v: product(at, d), dtype=float
        )
        step, _ = scipy.sparse.linalg.cg(operator, -gradient, rtol=1e-6, maxiter=500)
        new = float(np.linalg.norm(function(v + step)[1]))
        if not new < 0.9 * norm:
            break
        v, norm = v + step, new
    _check(blocks, float(np.linalg.norm(first)), legs, norm, *unpack(v))
    return unpack(v)


def _check_curvature(product: Callable[[np.ndarray], np.ndarray], size: int) -> None:
    """Refuse a Hessian with negative curvature; Lanczos' values lie inside the spectrum, so a convex one always passes."""
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        ends = scipy.sparse.linalg.eigsh(operator, k=2, which="BE", tol=0.1, maxiter=10, return_eigenvectors=False)
    except scipy.sparse.linalg.ArpackError:  # an eigenvalue that is nearly 0 takes for ever to pin down
        return
    _check_sign(float(np.min(ends)), float(np.max(np.abs(ends))))


def _check_sign(smallest: float, top: float) -> None:
    if smallest < -1e-8 * top:
        raise NotConvexError(
            f"The Hessian has a negative eigenvalue ({smallest:.3g} against {top:.3g}): the problem is not convex."
        )


def _is_unending(blocks: _Blocks, old: Any, new: Any) -> bool:
    """Whether to go on as from the old point to the new costs nothing, as far as the point is large, but to go back does."""
    leg = [b - a for a, b in zip(old, new, strict=True)]
    length = max(map(_largest, leg))
    if length == 0:
        return False
    far = max(1.0, *map(_largest, new)) / length
    back, here, ahead = (
        blocks.value_and_gradient(*(x + t * d for x, d in zip(new, leg, strict=True)))[0] for t in (-far, 0.0, far)
    )
    return ahead <= here + 1e-9 * (1 + abs(here)) and back > here + 1e-5 * (1 + abs(here))


def _check(blocks: _Blocks, first: float, legs: list[Any], norm: float, w: np.ndarray, beta: np.ndarray) -> None:
    """Refuse to call a point the minimiser where the search would go on for ever, or stopped short."""
    largest = max(_largest(w), _largest(beta))
    unending = norm > 0 and any(_is_unending(blocks, leg, (w, beta)) for leg in legs)
    if unending or not np.isfinite(norm) or largest > FARTHEST:
        raise NotConvexError(
            f"The minimiser runs off to infinity (largest entry so far {largest:.3g}): separable classes without a ridge, "
            "most likely. Give the loss a ridge, l2 > 0."
        )
    random = np.random.default_rng(0)
    near = [x * (1 + 1e-14 * random.choice([-1.0, 1.0], x.shape)) for x in (w, beta)]
    (value, *slope), (_, *other) = (blocks.value_and_gradient(*x) for x in ((w, beta), near))
    noise = blocks.norm(
        *(b - a for a, b in zip(slope, other, strict=True))
    )  # what the last digits of the point amount to
    if norm > max(1e-10 * first, noise, 1e-14 * (1 + abs(value))):
        raise NotConvexError(
            f"No minimiser was found: ‖∇F‖ is {norm:.3g} where the search ended, after {first:.3g} at its start. The "
            "problem is not bounded below, or not smooth, most likely."
        )


def smallest_eigenvalue(problem: Problem, at: tuple[Pytree, Pytree]) -> float:
    """The smallest eigenvalue of ∇²F in the scaled space at a real point."""
    with jax.enable_x64(True):
        blocks = _Blocks(problem)
        w = np.asarray(ravel_pytree(tree.cast(at[0], jnp.float64))[0]) if blocks.a else blocks.w0
        beta = (
            np.asarray(jax.vmap(lambda t: ravel_pytree(t)[0])(tree.cast(at[1], jnp.float64)))
            if blocks.b
            else blocks.beta0
        )
        a, b, M, s = blocks.a, blocks.b, blocks.M, problem.scale
        if a + M * b <= 2 * DENSE and a + b <= DENSE:
            ww, wb, bb = blocks.hessians(w, beta)
            full = np.zeros((a + M * b, a + M * b))
            full[:a, :a] = s**2 * ww
            for m in range(M):
                mine = slice(a + m * b, a + (m + 1) * b)
                full[:a, mine], full[mine, :a], full[mine, mine] = s * wb[m], s * wb[m].T, bb[m]
            return float(scipy.linalg.eigvalsh(full, subset_by_index=[0, 0])[0])

        def product(v: np.ndarray) -> np.ndarray:
            of_w, of_beta = blocks.hessian_times(w, beta, s * v[:a], v[a:].reshape(M, b))
            return np.concatenate([s * of_w, of_beta.ravel()])

        operator = scipy.sparse.linalg.LinearOperator((a + M * b,) * 2, matvec=product, dtype=np.float64)
        return float(scipy.sparse.linalg.eigsh(operator, k=1, which="SA", tol=1e-4, return_eigenvectors=False)[0])
