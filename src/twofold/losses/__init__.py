"""One client's loss f'(params, x, y): logistic, softmax, squared, or your own; each knows its curvature."""

from collections.abc import Callable
from typing import Any

from twofold.losses.base import Batch, Held, Rows, by_row, mean_by_row
from twofold.losses.custom import Custom, custom
from twofold.losses.linear import Linear, Link, logistic, softmax, squared
from twofold.losses.net import Net, net

REGISTRY: dict[str, Callable[..., Any]] = {"logistic": logistic, "softmax": softmax, "squared": squared}
"""The losses that a configuration file can name."""

__all__ = [
    "REGISTRY", "Batch", "Custom", "Held", "Linear", "Link", "Net", "Rows", "by_row", "custom", "logistic", "mean_by_row", "net",
    "softmax", "squared",
]  # fmt: skip
