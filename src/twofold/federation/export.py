"""A node's own model, as a file that predicts alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from twofold.federation import store
from twofold.model import Model
from twofold.model.files import DOCUMENT, TENSORS

if TYPE_CHECKING:
    from twofold.federation.node import Node

__all__ = ["write_model"]


def write_model(node: Node, out: str | Path) -> None:
    """Write the model of a node's client: w, its own β, and the names of features and classes; nothing of anybody else."""
    w, mine = node.model()
    study = node.study
    beta = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (study.M, *np.shape(leaf))), mine)
    names: list[str] = []
    for feature in study.document.get("feature", []):
        levels = feature.get("levels")
        names += [feature["name"]] if levels is None else [f"{feature['name']}={level}" for level in levels]
    classes = study.document.get("target", {}).get("classes")
    model = Model.of(
        node.seat.problem, (w, beta), features=tuple(names) or None, classes=None if classes is None else tuple(classes)
    )
    out = Path(out)
    if not out.is_dir():  # a folder that is there may have other things in it
        store.closed(out)
    for name in (TENSORS, DOCUMENT):  # β is in them: closed to others before anything is in them
        store.replace_file(out / name, b"")
    model.only(node.name).save(out)
