"""Sortable ids: monotonic ULIDs, bare or with a tag such as `ses_`."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.base.clock import Clock

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_RANDOM_MAX = (1 << _RANDOM_BITS) - 1
_TIME_MAX = (1 << 48) - 1
_LENGTH = 26
_ULID_MAX = (1 << 128) - 1
_STEP_BITS = 40
_TAIL_CHARS = 6
_TAIL_BITS = 5 * _TAIL_CHARS


class Ids:
    """Makes ULIDs that always increase, even within one millisecond or when the clock jumps back.

    Safe to call from several threads. An id tells its creation time to a millisecond; never use
    one as a secret.
    """

    def __init__(self, clock: Clock, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._last = -1
        self._head = -1
        self._head_text = ""
        self._lock = threading.Lock()

    def ulid(self) -> str:
        """Make a new 26-character id, greater than every id made before by this object."""
        with self._lock:
            now_ms = min(max(self._clock.now_ms(), 0), _TIME_MAX)
            # Same millisecond, or the wall clock went back: count on from the last id, so order
            # of creation stays order of ids whatever the clock does.
            if now_ms <= self._last >> _RANDOM_BITS:
                fresh = self._last + 1
            else:
                fresh = (now_ms << _RANDOM_BITS) | self._random_bits(_RANDOM_BITS)
            self._last = fresh
            # Within a millisecond only the end changes: an id is made for every audit row.
            head = fresh >> _TAIL_BITS
            if head != self._head:
                self._head, self._head_text = head, _encode(fresh)[:-_TAIL_CHARS]
            return self._head_text + "".join(
                [_PAIRS[fresh >> shift & 1023] for shift in _TAIL_SHIFTS]
            )

    def ulid_after(self, last: str | None) -> str:
        """Make a new id that is greater than `last` too, whoever made that one.

        For chains that outlive this object: the clock may have gone back since, or the last id
        came from a machine whose clock is ahead. Raises ValueError if `last` is no ULID.
        """
        fresh = self.ulid()
        if last is None or fresh > last:
            return fresh
        # Not the very next: two chains that go on from one id must not meet.
        return _encode(min(_decode(last) + 1 + self._random_bits(_STEP_BITS), _ULID_MAX))

    def tagged(self, tag: str) -> str:
        """Make an id such as `ses_01J…`; ids with one tag sort by creation."""
        return f"{tag}_{self.ulid()}"


def ulid_time_ms(ulid: str) -> int:
    """Read the creation time out of a bare ULID. Raises ValueError for anything else."""
    return _decode(ulid) >> _RANDOM_BITS


def _decode(ulid: str) -> int:
    if len(ulid) != _LENGTH:
        raise ValueError(f"a ULID has {_LENGTH} characters, this has {len(ulid)}")
    value = 0
    for char in ulid:
        value = (value << 5) | _ALPHABET.index(char)
    if value > _ULID_MAX:
        raise ValueError("a ULID has 128 bits, this has more")
    return value


# Two characters at a time: an id is made for every audit row, so this is a hot path.
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_SHIFTS = tuple(range(120, -1, -10))
_TAIL_SHIFTS = _SHIFTS[-_TAIL_CHARS // 2 :]


def _encode(value: int) -> str:
    return "".join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])
