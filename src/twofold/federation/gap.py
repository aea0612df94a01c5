"""A certified gap in a federation: F − F* ≤ ½ gᵀA⁻¹g from a sum of everyone's parts, so that a study knows when it is done.

A is the arrow below ∇²F that is there without anybody's rows: the ridge and the penalties alone (see `curvature.certificate`;
for logistic and softmax losses this is the arrow that every other engine has). With A's numbers c_m, e_m and S,

    gᵀA⁻¹g = Σ_m ‖g_m‖²/(p_m c_m) + ‖Σ_m p_m (∇_w f_m − e_m ∇_β f_m)‖²/S,   g_m = p_m ∇_β f_m,

so a node tells one vector of w's size and two numbers (the second is what rounding may have done), and behind masks the
coordinator reads their sums alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.curvature.certificate import Certificate, ClientFactors, bound_client, prepare
from twofold.curvature.metric import pack
from twofold.errors import InputError
from twofold.problem import Problem
from twofold.tree import Pytree

__all__ = ["bound_of", "finest", "numbers_told", "of_client", "part_of", "proof"]


def proof(problem: Problem) -> Certificate:
    """The factors of a study's problem; those of a client are right wherever its own rows are.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])])
    >>> proof(tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.5), lam=1.0), clients)).how
    'arrow'
    """
    model = problem.objective.curvature(problem.clients)
    found = None
    if model is not None:
        dtype = np.dtype(jnp.result_type(float))
        found = prepare(
            replace(model, low=0.0), problem.clients.weights, dtype=dtype, by_class=problem.variables.by_class
        )
    if found is None or found.how != "arrow":
        remedy = (
            "leave it out, and rounds alone decide"
            if model is None
            else "give the loss a ridge, l2 > 0, or leave it out"
        )
        raise InputError(
            f"[stop] tolerance needs a bound of the gap, and there is none for {problem.objective.name} here: {remedy}."
        )
    return found


def numbers_told(problem: Problem) -> int:
    """How many numbers a node's part of the gap has."""
    return 2 + tree.size(problem.abstract_start[0])


def part_of(
    factors: ClientFactors, allowance: float, weight: float, gradients: tuple[Pytree, Pytree], point: tuple[Pytree, Pytree]
) -> np.ndarray:  # fmt: skip
    """One node's part, to be added up with the weights p_m: from ∇_w f_m and p_m ∇_β f_m at its real point (w, β_m)."""
    of_w, of_beta = gradients
    found = bound_client(factors, of_beta, *point)
    rows = pack(of_w, bool(factors.classes), factors.by_class)
    sizes = weight * jnp.sqrt(tree.squared_norm(of_w))
    if found.moved is not None:
        rows, sizes = rows - found.moved / weight, sizes + jnp.sqrt(tree.squared_norm(found.moved))
    first = np.array([found.squares, found.error + allowance * sizes], np.float64) / weight
    return np.concatenate([first, np.ravel(np.asarray(rows, np.float64))])


def bound_of(certificate: Certificate, told: np.ndarray, step: float = 0.0) -> float:
    """The bound from the sum of all parts, each number of which is off by at most `step` (fixed point)."""
    shared = certificate.shared
    squares, error, rows = float(told[0]) + step, float(told[1]) + step, told[2:]
    length = float(np.linalg.norm(rows)) + step * math.sqrt(rows.size)
    last = float(np.asarray(shared.root)) * length + float(np.asarray(shared.largest)) * error
    return 0.5 * (squares + last * last) * (1 + float(np.asarray(shared.allowance)))


def finest(certificate: Certificate, size: int, step: float) -> float:
    """The smallest bound that fixed point lets anybody see."""
    return bound_of(certificate, np.zeros(size), step)


def of_client(certificate: Certificate, m: int) -> ClientFactors:
    """Client m's own factors."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[m], certificate.clients)
