"""The coordinator's side of Flower: its Fleet API, and nothing else of it, in front of our own loop.

Who reaches the port can only be a node. There is no Control API, no Runtime API and no code that travels; every other path is
404. A node's request for messages is held until there is one, so that nobody asks in vain.
"""

from __future__ import annotations

import hashlib
import json
import logging
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.server.superlink.linkstate import in_memory_linkstate
from flwr.supercore.constant import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.error import http_error_translator
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from twofold.engines.flower import bodies
from twofold.engines.flower.door import CALLER, Door
from twofold.errors import InputError
from twofold.federation.account import most_bytes
from twofold.federation.certificates import is_loopback
from twofold.federation.coordinator import Coordinator
from twofold.federation.grid import Gone, Question
from twofold.federation.keys import Public
from twofold.federation.patience import Patience
from twofold.federation.study import Study
from twofold.federation.wire import said_by
from twofold.result import Result

__all__ = ["FlowerGrid", "serve"]

HOLD = 2.0
"""Seconds that a node's request for messages is held."""
ALIVE = 4.0
"""Seconds after its last sign of life during which a node's key is taken."""
DAY = 86400.0
log = logging.getLogger("twofold.serve")


def _fleet_app() -> FastAPI:
    """Flower's own app with the Fleet routes alone and the layers that they need."""
    _, factory = get_objectstore_linkstate_factories(
        FLWR_IN_MEMORY_DB_NAME, get_federation_manager(is_simulation=False)
    )
    layers = [
        Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
        Middleware(ProtobufTranslationMiddleware),
        Middleware(NodeAuthMiddleware),
    ]
    app = FastAPI(middleware=layers, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.linkstate_factory = factory
    app.state.fleet_event_log_plugin = None
    app.include_router(fleet_router)
    return app


class _Ours(logging.Handler):
    """What Flower logs, in our log: Flower's own handler writes in colours and its own form, and words of strangers as they came."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        log.log(record.levelno, "Flower: %s", said_by(record.getMessage()))


def _checked(folder: Path | None) -> dict[str, Any]:
    """What the server needs of a folder of certificates, if it can be used."""
    if folder is None:
        return {}
    chain, key = folder / "server.pem", folder / "server.key"
    for path in (chain, key):
        if not path.is_file():
            raise InputError(
                f"There is no {path}: name the folder that `twofold study init STUDY.toml --host NAME` made with --certs."
            )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{chain} and {key} are no certificate and its key ({error.strerror or error}): make them again with "
            "`twofold study init STUDY.toml --host NAME --certs FOLDER`."
        ) from None
    return {"ssl_certfile": str(chain), "ssl_keyfile": str(key)}


class FlowerGrid:
    """A `Grid` over Flower's Fleet API. With `keys`, only those who hold them are let in; no answer has more than `most` bytes."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        certificates: Path | None = None,
        keys: dict[str, Public] | None = None,
        most: int = 1 << 30,
    ) -> None:
        secure = _checked(certificates)
        if not is_loopback(host) and certificates is None:
            raise InputError(f"{host} can be reached from outside: give --certs, made by `twofold study init`.")
        if not is_loopback(host) and not keys:
            raise InputError(f"{host} can be reached from outside: the study must list every client's key.")
        flower = logging.getLogger("flwr")
        flower.handlers[:], flower.propagate = [_Ours()], False
        app = _fleet_app()
        app.state.enable_supernode_auth = bool(keys)
        self._state: Any = app.state.linkstate_factory.state()
        self._something = threading.Condition()
        self._alive: dict[int, float] = {}
        self._replies: dict[str, tuple[Any, str]] = {}
        self._sessions: dict[str, str] = {}
        self._asked: dict[str, int] = {}
        self._names: dict[int, str] = {}
        for name, key in (keys or {}).items():
            self._register(name, key)
        self._listen_in()
        self._watch_replies()
        self._begin_run()
        known = frozenset(b64encode(public_key_to_bytes(key.node)) for key in (keys or {}).values())
        config = uvicorn.Config(
            Door(app, known, most),
            host=host,
            port=port,
            log_level="critical",
            ws="none",
            timeout_graceful_shutdown=1,
            **secure,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise InputError(f"Nothing can be served at {host}:{port}: is the port taken?")
            time.sleep(0.01)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    def _register(self, name: str, key: Public) -> None:
        """Let a key in. The number of a node comes from its key: a coordinator that comes back knows everybody."""
        raw = public_key_to_bytes(key.node)
        number = int.from_bytes(hashlib.sha256(raw).digest()[:8], "little")
        self._names[number] = name
        module: Any = in_memory_linkstate  # what draws the numbers of nodes is nobody's public function
        drawn, module.generate_rand_int_from_bytes = module.generate_rand_int_from_bytes, lambda *_, **__: number
        try:
            self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, raw, 0, name=name)
        finally:
            module.generate_rand_int_from_bytes = drawn

    def _listen_in(self) -> None:
        """Hold requests until there is something, know who lives, and refuse a second holder of a key."""
        state = self._state
        pull, beat = state.get_message_ins, state.acknowledge_node_heartbeat
        activate, leave = state.activate_node, state.deactivate_node

        def acknowledge(node_id: int, interval: float = DAY) -> bool:
            self._alive[node_id] = time.monotonic()
            return beat(node_id, DAY)  # silence is the coordinator's business, not Flower's

        def get_message_ins(node_id: int, limit: int | None, **more: Any) -> Any:
            if node_id == SUPERLINK_NODE_ID:
                return pull(node_id, limit, **more)
            until = time.monotonic() + HOLD
            acknowledge(node_id)
            with self._something:
                while not (found := pull(node_id, limit, **more)) and (left := until - time.monotonic()) > 0:
                    self._something.wait(left)
            return found

        def activate_node(node_id: int, interval: float) -> bool:
            if time.monotonic() - self._alive.get(node_id, -ALIVE) < ALIVE:
                log.warning("a second holder of the key of node %d is refused", node_id)
                return False
            leave(node_id)
            self._alive[node_id] = time.monotonic()
            return activate(node_id, DAY)

        def deactivate_node(node_id: int) -> bool:
            self._alive.pop(node_id, None)
            return leave(node_id)

        state.get_message_ins, state.acknowledge_node_heartbeat = get_message_ins, acknowledge
        state.activate_node, state.deactivate_node = activate_node, deactivate_node

    def _watch_replies(self) -> None:
        """Know of an answer as soon as it is there."""
        state = self._state
        keep, put = state.store_message_and_object_tree, state.store_object

        def store_message(message: Any, tree: Any, session: str) -> Any:
            ticket = message.metadata.reply_to_message_id
            if ticket and not self._is_asked(ticket, message.metadata.src_node_id):
                return None, []
            found = keep(message, tree, session)
            if ticket and found[0]:
                with self._something:
                    self._replies[ticket], self._sessions[ticket] = (message, bodies.leaf_of(tree)), session
            return found

        def store_object(*arguments: Any) -> bool:
            found = put(*arguments)
            with self._something:
                self._something.notify_all()
            return found

        state.store_message_and_object_tree, state.store_object = store_message, store_object

    def _is_asked(self, ticket: str, source: int) -> bool:
        """Whether an answer comes from the node that the question was put to: Flower knows who calls, but does not compare."""
        caller = self._state.get_node_id_by_public_key(b64decode(CALLER.get()))
        if caller == source == self._asked.get(ticket):
            return True
        if ticket in self._asked:
            who, whose = (self._names.get(n, f"node {n}") for n in (caller, self._asked[ticket]))
            log.warning("%s answers a question that was put to %s: dropped", who, whose)
        return False  # where nobody waits for it any more: a late answer

    def _begin_run(self) -> None:
        """Flower wants messages to belong to a run, and a run to a task."""
        self._run = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        self._task = runtime_handlers.acquire_task(request, self._state).task
        if not self._state.activate_task(self._task.task_id):
            raise RuntimeError("Flower does not start the run")
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            self._task.task_id,
            self._run,
            SUPERLINK_NODE_ID,
        )
        self._beaten = time.monotonic()

    # --- the three methods ----------------------------------------------------------------------------------------------

    def nodes(self) -> dict[int, str]:
        """See `Grid.nodes`."""
        self._beat()
        found = self._state.get_node_info(statuses=["online"])
        return {n.node_id: n.last_activated_at for n in found if n.node_id != SUPERLINK_NODE_ID}

    def _beat(self) -> None:
        if time.monotonic() - self._beaten > 5:
            self._state.acknowledge_task_heartbeat(self._task.task_id)
            self._beaten = time.monotonic()

    def push(self, questions: list[Question]) -> list[str]:
        """See `Grid.push`."""
        tickets = []
        parcels = {q.content: bodies.Parcel(q.content) for q in questions}  # most questions are the same for everybody
        for node, content in questions:
            inside = RecordDict({bodies.ENTRY: parcels[content]})
            message = Message(inside, dst_node_id=node, message_type="train.round", ttl=DAY)
            tree, objects = bodies.objects(message)
            ticket = tree.object_id
            self._asked[ticket] = node
            session = self._state.start_session(self._run)
            _, wanted = self._state.store_message_and_object_tree(remove_content_from_message(message), tree, session)
            for name in wanted:
                self._state.store_object(self._run, session, name, objects[name])
            tickets.append(ticket)
        with self._something:
            self._something.notify_all()
        return tickets

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """See `Grid.pull`; waits a little where nothing is there."""
        self._beat()
        with self._something:
            if not (found := self._there(tickets)):
                self._something.wait(0.05)
                found = self._there(tickets)
        return found

    def _there(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        found: list[tuple[str, bytes | Gone]] = []
        for ticket in tickets:
            if ticket not in self._replies:
                continue
            message, leaf = self._replies[ticket]
            if message.has_error():
                found.append((ticket, Gone(message.error.reason)))
            else:
                raw = self._state.get_object(self._run, leaf)
                if not raw:
                    continue  # announced, but not there yet
                try:
                    found.append((ticket, bodies.content(raw)))
                except Exception as error:  # whatever a node has made up: it is refused, and nobody else is harmed
                    found.append((ticket, b""))
                    log.warning("a node sent what is no record of Flower's: %s", said_by(error))
            self._forget(ticket, message.metadata.message_id)
        return found

    def _forget(self, ticket: str, reply: str) -> None:
        """Nothing of an exchange that is over stays in memory."""
        del self._replies[ticket], self._asked[ticket]
        self._state._cleanup_push_session(self._sessions.pop(ticket), cleanup_messages=False)
        self._state.delete_messages({ticket})
        for name in (ticket, reply):
            self._state.object_store.delete(name)

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        with self._something:
            self._something.notify_all()
        self._thread.join(timeout=5)


def serve(
    study: Study,
    out: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    certificates: str | Path | None = None,
    patience: Patience | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    ready: Callable[[int], None] | None = None,
    linger: float = 10.0,
) -> Result:
    """Be the coordinator of a study until it is done; the same call with the same folder goes on where it was.

    `ready` is told the port. The result is also saved into the folder. Then every node is told goodbye, as far as it comes for it
    within `linger` seconds; the same call says it to those who come later.
    """
    study.check()
    result, out = None, Path(out)
    if (out / "end.json").exists():  # killed before its last words: the log is all that it takes
        result = Coordinator(study, _Nobody(), out, watch=watch).run()
        result.save(out / "result")
        if (out / "parted.json").exists() and len(json.loads((out / "parted.json").read_text())) == study.M:
            return result  # everybody has heard goodbye
    grid = FlowerGrid(host, port, None if certificates is None else Path(certificates), study.keys, most_bytes(study))
    try:
        if ready is not None:
            ready(grid.port)
        server = Coordinator(study, grid, out, patience=patience, watch=watch)
        if result is None:
            result = server.run()
            result.save(out / "result")
        if left := server.part(linger):
            log.warning("no goodbye to %s yet: the same command says it again", ", ".join(left))
        return result
    finally:
        grid.close()


class _Nobody:
    """A grid without nodes."""

    def nodes(self) -> dict[int, str]:
        """See `Grid.nodes`."""
        return {}

    def push(self, questions: list[Question]) -> list[str]:
        """See `Grid.push`."""
        return []

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """See `Grid.pull`."""
        return []
