"""An independent optimum to compare with: Newton's method on the problem's blocks, in float64 even when JAX runs in float32.

The objective's value is the only code shared with the algorithms. For small blocks, `jax.hessian` forms the Hessians, each β_m
is eliminated, and the small system in w is solved by dense linear algebra. For large blocks, conjugate gradients on Hessian
products find Newton's direction, in one compiled loop.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (SciPy has no types of its own for its iterative solvers; what pyright infers for them is wrong.)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
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

__all__ = ["NotConvexError", "minimise", "smallest_eigenvalue"]

DENSE = 300
"""The Newton blocks are formed if a client has at most this many parameters (w and β_m together)."""

WHOLE = 2400
"""To find the smallest eigenvalue, the whole Hessian is formed if there are at most this many parameters over all clients."""

PRODUCTS = 1000
"""The most Hessian products that one Newton direction may take; if that is too few, the direction still descends."""

FLAT, NEGATIVE = 1e-14, 1e-8
"""A direction is flat if its curvature is below FLAT times the largest one, and concave if it is below −NEGATIVE times that."""

NEAR = 1e-6
"""The last leg of a search begins once the gradient norm has fallen to this fraction of its first value."""

FARTHEST = 1e8
"""A parameter larger than this is taken to diverge."""


class NotConvexError(InputError):
    """The problem has no certified minimiser: it is not convex, or not bounded below."""


def _value(objective: Any, like: tuple[Pytree, Pytree], member: Any, w: jax.Array, beta: jax.Array) -> jax.Array:
    """A client's f_m at flat parameters, which are unflattened to the structure of `like`."""
    from twofold.oracle import Oracle
    from twofold.variables import Variables

    unravel_w, unravel_beta = (ravel_pytree(part)[1] for part in like)
    return Oracle(objective, Variables(), member).value(unravel_w(w), unravel_beta(beta))


@partial(jax.jit, static_argnums=0)
def _of_everyone(name: str, objective: Any, like: tuple[Pytree, Pytree], stack: Any, w: jax.Array, betas: Any) -> Any:
    """Every client's value and gradient, or its Hessian; problems of the same shape share the compiled program."""
    derive = {"both": jax.value_and_grad, "hessian": jax.hessian}[name]
    of_one = derive(partial(_value, objective, like), argnums=(1, 2))
    return jax.vmap(of_one, in_axes=(0, None, 0))(stack, w, betas)


@jax.jit
def _unravelled(like: tuple[Pytree, Pytree], w: jax.Array, betas: jax.Array) -> tuple[Pytree, Pytree]:
    unravel_w, unravel_beta = (ravel_pytree(part)[1] for part in like)
    return unravel_w(w), jax.vmap(unravel_beta)(betas)


