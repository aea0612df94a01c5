"""`import twofold` is light, its names are there whatever came first, and imports between modules go one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

import twofold

PYPROJECT = str(Path(__file__).parents[1] / "pyproject.toml")
HEAVY = {"matplotlib", "sklearn", "plotly", "pyarrow", "pandas", "jinja2", "pooch", "flwr", "typer", "rich"}
ABOVE = {"twofold.cli", "twofold.paper", "twofold.plots"}


def loaded_by(fresh_python: Callable[..., str], code: str) -> set[str]:
    return set(json.loads(fresh_python(f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


def test_import_is_light(fresh_python: Callable[..., str]) -> None:
    assert not loaded_by(fresh_python, "import twofold") & (HEAVY | ABOVE)


def test_what_solving_needs_is_light(fresh_python: Callable[..., str]) -> None:
    names = "tw.Clients, tw.Problem, tw.solve, tw.Result, tw.losses, tw.objectives, tw.algorithms, tw.theory"
    assert not loaded_by(fresh_python, f"import twofold as tw; {names}") & (HEAVY | ABOVE)


@pytest.mark.parametrize("first", ["import twofold.solver", "twofold.TheoryWarning"])
def test_a_public_name_means_the_same_whatever_was_imported_before(
    first: str, fresh_python: Callable[..., str]
) -> None:
    fresh_python(f"import twofold\n{first}\nassert callable(twofold.solve), twofold.solve")


def test_every_public_name_is_there() -> None:
    assert not [name for name in [*twofold.__all__, "__version__"] if not hasattr(twofold, name)]
    assert set(twofold.__all__) <= set(dir(twofold))


# The contracts stand in pyproject.toml. The first test holds the code to them; the others hold them to the design,
# on a made-up graph of the whole house with one import in it.


def test_the_code_keeps_the_contracts(fresh_python: Callable[..., str]) -> None:
    # In a process of its own: the linter sets up logging anew and thereby closes other libraries' handlers.
    call = f"lint_imports(config_filename={PYPROJECT!r}, no_cache=True, no_logo=True)"
    assert "0 broken" in fresh_python(f"import sys\nfrom importlinter.cli import lint_imports\nsys.exit({call})")


HOUSE = [
    *("cli", "demo", "paper.runner", "paper.report.page", "plots", "evaluate", "solver", "result"),
    *("engines.simulate", "engines.flower", "metrics", "extras", "errors"),
    *("algorithms.base", "algorithms.asvrcd", "problem", "objectives.base", "objectives.mixture", "losses", "clients"),
    *("theory.instances", "theory.rates", "theory.stepsizes", "theory.constants", "randomness", "data.files"),
]


def broken(importer: str, imported: str, house: list[str] = HOUSE) -> set[str]:
    """The contracts broken by a house in which one module imports one other."""
    graph = grimp.ImportGraph()
    for module in house:
        path = ["twofold", *module.split(".")]
        for depth in range(1, len(path) + 1):
            graph.add_module(".".join(path[:depth]))
    graph.add_module("flwr", is_squashed=True)
    graph.add_import(importer=importer, imported=imported)
    types = {"layers": LayersContract, "forbidden": ForbiddenContract}
    options = read_configuration(PYPROJECT)
    contracts = {
        contract["id"]: types[contract["type"]](contract["name"], options["session_options"], contract)
        for contract in options["contracts_options"]
    }
    return {name for name, contract in contracts.items() if not contract.check(deepcopy(graph), verbose=False).kept}


@pytest.mark.parametrize(
    "importer, imported",
    [
        ("cli", "paper.runner"),
        ("demo", "plots"),
        ("paper.runner", "plots"),
        ("paper.runner", "result"),
        ("paper.report.page", "evaluate"),
        ("plots", "evaluate"),
        ("data.files", "extras"),
        ("extras", "errors"),
        ("evaluate", "solver"),
        ("solver", "theory.instances"),
        ("engines.simulate", "algorithms.base"),
        ("engines.simulate", "problem"),
        ("algorithms.asvrcd", "algorithms.base"),
        ("algorithms.asvrcd", "randomness"),
        ("algorithms.asvrcd", "theory.stepsizes"),
        ("theory.instances", "problem"),
        ("theory.instances", "objectives.mixture"),
        ("theory.rates", "theory.constants"),
        ("problem", "objectives.base"),
        ("problem", "theory.constants"),
        ("objectives.mixture", "losses"),
        ("objectives.mixture", "clients"),
        ("objectives.base", "theory.constants"),
    ],
)
def test_the_contracts_allow(importer: str, imported: str) -> None:
    assert broken(f"twofold.{importer}", f"twofold.{imported}") == set()


def test_the_contracts_allow_flwr_in_its_own_engine() -> None:
    assert broken("twofold.engines.flower", "flwr") == set()


@pytest.mark.parametrize(
    "importer, imported, by",
    [
        *((module, "cli", "layers") for module in HOUSE if module != "cli"),
        ("solver", "paper.runner", "layers"),
        ("plots", "paper.runner", "layers"),
        ("extras", "data.files", "layers"),
        *(
            ("paper.runner", module, "paper")
            for module in ("solver", "problem", "metrics", "engines.simulate", "randomness")
        ),
        ("engines.simulate", "solver", "layers"),
        ("algorithms.base", "engines.simulate", "layers"),
        *(
            ("algorithms.asvrcd", module, "blind-algorithms")
            for module in (
                "problem",
                "objectives.base",
                "losses",
                "clients",
                "theory.instances",
                "data.files",
            )
        ),
        *(
            (module, above, "layers")
            for module in ("objectives.mixture", "losses", "clients")
            for above in ("problem", "algorithms.base", "engines.simulate", "solver")
        ),
        *(
            (module, f"theory.{numbers}", "numbers-for-problems")
            for module in ("problem", "objectives.mixture", "losses", "clients")
            for numbers in ("stepsizes", "rates", "instances")
        ),
        *((f"theory.{numbers}", "problem", "layers") for numbers in ("stepsizes", "rates", "constants")),
        ("theory.stepsizes", "theory.rates", "theory"),
        *(("data.files", module, "layers") for module in ("problem", "solver")),
        *((module, "data.files", "layers") for module in ("clients", "losses")),
    ],
)
def test_the_contracts_forbid(importer: str, imported: str, by: str) -> None:
    assert by in broken(f"twofold.{importer}", f"twofold.{imported}")


def test_the_contracts_forbid_flwr_elsewhere() -> None:
    assert broken("twofold.engines.simulate", "flwr") == {"flower"}


def test_a_new_module_must_be_given_its_place() -> None:
    assert broken("twofold.cli", "twofold.solver", [*HOUSE, "newcomer"]) == {"layers"}
