"""The page in a real browser: headless Chromium, driven through a pipe by the DevTools protocol, nothing else needed."""

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

from paper.report.made_up import make_up
from twofold.paper import write

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
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
)


class Browser:
    """A headless Chromium with one tab, spoken to in JSON over two pipes."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
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

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, draw: bool = True) -> None:
        """Open a file in a window of this size, and wait until every figure is drawn; or, if not `draw`, those in view."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=path.as_uri())
        for _ in range(600):
            if self.do("document.readyState === 'complete' && document.documentElement.classList.contains('scripted')"):
                break
            time.sleep(0.05)
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
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make_up(tmp_path_factory.mktemp("results")))


def button(figure: str, key: str, value: str) -> str:
    return f'#figure-{figure} button[data-key="{key}"][data-value="{value}"]'


def plot(figure: str, panel: int = 0) -> str:
    return f"document.querySelectorAll('#figure-{figure} .panel:not([hidden]) .plot')[{panel}]"


def lines(browser: Browser, figure: str, panel: int = 0) -> list[dict[str, Any]]:
    """The curves that Plotly has drawn in one panel."""
    fields = "{name: t.name, x: [...t.x], y: [...t.y], dash: t.line.dash, colour: t.line.color}"
    return browser.do(f"{plot(figure, panel)}.data.filter(t => t.meta === 'line').map(t => ({fields}))")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_a_complaint_a_request_or_a_sideways_scroll(
    browser: Browser, path: Path, width: int, dark: bool
) -> None:
    browser.open(path, width=width, dark=dark)
    assert browser.do("[...document.querySelectorAll('figure')].map(f => f.dataset.figure)") == [
        "mx2",
        "images",
        "pw",
        "rates",
    ]
    drawn = browser.do(
        "[...document.querySelectorAll('.panel:not([hidden]) .plot')].map(p => p.querySelectorAll('.scatterlayer .js-line').length)"
    )
    assert len(drawn) >= 9
    assert all(drawn)
    assert browser.do("document.documentElement.scrollWidth") == browser.do("innerWidth") == width
    browser.do("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.settle()
    assert browser.do("document.documentElement.scrollWidth") == width
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_the_first_figure_is_on_the_first_screen_and_what_was_not_run_is_folded_away(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(write(make_up(tmp_path, only=("pw", "mx2"))), draw=False)
    box = "document.querySelector('figure .plot').getBoundingClientRect()"
    top, bottom, height = browser.do(f"[{box}.top, {box}.bottom, innerHeight]")
    assert 0 < top < bottom <= height
    assert browser.do("[...document.querySelectorAll('figure')].map(f => f.dataset.figure)") == ["mx2", "pw"]
    assert browser.do("document.querySelector('details.unrun').open") is False
    assert browser.do("document.querySelectorAll('details.unrun article').length") == 8


def test_every_control_has_a_name_and_every_plot_is_told_in_words(browser: Browser, path: Path) -> None:
    browser.open(path)
    assert browser.do("[...document.querySelectorAll('button')].every(b => b.textContent.trim())")
    told = browser.do(
        "[...document.querySelectorAll('.panel:not([hidden]) .plot')].map(p => p.getAttribute('aria-label'))"
    )
    assert all("ends at" in words for words in told)
    assert browser.do(
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === document.querySelectorAll('[id]').length"
    )


def test_the_legend_hides_and_shows_a_method(browser: Browser, path: Path) -> None:
    browser.open(path)
    legend = '#figure-mx2 .legend button[data-line="lsgd"]'
    before = [line["name"] for line in lines(browser, "mx2")]
    assert before == ["LSGD", "ASCD", "ASVRCD", "L2SGD+", "pFedMe"]
    browser.click(legend)
    assert browser.do(f"document.querySelector('{legend}').getAttribute('aria-pressed')") == "false"
    for panel in range(3):
        assert [line["name"] for line in lines(browser, "mx2", panel)] == ["ASCD", "ASVRCD", "L2SGD+", "pFedMe"]
    browser.click(legend)
    assert [line["name"] for line in lines(browser, "mx2")] == before
    assert browser.complaints() == []


def test_the_horizontal_axis_switches(browser: Browser, path: Path) -> None:
    browser.open(path)
    rounds = lines(browser, "mx2")[2]["x"]
    assert rounds[-1] == 1000
    for key, end in (("bytes", 240_000), ("gradients_w", 1000), ("gradients_beta", 4000), ("rounds", 1000)):
        browser.click(button("mx2", "x", key))
        assert lines(browser, "mx2")[2]["x"][-1] == end
        words = {"bytes": "bytes", "rounds": "rounds"}.get(key, "gradients")
        assert words in browser.do(f"{plot('mx2')}._fullLayout.xaxis.title.text")
        points = browser.do(f"{plot('mx2')}.data.filter(t => t.meta === 'published').length")
        assert points == (5 if key == "rounds" else 0)  # the paper counts rounds only


def test_the_scales_switch(browser: Browser, path: Path) -> None:
    browser.open(path)
    scales = f"[{plot('mx2')}._fullLayout.xaxis.type, {plot('mx2')}._fullLayout.yaxis.type]"
    assert browser.do(scales) == ["linear", "log"]
    browser.click(button("mx2", "y", "linear"))
    assert browser.do(scales) == ["linear", "linear"]
    browser.click(button("mx2", "across", "log"))
    assert browser.do(scales) == ["log", "linear"]
    assert min(lines(browser, "mx2")[2]["x"]) > 0


def test_the_loss_and_its_gap_switch(browser: Browser, path: Path) -> None:
    browser.open(path)
    gap = lines(browser, "mx2")[2]["y"]
    assert 0 < gap[-1] < 1e-6
    browser.click(button("mx2", "gap", "false"))
    assert lines(browser, "mx2")[2]["y"][-1] == pytest.approx(0.2771, abs=1e-6)
    assert browser.do(f"{plot('mx2')}._fullLayout.yaxis.type") == "linear"  # it follows until one chooses a scale
    browser.click(button("mx2", "metric", "error"))
    assert lines(browser, "mx2")[2]["y"][0] > 70
    assert browser.do(f"document.querySelector('{button('mx2', 'gap', 'true')}').disabled")


def test_the_settings_switch_and_stand_side_by_side(browser: Browser, path: Path) -> None:
    browser.open(path)
    published = lines(browser, "mx2")[0]["y"]
    browser.click(button("mx2", "variant", "by theory"))
    theory = lines(browser, "mx2")[0]["y"]
    assert theory[50] < published[50]
    browser.click(button("mx2", "variant", "*"))
    both = lines(browser, "mx2")
    assert len(both) == 10
    assert {line["name"] for line in both} >= {"LSGD, as published", "LSGD, by theory"}
    assert {line["dash"] for line in both if "by theory" in line["name"]} == {"dot"}


def test_what_was_not_run_is_said_or_stepped_around(browser: Browser, path: Path) -> None:
    browser.open(path)
    shown = "document.querySelectorAll('#figure-images .panel:not([hidden])').length"
    assert browser.do(shown) == 2
    browser.click(button("images", "variant", "by theory"))
    assert browser.do(shown) == 1
    assert "K = 4" in browser.do("document.querySelector('#figure-images .nothing').textContent")
    browser.click(button("images", "objective", "adaptive"))
    browser.click(button("images", "dataset", "kmnist"))
    assert browser.do(shown) == 1
    assert len(lines(browser, "images")) == 3


def test_pointing_at_a_curve_shows_its_numbers(browser: Browser, path: Path) -> None:
    browser.open(path)
    x, y = browser.middle("#figure-mx2 .plot")
    for step in (0, 3):
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)
    time.sleep(0.3)
    told = browser.do("document.querySelector('#figure-mx2 .plot .hoverlayer').textContent")
    assert "ASVRCD" in told
    assert "±" in told
    assert "30 runs" in told


def test_a_keyboard_is_enough(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.do(f"document.querySelector('{button('mx2', 'x', 'bytes')}').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.send(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    browser.settle()
    assert browser.do("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert lines(browser, "mx2")[2]["x"][-1] == 240_000


def test_figures_follow_the_colour_scheme(browser: Browser, path: Path) -> None:
    browser.open(path)
    light = [line["colour"] for line in lines(browser, "mx2")]
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.settle()
    dark = [line["colour"] for line in lines(browser, "mx2")]
    assert len(set(light)) == len(set(dark)) == 5
    assert not set(light) & set(dark)


def test_only_what_is_near_is_drawn_at_first(browser: Browser, path: Path) -> None:
    browser.open(path, draw=False)
    assert browser.do("document.querySelectorAll('#figure-rates .js-plotly-plot').length") == 0
    browser.do("document.querySelector('#figure-rates').scrollIntoView({behavior: 'instant'})")
    browser.settle()
    time.sleep(0.3)
    assert browser.do("document.querySelectorAll('#figure-rates .js-plotly-plot').length") == 2


def test_text_out_of_a_file_never_runs(browser: Browser, tmp_path: Path) -> None:
    folder = make_up(tmp_path, only=("pw",))
    evil = "<img src=x onerror=window.ran=1><script>window.ran=1</script><a href='javascript:window.ran=1'>x</a>"
    document = json.loads((folder / "pw.json").read_text())
    for series in document["series"]:
        series |= {
            "method": series["method"] + evil,
            "dataset": series["dataset"] + evil,
            "level": f"{series['level']}{evil}",
        }
    document["environment"] = {evil: evil}
    document["settings"]["facts"] = {evil: [evil]}
    (folder / "pw.json").write_text(json.dumps(document))
    browser.open(write(folder))
    x, y = browser.middle("#figure-pw .plot")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    time.sleep(0.2)
    assert browser.do("window.ran") is None
    assert browser.do("document.querySelectorAll('main img, main script, main a[href^=javascript]').length") == 0
    assert browser.complaints() == []
