"""Examples in docstrings, as code on the site: griffe would take `>>>` for a quotation otherwise."""

from __future__ import annotations

from typing import Any

from griffe import Extension


class Fenced(Extension):
    """Puts every doctest of a docstring between fences."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Change a docstring as soon as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""A docstring whose doctests, up to the next empty line, stand between fences.

    >>> fenced("One.\n\n>>> 1 + 1\n2")
    'One.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            inside = True
            out.append("```pycon")
        elif inside and not line.strip():
            inside = False
            out.append("```")
        out.append(line)
    return "\n".join([*out, "```"] if inside else out)
