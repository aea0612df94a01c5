"""Find a data file on this machine, or download it, and never hand out one whose checksum is wrong.

The order is `folder` alone if the caller names one; otherwise the folder in the environment variable
`TWOFOLD_DATA`, then the user's cache folder, then the network. Every such folder has the same layout:
`mnist/`, `fashion-mnist/`, `kmnist/`, `cifar-10-batches-bin/`, `school/`. A download is written beside its final
place under another name, verified, and moved into place in one step, so a file with its real name is always whole.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from twofold.errors import TwofoldError

__all__ = [
    "ENVIRONMENT_VARIABLE", "DataError", "DataFile", "Opener", "cache_folder", "fetch", "fetch_members", "find", "roots",
    "verify",
]  # fmt: skip

ENVIRONMENT_VARIABLE = "TWOFOLD_DATA"
TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 18

Opener = Callable[[str], Any]
"""What turns an address into a readable response; `urllib.request.urlopen` unless a test says otherwise."""


class DataError(TwofoldError, RuntimeError):
    """A data file is missing, damaged or unreachable; the message is one sentence that says what to do.

    >>> from twofold.data import DataError
    >>> issubclass(DataError, RuntimeError)
    True
    """


@dataclass(frozen=True)
class DataFile:
    """One canonical file: where it belongs, what it must contain, and where to download it.

    >>> from twofold.data import school
    >>> school.FILE.relative.as_posix(), school.FILE.expected
    ('school/school.mat', 'md5 869a6ee9d48f83d4e88db72627b56149, 44,759 bytes')
    """

    folder: str
    name: str
    md5: str
    url: str
    size: int | None = None  # in bytes; None where only the checksum is published

    @property
    def relative(self) -> Path:
        """The path below a data folder."""
        return Path(self.folder) / self.name

    @property
    def expected(self) -> str:
        """What a right copy looks like, for messages."""
        return f"md5 {self.md5}" + (f", {self.size:,} bytes" if self.size is not None else "")


def cache_folder() -> Path:
    """Give the folder where this user's downloads are kept.

    >>> from twofold.data.files import cache_folder
    >>> cache_folder().name
    'data'
    """
    import platformdirs

    return Path(platformdirs.user_cache_path("twofold", appauthor=False)) / "data"


def roots(folder: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Give the data folders to search, in order; downloads go to the last one.

    >>> from twofold.data.files import roots
    >>> [root.as_posix() for root in roots("/my/data")]
    ['/my/data']
    """
    if folder is not None:
        return (Path(folder).expanduser(),)
    named = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return ((Path(named).expanduser(),) if named else ()) + (cache_folder(),)


