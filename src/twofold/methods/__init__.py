"""The popular personalised methods, ready for a net: an objective and an algorithm under the name that the field uses.

`tw.methods.fedper(CNN(), head="Dense_1").fit(clients, rounds=100, test=test)` is all that one types. Each method says which
objective it minimises in our form, or that it minimises none; `method.problem(clients)` and `method.algorithm` are the two halves,
for `tw.solve`. The model is a module of flax.linen, flax.nnx or equinox, functions of your own, or any loss (`tw.losses`).

The learning rate `lr` is 0.005 if it is not given. With an `optimizer` of optax, `lr` multiplies its updates and is 1 if not given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twofold.errors import NoSuchName, choose_from
from twofold.methods.base import Method
from twofold.methods.finetuning import fine_tune
from twofold.methods.in_part import fedbabu, fedbn, fedper, fedrep, lg_fedavg
from twofold.methods.one_model import fedavg, fedprox, finetuned, per_fedavg, scaffold
from twofold.methods.own_model import apfl, ditto, local, pfedme

__all__ = [
    "REGISTRY", "Method", "apfl", "ditto", "fedavg", "fedbabu", "fedbn", "fedper", "fedprox", "fedrep", "fine_tune", "finetuned",
    "lg_fedavg", "local", "per_fedavg", "pfedme", "scaffold",
]  # fmt: skip

REGISTRY: dict[str, Callable[..., Method]] = {
    "local": local, "fedavg": fedavg, "finetuned": finetuned, "fedprox": fedprox, "scaffold": scaffold, "fedper": fedper,
    "lg_fedavg": lg_fedavg, "fedrep": fedrep, "fedbn": fedbn, "fedbabu": fedbabu, "ditto": ditto, "apfl": apfl, "pfedme": pfedme,
    "per_fedavg": per_fedavg,
}  # fmt: skip
"""The methods by name."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python looks up names such as __path__
        raise AttributeError(f"module 'twofold.methods' has no attribute {name!r}")
    plain = name.lower().replace("_", "")
    near = next((known for known in REGISTRY if known.replace("_", "") == plain), name)
    raise NoSuchName(choose_from(f"There is no methods.{name}", near, REGISTRY))
