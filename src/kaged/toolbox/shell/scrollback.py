"""`Scrollback`: what a command wrote, bounded, and made readable for a model."""

from __future__ import annotations

import codecs
import re
from collections import deque
from typing import Final

OUTPUT_LIMIT_BYTES: Final = 1_048_576  # AT-SHELL-14
TAIL_BYTES: Final = 8_192
CUT_MARK: Final = "\n[output truncated — 1 MB limit]"
_KB: Final = 1024

_KEPT_END: Final = 2 * TAIL_BYTES + 1
"""So much of a flood's end holds a whole tail, however many of its bytes are line ends' CR."""

# CSI and OSC sequences, and the two-byte escapes: colours, cursor moves, window titles.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_CUT_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]{0,4096}\x1b?)?\Z")
_CONTINUES: Final = bytes(range(0x80, 0xC0))


class Scrollback:
    """Keeps the first megabyte, or what is set, of a command's output and then its last lines.

    The rest is read and dropped as it came, neither decoded nor searched, so that a flood costs no
    memory and never blocks the command. On a `terminal` CR LF line ends count and are kept as LF.
    """

    __slots__ = (
        "_end",
        "_end_bytes",
        "_head",
        "_held",
        "_limit",
        "_rest",
        "_terminal",
        "truncated",
    )

    def __init__(self, limit_bytes: int = OUTPUT_LIMIT_BYTES, *, terminal: bool = True) -> None:
        self._limit = limit_bytes
        self._terminal = terminal
        self._head = bytearray()
        self._held = b""  # a carriage return whose line feed may come next
        self._rest = b""  # what did not fit into the head of the read that filled it
        self._end: deque[bytes] = deque()  # of what came afterwards, with the terminal's line ends
        self._end_bytes = 0
        self.truncated = False
        """Whether the command said more than was kept."""

    def feed(self, data: bytes) -> None:
        """Take what the command wrote next."""
        if len(self._head) >= self._limit:
            self._drop(data)
            return
        if self._terminal:
            data = (self._held + data).replace(b"\r\n", b"\n")
            self._held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(self._held)
        room = self._limit - len(self._head)
        self._head += data[:room]
        if len(self._head) < self._limit:
            return
        self._rest = data[room:][-TAIL_BYTES:]
        self.truncated = bool(self._rest)
        self._drop(self._held)
        self._held = b""

    def _drop(self, data: bytes) -> None:
        if not data:
            return
        self.truncated = True
        self._end.append(data[-_KEPT_END:])
        self._end_bytes += len(self._end[-1])
        while self._end_bytes - len(self._end[0]) >= _KEPT_END:
            self._end_bytes -= len(self._end.popleft())

    def text(self) -> str:
        """Return the output as text; a cut one ends with the mark, after its last whole letter."""
        if not self.truncated:
            return readable(bytes(self._head) + self._held)
        kept, _ = codecs.utf_8_decode(self._head, "replace", False)  # its end may be half a letter
        return _CUT_ESCAPE.sub("", _unpainted(kept)) + cut_mark(self._limit)

    @property
    def size(self) -> int:
        """How many bytes of the output are kept from its beginning on."""
        return len(self._head)

    def part(self, offset: int, limit: int, *, final: bool) -> tuple[str, int]:
        """Return a part of what is kept as text, and where the next one begins.

        A letter or a color whose end has not come yet is left for the next part, unless this is
        the `final` word.
        """
        piece = bytes(self._head[offset : offset + limit])
        last = final and offset + len(piece) >= len(self._head)
        text, used = codecs.utf_8_decode(piece, "replace", last)
        if not last and (cut := _CUT_ESCAPE.search(text)) is not None and cut.start():
            used = len(codecs.utf_8_decode(piece, "replace", False)[0][: cut.start()].encode())
            used = min(used, len(piece))
            text = text[: cut.start()]
        return _unpainted(text), offset + used

    def tail(self) -> str:
        """Return the end of an output that was cut, where failures usually stand."""
        end = b"".join(self._end)
        if self._terminal:
            end = end.replace(b"\r\n", b"\n")
        end = (self._rest + end)[-TAIL_BYTES:]
        # It may begin in the middle of a letter.
        return readable(end[:3].lstrip(_CONTINUES) + end[3:])


def cut_mark(limit_bytes: int) -> str:
    """Return what stands at the end of an output that was cut."""
    if limit_bytes == OUTPUT_LIMIT_BYTES:
        return CUT_MARK
    return f"\n[output truncated — {limit_bytes // _KB} KB limit]"


def readable(raw: bytes) -> str:
    """Decode terminal output: bad bytes replaced, no colours or cursor moves."""
    return _unpainted(raw.decode("utf-8", errors="replace"))


def _unpainted(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text
