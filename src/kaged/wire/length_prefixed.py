"""`LengthPrefixFramer`: four bytes of length, then the message (the socket `ash-sb` talks to)."""

from __future__ import annotations

from kaged.wire.framing import OversizeMessage, refuse_input, refuse_oversize

# SC-AMB-33: each way.
FRAME_LIMIT_BYTES = 10 * 1024 * 1024
PREFIX_BYTES = 4


class LengthPrefixFramer:
    """Bytes in, frames out; the length is four bytes, big-endian, and counts the message only.

    An announced length over `limit_bytes` raises OversizeMessage at once, before any of that
    message is kept, and the framer refuses further input.
    """

    __slots__ = ("_broken", "_buffer", "_limit", "_need")

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._need = -1  # length of the frame being read; -1 while its prefix is incomplete
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """Count the bytes held of an unfinished prefix or frame; never more than the limit."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what arrived and return every frame that is now complete.

        Raises:
            OversizeMessage: a frame announces more than the limit; `complete` has those before it.
            FramerClosed: that happened earlier.
        """
        if self._broken:
            refuse_input()
        frames: list[bytes] = []
        at = 0
        while True:
            wanted = PREFIX_BYTES if self._need < 0 else self._need
            stop = at + wanted - len(self._buffer)
            if stop > len(chunk):
                self._buffer += chunk[at:]
                return frames
            piece = chunk[at:stop]
            at = stop
            if self._buffer:
                self._buffer += piece
                piece = bytes(self._buffer)
                self._buffer.clear()
            if self._need < 0:
                self._need = self._length(piece, frames)
            else:
                frames.append(piece)
                self._need = -1

    def encode(self, payload: bytes) -> bytes:
        """Return the frame to write for one message, with this framer's limit."""
        return encode_frame(payload, self._limit)

    def _length(self, prefix: bytes, frames: list[bytes]) -> int:
        length = int.from_bytes(prefix, "big")
        if length > self._limit:
            self._broken = True
            error = OversizeMessage(
                f"a frame announces {length} bytes and the limit is {self._limit}",
                fix="send less in one message",
                limit_bytes=self._limit,
            )
            error.complete = tuple(frames)
            raise error
        return length


def encode_frame(payload: bytes, limit_bytes: int = FRAME_LIMIT_BYTES) -> bytes:
    """Return the length prefix and the payload.

    Raises:
        Unsendable: the payload is over the limit.
    """
    if len(payload) > limit_bytes:
        refuse_oversize("frame", len(payload), limit_bytes)
    return len(payload).to_bytes(PREFIX_BYTES, "big") + payload
