"""The personalised objectives: each is a choice of f_m(w, β_m), over any loss."""

from collections.abc import Callable

from twofold.objectives.adaptive import adaptive
from twofold.objectives.base import Objective, Stages
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
    "flix": flix,
    "weight_sharing": weight_sharing,
    "residual": residual,
    "maml": maml,
    "custom": custom,
}
"""Objectives by the name that a configuration file uses; each takes a loss (`custom` a function) and its parameters."""

__all__ = [
    "REGISTRY", "Objective", "Stages", "adaptive", "custom", "flix", "local", "maml", "mixture", "multitask",
    "residual", "traditional", "weight_sharing",
]  # fmt: skip
