"""Every example in a docstring runs, in every module there is; and every public function and class has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import twofold
from twofold.algorithms import Algorithm
from twofold.errors import MissingExtra
from twofold.losses import Custom, Linear, Link, Net, Rows
from twofold.objectives import Objective
from twofold.problem import Problem

# Found by walking the package, so that a new module cannot be forgotten. Importing __main__ would run the program.
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(twofold.__path__, "twofold.", onerror=lambda name: None)
    if not info.name.endswith("__main__")
)

# The public modules whose functions and classes all have examples. Those of other modules run too, where there are any.
COMPLETE = (
    "twofold.algorithms",
    "twofold.clients",
    "twofold.control",
    "twofold.convolutions",
    "twofold.curvature",
    "twofold.data",
    "twofold.demo",
    "twofold.errors",
    "twofold.evaluate",
    "twofold.kernels",
    "twofold.losses",
    "twofold.objectives",
    "twofold.problem",
    "twofold.randomness",
    "twofold.result",
    "twofold.solver.budget",
    "twofold.solver.names",
    "twofold.solver.options",
    "twofold.sklearn",
    "twofold.tables",
    "twofold.theory",
    "twofold.tree",
    "twofold.tune",
)
# Records that an algorithm passes to itself: its own docstring has the example.
STATE = {"Anchored", "Message", "Pair", "Plan", "Points", "Private", "Shared", "Triple"}
# Rooms behind a public one, whose docstrings speak to those who work there: `clients`, `curvature` and `problem` export what
# others may use of their own, `algorithms.base` is the contract and `contract` its checks, the searches and Newton steps belong to
# `algorithms.profile`, and the local steps in `descent` to the methods of `algorithms.training`.
EXCEPT = {
    "twofold.algorithms.base",
    "twofold.algorithms.contract",
    "twofold.algorithms.descent",
    "twofold.algorithms.newton",
    "twofold.algorithms.search",
    "twofold.data.files",  # the network and the disk
    *(f"twofold.sklearn.{room}" for room in ("base", "checks", "files", "rows")),  # behind the two estimators
    "twofold.losses.net_start",  # checks behind `losses.net`
    "twofold.tune.path",  # compiled fits and the judge of them: behind `tune`
    "twofold.tune.choice",
    *(name for name in MODULES if name.startswith(("twofold.clients.", "twofold.curvature.", "twofold.problem."))),
}


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (MissingExtra, ModuleNotFoundError) as missing:
        if isinstance(missing, ModuleNotFoundError) and (missing.name or "").startswith("twofold"):
            raise
        pytest.skip(f"{name} needs an optional library: {missing}")


def examples(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(name)
    monkeypatch.chdir(str(tmp_path))  # an example may write files
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF | doctest.ELLIPSIS)
    said: list[str] = []
    for test in examples(module):
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The functions and classes that a module exports and that are defined in it."""
    for name in module.__all__:
        thing = getattr(module, name)
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and thing.__module__ == module.__name__:
            yield name, thing


@pytest.mark.parametrize(
    "name",
    [name for name in MODULES if name not in EXCEPT and any(name == c or name.startswith(f"{c}.") for c in COMPLETE)],
)
def test_every_public_thing_has_an_example(name: str) -> None:
    module = load(name)
    bare = [
        thing for thing, value in public(module) if thing not in STATE and ">>>" not in (inspect.getdoc(value) or "")
    ]
    assert not bare, f"{name}: no example in the docstring of {', '.join(bare)}"


REFERENCE = Path(__file__).parents[1] / "docs" / "api"
# What the library calls, and users only write: the class has an example of the whole.
HOOKS = (Algorithm, Objective, Linear, Net, Custom, Link, Rows)
# What engines ask a problem for.
OF_ENGINES = {(Problem, name) for name in ("program", "stack", "stacks_as")}


def in_reference() -> list[str]:
    """Every name that a page of the reference explains."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md"))]
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)]


def methods(cls: type) -> Iterator[tuple[str, str]]:
    """The methods that a class defines for users, and their docstrings; properties are read, not called."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and not name.startswith("_") and (cls, name) not in OF_ENGINES:
            yield name, inspect.getdoc(getattr(cls, name)) or ""


def without_example(cls: type) -> list[str]:
    """Methods whose docstring has no example and that no example of the class or of one it inherits from calls."""
    if issubclass(cls, HOOKS):
        return []
    shown = "\n".join(inspect.getdoc(base) or "" for base in cls.__mro__)
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}  # another one's method, explained there
    return [
        name for name, text in methods(cls) if ">>>" not in text and f".{name}(" not in shown and name not in inherited
    ]


@pytest.mark.parametrize("name", in_reference())
def test_every_name_in_the_reference_has_an_example(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    thing = getattr(load(module), attribute)
    assert ">>>" in (inspect.getdoc(thing) or ""), f"{name} has no example in its docstring"
    if inspect.isclass(thing):
        assert not without_example(thing), f"no example calls {', '.join(without_example(thing))} of {name}"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_is_public(name: str) -> None:
    module = load(name)
    assert hasattr(module, "__all__"), f"{name} does not say what is public: give it an __all__"
    for listed in module.__all__:
        assert hasattr(module, listed), f"{name}.__all__ lists {listed}, which is not there"


def test_the_walk_finds_the_modules() -> None:
    assert "twofold.solver.solve" in in_reference()
    assert {"twofold.clients", "twofold.solver", "twofold.objectives.mixture", "twofold.theory.rates"} <= set(MODULES)
