"""What the site makes of itself while it is built: the gallery's examples are run, and the slips are listed from the code.

A page of the gallery is a Python file in docs/gallery. Its docstring is the text; it is run, and what it prints and draws (its
variable `figure`, or the file that `picture` names) stands below it. Nothing of that is kept in the repository. Runs are kept
in build/gallery, under a name that changes with the example and with the package, so that a second build is quick.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ORDER = (
    "patients",
    "estimators",
    "gains",
    "schools",
    "digits",
    "landmines",
    "net",
    "own_objective",
    "own_algorithm",
    "sweep",
    "methods",
    "travels",
)


class Example(NamedTuple):
    """One example of the gallery, run: its text, its code, what it printed, and its picture."""

    name: str
    title: str
    text: str
    code: str
    printed: str
    picture: bytes  # SVG


def examples() -> list[Path]:
    """The files of the gallery, in the order of its pages."""
    return [DOCS / "gallery" / f"{name}.py" for name in ORDER]


def run(path: Path) -> Example:
    """Run one example in a folder of its own, as a reader would."""
    source = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    title, _, text = docstring.partition("\n")
    code = source.split('"""', 2)[2].strip()
    names: dict[str, Any] = {"__name__": "__main__"}
    printed, before = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            exec(compile(source, str(path), "exec"), names)  # our own text
            picture = _picture(names)
        finally:
            os.chdir(before)
    return Example(path.stem, title.lstrip("# ").strip(), text.strip(), code, printed.getvalue().rstrip(), picture)


def _picture(names: dict[str, Any]) -> bytes:
    """What an example has drawn, as SVG."""
    if "figure" in names:
        from twofold import plots

        return plots.save(names["figure"], "figure.svg").read_bytes()
    return Path(names["picture"]).read_bytes()


def markdown(example: Example) -> str:
    """The page of one example."""
    return "\n\n".join(
        [
            f"# {example.title}",
            example.text,
            f"![{example.title}]({example.name}.svg)",
            f"```text\n{example.printed}\n```",
            "## The code",
            f"It stands in `docs/gallery/{example.name}.py`, and was run to make this page.",
            f"```python\n{example.code}\n```",
        ]
    )


def slips() -> str:
    """The slips of the paper as Markdown, from the list that the report and the tests share."""
    from twofold.paper.report.slips import SLIPS

    areas = {"algorithms": "Algorithms", "theory": "Theorems, lemmas and tables", "experiments": "Experiments"}
    parts = []
    for area, name in areas.items():
        parts.append(f"## {name}")
        for slip in (slip for slip in SLIPS if slip.area == area):
            tests = "".join(f"\n- **Test:** `{test}`" for test in slip.tests)
            evidence = f"\n- **How we know:** {slip.evidence}" if slip.evidence else ""
            parts.append(
                f"### {slip.where}\n\n- **As printed:** {slip.printed}\n- **Right:** {slip.right}\n- **Effect:** {slip.effect}{evidence}{tests}"
            )
    return "\n\n".join(parts)


# --- MkDocs -----------------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add the gallery's pages and pictures, which are made now."""
    from mkdocs.structure.files import File

    made = [_kept(path) for path in examples()]
    for example in made:
        files.append(File.generated(config, f"gallery/{example.name}.md", content=markdown(example)))
        files.append(File.generated(config, f"gallery/{example.name}.svg", content=example.picture))
    cards = "\n\n".join(
        f"-   [![{e.title}]({e.name}.svg)]({e.name}.md)\n\n    **[{e.title}]({e.name}.md)**\n\n    {' '.join(e.text.split()).split('. ')[0].rstrip('.')}."
        for e in made
    )
    head = "# Gallery\n\nEvery page here was made by running its code while the site was built.\n\n"
    files.append(
        File.generated(
            config, "gallery/index.md", content=f'{head}<div class="grid cards" markdown>\n\n{cards}\n\n</div>\n'
        )
    )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what comes from the code; links to files of the repository that are no pages become plain names."""
    if page.file.src_uri == "slips.md":
        return markdown.replace("<!-- slips -->", slips())
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"`\1`", markdown) if "/" not in page.file.src_uri else markdown


def _kept(path: Path) -> Example:
    """An example's run, from the last build where nothing has changed since."""
    package = sorted((ROOT / "src" / "twofold").rglob("*.py"))
    digest = hashlib.sha256(path.read_bytes())
    for file in package:
        digest.update(file.read_bytes())
    kept = ROOT / "build" / "gallery" / f"{path.stem}-{digest.hexdigest()[:16]}.json"
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
        return Example(**{**found, "picture": found["picture"].encode()})
    print(f"gallery: {path.stem}", file=sys.stderr)
    example = run(path)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({**example._asdict(), "picture": example.picture.decode()}), encoding="utf-8")
    return example
