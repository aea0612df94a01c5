"""Five ways to split a data set between clients, each deterministic in its seed.

Each returns a `Partition` of row numbers. No row ever goes to two clients, or to both training and testing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twofold.errors import InputError

__all__ = ["Partition", "Rows", "by_labels", "dirichlet", "natural", "power_law", "unequal_labels"]

Rows: TypeAlias = NDArray[np.int64]
"""Row numbers."""
_X = TypeVar("_X", bound=np.generic)
_Y = TypeVar("_Y", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each client, for training and for testing, in increasing order and read-only.

    >>> import numpy as np
    >>> from twofold.data import Partition
    >>> parts = Partition((np.array([0, 2]),), (np.array([1]),), ("ann",), ((),), "by hand")
    >>> train, test = parts.take(np.array([10.0, 20.0, 30.0]), np.array([0, 1, 0]))
    >>> train[0][0].tolist(), test[0][0].tolist()
    ([10.0, 30.0], [20.0])
    """

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    names: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]  # each client's labels; empty if the split does not use labels
    description: str

    def __post_init__(self) -> None:
        if not len(self.train) == len(self.test) == len(self.names) == len(self.labels):
            raise InputError(
                "a partition needs training rows, test rows, a name and labels for every client, but has "
                f"{len(self.train)}, {len(self.test)}, {len(self.names)} and {len(self.labels)} of them"
            )
        object.__setattr__(self, "train", tuple(_read_only(rows) for rows in self.train))
        object.__setattr__(self, "test", tuple(_read_only(rows) for rows in self.test))

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.train)

    def take(
        self, x: NDArray[_X], y: NDArray[_Y]
    ) -> tuple[list[tuple[NDArray[_X], NDArray[_Y]]], list[tuple[NDArray[_X], NDArray[_Y]]]]:
        """Return the data itself: one `(x, y)` per client for training, and one per client for testing."""
        return [(x[rows], y[rows]) for rows in self.train], [(x[rows], y[rows]) for rows in self.test]


