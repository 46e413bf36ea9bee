"""Time as a collaborator: `Clock`, the real `SystemClock` and the test's `ManualClock`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, Protocol


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


STEADY_MS: Final = 1000
"""By less than this wall time does not go back: it stands still until the machine has caught up."""

# On virtual machines whose processors disagree, both clocks go back by tens of milliseconds when a
# thread is moved to another one, though the kernel promises otherwise for the monotonic one. Then
# a call took less than nothing, ended before it began, and a bucket lost tokens by being looked at.
_latest_s = [0.0]
_latest_ms = [0]


def _wall_ms() -> int:
    now_ms = time.time_ns() // 1_000_000
    if 0 < _latest_ms[0] - now_ms < STEADY_MS:
        return _latest_ms[0]
    _latest_ms[0] = now_ms
    return now_ms


def _forward_s() -> float:
    now_s = time.monotonic()
    if now_s < _latest_s[0]:
        return _latest_s[0]
    _latest_s[0] = now_s
    return now_s


class SystemClock:
    """The machine's clock, made steady: where the machine's goes back a little, it stands still."""

    __slots__ = ()

    now_ms = staticmethod(_wall_ms)
    """Return wall time in milliseconds since the Unix epoch."""

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