def find(file: DataFile, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Find the first copy of a file on this machine and verify it; None if there is none.

    A copy with a wrong checksum is an error, not a reason to look further: silently using another copy would leave the
    user believing that theirs is fine. Nothing is ever deleted or overwritten here.

    >>> from twofold.data import files, school
    >>> print(files.find(school.FILE, "/no/such/folder"))
    None
    """
    for root in roots(folder):
        path = root / file.relative
        if os.path.lexists(path):  # a dangling link is a damaged copy too, and worth a sentence
            verify(path, file)
            return path
    return None


def fetch(file: DataFile, folder: str | os.PathLike[str] | None = None, *, opener: Opener | None = None) -> Path:
    """Give a verified copy of a file on this machine, downloading it if there is none.

    >>> from twofold.data import files, school
    >>> files.fetch(school.FILE).name  # doctest: +SKIP
    'school.mat'
    """
    return find(file, folder) or _download(file, folder, opener)


def verify(path: Path, file: DataFile) -> None:
    """Raise a `DataError` unless the file at `path` has the published checksum.

    >>> from pathlib import Path
    >>> from twofold.data import DataError, files, school
    >>> _ = Path("school.mat").write_bytes(b"not this")
    >>> try:
    ...     files.verify(Path("school.mat"), school.FILE)
    ... except DataError as mistake:
    ...     print(str(mistake).split(":")[0])
    school.mat is truncated or half-downloaded (8 of 44,759 bytes)
    """
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise DataError(
            f"{path} could not be read ({_reason(error)}): make it a readable copy of {file.name} ({file.expected})."
        ) from error
    if digest.hexdigest() != file.md5:
        raise DataError(
            f"{path} is {_damage(size, file)}: its md5 is {digest.hexdigest()} ({size:,} bytes), expected "
            f"{file.expected}; replace it with the file from {file.url}, or move it away and it will be downloaded."
        )


def fetch_members(
    archive: DataFile,
    members: Sequence[DataFile],
    folder: str | os.PathLike[str] | None = None,
    *,
    opener: Opener | None = None,
) -> tuple[Path, ...]:
    """Extract the named members, each verified, from a `tar.gz` that is on this machine or else downloaded.

    They go to the last data folder. Members are looked up by their exact name and must be plain files; nothing is
    extracted to a path that the archive chooses. A member already in place is verified and left alone. A downloaded
    archive is deleted afterwards; one that was on this machine stays.

    >>> from twofold.data import files, images
    >>> cifar = images.CATALOGUE["cifar10"]
    >>> files.fetch_members(cifar.archive, cifar.parts["test"])[0].name  # doctest: +SKIP
    'test_batch.bin'
    """
    targets = tuple(roots(folder)[-1] / member.relative for member in members)
    found = find(archive, folder)
    with nullcontext(found) if found else _downloaded(archive, targets[0], folder, opener) as path:
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


def _download(file: DataFile, folder: str | os.PathLike[str] | None, opener: Opener | None) -> Path:
    """Download a file into the last data folder, verify it on the way, and move it into place in one step."""
    target = roots(folder)[-1] / file.relative
    with _downloaded(file, target, folder, opener) as part:
        _move_into_place(part, target, file)
    return target


def _extract(tar: tarfile.TarFile, archive: DataFile, member: DataFile, target: Path) -> None:
    name = member.relative.as_posix()
    try:
        info = tar.getmember(name)
    except KeyError:
        info = None
    source = tar.extractfile(info) if info is not None and info.isfile() else None
    if source is None:
        raise DataError(
            f"{archive.name} from {archive.url} has no plain file {name} ({member.expected}): put that file at "
            f"{target} by other means."
        )
    part = _part(target)
    try:
        with source, _open_part(part, member) as sink:
            while chunk := source.read(_CHUNK):
                _write(sink, chunk, part, member)
        verify(part, member)
        _move_into_place(part, target, member)
    finally:
        _discard(part)


@contextmanager
def _downloaded(
    file: DataFile, target: Path, folder: str | os.PathLike[str] | None, opener: Opener | None
) -> Generator[Path, None, None]:
    """A verified download under a temporary name beside `target`, which is gone afterwards whatever happens."""
    part = _part(target)
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    try:
        with _open_part(part, file) as sink, closing(_chunks(file, folder, opener or _open_url)) as chunks:
            for chunk in chunks:
                size += len(chunk)
                digest.update(chunk)
                _write(sink, chunk, part, file)
                if file.size is not None and size > file.size:
                    break  # whatever this is, it is not the file; do not fill the disk with it
        if digest.hexdigest() != file.md5:
            raise DataError(
                f"The download of {file.url} is {_damage(size, file)}: its md5 is {digest.hexdigest()} "
                f"({size:,} bytes), expected {file.expected}; nothing was kept, so try again, or put a right copy "
                f"{_places(file, folder)}."
            )
        yield part
    finally:
        _discard(part)


def _chunks(file: DataFile, folder: str | os.PathLike[str] | None, opener: Opener) -> Generator[bytes, None, None]:
    """The bytes of a download, with a progress bar; any failure of the network becomes one sentence."""
    try:
        with opener(file.url) as response, _progress() as progress:
            length = response.headers.get("Content-Length") if hasattr(response, "headers") else None
            total = int(length) if length else file.size
            task = progress.add_task(f"{file.folder}/{file.name}", total=total)
            while chunk := response.read(_CHUNK):
                progress.advance(task, len(chunk))
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is also an open response
        raise DataError(
            f"{file.name} is not on this machine and {file.url} could not be downloaded ({_reason(error)}): "
            f"put a copy ({file.expected}) {_places(file, folder)}."
        ) from error


def _progress() -> Any:
    """A progress bar on standard error; silent when nobody is watching a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _open_url(url: str) -> Any:
    request = urllib.request.Request(url, headers={"User-Agent": "twofold"})
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def _part(target: Path) -> Path:
    """A name beside the target that no other process uses and that is never mistaken for the file itself."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")


def _discard(part: Path) -> None:
    with suppress(OSError):  # it may never have been made, and a failed clean-up must not hide the real error
        part.unlink()


def _open_part(part: Path, file: DataFile) -> IO[bytes]:
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return part.open("xb")
    except OSError as error:
        raise _unwritable(part, file, error) from error


def _write(sink: IO[bytes], chunk: bytes, part: Path, file: DataFile) -> None:
    try:
        sink.write(chunk)
    except OSError as error:
        raise _unwritable(part, file, error) from error


def _move_into_place(part: Path, target: Path, file: DataFile) -> None:
    try:
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())  # the name must never appear before the bytes, even if the power goes
        os.replace(part, target)
    except OSError as error:
        raise _unwritable(part, file, error) from error


def _unwritable(part: Path, file: DataFile, error: OSError) -> DataError:
    return DataError(
        f"{file.name} ({file.expected}) could not be written to {part.parent} ({_reason(error)}): make that folder "
        f"writable, or set {ENVIRONMENT_VARIABLE} to a folder that holds {file.relative.as_posix()}."
    )


def _places(file: DataFile, folder: str | os.PathLike[str] | None) -> str:
    """Where the user may put a copy, spelt out as full paths."""
    paths = " or at ".join(str(root / file.relative) for root in roots(folder))
    if folder is not None or os.environ.get(ENVIRONMENT_VARIABLE, "").strip():
        return f"at {paths}"
    return f"at {paths}, or set {ENVIRONMENT_VARIABLE} to a folder that holds {file.relative.as_posix()}"


def _damage(size: int, file: DataFile) -> str:
    if file.size is not None and size < file.size:
        return f"truncated or half-downloaded ({size:,} of {file.size:,} bytes)"
    return "corrupt or another file"


def _reason(error: BaseException) -> str:
    """The cause in a few words, without the nesting that urllib adds."""
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, urllib.error.HTTPError):
        return inner.strerror
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    return str(inner) or type(inner).__name__
