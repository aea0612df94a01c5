"""Files that are either old or new, never torn: written beside, synced, renamed, and the folder synced."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np

from twofold import storage
from twofold.errors import InputError

__all__ = ["Arrays", "closed", "is_full", "pack", "read", "replace_file", "unpack", "write"]

Arrays = dict[str, np.ndarray]
"""Arrays by name."""


def is_full(error: BaseException) -> bool:
    """Whether there was no room to write, which gets better once somebody makes room.

    >>> (
    ...     is_full(OSError(errno.ENOSPC, "No space left on device")),
    ...     is_full(PermissionError(errno.EACCES, "Permission denied")),
    ... )
    (True, False)
    """
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def closed(folder: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there already is closed to everybody else.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "state"
    >>> folder.mkdir(mode=0o755)
    >>> oct(closed(folder).stat().st_mode & 0o777)
    '0o700'
    """
    storage.made(folder)
    if folder.stat().st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except PermissionError:
            raise InputError(
                f"{folder} is open to others and belongs to somebody else: give a folder of your own for private state."
            ) from None
    return folder


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably (`storage.replace_file`), by one that only its owner can read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> replace_file(path, b"one"), oct(path.stat().st_mode & 0o777)
    (None, '0o600')
    """
    storage.replace_file(path, content, private=True)


def pack(arrays: Arrays, about: dict[str, Any]) -> bytes:
    """Arrays with a JSON document about them, as one safetensors file.

    >>> arrays, about = unpack(pack({"a": np.ones(2)}, {"round": 3}))
    >>> arrays["a"].tolist(), about
    ([1.0, 1.0], {'round': 3})
    """
    from safetensors.numpy import save

    return save({name: np.asarray(a, order="C") for name, a in arrays.items()}, {"about": json.dumps(about)})


def unpack(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The inverse of `pack`; raises ValueError for anything else.

    >>> unpack(b"nonsense")
    Traceback (most recent call last):
    ValueError: this is no safetensors file
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["about"])
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise ValueError("this is no safetensors file") from None
    if not isinstance(about, dict):
        raise ValueError("this is no safetensors file")
    return arrays, about


def write(path: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Keep arrays and a document in one durable file."""
    replace_file(path, pack(arrays, about))


def read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """What `write` has written; a damaged file is named."""
    try:
        return unpack(path.read_bytes())
    except ValueError:
        raise InputError(f"{path} is damaged: put back a copy of it, or delete it and let the node replay.") from None
