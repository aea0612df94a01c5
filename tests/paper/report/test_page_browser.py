"""The page in a real browser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chromium import Browser, needs_chromium
from paper.report.made_up import make_up
from problems import CONFIG
from twofold.cli import app
from twofold.paper import write

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make_up(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def own_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "small.toml").write_text(CONFIG, encoding="utf-8")
    for words in (
        ["run", str(folder / "small.toml"), "-q", "--out", str(folder / "runs/one")],
        ["report", str(folder / "runs")],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    return folder / "runs" / "report.html"


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


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_of_ones_own_runs_begins_with_a_figure(browser: Browser, own_page: Path, width: int) -> None:
    browser.open(own_page, width=width, draw=False)
    box = "document.querySelector('figure .plot').getBoundingClientRect()"
    top, bottom, height, scroll = browser.do(
        f"[{box}.top, {box}.bottom, innerHeight, document.documentElement.scrollWidth]"
    )
    assert 0 < top < bottom <= height and scroll == width
    assert browser.complaints() == []


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
