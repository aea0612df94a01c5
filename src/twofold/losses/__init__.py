"""One client's loss f'(params, x, y): logistic, softmax, squared, or your own; each knows its curvature."""

from collections.abc import Callable
from typing import Any

from twofold.errors import NoSuchName, choose_from
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

ELSEWHERE = {
    "mse": "the squared error ½(ŷ − y)² is losses.squared()",
    "l2": "the squared error ½(ŷ − y)² is losses.squared(), and a ridge is an argument: losses.squared(l2=0.01)",
    "ridge": "ridge regression is losses.squared(l2=0.01)",
    "leastsquares": "least squares is losses.squared()",
    "linear": "linear regression is losses.squared()",
    "crossentropy": "cross-entropy is losses.softmax(classes), for two classes losses.logistic()",
    "bce": "cross-entropy of two classes is losses.logistic()",
    "logloss": "log-loss is losses.logistic(), for more than two classes losses.softmax(classes)",
    "multinomial": "multinomial regression is losses.softmax(classes)",
    "mlp": "a net is losses.net(module)",
    "hinge": "a loss of your own is losses.custom(fn, init=...)",
    "huber": "a loss of your own is losses.custom(fn, init=...)",
}
"""What the field calls some of these, and where it is."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python's own questions
        raise AttributeError(f"module 'twofold.losses' has no attribute {name!r}")
    where = ELSEWHERE.get(name.lower().replace("_", ""))
    if where is not None:
        raise NoSuchName(f"There is no losses.{name}: {where}.")
    names = [*REGISTRY, "custom", "net"]
    raise NoSuchName(choose_from(f"There is no losses.{name}", name.lower(), names))
