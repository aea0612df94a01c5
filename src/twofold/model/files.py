"""A model's two files: `model.safetensors` holds the numbers, `model.json` all that gives them a meaning."""
# What JAX's pytree functions hand on and give back is untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from twofold import losses, objectives
from twofold.errors import InputError
from twofold.model.inputs import Inputs
from twofold.objectives.base import Loss, Objective
from twofold.storage import (
    Skeleton,
    made,
    modules,
    pack,
    plain,
    read_json,
    read_tensors,
    rebuild,
    write_json,
    write_tensors,
)
from twofold.tables import Schema
from twofold.theory.constants import Constants
from twofold.tree import Pytree

if TYPE_CHECKING:
    from twofold.model.base import Model

__all__ = ["DOCUMENT", "KIND", "TENSORS", "VERSION", "document_of", "objective_of", "read", "write"]

KIND, VERSION = "twofold model", 1
"""What the JSON file says that it is, and the version of its format."""
DOCUMENT, TENSORS = "model.json", "model.safetensors"
BLOCKS = ("w", "beta", "stored")


def write(model: Model, folder: Path) -> Path:
    """Write both files; what was there before is replaced."""
    made(folder)
    document, tensors = document_of(model)
    write_tensors(folder / TENSORS, tensors)
    write_json(folder / DOCUMENT, document)
    return folder


