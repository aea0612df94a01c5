"""The worst case as a problem that one can solve: the instance behind the lower bounds (proof of Theorem lb).

A chain is ½ Σ_i a(z_{i+1} − z_i)² + ½ c‖z‖² − b z_1 on z ∈ ℝ^d. From z = 0 a gradient reaches one more coordinate at
most, while the minimiser is geometric, z*_i ∝ q^i with q = (√κ−1)/(√κ+1) and κ = 1 + 4a/c. Both blocks are made of
chains, one for each of the n rows (Lan & Zhou 2018, Hendrikx et al. 2020): f_{m,j}(w, β_m) = g_m(w_j) + h(β_{m,j}).

- h is a whole chain: each call of ∇_β f_{m,j} gains a coordinate in block j alone.
- g_m is half a chain (Scaman et al. 2018). The first group of clients holds −b z_1 and the links (2,3), (4,5), …, the
  second one the links (1,2), (3,4), …, so that w gains one coordinate per round at most, however many steps are local.

Where this differs from the print, on purpose:

- Printed f_m = g + h gives every client the whole of g, and then nothing need be said: it is g_m.
- The printed blocks hold two links in a row, so that a round gains two coordinates, and 3 is their largest eigenvalue
  where single links have 2. With single links L^w/μ is the chain's own condition number.
- One client against M−1, as printed, makes L^w about M/2 times the chain's: the bound would lose a factor √(M/2). Here
  the groups are equal; for an odd M they differ by one client, and the chain has (M−1)/M of the condition number.
- Both ends are free: A_11 is 1 + c, not 2 + c. The constants and the minimiser are then exact in d dimensions too.
- Off-diagonals of +1 and the sign of e_1 only change signs of coordinates; these are the usual ones.
"""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold.clients import Clients
from twofold.errors import InputError, KindError
from twofold.losses import Rows
from twofold.objectives.base import NOTHING, Objective, positive
from twofold.problem import Optimum, Problem
from twofold.theory.constants import SYMBOLS, Constants
from twofold.theory.rates import LowerBounds, chain_rounds
from twofold.tree import Pytree, record, static

__all__ = ["Chain", "LowerBound", "least", "lower_bound_instance", "minimiser", "ratio"]

BEYOND = 1e-36
"""A default chain is so long that what lies beyond its end is this small, in ‖z*‖²."""


class Chain(NamedTuple):
    """½ Σ a(z_{i+1} − z_i)² + ½ c‖z‖² − b z_1, by its stiffness a, ridge c and pull b.

    >>> round(ratio(Chain(stiffness=2.0, ridge=1.0, pull=1.0)), 3)
    0.5
    """

    stiffness: Any  # numbers; traced ones in a compiled program
    ridge: Any
    pull: Any


def ratio(chain: Chain) -> float:
    """The q = (√κ−1)/(√κ+1) of the minimiser z*_i ∝ q^i of the infinite chain, κ = 1 + 4a/c.

    >>> ratio(Chain(stiffness=2.0, ridge=1.0, pull=1.0))
    0.5
    """
    root = math.sqrt(1 + 4 * chain.stiffness / chain.ridge)
    return (root - 1) / (root + 1)


def minimiser(chain: Chain, d: int) -> np.ndarray:
    """The exact minimiser on d coordinates: z*_i = z*_1 (q^{i−1} + q^{2d−i})/(1 + q^{2d−1}), as if mirrored at d + ½.

    With b = c/(1−q), as `lower_bound_instance` has it, z*_i = (q^{i−1} + q^{2d−i})/(1 − q^{2d}).

    >>> minimiser(Chain(stiffness=2.0, ridge=1.0, pull=1.0), d=3).round(3).tolist()
    [0.524, 0.286, 0.19]
    """
    q, i = ratio(chain), np.arange(1, d + 1)
    return chain.pull * (1 - q) / chain.ridge * (q ** (i - 1.0) + q ** (2.0 * d - i)) / (1 - q ** (2.0 * d))


def _longest_wave(d: int) -> float:
    """The largest eigenvalue of a chain's links, 4cos²(π/(2d)): just below 4, and 0 for a single coordinate."""
    return 4 * math.cos(math.pi / (2 * d)) ** 2 if d > 1 else 0.0


