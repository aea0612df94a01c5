"""Flower's port: what is there, and who may come in. The server is real, on loopback; nodes are threads or short calls."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import twofold as tw
from federation.small import NAMES, Small, identities, node, problem, study
from twofold.errors import InputError
from twofold.federation import Coordinator, Identity, Patience, Question, Study

pytest.importorskip("flwr")
httpx = pytest.importorskip("httpx")

from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER  # noqa: E402
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402

from twofold.engines.flower import FlowerGrid, bodies, join  # noqa: E402
from twofold.engines.flower.door import PATHS  # noqa: E402
from twofold.engines.flower.join import NotLetIn, _Line  # noqa: E402
from twofold.federation.account import MARGIN, most_bytes  # noqa: E402
from twofold.federation.certificates import make_certificates  # noqa: E402
from twofold.federation.study import KEPT, PRESENT  # noqa: E402


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "certs"
    make_certificates(folder, ["127.0.0.1", "localhost"])
    return folder


@pytest.fixture(scope="module")
def grid(certs: Path) -> Iterator[FlowerGrid]:
    found = FlowerGrid(certificates=certs, keys={name: who.public for name, who in identities().items()})
    yield found
    found.close()


def test_a_node_brings_no_web_server_and_no_database_along(fresh_python: Any):
    heavy = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic")
    code = (
        f"import sys, twofold.cli, twofold.engines.flower as f; f.join; print([m for m in {heavy} if m in sys.modules])"
    )
    assert fresh_python(code).strip() == "[]"


def test_what_connections_need_is_imported_before_there_are_threads(fresh_python: Any):
    """httpx imports httpcore at its first connection; in two threads at once that has failed (anyio parses its own source)."""
    assert (
        fresh_python("import sys, twofold.engines.flower as f; f.join; print('httpcore' in sys.modules)").strip()
        == "True"
    )


def url(grid: FlowerGrid, path: str) -> str:
    return f"https://127.0.0.1:{grid.port}{path}"


def trusting(certs: Path) -> Any:
    return httpx.Client(verify=ssl.create_default_context(cafile=str(certs / "ca.crt")))


ELSEWHERE = [
    "/", "/docs", "/redoc", "/openapi.json", "/health", "/metrics", "/v1", "/v1/fleet", "/v1/fleet/", "/v1/fleet/get-run",
    "/v1/fleet/get-fab", "/v1/fleet/../control/start-run", "/v1/control/start-run", "/v1/control/list-runs", "/v1/control/login",
    "/v1/control/stop-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/v1/runtime/push-messages",
    "/v1/runtime/pull-messages", "/v1/runtime/get-run", "/v1/runtime/push-object", "/v1/superexec", "/flwr.proto.Control/StartRun",
    "/flwr.proto.Fleet/PullMessages", "/api/v1/run", "/status.json", "/admin",
]  # fmt: skip


def test_only_the_paths_that_a_node_needs_exist(grid: FlowerGrid, certs: Path):
    with trusting(certs) as client:
        for path in ELSEWHERE:
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
                found = client.request(method, url(grid, path))
                assert (found.status_code, found.content) == (404, b""), (method, path)
        from flwr.superlink.main import create_app  # every path that Flower's own server has

        for route in create_app().routes:
            path = getattr(route, "path", "/")
            if path.removeprefix("/v1/fleet/") not in PATHS:
                assert client.post(url(grid, path)).status_code == 404, path
        for path in PATHS:  # they are there, and let nobody in who has no key
            assert client.post(url(grid, f"/v1/fleet/{path}")).status_code in (400, 401, 415), path


def test_plain_text_and_another_authority_are_refused(grid: FlowerGrid, certs: Path, tmp_path: Path):
    with socket.create_connection(("127.0.0.1", grid.port)) as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n\r\n")
        line.settimeout(5)
        assert not line.recv(1000).startswith(b"HTTP/1.1 200")
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    with trusting(tmp_path / "other") as client, pytest.raises(httpx.ConnectError, match="certificate"):
        client.get(url(grid, "/"))
    with httpx.Client() as client, pytest.raises(httpx.ConnectError, match="certificate"):
        client.get(url(grid, "/"))


LINES: list[_Line] = []


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    hang_up()


def hang_up() -> None:
    while LINES:
        LINES.pop().leave()


def line(grid: FlowerGrid, certs: Path, who: Identity | None) -> _Line:
    LINES.append(_Line(f"127.0.0.1:{grid.port}", (certs / "ca.crt").read_bytes(), who))
    return LINES[-1]


def test_a_stranger_and_a_second_holder_of_a_key_are_refused(grid: FlowerGrid, certs: Path):
    stranger = line(grid, certs, Identity.new())
    with pytest.raises(httpx.HTTPStatusError):
        stranger.enter()
    with pytest.raises(httpx.HTTPStatusError):  # nor can it register itself
        line(grid, certs, None).enter()
    first = line(grid, certs, identities()["north"])
    first.enter()
    second = line(grid, certs, identities()["north"])
    with pytest.raises(httpx.HTTPStatusError):
        second.enter()
    # Who is let in cannot speak for another node.
    first.node.node_id = next(n for n in grid._state.nodes if n != first.node.node_id)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        first.question()


def test_a_revoked_key_is_a_stranger(certs: Path):
    some = {name: who.public for name, who in identities().items() if name != "east"}
    found = FlowerGrid(certificates=certs, keys=some)
    try:
        with pytest.raises(httpx.HTTPStatusError):
            line(found, certs, identities()["east"]).enter()
        line(found, certs, identities()["west"]).enter()
    finally:
        hang_up()
        found.close()


def test_joining_gives_up_with_a_sentence(
    grid: FlowerGrid, certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules[_Line.__module__], "PERSISTENCE", 0.0)
    who = node(study("scd", keys=True), "south", tmp_path)
    who.identity = Identity.new()
    with pytest.raises(NotLetIn, match="does not let this key in"):
        join(who, f"127.0.0.1:{grid.port}", certificates=certs / "ca.crt")
    with pytest.raises(tw.TwofoldError, match="No coordinator at 127.0.0.1:9 for 0 s"):
        join(who, "127.0.0.1:9", certificates=certs / "ca.crt", patience=0.0)
    with pytest.raises(InputError, match="is another machine: join with --ca and --key"):
        join(who, "hospital.org:8443")


def test_a_node_that_waits_for_long_says_so_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A coordinator that is away for a night must not fill the log with a line every two seconds."""
    now, tries = [0.0], []

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(sys.modules[_Line.__module__], "time", clock)
    with caplog.at_level("INFO", "twofold"), pytest.raises(tw.TwofoldError, match="No coordinator .* for 200 s"):
        join(node(study("scd", keys=True), "south", tmp_path), "127.0.0.1:9", patience=200.0)
    assert tries[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] and len(tries) > 100
    assert (
        sum("again in" in record.getMessage() for record in caplog.records) == 5 + 3
    )  # as it waits longer, and each minute


