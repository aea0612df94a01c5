"""What one seed's run cost each client, counted from the coins of its iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from twofold import tree
from twofold.result import Ledger

if TYPE_CHECKING:
    from twofold.solver.run import Run
    from twofold.solver.track import Track

__all__ = ["ledger"]


def ledger(run: Run, track: Track) -> Ledger:
    """The ledger of a track. With participation, floats and bytes are one number per client."""
    size, counts = jnp.result_type(float).itemsize, run.problem.clients.counts
    if run.attendance is not None:
        up, down = _traffic(run, track)
        present = run.attendance.present
        of_w, of_beta = run.schedule.evaluated(track.row, track.k, lambda k, n: present(k, n)[:, track.row])
    else:
        up = down = int(track.spent.floats)
        if np.all(counts == counts[0]):
            totals = (track.spent.gradients_w, track.spent.gradients_beta)
            of_w, of_beta = (np.full(len(counts), round(float(each)), np.int64) for each in totals)
        else:
            of_w, of_beta = run.schedule.evaluated(track.row, track.k)
    return Ledger(
        rounds=int(track.spent.rounds), iterations=track.k, floats_up=up, floats_down=down, bytes_up=up * size,
        bytes_down=down * size, gradients_w=of_w, gradients_beta=of_beta,
    )  # fmt: skip


def _traffic(run: Run, track: Track) -> tuple[np.ndarray, np.ndarray]:
    """Scalars that each client sent and received; one who comes back also downloads the shared state."""
    attendance, clients = run.attendance, run.problem.M
    assert attendance is not None
    up = np.full(clients, run.opening, np.int64)
    down = up.copy()
    whole = tree.size(run.shapes.shared)
    before = np.ones((1, clients), bool)  # at the start everyone has what everyone knows
    for k in range(0, track.k, attendance.at_once):
        count = min(attendance.at_once, track.k - k)
        here = attendance.present(k, count)[:, track.row]
        floats = run.schedule.sent(track.row, k, count)
        back = here & ~np.concatenate([before, here[:-1]])
        up += floats @ here
        down += floats @ here + whole * back.sum(axis=0)
        before = here[-1:]
    return up, down
