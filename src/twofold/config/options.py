"""The keys of a section, from a function's signature: names, types that TOML can express, defaults, meanings."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field

from twofold.config.glossary import MEANINGS

__all__ = ["FilePath", "Option", "columns", "fields_of", "first_sentence", "options_of"]

ALL = "all"
"""In a file, `batch = "all"` stands for Python's None: every row."""

Annotation = Any
"""A type as written in a signature; Python has no common type for these."""


class Option(NamedTuple):
    """One argument of a factory that a file may set."""

    name: str
    type: Annotation  # as far as TOML can express it
    default: Any  # inspect.Parameter.empty if it is required
    nullable: bool  # whether the factory accepts None
    meaning: str | None


class Words(NamedTuple):
    """The name of a type in messages and in `twofold list keys`."""

    singular: str
    plural: str


def columns(value: str) -> slice:
    """Read columns from a range such as "0:10", written as in Python.

    >>> columns("0:10")
    slice(0, 10, None)
    """
    if not re.fullmatch(r"\s*-?\d*\s*:\s*-?\d*\s*", value):
        raise ValueError("not a range")
    start, stop = value.split(":")
    return slice(*(int(part) if part.strip() else None for part in (start, stop)))


FilePath = Annotated[str, Words("the path of a file", "paths of files")]
Range = Annotated[str, AfterValidator(columns), Words('a range such as "0:10"', "ranges")]
Everything = Annotated[Literal["all"], AfterValidator(lambda _: None)]  # the factory's None


def first_sentence(thing: object) -> str:
    """The first paragraph of a docstring, on one line.

    >>> first_sentence(first_sentence)
    'The first paragraph of a docstring, on one line.'
    """
    function = thing.func if isinstance(thing, partial) else thing
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def options_of(factory: Callable[..., object], skip: int = 0, kind: str = "") -> list[Option]:
    """The arguments of a factory, or the fields of a record, without the first `skip`, which twofold supplies.

    Arguments that TOML cannot express (functions, pytrees) are left out.

    >>> def ridge(loss, l2: float, labels: list[str] | None = None, schedule: Callable[[int], float] | None = None): ...
    >>> [(option.name, option.type) for option in options_of(ridge, skip=1)]
    [('l2', <class 'float'>), ('labels', list[str])]
    """
    try:
        hints = get_type_hints(factory.func if isinstance(factory, partial) else factory, include_extras=True)
    except NameError:  # a type that only type checkers can see: accept any TOML value
        hints = {}
    found: list[Option] = []
    parameters = list(inspect.signature(cast("Callable[..., object]", factory)).parameters.values())
    for parameter in parameters[skip:]:
        annotation, meaning = _without_text(hints.get(parameter.name, Any))
        readable = _readable(annotation)
        if readable is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        meaning = meaning or MEANINGS.get(f"{kind}.{parameter.name}", MEANINGS.get(parameter.name))
        nullable = annotation is Any or type(None) in get_args(annotation)
        found.append(Option(parameter.name, readable, parameter.default, nullable, meaning))
    return found


def fields_of(options: Sequence[Option]) -> dict[str, tuple[Annotation, Any]]:
    """The options as fields of a pydantic model, each a type and a `Field`.

    An option whose default is None may be left out. If None is allowed but not the default, a file writes "all" for it.
    """
    fields: dict[str, tuple[Annotation, Any]] = {}
    for name, readable, default, nullable, meaning in options:
        if default is inspect.Parameter.empty:
            fields[name] = (readable, Field(description=meaning))
        elif default is None:
            fields[name] = (readable | None, Field(None, description=meaning))
        else:
            fields[name] = (readable | Everything if nullable else readable, Field(default, description=meaning))
    return fields


def _without_text(annotation: Annotation) -> tuple[Annotation, str | None]:
    """The type in `Annotated[type, "text"]`, and the text."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    inside, *notes = get_args(annotation)
    return inside, next((note for note in notes if isinstance(note, str)), None)


def _readable(annotation: Annotation) -> Annotation | None:
    """The part of a type that a TOML file can express, or None: numbers, texts, booleans, paths, and lists of them."""
    if annotation is Any or annotation == ArrayLike:
        return float | list[float]
    if annotation is Path:
        return FilePath
    if annotation in (bool, int, float, str):
        return annotation
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        return _readable_union(inside)
    if _is_collection(origin):
        inner = _readable(inside[0]) if inside else None
        return None if inner is None else list[inner]
    return None


def _readable_union(parts: Sequence[Annotation]) -> Annotation | None:
    if slice in parts and any(_is_collection(get_origin(part)) and get_args(part) == (int,) for part in parts):
        return list[int] | Range  # columns of a matrix, whose features have no names
    found = [readable for part in parts if (readable := _readable(part)) is not None]
    return Union[tuple(found)] if found else None  # noqa: UP007  (a tuple known only now)


def _is_collection(origin: Annotation) -> bool:
    """Whether a type is a list in TOML's sense; tuples of fixed length and mappings are not."""
    return (
        origin is not tuple
        and isinstance(origin, type)
        and issubclass(origin, Collection)
        and not issubclass(origin, Mapping)
    )
