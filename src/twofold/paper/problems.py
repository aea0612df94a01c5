"""From plain values to a problem: its data, the constants that the published runs assumed, and what is measured."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold import data, losses, metrics, objectives
from twofold.clients import Clients
from twofold.losses import Rows
from twofold.objectives.base import Objective
from twofold.paper import faults
from twofold.paper.base import Plain
from twofold.problem import Problem
from twofold.theory import constants as theory
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.instances import lower_bound_instance
from twofold.tree import Pytree, record

Measure = Callable[[Pytree, Pytree], Any] | metrics.OfProgram
"""A function of real (w, β), or of a whole program, as `solve(record=...)` takes it."""


class Setup(NamedTuple):
    """A problem with all that an experiment asks of it."""

    problem: Problem
    published: Constants | None
    measures: Mapping[str, Measure]
    provenance: str


class Data(NamedTuple):
    """Clients, their loss, the μ' and 𝓛' of the published runs, what is measured beyond the loss, and test rows."""

    clients: Clients
    loss: Any
    assumed: LossConstants | None
    measures: Mapping[str, Measure]
    provenance: str
    test: tuple[Any, Any] | None = None


_LOCK = threading.Lock()


def setup(problem: Plain, wide: bool = True) -> Setup:
    """The problem of a cell; the same object for the same values, so that its optimum and its programs are made once."""
    with _LOCK:
        return _setup(json.dumps(problem, sort_keys=True), wide)


@lru_cache(maxsize=8)
def _setup(text: str, wide: bool) -> Setup:
    values = json.loads(text)
    source, parameters, rescale = values.pop("data"), values.pop("objective", {}), values.pop("rescale", True)
    if source == "chain":
        return Setup(lower_bound_instance(**values), None, {}, "the lower-bound instance of twofold.theory.instances")
    found = SOURCES[source](**values)
    name = parameters.pop("name")
    objective = getattr(objectives, name)(found.loss, **parameters)
    if found.test is not None:
        objective = Examined(objective, found.test)
    problem = Problem(objective, found.clients, rescale=rescale)
    scale = (
        problem.scale if isinstance(rescale, bool) else problem.M**-0.5
    )  # a slip of the scale is none of the constants
    known = None if found.assumed is None else _published(name, parameters, found.assumed, problem.M, scale)
    return Setup(problem, known, found.measures, found.provenance)


def _published(name: str, parameters: Plain, assumed: LossConstants, M: int, scale: float) -> Constants:
    """What the published runs took for 𝓛^w, 𝓛^β and μ: the lemmas' formulas, and μ'/(3M), for weight sharing μ'/M."""
    mu = float(assumed.mu) / (M if name == "weight_sharing" else 3 * M)
    if name == "weight_sharing":  # 𝓛' of its two blocks differ there
        w, beta = scale**2 * float(assumed.L), float(assumed.calL) / M
        return Constants(mu, w, beta, w, beta)
    given = {key: value for key, value in parameters.items() if key != "split"}
    return getattr(theory, name)(assumed, **given, scale=scale, clients=M).replace(mu=mu)


# --- synthetic data ---------------------------------------------------------------------------------------------------


def _mixture(sigma_h: float, clients: int, rows: int) -> Data:
    made = data.synthetic.mixture(sigma_h, clients, rows)
    known = data.synthetic.paper_constants(made)
    truth = made.beta_star

    def error(w: Pytree, beta: Pytree) -> jax.Array:
        """Σ_m ‖β_m − β*_m‖²."""
        return jnp.sum(jnp.square(beta - truth))

    return Data(
        Clients.from_list(made.clients), losses.logistic(), LossConstants(known.mu, known.smoothness, known.smoothness),
        {"error": error}, f"synthetic mixture data, seed {data.synthetic.PAPER_SEED}, σ_h = {sigma_h:g}",
    )  # fmt: skip


