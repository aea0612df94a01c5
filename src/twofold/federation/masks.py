"""Secure sums: fixed point modulo 2^64, with masks between pairs of nodes that cancel in the sum.

Node m sends q(p_m x_m) + Σ_{j>m} PRG(s_mj) − Σ_{j<m} PRG(s_mj) mod 2^64, and the coordinator adds up. It learns the sum and
nothing else, and the sum is exact: whole numbers do not care in which order they are added. The seed s_mj comes from a secret
that m and j share (X25519; the coordinator has no part in it), from the contract of the run, from all that was said before and
from the question: nodes that were told different things have different masks, and their sum is noise. The contract holds every
node to its rows and to what it tells (`federation.contract`), so no mask stands before two different messages.

Where a round may go on without somebody (`missing = "skip"`), each node also adds PRG(b_m) of a seed of its own, and hands the
others Shamir shares of b_m and of every s_mj, sealed. Once the coordinator has said who is in the sum, a quorum of nodes
opens b_m of those who are and s_mj between them and those who are not (Bonawitz et al. 2017). For no node are both opened, so a
message that arrives too late stays sealed.
"""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache
from typing import Any

import numpy as np

from twofold.errors import InputError
from twofold.extras import require
from twofold.federation.keys import Identity, Public, stretch

__all__ = ["Masks", "combined", "commitment", "decode", "encode", "share_at", "shares_of", "stream"]

log = logging.getLogger("twofold.node")
PRIME = 2**255 - 19
SEED = 31
"""Bytes of a seed that is shared out: below the prime."""
SHARE = 32
COMMITMENT = 32


def encode(x: np.ndarray, weight: float, bits: int, clients: int, who: str = "a client") -> np.ndarray:
    """p·x as whole multiples of 2^−bits, modulo 2^64, small enough that a sum over all clients cannot overflow.

    >>> encode(np.array([0.5, -1.0]), 1.0, 2, 2).tolist()
    [2, 18446744073709551612]
    """
    scaled = np.asarray(x, np.float64) * weight * 2.0**bits
    most = 2.0**62 / clients
    if not np.all(np.abs(scaled) < most):  # also where something is not finite
        log.warning("%s: a number of size %.3g", who, float(np.max(np.abs(np.asarray(x, np.float64)), initial=0.0)))
        raise InputError(  # this goes to the coordinator, so the number itself is not in it
            f"{who}: a message has a number that is not finite or too large: {bits} bits after the point leave room for "
            f"{most / 2.0**bits / weight:.3g}: scale the features, or set [masks] bits lower."
        )
    return np.rint(scaled).astype(np.int64).view(np.uint64)


def decode(total: np.ndarray, bits: int) -> np.ndarray:
    """The numbers behind a sum of encoded ones.

    >>> decode(encode(np.array([0.5, -1.0]), 1.0, 8, 2), 8).tolist()
    [0.5, -1.0]
    """
    return total.view(np.int64).astype(np.float64) * 2.0**-bits


def stream(seed: bytes, size: int) -> np.ndarray:
    """`size` words that look random to whoever does not know the seed (ChaCha20).

    >>> stream(b"a", 3).tolist() == stream(b"a", 3).tolist(), stream(b"a", 3).tolist() == stream(b"b", 3).tolist()
    (True, False)
    """
    ciphers = require("cryptography.hazmat.primitives.ciphers", "Masks", "flower")
    key = hashlib.sha256(b"twofold stream" + seed).digest()
    cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), "<u8")


# --- Shamir's shares ----------------------------------------------------------------------------------------------------


