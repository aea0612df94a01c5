"""Estimators for scikit-learn: one model per client, in the `fit` and `predict` that everybody knows.

    PersonalizedClassifier(client="patient").fit(table, labels).predict(table)

They are linear models (logistic, softmax or least squares) under any of twofold's objectives, solved by `profile`, with the strength of
personalisation chosen by cross-validation inside every client's rows. They need the extra `sklearn`.
"""
# scikit-learn and pandas come without types, and one of its checks without a public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold import objectives as catalogue
from twofold.clients import Clients, ClientWarning
from twofold.errors import InputError, MissingExtra
from twofold.losses import Linear, logistic, softmax, squared
from twofold.model.adapting import find
from twofold.model.files import objective_of
from twofold.objectives.base import Objective
from twofold.problem import Problem
from twofold.result import Ledger, Result
from twofold.solver import solve
from twofold.storage import made, pack, read_json, read_tensors, rebuild, write_json, write_tensors
from twofold.tables import Columns, Schema, read
from twofold.tables.columns import is_frame, plain
from twofold.tune import Tuned, check_per_client, curvature_of, tune

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.model_selection import BaseCrossValidator, GroupKFold
    from sklearn.utils import check_consistent_length, check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as missing:
    raise MissingExtra("twofold.sklearn", "sklearn", library="scikit-learn") from missing

__all__ = ["PersonalizedClassifier", "PersonalizedRegressor", "WholeClients", "WithinClients", "load"]

ObjectiveName: TypeAlias = Literal["mixture", "multitask", "adaptive", "weight_sharing", "shared", "alone"]
NAMES = ("mixture", "multitask", "adaptive", "weight_sharing", "shared", "alone")
ROUTED = {"client": True, "groups": False}
"""With metadata routing switched on, `client` comes by itself, and `groups` goes to the splitters."""
KIND, FILE = "twofold estimator", "estimator"
"""What an estimator's JSON file says that it is, and the name of its two files."""
ROOM = 64
"""Up to this many rows or features, sizes are rounded up to a power of two; beyond, to one of eight steps between two of them."""


