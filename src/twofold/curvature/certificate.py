"""A certified bound on the distance to the minimum: F(x) − F* ≤ ½ gᵀA⁻¹g, where A is the arrow below ∇²F (formula 6).

A quadratic with Hessian A lies below F and touches it at x, so its minimum is at most F*. Eliminating every β_m,

    gᵀA⁻¹g = Σ_m ‖C_m^(-1/2) g_m‖² + ‖S^(-1/2) (g_w − Σ_m E_m g_m)‖²,   E_m = B_m C_m⁻¹,  S = W − Σ B_m C_m⁻¹ B_mᵀ,

which is a sum over clients and one small product at the end. It is the same number in every change of variables; here
g_w = ∇_w F and g_m = p_m ∇_β f_m are the gradients in real, unscaled w and β.

An allowance for rounding is added, so that it stays a bound in float32. With unit roundoff ε, a gradient's error is taken to be
at most ε·(8 + √n + √d) times the size of its terms, because the error of a sum of n numbers usually grows like √n (n at worst).
The sums computed here get the same allowance.
"""
# What JAX's transformations (`jit`, `vmap`, `tree.map`) hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike, NDArray

from twofold import tree
from twofold.curvature.elimination import eliminated, private_values
from twofold.curvature.metric import Factor, pack
from twofold.curvature.model import BlockCurvature
from twofold.errors import InputError
from twofold.tree import Pytree, record, static

__all__ = ["Certificate", "ClientFactors", "Partial", "SharedFactors", "bound_client", "finish", "gap", "prepare"]

Array = NDArray[np.float64]


@record
class ClientFactors:
    """The factors for one client's part of the certificate; `Certificate.clients` has them with a leading client axis.

    `root` is C_m^(-1/2) up to a rotation and `cross` is E_m. Each is a matrix, or a number that multiplies the identity; `cross` is
    None if w and β are not coupled. `rounding` holds five numbers: the errors of g_w's part and of g_m per unit of ‖w‖ + ‖β_m‖,
    the same two errors at zero parameters, and the relative error of the sums here. `reach` is ‖E_m‖, `largest` is ‖C_m^(-1/2)‖.
    """

    root: Factor | None
    cross: Factor | None
    largest: Factor
    reach: Factor
    rounding: Factor
    classes: bool | None = static(default=None)  # whether there are classes; None: all factors are numbers
    by_class: bool = static(default=False)


@record
class SharedFactors:
    """S^(-1/2) for w (a matrix or a number), its norm, and the unit roundoff times the allowance for sums."""

    root: Factor | None
    largest: Factor
    allowance: Factor
    classes: bool | None = static(default=None)
    by_class: bool = static(default=False)


@record
class Certificate:
    """The factors of a problem, prepared once; `finish` takes the sum of `bound_client` over clients."""

    clients: ClientFactors
    shared: SharedFactors
    how: str = static(default="arrow")  # or "norm": ‖∇F‖²/(2μ), if the arrow is not known


class Partial(NamedTuple):
    """Sums over clients: of squares, of E_m g_m (None without coupling), and of the rounding errors that enter g_w."""

    squares: jax.Array
    moved: jax.Array | None
    error: jax.Array


def bound_client(
    factors: ClientFactors, g_beta: Pytree, w: Pytree, beta: Pytree, weight: Factor | float = 1.0
) -> Partial:
    """One client's part of the bound, to be summed over clients leaf by leaf; `g_beta` is g_m = p_m ∇_β f_m at the real (w, β_m).

    `weight` is 1, or 0 for a copy of a client that only fills a device's shard.
    """
    size = jnp.sqrt(tree.squared_norm(w)) + jnp.sqrt(tree.squared_norm(beta))
    of_w, of_beta, base_w, base_beta, allowance = factors.rounding
    norm = jnp.sqrt(tree.squared_norm(g_beta))
    slack = of_beta * size + base_beta + allowance * norm
    known = _norm(factors.root, factors, g_beta)
    own = known + _times(factors.largest, slack)
    error = of_w * size + base_w + factors.reach * slack
    moved = None
    if factors.cross is not None:
        rows = pack(g_beta, bool(factors.classes), factors.by_class)
        cross = jnp.asarray(factors.cross)
        moved = jnp.asarray(weight * (cross @ rows if cross.ndim == 2 else cross * rows))
    return Partial(jnp.asarray(weight * own * own), moved, jnp.asarray(weight * error))


