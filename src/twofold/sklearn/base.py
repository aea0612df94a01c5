"""What the classifier and the regressor have in common: whose row is whose, fitting, new clients, files, scores."""
# scikit-learn and pandas come without types, and one of its checks without a public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from twofold import objectives as catalogue
from twofold.clients import Clients, ClientWarning
from twofold.errors import InputError
from twofold.losses import Linear
from twofold.model.adapting import find
from twofold.model.files import objective_of
from twofold.objectives.base import Objective
from twofold.problem import Problem
from twofold.result import Ledger, Result
from twofold.sklearn.checks import AFTER_OTHERS, TOLD, WHOSE, alike, check_strength, listed, refuse_target_among
from twofold.sklearn.files import FILE, KIND, back, names_array, written
from twofold.sklearn.rows import check_finite, clients_of, one_each, room, roomy, taken
from twofold.solver import solve
from twofold.storage import made, pack, rebuild, write_json, write_tensors
from twofold.tables import Columns, Schema, read
from twofold.tables.columns import is_frame, plain
from twofold.tune import Tuned, check_per_client, curvature_of, tune

__all__ = ["Personalized"]

ObjectiveName: TypeAlias = Literal["mixture", "multitask", "adaptive", "weight_sharing", "shared", "alone"]
NAMES = ("mixture", "multitask", "adaptive", "weight_sharing", "shared", "alone")
ROUTED = {"client": True, "groups": False}
"""With metadata routing switched on, `client` comes by itself, and `groups` goes to the splitters."""


class Personalized(BaseEstimator):
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
        check_strength(self.objective, self.strength)
        check_per_client(self.per_client)
        table, owners = self._read(X, client, groups, reset=True)
        if owners is None:
            self._warn_of_nobody(table)
        refuse_target_among(table, y)
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
        mine = taken(table, names, kept) if len(kept) < table.rows else table
        whose = [None] * len(kept) if owners is None else [owners[i] for i in kept]
        used = None if weight is None else weight[kept]
        how: Any = self.standardize
        self.schema_, x = Schema.fit(mine, names, whose, standardize=how, row_weights=used)
        with jax.enable_x64(True):
            self._solve(np.asarray(x, np.float64), target[kept], whose, used)
        return self

    def _warn_of_nobody(self, table: Columns) -> None:
        """Say that all rows are taken for one client's, where somebody has meant otherwise, as far as that can be seen."""
        meant = not isinstance(self.strength, str) or bool(get_config().get("enable_metadata_routing"))
        meant = meant or any(table.column(name).kind == "category" for name in table.names)  # one of them may say it
        if meant and self.objective != "shared":
            warnings.warn(
                f"{type(self).__name__}.fit: nobody says whose rows these are, so all are one client's and the model is the usual one. "
                f"{WHOSE.format(method='fit(X, y')}",
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
            check_finite(array)
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
                f"X has no column {self.client!r} to tell clients by; it has {listed(table.names)}"
                f"{f'; did you mean {near[0]!r}?' if near else '.'} {AFTER_OTHERS}"
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
        real = clients_of(x, y, everyone, weight, self.weights, self._opening())
        clients = roomy(real)
        loss = self._loss(clients)
        objective, self.tuned_ = self._chosen(loss, clients)
        if self.tuned_ is not None:  # what is sent before training is sent once
            clients = roomy(dataclasses.replace(real, schema=None))
        problem = Problem(one_each(objective, clients), clients, sampling="uniform")
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
            wide = np.zeros((len(x), room(x.shape[1])))
            wide[:, : x.shape[1]] = x
            found = find(self._objective.of_newcomer({}), self._w, Clients.from_list([(wide, y)], names=[name]))
            coef, gap = (found.personal["weight"][: x.shape[1]], found.personal["bias"]), found.gap
        pair = shared if coef is None else self._in_units(*coef)
        self._coef, self._intercept = (
            np.concatenate([every[:-1], np.asarray(new)[None], every[-1:]])
            for every, new in zip((self._coef, self._intercept), pair, strict=True)
        )
        self.coef_, self.intercept_ = self._coef[:-1], self._intercept[:-1]
        self.clients_ = names_array([*self.clients_.tolist(), name])
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
            "params": {name: written(value) for name, value in params.items()},
            "fitted": {name: written(getattr(self, name)) for name in self._plain if hasattr(self, name)},
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
        for name, found in document["fitted"].items():
            of_names = name in ("clients_", "feature_names_in_")
            setattr(self, name, names_array(found) if of_names else back(found))
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
            told = f"nobody says whose rows these are, so {instead}. {WHOSE.format(method='predict(X')}"
        else:
            hint = alike(owners, place)
            if not hint and type(self) in TOLD:  # as in every fold of WholeClients, where it is meant
                return
            TOLD.add(type(self))
            told = f"no row is of a client that was there in fit, so {instead}{hint}."
        warnings.warn(f"{type(self).__name__}: {told}", ClientWarning, stacklevel=4)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags
