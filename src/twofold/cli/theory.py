"""`twofold theory`."""
# Typer's `Option` and `Argument` are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.base import ConfigArgument, SetOption, X64Option, friendly, rich_table, show
from twofold.cli.opening import open_config

if TYPE_CHECKING:
    from rich.console import RenderableType

    from twofold.algorithms import Algorithm
    from twofold.config import Built, Config
    from twofold.problem import Problem
    from twofold.theory import Constants, Forecast

__all__ = ["theory"]


@friendly
def theory(
    config: ConfigArgument,
    tol: Annotated[float, typer.Option(help="The accuracy to predict for, relative to the initial error.")] = 1e-3,
    every_method: Annotated[bool, typer.Option("--all", help="Predict for every method, not just the file's.")] = False,
    set_: SetOption = None,
    x64: X64Option = None,
) -> None:
    """Say what theory knows before anything runs: constants, step sizes, predicted rounds and bytes.

    The data is read, but nothing is trained. Predictions are upper bounds on expectations; a run may well be faster.
    `twofold.theory.forecast` gives the same in Python.
    """
    if not 0 < tol < 1:
        raise typer.BadParameter(f"must lie between 0 and 1, got {tol:g}.", param_hint="--tol")
    settings = open_config(config, set_, x64)
    built = settings.build()
    from twofold.theory import forecast, stages

    objective = built.problem.objective
    show(
        f"{settings.name}: {objective.name}, {objective.equation}, by {settings.algorithm.registered.name}",
        built.provenance,
    )
    problems = stages(built.problem)
    for number, stage in enumerate(problems, 1):
        if len(problems) > 1:
            show(f"\nStage {number}: {stage.objective.equation}")
        method, posed, why = _method(settings, built, stage)
        found = forecast(
            posed,
            tol,
            None if every_method else [method],
            seed=settings.seeds[0],
            cost=settings.run.cost,
            seconds=settings.budget.get("seconds"),
        )
        show(
            *why,
            _constants(found.constants),
            *_steps(settings, method, posed),
            *_predictions(found),
            *_budget(settings, method, posed),
        )


def _method(settings: Config, built: Built, stage: Problem) -> tuple[Algorithm, Problem, list[str]]:
    """The file's method, the problem in the variables that it works on, and, where auto chose them, why."""
    if built.algorithm != "auto":
        return built.algorithm, stage, []
    from twofold.solver import Budget
    from twofold.solver.auto import choose_for

    some = settings.run.participation is not None
    chosen = choose_for(stage, settings.run.cost, Budget.asked("auto", **settings.budget), some)
    return chosen.algorithm, chosen.problem, [chosen.why]


def _constants(constants: Constants) -> RenderableType:
    from twofold.theory.constants import SYMBOLS

    body = [
        [symbol, f"{getattr(constants, name):.6g}", constants.how[name], constants.why[name]]
        for name, symbol in SYMBOLS.items()
    ]
    return rich_table("Constants of F in the scaled space", ["", "value", "how", "why"], body, right=["value"])


def _steps(settings: Config, method: Algorithm, problem: Problem) -> list[RenderableType]:
    """The hyper-parameters of the file's method, and where each comes from."""
    from twofold.solver import complete

    algorithm, note = complete(problem, method, cost=settings.run.cost)
    body = [
        [name, _value(name, getattr(algorithm, name)), _origin(settings, method, algorithm, name)]
        for name in (field.name for field in dataclasses.fields(algorithm))  # type: ignore[arg-type]
    ]
    table = rich_table(f"Hyper-parameters of {algorithm.name}", ["", "value", "from"], body, right=["value"])
    return [table, *([f"note: {note}"] if note else [])]


def _origin(settings: Config, before: Algorithm, after: Algorithm, name: str) -> str:
    if name in settings.algorithm.model_fields_set:
        return "file"
    return "default" if getattr(before, name) is not None or getattr(after, name) is None else "theory"


def _value(name: str, value: object) -> str:
    if value is None:
        return "all" if name == "batch" else "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _predictions(found: Forecast) -> list[RenderableType]:
    columns, body = found.table()
    table = [rich_table(found.title, columns, body, right=columns[1:])] if body else []
    return [*table, *(f"note: {note}" for note in found.notes)]


def _budget(settings: Config, method: Algorithm, problem: Problem) -> list[RenderableType]:
    """What the file's own number of rounds will cost."""
    from twofold.engines.memory import in_words as size
    from twofold.theory import cost_of_rounds

    rounds, seed = settings.budget.get("rounds"), settings.seeds[0]
    if rounds is None or not problem.has_shared:
        return []
    cost = cost_of_rounds(problem, method, rounds, seed, cost=settings.run.cost)
    if cost is None:
        return [f"The file's {rounds:,} rounds take more than a million iterations."]
    return [
        f"The file's {rounds:,} rounds are {cost.iterations:,} iterations and {size(cost.bytes)} sent and received by each "
        f"client, exactly (seed {seed}; the coins are known beforehand)."
    ]
