"""Find a data file on this machine or download it, and never return one whose checksum is wrong.

If the caller names a `folder`, only that one is searched. Otherwise the search goes through the folder in the environment
variable `TWOFOLD_DATA`, the user's cache folder and the network, in this order. Every such folder has the same layout: `mnist/`,
`fashion-mnist/`, `kmnist/`, `cifar-10-batches-bin/`, `school/`. pooch makes the downloads: it writes to a temporary file, verifies
the checksum and only then moves the file into place, so a file under its real name is always complete.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twofold.errors import TwofoldError
from twofold.extras import require

__all__ = [
    "ENVIRONMENT_VARIABLE", "TIMEOUT_SECONDS", "DataError", "DataFile", "Downloader", "Folder", "cache_folder", "fetch",
    "fetch_members", "find", "roots", "verify",
]  # fmt: skip

ENVIRONMENT_VARIABLE = "TWOFOLD_DATA"
TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 18

Folder = str | os.PathLike[str] | None
"""A data folder that the caller names; None for the default folders."""

Downloader = Callable[[str, str, Any], None]
"""A pooch downloader: (url, path of the output file, the calling Pooch or None). HTTP unless a test passes another."""


class DataError(TwofoldError, RuntimeError):
    """A data file is missing, damaged or unreachable; the message says what to do.

    >>> issubclass(DataError, RuntimeError)
    True
    """


@dataclass(frozen=True)
class DataFile:
    """One canonical file: where it belongs, its checksum, and its public address.

    >>> file = DataFile("mnist", "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", "https://…", 4_542)
    >>> file.expected
    'md5 ec29112dd5afa0611ce80d1b7f02629c, 4,542 bytes'
    """

    folder: str
    name: str
    md5: str
    url: str
    size: int | None = None  # in bytes; None if only the checksum is published

    @property
    def relative(self) -> Path:
        """The path below a data folder."""
        return Path(self.folder) / self.name

    @property
    def expected(self) -> str:
        """A description of a correct copy, for messages."""
        return f"md5 {self.md5}" + (f", {self.size:,} bytes" if self.size is not None else "")


def cache_folder() -> Path:
    """The folder that keeps this user's downloads.

    >>> cache_folder().name
    'data'
    """
    import platformdirs

    return Path(platformdirs.user_cache_path("twofold", appauthor=False)) / "data"


def roots(folder: Folder = None) -> tuple[Path, ...]:
    """The data folders to search, in order; downloads go to the last one.

    >>> [str(root) for root in roots("/some/folder")]
    ['/some/folder']
    """
    if folder is not None:
        return (Path(folder).expanduser(),)
    named = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return ((Path(named).expanduser(),) if named else ()) + (cache_folder(),)


def find(file: DataFile, folder: Folder = None) -> Path | None:
    """The first copy of a file on this machine, verified, or None if there is none.

    A copy with a wrong checksum is an error, not a reason to search further: if another copy were used silently, users would
    believe that theirs is intact. Nothing is ever deleted or overwritten here.

    >>> file = DataFile("mnist", "labels.gz", "ec29112dd5afa0611ce80d1b7f02629c", "https://…", 4_542)
    >>> find(file, "/nowhere") is None
    True
    """
    for root in roots(folder):
        path = root / file.relative
        if os.path.lexists(path):  # also true for a dangling link, which is reported as a damaged copy
            verify(path, file)
            return path
    return None


def fetch(file: DataFile, folder: Folder = None, *, downloader: Downloader | None = None) -> Path:
    """A verified copy of a file on this machine, downloaded if there is none. `downloader` is for tests."""
    found = find(file, folder)
    return found or _download(file, roots(folder)[-1] / file.folder, folder, downloader)


def verify(path: Path, file: DataFile) -> None:
    """Raise a `DataError` unless the file at `path` has the published checksum.

    >>> file = DataFile("mnist", "labels.gz", "ec29112dd5afa0611ce80d1b7f02629c", "https://…", 4_542)
    >>> try:
    ...     verify(Path("/nowhere/labels.gz"), file)
    ... except (DataError, OSError) as mistake:
    ...     print(type(mistake).__name__)
    DataError
    """
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            size = stream.tell()
    except OSError as error:
        raise DataError(
            f"{path} could not be read ({_reason(error)}): make it a readable copy of {file.name} ({file.expected})."
        ) from error
    if found != file.md5:
        raise DataError(
            f"{path} is {_damage(size, file)}: its md5 is {found} ({size:,} bytes), expected {file.expected}; replace it "
            f"with the file from {file.url}, or move it away and it will be downloaded."
        )


# --- downloads ----------------------------------------------------------------------------------------------------------


def _download(file: DataFile, target: Path, folder: Folder, downloader: Downloader | None) -> Path:
    """Download a file into the folder `target`; any failure raises a DataError and leaves nothing behind."""
    pooch = require("pooch", f"Downloading {file.name}", "paper")
    from requests import RequestException  # comes with pooch

    received = _Received(file)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _quiet(pooch.get_logger()), received:
            get = downloader or pooch.HTTPDownloader(
                progressbar=received,
                chunk_size=_CHUNK,
                timeout=TIMEOUT_SECONDS,
                # The checksum is that of the file itself, so the server must not compress it for transport.
                headers={"User-Agent": "twofold", "Accept-Encoding": "identity"},
                hooks={"response": received.opened},
            )
            path = Path(pooch.retrieve(file.url, f"md5:{file.md5}", file.name, target, downloader=get))
        path.chmod(0o666 & ~_umask())  # pooch's temporary files are readable by the user only
    except RequestException as error:
        raise DataError(
            f"{file.name} is not on this machine and {file.url} could not be downloaded ({_reason(error)}"
            f"{received.so_far}): put a copy ({file.expected}) {_places(file, folder)}."
        ) from error
    except ValueError as error:  # pooch raises ValueError for a wrong checksum
        raise DataError(
            f"The download of {file.url} is corrupt or another file (expected {file.expected}); nothing was kept, so try "
            f"again, or put a correct copy {_places(file, folder)}."
        ) from error
    except OSError as error:
        raise _unwritable(target, file, error) from error
    return path


class _Received:
    """The progress bar that pooch updates; it also aborts a download that is longer than the file should be."""

    def __init__(self, file: DataFile) -> None:
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        console = Console(stderr=True)
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(f"{file.folder}/{file.name}", total=file.size)
        self._file, self._bytes, self.total = file, 0, 0
        self._responses: list[Any] = []

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        for response in self._responses:
            response.close()

    def opened(self, response: Any, *_: object, **__: object) -> None:
        """Remember a response: pooch leaves it open when the download fails."""
        self._responses.append(response)

    @property
    def so_far(self) -> str:
        """How much had arrived when the download failed, for a message."""
        return f" after {self._bytes:,} bytes" if self._bytes else ""

    def update(self, count: int) -> None:
        """Count another chunk (pooch counts the last, shorter chunk as a full one)."""
        self._bytes += count
        self._bar.update(self._task, completed=self._bytes, total=self.total or self._file.size)
        if self._file.size is not None and self._bytes > self._file.size + _CHUNK:
            raise ValueError("longer than the file")  # not the file we want: do not fill the disk with it

    def reset(self) -> None:
        """Restart the count; pooch does this at the end, before it sets the bar to its full length."""
        self._bytes = 0

    def close(self) -> None:
        """Do nothing: the bar ends with the context."""


@contextmanager
def _quiet(log: logging.Logger) -> Generator[None]:
    """Silence pooch's log line for every download, because there is a progress bar."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _umask() -> int:
    mask = os.umask(0)  # the mask can only be read by setting it
    os.umask(mask)
    return mask


