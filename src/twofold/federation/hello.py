"""What a client says of itself before the first round, field by field: a number that step sizes are made from is looked at first."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from twofold.federation import contract
from twofold.federation.seat import asked_about
from twofold.federation.study import Study
from twofold.federation.tells import TELLS
from twofold.federation.wire import Refused, number_in, whole_in

__all__ = ["Hello", "heard"]

CONSTANTS = ("mu", "L", "calL")
MOST = 1e100
"""Beyond this no curvature of anybody's is a number that one can compute with."""
ROWS = 10**15


class Hello(NamedTuple):
    """What one client tells, and what it is willing to tell later."""

    told: dict[str, Any]
    tells: list[str]
    commitment: str


def heard(who: str, about: dict[str, Any], study: Study) -> Hello:
    """A client's hello, if it is one; else it is refused by name and field."""
    _check_setting(who, about, study)
    tells, told = about.get("tells"), about.get("told")
    if not (isinstance(tells, list) and all(isinstance(word, str) and word in TELLS for word in tells)):
        raise Refused(who, f"tells must be a list of {', '.join(TELLS)}, got {tells!r}")
    if not isinstance(told, dict):
        raise Refused(who, f"told must be numbers by name, got {told!r}")
    for name in told:
        if name not in (*CONSTANTS, "rows", "epsilon", "delta"):
            raise Refused(who, f"tells {name!r}, for which nobody has asked")
    if any(name in told for name in CONSTANTS):
        _check_constants(who, told, study)
    if "rows" in told:
        whole_in(who, told, "rows", 1, ROWS)
    if "epsilon" in told or "delta" in told:
        number_in(who, told, "epsilon", 0.0, math.inf)
        number_in(who, told, "delta", 0.0, 1.0)
    return Hello(dict(told), list(tells), about["commitment"])


def _check_setting(who: str, about: dict[str, Any], study: Study) -> None:
    """The precision that a client computes in, and its commitment."""
    if not isinstance(about.get("x64"), bool):
        raise Refused(who, f"x64 must be true or false, got {about.get('x64')!r}")
    if about["x64"] != (study.dtype == "float64"):
        raise Refused(who, f"does not compute in {study.dtype}, as the study says")
    if not contract.is_commitment(about.get("commitment")):
        raise Refused(who, f"sent commitment = {repr(about.get('commitment'))[:60]}, which is no digest")


def _check_constants(who: str, told: dict[str, Any], study: Study) -> None:
    """μ', L' and 𝓛' of each set of columns that the objective asks about: 0 ≤ μ' ≤ L', and L' and 𝓛' above zero."""
    sets = len(asked_about(study.loss, study.stand_in))
    for name in CONSTANTS:
        values = told.get(name)
        if not (isinstance(values, list) and len(values) == sets):
            raise Refused(who, f"{name} must be a list of {sets}, one for each set of columns, got {values!r}")
        for i in range(sets):
            number_in(who, {f"{name}[{i}]": values[i]}, f"{name}[{i}]", 0.0, MOST)
    for i, (least, most, alone) in enumerate(zip(*(told[name] for name in CONSTANTS), strict=True)):
        if min(most, alone) <= 0:
            raise Refused(who, f"L[{i}] and calL[{i}] must be above 0, got {most:g} and {alone:g}")
        if least > most * (1 + np.sqrt(np.finfo(np.float32).eps)):  # rounding apart
            raise Refused(who, f"mu[{i}] must be at most L[{i}], got {least:g} and {most:g}")
