"""Who is on the other end: `PeerConnection`, found once per connection and kept for its requests.

Also the place where a connection is stopped before it costs anything: more of them than its peer's
budget holds, a request head that is too large or never ends, bytes that are not HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Literal

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from kaged.base.lazy_dataclass import dataclass
from kaged.serve.http.connection_budget import ConnectionBudgets, ConnectionSlot, Peer

MAX_HEAD_BYTES = 32 * 1024
HEAD_TIMEOUT_S = 5.0
LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
MAX_LINGERING = 64
STATE_KEY = "connection"

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """Facts about one connection that the peer cannot make up.

    `uid` and `pid` are the kernel's word for the other end of a Unix socket and None for TCP;
    `address` is the other end's address for TCP and None for Unix. `abort` drops the connection at
    once, without waiting for a peer that does not read; `closing` tells whether it has ended or is
    about to. `slot` is its place in the budget of its
    peer, None for a connection that was turned away.
    """

    kind: Literal["unix", "tcp"]
    uid: int | None = None
    pid: int | None = None
    address: str | None = None
    abort: Callable[[], None] = lambda: None
    closing: Callable[[], bool] = lambda: False
    slot: ConnectionSlot | None = None

    @property
    def peer(self) -> Peer:
        """Whose budget it counts in."""
        return self.uid if self.kind == "unix" else "tcp"

    def vouch(self) -> None:
        """Note that a request on it was let in."""
        if self.slot is not None:
            self.slot.vouch()


class CountedConnections(ServerState):
    """uvicorn's state of one server, with the budgets that its connections count in."""

    def __init__(self, budgets: ConnectionBudgets | None = None) -> None:
        super().__init__()
        self.budgets = budgets or ConnectionBudgets(os.getuid())
        self.lingering = 0


def peer_of(transport: asyncio.WriteTransport) -> PeerConnection:
    """Find out who is on the other end of `transport`.

    A socket whose credentials cannot be read gives a Unix peer without a uid, which no rule lets
    in.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            pid, uid, _gid = _UCRED.unpack(raw)
        except (OSError, struct.error):
            uid = pid = None
        return PeerConnection("unix", uid, pid, None, transport.abort, transport.is_closing)
    peername = transport.get_extra_info("peername")
    address = str(peername[0]) if isinstance(peername, tuple) and peername else None
    return PeerConnection("tcp", None, None, address, transport.abort, transport.is_closing)


class KagedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast HTTP protocol plus peer facts, a bounded head and the one error shape.

    The facts travel in `scope["state"]`; on an upgrade uvicorn hands the same state to the
    WebSocket protocol, so both kinds of request carry them.
    """

    def __init__(
        self,
        config: Config,
        server_state: CountedConnections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._counted = server_state
        self._slot: ConnectionSlot | None = None
        self._in_head = True
        self._heads = 0
        self._head_bytes = 0
        self._refused = False
        self._thrown_away = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Called when a peer connected; refused when the peer's budget has no place."""
        super().connection_made(transport)
        connection = peer_of(transport)
        budgets = self._counted.budgets
        self._slot = budgets.admit(connection.peer, transport.abort)
        self.app_state = {**self.app_state, STATE_KEY: replace(connection, slot=self._slot)}
        if self._slot is not None:
            self._await_head()
        elif self._counted.lingering >= MAX_LINGERING:
            # Even turning away politely has its price.
            self._refused = True
            transport.abort()
        else:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_connections",
                f"The daemon serves {budgets.limit_of(connection.peer)} connections of yours "
                "at a time.",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers with the connection, and give its place back."""
        self._head_arrived()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._counted.lingering -= 1
        if self._slot is not None:
            self._slot.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what an unfinished head has cost so far."""
        if self._refused:
            self._thrown_away += len(data)
            if self._thrown_away > LINGER_BYTES:
                self.transport.abort()
            return
        if self._in_head and self._head_timer is None:
            self._await_head()
        heads, was_in_head = self._heads, self._in_head
        super().data_received(data)
        # A chunk in which a head ended is judged by that head's own size instead, and one in which
        # a body ended was no head, though one is expected after it.
        if was_in_head and self._in_head and self._heads == heads and not self._refused:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

    def on_headers_complete(self) -> None:
        """Start the request unless its head is too large."""
        self._in_head = False
        self._heads += 1
        self._head_bytes = 0
        self._head_arrived()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        if self._refused:
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body, unless the request was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head = True
        if self._refused:
            return
        super().on_message_complete()
        # There is no cycle yet when the first request is an upgrade.
        answered = getattr(self.cycle, "response_complete", False)
        if answered and self._head_timer is None:
            # Answered before the body was through: nothing else waits for what comes next.
            self._await_head()

    def handle_websocket_upgrade(self) -> None:
        """Switch protocols, unless the request was refused."""
        self._head_arrived()
        if not self._refused:
            super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP in the one error shape."""
        self._refuse(HTTPStatus.BAD_REQUEST, "invalid_request", msg)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_late(self) -> None:
        # When it is the loop that is late, the head may have arrived and not been read: timers
        # come before sockets. So it has one more look at the socket.
        self._head_timer = self.loop.call_later(0, self._head_timed_out)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT,
            "request_timeout",
            f"The request head did not arrive within {HEAD_TIMEOUT_S:.0f} seconds.",
        )

    def _refuse_head(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers_too_large",
            f"Address and headers together may have {MAX_HEAD_BYTES} bytes.",
        )

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Answer outside the application, which never hears of this request, and hang up."""
        self._refused = True
        self._head_arrived()
        if self.transport.is_closing():
            return
        body = json.dumps(
            {"error": {"code": code, "message": message, "data": {}, "request_id": None}}
        ).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "cache-control: no-store\r\n"
            "connection: close\r\n\r\n"
        ).encode("ascii")
        self.transport.write(head + body)
        # Closing at once would reset the connection while the peer still sends, and the answer
        # with it: say that we are done, then throw away what comes for a moment.
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._counted.lingering += 1
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)


class KagedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which gives the connection's place back at its end.

    The HTTP protocol that counted the connection does not hear of its end after an upgrade. A
    client that leaves before its stream begins is not reported as a fault of the application.
    """

    async def run_asgi(self) -> None:
        """Run the application for this stream."""
        app = self.app

        async def run(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if self.transport.is_closing():
                raise ClientDisconnected  # uvicorn's own word for it: there is nobody to answer

        self.app = run
        await super().run_asgi()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection ended; frees its place."""
        connection = self.app_state.get(STATE_KEY)
        if isinstance(connection, PeerConnection) and connection.slot is not None:
            connection.slot.release()
        super().connection_lost(exc)


async def accept(websocket: WebSocket) -> bool:
    """Accept a stream; False when the client has hung up meanwhile, which is no error."""
    try:
        await websocket.accept()
    except (OSError, WebSocketDisconnect):
        return False
    return True
