"""The two estimators, and reading one that was saved."""
# scikit-learn and pandas come without types, and one of its checks without a public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from twofold.clients import Clients
from twofold.errors import InputError
from twofold.losses import Linear, logistic, softmax, squared
from twofold.sklearn.base import Personalized
from twofold.sklearn.checks import as_they_are, check_labels, refuse_words
from twofold.sklearn.files import FILE, KIND, back
from twofold.storage import read_json, read_tensors
from twofold.tables import Schema
from twofold.tables.columns import plain

__all__ = ["PersonalizedClassifier", "PersonalizedRegressor", "load"]


class PersonalizedClassifier(ClassifierMixin, Personalized):
    """One linear classifier per client: logistic regression for two classes, softmax for more.

    Parameters
    ----------
    objective
        What ties the clients together. "mixture" draws personal models to a shared centre, "multitask" also trains that centre on
        everybody's rows, "weight_sharing" shares the weights and gives everyone its own intercept, "adaptive" blends both;
        "shared" is one model for everybody and "alone" one for each client without the others.
    strength
        "auto" chooses it by cross-validation inside every client's rows (`tw.tune`), and may choose "shared" or "alone"; else λ of
        mixture and multitask, α of adaptive, or what weight_sharing shares ("weight" or "bias").
    client
        The name (or the number) of the column of X that says whose row it is. Or give `client=` to `fit` and `predict`; with
        scikit-learn's metadata routing switched on, a Pipeline or a search passes it on (`groups` goes to the splitters). Without
        either, all rows are one client's.
    l2
        The ridge on weights and intercept, (l2/2)‖·‖² for a mean loss over rows.
    standardize
        "pooled" brings columns of numbers to mean 0 and spread 1 over everybody's rows, "per client" over each client's own.
    weights
        "rows": a client counts by its rows (or their weights), so that "shared" is the usual model; "equal": all count the same.
    per_client, folds, random_state
        How the strength is chosen: see `tw.tune`.
    tol, max_rounds
        When a fit is over: when the gap is certified to be at most tol (needs l2 > 0), or after so many rounds of communication.

    X may be an array, a sparse matrix (which is made dense), or a pandas, Polars or Arrow table with strings, categories and missing
    values (see `Clients.from_frame`). A client that was not there in training, and a row of nobody, gets the shared part w; where the
    objective has no such model ("alone", "weight_sharing") it gets the mean of everybody's models. `adapt(X, y, client="zoe")` gives
    a new client with a few labelled rows a model of its own, without another fit.

    Attributes
    ----------
    classes_, clients_, n_features_in_, feature_names_in_
        The labels, the clients' names, and what X was like.
    coef_, intercept_
        Everyone's own model, with a leading axis of clients, in the features that `schema_.features` names.
    shared_coef_, shared_intercept_
        The model of clients that were not there.
    strength_, tuned_, ledger_, n_rounds_, schema_
        What was chosen and why, what it cost, and how columns become features.

    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"patient": np.repeat(["ann", "bob", "eve"], 30), "dose": rng.normal(size=90)})
    >>> table["drug"] = rng.choice(["old", "new"], 90)
    >>> helped = np.where(table["dose"] * (1 - 2 * (table["patient"] == "eve")) > 0, "better", "worse")
    >>> model = PersonalizedClassifier(client="patient", strength=0.01).fit(table, helped)
    >>> model.predict(pd.DataFrame({"patient": ["ann", "eve"], "dose": 1.0, "drug": "old"})).tolist()
    ['better', 'worse']
    >>> few = pd.DataFrame({"patient": "zoe", "dose": [-2.0, -1.0, 1.0, 2.0], "drug": "old"})
    >>> model.adapt(few, ["better", "better", "worse", "worse"]).predict(few).tolist()
    ['better', 'better', 'worse', 'worse']
    >>> model.predict_proba(few).shape, model.predict_log_proba(few).shape, model.decision_function(few).shape
    ((4, 2), (4, 2), (4,))
    """

    def _target(self, y: Any) -> NDArray[Any]:
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        y = column_or_1d(as_they_are(y), warn=True)
        if y.dtype.kind == "f":
            check_array(y, ensure_2d=False, input_name="y")
        check_labels(y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"The target has only one class, {plain(self.classes_[0])!r}: there is nothing to tell apart."
            )
        return codes.astype(np.int64)

    def _known_target(self, y: Any) -> NDArray[Any]:
        y = column_or_1d(y)
        codes = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        wrong = np.flatnonzero(self.classes_[codes] != y)
        if len(wrong):
            known = ", ".join(map(repr, self.classes_.tolist()))
            raise InputError(
                f"Row {wrong[0]} has the label {plain(y[wrong[0]])!r}, which was not there in fit: it knows {known}."
            )
        return codes.astype(np.int64)

    def _loss(self, clients: Clients) -> Linear:
        K = len(self.classes_)
        return logistic(self.l2, intercept=True) if K == 2 else softmax(K, self.l2, intercept=True)

    def decision_function(
        self, X: Any, client: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Give the scores: one a row for two classes (positive: the second), one per class for more."""
        return self._scores(X, client, groups)

    def predict(self, X: Any, client: ArrayLike | None = None, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Predict each row's label with its client's model."""
        scores = self._scores(X, client, groups)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)]

    def predict_proba(self, X: Any, client: ArrayLike | None = None, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Give the probability of each of `classes_`."""
        scores = self._scores(X, client, groups)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def predict_log_proba(
        self, X: Any, client: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Give the logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X, client, groups))

    def score(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, client: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> float:  # fmt: skip
        """Give the share of right answers."""
        return float(accuracy_score(y, self.predict(X, client, groups), sample_weight=sample_weight))


class PersonalizedRegressor(RegressorMixin, Personalized):
    """One linear regression per client, by least squares; parameters and attributes as in `PersonalizedClassifier`.

    The targets are centred and scaled by their pooled mean and spread while fitting, so that the ridge does not pull to zero what is
    far from it, and λ means the same whatever the units are.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, who = rng.normal(size=(90, 2)), np.repeat(["ann", "bob", "eve"], 30)
    >>> y = 100 + x[:, 0] * np.where(who == "eve", -1, 1)
    >>> model = PersonalizedRegressor(strength=0.01).fit(x, y, client=who)
    >>> model.predict([[1.0, 0.0], [1.0, 0.0]], client=["ann", "eve"]).round(0).tolist()
    [101.0, 99.0]
    """

    def _target(self, y: Any) -> NDArray[Any]:
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        y = column_or_1d(y, warn=True)
        refuse_words(y)
        return check_array(y, ensure_2d=False, dtype="float64", input_name="y")

    def _solve(self, x: NDArray[Any], y: NDArray[Any], owners: list[Any], weight: NDArray[Any] | None) -> None:
        self._mean = float(np.average(y, weights=weight))
        spread = float(np.sqrt(np.average((y - self._mean) ** 2, weights=weight)))
        self._spread = spread if spread > 1e-12 * abs(self._mean) and spread > 0 else 1.0
        super()._solve(x, (y - self._mean) / self._spread, owners, weight)

    def _opening(self) -> Schema:
        """Everyone also sends the sum of its targets and that of their squares."""
        return dataclasses.replace(self.schema_, opening_floats=self.schema_.opening_floats + 2)

    def _known_target(self, y: Any) -> NDArray[Any]:
        return (self._target(y) - self._mean) / self._spread

    def _in_units(self, coef: NDArray[Any], intercept: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return coef * self._spread, intercept * self._spread + self._mean

    def _keep(self, coef: NDArray[Any], intercept: NDArray[Any]) -> None:
        super()._keep(*self._in_units(coef, intercept))

    def _loss(self, clients: Clients) -> Linear:
        return squared(self.l2, intercept=True)

    def predict(self, X: Any, client: ArrayLike | None = None, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Predict each row's target with its client's model."""
        return self._scores(X, client, groups)

    def score(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, client: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> float:  # fmt: skip
        """Give R², the share of the variance that is explained."""
        return float(r2_score(y, self.predict(X, client, groups), sample_weight=sample_weight))


def load(folder: str | Path) -> PersonalizedClassifier | PersonalizedRegressor:
    """Read a fitted estimator that its `save` wrote.

    >>> import tempfile
    >>> import numpy as np
    >>> x, who = np.array([[0.0], [1.0], [2.0], [3.0]]), ["ann", "ann", "bob", "bob"]
    >>> folder = PersonalizedRegressor(strength=1.0).fit(x, x[:, 0], client=who).save(tempfile.mkdtemp())
    >>> load(folder).clients_.tolist()
    ['ann', 'bob']
    """
    file = Path(folder) / f"{FILE}.json"
    if not file.is_file():
        raise InputError(
            f"There is no {file}: load reads what an estimator's save wrote; tw.load reads a Model's folder."
        )
    document = read_json(file)
    if document.get("kind") != KIND or document.get("version") != 1:
        raise InputError(
            f"{file} is a {document.get('kind')!r} of version {document.get('version')!r}; this twofold reads {KIND!r} of version 1."
        )
    kinds = {kind.__name__: kind for kind in (PersonalizedClassifier, PersonalizedRegressor)}
    estimator = kinds[document["estimator"]](**{name: back(value) for name, value in document["params"].items()})
    return estimator._restore(document, read_tensors(file.with_suffix(".safetensors")))
