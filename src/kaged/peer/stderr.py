"""`StderrTail`: a peer's stderr, line by line, with the last lines kept for a post-mortem."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kaged.base import Clock, SystemClock

TAIL_LINES = 50  # PH-SUP-19
LINE_LIMIT_BYTES = 8 * 1024
LINES_AT_ONCE = 100  # to the log, before others have their turn
LINES_PER_S = 2000  # to the log; a peer that writes more gets a line that says how many are missing


class StderrTail(asyncio.Protocol):
    """Drains stderr for ever so that a chatty peer never blocks on a full pipe (PH-WIRE-11).

    Each line goes to `on_line` as text; bytes that are no UTF-8 are escaped and a line longer than
    8 KiB is cut into pieces, so that neither can hurt a log. Nothing here is ever parsed. Of a
    flood, only so many lines per second go to `on_line`, and then how many did not; the tail has
    the last ones all the same.
    """

    def __init__(self, on_line: Callable[[str], None], clock: Clock | None = None) -> None:
        self._on_line = on_line
        self._clock = clock or SystemClock()
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._window_start_s = self._clock.monotonic_s()
        self._told = 0
        self._left_out = 0
        self._for_log: deque[str] = deque()
        self._telling = False
        self._over = False
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
        *whole, rest = (self._rest + data).split(b"\n")
        if whole and max(map(len, whole)) > LINE_LIMIT_BYTES:
            lines = [piece for line in whole for piece in _pieces(line)]
        else:
            lines = whole
        while len(rest) >= LINE_LIMIT_BYTES:
            lines.append(rest[:LINE_LIMIT_BYTES])
            rest = rest[LINE_LIMIT_BYTES:]
        self._rest = rest
        if lines:
            self._take(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the stream; an unfinished last line counts."""
        if self._rest:
            self._take([self._rest])
            self._rest = b""
        self._tell_left_out()
        self._over = True
        if not self._telling:
            self._tell()

    def _take(self, lines: list[bytes]) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._window_start_s >= 1.0:
            self._tell_left_out()
            self._window_start_s, self._told = now_s, 0
        told = lines[: LINES_PER_S - self._told]
        self._told += len(told)
        self._left_out += len(lines) - len(told)
        self._for_log.extend(_text(line) for line in told)
        if not self._telling:
            self._tell()
        self._tail.extend(_text(line) for line in lines[-TAIL_LINES:])

    def _tell_left_out(self) -> None:
        if self._left_out:
            said = f"[{self._left_out} lines left out: more than {LINES_PER_S} in a second]"
            self._for_log.append(said)
            self._left_out = 0

    def _tell(self) -> None:
        for _ in range(min(LINES_AT_ONCE, len(self._for_log))):
            self._on_line(self._for_log.popleft())
        self._telling = bool(self._for_log)
        if self._telling:
            asyncio.get_running_loop().call_soon(self._tell)
        elif self._over and not self._ended.done():
            self._ended.set_result(None)


def _pieces(line: bytes) -> list[bytes]:
    if not line:
        return [line]
    return [line[at : at + LINE_LIMIT_BYTES] for at in range(0, len(line), LINE_LIMIT_BYTES)]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
