"""What the published image runs did wrong, to be put back on purpose: nothing here is for use, all of it is to show why.

Three slips. ASVRCD took its full gradient from 0.02 times the mean loss (the factor is on the published axis too). LSGD divided
its step on w by M once more, which is the right method on w/s with s = 1/M: `rescale=1/M`. And each device drew its labels with
replacement and took the first images of the file that have them, so that devices share images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twofold import tree
from twofold.algorithms.asvrcd import ASVRCD, Plan, Triple
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.svrcd import Message
from twofold.data.partition import Partition
from twofold.paper.published import LOSS_FACTOR_ON_IMAGES
from twofold.randomness import Key
from twofold.tree import Pytree, record


class Shrunk:
    """An oracle whose full gradients are too small; those of a sample are right."""

    def __init__(self, oracle: GradientOracle) -> None:
        self._oracle = oracle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """∇_w f_m."""
        return _shrink(self._oracle.gradient_w(w, beta, sample), sample)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """∇_β F."""
        return _shrink(self._oracle.gradient_beta(w, beta, sample), sample)


def _shrink(gradient: Pytree, sample: Any) -> Pytree:
    return tree.scale(LOSS_FACTOR_ON_IMAGES, gradient) if sample is None else gradient


@record
class ASVRCDAsRun(ASVRCD):
    """ASVRCD with the full gradient of the published runs."""

    name = "asvrcd"

    def client(
        self, plan: Plan, shared: Triple, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """The same with the wrong oracle."""
        return super().client(plan, shared, private, Shrunk(oracle), key)  # pyright: ignore[reportArgumentType]


METHODS = {"asvrcd": ASVRCDAsRun}
"""Methods that were run with a slip of their own; all others were what the registry has."""


def scanned(y: np.ndarray, clients: int, labels: int, train: int, test: int, seed: int = 0) -> Partition:
    """Each device's labels drawn with replacement, its rows the first of the file that have one of them."""
    random = np.random.default_rng(seed)
    chosen = [np.unique(random.choice(np.unique(y), labels)) for _ in range(clients)]
    rows = [np.flatnonzero(np.isin(y, mine))[: train + test] for mine in chosen]
    return Partition(
        tuple(r[:train] for r in rows),
        tuple(r[train:] for r in rows),
        tuple(str(m) for m in range(clients)),
        tuple(tuple(int(label) for label in mine) for mine in chosen),
        f"{labels} labels drawn with replacement for each of {clients} clients, the first {train} + {test} such images of the "
        f"file for everybody (they share images), seed {seed}",
    )