class _Personalized(BaseEstimator):
    """What the classifier and the regressor have in common."""

    __metadata_request__fit: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__predict: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__predict_log_proba: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__decision_function: ClassVar[dict[str, bool]] = ROUTED
    __metadata_request__score: ClassVar[dict[str, bool]] = ROUTED

    def __init__(
        self,
        *,
        objective: ObjectiveName = "mixture",
        strength: float | str = "auto",
        client: str | int | None = None,
        l2: float = 1e-3,
        standardize: Literal["pooled", "per client"] | None = "pooled",
        weights: Literal["rows", "equal"] = "rows",
        per_client: bool | Literal["auto"] = "auto",
        folds: int = 5,
        tol: float = 1e-12,
        max_rounds: int = 200,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.objective = objective
        self.strength = strength
        self.client = client
        self.l2 = l2
        self.standardize = standardize
        self.weights = weights
        self.per_client = per_client
        self.folds = folds
        self.tol = tol
        self.max_rounds = max_rounds
        self.random_state = random_state

    # --- fit ----------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        client: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit one model per client.

        Whose row is whose is said by the column named in `client=` of the estimator, or here by `client` (or `groups`, its other
        name), one label per row. If nobody says it, all rows are one client's, and the model is the usual one.
        `sample_weight` are numbers ≥ 0: a row of weight 2 counts as if it were there twice.
        """
        if self.objective not in NAMES:
            raise InputError(f"objective is one of {', '.join(NAMES)}, got {self.objective!r}.")
        _check_strength(self.objective, self.strength)
        check_per_client(self.per_client)
        table, owners = self._read(X, client, groups, reset=True)
        if owners is None:
            self._warn_of_nobody()
        self.adapted_: dict[Any, float] = {}
        target = self._target(y)
        check_consistent_length(np.empty((table.rows, 0)), target)
        weight = None
        if sample_weight is not None:
            weight = np.asarray(_check_sample_weight(sample_weight, np.empty((table.rows, 1)), dtype=np.float64))
            if weight.min() < 0 or not weight.any():
                raise InputError("sample_weight must be numbers ≥ 0, and not all of them 0.")
        names = [name for name in table.names if not self._is_client(name, table)]
        kept = np.flatnonzero(weight > 0) if weight is not None else np.arange(table.rows)
        mine = _take(table, names, kept) if len(kept) < table.rows else table
        whose = [None] * len(kept) if owners is None else [owners[i] for i in kept]
        used = None if weight is None else weight[kept]
        how: Any = self.standardize
        self.schema_, x = Schema.fit(mine, names, whose, standardize=how, row_weights=used)
        with jax.enable_x64(True):
            self._solve(np.asarray(x, np.float64), target[kept], whose, used)
        return self

    def _warn_of_nobody(self) -> None:
        """Say that all rows are taken for one client's, where somebody has meant otherwise, as far as that can be seen."""
        meant = not isinstance(self.strength, str) or bool(get_config().get("enable_metadata_routing"))
        if meant and self.objective != "shared":
            warnings.warn(
                f"{type(self).__name__}.fit: nobody says whose rows these are, so all are one client's and the model is the usual one. "
                f"{_WHOSE.format(method='fit(X, y')}",
                ClientWarning,
                stacklevel=3,
            )

    def _read(self, X: Any, client: Any, groups: Any, *, reset: bool) -> tuple[Columns, list[Any] | None]:
        """The table of X, and the owner of each row; None where nobody says whose rows these are."""
        if client is not None and groups is not None:
            raise InputError("client and groups are two names for the same thing: give one of them.")
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            table = read(X)
            if table.rows == 0 or not table.names:
                raise InputError(
                    f"Found {table.rows} sample(s) and {len(table.names)} feature(s): at least one of each is needed."
                )
        else:
            mixed = self.client is not None and getattr(getattr(X, "dtype", None), "kind", "") == "O"
            array: Any = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=None if mixed else "numeric", ensure_all_finite=False
            )
            if hasattr(array, "toarray"):
                array = Clients.from_groups(
                    array, None, np.zeros(array.shape[0], np.int64)
                ).x  # if there is room for it
            _finite(array)
            names = getattr(self, "feature_names_in_", None)
            names = [f"x{j}" for j in range(array.shape[1])] if names is None else list(names)
            table = read({name: array[:, j] for j, name in enumerate(names)})
        said: Any = client if client is not None else groups
        if said is None and self.client is not None:
            column = table.column(self._client_name(table))
            said = [None if gone else owner for owner, gone in zip(column.values.tolist(), column.missing, strict=True)]
        if said is None:
            return table, None
        owners = [plain(owner) for owner in (said.tolist() if hasattr(said, "tolist") else list(said))]
        if len(owners) != table.rows:
            raise InputError(f"client has {len(owners)} labels for {table.rows} rows.")
        return table, owners

    def _client_name(self, table: Columns) -> Any:
        if isinstance(self.client, int) and self.client not in table.names:
            if not -len(table.names) <= self.client < len(table.names):
                raise InputError(f"client={self.client} is no column of X, which has {len(table.names)}.")
            return table.names[self.client]
        if self.client not in table.names:
            near = difflib.get_close_matches(str(self.client), list(map(str, table.names)), n=1)
            raise InputError(
                f"X has no column {self.client!r} to tell clients by; it has {_listed(table.names)}"
                f"{f'; did you mean {near[0]!r}?' if near else '.'} {_AFTER_OTHERS}"
            )
        return self.client

    def _is_client(self, name: Any, table: Columns) -> bool:
        return self.client is not None and name == self._client_name(table)

    def _solve(self, x: NDArray[Any], y: NDArray[Any], owners: list[Any], weight: NDArray[Any] | None) -> None:
        """Make the problem, choose the strength, solve, and keep everyone's coefficients."""
        width = x.shape[1]
        everyone = (
            owners if owners[0] is not None or any(owner is not None for owner in owners) else ["everybody"] * len(y)
        )
        real = _clients(x, y, everyone, weight, self.weights, self._opening())
        clients = _roomy(real)
        loss = self._loss(clients)
        objective, self.tuned_ = self._chosen(loss, clients)
        if self.tuned_ is not None:  # what is sent before training is sent once
            clients = _roomy(dataclasses.replace(real, schema=None))
        problem = Problem(_one_each(objective, clients), clients, sampling="uniform")
        # Without a ridge there is no certificate to stop on; Newton's method has long arrived after as many rounds.
        stop: dict[str, Any] = (
            {"tol": self.tol, "rounds": self.max_rounds} if loss.l2 > 0 else {"rounds": min(self.max_rounds, 30)}
        )
        self.result_: Result = solve(problem, "profile", **stop)
        if loss.l2 > 0 and self.result_.status != "converged":
            warnings.warn(f"{type(self).__name__}: {self.result_.message}.", ConvergenceWarning, stacklevel=4)
        self.strength_ = self.tuned_.strength if self.tuned_ is not None else self._given_strength(loss, clients)
        self.clients_ = np.array(clients.names)
        self.ledger_: Ledger = self.result_.ledger if self.tuned_ is None else self.result_.ledger + self.tuned_.ledger
        self.n_rounds_ = self.result_.ledger.rounds
        self._objective, own = problem.objective, problem.objective.own(clients)
        self._w = jax.tree.map(np.asarray, self.result_.w)

        def model(m: int) -> tuple[NDArray[Any], NDArray[Any]]:

            def of_client(leaf: jax.Array) -> jax.Array:
                return leaf[m]

            mine = jax.tree.map(of_client, (self.result_.beta, own))
            params = problem.objective.personal(self.result_.w, mine[0], None, mine[1])  # type: ignore[arg-type]
            return np.asarray(params["weight"], np.float64)[:width], np.asarray(params["bias"], np.float64)

        pairs = [model(m) for m in range(len(clients))]
        shared = self._shared(problem, pairs, width)
        coef, intercept = (np.stack([pair[i] for pair in (*pairs, shared)]) for i in (0, 1))
        self._keep(coef, intercept)
        # Training rows are not part of a fitted estimator.
        self.result_ = dataclasses.replace(self.result_, problem=None)
        self.tuned_ = None if self.tuned_ is None else dataclasses.replace(self.tuned_, clients=None)

    def _opening(self) -> Schema:
        """What says how many numbers everyone sends before training."""
        return self.schema_

    def _shared(self, problem: Problem, pairs: list[Any], width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The model of a client that was not there: w where that is a model by itself, else the mean of everybody's."""
        w: Any = self.result_.w
        if isinstance(w, dict) and set(w) == {"weight", "bias"}:
            return np.asarray(w["weight"], np.float64)[:width], np.asarray(w["bias"], np.float64)
        p = problem.clients.weights
        return tuple(np.tensordot(p, np.stack([pair[i] for pair in pairs]), 1) for i in (0, 1))  # type: ignore[return-value]

    def _given_strength(self, loss: Linear, clients: Clients) -> Any:
        """The strength where none was chosen by cross-validation."""
        if self.objective in ("shared", "alone"):
            return self.objective
        if not self._auto:
            return self.strength
        if len(clients) == 1:
            return {"adaptive": 1.0, "weight_sharing": "shared"}.get(self.objective, math.inf)
        return self._first_strength(loss, clients)

    @property
    def _auto(self) -> bool:
        return isinstance(self.strength, str) and self.strength == "auto"

    def _first_strength(self, loss: Linear, clients: Clients) -> Any:
        """What "auto" begins with, and stays with where nothing can be held out."""
        found: dict[str, Any] = {"adaptive": 0.5, "weight_sharing": "weight"}
        return found.get(self.objective, curvature_of(loss, clients))

    def _seed(self) -> int:
        if self.random_state is None:
            return 0
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _chosen(self, loss: Linear, clients: Clients) -> tuple[Objective, Tuned | None]:
        """The objective with its strength, and what was found out about it."""
        if self.objective == "shared" or len(clients) == 1:
            return catalogue.traditional(loss), None
        if self.objective == "alone":
            return catalogue.local(loss), None
        if self._auto:
            first = self._first_strength(loss, clients)
            start = self._made(loss, first)
            if clients.counted.max() < 2:
                shown = f"{first:.3g}" if isinstance(first, float) else first
                warnings.warn(
                    f"{type(self).__name__}: no client has two rows to hold one out, so the strength cannot be chosen: it is {shown}. "
                    "Say strength= yourself.",
                    ClientWarning,
                    stacklevel=5,
                )
                return start, None
            own: Any = self.per_client
            tuned = tune(start, clients, folds=self.folds, per_client=own, seed=self._seed())
            return tuned.objective, tuned
        return self._made(loss, self.strength), None

    def _made(self, loss: Linear, strength: Any) -> Objective:
        if self.objective == "weight_sharing":
            return catalogue.weight_sharing(loss, strength)
        if self.objective == "adaptive":
            return catalogue.adaptive(loss, strength)
        if strength in (math.inf, 0):
            return catalogue.traditional(loss) if strength else catalogue.local(loss)
        return {"mixture": catalogue.mixture, "multitask": catalogue.multitask}[self.objective](loss, strength)

    def _target(self, y: Any) -> NDArray[Any]:
        raise NotImplementedError

    def _loss(self, clients: Clients) -> Linear:
        raise NotImplementedError

    def _keep(self, coef: NDArray[Any], intercept: NDArray[Any]) -> None:
        """Keep what was fitted: the coefficients of all clients and, last, those of the shared model."""
        self._place(coef, intercept)

    def _place(self, coef: NDArray[Any], intercept: NDArray[Any]) -> None:
        self._coef, self._intercept = coef, intercept
        self.coef_, self.intercept_ = coef[:-1], intercept[:-1]
        self.shared_coef_, self.shared_intercept_ = coef[-1], intercept[-1]

    # --- new clients --------------------------------------------------------------------------------------------------

    def adapt(self, X: Any, y: Any, client: Any = None, groups: Any = None) -> Self:
        """Let new clients join, each with a few rows of its own; what is shared stays as it is, and nobody else's model changes.

        Each gets its private part by Newton's method on its rows: the first in a process takes about a second, which is compilation,
        and the others milliseconds. `adapted_` has the certified gap of each. Whose rows
        these are is said as in `fit`, or by one name for all of them. Where everybody has the same model ("shared", or where that was
        chosen), so has a new client. A client that took part in `fit` is refused: fit again with its new rows.
        """
        check_is_fitted(self)
        one = client is not None and np.ndim(client) == 0
        table, owners = self._read(X, None if one else client, groups, reset=False)
        owners = [client] * table.rows if one else owners
        if owners is None or any(owner is None for owner in owners):
            raise InputError('adapt needs to know whose rows these are: adapt(X, y, client="ann").')
        known = [name for name in dict.fromkeys(owners) if name in self.clients_.tolist()]
        if known:
            raise InputError(f"Client {known[0]!r} has a model already; to change it, fit again with its new rows.")
        target = self._known_target(y)
        check_consistent_length(np.empty((table.rows, 0)), target)
        x = np.asarray(self.schema_.encode(table, owners), np.float64)
        for name in dict.fromkeys(owners):
            mine = np.array([owner == name for owner in owners])
            self._join(name, x[mine], target[mine])
        return self

    def _known_target(self, y: Any) -> NDArray[Any]:
        """The targets of a new client in the form in which the model was fitted."""
        raise NotImplementedError

    def _join(self, name: Any, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Find one new client's model and put it before the shared one, which is the last."""
        shared, coef, gap = (self._coef[-1], self._intercept[-1]), None, 0.0
        if self._objective.name != "traditional":
            wide = np.zeros((len(x), _room(x.shape[1])))
            wide[:, : x.shape[1]] = x
            found = find(self._objective.of_newcomer({}), self._w, Clients.from_list([(wide, y)], names=[name]))
            coef, gap = (found.personal["weight"][: x.shape[1]], found.personal["bias"]), found.gap
        pair = shared if coef is None else self._in_units(*coef)
        self._coef, self._intercept = (
            np.concatenate([every[:-1], np.asarray(new)[None], every[-1:]])
            for every, new in zip((self._coef, self._intercept), pair, strict=True)
        )
        self.coef_, self.intercept_ = self._coef[:-1], self._intercept[:-1]
        self.clients_ = _names([*self.clients_.tolist(), name])
        self.adapted_ = {**self.adapted_, name: gap}

    def _in_units(self, coef: NDArray[Any], intercept: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Coefficients of the fitted targets as coefficients of the user's."""
        return coef, intercept

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator into a folder, which `twofold.sklearn.load` reads: `estimator.json` and `estimator.safetensors`.

        The folder holds what predict and adapt need: everyone's coefficients, the columns and their scaling, the labels, the clients'
        names. It holds no rows; and `result_`, `tuned_` and `ledger_`, which say how the fit went, stay behind.
        """
        check_is_fitted(self)
        folder = made(folder)
        tensors, structure = pack("w", self._w)
        params = self.get_params()
        if not isinstance(params["random_state"], (numbers.Integral, type(None))):
            params["random_state"] = None  # a generator of random numbers is no part of the model
        objective, loss = self._objective.describe(), self._objective.loss.describe()
        assert objective is not None and loss is not None, (
            "an estimator's objective has no function of the user's in it"
        )
        document = {
            "kind": KIND,
            "version": 1,
            "estimator": type(self).__name__,
            "params": {name: _written(value) for name, value in params.items()},
            "fitted": {name: _written(getattr(self, name)) for name in self._plain if hasattr(self, name)},
            "adapted": [[plain(name), gap if math.isfinite(gap) else None] for name, gap in self.adapted_.items()],
            "schema": self.schema_.as_dict(),
            "objective": {"name": objective[0], "settings": objective[1]},
            "loss": loss,
            "structure": structure,
        }
        write_tensors(folder / f"{FILE}.safetensors", tensors | {"coef": self._coef, "intercept": self._intercept})
        write_json(folder / f"{FILE}.json", document)
        return folder

    def _restore(self, document: dict[str, Any], tensors: dict[str, Any]) -> Self:
        """Take over what `save` wrote."""
        for name, written in document["fitted"].items():
            of_names = name in ("clients_", "feature_names_in_")
            setattr(self, name, _names(written) if of_names else _back(written))
        self.adapted_ = {name: math.nan if gap is None else gap for name, gap in document["adapted"]}
        self.schema_ = Schema.from_dict(document["schema"])
        self._objective = objective_of(document, None, None)
        self._w = rebuild(document["structure"], tensors)
        self._place(tensors["coef"], tensors["intercept"])
        return self

    _plain: ClassVar[tuple[str, ...]] = (
        "n_features_in_", "feature_names_in_", "clients_", "classes_", "strength_", "n_rounds_", "_mean", "_spread"
    )  # fmt: skip
    """What a fitted estimator holds that JSON can hold as it is."""

    # --- predict ------------------------------------------------------------------------------------------------------

    def _scores(self, X: Any, client: Any, groups: Any) -> NDArray[Any]:
        check_is_fitted(self)
        table, owners = self._read(X, client, groups, reset=False)
        place = {name: m for m, name in enumerate(self.clients_.tolist())}
        last = len(place)
        if last > 1 and self.objective != "shared":
            self._warn_of_strangers(owners, place)
        if owners is None:
            index = np.full(table.rows, 0 if last == 1 else last)
        else:
            index = np.array([place.get(owner, last) for owner in owners])
        x = np.asarray(self.schema_.encode(table, owners), np.float64)
        scores = np.empty((len(x), *self._intercept.shape[1:]))
        for m in np.unique(index):
            mine = index == m
            scores[mine] = x[mine] @ self._coef[m] + self._intercept[m]
        return scores

    def _warn_of_strangers(self, owners: list[Any] | None, place: dict[Any, int]) -> None:
        """Say that nobody's own model is asked, where that may not be meant."""
        if owners is not None and (not owners or any(owner in place for owner in owners)):
            return
        instead = "every row gets the shared model, and no client its own"
        if owners is None:
            told = f"nobody says whose rows these are, so {instead}. {_WHOSE.format(method='predict(X')}"
        else:
            hint = _alike(owners, place)
            if not hint and type(self) in _TOLD:  # as in every fold of WholeClients, where it is meant
                return
            _TOLD.add(type(self))
            told = f"no row is of a client that was there in fit, so {instead}{hint}."
        warnings.warn(f"{type(self).__name__}: {told}", ClientWarning, stacklevel=4)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


class PersonalizedClassifier(ClassifierMixin, _Personalized):
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

    X may be an array, a sparse matrix (which is made dense), or a pandas, Polars or Arrow table with strings, categories and gaps (see
    `Clients.from_frame`). A client that was not there in training, and a row of nobody, gets the shared part w; where the objective has
    no such model ("alone", "weight_sharing") it gets the mean of everybody's models. `adapt(X, y, client="zoe")` gives a new client
    with a few labelled rows a model of its own, without another fit.

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
        y = column_or_1d(_as_they_are(y), warn=True)
        if y.dtype.kind == "f":
            check_array(y, ensure_2d=False, input_name="y")
        _check_labels(y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"The target has only one class, {self.classes_[0]!r}: there is nothing to tell apart.")
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


class PersonalizedRegressor(RegressorMixin, _Personalized):
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


# --- files --------------------------------------------------------------------------------------------------------------


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
    estimator = kinds[document["estimator"]](**{name: _back(value) for name, value in document["params"].items()})
    return estimator._restore(document, read_tensors(file.with_suffix(".safetensors")))


def _written(value: Any) -> Any:
    """A number, a string, None or a list of them as JSON; infinity, which JSON has not, as the string "inf"."""
    found = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(found, list):
        wrong = next((each for each in found if not isinstance(each, (str, bool, int, float))), None)
        if wrong is not None:
            raise InputError(
                f"A file holds strings and numbers only, and {wrong!r} is {type(wrong).__name__}: use pickle."
            )
        return [_written(each) for each in found]
    return "inf" if isinstance(found, float) and found == math.inf else found


def _back(written: Any) -> Any:
    if isinstance(written, list):
        return np.array(written)
    return math.inf if written == "inf" else written


def _names(names: list[Any]) -> NDArray[Any]:
    """Names as an array in which none becomes another type."""
    return np.array(names, None if len({type(each) for each in names}) == 1 else object)


# --- splitters --------------------------------------------------------------------------------------------------------


class WithinClients(BaseCrossValidator):
    """Hold out rows inside every client: each client's rows are cut into `n_splits` parts, as equal as can be.

    `groups` are the clients. A client with fewer rows than splits is held out in as many of them as it has rows; one with a single row
    is always trained on. With `stratify` (the default where y is given and not continuous) every label has its share in each part.

    >>> import numpy as np
    >>> splits = list(WithinClients(2).split(np.zeros((5, 1)), groups=["a", "a", "b", "b", "b"]))
    >>> [len(test) for _, test in splits], sorted(np.concatenate([test for _, test in splits]).tolist())
    ([3, 2], [0, 1, 2, 3, 4])
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(self, n_splits: int = 5, *, stratify: bool | None = None, random_state: int = 0) -> None:
        if not isinstance(cast(object, n_splits), int) or n_splits < 2:
            raise InputError(f"n_splits is a whole number of at least 2, got {n_splits!r}.")
        self.n_splits, self.stratify, self.random_state = n_splits, stratify, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> Any:
        """Give the number of splits."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Generator[Any, Any, None]:
        """Give the training and the test rows of each split."""
        if groups is None:
            raise InputError("WithinClients needs the clients: pass groups=, one label per row.")
        labels, member = np.unique(np.asarray(groups), return_inverse=True)
        rng = np.random.default_rng(self.random_state)
        by_label = y is not None and (
            self.stratify or (self.stratify is None and not type_of_target(y).startswith("continuous"))
        )
        fold = np.full(len(member), -1)
        for m in range(len(labels)):
            rows = rng.permutation(np.flatnonzero(member == m))
            if by_label:
                rows = rows[np.argsort(np.asarray(y)[rows], kind="stable")]
            if len(rows) > 1:
                fold[rows] = (np.arange(len(rows)) + rng.integers(self.n_splits)) % self.n_splits
        for f in range(self.n_splits):
            test = np.flatnonzero(fold == f)
            if len(test) == 0:
                raise InputError(f"There are too few rows for {self.n_splits} splits: no client has that many.")
            yield np.flatnonzero(fold != f), test


class WholeClients(GroupKFold):
    """Hold out whole clients: how well does the shared part do for those who were not there?

    This is scikit-learn's `GroupKFold` with the clients as `groups`.

    >>> import numpy as np
    >>> next(WholeClients(3).split(np.zeros((4, 1)), groups=["a", "a", "b", "c"]))[1].tolist()
    [0, 1]
    """


_AFTER_OTHERS = (
    'In a Pipeline, earlier steps drop or rename columns. Keep names by .set_output(transform="pandas") and, in a ColumnTransformer, '
    "verbose_feature_names_out=False; or say by its place which column it is, client=-1 for the last; or leave client= out and give "
    "fit(X, y, client=labels) with scikit-learn's metadata routing switched on."
)
_WHOSE = (
    'Say it by a column of X, client="patient", or by {method}, client=labels); a scorer by name hands that on only with '
    "scikit-learn's metadata routing switched on, and groups= goes to the splitters alone."
)


# --- helpers ------------------------------------------------------------------------------------------------------------


def _check_strength(objective: str, strength: Any) -> None:
    """Refuse a strength that the objective has no meaning for."""
    if objective == "weight_sharing":
        if not isinstance(strength, str) or strength not in ("auto", "weight", "bias"):
            raise InputError(
                f'weight_sharing shares one part by its name: strength="weight", "bias" or "auto", got {strength!r}.'
            )
    elif isinstance(strength, str):
        if strength == "auto" or objective in ("shared", "alone"):
            return
        near = '; did you mean "auto"?' if difflib.get_close_matches(strength.lower(), ["auto"], cutoff=0.5) else "."
        raise InputError(f'strength is "auto" or a number (for {objective}), got {strength!r}{near}')
    elif objective not in ("shared", "alone"):
        blend = objective == "adaptive"
        wanted = "strictly between 0 and 1" if blend else "≥ 0 (0 leaves everyone alone, infinity is one model for all)"
        number = float(strength) if isinstance(strength, numbers.Real) else math.nan
        if not (0 < number < 1 if blend else number >= 0):
            raise InputError(f'strength is "auto" or a number {wanted} for {objective}, got {strength!r}.')


def _as_they_are(y: Any) -> Any:
    """A list of labels without NumPy's making strings of all of them, a NaN among them too."""
    if isinstance(y, (list, tuple)) and len({isinstance(label, str) for label in y}) == 2:
        return np.array(y, object)
    return y


def _check_labels(y: NDArray[Any]) -> None:
    """Refuse labels that are missing, naming their rows, and labels that cannot be put in an order."""
    if y.dtype.kind != "O":
        return
    labels: list[Any] = y.tolist()
    missing = [
        row
        for row, label in enumerate(labels)
        if label is None or (not isinstance(label, str) and str(label) in ("nan", "NaT", "<NA>"))
    ]
    if missing:
        rows = f"row {missing[0]}" if len(missing) == 1 else f"rows {_some(missing)}"
        raise InputError(f"The target y is missing (NaN or None) in {rows}: leave such rows out, in X and in y.")
    first = labels[0]
    other = next((row for row, label in enumerate(labels) if isinstance(label, str) != isinstance(first, str)), None)
    if other is not None:
        raise InputError(
            f"The target y has labels of several kinds: {first!r} at row 0 and {labels[other]!r} at row {other}. Make them all strings "
            "or all numbers."
        )


_TOLD: set[type] = set()
"""The estimators that have said in this process that rows of strangers get the shared model."""


def _alike(owners: Sequence[Any], known: dict[Any, int]) -> str:
    """A hint where a stranger's name is a known client's but for capitals, spaces or its type; else nothing, the same in every fold."""
    by_letters = {str(name).strip().casefold(): name for name in known}
    found = next((name for name in owners if str(name).strip().casefold() in by_letters), None)
    return "" if found is None else f"; is {found!r} the client {by_letters[str(found).strip().casefold()]!r} of fit?"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:12])) + (f", … ({len(names)} in all)" if len(names) > 12 else "")


