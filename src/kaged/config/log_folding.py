"""`LogFolding`: no guest writes the log full, or pushes the lines of others out of it.

The log's files are bounded as a whole. Of that room each guest has a share for each kind of line
that it causes; what goes beyond it is left out, and the next line that fits says how many were.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kaged.base import Clock
from kaged.base.log import load_structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

BURST_BYTES: Final = 256 * 1024
BYTES_PER_S: Final = 2 * 1024
MAX_SHARES: Final = 1024
MAX_VALUE_BYTES: Final = 4000
"""A longer value is cut before it is written."""
_LINE_BYTES: Final = 150
_GUESTS: Final = (
    "plugin", "script", "server", "provider", "sidecar", "language", "session_id",
)  # fmt: skip


class _Share:
    __slots__ = ("at_s", "left_out", "room")

    def __init__(self, at_s: float) -> None:
        self.room = float(BURST_BYTES)
        self.at_s = at_s
        self.left_out = 0


class LogFolding:
    """A processor of log lines that leaves out what a guest causes beyond its share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shares: OrderedDict[tuple[str, str, str], _Share] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, _logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        """Return the line, or raise DropEvent when its guest has said enough."""
        named = next((name for name in _GUESTS if name in line), None)
        if named is None:
            return line
        size = _LINE_BYTES + sum(
            min(len(one), MAX_VALUE_BYTES) for one in line.values() if isinstance(one, str)
        )
        with self._lock:
            share = self._share((named, str(line[named])[:200], str(line.get("event"))[:200]))
            if share.room < size:
                share.left_out += 1
                raise load_structlog().DropEvent
            share.room -= size
            left_out, share.left_out = share.left_out, 0
        return {**line, "left_out": left_out} if left_out else line

    def _share(self, key: tuple[str, str, str]) -> _Share:
        now_s = self._clock.monotonic_s()
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share(now_s)
            if len(self._shares) > MAX_SHARES:
                self._shares.popitem(last=False)
        self._shares.move_to_end(key)
        share.room = min(share.room + (now_s - share.at_s) * BYTES_PER_S, float(BURST_BYTES))
        share.at_s = now_s
        return share
