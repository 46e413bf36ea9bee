"""`FolderPoll`: what changed in folders that the kernel does not watch, found by comparing."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from kaged.toolbox.lsp.languages import Languages

CREATED, CHANGED, DELETED = 1, 2, 3  # FileChangeType of the protocol
MAX_FOLDERS: Final = 4096
MAX_FILES: Final = 40_000

_Mark: TypeAlias = tuple[int, int, int, int]
"""A file's number, size, and when its content and its inode changed last."""

_FOLDER: Final[_Mark] = (0, 0, 0, 0)
_KNOWN: Final[_Mark] = (-1, 0, 0, 0)
"""In place of a file's mark: whatever it is at the next look, servers have heard of it."""


class FolderPoll:
    """Source files of some folders as they were when they were last looked at.

    Asked before each question and never in between, so that it costs nothing while nobody asks.
    What is beyond the limits is not heard of.
    """

    def __init__(self, languages: Languages, skips: Callable[[str], bool]) -> None:
        self._languages = languages
        self._skips = skips
        self._folders: dict[str, dict[str, _Mark]] = {}
        self._files = 0  # about how many marks there are
        self._new: deque[str] = deque()
        self._lock = threading.Lock()

    def add(self, folder: str) -> None:
        """Look at a folder from now on, but not below it. Blocks on the disk."""
        with self._lock:
            if self._has_room():
                found = self._folders[folder] = self._look(folder) or {}
                self._files += len(found)

    def add_new(self, folder: str) -> None:
        """Look at a folder that has just appeared: all that is in it is new."""
        self._new.append(folder)

    def changes(self) -> list[tuple[str, int]]:
        """Return what changed since the last time: paths and kinds. Blocks on the disk."""
        found: list[tuple[str, int]] = []
        with self._lock:
            left = list(self._folders)
            while self._new:
                left.append(self._new.popleft())
            while left:
                folder = left.pop()
                known = folder in self._folders
                before = self._folders.pop(folder, {})
                now = self._look(folder) if known or self._has_room() else None
                if now is not None:
                    self._folders[folder] = now
                self._files += len(now or ()) - len(before)
                left += _compare(before, now or {}, found)
        return found

    def forget(self, path: str) -> None:
        """Leave a file out of the next comparison: a tool has changed it, and servers know."""
        known = self._folders.get(path.rpartition("/")[0])
        if known is not None:
            self._files += path not in known
            known[path] = _KNOWN

    def close(self) -> None:
        """Look at nothing any more."""
        self._folders = {}

    # -- own -------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return len(self._folders) < MAX_FOLDERS and self._files < MAX_FILES

    def _look(self, folder: str) -> dict[str, _Mark] | None:
        """Return the marks of what is in a folder; None when it cannot be listed."""
        marks: dict[str, _Mark] = {}
        try:
            with os.scandir(folder) as entries:
                for one in entries:
                    if one.is_dir(follow_symlinks=False):
                        if not self._skips(one.name):
                            marks[one.path] = _FOLDER
                    elif self._languages.of(one.name) is not None:
                        _mark(one, marks)
        except OSError:
            return None
        return marks


def _mark(entry: os.DirEntry[str], marks: dict[str, _Mark]) -> None:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return  # gone since it was listed
    marks[entry.path] = (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _compare(
    before: dict[str, _Mark], now: dict[str, _Mark], found: list[tuple[str, int]]
) -> list[str]:
    """Add what differs to `found`; returns the folders that are new."""
    new: list[str] = []
    for path, mark in now.items():
        known = before.get(path)
        if mark == _FOLDER:
            if known != _FOLDER:
                new.append(path)
        elif known is None:
            found.append((path, CREATED))
        elif known not in (mark, _KNOWN):
            found.append((path, CHANGED))
    found += [
        (path, DELETED)
        for path, mark in before.items()
        if path not in now and mark not in (_FOLDER, _KNOWN)
    ]
    return new
