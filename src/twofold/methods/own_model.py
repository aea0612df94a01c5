"""A model of everyone's own: alone, or beside a shared one (Ditto, APFL, pFedMe)."""

from __future__ import annotations

from typing import Any

from twofold import algorithms, objectives
from twofold.algorithms.training import Optimizer, Rate, check_rate
from twofold.methods.base import LR, Link, Method, always, as_loss, made

__all__ = ["apfl", "ditto", "local", "pfedme"]


def local(
    model: Any,
    *,
    lr: Rate | None = None,
    batch: int | None = 10,
    epochs: int = 1,
    link: Link = "softmax",
    **others: Any,
) -> Method:
    """Everyone alone: what a client has without the others.

    >>> import twofold as tw
    >>> tw.methods.local(tw.losses.softmax(10)).minimises
    "f'_m(β_m), each client alone"
    """
    loss = as_loss(model, link)
    algorithm = made("local", algorithms.LSGD, lr=lr, batch=batch, epochs=epochs, **others)
    return Method("local", loss, always(objectives.local(loss)), algorithm, "f'_m(β_m), each client alone")


def ditto(
    model: Any, *, lam: float = 0.1, lr: Rate | None = None, lr_beta: Rate | None = None, batch: int | None = 10, epochs: int = 1,
    own_epochs: int | None = None, link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """Ditto (Li et al. 2021), interleaved as published: FedAvg, and beside it everyone's own model, drawn to the shared one.

    >>> import twofold as tw
    >>> tw.methods.ditto(tw.losses.softmax(10), lam=0.5).algorithm.lam
    0.5
    """
    loss = as_loss(model, link)
    algorithm = made(
        "ditto",
        algorithms.Ditto,
        lam=lam,
        lr=lr,
        lr_beta=lr_beta,
        batch=batch,
        epochs=epochs,
        own_epochs=own_epochs,
        **others,
    )
    minimises = "no single F: w minimises mean f'(w), and each β_m minimises f'_m(β) + (λ/2)‖β − w‖²"
    return Method("ditto", loss, always(objectives.mixture(loss, lam=lam)), algorithm, minimises)


def apfl(
    model: Any, *, alpha: float = 0.5, lr: Rate | None = None, batch: int | None = 10, epochs: int = 1, link: Link = "softmax",
    lr_alpha: Rate | None = None, optimizer: Optimizer | None = None, **others: Any,
) -> Method:  # fmt: skip
    """APFL (Deng et al. 2020): everyone predicts with a blend of the shared and an own model, and learns how much of each.

    `alpha` is the share of the shared model at the start. It changes once a round, by a plain step of rate `lr_alpha`: as `lr_beta` or
    `lr` if it is not given, and 0.005 beside an `optimizer`, which steps the two models only.

    >>> import twofold as tw
    >>> tw.methods.apfl(tw.losses.softmax(10)).name
    'apfl'
    """
    loss = as_loss(model, link)
    if optimizer is not None and lr_alpha is None:
        lr_alpha = LR
    algorithm = made(
        "apfl", algorithms.APFL, lr=lr, lr_alpha=lr_alpha, batch=batch, epochs=epochs, optimizer=optimizer, **others
    )
    minimises = "no single F: w minimises mean f'(w), and each (v_m, α_m) minimises f'_m((1−α)v + αw)"
    return Method("apfl", loss, always(objectives.blended(loss, alpha=alpha)), algorithm, minimises)


def pfedme(
    model: Any, *, lam: float = 15.0, lr: float = 0.005, inner_lr: float = 0.01, inner_steps: int = 5, batch: int | None = 10,
    epochs: int = 1, link: Link = "softmax", **others: Any,
) -> Method:  # fmt: skip
    """pFedMe (Dinh et al. 2020): θ ≈ argmin f'(θ) + (λ/2)‖θ − w_m‖² on each batch, then w_m −= lr·λ(w_m − θ).

    `lr` and `inner_lr`, the step of θ, are numbers: there are no schedules and no optimizer, because neither step is one of SGD on f'.

    >>> import twofold as tw
    >>> tw.methods.pfedme(tw.losses.softmax(10)).minimises
    "F = mean f'_m(β_m) + (λ/2)‖w − β_m‖²"
    """
    loss = as_loss(model, link)
    for name, rate in (("lr", lr), ("inner_lr", inner_lr)):
        check_rate("pFedMe", name, rate, schedule=False)
    algorithm = made(
        "pfedme",
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
    return Method("pfedme", loss, always(objectives.mixture(loss, lam=lam)), algorithm, minimises)
