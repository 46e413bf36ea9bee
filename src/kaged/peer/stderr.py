"""`StderrTail`: a peer's stderr, line by line, with the last lines kept for a post-mortem."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

TAIL_LINES = 50  # PH-SUP-19
LINE_LIMIT_BYTES = 8 * 1024


class StderrTail(asyncio.Protocol):
    """Drains stderr for ever so that a chatty peer never blocks on a full pipe (PH-WIRE-11).

    Each line goes to `on_line` as text; bytes that are no UTF-8 are escaped and a line longer than
    8 KiB is cut into pieces, so that neither can hurt a log. Nothing here is ever parsed.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = bytearray()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def lines(self) -> list[str]:
        """The last fifty lines."""
        return list(self._tail)

    async def drained(self) -> None:
        """Wait until the stream has ended and everything in it was read."""
        await asyncio.shield(self._ended)

    def data_received(self, data: bytes) -> None:
        """Take what the peer wrote."""
        self._rest += data
        while True:
            end = self._rest.find(b"\n")
            if end < 0 and len(self._rest) < LINE_LIMIT_BYTES:
                return
            cut = end if 0 <= end <= LINE_LIMIT_BYTES else LINE_LIMIT_BYTES
            self._line(bytes(self._rest[:cut]))
            del self._rest[: cut + 1 if cut == end else cut]

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the stream; an unfinished last line counts."""
        if self._rest:
            self._line(bytes(self._rest))
            self._rest.clear()
        if not self._ended.done():
            self._ended.set_result(None)

    def _line(self, raw: bytes) -> None:
        line = raw.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        self._tail.append(line)
        self._on_line(line)


__all__ = ["LINE_LIMIT_BYTES", "TAIL_LINES", "StderrTail"]
