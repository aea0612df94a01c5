"""The popular personalised methods, ready for a net: an objective and an algorithm under the name that the field uses.

`tw.methods.fedper(CNN(), head="Dense_1").fit(clients, rounds=100, test=test)` is all that one types. Each method says which
objective it minimises in our form, or that it minimises none; `method.problem(clients)` and `method.algorithm` are the two halves,
for `tw.solve`. The model is a module of flax.linen, flax.nnx or equinox, functions of your own, or any loss (`tw.losses`).

The learning rate `lr` is 0.005 if it is not given. With an `optimizer` of optax, `lr` multiplies its updates and is 1 if not given.
"""

# JAX does not type paths in a pytree.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack, cast

import jax
import numpy as np

from twofold import algorithms, losses, objectives, tree
from twofold.algorithms import Algorithm
from twofold.algorithms.training import Optimizer, Rate, check_rate
from twofold.clients import Clients
from twofold.errors import InputError
from twofold.objectives import Objective
from twofold.objectives.base import Loss
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.result import Best, History, Result
from twofold.solver import RunOptions, solve
from twofold.solver.options import Callback, Start
from twofold.tree import Pytree

__all__ = [
    "REGISTRY", "Method", "apfl", "ditto", "fedavg", "fedbabu", "fedbn", "fedper", "fedprox", "fedrep", "fine_tune", "finetuned",
    "lg_fedavg", "local", "per_fedavg", "pfedme", "scaffold",
]  # fmt: skip

Names: TypeAlias = str | Sequence[str]
"""Layers of a net, by the first part of their parameters' paths."""
NORMS = ("norm", "bn")
"""What the names of normalisation layers contain, in small letters."""
OPTIMISED = ("momentum", "weight_decay", "nesterov", "clip")
"""Settings of other libraries that are an optimiser's here."""
SAID: dict[type[Algorithm], dict[str, str]] = {algorithms.PFedMe: {"eta": "lr", "inner_eta": "inner_lr"}}
"""Fields of algorithms that have another name here."""
LR = 0.005
"""The learning rate where the user gives neither one nor an optimizer; an optimizer has a rate of its own."""


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
        return fine_tune(found, self.after, **_watched(options))


AFTERWARDS = ("seed", "test", "validation", "engine", "chunk", "state", "callbacks", "progress")
"""The options of a run that hold for fine-tuning too."""


def _watched(options: RunOptions) -> RunOptions:
    """The options that also hold for what comes after the rounds."""
    kept = {name: value for name, value in options.items() if name in AFTERWARDS}
    return cast(RunOptions, kept)


def fine_tune(result: Result, algorithm: Algorithm, **options: Unpack[RunOptions]) -> Result:
    """Everyone's own model, trained further on its own rows alone by one round of the algorithm.

    The result goes on where the given one ended: its history has one record more (`stage` 2, in the same round, since nothing is sent),
    its best round may be one from before, with everyone's models of then, and the ledgers are added.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=12, features=2)
    >>> method = tw.methods.fedavg(tw.losses.logistic(), lr=0.1)
    >>> result = method.fit(tw.Clients.from_list(made.clients), rounds=3)
    >>> tuned = tw.methods.fine_tune(result, tw.algorithms.LSGD(lr=0.1, epochs=2, batch=4))
    >>> tuned.beta.shape, tuned.problem.objective.name
    ((3, 2), 'local')
    >>> tuned.history["round"].tolist(), tuned.history["stage"].tolist()
    ([0, 1, 2, 3, 3], [1, 1, 1, 1, 2])
    """
    problem = result.problem
    if problem is None:
        raise InputError(
            "This result does not know its problem any more: fine-tune what solve or fit gave, not a loaded file."
        )
    own = Problem(objectives.local(problem.objective.loss), problem.clients)
    start = ((), everyones_parameters(problem, result.w, result.beta))
    called = options.get("callbacks", ())
    options["callbacks"] = [_going_on(result.history, each) for each in ((called,) if callable(called) else called)]
    options.setdefault("record", ("loss",) if "loss" in result.history else ())
    found = solve(own, algorithm, rounds=1, start=start, **options)
    new = History({name: values[1:] for name, values in found.history.items()})  # it starts where the rounds ended
    bad = found.status in ("diverged", "interrupted")
    return dataclasses.replace(
        found, history=result.history.then(new), ledger=result.ledger + found.ledger, best=_better(problem, result, found),
        status=found.status if bad else result.status, message=f"rounds: {result.message}; fine-tuning: {found.message}",
        seconds=result.seconds + found.seconds, notes=tuple(dict.fromkeys(result.notes + found.notes)),
    )  # fmt: skip


