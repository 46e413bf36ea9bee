"""`Watch`: when somebody opens or closes a file, told by the kernel (inotify)."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Self

IN_CLOSE_NOWRITE = 0x10
IN_OPEN = 0x20
PATIENCE_S = 60.0

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches one file from the beginning of its `with` block on.

    `opened` and `closed` return as soon as somebody has opened the file, or has closed it after
    reading. With that a test acts while a daemon is at work on a file.
    """

    def __init__(self, path: Path) -> None:
        self._handle = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        assert self._handle >= 0, os.strerror(ctypes.get_errno())
        got = _libc.inotify_add_watch(self._handle, os.fsencode(path), IN_CLOSE_NOWRITE | IN_OPEN)
        assert got >= 0, os.strerror(ctypes.get_errno())
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)

    def opened(self) -> None:
        """Return as soon as it was opened."""
        self._until(IN_OPEN)

    def closed(self) -> None:
        """Return as soon as it was closed after reading."""
        self._until(IN_CLOSE_NOWRITE)

    def _until(self, wanted: int) -> None:
        while not self._seen & wanted:
            ready, _, _ = select.select([self._handle], [], [], PATIENCE_S)
            assert ready, "nobody touched the file"
            events = os.read(self._handle, 4096)
            at = 0
            while at < len(events):
                self._seen |= int.from_bytes(events[at + 4 : at + 8], "little")
                at += 16 + int.from_bytes(events[at + 12 : at + 16], "little")
