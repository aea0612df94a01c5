"""What everybody agrees on before anything runs: the study file, the same at the coordinator and at every node.

No number in it comes from anybody's data. Its digest travels with every message, so that two versions never meet.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import jax
import numpy as np

from twofold import algorithms, losses, objectives, tree
from twofold.algorithms.asvrcd_two import ASVRCDTwo
from twofold.algorithms.base import Algorithm, Facts
from twofold.clients import Clients
from twofold.curvature.certificate import Certificate
from twofold.errors import InputError, KindError, choose_from
from twofold.federation import gap
from twofold.federation.document import checked
from twofold.federation.keys import Public
from twofold.federation.wire import digest
from twofold.losses import Linear
from twofold.objectives.base import Objective
from twofold.objectives.flix import Flix
from twofold.problem import Problem
from twofold.theory.constants import LossConstants

__all__ = ["KEPT", "PRESENT", "Study", "StudyProblem", "fields_of", "made"]

Missing = Literal["wait", "skip"]
PRESENT = ("lsgd", "fedprox", "pfedme", "scd", "ascd")
"""Methods for which the mean of those present does for the mean of all."""
KEPT = ("acd", "svrcd", "asvrcd", "hybrid", "l2sgd_plus")
"""Methods for which an absent client's last message has to stand in for its next one."""
METHODS: dict[str, type[Algorithm]] = algorithms.REGISTRY | algorithms.TRAINING
"""Every method that a file can name."""


class StudyProblem(Problem):
    """A problem in which most clients are stand-ins: nobody can certify a gap with it."""

    _certificate = None  # pyright: ignore[reportAssignmentType]


