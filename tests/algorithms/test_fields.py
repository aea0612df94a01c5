"""Fields of algorithms are numbers or None, and say so."""

from __future__ import annotations

import dataclasses
import typing

import pytest

import twofold as tw
from twofold.algorithms import REGISTRY
from twofold.algorithms.fields import Schedule, known


@pytest.mark.parametrize("name", REGISTRY)
def test_fields_are_precisely_typed(name: str) -> None:
    kind = REGISTRY[name]
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        assert hints[field.name] is not typing.Any, f"{name}.{field.name}"
        if not field.metadata.get("static") and field.default is None:
            expected = float | Schedule | None if (name, field.name) == ("lsgd", "eta") else float | None
            assert hints[field.name] == expected, f"{name}.{field.name}"


def test_an_open_number_cannot_be_used() -> None:
    assert known(1.0, 2.0) == (1.0, 2.0)
    with pytest.raises(tw.TwofoldError, match="still None"):
        known(1.0, None)
