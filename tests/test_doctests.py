"""Every example in a docstring runs, in every module there is; and every public function and class has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import twofold
from twofold.errors import MissingExtra

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
STATE = {"Anchored", "Message", "Pair", "Plan", "Private", "Shared", "State", "Triple"}
# Rooms behind a public one, whose docstrings speak to those who work there: `curvature` exports what others may use of its
# own, `algorithms.base` is the contract, and the searches and Newton steps belong to `algorithms.profile`.
EXCEPT = {
    "twofold.algorithms.base",
    "twofold.algorithms.newton",
    "twofold.algorithms.search",
    "twofold.data.files",  # the network and the disk
    "twofold.tune.path",  # compiled fits and the judge of them: behind `tune`
    "twofold.tune.choice",
    *(name for name in MODULES if name.startswith("twofold.curvature.")),
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
    assert hasattr(module, "__all__"), f"{name} does not say what is public: give it an __all__"
    bare = [
        thing for thing, value in public(module) if thing not in STATE and ">>>" not in (inspect.getdoc(value) or "")
    ]
    assert not bare, f"{name}: no example in the docstring of {', '.join(bare)}"


def test_the_walk_finds_the_modules() -> None:
    assert {"twofold.clients", "twofold.solver", "twofold.objectives.mixture", "twofold.theory.rates"} <= set(MODULES)
