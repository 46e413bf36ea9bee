"""`ChangedReads`: which of the files that an agent has read are not what it read any more."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from kaged.base import KagedError
from kaged.base.file_stamp import Stamp, stamp_of
from kaged.base.lazy_dataclass import dataclass
from kaged.workspace.content import read_content
from kaged.workspace.errors import FileMissing
from kaged.workspace.guard import PathGuard

MAX_HASHED_BYTES: Final = 16 * 1024 * 1024
"""A larger file is never said to have changed: reading it at every step would cost too much."""

MAX_STAMPS: Final = 20_000


@dataclass(frozen=True, slots=True)
class ChangedRead:
    """A file, by its resolved path, that an agent knows in another state than the present one."""

    resolved: str
    gone: bool = False


class ChangedReads:
    """Compares what agents have read with the disk.

    What a file was when it was last compared is remembered by its stamp, so that as long as nobody
    touches it, asking costs one look at the inode.
    """

    def __init__(self, guard: PathGuard) -> None:
        self._guard = guard
        self._stamps: OrderedDict[str, tuple[Stamp, str]] = OrderedDict()
        self._lock = threading.Lock()

    def among(self, known: Iterable[tuple[str, str]]) -> list[ChangedRead]:
        """Return what has changed among resolved paths and the hashes that were read.

        Blocks on the disk. What cannot be looked at is left out: a guess would be noise.
        """
        found: list[ChangedRead] = []
        for resolved, sha256 in known:
            try:
                now = self._sha_of(resolved)
            except (FileMissing, FileNotFoundError, NotADirectoryError):
                found.append(ChangedRead(resolved, gone=True))
                continue
            except (KagedError, OSError):
                continue
            if now is not None and now != sha256:
                found.append(ChangedRead(resolved))
        return found

    def _sha_of(self, resolved: str) -> str | None:
        """Return the hash of a file as it is now; None for one that is too large."""
        info = os.lstat(resolved)
        if not stat.S_ISREG(info.st_mode):
            return ""  # something else is in its place
        stamp = stamp_of(info)
        with self._lock:
            before = self._stamps.get(resolved)
        if stamp is not None and before is not None and before[0] == stamp:
            return before[1]
        if info.st_size > MAX_HASHED_BYTES:
            return None
        path = self._guard.resolve(self._guard.relative_of(resolved))
        content = read_content(self._guard, path, MAX_HASHED_BYTES)
        if content.stamp is not None:
            with self._lock:
                self._stamps[resolved] = (content.stamp, content.sha256)
                self._stamps.move_to_end(resolved)
                if len(self._stamps) > MAX_STAMPS:
                    self._stamps.popitem(last=False)
        return content.sha256
