"""The machine that computations run on: some things are done in another way for XLA's CPU code than for its GPU code."""

from __future__ import annotations

import os

import jax


def on_cpu() -> bool:
    """Whether computations run on the host's own cores."""
    return jax.default_backend() == "cpu"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
