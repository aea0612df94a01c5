"""What a client is willing to tell besides messages."""

from __future__ import annotations

from twofold.errors import InputError
from twofold.federation.dp import Noise
from twofold.federation.study import Study

__all__ = ["TELLS", "check_tells", "usual_tells"]

TELLS = ("constants", "rows", "loss", "gap")
"""What a node may be willing to tell besides messages; its part of the gap only where the study has a tolerance."""


def usual_tells(study: Study) -> tuple[str, ...]:
    """What a node tells that was not told what to tell: what a study cannot do without, and no loss."""
    return ("constants", "rows") + (("gap",) if study.tolerance is not None else ())


def check_tells(study: Study, tells: tuple[str, ...], noise: Noise | None) -> None:
    """Refuse what cannot be told, and what must be."""
    for unknown in set(tells) - set(TELLS):
        raise InputError(f"A node tells {', '.join(TELLS)}, not {unknown!r}.")
    if noise is not None and study.tolerance is not None:
        raise InputError(
            "With noise for privacy a node tells no part of the gap: the study must have no [stop] tolerance."
        )
    if noise is not None and {"constants", "loss"} & set(tells):
        raise InputError("With noise for privacy a node tells neither constants nor its loss: --tell rows, or nothing.")
    if study.tolerance is not None and "gap" not in tells:
        raise InputError(
            f"The study ends at a certified gap of {study.tolerance:g}, to which every client tells its part: join with --tell "
            f"{','.join((*tells, 'gap'))}, or agree on a study without [stop] tolerance."
        )
