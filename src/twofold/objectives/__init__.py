"""The personalised objectives: each is a choice of f_m(w, β_m), over any loss."""

from collections.abc import Callable
from typing import Any

from twofold.errors import NoSuchName, choose_from
from twofold.objectives.adaptive import adaptive
from twofold.objectives.base import Objective, Stages
from twofold.objectives.blended import blended
from twofold.objectives.custom import custom
from twofold.objectives.flix import flix
from twofold.objectives.local import local
from twofold.objectives.maml import maml
from twofold.objectives.mixture import mixture
from twofold.objectives.multitask import multitask
from twofold.objectives.residual import residual
from twofold.objectives.traditional import traditional
from twofold.objectives.weight_sharing import weight_sharing

REGISTRY: dict[str, Callable[..., Objective]] = {
    "traditional": traditional,
    "local": local,
    "multitask": multitask,
    "mixture": mixture,
    "adaptive": adaptive,
    "blended": blended,
    "flix": flix,
    "weight_sharing": weight_sharing,
    "residual": residual,
    "maml": maml,
    "custom": custom,
}
"""Objectives by the name that a configuration file uses; each takes a loss (`custom` a function) and its parameters."""

__all__ = [
    "REGISTRY", "Objective", "Stages", "adaptive", "blended", "custom", "flix", "local", "maml", "mixture", "multitask",
    "residual", "traditional", "weight_sharing",
]  # fmt: skip

ELSEWHERE = {
    "ditto": "Ditto is objectives.multitask(loss, lam=..., Lambda=float('inf'))",
    "apfl": "APFL is objectives.adaptive(loss, alpha=...), or with a learned α objectives.blended(loss)",
    "fedavg": "FedAvg's objective, one model for all, is objectives.traditional(loss)",
    "fedprox": "FedProx's objective, one model for all, is objectives.traditional(loss)",
    "global": "one model for all is objectives.traditional(loss)",
    "shared": "one model for all is objectives.traditional(loss)",
    "alone": "every client alone is objectives.local(loss)",
    "fedper": "FedPer is objectives.weight_sharing(loss, split), where split names what is shared",
    "fedrep": "FedRep's objective is objectives.weight_sharing(loss, split), where split names what is shared",
    "lgfedavg": "LG-FedAvg is objectives.weight_sharing(loss, split), where split names what is shared",
    "pfedme": "pFedMe's objective is objectives.mixture(loss, lam=...)",
    "l2gd": "L2GD's objective is objectives.mixture(loss, lam=...)",
    "perfedavg": "Per-FedAvg is objectives.maml(loss, alpha=...)",
    "scafflix": "Scafflix's objective is objectives.flix(loss, alpha=...)",
    "logistic": "logistic is a loss: objectives.mixture(losses.logistic(), lam=...)",
    "softmax": "softmax is a loss: objectives.mixture(losses.softmax(classes), lam=...)",
    "squared": "squared is a loss: objectives.mixture(losses.squared(), lam=...)",
}
"""Names from the literature, and where the thing is found here."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python looks up names such as __path__
        raise AttributeError(f"module 'twofold.objectives' has no attribute {name!r}")
    where = ELSEWHERE.get(name.lower().replace("_", ""))
    if where is not None:
        raise NoSuchName(f"There is no objectives.{name}: {where}.")
    raise NoSuchName(choose_from(f"There is no objectives.{name}", name.lower(), REGISTRY))
