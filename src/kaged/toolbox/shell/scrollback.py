"""`Scrollback`: what a terminal showed, bounded, and made readable for a model."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

OUTPUT_LIMIT_BYTES: Final = 1_048_576  # AT-SHELL-14
TAIL_BYTES: Final = 8_192
CUT_MARK: Final = "\n[output truncated — 1 MB limit]"
_KB: Final = 1024

# CSI and OSC sequences, and the two-byte escapes: colours, cursor moves, window titles.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_])"
)


class Scrollback:
    """Keeps the first megabyte, or what is set, of a terminal's output and then its last lines.

    The rest is read and dropped, so that a flood costs no memory and never blocks the command.
    """

    __slots__ = ("_head", "_held", "_limit", "_tail", "_tail_bytes", "seen_bytes")

    def __init__(self, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._head = bytearray()
        self._held = b""  # a carriage return whose line feed may come next
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.seen_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take what the terminal showed next; its CR LF line ends count and are kept as LF."""
        data = (self._held + data).replace(b"\r\n", b"\n")
        self._held = b"\r" if data.endswith(b"\r") else b""
        data = data.removesuffix(self._held)
        self.seen_bytes += len(data)
        room = self._limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-TAIL_BYTES:])
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether the command said more than was kept."""
        return self.seen_bytes > self._limit

    def text(self) -> str:
        """Return the output as text; a cut one ends with the mark."""
        return readable(bytes(self._head)) + (cut_mark(self._limit) if self.truncated else "")

    def tail(self) -> str:
        """Return the end of an output that was cut, where failures usually stand."""
        return readable(b"".join(self._tail)[-TAIL_BYTES:])


def cut_mark(limit_bytes: int) -> str:
    """Return what stands at the end of an output that was cut."""
    if limit_bytes == OUTPUT_LIMIT_BYTES:
        return CUT_MARK
    return f"\n[output truncated — {limit_bytes // _KB} KB limit]"


def readable(raw: bytes) -> str:
    """Decode terminal output: bad bytes replaced, no colours or cursor moves."""
    text = raw.decode("utf-8", errors="replace")
    return _ESCAPES.sub("", text) if "\x1b" in text else text
