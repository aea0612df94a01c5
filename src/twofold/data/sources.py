"""The data sets by name. To add one, write a function that returns a `Dataset`, and add a line to `REGISTRY`.

A data set's options are the arguments of its function: configuration files, the command line and `twofold list` read them from
its signature. `Annotated[type, "text"]` says what an option means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from twofold.data import images, school, synthetic
from twofold.data.dataset import Dataset
from twofold.data.tables import read_csv, read_npz
from twofold.errors import InputError, choose_from
from twofold.extras import require

__all__ = ["REGISTRY", "Normalisation", "Source", "load"]

Normalisation = Literal["none", "standardise", "unit-rows", "paper"]
LARGEST_PIXEL = 16  # of scikit-learn's digits

Folder = Annotated[str | None, "where the files are; else TWOFOLD_DATA, else the user's cache"]
Heterogeneity = Annotated[float, "σ_h, how different the clients are"]
ClientCount = Annotated[int, "the number of clients"]
RowCount = Annotated[int, "rows of each client"]


@dataclass(frozen=True, eq=False)
class Source:
    """A data set in the registry: its loader, and what a configuration must know before any data are read.

    `owned` says whether the data name each row's client; if it is the name of an option, they do when that option is given.
    `normalise` and `partition` are this data set's defaults for [data] normalise and for [partition].

    >>> REGISTRY["digits"].normalise
    'none'
    """

    load: Callable[..., Dataset]
    owned: bool | str = False
    normalise: Normalisation = "none"
    partition: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def is_owned(self, options: Mapping[str, Any]) -> bool:
        """Whether the data name each row's client, given the loader's options.

        >>> REGISTRY["csv"].is_owned({"path": "a.csv"}), REGISTRY["csv"].is_owned({"path": "a.csv", "client": "user"})
        (False, True)
        """
        return options.get(self.owned) is not None if isinstance(self.owned, str) else self.owned


def load(name: str, **options: Any) -> Dataset:
    """Load a data set by its name in `REGISTRY`; the options are the arguments of its loader.

    >>> load("synthetic-mixture", sigma_h=0.3, clients=2, rows=5, features=3).x.shape
    (10, 3)
    """
    if name not in REGISTRY:
        raise InputError(choose_from(f"There is no data set {name!r}", name, REGISTRY))
    return REGISTRY[name].load(**options)


def _synthetic_mixture(
    sigma_h: Heterogeneity,
    clients: ClientCount = 20,
    rows: RowCount = 1000,
    features: int = 15,
    seed: int = synthetic.PAPER_SEED,
) -> Dataset:
    """Data for the mixture objective (the paper's section on multi-task FL and implicit MAML, with synthetic data)."""
    return _generated("synthetic-mixture", synthetic.mixture(sigma_h, clients, rows, features, seed))


def _synthetic_weight_sharing(
    sigma_h: Heterogeneity,
    clients: ClientCount = 20,
    rows: RowCount = 1000,
    shared_features: Annotated[int, "features of the shared part"] = 10,
    own_features: Annotated[int, "features of the private part"] = 5,
    seed: int = synthetic.PAPER_SEED,
) -> Dataset:
    """Data for the weight sharing objective (the paper's section on explicit weight sharing, with synthetic data)."""
    made = synthetic.weight_sharing(sigma_h, clients, rows, shared_features, own_features, seed)
    return _generated("synthetic-weight-sharing", made)


def _generated(name: str, made: synthetic.SyntheticData) -> Dataset:
    return Dataset.of_clients(made.clients, f"The paper's {name} data, σ_h = {made.sigma_h:g}.")


def _digits() -> Dataset:
    """scikit-learn's 1,797 images of digits, 8×8 pixels in [0, 1]; nothing is downloaded."""
    x, y = require("sklearn.datasets", "The digits data", "sklearn").load_digits(return_X_y=True)
    return Dataset(x / LARGEST_PIXEL, y, "scikit-learn's digits.")


def _images(
    name: str,
    parts: Annotated[
        Sequence[Literal["train", "test"]] | None, "the files to pool; all that are there if not given"
    ] = None,
    folder: Folder = None,
) -> Dataset:
    """MNIST, Fashion-MNIST, KMNIST or CIFAR-10, pixels in [0, 1]; downloaded unless they are there."""
    found = images.load(name, folder, parts)
    return Dataset(found.x, found.y, found.provenance)


def _school(folder: Folder = None) -> Dataset:
    """Exam scores of 15,362 pupils in 139 schools, one client per school; downloaded unless they are there."""
    found = school.load(folder)
    files = ", ".join(name for name, _ in found.files)
    return Dataset.of_clients(found.clients, f"School data from {files}.", found.names)


REGISTRY: dict[str, Source] = {
    "synthetic-mixture": Source(_synthetic_mixture, owned=True),
    "synthetic-weight-sharing": Source(_synthetic_weight_sharing, owned=True),
    # The digits are too few for the paper's 100 + 300 rows per client.
    "digits": Source(_digits, partition={"method": "by_labels", "train": 40, "test": 40}),
    "mnist": Source(partial(_images, "mnist"), normalise="paper"),
    "fashion-mnist": Source(partial(_images, "fashion-mnist"), normalise="paper"),
    "kmnist": Source(partial(_images, "kmnist"), normalise="paper"),
    "cifar10": Source(partial(_images, "cifar10"), normalise="paper"),
    "school": Source(_school, owned=True, normalise="standardise"),
    "csv": Source(read_csv, owned="client"),
    "npz": Source(read_npz, owned="client"),
}
"""The data sets by name, as known to configuration files, the command line and `twofold list`."""
