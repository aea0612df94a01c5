"""Objectives answer for themselves: their stages, their mixture's strength, what can be graded and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import problems
import twofold as tw
from twofold.objectives.two_stage import TwoStage


@pytest.mark.parametrize("name", problems.OBJECTIVES)
def test_stages_and_strength(name: str) -> None:
    objective = problems.OBJECTIVES[name]("logistic")
    assert objective.mixture_strength() == (0.5 if name == "mixture" else None)
    stages = objective.stages()
    assert (stages is not None) == isinstance(objective, TwoStage) == (name in problems.TWO_STAGES)
    if stages is not None:
        centre = np.ones(problems.FEATURES)
        assert stages.first.name == "traditional"
        assert stages.second(centre).name == "around"
        assert stages.second(centre).centre is centre
        assert stages.first.stages() is None and stages.second(centre).stages() is None


def own(w: Any, beta: Any, batch: Any) -> Any:
    return np.mean(batch.y)


@pytest.mark.parametrize(
    "objective, measure",
    [
        (tw.objectives.local(tw.losses.logistic()), "accuracy"),
        (tw.objectives.local(tw.losses.softmax(3)), "accuracy"),
        (tw.objectives.residual(tw.losses.squared()), "minus squared error"),
        (tw.objectives.multitask(tw.losses.squared(), 0.5, np.inf), "minus squared error"),
        (tw.objectives.local(tw.losses.custom(lambda p, x, y: x @ p, np.zeros(2))), "minus loss"),
        (tw.objectives.custom(own, 0.0, 0.0), "minus loss"),
        (tw.objectives.custom(own, 0.0, 0.0, grade=own), "grade"),
    ],
)
def test_measures(objective: Any, measure: str) -> None:
    assert objective.measure() == measure


@pytest.mark.parametrize(
    "name, parts",
    [
        ("traditional", ("shared",)),
        ("local", ("alone",)),
        ("mixture", ("shared", "alone")),
        ("multitask_inf", ("shared", "alone")),
        ("weight_sharing", ()),
        ("residual", ("shared", "alone")),
        ("custom", ()),
    ],
)
def test_parts(name: str, parts: tuple[str, ...]) -> None:
    problem = problems.problem(name, "logistic")
    assert problem.objective.parts(problem.clients) == parts


def test_only_complete_parameter_sets_are_whole_models() -> None:
    for name, make in problems.OBJECTIVES.items():
        objective = make("logistic")
        assert objective.whole_models == (
            objective.name in {"traditional", "local", "multitask", "mixture", "adaptive"}
        ), name
