"""Builds the problem of a cell from plain values: its data, the constants that the published runs assumed, what is measured."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import twofold as tw
from twofold.paper import faults
from twofold.paper.base import Plain
from twofold.theory import Constants, LossConstants

__all__ = ["DataSource", "Setup", "accuracies", "assumed_constants", "setup"]

Pytree = Any
Measure = Callable[[Pytree, Pytree], jax.Array]
"""A number computed from the real (w, β), as `tw.solve(record=...)` takes it."""


class Setup(NamedTuple):
    """A problem and everything that an experiment asks about it."""

    problem: tw.Problem
    published: Constants | None  # the constants that the published runs assumed, where there were any
    measures: Mapping[str, Measure]
    provenance: str  # which data files were read, in a sentence


class DataSource(NamedTuple):
    """Clients, their loss, the μ' and 𝓛' that the published runs assumed, and what is measured besides the loss."""

    clients: tw.Clients
    loss: Any
    assumed: LossConstants | None
    measures: Mapping[str, Measure]
    provenance: str
    test: tuple[jax.Array, jax.Array] | None = None  # everyone's test rows, for the accuracies


_LOCK = threading.Lock()


def setup(problem: Plain, wide: bool = True) -> Setup:
    """The problem of a cell, in float64 if `wide`, else in float32.

    The same values give the same object, so that its optimum is found once and its programs are compiled once.
    """
    with _LOCK:
        return _setup(json.dumps(problem, sort_keys=True), wide)


@lru_cache(maxsize=8)
def _setup(text: str, wide: bool) -> Setup:
    values = json.loads(text)
    source, parameters, rescale = values.pop("data"), values.pop("objective", {}), values.pop("rescale", True)
    if source == "chain":
        instance = tw.theory.lower_bound_instance(**values)
        return Setup(instance, None, {}, "the lower-bound instance of twofold.theory.instances")
    found = SOURCES[source](**values)
    name = parameters.pop("name")
    problem = tw.Problem(
        getattr(tw.objectives, name)(found.loss, **parameters), found.clients, rescale=rescale, sampling="uniform"
    )
    # A number for `rescale` is a slip of the published runs; their constants were those of the right scale.
    scale = problem.scale if isinstance(rescale, bool) else problem.M**-0.5
    assumed = None if found.assumed is None else assumed_constants(name, parameters, found.assumed, problem.M, scale)
    measures = {**found.measures, **(accuracies(problem, *found.test) if found.test else {})}
    return Setup(problem, assumed, measures, found.provenance)


def assumed_constants(name: str, parameters: Plain, assumed: LossConstants, M: int, scale: float) -> Constants:
    """What the published runs took for 𝓛^w, 𝓛^β and μ: the lemmas' formulas, and μ = μ'/(3M), or μ'/M for weight sharing."""
    mu = float(assumed.mu) / (M if name == "weight_sharing" else 3 * M)
    if name == "weight_sharing":  # its two blocks had different 𝓛' there
        w, beta = scale**2 * float(assumed.L), float(assumed.calL) / M
        return Constants(mu, w, beta, w, beta)
    given = {key: value for key, value in parameters.items() if key != "split"}
    return getattr(tw.theory.constants, name)(assumed, **given, scale=scale, clients=M).replace(mu=mu)


# --- test accuracies ----------------------------------------------------------------------------------------------------


def accuracies(problem: tw.Problem, x: jax.Array, y: jax.Array) -> dict[str, Measure]:
    """Everyone's mean test accuracy: with β alone, as in the paper, and with what the objective predicts with.

    They are `Partial`s: their arguments are leaves of a pytree, so that test rows can be an argument of a compiled
    program rather than a constant in it.
    """
    objective = problem.objective
    own = objective.own(problem.clients)
    return {
        "accuracy": Partial(_accuracy_of_beta, objective.loss, x, y),
        "accuracy_personal": Partial(_accuracy_of_prediction, objective, own, x, y),
    }


def _accuracy_of_beta(loss: Any, x: jax.Array, y: jax.Array, w: Pytree, beta: Pytree) -> jax.Array:
    return jnp.mean(jax.vmap(loss.grade)(beta, x, y))


def _accuracy_of_prediction(
    objective: Any, own: Pytree, x: jax.Array, y: jax.Array, w: Pytree, beta: Pytree
) -> jax.Array:
    no_rows = tw.losses.Rows((), (), jnp.zeros(0))  # none of the paper's three objectives looks at training rows
    return jnp.mean(jax.vmap(lambda b, o, x, y: objective.grade(w, b, no_rows, o, x, y))(beta, own, x, y))


# --- synthetic data -----------------------------------------------------------------------------------------------------


