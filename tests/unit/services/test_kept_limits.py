"""Counts of calls that outlive the daemon."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from kaged.base import JsonValue, ManualClock
from kaged.services.errors import CapabilityRateLimited
from kaged.services.limits import KEPT_BUCKETS, Rate, RateLimits, RateRules

RULES = {"gog": RateRules(invoke=Rate(60, 2), per_day=3)}


def _call(limits: RateLimits, user: str = "ann") -> None:
    limits.require_invoke(user, "gog", "gog.email", mutating=False)


def _next(before: RateLimits, clock: ManualClock) -> RateLimits:
    after = RateLimits(clock, RULES)
    after.restore(before.snapshot())
    return after


def test_a_restart_grants_nothing(clock: ManualClock) -> None:
    limits = RateLimits(clock, RULES)
    _call(limits)
    _call(limits)
    after = _next(limits, clock)
    with pytest.raises(CapabilityRateLimited):
        _call(after)
    _call(after, "bob")


def test_time_that_passes_between_two_daemons_counts(clock: ManualClock) -> None:
    limits = RateLimits(clock, RULES)
    _call(limits)
    _call(limits)
    kept = limits.snapshot()
    clock.advance(2.0)
    after = RateLimits(clock, RULES)
    after.restore(kept)
    _call(after)  # two seconds gave two calls of the minute back; of the day one is left
    with pytest.raises(CapabilityRateLimited):
        _call(after)


def test_a_call_that_its_rate_refuses_takes_nothing_of_the_day(clock: ManualClock) -> None:
    rules = {"gog": RateRules(invoke=Rate(60, 2), mutating=Rate(60, 1), per_day=4)}
    limits = RateLimits(clock, rules)
    limits.require_invoke("ann", "gog", "gog.email", mutating=True)
    for _ in range(5):  # too many of those that change something: no call of the minute either
        with pytest.raises(CapabilityRateLimited):
            limits.require_invoke("ann", "gog", "gog.email", mutating=True)
    _call(limits)
    for _ in range(5):
        with pytest.raises(CapabilityRateLimited):
            _call(limits)
    clock.advance(2.0)
    _call(limits)
    _call(limits)
    clock.advance(2.0)
    with pytest.raises(CapabilityRateLimited, match="the 4 calls of this day"):
        _call(limits)


@pytest.mark.parametrize(
    ("zone", "left_s"), [("UTC", 600), ("Asia/Tokyo", 600 + 15 * 3600), ("America/Lima", 18600)]
)
def test_a_day_ends_at_midnight_in_the_operators_zone(zone: str, left_s: int) -> None:
    clock = ManualClock(1_767_225_600_000 - 600_000)  # ten minutes before 2026 in UTC
    rules = {"gog": RateRules(per_day=2)}
    limits = RateLimits(clock, rules, zone=ZoneInfo(zone))
    for _ in range(2):  # the second day as well
        _call(limits)
        _call(limits)
        with pytest.raises(CapabilityRateLimited) as refused:
            _call(limits)
        assert refused.value.data["retry_after_seconds"] == left_s
        clock.advance(left_s - 1)
        with pytest.raises(CapabilityRateLimited):
            _call(limits)
        clock.advance(1)
        left_s = 86_400
    # What is kept over a restart is of its day.
    _call(limits)
    after = RateLimits(clock, rules, zone=ZoneInfo(zone))
    after.restore(limits.snapshot())
    _call(after)
    with pytest.raises(CapabilityRateLimited):
        _call(after)


def test_only_what_was_counted_is_worth_writing(clock: ManualClock) -> None:
    limits = RateLimits(clock, RULES)
    assert not limits.changed
    limits.require_invoke("ann", "other", "other.thing", mutating=True)
    assert not limits.changed
    _call(limits)
    assert limits.changed


@pytest.mark.parametrize(
    "kept", [{}, {"buckets": 1}, {"buckets": [1, [], [["day"], "x", 1], [["day"], 1.0], None]}]
)
def test_what_is_no_snapshot_is_passed_over(clock: ManualClock, kept: dict[str, JsonValue]) -> None:
    limits = RateLimits(clock, RULES)
    limits.restore(kept)
    _call(limits)


def test_a_snapshot_holds_the_latest_counts_and_no_more(clock: ManualClock) -> None:
    limits = RateLimits(clock, {"gog": RateRules(invoke=Rate(60, 2))})
    for number in range(KEPT_BUCKETS + 5):
        _call(limits, f"u{number}")
    kept = limits.snapshot()["buckets"]
    assert isinstance(kept, list)
    assert len(kept) == KEPT_BUCKETS
    assert kept[-1] == [["invoke", f"u{KEPT_BUCKETS + 4}", "gog.email"], 1.0, clock.now_ms()]


def test_a_clock_that_was_set_back_makes_no_calls_from_the_future(clock: ManualClock) -> None:
    limits = RateLimits(clock, RULES)
    _call(limits)
    _call(limits)
    later: list[JsonValue] = [[["invoke", "ann", "gog.email"], 0.0, clock.now_ms() + 10**9]]
    after = RateLimits(clock, RULES)
    after.restore({"buckets": later})
    with pytest.raises(CapabilityRateLimited) as refused:
        _call(after)
    assert refused.value.data["retry_after_seconds"] == 1
