"""Your own data from a file: a CSV table with named columns, or NumPy arrays saved by `np.savez`."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from twofold.data.dataset import Dataset
from twofold.errors import InputError, choose_from
from twofold.extras import require
from twofold.tables import Schema, Standardize, read
from twofold.tables.schema import Labels, Missing

__all__ = ["OptionError", "read_csv", "read_npz"]


class OptionError(InputError):
    """A loader's options do not fit the file; `sentences` says what is wrong with each option.

    >>> print(OptionError({"target": "the file has no column 'yy'."}))
    target: the file has no column 'yy'.
    """

    def __init__(self, sentences: Mapping[str, str]) -> None:
        self.sentences = dict(sentences)
        super().__init__("\n".join(f"{option}: {sentence}" for option, sentence in self.sentences.items()))


def read_csv(
    path: Annotated[Path, "the file, relative to the TOML file"],
    target: Annotated[str, "the column to predict: classes (strings, or numbers 0, 1, …) or real numbers"],
    client: Annotated[str | None, "the column that names each row's client; if none, [partition] applies"] = None,
    features: Annotated[Sequence[str] | None, "the columns to predict from; all others if not given"] = None,
    separator: Annotated[str, "the character between columns"] = ",",
    standardize: Annotated[
        Standardize | None, "bring numbers to mean 0 and spread 1 over all rows or each client's"
    ] = None,
    missing: Annotated[Missing, "fill gaps in features with the mean and mark them, or refuse them"] = "impute",
    labels: Annotated[Labels, "whether a target of numbers holds classes"] = "auto",
) -> Dataset:
    """Read a CSV file with one row per sample and named columns, which become features as by `Clients.from_frame`.

    Columns of strings become one feature per level, and a feature marks the gaps of each column that has any; an empty field and NA are
    gaps. Targets that are strings are coded 0, 1, … in their sorted order. The dataset's `schema` says what was done.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = file.write_text("who,height,y\\nann,1.5,0\\nbob,1.8,1\\n")
    >>> read_csv(file, target="y", client="who").owner.tolist()
    ['ann', 'bob']
    """
    if len(separator) != 1:
        raise OptionError({"separator": f"it must be one character, got {_quoted(separator)}."})
    from twofold.clients.labels import read_target  # which needs JAX

    path = _existing(path)
    columns = _columns(path, separator)
    _check_names(path, columns, client, target, features)
    names = [name for name in columns if name not in (client, target)] if features is None else list(features)
    if not names:
        raise OptionError({"features": f"no columns are left to predict from; {path.name} has {', '.join(columns)}."})
    if standardize == "per client" and client is None:
        raise OptionError({"standardize": 'there is no column of clients, so it can only be "pooled".'})
    table, owner = read(columns), None if client is None else columns[client]
    owners = [None] * table.rows if owner is None else owner.tolist()
    try:
        y, classes = read_target(table, target, owners, labels)
        schema, x = Schema.fit(
            table,
            names,
            owners,
            standardize=standardize,
            missing=missing,
            client=client,
            target=target,
            classes=classes,
        )
    except InputError as mistake:
        raise InputError(f"{path.name}: {mistake}") from None
    return dataclasses.replace(_dataset(path, x, y, owner), schema=schema)


def read_npz(
    path: Annotated[Path, "the file, relative to the TOML file"],
    x: Annotated[str, "the name of the features, (rows, width)"] = "x",
    y: Annotated[str, "the name of the targets, (rows,)"] = "y",
    client: Annotated[str | None, "the name of the array with each row's client; if none, [partition] applies"] = None,
) -> Dataset:
    """Read NumPy arrays from a file written by `np.savez`.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "data.npz"
    >>> np.savez(file, x=np.ones((4, 2)), y=np.arange(4), group=np.array([7, 7, 8, 8]))
    >>> read_npz(file, client="group").owner.tolist()
    [7, 7, 8, 8]
    """
    path = _existing(path)
    wanted = {"x": x, "y": y} | ({} if client is None else {"client": client})
    try:
        with np.load(path, allow_pickle=False) as content:
            found, names = {name: content[name] for name in wanted.values() if name in content}, list(content.files)
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise OptionError({"path": f"{path} is not a file of plain arrays written by np.savez."}) from error
    missing = {option: name for option, name in wanted.items() if name not in found}
    if missing:
        said = {o: choose_from(f"{path.name} has no array {_quoted(n)}", n, names) for o, n in missing.items()}
        raise OptionError(said)
    lengths = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len(set(lengths.values())) > 1:
        raise OptionError({"path": f"the arrays of {path.name} differ in their number of rows: {lengths}."})
    return _dataset(path, found[x], found[y], None if client is None else found[client])


def _existing(path: Path) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise OptionError({"path": f"there is no file {path}."})
    return path


def _columns(path: Path, separator: str) -> dict[str, NDArray[Any]]:
    """The columns of a CSV file by name, read by pyarrow, which infers their types."""
    pyarrow = require("pyarrow", "Reading a CSV file", "paper")
    csv = require("pyarrow.csv", "Reading a CSV file", "paper")
    try:
        parse, convert = csv.ParseOptions(delimiter=separator), csv.ConvertOptions(strings_can_be_null=True)
        table = csv.read_csv(path, parse_options=parse, convert_options=convert)
    except pyarrow.ArrowInvalid as error:
        raise OptionError({"path": f"{path} could not be read as CSV: {error}."}) from error
    if table.num_rows == 0:
        raise OptionError({"path": f"{path} has no rows below its header."})
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _check_names(
    path: Path, columns: Mapping[str, Any], client: str | None, target: str, features: Sequence[str] | None
) -> None:
    wanted = {"client": [client] if client is not None else [], "target": [target], "features": list(features or ())}
    missing = {
        option: name for option, names in wanted.items() for name in reversed(names) if name not in columns
    }  # reversed, so that the message names the first missing feature
    if missing:
        said = {o: choose_from(f"{path.name} has no column {_quoted(n)}", n, columns) for o, n in missing.items()}
        raise OptionError(said)


def _dataset(path: Path, x: NDArray[Any], y: NDArray[Any], owner: NDArray[Any] | None) -> Dataset:
    whose = "" if owner is None else f" of {len(np.unique(owner.astype(str)))} clients"
    return Dataset(x, y, f"{path.name}: {len(y):,} rows{whose}.", owner)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
