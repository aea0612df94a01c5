"""The methods, one file each: the paper's, its baselines, and newer ones."""

from typing import Any

from twofold.algorithms.acd import ACD
from twofold.algorithms.al2sgd_plus import AL2SGDPlus
from twofold.algorithms.apfl import APFL
from twofold.algorithms.ascd import ASCD
from twofold.algorithms.asvrcd import ASVRCD
from twofold.algorithms.base import Algorithm
from twofold.algorithms.ditto import Ditto
from twofold.algorithms.fedprox import FedProx
from twofold.algorithms.fedrep import FedRep
from twofold.algorithms.hybrid import Hybrid
from twofold.algorithms.l2sgd_plus import L2SGDPlus
from twofold.algorithms.lsgd import LSGD
from twofold.algorithms.perfedavg import PerFedAvg
from twofold.algorithms.pfedme import PFedMe
from twofold.algorithms.profile import Profile
from twofold.algorithms.saga import SAGA
from twofold.algorithms.scafflix import Scafflix
from twofold.algorithms.scaffnew import Scaffnew
from twofold.algorithms.scaffold import Scaffold
from twofold.algorithms.scd import SCD
from twofold.algorithms.svrcd import SVRCD
from twofold.errors import NoSuchName, choose_from

REGISTRY: dict[str, type[Algorithm]] = {
    "lsgd": LSGD,
    "acd": ACD,
    "scd": SCD,
    "ascd": ASCD,
    "svrcd": SVRCD,
    "asvrcd": ASVRCD,
    "hybrid": Hybrid,
    "profile": Profile,
    "l2sgd_plus": L2SGDPlus,
    "pfedme": PFedMe,
    "fedprox": FedProx,
    "scaffnew": Scaffnew,
    "scafflix": Scafflix,
    "al2sgd_plus": AL2SGDPlus,
    "saga": SAGA,
}
"""The methods whose step sizes theory provides."""

TRAINING: dict[str, type[Algorithm]] = {
    "fedrep": FedRep,
    "ditto": Ditto,
    "apfl": APFL,
    "perfedavg": PerFedAvg,
    "scaffold": Scaffold,
}
"""The methods whose learning rate the user must give; `tw.methods` combines them with their objectives."""

__all__ = [
    "ACD",
    "APFL",
    "ASCD",
    "ASVRCD",
    "LSGD",
    "REGISTRY",
    "SAGA",
    "SCD",
    "SVRCD",
    "TRAINING",
    "AL2SGDPlus",
    "Algorithm",
    "Ditto",
    "FedProx",
    "FedRep",
    "Hybrid",
    "L2SGDPlus",
    "PFedMe",
    "PerFedAvg",
    "Profile",
    "Scafflix",
    "Scaffnew",
    "Scaffold",
]  # fmt: skip

METHODS = {
    "fedavg": "fedavg(net)", "fedsgd": "fedavg(net, batch=None)", "fedper": "fedper(net, head)", "fedbabu": "fedbabu(net, head)",
    "fedbn": "fedbn(net)", "lgfedavg": "lg_fedavg(net, head)", "finetune": "finetuned(net)", "finetuned": "finetuned(net)",
    "maml": "per_fedavg(net)", "perfedavg": "per_fedavg(net)", "local": "local(net)", "fedrep": "fedrep(net, head)",
    "ditto": "ditto(net)", "apfl": "apfl(net)", "scaffold": "scaffold(net)",
}  # fmt: skip
"""Methods from the literature that combine an objective and an algorithm, and what to write for them in `tw.methods`."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python looks up names such as __path__
        raise AttributeError(f"module 'twofold.algorithms' has no attribute {name!r}")
    plain = name.lower().replace("_", "")
    if plain in METHODS:
        raise NoSuchName(
            f"There is no algorithms.{name}: it is an objective and an algorithm together, tw.methods.{METHODS[plain]}."
        )
    classes = [found.__name__ for found in (*REGISTRY.values(), *TRAINING.values())]
    near = next((kind for kind in classes if kind.lower() == plain), name)
    raise NoSuchName(choose_from(f"There is no algorithms.{name}", near, classes))
