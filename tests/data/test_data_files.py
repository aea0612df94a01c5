"""Files are found in the promised order, verified, downloaded whole or not at all, and failures are one sentence."""

import ast
import hashlib
import io
import os
import shutil
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from twofold.data import files
from twofold.data.files import DataError, DataFile, Downloader, fetch, fetch_members, find, roots
from twofold.errors import MissingExtra

CONTENT = bytes(range(256)) * 3000  # three read chunks


def data_file(url: str = "http://127.0.0.1:9/x.gz", content: bytes = CONTENT, name: str = "x.gz") -> DataFile:
    return DataFile("set", name, hashlib.md5(content).hexdigest(), url, len(content))


def put(root: Path, content: bytes, name: str = "x.gz") -> Path:
    path = root / "set" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check_sentence(message: str, *parts: str) -> None:
    """One line, one full stop, and everything that the user needs to act."""
    assert "\n" not in message and message.endswith(".") and ". " not in message, message
    for part in parts:
        assert part in message, (part, message)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in TWOFOLD_DATA; the cache folder is `tmp_path / "cache"`."""
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.setenv("TWOFOLD_DATA", str(folder))
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return folder


def refuse(url: str, output_file: str, pooch: object) -> None:
    raise AssertionError(f"{url} must not be opened")


def serving(content: bytes) -> Downloader:
    """A downloader that always delivers the same bytes."""
    return lambda url, output_file, pooch: void(Path(output_file).write_bytes(content))


def void(_: object) -> None:
    """Nothing, whatever it is given."""


def failing(error: BaseException, before: bytes = b"") -> Downloader:
    """A downloader that fails after some bytes."""

    def download(url: str, output_file: str, pooch: object) -> None:
        Path(output_file).write_bytes(before)
        raise error

    return download


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # until the other side hangs up
                while True:
                    self.wfile.write(b"\0" * (1 << 16))
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        body = {"/whole": CONTENT, "/cut": CONTENT[: len(CONTENT) // 2], "/wrong": CONTENT[::-1]}[self.path]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join(timeout=10)


def test_the_environment_comes_before_the_cache_and_the_cache_before_the_network(named: Path, tmp_path: Path) -> None:
    cached = put(tmp_path / "cache", CONTENT)
    assert fetch(data_file(), downloader=refuse) == cached
    mine = put(named, CONTENT)
    assert fetch(data_file(), downloader=refuse) == mine


def test_an_explicit_folder_is_the_only_place(named: Path, tmp_path: Path) -> None:
    put(named, CONTENT)
    put(tmp_path / "cache", CONTENT)
    other = tmp_path / "other"
    assert roots(other) == (other,)
    assert find(data_file(), other) is None
    assert fetch(data_file(), other, downloader=serving(CONTENT)) == other / "set" / "x.gz"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_the_variable_only_the_cache_is_searched(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("TWOFOLD_DATA")
    else:
        monkeypatch.setenv("TWOFOLD_DATA", value)
    assert roots() == (tmp_path / "cache",)


def test_the_cache_is_the_users_own() -> None:
    import platformdirs

    assert files.cache_folder().is_relative_to(platformdirs.user_cache_path("twofold", appauthor=False))


def test_a_download_lands_in_the_cache_whole_and_alone(named: Path, tmp_path: Path, server: str) -> None:
    path = fetch(data_file(f"{server}/whole"))
    assert path == tmp_path / "cache" / "set" / "x.gz"
    assert path.read_bytes() == CONTENT
    assert everything_below(tmp_path) == {"cache/set/x.gz"}  # no temporary file is left, and TWOFOLD_DATA is untouched
    assert fetch(data_file(f"{server}/whole"), downloader=refuse) == path
    # Other users of the machine may read it if the umask says so, as with any file.
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_nothing_has_the_real_name_before_it_is_whole(named: Path, tmp_path: Path) -> None:
    seen = []

    def download(url: str, output_file: str, pooch: object) -> None:
        with Path(output_file).open("wb") as sink:
            for start in range(0, len(CONTENT), 1 << 18):
                seen.append(everything_below(tmp_path))
                sink.write(CONTENT[start : start + (1 << 18)])
        seen.append(everything_below(tmp_path))

    fetch(data_file(), downloader=download)
    assert len(seen) > 2
    assert all(len(names) == 1 and Path(next(iter(names))).name != "x.gz" for names in seen)
    assert everything_below(tmp_path) == {"cache/set/x.gz"}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("/cut", ("could not be downloaded", f"{len(CONTENT) // 2} bytes read")),
        ("/wrong", ("corrupt or another file", "nothing was kept")),
        ("/missing", ("HTTP 404",)),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    named: Path, tmp_path: Path, server: str, page: str, words: tuple[str, ...]
) -> None:
    file = data_file(server + page)
    with pytest.raises(DataError) as caught:
        fetch(file)
    places = (str(named / "set" / "x.gz"), str(tmp_path / "cache" / "set" / "x.gz"))
    check_sentence(str(caught.value), file.url, f"md5 {file.md5}", *places, *words)
    assert everything_below(tmp_path) == set()


def test_a_closed_port_is_one_sentence(named: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        file = data_file(f"http://127.0.0.1:{unused.getsockname()[1]}/x.gz")
        with pytest.raises(DataError) as caught:
            fetch(file)
    check_sentence(str(caught.value), file.url, "Connection refused", f"md5 {file.md5}", str(named / "set" / "x.gz"))


def test_offline_says_where_to_put_the_file(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = requests.ConnectionError()
    offline.__cause__ = socket.gaierror(-3, "Temporary failure in name resolution")
    monkeypatch.delenv("TWOFOLD_DATA")
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=failing(offline))
    check_sentence(
        str(caught.value),
        "x.gz is not on this machine",
        "Temporary failure in name resolution",
        f"md5 {data_file().md5}, {len(CONTENT):,} bytes",
        str(tmp_path / "cache" / "set" / "x.gz"),
        "set TWOFOLD_DATA to a folder that holds set/x.gz",
    )


def test_an_interrupted_download_leaves_nothing(named: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch(data_file(), downloader=failing(KeyboardInterrupt(), CONTENT[:1000]))
    assert everything_below(tmp_path) == set()


def test_a_read_that_times_out_is_one_sentence(named: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=failing(requests.ReadTimeout("timed out")))
    check_sentence(str(caught.value), "timed out", f"md5 {data_file().md5}")
    assert everything_below(tmp_path) == set()


def test_an_endless_answer_is_cut_off(named: Path, tmp_path: Path, server: str) -> None:
    with pytest.raises(DataError, match="corrupt or another file"):
        fetch(data_file(f"{server}/endless"))
    assert everything_below(tmp_path) == set()


def test_the_remains_of_a_killed_download_are_never_used(named: Path, tmp_path: Path, server: str) -> None:
    put(tmp_path / "cache", CONTENT[:1000], ".x.gz.0123456789abcdef.part")
    assert find(data_file()) is None
    assert fetch(data_file(f"{server}/whole")).read_bytes() == CONTENT


@pytest.mark.parametrize("where", ["named", "cache"])
@pytest.mark.parametrize(
    ("content", "word"),
    [
        (CONTENT[:-1], "truncated or half-downloaded (767,999 of 768,000 bytes)"),
        (b"", "truncated or half-downloaded (0 of 768,000 bytes)"),
        (CONTENT[::-1], "corrupt or another file"),
        (CONTENT + b"!", "corrupt or another file"),
    ],
)
def test_a_damaged_file_is_reported_and_left_alone(
    named: Path, tmp_path: Path, where: str, content: bytes, word: str
) -> None:
    path = put(tmp_path / where, content)
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=refuse)
    check_sentence(
        str(caught.value),
        str(path),
        word,
        hashlib.md5(content).hexdigest(),
        f"{len(content):,} bytes",
        f"expected md5 {data_file().md5}, {len(CONTENT):,} bytes",
        "replace it with the file from http://127.0.0.1:9/x.gz",
    )
    assert path.read_bytes() == content


def test_a_bad_file_in_the_environment_is_not_hidden_by_a_good_one_in_the_cache(named: Path, tmp_path: Path) -> None:
    put(named, b"mine")
    put(tmp_path / "cache", CONTENT)
    with pytest.raises(DataError, match="named"):
        fetch(data_file(), downloader=refuse)


def test_a_dangling_link_and_a_folder_are_reported(named: Path) -> None:
    (named / "set").mkdir()
    path = named / "set" / "x.gz"
    path.symlink_to(named / "nowhere")
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=refuse)
    check_sentence(str(caught.value), str(path), "could not be read", data_file().md5)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="could not be read"):
        fetch(data_file(), downloader=refuse)


def test_a_place_that_cannot_be_written_is_one_sentence(named: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=refuse)
    check_sentence(str(caught.value), str(tmp_path / "cache" / "set"), data_file().md5, "TWOFOLD_DATA")


def test_a_full_disk_is_not_blamed_on_the_network(named: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(data_file(), downloader=failing(OSError(28, "No space left on device")))
    check_sentence(str(caught.value), "could not be written", "No space left on device", data_file().md5)


def test_a_move_that_fails_leaves_nothing(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object, target: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "move", fail)
    with pytest.raises(DataError, match="Permission denied"):
        fetch(data_file(), downloader=serving(CONTENT))
    assert everything_below(tmp_path) == set()


def test_without_pooch_what_is_there_is_read_and_a_download_names_the_extra(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"Downloading x\.gz needs pooch, .*pip install 'twofold\[paper\]'"):
        fetch(data_file())
    mine = put(named, CONTENT)
    assert fetch(data_file()) == mine


def test_a_file_of_unknown_size_is_judged_by_its_checksum(named: Path) -> None:
    file = DataFile("set", "x.gz", data_file().md5, "http://127.0.0.1:9/x.gz")
    path = put(named, CONTENT[:-1])
    with pytest.raises(DataError, match=f"corrupt or another file.*expected md5 {file.md5};"):
        fetch(file, downloader=refuse)
    path.write_bytes(CONTENT)
    assert fetch(file, downloader=refuse) == path


def test_the_progress_bar_names_the_file_and_counts_to_its_size(
    named: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: str
) -> None:
    fetch(data_file(f"{server}/whole"))
    assert capsys.readouterr() == ("", "")  # nobody watches
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fetch(data_file(f"{server}/whole"), named / "again")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "set/x.gz" in shown.err and "768.0/768.0 kB" in shown.err


# --- archives -------------------------------------------------------------------------------------------------------

MEMBERS = {"set/a.bin": b"a" * 1000, "set/b.bin": b"b" * 2000}


def tar_of(contents: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info in extra:
            tar.addfile(info)
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def members() -> list[DataFile]:
    return [data_file(content=content, name=name.split("/")[1]) for name, content in MEMBERS.items()]


def test_only_the_members_asked_for_are_unpacked(named: Path, tmp_path: Path) -> None:
    archive = tar_of({**MEMBERS, "set/readme.html": b"no", "../evil": b"no", "/tmp/evil": b"no"})
    paths = fetch_members(data_file(content=archive, name="all.tar.gz"), members(), downloader=serving(archive))
    assert [path.read_bytes() for path in paths] == list(MEMBERS.values())
    assert everything_below(tmp_path) == {"cache/set/a.bin", "cache/set/b.bin"}


def test_an_archive_that_is_there_is_used_and_kept(named: Path, tmp_path: Path) -> None:
    archive = tar_of(MEMBERS)
    put(named, archive, "all.tar.gz")
    fetch_members(data_file(content=archive, name="all.tar.gz"), members(), downloader=refuse)
    assert everything_below(tmp_path) == {"named/set/all.tar.gz", "cache/set/a.bin", "cache/set/b.bin"}


def test_a_member_in_place_is_left_alone_and_a_damaged_one_reported(named: Path, tmp_path: Path) -> None:
    archive = tar_of(MEMBERS)
    put(named, archive, "all.tar.gz")
    there = put(tmp_path / "cache", MEMBERS["set/a.bin"], "a.bin")
    before = there.stat().st_mtime_ns
    fetch_members(data_file(content=archive, name="all.tar.gz"), members(), downloader=refuse)
    assert there.stat().st_mtime_ns == before
    there.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"a\.bin is truncated"):
        fetch_members(data_file(content=archive, name="all.tar.gz"), members(), downloader=refuse)
    assert there.read_bytes() == b"damaged"


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (tar_of({"set/a.bin": MEMBERS["set/a.bin"]}), ("no plain file set/b.bin",)),
        (tar_of({"set/a.bin": b"a" * 1000}, link("set/b.bin", "/etc/hostname")), ("no plain file set/b.bin",)),
        (tar_of({"set/a.bin": b"a" * 1000, "set/b.bin": b"c" * 2000}), ("corrupt or another file", "b.bin")),
        (b"this is no archive", ("could not be unpacked", "all.tar.gz")),
        (tar_of(MEMBERS)[:-20], ("could not be unpacked", "all.tar.gz")),
    ],
)
def test_a_bad_archive_is_one_sentence_and_leaves_no_half_file(
    named: Path, tmp_path: Path, archive: bytes, words: tuple[str, ...]
) -> None:
    file = data_file(content=archive, name="all.tar.gz")
    with pytest.raises(DataError) as caught:
        fetch_members(file, members(), downloader=serving(archive))
    check_sentence(str(caught.value), "md5", *words)
    assert everything_below(tmp_path) <= {"cache/set/a.bin"}  # whole, or not there


# --- the package ----------------------------------------------------------------------------------------------------


def test_importing_the_package_needs_numpy_alone() -> None:
    package = Path(files.__file__).parent
    allowed = {"numpy", "twofold"}
    heavy = {"matplotlib", "scipy", "rich", "platformdirs", "sklearn", "jax", "pooch", "requests"}
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                top = name.split(".")[0]
                assert top != "jax", path
                assert top not in heavy - allowed or node.col_offset > 0, f"{path.name} imports {name} at its top"
                below = ("twofold.data", "twofold.errors", "twofold.extras", "twofold.tables")
                when_called = name == "twofold.clients.labels" and node.col_offset > 0
                assert top != "twofold" or name.startswith(below) or when_called, f"{path.name} reaches out to {name}"
