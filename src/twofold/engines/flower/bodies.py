"""A body of ours inside a message of Flower's: one record with one entry, the only one of its objects that anybody reads."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

__all__ = ["content", "leaf_of", "objects", "record"]

ENTRY = "twofold"


def record(body: bytes) -> RecordDict:
    """A body as what Flower sends."""
    return RecordDict({ENTRY: ConfigRecord({"body": body})})


def content(raw: bytes) -> bytes:
    """The body inside the bytes of that record."""
    return bytes(ConfigRecord.inflate(raw)["body"])  # type: ignore[arg-type]


def leaf_of(tree: ObjectTree) -> str:
    """The name of the one object with a body in it: message → records → record."""
    while tree.children:
        tree = tree.children[0]
    return tree.object_id


def objects(message: Message) -> tuple[ObjectTree, dict[str, bytes]]:
    """A message's three objects as bytes, and the tree of their names; the message gets its name too.

    An object's name is a digest of its bytes. Flower would compute it anew whenever anybody asks.
    """
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        found: dict[str, Any] = get_all_nested_objects(message)
        return get_object_tree(message), {name: each.deflate() for name, each in found.items()}
