"""What passes between a node and the coordinator: one JSON document and named arrays, signed, checked and refused by name.

A body is a safetensors file whose metadata holds the document. In front of it stands the sender's signature, empty where
the study has no keys.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold.errors import TwofoldError
from twofold.federation.keys import Public
from twofold.federation.store import Arrays, pack, unpack

__all__ = [
    "VERSION", "Note", "Refused", "answer", "check", "digest", "due", "fingerprint", "number_in", "opened", "parts",
    "question", "question_of", "said_by", "sealed", "whole", "whole_in",
]  # fmt: skip

VERSION = 1
"""The version of the protocol; both sides must have the same."""
MAGIC = b"twofold1"
Message = Any
Sends = Any


def said_by(who: object, most: int = 500) -> str:
    """Words of somebody else's for a log: on one line, without anything that steers a terminal, and not too many of them.

    >>> said_by("x\\n12:00:00 north is \\x1b[31mbad"), len(said_by("A" * 2_000_000))
    ('x\\\\n12:00:00 north is \\\\x1b[31mbad', 500)
    """
    text = str(who)[: 2 * most]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


class Refused(TwofoldError):  # noqa: N818  (reads as what it is)
    """A message that is not what it should be: who sent it, and why it is refused.

    >>> print(Refused("north", "answered round 3, asked was 4"))
    north: answered round 3, asked was 4
    """

    def __init__(self, who: str, why: str) -> None:
        why = said_by(why)
        super().__init__(f"{who}: {why}")
        self.who, self.why = who, why


class Note(NamedTuple):
    """One message, either way: a document and arrays."""

    about: dict[str, Any]
    arrays: Arrays


def sealed(note: Note, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """A note as bytes, signed by the sender where it has a key.

    >>> note = opened("north", sealed(Note({"round": 1}, {"a": np.zeros(2)})))
    >>> note.about, note.arrays["a"].shape
    ({'round': 1}, (2,))
    """
    body = pack(note.arrays, note.about)
    signature = b"" if sign is None else sign(body)
    return MAGIC + bytes([len(signature)]) + signature + body


def opened(who: str, content: bytes, verify: Callable[[bytes, bytes], bool] | None = None) -> Note:
    """The inverse of `sealed`; what cannot be read, or is signed by somebody else, is refused.

    >>> opened("north", b"GET / HTTP/1.1")
    Traceback (most recent call last):
    twofold.federation.wire.Refused: north: sent something that is no message of twofold's
    """
    if content[: len(MAGIC)] != MAGIC or len(content) <= len(MAGIC):
        raise Refused(who, "sent something that is no message of twofold's")
    start = len(MAGIC) + 1
    end = start + content[len(MAGIC)]
    signature, body = content[start:end], content[end:]
    if verify is not None and not verify(signature, body):
        raise Refused(who, "sent a message that is not signed with the key in the study file")
    try:
        arrays, about = unpack(body)
    except ValueError:
        raise Refused(who, "sent a message that is cut short or damaged") from None
    return Note(about, arrays)


def question_of(content: bytes) -> str:
    """The digest of a question: of all but its arrays, of which its document says everything. An answer repeats it, signed.

    >>> question_of(sealed(Note({"round": 1}, {}))) == question_of(sealed(Note({"round": 2}, {})))
    False
    """
    start = len(MAGIC) + 1 + (content[len(MAGIC)] if len(content) > len(MAGIC) else 0)
    size = int.from_bytes(content[start : start + 8], "little")
    return hashlib.sha256(content[: start + 8 + size]).hexdigest()


def question(study: str, kind: str, about: dict[str, Any], arrays: Arrays | None = None) -> bytes:
    """A question of the coordinator's; no two are the same, so that no answer will do for another.

    >>> question("a digest", "hello", {}) == question("a digest", "hello", {})
    False
    """
    head = {"v": VERSION, "study": study, "kind": kind, "token": secrets.token_hex(8)}
    return sealed(Note({**head, **about}, arrays or {}))


def answer(study: str, key: Public | None, name: str, content: bytes, kind: str, asked: str) -> Note:
    """A client's answer to the question with the digest `asked`, or a refusal with the client's name."""
    note = opened(name, content, None if key is None else key.verify)
    about = note.about
    if about.get("v") != VERSION:
        raise Refused(name, f"speaks version {about.get('v')!r} of the protocol, the coordinator {VERSION}")
    if about.get("study") != study:
        raise Refused(name, "has another study file than the coordinator")
    if about.get("name") != name:
        raise Refused(name, f"answered as {about.get('name')!r}")
    if about.get("question") != asked:
        raise Refused(name, "answered another question than the one that it was asked")
    for word in ("refused", "later"):
        if word in about and not isinstance(about[word], str):
            raise Refused(name, f"{word} must be a text, got {about[word]!r}")
    if "refused" in about:
        raise Refused(name, f"says: {about['refused']}")
    if about.get("kind") != kind and "later" not in about:
        raise Refused(name, f"answered {about.get('kind')!r}, asked was {kind!r}")
    return note


# --- the parts of a message, by name ------------------------------------------------------------------------------------


def _fields(message: Message) -> list[str]:
    return list(getattr(message, "_fields", map(str, range(len(message)))))


def due(sends: Sends, shape: Message) -> dict[str, Any]:
    """The name and the shape of every array that is to be sent."""
    found = zip(_fields(shape), sends, shape, strict=True)
    return {
        f"{part}.{i}": leaf
        for part, flag, value in found
        if bool(flag)
        for i, leaf in enumerate(jax.tree.leaves(value))
    }


def parts(sends: Sends, message: Message) -> Arrays:
    """The arrays of the parts that are sent, by name; nothing else of a message is ever touched."""
    return {name: np.asarray(leaf) for name, leaf in due(sends, message).items()}


def whole(sends: Sends, shape: Message, arrays: Arrays) -> Message:
    """A whole message from its sent parts; the others are zero."""
    found = []
    for part, flag, value in zip(_fields(shape), sends, shape, strict=True):
        leaves, structure = jax.tree.flatten(value)
        sent = [
            jnp.asarray(arrays[f"{part}.{i}"]) if bool(flag) else jnp.zeros(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(leaves)
        ]
        found.append(jax.tree.unflatten(structure, sent))
    return type(shape)(*found) if hasattr(shape, "_fields") else tuple(found)


def whole_in(who: str, about: dict[str, Any], field: str, least: int, most: int) -> int:
    """A whole number of a document, from `least` to `most`; else who and which."""
    value = about.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(who, f"{field} must be a whole number from {least} to {most}, got {said_by(repr(value), 80)}")
    return value


def number_in(who: str, about: dict[str, Any], field: str, least: float, most: float) -> float:
    """A finite number of a document, from `least` to `most`; else who and which.

    >>> number_in("north", {"L": float("nan")}, "L", 0.0, 1e100)
    Traceback (most recent call last):
    twofold.federation.wire.Refused: north: L must be a finite number from 0 to 1e+100, got nan
    """
    value: Any = about.get(field)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if not fits or not least <= value <= most:
        raise Refused(
            who, f"{field} must be a finite number from {least:g} to {most:g}, got {said_by(repr(value), 80)}"
        )
    return float(value)


def check(who: str, wanted: dict[str, Any], arrays: Arrays, most: float | None = None) -> None:
    """Exactly the arrays that are due, of the right shape and type, finite, and none longer than `most`; else who and why."""
    if wanted.keys() != arrays.keys():
        raise Refused(who, f"sent the parts {sorted(arrays)}, due are {sorted(wanted)}")
    for name, leaf in wanted.items():
        found = arrays[name]
        if found.dtype != leaf.dtype or found.shape != leaf.shape:
            raise Refused(who, f"{name} is {found.dtype}{found.shape}, due is {leaf.dtype}{leaf.shape}")
        if not np.issubdtype(found.dtype, np.floating):
            continue
        if not np.isfinite(found).all():
            raise Refused(who, f"{name} has {int((~np.isfinite(found)).sum())} numbers that are not finite")
        size = float(np.linalg.norm(found))
        if most is not None and size > most:
            raise Refused(who, f"{name} has the norm {size:.3g}, and the study allows {most:g}")


def fingerprint(*things: Any) -> str:
    """A digest of arrays, texts and numbers, in order; two lists have the same one only if they are the same.

    >>> fingerprint(1, "a") == fingerprint(1, "a"), fingerprint("ab") == fingerprint("a", "b")
    (True, False)
    >>> fingerprint(np.float64(1)) == fingerprint(np.array(1.0))
    True
    """
    found = hashlib.sha256()

    def add(thing: Any) -> None:
        if isinstance(thing, dict):
            add(len(thing))
            for name in sorted(thing):
                add(name)
                add(thing[name])
        elif isinstance(thing, list | tuple):
            add(len(thing))
            for item in thing:
                add(item)
        else:
            array = np.asarray(thing) if isinstance(thing, np.ndarray | np.generic) else None
            # An array's bytes are hashed where they are: to copy 40 MB takes longer.
            body: Any = (
                repr(thing).encode() if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            )
            head = type(thing).__name__ if array is None else f"{array.dtype}{array.shape}"
            found.update(f"{head} {len(body)} ".encode())
            found.update(body)

    add(list(things))
    return found.hexdigest()


def digest(document: dict[str, Any]) -> str:
    """The digest of a document that everybody must have alike."""
    import json

    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