# --- members of an archive ----------------------------------------------------------------------------------------------


def fetch_members(
    archive: DataFile,
    members: Sequence[DataFile],
    folder: Folder = None,
    *,
    downloader: Downloader | None = None,
) -> tuple[Path, ...]:
    """Extract the named members, each verified, from a `tar.gz` that is found on this machine or else downloaded.

    They go to the last data folder. Members are looked up by their exact name and must be plain files. Nothing is extracted to a
    path that the archive chooses, which is why pooch's own unpacking is not used. A member that is already in place is verified
    and left alone. A downloaded archive is deleted afterwards; one that was found stays.
    """
    targets = tuple(roots(folder)[-1] / member.relative for member in members)
    found = find(archive, folder)
    with nullcontext(found) if found else _downloaded(archive, targets[0].parent, folder, downloader) as path:
        try:
            with tarfile.open(path, "r:gz") as tar:
                for member, target in zip(members, targets, strict=True):
                    if os.path.lexists(target):
                        verify(target, member)
                    else:
                        _extract(tar, archive, member, target)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{archive.name} from {archive.url} has the expected md5 {archive.md5} but could not be unpacked "
                f"({_reason(error)}): unpack it by other means so that {targets[0]} exists."
            ) from error
    return targets


@contextmanager
def _downloaded(archive: DataFile, beside: Path, folder: Folder, downloader: Downloader | None) -> Generator[Path]:
    """Download an archive to a hidden folder next to where its members belong, and delete it afterwards."""
    with _temporary_folder(beside, archive) as hidden:
        yield _download(archive, hidden, folder, downloader)