class _Blocks:
    """F as a function of the user's parameters, as flat float64 arrays: w of size a, β of shape (M, b)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        w, beta = jax.tree.map(lambda leaf: jnp.asarray(leaf, _float64(leaf)), problem._start)
        flat_w, flat_beta = (ravel_pytree(part)[0] for part in (w, beta))
        self.a, self.b, self.M = flat_w.size, flat_beta.size, problem.M
        self.w0 = np.asarray(flat_w, np.float64)
        self.beta0 = np.tile(np.asarray(flat_beta, np.float64), (self.M, 1))
        self.weights = np.asarray(problem.clients.weights, np.float64)
        self.stacks = tree.cast(problem.stacks_as(np.dtype(np.float64)), jnp.float64)
        self.like = w, beta
        like = problem.objective, self.like
        self._functions = {name: partial(_of_everyone, name, *like) for name in ("both", "hessian")}
        self._compile(partial(_value, *like))

    def _compile(self, value: Callable[..., jax.Array]) -> None:
        def product(member: Any, at: Any, direction: Any) -> Any:
            return jax.jvp(lambda w, b: jax.grad(value, argnums=(1, 2))(member, w, b), at, direction)[1]

        self._product = jax.jit(
            jax.vmap(
                lambda member, w, beta, dw, db: product(member, (w, beta), (dw, db)), in_axes=(0, None, 0, None, 0)
            )
        )

        def total(stacks: Any, w: jax.Array, parts: tuple) -> jax.Array:
            values = [
                jnp.vdot(stack.weight, jax.vmap(value, in_axes=(0, None, 0))(stack, w, part))
                for stack, part in zip(stacks, parts, strict=True)
            ]
            return sum(values[1:], values[0])

        def solve(stacks: Any, w: jax.Array, parts: tuple, right: tuple, tolerance: jax.Array) -> Any:
            # Linearise once, so that all that the Hessian products have in common is computed outside the loop.
            times = jax.linearize(lambda *at: jax.grad(total, argnums=(1, 2))(stacks, *at), w, parts)[1]
            # Preconditioner: these scales bring the curvatures in w and in each β_m to the same order of magnitude.
            scale = (1 / self.M, tuple(1 / (self.M * stack.weight[:, None]) for stack in stacks))
            return _conjugate_gradients(times, right, scale, tolerance)

        self._solve = jax.jit(solve)

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

    def solve(
        self, w: np.ndarray, beta: np.ndarray, right: tuple[np.ndarray, np.ndarray], tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(∇²F)⁻¹ r by conjugate gradients, to a residual of `tolerance` relative to r; refuses negative curvature."""

        def cut(x: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(x[positions] for positions in self.problem.positions)

        (of_w, parts), smallest, top = self._solve(self.stacks, w, cut(beta), (right[0], cut(right[1])), tolerance)
        _check_sign(float(smallest), float(top))
        order = np.argsort(np.concatenate(self.problem.positions))
        return np.asarray(of_w), np.concatenate([np.asarray(part) for part in parts])[order]

    def norm(self, of_w: np.ndarray, of_beta: np.ndarray) -> float:
        """‖∇F‖ in the scaled space."""
        return float(np.sqrt(self.problem.scale**2 * np.sum(of_w**2) + np.sum(of_beta**2)))


def _float64(leaf: Any) -> Any:
    return jnp.float64 if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None


def minimise(problem: Problem, dense: int = DENSE) -> Optimum:
    """The minimiser of a convex problem by Newton's method; β is eliminated if a client has at most `dense` parameters."""
    from twofold.problem import Optimum

    if not problem.objective.convex:
        raise NotConvexError(
            f"The {problem.objective.name} objective is not convex, so there is no optimum() to certify; solve it and "
            "look at the gradient norm instead."
        )
    with jax.enable_x64(True):
        blocks = _Blocks(problem)
        w, beta = _newton(blocks, _eliminate if blocks.a + blocks.b <= dense else _Truncated(blocks))
        value, of_w, of_beta = blocks.value_and_gradient(w, beta)
        real_w, real_beta = jax.tree.map(np.asarray, _unravelled(blocks.like, w, beta))
    return Optimum(real_w, real_beta, value, blocks.norm(of_w, of_beta))


Direction = Callable[[_Blocks, np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps (blocks, w, β, ∇_w F, ∇_β F) to −(∇²F)⁻¹∇F, exactly or approximately."""


def _newton(blocks: _Blocks, direction: Direction, most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    w, beta = blocks.w0, blocks.beta0
    value, of_w, of_beta = blocks.value_and_gradient(w, beta)
    first = blocks.norm(of_w, of_beta)
    best = (first, w, beta)
    legs: list[Any] = []
    idle = 0
    for _ in range(most):
        dw, db = direction(blocks, w, beta, of_w, of_beta)
        slope = float(of_w @ dw + np.sum(of_beta * db))
        step, accepted = 1.0, False
        trial, new = (w, beta), (value, of_w, of_beta)
        while step > 1e-10 and not accepted:
            trial = (w + step * dw, beta + step * db)
            new = blocks.value_and_gradient(*trial)
            # Near the optimum, rounding hides the decrease in F: accept a smaller gradient instead.
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


def _eliminate(
    blocks: _Blocks, w: np.ndarray, beta: np.ndarray, of_w: np.ndarray, of_beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """−H⁻¹∇F for the arrow-shaped Hessian: eliminate each β_m, solve the Schur complement in w, substitute back."""
    ww, wb, bb = blocks.hessians(w, beta)
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
    """Solve a symmetric system; if it is singular (a flat direction of a convex problem), give the least-norm solution.

    `size` is the magnitude of the entries from which the matrix was computed: anything far below it is rounding error.
    """
    with contextlib.suppress(scipy.linalg.LinAlgError):
        factor = scipy.linalg.cho_factor(matrix)
        if np.min(np.diag(factor[0])) ** 2 > 1e-13 * size:
            return scipy.linalg.cho_solve(factor, right)
    values, vectors = scipy.linalg.eigh((matrix + matrix.T) / 2)
    _check_sign(float(values[0]), size)
    keep = values > 1e-13 * size
    return vectors[:, keep] @ ((vectors[:, keep].T @ right) / values[keep, None])


class _Truncated:
    """Newton's direction by conjugate gradients, no more exact than useful: the residual falls with √‖∇F‖ (Dembo and Steihaug)."""

    def __init__(self, blocks: _Blocks) -> None:
        """Refuse a Hessian with negative curvature, if conjugate gradients from a random start meet any."""
        random = np.random.default_rng(0)
        right = (random.normal(size=blocks.w0.shape), random.normal(size=blocks.beta0.shape))
        blocks.solve(blocks.w0, blocks.beta0, right, 0.03)
        self._first = 0.0

    def __call__(
        self, blocks: _Blocks, w: np.ndarray, beta: np.ndarray, of_w: np.ndarray, of_beta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        norm = blocks.norm(of_w, of_beta)
        self._first = self._first or norm
        left = norm / self._first if norm > 0 else 0.0
        # Below 1e-16 of the first gradient there is only rounding error, so no step need be more exact than that.
        reach = 1e-16 / left if left > 0 else 1.0
        tolerance = float(np.clip(max(np.sqrt(left), reach), 1e-6, 0.1))
        return blocks.solve(w, beta, (-of_w, -of_beta), tolerance)


def _conjugate_gradients(times: Callable[..., Pytree], right: Pytree, scale: Pytree, tolerance: jax.Array) -> Any:
    """A⁻¹r by conjugate gradients with a diagonal preconditioner, and the smallest and largest curvature met on the way.

    It ends when the residual is `tolerance` times r, after PRODUCTS products, or at a direction of zero or negative curvature.
    """

    def dot(a: Pytree, b: Pytree) -> jax.Array:
        return sum((jnp.sum(x * y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)), jnp.zeros(()))

    def add(a: Pytree, t: jax.Array, b: Pytree) -> Pytree:
        return jax.tree.map(lambda x, y: x + t * y, a, b)

    def scaled(r: Pytree) -> Pytree:
        return jax.tree.map(jnp.multiply, scale, r)

    def going(state: tuple) -> jax.Array:
        i, _, _, _, size, smallest, top = state
        return (i < PRODUCTS) & (size > tolerance**2 * first) & (smallest > FLAT * top)

    def step(state: tuple) -> tuple:
        i, x, rest, along, size, smallest, top = state
        image = times(*along)
        bend = dot(along, image)
        # Relative to the preconditioner, so that curvatures are comparable.
        curvature = bend / dot(along, jax.tree.map(jnp.divide, along, scale))
        smallest, top = jnp.minimum(smallest, curvature), jnp.maximum(top, jnp.abs(curvature))
        length = jnp.where(smallest > FLAT * top, size / bend, 0)
        x, rest = add(x, length, along), add(rest, -length, image)
        new = dot(rest, scaled(rest))
        return i + 1, x, rest, add(scaled(rest), new / size, along), new, smallest, top

    first = dot(right, scaled(right))
    none = jax.tree.map(jnp.zeros_like, right)
    start = (jnp.int32(0), none, right, scaled(right), first, jnp.asarray(jnp.inf), jnp.zeros(()))
    _, x, _, _, _, smallest, top = jax.lax.while_loop(going, step, start)
    return x, smallest, top


def _check_sign(smallest: float, top: float) -> None:
    if smallest < -NEGATIVE * top:
        raise NotConvexError(
            f"The Hessian has a negative eigenvalue ({smallest:.3g} against {top:.3g}): the problem is not convex."
        )


def _is_unending(blocks: _Blocks, old: Any, new: Any) -> bool:
    """Whether F never rises again beyond the new point, on the line from the old one: the sign of a minimiser at infinity.

    F is compared one parameter size ahead and one back: it must not rise ahead, and it must rise back.
    """
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
    """Refuse to call a point the minimiser if the search was heading for infinity or stopped short."""
    largest = max(_largest(w), _largest(beta))
    unending = norm > 0 and any(_is_unending(blocks, leg, (w, beta)) for leg in legs)
    if unending or not np.isfinite(norm) or largest > FARTHEST:
        raise NotConvexError(
            f"The minimiser runs off to infinity (largest entry so far {largest:.3g}), most likely because the classes are "
            "separable and there is no ridge. Give the loss a ridge, l2 > 0."
        )
    random = np.random.default_rng(0)
    near = [x * (1 + 1e-14 * random.choice([-1.0, 1.0], x.shape)) for x in (w, beta)]
    (value, *slope), (_, *other) = (blocks.value_and_gradient(*x) for x in ((w, beta), near))
    # How much rounding the point's last digits changes the gradient.
    noise = blocks.norm(*(b - a for a, b in zip(slope, other, strict=True)))
    if norm > max(1e-10 * first, noise, 1e-14 * (1 + abs(value))):
        raise NotConvexError(
            f"No minimiser was found: ‖∇F‖ was {first:.3g} at the start of the search and is {norm:.3g} at its end. Most "
            "likely the problem is not bounded below, or not smooth."
        )


def smallest_eigenvalue(problem: Problem, at: tuple[Pytree, Pytree]) -> float:
    """The smallest eigenvalue of ∇²F in the scaled space, at a point in the user's parameters."""
    with jax.enable_x64(True):
        blocks = _Blocks(problem)
        w = np.asarray(ravel_pytree(tree.cast(at[0], jnp.float64))[0]) if blocks.a else blocks.w0
        beta = (
            np.asarray(jax.vmap(lambda t: ravel_pytree(t)[0])(tree.cast(at[1], jnp.float64)))
            if blocks.b
            else blocks.beta0
        )
        a, b, M, s = blocks.a, blocks.b, blocks.M, problem.scale
        if a + M * b <= WHOLE:
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
