"""Headless Chromium for tests, driven through a pipe by the DevTools protocol; nothing else is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"),
    *("--remote-debugging-pipe", "about:blank"),
]
MUST = os.environ.get("TWOFOLD_BROWSER") == "1"
"""Whether tests in a browser must run (.ci/run says so where there is one)."""
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not MUST, reason="no chromium on this machine (Debian: apt-get install chromium)"
)


class Browser:
    """A headless Chromium with one tab, spoken to in JSON over two pipes."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None, "TWOFOLD_BROWSER=1, but there is no chromium"
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads commands on 3 and writes answers on 4. First out of the way of 3 and 4, then onto them.
        move = f'exec 8<&{theirs_in} 9>&{theirs_out}; exec 3<&8 4>&9; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", move, CHROMIUM, f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._last = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events on the way are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self, seconds: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            assert ready, f"Chromium said nothing for {seconds} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium closed its pipe"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def do(self, code: str) -> Any:
        """The value of a piece of JavaScript; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def visit(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open an address in a window of this size, and wait until all of it is there."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, condition: str, seconds: float = 30.0) -> None:
        """Wait until a piece of JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.do(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, draw: bool = True) -> None:
        """Open a report in a window of this size, and wait until every figure is drawn; or, if not `draw`, those in view."""
        self.visit(path.as_uri(), width, height, dark)
        self.until("document.documentElement.classList.contains('scripted')")
        if draw:
            self.do("dispatchEvent(new Event('beforeprint'))")  # draws what is not yet in view
        self.settle()

    def settle(self) -> None:
        """Let the page draw two frames."""
        self.do("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        """Where the middle of an element is in the window, scrolled into view."""
        return tuple(
            self.do(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
                "e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect(); "
                "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
            )
        )

    def shoot(self, path: Path, selector: str | None = None) -> None:
        """A picture of the whole page, or of one element."""
        clip = self.do(
            f"(() => {{ const b = ({'document.querySelector(' + json.dumps(selector) + ')' if selector else 'document.body'})"
            ".getBoundingClientRect(); return {x: 0, y: b.y + scrollY, width: innerWidth, height: b.height, scale: 1}; })()"
        )
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the console, the log and uncaught exceptions have said that is no plain message."""
        bad = []
        for event in self.events:
            kind, inside = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown" or (
                kind == "Runtime.consoleAPICalled" and inside["type"] in ("error", "warning", "assert")
            ):
                bad.append(json.dumps(inside)[:500])
            if kind == "Log.entryAdded" and inside["entry"]["level"] in ("error", "warning"):
                bad.append(json.dumps(inside["entry"])[:500])
        return bad

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:", "about:"))]

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the tests of a module (conftest.py makes this module a plugin)."""
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
