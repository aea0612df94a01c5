"""One look for a method everywhere: its name in print, its colour, its dash and its mark; on screen, in print, on the page.

Colours are Okabe and Ito's, distinguishable with any colour blindness; dashes and marks tell methods apart without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["COLOURS", "DASHES", "METHODS", "OTHERS", "SYMBOLS", "Look", "look", "looks"]

COLOURS = {
    "blue": "#0072B2",
    "red": "#D55E00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "ink": "#000000",
    "grey": "#767676",
}
"""Colours by the names that the page's style sheet has for them too (there with a dark variant each)."""
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 1.5)),
    "dot": (0, (1, 1)),
    "dashdot": (0, (5, 1, 1, 1)),
    "longdash": (0, (8, 2)),
}
"""Dashes by Plotly's names, as matplotlib wants them."""
SYMBOLS = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left",
    ">": "triangle-right", "X": "x", "P": "cross", "*": "star", "": "circle",
}  # fmt: skip
"""Plotly's names of matplotlib's marks."""


class Look(NamedTuple):
    """How a line is drawn: what the legend calls it, a name in `COLOURS`, one in `DASHES`, and matplotlib's mark.

    >>> look("asvrcd").title, look("asvrcd").colour
    ('ASVRCD', 'blue')
    """

    title: str
    colour: str
    dash: str
    mark: str

    @property
    def line(self) -> dict[str, Any]:
        """The keywords that make matplotlib draw it so."""
        return {"color": COLOURS[self.colour], "linestyle": DASHES[self.dash]}


METHODS: dict[str, Look] = {
    "lsgd": Look("LSGD", "ink", "dash", "<"),
    "ascd": Look("ASCD", "red", "solid", "s"),
    "asvrcd": Look("ASVRCD", "blue", "solid", "o"),
    "l2sgd_plus": Look("L2SGD+", "green", "dashdot", "D"),
    "pfedme": Look("pFedMe", "pink", "longdash", "^"),
    "hybrid": Look("hybrid", "orange", "solid", "v"),
    "acd": Look("ACD", "sky", "solid", ">"),
    "scd": Look("SCD", "red", "dot", "P"),
    "svrcd": Look("SVRCD", "blue", "dot", "X"),
    "asvrcd (ρ = p_w)": Look("ASVRCD, ρ = p_w", "pink", "solid", "*"),
    "profile": Look("profile", "green", "solid", "*"),
    "fedprox": Look("FedProx", "ink", "dot", "v"),
    "scaffnew": Look("Scaffnew", "orange", "dash", "s"),
    "scafflix": Look("Scafflix", "orange", "dashdot", "^"),
    "al2sgd_plus": Look("AL2SGD+", "green", "dash", "o"),
    "saga": Look("SAGA", "pink", "dash", "D"),
    "theory": Look("theory’s guarantee for ACD", "grey", "dash", ""),
    "lower bound": Look("lower bound for any method", "grey", "dot", ""),
}
"""The looks of known methods. A new method may be given one here; without, it takes a free one of `OTHERS`."""
OTHERS = (
    ("blue", "solid", "o"), ("red", "longdash", "s"), ("green", "dash", "D"), ("pink", "dashdot", "^"),
    ("orange", "dot", "v"), ("sky", "solid", "<"), ("ink", "dash", ">"), ("grey", "dot", "X"), ("red", "solid", "P"),
    ("green", "solid", "*"),
)  # fmt: skip
"""Colour, dash and mark of lines that are no known method, in order."""


def look(method: str, place: int = 0, title: str | None = None) -> Look:
    """The look of a method; of another line, the one that belongs to its place in the figure.

    >>> look("acd").colour, look("mine", place=1).colour, look("mine").title
    ('sky', 'red', 'mine')
    """
    if method in METHODS:
        found = METHODS[method]
        return found if title is None else found._replace(title=title)
    return Look(title or method, *OTHERS[place % len(OTHERS)])


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each of several lines: known methods keep theirs, the others take those that are free.

    >>> found = looks(["asvrcd", "mine"])
    >>> found["asvrcd"].colour, found["mine"].colour
    ('blue', 'red')
    """
    names = list(dict.fromkeys(methods))
    taken = {METHODS[name][1:3] for name in names if name in METHODS}
    free = [other for other in OTHERS if other[:2] not in taken] or list(OTHERS)
    found: dict[str, Look] = {}
    strangers = 0
    for name in names:
        if name in METHODS:
            found[name] = METHODS[name]
        else:
            found[name] = Look(name, *free[strangers % len(free)])
            strangers += 1
    return found