def _mixture(sigma_h: float, clients: int, rows: int) -> DataSource:
    made = tw.data.synthetic.mixture(sigma_h, clients, rows)
    known = tw.data.synthetic.paper_constants(made)
    truth = made.beta_star

    def error(w: Pytree, beta: Pytree) -> jax.Array:
        """Σ_m ‖β_m − β*_m‖²."""
        return jnp.sum(jnp.square(beta - truth))

    return DataSource(
        clients=tw.Clients.from_list(made.clients),
        loss=tw.losses.logistic(),
        assumed=LossConstants(known.mu, known.smoothness, known.smoothness),
        measures={"error": error},
        provenance=f"synthetic mixture data, seed {tw.data.synthetic.PAPER_SEED}, σ_h = {sigma_h:g}",
    )


def _sharing(sigma_h: float, clients: int, rows: int, stretch: bool = False) -> DataSource:
    """Weight sharing; `stretch` multiplies the private features by √M, and thereby the step on β by M.

    The published code has no 1/M in its gradient of β. A step M times as long on β is the correct method on β/√M, which
    is what features multiplied by √M amount to; the error is measured on the true β.
    """
    made = tw.data.synthetic.weight_sharing(sigma_h, clients, rows)
    shared = len(made.w_star)
    factor = np.sqrt(clients) if stretch else 1.0
    scale = np.where(np.arange(made.parameters.shape[1]) < shared, 1.0, factor)
    # The published code cuts rows where it means columns: 𝓛^w is the largest norm among each client's first ten rows.
    norms = np.stack([np.linalg.norm(x, axis=1) for x, _ in made.clients])
    w_star, beta_star = made.w_star, made.beta_star

    def error(w: Pytree, beta: Pytree) -> jax.Array:
        """‖w − w*‖² + (1/M) Σ_m ‖β_m − β*_m‖²."""
        return jnp.sum(jnp.square(w - w_star)) + jnp.sum(jnp.square(factor * beta - beta_star)) / clients

    mu = tw.data.synthetic.paper_constants(made).mu
    return DataSource(
        clients=tw.Clients.from_list([(x * scale, y) for x, y in made.clients]),
        loss=tw.losses.logistic(),
        assumed=LossConstants(mu, norms[:, :shared].max(), norms[:, shared:].max()),
        measures={"error": error},
        provenance=f"synthetic weight-sharing data, seed {tw.data.synthetic.PAPER_SEED}, σ_h = {sigma_h:g}",
    )


# --- real data ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _normalised(name: str, parts: tuple[str, ...] | None) -> tuple[np.ndarray, np.ndarray, str]:
    images = tw.data.images.load(name, parts=parts)
    return tw.data.normalise.paper(images.x), images.y, images.provenance


def _images(
    name: str, labels: int, clients: int, train: int, test: int, l2: float = 0.0, parts: Sequence[str] | None = None,
    seed: int = 0, shared: bool = False,
) -> DataSource:  # fmt: skip
    """K labels per client, softmax regression with an intercept (the published model has one, the paper's text does not).

    `shared`: devices take the same images of the file, as in the published runs.
    """
    x, y, provenance = _normalised(name, None if parts is None else tuple(parts))
    partition = faults.scanned if shared else tw.data.partition.by_labels
    split = partition(y, clients, labels, train, test, seed)
    training, testing = split.take(x, y)
    test_x, test_y = (jnp.asarray(np.stack(arrays)) for arrays in zip(*testing, strict=True))
    return DataSource(
        clients=tw.Clients.from_list(training),
        loss=tw.losses.softmax(10, l2=l2, intercept=True),
        assumed=LossConstants(0.01, 1.0, 1.0),
        measures={},
        provenance=f"{provenance} {split.description}.",
        test=(test_x, test_y),
    )


def _school(schools: int, l2: float) -> DataSource:
    """The pupils of the first schools; features and scores are standardised over them, then rows are scaled to norm ≤ 1.

    The constant column is left out.
    """
    loaded = tw.data.school.load()
    pairs = loaded.clients[:schools]
    counts = np.cumsum([len(y) for _, y in pairs])[:-1]
    x = tw.data.normalise.standardise(np.concatenate([x[:, :-1] for x, _ in pairs]))
    x /= np.max(np.linalg.norm(x, axis=1))
    y = tw.data.normalise.standardise(np.concatenate([y for _, y in pairs])[:, None])[:, 0]
    clients = tw.Clients.from_list(list(zip(np.split(x, counts), np.split(y, counts), strict=True)))
    files = ", ".join(f"{name} (md5 {md5})" for name, md5 in loaded.files)
    return DataSource(clients, tw.losses.squared(l2=l2), None, {}, f"School: {schools} schools from {files}.")


SOURCES: dict[str, Callable[..., DataSource]] = {
    "mixture": _mixture, "sharing": _sharing, "images": _images, "school": _school,
}  # fmt: skip
"""Where clients come from, by the value of `data` in a cell's problem."""
