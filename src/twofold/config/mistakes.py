"""Messages about mistakes in a file: the key, its value, what is allowed, and what was probably meant."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from twofold.config.options import Annotation, Words
from twofold.errors import InputError, choose_from

__all__ = ["ConfigError", "in_toml", "in_words", "refused", "sentences", "type_of"]


class ConfigError(InputError):
    """A configuration file has mistakes; `errors` holds one sentence for each.

    >>> print(ConfigError(["loss.l2 is missing.", "stop.rounds is missing."]))
    loss.l2 is missing.
    stop.rounds is missing.
    """

    def __init__(self, errors: Sequence[str], source: str = "") -> None:
        self.errors = tuple(errors)
        self.source = source
        super().__init__("\n".join(self.errors))


WORDS = {
    bool: Words("true or false", "true or false"),
    int: Words("a whole number", "whole numbers"),
    float: Words("a number", "numbers"),
    str: Words("a text", "texts"),
}
LIMITS = ("greater_than", "greater_than_equal", "string_too_short", "string_too_long")


def in_words(annotation: Annotation, many: bool = False) -> str:
    """A type in plain words.

    >>> in_words(list[int] | Literal["all"] | None)
    'a list of whole numbers or "all"'
    """
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = next((note for note in inside[1:] if isinstance(note, Words)), None)
        return in_words(inside[0], many) if words is None else words.plural if many else words.singular
    if origin is Literal:
        values = [in_toml(value) for value in inside]
        return values[0] if len(values) == 1 else f"{'any' if many else 'one'} of {', '.join(values)}"
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(part, many) for part in inside if part is not type(None))
    if origin is list:
        return f"{'lists' if many else 'a list'} of {in_words(inside[0], many=True)}"
    words = WORDS.get(annotation, Words(str(annotation), str(annotation)))
    return words.plural if many else words.singular


def in_toml(value: object) -> str:
    """A value as written in a TOML file.

    >>> in_toml([True, "a", 1.5])
    '[true, "a", 1.5]'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_toml, cast('Sequence[object]', value)))}]"
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return f"{{{', '.join(f'{key} = {in_toml(inside)}' for key, inside in items)}}}"
    return str(value)


def sentences(
    section: str, selector: str | None, kinds: Mapping[str, type[BaseModel]], mistake: ValidationError
) -> list[str]:
    """Pydantic's errors about one section, as one sentence per key; `selector` is the key that names the kind, if any.

    `kinds` holds the model of each kind; a section without kinds has one model, under the name "".
    """
    found: dict[tuple[str, str], list[ErrorDetails]] = {}
    out: list[str] = []
    for error in mistake.errors():
        if error["type"] == "union_tag_not_found":
            out.append(f"{section}.{selector} is missing: choose from {', '.join(kinds)}.")
        elif error["type"] == "union_tag_invalid":
            value = error["input"][selector]
            complaint = f"{section}.{selector} = {in_toml(value)} is not known"
            out.append(choose_from(complaint, str(value), kinds))
        else:
            kind, key = (str(part) for part in (error["loc"][:2] if selector else ("", error["loc"][0])))
            found.setdefault((kind, key), []).append(error)
    return out + [_about(section, selector, kind, kinds[kind], key, errors) for (kind, key), errors in found.items()]


def _about(
    section: str, selector: str | None, kind: str, model: type[BaseModel], key: str, errors: list[ErrorDetails]
) -> str:
    """One sentence about one key."""
    path, field = f"{section}.{key}", model.model_fields.get(key)
    whose = f'[{section}] with {selector} = "{kind}"' if selector else f"[{section}]"
    if field is None:
        names = [*([selector] if selector else []), *(name for name in model.model_fields if name != selector)]
        return choose_from(f"{path} is not a key of {whose}", key, names)
    if errors[0]["type"] == "missing":
        meaning = f" ({field.description})" if field.description else ""
        return f"{path} is missing: {whose} needs it, {in_words(type_of(field))}{meaning}."
    return _refusal(path, field, errors)


def _refusal(path: str, field: FieldInfo, errors: list[ErrorDetails]) -> str:
    # An element of a list is named by its index; for a union of types, pydantic puts a type's name in `loc` as well.
    places = [str(part) for error in errors[:1] for part in error["loc"] if isinstance(part, int)]
    path, value = ".".join([path, *places]), errors[0]["input"]
    limits = [error["msg"].replace("Input should be", "it must be") for error in errors if error["type"] in LIMITS]
    if limits:
        return f"{path} = {in_toml(value)} is not allowed: {' and '.join(dict.fromkeys(limits))}."
    wanted = _element(field.annotation) if places else type_of(field)
    near = difflib.get_close_matches(value, _choices(wanted), n=1) if isinstance(value, str) else []
    hint = f'; did you mean "{near[0]}"?' if near else "."
    return f"{path} = {in_toml(value)} is not allowed: it must be {in_words(wanted)}{hint}"


def type_of(field: FieldInfo) -> Annotation:
    """The type of a field with its `Words` restored, because pydantic moves a type's outermost annotations to the metadata."""
    words = next((note for note in field.metadata if isinstance(note, Words)), None)
    return field.annotation if words is None else Annotated[field.annotation, words]


def _element(annotation: Annotation) -> Annotation:
    """The type of a list's elements; the list may also be optional (None)."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    lists = [part for part in parts if get_origin(part) is list]
    return get_args(lists[0])[0] if len(lists) == 1 else annotation


def _choices(annotation: Annotation) -> list[str]:
    """All texts that a type allows by name, at any depth."""
    inside = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [value for value in inside if isinstance(value, str)]
    parts = inside[:1] if get_origin(annotation) is Annotated else inside
    return [choice for part in parts for choice in _choices(part)]


def refused(section: str, error: Exception) -> list[str]:
    """The sentences for an error that a factory raises about its arguments."""
    if isinstance(error, ConfigError):
        return list(error.errors)
    return [f"{section}: {error}"]
