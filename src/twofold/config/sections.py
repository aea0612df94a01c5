"""The sections of a file as pydantic models; a section that has kinds is a discriminated union with one model per kind.

The kinds and their keys come from the registries, so that whatever is registered can be named in a file at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypedDict, Union, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from twofold import algorithms, engines, losses, metrics, objectives
from twofold import data as data_sets
from twofold.config.mistakes import in_toml, in_words, type_of
from twofold.config.options import FilePath, Option, fields_of, first_sentence, options_of
from twofold.curvature.metric import Kind
from twofold.data import Dataset, Source, partition
from twofold.data.sources import Normalisation
from twofold.objectives.base import Loss
from twofold.registry import find
from twofold.theory.cost import Preset

__all__ = [
    "PLAIN", "SECTIONS", "SELECTORS", "AlgorithmSection", "ConfigKey", "DataSection", "LossSection",
    "ObjectiveSection", "Output", "PartitionSection", "Record", "RunSection", "Section", "Stop", "adapter", "all_keys",
    "grouped", "kinds", "model_of", "own_kind",
]  # fmt: skip


Method: TypeAlias = algorithms.Algorithm | Literal["auto"]
"""What solves the problem: a method, or "auto", which leaves the choice to `solve`."""


Precondition: TypeAlias = Kind | Literal["auto"]


class Variables(TypedDict):
    """The variables that algorithms work on and how they draw rows, as `Problem` takes them."""

    rescale: bool
    precondition: Precondition | None
    sampling: Literal["importance", "uniform", "auto"]


class Section(BaseModel):
    """One section of a file: unknown keys are errors, and no value is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


# --- sections without kinds -------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    MetricName: TypeAlias = str
    EngineName: TypeAlias = engines.EngineName
else:  # what is registered, which only running the program tells
    MetricName = Literal[(*metrics.BUILT_IN, *metrics.DERIVED)]
    EngineName = Literal[tuple(engines.REGISTRY)]


class Stop(Section):
    """When a run ends: at whichever limit comes first.

    If none is given, method "auto" ends when the gap is certified to be 1e-8 of the initial one (1e-4 in single precision), and any
    other method after 1,000 rounds.
    """

    rounds: int | None = Field(None, ge=1, description="rounds of communication")
    iterations: int | None = Field(None, ge=1, description="iterations")
    seconds: float | None = Field(None, gt=0, description="wall time")
    target: float | None = Field(None, description="a loss to reach")
    tol: float | None = Field(None, gt=0, description="a certified bound on F − F* to reach; needs a ridge (l2 > 0)")


class Record(Section):
    """Which metrics are recorded during a run, and how often."""

    metrics: list[MetricName] = Field(["loss"], description="what to evaluate")
    every: int = Field(1, ge=1, description="record every this many rounds; a larger number is faster")


class RunSection(Section):
    """How the problem is solved: seeds, costs, engine, memory, participation, checkpoints, precision."""

    seed: int | None = Field(None, ge=0, description="the seed, 0 if not given")
    seeds: int | list[int] | None = Field(None, description="several seeds at once: a list, or a number n for 0 … n−1")
    engine: EngineName = Field("simulate", description="which engine runs it")
    chunk: int | None = Field(None, ge=1, description="clients processed at a time; by free memory if not given")
    state: Literal["device", "host", "disk"] | None = Field(
        None, description="where the private state of waiting clients is kept"
    )
    participation: int | float | list[float] | None = Field(
        None, description="who takes part in a round: a number of clients, a probability, or one probability per client"
    )
    checkpoint: bool | None = Field(
        None,
        description="write checkpoints into the results folder, for --resume; true if checkpoint_every is given",
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="rounds from one checkpoint to the next; one a minute if not given"
    )
    cost: Preset = Field(
        "cross-silo",
        description="what rounds, bytes and gradients cost: by this auto chooses, and methods that draw rows set their coins",
    )
    x64: bool | None = Field(None, description="compute in float64; JAX's default, float32, if not given")
    feature_dtype: Literal["bfloat16"] | None = Field(
        None,
        validation_alias=AliasChoices("feature_dtype", "rows"),
        description="store features rounded to two bytes each",
    )


class Output(Section):
    """What a run writes to disk."""

    folder: str | None = Field(None, description="the folder; runs/NAME for a file NAME.toml if not given")
    history: list[Literal["csv", "parquet"]] | None = Field(
        None, description="formats of the history; if not given, csv, and parquet if pyarrow is installed"
    )
    evaluate: bool = Field(True, description="whether to grade every client, on its test rows if it has any")
    metric: str | None = Field(
        None,
        description='the grade: a scikit-learn scorer ("roc_auc", "r2", …) or "calibration"; by the loss if not given',
    )


