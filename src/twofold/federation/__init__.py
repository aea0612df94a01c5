"""A real federation, without its network: the study, the node, the coordinator, what passes between them and what is kept.

The network is `twofold.engines.flower`, or anything else with three methods (`Grid`).
"""

from twofold.federation.coordinator import Coordinator
from twofold.federation.grid import Gone, Grid, Question
from twofold.federation.inprocess import InProcess
from twofold.federation.keys import Identity
from twofold.federation.node import Node
from twofold.federation.patience import Patience, Stopped
from twofold.federation.seat import Seat, read_rows
from twofold.federation.study import Study
from twofold.federation.wire import Refused

__all__ = [
    "Coordinator", "Gone", "Grid", "Identity", "InProcess", "Node", "Patience", "Question", "Refused", "Seat", "Stopped",
    "Study", "read_rows",
]  # fmt: skip
