"""One family of errors: everything that twofold tells a user about is a `TwofoldError`, and also the built-in people catch.

Whatever is not a `TwofoldError` is a bug of ours (or of the user's own function), and deserves its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError", "ContractError", "InputError", "KindError", "MissingExtra", "NotFound", "TwofoldError", "choose_from",
]  # fmt: skip


class TwofoldError(Exception):
    """A mistake that the user can mend; the message says what is wrong and what to do.

    >>> import twofold as tw
    >>> try:
    ...     tw.losses.logistic(l2=-1)
    ... except tw.TwofoldError as mistake:
    ...     print(mistake)
    The ridge must be a number ≥ 0, got l2=-1.
    """


class InputError(TwofoldError, ValueError):
    """A value that cannot be used."""


class KindError(TwofoldError, TypeError):
    """A thing of another kind than is needed here."""


class NotFound(TwofoldError, KeyError):  # noqa: N818  (reads as what it is)
    """A name that nothing here has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the message in quotes


class ContractError(TwofoldError, TypeError):
    """An algorithm that does not keep the contract of `twofold.algorithms.Algorithm`."""


class CheckpointError(TwofoldError, ValueError):
    """A checkpoint that is damaged, or belongs to another run."""


class MissingExtra(TwofoldError, ImportError):  # noqa: N818
    """An optional library that is not installed; the message is the command that installs it."""

    def __init__(self, what: str, extra: str, library: str | None = None) -> None:
        named = "a library that" if library is None else f"{library}, which"
        super().__init__(f"{what} needs {named} is not installed: pip install 'twofold[{extra}]'")


def choose_from(complaint: str, found: str, allowed: Iterable[str]) -> str:
    """A sentence about an unknown name: the complaint, what there is, and the nearest name to the one found.

    >>> choose_from("There is no loss 'logisti'", "logisti", ["logistic", "squared"])
    "There is no loss 'logisti': choose from logistic, squared; did you mean logistic?"
    """
    names = list(allowed)
    near = difflib.get_close_matches(found, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{complaint}: choose from {', '.join(names)}{hint}"
