"""The paper's room uses only what a user could use: no private name of another module (its imports: pyproject.toml)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from twofold import paper

FOLDER = Path(paper.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_private_name_of_another_module_is_used(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not [a.name for a in node.names if a.name.startswith("_")], f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert isinstance(node.value, ast.Name) and node.value.id == "self", (
                f"{path.name}:{node.lineno} {node.attr}"
            )
