"""One run as a TOML file: data, partition, loss, objective, algorithm, stopping, recording, seeds, output.

The keys of `[objective]`, `[algorithm]`, `[loss]`, `[partition]` and the synthetic `[data]` are the arguments of the
functions that they name, read off their signatures: a new objective or method needs no word about it in this file.
`all_keys()` lists every key with its type and default. All mistakes in a file are reported at once, one sentence each.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import tomllib
import types
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from twofold import algorithms, engines, losses, metrics, objectives
from twofold.clients import Clients
from twofold.data import images, normalise, partition, school, synthetic
from twofold.errors import InputError
from twofold.extras import require
from twofold.problem import Problem
from twofold.result import Result
from twofold.solver import solve

ALL = "all"
"""In a file, `batch = "all"` stands for Python's None: every row."""


class ConfigError(InputError):
    """What is wrong with a file: `errors` holds one sentence for each mistake."""

    def __init__(self, errors: Sequence[str], source: str = "") -> None:
        self.errors = tuple(errors)
        self.source = source
        super().__init__("\n".join(self.errors))


class Table(BaseModel):
    """One table of the file: unknown keys are mistakes, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


# --- tables whose keys stand in a signature ---------------------------------------------------------------------------

MEANINGS = {
    "Lambda": "Λ, the weight of the shared model's own loss; inf for the original two-stage problem",
    "adaptive.alpha": "α, the share of the shared model in the blend: one number, or one for each client",
    "maml.alpha": "α, the step from the shared start to a client's model",
    "dirichlet.alpha": "α, the concentration: small gives each label to few clients",
    "average": "report the weighted average of iterates",
    "batch": "rows in a sampled gradient",
    "classes": "the number of classes; found in the data if not given",
    "clients": "the number of clients",
    "delta": "the server keeps (1−δ)w + δ·mean",
    "epochs": "passes over each client's rows in a round, instead of tau",
    "eta": "η, the step size",
    "exponent": "client r gets a share proportional to r^−exponent",
    "gamma": "γ, the step of z",
    "inner_eta": "the step size of the inner problem",
    "inner_steps": "steps on the inner problem",
    "intercept": "add a constant feature",
    "l2": "the ridge (l2/2)‖·‖², which is what makes logistic and softmax strongly convex",
    "labels_per_client": "how many labels each client has",
    "lam": "λ, the penalty towards the shared model",
    "local_rounds": "local rounds in a round",
    "min_rows": "the fewest rows of a client",
    "mu": "μ, the strong convexity",
    "nu": "ν, the momentum",
    "optimal": "what ρ makes optimal: the number of ∇w (and rounds), or of ∇β",
    "own_features": "features of the private part",
    "p_w": "the probability of an iteration in w, which communicates",
    "private": 'columns of the private predictor: a list or a range "0:10"; all if not given',
    "rho": "ρ, the probability of a new reference point",
    "rows": "rows of each client",
    "shared": 'columns of the shared predictor: a list or a range "0:10"; all if not given',
    "shared_features": "features of the shared part",
    "sigma_h": "σ_h, how different the clients are",
    "split": "what is shared: the first k rows, or the names of parts of the model (weight, bias)",
    "tau": "τ, local steps in a round",
    "test": "the share of each client's rows that is held out",
    "by_labels.test": "test rows of each client",
    "theta": "θ, the momentum",
    "train": "training rows of each client",
    "tries": "how often to draw again when a client has too few rows",
}
"""What keys mean that stand in signatures; a key without an entry works just as well."""


def _readable(annotation: Any) -> Any:
    """The part of a type that a TOML file can express, or None: numbers, strings, booleans, and lists of them."""
    if annotation is Any:
        return float | list[float]
    if annotation in (bool, int, float, str):
        return annotation
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        found = [readable for part in inside if (readable := _readable(part)) is not None]
        return Union[tuple(found)] if found else None  # noqa: UP007  (a tuple known only now)
    if (
        origin is not tuple
        and isinstance(origin, type)
        and issubclass(origin, Collection)
        and not issubclass(origin, Mapping)
    ):
        inner = _readable(inside[0]) if inside else None
        return None if inner is None else list[inner]
    return None


def _table(
    name: str, parameters: Mapping[str, tuple[Any, Any]], base: type[Table] = Table, text: str = ""
) -> type[Table]:
    """A table from names, types and defaults; what TOML cannot express is left out, None becomes optional."""
    fields: dict[str, Any] = {}
    for key, (annotation, default) in parameters.items():
        readable = _readable(annotation)
        if readable is None:
            continue
        text_of_key = MEANINGS.get(f"{name}.{key}", MEANINGS.get(key))
        if default is inspect.Parameter.empty:
            fields[key] = (readable, Field(description=text_of_key))
        elif default is None:
            fields[key] = (readable | None, Field(None, description=text_of_key))
        elif type(None) in get_args(annotation):  # batch: a number, or "all"
            fields[key] = (readable | Literal[ALL], Field(default, description=text_of_key))
        else:
            fields[key] = (readable, Field(default, description=text_of_key))
    model = create_model(name, __base__=base, **fields)
    model.__doc__ = text
    return model


def _of_function(
    function: Callable[..., Any], skip: int = 1, base: type[Table] = Table, **defaults: Any
) -> type[Table]:
    """A table of a function's arguments, without the first `skip` ones, which twofold supplies."""
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    found = {p.name: (hints.get(p.name, Any), defaults.get(p.name, p.default)) for p in parameters}
    return _table(function.__name__, found, base, first_sentence(function))


