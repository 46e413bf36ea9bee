from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import Ids, ManualClock, SystemClock
from kaged.base.ids import ulid_time_ms


def test_ids_made_in_one_millisecond_still_increase() -> None:
    ids = Ids(ManualClock())
    made = [ids.ulid() for _ in range(1000)]
    assert made == sorted(set(made))


def test_ids_increase_when_the_wall_clock_jumps_back() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    before = ids.ulid()
    clock.set_wall(clock.now_ms() - 86_400_000)
    assert ids.ulid() > before


def test_ids_increase_when_the_random_part_is_at_its_end() -> None:
    clock = ManualClock(now_ms=5)
    ids = Ids(clock, random_bits=lambda bits: (1 << bits) - 1)
    first, second = ids.ulid(), ids.ulid()
    assert second > first
    assert ulid_time_ms(second) == 6


@given(st.lists(st.integers(min_value=-10_000, max_value=10_000), max_size=50))
def test_ids_increase_whatever_the_clock_does(steps: list[int]) -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = [ids.ulid()]
    for step in steps:
        clock.set_wall(clock.now_ms() + step)
        made.append(ids.ulid())
    assert all(a < b for a, b in itertools.pairwise(made))


@given(st.integers(min_value=0, max_value=(1 << 48) - 1))
def test_an_id_tells_its_creation_time(now_ms: int) -> None:
    assert ulid_time_ms(Ids(ManualClock(now_ms=now_ms)).ulid()) == now_ms


@pytest.mark.parametrize("text", ["", "short", "U" * 26, "0" * 27])
def test_what_is_not_an_id_has_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"ULID|substring"):
        ulid_time_ms(text)


def test_a_tag_stands_in_front() -> None:
    tag, _, rest = Ids(ManualClock()).tagged("ses").partition("_")
    assert tag == "ses"
    assert len(rest) == 26


def test_threads_never_get_the_same_id() -> None:
    ids = Ids(SystemClock())
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.ulid(), range(4000)))
    assert len(set(made)) == 4000


def test_an_id_can_be_made_greater_than_one_that_another_object_made() -> None:
    """As after a restart with the clock set back, or behind an id from a machine ahead of us."""
    ahead = Ids(ManualClock(now_ms=2_000_000))
    last = ahead.ulid()
    ids = Ids(ManualClock(now_ms=1_000_000))
    made: list[str] = []
    for _ in range(100):
        last = ids.ulid_after(last)
        made.append(last)
    assert made == sorted(set(made))
    assert made[0] > ahead.ulid()[:10]
    assert ids.ulid_after(None) < made[0]
    assert ids.ulid_after("0" * 26) > "0" * 26


def test_two_chains_that_go_on_from_one_id_do_not_meet() -> None:
    last = Ids(ManualClock(now_ms=2_000_000)).ulid()
    ids = Ids(ManualClock(now_ms=1_000_000))
    first = [ids.ulid_after(last) for _ in range(100)]
    assert len(set(first)) == 100


@pytest.mark.parametrize("last", ["short", "~" * 26, "Z" * 26])
def test_nothing_is_made_behind_what_is_no_id(last: str) -> None:
    with pytest.raises(ValueError, match=r"ULID|substring"):
        Ids(ManualClock(now_ms=5)).ulid_after(last)