@record
class LowerBound(Objective):
    """f_m(w, β_m) = mean_j g_m(w_j) + h(β_{m,j}); row j of a client says which component it is, and in which group.

    w and each β_m are of the shape (n, d). A client in a group with the share s_g of all clients has its links, and the
    pull, divided by s_g, so that the mean over clients is the whole chain.

    >>> problem = lower_bound_instance(kappa_w=16.0, kappa_beta=None, dimension=20)
    >>> problem.objective.name, problem.M
    ('lower_bound', 2)
    """

    shared: Chain | None
    private: Chain | None
    M: int = static()
    n: int = static()
    d_w: int = static()
    d_beta: int = static()
    name = "lower_bound"
    equation = "g_m(w_j) + h(β_j)"

    @property
    def shares(self) -> tuple[float, float]:
        """The share of clients in each of the two groups; the second is never the larger one."""
        return (self.M - self.M // 2) / self.M, (self.M // 2) / self.M

    def init(self, clients: Clients) -> tuple[Pytree, Pytree]:
        """Zero: where the span of the gradients starts."""
        w = NOTHING if self.shared is None else np.zeros((self.n, self.d_w))
        return w, NOTHING if self.private is None else np.zeros((self.n, self.d_beta))

    def bind(self, clients: Clients) -> LowerBound:
        """Refuse other clients than its own: its constants hold for no others."""
        own = _clients(self.M, self.n)
        same = all(np.array_equal(getattr(clients, k), getattr(own, k)) for k in ("x", "y", "counts", "weights"))
        if not same:
            raise InputError(
                f"The lower-bound instance has {self.M} clients of {self.n} rows of its own, got {clients!r}."
            )
        return self

    def value(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> jax.Array:
        """Σ_j (weight of row j) · (g_m(w_j) + h(β_{m,j})), by shifts: nothing is ever a matrix."""
        mass = jnp.where(jnp.arange(self.n)[:, None] == rows.x[None, :], rows.weight[None, :], 0)  # (n, rows)
        each = jnp.sum(mass, axis=1)
        total = jnp.zeros(())
        if self.shared is not None:
            first, second = (
                jnp.sum(jnp.where((rows.y == group)[None, :], mass, 0), axis=1) / share
                for group, share in enumerate(self.shares)
            )
            odd = jnp.arange(self.d_w - 1) % 2 == 0  # the links (1,2), (3,4), …
            links = jnp.where(odd[None, :], second[:, None], first[:, None])
            total += _energy(self.shared, w, links, each, first)
        if self.private is not None:
            links = jnp.broadcast_to(each[:, None], (self.n, self.d_beta - 1))
            total += _energy(self.private, beta, links, each, each)
        return total

    def constants(self, clients: Clients, scale: float) -> Constants:
        """μ = min{s²c_w, c_β/M}/n, 𝓛^w = s²(2a_w/s_g + c_w), 𝓛^β = (4cos²(π/2d) a_β + c_β)/M, L = 𝓛/n; all attained."""
        low: list[Any] = []
        top: dict[str, Any] = {"w": 0.0, "beta": 0.0}
        if self.shared is not None:
            links = 2 / self.shares[1] if self.d_w > 1 else 0.0
            low.append(scale**2 * self.shared.ridge)
            top["w"] = scale**2 * (links * self.shared.stiffness + self.shared.ridge)
        if self.private is not None:
            low.append(self.private.ridge / self.M)
            top["beta"] = (_longest_wave(self.d_beta) * self.private.stiffness + self.private.ridge) / self.M
        return Constants(
            mu=min(low) / self.n,
            L_w=top["w"] / self.n,
            L_beta=top["beta"] / self.n,
            calL_w=top["w"],
            calL_beta=top["beta"],
            how=dict.fromkeys(SYMBOLS, "certified"),
            why=dict.fromkeys(SYMBOLS, "the spectrum of the chain, attained"),
        )

    def personal(self, w: Pytree, beta: Pytree, rows: Rows, own: Pytree) -> Pytree:
        """Both parts."""
        return w, beta

    def grade(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree, y: Pytree) -> jax.Array:
        """Refuse: there is nothing to predict."""
        raise InputError("The lower-bound instance has no predictions to grade.")

    def predict(self, w: Pytree, beta: Pytree, train: Rows, own: Pytree, x: Pytree) -> jax.Array:
        """Refuse: there is nothing to predict."""
        raise InputError("The lower-bound instance predicts nothing.")


def _energy(chain: Chain, z: jax.Array, links: jax.Array, ridge: jax.Array, pull: jax.Array) -> jax.Array:
    """The chains of all n components, each term with a weight: links (n, d−1), ridge and pull (n,)."""
    bent = chain.stiffness * jnp.sum(links * jnp.square(z[:, 1:] - z[:, :-1]))
    held = chain.ridge * jnp.vdot(ridge, jnp.sum(jnp.square(z), axis=1))
    return (bent + held) / 2 - chain.pull * jnp.vdot(pull, z[:, 0])


def _clients(M: int, n: int) -> Clients:
    """Row j of a client is component j (x); its target says in which group the client is (y)."""
    return Clients.from_list([(np.arange(n), np.full(n, m % 2)) for m in range(M)])


def lower_bound_instance(
    kappa_w: float | None,
    kappa_beta: float | None = 10.0,
    M: int = 2,
    n: int = 1,
    dimension: int | None = None,
    mu: float = 1.0,
    *,
    dimension_beta: int | None = None,
) -> Problem:
    """The problem on which no method in the span of its gradients beats Theorem lb: chains for w and for every β_m.

    Its constants are μ = `mu`, L^w = κ_w μ, L^β = κ_β μ, 𝓛^w = nL^w, 𝓛^β = nL^β, in the scaled space and exactly; a
    block whose κ is None is absent. w and each β_m are (n, d) arrays of n chains. Of M ≥ 2 clients every second one,
    from the first on, is in the group with the pull. d is `dimension` for w and `dimension_beta` for β; by default so
    long that truncation is of no help: what the minimiser has beyond d is below 1e-36 of ‖w*‖², and a method reaches d
    only after six times the rounds that 1e-6 takes at least. `optimum()` is the closed form of `minimiser`; what a
    method must spend here is `least`.

    >>> problem = lower_bound_instance(kappa_w=16.0, kappa_beta=4.0, dimension=20, dimension_beta=10)
    >>> c = problem.constants()
    >>> round(c.L_w / c.mu, 6), round(c.L_beta / c.mu, 6)
    (16.0, 4.0)
    """
    clients, rows = _whole("M", M, 2 if kappa_w is not None else 1), _whole("n", n, 1)
    mu = positive("mu", mu)
    if kappa_w is None and kappa_beta is None:
        raise InputError("The lower-bound instance needs at least one block: give kappa_w or kappa_beta.")
    d_w = _dimension("dimension", dimension, "kappa_w", kappa_w)
    d_beta = _dimension("dimension_beta", dimension_beta, "kappa_beta", kappa_beta)
    scale2 = 1 / clients if kappa_w is not None and kappa_beta is not None else 1.0  # the s² that Problem will choose
    shared = None if kappa_w is None else _chain(kappa_w, 2 / ((clients // 2) / clients), rows * mu / scale2)
    private = None if kappa_beta is None else _chain(kappa_beta, _longest_wave(d_beta), rows * clients * mu)
    problem = Problem(LowerBound(shared, private, clients, rows, d_w, d_beta), _clients(clients, rows))
    problem._optimum = _optimum(problem)  # pyright: ignore[reportPrivateUsage]  (the closed form replaces the numerical optimum)
    return problem


def _whole(name: str, value: object, least: int) -> int:
    if not isinstance(value, numbers.Real) or not float(value).is_integer() or value < least:
        why = ": one client alone need not communicate" if name == "M" and least == 2 else ""
        raise InputError(f"{name} must be a whole number ≥ {least}, got {name}={value!r}{why}.")
    return int(float(value))


def _dimension(name: str, given: int | None, of: str, kappa: float | None) -> int:
    if kappa is None:
        return 0
    if not 1 <= kappa < math.inf:
        raise InputError(f"{of} is a condition number ≥ 1, got {of}={kappa!r}.")
    if given is None:
        return max(2, math.ceil(chain_rounds(kappa, BEYOND)))
    return _whole(name, given, 1 if kappa == 1 else 2)


def _chain(kappa: float, top: float, ridge: float) -> Chain:
    """The chain whose smallest curvature is the ridge, and whose largest, a·top + c, is κ times it."""
    stiffness = (kappa - 1) * ridge / top if kappa > 1 else 0.0
    q = ratio(Chain(stiffness, ridge, 0.0))
    return Chain(stiffness, ridge, ridge / (1 - q))


def _optimum(problem: Problem) -> Optimum:
    """The minimiser in closed form, F* = −½(b_w w*_1 + b_β β*_1), and ‖∇F‖ as rounding leaves it."""
    objective: Any = problem.objective
    M, n = objective.M, objective.n
    w: Pytree = NOTHING
    beta: Pytree = NOTHING
    value = norm2 = 0.0
    if objective.shared is not None:
        z = minimiser(objective.shared, objective.d_w)
        value -= objective.shared.pull * z[0] / 2
        norm2 += problem.scale**2 * _residual(objective.shared, z) / n
        w = np.tile(z, (n, 1))
    if objective.private is not None:
        z = minimiser(objective.private, objective.d_beta)
        value -= objective.private.pull * z[0] / 2
        norm2 += _residual(objective.private, z) / (n * M)
        beta = np.tile(z, (M, n, 1))
    return Optimum(w, beta, float(value), math.sqrt(norm2))


def _residual(chain: Chain, z: np.ndarray) -> float:
    """‖∇‖² of one chain."""
    force = np.pad(chain.stiffness * np.diff(z), 1)
    gradient = chain.ridge * z - np.diff(force)
    gradient[0] -= chain.pull
    return float(gradient @ gradient)


def least(problem: Problem, eps: float) -> LowerBounds:
    """What any method in the span of its gradients, from zero, must spend on this instance: exact, not just in order.

    To have ‖w − w*‖² ≤ ε‖w*‖² each of the n chains needs k coordinates with Σ_{i>k} (w*_i)² ≤ ε‖w*‖². A round gains one
    coordinate of each, so k rounds. A call of one ∇_w f_{m,j} gains one coordinate of chain j: all clients together
    need n·k, hence n·k/M calls for the mean client. (With one common j for all clients, as in the paper's oracle,
    everyone needs n·k.) ‖β_m − β*_m‖² ≤ ε‖β*_m‖² takes every client n·k calls of ∇_β f_{m,j}. Calls may be dealt out
    unevenly, so there k is a real number: the tail is convex in k, so an even deal is best, and linear between whole k.

    For long chains k is `chain_rounds`, log(1/ε)/(2 log(1/q)), about ¼√κ log(1/ε): a quarter of the order that
    `lower_bounds` gives, which has no constant and must not be held against a count.

    >>> problem = lower_bound_instance(kappa_w=16.0, kappa_beta=None, dimension=20)
    >>> least(problem, eps=1e-4).rounds
    10.0
    """
    objective = problem.objective
    if not isinstance(objective, LowerBound):
        raise KindError(f"least() knows the lower-bound instance only, got the {objective.name} objective.")
    if not eps > 0:
        raise InputError(f"The accuracy must be positive, got {eps=}.")
    of_w = (0.0, 0.0) if objective.shared is None else _coordinates(objective.shared, objective.d_w, eps)
    of_beta = (0.0, 0.0) if objective.private is None else _coordinates(objective.private, objective.d_beta, eps)
    calls_w, calls_beta = objective.n * of_w[1] / objective.M, objective.n * of_beta[1]
    return LowerBounds(rounds=of_w[0], grad_w=calls_w, grad_beta=calls_beta)


def _coordinates(chain: Chain, d: int, eps: float) -> tuple[float, float]:
    """The least number of coordinates, whole and on average over many chains, whose tail is at most ε."""
    squares = minimiser(chain, d) ** 2
    tail = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
    tail /= tail[0]
    if eps >= 1:
        return 0.0, 0.0
    k = int(np.argmax(tail <= eps))
    return float(k), float(k - (eps - tail[k]) / (tail[k - 1] - tail[k]))
