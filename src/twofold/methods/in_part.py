"""One net in two parts, some layers shared and the others everyone's own: FedPer, LG-FedAvg, FedRep, FedBN, FedBABU."""
# JAX does not type paths in a pytree.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

from twofold import algorithms, objectives, tree
from twofold.algorithms.training import Rate
from twofold.clients import Clients
from twofold.errors import InputError
from twofold.methods.base import Link, Method, always, as_loss, made, with_fine_tuning
from twofold.objectives import Objective
from twofold.objectives.base import Loss
from twofold.tree import Pytree

__all__ = ["fedbabu", "fedbn", "fedper", "fedrep", "lg_fedavg"]

Names: TypeAlias = str | Sequence[str]
"""Layers of a net, by the first part of their parameters' paths."""
NORMS = ("norm", "bn")
"""What the names of normalisation layers contain, in small letters."""
TOGETHER = "F = mean f'([w, β_m])"
"""What these methods minimise."""


def fedper(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedPer (Arivazhagan et al. 2019): the layers named `head` are everyone's own, all others are shared.

    >>> import twofold as tw
    >>> tw.methods.fedper(tw.losses.softmax(10, intercept=True), head="bias").minimises
    "F = mean f'([w, β_m])"
    """
    loss = as_loss(model, link)
    algorithm = made("fedper", algorithms.LSGD, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, **others)
    return Method("fedper", loss, always(objectives.weight_sharing(loss, private=head)), algorithm, TOGETHER)


def lg_fedavg(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """LG-FedAvg (Liang et al. 2020): the layers named `head` are shared, all others are everyone's own.

    >>> import twofold as tw
    >>> tw.methods.lg_fedavg(tw.losses.softmax(10, intercept=True), head="bias").name
    'lg_fedavg'
    """
    loss = as_loss(model, link)
    algorithm = made("lg_fedavg", algorithms.LSGD, lr=lr, lr_beta=lr_beta, batch=batch, epochs=epochs, **others)
    return Method("lg_fedavg", loss, always(objectives.weight_sharing(loss, split=head)), algorithm, TOGETHER)


def fedrep(
    model: Any, head: Names, *, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    head_epochs: int = 1, link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedRep (Collins et al. 2021): as FedPer, but first the head is trained, then the body.

    >>> import twofold as tw
    >>> tw.methods.fedrep(tw.losses.softmax(10, intercept=True), head="bias", head_epochs=5).algorithm.head_epochs
    5
    """
    loss = as_loss(model, link)
    algorithm = made(
        "fedrep",
        algorithms.FedRep,
        lr=lr,
        lr_beta=lr_beta,
        batch=batch,
        epochs=epochs,
        head_epochs=head_epochs,
        **others,
    )
    return Method("fedrep", loss, always(objectives.weight_sharing(loss, private=head)), algorithm, TOGETHER)


def fedbn(
    model: Any, norms: Names | None = None, *, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Link = "softmax",
    **others: Any,
) -> Method:  # fmt: skip
    """FedBN (Li et al. 2021): normalisation layers and their statistics are everyone's own, all others are shared.

    `norms` names these layers; left out, they are those with "norm" or "bn" in their names.

    >>> import twofold as tw
    >>> tw.methods.fedbn(tw.losses.softmax(10, intercept=True), norms="bias").name
    'fedbn'
    """
    loss = as_loss(model, link)
    algorithm = made("fedbn", algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, **others)

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
    finetune_lr: Rate | None = None, link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """FedBABU (Oh et al. 2022): the body is trained and shared with the head as it began; at the end everyone fine-tunes its net.

    >>> import twofold as tw
    >>> tw.methods.fedbabu(tw.losses.softmax(10, intercept=True), head="bias").algorithm.lr_beta
    0.0
    """
    loss = as_loss(model, link)
    algorithm = made("fedbabu", algorithms.LSGD, lr=lr, lr_beta=0.0, batch=batch, epochs=epochs, **others)
    method = Method("fedbabu", loss, always(objectives.weight_sharing(loss, private=head)), algorithm, TOGETHER)
    minimises = "mean f'([w, β⁰]) over w, with the head as it began; fine-tuning minimises no F"
    return with_fine_tuning(method, "fedbabu", finetune_epochs, finetune_lr, minimises)