PLAIN: dict[str, type[Section]] = {"stop": Stop, "record": Record, "run": RunSection, "output": Output}
"""Sections without kinds."""


# --- sections that come in kinds --------------------------------------------------------------------------------------


class Registered(NamedTuple):
    """The source of a section's model: its name in the registry, the registered factory, and the factory's options."""

    name: str
    factory: Callable[..., Any]
    options: tuple[Option, ...]


class RegisteredSection(Section):
    """A section that has kinds; besides the kind, its keys are the arguments of a registered factory."""

    registered: ClassVar[Registered]

    def given(self) -> dict[str, Any]:
        """The arguments that the file sets; the factory's defaults apply to the rest."""
        names = {option.name for option in self.registered.options}
        return {name: value for name, value in self if name in names and name in self.model_fields_set}


class DataSection(RegisteredSection):
    """[data]: where the rows come from."""

    source_entry: ClassVar[Source]
    normalise: Normalisation = Field(
        "none",
        description="columns to mean 0 and variance 1 by the training rows; rows to norm 1; or both, as in the paper",
    )

    @property
    def owned(self) -> bool:
        """Whether the data name each row's client."""
        return self.source_entry.is_owned(self.given())

    def load(self, home: Path) -> Dataset:
        """Read the data; paths of files are relative to `home`."""
        given = self.given()
        paths = {name: home / Path(given[name]).expanduser() for name in self.paths() if name in given}
        return self.registered.factory(**given | paths)

    @classmethod
    def paths(cls) -> list[str]:
        """The keys that name files."""
        return [option.name for option in cls.registered.options if option.type == FilePath]


class PartitionSection(RegisteredSection):
    """[partition]: which client gets which rows."""

    weights: Literal["equal", "rows"] = Field("equal", description="whether clients count equally or by their rows")


class LossSection(RegisteredSection):
    """[loss]: one client's loss of one model."""

    def build(self, classes: int) -> Loss:
        """The loss; `classes` is the number of classes in the data, for a loss that needs it and a file that does not set it."""
        needs_classes = any(option.name == "classes" and option.default is None for option in self.registered.options)
        return self.registered.factory(**({"classes": classes} if needs_classes else {}) | self.given())


class ObjectiveSection(RegisteredSection):
    """[objective]: the personalised objective."""

    rescale: bool = Field(True, description="whether algorithms work on w·√M, as the theory assumes")
    precondition: Precondition | None = Field(
        None, description="a change of variables by second moments, which evens out badly scaled features"
    )
    sampling: Literal["importance", "uniform", "auto"] = Field(
        "auto", description="how rows are drawn; auto is by importance where a row's smoothness is known"
    )

    @property
    def variables(self) -> Variables:
        """What `Problem` is told besides the objective."""
        return {"rescale": self.rescale, "precondition": self.precondition, "sampling": self.sampling}

    def build(self, loss: Loss) -> objectives.Objective:
        """The objective over this loss."""
        return self.registered.factory(loss, **self.given())


class AlgorithmSection(RegisteredSection):
    """[algorithm]: the method; hyper-parameters that are not given come from theory."""

    def build(self) -> Method:
        """The method, with the hyper-parameters that the file sets; or "auto"."""
        return self.registered.factory(**self.given())


def auto() -> Literal["auto"]:
    """The method that is predicted to cost least, by run.cost; the run says which, and why."""
    return "auto"


class SectionKinds(NamedTuple):
    """How a section with kinds is made from its registry."""

    selector: str  # the key that names the kind
    base: type[RegisteredSection]
    supplied: int  # leading arguments of a factory that twofold supplies
    registry: Callable[[], Mapping[str, Any]]


def _file_objectives() -> dict[str, Callable[..., Any]]:
    """The objectives over a loss; `custom` takes a function, which a file cannot express."""
    return {
        name: factory
        for name, factory in objectives.REGISTRY.items()
        if next(iter(inspect.signature(factory).parameters)) == "loss"
    }


KINDS: dict[str, SectionKinds] = {
    "data": SectionKinds("source", DataSection, 0, lambda: data_sets.REGISTRY),
    "partition": SectionKinds("method", PartitionSection, 1, lambda: partition.REGISTRY),
    "loss": SectionKinds("name", LossSection, 0, lambda: losses.REGISTRY),
    "objective": SectionKinds("name", ObjectiveSection, 1, _file_objectives),
    "algorithm": SectionKinds("name", AlgorithmSection, 0, lambda: {"auto": auto, **algorithms.REGISTRY}),
}
SELECTORS = {section: entry.selector for section, entry in KINDS.items()}
SECTIONS = (*KINDS, *PLAIN)
DEFAULT_KIND = {"algorithm": "auto"}