def test_nothing_is_served_to_the_outside_without_certificates_and_keys(certs: Path):
    with pytest.raises(InputError, match="can be reached from outside: give --certs"):
        FlowerGrid("0.0.0.0", 0)
    with pytest.raises(InputError, match="must list every client's key"):
        FlowerGrid("0.0.0.0", 0, certs)


def test_certificates_that_are_not_there_get_a_sentence(certs: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"There is no .*nothere/server.pem: name the folder that `twofold study init"):
        FlowerGrid(certificates=tmp_path / "nothere")
    (tmp_path / "server.pem").write_bytes((certs / "server.pem").read_bytes())
    (tmp_path / "server.key").write_text("no key")
    with pytest.raises(InputError, match="server.key are no certificate and its key"):
        FlowerGrid(certificates=tmp_path)
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    (tmp_path / "server.key").write_bytes((tmp_path / "other" / "server.key").read_bytes())
    with pytest.raises(InputError, match="server.key are no certificate and its key"):
        FlowerGrid(certificates=tmp_path)


@pytest.mark.parametrize("says", ["its length", "nothing"])
@pytest.mark.parametrize("path", ["pull-messages", "push-object"])
def test_no_more_of_a_request_is_read_than_can_be_meant(says: str, path: str, certs: Path):
    """32 MB from somebody whose key is known, but who has not proved that it is its own; and none at all from a stranger."""
    who = identities()["north"]
    found = FlowerGrid(certificates=certs, keys={"north": who.public}, most=2_000_000)
    read: list[int] = []
    door: Any = found._server.config.app
    keep = door._app

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        async def heard() -> Any:
            message = await receive()
            read.append(len(message.get("body", b"")))
            return message

        await keep(scope, heard, send)

    door._app = counting
    chunks = [bytes(1_000_000)] * 32

    def post(key: bytes) -> int:
        body: Any = b"".join(chunks) if says == "its length" else iter(chunks)
        headers = {FLEET_HTTP_PUBLIC_KEY_HEADER: key.decode(), "content-type": "application/protobuf"}
        with trusting(certs) as client:
            return client.post(url(found, f"/v1/fleet/{path}"), content=body, headers=headers, timeout=20).status_code

    try:
        assert post(b64encode(public_key_to_bytes(who.public.node))) == 413
        assert sum(read) <= (2_000_000 if path == "push-object" else 1 << 20)
        read.clear()
        assert post(b64encode(b"a stranger")) == 401 and read == []
    finally:
        found.close()


