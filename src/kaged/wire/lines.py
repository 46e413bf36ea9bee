"""`LineFramer`: one message per line, ended by a line feed (plugins, Lua workers, warm bridges)."""

from __future__ import annotations

from typing import NoReturn

from kaged.wire.framing import OversizeMessage, Unsendable, refuse_input, refuse_oversize

# PH-AMB-33: counted without the line feed; exactly this many bytes pass, one more does not.
LINE_LIMIT_BYTES = 4 * 1024 * 1024

_LINE_FEED = b"\n"


class LineFramer:
    """Bytes in, lines out, without their line feeds.

    A line longer than `limit_bytes` ends the conversation: `feed` raises OversizeMessage as soon
    as the unfinished line is over the limit (it does not wait for the line feed, PH-WIRE-08) and
    the framer refuses further input. No byte is looked at twice, however small the chunks are.
    A carriage return before the line feed stays in the line: it is white space to JSON.
    """

    __slots__ = ("_broken", "_buffer", "_limit")

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """Count the bytes held of the unfinished line; never more than the limit."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what arrived and return every line that is now complete.

        Raises:
            OversizeMessage: a line is over the limit; `complete` has the lines before it.
            FramerClosed: that happened earlier.
        """
        if self._broken:
            refuse_input()
        lines: list[bytes] = []
        if self._buffer:
            end = chunk.find(_LINE_FEED)
            self._keep(chunk if end < 0 else chunk[:end], lines)
            if end < 0:
                return lines
            lines.append(bytes(self._buffer))
            self._buffer.clear()
            chunk = chunk[end + 1 :]
        # Nothing is pending, so a chunk within the limit cannot hold a line over it: the common
        # case is one split in C.
        if len(chunk) <= self._limit:
            parts = chunk.split(_LINE_FEED)
            self._buffer += parts.pop()
            return lines + parts if lines else parts
        return self._feed_long(chunk, lines)

    def encode(self, payload: bytes) -> bytes:
        """Return the line to write for one message, with this framer's limit."""
        return encode_line(payload, self._limit)

    def _feed_long(self, chunk: bytes, lines: list[bytes]) -> list[bytes]:
        start = 0
        while (end := chunk.find(_LINE_FEED, start)) >= 0:
            if end - start > self._limit:
                self._break(lines)
            lines.append(chunk[start:end])
            start = end + 1
        self._keep(chunk[start:], lines)
        return lines

    def _keep(self, piece: bytes, lines: list[bytes]) -> None:
        if len(self._buffer) + len(piece) > self._limit:
            self._break(lines)
        self._buffer += piece

    def _break(self, lines: list[bytes]) -> NoReturn:
        self._broken = True
        self._buffer.clear()
        error = OversizeMessage(
            f"a line is longer than {self._limit} bytes",
            fix="send less in one message",
            limit_bytes=self._limit,
        )
        error.complete = tuple(lines)
        raise error


def encode_line(payload: bytes, limit_bytes: int = LINE_LIMIT_BYTES) -> bytes:
    r"""Return one line for a serialised message: the payload and a single line feed.

    Raises:
        Unsendable: the payload is over the limit, or holds a raw line feed and would be two lines.
    """
    if len(payload) > limit_bytes:
        refuse_oversize("line", len(payload), limit_bytes)
    if _LINE_FEED in payload:
        raise Unsendable(
            "the message holds a raw line feed and would be read as two lines",
            fix="serialise it as compact JSON, which escapes line feeds in text",
        )
    return payload + _LINE_FEED
