"""`ContentLengthFramer`: a `Content-Length` header before each message (LSP and DAP)."""

from __future__ import annotations

import re
from enum import StrEnum

from kaged.wire.framing import FramingError, OversizeMessage, refuse_input, refuse_oversize

# Language servers answer with whole workspaces; this is a stop for a broken peer, not a quota.
CONTENT_LIMIT_BYTES = 64 * 1024 * 1024
# The whole header block with its blank line. Real ones are under 100 bytes.
HEADER_LIMIT_BYTES = 8 * 1024

_END = b"\r\n\r\n"
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
# More digits than any length we would accept; checked before they become a number.
_LENGTH_DIGITS = 19


class HeaderFault(StrEnum):
    """What is wrong with a header block."""

    MISSING_LENGTH = "missing_length"
    DUPLICATE_LENGTH = "duplicate_length"
    BAD_LENGTH = "bad_length"
    BAD_LINE = "bad_line"
    BARE_LINE_FEED = "bare_line_feed"
    TOO_LONG = "too_long"


class HeaderInvalid(FramingError):
    """A header block cannot be understood, so the start of the next message is unknown."""

    code = "protocol.bad_header"

    def __init__(self, fault: HeaderFault) -> None:
        super().__init__(
            f"the message header is invalid ({fault})",
            fix="the peer must write 'Content-Length: <bytes>', CR LF, CR LF and nothing else",
            fault=fault.value,
        )
        self.fault = fault


class ContentLengthFramer:
    """Bytes in, message bodies out; lengths count bytes, not characters.

    Header names are matched without regard to case and headers other than `Content-Length` are
    skipped. A length that is absent, given twice, negative, not plain digits or over
    `limit_bytes`, and a header block that is malformed or over the header limit, end the
    conversation with a typed error.
    """

    __slots__ = ("_broken", "_buffer", "_header_limit", "_limit", "_need")

    def __init__(
        self,
        limit_bytes: int = CONTENT_LIMIT_BYTES,
        header_limit_bytes: int = HEADER_LIMIT_BYTES,
    ) -> None:
        self._limit = limit_bytes
        self._header_limit = header_limit_bytes
        self._buffer = bytearray()  # the unfinished header, or the unfinished body
        self._need = -1  # length of the body being read; -1 while its header is incomplete
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """Count the bytes held of an unfinished header or body; never more than their limits."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what arrived and return every body that is now complete.

        Raises:
            HeaderInvalid: a header block is malformed; `fault` says how.
            OversizeMessage: a body announces more than the limit.
            FramerClosed: one of these happened earlier.
        """
        if self._broken:
            refuse_input()
        bodies: list[bytes] = []
        at = 0
        try:
            while at < len(chunk):
                if self._need < 0:
                    at = self._read_header(chunk, at)
                if self._need >= 0:
                    at = self._read_body(chunk, at, bodies)
        except FramingError as error:
            self._broken = True
            self._buffer.clear()
            error.complete = tuple(bodies)
            raise
        return bodies

    def encode(self, payload: bytes) -> bytes:
        """Return the header and body to write for one message, with this framer's limit."""
        return encode_content(payload, self._limit)

    def _read_header(self, chunk: bytes, at: int) -> int:
        buffer = self._buffer
        held = len(buffer)
        if not held:
            # The usual case: the whole header lies in this chunk and is never copied.
            end = chunk.find(_END, at, at + self._header_limit)
            if end >= 0:
                self._need = _parse_length(chunk[at:end], self._limit)
                return end + len(_END)
        piece = chunk[at : at + self._header_limit - held]
        buffer += piece
        end = buffer.find(_END, max(held - len(_END) + 1, 0))
        if end < 0:
            if _BARE_LINE_FEED.search(buffer, max(held - 1, 0)):
                raise HeaderInvalid(HeaderFault.BARE_LINE_FEED)
            if len(buffer) >= self._header_limit:
                raise HeaderInvalid(HeaderFault.TOO_LONG)
            return at + len(piece)
        self._need = _parse_length(bytes(buffer[:end]), self._limit)
        buffer.clear()
        return at + end + len(_END) - held

    def _read_body(self, chunk: bytes, at: int, bodies: list[bytes]) -> int:
        stop = at + self._need - len(self._buffer)
        piece = chunk[at:stop]
        if stop > len(chunk):
            self._buffer += piece
            return len(chunk)
        if self._buffer:
            self._buffer += piece
            piece = bytes(self._buffer)
            self._buffer.clear()
        bodies.append(piece)
        self._need = -1
        return stop


def _parse_length(header: bytes, limit_bytes: int) -> int:
    found = header.removeprefix(b"Content-Length: ")
    # What nearly every peer writes, and nothing else, needs no further reading.
    if len(found) == len(header) or not found.isdigit():
        found = _find_length(header)
    if len(found) > _LENGTH_DIGITS or int(found) > limit_bytes:
        raise OversizeMessage(
            f"a message announces more than {limit_bytes} bytes",
            fix="raise the limit of this connection if the peer really needs it",
            limit_bytes=limit_bytes,
        )
    return int(found)


def _find_length(header: bytes) -> bytes:
    if _BARE_LINE_FEED.search(header):
        raise HeaderInvalid(HeaderFault.BARE_LINE_FEED)
    found: bytes | None = None
    for line in header.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or b"\r" in line:
            raise HeaderInvalid(HeaderFault.BAD_LINE)
        if name.strip(b" \t").lower() == b"content-length":
            if found is not None:
                raise HeaderInvalid(HeaderFault.DUPLICATE_LENGTH)
            found = value.strip(b" \t")
    if found is None:
        raise HeaderInvalid(HeaderFault.MISSING_LENGTH)
    if not found.isdigit():  # of bytes: ASCII digits only, so no sign, blank or other script
        raise HeaderInvalid(HeaderFault.BAD_LENGTH)
    return found


def encode_content(payload: bytes, limit_bytes: int = CONTENT_LIMIT_BYTES) -> bytes:
    """Return the header block and the payload.

    Raises:
        Unsendable: the payload is over the limit.
    """
    if len(payload) > limit_bytes:
        refuse_oversize("message body", len(payload), limit_bytes)
    return b"Content-Length: %d\r\n\r\n%b" % (len(payload), payload)