def kinds(section: str) -> dict[str, type[RegisteredSection]]:
    """The model of each kind of a section, as currently registered.

    >>> list(kinds("loss"))
    ['logistic', 'softmax', 'squared']
    """
    return _models(section, tuple(KINDS[section].registry().items()))


def model_of(section: str, kind: str) -> type[RegisteredSection]:
    """The model of one kind of a section.

    >>> list(model_of("loss", "squared").model_fields)
    ['name', 'l2', 'intercept']
    """
    return kinds(section)[kind]


def own_kind(section: str, path: str, home: Path) -> dict[str, type[RegisteredSection]]:
    """The model of a user's own class or function, named as "my.module:Thing" in a file in the folder `home`."""
    return {path: _own(section, path, find(path, section, home))}  # type: ignore[arg-type]


@lru_cache
def _own(section: str, path: str, entry: Any) -> type[RegisteredSection]:
    return _model(section, path, entry)


def adapter(section: str) -> TypeAdapter[Any]:
    """The validator of a section: one model, or a union of models discriminated by their selector."""
    if section in PLAIN:
        return TypeAdapter(PLAIN[section])
    return _union(section, tuple(KINDS[section].registry().items()))


@lru_cache
def _models(section: str, entries: tuple[tuple[str, Any], ...]) -> dict[str, type[RegisteredSection]]:
    return {name: _model(section, name, entry) for name, entry in entries}


@lru_cache
def _union(section: str, entries: tuple[tuple[str, Any], ...]) -> TypeAdapter[Any]:
    union: Any = Union[tuple(_models(section, entries).values())]  # noqa: UP007  (a tuple known only now)
    told_apart: Any = Annotated[union, Field(discriminator=KINDS[section].selector)]
    return TypeAdapter(told_apart)


def _model(section: str, name: str, entry: Any) -> type[RegisteredSection]:
    """The model of one registered loss, objective, method, data set or partitioner."""
    selector, base, supplied, _ = KINDS[section]
    factory: Callable[..., Any] = entry.load if isinstance(entry, Source) else entry
    options = options_of(factory, supplied, name)
    if section == "loss":  # if the file does not give the number of classes, it is taken from the data
        options = [option._replace(default=None) if _asks_for_classes(option) else option for option in options]
    fields: dict[str, Any] = {selector: (Literal[name], ...), **fields_of(options)}
    if isinstance(entry, Source):
        meaning = DataSection.model_fields["normalise"].description
        fields["normalise"] = (Normalisation, Field(entry.normalise, description=meaning))
    model = create_model(name, __base__=base, **fields)
    model.__doc__ = first_sentence(factory)
    model.registered = Registered(name, factory, tuple(options))
    if isinstance(entry, Source):
        model.source_entry = entry  # type: ignore[attr-defined]
    return model


def _asks_for_classes(option: Option) -> bool:
    return option.name == "classes" and option.default is inspect.Parameter.empty


# --- the list of all keys ---------------------------------------------------------------------------------------------


class ConfigKey(NamedTuple):
    """One key of a file, described for people."""

    path: str
    kind: str
    type: str
    default: str
    meaning: str


def all_keys() -> list[ConfigKey]:
    """Every key that a file may have, with its type, its default and its meaning, if that is known.

    >>> next(key for key in all_keys() if key.path == "stop.rounds").type
    'a whole number'
    """
    out: list[ConfigKey] = []
    for section, selector in SELECTORS.items():
        default = DEFAULT_KIND.get(section, "required" if section != "partition" else "natural or by_labels")
        out.append(ConfigKey(f"{section}.{selector}", "", f"one of {', '.join(kinds(section))}", default, ""))
        for kind, found in grouped(section).items():
            fields = {name: field for name, field in found.model_fields.items() if name != selector}
            out += [_key(section, kind, name, field) for name, field in fields.items()]
    for section, found in PLAIN.items():
        out += [_key(section, "", name, field) for name, field in found.model_fields.items()]
    return out


def grouped(section: str) -> dict[str, type[RegisteredSection]]:
    """The models of a section by kind; kinds with the same loader, such as the image sets, are listed together.

    >>> list(grouped("data"))[3]
    'mnist, fashion-mnist, kmnist, cifar10'
    """
    together: dict[object, list[type[RegisteredSection]]] = {}
    for found in kinds(section).values():
        factory = found.registered.factory
        together.setdefault(factory.func if isinstance(factory, partial) else factory, []).append(found)
    return {", ".join(found.registered.name for found in models): models[0] for models in together.values()}


def _key(section: str, kind: str, name: str, field: FieldInfo) -> ConfigKey:
    nothing = "from theory" if section == "algorithm" and float in get_args(field.annotation) else ""
    default = "required" if field.is_required() else nothing if field.default is None else in_toml(field.default)
    return ConfigKey(f"{section}.{name}", kind, in_words(type_of(field)), default, field.description or "")
