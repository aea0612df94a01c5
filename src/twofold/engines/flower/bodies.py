"""A body of ours inside a message of Flower's: one record with one entry, the only one of its objects that anybody reads."""

from __future__ import annotations

import hashlib
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

__all__ = ["Parcel", "content", "leaf_of", "objects", "record"]

ENTRY = "twofold"
DIVIDER = b"\0"


def record(body: bytes) -> RecordDict:
    """A body as what Flower's own apps send."""
    return RecordDict({ENTRY: ConfigRecord({"body": body})})


class Parcel(ConfigRecord):
    """A body that passes through Flower's server unread: an object's head, as Flower checks it, and the body behind it.

    Flower would copy the body ten times to make a record of it, and make it anew whenever anybody asks for the record's name,
    a digest of its bytes. One parcel can go to everybody.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__()
        made = b"".join([f"ConfigRecord  {len(body)}".encode(), DIVIDER, body])
        self.__dict__.update(_made=made, _object_id=hashlib.sha256(made).hexdigest())

    @property
    def is_dirty(self) -> bool:
        """Never: it does not change."""
        return False

    def deflate(self) -> bytes:
        """The object's bytes."""
        return self.__dict__["_made"]


def content(raw: bytes) -> bytes:
    """The body inside the bytes of a parcel."""
    return raw[raw.index(DIVIDER) + 1 :]


def leaf_of(tree: ObjectTree) -> str:
    """The name of the one object with a body in it: message → records → record."""
    while tree.children:
        tree = tree.children[0]
    return tree.object_id


def objects(message: Message) -> tuple[ObjectTree, dict[str, bytes]]:
    """A message's three objects as bytes, and the tree of their names; the message gets its name too."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        found: dict[str, Any] = get_all_nested_objects(message)
        return get_object_tree(message), {name: each.deflate() for name, each in found.items()}