class Study:
    """A checked study file.

    >>> study = Study(
    ...     {
    ...         "feature": [{"name": "age"}],
    ...         "loss": {"name": "logistic", "l2": 0.1},
    ...         "stop": {"rounds": 5},
    ...         "objective": {"name": "mixture", "lam": 0.5},
    ...         "algorithm": {"name": "acd"},
    ...         "client": [{"name": "north"}, {"name": "south"}],
    ...     }
    ... )
    >>> study.names, study.masks, study.missing
    (('north', 'south'), False, 'wait')
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = dict(checked(document))
        get = self._get
        self.name: str = str(get("name", default="study"))
        self.names: tuple[str, ...] = tuple(str(entry["name"]) for entry in self.document["client"])
        self.M = len(self.names)
        self.seed = int(get("seed", default=0))
        self.dtype: str = get("dtype", default="float64")
        self.rounds = int(get("stop", "rounds", default=0))
        if self.rounds < 1:
            raise InputError("The study needs [stop] rounds = N, a whole number ≥ 1.")
        tolerance = get("stop", "tolerance", default=None)
        self.tolerance = None if tolerance is None else float(tolerance)
        self.missing: Missing = get("round", "missing", default="wait")
        self.deadline = float(get("round", "deadline", default=60.0))
        self.quorum = int(get("round", "quorum", default=2 * self.M // 3 + 1))
        self.record = int(get("round", "record", default=0))
        most = get("round", "norm", default=None)
        self.most = None if most is None else float(most)
        self.keys = self._public_keys()
        self.masks = bool(get("masks", "on", default=self.M >= 3 and len(self.keys) == self.M))
        self.bits = int(get("masks", "bits", default=44))
        self.norm = get("tell", "norm", default=None)
        self.salted = bool(get("tell", "salt", default=len(self.keys) == self.M))
        self._check_rounds()
        self._check_tolerance()

    def _get(self, *path: str, default: Any) -> Any:
        found: Any = self.document
        for name in path:
            found = found.get(name, None) if isinstance(found, Mapping) else None
        return default if found is None else found

    def _public_keys(self) -> dict[str, Public]:
        """Everybody's key; no two have one in common, for two with one key would have one mask."""
        found: dict[str, Public] = {}
        holders: dict[bytes, str] = {}
        for entry in self.document["client"]:
            if "key" not in entry:
                continue
            name = str(entry["name"])
            try:
                found[name] = Public(entry["key"])
            except InputError as error:
                raise InputError(f"Client {name!r}: {error}") from None
            for piece in found[name].pieces:
                if holders.setdefault(piece, name) != name:
                    raise InputError(
                        f"Clients {holders[piece]!r} and {name!r} have the same key: each needs one of its own, made with "
                        f"`twofold key {name}`."
                    )
        return found

    def expect(self, digest: str) -> None:
        """Refuse to be another study than the one whose digest the others have read out.

        Public keys are in the study file. Who could give somebody a copy with other keys could read behind masks.
        """
        if digest.strip().lower() != self.digest:
            raise InputError(
                f"This study file has the digest {self.digest}, expected was {digest}: it is not the file that the others have. Ask "
                "them for theirs, and not the coordinator."
            )

    def _check_rounds(self) -> None:
        name = self.document["algorithm"]["name"]
        if self.missing == "skip" and name not in (*PRESENT, *KEPT):
            raise InputError(
                f"round.missing = 'skip' is not known to be right for {name}: say 'wait', or use one of {', '.join((*PRESENT, *KEPT))}."
            )
        if not self.M < 2 * self.quorum <= 2 * self.M:
            raise InputError(
                f"[round] quorum is how many clients a round takes, more than half of {self.M} and not more than all, got "
                f"{self.quorum}."
            )
        if self.missing == "wait" and self._get("round", "quorum", default=None) is not None:
            raise InputError(
                "[round] quorum is for missing = 'skip': with 'wait' a round takes everybody. Leave it out."
            )
        if self.masks and self.M < 3:
            raise InputError(f"Masks need three clients or more, and the study has {self.M}: [masks] on = false.")
        if (self.masks or self.salted) and len(self.keys) < self.M:
            nobody = next(n for n in self.names if n not in self.keys)
            raise InputError(f"Masks and salts need every client's key, and {nobody!r} has none: run `twofold key`.")
        if self.M >= 3 and 0 < len(self.keys) < self.M and self._get("masks", "on", default=None) is None:
            nobody = next(n for n in self.names if n not in self.keys)
            raise InputError(
                f"{nobody!r} has no key, so that there could be no masks: run `twofold key {nobody}`, or say [masks] on = false and "
                "every message passes in the open."
            )
        if not 8 <= self.bits <= 52:
            raise InputError(f"masks.bits is a number of fractional bits from 8 to 52, got {self.bits}.")

    def _check_tolerance(self) -> None:
        if self.tolerance is None:
            return
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise InputError(f"[stop] tolerance is a gap F − F* > 0, got {self.tolerance:g}.")
        if not self.record:
            raise InputError("[stop] tolerance is looked at when something is recorded: set [round] record = 10, say.")

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """The study in a TOML file."""
        try:
            return cls(tomllib.loads(Path(path).read_bytes().decode()))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is no TOML file: {error}.") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no UTF-8 text (byte {error.start}): save it as UTF-8.") from None

    def check(self) -> Study:
        """The same study, if everything in it can be made: what would go wrong at a node goes wrong here, before anybody listens."""
        algorithm, problem = self.open_algorithm, self.stand_in
        if algorithm.needs not in (None, problem.objective.name):
            raise InputError(
                f"{algorithm.name} solves the {algorithm.needs} objective only, not {problem.objective.name}."
            )
        if not problem.has_shared:
            raise InputError(f"{problem.objective.name} shares nothing: there is nothing to federate.")
        if algorithm.name in algorithms.TRAINING and not algorithm.is_complete():
            raise InputError(
                f"Theory has no learning rate for {algorithm.name}: say lr = 0.1, or another, in [algorithm]."
            )
        _ = self.proof
        return self

    @property
    def text(self) -> str:
        """The study as TOML."""
        import tomli_w

        return tomli_w.dumps(self.document)

    def write(self, path: str | Path) -> None:
        """Keep the study as a TOML file."""
        Path(path).write_text(self.text)

    @cached_property
    def digest(self) -> str:
        """What every message carries."""
        return digest(self.document)

    # --- what is solved -------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Columns of the matrix of features."""
        named = self.document.get("feature", [])
        return sum(len(f.get("levels", [0])) for f in named) or int(self.document["features"])

    @cached_property
    def loss(self) -> Linear:
        """The loss of one model."""
        return _build("loss", losses.REGISTRY, self.document["loss"])

    @cached_property
    def objective(self) -> Objective:
        """The personalised objective over that loss."""
        options = {
            key: value for key, value in self.document["objective"].items() if key not in ("rescale", "sampling")
        }
        found = _build("objective", objectives.REGISTRY, options, self.loss)
        if found.stages() is not None:
            raise InputError(f"{found.name} with Lambda = inf is solved in two stages: write a study for each of them.")
        return found

    @cached_property
    def open_algorithm(self) -> Algorithm:
        """The method as far as the file sets it."""
        options = self.document["algorithm"]
        _build("algorithm", METHODS, _with_none(METHODS.get(str(options["name"])), options))
        return made(options)

    def problem(self, rows: Mapping[int, tuple[np.ndarray, np.ndarray]] | None = None) -> StudyProblem:
        """The problem with the given clients' rows, by position, and one row of zeros for everybody else."""
        label = np.zeros(1, np.float64 if self.loss.link.labels is None else np.int64)
        nothing = (np.zeros((1, self.width)), label)
        pairs = [(rows or {}).get(m, nothing) for m in range(self.M)]
        weights = [entry.get("weight") for entry in self.document["client"]]
        clients = Clients.from_list(
            pairs, names=self.names, weights=None if None in weights else np.asarray(weights, float)
        )
        options = self.document["objective"]
        return StudyProblem(
            self.objective, clients, rescale=options.get("rescale", True), sampling=options.get("sampling", "uniform")
        )

    @cached_property
    def stand_in(self) -> StudyProblem:
        """A problem of the right shapes, order, weights and scale, with nobody's data in it."""
        return self.problem()

    @cached_property
    def proof(self) -> Certificate | None:
        """What turns everyone's parts into a certified gap; None where the study does not ask for one."""
        if self.tolerance is None:
            return None
        found = gap.proof(self.stand_in)
        least = gap.finest(found, gap.numbers_told(self.stand_in), self.step)
        if least > self.tolerance:
            raise InputError(
                f"[stop] tolerance = {self.tolerance:g} cannot be seen behind masks with {self.bits} bits after the point: "
                f"{least:.2g} can. Ask for less, or set [masks] bits higher."
            )
        return found

    @property
    def step(self) -> float:
        """How far a sum of everyone's numbers may be off behind masks: half a step of fixed point for each client."""
        return self.M * 2.0 ** -(self.bits + 1) if self.masks else 0.0

    # --- step sizes from what nodes tell --------------------------------------------------------------------------------

    @property
    def agreed(self) -> dict[str, Any] | None:
        """What stands in for what nodes would tell, where a bound on ‖x‖ is agreed on."""
        if self.norm is None:
            return None
        kappa, l2 = self.loss.link.curvature, float(self.loss.l2)
        most = kappa * (float(self.norm) ** 2 + self.loss.intercept) + l2
        return {"mu": [l2] * 2, "L": [most] * 2, "calL": [most] * 2}

    @property
    def usual_rows(self) -> float | None:
        """The number of rows that is reckoned with where a node does not tell its own."""
        found = self._get("tell", "rows", default=None)
        return None if found is None else float(found)

    def complete(self, told: Mapping[str, Mapping[str, Any]]) -> tuple[Algorithm, str | None]:
        """The method with step sizes from what the nodes told: three numbers a set of columns and a count, never a row."""
        algorithm, problem = self.open_algorithm, self.stand_in
        objective, lam = problem.objective, problem.objective.mixture_strength()
        if algorithm.needs not in (None, objective.name):
            raise InputError(f"{algorithm.name} solves the {algorithm.needs} objective only, not {objective.name}.")
        if algorithm.is_complete():
            return algorithm, None
        numbers = [told[name] if self.agreed is None else self.agreed for name in self.names]
        if any("L" not in each for each in numbers):
            silent = next(n for n, each in zip(self.names, numbers, strict=True) if "L" not in each)
            raise InputError(
                f"Client {silent!r} tells no constants, so there are no step sizes: set every number of {algorithm.name} in "
                "[algorithm], agree on [tell] norm = c, or ask it to join with --tell constants."
            )
        answers = [
            LossConstants(
                **{name: np.array([each[name][i] for each in numbers]) for name in ("mu", "L", "calL")},
                how=dict.fromkeys(("mu", "L", "calL"), "certified"),
            )
            for i in range(len(numbers[0]["L"]))
        ]
        asked = dataclasses.replace(cast(Any, objective), loss=_Told(self.loss, answers))
        constants = asked.constants(problem.clients, problem.scale)
        if constants is None:
            raise InputError(
                f"There is no formula for the constants of {objective.name}: set every number of {algorithm.name} in [algorithm]."
            )
        rows = [self.rows_of(told[name]) for name in self.names]
        facts = Facts(
            constants=constants, rows=float(np.mean(rows)), M=self.M, max_weight=float(np.max(problem.clients.weights)),
            lam=lam, loss_of=None if lam is None else lambda: answers[0], convex=objective.convex,
            sizes=(tree.size(problem.abstract_start[0]), tree.size(problem.abstract_start[1])),
            weights=np.asarray(problem.clients.weights, np.float64),
        )  # fmt: skip
        return algorithm.complete(facts)

    def rows_of(self, told: Mapping[str, Any]) -> float:
        """How many rows to reckon with for a node."""
        found = told.get("rows", self.usual_rows)
        if found is None:
            raise InputError("A client does not tell how many rows it has: ask it to, or agree on [tell] rows = N.")
        return float(found)

    @cached_property
    def _filled(self) -> Algorithm:
        """The method as theory fills it in for clients like any: what differs from the file is what the file leaves open."""
        like_any = {"mu": [0.1] * 2, "L": [1.0] * 2, "calL": [1.0] * 2, "rows": 100}
        return self.complete(dict.fromkeys(self.names, like_any))[0]

    def misfit(self, algorithm: Mapping[str, Any]) -> str | None:
        """What is wrong with a whole algorithm (as `fields_of` gives it) for this study; None if nothing is.

        The method and every field that the file sets must be the file's. A step size that theory fills in is the coordinator's word:
        a node does not know what the others have told.
        """
        said, filled = fields_of(self.open_algorithm), fields_of(self._filled)
        for key in sorted(said.keys() | filled.keys() | algorithm.keys()):
            wanted, found = filled.get(key), algorithm.get(key)
            is_open = said.get(key) != wanted
            if not (_is_like(found, wanted) if is_open else found == wanted):
                due = f"a number like {wanted!r}" if is_open and wanted is not None else repr(wanted)
                return f"[algorithm] {key} is {repr(found)[:60]}, due is {due}"
        return None

    def records(self, r: int, last: bool) -> bool:
        """Whether losses and gaps after round r − 1 are told with round r: every so many rounds, and at the end.

        Where the study ends early, at a certified gap, the last ones have been told.
        """
        return bool(self.record) and (r > self.rounds if last else (r - 1) % self.record == 0)

    # --- a study from Python's objects ----------------------------------------------------------------------------------

    @classmethod
    def of(
        cls, problem: Problem, algorithm: Algorithm, *, rounds: int, seed: int = 0, tolerance: float | None = None, **sections: Any
    ) -> Study:  # fmt: skip
        """The study that a problem and a method amount to; `sections` are further ones, such as masks={"on": False}."""
        loss, objective, clients = getattr(problem.objective, "loss", None), problem.objective, problem.clients
        if not isinstance(loss, Linear) or objective.describe() is None:
            raise KindError(
                f"A federation needs a loss that a file can name (logistic, softmax or squared), and {_kind_of(loss, objective)} "
                "cannot travel in one: no code passes between sites. Train it here with any other engine."
            )
        if isinstance(objective, Flix) and not _found_alone(objective, clients):
            raise InputError(
                "flix with alone= holds every client's own model, which cannot travel in a file: leave it out, and every client "
                "finds its own."
            )
        if problem.metric is not None:
            raise InputError(
                f"precondition={problem.precondition!r} is not known in a federation yet, though the sums of everyone's second moments "
                "would be enough for it: leave it out and bring the features to one scale, or take another engine here."
            )
        if clients.row_weights is not None:
            raise InputError(
                "Rows with weights of their own are not known in a federation: repeat rows, or leave the weights out."
            )
        keys: dict[str, str] = sections.pop("keys", {})
        names = [str(name) for name in clients.names]
        document = {
            "seed": seed, "dtype": "float64" if jax.config.read("jax_enable_x64") else "float32",
            "features": int(clients.x.shape[1]),
            "loss": {"name": loss.link.name, "l2": float(loss.l2), "intercept": bool(loss.intercept)}
            | ({} if loss.link.outputs is None else {"classes": loss.link.outputs}),
            "objective": {**_plain(objective, ("loss", "layout", "alone")), "rescale": problem.rescale, "sampling": problem.sampling},
            "algorithm": fields_of(algorithm),
            "stop": {"rounds": rounds} | ({} if tolerance is None else {"tolerance": float(tolerance)}),
            "client": [
                {"name": name, "weight": float(weight)} | ({"key": keys[name]} if name in keys else {})
                for name, weight in zip(names, clients.weights, strict=True)
            ],
            **sections,
        }  # fmt: skip
        return cls(document)


