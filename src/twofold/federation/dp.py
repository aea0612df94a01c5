"""Differential privacy of a node's messages: each is cut to a norm, and Gaussian noise is added before it leaves.

What is protected is the node's whole data set: with all of its rows exchanged for others, any message moves by at most twice
the norm it is cut to. So a message with noise of standard deviation z·2C is a Gaussian mechanism with noise multiplier z, and a
run is their composition, however each message depends on those before it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from twofold.errors import InputError
from twofold.extras import require
from twofold.federation.masks import stream
from twofold.federation.store import Arrays

__all__ = ["Noise", "epsilon"]


def epsilon(multiplier: float, messages: int, delta: float) -> float:
    """The ε of so many Gaussian mechanisms with this noise multiplier, by the accountant of `dp_accounting`.

    >>> 4.3 < epsilon(1.0, 1, 1e-5) < 4.5
    True
    """
    accounting = require("dp_accounting", "The ε of a run", "privacy")
    accountant = require("dp_accounting.pld", "The ε of a run", "privacy").PLDAccountant()
    accountant.compose(accounting.GaussianDpEvent(multiplier), messages)
    return float(accountant.get_epsilon(delta))


class Noise:
    """Cut every message to the norm `clip`, and add Gaussian noise of standard deviation 2·clip·multiplier."""

    def __init__(self, clip: float, multiplier: float, delta: float, secret: Callable[[str], bytes]) -> None:
        if not (clip > 0 and multiplier > 0 and 0 < delta < 1):
            raise InputError(
                f"Noise needs clip > 0, multiplier > 0 and 0 < delta < 1: {clip=}, {multiplier=}, {delta=}."
            )
        self.clip, self.multiplier, self.delta, self._secret = clip, multiplier, delta, secret

    def spent(self, messages: int) -> float:
        """ε of a run of so many messages."""
        return epsilon(self.multiplier, messages, self.delta)

    def applied(self, message: Arrays, said: str) -> Arrays:
        """The message cut and with noise. The noise comes from a secret of the node's and from `said`: all that was said before, the
        run's nonce included, and a digest of the node's rows and of this noise's size. Asked again, a node gives the same answer,
        and nothing more is learnt by asking; in another run, or of other rows, every draw is another.
        """
        length = float(np.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in message.values())))
        factor = min(1.0, self.clip / length) if length > 0 else 1.0
        size = sum(a.size for a in message.values())
        drawn = _normal(self._secret(said), size) * 2 * self.clip * self.multiplier
        found, place = {}, 0
        for name, a in message.items():
            noise = drawn[place : place + a.size].reshape(a.shape)
            found[name] = (a * factor + noise).astype(a.dtype)
            place += a.size
        return found


def _normal(seed: bytes, size: int) -> np.ndarray:
    """Standard normal numbers from a secret stream (Box and Muller)."""
    words = stream(b"noise" + seed, 2 * size)
    first, second = ((words[i::2] >> np.uint64(11)).astype(np.float64) + 0.5 for i in (0, 1))
    return np.sqrt(-2 * np.log(first * 2.0**-53)) * np.cos(2 * np.pi * second * 2.0**-53)
