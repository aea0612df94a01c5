"""Nothing is synced to the disk in tests of this process: it takes longer than all the rest of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What would have been synced."""
    found: list[int] = []
    monkeypatch.setattr(os, "fsync", found.append)
    return found
