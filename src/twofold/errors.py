"""One family of errors: every mistake that twofold reports is a `TwofoldError` and also a built-in such as ValueError.

Any other exception is a bug, in twofold or in the user's own function, and deserves its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError", "ContractError", "InputError", "KindError", "MissingExtra", "NoSuchName", "NotFound", "TwofoldError",
    "choose_from",
]  # fmt: skip


class TwofoldError(Exception):
    """A mistake that the user can fix; the message says what is wrong and what to do.

    >>> import twofold as tw
    >>> try:
    ...     tw.losses.logistic(l2=-1)
    ... except tw.TwofoldError as mistake:
    ...     print(mistake)
    The ridge must be a number ≥ 0, got l2=-1.
    """


class InputError(TwofoldError, ValueError):
    """A value that cannot be used.

    >>> import twofold as tw
    >>> try:
    ...     tw.objectives.mixture(tw.losses.logistic(), lam=-1)
    ... except ValueError as mistake:
    ...     print(mistake)
    lam must be a finite number > 0, got lam=-1.
    """


class KindError(TwofoldError, TypeError):
    """An object of the wrong type.

    >>> import twofold as tw
    >>> try:
    ...     tw.objectives.custom("not a function", 0.0, 0.0)
    ... except TypeError as mistake:
    ...     print(mistake)
    objectives.custom needs a function f(w, beta, batch), got str.
    """


class NotFound(TwofoldError, KeyError):  # noqa: N818  (reads as what it is)
    """A name that was looked up and does not exist, such as a column of a history.

    >>> import twofold as tw
    >>> try:
    ...     tw.History({"loss": [0.5]})["los"]
    ... except KeyError as mistake:
    ...     print(mistake)
    The history has no column 'los'; it has loss.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the message in quotes


class NoSuchName(TwofoldError, AttributeError):  # noqa: N818
    """A name that a module of twofold does not have; the message says what to write instead.

    >>> import twofold as tw
    >>> try:
    ...     tw.objectives.ditto
    ... except AttributeError as mistake:
    ...     print(mistake)
    There is no objectives.ditto: Ditto is objectives.multitask(loss, lam=..., Lambda=float('inf')).
    """


class ContractError(TwofoldError, TypeError):
    """A user's class that breaks a contract, such as that of `twofold.algorithms.Algorithm`.

    >>> from twofold.errors import ContractError
    >>> issubclass(ContractError, TypeError)
    True
    """


class CheckpointError(TwofoldError, ValueError):
    """A checkpoint that is damaged or belongs to another run.

    >>> from twofold.errors import CheckpointError
    >>> issubclass(CheckpointError, ValueError)
    True
    """


class MissingExtra(TwofoldError, ImportError):  # noqa: N818
    """An optional library is not installed; the message gives the command that installs it.

    >>> from twofold.errors import MissingExtra
    >>> print(MissingExtra("History.to_pandas", "sklearn"))
    History.to_pandas needs a library that is not installed: pip install 'twofold[sklearn]'
    """

    def __init__(self, what: str, extra: str, library: str | None = None) -> None:
        named = "a library that" if library is None else f"{library}, which"
        super().__init__(f"{what} needs {named} is not installed: pip install 'twofold[{extra}]'")


def choose_from(complaint: str, found: str, allowed: Iterable[str]) -> str:
    """A message about an unknown name: the complaint, the allowed names, and the one closest to what was found.

    >>> choose_from("There is no loss 'logisti'", "logisti", ["logistic", "squared"])
    "There is no loss 'logisti': choose from logistic, squared; did you mean logistic?"
    """
    names = list(allowed)
    near = difflib.get_close_matches(found, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{complaint}: choose from {', '.join(names)}{hint}"
