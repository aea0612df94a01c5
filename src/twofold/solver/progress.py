"""While a run goes on: a progress bar, and a way to stop it that loses nothing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupt", "bar"]


class Interrupt:
    """Inside, Ctrl-C only sets `asked`, so that a run can end at a good place; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self._mine = False

    def __enter__(self) -> Interrupt:
        # Elsewhere (in a thread, or where somebody has another handler) Ctrl-C keeps its meaning.
        main = threading.current_thread() is threading.main_thread()
        self._mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._mine:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def bar(progress: bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with rich when run on a terminal (or when asked for), else nothing."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("rounds", total=total)
        yield lambda done: shown.update(task, completed=min(done, total))