def _sharing(sigma_h: float, clients: int, rows: int, stretch: bool = False) -> Data:
    """Weight sharing; `stretch` multiplies the private features by √M, and so the step on β by M.

    The published code has no 1/M in its gradient of β. A step M times as long on β is the right method on β/√M, which is
    what features times √M make of it; the error is measured on the true β.
    """
    made = data.synthetic.weight_sharing(sigma_h, clients, rows)
    shared = len(made.w_star)
    factor = np.sqrt(clients) if stretch else 1.0
    scale = np.where(np.arange(made.parameters.shape[1]) < shared, 1.0, factor)
    # The published code cuts rows where it means columns: 𝓛^w is the largest norm among each client's first ten rows.
    norms = np.stack([np.linalg.norm(x, axis=1) for x, _ in made.clients])
    w_star, beta_star = made.w_star, made.beta_star

    def error(w: Pytree, beta: Pytree) -> jax.Array:
        """‖w − w*‖² + (1/M) Σ_m ‖β_m − β*_m‖²."""
        return jnp.sum(jnp.square(w - w_star)) + jnp.sum(jnp.square(factor * beta - beta_star)) / clients

    return Data(
        Clients.from_list([(x * scale, y) for x, y in made.clients]), losses.logistic(),
        LossConstants(data.synthetic.paper_constants(made).mu, norms[:, :shared].max(), norms[:, shared:].max()),
        {"error": error}, f"synthetic weight-sharing data, seed {data.synthetic.PAPER_SEED}, σ_h = {sigma_h:g}",
    )  # fmt: skip


# --- real data --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _normalised(name: str, parts: tuple[str, ...] | None) -> tuple[np.ndarray, np.ndarray, str]:
    images = data.images.load(name, parts=parts)
    return data.normalise.paper(images.x), images.y, images.provenance


def _images(
    name: str, labels: int, clients: int, train: int, test: int, l2: float = 0.0, parts: Any = None, seed: int = 0,
    shared: bool = False,
) -> Data:  # fmt: skip
    """K labels per client, softmax regression with an intercept (the published model has one, the paper's text none).

    `shared`: devices take the same images of the file, as in the published runs.
    """
    x, y, provenance = _normalised(name, None if parts is None else tuple(parts))
    split = (faults.scanned if shared else data.partition.by_labels)(y, clients, labels, train, test, seed)
    training, testing = split.take(x, y)
    test_x, test_y = (jnp.asarray(np.stack(arrays)) for arrays in zip(*testing, strict=True))
    loss = losses.softmax(10, l2=l2, intercept=True)

    assumed = LossConstants(0.01, 1.0, 1.0)
    clients_of = Clients.from_list(training)
    return Data(clients_of, loss, assumed, EXAMS, f"{provenance} {split.description}.", (test_x, test_y))


@record
class Examined(Objective):
    """An objective with everybody's test rows on board; to all others it is that objective.

    A measure that closes over its data is compiled anew for every data set, data and all. The objective is an argument of
    every program, so what is on board of it is measured by one program for all data of one shape.
    """

    inner: Objective
    test: tuple[Any, Any]

    def bind(self, clients: Clients) -> Objective:
        """The bound objective, with the same test rows."""
        return Examined(self.inner.bind(clients), self.test)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def _of_inner(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name))


for _name in ("name", "convex", "equation", "init", "value", "constants", "personal", "own", "grade", "predict"):
    setattr(Examined, _name, _of_inner(_name))


def _accuracy(program: tuple, w: Pytree, parts: tuple) -> jax.Array:
    """With the private part alone, as the paper has it."""
    objective, _, _ = program
    return jnp.mean(jax.vmap(objective.loss.grade)(parts[0], *objective.test))


def _accuracy_personal(program: tuple, w: Pytree, parts: tuple) -> jax.Array:
    """With what the objective predicts with; none of the paper's three looks at training rows for that."""
    objective, _, (stack,) = program
    nobody = Rows((), (), jnp.zeros(0))
    one = jax.vmap(lambda beta, own, x, y: objective.grade(w, beta, nobody, own, x, y))
    return jnp.mean(one(parts[0], stack.own, *objective.test))


EXAMS = {"accuracy": metrics.OfProgram(_accuracy), "accuracy_personal": metrics.OfProgram(_accuracy_personal)}
"""The measures of an examined objective."""


def _school(schools: int, l2: float) -> Data:
    """The first schools' pupils; columns and scores standardised over them, the constant column left out, rows to norm ≤ 1."""
    loaded = data.school.load()
    pairs = loaded.clients[:schools]
    counts = np.cumsum([len(y) for _, y in pairs])[:-1]
    x = data.normalise.standardise(np.concatenate([x[:, :-1] for x, _ in pairs]))
    x /= np.max(np.linalg.norm(x, axis=1))
    y = data.normalise.standardise(np.concatenate([y for _, y in pairs])[:, None])[:, 0]
    clients = Clients.from_list(list(zip(np.split(x, counts), np.split(y, counts), strict=True)))
    files = ", ".join(f"{name} (md5 {md5})" for name, md5 in loaded.files)
    return Data(clients, losses.squared(l2=l2), None, {}, f"School: {schools} schools from {files}.")


SOURCES: dict[str, Callable[..., Data]] = {
    "mixture": _mixture, "sharing": _sharing, "images": _images, "school": _school,
}  # fmt: skip