def _of_dataclass(cls: type) -> type[Table]:
    hints = get_type_hints(cls)
    missing = inspect.Parameter.empty
    found = {
        f.name: (hints[f.name], missing if f.default is dataclasses.MISSING else f.default)
        for f in dataclasses.fields(cls)
        if f.init
    }
    return _table(cls.__name__, found, text=first_sentence(cls))


def first_sentence(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


# --- the tables -------------------------------------------------------------------------------------------------------

Normalise = Literal["none", "standardise", "unit-rows", "paper"]


class Source(Table):
    """Any data."""

    normalise: Normalise = Field(
        "none",
        description="columns to mean 0 and variance 1 by the training rows; rows to norm 1; or both, as in the paper",
    )


class Digits(Source):
    """scikit-learn's 1,797 images of digits, 8×8 pixels in [0, 1]; they come with the library."""


class Images(Source):
    """MNIST, Fashion-MNIST, KMNIST or CIFAR-10, pixels in [0, 1]; downloaded unless they are there."""

    normalise: Normalise = Field("paper", description=Source.model_fields["normalise"].description)
    parts: list[Literal["train", "test"]] | None = Field(
        None, description="the files to pool; all that are there if not given"
    )
    folder: str | None = Field(None, description="where the files are; else TWOFOLD_DATA, else the user's cache")


class School(Source):
    """Exam scores of 15,362 pupils in 139 schools, one client per school; downloaded unless they are there."""

    normalise: Normalise = Field("standardise", description=Source.model_fields["normalise"].description)
    folder: str | None = Field(None, description="where the file is; else TWOFOLD_DATA, else the user's cache")


class Csv(Source):
    """A file with one row per sample and named columns."""

    path: str = Field(description="the file, relative to the TOML file")
    target: str = Field(description="the column to predict: 0, 1, … for classes, or real numbers")
    client: str | None = Field(
        None, description="the column that says whose row it is; without it [partition] deals them out"
    )
    features: list[str] | None = Field(None, description="the columns to predict from; all others if not given")
    separator: str = Field(",", description="what stands between columns", min_length=1, max_length=1)


class Npz(Source):
    """NumPy arrays in a file of np.savez."""

    path: str = Field(description="the file, relative to the TOML file")
    x: str = Field("x", description="the name of the features, (rows, width)")
    y: str = Field("y", description="the name of the targets, (rows,)")
    client: str | None = Field(
        None, description="the name of the array that says whose row it is; else see [partition]"
    )


class Stop(Table):
    """When a run ends: whichever comes first; after 1,000 rounds if nothing is given."""

    rounds: int | None = Field(None, ge=1, description="rounds of communication")
    iterations: int | None = Field(None, ge=1, description="iterations")
    seconds: float | None = Field(None, gt=0, description="wall time")
    target: float | None = Field(None, description="a loss to reach")
    tol: float | None = Field(None, gt=0, description="a certified gap ‖∇F‖²/(2μ) to reach; needs a ridge (l2 > 0)")


_METRICS = (*metrics.BUILT_IN, *metrics.DERIVED)
_ENGINES = tuple(engines.REGISTRY)


class Record(Table):
    """What is written down on the way."""

    metrics: list[Literal[_METRICS]] = Field(["loss"], description="what to evaluate")  # type: ignore[valid-type]
    every: int = Field(1, ge=1, description="at every so many rounds; a large number is faster")


class Run(Table):
    """How it is run."""

    seed: int | None = Field(None, ge=0, description="the seed, 0 if not given")
    seeds: int | list[int] | None = Field(None, description="several seeds at once: a list, or a number n for 0 … n−1")
    engine: Literal[_ENGINES] = Field("simulate", description="which engine runs it")  # type: ignore[valid-type]
    chunk: int | None = Field(None, ge=1, description="clients at work at a time; by free memory if not given")
    state: Literal["device", "host", "disk"] | None = Field(
        None, description="where clients who wait keep their private state"
    )
    x64: bool | None = Field(None, description="compute in float64; JAX's default, float32, if not given")
    rows: Literal["bfloat16"] | None = Field(None, description="keep features rounded, in two bytes each")


class Output(Table):
    """What is left on disk."""

    folder: str | None = Field(None, description="where to; runs/NAME for a file NAME.toml if not given")
    history: list[Literal["csv", "parquet"]] = Field(["csv", "parquet"], description="formats of the history")
    evaluate: bool = Field(True, description="whether to grade every client, on its test rows where it has some")


class Dealt(Table):
    """Any partition."""

    weights: Literal["equal", "rows"] = Field("equal", description="whether clients count equally or by their rows")


class Fitted(Table):
    """Any objective."""

    rescale: bool = Field(True, description="whether algorithms work on w·√M, as theory wants it")


IMAGE_SETS = tuple(images.CATALOGUE)
SYNTHETIC = {"synthetic-mixture": synthetic.mixture, "synthetic-weight-sharing": synthetic.weight_sharing}
PARTITIONERS = {
    f.__name__: f for f in (partition.by_labels, partition.dirichlet, partition.power_law, partition.natural)
}
LOSSES = {f.__name__: f for f in (losses.logistic, losses.softmax, losses.squared)}
OBJECTIVES = {
    name: f for name, f in objectives.REGISTRY.items() if next(iter(inspect.signature(f).parameters)) == "loss"
}

KINDS: dict[str, tuple[str, dict[str, type[Table]]]] = {
    "data": (
        "source",
        {name: _of_function(f, 0, Source) for name, f in SYNTHETIC.items()}
        | {"digits": Digits, **dict.fromkeys(IMAGE_SETS, Images), "school": School, "csv": Csv, "npz": Npz},
    ),
    "partition": ("method", {name: _of_function(f, base=Dealt) for name, f in PARTITIONERS.items()}),
    "loss": ("name", {name: _of_function(f, 0, classes=None) for name, f in LOSSES.items()}),
    "objective": ("name", {name: _of_function(f, base=Fitted) for name, f in OBJECTIVES.items()}),
    "algorithm": ("name", {name: _of_dataclass(cls) for name, cls in algorithms.REGISTRY.items()}),
}
"""Tables that come in kinds: the key that names the kind, and each kind's table."""
PLAIN: dict[str, type[Table]] = {"stop": Stop, "record": Record, "run": Run, "output": Output}
SECTIONS = (*KINDS, *PLAIN)
DEFAULT_KIND = {"algorithm": "asvrcd"}


def table(section: str, kind: str) -> type[Table]:
    """The table of a section's kind, as in table("algorithm", "acd")."""
    return KINDS[section][1][kind]


class Key(NamedTuple):
    """One key of the file, for people."""

    path: str
    kind: str
    type: str
    default: str
    meaning: str


def all_keys() -> list[Key]:
    """Every key that a file may have, with its type, its default and, where it has one, its meaning."""
    out: list[Key] = []
    for section, (selector, kinds) in KINDS.items():
        default = DEFAULT_KIND.get(section, "required" if section != "partition" else "natural or by_labels")
        out.append(Key(f"{section}.{selector}", "", f"one of {', '.join(kinds)}", default, ""))
        for kind, found in grouped(section).items():
            out += [_key(section, kind, name, field) for name, field in found.model_fields.items()]
    for section, found in PLAIN.items():
        out += [_key(section, "", name, field) for name, field in found.model_fields.items()]
    return out


def grouped(section: str) -> dict[str, type[Table]]:
    """The tables of a section by kind; kinds that share a table (the image sets) together."""
    names: dict[type[Table], list[str]] = {}
    for kind, found in KINDS[section][1].items():
        names.setdefault(found, []).append(kind)
    return {", ".join(kinds): found for found, kinds in names.items()}


def _key(section: str, kind: str, name: str, field: Any) -> Key:
    nothing = "from theory" if section == "algorithm" and float in get_args(field.annotation) else ""
    default = "required" if field.is_required() else nothing if field.default is None else _toml(field.default)
    return Key(f"{section}.{name}", kind, _type(field.annotation), default, field.description or "")


def _type(annotation: Any, many: bool = False) -> str:
    """A type in words, such as: a list of whole numbers."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        values = [_toml(value) for value in inside]
        return values[0] if len(values) == 1 else f"{'any' if many else 'one'} of {', '.join(values)}"
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part, many) for part in inside if part is not type(None))
    if origin is list:
        return f"{'lists' if many else 'a list'} of {_type(inside[0], many=True)}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    plural = {bool: "true or false", int: "whole numbers", float: "numbers", str: "texts"}
    return (plural if many else words).get(annotation, str(annotation))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked file: the kind and the table of each section."""

    kinds: Mapping[str, str]
    tables: Mapping[str, Any]
    name: str
    home: Path
    document: Mapping[str, Any]

    def __str__(self) -> str:
        """The file again, with overrides in place and the data's path made absolute, so that it runs from anywhere."""
        lines = []
        for section, table in self.document.items():
            lines += [
                f"[{section}]",
                *(f"{key} = {_toml(self._absolute(section, key, v))}" for key, v in table.items()),
                "",
            ]
        return "\n".join(lines)

    def _absolute(self, section: str, key: str, value: Any) -> Any:
        return str(self.home / Path(value).expanduser()) if (section, key) == ("data", "path") else value

    @property
    def seeds(self) -> list[int]:
        """The seeds to run."""
        run: Run = self.tables["run"]
        if run.seeds is None:
            return [run.seed or 0]
        return list(range(run.seeds)) if isinstance(run.seeds, int) else run.seeds

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.tables["output"].folder or Path("runs") / self.name).expanduser()

    @property
    def stop(self) -> dict[str, Any]:
        """What `solve` is told about stopping."""
        given = {key: value for key, value in self.tables["stop"] if value is not None}
        return given or {"rounds": 1000}

    def build(self) -> Built:
        """Load the data, deal it out, and put the problem together."""
        train, test, provenance = _clients(self)
        loss = _loss(self, train, test)
        objective = _objective(self, loss)
        try:
            problem = Problem(objective, train, rescale=self.tables["objective"].rescale, rows=self.tables["run"].rows)
        except ValueError as mistake:
            raise ConfigError([f'loss.name = "{self.kinds["loss"]}" does not fit: {mistake}.'], self.name) from mistake
        return Built(problem, _algorithm(self), train, test, provenance)

    def solve(self, built: Built, progress: bool | None = None) -> list[Result]:
        """Run it, all seeds at once."""
        record, run = self.tables["record"], self.tables["run"]
        stop: dict[str, Any] = self.stop
        found = solve(
            built.problem, built.algorithm, seeds=self.seeds, record=tuple(record.metrics), every=record.every,
            engine=run.engine, chunk=run.chunk, state=run.state, progress=progress, **stop,
        )  # fmt: skip
        return list(found)