def _going_on(history: History, callback: Callback) -> Callback:
    """A callback that is told of what comes after a history as one more record of it; the start it knows."""

    def told(record: Mapping[str, float]) -> None:
        if record["iteration"]:
            one = History({name: [value] for name, value in record.items() if name != "seed"})
            last = {name: values[-1].item() for name, values in history.then(one).items()}
            callback({"seed": record["seed"], **{name: last[name] for name in dict.fromkeys([*history, *one])}})

    return told


def _better(problem: Problem, before: Result, after: Result) -> Best | None:
    """The best record of both: of the rounds, with everyone's own models then, or after fine-tuning; the earlier of two equal ones."""
    one, other = before.best, after.best
    if other is not None:
        done = before.history["round" if problem.has_shared else "iteration"][-1]
        other = other._replace(round=int(done))
    if one is None or (other is not None and (one.column != other.column or one.value < other.value)):
        return other
    return one._replace(w=(), beta=jax.tree.map(np.asarray, everyones_parameters(problem, one.w, one.beta)))


def everyones_parameters(problem: Problem, w: Pytree, beta: Pytree) -> Pytree:
    """The parameters that each client predicts with, with a leading client axis."""
    objective = problem.objective

    def of_client(member: Member, beta: Pytree) -> Pytree:
        return objective.personal(shared, beta, member.rows(), member.own)

    shared, parts = tree.cast(w), problem.split(tree.cast(beta))
    found = tuple(jax.vmap(of_client)(stack, part) for stack, part in zip(problem.stacks, parts, strict=True))
    return problem.join(found)


# --- the settings that they share -------------------------------------------------------------------------------------


def _loss(model: Any, link: Any) -> Loss:
    """A loss as it is, and anything else as a net."""
    return model if hasattr(model, "value") and hasattr(model, "grade") else losses.net(model, link=link)


def _has_state(loss: Loss, clients: Clients) -> bool:
    return tree.has_running(loss.init(clients))


def _one_model(loss: Loss, clients: Clients, state: str) -> Objective:
    """One model for all; only what a net updates by itself (BatchNorm's means) is everyone's own, unless it is shared."""
    if state not in ("private", "shared"):
        raise InputError(f'A net\'s state is "private" (as in FedBN) or "shared", got {state!r}.')
    if state == "shared" or not _has_state(loss, clients):
        return objectives.traditional(loss)
    return objectives.weight_sharing(loss, private="state")


def _made(kind: type[Algorithm], **settings: Any) -> Algorithm:
    """The algorithm with these settings, and `LR` where they do not say how far a step goes; refuses names that it does not have."""
    said = SAID.get(kind, {})
    fields = {said.get(field.name, field.name): field.name for field in dataclasses.fields(cast(Any, kind))}
    for name in sorted(settings.keys() - fields.keys()):
        about = f"it takes {', '.join(fields)}"
        if name in OPTIMISED:
            about = "give optimizer=, as in optimizer=optax.sgd(0.005, momentum=0.9)"
        raise InputError(f"{kind.__name__} has no setting {name!r}: {about}.")
    if "lr" in settings and settings["lr"] is None and settings.get("optimizer") is None:
        settings["lr"] = LR
    return kind(**{fields[name]: value for name, value in settings.items()})


