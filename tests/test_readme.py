"""What the README and the site say is true: their Python runs, their tables name what there is, their commands exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement

from twofold import algorithms, objectives
from twofold.cli import app

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


DOCS = README.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_blocks(path: Path, folder: Path) -> dict[str, Any]:
    """The names that stand after running all blocks of a page, one after the other, as a reader would."""
    names: dict[str, Any] = {"__name__": "__main__"}  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for i, block in enumerate(blocks("python", path.read_text(encoding="utf-8"))):
            exec(compile(block, f"{path.name}, block {i}", "exec"), names)  # our own text
    return names


def gallery() -> Any:
    """The module that runs the gallery, docs/hooks.py."""
    found = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["docs_hooks"] = module
    found.loader.exec_module(module)
    return module


HOOKS = gallery()


@pytest.fixture(autouse=True)
def _as_it_was(own_registries: None) -> Any:
    """Examples register things of their own and set JAX up; other tests must not see that."""
    import jax

    x64 = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", x64)


def test_the_core_alone_runs_the_ten_lines(fresh_python: Callable[..., str]) -> None:
    """In a process where everything that only an extra brings looks as if it were not installed."""
    project = tomllib.loads(README.with_name("pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = installed_with(project["dependencies"])
    hidden = sorted({name for names in packages_distributions().values() for name in names} - core - {"twofold"})
    tops = sorted(top for top, names in packages_distributions().items() if set(names) <= set(hidden))
    assert {"pandas", "sklearn", "matplotlib", "plotly", "pyarrow", "jinja2", "pooch"} <= set(tops)
    block = f"import sys\nsys.modules.update(dict.fromkeys({tops!r}))\n" + blocks("python")[0]
    printed = fresh_python(block)
    assert "rounds in" in printed
    (shown,) = blocks("text")  # what the README shows is how what they print begins
    *lines, more = shown.splitlines()
    assert more == "…"
    assert printed.splitlines()[: len(lines)] == lines


def installed_with(requirements: list[str]) -> set[str]:
    """The distributions that some requirements bring, theirs included, as `importlib.metadata` spells them."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        there = distribution(requirement.name)
        name = there.metadata["Name"]
        if name not in found:
            found.add(name)
            waiting += there.requires or []
    return found


def test_the_ten_lines_are_ten_lines_and_show_a_gain(tmp_path: Path) -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip() and not line.startswith("#")]
    after_the_data = lines[next(i for i, line in enumerate(lines) if line.startswith("clients")) :]
    assert len(after_the_data) + 2 <= 10  # and the two imports
    after = run_blocks(README, tmp_path)
    assert after["result"].status == "converged"


def test_the_gain_of_the_ten_lines_is_no_lucky_draw() -> None:
    """The README gives the least and the largest gain over twelve seeds of the data, and says that all intervals lie above zero."""
    (said,) = re.findall(
        r"seeds 0 to 11 the gain is ([\d.]+) to ([\d.]+)\s+points over one shared model and ([\d.]+) to ([\d.]+)", TEXT
    )
    gains: dict[str, list[float]] = {"shared": [], "alone": []}
    for seed in range(12):
        names: dict[str, Any] = {}
        exec(blocks("python")[0].replace("default_rng(0)", f"default_rng({seed})"), names)  # our own text
        for baseline, found in gains.items():
            mean, low, high = names["found"].gain(baseline).mean
            assert 0 < low < mean < high, (seed, baseline)
            found.append(100 * mean)
    ends = [end for found in gains.values() for end in (min(found), max(found))]
    assert [f"{end:.1f}" for end in ends] == list(said)


@pytest.mark.filterwarnings("ignore::twofold.TheoryWarning")
@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if blocks("python", path.read_text(encoding="utf-8"))],
    ids=lambda p: p.stem,
)
def test_the_sites_blocks_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(page, tmp_path)
    told = capsys.readouterr().out
    assert told
    assert "False" not in told  # what a page checks is true


def test_the_start_pages_five_lines_print_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    table, five_lines = blocks("python", text)[:2]
    assert len([line for line in five_lines.splitlines() if line]) == 5
    names: dict[str, Any] = {}
    exec(table + five_lines, names)  # our own text
    assert capsys.readouterr().out == blocks("text", text)[0]
    x, y, now, later = (names[name] for name in ("x", "y", "now", "later"))
    for objective in ("shared", "alone"):
        (said,) = re.findall(rf'`objective="{objective}"`\)[^.]*(0\.\d\d)', text.replace("\n", " "))
        model = names["PersonalizedClassifier"](client="patient", objective=objective).fit(x.iloc[now], y.iloc[now])
        assert f"{model.score(x.iloc[later], y.iloc[later]):.2f}" == said


@pytest.mark.parametrize("path", HOOKS.examples(), ids=lambda path: path.stem)
def test_the_gallerys_examples_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    example = HOOKS.run(path)
    assert example.title and example.printed and example.picture.startswith(b"<?xml")
    assert all(len(line) <= 100 for line in example.printed.splitlines())
    if path.stem == "own_algorithm":
        assert float(example.printed.split()[-1]) < 1e-10  # the two engines agree
    assert example.title in HOOKS.markdown(example)


