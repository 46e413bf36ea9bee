from __future__ import annotations

import time

import pytest

from kaged.base import ManualClock, SystemClock, iso_utc
from kaged.base import clock as clock_module


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1000, monotonic_s=5.0)
    assert (clock.now_ms(), clock.monotonic_s()) == (1000, 5.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (2500, 6.5)


def test_monotonic_time_cannot_be_moved_back() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        ManualClock().advance(-1)


def test_wall_time_may_jump_without_touching_monotonic_time() -> None:
    clock = ManualClock(now_ms=1000, monotonic_s=5.0)
    clock.set_wall(1)
    assert (clock.now_ms(), clock.monotonic_s()) == (1, 5.0)


def test_the_system_clock_agrees_with_itself() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic_s() <= clock.monotonic_s()


def test_monotonic_time_stands_still_where_the_machine_s_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processors of one machine may disagree by tens of milliseconds."""
    far_s = time.monotonic() + 1_000_000.0
    readings = iter([far_s, far_s - 0.05, far_s - 0.01, far_s + 0.02, far_s + 0.01])
    monkeypatch.setattr(clock_module, "_latest_s", [0.0])
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: next(readings))
    first, second = SystemClock(), SystemClock()  # they are one clock
    told = [one.monotonic_s() for one in (first, second, first, second, first)]
    assert told == [far_s, far_s, far_s, far_s + 0.02, far_s + 0.02]


def test_wall_time_follows_the_machine_s_except_for_small_steps_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ends is not stamped before it began, and who sets the clock back is obeyed."""
    steps_ms = [5000, 4950, 4990, 5001, 4001, 4000, 9000]
    readings = iter(steps_ms)
    monkeypatch.setattr(clock_module, "_latest_ms", [0])
    monkeypatch.setattr(clock_module.time, "time_ns", lambda: next(readings) * 1_000_000)
    told = [SystemClock().now_ms() for _ in steps_ms]
    assert told == [5000, 5000, 5000, 5001, 4001, 4001, 9000]


@pytest.mark.parametrize(
    ("ts_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_600_007, "2026-01-01T00:00:00.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_times_are_written_in_utc_with_milliseconds(ts_ms: int, text: str) -> None:
    assert iso_utc(ts_ms) == text
