"""What a study file may hold: every key with its type and range, so that a slip gets a sentence before anybody listens."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twofold.errors import InputError, choose_from

__all__ = ["COUNT", "FLAG", "SOME", "TEXT", "Kind", "checked"]

Document = Mapping[str, Any]


class Kind(NamedTuple):
    """What a value must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _one_of(*words: str) -> Kind:
    return Kind(" or ".join(map(repr, words)), lambda v: v in words)


ANY = Kind("anything", lambda v: True)
TEXT = Kind("a text", lambda v: isinstance(v, str) and bool(v.strip()))
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
NUMBER = Kind("a number", _is_number)
POSITIVE = Kind("a number > 0", lambda v: _is_number(v) and v > 0)
SECONDS = Kind("a number of seconds ≥ 0", lambda v: _is_number(v) and v >= 0)
COUNT = Kind("a whole number ≥ 0", lambda v: _is_whole(v) and v >= 0)
SOME = Kind("a whole number ≥ 1", lambda v: _is_whole(v) and v >= 1)
NONZERO = Kind("a number other than 0", lambda v: _is_number(v) and v != 0)
LEVELS = Kind(
    'a list of different texts, as in ["a", "b"]',
    lambda v: isinstance(v, list) and len(v) > 0 and len({str(each) for each in v}) == len(v),
)

TABLES: dict[str, dict[str, Kind]] = {
    "": {
        "version": SOME, "name": TEXT, "seed": COUNT, "dtype": _one_of("float64", "float32"), "features": SOME,
    },
    "target": {"name": TEXT, "classes": LEVELS},
    "loss": {"name": TEXT},
    "objective": {"name": TEXT},
    "algorithm": {"name": TEXT},
    "stop": {"rounds": SOME, "tolerance": NUMBER},
    "round": {"missing": _one_of("wait", "skip"), "deadline": SECONDS, "quorum": SOME, "record": COUNT, "norm": POSITIVE},
    "masks": {"on": FLAG, "bits": SOME},
    "tell": {"norm": POSITIVE, "rows": POSITIVE, "salt": FLAG},
}  # fmt: skip
LISTS: dict[str, dict[str, Kind]] = {
    "feature": {
        "name": TEXT, "kind": _one_of("number", "binary", "category"), "levels": LEVELS, "center": NUMBER, "scale": NONZERO,
    },
    "client": {"name": TEXT, "weight": POSITIVE, "key": TEXT},
}  # fmt: skip
OPEN = ("loss", "objective", "algorithm")
"""Tables whose other keys are the options of what they name."""
NEEDED = {"target": "name", "loss": "name", "objective": "name", "algorithm": "name"}


def checked(document: Document) -> Document:
    """The same document, if it is one that a study can be made of.

    >>> checked({"masks": True})
    Traceback (most recent call last):
    twofold.errors.InputError: The study's [masks] must be a table of keys, got True.
    """
    _check_top(document)
    for section in TABLES:
        if section and section in document:
            if not isinstance(document[section], Mapping):
                raise InputError(f"The study's [{section}] must be a table of keys, got {document[section]!r}.")
            _check_table(f"[{section}]", document[section], section)
    for section in LISTS:
        _check_list(section, document.get(section, []))
    if ("features" in document) == bool(document.get("feature")):
        raise InputError("The study needs [[feature]] for every column, or features = N where columns have no names.")
    for section in (*OPEN, "client"):
        if not document.get(section):
            raise InputError(f"The study has no [{section}]: see docs/federation.md for a whole one.")
    _check_features(document.get("feature", []))
    _check_clients(document["client"])
    return document


def _check_top(document: Document) -> None:
    known = (*TABLES, *LISTS)
    for key in document:
        if key not in TABLES[""] and key not in known:
            raise InputError(choose_from(f"A study has no key {key!r}", key, [*TABLES[""], *(k for k in known if k)]))
    if document.get("version", 1) != 1:
        raise InputError(f"The study has version {document['version']!r}; this twofold reads version 1.")
    _check_table("", {k: v for k, v in document.items() if k not in known})


def _check_table(where: str, entry: Document, section: str = "") -> None:
    kinds = TABLES[section] if not where.startswith("[[") else LISTS[section]
    for key, value in entry.items():
        if key not in kinds and section not in OPEN:
            raise InputError(choose_from(f"{where or 'A study'} has no key {key!r}", key, list(kinds)))
        kind = kinds.get(key, ANY)
        if not kind.fits(value):
            raise InputError(f"The study's {where} {key} must be {kind.words}, got {value!r}.".replace("'s  ", "'s "))
    needed = NEEDED.get(section)
    if needed is not None and needed not in entry:
        raise InputError(f'The study\'s {where} has no {needed}: say {needed} = "…".')


def _check_list(section: str, entries: Any) -> None:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError(
            f"The study's {section} must be a list of tables, each begun by [[{section}]], got {entries!r}."
        )
    names: set[str] = set()
    for i, entry in enumerate(entries):
        name = entry.get("name")
        if name is None:
            raise InputError(f'{section.capitalize()} {i + 1} of the study has no name: say name = "…".')
        _check_table(f"[[{section}]] {name}:", entry, section)
        if name in names:
            raise InputError(f"Two {section}s of the study have the same name: {name}.")
        names.add(name)


def _check_features(features: list[Document]) -> None:
    for feature in features:
        of_kind = feature.get("kind", "number") == "category"
        if of_kind and "levels" not in feature:
            raise InputError(f'Feature {feature["name"]!r} is a category: say levels = ["a", "b"].')
        if not of_kind and "levels" in feature:
            raise InputError(f'Feature {feature["name"]!r} has levels: say kind = "category".')


def _check_clients(clients: list[Document]) -> None:
    without = [str(client["name"]) for client in clients if "weight" not in client]
    if without and len(without) < len(clients):
        raise InputError(
            f"Some clients of the study have a weight, and {', '.join(without)} have none: give every client one, or none of them."
        )