def test_the_gallery_is_complete() -> None:
    assert len(HOOKS.ORDER) >= 8
    assert {path.stem for path in (DOCS / "gallery").glob("*.py")} == set(HOOKS.ORDER)
    site = (README.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for name in HOOKS.ORDER:
        assert f"gallery/{name}.md" in site
    for page in [*PAGES, *(DOCS / "api").glob("*.md")]:
        assert page.relative_to(DOCS).as_posix() in site, f"{page} is not in the site's contents"


def test_the_slips_are_all_on_the_site() -> None:
    from twofold.paper.report.slips import SLIPS

    told = HOOKS.slips()
    assert all(slip.effect in told for slip in SLIPS)


def test_the_tables_name_everything_there_is_with_its_equation() -> None:
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    for name, make in objectives.REGISTRY.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}(")]
        module = __import__(make.__module__, fromlist=["_"])
        (equation,) = {c.equation for c in vars(module).values() if getattr(c, "__module__", "") == make.__module__
                       and hasattr(c, "equation")}  # fmt: skip
        assert equation in row
    missing = [name for name in algorithms.REGISTRY if f"| `{name}` |" not in text]
    assert not missing, f"algorithms without a line on the site: {missing}"


def test_every_method_by_name_has_a_line_with_what_it_minimises() -> None:
    from twofold import methods

    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)\(", text, flags=re.MULTILINE)
    assert sorted(told) == sorted(methods.REGISTRY)


def test_the_extract_of_the_medians_is_that_of_their_page() -> None:
    """docs/choosing.md has some rows of docs/realdata.md, without bytes and gradients."""
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("choosing.md", "realdata.md")]
    (ours, theirs) = (
        page.split("| method | reached | rounds |")[1].split("\n\n")[0].splitlines()[2:] for page in pages
    )
    full = [[cell.strip() for cell in line.split("|")[1:-1]] for line in theirs]
    assert len(ours) >= 6
    for line in ours:
        assert [cell.strip() for cell in line.split("|")[1:-1]] in [[*cells[:3], cells[-1]] for cells in full]


def test_the_commands_exist() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    texts = [TEXT, *(path.read_text(encoding="utf-8") for path in PAGES)]
    shell = "\n".join(block for text in texts for block in blocks("sh", text))
    used = set(re.findall(r"^twofold (\w+)", shell, flags=re.MULTILINE))
    assert used <= known
    assert {"demo", "run", "sweep", "compare", "report", "theory", "list", "reproduce"} <= used
    makefile = README.with_name("Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", shell, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def typed() -> list[list[str]]:
    """Every call of `twofold` in a shell block of the README and of the site, in words."""
    texts = [TEXT, *(path.read_text(encoding="utf-8") for path in PAGES)]
    lines = "\n".join(block for text in texts for block in blocks("sh", text)).replace("\\\n", " ").splitlines()
    calls = [
        re.split(r"[;&|>]", line[found.end() :])[0]
        for line in lines
        for found in re.finditer(r"(?:^|do )\s*twofold ", line)
    ]
    return [shlex.split(call, comments=True) for call in calls]


@pytest.mark.parametrize("words", typed(), ids=" ".join)
def test_every_command_of_a_page_has_the_options_that_it_is_given(words: list[str]) -> None:
    found: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and hasattr(found, "commands") and not rest[0].startswith("-"):
        found = found.commands[rest.pop(0)]
    options = {name: option for option in found.params for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]
    assert not unknown
    wanted = sum(1 for one in found.params if one.param_type_name == "argument" and one.required)
    assert sum(not word.startswith("-") for word in rest) >= wanted


def test_every_block_says_its_language() -> None:
    for path in [README, *PAGES]:
        fences = re.findall(r"^```(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert all(fences[::2]) and not any(fences[1::2]), path


def test_the_example_of_the_patients_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(README.parent / "examples" / "patients.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "patient 00" in told or "clients" in told
    assert "right answers on rows held out" in told


def test_the_files_it_names_are_there() -> None:
    for path in re.findall(r"examples/\w+\.toml", TEXT):
        assert (README.parent / path).is_file()
    for path in re.findall(r"\]\((docs/[^)#]*)\)", TEXT):
        assert (README.parent / path).exists(), path


PUBLIC = ("losses", "objectives", "algorithms", "methods", "track", "theory", "evaluate", "data", "tune", "sklearn")


def at(path: str) -> Any:
    """What a line `::: path` of a page names."""
    if "." not in path:
        return importlib.import_module(path)
    *home, name = path.split(".")
    try:
        return getattr(at(".".join(home)), name)  # first, since a function may bear the name of its file
    except AttributeError:
        return importlib.import_module(path)


def test_every_public_function_and_class_has_its_place_in_the_reference() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    paths = re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE)
    assert len(paths) == len(set(paths))
    told = {id(at(path)) for path in paths}
    modules = {"twofold": importlib.import_module("twofold")}
    modules |= {f"twofold.{name}": importlib.import_module(f"twofold.{name}") for name in PUBLIC}
    missing = [
        f"{name}.{each}"
        for name, module in modules.items()
        for each in module.__all__
        if hasattr(value := getattr(module, each), "__qualname__") and id(value) not in told
    ]
    assert not missing
