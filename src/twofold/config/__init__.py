"""One run as a TOML file: data, partition, loss, objective, algorithm, stopping, recording, seeds, output.

The keys of [data], [partition], [loss], [objective] and [algorithm] are the arguments of the registered functions, read from
their signatures, so a new loss, objective, method or data set needs no change here. `all_keys()` lists every key with its type and
default. All mistakes in a file are reported at once, one sentence each.

- `glossary`: the meaning of keys; `options`: the keys of a section, from a signature; `sections`: the sections as pydantic models;
- `mistakes`: pydantic's errors as sentences; `document`: reads and checks a file;
- `build`: the checked file, and the problem that it describes; `output`: the folder that a run writes;
- `sweep`: a grid of configurations over one file.
"""

from twofold.config.build import Built, Config
from twofold.config.document import load, override, parse
from twofold.config.mistakes import ConfigError
from twofold.config.options import first_sentence
from twofold.config.output import check_folder, save
from twofold.config.sections import PLAIN, SECTIONS, SELECTORS, ConfigKey, all_keys, grouped, model_of
from twofold.config.sweep import Cell, check_cells, plan

__all__ = [
    "PLAIN", "SECTIONS", "SELECTORS", "Built", "Cell", "Config", "ConfigError", "ConfigKey", "all_keys", "check_cells",
    "check_folder", "first_sentence", "grouped", "load", "model_of", "override", "parse", "plan", "save",
]  # fmt: skip
