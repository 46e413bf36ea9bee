"""`Throttle`: how many unasked messages of a peer are handled in a stretch of time."""

from __future__ import annotations

from kaged.base import Clock


class Throttle:
    """Counts messages in windows of time and says how long to stop reading.

    A peer that writes faster than its share is held back by its own full pipe; nothing of it is
    lost or queued here, and other peers keep their turn on the event loop.
    """

    __slots__ = ("_clock", "_count", "_limit", "_window_s", "_window_start_s")

    def __init__(self, limit: int, clock: Clock, window_s: float = 1.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._clock = clock
        self._window_start_s = clock.monotonic_s()
        self._count = 0

    def took_one(self) -> float:
        """Count one message; return the seconds to stop reading for, 0 while within the share."""
        self._count += 1
        if self._count < self._limit:
            return 0.0
        now_s = self._clock.monotonic_s()
        left_s = self._window_start_s + self._window_s - now_s
        self._count = 0
        self._window_start_s = now_s + max(left_s, 0.0)
        return max(left_s, 0.0)
