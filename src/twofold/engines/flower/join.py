"""A node that stays: Flower's Fleet API in this process, our own installed code, and none that a run might bring."""

from __future__ import annotations

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore  # noqa: F401  (imported now: httpx would do so at its first connection, in several threads at once)
import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from twofold.engines.flower import bodies
from twofold.errors import InputError, TwofoldError
from twofold.federation.certificates import is_loopback
from twofold.federation.keys import Identity
from twofold.federation.node import Node
from twofold.federation.patience import Stopped
from twofold.federation.wire import said_by

__all__ = ["NotLetIn", "authority", "host_of", "join"]

BEAT = 1.5
"""Seconds between two signs of life."""
PERSISTENCE = 10.0
"""Seconds for which a node that is turned away tries again: its old self may not be forgotten yet."""
LONGEST = 2.0
"""Seconds between two attempts to reach a coordinator that is away."""
SELDOM = 60.0
"""Seconds between two lines of the log that say the same: how far it is, or that there is still no coordinator."""
log = logging.getLogger("twofold.join")


class NotLetIn(TwofoldError):  # noqa: N818
    """The coordinator does not know this node's key, or somebody else is there with it."""


class _Signature:
    """Signs the time of each request, as Flower's server wants it. Flower's own class for this would bring a web server along."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key, self._public = key, b64encode(public_key_to_bytes(key.public_key())).decode()

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add three headers to a request."""
        when = now().isoformat()
        context.request.headers.update(
            {
                FLEET_HTTP_PUBLIC_KEY_HEADER: self._public,
                TIMESTAMP_HEADER: when,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(self._key, when.encode("ascii"))).decode(),
            }
        )
        return call_next(context)


class _Line:
    """One connection to the coordinator."""

    def __init__(self, server: str, certificates: bytes | None, identity: Identity | None) -> None:
        key = (identity or Identity.new()).node
        self._public, self._registered = public_key_to_bytes(key.public_key()), identity is not None
        self.client = FleetHttpClient.from_server_address(
            server,
            certificates is None,
            certificates,
            interceptors=[_Signature(key)],
        )
        self.node = FlowerNode()
        self._over = threading.Event()

    def enter(self) -> None:
        """Say that this node is here."""
        if not self._registered:
            self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        answer = self.client.ActivateNode(ActivateNodeRequest(public_key=self._public, heartbeat_interval=30))
        self.node = FlowerNode(node_id=answer.node_id)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        """Show signs of life while the other thread computes."""
        while not self._over.wait(BEAT):
            try:
                self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30))
            except (httpx.HTTPError, RuntimeError):
                continue

    def question(self) -> tuple[Message, bytes] | None:
        """The next question, if there is one before the coordinator gets tired of holding the request."""
        answer = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not answer.messages_list:
            return None
        head = message_from_proto(answer.messages_list[0])
        leaf, run = bodies.leaf_of(answer.message_object_trees[0]), head.metadata.run_id
        found = self.client.PullObject(PullObjectRequest(node=self.node, run_id=run, object_id=leaf))
        if not found.object_available:
            return None
        return head, bodies.content(found.object_content)

    def answer(self, head: Message, content: bytes) -> None:
        """Send an answer; only the object with the body in it."""
        reply = Message(RecordDict({bodies.ENTRY: bodies.Parcel(content)}), reply_to=head)
        tree, objects = bodies.objects(reply)
        request = PushMessagesRequest(
            node=self.node, messages_list=[message_to_proto(remove_content_from_message(reply))], message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )  # fmt: skip
        session = self.client.PushMessages(request).session_id
        leaf, run = bodies.leaf_of(tree), head.metadata.run_id
        self.client.PushObject(
            PushObjectRequest(
                node=self.node, run_id=run, session_id=session, object_id=leaf, object_content=objects[leaf]
            )
        )

    def leave(self) -> None:
        """Say goodbye, if anybody listens."""
        self._over.set()
        try:
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass
        finally:
            self.client.close()


def host_of(server: str) -> str:
    """The host in HOST:PORT; raises an InputError where it is anything else.

    >>> host_of("127.0.0.1:8443"), host_of("[::1]:8443")
    ('127.0.0.1', '::1')
    >>> host_of("127.0.0.1")
    Traceback (most recent call last):
    twofold.errors.InputError: --server '127.0.0.1' has no port: say HOST:PORT, as in 127.0.0.1:8443.
    """
    host, colon, port = server.rpartition(":")
    if not colon or not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise InputError(f"--server {server!r} has no port: say HOST:PORT, as in {server or 'hospital.org'}:8443.")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise InputError(f"--server {server!r} has the port {port!r}, which must be a number from 1 to 65535.")
    return host.strip("[]")