def shares_of(secret: bytes, clients: int, needed: int, seed: bytes) -> list[bytes]:
    """One share for each client, of which any `needed` give the secret and fewer give nothing.

    The polynomial comes from `seed`, so that the same question always has the same answer.

    >>> some = shares_of(b"x" * SEED, 4, 3, b"seed")
    >>> combined({1: some[1], 3: some[3], 0: some[0]}) == b"x" * SEED
    True
    """
    size = 64 * (needed - 1)
    drawn = stream(b"shamir" + seed, size // 8).tobytes()
    higher = [int.from_bytes(drawn[64 * i : 64 * i + 64], "little") % PRIME for i in range(needed - 1)]
    found = []
    for point in range(1, clients + 1):
        value = 0
        for coefficient in reversed([int.from_bytes(secret, "little"), *higher]):
            value = (value * point + coefficient) % PRIME
        found.append(value.to_bytes(SHARE, "little"))
    return found


@lru_cache(maxsize=1024)
def _weights(places: tuple[int, ...], at: int) -> list[int]:
    """What each holder's share counts for in the polynomial's value at a point (Lagrange)."""
    found = []
    for place in places:
        top = bottom = 1
        for other in places:
            if other != place:
                top, bottom = top * (other + 1 - at) % PRIME, bottom * (other - place) % PRIME
        found.append(top * pow(bottom, -1, PRIME) % PRIME)
    return found


def _value(shares: dict[int, bytes], at: int) -> int:
    weights = _weights(tuple(shares), at)
    return sum(int.from_bytes(s, "little") * c for s, c in zip(shares.values(), weights, strict=True)) % PRIME


def combined(shares: dict[int, bytes]) -> bytes:
    """The secret from shares by the position of their holder."""
    value = _value(shares, 0)
    if value >> (8 * SEED):
        raise InputError("The shares of a seed do not fit together: a node has sent a wrong one.")
    return value.to_bytes(SEED, "little")


def share_at(shares: dict[int, bytes], place: int) -> bytes:
    """The share of one more holder, from as many as it takes.

    >>> some = shares_of(b"x" * SEED, 4, 3, b"seed")
    >>> share_at({1: some[1], 3: some[3], 0: some[0]}, 2) == some[2]
    True
    """
    return _value(shares, place + 1).to_bytes(SHARE, "little")


def commitment(share: bytes) -> bytes:
    """What stands for a share before it is shown: nothing can be read from it, and no other share has the same."""
    return hashlib.sha256(b"twofold share" + share).digest()


# --- one node's side ----------------------------------------------------------------------------------------------------


class Masks:
    """One node's masks with each of the others."""

    def __init__(self, me: int, identity: Identity, everyone: list[Public], study: str, quorum: int) -> None:
        self.me, self._identity, self.clients, self.quorum = me, identity, len(everyone), quorum
        self._shared = {j: identity.agree(other, study) for j, other in enumerate(everyone) if j != me}

    def pair_seed(self, j: int, said: str) -> bytes:
        """s_mj of the round that follows on `said`."""
        return stretch(self._shared[j], "mask", said.encode(), SEED)

    def own_seed(self, said: str) -> bytes:
        """b_m of that round."""
        return self._identity.secret("own mask", said.encode(), SEED)

    def between(self, size: int, said: str) -> np.ndarray:
        """Σ_{j>m} PRG(s_mj) − Σ_{j<m} PRG(s_mj)."""
        total = np.zeros(size, np.uint64)
        for j in self._shared:
            (np.add if j > self.me else np.subtract)(total, stream(self.pair_seed(j, said), size), out=total)
        return total

    def own(self, size: int, said: str) -> np.ndarray:
        """PRG(b_m)."""
        return stream(self.own_seed(said), size)

    def shares(self, said: str) -> list[list[bytes]]:
        """Of b_m, then of every s_mj (in the order of clients): everyone's share."""
        secrets = [self.own_seed(said)] + [
            bytes(SEED) if j == self.me else self.pair_seed(j, said) for j in range(self.clients)
        ]
        seed = self._identity.secret("shares", said.encode())
        return [shares_of(s, self.clients, self.quorum, seed + i.to_bytes(2, "little")) for i, s in enumerate(secrets)]

    def _sealed(self, shares: list[list[bytes]], said: str) -> dict[int, bytes]:
        """For each of the others: its shares of b_m and of every s_mj, for its eyes only."""
        return {
            j: self._box(j, self.me, j, said).encrypt(bytes(12), b"".join(s[j] for s in shares), said.encode())
            for j in self._shared
        }

    def handed_out(self, said: str) -> dict[str, np.ndarray]:
        """What goes with a masked message: everyone's sealed shares, and for all to see a commitment to each of them."""
        shares = self.shares(said)
        boxes = {f"share.{j}": np.frombuffer(box, np.uint8) for j, box in self._sealed(shares, said).items()}
        flat = b"".join(commitment(share) for each in shares for share in each)
        return boxes | {
            "commitments": np.frombuffer(flat, np.uint8).reshape(self.clients + 1, self.clients, COMMITMENT)
        }

    def opened_shares(self, j: int, box: bytes, commitments: bytes, said: str) -> list[bytes] | None:
        """What node j has handed to this one: shares of b_j, then of s_j0, s_j1, …; None if they are not what j committed to."""
        from cryptography.exceptions import InvalidTag

        try:
            plain = self._box(j, j, self.me, said).decrypt(bytes(12), box, said.encode())
        except InvalidTag:
            return None
        found = [plain[i : i + SHARE] for i in range(0, len(plain), SHARE)]
        return found if b"".join(map(commitment, found)) == commitments else None

    def _box(self, j: int, sender: int, receiver: int, said: str) -> Any:
        aead = require("cryptography.hazmat.primitives.ciphers.aead", "Masks", "flower")
        # A key for each box: then one nonce will do, and to seal the same shares again gives the same box.
        return aead.ChaCha20Poly1305(stretch(self._shared[j], f"shares {sender} {receiver}", said.encode()))