def by_labels(
    y: ArrayLike, clients: int = 20, labels_per_client: int = 2, train: int = 100, test: int = 300, seed: int = 0
) -> Partition:
    """Give each client the same number of rows, with only a few different labels (the paper's split of the images).

    Each client gets `labels_per_client` distinct labels (the paper's K), `train` training rows and `test` test rows. Labels are
    given to equally many clients, to within one. A client has equally many rows of each of its labels, to within one, for training
    and testing alike. Rows are drawn without replacement, so unlike in the published runs, no client's test image is another
    client's training image.

    >>> import numpy as np
    >>> import twofold as tw
    >>> labels = np.arange(100) % 5
    >>> parts = tw.data.partition.by_labels(labels, clients=4, labels_per_client=2, train=6, test=4)
    >>> [len(np.unique(labels[rows])) for rows in parts.train]
    [2, 2, 2, 2]
    """
    y = _vector(y, "y")
    _at_least(1, clients=clients, labels_per_client=labels_per_client)
    _at_least(0, test=test)
    values, counts = np.unique(y, return_counts=True)
    if labels_per_client > len(values):
        raise InputError(f"{labels_per_client=} distinct labels were asked for, but y has only {len(values)}")
    if train < labels_per_client:
        raise InputError(f"{train=} rows cannot hold {labels_per_client} labels: give each client at least one of each")
    random = np.random.default_rng(seed)

    chosen = _deal_labels(len(values), clients, labels_per_client, random)
    left = counts.copy()
    shares = np.zeros((clients, len(values), 2), np.int64)  # rows of each label for training and testing
    for m, mine in enumerate(chosen):
        for use, rows in enumerate((train, test)):
            base, extra = divmod(rows, labels_per_client)
            # The remainder is taken from the labels with the most rows left, so that no scarce label runs out.
            by_plenty = mine[np.lexsort((random.permutation(len(mine)), -left[mine]))]
            shares[m, mine, use] = base
            shares[m, by_plenty[:extra], use] += 1
            left[mine] -= shares[m, mine, use]
    if left.min() < 0:
        worst = int(np.argmin(left))
        users = int((shares[:, worst].sum(axis=1) > 0).sum())
        raise InputError(
            f"label {_plain(values[worst])} has {counts[worst]:,} rows, but {users} of the {clients} clients need "
            f"{counts[worst] - left[worst]:,} of them ({train} training and {test} test rows over {labels_per_client} "
            "labels each): take fewer clients or fewer rows"
        )

    parts: list[list[list[Rows]]] = [[[], []] for _ in range(clients)]
    for label, value in enumerate(values):
        rows = random.permutation(np.flatnonzero(y == value))
        ends = np.cumsum(shares[:, label].ravel())
        for i, piece in enumerate(np.split(rows[: ends[-1]], ends[:-1])):
            parts[i // 2][i % 2].append(piece)
    return Partition(
        tuple(_sorted_rows(np.concatenate(p[0])) for p in parts),
        tuple(_sorted_rows(np.concatenate(p[1])) for p in parts),
        _numbered(clients),
        tuple(tuple(_plain(values[label]) for label in np.sort(mine)) for mine in chosen),
        f"{labels_per_client} of {len(values)} labels per client, {clients} clients with {train} training and {test} "
        f"test rows each, seed {seed}",
    )


def unequal_labels(
    y: ArrayLike, clients: int = 20, labels_per_client: int = 2, seed: int = 0, test: float = 0.25, min_rows: int = 2
) -> Partition:
    """Give each client unequal numbers of rows of only a few labels, and use every row (PFLlib's "pathological" split).

    Each label in turn goes to the first clients that still have fewer than `labels_per_client` labels; all labels go to equally
    many clients, to within one. With 20 clients and two of ten labels each, the first four clients have labels 0 and 1, the next
    four 2 and 3. If k clients share a label with n rows, each but the last gets a random number of rows between n/(10k) and n/k,
    and the last gets the rest. The fraction `test` of each client's rows is set aside for testing.

    >>> import numpy as np
    >>> import twofold as tw
    >>> labels = np.arange(1000) % 5
    >>> parts = tw.data.partition.unequal_labels(labels, clients=5, labels_per_client=2, test=0.0)
    >>> [len(np.unique(labels[rows])) for rows in parts.train], sum(len(rows) for rows in parts.train)
    ([2, 2, 2, 2, 2], 1000)
    """
    y = _vector(y, "y")
    _at_least(1, clients=clients, labels_per_client=labels_per_client, min_rows=min_rows)
    _fraction(test)
    _enough(len(y), clients, min_rows)
    values = np.unique(y)
    if labels_per_client > len(values):
        raise InputError(f"{labels_per_client=} distinct labels were asked for, but y has only {len(values)}")
    if clients * labels_per_client < len(values):
        raise InputError(
            f"{clients} clients with {labels_per_client} labels each cannot hold all {len(values)} labels: use more clients, "
            "or more labels per client"
        )
    random = np.random.default_rng(seed)
    groups: list[list[Rows]] = [[] for _ in range(clients)]
    for label, takers in enumerate(_takers(len(values), clients, labels_per_client)):
        rows = random.permutation(np.flatnonzero(y == values[label]))
        share = len(rows) / len(takers)
        sizes = random.integers(int(share / 10), max(int(share), int(share / 10) + 1), len(takers) - 1)
        for m, piece in zip(takers, np.split(rows, np.cumsum(sizes)), strict=True):
            groups[m].append(piece)
    whole = [np.concatenate(pieces) for pieces in groups]
    _not_empty([len(rows) for rows in whole], min_rows, "take fewer clients or a smaller min_rows")
    return _set_aside(
        whole,
        _numbered(clients),
        tuple(tuple(_plain(value) for value in np.unique(y[rows])) for rows in whole),
        test,
        random,
        f"{labels_per_client} of {len(values)} labels per client in unequal numbers, {clients} clients, {_percent(test)} for testing, "
        f"seed {seed}",
    )


def dirichlet(
    y: ArrayLike, clients: int, alpha: float, seed: int = 0, test: float = 0.2, min_rows: int = 2, tries: int = 100,
    level: bool = False,
) -> Partition:  # fmt: skip
    """Split each label between the clients in proportions drawn from a Dirichlet distribution, using every row.

    A small `alpha` gives each label to few clients; a large one spreads it evenly. The fraction `test` of each client's rows is set
    aside at random for testing, but a client always keeps one row for training. If some client gets fewer than `min_rows` rows in
    all, the whole split is drawn again, up to `tries` times. With `level`, a client that has reached an equal share of all rows
    gets no rows of the remaining labels (as in PFLlib), so that sizes differ less.

    >>> import numpy as np
    >>> import twofold as tw
    >>> parts = tw.data.partition.dirichlet(np.arange(100) % 5, clients=4, alpha=1.0, test=0.0)
    >>> sum(len(rows) for rows in parts.train)
    100
    """
    y = _vector(y, "y")
    _at_least(1, clients=clients, min_rows=min_rows, tries=tries)
    _fraction(test)
    if not (np.isfinite(alpha) and alpha > 0):
        raise InputError(f"the concentration alpha must be positive, but is {alpha=}")
    _enough(len(y), clients, min_rows)
    random = np.random.default_rng(seed)
    values, labels = np.unique(y, return_inverse=True)
    best: list[int] = []
    for _ in range(tries):
        owner = np.full(len(y), -1, np.int64)
        for label in range(len(values)):
            rows = random.permutation(np.flatnonzero(labels == label))
            shares = random.dirichlet(np.full(clients, float(alpha)))
            if level:
                shares = _below_level(shares, np.bincount(owner[owner >= 0], minlength=clients), len(y))
            ends = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64)
            owner[rows] = np.searchsorted(ends[:-1], np.arange(len(rows)), side="right")
        sizes = np.bincount(owner, minlength=clients).tolist()
        if min(sizes) >= min_rows:
            break
        best = max(best, sizes, key=lambda found: min(found, default=-1))
    else:
        emptiest = int(np.argmin(best))
        raise InputError(
            f"in {tries} draws with {alpha=} the smallest of {clients} clients got at most {best[emptiest]} of the {len(y):,} "
            f"rows (client {emptiest}, in the best draw), but {min_rows=}: take a larger alpha, fewer clients or a smaller min_rows"
        )
    groups = [np.flatnonzero(owner == m) for m in range(clients)]
    return _set_aside(
        groups,
        _numbered(clients),
        tuple(tuple(_plain(values[label]) for label in np.unique(labels[rows])) for rows in groups),
        test,
        random,
        f"Dirichlet({alpha:g}) over {len(values)} labels, {clients} clients, {_percent(test)} for testing, seed {seed}",
    )


