"""One model for all: FedAvg, FedProx, Scaffold, and two that end with one for each, fine-tuned FedAvg and Per-FedAvg."""

from __future__ import annotations

from typing import Any, Literal

from twofold import algorithms, objectives
from twofold.algorithms.training import Optimizer, Rate
from twofold.methods.base import Link, Method, always, as_loss, made, one_model, with_fine_tuning

__all__ = ["fedavg", "fedprox", "finetuned", "per_fedavg", "scaffold"]

FOR_ALL = "mean f'(w), one model for all"
"""What FedAvg and Scaffold minimise."""


def fedavg(
    model: Any, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Link = "softmax", state: str = "private",
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
    loss = as_loss(model, link)
    algorithm = made("fedavg", algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, optimizer=optimizer, **others)
    return Method("fedavg", loss, one_model(loss, state), algorithm, FOR_ALL)


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
    return with_fine_tuning(method, "finetuned", finetune_epochs, finetune_lr, "mean f'(w); fine-tuning minimises no F")


def fedprox(
    model: Any, *, prox: float = 0.001, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Link = "softmax",
    state: str = "private", **others: Any,
) -> Method:  # fmt: skip
    """FedProx (Li et al. 2020): FedAvg with a pull of each client's steps to the shared model.

    >>> import twofold as tw
    >>> tw.methods.fedprox(tw.losses.softmax(10), prox=0.01).algorithm.prox
    0.01
    """
    loss = as_loss(model, link)
    algorithm = made("fedprox", algorithms.FedProx, prox=prox, lr=lr, batch=batch, epochs=epochs, **others)
    minimises = f"{FOR_ALL}; its pull changes the way, and where it ends"
    return Method("fedprox", loss, one_model(loss, state), algorithm, minimises)


def scaffold(
    model: Any, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Link = "softmax", state: str = "private",
    **others: Any,
) -> Method:  # fmt: skip
    """Scaffold (Karimireddy et al. 2020): FedAvg with control variates, so that clients do not drift.

    >>> import twofold as tw
    >>> tw.methods.scaffold(tw.losses.softmax(10)).name
    'scaffold'
    """
    loss = as_loss(model, link)
    algorithm = made("scaffold", algorithms.Scaffold, lr=lr, batch=batch, epochs=epochs, **others)
    return Method("scaffold", loss, one_model(loss, state), algorithm, FOR_ALL)


def per_fedavg(
    model: Any, *, alpha: float = 0.01, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    hessian: Literal["none", "free"] = "none", link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """Per-FedAvg (Fallah et al. 2020): a shared model from which one step of size α on its own rows gives everyone a good one.

    >>> import twofold as tw
    >>> tw.methods.per_fedavg(tw.losses.softmax(10), hessian="free").algorithm.hessian
    'free'
    """
    loss = as_loss(model, link)
    algorithm = made(
        "per_fedavg", algorithms.PerFedAvg, alpha=alpha, lr=lr, batch=batch, epochs=epochs, hessian=hessian, **others
    )
    minimises = "F = mean f'_m(w − α∇f'_m(w)), with a gradient that is cheaper than its own"
    return Method("per_fedavg", loss, always(objectives.maml(loss, alpha=alpha)), algorithm, minimises)
