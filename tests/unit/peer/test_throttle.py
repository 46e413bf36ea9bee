from __future__ import annotations

from kaged.base import ManualClock
from kaged.peer.throttle import Throttle


def test_a_flood_is_held_back_for_the_rest_of_its_second(clock: ManualClock) -> None:
    throttle = Throttle(100, clock)
    clock.advance(0.25)
    assert [throttle.took_one() for _ in range(99)] == [0.0] * 99
    assert throttle.took_one() == 0.75


def test_the_next_window_starts_when_reading_does(clock: ManualClock) -> None:
    throttle = Throttle(2, clock)
    throttle.took_one()
    assert throttle.took_one() == 1.0
    clock.advance(1.0)
    throttle.took_one()
    assert throttle.took_one() == 1.0


def test_a_steady_trickle_is_never_held_back(clock: ManualClock) -> None:
    throttle = Throttle(10, clock)
    for _ in range(100):
        clock.advance(0.2)
        assert throttle.took_one() == 0.0


def test_the_window_may_be_short(clock: ManualClock) -> None:
    throttle = Throttle(2, clock, 0.25)
    assert throttle.took_one() == 0.0
    assert throttle.took_one() == 0.25
    clock.advance(1.0)
    throttle.took_one()
    assert throttle.took_one() == 0.0