def power_law(
    n_rows: int, clients: int, exponent: float, seed: int = 0, min_rows: int = 2, test: float = 0.2
) -> Partition:
    """Give client r = 1, 2, … a random share of the rows proportional to r^(-exponent), using every row.

    Clients come in decreasing order of size. A client whose share would be below `min_rows` gets `min_rows`, and the others get
    less. An exponent of 0 makes all clients equal.

    >>> import twofold as tw
    >>> parts = tw.data.partition.power_law(110, clients=3, exponent=1.0, test=0.0)
    >>> [len(rows) for rows in parts.train]
    [60, 30, 20]
    """
    _at_least(1, clients=clients, min_rows=min_rows)
    _fraction(test)
    if not (np.isfinite(exponent) and exponent >= 0):
        raise InputError(f"the exponent must not be negative, but is {exponent=}")
    _enough(n_rows, clients, min_rows)
    random = np.random.default_rng(seed)
    ends = np.cumsum(_power_law_sizes(n_rows, clients, exponent, min_rows))
    return _set_aside(
        np.split(random.permutation(n_rows).astype(np.int64), ends[:-1]),
        _numbered(clients),
        ((),) * clients,
        test,
        random,
        f"sizes by the power law r^-{exponent:g}, {clients} clients, {_percent(test)} for testing, seed {seed}",
    )


def natural(groups: ArrayLike, test: float = 0.2, seed: int = 0) -> Partition:
    """Make one client per value in `groups`, such as a user, a school or a hospital, using every row.

    Clients are named after the values and come in their sorted order. The fraction `test` of each client's rows is set aside at
    random for testing, but a client always keeps one row for training.

    >>> import twofold as tw
    >>> parts = tw.data.partition.natural(["bob", "ann", "bob"], test=0.0)
    >>> parts.names, [rows.tolist() for rows in parts.train]
    (('ann', 'bob'), [[1], [0, 2]])
    """
    groups = _vector(groups, "groups")
    _fraction(test)
    values, owner = np.unique(groups, return_inverse=True)
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    return _set_aside(
        rows,
        tuple(str(value) for value in values),
        ((),) * len(values),
        test,
        np.random.default_rng(seed),
        f"{len(values)} natural groups, {_percent(test)} for testing, seed {seed}",
    )


REGISTRY: dict[str, Callable[..., Partition]] = {
    "by_labels": by_labels,
    "unequal_labels": unequal_labels,
    "dirichlet": dirichlet,
    "power_law": power_law,
    "natural": natural,
}
"""The partitioners by name. Their first argument is the labels `y`, the number of rows `n_rows`, or the owners `groups`."""


