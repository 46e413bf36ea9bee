"""Who is on the other end: `PeerConnection`, found once per connection and kept for its requests.

Also the place where a connection is stopped before it costs anything: too many of them, a request
head that is too large or never ends, bytes that are not HTTP.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 256
MAX_HEAD_BYTES = 32 * 1024
HEAD_TIMEOUT_S = 15.0
LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
STATE_KEY = "connection"

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """Facts about one connection that the peer cannot make up.

    `uid` and `pid` are the kernel's word for the other end of a Unix socket and None for TCP;
    `address` is the other end's address for TCP and None for Unix. `abort` drops the connection at
    once, without waiting for a peer that does not read.
    """

    kind: Literal["unix", "tcp"]
    uid: int | None = None
    pid: int | None = None
    address: str | None = None
    abort: Callable[[], None] = lambda: None


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
            return PeerConnection("unix", abort=transport.abort)
        return PeerConnection("unix", uid=uid, pid=pid, abort=transport.abort)
    peername = transport.get_extra_info("peername")
    address = str(peername[0]) if isinstance(peername, tuple) and peername else None
    return PeerConnection("tcp", address=address, abort=transport.abort)


class KagedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast HTTP protocol plus peer facts, a bounded head and the one error shape.

    The facts travel in `scope["state"]`; on an upgrade uvicorn hands the same state to the
    WebSocket protocol, so both kinds of request carry them.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = True
        self._heads = 0
        self._head_bytes = 0
        self._refused = False
        self._thrown_away = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Called when a peer connected; the connection is refused when there are too many."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, STATE_KEY: peer_of(transport)}
        if len(self.connections) > 2 * MAX_CONNECTIONS:
            # Even turning away politely has its price.
            self._refused = True
            transport.abort()
            return
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_connections",
                f"The daemon serves {MAX_CONNECTIONS} connections at a time.",
            )
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers with the connection."""
        self._head_arrived()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
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
        heads = self._heads
        super().data_received(data)
        # A chunk in which a head ended is judged by that head's own size instead.
        if self._in_head and self._heads == heads and not self._refused:
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
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

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
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)
