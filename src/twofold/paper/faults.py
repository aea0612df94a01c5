"""Three mistakes of the published image runs, repeated on purpose to show what they did. Not for any other use.

1. ASVRCD computed its full gradient from 0.02 times the mean loss (the published loss axis has that factor too).
2. LSGD divided its step on w by M once more. That is the correct method on w/s with s = 1/M: `rescale=1/M`.
3. Each device drew its labels with replacement and took the first images of the file that have them, so that devices
   share images.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from twofold.algorithms import ASVRCD
from twofold.algorithms.asvrcd import Triple
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.variance_reduction import Message, Plan
from twofold.data import Partition
from twofold.paper.published import LOSS_FACTOR_ON_IMAGES
from twofold.tree import record

__all__ = ["METHODS", "ASVRCDAsRun", "Shrunk", "scanned"]

Pytree = Any


class Shrunk:
    """An oracle whose full gradients are too small; gradients on a sample are correct."""

    def __init__(self, oracle: GradientOracle) -> None:
        self._oracle = oracle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def gradient_w(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """∇_w f_m, or 0.02 times that where it is over all rows."""
        return _shrink(self._oracle.gradient_w(w, beta, sample), sample)

    def gradient_beta(self, w: Pytree, beta: Pytree, sample: Any = None) -> Pytree:
        """∇_β F, or 0.02 times that where it is over all rows."""
        return _shrink(self._oracle.gradient_beta(w, beta, sample), sample)


def _shrink(gradient: Pytree, sample: Any) -> Pytree:
    return gradient if sample is not None else jax.tree.map(lambda leaf: LOSS_FACTOR_ON_IMAGES * leaf, gradient)


@record
class ASVRCDAsRun(ASVRCD):
    """ASVRCD with the full gradient of the published runs."""

    name = "asvrcd"

    def client(
        self, plan: Plan, shared: Triple, private: Triple, oracle: GradientOracle, key: Any
    ) -> tuple[Triple, Message]:
        """ASVRCD's own step, with the shrunken oracle."""
        return super().client(plan, shared, private, Shrunk(oracle), key)  # pyright: ignore[reportArgumentType]


METHODS = {"asvrcd": ASVRCDAsRun}
"""Methods whose published implementation had a mistake of its own; all others are the registry's."""


def scanned(y: np.ndarray, clients: int, labels: int, train: int, test: int, seed: int = 0) -> Partition:
    """The published partition: labels drawn with replacement, and then the first rows of the file that have one of them.

    >>> split = scanned(np.array([0, 1, 0, 1, 0, 1]), clients=2, labels=4, train=2, test=1)
    >>> [rows.tolist() for rows in split.train]  # both clients hold row 0
    [[0, 1], [0, 2]]
    """
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
