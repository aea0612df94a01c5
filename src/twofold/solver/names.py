"""Sentences for names that `solve` does not know: what to write instead."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping

from twofold.algorithms import METHODS, REGISTRY
from twofold.errors import InputError, KindError

__all__ = ["refuse_arguments", "unknown_algorithm"]

ELSEWHERE: dict[str, str] = {
    "fedavg": "FedAvg is lsgd on one shared model: Problem(objectives.traditional(loss), clients) and algorithms.LSGD(tau=...)",
    "fedsgd": "FedSGD is lsgd with one local step: Problem(objectives.traditional(loss), clients) and algorithms.LSGD(tau=1)",
    "fedper": "FedPer is a model of which some weights are shared: objectives.weight_sharing(loss, split), with any algorithm",
    "lgfedavg": "LG-FedAvg is a model of which some weights are shared: objectives.weight_sharing(loss, split), with any algorithm",
    "ditto": "Ditto's objective is objectives.multitask(loss, lam=..., Lambda=float('inf')), with any algorithm",
    "apfl": "APFL's objective is objectives.adaptive(loss, alpha=...), with any algorithm",
    "perfedavg": "Per-FedAvg's objective is objectives.maml(loss, alpha=...), with lsgd",
    "maml": "MAML is an objective: objectives.maml(loss, alpha=...), with any algorithm",
    "sgd": "SGD on the clients is lsgd; with sampled gradients in turns of w and β it is scd",
    "fedrep": "theory has no step sizes for FedRep",
    "scaffold": "theory has no step sizes for Scaffold",
}
"""Names of the field that `solve` does not take, without dashes, and what they are here."""


def unknown_algorithm(name: object) -> InputError:
    """The error for a name that no algorithm has.

    >>> print(unknown_algorithm("Ditto"))
    Unknown algorithm 'Ditto': Ditto's objective is objectives.multitask(...), with any algorithm; with learning rates, ...
    """
    module, called = getattr(name, "__module__", ""), getattr(name, "__name__", getattr(name, "name", ""))
    if module.startswith("twofold.methods."):  # a Method, or the function that makes one
        made = "method" if hasattr(name, "algorithm") else f"tw.methods.{called}(...)"
        return InputError(
            f"{called} of tw.methods is an objective and an algorithm in one, which solve takes apart: say {made}.fit(clients, "
            f"rounds=100), or with method = {made}, tw.solve(method.problem(clients), method.algorithm, rounds=100)."
        )
    if not isinstance(name, str):
        return InputError(
            f"An algorithm is a name, such as {next(iter(REGISTRY))!r}, or an instance, such as tw.algorithms.ACD(), got "
            f"{type(name).__name__}."
        )
    plain = name.lower().replace("_", "").replace("-", "")
    said = [ELSEWHERE[plain]] if plain in ELSEWHERE else []
    if plain in METHODS:
        said.append(f"with learning rates, as published, tw.methods.{METHODS[plain]}.fit(clients, rounds=100)")
    if said:
        return InputError(f"Unknown algorithm {name!r}: {'; '.join(said)}.")
    near = difflib.get_close_matches(str(name).lower(), REGISTRY, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown algorithm {name!r}; there are {', '.join(REGISTRY)}.{hint}")


def refuse_arguments(solve: Callable[..., object], algorithm: object, unknown: Mapping[str, object]) -> None:
    """Raise if there is an argument that `solve` does not have; a field of the algorithm gets the call that sets it.

    >>> def solve(problem, *, rounds=None): ...
    >>> try:
    ...     refuse_arguments(solve, "lsgd", {"eta": 0.1})
    ... except TypeError as mistake:
    ...     print(mistake)
    eta is a field of the algorithm, not an argument of solve: write tw.solve(problem, tw.algorithms.LSGD(eta=0.1), ...).
    """
    for name, value in unknown.items():
        kind = _kind_with(name, algorithm)
        if kind is not None:
            raise KindError(
                f"{name} is a field of the algorithm, not an argument of solve: write tw.solve(problem, "
                f"tw.algorithms.{kind}({name}={value!r}), ...)."
            )
        arguments = [
            p.name
            for p in inspect.signature(solve).parameters.values()
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        near = difflib.get_close_matches(name, arguments, n=1)
        raise KindError(f"solve has no argument {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}")


def _kind_with(field: str, algorithm: object) -> str | None:
    """The class of the algorithm meant, or of any other, that has such a field."""
    meant = REGISTRY.get(algorithm) if isinstance(algorithm, str) else type(algorithm)
    classes: Iterable[type] = [*([] if meant is None else [meant]), *REGISTRY.values()]
    for found in classes:
        if dataclasses.is_dataclass(found) and field in {f.name for f in dataclasses.fields(found)}:
            return found.__name__
    return None
