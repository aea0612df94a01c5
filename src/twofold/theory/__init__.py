"""Theory is numbers you can call: constants of a problem, step sizes from constants, rates from both."""

from twofold.theory import constants, rates, stepsizes
from twofold.theory.constants import Constants, LossConstants
from twofold.theory.rates import LowerBounds, Prediction, Table, chain_rounds, lower_bounds, predict, table1, table2

__all__ = [
    "Constants",
    "LossConstants",
    "LowerBounds",
    "Prediction",
    "Table",
    "chain_rounds",
    "constants",
    "lower_bounds",
    "predict",
    "rates",
    "stepsizes",
    "table1",
    "table2",
]
