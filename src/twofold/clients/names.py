"""Clients' names: strings or integers, each only once."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from twofold.clients.mistakes import ClientError

__all__ = ["Name", "name_of", "names_of", "unknown"]

Name: TypeAlias = str | int
"""What a client is called."""


def unknown(kind: str, name: object, available: Sequence[object], remedy: str = "") -> ClientError:
    """The error of a client or a column that is not there, with the nearest one that is, or else the remedy."""
    close = difflib.get_close_matches(str(name), [str(other) for other in available], n=1)
    listed = ", ".join(map(repr, available[:20])) + (", ..." if len(available) > 20 else "")
    hint = f"; did you mean {close[0]!r}?" if close else remedy
    return ClientError(f"there is no {kind} {name!r} among {listed}{hint}")


def name_of(label: Any) -> Name:
    """A label as a name: a string or an integer as it is, anything else as its `str`."""
    plain: object = cast(Any, label).item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | int) and not isinstance(plain, bool) else str(plain)


def names_of(names: Iterable[Any] | None, M: int) -> tuple[Name, ...]:
    """Check that each of M clients has a unique name; the default is 0, ..., M - 1."""
    if M == 0:
        raise ClientError("there are no clients: the list is empty")
    names = tuple(range(M)) if names is None else tuple(map(name_of, names))
    if len(names) != M:
        raise ClientError(f"names has {len(names)} entries for {M} clients")
    if len(set(names)) < M:
        (name, times), *_ = Counter(names).most_common(1)
        raise ClientError(f"names must be unique, but {times} clients are named {name!r}")
    return names
