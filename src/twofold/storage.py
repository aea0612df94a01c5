"""Pytrees in files: tensors as safetensors, everything else in a JSON file beside them."""
# JAX and safetensors leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError
from twofold.tree import Pytree

__all__ = [
    "MODULE",
    "Skeleton",
    "made",
    "modules",
    "pack",
    "plain",
    "read_json",
    "read_tensors",
    "rebuild",
    "replace_file",
    "write_json",
    "write_tensors",
]

Skeleton: TypeAlias = Any
"""JSON that stands for a pytree: a tensor's name, None, or {"dict" | "list" | "tuple" | "module": [...]}."""
Tensors: TypeAlias = dict[str, NDArray[Any]]
MODULE = "module"
"""A node of a library's own type, such as an Equinox module: a file holds its leaves in order, but only the name of its type."""


def made(folder: str | Path) -> Path:
    """Make a folder and its parents unless they exist, each synced into the one that it stands in.

    Raises an InputError if a file is in the way.

    >>> import tempfile
    >>> made(tempfile.mkdtemp() + "/runs/first").is_dir()
    True
    """
    folder = Path(folder)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        whole = folder.absolute()
        file = next(path for path in (whole, *whole.parents) if path.exists())
        raise InputError(
            f"{file} is a file, so the folder {folder} cannot be made: move it, or give another folder."
        ) from None
    for each in reversed(missing):
        _sync(each.parent)
    return folder


def pack(block: str, value: Pytree) -> tuple[Tensors, Skeleton]:
    """The tensors of a pytree, under names that begin with `block`, and the skeleton from which `rebuild` restores it.

    >>> tensors, skeleton = pack("w", {"weight": np.ones(2), "bias": np.zeros(1)})
    >>> sorted(tensors), skeleton
    (["w['bias']", "w['weight']"], {'dict': [['bias', "w['bias']"], ['weight', "w['weight']"]]})
    """

    def name(path: tuple[Any, ...], _: object) -> str:
        return block + jax.tree_util.keystr(path)

    names = jax.tree_util.tree_map_with_path(name, value)
    pairs = zip(jax.tree.leaves(names), jax.tree.leaves(value), strict=True)
    return {name: np.asarray(leaf, order="C") for name, leaf in pairs}, _describe(names)


def _describe(names: Pytree) -> Skeleton:
    if names is None or isinstance(names, str):
        return names
    if isinstance(names, Mapping):
        # Pairs, because JSON's keys can only be strings.
        return {"dict": [[key, _describe(value)] for key, value in cast(Mapping[Any, Pytree], names).items()]}
    if isinstance(names, (list, tuple)):
        kind = "list" if isinstance(names, list) else "tuple"
        return {kind: [_describe(value) for value in cast(Sequence[Pytree], names)]}
    return {MODULE: [type(names).__name__, *jax.tree.leaves(names)]}


def rebuild(skeleton: Skeleton, tensors: Mapping[str, Any]) -> Pytree:
    """The pytree of a skeleton; the leaves of a library's own node become a tuple, in order.

    >>> rebuild({"list": ["a", None]}, {"a": 1.0})
    [1.0, None]
    """
    if not isinstance(skeleton, dict):
        return None if skeleton is None else tensors[skeleton]
    ((kind, inside),) = cast(dict[str, list[Any]], skeleton).items()
    if kind == "dict":
        return {key: rebuild(value, tensors) for key, value in inside}
    if kind == MODULE:
        return tuple(tensors[name] for name in inside[1:])
    return (list if kind == "list" else tuple)(rebuild(value, tensors) for value in inside)


def modules(skeleton: Skeleton) -> list[str]:
    """The type names of those nodes in a skeleton that a file cannot hold.

    >>> modules({"tuple": [{"module": ["MLP", "w.weight"]}, "w.bias"]})
    ['MLP']
    """
    if not isinstance(skeleton, dict):
        return []
    ((kind, inside),) = cast(dict[str, list[Any]], skeleton).items()
    if kind == MODULE:
        return [str(inside[0])]
    values = [value for _, value in inside] if kind == "dict" else inside
    return [name for value in values for name in modules(value)]


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors into a file with the usual permissions (safetensors' own writer makes files that only the owner may read)."""
    from safetensors.numpy import save

    path.write_bytes(save(tensors))


def read_tensors(path: Path) -> Tensors:
    """Read a file of tensors; raises an InputError if it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"There is no {path}; the JSON file beside it needs it. Copy the whole folder.") from None
    except SafetensorError as mistake:
        raise InputError(f"{path} is damaged: {mistake}.") from None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as strictly standard JSON, without NaN or infinity."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON document; raises an InputError if it is missing or malformed."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no {path}.") from None
    except ValueError as mistake:
        raise InputError(f"{path} is not JSON: {mistake}.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} holds a JSON {type(document).__name__}, not an object with named entries.")
    return cast(dict[str, Any], document)


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: NumPy's numbers become Python's, and NaN and infinity become None.

    >>> plain({"a": np.float64(2.0), "b": [np.int64(1), float("inf")]})
    {'a': 2.0, 'b': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inside) for key, inside in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, np.ndarray):
        return plain(cast(NDArray[Any], value).tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(inside) for inside in cast(Sequence[Any], value)]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return repr(value)


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Replace a file atomically: whatever happens, either the old content or the new is there; on return, the new is on disk.

    A private one can be read by its owner alone.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> replace_file(folder / "a", b"one"), (folder / "a").read_bytes()
    (None, b'one')
    """
    made(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            if private:
                beside.chmod(0o600)  # before anything is in it
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:  # a full disk: leave nothing half-written behind
        beside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    """What is in a folder stays in it, whatever happens."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot sync a folder
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
