"""A model that travels: predict, adapt, save and load, without anybody's training rows."""

from twofold.model.base import Model, load
from twofold.model.inputs import Inputs, check_features

__all__ = ["Inputs", "Model", "check_features", "load"]
