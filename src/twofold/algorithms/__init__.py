"""The methods, each one file: the paper's, its baselines, and newer ones."""

from twofold.algorithms.acd import ACD
from twofold.algorithms.al2sgd_plus import AL2SGDPlus
from twofold.algorithms.ascd import ASCD
from twofold.algorithms.asvrcd import ASVRCD
from twofold.algorithms.base import Algorithm
from twofold.algorithms.fedprox import FedProx
from twofold.algorithms.hybrid import Hybrid
from twofold.algorithms.l2sgd_plus import L2SGDPlus
from twofold.algorithms.lsgd import LSGD
from twofold.algorithms.pfedme import PFedMe
from twofold.algorithms.saga import SAGA
from twofold.algorithms.scafflix import Scafflix
from twofold.algorithms.scaffnew import Scaffnew
from twofold.algorithms.scd import SCD
from twofold.algorithms.svrcd import SVRCD

REGISTRY: dict[str, type[Algorithm]] = {
    "lsgd": LSGD,
    "acd": ACD,
    "scd": SCD,
    "ascd": ASCD,
    "svrcd": SVRCD,
    "asvrcd": ASVRCD,
    "hybrid": Hybrid,
    "l2sgd_plus": L2SGDPlus,
    "pfedme": PFedMe,
    "fedprox": FedProx,
    "scaffnew": Scaffnew,
    "scafflix": Scafflix,
    "al2sgd_plus": AL2SGDPlus,
    "saga": SAGA,
}

__all__ = [
    "ACD",
    "ASCD",
    "ASVRCD",
    "LSGD",
    "REGISTRY",
    "SAGA",
    "SCD",
    "SVRCD",
    "AL2SGDPlus",
    "Algorithm",
    "FedProx",
    "Hybrid",
    "L2SGDPlus",
    "PFedMe",
    "Scafflix",
    "Scaffnew",
]  # fmt: skip
