"""While a run goes on: a progress bar, and a way to stop it that loses nothing."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

__all__ = ["Interrupt", "bar", "in_notebook"]

S = TypeVar("S")
T = TypeVar("T")


class Interrupt:
    """Inside, Ctrl-C only sets `asked`, so that a run can end at a good place; a second Ctrl-C ends it at once.

    It may be entered again while it is entered: several runs in a row share one, and end together.
    """

    def __init__(self) -> None:
        self.asked = False
        self._mine = False
        self._entered = 0

    def __enter__(self) -> Interrupt:
        self._entered += 1
        if self._entered > 1:
            return self
        # Elsewhere (in a thread, or where somebody has another handler) Ctrl-C keeps its meaning.
        main = threading.current_thread() is threading.main_thread()
        self._mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._mine:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._mine and not self._entered:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def runs(self, solve: Callable[[S], T], seeds: Iterable[S]) -> list[T]:
        """One run after the other, until Ctrl-C: seeds whose turn had not come by then are left out."""
        found: list[T] = []
        with self:
            for seed in seeds:
                found.append(solve(seed))
                if self.asked:
                    break
        return found

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def bar(progress: bool | None, total: int) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal and in a notebook (or when asked for), else nothing."""
    notebook = in_notebook()
    if progress is False or (progress is None and not sys.stderr.isatty() and not notebook):
        yield lambda done: None
        return
    if notebook and importlib.util.find_spec("ipywidgets") is None:  # what rich's bar needs there
        yield from _line(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=not notebook), transient=True) as shown:
        task = shown.add_task("rounds", total=total)
        yield lambda done: shown.update(task, completed=min(done, total))


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook; its output is no terminal, but somebody is looking."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _line(total: int) -> Iterator[Callable[[int], None]]:
    """One line that is written over: all that a notebook without widgets can do."""
    last = -1

    def tell(done: int) -> None:
        nonlocal last
        share = 100 * min(done, total) // max(total, 1)
        if share > last:
            last = share
            print(f"\r{min(done, total):,} of {total:,} rounds", end="", flush=True)

    yield tell
    if last >= 0:
        print("\r" + " " * 40 + "\r", end="", flush=True)
