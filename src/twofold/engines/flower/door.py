"""What stands between the network and Flower: which paths there are, whose key is known, and how much of a request is read."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.requests import ClientDisconnect

__all__ = ["CALLER", "PATHS", "Door"]

SMALL = 1 << 20
"""Bytes of a request that carries no body of ours."""
CALLER: ContextVar[bytes] = ContextVar("caller")
"""The key of who has sent the request that is being answered, checked by Flower's own layer."""
PATHS = ("activate-node", "deactivate-node", "register-node", "unregister-node", "send-node-heartbeat", "pull-messages",
         "push-messages", "pull-object", "push-object", "confirm-message-received")  # fmt: skip


class Door:
    """Flower's app behind a door: every path but the few that a node needs is gone, a key that is not known is turned away before
    anything of its request is read, and of any request no more is read than can be meant.
    """

    def __init__(self, app: Any, keys: frozenset[bytes], most: int) -> None:
        self._app, self._keys = app, keys
        self._most = dict.fromkeys((f"/v1/fleet/{path}" for path in PATHS), SMALL) | {"/v1/fleet/push-object": most}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI app."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] not in self._most:
            await _answer(send, 404)
        else:
            headers = dict(scope["headers"])
            key, most = headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), b""), self._most[scope["path"]]
            if self._keys and key not in self._keys:
                await _answer(send, 401)
            elif int(headers.get(b"content-length", b"0")) > most:
                await _answer(send, 413)
            else:
                CALLER.set(key)
                await self._limited(most, scope, receive, send)

    async def _limited(self, most: int, scope: Any, receive: Any, send: Any) -> None:
        """The app, which hears no more than so many bytes: a request need not say how long it is."""
        read, begun = 0, False

        async def some() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            return message if read <= most else {"type": "http.disconnect"}

        async def say(message: Any) -> None:
            nonlocal begun
            if read <= most:
                begun = True
                await send(message)

        try:
            await self._app(scope, some, say)
        except ClientDisconnect:
            if read <= most:
                raise
        if read > most and not begun:
            await _answer(send, 413)


async def _answer(send: Any, status: int) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")] * (status == 413)}
    )
    await send({"type": "http.response.body", "body": b""})