def _extract(tar: tarfile.TarFile, archive: DataFile, member: DataFile, target: Path) -> None:
    name = member.relative.as_posix()
    info = next((info for info in tar if info.name == name), None)
    source = tar.extractfile(info) if info is not None and info.isfile() else None
    if source is None:
        raise DataError(
            f"{archive.name} from {archive.url} has no plain file {name} ({member.expected}): put that file at "
            f"{target} by other means."
        )
    with _temporary_folder(target.parent, member) as hidden:
        part = hidden / member.name
        with source, part.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())  # the name must never appear before the bytes, even if the power fails
        verify(part, member)
        part.replace(target)


@contextmanager
def _temporary_folder(beside: Path, file: DataFile) -> Generator[Path]:
    """A hidden folder on the same disk as the final place; it and its content are deleted afterwards."""
    try:
        beside.mkdir(parents=True, exist_ok=True)
        hidden = tempfile.TemporaryDirectory(dir=beside, prefix=".", suffix=".part")
    except OSError as error:
        raise _unwritable(beside, file, error) from error
    with hidden as name:
        yield Path(name)


# --- messages -----------------------------------------------------------------------------------------------------------


def _unwritable(folder: Path, file: DataFile, error: OSError) -> DataError:
    return DataError(
        f"{file.name} ({file.expected}) could not be written to {folder} ({_reason(error)}): make that folder "
        f"writable, or set {ENVIRONMENT_VARIABLE} to a folder that holds {file.relative.as_posix()}."
    )


def _places(file: DataFile, folder: Folder) -> str:
    """Where the user may put a copy, as full paths."""
    paths = " or at ".join(str(root / file.relative) for root in roots(folder))
    if folder is not None or os.environ.get(ENVIRONMENT_VARIABLE, "").strip():
        return f"at {paths}"
    return f"at {paths}, or set {ENVIRONMENT_VARIABLE} to a folder that holds {file.relative.as_posix()}"


def _damage(size: int, file: DataFile) -> str:
    if file.size is not None and size < file.size:
        return f"truncated or half-downloaded ({size:,} of {file.size:,} bytes)"
    return "corrupt or another file"


def _reason(error: BaseException) -> str:
    """The cause in a few words: an HTTP status, or the operating system's text from the innermost exception of the chain."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(below)
    words = [e.strerror for e in chain if isinstance(e, OSError) and e.strerror]
    return words[-1] if words else str(error).splitlines()[0] if str(error) else type(error).__name__
