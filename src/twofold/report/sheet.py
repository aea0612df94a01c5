"""The frame of every page: inlined style and scripts, a policy that forbids all requests, and an atomically written file."""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.extras import require
from twofold.report.markup import embedded, trusted

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["REPORT", "asset", "render", "write_page"]

REPORT = "report.html"


def render(templates: Environment, template: str, data: dict[str, Any], **words: Any) -> str:
    """The page as text: a template filled with its words and the data of its figures, with style and scripts inlined."""
    script, library = asset("page.js"), _library()
    return templates.get_template(template).render(
        policy=_policy(library, script),
        style=trusted(asset("page.css")),
        data=embedded(data),
        library=trusted(library),
        script=trusted(script),
        **words,
    )


def write_page(path: Path, page: str) -> Path:
    """Write a page atomically, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def asset(name: str) -> str:
    """The text of one of twofold's own files: the style sheet or the script."""
    return resources.files("twofold.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """plotly.js from the installed package, escaped so that nothing in it ends the script element."""
    offline = require("plotly.offline", "The report", "paper")
    return offline.get_plotlyjs().replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """A content security policy: only these scripts run, and nothing is ever fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
