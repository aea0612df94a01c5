"""Processes that need not import everything anew: one process imports the command line once, and forks for every command.

They are processes like others, to be killed and stopped, with memory, threads, sockets and a precision of their own. What
they share is that libraries are imported already, which is most of what a start costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Zygote:
    """The process that forks. Nothing runs in it but imports, so it has no threads that a fork could lose."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **question: Any) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, command: list[str], log: Path, before: str = "") -> Forked:
        """Start `python -m twofold.cli ...`; what it says is added to a file. `before` is code that it runs first."""
        python, module, name, *words = command
        assert (python, module, name) == (sys.executable, "-m", "twofold.cli")
        return Forked(self, self.ask(start=words, log=str(log), before=before))

    def end(self) -> None:
        """Nobody is started any more."""
        self._process.communicate()


class Forked:
    """What `subprocess.Popen` is for a process of its own."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.zygote, self.pid = zygote, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, if it has."""
        if self.returncode is None:
            self.returncode = self.zygote.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float = 300.0) -> int:
        """How it ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.poll() is None:  # a process that has not been waited for keeps its number
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(15)

    def kill(self) -> None:
        """End it."""
        self.send_signal(9)


def become(words: list[str], log: str, before: str) -> None:
    """From here on this is the process of a command."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, goal in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(number, goal)
    sys.argv = ["twofold", *words]
    exec(before, {})

    from twofold.cli import main

    main()


def serve() -> None:
    """Fork when asked to, and say how those ended that were forked."""
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            become(question["start"], question["log"], question["before"])
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    import importlib
    import threading

    for each in sys.argv[1:]:
        importlib.import_module(each)
    assert threading.active_count() == 1
    serve()