def document_of(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes into the JSON file, and the tensors beside it."""
    tensors: dict[str, Any] = {}
    structures: dict[str, Skeleton] = {}
    for block in BLOCKS:
        found, structures[block] = pack(block, getattr(model, block))
        tensors |= found
    inputs = model.inputs
    document = {
        "kind": KIND,
        "version": VERSION,
        "objective": _describe(model.objective),
        "loss": _describe_loss(getattr(model.objective, "loss", None)),
        "clients": list(model.names),
        "parts": list(model.parts),
        "inputs": {
            "structure": inputs.structure,
            "shapes": {name: list(shape) for name, shape in inputs.shapes.items()},
            "dtypes": dict(inputs.dtypes),
            "features": None if inputs.features is None else list(inputs.features),
        },
        "classes": None if model.classes is None else plain(model.classes),
        "schema": None if model.schema is None else model.schema.as_dict(),
        "constants": None if model.constants is None else plain(dataclasses.asdict(model.constants)),
        "structure": structures,
        "provenance": plain(model.provenance),
    }
    return document, tensors


def _describe(objective: Objective) -> dict[str, Any]:
    found = objective.describe()
    return {"name": objective.name, "settings": None} if found is None else {"name": found[0], "settings": found[1]}


def _describe_loss(loss: Loss | None) -> dict[str, Any] | None:
    if loss is None:
        return None
    found = loss.describe()
    if found is not None:
        return found
    function = getattr(loss, "fn", None)
    where = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(loss).__name__)}"
    return {"name": "custom", "function": where, "l2": float(getattr(loss, "l2", 0.0))}


# --- reading ----------------------------------------------------------------------------------------------------------


def read(folder: Path, loss: Loss | None, objective: Objective | None) -> dict[str, Any]:
    """The fields of the model in a folder."""
    folder = folder.parent if folder.name == DOCUMENT else folder
    _explain_missing(folder)
    document = read_json(folder / DOCUMENT)
    if document.get("kind") != KIND:
        raise InputError(f"{folder / DOCUMENT} is no model of twofold: its kind is {document.get('kind')!r}.")
    if document.get("version") != VERSION:
        raise InputError(
            f"{folder / DOCUMENT} has version {document.get('version')!r} of the format, and this twofold reads {VERSION}: "
            "upgrade twofold (pip install -U twofold)."
        )
    features = document["inputs"]["features"]
    inputs = Inputs(
        document["inputs"]["structure"],
        {name: tuple(shape) for name, shape in document["inputs"]["shapes"].items()},
        document["inputs"]["dtypes"],
        None if features is None else tuple(features),
    )
    made = objective_of(document, loss, objective).bind(inputs.stand_in())
    tensors = read_tensors(folder / TENSORS)
    start = made.init(inputs.stand_in())
    w, beta, stored = (
        _block(document["structure"][name], tensors, like) for name, like in zip(BLOCKS, (*start, None), strict=True)
    )
    names = tuple(document["clients"])
    _check_shapes(folder, names, start, w, beta)
    constants = document["constants"]
    classes = document["classes"]
    return {
        "objective": made, "names": names, "w": w, "beta": beta, "inputs": inputs, "parts": tuple(document["parts"]),
        "stored": stored, "classes": None if classes is None else tuple(classes), "schema": _schema(document["schema"]),
        "constants": None if constants is None else Constants(**constants), "provenance": document["provenance"],
    }  # fmt: skip


def _explain_missing(folder: Path) -> None:
    if (folder / DOCUMENT).is_file():
        return
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.")
    seeds = sorted(path.parent.name for path in folder.glob(f"seed-*/{DOCUMENT}"))
    if seeds:
        raise InputError(
            f"{folder} holds the runs of {len(seeds)} seeds: load one of them, as in tw.load({str(folder / seeds[0])!r})."
        )
    if (folder / "result.json").is_file():
        raise InputError(
            f"{folder} holds a result without its model, as an older twofold saved it: tw.Model.of(problem, "
            f"tw.Result.load({str(folder)!r})).save({str(folder)!r}) adds it."
        )
    raise InputError(f"There is no {folder / DOCUMENT}: tw.load reads what result.save or Model.save wrote.")


def objective_of(document: dict[str, Any], loss: Loss | None, objective: Objective | None) -> Objective:
    """The objective of a document, made again, or the user's own where it has functions in it."""
    if objective is not None:
        return objective
    described, name = document["objective"], document["objective"]["name"]
    if described["settings"] is None:
        raise InputError(
            f"This model's objective, {name}, has a function of your own in it, which no file can hold: pass it, as in "
            "tw.load(folder, objective=...)."
        )
    settings = {key: float(value) if value == "inf" else value for key, value in described["settings"].items()}
    return objectives.REGISTRY[name](_loss(document["loss"], loss), **settings)


def _loss(described: dict[str, Any], loss: Loss | None) -> Loss:
    if loss is not None:
        return loss
    settings = dict(described)
    name = settings.pop("name")
    if name not in losses.REGISTRY:
        raise InputError(
            f"This model's loss is a function of your own ({settings.get('function')}), which no file can hold: pass it, as in "
            "tw.load(folder, loss=losses.custom(...))."
        )
    return cast(Loss, losses.REGISTRY[name](**settings))


def _block(skeleton: Skeleton, tensors: dict[str, Any], like: Pytree) -> Pytree:
    """A pytree from its skeleton; a library's own nodes take their kind from `like`."""
    found = rebuild(skeleton, tensors)
    if not modules(skeleton) or like is None:
        return found
    leaves, structure = jax.tree.leaves(found), jax.tree.structure(like)
    return jax.tree.unflatten(structure, leaves) if structure.num_leaves == len(leaves) else found


def _check_shapes(folder: Path, names: tuple[Any, ...], start: tuple[Pytree, Pytree], w: Pytree, beta: Pytree) -> None:
    wanted = jax.tree.map(
        np.shape, (start[0], jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(names), *np.shape(leaf))), start[1]))
    )
    found = jax.tree.map(np.shape, (w, beta))
    if wanted != found:
        raise InputError(
            f"{folder / TENSORS} has w and beta of shapes {found}, but for {len(names)} clients of {folder / DOCUMENT} they are "
            f"{wanted}: the two files do not belong together, or the loss that you passed is another one."
        )


def _schema(described: dict[str, Any] | None) -> Schema | None:
    """How rows were encoded and scaled, from its description."""
    if described is None:
        return None
    return Schema.from_dict(described)
