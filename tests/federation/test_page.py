"""The page for watching a study, in a real browser."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

from chromium import Browser, needs_chromium
from federation.small import Small, study
from twofold.federation import Patience, wire
from twofold.federation.page import watching

STATUS: dict[str, Any] = {
    "study": "stroke <b>", "round": 7, "rounds": 20, "over": False, "waiting": ["south"], "clients": ["north", "south"],
    "seconds": [0.1, 0.3, 0.2], "masks": True, "missing": "wait", "up": [1200, 3400], "down": [10, 20], "absent": [0, 2],
    "losses": [[0, 0.7], [5, 0.5]], "events": ["resumed after round 3", "round 5: <script>alert(1)</script>"],
}  # fmt: skip


def wait_for(browser: Browser, code: str) -> None:
    for _ in range(200):
        if browser.do(code):
            return
        time.sleep(0.05)
    raise AssertionError((code, browser.do("document.body.innerText")))


@needs_chromium
def test_the_page_shows_progress_who_is_late_bytes_and_events(browser: Browser, tmp_path: Path):
    def write(**more: Any) -> None:
        (tmp_path / "status.json").write_text(json.dumps(STATUS | {"time": time.time()} | more))

    write()
    with watching(tmp_path, 0) as port:
        browser.send("Page.navigate", url=f"http://127.0.0.1:{port}/")
        wait_for(browser, "document.querySelectorAll('#who tr').length === 2")
        assert browser.do("document.getElementById('how').textContent") == "round 7 of 20, 0.20 s a round, behind masks"
        assert browser.do("document.getElementById('name').textContent") == "stroke <b>"  # text, never markup
        assert browser.do("document.querySelector('.late').innerText").split("\t") == [
            "south",
            "waited for",
            "2",
            "3,400",
            "20",
        ]
        assert browser.do("document.getElementById('bar').value") == 7
        assert browser.do("document.querySelectorAll('#loss polyline').length") == 1
        assert browser.do("document.getElementById('told').textContent") == "loss 0.5000 after round 5"
        assert "<script>" in browser.do("document.querySelector('#events li').textContent")
        write(losses=[], bounds=[[5, 0.01]], tolerance=1e-3)  # it looks again by itself
        wait_for(browser, "document.getElementById('told').textContent.startsWith('no loss: nobody has told one')")
        said = browser.do("document.getElementById('told').textContent")
        assert said.endswith("; certified gap 0.0100 after round 5, tolerance 0.001")
        assert browser.do("getComputedStyle(document.getElementById('loss')).display") == "none"
        write(round=20, over=True, waiting=[])
        wait_for(browser, "document.getElementById('how').textContent === 'done after 20 rounds'")
        assert not browser.do("document.querySelectorAll('.late').length")
        errors = [e for e in browser.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        assert [e for e in errors if "favicon" not in json.dumps(e)] == []
    wait_for(browser, "document.getElementById('how').textContent === 'no word from the coordinator'")


@needs_chromium
def test_the_page_of_a_run_that_is_going_on(browser: Browser, tmp_path: Path):
    """Its rounds, its clients and its events, while it runs and when it is over."""
    held = threading.Event()

    def fault(who: Any, content: bytes) -> list[Any]:
        about = wire.opened("x", content).about
        if who.name == "east" and about.get("round") == 3 and not held.is_set():
            return []
        return [who.handle(content)]

    small = Small(study("scd"), tmp_path, fault)
    run = threading.Thread(target=lambda: small.run(patience=Patience(poll=0.01, again=0.3, look=0.1, limit=60.0)))
    with watching(tmp_path / "server", 0) as port:
        run.start()
        browser.send("Page.navigate", url=f"http://127.0.0.1:{port}/")
        wait_for(browser, "document.querySelector('.late')?.innerText.startsWith('east\\twaited for')")
        assert "round 3 of 5" in browser.do("document.getElementById('how').textContent")
        assert browser.do("document.querySelectorAll('#who tr').length") == 4
        assert "no answer from east yet" in browser.do("document.getElementById('events').textContent")
        held.set()
        wait_for(browser, "document.getElementById('how').textContent === 'done after 5 rounds'")
        assert browser.do("document.querySelector('#events li').textContent") == "the study is done"
        assert browser.do("document.querySelectorAll('#loss polyline').length") == 1
    run.join(timeout=30)


def test_the_page_is_for_this_machine_under_its_own_name(tmp_path: Path):
    """A page of somebody else's whose name points to 127.0.0.1 gets nothing (DNS rebinding)."""
    (tmp_path / "status.json").write_text("{}")
    with watching(tmp_path, 0) as port:
        names = ("127.0.0.1", "localhost", f"localhost:{port}", f"127.0.0.1:{port}", "LOCALHOST")
        for host in (*names, "evil.example", f"evil.example:{port}", "localhost.evil.example", "", "127.0.0.1:80:80"):
            line = http.client.HTTPConnection("127.0.0.1", port or 0)
            line.request("GET", "/status.json", headers={"host": host})
            assert line.getresponse().status == (200 if host in names else 421), host
            line.close()


def test_the_page_has_two_paths(tmp_path: Path):
    import urllib.error
    import urllib.request

    with watching(tmp_path, 0) as port, watching(tmp_path, None) as nothing:
        assert nothing is None
        for path, code in (("/", 200), ("/status.json", 503), ("/events.jsonl", 404), ("/../contract.json", 404)):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as found:
                    assert found.status == code
            except urllib.error.HTTPError as error:
                assert error.code == code
                error.close()
