"""`WebSocket`: the client's side of RFC 6455 with sockets alone: text messages, pings and the end.

One thread sends and receives; `close` may be called by another.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket

from kaged.sdk.http_client import Unreachable, connect

LIMIT_BYTES = 1024 * 1024
HEAD_BYTES = 20_000
QUIET_S = 30.0
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MORE, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA


class WebSocket:
    """One open connection."""

    def __init__(self, url: str, quiet_s: float = QUIET_S) -> None:
        """Connect and agree on the protocol. Raises Unreachable."""
        self._link, authority, target = connect(url, quiet_s)
        self._got = bytearray()
        try:
            self._agree(authority, target)
        except (OSError, ValueError) as error:
            self._link.close()
            raise Unreachable(f"{authority}: {error}") from None

    def _agree(self, authority: str, target: str) -> None:
        key = base64.b64encode(os.urandom(16))
        lines = (
            f"GET {target} HTTP/1.1", f"Host: {authority}", "Upgrade: websocket",
            "Connection: Upgrade", f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13", "", "",
        )  # fmt: skip
        self._link.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._got:
            if len(self._got) > HEAD_BYTES:
                raise ValueError("the answer's head is too large")
            self._read_more()
        head, _, rest = bytes(self._got).partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        found = {k.strip().lower(): v.strip() for k, _, v in (f.partition(b":") for f in fields)}
        made = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
        if first.split(b" ")[1:2] != [b"101"]:
            raise ValueError(f"no WebSocket: {first[:100].decode('latin-1')}")
        if found.get(b"sec-websocket-accept") != base64.b64encode(made):
            raise ValueError("the answer is to another handshake")
        self._got = bytearray(rest)

    def receive(self) -> str | None:
        """Return the next text message, or None when the other side ended. Raises Unreachable."""
        message = bytearray()
        try:
            while True:
                last, kind, data = self._frame()
                if kind == _CLOSE:
                    with contextlib.suppress(OSError):
                        self._send(_CLOSE, data[:2])
                    return None
                if kind == _PING:
                    self._send(_PONG, data)
                elif kind in (_TEXT, _MORE):
                    message += data
                    if len(message) > LIMIT_BYTES:
                        raise ValueError("a message is too large")
                    if last:
                        return message.decode()
                elif kind != _PONG:
                    raise ValueError(f"a frame of kind {kind}")
        except (OSError, ValueError) as error:
            raise Unreachable(f"the connection broke: {error}") from None

    def send(self, text: str) -> None:
        """Send a text message. Raises Unreachable."""
        try:
            self._send(_TEXT, text.encode())
        except OSError as error:
            raise Unreachable(f"the connection broke: {error}") from None

    def close(self) -> None:
        """End it; who waits in `receive` is woken."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _frame(self) -> tuple[bool, int, bytes]:
        self._need(2)
        first, size = self._got[0], self._got[1]
        if first & 0x70 or size & 0x80:
            raise ValueError("a frame that was not agreed on")
        start = {126: 4, 127: 10}.get(size, 2)
        self._need(start)
        if start > 2:
            size = int.from_bytes(self._got[2:start], "big")
        if size > LIMIT_BYTES:
            raise ValueError("a frame is too large")
        self._need(start + size)
        data = bytes(self._got[start : start + size])
        del self._got[: start + size]
        return bool(first & 0x80), first & 0x0F, data

    def _need(self, count: int) -> None:
        """Wait until so much is there. A connection that is quiet is asked once if it lives."""
        asked = False
        while len(self._got) < count:
            try:
                self._read_more()
            except TimeoutError:
                if asked:
                    raise
                asked = True
                self._send(_PING, b"")

    def _read_more(self) -> None:
        data = self._link.recv(65_536)
        if not data:
            raise ValueError("it ended without a word")
        self._got += data

    def _send(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        if size < 126:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 65_536:
            head = bytes((0x80 | kind, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0xFF)) + size.to_bytes(8, "big")
        veiled = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._link.sendall(head + mask + veiled)
