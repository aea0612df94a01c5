"""Theory is numbers you can call: constants of a problem, step sizes from constants, rates from both."""

from importlib import import_module
from typing import Any

from twofold.theory import constants, cost, rates, stepsizes, tight
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.cost import Cost
from twofold.theory.rates import LowerBounds, Prediction, Table, chain_rounds, lower_bounds, predict, table1, table2

__all__ = [
    "Constants",
    "Cost",
    "LossConstants",
    "LowerBounds",
    "Prediction",
    "Table",
    "chain_rounds",
    "constants",
    "cost",
    "lower_bounds",
    "predict",
    "rates",
    "stepsizes",
    "table1",
    "table2",
    "tight",
]


def __getattr__(name: str) -> Any:
    """`instances` and its `lower_bound_instance` on first use: they alone know a problem, and problems import us."""
    if name == "instances":
        return import_module("twofold.theory.instances")
    if name == "lower_bound_instance":
        return import_module("twofold.theory.instances").lower_bound_instance
    raise AttributeError(f"module 'twofold.theory' has no attribute {name!r}")
