"""Metrics named as scikit-learn's scorers, computed for one set of rows or for thousands of resamples of it at once.

A resample is a vector of integer weights: how often each row was drawn. The usual metrics are written in NumPy for a matrix of
such weights; any other scikit-learn scorer is called for one resample at a time, with sample weights if it accepts them.
"""
# scikit-learn comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.clients import Clients, Name
from twofold.errors import InputError
from twofold.extras import require
from twofold.losses import Linear
from twofold.model import Model
from twofold.tree import Pytree

__all__ = ["Metric", "grade_everyone"]

Array: TypeAlias = NDArray[np.float64]
Needs: TypeAlias = Literal["predictions", "probabilities", "scores", "estimator"]
Formula: TypeAlias = Callable[[Array, NDArray[Any], NDArray[Any]], Array]
"""A function of weights (resamples, rows), targets and the model's outputs that returns one number per resample."""


def _mean(weights: Array, values: Array) -> Array:
    return weights @ values / np.sum(weights, axis=1)


def _accuracy(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return _mean(weights, np.asarray(said == y, np.float64))


def _balanced(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """The mean, over the classes present, of the share of right answers."""
    labels = np.unique(y)
    there = np.stack([weights @ (y == label) for label in labels], axis=1)
    right = np.stack([weights @ ((y == label) & (said == label)) for label in labels], axis=1)
    shares = np.divide(right, there, out=np.full_like(right, np.nan), where=there > 0)
    return np.nanmean(shares, axis=1)


def _auc(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """The chance that a row of class 1 scores higher than one of class 0, ties counted half; NaN unless both are present."""
    order = np.argsort(said, kind="stable")
    score, positive = said[order], y[order] == 1
    first = np.flatnonzero(np.concatenate([[True], np.diff(score) != 0]))
    ups, downs = (np.add.reduceat(weights[:, order] * part, first, axis=1) for part in (positive, ~positive))
    below = np.cumsum(downs, axis=1) - downs
    pairs = np.sum(ups, axis=1) * np.sum(downs, axis=1)
    won = np.sum(ups * (below + downs / 2), axis=1)
    return np.divide(won, pairs, out=np.full_like(won, np.nan), where=pairs > 0)


def _log_loss(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    mine = said[np.arange(len(y)), y.astype(np.int64)]
    return _mean(weights, np.log(np.clip(mine, np.finfo(np.float64).eps, 1.0)))


def _brier(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """Minus the squared distance of the probabilities from the truth; for two classes only one counts, as in scikit-learn."""
    truth = np.arange(int(said.shape[1]))[None, :] == y[:, None]
    return -_mean(weights, np.sum((said - truth) ** 2, axis=1) / (2 if said.shape[1] == 2 else 1))


def _squared(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return -_mean(weights, (said - y) ** 2)


def _root(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return -np.sqrt(-_squared(weights, y, said))


def _absolute(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return -_mean(weights, np.abs(said - y))


def _variance(weights: Array, y: NDArray[Any]) -> Array:
    """The variance of the values drawn: 0 where they are all equal, which rounding would hide."""
    around = np.asarray(y - np.mean(y), np.float64)
    second = _mean(weights, around**2)
    spread = second - _mean(weights, around) ** 2
    return np.where(spread > 1e-12 * second, spread, 0.0)


def _r2(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """1 − Σ(ŷ−y)²/Σ(y−ȳ)²; NaN if all targets are equal."""
    spread = _variance(weights, y)
    return 1 - np.divide(-_squared(weights, y, said), spread, out=np.full_like(spread, np.nan), where=spread > 0)


def _absolute_share(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return -_mean(weights, np.abs(said - y) / np.maximum(np.abs(y), np.finfo(np.float64).eps))


def _explained(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """1 − (variance of the residuals)/(variance of the targets); NaN if all targets are equal."""
    left = _variance(weights, y - said)
    spread = _variance(weights, y)
    return 1 - np.divide(left, spread, out=np.full_like(spread, np.nan), where=spread > 0)


def _largest(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    return -np.max(np.where(weights > 0, np.abs(said - y), 0.0), axis=1)


def _middle(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """Minus the median absolute error of the rows drawn."""
    errors = np.sort(np.abs(said - y))
    below = np.cumsum(weights[:, np.argsort(np.abs(said - y), kind="stable")], axis=1)
    total = below[:, -1:]
    lower, upper = (np.argmax(below >= part, axis=1) for part in (total / 2, total / 2 + 0.5))
    return -(errors[lower] + errors[upper]) / 2


def _average_precision(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """The mean, over the rows of class 1, of the precision at each row's score; NaN if there are none."""
    order = np.argsort(-said, kind="stable")
    score, positive = said[order], y[order] == 1
    first = np.flatnonzero(np.concatenate([[True], np.diff(score) != 0]))
    ups, every = (np.add.reduceat(weights[:, order] * part, first, axis=1) for part in (positive, np.ones(len(y))))
    above, seen = np.cumsum(ups, axis=1), np.cumsum(every, axis=1)
    precision = np.divide(above, seen, out=np.zeros_like(above), where=seen > 0)
    total = np.sum(ups, axis=1)
    return np.divide(np.sum(ups * precision, axis=1), total, out=np.full_like(total, np.nan), where=total > 0)


def _one_against_rest(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """The mean over classes of the AUC of each against the rest; NaN if a class is missing."""
    if said.shape[1] == 2:
        return _auc(weights, y, said[:, 1])
    return np.mean([_auc(weights, (y == k).astype(np.int64), said[:, k]) for k in range(said.shape[1])], axis=0)


def _one_against_one(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """The mean over pairs of classes of the AUC of one against the other, both ways; NaN if a class is missing."""
    if said.shape[1] == 2:
        return _auc(weights, y, said[:, 1])
    out: list[Array] = []
    for a in range(said.shape[1]):
        for b in range(a):
            mine = (y == a) | (y == b)
            out += [_auc(weights[:, mine], (y[mine] == one).astype(np.int64), said[mine, one]) for one in (a, b)]
    return np.mean(out, axis=0)


def _calibration(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    """Minus the expected calibration error: in ten bins of predicted probability, how far it is from the observed frequency.

    The predicted probability is that of class 1 or, for more than two classes, that of the likeliest class.
    """
    if said.shape[1] == 2:
        sure, hit = said[:, 1], y == 1
    else:
        sure, hit = np.max(said, axis=1), np.argmax(said, axis=1) == y
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    apart = (sure - hit)[:, None] * (place[:, None] == np.arange(BINS))
    return -np.sum(np.abs(weights @ apart), axis=1) / np.sum(weights, axis=1)


def _table_of(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> tuple[NDArray[Any], Array]:
    """The labels present, and each resample's confusion matrix: (resamples, true, predicted)."""
    labels = np.union1d(y, said)
    true, told = (np.asarray(values)[:, None] == labels for values in (y, said))
    pairs = (true[:, :, None] & told[:, None, :]).reshape(len(y), -1).astype(np.float64)
    return labels, (weights @ pairs).reshape(len(weights), len(labels), len(labels))


def _matthews(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
    _, table = _table_of(weights, y, said)
    true, told = np.sum(table, axis=2), np.sum(table, axis=1)
    right, total = np.trace(table, axis1=1, axis2=2), np.sum(table, axis=(1, 2))
    top = right * total - np.sum(true * told, axis=1)
    below = np.sqrt((total**2 - np.sum(told**2, axis=1)) * (total**2 - np.sum(true**2, axis=1)))
    return np.divide(top, below, out=np.zeros_like(top), where=below > 0)


def _by_class(kind: str, average: str) -> Formula:
    """Precision, recall, F1 or Jaccard index, of class 1 or averaged over classes as in scikit-learn (0/0 counts as 0)."""

    def formula(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
        labels, table = _table_of(weights, y, said)
        right = np.diagonal(table, axis1=1, axis2=2)
        true, told = np.sum(table, axis=2), np.sum(table, axis=1)
        if average == "micro":
            right, true, told = (np.sum(part, axis=1, keepdims=True) for part in (right, true, told))
        above = 2 * right if kind == "f1" else right
        below = {"precision": told, "recall": true, "f1": true + told, "jaccard": true + told - right}[kind]
        each = np.divide(above, below, out=np.zeros_like(below), where=below > 0)
        if average == "micro":
            return each[:, 0]
        if average == "binary":
            place = np.flatnonzero(labels == 1)
            return each[:, place[0]] if len(place) else np.zeros(len(weights))
        counts = true if average == "weighted" else ((true + told) > 0).astype(np.float64)
        return np.sum(each * counts, axis=1) / np.sum(counts, axis=1)

    return formula


BINS = 10
"""The number of bins of equal width for predicted probabilities, for "calibration"."""
KNOWN: dict[str, tuple[Needs, Formula]] = {
    "accuracy": ("predictions", _accuracy),
    "balanced_accuracy": ("predictions", _balanced),
    "roc_auc": ("scores", _auc),
    "neg_log_loss": ("probabilities", _log_loss),
    "neg_brier_score": ("probabilities", _brier),
    "r2": ("predictions", _r2),
    "neg_mean_squared_error": ("predictions", _squared),
    "neg_root_mean_squared_error": ("predictions", _root),
    "neg_mean_absolute_error": ("predictions", _absolute),
    "neg_mean_absolute_percentage_error": ("predictions", _absolute_share),
    "neg_median_absolute_error": ("predictions", _middle),
    "neg_max_error": ("predictions", _largest),
    "explained_variance": ("predictions", _explained),
    "average_precision": ("scores", _average_precision),
    "roc_auc_ovr": ("probabilities", _one_against_rest),
    "roc_auc_ovo": ("probabilities", _one_against_one),
    "calibration": ("probabilities", _calibration),
    "matthews_corrcoef": ("predictions", _matthews),
    **{
        kind if average == "binary" else f"{kind}_{average}": ("predictions", _by_class(kind, average))
        for kind in ("f1", "precision", "recall", "jaccard")
        for average in ("binary", "macro", "micro", "weighted")
    },
}
SHORT = {
    "auc": "roc_auc",
    "log_loss": "neg_log_loss",
    "brier": "neg_brier_score",
    "mse": "neg_mean_squared_error",
    "ece": "calibration",
}
OF_NUMBERS = (
    "r2", "neg_mean_squared_error", "neg_root_mean_squared_error", "neg_mean_absolute_error",
    "neg_mean_absolute_percentage_error", "neg_median_absolute_error", "neg_max_error", "explained_variance",
)  # fmt: skip
OF_TWO = {
    "roc_auc": "roc_auc_ovr (one against the rest) or roc_auc_ovo", "average_precision": "roc_auc_ovr", "f1": "f1_macro",
    "precision": "precision_macro", "recall": "recall_macro", "jaccard": "jaccard_macro",
}  # fmt: skip
"""Metrics for two classes only, and what to use for more."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric (larger is better): which outputs of a model it needs, and its value for many resamples of one client's rows.

    >>> auc = Metric.named("roc_auc", None)
    >>> auc.of(np.ones((1, 3)), np.array([0, 1, 1]), np.array([0.2, 0.1, 0.9])).tolist()
    [0.5]
    """

    name: str
    needs: Needs
    formula: Formula

    @classmethod
    def named(cls, name: str, loss: object) -> Metric:
        """The metric with this scikit-learn scorer name, or "calibration", for predictions of this loss."""
        full = SHORT.get(name, name)
        link = loss.link if isinstance(loss, Linear) else None
        if link is not None and full in KNOWN and (link.labels is None) != (full in OF_NUMBERS):
            kind = "a number" if link.labels is None else "a class"
            right = ", ".join(known for known in KNOWN if (known in OF_NUMBERS) == (link.labels is None))
            raise InputError(f"{name} does not fit the {link.name} loss, which predicts {kind}: choose from {right}.")
        if full in OF_TWO and link is not None and link.labels != 2:
            raise InputError(f"{full} is for two classes; for more use {OF_TWO[full]}.")
        if full in KNOWN:
            return cls(full, *KNOWN[full])
        return cls(full, "estimator", _scorer(name))

    def of(self, weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
        """The metric of every resample; NaN where it is undefined."""
        return self.formula(weights, y, said)

    def ask(self, model: Model, params: Pytree, x: Pytree) -> NDArray[Any]:
        """The model's outputs for the rows x that the metric needs; an arbitrary scorer gets scores, one column per class."""
        objective = model.objective
        if self.needs == "predictions":
            return objective.predictions(params, x)
        scores = objective.scores(params, x)
        if self.needs == "probabilities":
            return model.loss.probabilities(scores)
        if self.needs == "scores":
            return scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
        return scores[:, None] if scores.ndim == 1 else scores


def grade_everyone(metric: Metric, model: Model, of_client: Callable[[Name], Pytree], test: Clients) -> Array:
    """The metric of every client's own test rows, with the parameters that `of_client` returns.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])])
    >>> problem = tw.Problem(tw.objectives.local(tw.losses.logistic()), clients)
    >>> model = tw.Model.of(problem, ((), np.array([[-1.0, 1.0], [-1.0, 1.0]])))
    >>> grade_everyone(Metric.named("accuracy", problem.objective.loss), model, model.parameters, clients).tolist()
    [1.0, 0.5]
    """
    out = np.empty(test.M)
    for m, client in enumerate(test):
        said = metric.ask(model, of_client(client.name), client.x)
        out[m] = metric.of(np.ones((1, len(client.y))), client.y, said)[0]
    return out


# --- scikit-learn's own -----------------------------------------------------------------------------------------------


class _Said:
    """A stand-in estimator for scorers: given row indices as input, it returns the model's stored outputs for those rows."""

    def __init__(self, scores: NDArray[Any], classes: int | None) -> None:
        self._scores, self._loss = scores, classes
        self._estimator_type = "regressor" if classes is None else "classifier"
        if classes is not None:
            self.classes_ = np.arange(classes)

    def __sklearn_tags__(self) -> Any:
        utils = require("sklearn.utils", "A scorer by name", "sklearn")
        kind = str(self._estimator_type)
        regressor = utils.RegressorTags() if kind == "regressor" else None
        classifier = utils.ClassifierTags() if kind == "classifier" else None
        return utils.Tags(
            estimator_type=kind,
            target_tags=utils.TargetTags(required=True),
            classifier_tags=classifier,
            regressor_tags=regressor,
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: Any) -> _Said:
        return self

    def _of(self, rows: NDArray[Any]) -> NDArray[Any]:
        found = self._scores[np.asarray(rows).ravel().astype(np.int64)]
        return found[:, 0] if found.shape[1] == 1 else found

    def predict(self, rows: NDArray[Any]) -> NDArray[Any]:
        found = self._of(rows)
        if self._loss is None:
            return found
        return (found > 0).astype(np.int64) if found.ndim == 1 else np.argmax(found, axis=1)

    def decision_function(self, rows: NDArray[Any]) -> NDArray[Any]:
        return self._of(rows)

    def predict_proba(self, rows: NDArray[Any]) -> NDArray[Any]:
        found = self._of(rows)
        found = np.stack([np.zeros_like(found), found], axis=1) if found.ndim == 1 else found
        rises = np.exp(found - np.max(found, axis=1, keepdims=True))
        return rises / np.sum(rises, axis=1, keepdims=True)


def _scorer(name: str) -> Formula:
    """A formula that calls a scikit-learn scorer for one resample at a time."""
    sklearn = require("sklearn", f"The metric {name!r}", "sklearn")
    metrics = require("sklearn.metrics", f"The metric {name!r}", "sklearn")
    known = [*metrics.get_scorer_names(), *SHORT, "calibration"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"There is no metric {name!r}: give the name of a scikit-learn scorer, such as {', '.join(list(KNOWN)[:6])}.{hint}"
        )
    scorer = metrics.get_scorer(name)
    weighted = "sample_weight" in inspect.signature(scorer._score_func).parameters
    weighted = weighted and not name.startswith("roc_auc_ovo")  # refuses sample weights for more than two classes
    settings = {"assume_finite": True, "skip_parameter_validation": True, "enable_metadata_routing": False}

    def formula(weights: Array, y: NDArray[Any], said: NDArray[Any]) -> Array:
        whole = np.issubdtype(y.dtype, np.integer) or y.dtype.kind == "b"
        classes = (max(2, said.shape[1])) if whole else None
        model = _Said(said, classes)
        out = np.full(len(weights), np.nan)
        # A resample may contain a single class only: the scorer then raises or warns, which is expected, so the value stays NaN.
        with warnings.catch_warnings(), sklearn.config_context(**settings):
            warnings.simplefilter("ignore")
            for b, line in enumerate(weights):
                rows = np.flatnonzero(line) if weighted else np.repeat(np.arange(len(y)), line.astype(np.int64))
                how = {"sample_weight": line[rows]} if weighted else {}
                with suppress(ValueError):
                    out[b] = scorer(model, rows[:, None], y[rows], **how)
        return out

    return formula