@pytest.mark.parametrize("name", sorted(tw.algorithms.REGISTRY))
def test_the_longest_answer_is_known_before_anything_is_told(name: str, tmp_path: Path):
    options: dict[str, Any] = {"missing": "skip"} if name in (*KEPT, *PRESENT) else {}
    agreed = study(name, rounds=1, keys=True, masks={"on": True}, round=options)
    most = most_bytes(agreed)
    small = Small(agreed, tmp_path)
    small.run()
    longest = max(len(content) for way, _, content in small.grid.carried if way == "up")
    assert longest < most < longest + 1.1 * MARGIN


def test_words_of_flowers_are_logged_as_ours(certs: Path, caplog: pytest.LogCaptureFixture, capfd: Any):
    found = FlowerGrid(certificates=certs)
    try:
        with trusting(certs) as client, caplog.at_level("INFO", "twofold"):
            answer = client.post(
                url(found, "/v1/fleet/pull-messages"), content=b"\x1b[31m", headers={"content-type": "x"}
            )
    finally:
        found.close()
    assert answer.status_code >= 400
    assert "Fleet" not in (said := "".join(capfd.readouterr())) and "\x1b" not in said and "ERROR" not in said
    assert any(record.name == "twofold.serve" and "Flower: " in record.getMessage() for record in caplog.records)


def test_nobody_answers_a_question_that_was_put_to_somebody_else(certs: Path, caplog: pytest.LogCaptureFixture):
    """north knows south's question and ticket, and answers it as south, over its own connection."""
    found = FlowerGrid(certificates=certs, keys={name: identities()[name].public for name in ("north", "south")})
    try:
        north, south = (line(found, certs, identities()[name]) for name in ("north", "south"))
        north.enter()
        south.enter()
        tickets = found.push([Question(south.node.node_id, b"question")])
        while (got := south.question()) is None:
            pass
        north.answer(got[0], b"forged")
        assert found.pull(tickets) == []
        assert any("north answers a question that was put to south: dropped" in r.getMessage() for r in caplog.records)
        south.answer(got[0], b"right")
        assert found.pull(tickets) == [(tickets[0], b"right")]
        assert not found._asked and not found._replies
    finally:
        hang_up()
        found.close()


