"""Fields of algorithms are numbers or None, and say so."""

from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest
from numpy.typing import NDArray

import twofold as tw
from twofold.algorithms import REGISTRY
from twofold.algorithms.fields import Schedule, known

EACH = NDArray[np.float64] | None
RATE = float | Schedule | None
OTHERS = {("lsgd", "eta"): RATE, ("scafflix", "steps"): EACH, ("saga", "q"): float | EACH}
OTHERS |= {(name, field): RATE for name in ("lsgd", "fedprox") for field in ("lr", "lr_beta")}
"""Fields that are not single numbers: a schedule, or one number for each client."""


@pytest.mark.parametrize("name", REGISTRY)
def test_fields_are_precisely_typed(name: str) -> None:
    kind = REGISTRY[name]
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        assert hints[field.name] is not typing.Any, f"{name}.{field.name}"
        if not field.metadata.get("static") and field.default is None:
            assert hints[field.name] == OTHERS.get((name, field.name), float | None), f"{name}.{field.name}"


def test_an_open_number_cannot_be_used() -> None:
    assert known(1.0, 2.0) == (1.0, 2.0)
    with pytest.raises(tw.TwofoldError, match="still None"):
        known(1.0, None)
