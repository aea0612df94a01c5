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
from typing import Any, Literal

import jax
import numpy as np

from twofold import algorithms, losses, objectives
from twofold.algorithms.base import Algorithm
from twofold.clients import Clients
from twofold.curvature.certificate import Certificate
from twofold.errors import InputError, KindError
from twofold.federation import gap, named
from twofold.federation.document import checked
from twofold.federation.keys import Public
from twofold.federation.wire import digest
from twofold.losses import Linear
from twofold.objectives.base import Objective
from twofold.objectives.flix import Flix
from twofold.problem import Problem

__all__ = ["KEPT", "PRESENT", "Study", "StudyProblem"]

Missing = Literal["wait", "skip"]
PRESENT = ("lsgd", "fedprox", "pfedme", "scd", "ascd")
"""Methods for which the mean of those present does for the mean of all."""
KEPT = ("acd", "svrcd", "asvrcd", "hybrid", "l2sgd_plus")
"""Methods for which an absent client's last message has to stand in for its next one."""


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
        self._check_classes()
        if not problem.has_shared:
            raise InputError(f"{problem.objective.name} shares nothing: there is nothing to federate.")
        if algorithm.name in algorithms.TRAINING and not algorithm.is_complete():
            raise InputError(
                f"Theory has no learning rate for {algorithm.name}: say lr = 0.1, or another, in [algorithm]."
            )
        _ = self.proof
        return self

    def _check_classes(self) -> None:
        """The classes of the target are those of the loss."""
        classes, labels = self._get("target", "classes", default=None), self.loss.link.labels
        if classes is not None and labels is None:
            raise InputError(
                f"[target] lists classes, and the loss {self.loss.link.name} is for a number: leave classes out, or name another loss."
            )
        if classes is not None and len(classes) != labels:
            raise InputError(
                f"[target] lists {len(classes)} classes ({', '.join(map(str, classes))}), and the loss {self.loss.link.name} is for "
                f"{labels}: list as many, or {'say classes = N in' if labels != 2 else 'name softmax with classes = N as'} [loss]."
            )

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
        return named.build("loss", losses.REGISTRY, self.document["loss"])

    @cached_property
    def objective(self) -> Objective:
        """The personalised objective over that loss."""
        options = {
            key: value for key, value in self.document["objective"].items() if key not in ("rescale", "sampling")
        }
        found = named.build("objective", objectives.REGISTRY, options, self.loss)
        if found.stages() is not None:
            raise InputError(f"{found.name} with Lambda = inf is solved in two stages: write a study for each of them.")
        return found

    @cached_property
    def open_algorithm(self) -> Algorithm:
        """The method as far as the file sets it."""
        found = named.method(self.document["algorithm"])
        if found.needs not in (None, self.objective.name):
            raise InputError(f"{found.name} solves the {found.needs} objective only, not {self.objective.name}.")
        return found

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

    @property
    def usual_rows(self) -> float | None:
        """The number of rows that is reckoned with where a node does not tell its own."""
        found = self._get("tell", "rows", default=None)
        return None if found is None else float(found)

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
            "objective": named.plain(objective, ("loss", "layout", "alone"))
            | {"rescale": problem.rescale, "sampling": problem.sampling},
            "algorithm": named.fields_of(algorithm),
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
