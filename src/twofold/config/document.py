"""Read and check a configuration file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from pydantic import ValidationError

from twofold import data as data_sets
from twofold.algorithms import Algorithm
from twofold.config.build import Config
from twofold.config.mistakes import ConfigError, in_toml, refused, sentences
from twofold.config.sections import (
    DEFAULT_KIND,
    PLAIN,
    SECTIONS,
    SELECTORS,
    RegisteredSection,
    RunSection,
    Section,
    adapter,
    all_keys,
    kinds,
    own_kind,
)  # fmt: skip
from twofold.errors import TwofoldError, choose_from
from twofold.registry import find

__all__ = ["load", "override", "parse"]

T = TypeVar("T")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a TOML file; `overrides` such as "objective.lam=0.3" replace its values.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "small.toml"
    >>> _ = file.write_text('[data]\\nsource = "digits"\\n[loss]\\nname = "softmax"\\n[objective]\\nname = "local"')
    >>> load(file, ["stop.rounds=10"]).budget
    {'rounds': 10}
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError([f"{path} could not be read: {reason}."], str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid TOML: {error}."], str(path)) from error
    return parse(override(document, overrides), name=path.stem, home=path.resolve().parent)


def override(document: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The document with settings such as "objective.lam=0.3" applied; a value that is not valid TOML is taken as text.

    >>> override({"stop": {"rounds": 5}}, ["stop.rounds=7", "output.folder=a b"])
    {'stop': {'rounds': 7}, 'output': {'folder': 'a b'}}
    """
    out: dict[str, Any] = {name: dict(table) if _is_table(table) else table for name, table in document.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise ConfigError([f"{setting!r} is not of the form section.key=value."])
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        table: object = out.setdefault(section, {})
        if _is_table(table):  # otherwise `parse` reports it
            table[key] = value
    return out


def _is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value read from TOML is a table, whose keys are strings."""
    return isinstance(value, dict)


def parse(document: Mapping[str, Any], name: str = "config", home: str | Path = ".") -> Config:
    """Check a document (nested dicts, as from tomllib); one error reports everything that is wrong with it.

    >>> parse({"data": {"source": "digits"}, "loss": {"name": "softmax"}})
    Traceback (most recent call last):
    twofold.config.mistakes.ConfigError: objective.name is missing: choose from traditional, local, multitask, mixture, ...
    """
    errors = [_stray(section, document[section]) for section in document if section not in SECTIONS]
    found: dict[str, Any] = {}
    for section in SECTIONS:
        checked = _validated(section, document, errors, Path(home))
        if checked is not None:
            found[section] = checked
    errors += _contradictions(found)
    if errors:
        raise ConfigError(errors, name)
    return Config(**found, name=name, home=Path(home), document=document)


def _validated(section: str, document: Mapping[str, Any], errors: list[str], home: Path) -> Section | None:
    """A checked section; or None, with what is wrong appended to `errors`."""
    content = document.get(section, {})
    if not _is_table(content):
        errors.append(f"{section} = {in_toml(content)} must be a table: write [{section}] on a line of its own.")
        return None
    selector = SELECTORS.get(section)
    if selector is not None:
        content = _with_defaults(section, selector, content, document, home)
        if content is None:
            return None
        if isinstance(path := content.get(selector), str) and ":" in path:
            return _of_your_own(section, selector, path, content, errors, home)
    try:
        return adapter(section).validate_python(content)
    except ValidationError as mistake:
        errors += sentences(section, selector, kinds(section) if selector else {"": PLAIN[section]}, mistake)
        return None


def _of_your_own(
    section: str, selector: str, path: str, content: Mapping[str, Any], errors: list[str], home: Path
) -> Section | None:
    """A section whose kind is the user's own class or function, named by its module: name = "my.module:Thing"."""
    try:
        found: dict[str, type[RegisteredSection]] = own_kind(section, path, home)
    except TwofoldError as mistake:
        errors.append(f"{section}.{selector} = {in_toml(path)}: {mistake}")
        return None
    try:
        return found[path].model_validate(content)
    except ValidationError as mistake:
        errors += sentences(section, None, {"": found[path]}, mistake)
        return None


def _with_defaults(
    section: str, selector: str, content: Mapping[str, Any], document: Mapping[str, Any], home: Path
) -> dict[str, Any] | None:
    """The section with its kind filled in where it has a default; None if that depends on data that is not known."""
    content = dict(content)
    if section == "data" and isinstance(content.get(selector), str) and ":" not in content[selector]:
        content[selector] = content[selector].replace("_", "-")  # the registry's names have hyphens
    if selector in content:
        return content
    if section == "partition":
        data = document.get("data")
        data = data if _is_table(data) else {}
        source = _source(str(data.get("source", "")), home)
        if source is None:
            return None
        dealt: dict[str, Any] = (
            {"method": "natural"} if source.is_owned(data) else {"method": "by_labels"} | dict(source.partition)
        )
        return dealt | content
    return {selector: DEFAULT_KIND[section]} | content if section in DEFAULT_KIND else content


def _source(name: str, home: Path) -> data_sets.Source | None:
    """The data set of this name, or the user's own, named by its module; None if it does not exist."""
    if ":" not in name:
        return data_sets.REGISTRY.get(name) or data_sets.REGISTRY.get(name.replace("_", "-"))
    try:
        return find(name, "data", home)
    except TwofoldError:
        return None  # the check of [data] reports what is wrong


def _stray(name: str, content: object) -> str:
    if isinstance(content, dict):
        return choose_from(f"[{name}] is not a section", name, SECTIONS)
    homes = dict.fromkeys(key.path for key in all_keys() if key.path.endswith(f".{name}"))
    hint = f"did you mean {' or '.join(homes)}?" if homes else f"the sections are {', '.join(SECTIONS)}."
    return f"{name} = {in_toml(content)} stands outside of any section; {hint}"


def _contradictions(found: Mapping[str, Any]) -> list[str]:
    """Contradictions between sections, and the errors that a loss, an objective or a method raises about its arguments."""
    errors = [*_dealing(found), *_seeding(found.get("run"))]
    loss = _attempt("loss", found, lambda section: section.build(classes=2), errors)
    if loss is not None:
        _attempt("objective", found, lambda section: section.build(loss), errors)
    algorithm = _attempt("algorithm", found, lambda section: section.build(), errors)
    if isinstance(algorithm, Algorithm) and algorithm.needs is not None and "objective" in found:
        objective = found["objective"].registered.name
        if objective != algorithm.needs:
            errors.append(
                f'algorithm.name = "{found["algorithm"].registered.name}" solves the {algorithm.needs} objective only, but '
                f'objective.name = "{objective}": choose another of the two.'
            )
    return errors


def _attempt(section: str, found: Mapping[str, Any], build: Callable[[Any], T], errors: list[str]) -> T | None:
    """What a section builds; or None, with the mistake appended to `errors`."""
    if section not in found:
        return None
    try:
        return build(found[section])
    except (TwofoldError, ValueError) as mistake:  # a user's own factory may raise a plain ValueError
        errors += refused(section, mistake)
        return None


def _dealing(found: Mapping[str, Any]) -> list[str]:
    """Check the partition: data with clients of its own needs method "natural", other data another method."""
    if "data" not in found or "partition" not in found:
        return []
    data, method = found["data"], found["partition"].registered.name
    option = data.source_entry.owned
    if isinstance(option, str):
        because = f"data.{option} is {'given' if data.owned else 'not given'}"
    else:
        because = f'data.source = "{data.registered.name}" has {"clients" if data.owned else "no clients"} of its own'
    if data.owned == (method == "natural"):
        return []
    allowed = "natural" if data.owned else ", ".join(name for name in kinds("partition") if name != "natural")
    return [f'partition.method = "{method}" does not fit, because {because}: choose from {allowed}.']


def _seeding(run: RunSection | None) -> list[str]:
    if run is None or run.seeds is None:
        return []
    given = in_toml(run.seeds)
    if run.seed is not None:
        return [f"run.seed = {run.seed} and run.seeds = {given} contradict each other: give one of them."]
    if run.seeds == [] or (isinstance(run.seeds, int) and run.seeds < 1):
        return [f"run.seeds = {given} is not allowed: there must be at least one seed."]
    if isinstance(run.seeds, list) and len(set(run.seeds)) < len(run.seeds):
        return [f"run.seeds = {given} is not allowed: every seed may appear only once."]
    return []