def _some(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names[:6]) + (f", … ({len(names)} in all)" if len(names) > 6 else "")


def _finite(array: NDArray[Any]) -> None:
    if array.dtype.kind == "f" and np.isinf(array).any():
        row, column = np.argwhere(np.isinf(array))[0]
        raise InputError(f"Input X contains infinity, first at row {row}, column {column}: every value must be finite.")


def _take(table: Columns, names: Sequence[Any], rows: NDArray[np.int64]) -> Columns:
    """Some rows of a table."""

    def fetch(name: Any) -> Any:
        values = table.fetch(name)
        return values._replace(values=values.values[rows], missing=values.missing[rows])

    return Columns(tuple(names), len(rows), fetch)


def _room(size: int) -> int:
    """A size rounded up, so that data of nearly the same size need no other compiled programs.

    >>> _room(5), _room(100), _room(1000)
    (8, 104, 1024)
    """
    if size <= ROOM:
        return 1 << max(size - 1, 0).bit_length()
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


def _clients(
    x: NDArray[Any], y: NDArray[Any], owners: Sequence[Any], weight: NDArray[Any] | None, weights: str, schema: Schema
) -> Clients:
    """The clients whose rows these are; `schema` says what they have sent so that all have the same features."""
    if weights not in ("rows", "equal"):
        raise InputError(f'weights is "rows" or "equal", got {weights!r}.')
    if any(owner is None for owner in owners):
        raise InputError("A row has no client: fill in the column of clients, or leave such rows out.")
    return Clients.from_groups(x, y, owners, "rows" if weights == "rows" else None, row_weights=weight, schema=schema)


def _one_each(objective: Objective, clients: Clients) -> Objective:
    """The same objective with λ written as one number per client, so that one compiled program does for every choice between the ends.

    The ends are objectives of their own: "alone" sends nothing, and "shared" has one model and no β, of which λ → ∞ is only the limit.
    """
    lam = getattr(objective, "lam", None)
    if lam is None or np.ndim(lam):
        return objective
    return dataclasses.replace(cast(Any, objective), lam=np.full(len(clients), float(lam)))


def _roomy(clients: Clients) -> Clients:
    """The same clients with their sizes rounded up."""
    return clients.padded(_room(int(clients.counts.max())), _room(clients.x.shape[1]))
