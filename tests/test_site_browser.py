"""The documentation's site in a real browser, opened as files, as the README says: the folder that `make docs` has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chromium import MUST, Browser, needs_chromium

SITE = Path(__file__).parents[1] / "site"
pytestmark = [
    needs_chromium,
    pytest.mark.skipif(
        not ((SITE / "index.html").is_file() or MUST), reason="there is no site/ here: `make docs` makes it"
    ),
]
# 404.html is for servers only: its links begin at their root.
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html")
BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"


def scheme(browser: Browser, value: str) -> Any:
    """Have the system prefer light or dark, and see which scheme the page is in."""
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])
    browser.settle()
    return browser.do("document.body.dataset.mdColorScheme")


@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_renders_in_both_schemes(browser: Browser, width: int) -> None:
    assert len(PAGES) > 30
    wrong: list[str] = []
    for page in PAGES:
        browser.visit((SITE / page).as_uri(), width)
        found: dict[str, Any] = {}
        for preferred, shown in (("light", "default"), ("dark", "slate")):
            found[f"scheme where the system is {preferred}"] = scheme(browser, preferred) != shown
            found[f"sideways scroll ({preferred})"] = browser.do("document.documentElement.scrollWidth > innerWidth")
        found["broken images"] = browser.do(BROKEN)
        found["complaints"] = browser.complaints()
        found["requests to elsewhere"] = [url for url in browser.requests() if not url.startswith(SITE.as_uri())]
        wrong += [f"{page}: {what} {value}" for what, value in found.items() if value]
    assert not wrong, "\n".join(wrong)


def test_the_first_picture_is_there_and_the_search_finds_something(browser: Browser) -> None:
    browser.visit((SITE / "index.html").as_uri())
    assert browser.do("document.images.length") >= 1
    search = """(() => {
        const box = document.querySelector('[data-md-toggle=search]'), field = document.querySelector('input.md-search__input');
        if (!box.checked) box.click();
        field.focus();
        field.value = 'participation';
        field.dispatchEvent(new Event('input', {bubbles: true}));
        field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true, key: 'n'}));
    })()"""
    browser.do(search)
    browser.until("document.querySelectorAll('.md-search-result__item').length > 2")
    links = browser.do("[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)")
    assert all(link.startswith(SITE.as_uri()) for link in links)
    assert browser.complaints() == []


def test_one_may_choose_the_scheme_and_it_stays(browser: Browser) -> None:
    browser.visit((SITE / "index.html").as_uri(), dark=True)
    assert scheme(browser, "dark") == "slate"
    browser.click("form[data-md-component=palette] label:not([hidden])")  # from the system's to light
    assert browser.do("document.body.dataset.mdColorScheme") == "default"
    browser.visit((SITE / "start.html").as_uri(), dark=True)
    assert browser.do("document.body.dataset.mdColorScheme") == "default"
    browser.do("localStorage.clear()")
