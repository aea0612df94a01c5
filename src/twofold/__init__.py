"""twofold: personalised federated learning. Every client's model is twofold: a part shared by all (w), a part of its own (β)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twofold import algorithms, data, losses, objectives, theory
    from twofold.clients import ClientError, Clients
    from twofold.errors import TwofoldError
    from twofold.evaluate import EvaluateModule
    from twofold.problem import Problem
    from twofold.result import History, Ledger, Result, Results
    from twofold.solver import Participation, TheoryWarning, solve
    from twofold.theory.cost import Cost

    evaluate: EvaluateModule  # a module that can be called: tw.evaluate(problem, result, test)

_HOMES = {
    "Clients": "clients",
    "ClientError": "clients",
    "Problem": "problem",
    "TwofoldError": "errors",
    "solve": "solver",
    "TheoryWarning": "solver",
    "Participation": "solver",
    "Cost": "theory.cost",
    "Result": "result",
    "Results": "result",
    "History": "result",
    "Ledger": "result",
}
_MODULES = ("algorithms", "data", "evaluate", "losses", "objectives", "theory")

__all__ = [
    "ClientError", "Clients", "Cost", "History", "Ledger", "Participation", "Problem", "Result", "Results", "TheoryWarning",
    "TwofoldError", "algorithms", "data", "evaluate", "losses", "objectives", "solve", "theory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import twofold` (and the command line's --help) stays quick."""
    if name in _HOMES:
        value = getattr(import_module(f"twofold.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"twofold.{name}")
    elif name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("twofold")
        except PackageNotFoundError:  # run from a source folder on the path, not installed
            value = "0+source"
    else:
        raise AttributeError(f"module 'twofold' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
