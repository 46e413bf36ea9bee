"""Readers of ripgrep's output: hits, counts and paths, as bytes, from pieces cut anywhere.

A path may hold any byte but NUL; everything is read up to the NUL behind it, never by lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

LONG_LINE_BYTES: Final = 64 * 1024
WINDOW_BEFORE_BYTES: Final = 600
WINDOW_BYTES: Final = 8_400
"""What is kept of a longer line: enough bytes around the match for 2,000 characters of any kind."""

_BINARY: Final = re.compile(
    rb"(?P<path>[^\n]*): (?:WARNING: stopped searching binary file after match|binary file matches)"
    rb' \(found "[^"\n]*" byte around offset \d+\)\n'
)

_PIECE: Final = 1024

Keep = Callable[[bytes], bool]
"""Says whether a path counts."""
Sieve = Callable[[list[bytes]], list[bytes]]
"""Gives those of some paths that count; for tens of thousands of them one call each is too many."""


class RawHit(NamedTuple):
    """One matching line. `column` counts bytes from 1; `cut` when `text` is a piece of the line."""

    path: bytes
    line: int
    column: int
    text: bytes
    cut: bool = False


class RawCount(NamedTuple):
    """How many lines of a file match; 1 where nobody counted."""

    path: bytes
    lines: int


class HitReader:
    """Reads `path NUL line : column : text LF` records."""

    def __init__(self, max_hits: int, keep: Keep | None = None) -> None:
        self.hits: list[RawHit] = []
        self.capped = False
        self.binary: set[bytes] = set()
        self._max_hits = max_hits
        self._keep = keep
        self._known: tuple[bytes, bool] = (b"", True)
        self._rest = b""
        self._long: _LongLine | None = None

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True when there are more hits than may be kept."""
        if self._long is not None:
            rest = self._through_long_line(data)
            if rest is None or self.capped:
                return self.capped
            data = rest
        data = self._rest + data if self._rest else data
        start = 0
        find = data.find
        while True:
            nul = find(b"\0", start)
            end = find(b"\n", nul + 1) if nul >= 0 else -1
            if end < 0:
                break
            colon = find(b":", nul + 1)
            second = find(b":", colon + 1)
            if not self._add(
                data[start:nul],
                int(data[nul + 1 : colon]),
                int(data[colon + 1 : second]),
                data[second + 1 : end],
            ):
                return True
            start = end + 1
        self._rest = data[start:]
        if len(self._rest) > LONG_LINE_BYTES:
            self._begin_long_line()
        return False

    def finish(self) -> list[RawHit]:
        """Return the hits without those of files that turned out to be binary."""
        for found in _BINARY.finditer(self._rest):
            self.binary.add(found["path"])
        if self.binary:
            return [hit for hit in self.hits if hit.path not in self.binary]
        return self.hits

    def _add(self, path: bytes, line: int, column: int, text: bytes, cut: bool = False) -> bool:
        if b"\n" in path:
            path = self._without_notes(path)
        if self._keep is not None:
            if path != self._known[0]:
                self._known = (path, self._keep(path))
            if not self._known[1]:
                return True
        if len(self.hits) >= self._max_hits:
            self.capped = True
            return False
        self.hits.append(RawHit(path, line, column, text, cut))
        return True

    def _without_notes(self, path: bytes) -> bytes:
        # ripgrep's remark on a binary file stands in front of the next record, as part of its path.
        while (found := _BINARY.match(path)) is not None:
            self.binary.add(found["path"])
            path = path[found.end() :]
        return path

    def _begin_long_line(self) -> None:
        path, nul, record = self._rest.partition(b"\0")
        head = record.split(b":", 2)
        if not nul or len(head) < 3:
            return
        self._long = _LongLine(path, int(head[0]), int(head[1]))
        self._long.take(head[2])
        self._rest = b""

    def _through_long_line(self, data: bytes) -> bytes | None:
        assert self._long is not None
        text, newline, rest = data.partition(b"\n")
        self._long.take(text)
        if not newline:
            return None
        done, self._long = self._long, None
        front = "…".encode() if done.start else b""
        column = done.column - done.start + len(front)
        self._add(done.path, done.line, column, front + done.kept, cut=True)
        return rest


class _LongLine:
    """A line too long to keep: what is around its match is taken as it goes by."""

    def __init__(self, path: bytes, line: int, column: int) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.start = max(0, column - 1 - WINDOW_BEFORE_BYTES)
        self.kept = bytearray()
        self._seen = 0

    def take(self, data: bytes) -> None:
        begin = max(0, self.start - self._seen)
        end = self.start + WINDOW_BYTES - self._seen
        if end > begin:
            self.kept += data[begin:end]
        self._seen += len(data)


class CountReader:
    """Reads `path NUL count LF` records (with `counted`), or `path NUL` records.

    Counts all entries and keeps those that come first by path; `dropped` when there are more.
    """

    def __init__(self, limit: int, keep: Keep | None = None, *, counted: bool) -> None:
        self.total = 0
        self._counted = counted
        self._keep = keep
        self.dropped = False
        self._entries: list[RawCount] = []
        self._limit = limit
        self._last: RawCount | None = None
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; there is never enough."""
        data = self._rest + data if self._rest else data
        start = 0
        while (nul := data.find(b"\0", start)) >= 0:
            path = data[start:nul]
            count, end = 1, nul
            if self._counted:
                end = data.find(b"\n", nul + 1)
                if end < 0:
                    break
                count = int(data[nul + 1 : end])
            if self._keep is None or self._keep(path):
                self.total += count
                self._add(RawCount(path, count))
            start = end + 1
        self._rest = data[start:]
        return False

    def finish(self) -> list[RawCount]:
        """Return the entries that come first by path."""
        return self._entries

    def _add(self, entry: RawCount) -> None:
        if self._last is not None and entry > self._last:
            self.dropped = True
            return
        self._entries.append(entry)
        if len(self._entries) >= self._limit + _PIECE:
            # In small pieces: what is sorted already sorts quickly.
            self._entries.sort()
            del self._entries[self._limit :]
            self._last = self._entries[-1]
            self.dropped = True


class PathReader:
    """Reads `path NUL` records, up to a limit."""

    def __init__(self, limit: int, sieve: Sieve | None = None) -> None:
        self.paths: list[bytes] = []
        self.capped = False
        self._limit = limit
        self._sieve = sieve
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True when there are more paths than may be kept."""
        pieces = (self._rest + data if self._rest else data).split(b"\0")
        self._rest = pieces.pop()
        self.paths += pieces if self._sieve is None else self._sieve(pieces)
        if len(self.paths) > self._limit:
            del self.paths[self._limit :]
            self.capped = True
        return self.capped