def finish(shared: SharedFactors, g_w: Pytree, total: Partial) -> jax.Array:
    """The bound on F − F*, from ∇_w F at the real point and the sum of all clients' parts."""
    if shared.root is None:
        return 0.5 * total.squares * (1 + shared.allowance)
    if total.moved is None:
        rest, known = g_w, _norm(shared.root, shared, g_w)
    else:
        rest = pack(g_w, bool(shared.classes), shared.by_class) - total.moved
        known = _norm_of_rows(shared.root, rest)
    sizes = jnp.sqrt(tree.squared_norm(g_w)) + (
        0.0 if total.moved is None else jnp.sqrt(tree.squared_norm(total.moved))
    )
    last = known + _times(shared.largest, total.error + shared.allowance * sizes)
    return 0.5 * (total.squares + last * last) * (1 + shared.allowance)


def gap(certificate: Certificate, g_w: Pytree, g_beta: Pytree, w: Pytree, beta: Pytree) -> jax.Array:
    """The bound on F − F* in one call, from all clients' g_m and β_m with a leading client axis.

    >>> import jax.numpy as jnp, numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), np.zeros(2)), (2 * np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=0.25), clients)
    >>> found = prepare(problem.objective.curvature(clients), clients.weights, dtype=np.float32)
    >>> w, beta = problem.start
    >>> bound = gap(found, *problem.gradient(w, beta), w, beta)
    >>> true = problem.value(w, beta) - problem.optimum().value
    >>> bool(true <= bound <= 1.001 * true)  # quadratic: nothing but the allowance for rounding is lost
    True
    """
    parts = jax.vmap(bound_client, in_axes=(0, 0, None, 0))(certificate.clients, g_beta, w, beta)
    return finish(certificate.shared, g_w, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts))


def _norm(root: Factor | None, owner: ClientFactors | SharedFactors, x: Pytree) -> jax.Array:
    if root is None:
        return jnp.zeros(())
    if jnp.ndim(root) == 0:
        return _times(root, jnp.sqrt(tree.squared_norm(x)))
    return _norm_of_rows(root, pack(x, bool(owner.classes), owner.by_class))


def _norm_of_rows(root: Factor, rows: jax.Array) -> jax.Array:
    if jnp.ndim(root) == 0:
        return _times(root, jnp.sqrt(jnp.sum(rows * rows)))
    inside = root @ rows
    return jnp.sqrt(jnp.sum(inside * inside))


def _times(factor: Factor, norm: jax.Array) -> jax.Array:
    """factor·norm, and 0 if the norm is 0, even for an infinite factor (no strong convexity)."""
    return jnp.where(norm > 0, factor * jnp.where(norm > 0, norm, 1.0), 0.0)


# --- preparation ------------------------------------------------------------------------------------------------------------


def prepare(
    model: BlockCurvature | None,
    weights: Array,
    *,
    mu: float = 0.0,
    scale: float = 1.0,
    dtype: DTypeLike = np.float64,
    by_class: bool = False,
) -> Certificate:
    """Compute the factors from a model of the curvature, for gradients of precision `dtype`.

    Without a model, or if its arrow is singular (no ridge), the certificate is ‖∇F‖²/(2μ) in the scaled space; it then does not
    account for rounding in the gradient itself. With `by_class`, weights are (classes, features).
    """
    eps = float(jnp.finfo(dtype).eps) / 2
    found = None if model is None else _arrow(model, eps)
    if found is None:
        found = _norm_only(np.asarray(weights, np.float64), float(mu), float(scale), eps)
    clients, shared, how = found
    if model is not None and how == "arrow":
        classes = model.outputs is not None
        clients = _with(clients, classes, by_class)
        shared = SharedFactors(shared.root, shared.largest, shared.allowance, classes, by_class)
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), Certificate(clients, shared, how))


def _with(f: ClientFactors, classes: bool, by_class: bool) -> ClientFactors:
    return ClientFactors(f.root, f.cross, f.largest, f.reach, f.rounding, classes, by_class)


Prepared = tuple[ClientFactors, SharedFactors, str]


def _norm_only(weights: Array, mu: float, scale: float, eps: float) -> Prepared:
    if not (mu >= 0 and scale > 0):
        raise InputError(f"A certificate needs mu ≥ 0 and a scale > 0, got {mu=} and {scale=}.")
    root = mu**-0.5 if mu > 0 else math.inf
    each = np.ones(len(weights))
    rounding = np.tile([0.0, 0.0, 0.0, 0.0, 16 * eps], (len(weights), 1))
    clients = ClientFactors(root * each, None, root * each, 0 * each, rounding)
    return clients, SharedFactors(np.asarray(root * scale), np.asarray(root * scale), np.asarray(16 * eps)), "norm"


