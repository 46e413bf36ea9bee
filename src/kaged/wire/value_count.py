"""`ValueCounter`: how many values a JSON message holds, found before any of them is made.

A value takes two bytes on the wire and a hundred times that in work: a guest's line of four
megabytes can hold two million. The count is a fraction of the work, and it is done in pieces, so
that nobody waits for the whole of it.
"""

from __future__ import annotations

from typing import Final

MESSAGE_VALUES: Final = 50_000
"""How many values a message of a guest may hold.

Members and elements count; an empty list or object counts twice. What takes a decoder's time
without being a value counts as some: digits of long numbers and escapes in texts.
"""
BYTES_PER_VALUE: Final = 2
"""A message that is shorter than two bytes for each permitted value needs no counting."""
PIECE_BYTES: Final = 64 * 1024

DIGITS_PER_VALUE: Final = 32
ESCAPES_PER_VALUE: Final = 16

_DIGITS: Final = b"0123456789"
_KEPT: Final = b'",[{' + _DIGITS
_NOT_KEPT: Final = bytes(byte for byte in range(256) if byte not in _KEPT)
_BACKSLASH: Final = ord("\\")


class ValueCounter:
    """Counts the values of one message, piece by piece; `step` until it says that it is done.

    Text that is not JSON gets some count as well: the decoder refuses it afterwards.
    """

    __slots__ = ("_at", "_data", "_digits", "_escapes", "_in_text", "_limit", "_marks")

    def __init__(self, data: bytes, limit: int = MESSAGE_VALUES) -> None:
        self._data = data
        self._limit = limit
        self._at = 0
        self._in_text = False
        self._marks = 1
        self._digits = 0
        self._escapes = 0

    @property
    def count(self) -> int:
        """Return how many values were counted so far."""
        work = self._digits // DIGITS_PER_VALUE + self._escapes // ESCAPES_PER_VALUE
        return self._marks + work

    @property
    def is_over(self) -> bool:
        """Whether there are more values than the limit, as far as was counted."""
        return self.count > self._limit

    def step(self) -> bool:
        """Count one piece; return whether there is more to count."""
        piece = self._next_piece()
        if b"\\" in piece:
            # Backslashes occur in text only. Pairs go first, so that what is left before a quote
            # really escapes it.
            whole = len(piece)
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            self._escapes += (whole - len(piece)) // 2 + piece.count(b"\\")
        marks = piece.translate(None, _NOT_KEPT)
        parts = marks.split(b'"')
        outside = b"".join(parts[1::2] if self._in_text else parts[::2])
        self._in_text ^= len(parts) % 2 == 0
        # Each comma parts two values, each bracket holds one that no comma stands before.
        structure = outside.translate(None, _DIGITS)
        self._marks += len(structure)
        self._digits += len(outside) - len(structure)
        return self._at < len(self._data) and not self.is_over

    def _next_piece(self) -> bytes:
        data, start = self._data, self._at
        end = min(start + PIECE_BYTES, len(data))
        last = end - 1
        while last >= start and data[last] == _BACKSLASH:
            last -= 1
        if (end - 1 - last) % 2:
            end += 1  # what the last backslash escapes belongs to it
        self._at = end
        return data[start:end]


def holds_more_values(data: bytes, limit: int = MESSAGE_VALUES) -> bool:
    """Return whether a message holds more values than the limit, counted in one go."""
    if len(data) <= limit * BYTES_PER_VALUE:
        return False
    counter = ValueCounter(data, limit)
    while counter.step():
        pass
    return counter.is_over
