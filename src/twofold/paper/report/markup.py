"""Small pieces of HTML; what comes from outside goes through `text`, `rich` or `scripts`, which escape it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_SCRIPT = r"\{mark}(?:\(([^()]*)\)|([^\W_]+|[+*⊤]))"
_MARKS = tuple((re.compile(_SCRIPT.replace("{mark}", mark)), tag) for mark, tag in (("^", "sup"), ("_", "sub")))


def text(value: Any) -> str:
    """Plain text, escaped."""
    return escape(str(value))


def scripts(value: Any) -> str:
    """Escaped text in which ^ raises, and _ lowers, the next letters or the next parenthesis."""
    out = escape(str(value))
    for pattern, tag in _MARKS:
        out = pattern.sub(rf"<{tag}>\1\2</{tag}>", out)
    return out


def rich(value: Any) -> str:
    """Escaped text in which what stands between backticks is a formula, with `scripts`."""
    pieces = str(value).split("`")
    if len(pieces) % 2 == 0:  # a lone backtick is a backtick
        pieces[-2:] = ["`".join(pieces[-2:])]
    return "".join(f'<span class="m">{scripts(p)}</span>' if i % 2 else text(p) for i, p in enumerate(pieces))


def tag(name: str, *content: str, **attributes: Any) -> str:
    """An element around HTML; `class_` is class, `aria_label` aria-label; True is an attribute without a value."""
    written = ""
    for attribute, value in attributes.items():
        key = attribute.rstrip("_").replace("_", "-")
        if value is True:
            written += f" {key}"
        elif value is not None and value is not False:
            written += f' {key}="{escape(str(value))}"'
    return f"<{name}{written}>{''.join(content)}</{name}>"


def table(head: Sequence[str], rows: Iterable[str], label: str, caption: str = "", class_: str | None = None) -> str:
    """A table in a box of its own that scrolls, by keyboard too, where the window is narrow."""
    top = tag("thead", tag("tr", *head))
    body = tag("table", tag("caption", caption) if caption else "", top, tag("tbody", *rows), class_=class_)
    return tag("div", body, class_="scroll", role="region", tabindex=0, aria_label=label)


def column(content: str, numbers: bool = False) -> str:
    """The head of a column."""
    return tag("th", content, scope="col", class_="n" if numbers else None)


def group(content: str, columns: int) -> str:
    """A row that names the rows below it."""
    return tag("tr", tag("th", content, scope="rowgroup", colspan=columns), class_="group")


def row(head: str, *cells: str, words: int | None = None) -> str:
    """A row of a table with its name first; after so many cells of `words` come numbers, which stand to the right."""
    written = [tag("td", c, class_="n" if words is not None and i >= words else None) for i, c in enumerate(cells)]
    return tag("tr", tag("th", head, scope="row"), *written)


def facts(entries: Mapping[str, Any]) -> str:
    """A mapping as a list of terms; a mapping inside is written on one line."""
    items = (
        tag("dt", text(str(key).replace("_", " "))) + tag("dd", text(_plain(value))) for key, value in entries.items()
    )
    return tag("dl", *items, class_="facts") if entries else ""


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inside)}" for key, inside in value.items())
    if isinstance(value, list):
        return "; ".join(_plain(inside) for inside in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def command(line: str) -> str:
    """A command to copy."""
    return tag("pre", tag("code", text(line)), tabindex=0)


def more(summary: str, *content: str, open_: bool = False) -> str:
    """What most readers skip, one click away."""
    return tag("details", tag("summary", summary), *content, open=open_)
