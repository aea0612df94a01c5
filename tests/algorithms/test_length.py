"""A method is one short file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import twofold as tw
from twofold.algorithms.asvrcd_two import ASVRCDTwo

KINDS = {**tw.algorithms.REGISTRY, **tw.algorithms.TRAINING, "asvrcd, two references": ASVRCDTwo}


@pytest.mark.parametrize("name", KINDS)
def test_a_method_takes_less_than_150_lines(name: str) -> None:
    assert len(Path(inspect.getfile(KINDS[name])).read_text().splitlines()) < 150


@pytest.mark.parametrize("name", ["rated", "rated_clients", "floors"])
def test_what_is_proven_of_them_does_too(name: str) -> None:
    folder = Path(inspect.getfile(ASVRCDTwo)).parent
    assert len((folder / f"{name}.py").read_text().splitlines()) < 150