def test_flower_has_a_folder_that_nobody_could_guess(fresh_python: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FLWR_HOME", raising=False)
    code = "import os, twofold.engines.flower; f = os.environ['FLWR_HOME']; print(f, oct(os.stat(f).st_mode)[-3:])"
    (one, mode), (other, _) = fresh_python(code).split(), fresh_python(code).split()
    assert one != other and mode == "700"
    assert not Path(one).exists()  # gone with the process


def test_a_federation_over_the_wire_and_nothing_stays_in_memory(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Four threads as nodes, TLS, keys and masks; nodes say how far they are."""
    monkeypatch.setattr(sys.modules[_Line.__module__], "SELDOM", 0.0)
    caplog.set_level("INFO", "twofold")
    base = study("scd", keys=True, masks={"on": True})
    agreed = Study(base.document | {"stop": {"rounds": 8}})
    grid = FlowerGrid(certificates=certs, keys=agreed.keys)
    nodes = [node(agreed, name, tmp_path) for name in NAMES]

    def run(who: Any) -> None:
        join(who, f"127.0.0.1:{grid.port}", certificates=certs / "ca.crt")

    threads = [threading.Thread(target=run, args=(who,), daemon=True) for who in nodes]
    for each in threads:
        each.start()
    server = Coordinator(agreed, grid, tmp_path / "server", patience=Patience(limit=60.0))
    found = server.run()
    assert server.part(20.0) == []
    for each in threads:
        each.join(timeout=10)
    assert not any(each.is_alive() for each in threads)
    assert any(record.getMessage() == "round 8 of at most 8 is answered" for record in caplog.records)
    expected = tw.solve(problem(), found.algorithm, rounds=8, seed=3)
    assert_allclose(found.w, expected.w, rtol=0, atol=1e-11)
    assert_allclose(np.stack([who.model()[1] for who in nodes]), expected.beta, rtol=0, atol=1e-11)
    state = grid._state
    left = (
        state.message_ins_store,
        state.message_res_store,
        state._object_push_sessions,
        grid._replies,
        grid._sessions,
    )
    assert [len(each) for each in left] == [0, 0, 0, 0, 0] or max(map(len, left)) <= 2
    grid.close()


def test_a_parcel_is_an_object_of_flowers_and_one_goes_to_everybody(certs: Path):
    from flwr.supercore.inflatable.inflatable_object import get_object_id
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content

    for body in (b"", b"\0", b"twofold1" + bytes(300)):
        parcel = bodies.Parcel(body)
        validate_object_content(parcel.deflate())  # raises for what is none
        assert parcel.object_id == get_object_id(parcel.deflate())
        assert bodies.content(parcel.deflate()) == body
    grid = FlowerGrid(certificates=certs, keys={name: identities()[name].public for name in NAMES})
    try:
        everybody = list(grid._state.nodes)
        assert all(grid._state.activate_node(number, 30.0) for number in everybody)
        grid.push([Question(number, b"x" * 1000) for number in everybody])
        kept = [entry.content for entry in grid._state.object_store.store.values()]
        assert len(everybody) == 4 and sum(len(each) > 1000 for each in kept) == 1
    finally:
        grid.close()


def test_a_large_message_gets_through(certs: Path):
    """40 MB either way."""
    key = identities()["north"]
    grid = FlowerGrid(certificates=certs, keys={"north": key.public})
    body = np.random.default_rng(0).bytes(40_000_000)
    mine = line(grid, certs, key)
    mine.enter()

    def echo() -> None:
        while (got := mine.question()) is None:
            pass
        mine.answer(got[0], got[1][::-1])

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    (number,) = grid.nodes()
    tickets, until, found = grid.push([Question(number, body)]), time.monotonic() + 60, []
    while not found and time.monotonic() < until:
        found = grid.pull(tickets)
    thread.join(timeout=10)
    hang_up()
    grid.close()
    assert found and found[0][1] == body[::-1]