def _deal_labels(labels: int, clients: int, per_client: int, random: np.random.Generator) -> list[Rows]:
    """Distinct labels for each client: always the least used so far, with ties broken at random.

    If the labels' counts differ by at most one, they still do after another client, so all labels are used equally often, to
    within one.
    """
    used = np.zeros(labels, np.int64)
    chosen: list[Rows] = []
    for _ in range(clients):
        mine = np.lexsort((random.permutation(labels), used))[:per_client]
        used[mine] += 1
        chosen.append(mine)
    return chosen


def _takers(labels: int, clients: int, per_client: int) -> list[list[int]]:
    """The clients of each label: the first ones that still have room, equally many per label, to within one.

    Clients that need every remaining label come first, because otherwise they would end with too few labels.
    """
    room = np.full(clients, per_client)
    counts = np.diff(np.rint(np.linspace(0, clients * per_client, labels + 1)).astype(np.int64))
    found: list[list[int]] = []
    for label, count in enumerate(counts):
        open_to = sorted(np.flatnonzero(room).tolist(), key=lambda m: (room[m] < labels - label, m))
        found.append(sorted(open_to[:count]))
        room[found[-1]] -= 1
    return found


def _below_level(shares: NDArray[np.float64], sizes: NDArray[np.integer], rows: int) -> NDArray[np.float64]:
    """The shares, rescaled to those clients that have less than an equal share of all rows; there is always at least one."""
    short = sizes < rows / len(sizes)
    kept = np.where(short, shares, 0.0)
    return kept / kept.sum() if kept.sum() > 0 else short / short.sum()


def _not_empty(sizes: Sequence[int], min_rows: int, remedy: str) -> None:
    emptiest = int(np.argmin(sizes))
    if sizes[emptiest] < min_rows:
        raise InputError(f"client {emptiest} would get {sizes[emptiest]} rows, but {min_rows=}: {remedy}")


def _power_law_sizes(n_rows: int, clients: int, exponent: float, min_rows: int) -> Rows:
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    large = clients  # the clients after these get min_rows, which leaves less for the first ones: repeat until stable
    while True:
        ideal = weights[:large] / weights[:large].sum() * (n_rows - (clients - large) * min_rows)
        keep = int(np.count_nonzero(ideal >= min_rows))
        if large in (keep, 1):
            break
        large = max(keep, 1)
    sizes = np.full(clients, min_rows, np.int64)
    sizes[:large] = np.floor(ideal)
    # The rows lost by rounding down go to the largest fractions; a stable sort keeps the sizes decreasing.
    order = np.argsort(-(ideal - np.floor(ideal)), kind="stable")
    sizes[order[: n_rows - sizes.sum()]] += 1
    return sizes


def _set_aside(
    groups: Sequence[Rows],
    names: tuple[str, ...],
    labels: tuple[tuple[int, ...], ...],
    test: float,
    random: np.random.Generator,
    description: str,
) -> Partition:
    """Split each client's rows at random into training and test rows, with at least one for training."""
    train_rows: list[Rows] = []
    test_rows: list[Rows] = []
    for rows in groups:
        held = min(round(test * len(rows)), len(rows) - 1)
        shuffled = random.permutation(rows)
        train_rows.append(_sorted_rows(shuffled[held:]))
        test_rows.append(_sorted_rows(shuffled[:held]))
    return Partition(tuple(train_rows), tuple(test_rows), names, labels, description)


def _read_only(rows: NDArray[np.integer]) -> Rows:
    view = np.asarray(rows, np.int64).view()  # a view, so that the caller's own array stays writable
    view.flags.writeable = False
    return view


def _sorted_rows(rows: NDArray[np.integer]) -> Rows:
    return np.sort(rows).astype(np.int64)


def _numbered(clients: int) -> tuple[str, ...]:
    return tuple(f"client {m}" for m in range(clients))


def _plain(value: Any) -> int:
    """A label as a plain Python number, for messages and for `Partition.labels`."""
    return value.item()


def _percent(test: float) -> str:
    return f"{100 * test:g}% of each client's rows"


def _vector(values: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be a vector with one entry per row, but has shape {array.shape}")
    return array


def _at_least(least: int, **numbers: int) -> None:
    for name, value in numbers.items():
        if value < least:
            raise InputError(f"{name} must be at least {least}, but is {value}")


def _fraction(test: float) -> None:
    if not 0 <= test < 1:
        raise InputError(f"test is the fraction of each client's rows set aside, in [0, 1), but is {test}")


def _enough(n_rows: int, clients: int, min_rows: int) -> None:
    if n_rows < clients * min_rows:
        raise InputError(
            f"{clients} clients with at least {min_rows} rows each need {clients * min_rows:,}, not {n_rows:,}"
        )
