"""What a method of the field is here, an objective and an algorithm, and the settings that all of them share."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack, cast

from twofold import algorithms, losses, objectives, tree
from twofold.algorithms import Algorithm
from twofold.algorithms.training import Rate
from twofold.clients import Clients
from twofold.errors import InputError, KindError
from twofold.losses.net import LinkName, RowLoss
from twofold.methods.finetuning import fine_tune
from twofold.objectives import Objective
from twofold.objectives.base import Loss
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver import RunOptions, solve
from twofold.solver.options import Start

__all__ = ["LR", "Link", "Method", "always", "as_loss", "made", "one_model", "with_fine_tuning"]

Link: TypeAlias = LinkName | RowLoss
"""What a net's outputs mean: see `losses.net`."""
OPTIMISED = ("momentum", "weight_decay", "nesterov", "clip")
"""Settings of other libraries that are an optimiser's here."""
SAID: dict[type[Algorithm], dict[str, str]] = {algorithms.PFedMe: {"eta": "lr", "inner_eta": "inner_lr"}}
"""Fields of algorithms that have another name here."""
ELSEWHERE = {
    "batch_size": ("batch",), "learning_rate": ("lr",), "local_epochs": ("epochs",), "local_learning_rate": ("lr",),
    "local_steps": ("tau",), "mu": ("prox", "lam"), "lamda": ("lam",), "K": ("inner_steps",), "beta": ("delta",),
    "plocal_epochs": ("head_epochs", "own_epochs"), "p_learning_rate": ("inner_lr", "lr_beta"),
}  # fmt: skip
"""Names of settings in other libraries, PFLlib among them, and what they are here."""
OF_NETS = ("l2", "dtype")
"""Settings of a net."""
OF_THEORY = ("eta", "average", "mu", "q")
"""Fields of algorithms that methods do not need: theory's steps, and what a run fills in."""
LR = 0.005
"""The learning rate where the user gives neither one nor an optimizer; an optimizer has a rate of its own."""
AFTERWARDS = ("seed", "test", "validation", "engine", "chunk", "state", "callbacks", "progress")
"""The options of a run that hold for fine-tuning too."""


@dataclass(frozen=True)
class Method:
    """A method by its name in the field: what it minimises, and how.

    >>> import numpy as np, twofold as tw
    >>> method = tw.methods.ditto(tw.losses.logistic(), lam=0.5, lr=0.1)
    >>> method.name, method.algorithm.name
    ('ditto', 'ditto')
    >>> print(method.minimises)
    no single F: w minimises mean f'(w), and each β_m minimises f'_m(β) + (λ/2)‖β − w‖²
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1])] * 2)
    >>> method.problem(clients).objective.name
    'mixture'
    """

    name: str
    loss: Loss
    objective_of: Callable[[Clients], Objective]
    algorithm: Algorithm
    minimises: str
    after: Algorithm | None = None  # with which everyone's own model is trained on its own rows at the end

    def problem(self, clients: Clients) -> Problem:
        """The problem that the method works on."""
        if not isinstance(clients, Clients):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{self.name} trains Clients (see Clients.from_list), got {type(clients).__name__}.")
        return Problem(self.objective_of(clients), clients)

    def fit(
        self, clients: Clients, rounds: int, *, start: Start | None = None, **options: Unpack[RunOptions]
    ) -> Result:
        """Train on these clients; `options` are those of `tw.solve` (test=, validation=, patience=, seed=, every=, checkpoint=, …).

        >>> import twofold as tw
        >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=12, features=2)
        >>> train, test = tw.Clients.from_list(made.clients).split(test=0.5)
        >>> result = tw.methods.fedper(tw.losses.logistic(intercept=True), head="bias", lr=0.1).fit(
        ...     train, rounds=3, test=test
        ... )
        >>> list(result.w), list(result.beta)
        (['weight'], ['bias'])
        """
        if "seeds" in options:
            raise InputError(
                "A method's fit has one seed=; for many say tw.solve(method.problem(clients), method.algorithm, seeds=…)."
            )
        if self.after is not None and options.get("engine") == "flower":
            raise InputError(
                f"{self.name} trains everyone's own model further after the rounds, which engine='flower' does not know: name "
                "another engine, or rehearse the rounds alone by tw.solve(method.problem(clients), method.algorithm, engine='flower')."
            )
        found = solve(self.problem(clients), self.algorithm, rounds=rounds, start=start, **options)
        if self.after is None:
            return found
        if found.status in ("diverged", "interrupted"):
            return dataclasses.replace(found, message=f"{found.message}; there was no fine-tuning")
        kept = {name: value for name, value in options.items() if name in AFTERWARDS}
        return fine_tune(found, self.after, **cast(RunOptions, kept))


def as_loss(model: Any, link: Link) -> Loss:
    """A loss as it is, and anything else as a net."""
    return model if hasattr(model, "value") and hasattr(model, "grade") else losses.net(model, link=link)


def always(objective: Objective) -> Callable[[Clients], Objective]:
    """The objective, whoever the clients are."""
    return lambda _: objective


def one_model(loss: Loss, state: str) -> Callable[[Clients], Objective]:
    """One model for all; only what a net updates by itself (BatchNorm's means) is everyone's own, unless it is shared."""
    if state not in ("private", "shared"):
        raise InputError(f'A net\'s state is "private" (as in FedBN) or "shared", got {state!r}.')

    def objective_of(clients: Clients) -> Objective:
        if state == "private" and tree.has_running(loss.init(clients)):
            return objectives.weight_sharing(loss, private="state")
        return objectives.traditional(loss)

    return objective_of


def made(method: str, kind: type[Algorithm], **settings: Any) -> Algorithm:
    """The algorithm with these settings, and `LR` where they do not say how far a step goes; refuses names that it does not have."""
    said = SAID.get(kind, {})
    fields = {said.get(field.name, field.name): field.name for field in dataclasses.fields(cast(Any, kind))}
    for name in sorted(settings.keys() - fields.keys()):
        raise InputError(
            f"{method} has no setting {name!r}: {_instead(name, [one for one in fields if one not in OF_THEORY])}"
        )
    if "lr" in settings and settings["lr"] is None and settings.get("optimizer") is None:
        settings["lr"] = LR
    return kind(**{fields[name]: value for name, value in settings.items()})


def _instead(name: str, fields: list[str]) -> str:
    """What to write for a setting that a method does not have."""
    if name in OPTIMISED:
        return "give optimizer=, as in optimizer=optax.sgd(0.005, momentum=0.9)."
    if name in OF_NETS:
        return f"it is one of the net, as in tw.losses.net(model, {name}=…), which methods take as well."
    if name == "rounds" or name in RunOptions.__annotations__:
        return f"it belongs to the run: method.fit(clients, {'' if name == 'rounds' else 'rounds=100, '}{name}=…)."
    same = [one for one in ELSEWHERE.get(name, ()) if one in fields] or difflib.get_close_matches(name, fields, n=1)
    return f"it takes {', '.join(fields)}{f'; did you mean {same[0]}?' if same else '.'}"


def with_fine_tuning(method: Method, name: str, epochs: int, lr: Rate | None, minimises: str) -> Method:
    """The method, followed by `epochs` passes of everyone alone with the same steps, at `lr` if it is given."""
    before: Any = method.algorithm  # LSGD: its batches, its optimizer and all else hold for fine-tuning too
    after = dataclasses.replace(before, lr=before.lr if lr is None else lr, lr_beta=None, epochs=epochs)
    return dataclasses.replace(method, name=name, after=after, minimises=minimises)
