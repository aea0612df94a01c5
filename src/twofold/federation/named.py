"""What a study file can name: losses, objectives and methods, each a name with plain numbers; and back from them to such names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from twofold import algorithms
from twofold.algorithms import contract
from twofold.algorithms.asvrcd_two import ASVRCDTwo
from twofold.algorithms.base import Algorithm
from twofold.errors import InputError, choose_from

__all__ = ["METHODS", "build", "fields_of", "made", "method", "plain"]

METHODS: dict[str, type[Algorithm]] = algorithms.REGISTRY | algorithms.TRAINING
"""Every method that a file can name."""


def build(section: str, registry: Mapping[str, Any], options: Mapping[str, Any], *first: Any) -> Any:
    """What a section of the file names.

    >>> build("algorithm", METHODS, {"name": "acd", "etta": 0.1})
    Traceback (most recent call last):
    twofold.errors.InputError: [algorithm] acd has no key 'etta': choose from p_w, L_w, L_beta, nu, theta, eta; did you mean eta?
    """
    name = str(options.get("name"))
    if name not in registry or name == "custom":
        raise InputError(choose_from(f"There is no {section} {name!r}", name, [n for n in registry if n != "custom"]))
    given = {key: value for key, value in options.items() if key != "name"}
    keys = list(inspect.signature(registry[name]).parameters.values())[len(first) :]
    known = [key.name for key in keys]
    for unknown in given.keys() - set(known):
        complaint = f"[{section}] {name} has no key {unknown!r}"
        raise InputError(choose_from(complaint, unknown, known) if known else f"{complaint}; it has none but its name.")
    for key in keys:
        if key.default is key.empty and key.name not in given:
            raise InputError(f"[{section}] {name} needs {key.name}: say {key.name} = ….")
    return registry[name](*first, **given)


def method(options: Mapping[str, Any]) -> Algorithm:
    """The method that [algorithm] names, as far as the file sets it; a field that cannot be is refused."""
    build("algorithm", METHODS, _with_none(METHODS.get(str(options["name"])), options))
    return made(options)


def plain(thing: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The name and the fields of a record, as TOML and JSON can hold them."""
    found: dict[str, Any] = {"name": thing.name}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if value is None or field.name in but:
            continue
        inside = value if isinstance(value, tuple) else (value,)
        if any(callable(each) or isinstance(each, slice) for each in inside):
            raise InputError(f"{thing.name}: {field.name} is no plain number or name, and cannot travel in a file.")
        array = None if isinstance(value, str | bool | int | float | tuple | list) else np.asarray(value)
        found[field.name] = value if array is None else array.tolist()
        if isinstance(value, tuple):
            found[field.name] = list(value)
    return found


def fields_of(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm as plain numbers, exactly (Python's JSON keeps every bit of a float64).

    >>> fields_of(algorithms.SCD(eta=0.1, p_w=0.5))
    {'name': 'scd', 'eta': 0.1, 'p_w': 0.5, 'batch': 1}
    """
    found = plain(algorithm)
    nothing = {f.name for f in dataclasses.fields(cast(Any, algorithm)) if getattr(algorithm, f.name) is None}
    # A None that is not the default (batch = None: all rows) has to be said, and TOML has no None.
    special = {
        f.name: "none" for f in dataclasses.fields(cast(Any, algorithm)) if f.name in nothing and f.default is not None
    }
    return found | special | ({"reference": "two"} if isinstance(algorithm, ASVRCDTwo) else {})


def _with_none(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no None: the word "none" stands for it, but where it is a choice of the method's own."""
    own = {f.name for f in dataclasses.fields(kind) if f.default == "none"} if kind is not None else set()
    return {key: None if value == "none" and key not in own else value for key, value in options.items()}


def made(document: Mapping[str, Any]) -> Algorithm:
    """The algorithm that `fields_of` described.

    >>> made({"name": "scd", "eta": 0.1, "p_w": 0.5, "batch": "none"})
    SCD(eta=0.1, p_w=0.5, batch=None)
    >>> made({"name": "scd", "eta": -0.1})
    Traceback (most recent call last):
    twofold.errors.InputError: SCD needs a step size that is a finite number ≥ 0, got eta=-0.1.
    """
    kind: Any = METHODS[document["name"]]
    options = {key: value for key, value in _with_none(kind, document).items() if key != "name"}
    if options.get("reference") == "two":
        kind = ASVRCDTwo
        options.pop("reference")
    known = {field.name for field in dataclasses.fields(kind)}
    arrays = {
        key: tuple(v) if isinstance(v, list) and key == "sizes" else np.asarray(v) if isinstance(v, list) else v
        for key, v in options.items()
    }
    found = kind(**{key: value for key, value in arrays.items() if key in known})
    contract.check(found)
    return found
