"""twofold: personalised federated learning. Every client's model is twofold: a part shared by all (w), a part of its own (β)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twofold import algorithms, data, losses, methods, objectives, theory, track
    from twofold.clients import ClientError, Clients
    from twofold.errors import TwofoldError
    from twofold.evaluate import EvaluateModule
    from twofold.model import Model, load
    from twofold.plots import plot
    from twofold.problem import Problem
    from twofold.registry import register
    from twofold.result import Best, History, Ledger, Result, Results
    from twofold.solver import Participation, TheoryWarning, solve
    from twofold.theory.cost import Cost
    from twofold.tune import TuneModule

    evaluate: EvaluateModule  # a module that can be called: tw.evaluate(problem, result, test)
    tune: TuneModule  # and another: tw.tune(objective, clients)

_HOMES = {
    "Clients": "clients",
    "ClientError": "clients",
    "Problem": "problem",
    "Model": "model",
    "load": "model",
    "TwofoldError": "errors",
    "solve": "solver",
    "TheoryWarning": "solver",
    "Participation": "solver",
    "Cost": "theory.cost",
    "Result": "result",
    "Results": "result",
    "Best": "result",
    "History": "result",
    "Ledger": "result",
    "plot": "plots",
    "register": "registry",
}
_MODULES = ("algorithms", "data", "evaluate", "losses", "methods", "objectives", "theory", "track", "tune")

__all__ = [
    "Best",
    "ClientError",
    "Clients",
    "Cost",
    "History",
    "Ledger",
    "Model",
    "Participation",
    "Problem",
    "Result",
    "Results",
    "TheoryWarning",
    "TwofoldError",
    "algorithms",
    "data",
    "evaluate",
    "load",
    "losses",
    "methods",
    "objectives",
    "plot",
    "register",
    "solve",
    "theory",
    "track",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import twofold` (and the command line's --help) stays quick."""
    if name in _HOMES:
        value = getattr(import_module(f"twofold.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"twofold.{name}")
    elif name == "__version__":
        from twofold.extras import version

        value = version()
    else:
        from twofold.errors import NoSuchName

        raise NoSuchName(f"module 'twofold' has no attribute {name!r}{_elsewhere(name)}")
    globals()[name] = value
    return value


def _elsewhere(name: str) -> str:
    """Where a name of ours is. Python also asks here before it imports a module of ours: for these nothing is imported."""
    if name.startswith("_") or find_spec(f"twofold.{name}") is not None:
        return ""
    for module in ("losses", "objectives", "methods", "algorithms"):
        home = import_module(f"twofold.{module}")
        found = next((spelt for spelt in (name, name.lower()) if spelt in home.__all__), None)
        if found is not None:
            return f"; it is tw.{module}.{found}"
    return ""


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
