"""A node's identity: one secret file, and one line that stands for it in the study file.

The secret is a P-384 key, which Flower asks a node to sign its requests with. From it come an Ed25519 key, which signs the
bodies of messages, an X25519 key, with which nodes agree on masks, and secrets that never leave the node (salt, noise).
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.errors import InputError
from twofold.extras import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519

__all__ = ["Identity", "Public", "stretch"]

PREFIX = "twofold1-"
_WHAT, _EXTRA = "A federation with keys", "flower"


def _library(name: str) -> Any:
    return require(f"cryptography.hazmat.primitives.{name}", _WHAT, _EXTRA)


def stretch(secret: bytes, purpose: str, salt: bytes = b"", size: int = 32) -> bytes:
    """Bytes for one purpose, from a secret (HKDF-SHA256).

    >>> stretch(b"secret", "one") == stretch(b"secret", "two")
    False
    """
    hkdf, hashes = _library("kdf.hkdf"), _library("hashes")
    return hkdf.HKDF(hashes.SHA256(), size, salt=salt, info=purpose.encode()).derive(secret)


def _digest(body: bytes | memoryview) -> bytes:
    """What is signed: Ed25519 alone would read a body three times, with a slower digest."""
    return hashlib.sha256(body).digest()


class Public:
    """Who a node is to the others: its three public keys, read from a line such as `twofold1-…`."""

    def __init__(self, line: str) -> None:
        try:
            if not line.startswith(PREFIX):
                raise ValueError
            raw = base64.b64decode(line.removeprefix(PREFIX), validate=True)
            if len(raw) != 49 + 32 + 32:
                raise ValueError
            ec, ed, x = (_library(f"asymmetric.{name}") for name in ("ec", "ed25519", "x25519"))
            self.node: ec.EllipticCurvePublicKey = ec.EllipticCurvePublicKey.from_encoded_point(
                ec.SECP384R1(), raw[:49]
            )
            self.signer: ed25519.Ed25519PublicKey = ed.Ed25519PublicKey.from_public_bytes(raw[49:81])
            self.pair: x25519.X25519PublicKey = x.X25519PublicKey.from_public_bytes(raw[81:])
            self.pieces = (raw[:49], raw[49:81], raw[81:])
            x.X25519PrivateKey.generate().exchange(
                self.pair
            )  # refuses a point with which everybody has the same secret
        except ValueError:
            raise InputError(
                f"{line[:40]!r} is no public key: paste the line that `twofold key NAME` prints."
            ) from None
        self.line = line

    def verify(self, signature: bytes, body: bytes | memoryview) -> bool:
        """Whether this node has signed these bytes."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.signer.verify(signature, _digest(body))
        except InvalidSignature:
            return False
        return True


class Identity:
    """A node's secrets."""

    def __init__(self, node: ec.EllipticCurvePrivateKey) -> None:
        self.node = node
        number: int = node.private_numbers().private_value
        self._secret = number.to_bytes(48, "big")

    @classmethod
    def new(cls) -> Identity:
        """A fresh one."""
        ec = _library("asymmetric.ec")
        return cls(ec.generate_private_key(ec.SECP384R1()))

    @classmethod
    def read(cls, path: str | Path) -> Identity:
        """From the file that `write` wrote."""
        serialization, ec = _library("serialization"), _library("asymmetric.ec")
        try:
            node = serialization.load_pem_private_key(Path(path).read_bytes(), None)
        except FileNotFoundError:
            raise InputError(f"There is no {path}: name the secret file that `twofold key NAME` wrote.") from None
        except (ValueError, TypeError, OSError):
            raise InputError(f"{path} holds no secret key: make one with `twofold key NAME`.") from None
        if not isinstance(node, ec.EllipticCurvePrivateKey) or node.curve.name != "secp384r1":
            raise InputError(f"{path} holds another kind of key: make one with `twofold key NAME`.")
        return cls(node)

    def write(self, path: str | Path) -> None:
        """Into a file that only its owner can read; never over one that is there."""
        serialization = _library("serialization")
        text = self.node.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"{path} is there already: a key is never overwritten. Name another file.") from None
        with os.fdopen(file, "wb") as out:
            out.write(text)

    def secret(self, purpose: str, salt: bytes = b"", size: int = 32) -> bytes:
        """Bytes that nobody else can have."""
        return stretch(self._secret, f"twofold {purpose}", salt, size)

    @cached_property
    def _signer(self) -> ed25519.Ed25519PrivateKey:
        return _library("asymmetric.ed25519").Ed25519PrivateKey.from_private_bytes(self.secret("signing"))

    @cached_property
    def _pair(self) -> x25519.X25519PrivateKey:
        return _library("asymmetric.x25519").X25519PrivateKey.from_private_bytes(self.secret("masks"))

    def sign(self, body: bytes) -> bytes:
        """This node's signature of some bytes."""
        return self._signer.sign(_digest(body))

    def agree(self, other: Public, study: str) -> bytes:
        """A secret that this node and the other one share in this study, and nobody else."""
        return stretch(self._pair.exchange(other.pair), "twofold pair", study.encode())

    @cached_property
    def public(self) -> Public:
        """What goes into the study file."""
        serialization = _library("serialization")
        encoding, form = serialization.Encoding, serialization.PublicFormat
        point = self.node.public_key().public_bytes(encoding.X962, form.CompressedPoint)
        others = [key.public_key().public_bytes(encoding.Raw, form.Raw) for key in (self._signer, self._pair)]
        return Public(PREFIX + base64.b64encode(b"".join([point, *others])).decode())
