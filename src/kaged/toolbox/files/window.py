"""`LineWindow`: some numbered lines out of a stream of bytes, in bounded memory.

Lines end with LF or CRLF; a final newline starts no further line. The whole stream is fed, because
its lines are counted, but only the lines asked for are kept, and of a long line only its beginning.
"""

from __future__ import annotations

from typing import Final

BOM: Final = b"\xef\xbb\xbf"
MAX_LINE_CHARS: Final = 2000  # AT-FILE-10
CUT_MARK: Final = "[truncated]"
MAX_CONTENT_CHARS: Final = 1024 * 1024
"""The most that one answer holds, however many lines were asked for."""

_KEPT_BYTES: Final = MAX_LINE_CHARS * 4 + 2
"""More bytes than this are more than 2000 characters in any case, so the rest is not needed."""


class LineWindow:
    """Collects `limit` lines from line `offset` on. Feed it everything, then call `finish`."""

    def __init__(self, offset: int, limit: int) -> None:
        self.offset = offset
        self.total_lines = 0
        self._left = limit
        self._skip = offset - 1
        self._texts: list[str] = []
        self._kept = 0
        self._partial: bytes | None = None
        self._fed = False
        self._ends_open = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes. A byte order mark is looked for in the first ones."""
        if not self._fed:
            self._fed = True
            chunk = chunk.removeprefix(BOM)
        if not chunk:
            return
        breaks = chunk.count(b"\n")
        self.total_lines += breaks
        self._ends_open = not chunk.endswith(b"\n")
        if self._skip:
            if breaks < self._skip:
                self._skip -= breaks
                return
            chunk = chunk.split(b"\n", self._skip)[-1]
            breaks -= self._skip
            self._skip = 0
        if self._left and self._kept <= MAX_CONTENT_CHARS:
            self._collect(chunk, breaks)

    def finish(self) -> None:
        """Called when everything was fed."""
        if self._ends_open:
            self.total_lines += 1
            if self._partial is not None:
                self._keep(self._partial, 1)
        self._partial = None

    def numbered(self) -> tuple[str, int]:
        """Return the lines as `N: text`, and the number of the first line that is left out."""
        lines = [f"{number}: {text}" for number, text in enumerate(self._texts, self.offset)]
        content = "\n".join(lines)
        if len(content) > MAX_CONTENT_CHARS:
            lines = _fitting(lines)
            content = "\n".join(lines)
        return content, self.offset + len(lines)

    def _collect(self, chunk: bytes, breaks: int) -> None:
        if self._partial is not None:
            head, found, chunk = chunk.partition(b"\n")
            self._partial += head[: _KEPT_BYTES - len(self._partial)]
            if not found:
                return
            breaks -= 1
            self._keep(self._partial, 1)
            self._partial = None
        if breaks > self._left:
            chunk = b"\n".join(chunk.split(b"\n", self._left)[:-1]) + b"\n"
            breaks = self._left
        block, found, rest = chunk.rpartition(b"\n")
        if found and self._left:
            self._keep(block, breaks)
        if self._left:
            self._partial = rest[:_KEPT_BYTES]

    def _keep(self, block: bytes, count: int) -> None:
        """Keep some whole lines; decoding them at once is faster than one by one."""
        self._left -= count
        # A broken character never swallows a newline, so lines stay lines.
        texts = block.decode("utf-8", "replace").split("\n")
        if b"\r" in block:
            texts = [text.removesuffix("\r") for text in texts]
        size = len(block)
        if max(map(len, texts)) > MAX_LINE_CHARS:
            texts = [
                text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + CUT_MARK
                for text in texts
            ]
            size = sum(map(len, texts))
        self._texts += texts
        self._kept += size


def _fitting(lines: list[str]) -> list[str]:
    size = 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_CONTENT_CHARS:
            return lines[: max(index, 1)]
    return lines
