"""Putting something of your own beside what there is: `@tw.register`, and "my.module:Thing" in a configuration.

What is registered can be named wherever a built-in one can: in `tw.solve(problem, "mine")`, in a TOML file, in `twofold list`,
with the options of its signature.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, overload

from twofold import algorithms, losses, objectives
from twofold import data as data_sets
from twofold.data import Dataset, Source, partition
from twofold.errors import InputError, KindError

__all__ = ["Kind", "find", "register"]

Kind = Literal["objective", "algorithm", "loss", "data", "partition"]
Thing = TypeVar("Thing", bound=Callable[..., Any])

REGISTRIES: dict[str, MutableMapping[str, Any]] = {
    "objective": objectives.REGISTRY,
    "algorithm": algorithms.REGISTRY,
    "loss": losses.REGISTRY,
    "data": data_sets.REGISTRY,
    "partition": partition.REGISTRY,
}
_BUILT_IN = {kind: frozenset(found) for kind, found in REGISTRIES.items()}


@overload
def register(thing: Thing, /) -> Thing: ...
@overload
def register(thing: Kind, /, *, name: str | None = None, owned: bool | str = False) -> Callable[[Thing], Thing]: ...
def register(
    thing: Thing | Kind, /, *, name: str | None = None, owned: bool | str = False
) -> Thing | Callable[[Thing], Thing]:
    """Register an objective, an algorithm, a loss, a data set or a partitioner of your own.

    `@tw.register` alone is enough for an algorithm (its `name` is its name), for a function whose first argument is `loss` (an
    objective), and for one that says that it returns an Objective, a loss or a Dataset. Elsewhere say what it is:
    `@tw.register("loss")`. The name is the function's own unless `name` gives another. `owned` is for data sets: whether the rows
    come with their clients (Dataset.owner).

    Running a notebook's cell again replaces what it registered; the name of something built in is refused.

    >>> import numpy as np, twofold as tw
    >>> @tw.register
    ... def gentle(loss, lam: float = 0.01):
    ...     "The mixture, with a weak pull."
    ...     return tw.objectives.mixture(loss, lam)
    >>> tw.objectives.REGISTRY["gentle"](tw.losses.logistic()).lam
    0.01
    >>> @tw.register("data", name="two-coins", owned=True)
    ... def coins(rows: int = 4) -> tw.data.Dataset:
    ...     return tw.data.Dataset(np.ones((rows, 1)), np.arange(rows) % 2, "Two coins.", owner=np.arange(rows) % 2)
    >>> tw.data.load("two-coins", rows=6).x.shape
    (6, 1)
    """
    if isinstance(thing, str):
        kind = thing
        if kind not in REGISTRIES:
            raise InputError(f"Something of your own is one of {', '.join(REGISTRIES)}, not {kind!r}.")

        def decorate(inner: Thing) -> Thing:
            return _add(inner, cast(Kind, kind), name, owned)

        return decorate
    if not callable(thing):
        raise KindError(f"@tw.register stands above a class or a function, not above {type(thing).__name__}.")
    return _add(thing, _kind_of(thing), name, owned)


def _add(thing: Thing, kind: Kind, name: str | None, owned: bool | str) -> Thing:
    known = REGISTRIES[kind]
    entry: Any = thing
    if kind == "algorithm" and not (isinstance(entry, type) and issubclass(entry, algorithms.Algorithm)):
        raise KindError(f"An algorithm is a subclass of tw.algorithms.Algorithm, which {_called(thing)} is not.")
    called = name or (str(getattr(entry, "name", "")) if isinstance(entry, type) else "") or _called(thing)
    if called in _BUILT_IN[kind]:
        raise InputError(f"The {kind} {called!r} is built in: register yours under another name.")
    if kind == "data":
        entry = Source(thing, owned=owned)
        thing.source = entry  # type: ignore[attr-defined]  # found again by `find`
    known[called] = entry
    return thing


def _kind_of(thing: Callable[..., object]) -> Kind:
    """What a class or a function is, by its base, its first argument, or what it says that it returns."""
    if inspect.isclass(thing):
        for kind, base in (("algorithm", algorithms.Algorithm), ("objective", objectives.Objective)):
            if issubclass(thing, base):
                return cast(Kind, kind)
    parameters = list(inspect.signature(thing).parameters)
    if parameters[:1] == ["loss"]:
        return "objective"
    gives = _returns(thing)
    kinds: list[tuple[type, Kind]] = [
        (objectives.Objective, "objective"), (losses.Custom, "loss"), (losses.Linear, "loss"), (Dataset, "data"),
        (data_sets.Partition, "partition"),
    ]  # fmt: skip
    for base, kind in kinds:
        if (isinstance(gives, type) and issubclass(gives, base)) or gives == base.__name__:
            return kind
    raise InputError(f'Say what {_called(thing)} is, as in @tw.register("loss"): one of {", ".join(REGISTRIES)}.')


def _returns(thing: Callable[..., object]) -> Any:
    """The type that a function says that it returns; the last word of it, where the type itself cannot be had."""
    try:
        return inspect.get_annotations(thing, eval_str=True).get("return")
    except NameError:  # a name that is only there for type checkers, or inside another function
        return str(inspect.get_annotations(thing).get("return", "")).rsplit(".", 1)[-1]


def _called(thing: object) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


# --- "my.module:Thing" --------------------------------------------------------------------------------------------------


def find(path: str, kind: Kind, home: Path | None = None) -> Any:
    """What "my.module:Thing" names; the module may lie beside the configuration (`home`) or in the current folder.

    >>> find("twofold.losses:logistic", "loss").__name__
    'logistic'
    """
    module, _, inside = path.partition(":")
    if not module or not inside:
        raise InputError(f"{path!r} is not of the form module:name, as in my.module:MyObjective.")
    with _reachable(home):
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
                raise  # the module is there, and lacks something itself
            places = ", ".join(str(place) for place in _places(home))
            raise InputError(
                f"There is no module {module!r} (looked in {places} and among installed packages): mend the name in {path!r}."
            ) from error
    for part in inside.split("."):
        if not hasattr(found, part):
            names = [name for name in cast(dict[str, object], vars(found)) if not name.startswith("_")]
            offered = ", ".join(name for name in names if callable(getattr(found, name)))
            raise InputError(f"{module} has no {inside!r}; it has {offered or 'nothing that can be called'}.")
        found = getattr(found, part)
    if kind == "data":
        return found if isinstance(found, Source) else getattr(found, "source", None) or Source(found)
    if kind == "algorithm" and not (isinstance(found, type) and issubclass(found, algorithms.Algorithm)):
        raise InputError(f"{path} is no subclass of twofold.algorithms.Algorithm.")
    if not callable(found):
        raise InputError(f"{path} is no function and no class.")
    return found


def _places(home: Path | None) -> list[Path]:
    return list(dict.fromkeys([*([home.resolve()] if home is not None else []), Path.cwd()]))


@contextmanager
def _reachable(home: Path | None) -> Generator[None]:
    """Let modules beside the configuration and in the current folder be imported."""
    added = [str(place) for place in _places(home) if str(place) not in sys.path]
    sys.path[:0] = added
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for place in added:
            sys.path.remove(place)
