"""The page's jinja2 templates, and the filters for formulas in plain text. All text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from twofold.extras import require

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["breakable", "embedded", "escape", "plain", "rich", "scripts", "templates", "trusted"]

_SCRIPT = r"\{mark}(?:\(([^()]*)\)|([^\W_]+|[+*⊤]))"
_MARKS = tuple((re.compile(_SCRIPT.replace("{mark}", mark)), tag) for mark, tag in (("^", "sup"), ("_", "sub")))


@cache
def templates(package: str = "twofold.report") -> Environment:
    """The jinja2 environment with the templates of a package and the parts that all pages share."""
    jinja2 = require("jinja2", "The report", "paper")
    homes = dict.fromkeys([package, "twofold.report"])
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(home) for home in homes]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "plain": plain, "rich": rich, "scripts": scripts}
    return environment


def trusted(html: str) -> Markup:
    """Mark text as safe, so that it is not escaped: twofold's own style and scripts, and JSON made safe by `embedded`."""
    return require("markupsafe", "The report", "paper").Markup(html)


def escape(value: object) -> Markup:
    """Escape text for HTML."""
    return require("markupsafe", "The report", "paper").escape(value)


def scripts(value: object) -> Markup:
    """Escaped text in which ^ makes a superscript, and _ a subscript, of the word or parenthesis that follows.

    >>> print(scripts("L^w and M^(-1/2)"))
    L<sup>w</sup> and M<sup>-1/2</sup>
    """
    out = str(escape(value))
    for pattern, tag in _MARKS:
        out = pattern.sub(rf"<{tag}>\1\2</{tag}>", out)
    return trusted(out)


def rich(value: object) -> Markup:
    """Escaped text in which anything between backticks is a formula, marked up by `scripts`.

    >>> print(rich("a step `η_w` < 1"))
    a step <span class="m">η<sub>w</sub></span> &lt; 1
    """
    pieces = str(value).split("`")
    if len(pieces) % 2 == 0:  # a backtick without a partner is just a backtick
        pieces[-2:] = ["`".join(pieces[-2:])]
    formula = '<span class="m">{}</span>'
    return trusted("".join(formula.format(scripts(p)) if i % 2 else escape(p) for i, p in enumerate(pieces)))


def breakable(name: str) -> Markup:
    """A long name that may be broken after each underscore."""
    return trusted(str(escape(name)).replace("_", "_<wbr>"))


def plain(value: object) -> str:
    """A JSON value on one line: lists separated by semicolons, mappings by commas.

    >>> plain({"jax": "0.10", "seeds": [0, 1]})
    'jax 0.10, seeds 0; 1'
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return ", ".join(f"{key} {plain(inside)}" for key, inside in items)
    if isinstance(value, list):
        return "; ".join(map(plain, cast("list[object]", value)))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def embedded(data: Any) -> Markup:
    """JSON that is safe inside a script element, because no tag can open or close in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return trusted(text.replace("<", "\\u003c"))