def _arrow(model: BlockCurvature, eps: float) -> Prepared | None:
    """The factors in real variables; None if the arrow is singular."""
    low = model.low if model.exact else 0.0
    growth = 8 + math.sqrt(max(model.a, model.b))
    clients = _clients(model, low, eps)
    if clients is None:
        return None
    if model.shared is None:
        return clients, SharedFactors(None, np.asarray(0.0), np.asarray(growth * eps)), "arrow"
    shared = _shared(model, low)
    if shared is None:
        return None
    return clients, SharedFactors(*shared, np.asarray((growth + math.sqrt(model.M)) * eps)), "arrow"


def _shared(model: BlockCurvature, low: float) -> tuple[Array, Array] | None:
    """S^(-1/2), and its norm."""
    if low == 0:
        if model.together:
            flat = float(model.weights @ model.eliminated(0.0, np.zeros(model.M)))
        else:
            flat = float(model.weights @ model.fixed.ww)
        return None if flat <= 0 else (np.asarray(flat**-0.5), np.asarray(flat**-0.5))
    matrix = eliminated(model, low)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = values - 8 * model.a * np.finfo(float).eps * max(float(np.max(np.abs(matrix))), float(values[-1]))
    if values[0] <= 0:
        return None
    return (vectors * values**-0.5).T, np.asarray(values[0] ** -0.5)


def _clients(model: BlockCurvature, low: float, eps: float) -> ClientFactors | None:
    """C_m^(-1/2) and E_m of every client, and the rounding errors of its gradients; None if some C_m is singular."""
    p, each = model.weights, np.ones(model.M)
    rounding = _rounding(model, eps)
    if model.private is None:
        return ClientFactors(None, None, 0 * each, 0 * each, rounding)
    if low == 0:
        block = model.private_block(0.0, np.zeros(model.M))
        if np.min(block) <= 0:
            return None
        root, cross = (p * block) ** -0.5, model.cross_block(0.0, np.zeros(model.M)) / block
        return ClientFactors(root, cross if model.coupled else None, root, np.abs(cross), rounding)
    block, vectors = model.private_block(low, private_values(model)), model.spectrum[1]
    if np.min(block) <= 0:
        return None
    root = (p[:, None] * block) ** -0.5
    factors = (vectors * root[:, None, :]).swapaxes(1, 2)
    if not model.coupled:
        return ClientFactors(factors, None, np.max(root, axis=1), 0 * each, rounding)
    if model.together:
        ratio = model.cross_block(low, private_values(model)) / block
        cross, reach = (vectors * ratio[:, None, :]) @ vectors.swapaxes(1, 2), np.max(np.abs(ratio), axis=1)
    else:
        cross = low * ((model.crossed @ vectors) / block[:, None, :]) @ vectors.swapaxes(1, 2)
        reach = np.linalg.norm(cross, axis=(1, 2))
    return ClientFactors(factors, cross, np.max(root, axis=1), reach, rounding)


def _rounding(model: BlockCurvature, eps: float) -> Array:
    """`ClientFactors.rounding`, (M, 5): ε times its growth times the size of the terms of p_m∇_w f_m and p_m∇_β f_m.

    A score has an error of ε‖z‖‖θ‖, which changes the link's slope by at most κ times that. The slope itself and the mean over rows
    add ε times ‖z‖ times the slope. So a loss's gradient has an error of ε(κ T‖θ‖ + √T·slope + l2‖θ‖), where T is the mean of
    ‖z‖². The slope of the squared loss, |z·θ − y|, is at most ‖z‖‖θ‖ + |y|.
    """
    growth = eps * model.weights * (8 + np.sqrt(model.counts) + math.sqrt(model.a + model.b))
    t_w, t_beta = model.traces
    both = np.sqrt(t_w * t_beta)
    u, v, t = (2 * model.high * part for part in model.data)
    a, b, c = (np.abs(part) for part in model.fixed)
    of_w = np.maximum(u * t_w + a, np.abs(v) * both + b)
    of_beta = np.maximum(np.abs(v) * both + b, t * t_beta + c)
    # In every loss term the coefficient or the factor of w (of β) is 1, so Σ coefficient·|factor| ≤ u + √u (t + √t).
    base_w, base_beta = (
        (part + np.sqrt(part)) * model.slope * np.sqrt(trace)
        for part, trace in ((model.data.ww, t_w), (model.data.bb, t_beta))
    )
    if model.held is not None:
        base_beta = base_beta + model.held.norm * (2 * model.high * model.held.data * t_beta + np.abs(model.held.fixed))
    here = np.full(model.M, eps * (8 + math.sqrt(max(model.a, model.b))))
    return np.stack([growth * of_w, growth * of_beta, growth * base_w, growth * base_beta, here], axis=1)