class Built(NamedTuple):
    """What a file describes: the problem, the method as far as it is set, everyone's rows, and where they are from."""

    problem: Problem
    algorithm: algorithms.Algorithm
    train: Clients
    test: Clients | None
    provenance: str


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a TOML file; `overrides` such as "objective.lam=0.3" win over it."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as mistake:
        raise ConfigError(
            [f"{path} could not be read: {(mistake.strerror or str(mistake)).lower()}."], str(path)
        ) from mistake
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as mistake:
        raise ConfigError([f"{path} is not valid TOML: {mistake}."], str(path)) from mistake
    return parse(override(document, overrides), name=path.stem, home=path.resolve().parent)


def override(document: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The document with settings such as "objective.lam=0.3" put in; a value that is no TOML is taken as text."""
    out = {name: dict(table) if isinstance(table, dict) else table for name, table in document.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise ConfigError([f"{setting!r} is not of the form section.key=value."])
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        table = out.setdefault(section, {})
        if isinstance(table, dict):  # else parse will complain about it
            table[key] = value
    return out


def parse(document: Mapping[str, Any], name: str = "config", home: str | Path = ".") -> Config:
    """Check a document (nested dicts, as tomllib gives them) and collect everything that is wrong with it."""
    errors = [_stray(name, document[name]) for name in document if name not in SECTIONS]
    kinds: dict[str, str] = {}
    tables: dict[str, Any] = {}
    for section in SECTIONS:
        content = document.get(section, {})
        if not isinstance(content, dict):
            errors.append(f"{section} = {_toml(content)} must be a table: write [{section}] on a line of its own.")
            continue
        content = dict(content)
        if section in PLAIN:
            table = PLAIN[section]
        else:
            kind = _kind(section, content, document, errors)
            if kind is None:
                continue
            kinds[section], table = kind, KINDS[section][1][kind]
        try:
            tables[section] = table.model_validate(content)
        except ValidationError as mistake:
            errors += _sentences(section, kinds.get(section), table, mistake)
    config = Config(kinds, tables, name, Path(home), document)
    errors += _contradictions(config)
    if errors:
        raise ConfigError(errors, name)
    return config


def _stray(name: str, content: Any) -> str:
    if isinstance(content, dict):
        return _unknown(f"[{name}] is not a section", name, SECTIONS)
    homes = dict.fromkeys(key.path for key in all_keys() if key.path.endswith(f".{name}"))
    hint = f"did you mean {' or '.join(homes)}?" if homes else f"the sections are {', '.join(SECTIONS)}."
    return f"{name} = {_toml(content)} stands outside of any section; {hint}"


def _kind(section: str, content: dict[str, Any], document: Mapping[str, Any], errors: list[str]) -> str | None:
    """The kind of a section's table, taken out of its content."""
    selector, known = KINDS[section]
    kind = content.pop(selector, None)
    if kind is None and section == "partition":
        data = document.get("data")
        kind, defaults = _default_partition(data if isinstance(data, dict) else {})
        for key, value in defaults.items():
            content.setdefault(key, value)
    kind = DEFAULT_KIND.get(section) if kind is None else kind
    path = f"{section}.{selector}"
    if kind is None:
        errors.append(f"{path} is missing: choose from {', '.join(known)}.")
        return None
    plain = kind.replace("_", "-") if section == "data" and isinstance(kind, str) else kind
    if not isinstance(plain, str) or plain not in known:
        errors.append(_unknown(f"{path} = {_toml(kind)} is not known", str(kind), known))
        return None
    return plain


def _default_partition(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    source = str(data.get("source", "")).replace("_", "-")
    if source == "digits":  # the paper's 100 + 300 rows a client are more than there are
        return "by_labels", {"train": 40, "test": 40}
    if source in IMAGE_SETS or (source in ("csv", "npz") and "client" not in data):
        return "by_labels", {}
    return "natural", {}


def _unknown(complaint: str, found: str, allowed: Collection[str]) -> str:
    near = difflib.get_close_matches(found, allowed, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{complaint}: choose from {', '.join(allowed)}{hint}"


def _sentences(section: str, kind: str | None, table: type[Table], mistake: ValidationError) -> list[str]:
    """Pydantic's errors, one sentence for each key."""
    found: dict[str, list[Any]] = {}
    for error in mistake.errors():
        found.setdefault(str(error["loc"][0]), []).append(error)
    selector = KINDS[section][0] if section in KINDS else None
    of = f"[{section}]" if kind is None else f'[{section}] with {selector} = "{kind}"'
    out = []
    for key, errors in found.items():
        path, field = f"{section}.{key}", table.model_fields.get(key)
        if field is None:
            allowed = [*([selector] if selector else []), *table.model_fields]
            out.append(_unknown(f"{path} is not a key of {of}", key, allowed))
        elif errors[0]["type"] == "missing":
            about = f" ({field.description})" if field.description else ""
            out.append(f"{path} is missing: {of} needs it, {_type(field.annotation)}{about}.")
        else:
            out.append(_refusal(path, field, errors))
    return out


def _refusal(path: str, field: Any, errors: list[Any]) -> str:
    limits = [
        e for e in errors if e["type"] in ("greater_than", "greater_than_equal", "string_too_short", "string_too_long")
    ]
    # An element of a list is named by its place; in a union of types, pydantic puts the type's name there instead.
    places = [str(part) for part in errors[0]["loc"][1:] if isinstance(part, int)]
    path, value = ".".join([path, *places]), errors[0]["input"]
    if limits:
        wanted = " and ".join(dict.fromkeys(e["msg"].replace("Input should be", "it must be") for e in limits))
        return f"{path} = {_toml(value)} is not allowed: {wanted}."
    choices = [
        c for e in errors if e["type"] == "literal_error" for c in e["ctx"]["expected"].replace("'", "").split(" or ")
    ]
    choices = [c for choice in choices for c in choice.split(", ")]
    hint = ""
    if isinstance(value, str) and (near := difflib.get_close_matches(value, choices, n=1)):
        hint = f'; did you mean "{near[0]}"?'
    wanted = field.annotation
    if places and get_origin(wanted) is list:
        wanted = get_args(wanted)[0]
    return f"{path} = {_toml(value)} is not allowed: it must be {_type(wanted)}{hint or '.'}"


def _contradictions(config: Config) -> list[str]:
    """What is wrong between sections, and what a loss, an objective or a method says about its own numbers."""
    kinds, tables = config.kinds, config.tables
    errors = [*_dealing(config), *_seeding(tables.get("run"))]
    if "loss" in tables:
        loss = _attempt("loss", lambda: _make_loss(config, classes=2), errors)
        if loss is not None and "objective" in tables:
            _attempt("objective", lambda: _objective(config, loss), errors)
    if "algorithm" in tables:
        algorithm = _attempt("algorithm", lambda: _algorithm(config), errors)
        if algorithm is not None:
            needs = algorithm.needs
            if needs is not None and kinds.get("objective", needs) != needs:
                errors.append(
                    f'algorithm.name = "{kinds["algorithm"]}" solves the {needs} objective only, but objective.name = '
                    f'"{kinds["objective"]}": choose another of the two.'
                )
    return errors


def _dealing(config: Config) -> list[str]:
    """Data that knows its clients is not dealt out again, and other data has to be."""
    if "data" not in config.tables or "partition" not in config.kinds:
        return []
    source, method = config.kinds["data"], config.kinds["partition"]
    if source in ("csv", "npz"):
        grouped = config.tables["data"].client is not None
        because = f"data.client is {'given' if grouped else 'not given'}"
    else:
        grouped = source not in (*IMAGE_SETS, "digits")
        because = f'data.source = "{source}" has {"clients" if grouped else "no clients"} of its own'
    if grouped == (method == "natural"):
        return []
    allowed = "natural" if grouped else ", ".join(name for name in PARTITIONERS if name != "natural")
    return [f'partition.method = "{method}" does not fit, as {because}: choose from {allowed}.']


def _seeding(run: Run | None) -> list[str]:
    if run is None or run.seeds is None:
        return []
    if run.seed is not None:
        return [f"run.seed = {run.seed} and run.seeds = {_toml(run.seeds)} contradict each other: give one of them."]
    if run.seeds == [] or (isinstance(run.seeds, int) and run.seeds < 1):
        return [f"run.seeds = {_toml(run.seeds)} is not allowed: there must be at least one seed."]
    return []


def _attempt(section: str, make: Callable[[], Any], errors: list[str]) -> Any:
    """What `make` gives, or None and a sentence more."""
    try:
        return make()
    except ConfigError as mistake:
        errors += mistake.errors
    except (ValueError, TypeError) as mistake:
        errors.append(f"{section}: {mistake}")
    return None


# --- building ---------------------------------------------------------------------------------------------------------


def _given(table: Table, drop: Collection[str] = ()) -> dict[str, Any]:
    """A table as keyword arguments; what was not given stays with the function's default."""
    return {
        key: getattr(table, key)
        for key in type(table).model_fields
        if key in table.model_fields_set and key not in drop
    }


def _algorithm(config: Config) -> algorithms.Algorithm:
    given = {key: None if value == ALL else value for key, value in _given(config.tables["algorithm"]).items()}
    return algorithms.REGISTRY[config.kinds["algorithm"]](**given)


def _make_loss(config: Config, classes: int) -> Any:
    kind, given = config.kinds["loss"], _given(config.tables["loss"])
    if kind == "softmax":
        given.setdefault("classes", classes)
    return LOSSES[kind](**given)


def _loss(config: Config, train: Clients, test: Clients | None) -> Any:
    labels = [part.y for part in (train, test) if part is not None]
    classes = 2
    if config.kinds["loss"] == "softmax" and all(np.ndim(y) == 1 for y in labels):
        classes = max(int(max(np.max(y) for y in labels)) + 1, 2)
    return _make_loss(config, classes)


def _objective(config: Config, loss: Any) -> objectives.Objective:
    given = _given(config.tables["objective"], drop=("rescale",))
    if config.kinds["objective"] == "residual":
        given = {key: _columns(f"objective.{key}", value) for key, value in given.items()}
    return OBJECTIVES[config.kinds["objective"]](loss, **given)


def _columns(path: str, value: Any) -> Any:
    """Columns in a file: a list of numbers, or a range "first:last" as Python writes it."""
    if not isinstance(value, str):
        return value
    start, colon, stop = value.partition(":")
    try:
        if not colon:
            raise ValueError
        return slice(*(int(part) if part.strip() else None for part in (start, stop)))
    except ValueError:
        raise ConfigError(
            [f'{path} = {_toml(value)} is not allowed: it must be a list of columns or a range "0:10".']
        ) from None


def _clients(config: Config) -> tuple[Clients, Clients | None, str]:
    """Everyone's training and test rows, and a sentence or two on where they are from."""
    data, dealt, method = config.tables["data"], config.tables["partition"], config.kinds["partition"]
    weights = "rows" if dealt.weights == "rows" else None
    given = _given(dealt, drop=("weights",))
    whole = data.normalise == "paper"  # the paper normalises each data set as a whole, before it is dealt out
    try:
        if method == "natural":
            clients, provenance = _grouped_clients(config, weights)
            clients = clients.map(lambda x, y: (normalise.paper(x), y)) if whole else clients
            given = {"test": 0.2, "seed": 0} | given
            train, test = clients.split(given["test"], seed=given["seed"]) if given["test"] != 0 else (clients, None)
            share = f"{100 * given['test']:g} % of each client's rows are" if given["test"] else "nothing is"
            dealing = f"{share} held out"
        else:
            x, y, provenance = _rows(config)
            x = normalise.paper(x) if whole else x
            parts = PARTITIONERS[method](*((len(y),) if method == "power_law" else (y,)), **given)
            mine, held_out = parts.take(x, y)
            train, test = Clients.from_list(mine, names=parts.names, weights=weights), None
            if all(len(rows) for rows in parts.test):
                test = Clients.from_list(held_out, names=parts.names, weights=weights)
            dealing = parts.description
    except ConfigError:
        raise
    except ValueError as mistake:
        raise ConfigError([f"data and partition: {mistake}."], config.name) from mistake
    change = _normaliser(data.normalise, train.x)
    train, test = train.map(change), None if test is None else test.map(change)
    features = "" if data.normalise == "none" else f" Features are normalised: {data.normalise}."
    return train, test, f"{provenance} {dealing[:1].upper()}{dealing[1:]}.{features}"


def _normaliser(how: str, reference: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    if how == "standardise":
        return lambda x, y: (normalise.standardise(x, reference), y)
    if how == "unit-rows":
        return lambda x, y: (normalise.unit_rows(x), y)
    return lambda x, y: (x, y)


def _grouped_clients(config: Config, weights: Any) -> tuple[Clients, str]:
    """Data in which the clients are given."""
    kind, data = config.kinds["data"], config.tables["data"]
    if kind in SYNTHETIC:
        made = SYNTHETIC[kind](**_given(data, drop=("normalise",)))
        return Clients.from_list(made.clients, weights=weights), f"The paper's {kind} data, σ_h = {made.sigma_h:g}."
    if kind == "school":
        found = school.load(data.folder)
        names = ", ".join(name for name, _ in found.files)
        return Clients.from_list(found.clients, names=found.names, weights=weights), f"School data from {names}."
    path = _path(config, data.path)
    if kind == "csv":
        frame = _Frame(path, data)
        clients = Clients.from_frame(frame, data.client, data.target, data.features, weights=weights)
        return clients, f"{path.name}: {clients.rows:,} rows of {clients.M} clients."
    arrays = _arrays(path, (data.x, data.y, data.client))
    clients = Clients.from_groups(*arrays, weights=weights)
    return clients, f"{path.name}: {clients.rows:,} rows of {clients.M} clients."


def _rows(config: Config) -> tuple[Any, Any, str]:
    """Data in which nobody owns the rows yet."""
    kind, data = config.kinds["data"], config.tables["data"]
    if kind == "digits":
        x, y = require("sklearn.datasets", 'data.kind = "digits"', "sklearn").load_digits(return_X_y=True)
        return x / 16, y, "scikit-learn's digits."
    if kind in IMAGE_SETS:
        found = images.load(kind, data.folder, data.parts)
        return found.x, found.y, found.provenance
    path = _path(config, data.path)
    if kind == "csv":
        frame = _Frame(path, data)
        whole = Clients.from_frame(frame.with_column("\0", "everyone"), "\0", data.target, data.features)
        return whole.x, whole.y, f"{path.name}: {whole.rows:,} rows."
    x, y = _arrays(path, (data.x, data.y))
    return x, y, f"{path.name}: {len(y):,} rows."


def _path(config: Config, text: str) -> Path:
    path = Path(text).expanduser()
    path = path if path.is_absolute() else config.home / path
    if not path.is_file():
        raise ConfigError([f"data.path = {_toml(text)}: there is no file {path}."], config.name)
    return path


def _arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            for key, name in zip(("x", "y", "client"), names, strict=False):
                if name not in content:
                    raise ConfigError(
                        [_unknown(f"data.{key} = {_toml(name)} is not in {path.name}", name, content.files)]
                    )
            return [content[name] for name in names]
    except ConfigError:
        raise
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as mistake:
        raise ConfigError([f"data.path: {path} is not a file of np.savez with plain arrays."]) from mistake


class _Frame:
    """As much of a data frame as Clients.from_frame needs, read by pyarrow: pandas is not a dependency."""

    def __init__(self, path: Path, data: Csv) -> None:
        require("pyarrow", "Reading a CSV file", "paper")
        from pyarrow import ArrowInvalid, csv

        try:
            table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=data.separator))
        except ArrowInvalid as mistake:
            raise ConfigError([f"data.path: {path} could not be read as CSV: {mistake}."]) from mistake
        if table.num_rows == 0:
            raise ConfigError([f"data.path: {path} has no rows below its header."])
        self._values = {name: table.column(name) for name in table.column_names}
        wanted = {
            "client": [data.client] if data.client else [],
            "target": [data.target],
            "features": data.features or [],
        }
        missing = [(key, name) for key, names in wanted.items() for name in names if name not in self._values]
        if missing:
            raise ConfigError(
                [_unknown(f"data.{k}: {path.name} has no column {_toml(n)}", n, table.column_names) for k, n in missing]
            )

    @property
    def columns(self) -> list[str]:
        return list(self._values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def with_column(self, name: str, value: str) -> _Frame:
        import pyarrow

        copy = object.__new__(_Frame)
        rows = len(next(iter(self._values.values())))
        copy._values = {**self._values, name: pyarrow.chunked_array([pyarrow.array([value] * rows)])}
        return copy