def fedavg(
    model: Any, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax", state: str = "private",
    optimizer: Optimizer | None = None, **others: Any,
) -> Method:  # fmt: skip
    """FedAvg (McMahan et al. 2017): `epochs` local passes of SGD from the shared model, then the mean.

    It minimises F = mean f'_m(w), one model for all, up to the drift of its local steps. A net's `state` is private by default.
    `optimizer` is any of optax for the local steps, with its own rate: `lr`, 0.005 without one, multiplies its updates and is 1 if not
    given. `others` are fields of `tw.algorithms.LSGD` (drop_last, keep).

    >>> import twofold as tw
    >>> tw.methods.fedavg(tw.losses.softmax(10), lr=0.01).algorithm.lr
    0.01
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, optimizer=optimizer, **others)
    return Method(
        "fedavg", loss, lambda clients: _one_model(loss, clients, state), algorithm, "mean f'(w), one model for all"
    )


def finetuned(
    model: Any, *, finetune_epochs: int = 5, finetune_lr: Rate | None = None, lr: Rate | None = None, **others: Any
) -> Method:
    """FedAvg, after which everyone trains the shared model further on its own rows.

    FedAvg minimises mean f'_m(w); where fine-tuning stops is no minimiser of any F.

    >>> import twofold as tw
    >>> tw.methods.finetuned(tw.losses.softmax(10)).after.epochs
    5
    """
    method = fedavg(model, lr=lr, **others)
    return _with_fine_tuning(
        method, "finetuned", finetune_epochs, finetune_lr, "mean f'(w); fine-tuning minimises no F"
    )


def _with_fine_tuning(method: Method, name: str, epochs: int, lr: Rate | None, minimises: str) -> Method:
    """The method, followed by `epochs` passes of everyone alone with the same steps, at `lr` if it is given."""
    before: Any = method.algorithm  # LSGD: its batches, its optimizer and all else hold for fine-tuning too
    after = dataclasses.replace(before, lr=before.lr if lr is None else lr, lr_beta=None, epochs=epochs)
    return dataclasses.replace(method, name=name, after=after, minimises=minimises)


def fedprox(
    model: Any, *, prox: float = 0.001, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax",
    state: str = "private", **others: Any,
) -> Method:  # fmt: skip
    """FedProx (Li et al. 2020): FedAvg with a pull of each client's steps to the shared model.

    >>> import twofold as tw
    >>> tw.methods.fedprox(tw.losses.softmax(10), prox=0.01).algorithm.prox
    0.01
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.FedProx, prox=prox, lr=lr, batch=batch, epochs=epochs, **others)
    minimises = "mean f'(w), one model for all; its pull changes the way, and where it ends"
    return Method("fedprox", loss, lambda clients: _one_model(loss, clients, state), algorithm, minimises)


def scaffold(
    model: Any, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax", state: str = "private",
    **others: Any,
) -> Method:  # fmt: skip
    """Scaffold (Karimireddy et al. 2020): FedAvg with control variates, so that clients do not drift.

    >>> import twofold as tw
    >>> tw.methods.scaffold(tw.losses.softmax(10)).name
    'scaffold'
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.Scaffold, lr=lr, batch=batch, epochs=epochs, **others)
    return Method(
        "scaffold", loss, lambda clients: _one_model(loss, clients, state), algorithm, "mean f'(w), one model for all"
    )


def local(
    model: Any, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax", **others: Any
) -> Method:
    """Everyone alone: what a client has without the others.

    >>> import twofold as tw
    >>> tw.methods.local(tw.losses.softmax(10)).minimises
    "f'_m(β_m), each client alone"
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, **others)
    return Method("local", loss, lambda _: objectives.local(loss), algorithm, "f'_m(β_m), each client alone")


# --- one net, cut into a shared and a private part --------------------------------------------------------------------

TOGETHER = "F = mean f'([w, β_m])"


def fedper(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedPer (Arivazhagan et al. 2019): the layers named `head` are everyone's own, all others are shared.

    >>> import twofold as tw
    >>> tw.methods.fedper(tw.losses.softmax(10, intercept=True), head="bias").minimises
    "F = mean f'([w, β_m])"
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, **others)
    return Method("fedper", loss, lambda _: objectives.weight_sharing(loss, private=head), algorithm, TOGETHER)


