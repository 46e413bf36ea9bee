"""`Link`: one connected socket, with TLS or without, read and written in pieces.

TLS is the library's; its bytes go through memory, so what was read ahead can be given to it and
both directions of a socket are served by whoever has time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from kaged.cage.net.relay import close_socket

READ_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024


class Link:
    """A stream of bytes with one other side. Owns its socket."""

    def __init__(self, sock: socket.socket, first: bytes = b"") -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._first = first
        self._tls: ssl.SSLObject | None = None
        self._inward = ssl.MemoryBIO()
        self._outward = ssl.MemoryBIO()
        self._writing = asyncio.Lock()
        self._ended = False
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def protocol(self) -> str:
        """The protocol that TLS agreed on, or empty."""
        return (self._tls.selected_alpn_protocol() or "") if self._tls is not None else ""

    async def peek(self) -> bytes:
        """Return what the other side said first without taking it; empty when it said nothing."""
        if not self._first:
            self._first = await self._receive()
        return self._first

    async def start_tls(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """Agree on TLS: as the client of `server_name`, or as the server.

        Raises:
            ssl.SSLError: it failed; OSError: the connection did.
        """
        self._tls = context.wrap_bio(
            self._inward,
            self._outward,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # the alert that tells the other side
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        """Return what came next, empty at the end. Raises OSError when the connection broke."""
        while True:
            data = self._take()
            if data is not None:
                return data
            if self._outward.pending:
                await self._flush()
            await self._fill()

    def stale(self) -> bool:
        """Return whether the other side has ended, or said something, while nothing was asked."""
        try:
            while True:
                data = self._sock.recv(READ_BYTES)
                if not data:
                    return True
                self.bytes_in += len(data)
                if self._tls is None:
                    return True
                self._inward.write(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return True
        try:
            return self._tls is not None and self._take() is not None
        except OSError:
            return True

    async def write(self, data: bytes) -> None:
        """Send all of this. Raises OSError when the connection broke."""
        if self._tls is None:
            async with self._writing:
                self.bytes_out += len(data)
                await self._loop.sock_sendall(self._sock, data)
            return
        view = memoryview(data)
        async with self._writing:
            # Piece by piece, or what is sealed would be held as a whole a second time.
            for start in range(0, len(view), READ_BYTES):
                self._tls.write(view[start : start + READ_BYTES])
                await self._send()

    async def finish(self) -> None:
        """End this direction, as TLS and TCP do."""
        try:
            if self._tls is not None:
                # The other side has not answered yet, and need not.
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._flush()
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def abort(self) -> None:
        """End both directions at once; whoever reads learns it and closes."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self, *, broken: bool = False) -> None:
        """Close the socket; `broken` tells the other side that something was cut off."""
        close_socket(self._sock, broken=broken)

    def _take(self) -> bytes | None:
        """Return decrypted data that is here, empty at the end, None when there is none yet."""
        if self._tls is None:
            if self._first:
                data, self._first = self._first, b""
                return data
            return b"" if self._ended else None
        pieces: list[bytes] = []
        size = 0
        while size < READ_BYTES:
            try:
                piece = self._tls.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                piece = b""
            if not piece:
                self._ended = True
                break
            pieces.append(piece)
            size += len(piece)
        if pieces:
            return b"".join(pieces)
        return b"" if self._ended else None

    async def _fill(self) -> None:
        data = self._first or await self._receive()
        if self._tls is None:
            self._first = data
            self._ended = not data
        else:
            self._first = b""
            if data:
                self._inward.write(data)
            else:
                self._inward.write_eof()

    async def _receive(self) -> bytes:
        data = await self._loop.sock_recv(self._sock, READ_BYTES)
        self.bytes_in += len(data)
        return data

    async def _flush(self) -> None:
        async with self._writing:
            await self._send()

    async def _send(self) -> None:
        data = self._outward.read()
        if data:
            self.bytes_out += len(data)
            await self._loop.sock_sendall(self._sock, data)