def _found_alone(objective: Flix, clients: Clients) -> bool:
    """Whether everyone's w* is what everyone finds from its own rows."""
    fresh: Any = Problem(dataclasses.replace(objective, alone=None), clients).objective
    return all(
        np.allclose(a, b, rtol=0, atol=1e-6)
        for a, b in zip(jax.tree.leaves(objective.alone), jax.tree.leaves(fresh.alone), strict=True)
    )


def _kind_of(loss: Any, objective: Objective) -> str:
    """What it is that no file can name."""
    if objective.describe() is None:
        return "an objective with a function of your own"
    return f"a {type(loss).__name__.lower()}"


class _Told:
    """Stands in for a loss whose constants were told; everything else about it is in the study."""

    def __init__(self, loss: Linear, answers: list[LossConstants]) -> None:
        self._loss, self._answers = loss, iter(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def constants(self, *_: Any, **__: Any) -> LossConstants:
        """The next answer, in the order in which the nodes found them."""
        return next(self._answers)

    def curvature(self, *_: Any) -> None:
        """Nobody told it."""


def _build(section: str, registry: Mapping[str, Any], options: Mapping[str, Any], *first: Any) -> Any:
    """What a section of the file names."""
    name = str(options.get("name"))
    if name not in registry or name == "custom":
        raise InputError(choose_from(f"There is no {section} {name!r}", name, [n for n in registry if n != "custom"]))
    try:
        return registry[name](*first, **{key: value for key, value in options.items() if key != "name"})
    except TypeError as error:
        raise InputError(f"[{section}] does not fit {name}: {error}.") from None


def _plain(thing: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The name and the fields of a record, as TOML and JSON can hold them."""
    found: dict[str, Any] = {"name": thing.name}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if value is None or field.name in but:
            continue
        inside = value if isinstance(value, tuple) else (value,)
        if any(callable(each) or isinstance(each, slice) for each in inside):
            raise InputError(f"{thing.name}: {field.name} is no plain number or name, and cannot travel in a file.")
        array = None if isinstance(value, str | bool | int | float | tuple | list) else np.asarray(value)
        found[field.name] = value if array is None else array.tolist()
        if isinstance(value, tuple):
            found[field.name] = list(value)
    return found


def fields_of(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm as plain numbers, exactly (Python's JSON keeps every bit of a float64).

    >>> fields_of(algorithms.SCD(eta=0.1, p_w=0.5))
    {'name': 'scd', 'eta': 0.1, 'p_w': 0.5, 'batch': 1}
    """
    found = _plain(algorithm)
    nothing = {f.name for f in dataclasses.fields(cast(Any, algorithm)) if getattr(algorithm, f.name) is None}
    # A None that is not the default (batch = None: all rows) has to be said, and TOML has no None.
    special = {
        f.name: "none" for f in dataclasses.fields(cast(Any, algorithm)) if f.name in nothing and f.default is not None
    }
    return found | special | ({"reference": "two"} if isinstance(algorithm, ASVRCDTwo) else {})


def _is_like(found: Any, example: Any) -> bool:
    """Whether a value can stand where theory would put another: as many finite numbers, and the same word.

    >>> (
    ...     _is_like(0.5, 0.1),
    ...     _is_like("nan", 0.1),
    ...     _is_like([1.0, 2.0], [0.5, 0.5]),
    ...     _is_like(0, 3),
    ...     _is_like(True, False),
    ...     _is_like("newton", "lbfgs"),
    ... )
    (True, False, True, False, True, False)
    """
    if isinstance(example, list):
        return isinstance(found, list) and len(found) == len(example) and all(map(_is_like, found, example))
    if isinstance(example, bool):  # one that theory chooses may be the other
        return isinstance(found, bool)
    if isinstance(example, str | None):
        return found == example
    whole = isinstance(example, int)
    kind = isinstance(found, int if whole else int | float) and not isinstance(found, bool)
    return kind and (min(1, example) <= found <= 2**53 if whole else abs(found) <= 1e300)


def _with_none(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no None: the word "none" stands for it, but where it is a choice of the method's own."""
    own = {f.name for f in dataclasses.fields(kind) if f.default == "none"} if kind is not None else set()
    return {key: None if value == "none" and key not in own else value for key, value in options.items()}


def made(document: Mapping[str, Any]) -> Algorithm:
    """The algorithm that `fields_of` described.

    >>> made({"name": "scd", "eta": 0.1, "p_w": 0.5, "batch": "none"})
    SCD(eta=0.1, p_w=0.5, batch=None)
    """
    kind: Any = METHODS[document["name"]]
    options = {key: value for key, value in _with_none(kind, document).items() if key != "name"}
    if options.get("reference") == "two":
        kind = ASVRCDTwo
        options.pop("reference")
    known = {field.name for field in dataclasses.fields(kind)}
    arrays = {
        key: tuple(v) if isinstance(v, list) and key == "sizes" else np.asarray(v) if isinstance(v, list) else v
        for key, v in options.items()
    }
    return kind(**{key: value for key, value in arrays.items() if key in known})
