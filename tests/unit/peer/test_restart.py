from __future__ import annotations

import random

import pytest

from kaged.peer.restart import Again, GiveUp, RestartPolicy
from kaged.plugins.parts import HostSettings
from requirements import requirement


@requirement("PH-BEY-11")
def test_delays_are_spread_by_a_tenth_at_most() -> None:
    shares = iter([0.0, 0.5, 1.0, 0.25])
    policy = RestartPolicy(lambda: next(shares))
    delays: list[float] = []
    for number in range(4):
        verdict = policy.failed(float(number))
        assert isinstance(verdict, Again)
        delays.append(verdict.delay_s)
    assert delays == pytest.approx([1.0, 2.1, 4.4, 8.2])
    # What a daemon uses is random; switched off, delays are the table's.
    assert HostSettings(daemon_version="1").restart_spread is random.random
    plain = RestartPolicy(None).failed(0.0)
    assert isinstance(plain, Again)
    assert plain.delay_s == 1.0


@requirement("PH-SUP-21")
def test_delays_double_up_to_a_minute() -> None:
    policy = RestartPolicy()
    now_s = 0.0
    delays: list[float] = []
    for _ in range(9):
        now_s += 200.0  # at most four failures ever lie in one window, so it never gives up
        verdict = policy.failed(now_s)
        assert isinstance(verdict, Again)
        delays.append(verdict.delay_s)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@requirement("PH-AMB-35")
def test_five_quick_failures_end_the_tries_and_wide_ones_do_not() -> None:
    quick = RestartPolicy()
    verdicts = [quick.failed(float(n)) for n in range(5)]
    assert verdicts[:4] == [Again(1), Again(2), Again(4), Again(8)]
    assert verdicts[4] == GiveUp(5)
    wide = RestartPolicy()
    spaced = [wide.failed(n * 540.0) for n in range(6)]
    assert spaced == [Again(1), Again(2), Again(4), Again(8), Again(16), Again(32)]


def test_ten_minutes_of_running_end_a_series() -> None:
    policy = RestartPolicy()
    for n in range(4):
        policy.failed(float(n))
    policy.running(10.0)
    assert policy.failed(610.0) == Again(1)
    assert policy.failures == 1


def test_a_short_run_does_not_end_a_series() -> None:
    policy = RestartPolicy()
    for n in range(4):
        policy.failed(float(n))
    policy.running(10.0)
    assert policy.failed(500.0) == GiveUp(5)


def test_the_operator_resets_the_series() -> None:
    policy = RestartPolicy()
    for n in range(5):
        policy.failed(float(n))
    policy.reset()
    assert policy.failures == 0
    assert policy.failed(6.0) == Again(1)
