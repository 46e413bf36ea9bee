"""Time as a collaborator: `Clock`, the real `SystemClock` and the test's `ManualClock`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the host needs to know about time.

    `now_ms` is wall time and may jump either way; `monotonic_s` never goes back and is the one to
    measure durations and deadlines with.
    """

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


_latest_s = [0.0]
"""The latest monotonic time that this process has seen."""


def _forward_s() -> float:
    # The kernel promises that this clock never goes back, and on virtual machines whose processors
    # disagree it does, by tens of milliseconds, whenever a thread is moved to the other one. Then
    # a call took less than nothing, and a bucket lost tokens by being looked at.
    now_s = time.monotonic()
    if now_s < _latest_s[0]:
        return _latest_s[0]
    _latest_s[0] = now_s
    return now_s


class SystemClock:
    """The machine's clock. Its monotonic time stands still where the machine's goes back."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(_forward_s)
    """Return seconds on a clock that never goes back."""


class ManualClock:
    """A clock that a test owns; it moves only when told."""

    def __init__(self, now_ms: int = 1_767_225_600_000, monotonic_s: float = 1000.0) -> None:
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the Unix epoch."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        if seconds < 0:
            raise ValueError("a monotonic clock never goes back; use set_wall to jump wall time")
        self._now_ms += round(seconds * 1000)
        self._monotonic_s += seconds

    def set_wall(self, now_ms: int) -> None:
        """Let wall time jump, forwards or backwards, as an administrator or NTP would."""
        self._now_ms = now_ms


def iso_utc(ts_ms: int) -> str:
    """Write a wall time as ISO 8601 in UTC with milliseconds, e.g. `2026-01-01T00:00:00.000Z`."""
    moment = datetime.fromtimestamp(ts_ms // 1000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ts_ms % 1000:03d}Z"