def lg_fedavg(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """LG-FedAvg (Liang et al. 2020): the layers named `head` are shared, all others are everyone's own.

    >>> import twofold as tw
    >>> tw.methods.lg_fedavg(tw.losses.softmax(10, intercept=True), head="bias").name
    'lg_fedavg'
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, **others)
    return Method("lg_fedavg", loss, lambda _: objectives.weight_sharing(loss, split=head), algorithm, TOGETHER)


def fedrep(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    head_epochs: int = 1, link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedRep (Collins et al. 2021): as FedPer, but first the head is trained, then the body.

    >>> import twofold as tw
    >>> tw.methods.fedrep(tw.losses.softmax(10, intercept=True), head="bias", head_epochs=5).algorithm.head_epochs
    5
    """
    loss = _loss(model, link)
    algorithm = _made(
        algorithms.FedRep, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, head_epochs=head_epochs, **others
    )
    return Method("fedrep", loss, lambda _: objectives.weight_sharing(loss, private=head), algorithm, TOGETHER)


def fedbn(
    model: Any, norms: Names | None = None, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax",
    **others: Any,
) -> Method:  # fmt: skip
    """FedBN (Li et al. 2021): normalisation layers and their statistics are everyone's own, all others are shared.

    `norms` names these layers; left out, they are those with "norm" or "bn" in their names.

    >>> import twofold as tw
    >>> tw.methods.fedbn(tw.losses.softmax(10, intercept=True), norms="bias").name
    'fedbn'
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, **others)

    def objective_of(clients: Clients) -> Objective:
        return objectives.weight_sharing(loss, private=_norms(loss, clients) if norms is None else norms)

    return Method("fedbn", loss, objective_of, algorithm, TOGETHER)


def _norms(loss: Loss, clients: Clients) -> list[str]:
    """The paths of parameters of normalisation layers."""
    found: list[tuple[tuple[object, ...], Pytree]] = jax.tree_util.tree_leaves_with_path(
        loss.init(clients), is_leaf=tree.is_running
    )
    names = ["/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path) for path, _ in found]
    chosen = [name for name in names if any(word in name.lower() for word in NORMS)]
    if not chosen:
        raise InputError(
            f'The net has no layer with "norm" or "bn" in its name; it has {", ".join(names)}. Say norms=, their names.'
        )
    return chosen


def fedbabu(
    model: Any, head: Names, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, finetune_epochs: int = 5,
    finetune_lr: Rate | None = None, link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedBABU (Oh et al. 2022): the body is trained and shared with the head as it began; at the end everyone fine-tunes its net.

    >>> import twofold as tw
    >>> tw.methods.fedbabu(tw.losses.softmax(10, intercept=True), head="bias").algorithm.lr_beta
    0.0
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.LSGD, lr=lr, lr_beta=0.0, batch=batch, epochs=epochs, **others)
    method = Method("fedbabu", loss, lambda _: objectives.weight_sharing(loss, private=head), algorithm, TOGETHER)
    minimises = "mean f'([w, β⁰]) over w, with the head as it began; fine-tuning minimises no F"
    return _with_fine_tuning(method, "fedbabu", finetune_epochs, finetune_lr, minimises)


# --- a shared model and everyone's own --------------------------------------------------------------------------------


def ditto(
    model: Any, *, lam: float = 0.1, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    own_epochs: int | None = None, link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """Ditto (Li et al. 2021), interleaved as published: FedAvg, and beside it everyone's own model, drawn to the shared one.

    >>> import twofold as tw
    >>> tw.methods.ditto(tw.losses.softmax(10), lam=0.5).algorithm.lam
    0.5
    """
    loss = _loss(model, link)
    algorithm = _made(
        algorithms.Ditto, lam=lam, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, own_epochs=own_epochs, **others
    )
    minimises = "no single F: w minimises mean f'(w), and each β_m minimises f'_m(β) + (λ/2)‖β − w‖²"
    return Method("ditto", loss, lambda _: objectives.mixture(loss, lam=lam), algorithm, minimises)


def apfl(
    model: Any, *, alpha: float = 0.5, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Any = "softmax",
    lr_alpha: Rate | None = None, optimizer: Optimizer | None = None, **others: Any,
) -> Method:  # fmt: skip
    """APFL (Deng et al. 2020): everyone predicts with a blend of the shared and an own model, and learns how much of each.

    `alpha` is the share of the shared model at the start. It changes once a round, by a plain step of rate `lr_alpha`: as `lr_beta` or
    `lr` if it is not given, and 0.005 beside an `optimizer`, which steps the two models only.

    >>> import twofold as tw
    >>> tw.methods.apfl(tw.losses.softmax(10)).name
    'apfl'
    """
    loss = _loss(model, link)
    if optimizer is not None and lr_alpha is None:
        lr_alpha = LR
    algorithm = _made(
        algorithms.APFL, lr=lr, lr_alpha=lr_alpha, batch=batch, epochs=epochs, optimizer=optimizer, **others
    )
    minimises = "no single F: w minimises mean f'(w), and each (v_m, α_m) minimises f'_m((1−α)v + αw)"
    return Method("apfl", loss, lambda _: objectives.blended(loss, alpha=alpha), algorithm, minimises)


def pfedme(
    model: Any, *, lam: float = 15.0, lr: float = 0.005, inner_lr: float = 0.01, inner_steps: int = 5, batch: int | None = 10,
    epochs: int = 1, link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """pFedMe (Dinh et al. 2020): θ ≈ argmin f'(θ) + (λ/2)‖θ − w_m‖² on each batch, then w_m −= lr·λ(w_m − θ).

    `lr` and `inner_lr`, the step of θ, are numbers: there are no schedules and no optimizer, because neither step is one of SGD on f'.

    >>> import twofold as tw
    >>> tw.methods.pfedme(tw.losses.softmax(10)).minimises
    "F = mean f'_m(β_m) + (λ/2)‖w − β_m‖²"
    """
    loss = _loss(model, link)
    for name, rate in (("lr", lr), ("inner_lr", inner_lr)):
        check_rate("pFedMe", name, rate, schedule=False)
    algorithm = _made(
        algorithms.PFedMe,
        lr=lr,
        inner_lr=inner_lr,
        lam=lam,
        inner_steps=inner_steps,
        batch=batch,
        epochs=epochs,
        **others,
    )
    minimises = "F = mean f'_m(β_m) + (λ/2)‖w − β_m‖²"
    return Method("pfedme", loss, lambda _: objectives.mixture(loss, lam=lam), algorithm, minimises)


def per_fedavg(
    model: Any, *, alpha: float = 0.01, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, hessian: Any = "none",
    link: Any = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """Per-FedAvg (Fallah et al. 2020): a shared model from which one step of size α on its own rows gives everyone a good one.

    >>> import twofold as tw
    >>> tw.methods.per_fedavg(tw.losses.softmax(10), hessian="free").algorithm.hessian
    'free'
    """
    loss = _loss(model, link)
    algorithm = _made(algorithms.PerFedAvg, alpha=alpha, lr=lr, batch=batch, epochs=epochs, hessian=hessian, **others)
    minimises = "F = mean f'_m(w − α∇f'_m(w)), with a gradient that is cheaper than its own"
    return Method("per_fedavg", loss, lambda _: objectives.maml(loss, alpha=alpha), algorithm, minimises)


REGISTRY: dict[str, Callable[..., Method]] = {
    "local": local, "fedavg": fedavg, "finetuned": finetuned, "fedprox": fedprox, "scaffold": scaffold, "fedper": fedper,
    "lg_fedavg": lg_fedavg, "fedrep": fedrep, "fedbn": fedbn, "fedbabu": fedbabu, "ditto": ditto, "apfl": apfl, "pfedme": pfedme,
    "per_fedavg": per_fedavg,
}  # fmt: skip
"""The methods by name."""
