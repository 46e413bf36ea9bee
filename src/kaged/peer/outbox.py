"""`Outbox`: what we write to a peer, in order, bounded, and in few pieces when there is much."""

from __future__ import annotations

import asyncio

# What is gathered leaves in pieces of this size, so that the peer works on the first ones while
# the next are made.
PIECE_BYTES = 4 * 1024


class Outbox:
    """The way to a peer's input. Lines leave in the order they are given.

    A line that is `alone` leaves at once. Otherwise the lines of one turn of the loop leave
    together: a hundred calls are then one write, which the peer reads in one piece.
    """

    __slots__ = ("_gathered", "_gathered_bytes", "_limit", "_loop", "_transport")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport, limit_bytes: int
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._limit = limit_bytes
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Count what the peer has not read yet, as far as it is held here."""
        return self._gathered_bytes + self._transport.get_write_buffer_size()

    @property
    def is_open(self) -> bool:
        """Whether the peer's input is still there."""
        return not self._transport.is_closing()

    def put(self, line: bytes, *, alone: bool) -> bool:
        """Write a line; False, and nothing written, when too much waits already."""
        transport = self._transport
        size = len(line)
        if self._gathered_bytes + transport.get_write_buffer_size() + size > self._limit:
            return False
        gathered = self._gathered
        if gathered:
            gathered.append(line)
            self._gathered_bytes += size
            if alone or self._gathered_bytes > PIECE_BYTES:
                self.flush()
        elif alone:
            transport.write(line)
        else:
            gathered.append(line)
            self._gathered_bytes = size
            self._loop.call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Hand over what was gathered."""
        if self._gathered:
            lines, self._gathered = self._gathered, []
            self._gathered_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(b"".join(lines))

    def close(self) -> None:
        """Hand over what was gathered and close the peer's input behind it."""
        self.flush()
        self._transport.close()
