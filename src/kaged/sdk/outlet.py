"""`Outlet`: the way out for lines, in order, from any thread, few writes for many answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

PIECE_BYTES = 1024


class Outlet:
    """Writes lines in the order they are given. Make it on the event loop.

    With `alone` a line leaves at once. Otherwise the lines of one turn of the loop leave together:
    a hundred answers are then one write, and the host reads them as one. Lines of other threads
    always leave at once, behind whatever was gathered before them.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._write = write
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._held: list[bytes] | None = []  # None once the handshake is complete

    def put(self, line: bytes, *, alone: bool) -> None:
        """Write a line that is due in any phase of the conversation."""
        with self._lock:
            self._put(line, alone=alone)

    def put_when_ready(self, line: bytes, *, alone: bool) -> None:
        """Write a line that must not leave before the handshake is complete."""
        with self._lock:
            if self._held is None:
                self._put(line, alone=alone)
            else:
                self._held.append(line)

    def open(self, *, send_held: bool = True) -> None:
        """Hold nothing back any more; what was held leaves now, or never."""
        with self._lock:
            held, self._held = self._held, None
            if held and send_held:
                self._gathered += held
                self._flush()

    def flush(self) -> None:
        """Write what was gathered."""
        with self._lock:
            self._flush()

    def _put(self, line: bytes, *, alone: bool) -> None:
        gathered = self._gathered
        if alone or threading.get_ident() != self._thread:
            if not gathered:
                self._write(line)
                return
            gathered.append(line)
            self._flush()
            return
        if not gathered:
            self._loop.call_soon(self.flush)
        gathered.append(line)
        self._gathered_bytes += len(line)
        if self._gathered_bytes > PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered = []
            self._gathered_bytes = 0
            self._write(b"".join(gathered))
