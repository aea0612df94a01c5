"""An algorithm by name or by itself, with every open step size filled in from theory."""
# What users' methods return is looked at, whatever the annotation says.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
from functools import partial
from typing import cast

import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.algorithms import REGISTRY, TRAINING, Algorithm
from twofold.algorithms.base import Facts
from twofold.algorithms.contract import refused
from twofold.curvature.clients import of_each
from twofold.errors import ContractError, InputError, KindError
from twofold.losses import Linear
from twofold.problem import Problem
from twofold.solver.names import unknown_algorithm
from twofold.solver.options import warn
from twofold.solver.participation import Participation, Who, probabilities
from twofold.theory.constants import Constants
from twofold.theory.cost import Cost, Preset, cost_of
from twofold.theory.each import EachClient

__all__ = ["complete", "facts_of", "make", "refuse_overflow", "warn_of_scales"]

SCALES = 300.0
"""How much larger one feature may be than another before somebody should be told."""

NEVER_ZERO = ("L_w", "L_beta", "eta", "gamma")
"""Fields that a method divides by, or that move nothing where they are zero. A coin or a momentum may be."""


def make(algorithm: str | Algorithm) -> Algorithm:
    """An algorithm from its name, or itself.

    >>> make("lsgd").tau
    5
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, type):
        raise KindError(f"Give an algorithm, not its class: {algorithm.__name__}().")
    if hasattr(algorithm, "client"):
        kind = type(algorithm).__name__
        raise ContractError(f"{kind} is not an Algorithm: derive it from twofold.algorithms.Algorithm.")
    known = {**REGISTRY, **TRAINING}
    if algorithm not in known:
        raise unknown_algorithm(algorithm)
    return known[algorithm]()


def complete(
    problem: Problem,
    algorithm: str | Algorithm,
    constants: Constants | None = None,
    participation: Who | Participation | None = None,
    cost: Cost | Preset | None = "cross-silo",
) -> tuple[Algorithm, str | None]:
    """The algorithm with every open field filled in from theory, and theory's note to the user.

    `cost` decides p_w, ρ and the batch of methods that sample rows, as in `solve`; None stands for a round that costs as much as all
    rows' gradients, and single rows.

    >>> import numpy as np, twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0]), (np.eye(2), [1.0, 1.0])])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients)
    >>> method, note = complete(problem, "lsgd")
    >>> method.eta > 0, note
    (True, None)
    """
    algorithm = make(algorithm)
    objective = problem.objective
    if algorithm.needs not in (None, objective.name):
        raise InputError(
            f"{algorithm.name} solves the {algorithm.needs} objective only, but this problem's is {objective.name}; "
            "use lsgd, acd or asvrcd, which solve any."
        )
    if algorithm.needs == "mixture" and objective.mixture_strength() is None:
        raise InputError(
            f"{algorithm.name} needs one λ for all, but this problem's clients have their own: use profile or acd."
        )
    if algorithm.needs == "mixture" and problem.metric is not None:
        raise InputError(
            f"{algorithm.name} works in the user's own variables only: leave out precondition={problem.precondition!r}."
        )
    if tree.has_running(problem.host_start) and not algorithm.carries_state:
        raise InputError(
            f"The net updates numbers by itself while it trains, as BatchNorm does, and {algorithm.name} would leave them where they "
            'began: take a method with a learning rate, such as tw.methods.fedper(model, head="…") or LSGD(lr=0.005).'
        )
    algorithm = algorithm.among(None if participation is None else probabilities(participation, problem))
    if algorithm.is_complete():
        return algorithm, None
    found = algorithm.complete(facts_of(problem, constants, participation, cost))
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Algorithm):
        raise refused(algorithm, found)
    return found


def refuse_overflow(problem: Problem, given: Algorithm, completed: Algorithm) -> None:
    """Say what is wrong where a number that theory filled in is infinite or zero in this precision: the problem, not a field."""
    dtype = np.dtype(jnp.result_type(float))
    tiny, most = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)  # XLA takes smaller ones than `tiny` for 0
    for field in dataclasses.fields(completed):  # type: ignore[arg-type]
        value: object = getattr(completed, field.name)
        # ASVRCD with two reference points is completed to a class that has fields of its own.
        if getattr(given, field.name, None) is not None or not isinstance(value, (float, np.floating)):
            continue
        least = tiny if field.name in NEVER_ZERO and value != 0 else 0.0
        if least <= abs(cast(float, value)) <= most:  # and no NaN
            continue
        lam = problem.objective.mixture_strength()
        tied = lam is None or lam > np.finfo(dtype).eps
        because = "" if tied else f" because λ = {lam:.3g} hardly ties the clients to each other"
        remedy = (
            "scale the features or the penalties" if tied else "choose a larger λ, or objectives.local(loss) for none"
        )
        raise InputError(
            f"Theory's {field.name} for {completed.name} is {value:.3g} here{because}, and {dtype} cannot hold that: {remedy}; or set "
            f"the field yourself, as in {type(completed).__name__}({field.name}=1.0)."
        )


def warn_of_scales(problem: Problem) -> None:
    """Warn of features of very different size, which make any first-order method slow and any penalty unfair."""
    linear = isinstance(getattr(problem.objective, "loss", None), Linear)
    sizes = problem.clients.scales if linear and problem.precondition is None else None
    if sizes is None:
        return
    known = np.flatnonzero(np.isfinite(sizes) & (sizes > 0))
    if len(known) < 2:
        return
    order = known[np.argsort(sizes[known])]
    few = len(order) // 20  # of many features, one in twenty at either end says nothing
    low, high = int(order[few]), int(order[-1 - few])
    ratio = float(sizes[high] / sizes[low])
    if ratio <= SCALES:
        return
    schema = problem.clients.schema
    names = None if schema is None else schema.features
    said = [f"{j if names is None else repr(names[j])} (about {sizes[j]:.2g})" for j in (high, low)]
    warn(
        f"The features differ in size by a factor of {ratio:.2g}: {said[0]} and {said[1]}. The ridge and the pull to a shared "
        f"model weigh them by their squares, and a first-order method may need {ratio**2:.2g} times as many iterations. Say "
        'standardize="pooled" in Clients.from_frame, scale them yourself, or Problem(precondition="diagonal").'
    )


def facts_of(
    problem: Problem,
    constants: Constants | None = None,
    participation: Who | Participation | None = None,
    cost: Cost | Preset | None = "cross-silo",
) -> Facts:
    """What theory knows of a problem, with constants of the user's own in place of its own, and who takes part.

    >>> import numpy as np, twofold as tw
    >>> from twofold.solver.steps import facts_of
    >>> clients = tw.Clients.from_list([(np.eye(2), np.ones(2)), (3 * np.eye(2), np.ones(2))])
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.squared(l2=0.1)), clients)
    >>> facts_of(problem, participation=0.5).participation.tolist()
    [0.5, 0.5]
    """
    objective, lam = problem.objective, problem.objective.mixture_strength()
    return Facts(
        constants=problem.constants() if constants is None else constants,
        rows=float(np.mean(problem.clients.counts)),
        most_rows=float(np.max(problem.clients.counts)),
        quadratic=getattr(getattr(getattr(objective, "loss", None), "link", None), "labels", 0) is None,
        M=problem.M,
        max_weight=float(np.max(problem.clients.weights)),
        lam=lam,
        loss_of=None if lam is None else partial(objective.loss.constants, problem.clients),
        sizes=(tree.size(problem.abstract_start[0]), tree.size(problem.abstract_start[1])),
        convex=objective.convex,
        coin=None if constants is not None else lambda: problem.best_coin,
        weights=np.asarray(problem.clients.weights, np.float64),
        participation=None if participation is None else probabilities(participation, problem),
        # Constants of the user's own leave no place for the problem's.
        curvature=None if constants is not None else partial(_of_each, problem),
        cost=None if cost is None else cost_of(cost),
    )


def _of_each(problem: Problem) -> EachClient | None:
    """The curvature of every client, where the objective has a model of it."""
    model = problem.curvature if problem.metric is None else None  # it knows nothing of other variables
    return None if model is None else of_each(model, problem.scale)
