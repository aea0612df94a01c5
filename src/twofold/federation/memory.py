"""What a node has to remember from one question to the next, in one file that is either old or new."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twofold.errors import InputError
from twofold.federation import store
from twofold.federation.store import Arrays
from twofold.federation.wire import VERSION
from twofold.tree import Pytree

__all__ = ["CONTRACT", "FILE", "State", "read", "word", "write"]

FILE, CONTRACT = "state.safetensors", "contract.json"
PLAIN = ("round", "t", "said", "last", "parted", "opened", "asked")
ARRAYS = ("sent", "raw", "kept")
log = logging.getLogger("twofold.node")


@dataclass(frozen=True)
class State:
    """A node between two questions."""

    round: int = 0  # the last one that it answered
    t: int = -1  # that round's iteration
    said: str = ""  # all that it was told before that answer
    shared: Pytree = None
    private: Pytree = None
    sent: Arrays = field(default_factory=dict)  # its answer
    raw: Arrays = field(default_factory=dict)  # the message inside that answer
    kept: Arrays = field(default_factory=dict)  # its last messages that counted, where they stand in for later ones
    last: bool = False  # the study is over: its model is whole
    opened: list[int] | None = None  # whom it helped to open in that round
    asked: str = ""  # all that it was told, and what it was asked: what its masks come from
    # Both states where its part of the gap was measured: the study may end there.
    ended: tuple[Pytree, Pytree] | None = None
    parted: bool = False  # the coordinator has all that it needs, and has said so


def write(folder: Path, state: State, first: State) -> None:
    """Keep a state; `first` is the one with which its run began."""
    arrays = {f"{g}/{n}": a for g in ARRAYS for n, a in getattr(state, g).items()}
    for name in ("shared", "private", "ended"):
        arrays |= {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(getattr(state, name)))}
    about = {"v": VERSION, "first": first.said, **{name: getattr(state, name) for name in PLAIN}}
    store.write(folder / FILE, arrays, about)


def read(folder: Path, first: State) -> State:
    """The state in a folder, or the first one where there is none."""
    path = folder / FILE
    if not path.exists():
        return first
    arrays, about = store.read(path)
    if about.get("v") != VERSION or about["first"] != first.said:
        raise InputError(f"{path} belongs to another run: name another --state folder, or put the old study file back.")

    def block(name: str, like: Pytree) -> Pytree:
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, [jnp.asarray(arrays[f"{name}/{i}"]) for i in range(len(leaves))])

    groups = {g: {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{g}/")} for g in ARRAYS}
    states = {name: block(name, getattr(first, name)) for name in ("shared", "private")}
    if any(name.startswith("ended/") for name in arrays):
        states["ended"] = block("ended", (first.shared, first.private))
    log.info("round %d read from %s", about["round"], path)
    plain: dict[str, Any] = {name: about[name] for name in PLAIN if name in about}
    return State(**plain, **groups, **states)


def word(folder: Path, study: str, what: str) -> bool:
    """One word of the state on the disk, if it is one of the study with that digest."""
    contract, path = folder / CONTRACT, folder / FILE
    if not (contract.exists() and path.exists()):
        return False
    try:
        same = json.loads(contract.read_text())["study"] == study
        return same and bool(store.read(path)[1].get(what, False))
    except (InputError, ValueError, KeyError):
        return False  # damaged: said when the coordinator asks