def authority(path: str | Path) -> bytes:
    """The certificate of the study's authority, from the file that the coordinator made; raises an InputError if it is none."""
    try:
        content = Path(path).read_bytes()
        x509.load_pem_x509_certificates(content)
    except FileNotFoundError:
        raise InputError(
            f"There is no {path}: --ca is the study's ca.crt, which the coordinator gives to everybody."
        ) from None
    except (ValueError, OSError):
        raise InputError(
            f"{path} is no certificate: --ca is the study's ca.crt, which the coordinator gives to everybody."
        ) from None
    return content


def _roots(node: Node, server: str, certificates: str | Path | None) -> bytes | None:
    """Whom to trust at the other end; outside this machine there must be somebody."""
    host = host_of(server)
    if not is_loopback(host) and (certificates is None or node.identity is None):
        raise InputError(f"{host} is another machine: join with --ca and --key.")
    return None if certificates is None else authority(certificates)


def join(
    node: Node,
    server: str,
    *,
    certificates: str | Path | None = None,
    digest: str | None = None,
    patience: float = 600.0,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Answer the coordinator at `server` (HOST:PORT) until it says goodbye; where it has done so already, there is nothing to do.

    A connection that breaks is made again. Without a coordinator for `patience` seconds, it gives up. With a `digest`, which the
    clients have told each other, another study file is refused.
    """
    if digest is not None:
        node.study.expect(digest)
    roots = _roots(node, server, certificates)
    if node.has_parted:
        log.info("the study is done, and the coordinator has said goodbye")
        return
    since, wait, turned_away = time.monotonic(), 0.1, 0.0
    say = _Seldom()
    while not stop():
        line = _Line(server, roots, node.identity)
        try:
            line.enter()
            log.info("joined %s as %s", server, node.name)
            for _ in _answers(line, node, stop):
                since, wait, turned_away = time.monotonic(), 0.1, 0.0
                say(logging.INFO, f"round {node.answered} of at most {node.study.rounds} is answered")
            return
        except (httpx.HTTPError, RuntimeError, OSError) as error:
            if node.has_parted:
                return  # the coordinator has what it wants, and is gone
            now = time.monotonic()
            if _is_refusal(error):
                turned_away = turned_away or now
                if now - turned_away > PERSISTENCE:
                    raise NotLetIn(_why(error)) from error
            if now - since > patience:
                _give_up(node, f"No coordinator at {server} for {patience:g} s: {_why(error)}.", error)
                return
            failed = f"the connection to {server} failed ({_why(error)}); again in {wait:.1f} s"
            say(logging.WARNING, failed, at_once=wait < LONGEST)
            time.sleep(wait)
            wait = min(2 * wait, LONGEST)
        finally:
            line.leave()


class _Seldom:
    """A voice in the log that is heard every so often, whatever is said meanwhile."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, level: int, text: str, *, at_once: bool = False) -> None:
        """Say something, at once or when it is time."""
        now = time.monotonic()
        if at_once or now - self._last > SELDOM:
            self._last = now
            log.log(level, text)


def _give_up(node: Node, why: str, error: Exception) -> None:
    """A node whose model is whole may leave; any other has stopped for now."""
    if not node.is_done:
        raise Stopped(why) from error
    log.warning("%s This node's model is whole, so it leaves.", why)


def _answers(line: _Line, node: Node, stop: Callable[[], bool]) -> Iterator[None]:
    """Answer whatever is asked, until the coordinator says goodbye; comes by after each word of the coordinator's."""
    while not stop():
        got = line.question()
        if got is not None:
            head, content = got
            line.answer(head, node.handle(content))
            if node.has_parted:
                return
        yield


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500


def _why(error: Exception) -> str:
    """What an error of the network means."""
    response: Any = getattr(error, "response", None)
    if response is None:
        return str(error) or type(error).__name__
    from flwr.supercore.error import FlowerError  # only now: a web server comes with it

    told = FlowerError.from_json(response.text)
    if response.status_code == 401 or (told is not None and "activat" in told.message.lower()):
        return "the coordinator does not let this key in: it is not in the study, or somebody is there with it already"
    return f"the coordinator answered {response.status_code}" + ("" if told is None else f": {said_by(told.message)}")
