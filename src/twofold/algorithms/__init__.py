"""The methods, each one file: the paper's, its baselines, and newer ones."""

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
"""The methods that theory knows step sizes for."""

TRAINING: dict[str, type[Algorithm]] = {
    "fedrep": FedRep,
    "ditto": Ditto,
    "apfl": APFL,
    "perfedavg": PerFedAvg,
    "scaffold": Scaffold,
}
"""The methods whose learning rate is the user's to say; `tw.methods` puts them together with their objectives."""

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
