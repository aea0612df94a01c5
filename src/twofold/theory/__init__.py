"""Theory is numbers you can call: constants of a problem, step sizes from constants, rates from both."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twofold.theory import constants, cost, rates, stepsizes, stepsizes_newer, tight
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.cost import Cost
from twofold.theory.rates import (
    LowerBounds,
    Prediction,
    Rate,
    Table,
    chain_rounds,
    lower_bounds,
    predict,
    table1,
    table2,
)

if TYPE_CHECKING:
    from twofold.theory import instances
    from twofold.theory.forecasting import Forecast, MethodForecast, RoundsCost, cost_of_rounds, forecast, stages
    from twofold.theory.instances import lower_bound_instance

__all__ = [
    "Constants",
    "Cost",
    "Forecast",
    "LossConstants",
    "LowerBounds",
    "MethodForecast",
    "Prediction",
    "Rate",
    "RoundsCost",
    "Table",
    "chain_rounds",
    "constants",
    "cost",
    "cost_of_rounds",
    "forecast",
    "instances",
    "lower_bound_instance",
    "lower_bounds",
    "predict",
    "rates",
    "stages",
    "stepsizes",
    "stepsizes_newer",
    "table1",
    "table2",
    "tight",
]


_LAZY = {
    "instances": ("instances", None),
    "lower_bound_instance": ("instances", "lower_bound_instance"),
    "RoundsCost": ("forecasting", "RoundsCost"),
    "Forecast": ("forecasting", "Forecast"),
    "MethodForecast": ("forecasting", "MethodForecast"),
    "cost_of_rounds": ("forecasting", "cost_of_rounds"),
    "forecast": ("forecasting", "forecast"),
    "stages": ("forecasting", "stages"),
}
"""What knows a problem: imported on first use, since problems import us."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'twofold.theory' has no attribute {name!r}")
    module, inside = _LAZY[name]
    found = import_module(f"twofold.theory.{module}")
    return found if inside is None else getattr(found, inside)
