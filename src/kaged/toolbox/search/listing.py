"""The newest of many files: looked up, tested against the cage and sorted, in a thread."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.base.realpath import real_path
from kaged.toolbox.search.place import Sight
from kaged.workspace.path import is_inside

MAX_LINK_DIRECTORIES: Final = 256
"""Links are looked for in so many directories, those nearest to the root first."""

_BATCH: Final = 1_024

Entry: TypeAlias = tuple[int, bytes]
"""The negative modification time of a file, and its path: the newest sorts first."""


class Newest:
    """Keeps the newest entries of a stream; equal times are ordered by path."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: list[Entry] = []
        self._oldest: Entry | None = None
        self.more = False
        self.total = 0

    def add(self, mtime_ns: int, path: bytes) -> None:
        """Take one file."""
        self.extend([(-mtime_ns, path)])

    @property
    def floor_ns(self) -> int | None:
        """The time before which no file can be among the newest any more; None: not known yet."""
        return None if self._oldest is None else -self._oldest[0]

    def extend(self, entries: Sequence[Entry]) -> None:
        """Take some files."""
        self.total += len(entries)
        if self._oldest is not None:
            newer = [entry for entry in entries if entry <= self._oldest]
            self.more = self.more or len(newer) < len(entries)
            entries = newer
        self._entries += entries
        if len(self._entries) >= _BATCH:
            self._prune()

    def paths(self) -> list[bytes]:
        """Return what is kept, newest first."""
        self._prune()
        return [path for _, path in self._entries]

    def _prune(self) -> None:
        # Sorted in small pieces: one sort of everything would hold up the whole process.
        self._entries.sort()
        if len(self._entries) > self._limit:
            self.more = True
            del self._entries[self._limit :]
            self._oldest = self._entries[-1]


@dataclass(slots=True)
class Listing:
    """The files a caller may read, and those it may only know of."""

    inside: Newest
    outside: Newest
    omit_outside: bool = False

    def take(self, paths: list[bytes], root: str, sight: Sight) -> None:
        """Look up files below a directory and take them."""
        if not sight.limited:
            found, older = look_up(paths, root, self.inside.floor_ns)
            self.inside.more = self.inside.more or older > 0
            self.inside.total += older
            self.inside.extend(found)
            return
        for negative, path in look_up(paths, root)[0]:
            self._place(-negative, path, inside=sight.readable(path))

    def take_links(self, paths: Iterable[bytes], root: str, sight: Sight) -> None:
        """Look up links to regular files; only what stays in the project exists for a caller."""
        for path in paths:
            written = sight.resolved(path)
            try:
                target = real_path(written)
            except OSError:
                continue  # it is being swapped: it exists for nobody at this moment
            if not Path(written).is_symlink() or not is_inside(root, target):
                continue
            try:
                info = Path(target).lstat()
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode):
                inside = sight.readable(path) and sight.reaches(target)
                self._place(info.st_mtime_ns, path, inside=inside)

    def _place(self, mtime_ns: int, path: bytes, *, inside: bool) -> None:
        if inside:
            self.inside.add(mtime_ns, path)
        elif not self.omit_outside:
            self.outside.add(mtime_ns, path)


def look_up(paths: list[bytes], root: str, floor_ns: int | None = None) -> tuple[list[Entry], int]:
    """Look up regular files; what is gone or something else by now is left out.

    Files older than `floor_ns` are not given, only how many there were.
    """
    # The busiest lines of a listing: one system call and as little as possible around it.
    top = os.fsencode(root) + b"/"
    lstat, is_file = os.lstat, stat.S_ISREG
    floor = -(2**63) if floor_ns is None else floor_ns
    found: list[Entry] = []
    older = 0
    for path in paths:
        try:
            info = lstat(top + path)
        except OSError:
            continue
        if not is_file(info.st_mode):
            continue
        changed_ns = info.st_mtime_ns
        if changed_ns < floor:
            older += 1
        else:
            found.append((-changed_ns, path))
    return found, older


def find_link_directories(directories: Iterable[bytes], root: str) -> list[bytes]:
    """Return the directories that hold links."""
    nearest = sorted(directories, key=lambda path: (path.count(b"/"), path))
    top = os.fsencode(root) + b"/"
    found: list[bytes] = []
    for place in nearest[:MAX_LINK_DIRECTORIES]:
        try:
            with os.scandir(top + place) as entries:
                if any(entry.is_symlink() for entry in entries):
                    found.append(place)
        except OSError:
            continue
    return found
