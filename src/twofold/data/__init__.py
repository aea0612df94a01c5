"""Real and synthetic data, split between clients.

- `images.load("mnist")` and `school.load()` read the canonical files, checked by md5;
- `normalise` holds the two normalisations of the paper;
- `partition` says which client gets which rows, `picture` draws it;
- `synthetic` makes the paper's generated data, number for number.

Importing this needs only NumPy; functions that use matplotlib, rich or scipy.io import them when called.
"""

from twofold.data import files, images, normalise, partition, picture, school, synthetic
from twofold.data.files import DataError
from twofold.data.partition import Partition

__all__ = ["DataError", "Partition", "files", "images", "normalise", "partition", "picture", "school", "synthetic"]
