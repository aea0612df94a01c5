"""The methods, each one file: LSGD, ACD, SCD, ASCD, SVRCD, ASVRCD, profile and the baselines L2SGD+ and pFedMe."""

from twofold.algorithms.acd import ACD
from twofold.algorithms.ascd import ASCD
from twofold.algorithms.asvrcd import ASVRCD
from twofold.algorithms.base import Algorithm
from twofold.algorithms.hybrid import Hybrid
from twofold.algorithms.l2sgd_plus import L2SGDPlus
from twofold.algorithms.lsgd import LSGD
from twofold.algorithms.pfedme import PFedMe
from twofold.algorithms.profile import Profile
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
}

__all__ = [
    "ACD", "ASCD", "ASVRCD", "LSGD", "REGISTRY", "SCD", "SVRCD", "Algorithm", "Hybrid", "L2SGDPlus", "PFedMe", "Profile",
]  # fmt: skip
