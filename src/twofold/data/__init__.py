"""Real and synthetic data, split between clients.

- `images.load("mnist")` and `school.load()` read the canonical files, checked by md5;
- `normalise` holds the two normalisations of the paper;
- `partition` decides which client gets which rows, and `picture` draws the result;
- `synthetic` generates the paper's synthetic data, number for number;
- `REGISTRY` lists every data set by name, `load("digits")` loads one as a `Dataset`, and `tables` reads your own file.

Importing this needs only NumPy; functions that use matplotlib, rich or scipy.io import them when called.
"""

from twofold.data import files, images, normalise, partition, picture, school, sources, synthetic, tables
from twofold.data.dataset import Dataset
from twofold.data.files import DataError
from twofold.data.partition import Partition
from twofold.data.sources import REGISTRY, Source, load
from twofold.data.tables import OptionError

__all__ = [
    "REGISTRY", "DataError", "Dataset", "OptionError", "Partition", "Source", "files", "images", "load", "normalise",
    "partition", "picture", "school", "sources", "synthetic", "tables",
]  # fmt: skip
