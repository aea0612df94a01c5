"""What two runs must have in common for one to continue from the other's checkpoint, part by part.

A part has a mark that is the same in every process and another for every other value; a user's function counts with its code.
"""
# What a pytree or a function of the user's is made of comes without types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twofold.clients import Clients
from twofold.metrics import named

if TYPE_CHECKING:
    from twofold.solver.run import Run

__all__ = ["Identity", "Part", "differences", "fingerprint", "identity"]

PLAIN = (str, bool, int, float, complex, bytes)
"""Values that are what their text says."""


class Part(NamedTuple):
    """A part of a run: its value, if that can be told in a few words, and a mark that is another for every other value."""

    text: str | None
    mark: str


Identity = list[dict[str, Part]]
"""The parts of a run by name. What differs in one group may be the cause of what differs in a later one."""


def identity(run: Run) -> Identity:
    """What two runs must have in common for one to continue from the other's checkpoint: causes before their consequences."""
    from twofold.extras import version

    problem, budget, options = run.problem, run.budget, run.options
    stop = dataclasses.replace(budget, rounds=1, iterations=None, seconds=None) if len(run.seeds) == 1 else budget
    metrics, *derived = run.recording
    return [
        _parts({"version": version(), "precision": str(jnp.result_type(float))}),
        {
            "the data": _of_clients(problem.clients),
            "test": _of_clients(options.test),
            "validation": _of_clients(options.validation),
            "objective": Part(problem.objective.name, type(problem.objective).__qualname__),
            **_parts(_fields(problem.objective)),
            **_parts(
                {name: getattr(problem, name) for name in ("rescale", "feature_dtype", "precondition", "sampling")}
            ),
        },
        {
            "the start": Part(None, fingerprint(jax.tree.leaves(run.starts[0]))),
            "algorithm": Part(run.algorithm.name, type(run.algorithm).__qualname__),
            **_parts(_fields(run.algorithm), "algorithm."),
            **_parts({"seeds": run.seeds, **_fields(stop), "participation": options.participation}),
            "what is recorded": Part(None, fingerprint(list(metrics), *derived, named(options.record))),
        },
    ]


def _fields(record: Any) -> dict[str, object]:
    """A record's fields and their values."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _parts(values: Mapping[str, object], within: str = "") -> dict[str, Part]:
    """The parts of a run by name, and those of a record (a loss, say) one by one."""
    found: dict[str, Part] = {}
    for name, value in values.items():
        found[within + name] = Part(_text(value), fingerprint(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[within + name] = Part(type(value).__name__, type(value).__qualname__)
            found |= _parts(_fields(value), f"{within}{name}.")
    return found


def _text(value: object) -> str | None:
    """A value in a few words, or None."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    if isinstance(value, list) and len(str(value)) < 40:
        return str(value)
    name = getattr(value, "name", None)  # of a link
    return name if isinstance(name, str) else None


def differences(found: Mapping[str, Sequence[str | None]], mine: Mapping[str, Part]) -> list[str]:
    """What differs in two runs, with both values where they can be told."""
    told: list[str] = []
    for name, (text, mark) in mine.items():
        there, other = found.get(name, (None, mark))  # what only one of two objectives has says nothing more
        if other != mark:
            both = text is not None and there is not None and text != there
            told.append(f"{name} = {there} there, {text} here" if both else f"{name} differs")
    return told


def _of_clients(clients: Clients | None) -> Part:
    if clients is None:
        return Part(None, "none")
    weights = [] if clients.row_weights is None else [clients.row_weights]
    rows = jax.tree.leaves(clients.x), jax.tree.leaves(clients.y), clients.counts
    return Part(None, fingerprint(*rows, clients.weights, list(clients.names), *weights))


def fingerprint(*values: object) -> str:
    """A short digest of values that is the same in every process.

    A function counts by its name, its code, its defaults and what it refers to: values of an enclosing function, and numbers,
    strings, arrays and functions of its own module.
    """
    digest = hashlib.sha256()
    for piece in _pieces(values, set()):
        digest.update(piece)
    return digest.hexdigest()[:16]


def _pieces(value: object, seen: set[int]) -> list[bytes]:
    """What `value` is made of, as bytes; `seen` are functions that already count, for a function may refer to itself."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        if array.dtype != object:
            return [f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(array).tobytes()]
        return [repr(array.tolist()).encode()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__qualname__.encode(), *_pieces(inside, seen)]
    if isinstance(value, Mapping):
        return [piece for key, inner in value.items() for piece in (repr(key).encode(), *_pieces(inner, seen))]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__.encode(), *(piece for inner in value for piece in _pieces(inner, seen))]
    if isinstance(value, (set, frozenset)):  # whose order differs from process to process
        return [type(value).__name__.encode(), *sorted(repr(inner).encode() for inner in value)]
    if callable(value):
        return _of_callable(value, seen)
    if isinstance(value, CodeType):
        return [value.co_code, repr(value.co_names).encode(), *_pieces(value.co_consts, seen)]
    if value is None or isinstance(value, PLAIN):
        return [repr(value).encode()]
    return [type(value).__qualname__.encode()]


def _of_callable(value: Callable[..., object], seen: set[int]) -> list[bytes]:
    """Its name, what a method or a partial is bound to, and the function inside."""
    if isinstance(value, partial):
        return _pieces((value.func, value.args, value.keywords), seen)
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}".encode()
    function = inspect.unwrap(value)
    bound = [] if getattr(function, "__self__", None) is None else _pieces(function.__self__, seen)
    function = getattr(function, "__func__", function)
    return [name, *bound, *(_of_function(function, seen) if isinstance(function, FunctionType) else [])]


def _of_function(function: FunctionType, seen: set[int]) -> list[bytes]:
    """A function's code, defaults, and what it refers to."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    code, known = function.__code__, function.__globals__
    around = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a name that has no value yet
            around[name] = cell.cell_contents
    beside = {name: known[name] for name in sorted(_names(code) & known.keys()) if _counts(known[name], known)}
    return _pieces((code, function.__defaults__, function.__kwdefaults__, around, beside), seen)


def _names(code: CodeType) -> set[str]:
    """The names that a function, and those defined in it, look up elsewhere."""
    inside = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inside)


def _counts(value: object, module: dict[str, object]) -> bool:
    """Whether a global value of a module counts in the fingerprint of its functions: if it is plain, or one of them."""
    own = isinstance(value, FunctionType) and value.__globals__ is module
    return own or isinstance(value, (*PLAIN, np.ndarray, np.generic, jax.Array))
